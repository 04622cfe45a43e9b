/* Gradients of tensors that are made or used in parts (views).
 *
 * A part that is made and used as such has its own gradient. A tensor that is made whole and used
 * in parts gets the parts' gradients side by side. Each part has its place in the gradient of the
 * whole. Its maker writes there, or it is copied there if it is something else as well. A tensor
 * that is made in parts and used whole gives each part its part of the whole's gradient. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "grad.h"

/* ---- life cycle ------------------------------------------------------------------------ */

static int by_place(const void *x, const void *y)
{
    const tape_part *a = x, *b = y;
    if (a->whole != b->whole) return a->whole < b->whole ? -1 : 1;
    if (a->row0 != b->row0) return a->row0 < b->row0 ? -1 : 1;
    if (a->n_rows != b->n_rows) return a->n_rows < b->n_rows ? -1 : 1;
    return a->view < b->view ? -1 : a->view > b->view;
}

static bool same_rows(const tape_part *a, const tape_part *b)
{
    return a->whole == b->whole && a->row0 == b->row0 && a->n_rows == b->n_rows;
}

static uint32_t list_views(tape *t)
{
    const dh_tensor *tensors = t->graph->tensors.at;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_grads; i++) {
        const dh_tensor *x = &tensors[i];
        t->same[i] = i;
        if (x->base != DH_NONE && x->kind == DH_TENSOR_ACT)
            t->parts[n++] = (tape_part){x->base, i, x->row0, x->shape[0]};
    }
    return n;
}

/* Views of each activation by place, equal ones once: a head has hundreds of chunks. */
static void find_parts(tape *t)
{
    const uint32_t n_views = list_views(t);
    uint32_t n = 0, whole = 0;
    if (n_views > 0) qsort(t->parts, n_views, sizeof *t->parts, by_place);
    for (uint32_t i = 0; i < n_views; i++) {
        const tape_part part = t->parts[i];
        if (n > 0 && same_rows(&t->parts[n - 1], &part)) {
            t->same[part.view] = t->parts[n - 1].view;
            continue;
        }
        while (whole <= part.whole) t->first[whole++] = n;
        t->longest[part.whole] = DH_MAX(t->longest[part.whole], part.n_rows);
        t->parts[n++] = part;
    }
    while (whole <= t->n_grads) t->first[whole++] = n;
}

void tape_init(tape *t, dh_graph *graph)
{
    const size_t n = graph->tensors.n;
    *t = (tape){.graph = graph, .n_grads = n};
    memset(t->param_grads, 0xff, sizeof t->param_grads);
    t->grads = malloc((n + 1) * sizeof *t->grads);
    t->same = malloc((n + 1) * sizeof *t->same);
    t->parts = malloc((n + 1) * sizeof *t->parts);
    t->first = malloc((n + 1) * sizeof *t->first);
    t->longest = calloc(n + 1, sizeof *t->longest);
    t->failed = !t->grads || !t->same || !t->parts || !t->first || !t->longest;
    if (t->failed) return;
    memset(t->grads, 0xff, (n + 1) * sizeof *t->grads);
    find_parts(t);
}

void tape_fini(tape *t)
{
    free(t->grads);
    free(t->same);
    free(t->parts);
    free(t->first);
    free(t->longest);
}

/* ---- adding ---------------------------------------------------------------------------- */

uint32_t tape_add(tape *t, const dh_tensor *tensor)
{
    const uint32_t id = t->failed ? DH_NONE : dh_graph_add_tensor(t->graph, tensor);
    t->failed |= id == DH_NONE;
    return id;
}

uint32_t tape_like(tape *t, uint32_t like)
{
    dh_tensor tensor = t->graph->tensors.at[like];
    char name[sizeof tensor.name];
    snprintf(name, sizeof name, "d%.22s", tensor.name);
    memcpy(tensor.name, name, sizeof name);
    tensor.kind = DH_TENSOR_ACT;
    tensor.base = DH_NONE;
    tensor.row0 = 0;
    tensor.which = DH_NONE;
    return tape_add(t, &tensor);
}

void tape_emit(tape *t, dh_op_type type, dh_phase phase, int32_t site, const uint32_t *in,
               const uint32_t *out)
{
    const uint32_t id = dh_graph_add_op(t->graph, type, phase, in, out);
    t->failed |= id == DH_NONE;
    if (id != DH_NONE) t->graph->ops.at[id].site = site;
}

void tape_emit_comm(tape *t, dh_op_type type, dh_phase phase, int32_t group, uint32_t in,
                    uint32_t out)
{
    tape_emit(t, type, phase, -1, IDS(in, DH_NONE), IDS(out));
    if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].group = group;
}

uint32_t tape_step(tape *t, uint32_t like, const char *name, int32_t step, dh_dtype dtype)
{
    if (t->failed) return DH_NONE;
    dh_tensor tensor = t->graph->tensors.at[like];
    tensor.dtype = dtype;
    snprintf(tensor.name, sizeof tensor.name, "%.12s.%d", name, step);
    return tape_add(t, &tensor);
}

dh_op tape_op(const tape *t, uint32_t id)
{
    dh_op op = t->graph->ops.at[id];
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (op.in[k] < t->n_grads) op.in[k] = t->same[op.in[k]];
        if (op.out[k] < t->n_grads) op.out[k] = t->same[op.out[k]];
    }
    return op;
}

void tape_contribute(tape *t, uint32_t tensor, uint32_t grad)
{
    if (t->grads[tensor] == DH_NONE) {
        t->grads[tensor] = grad;
        return;
    }
    const uint32_t sum = tape_like(t, tensor);
    tape_emit(t, DH_OP_ADD, DH_PHASE_B, -1, IDS(t->grads[tensor], grad), IDS(sum));
    t->grads[tensor] = sum;
}

/* ---- parts ----------------------------------------------------------------------------- */

static bool has_grad(const tape *t, uint32_t part)
{
    return t->grads[t->parts[part].view] != DH_NONE;
}

/* The first part of `whole` that begins at this row or behind it. */
static uint32_t first_from(const tape *t, uint32_t whole, int64_t row)
{
    uint32_t begin = t->first[whole], end = t->first[whole + 1];
    while (begin < end) {
        const uint32_t middle = begin + (end - begin) / 2;
        if (t->parts[middle].row0 < row)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* The smallest part with a gradient that begins at a row; DH_NONE: there is none. */
static uint32_t part_at(const tape *t, uint32_t whole, int64_t row)
{
    const uint32_t end = t->first[whole + 1];
    for (uint32_t p = first_from(t, whole, row); p < end && t->parts[p].row0 == row; p++)
        if (has_grad(t, p)) return t->parts[p].view;
    return DH_NONE;
}

static bool has_parts(const tape *t, uint32_t whole)
{
    for (uint32_t p = t->first[whole]; p < t->first[whole + 1]; p++)
        if (has_grad(t, p)) return true;
    return false;
}

/* Whether another part with a gradient shares rows with this one. */
static bool others_overlap(const tape *t, uint32_t part)
{
    const dh_tensor *x = &t->graph->tensors.at[part];
    const int64_t end = x->row0 + x->shape[0];
    uint32_t p = first_from(t, x->base, x->row0 - t->longest[x->base] + 1);
    for (; p < t->first[x->base + 1] && t->parts[p].row0 < end; p++) {
        const tape_part *other = &t->parts[p];
        if (other->view != part && other->row0 + other->n_rows > x->row0 && has_grad(t, p))
            return true;
    }
    return false;
}

/* Whether parts with gradients follow each other from the first row to the last. */
static bool parts_cover(const tape *t, uint32_t whole)
{
    const dh_tensor *tensors = t->graph->tensors.at;
    int64_t row = 0;
    for (uint32_t v; (v = part_at(t, whole, row)) != DH_NONE;) row += tensors[v].shape[0];
    return row == tensors[whole].shape[0];
}

/* The part of `whole`, a tensor like the base of `part`. */
static dh_tensor place_in(const tape *t, uint32_t whole, uint32_t part)
{
    const dh_tensor *x = &t->graph->tensors.at[part];
    dh_tensor place = t->graph->tensors.at[whole];
    place.row0 += x->row0;
    place.base = dh_graph_storage(t->graph, whole);
    memcpy(place.shape, x->shape, sizeof place.shape);
    snprintf(place.name, sizeof place.name, "d%.22s", x->name);
    return place;
}

uint32_t tape_rows(tape *t, uint32_t whole, uint32_t part)
{
    if (t->failed) return DH_NONE;
    const dh_tensor place = place_in(t, whole, part);
    return tape_add(t, &place);
}

/* May be given another place: it has storage of its own, which no other block knows. */
static bool is_free(const tape *t, uint32_t grad)
{
    const dh_graph *g = t->graph;
    return grad >= t->n_grads && g->tensors.at[grad].base == DH_NONE && grad != g->dx_out;
}

/* One gradient of the whole from parts that cover it. */
static void join(tape *t, uint32_t whole)
{
    const uint32_t joined = tape_like(t, whole);
    int64_t row = 0;
    for (uint32_t v; !t->failed && (v = part_at(t, whole, row)) != DH_NONE;) {
        const uint32_t grad = t->grads[v];
        const dh_tensor place = place_in(t, joined, v);
        t->grads[v] = DH_NONE;
        row += place.shape[0];
        if (is_free(t, grad))
            t->graph->tensors.at[grad] = place;
        else
            tape_emit(t, DH_OP_COPY, DH_PHASE_B, -1, IDS(grad), IDS(tape_add(t, &place)));
    }
    if (!t->failed) tape_contribute(t, whole, joined);
}

/* Several operators may have used it, each in parts of its own. */
static dh_status collect_whole(dh_ctx *ctx, tape *t, uint32_t whole)
{
    while (!t->failed && has_parts(t, whole)) {
        if (!parts_cover(t, whole))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "%s is used in parts that are not all of it: their gradients do not "
                           "make up its own",
                           t->graph->tensors.at[whole].name);
        join(t, whole);
    }
    return DH_OK;
}

static dh_status collect_part(dh_ctx *ctx, tape *t, uint32_t part)
{
    const uint32_t whole = t->graph->tensors.at[part].base;
    if (others_overlap(t, part)) DH_TRY(collect_whole(ctx, t, whole));
    if (t->failed || t->grads[whole] == DH_NONE) return DH_OK;
    tape_contribute(t, part, tape_rows(t, t->grads[whole], part));
    return DH_OK;
}

dh_status tape_collect(dh_ctx *ctx, tape *t, uint32_t tensor)
{
    const dh_tensor *x = &t->graph->tensors.at[tensor];
    if (t->failed || x->kind != DH_TENSOR_ACT) return DH_OK;
    return x->base == DH_NONE ? collect_whole(ctx, t, tensor) : collect_part(ctx, t, tensor);
}
