/* Which gradients are reduced together: parameters of the stage's blocks in flats, which are
 * buckets (reductions.c). */
#include "program/recipe.h"
#include "program/reductions.h"

dh_block_kind dh_reductions_kind(const dh_reducer *r, uint32_t block)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    return p->graphs.at[p->blocks.at[block].graph]->kind;
}

bool dh_reductions_last(const dh_reducer *r, uint32_t block)
{
    const dh_block_kind kind = dh_reductions_kind(r, block);
    return r->tied_apart && (kind == DH_BLOCK_EMBED || kind == DH_BLOCK_HEAD);
}

int64_t dh_reductions_bucket_bytes(const dh_reducer *r)
{
    return r->spec->recipe.bucket_bytes > 0 ? r->spec->recipe.bucket_bytes : DH_BUCKET_BYTES;
}

static void add_weight(const dh_param *param, dh_weight *w)
{
    const int64_t n = dh_param_elements(param), padded = dh_flat_pad(n, DH_FLAT_ALIGN);
    w->n_bytes += n * (int64_t)sizeof(float);
    if (dh_param_is_matrix(param)) {
        w->matrix_bytes += n * (int64_t)sizeof(float);
        w->n_matrix += padded;
        w->matrices++;
        return;
    }
    w->n_vector += padded;
    if (param->ndim > 1 || !param->sharded) w->n_replicated += padded;
    if (param->by_heads) w->n_by_heads += padded;
}

dh_weight dh_reductions_weigh(const dh_reducer *r, uint32_t id)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    dh_weight w = {0};
    for (uint32_t which = 0; which < DH_MAX_BLOCK_PARAMS; which++) {
        dh_param param;
        const uint32_t own = p->blocks.at[id].params[which];
        if (own != DH_NONE && p->homes.at[own].block != id) continue;
        if (dh_reductions_shard(r, id, which, 0, &param)) add_weight(&param, &w);
    }
    return w;
}

/* The flat being filled, of one data group. */
typedef struct bucket {
    uint32_t flat; /* DH_NONE: none */
    int64_t n_bytes;
    bool frees;
} bucket;

/* As few as hold no more than a bucket each, or as many as are stepped one beside the next; fewer
 * where padding fills the last ones. */
static int64_t n_pieces_of(const dh_reducer *r, uint32_t block, const dh_weight *w)
{
    const int64_t most = dh_reductions_bucket_bytes(r);
    const int64_t stepped = dh_recipe_is_fused(&r->spec->recipe) ? r->spec->recipe.fuse : 0;
    const bool apart = r->spec->recipe.by_matrix && r->spec->recipe.sharing.parameters;
    const int64_t least = w->n_matrix > 0 ? (w->matrix_bytes + most - 1) / most : 0;
    const int64_t n = apart ? DH_MAX(least, w->matrices) : least;
    dh_flat f = {.n_matrix = w->n_matrix, .n_pieces = n > 0 ? DH_MAX(n, stepped) : 0};
    dh_emit_cut_flat(&f, dh_emit_flat_shards(r->emitter, block));
    return f.n_piece ? (w->n_matrix + f.n_piece - 1) / f.n_piece : 1;
}

static dh_status put(dh_ctx *ctx, const dh_reducer *r, bucket *b, uint32_t block, uint32_t after)
{
    const int64_t most = dh_reductions_bucket_bytes(r);
    const dh_weight w = dh_reductions_weigh(r, block);
    if (w.n_bytes == 0) return DH_OK;
    const bool alone = dh_reductions_last(r, block);
    const bool each = r->spec->recipe.sharing.parameters; /* gathered alone, as it is used */
    if (b->flat == DH_NONE || alone || each || b->n_bytes + w.n_bytes > most) {
        const uint32_t before = b->flat;
        DH_TRY(dh_emit_add_flat(ctx, r->emitter, n_pieces_of(r, block, &w), &b->flat));
        if (b->frees && !alone && !r->reduces_each) dh_emit_flat_frees(r->emitter, b->flat, before);
        if (r->reduces_each && !alone) dh_emit_flat_each(r->emitter, b->flat);
        b->n_bytes = 0;
    }
    dh_emit_join_flat(r->emitter, b->flat, block, after);
    b->n_bytes += w.n_bytes;
    if (alone) b->flat = DH_NONE;
    return DH_OK;
}

/* Blocks of a layer's experts and adapters are those before the layer. */
static bool is_layer(const dh_reducer *r, uint32_t block)
{
    return dh_reductions_kind(r, block) == DH_BLOCK_LAYER;
}

static bool has_experts(const dh_reducer *r, uint32_t block)
{
    const int64_t layer = dh_emitter_program(r->emitter)->blocks.at[block].layer;
    return is_layer(r, block) && dh_model_of_layer(&r->spec->recipe.model, layer).n_experts > 0;
}

dh_status dh_reductions_plan(dh_ctx *ctx, const dh_reducer *r, const uint32_t *chain, size_t n,
                             bool frees)
{
    bucket blocks = {.flat = DH_NONE, .frees = frees}, experts = blocks, adapters = blocks;
    const uint32_t has_adapters = r->spec->recipe.model.lora.rank > 0;
    for (size_t i = n; i-- > 0;) {
        if (has_experts(r, chain[i]))
            DH_TRY(put(ctx, r, &experts, chain[i] - 1 - has_adapters, chain[i]));
        if (has_adapters && is_layer(r, chain[i]))
            DH_TRY(put(ctx, r, &adapters, chain[i] - 1, chain[i]));
        DH_TRY(put(ctx, r, &blocks, chain[i], chain[i]));
    }
    return DH_OK;
}
