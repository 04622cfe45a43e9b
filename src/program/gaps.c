/* Where a flat's matrices have gaps: behind parameters that are no multiple of DH_FLAT_ALIGN long,
 * and at the end, where pieces and shards are made equal. They differ between tensor-parallel ranks
 * where the vocabulary does. */
#include "program/reductions.h"

bool dh_reductions_shard(const dh_reducer *r, uint32_t block, uint32_t which, int64_t tp_rank,
                         dh_param *param)
{
    const dh_mesh *m = &r->spec->recipe.mesh;
    const dh_shard shard = {
        .tp = m->tp, .tp_rank = tp_rank, .ep = m->ep, .whole_experts = m->whole_experts};
    const dh_program *p = dh_emitter_program(r->emitter);
    const int layer = p->blocks.at[block].layer;
    return dh_param_describe(&r->spec->recipe.model, p->graphs.at[p->blocks.at[block].graph]->kind,
                             layer, which, param) &&
           dh_param_shard(param, shard, param);
}

static bool add_gap(dh_gaps *gaps, int64_t begin, int64_t end)
{
    if (begin == end) return true;
    if (gaps->n > 0 && gaps->at[gaps->n - 1].end == begin) {
        gaps->at[gaps->n - 1].end = end;
        return true;
    }
    return dh_vec_push(gaps, ((dh_gap){begin, end}));
}

static bool add_block_gaps(const dh_reducer *r, uint32_t block, int64_t tp_rank, int64_t *at,
                           dh_gaps *gaps)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    bool ok = true;
    for (uint32_t which = 0; ok && which < DH_MAX_BLOCK_PARAMS; which++) {
        dh_param param;
        const uint32_t own = p->blocks.at[block].params[which];
        if (own != DH_NONE && p->homes.at[own].block != block) continue;
        if (!dh_reductions_shard(r, block, which, tp_rank, &param) || !dh_param_is_matrix(&param))
            continue;
        const int64_t n = dh_param_elements(&param), padded = dh_flat_pad(n, DH_FLAT_ALIGN);
        ok = add_gap(gaps, *at + n, *at + padded);
        *at += padded;
    }
    return ok;
}

/* The gaps of a flat as tensor-parallel rank `tp_rank` has it. */
static dh_status find_gaps(dh_ctx *ctx, const dh_reducer *r, uint32_t id, int64_t tp_rank,
                           dh_gaps *gaps)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    dh_flat f = p->flats.at[id];
    bool ok = true;
    gaps->n = 0;
    f.n_matrix = 0;
    for (uint32_t b = f.first_block; ok && b <= f.last_block; b++)
        if (p->blocks.at[b].flat == id) ok = add_block_gaps(r, b, tp_rank, &f.n_matrix, gaps);
    const int64_t end = f.n_matrix;
    dh_emit_cut_flat(&f, dh_emit_flat_shards(r->emitter, f.first_block));
    return ok && add_gap(gaps, end, f.n_matrix) ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_reductions_gaps(dh_ctx *ctx, const dh_reducer *r, uint32_t flat, int64_t tp_rank,
                             dh_gaps *gaps, size_t *n_most)
{
    const int64_t tp = r->spec->recipe.mesh.tp, unlike[] = {0, DH_MIN(1, tp - 1), tp - 1};
    *n_most = 0;
    for (size_t i = 0; i < DH_COUNTOF(unlike); i++) {
        DH_TRY(find_gaps(ctx, r, flat, unlike[i], gaps));
        *n_most = DH_MAX(*n_most, gaps->n);
    }
    return find_gaps(ctx, r, flat, tp_rank, gaps);
}
