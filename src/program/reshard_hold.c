/* Boxes of tensors that ranks hold, and that they lack of another layout. See reshard.h. */
#include "program/reshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dh_box_meet(const dh_box *a, const dh_box *b, dh_box *both)
{
    const int64_t row = DH_MAX(a->row, b->row), col = DH_MAX(a->col, b->col);
    const int64_t row_end = DH_MIN(a->row + a->n_rows, b->row + b->n_rows);
    const int64_t col_end = DH_MIN(a->col + a->n_cols, b->col + b->n_cols);
    *both = (dh_box){row, row_end - row, col, col_end - col};
    return row < row_end && col < col_end;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *name, dh_buffer_kind kind)
{
    uint64_t hash = (uint64_t)kind;
    for (; *name; name++) hash = dh_mix64(hash ^ (uint64_t)(unsigned char)*name);
    return hash;
}

static dh_status find_tensor(dh_ctx *ctx, dh_reshard *r, const char *name, dh_buffer_kind kind,
                             dh_dtype dtype, uint32_t *id)
{
    const uint64_t hash = hash_of(name, kind);
    size_t at = 0;
    for (uint32_t i = dh_index_first(&r->index, hash, &at); i != DH_NONE;
         i = dh_index_next(&r->index, hash, &at)) {
        *id = i;
        if (r->tensors.at[i].kind == kind && strcmp(r->tensors.at[i].name, name) == 0) return DH_OK;
    }
    dh_moved tensor = {.kind = kind, .dtype = dtype};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    *id = (uint32_t)r->tensors.n;
    if (!dh_vec_push(&r->tensors, tensor) || !dh_index_add(&r->index, hash, *id))
        return dh_no_memory(ctx);
    return DH_OK;
}

/* ---- boxes of a parameter ------------------------------------------------------------------- */

/* Where boxes of one kind go. */
typedef struct holding_job {
    dh_reshard *reshard;
    const dh_program *program;
    dh_holding *holding;
    dh_buffer_kind kind;
} holding_job;

static dh_dtype dtype_of(const holding_job *j)
{
    return j->kind == DH_BUF_COPY ? j->program->dtype : DH_F32;
}

/* Elements [first, end) of a run of rows of length `width`, the first at `at` in the buffer. They
 * make up to three boxes: the end of a row, whole rows, the beginning of one. */
static dh_status add_boxes(dh_ctx *ctx, const holding_job *j, uint32_t param,
                           const dh_param_piece *piece, int64_t first, int64_t end, dh_held held)
{
    const int64_t width = piece->n_cols, origin = piece->row * width;
    DH_TRY(find_tensor(ctx, j->reshard, piece->hf_name, j->kind, dtype_of(j), &held.tensor));
    held.stride = width;
    while (first < end) {
        const int64_t row = (first - origin) / width, col = (first - origin) % width;
        const bool whole = col == 0 && end - first >= width;
        const int64_t n_rows = whole ? (end - first) / width : 1;
        const int64_t n_cols = whole ? width : DH_MIN(width - col, end - first);
        held.box = (dh_box){piece->hf_row + row, n_rows, piece->hf_col + col, n_cols};
        if (!dh_vec_push(&j->holding->held, held)) return dh_no_memory(ctx);
        first += n_rows * n_cols;
        held.first += n_rows * n_cols;
    }
    return DH_OK;
}

/* Elements [first, first + n) of a parameter, that lie from byte0 of a buffer on. */
static dh_status add_part(dh_ctx *ctx, const holding_job *j, uint32_t param, int64_t first,
                          int64_t n, uint32_t buffer, uint64_t byte0)
{
    const dh_param *p = &j->program->params.at[param];
    const int64_t at = (int64_t)(byte0 / dh_dtype_bytes(dtype_of(j)));
    for (int k = 0; n > 0 && k < p->n_pieces; k++) {
        const dh_param_piece piece = dh_param_piece_at(p, k);
        const int64_t begin = DH_MAX(first, piece.row * piece.n_cols);
        const int64_t end = DH_MIN(first + n, (piece.row + piece.n_rows) * piece.n_cols);
        const dh_held held = {.buffer = buffer, .first = at + begin - first};
        if (begin < end) DH_TRY(add_boxes(ctx, j, param, &piece, begin, end, held));
    }
    return DH_OK;
}

static dh_status hold_param(dh_ctx *ctx, const holding_job *j, uint32_t param)
{
    const dh_program *p = j->program;
    const dh_operand *home = &p->homes.at[param].at[j->kind];
    const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[param].block].flat];
    const bool matrix = dh_param_is_matrix(&p->params.at[param]);
    const bool shard_counts = j->kind == DH_BUF_GRAD && flat->n_shard < flat->n_piece;
    const int64_t n = dh_param_elements(&p->params.at[param]);
    if (home->buffer != DH_NONE && !(matrix && shard_counts))
        return add_part(ctx, j, param, 0, n, home->buffer, home->byte0);
    const bool kept = matrix && (flat->matrix[j->kind].buffer != DH_NONE ||
                                 (shard_counts && flat->reduced.buffer != DH_NONE));
    for (int64_t k = 0; kept && k < flat->n_pieces; k++) {
        int64_t first = 0, n_here = n;
        const dh_operand part = dh_program_param_part(p, param, j->kind, k, &first, &n_here);
        DH_TRY(add_part(ctx, j, param, first, n_here, part.buffer, part.byte0));
    }
    return DH_OK;
}

/* Bit k: kind k of matrices, of vectors, moves. */
static unsigned kinds_of(unsigned what, dh_dtype dtype, bool matrix)
{
    const bool copies = matrix && dtype != DH_F32;
    const unsigned master = 1u << DH_BUF_MASTER, copy = copies ? 1u << DH_BUF_COPY : 0;
    unsigned kinds = 0;
    if (what & DH_RESHARD_PARAMS) kinds |= copies ? copy : master;
    if (what & DH_RESHARD_GRADS) kinds |= 1u << DH_BUF_GRAD;
    if (what & DH_RESHARD_STATES)
        kinds |= master | copy | 1u << DH_BUF_ADAM_M | 1u << DH_BUF_ADAM_V;
    return kinds;
}

static int by_tensor(const void *a, const void *b)
{
    const dh_held *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->box.row != y->box.row) return x->box.row < y->box.row ? -1 : 1;
    return x->box.col < y->box.col ? -1 : x->box.col > y->box.col;
}

dh_status dh_reshard_hold(dh_ctx *ctx, dh_reshard *reshard, const dh_program *program,
                          unsigned what, uint64_t base, dh_holding *holding)
{
    for (size_t i = 0; i < program->buffers.n; i++) {
        dh_buffer b = program->buffers.at[i];
        b.offset += base;
        if (!dh_vec_push(&holding->buffers, b)) return dh_no_memory(ctx);
    }
    holding->end = base + program->persistent_bytes;
    for (int kind = 0; kind <= DH_BUF_ADAM_V; kind++)
        for (uint32_t i = 0; i < program->params.n; i++) {
            const bool matrix = dh_param_is_matrix(&program->params.at[i]);
            const holding_job job = {reshard, program, holding, (dh_buffer_kind)kind};
            if (kinds_of(what, program->dtype, matrix) >> kind & 1)
                DH_TRY(hold_param(ctx, &job, i));
        }
    if (holding->held.n)
        qsort(holding->held.at, holding->held.n, sizeof *holding->held.at, by_tensor);
    return DH_OK;
}

/* ---- what is lacking ------------------------------------------------------------------------ */

/* Boxes of one tensor that a holding has: held [begin, end). */
typedef struct run {
    uint32_t begin, end;
} run;

/* By tensor. */
static run *index_holding(const dh_reshard *r, const dh_holding *h)
{
    run *runs = calloc(r->tensors.n + 1, sizeof *runs);
    for (uint32_t i = 0; runs && i < h->held.n; i++) {
        run *at = &runs[h->held.at[i].tensor];
        if (at->end == 0) at->begin = i;
        at->end = i + 1;
    }
    return runs;
}

typedef struct lacking {
    dh_reshard *r;
    run **runs; /* boxes of the first layout, by rank and tensor */
    DH_VEC(dh_box) rest;
} lacking;

static bool contains(const dh_box *outer, const dh_box *inner)
{
    dh_box both;
    return dh_box_meet(outer, inner, &both) && dh_box_elements(&both) == dh_box_elements(inner);
}

/* The parts of a box outside `cut`, which lies inside: above, below, left, right. */
static bool push_rest(lacking *l, const dh_box *b, const dh_box *cut)
{
    const int64_t cut_end = cut->row + cut->n_rows, end = b->row + b->n_rows;
    const int64_t right = cut->col + cut->n_cols;
    const dh_box parts[] = {{b->row, cut->row - b->row, b->col, b->n_cols},
                            {cut_end, end - cut_end, b->col, b->n_cols},
                            {cut->row, cut->n_rows, b->col, cut->col - b->col},
                            {cut->row, cut->n_rows, right, b->col + b->n_cols - right}};
    for (size_t i = 0; i < DH_COUNTOF(parts); i++)
        if (parts[i].n_rows > 0 && parts[i].n_cols > 0 && !dh_vec_push(&l->rest, parts[i]))
            return false;
    return true;
}

/* Shrinks a cell until every box of the ranks either holds all of it or nothing: *found whether any
 * holds it. */
static void find_cell(const lacking *l, uint32_t tensor, size_t begin, size_t end, dh_box *cell,
                      bool *found)
{
    *found = false;
    for (size_t rank = begin; rank < end; rank++) {
        const run at = l->runs[rank][tensor];
        for (uint32_t i = at.begin; i < at.end; i++) {
            dh_box both;
            if (!dh_box_meet(&l->r->holdings[0][rank].held.at[i].box, cell, &both)) continue;
            *cell = both;
            *found = true;
        }
    }
}

static dh_status add_slice(dh_ctx *ctx, lacking *l, dh_slice slice, size_t begin, size_t end)
{
    dh_reshard *r = l->r;
    slice.owner0 = (uint32_t)r->owners.n;
    for (size_t rank = begin; rank < end; rank++) {
        const run at = l->runs[rank][slice.tensor];
        for (uint32_t i = at.begin; i < at.end; i++) {
            if (!contains(&r->holdings[0][rank].held.at[i].box, &slice.box)) continue;
            if (!dh_vec_push(&r->owners, ((dh_owner){(uint32_t)rank, i}))) return dh_no_memory(ctx);
            slice.n_owners++;
            break;
        }
    }
    slice.from = slice.owner0;
    return dh_vec_push(&r->slices, slice) ? DH_OK : dh_no_memory(ctx);
}

/* A rank keeps what it has; the rest comes from others. */
static dh_status cover(dh_ctx *ctx, lacking *l, uint32_t rank, uint32_t held)
{
    dh_reshard *r = l->r;
    const dh_held *h = &r->holdings[1][rank].held.at[held];
    l->rest.n = 0;
    if (!dh_vec_push(&l->rest, h->box)) return dh_no_memory(ctx);
    while (l->rest.n > 0) {
        const dh_box b = l->rest.at[--l->rest.n];
        dh_slice slice = {.tensor = h->tensor, .box = b, .to = rank, .held = held};
        size_t begin = rank, end = rank + 1;
        bool found;
        find_cell(l, h->tensor, begin, end, &slice.box, &found);
        if (!found) {
            begin = 0;
            end = (size_t)r->n_ranks;
            find_cell(l, h->tensor, begin, end, &slice.box, &found);
        }
        if (!found)
            return dh_fail(
                ctx, DH_EINVAL,
                "no rank of the first layout has rows %lld to %lld of %s (%s), which rank "
                "%u of the second one needs",
                (long long)b.row, (long long)(b.row + b.n_rows - 1), r->tensors.at[h->tensor].name,
                dh_buffer_kind_name(r->tensors.at[h->tensor].kind), rank);
        DH_TRY(add_slice(ctx, l, slice, begin, end));
        if (!push_rest(l, &b, &slice.box)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static int by_place(const void *a, const void *b)
{
    const dh_slice *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->box.row != y->box.row) return x->box.row < y->box.row ? -1 : 1;
    return x->box.col < y->box.col ? -1 : x->box.col > y->box.col;
}

static dh_status find_slices(dh_ctx *ctx, dh_reshard *r)
{
    lacking l = {.r = r, .runs = calloc((size_t)r->n_ranks + 1, sizeof *l.runs)};
    dh_status st = l.runs ? DH_OK : dh_no_memory(ctx);
    for (int64_t i = 0; st == DH_OK && i < r->n_ranks; i++)
        if (!(l.runs[i] = index_holding(r, &r->holdings[0][i]))) st = dh_no_memory(ctx);
    for (uint32_t rank = 0; st == DH_OK && rank < r->n_ranks; rank++)
        for (uint32_t i = 0; st == DH_OK && i < r->holdings[1][rank].held.n; i++)
            st = cover(ctx, &l, rank, i);
    if (st == DH_OK && r->slices.n)
        qsort(r->slices.at, r->slices.n, sizeof *r->slices.at, by_place);
    for (int64_t i = 0; l.runs && i < r->n_ranks; i++) free(l.runs[i]);
    free(l.runs);
    dh_vec_fini(&l.rest);
    return st;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status check_layouts(dh_ctx *ctx, const dh_recipe *a, const dh_recipe *b)
{
    if (a->mesh.ranks != b->mesh.ranks)
        return dh_fail(ctx, DH_EINVAL,
                       "a layout of %lld ranks and one of %lld: parameters move between layouts "
                       "over the same ranks",
                       (long long)a->mesh.ranks, (long long)b->mesh.ranks);
    if (a->mesh.ranks_per_node != b->mesh.ranks_per_node)
        return dh_fail(ctx, DH_EINVAL,
                       "%lld ranks a node in one layout, %lld in the other: nodes stay as they are",
                       (long long)a->mesh.ranks_per_node, (long long)b->mesh.ranks_per_node);
    if (a->dtype != b->dtype)
        return dh_fail(ctx, DH_EINVAL, "a layout in %s and one in %s: the type stays as it is",
                       dh_dtype_name(a->dtype), dh_dtype_name(b->dtype));
    return DH_OK;
}

static dh_status hold_all(dh_ctx *ctx, dh_reshard *r, int side, const dh_layout *layout,
                          unsigned what)
{
    for (int64_t rank = 0; rank < r->n_ranks; rank++) {
        const dh_program_spec spec = {.recipe = *layout->recipe,
                                      .rank = rank,
                                      .part = layout->part,
                                      .lean = layout->lean,
                                      .unplaced = true,
                                      .outline = true};
        dh_program *p;
        DH_TRY(dh_program_build(ctx, &spec, &p));
        const uint64_t behind = r->holdings[!side][rank].end;
        const uint64_t base =
            layout->base == DH_LAYOUT_BEHIND
                ? (behind + DH_BUFFER_ALIGN - 1) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN + layout->gap
                : layout->base;
        dh_status st = dh_reshard_hold(ctx, r, p, what, base, &r->holdings[side][rank]);
        dh_program_destroy(p);
        DH_TRY(st);
    }
    return DH_OK;
}

/* Whether summed gradients are there between two programs. */
static bool keeps_grads(const dh_layout *l)
{
    return !l->recipe->sharing.gradients || l->part == DH_PART_UPDATE;
}

dh_status dh_reshard_open(dh_ctx *ctx, const dh_layout *from, const dh_layout *to, unsigned what,
                          dh_reshard *reshard)
{
    const dh_layout *const sides[] = {from, to};
    *reshard = (dh_reshard){.n_ranks = from->recipe->mesh.ranks,
                            .ranks_per_node = from->recipe->mesh.ranks_per_node};
    DH_TRY(check_layouts(ctx, from->recipe, to->recipe));
    if (what & DH_RESHARD_GRADS && !(keeps_grads(from) && keeps_grads(to)))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "from parallel.zero=2 on summed gradients lie where a step puts them, and "
                       "nowhere after it: they do not move to another layout");
    for (int side = 0; side < 2; side++) {
        reshard->holdings[side] = calloc((size_t)reshard->n_ranks, sizeof **reshard->holdings);
        if (!reshard->holdings[side]) return dh_no_memory(ctx);
    }
    const int first = from->base == DH_LAYOUT_BEHIND; /* the one behind comes second */
    DH_TRY(hold_all(ctx, reshard, first, sides[first], what));
    DH_TRY(hold_all(ctx, reshard, !first, sides[!first], what));
    return find_slices(ctx, reshard);
}

void dh_reshard_fini(dh_reshard *reshard)
{
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; reshard->holdings[side] && i < reshard->n_ranks; i++) {
            dh_vec_fini(&reshard->holdings[side][i].held);
            dh_vec_fini(&reshard->holdings[side][i].buffers);
        }
        free(reshard->holdings[side]);
    }
    dh_vec_fini(&reshard->tensors);
    dh_index_fini(&reshard->index);
    dh_vec_fini(&reshard->slices);
    dh_vec_fini(&reshard->owners);
    *reshard = (dh_reshard){0};
}
