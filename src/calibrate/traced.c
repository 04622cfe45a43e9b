/* Operators are matched by what decides their time: kind, sizes and type of what is computed; kind,
 * group and bytes of what travels. Names of models do not matter. */
#include "calibrate/traced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/pieces.h"
#include "train/profile.h"
#include "train/recipe.h"

typedef struct matching {
    dh_ctx *ctx;
    dh_traced *traced;
    dh_measured measured;
    bool *used_kernels, *used_rows; /* by kernel, by row */
} matching;

/* ---- what an operator computes -------------------------------------------------------------- */

/* A product is as long as its transpose; keys may be repeated for every head of queries. */
static bool same_kernel(const dh_measured_kernel *a, const dh_measured_kernel *b)
{
    const int64_t *x = a->size, *y = b->size;
    if (a->kind != b->kind || a->dtype != b->dtype) return false;
    if (a->kind == DH_KERNEL_GEMM && x[0] == y[1] && x[1] == y[0])
        return x[2] == y[2] && x[3] == y[3];
    const bool attends = a->kind == DH_KERNEL_ATTN || a->kind == DH_KERNEL_ATTN_GRAD;
    for (int i = 0; i < DH_KERNEL_SIZES; i++)
        if (x[i] != y[i] && !(attends && i == 2 && x[1] == y[2])) return false;
    return true;
}

/* A kernel of the same widths, whatever its length along the axis. */
static bool same_widths(const dh_measured_kernel *a, const dh_measured_kernel *b, int axis)
{
    dh_measured_kernel own = *a, other = *b;
    if (other.size[axis] <= 0 || a->kind != b->kind) return false;
    own.size[axis] = other.size[axis];
    own.size[3] = other.size[3]; /* a batch of experts */
    return same_kernel(&own, &other);
}

/* The mean over traces; 0: none has it. */
static double kernel_ns(const matching *m, const dh_measured_kernel *wanted, int32_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t i = 0; i < m->measured.kernels.n; i++) {
        const dh_measured_kernel *k = &m->measured.kernels.at[i];
        if (!same_kernel(wanted, k)) continue;
        sum += k->ns;
        ++*n;
    }
    return *n > 0 ? sum / *n : 0;
}

/* Of products that many experts share: by the rate of all of them. 0: none. */
static double shared_ns(const matching *m, const dh_measured_kernel *wanted, int axis, int32_t *n)
{
    double ns = 0, length = 0;
    *n = 0;
    for (size_t i = 0; i < m->measured.kernels.n; i++) {
        const dh_measured_kernel *k = &m->measured.kernels.at[i];
        if (!same_widths(wanted, k, axis)) continue;
        ns += k->ns * DH_MAX(k->n_samples, 1);
        length += (double)k->size[axis] * (double)k->size[3] * DH_MAX(k->n_samples, 1);
        ++*n;
    }
    return length > 0 ? ns / length * (double)wanted->size[axis] : 0;
}

static void mark(matching *m, const traced_way *way)
{
    for (size_t i = 0; i < m->measured.kernels.n; i++)
        for (int p = 0; p < way->n; p++)
            m->used_kernels[i] |=
                way->free_axis < 0
                    ? same_kernel(&way->at[p], &m->measured.kernels.at[i])
                    : same_widths(&way->at[p], &m->measured.kernels.at[i], way->free_axis);
}

/* Sum of the pieces that are there, n of that which was seen least. whole: all of them are. */
static double way_ns(const matching *m, const traced_way *way, int32_t *n, bool *whole)
{
    double sum = 0;
    *n = INT32_MAX;
    *whole = true;
    for (int p = 0; p < way->n; p++) {
        int32_t seen;
        const double ns = way->free_axis < 0 ? kernel_ns(m, &way->at[p], &seen)
                                             : shared_ns(m, &way->at[p], way->free_axis, &seen);
        *whole &= ns >= 1;
        sum += ns * way->times[p];
        *n = DH_MIN(*n, seen);
    }
    return sum;
}

/* The most that pieces of an operator take by themselves, where no way has all of its pieces: the
 * operator takes as long at least. */
static double least_ns(const matching *m, const dh_graph *g, const dh_op *op)
{
    traced_way way;
    double least = 0;
    for (int i = 0; traced_way_of(g, op, i, &way); i++) {
        int32_t n;
        bool whole;
        least = DH_MAX(least, way_ns(m, &way, &n, &whole));
    }
    return least;
}

/* By the first way that the traces have. known: PyTorch has operators that do the same. */
static double computed_ns(matching *m, const dh_graph *g, const dh_op *op, int32_t *n, bool *known)
{
    traced_way way;
    *known = false;
    for (int i = 0; traced_way_of(g, op, i, &way); i++) {
        bool whole;
        const double ns = way_ns(m, &way, n, &whole);
        *known = true;
        if (!whole) continue;
        mark(m, &way);
        return ns;
    }
    return 0;
}

/* ---- what travels --------------------------------------------------------------------------- */

static bool is_transfer(dh_op_type type)
{
    return type == DH_OP_RING_EXCHANGE || type == DH_OP_SEND || type == DH_OP_RECV;
}

static double vector_bytes(const dh_graph *g, const dh_op *op)
{
    const uint32_t ends[] = {op->in[0], op->out[0]};
    double bytes = 0;
    for (int i = 0; i < 2; i++)
        if (ends[i] != DH_NONE) bytes = DH_MAX(bytes, (double)dh_op_travel_bytes(g, op, ends[i]));
    return op->type == DH_OP_ALL_TO_ALL_ROWS ? dh_op_bytes(g, op) / 2 : bytes;
}

static bool same_call(const dh_measured_row *row, dh_op_type type, double bytes, int64_t ranks,
                      int64_t nodes)
{
    if (!dh_measured_is_call(row) || row->bytes != bytes) return false;
    if (is_transfer(type))
        return row->type == DH_OP_SEND && (row->span.nodes.n_nodes > 1) == (nodes > 1);
    const dh_op_type known = type == DH_OP_ALL_TO_ALL_ROWS ? DH_OP_ALL_TO_ALL : type;
    return row->type == known && row->span.size == ranks && row->span.nodes.n_nodes == nodes;
}

/* The shortest over traces, as reading keeps it; 0: none has it. */
static double call_ns(matching *m, const dh_program *p, const dh_graph *g, const dh_op *op)
{
    const dh_group_kind group = (dh_group_kind)op->group;
    const int64_t ranks = dh_mesh_group_size(&p->mesh, group);
    const int64_t nodes = dh_mesh_group_span(&p->mesh, group, p->rank).n_nodes;
    for (size_t i = 0; i < m->measured.rows.n; i++) {
        if (!same_call(&m->measured.rows.at[i], op->type, vector_bytes(g, op), ranks, nodes))
            continue;
        m->used_rows[i] = true;
        return m->measured.rows.at[i].ns;
    }
    return 0;
}

/* ---- classes of operators ------------------------------------------------------------------- */

static dh_status leave(matching *m, const dh_probe_class *cls, const char *why)
{
    dh_traced *t = m->traced;
    const char *text = dh_arena_printf(t->arena, "%s: %s", cls->label, why);
    if (!text) return dh_no_memory(m->ctx);
    for (size_t i = 0; i < t->operators.n; i++)
        if (strcmp(t->operators.at[i], text) == 0) return DH_OK;
    return dh_vec_push(&t->operators, text) ? DH_OK : dh_no_memory(m->ctx);
}

static dh_status add_class(matching *m, const dh_program *p, const dh_probe_class *cls)
{
    const dh_instr *instr = &p->instrs.at[cls->instr];
    const dh_graph *g = dh_instr_graph(p, instr);
    const dh_op *op = dh_instr_op(p, instr);
    const bool talks = dh_op_info_of(op->type)->resource == DH_RES_COMM;
    bool known = true;
    int32_t n = 1;
    const double ns = talks ? call_ns(m, p, g, op) : computed_ns(m, g, op, &n, &known);
    if (!known) return leave(m, cls, "PyTorch has no one operator for it");
    if (ns < 1)
        return leave(m, cls,
                     talks ? "no collective of its kind, group and bytes"
                           : "no operator of its sizes and type");
    const dh_profile_op row = {.key = cls->key,
                               .label = cls->label,
                               .stream = cls->stream,
                               .forward = cls->forward,
                               .backward = cls->backward,
                               .source = DH_PAIR_IMPORTED,
                               .solo_ns = (int64_t)ns,
                               .estimate_ns = DH_MAX(cls->estimate_ns, 1),
                               .n_samples = n};
    return dh_profile_add_op(m->ctx, m->traced->profile, &row, NULL);
}

/* ---- what no trace has ---------------------------------------------------------------------- */

/* Estimated, in proportion to what the nearest operators took over their estimates; at least as long
 * as what the traces have of it. */
static dh_status estimate_class(matching *m, const dh_program *p, const dh_probe_class *cls,
                                const dh_costs *costs)
{
    const dh_instr *instr = &p->instrs.at[cls->instr];
    const dh_cost_op at = {dh_instr_graph(p, instr), dh_instr_op(p, instr), &p->mesh, p->rank};
    if (dh_profile_find_op(m->traced->profile, cls->key) != DH_NONE) return DH_OK;
    const bool talks = dh_op_info_of(at.op->type)->resource == DH_RES_COMM;
    const double least = talks ? 0 : least_ns(m, at.graph, at.op);
    const dh_profile_op row = {
        .key = cls->key,
        .label = cls->label,
        .stream = cls->stream,
        .forward = cls->forward,
        .backward = cls->backward,
        .source = DH_PAIR_MODELLED,
        .solo_ns = (int64_t)DH_MAX(costs->solo(costs->self, &at).ns, DH_MAX(least, 1)),
        .estimate_ns = DH_MAX(cls->estimate_ns, 1)};
    return dh_profile_add_op(m->ctx, m->traced->profile, &row, NULL);
}

static dh_status estimate_rest(matching *m, const dh_stage_programs *stages,
                               const dh_costs *estimates)
{
    const dh_costs *costs;
    DH_TRY(dh_profile_costs(m->ctx, m->traced->arena, m->traced->profile, estimates, &costs));
    for (size_t s = 0; s < stages->n; s++)
        for (size_t c = 0; c < stages->at[s]->probe_classes.n; c++)
            DH_TRY(estimate_class(m, stages->at[s], &stages->at[s]->probe_classes.at[c], costs));
    return DH_OK;
}

/* ---- what is left of the traces ------------------------------------------------------------- */

static const char *kernel_text(dh_arena *arena, const dh_measured_kernel *k)
{
    static const char *const names[] = {"GEMM", "attention", "gradient of attention", "norm"};
    char sizes[128] = "", time[32];
    size_t n = 0;
    for (int i = 0; i < DH_KERNEL_SIZES && k->size[i] > 0; i++)
        n += (size_t)snprintf(sizes + n, sizeof sizes - n, "%s%lld", i ? " x " : "",
                              (long long)k->size[i]);
    return dh_arena_printf(arena, "%s %s %s, %s", names[k->kind], dh_dtype_name(k->dtype), sizes,
                           dh_format_ns(time, sizeof time, k->ns));
}

static const char *call_text(dh_arena *arena, const dh_measured_row *row)
{
    char bytes[32], time[32];
    return dh_arena_printf(
        arena, "%s of %s, %lld ranks on %lld node%s, %s", dh_op_info_of(row->type)->name,
        dh_format_bytes(bytes, sizeof bytes, row->bytes), (long long)row->span.size,
        (long long)row->span.nodes.n_nodes, row->span.nodes.n_nodes == 1 ? "" : "s",
        dh_format_ns(time, sizeof time, row->ns));
}

static dh_status list_rest(matching *m)
{
    dh_traced *t = m->traced;
    for (size_t i = 0; i < m->measured.kernels.n; i++) {
        if (m->used_kernels[i] || m->measured.kernels.at[i].kind > DH_KERNEL_NORM) continue;
        const char *text = kernel_text(t->arena, &m->measured.kernels.at[i]);
        if (!text || !dh_vec_push(&t->measurements, text)) return dh_no_memory(m->ctx);
    }
    for (size_t i = 0; i < m->measured.rows.n; i++) {
        const dh_measured_row *row = &m->measured.rows.at[i];
        if (m->used_rows[i] || !dh_measured_is_call(row))
            continue; /* kernels have their own list */
        const char *text = call_text(t->arena, row);
        if (!text || !dh_vec_push(&t->measurements, text)) return dh_no_memory(m->ctx);
    }
    return DH_OK;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status match(matching *m, const dh_stage_programs *stages)
{
    for (size_t s = 0; s < stages->n; s++)
        for (size_t c = 0; c < stages->at[s]->probe_classes.n; c++)
            DH_TRY(add_class(m, stages->at[s], &stages->at[s]->probe_classes.at[c]));
    if (m->traced->profile->ops.n == 0)
        return dh_fail(m->ctx, DH_EMISSING,
                       "the traces have none of the job's operators: model, micro_batch, seq_len, "
                       "dtype and mesh of the job must be those of the traced run (%s)",
                       m->measured.notes.n      ? m->measured.notes.at[0]
                       : m->traced->operators.n ? m->traced->operators.at[0]
                                                : "no operator");
    return list_rest(m);
}

static dh_status read_files(matching *m, const char *const *files, size_t n_files)
{
    for (size_t i = 0; i < n_files; i++) DH_TRY(dh_measured_read(m->ctx, files[i], &m->measured));
    m->used_kernels = calloc(m->measured.kernels.n + 1, sizeof *m->used_kernels);
    m->used_rows = calloc(m->measured.rows.n + 1, sizeof *m->used_rows);
    return m->used_kernels && m->used_rows ? DH_OK : dh_no_memory(m->ctx);
}

static dh_status match_job(matching *m, const dh_job *job, const char *const *files, size_t n_files)
{
    const dh_pass_list none = {.n = 0};
    dh_probe_job probe = {.schedule = NULL};
    dh_stage_programs stages = {0};
    dh_mesh mesh;
    DH_TRY(dh_mesh_from_job(m->ctx, job, &mesh));
    dh_status st = dh_measured_init(m->ctx, mesh.ranks_per_node, &m->measured);
    if (st == DH_OK) st = read_files(m, files, n_files);
    if (st == DH_OK) st = dh_probe_job_init(m->ctx, job, &none, &probe);
    if (st == DH_OK) st = dh_stage_programs_build(m->ctx, &probe, &stages);
    if (st == DH_OK) st = dh_profile_of_job(m->ctx, job, files[0], &m->traced->profile);
    if (st == DH_OK) st = match(m, &stages);
    if (st == DH_OK) st = estimate_rest(m, &stages, probe.spec.recipe.costs);
    dh_stage_programs_fini(&stages);
    dh_probe_job_fini(&probe);
    dh_measured_fini(&m->measured);
    free(m->used_kernels);
    free(m->used_rows);
    return st;
}

dh_status dh_profile_from_traces(dh_ctx *ctx, const dh_job *job, const char *const *files,
                                 size_t n_files, dh_traced *traced)
{
    *traced = (dh_traced){.arena = dh_arena_create()};
    matching m = {.ctx = ctx, .traced = traced};
    dh_job known = *job;
    if (!traced->arena) return dh_no_memory(ctx);
    DH_TRY(dh_job_vocab(ctx, job, NULL, &known.model.vocab));
    return match_job(&m, &known, files, n_files);
}

void dh_traced_fini(dh_traced *traced)
{
    dh_profile_destroy(traced->profile);
    dh_vec_fini(&traced->operators);
    dh_vec_fini(&traced->measurements);
    dh_arena_destroy(traced->arena);
}
