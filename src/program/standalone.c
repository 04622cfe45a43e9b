/* Programs of one graph. See standalone.h.
 *
 * Every input or output of such a program has a buffer of its own at the start of the slab. It is a
 * range (DH_TENSOR_RANGE) in the program's copy of the graph, whatever kind the text gave it. The
 * other kinds mean places that only a model's program has. */
#include "program/standalone.h"

#include <stdlib.h>
#include <string.h>

#include "graph/shapes.h"
#include "program/emitter.h"

static uint32_t storage_of(const dh_graph *g, uint32_t id)
{
    const uint32_t base = g->tensors.at[id].base;
    return base == DH_NONE ? id : base;
}

/* ---- what goes in and out ------------------------------------------------------------------ */

/* By tensor that owns storage. */
typedef struct use {
    int64_t rows_written;
    bool given, written, read;
} use;

static void see_read(const dh_graph *g, use *uses, uint32_t id)
{
    if (id == DH_NONE) return;
    use *u = &uses[storage_of(g, id)];
    u->given |= u->rows_written < g->tensors.at[id].shape[0];
    u->read = true;
}

static void see_write(const dh_graph *g, use *uses, uint32_t id, bool updates)
{
    if (id == DH_NONE) return;
    use *u = &uses[storage_of(g, id)];
    u->given |= updates && u->rows_written < g->tensors.at[id].shape[0];
    u->rows_written += g->tensors.at[id].shape[0];
    u->written = true;
}

static void see_ops(const dh_graph *g, use *uses)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        const dh_op_info *info = dh_op_info_of(op->type);
        for (int k = 0; k < info->n_in; k++) see_read(g, uses, op->in[k]);
        for (int k = 0; k < info->n_out; k++) see_write(g, uses, op->out[k], info->out[k].update);
    }
}

static bool is_end(const dh_graph *g, uint32_t id)
{
    const uint32_t ends[] = {g->x_out, g->dx_in, g->loss_dx};
    for (size_t i = 0; i < DH_COUNTOF(ends); i++)
        if (ends[i] != DH_NONE && storage_of(g, ends[i]) == id) return true;
    return false;
}

static bool is_named(const dh_tensor *t, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], t->name) == 0) return true;
    return false;
}

static dh_status check_keep(dh_ctx *ctx, const dh_graph *g, const use *uses, const char *name)
{
    for (uint32_t i = 0; i < g->tensors.n; i++)
        if (strcmp(g->tensors.at[i].name, name) == 0 && uses[i].written) return DH_OK;
    return dh_fail(ctx, DH_EMISSING, "no operator writes a tensor called %.80s", name);
}

static dh_status check_apart(dh_ctx *ctx, const dh_graph *g, const dh_graph_ios *ios)
{
    for (size_t i = 0; i < ios->n; i++)
        for (size_t k = 0; k < i; k++) {
            const dh_tensor *a = &g->tensors.at[ios->at[k].tensor];
            const dh_tensor *b = &g->tensors.at[ios->at[i].tensor];
            if (strcmp(a->name, b->name) == 0)
                return dh_fail(ctx, DH_EINVAL,
                               "%%%u and %%%u are both called %s: what goes in and out is known by "
                               "its name",
                               ios->at[k].tensor, ios->at[i].tensor, a->name);
            if (a->kind != DH_TENSOR_ACT && a->kind == b->kind && a->which == b->which)
                return dh_fail(ctx, DH_EINVAL,
                               "%%%u %s and %%%u %s are of one kind and have the same slot: a slot "
                               "is one tensor",
                               ios->at[k].tensor, a->name, ios->at[i].tensor, b->name);
        }
    return DH_OK;
}

dh_status dh_graph_find_ios(dh_ctx *ctx, const dh_graph *graph, const char *const *keep,
                            size_t n_keep, dh_graph_ios *ios)
{
    *ios = (dh_graph_ios){0};
    use *uses = calloc(graph->tensors.n + 1, sizeof *uses);
    if (!uses) return dh_no_memory(ctx);
    see_ops(graph, uses);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n_keep; i++) st = check_keep(ctx, graph, uses, keep[i]);
    for (uint32_t i = 0; st == DH_OK && i < graph->tensors.n; i++) {
        const dh_tensor *t = &graph->tensors.at[i];
        const bool passing = t->kind == DH_TENSOR_ACT && uses[i].read && !is_end(graph, i) &&
                             !is_named(t, keep, n_keep);
        const dh_graph_io io = {i, uses[i].given, uses[i].written && !passing};
        if ((io.in || io.out) && !dh_vec_push(ios, io)) st = dh_no_memory(ctx);
    }
    free(uses);
    return st == DH_OK ? check_apart(ctx, graph, ios) : st;
}

/* ---- operators ------------------------------------------------------------------------------- */

static dh_status check_group(dh_ctx *ctx, const dh_op *op, uint32_t id, const dh_mesh *mesh,
                             int64_t *n_members)
{
    const char *name = dh_op_info_of(op->type)->name;
    *n_members = 1;
    if (dh_op_info_of(op->type)->resource != DH_RES_COMM) return DH_OK;
    if (op->group < 0 || op->group >= DH_N_GROUPS)
        return dh_fail(ctx, DH_EINVAL, "op %u %s names no group: {group=tp}, for example", id,
                       name);
    *n_members = dh_mesh_group_size(mesh, (dh_group_kind)op->group);
    if (*n_members > 1) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "op %u %s goes over group %s, which has one rank here: --ranks N is "
                   "parallel.tp=N; --set parallel.tp=, dp=, cp=, pp= give other groups",
                   id, name, dh_group_name((dh_group_kind)op->group));
}

dh_status dh_graph_check_alone(dh_ctx *ctx, const dh_graph *graph, const dh_mesh *mesh,
                               uint32_t *op)
{
    for (*op = 0; *op < graph->ops.n; ++*op) {
        int64_t n_members;
        DH_TRY(check_group(ctx, &graph->ops.at[*op], *op, mesh, &n_members));
        DH_TRY(dh_op_check_shapes(ctx, graph, *op, n_members));
    }
    return DH_OK;
}

/* ---- the program ----------------------------------------------------------------------------- */

static dh_status copy_graph(dh_ctx *ctx, const dh_graph *graph, const dh_graph_ios *ios,
                            dh_graph **copy)
{
    dh_graph *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    *g = *graph;
    memset(&g->tensors, 0, sizeof g->tensors);
    memset(&g->ops, 0, sizeof g->ops);
    bool ok = true;
    for (size_t i = 0; ok && i < graph->tensors.n; i++)
        ok = dh_vec_push(&g->tensors, graph->tensors.at[i]);
    for (size_t i = 0; ok && i < graph->ops.n; i++) ok = dh_vec_push(&g->ops, graph->ops.at[i]);
    if (!ok) {
        dh_graph_destroy(g);
        return dh_no_memory(ctx);
    }
    g->kind = DH_BLOCK_PROGRAM;
    for (uint32_t i = 0; i < g->tensors.n; i++)
        for (uint32_t k = 0; k < ios->n; k++) {
            dh_tensor *t = &g->tensors.at[i];
            if (storage_of(g, i) != ios->at[k].tensor) continue;
            t->kind = DH_TENSOR_RANGE;
            t->which = k;
        }
    *copy = g;
    return DH_OK;
}

static dh_status lay_out(dh_ctx *ctx, dh_emitter *e, uint32_t block, const dh_graph_ios *ios)
{
    const dh_graph *g = dh_emit_graph_of(e, block);
    e->n_frames = 1; /* for what belongs to no micro-batch */
    for (uint32_t i = 0; i < ios->n; i++) {
        const dh_tensor *t = &g->tensors.at[ios->at[i].tensor];
        const dh_buffer_kind kind = ios->at[i].in ? DH_BUF_IN : DH_BUF_OUT;
        const uint64_t n_bytes = (uint64_t)dh_tensor_bytes(t);
        uint32_t buffer, range;
        DH_TRY(dh_emit_persistent(ctx, e, kind, block, n_bytes, &buffer));
        e->program->buffers.at[buffer].tensor = ios->at[i].tensor;
        DH_TRY(dh_emit_range(ctx, e, (dh_operand){buffer, 0, n_bytes}, &range));
    }
    return dh_emit_init_params(ctx, e);
}

static dh_status emit(dh_ctx *ctx, dh_emitter *e, dh_graph *graph, const dh_graph_ios *ios)
{
    uint32_t id, block;
    DH_TRY(dh_emit_add_graph(ctx, e, graph, &id));
    DH_TRY(dh_emit_add_block(ctx, e, id, 0, &block));
    DH_TRY(lay_out(ctx, e, block, ios));
    for (uint32_t i = 0; i < e->program->graphs.at[id]->ops.n; i++)
        DH_TRY(dh_emit_op(ctx, e, block, -1, i));
    return dh_program_plan_memory(ctx, e->program, true, NULL);
}

dh_status dh_program_of_graph(dh_ctx *ctx, const dh_graph *graph, const dh_graph_ios *ios,
                              const dh_mesh *mesh, int64_t rank, const dh_backend_info *backend,
                              dh_program **program)
{
    const dh_program_spec spec = {
        .recipe = {.dtype = graph->dtype, .mesh = *mesh, .n_micro = 1, .backend = backend},
        .rank = rank};
    dh_graph *copy = NULL;
    dh_emitter *e = NULL;
    DH_TRY(copy_graph(ctx, graph, ios, &copy));
    dh_status st = dh_emitter_create(ctx, &spec, &e);
    if (st != DH_OK) {
        dh_graph_destroy(copy);
        return st;
    }
    dh_program *p = dh_emitter_program(e);
    st = emit(ctx, e, copy, ios);
    dh_emitter_destroy(e);
    if (st == DH_OK)
        *program = p;
    else
        dh_program_destroy(p);
    return st;
}
