/* Two programs of one rank that run at the same time: what either writes, the other one leaves
 * alone. Nothing orders the one's instructions against the other's, so any byte that one writes
 * and the other touches, at whatever time, would be a race. Each has groups of its own and threads
 * that wait for nobody of the other (dh_program.beside), so that where all ranks' programs end
 * (dh_programs_verify), both of them do. */
#include <stdlib.h>

#include "program/ranks.h"

/* Bytes of the slab, and the instruction that uses them. */
typedef struct used {
    uint64_t begin, end;
    uint32_t instr;
    bool written;
} used;

typedef DH_VEC(used) used_list;

static bool add(const dh_program *p, uint32_t instr, const dh_operand *o, bool written,
                used_list *list)
{
    if (o->buffer == DH_NONE) return true;
    const uint64_t begin = p->buffers.at[o->buffer].offset + o->byte0;
    return dh_vec_push(list, ((used){begin, begin + o->n_bytes, instr, written}));
}

static bool add_instr(const dh_program *p, uint32_t id, used_list *list)
{
    const dh_instr *i = &p->instrs.at[id];
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, i)->type);
    bool ok = true;
    for (int k = 0; ok && k < info->n_in + info->n_out; k++)
        ok = add(p, id, dh_instr_operand(p, i, k), k >= info->n_in, list);
    if (!ok || i->work == DH_NONE) return ok;
    const dh_operand work = {.buffer = i->work, .n_bytes = p->buffers.at[i->work].n_bytes};
    return add(p, id, &work, true, list);
}

/* Written bytes first; then by place. */
static int by_place(const void *x, const void *y)
{
    const used *a = x, *b = y;
    if (a->written != b->written) return a->written ? -1 : 1;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* Runs that meet or touch become one, with the instruction of the first. */
static void join_runs(used_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const used *u = &list->at[i];
        used *last = n ? &list->at[n - 1] : NULL;
        if (last && last->written == u->written && u->begin <= last->end)
            last->end = DH_MAX(last->end, u->end);
        else
            list->at[n++] = *u;
    }
    list->n = n;
}

static dh_status list_used(dh_ctx *ctx, const dh_program *p, used_list *list)
{
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (!add_instr(p, i, list)) return dh_no_memory(ctx);
    if (list->n) qsort(list->at, list->n, sizeof *list->at, by_place);
    join_runs(list);
    return DH_OK;
}

static size_t n_written(const used_list *list)
{
    size_t n = 0;
    while (n < list->n && list->at[n].written) n++;
    return n;
}

/* The first of runs [begin, end) of `list` that meets one of the written ones of `by`. */
static const used *find_met(const used_list *list, size_t begin, size_t end, const used_list *by,
                            const used **writer)
{
    const size_t n = n_written(by);
    for (size_t i = begin, k = 0; i < end && k < n;) {
        const used *a = &list->at[i], *b = &by->at[k];
        *writer = b;
        if (a->begin < b->end && b->begin < a->end) return a;
        if (a->end <= b->begin)
            i++;
        else
            k++;
    }
    return NULL;
}

/* Check that `b` writes nothing that `a` uses. */
static dh_status check_left_alone(dh_ctx *ctx, const dh_program *a, const used_list *of_a,
                                  const dh_program *b, const used_list *of_b)
{
    const size_t n = n_written(of_a);
    char text[256], other[256];
    const used *writer, *met = find_met(of_a, 0, n, of_b, &writer);
    if (!met) met = find_met(of_a, n, of_a->n, of_b, &writer);
    if (!met) return DH_OK;
    return dh_fail(ctx, DH_EVERIFY,
                   "two programs that run at the same time share bytes %llu to %llu of the slab: "
                   "%s of one %s there, and %s of the other writes",
                   (unsigned long long)DH_MAX(met->begin, writer->begin),
                   (unsigned long long)DH_MIN(met->end, writer->end) - 1,
                   dh_instr_describe(a, met->instr, text, sizeof text),
                   met->written ? "writes" : "reads",
                   dh_instr_describe(b, writer->instr, other, sizeof other));
}

dh_status dh_programs_beside(dh_ctx *ctx, const dh_program *a, const dh_program *b)
{
    used_list of_a = {0}, of_b = {0};
    dh_status st = list_used(ctx, a, &of_a);
    if (st == DH_OK) st = list_used(ctx, b, &of_b);
    if (st == DH_OK && a->beside == b->beside)
        st = dh_fail(ctx, DH_EVERIFY,
                     "two programs that run at the same time need separate streams: exactly one of "
                     "them must be marked as the second");
    if (st == DH_OK) st = check_left_alone(ctx, a, &of_a, b, &of_b);
    if (st == DH_OK) st = check_left_alone(ctx, b, &of_b, a, &of_a);
    dh_vec_fini(&of_a);
    dh_vec_fini(&of_b);
    return st;
}
