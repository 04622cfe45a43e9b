/* A rank's share of the state in checkpoints. */
#include "train/share.h"

#include <stdio.h>
#include <stdlib.h>

#include "train/params.h"

/* ---- which elements ------------------------------------------------------------------------- */

/* A replicated vector is written by tensor-parallel rank 0, a tied copy not at all. */
static bool writes(const dh_program *p, uint32_t param)
{
    const dh_param *info = &p->params.at[param];
    dh_block_kind kind = p->graphs.at[p->blocks.at[p->homes.at[param].block].graph]->kind;
    if (info->kind == DH_BLOCK_EMBED && kind == DH_BLOCK_HEAD) return false;
    return info->sharded || p->mesh.ranks <= 1 || dh_mesh_coord(&p->mesh, p->rank).tp == 0;
}

/* Elements of a parameter that this rank writes, the first ones: not keys and values that a rank
 * before it has too. */
static int64_t n_written(const dh_program *p, uint32_t param)
{
    const dh_param *info = &p->params.at[param];
    const bool again = p->mesh.ranks > 1 && dh_mesh_group_index(&p->mesh, DH_GROUP_KV, p->rank) > 0;
    return dh_param_elements(info) - (again ? info->n_repeated : 0);
}

/* Place of this rank among the n ranks that hold the same elements of a flat and share them out:
 * the index-th. *n_all counts all ranks that hold them. */
static void place_in_group(const dh_program *p, const dh_flat *flat, const bool *has,
                           int64_t *index, int64_t *n, int64_t *n_all)
{
    *index = 0;
    *n = *n_all = 1;
    if (p->mesh.ranks <= 1) return;
    const dh_group_kind group = dh_program_data_group(p, flat->first_block);
    *n_all = dh_mesh_group_size(&p->mesh, group);
    *n = 0;
    for (int64_t i = 0; i < *n_all; i++) {
        const int64_t rank = dh_mesh_group_member(&p->mesh, group, p->rank, i);
        if (has && !has[rank]) continue;
        if (rank == p->rank) *index = *n;
        ++*n;
    }
}

static bool is_sharded(const dh_flat *flat)
{
    return flat->n_shard < flat->n_piece;
}

static dh_status add(dh_ctx *ctx, const dh_program *p, dh_share *share, const dh_share_run *run)
{
    dh_share_run own = *run;
    own.n = DH_MIN(own.n, n_written(p, own.param) - own.first);
    if (own.n <= 0) return DH_OK;
    return dh_vec_push(share, own) ? DH_OK : dh_no_memory(ctx);
}

/* The shard of every piece of the flat, as far as the parameter lies there. */
static dh_status add_shards(dh_ctx *ctx, const dh_program *p, const dh_flat *flat, uint32_t param,
                            dh_buffer_kind kind, dh_share *share)
{
    for (int64_t k = 0; k < flat->n_pieces; k++) {
        dh_share_run run = {
            .param = param, .kind = kind, .n = dh_param_elements(&p->params.at[param])};
        dh_param_part(p, param, kind, k, &run.first, &run.n, &run.at);
        DH_TRY(add(ctx, p, share, &run));
    }
    return DH_OK;
}

/* Whole rows of it, as many as any other rank's or one more. */
static dh_status add_part(dh_ctx *ctx, const dh_program *p, const bool *has, const dh_flat *flat,
                          uint32_t param, dh_buffer_kind kind, dh_share *share)
{
    const dh_param *info = &p->params.at[param];
    const dh_operand *home = &p->homes.at[param].at[kind];
    const int64_t row = info->ndim >= 2 ? dh_param_cols(info) : 1;
    const int64_t n_rows = dh_param_elements(info) / row;
    int64_t index, n, n_all;
    place_in_group(p, flat, has, &index, &n, &n_all);
    dh_share_run run = {.param = param, .kind = kind, .first = n_rows * index / n * row};
    run.n = n_rows * (index + 1) / n * row - run.first;
    run.at = p->buffers.at[home->buffer].offset + home->byte0 + (uint64_t)run.first * sizeof(float);
    return add(ctx, p, share, &run);
}

static dh_status find_kind(dh_ctx *ctx, const dh_program *p, const bool *has, dh_buffer_kind kind,
                           dh_share *share)
{
    for (uint32_t i = 0; i < p->params.n; i++) {
        const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[i].block].flat];
        if (flat->frozen || !writes(p, i) || flat->first_copy != DH_NONE)
            continue; /* a copy is equal to it */
        /* Of whole masters too: the others' may be gathered only in the next step. */
        const bool shards = dh_param_is_matrix(&p->params.at[i]) && is_sharded(flat);
        DH_TRY(shards ? add_shards(ctx, p, flat, i, kind, share)
                      : add_part(ctx, p, has, flat, i, kind, share));
    }
    return DH_OK;
}

dh_status dh_share_find(dh_ctx *ctx, const dh_program *program, const bool *has, dh_share *share)
{
    static const dh_buffer_kind kinds[] = {DH_BUF_MASTER, DH_BUF_ADAM_M, DH_BUF_ADAM_V};
    dh_share found = {0};
    for (size_t i = 0; i < DH_COUNTOF(kinds); i++)
        if (find_kind(ctx, program, has, kinds[i], &found) != DH_OK) {
            dh_vec_fini(&found);
            return ctx->status;
        }
    *share = found;
    return DH_OK;
}

dh_status dh_share_check(dh_ctx *ctx, const dh_program *p, const bool *has)
{
    for (size_t i = 0; i < p->flats.n; i++) {
        const dh_flat *flat = &p->flats.at[i];
        int64_t index, n, n_all;
        if (flat->frozen || flat->first_copy != DH_NONE) continue;
        place_in_group(p, flat, has, &index, &n, &n_all);
        if (n == n_all) continue;
        if (is_sharded(flat))
            return dh_fail(
                ctx, DH_EMISSING,
                "parallel.zero shards the moments, and only rank %lld had its part of them",
                (long long)p->rank);
        if (n == 0)
            return dh_fail(ctx, DH_EMISSING, "no other rank has a copy of the state of rank %lld",
                           (long long)p->rank);
    }
    return DH_OK;
}

uint64_t dh_share_bytes(const dh_share *share)
{
    uint64_t n = 0;
    for (size_t i = 0; i < share->n; i++) n += (uint64_t)share->at[i].n;
    return n * sizeof(float);
}

/* ---- copying -------------------------------------------------------------------------------- */

static dh_status read_run(dh_ctx *ctx, const dh_session *s, const dh_share_run *run, float *to)
{
    return s->spec.device->slab_read(ctx, s->slab, run->at, to, (uint64_t)run->n * sizeof *to);
}

dh_status dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share, float *copy)
{
    for (size_t i = 0; i < share->n; i++) {
        DH_TRY(read_run(ctx, session, &share->at[i], copy));
        copy += share->at[i].n;
    }
    return DH_OK;
}

/* ---- storing -------------------------------------------------------------------------------- */

/* Elements of a piece: rows [row, row + n_rows) of columns [col, col + n_cols), of which own has
 * nothing else. */
typedef struct region {
    int64_t row, n_rows, col, n_cols;
    const float *own;
} region;

static dh_status store_region(dh_ctx *ctx, dh_st_writer *writer, const char *prefix,
                              const dh_param_piece *p, const region *r)
{
    char name[128];
    const int64_t row = p->hf_row + r->row, col = p->hf_col + r->col;
    snprintf(name, sizeof name, "%s%s", prefix, p->hf_name);
    if (p->hf_ndim == 1)
        return dh_st_writer_put_f32(ctx, writer, name, 0, 1, row, r->n_rows, r->own, r->n_rows);
    if (!p->transpose)
        return dh_st_writer_put_f32(ctx, writer, name, row, r->n_rows, col, r->n_cols, r->own,
                                    r->n_cols);
    float *turned = malloc((size_t)(r->n_rows * r->n_cols) * sizeof *turned);
    if (!turned) return dh_no_memory(ctx);
    for (int64_t i = 0; i < r->n_rows; i++)
        for (int64_t j = 0; j < r->n_cols; j++)
            turned[j * r->n_rows + i] = r->own[i * r->n_cols + j];
    dh_status st =
        dh_st_writer_put_f32(ctx, writer, name, col, r->n_cols, row, r->n_rows, turned, r->n_rows);
    free(turned);
    return st;
}

/* Elements [first, end) of a piece, row by row: what is left of a row, whole rows, the beginning of
 * a row. */
static dh_status store_piece(dh_ctx *ctx, dh_st_writer *writer, const char *prefix,
                             const dh_param_piece *p, int64_t first, int64_t end, const float *own)
{
    while (first < end) {
        const int64_t col = first % p->n_cols, whole = (end - first) / p->n_cols;
        region r = {.row = first / p->n_cols, .n_rows = 1, .col = col, .own = own};
        r.n_cols = DH_MIN(p->n_cols - col, end - first);
        if (col == 0 && whole > 0) r.n_rows = whole;
        DH_TRY(store_region(ctx, writer, prefix, p, &r));
        first += r.n_rows * r.n_cols;
        own += r.n_rows * r.n_cols;
    }
    return DH_OK;
}

/* own: the run's elements. */
static dh_status store_run(dh_ctx *ctx, const dh_program *p, dh_st_writer *writer,
                           const char *prefix, const dh_share_run *run, const float *own)
{
    const dh_param *info = &p->params.at[run->param];
    for (int k = 0; k < info->n_pieces; k++) {
        const dh_param_piece piece = dh_param_piece_at(info, k);
        const int64_t origin = piece.row * piece.n_cols;
        const int64_t first = DH_MAX(run->first, origin);
        const int64_t end = DH_MIN(run->first + run->n, origin + piece.n_rows * piece.n_cols);
        if (first < end)
            DH_TRY(store_piece(ctx, writer, prefix, &piece, first - origin, end - origin,
                               own + (first - run->first)));
    }
    return DH_OK;
}

static dh_status store_from_slab(dh_ctx *ctx, const dh_session *s, dh_st_writer *writer,
                                 const char *prefix, const dh_share_run *run)
{
    float *own = malloc((size_t)run->n * sizeof *own);
    if (!own) return dh_no_memory(ctx);
    dh_status st = read_run(ctx, s, run, own);
    if (st == DH_OK) st = store_run(ctx, dh_session_layout(s), writer, prefix, run, own);
    free(own);
    return st;
}

dh_status dh_share_store(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                         const float *copy, dh_st_writer *writer, const char *prefix,
                         dh_buffer_kind kind)
{
    for (size_t i = 0; i < share->n; i++) {
        const dh_share_run *run = &share->at[i];
        if (run->kind == kind)
            DH_TRY(copy ? store_run(ctx, dh_session_layout(session), writer, prefix, run, copy)
                        : store_from_slab(ctx, session, writer, prefix, run));
        if (copy) copy += run->n;
    }
    return DH_OK;
}
