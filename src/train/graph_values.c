/* Inputs of hand-written programs out of a safetensors file, outputs into one, and comparing.
 *
 * A tensor of the file is a whole that all ranks have, or one whose axis is cut over a group, or
 * (NAME@RANK) one rank's own. */
#include "train/graph_values.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/shapes.h"

enum { NAME_BYTES = 64, SHAPE_BYTES = 96 };

static const dh_tensor *io_tensor(const dh_graph_run *run, size_t io)
{
    return &run->text->graph->tensors.at[run->ios.at[io].tensor];
}

static const char *rank_name(const dh_tensor *t, int64_t rank, char buf[NAME_BYTES])
{
    snprintf(buf, NAME_BYTES, "%s@%" PRId64, t->name, rank);
    return buf;
}

/* ---- which part ---------------------------------------------------------------------------- */

/* Rows of `inner` elements: part `index` of the axis that is cut in n. */
typedef struct cut {
    const dh_st_tensor *from;
    int axis; /* -1: all of it */
    int64_t index, n;
} cut;

/* The axis on which the file has n times what the operand has, elsewhere as much; -1: all alike, -2
 * other shapes. */
static int cut_axis(const dh_tensor *t, const dh_st_tensor *from, int64_t *n)
{
    int axis = -1;
    if (from->ndim != t->ndim) return -2;
    for (int a = 0; a < t->ndim; a++) {
        if (from->shape[a] == t->shape[a]) continue;
        if (axis >= 0 || from->shape[a] % t->shape[a]) return -2;
        axis = a;
        *n = from->shape[a] / t->shape[a];
    }
    return axis;
}

/* Groups that a whole may be cut over; where several have as many members and other ranks, nobody
 * knows which is meant. */
static const dh_group_kind cut_groups[] = {DH_GROUP_WORLD, DH_GROUP_TP, DH_GROUP_DP, DH_GROUP_CP,
                                           DH_GROUP_PP};

static bool same_places(const dh_mesh *m, dh_group_kind a, dh_group_kind b)
{
    for (int64_t r = 0; r < m->ranks; r++)
        if (dh_mesh_group_index(m, a, r) != dh_mesh_group_index(m, b, r)) return false;
    return true;
}

/* *found: there is one. */
static dh_status find_group(dh_ctx *ctx, const dh_mesh *m, int64_t n, dh_group_kind *group,
                            bool *found)
{
    *found = false;
    for (size_t i = 0; i < DH_COUNTOF(cut_groups); i++) {
        if (dh_mesh_group_size(m, cut_groups[i]) != n) continue;
        if (*found && !same_places(m, *group, cut_groups[i]))
            return dh_fail(ctx, DH_EINVAL,
                           "groups %s and %s both have %lld members: give NAME@RANK for each rank",
                           dh_group_name(*group), dh_group_name(cut_groups[i]), (long long)n);
        if (!*found) *group = cut_groups[i];
        *found = true;
    }
    return DH_OK;
}

static dh_status other_shape(dh_ctx *ctx, const dh_tensor *t, const dh_st_tensor *from)
{
    char a[SHAPE_BYTES], b[SHAPE_BYTES];
    return dh_fail(ctx, DH_EINVAL,
                   "it is %s %s in the file, and %s %s in the program: a whole tensor has the "
                   "program's shape, or one axis is longer by the number of ranks of a group",
                   dh_st_dtype_name(from->dtype),
                   dh_shape_text(a, sizeof a, from->ndim, from->shape), dh_dtype_name(t->dtype),
                   dh_shape_text(b, sizeof b, t->ndim, t->shape));
}

/* Passes know what ranks have apart by an axis that is split (pass_reorder.c). */
static bool is_split(const dh_tensor *t)
{
    for (int a = 0; a < t->ndim; a++)
        if (dh_axis_is_split(t->axis[a])) return true;
    return false;
}

static bool takes_same(const dh_pass_list *passes)
{
    for (int64_t i = 0; i < passes->n; i++)
        if (passes->at[i].pass->takes_same) return true;
    return false;
}

static dh_status check_same(dh_ctx *ctx, const dh_tensor *t)
{
    if (is_split(t)) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "it is given by rank, and passes take it for the same on all ranks: name the "
                   "axis that the ranks split (heads, ffn, vocab, experts or routed)");
}

static dh_status find_cut(dh_ctx *ctx, const dh_graph_run *run, const dh_tensor *t, int64_t rank,
                          cut *out)
{
    char name[NAME_BYTES];
    const dh_st_tensor *own = run->given ? dh_st_find(run->given, rank_name(t, rank, name)) : NULL;
    const dh_st_tensor *from = own ? own : run->given ? dh_st_find(run->given, t->name) : NULL;
    if (!from)
        return dh_fail(ctx, DH_EMISSING, "%s has neither %s nor %s",
                       run->given_name ? run->given_name : "no file given (--inputs)", t->name,
                       rank_name(t, rank, name));
    *out = (cut){.from = from, .n = 1};
    out->axis = cut_axis(t, from, &out->n);
    if (from->dtype != dh_st_dtype_of(t->dtype) || out->axis == -2 || (own && out->axis >= 0))
        return other_shape(ctx, t, from);
    if (takes_same(&run->passes) && (own || out->axis >= 0)) DH_TRY(check_same(ctx, t));
    if (out->axis < 0) return DH_OK;
    dh_group_kind group = DH_GROUP_WORLD;
    bool found;
    DH_TRY(find_group(ctx, &run->mesh, out->n, &group, &found));
    if (!found) return other_shape(ctx, t, from);
    out->index = dh_mesh_group_index(&run->mesh, group, rank);
    return DH_OK;
}

/* Whether a file has a part for each rank: by name, or in another shape than the operand's. */
static bool is_by_rank(const dh_safetensors *given, const dh_tensor *t)
{
    char name[NAME_BYTES];
    int64_t n;
    const dh_st_tensor *from = dh_st_find(given, t->name);
    return dh_st_find(given, rank_name(t, 0, name)) || (from && cut_axis(t, from, &n) >= 0);
}

bool dh_graph_given_fits(const dh_graph_run *run, const dh_safetensors *given,
                         const dh_pass_list *passes)
{
    if (!given || !takes_same(passes)) return true;
    for (size_t i = 0; i < run->ios.n; i++)
        if (run->ios.at[i].in && !is_split(io_tensor(run, i)) &&
            is_by_rank(given, io_tensor(run, i)))
            return false;
    return true;
}

static dh_status copy_part(dh_ctx *ctx, const dh_tensor *t, const cut *c, char *part)
{
    const size_t item = dh_dtype_bytes(t->dtype);
    if (c->axis < 0) return dh_st_copy(ctx, c->from, 0, (size_t)dh_tensor_bytes(t), part);
    size_t outer = 1, run = item * (size_t)t->shape[c->axis];
    for (int a = 0; a < c->axis; a++) outer *= (size_t)t->shape[a];
    for (int a = c->axis + 1; a < t->ndim; a++) run *= (size_t)t->shape[a];
    const unsigned char *from = c->from->data + (size_t)c->index * run;
    dh_reading r = dh_mapped_begin(c->from->file);
    return dh_mapped_end(ctx, &r,
                         dh_mapped_rows(ctx, &r, part, from, outer, run, run * (size_t)c->n));
}

/* ---- indices ------------------------------------------------------------------------------- */

/* Values by which a kernel takes a place: below what the operand that they go to asks for. */
static dh_status check_indices(dh_ctx *ctx, const dh_graph *g, uint32_t tensor, const int32_t *at)
{
    const dh_tensor *t = &g->tensors.at[tensor];
    if (t->dtype != DH_I32) return DH_OK;
    for (size_t i = 0; i < g->ops.n; i++)
        for (int k = 0; k < DH_MAX_OPERANDS; k++) {
            const dh_op *op = &g->ops.at[i];
            const uint32_t id = op->in[k];
            if (id == DH_NONE || (id != tensor && g->tensors.at[id].base != tensor)) continue;
            const int64_t bound = dh_op_index_bound(g, op, k);
            for (int64_t e = 0; bound > 0 && e < dh_tensor_elements(t); e++)
                if (at[e] < 0 || at[e] >= bound)
                    return dh_fail(ctx, DH_EINVAL,
                                   "element %lld is %d, and operator %zu, %s, takes values from 0 "
                                   "to %lld",
                                   (long long)e, at[e], i, dh_op_info_of(op->type)->name,
                                   (long long)bound - 1);
        }
    return DH_OK;
}

static dh_status at_line(dh_ctx *ctx, const dh_graph_run *run, size_t io, int64_t rank)
{
    const uint32_t id = run->ios.at[io].tensor;
    return dh_ctx_while(ctx, "reading input %s (line %u of %s) for rank %lld",
                        io_tensor(run, io)->name, run->text->lines.tensors.at[id], run->text->file,
                        (long long)rank);
}

dh_status dh_graph_given_read(dh_ctx *ctx, const dh_graph_run *run, size_t io, int64_t rank,
                              void *part)
{
    const dh_tensor *t = io_tensor(run, io);
    cut c;
    dh_status st = find_cut(ctx, run, t, rank, &c);
    if (st == DH_OK) st = copy_part(ctx, t, &c, part);
    if (st == DH_OK) st = check_indices(ctx, run->text->graph, run->ios.at[io].tensor, part);
    return st == DH_OK ? st : at_line(ctx, run, io, rank);
}

dh_status dh_graph_run_give(dh_ctx *ctx, dh_graph_run *run, const dh_safetensors *given,
                            const char *name)
{
    cut c;
    run->given = given;
    run->given_name = name;
    for (size_t i = 0; i < run->ios.n; i++)
        for (int64_t r = 0; run->ios.at[i].in && r < run->mesh.ranks; r++)
            if (find_cut(ctx, run, io_tensor(run, i), r, &c) != DH_OK)
                return at_line(ctx, run, i, r);
    return DH_OK;
}

/* ---- what was left ------------------------------------------------------------------------- */

static const void *left(const dh_graph_run *run, size_t io, int64_t rank)
{
    return run->left[(size_t)rank * run->ios.n + io];
}

bool dh_graph_run_same(const dh_graph_run *run, size_t io)
{
    const size_t n_bytes = (size_t)dh_tensor_bytes(io_tensor(run, io));
    for (int64_t r = 1; r < run->mesh.ranks; r++)
        if (memcmp(left(run, io, 0), left(run, io, r), n_bytes) != 0) return false;
    return true;
}

/* Calls visit for each tensor of the file: of one rank, or (rank 0) of all. */
static dh_status visit_tensors(dh_ctx *ctx, const dh_graph_run *run, dh_st_writer *w,
                               dh_status (*visit)(dh_ctx *, dh_st_writer *, const char *,
                                                  const dh_tensor *, const void *))
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < run->ios.n; i++) {
        const dh_tensor *t = io_tensor(run, i);
        if (!run->ios.at[i].out) continue;
        const bool same = dh_graph_run_same(run, i);
        for (int64_t r = 0; r < (same ? 1 : run->mesh.ranks); r++)
            DH_TRY(visit(ctx, w, same ? t->name : rank_name(t, r, name), t, left(run, i, r)));
    }
    return DH_OK;
}

static dh_status declare(dh_ctx *ctx, dh_st_writer *w, const char *name, const dh_tensor *t,
                         const void *data)
{
    return dh_st_writer_declare(ctx, w, name, dh_st_dtype_of(t->dtype), t->ndim, t->shape);
}

static dh_status put(dh_ctx *ctx, dh_st_writer *w, const char *name, const dh_tensor *t,
                     const void *data)
{
    return dh_st_writer_put(ctx, w, name, 0, data, (size_t)dh_tensor_bytes(t));
}

dh_status dh_graph_run_write(dh_ctx *ctx, const dh_graph_run *run, const char *path)
{
    dh_st_writer *w;
    DH_TRY(dh_st_writer_create(ctx, &w));
    dh_status st = visit_tensors(ctx, run, w, declare);
    if (st == DH_OK) st = dh_st_writer_start(ctx, w, path, DH_ST_CREATE);
    if (st == DH_OK) st = visit_tensors(ctx, run, w, put);
    if (st == DH_OK) st = dh_st_writer_finish(ctx, w);
    dh_st_writer_destroy(w);
    return st;
}

/* ---- comparing ----------------------------------------------------------------------------- */

static double number_at(dh_dtype dtype, const void *data, int64_t i)
{
    const char *at = (const char *)data + (size_t)i * dh_dtype_bytes(dtype);
    union {
        float f;
        double d;
        dh_bf16 b;
        int32_t i;
        int64_t l;
        uint8_t u;
    } v;
    memcpy(&v, at, dh_dtype_bytes(dtype));
    switch (dtype) {
    case DH_F32:
        return (double)v.f;
    case DH_BF16:
        return (double)dh_bf16_to_f32(v.b);
    case DH_F64:
        return v.d;
    case DH_I32:
        return v.i;
    case DH_I64:
        return (double)v.l;
    default:
        return v.u;
    }
}

/* The same bits are the same, not-a-numbers too. */
double dh_graph_value_distance(dh_dtype dtype, int64_t n, const void *a, const void *b)
{
    double most = 0;
    if (memcmp(a, b, (size_t)n * dh_dtype_bytes(dtype)) == 0) return 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = number_at(dtype, a, i), y = number_at(dtype, b, i);
        const double d = isnan(x) && isnan(y) ? 0 : x == y ? 0 : fabs(x - y);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most;
}

static dh_status compare_rank(dh_ctx *ctx, const dh_graph_run *run, size_t io, int64_t rank,
                              const dh_st_tensor *want, double *difference)
{
    const dh_tensor *t = io_tensor(run, io);
    const int64_t n = dh_tensor_elements(t);
    int64_t times = 1;
    if (want->dtype != dh_st_dtype_of(t->dtype) || cut_axis(t, want, &times) != -1)
        return other_shape(ctx, t, want);
    void *copy = malloc(want->n_bytes + 1); /* the file's data may be unaligned */
    if (!copy) return dh_no_memory(ctx);
    const dh_status st = dh_st_copy(ctx, want, 0, want->n_bytes, copy);
    if (st == DH_OK) {
        const double d = dh_graph_value_distance(t->dtype, n, left(run, io, rank), copy);
        *difference = DH_MAX(*difference, d);
    }
    free(copy);
    return st;
}

dh_status dh_graph_run_compare(dh_ctx *ctx, const dh_graph_run *run, size_t io,
                               const dh_safetensors *expected, double *difference,
                               int64_t *n_compared)
{
    const dh_tensor *t = io_tensor(run, io);
    char name[NAME_BYTES];
    *difference = 0;
    *n_compared = 0;
    for (int64_t r = 0; r < run->mesh.ranks; r++) {
        const dh_st_tensor *want = dh_st_find(expected, rank_name(t, r, name));
        if (!want) want = dh_st_find(expected, t->name);
        if (!want) continue;
        if (compare_rank(ctx, run, io, r, want, difference) != DH_OK)
            return dh_ctx_while(ctx, "comparing output %s of rank %lld", t->name, (long long)r);
        ++*n_compared;
    }
    return DH_OK;
}
