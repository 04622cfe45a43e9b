/* Orders found so far. A key is everything an order depends on, as bytes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

typedef struct entry {
    char *key;
    size_t n_key;
    dh_slot_pick *order;
} entry;

struct dh_order_cache {
    pthread_mutex_t lock;
    DH_VEC(entry *) entries;
};

dh_order_cache *dh_order_cache_create(void)
{
    dh_order_cache *c = calloc(1, sizeof *c);
    if (c) pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void entry_destroy(entry *e)
{
    if (!e) return;
    free(e->key);
    free(e->order);
    free(e);
}

void dh_order_cache_destroy(dh_order_cache *cache)
{
    if (!cache) return;
    for (size_t i = 0; i < cache->entries.n; i++) entry_destroy(cache->entries.at[i]);
    dh_vec_fini(&cache->entries);
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
    const int type = op->at.op ? (int)op->at.op->type : -1;
    return PUT(b, type) && PUT(b, op->ns) && PUT(b, op->stream) && PUT(b, op->block) &&
           PUT(b, op->wgrad) && PUT(b, op->after_f) && PUT(b, op->n_preds) &&
           put(b, op->preds, op->n_preds * sizeof *op->preds) && PUT(b, op->n_uses) &&
           PUT(b, op->work_bytes) && put(b, op->uses, op->n_uses * sizeof *op->uses);
}

static bool make_key(const dh_slot *slot, const dh_order_policy *policy,
                     const dh_order_options *options, bytes *key)
{
    bool ok = PUT(key, policy) && PUT(key, slot->costs) && PUT(key, options->barriers) &&
              PUT(key, options->memory_blocks) && PUT(key, options->pairing.max_segment) &&
              PUT(key, options->pairing.max_moves) && PUT(key, slot->strand[0].n);
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

static const entry *find(const dh_order_cache *cache, const bytes *key)
{
    for (size_t i = 0; i < cache->entries.n; i++) {
        const entry *e = cache->entries.at[i];
        if (e->n_key == key->n && memcmp(e->key, key->at, key->n) == 0) return e;
    }
    return NULL;
}

/* Takes the key. */
static dh_status add(dh_ctx *ctx, dh_order_cache *cache, const dh_slot *slot,
                     const dh_order_policy *policy, const dh_order_options *options, bytes *key,
                     const entry **found)
{
    entry *e = calloc(1, sizeof *e);
    dh_status st = e ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory ordering a slot");
    if (e) {
        *e = (entry){.key = key->at,
                     .n_key = key->n,
                     .order = calloc((size_t)slot_nodes(slot) + 1, sizeof *e->order)};
        memset(key, 0, sizeof *key);
        if (!e->order) st = dh_fail(ctx, DH_ENOMEM, "out of memory ordering a slot");
    }
    if (st == DH_OK) st = dh_slot_order(ctx, slot, policy, options, e->order);
    if (st == DH_OK && !dh_vec_push(&cache->entries, e))
        st = dh_fail(ctx, DH_ENOMEM, "out of memory ordering a slot");
    if (st != DH_OK) entry_destroy(e);
    *found = e;
    return st;
}

dh_status dh_order_cache_get(dh_ctx *ctx, dh_order_cache *cache, const dh_slot *slot,
                             const dh_order_policy *policy, const dh_order_options *options,
                             const dh_slot_pick **order)
{
    bytes key = {0};
    dh_status st = make_key(slot, policy, options, &key)
                       ? DH_OK
                       : dh_fail(ctx, DH_ENOMEM, "out of memory ordering a slot");
    pthread_mutex_lock(&cache->lock);
    const entry *e = st == DH_OK ? find(cache, &key) : NULL;
    if (st == DH_OK && !e) st = add(ctx, cache, slot, policy, options, &key, &e);
    pthread_mutex_unlock(&cache->lock);
    dh_vec_fini(&key);
    if (st == DH_OK) *order = e->order;
    return st;
}
