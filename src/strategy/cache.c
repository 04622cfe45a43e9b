/* Orders found so far. A key is everything an order depends on, as bytes. */
#include <pthread.h>
#include <stdlib.h>

#include "base/table.h"
#include "strategy/slot.h"

struct dh_order_cache {
    pthread_mutex_t lock;
    dh_table orders;
    dh_arena *arena; /* of keys and orders */
};

dh_order_cache *dh_order_cache_create(void)
{
    dh_order_cache *c = calloc(1, sizeof *c);
    dh_arena *arena = c ? dh_arena_create() : NULL;
    if (!arena) {
        free(c);
        return NULL;
    }
    c->arena = arena;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void dh_order_cache_destroy(dh_order_cache *cache)
{
    if (!cache) return;
    dh_table_fini(&cache->orders);
    dh_arena_destroy(cache->arena);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

typedef DH_VEC(char) bytes;

static bool put(bytes *b, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!dh_vec_push(b, ((const char *)data)[i])) return false;
    return true;
}
#define PUT(b, value) put((b), &(value), sizeof(value))

static bool put_op(bytes *b, const dh_slot_op *op)
{
    const uint32_t n_parts = dh_op_n_parts(op->at.op);
    return PUT(b, op->at.op->type) && PUT(b, n_parts) &&
           (!op->pred_parts || put(b, op->pred_parts, op->n_preds * sizeof *op->pred_parts)) &&
           PUT(b, op->ns) && PUT(b, op->stream) && PUT(b, op->block) && PUT(b, op->wgrad) &&
           PUT(b, op->reduces) && PUT(b, op->after_f) && PUT(b, op->n_preds) &&
           put(b, op->preds, op->n_preds * sizeof *op->preds) && PUT(b, op->n_uses) &&
           PUT(b, op->work_bytes) && put(b, op->uses, op->n_uses * sizeof *op->uses);
}

static bool make_key(const dh_slot *slot, const dh_order_policy *policy,
                     const dh_order_options *options, bytes *key)
{
    bool ok = PUT(key, policy) && PUT(key, options->written) && PUT(key, slot->costs) &&
              PUT(key, options->barriers) && PUT(key, options->memory_blocks) &&
              PUT(key, options->memory_bytes) && PUT(key, options->pairing.max_segment) &&
              PUT(key, options->pairing.max_moves) && PUT(key, slot->strand[0].n) &&
              PUT(key, slot->rest.room) && PUT(key, slot->rest.n_later) &&
              PUT(key, slot->rest.by_rule);
#define X(field, doc) ok = ok && PUT(key, options->pairing.field);
    DH_PAIR_SWITCH_LIST(X)
#undef X
    for (uint32_t i = 0; ok && i < slot_nodes(slot); i++) ok = put_op(key, slot_node(slot, i));
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; ok && i < slot->strand[s].n_tensors; i++) {
            const dh_slot_tensor *t = &slot->strand[s].tensors[i];
            ok = PUT(key, t->n_bytes) && PUT(key, t->before) && PUT(key, t->beyond);
        }
    return ok;
}

/* The order of a key, made where it is new. */
static dh_status find_or_make(dh_ctx *ctx, dh_order_cache *cache, const bytes *key,
                              const dh_slot *slot, const dh_order_policy *policy,
                              const dh_order_options *options, const dh_slot_pick **order)
{
    void **place = dh_table_at(&cache->orders, cache->arena, key->at, key->n);
    if (!place) return dh_no_memory(ctx);
    if (!*place) {
        dh_slot_pick *made = DH_NEW_N(cache->arena, dh_slot_pick, (size_t)slot_nodes(slot) + 1);
        if (!made) return dh_no_memory(ctx);
        DH_TRY(dh_slot_order(ctx, slot, policy, options, made));
        *place = made;
    }
    *order = *place;
    return DH_OK;
}

dh_status dh_order_cache_get(dh_ctx *ctx, dh_order_cache *cache, const dh_slot *slot,
                             const dh_order_policy *policy, const dh_order_options *options,
                             const dh_slot_pick **order)
{
    bytes key = {0};
    dh_status st = make_key(slot, policy, options, &key) ? DH_OK : dh_no_memory(ctx);
    pthread_mutex_lock(&cache->lock);
    if (st == DH_OK) st = find_or_make(ctx, cache, &key, slot, policy, options, order);
    pthread_mutex_unlock(&cache->lock);
    dh_vec_fini(&key);
    return st;
}
