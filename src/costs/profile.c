/* Profiles in memory: adding, finding, comparing, merging. */
#include "costs/profile.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/index.h"

/* ---- index ------------------------------------------------------------------------------ */

struct dh_profile_index {
    dh_index ops, pairs; /* by place in the profile */
};

static uint64_t key_hash(const char *key)
{
    return XXH3_64bits(key, strlen(key));
}

static uint64_t pair_hash(uint32_t a, uint32_t b)
{
    return dh_mix64((uint64_t)a << 32 | b);
}

static bool index_op(dh_profile *p, uint32_t id)
{
    return dh_index_add(&p->index->ops, key_hash(p->ops.at[id].key), id);
}

static bool index_pair(dh_profile *p, uint32_t id)
{
    const dh_profile_pair *pair = &p->pairs.at[id];
    return dh_index_add(&p->index->pairs, pair_hash(pair->a, pair->b), id);
}

uint32_t dh_profile_find_op(const dh_profile *p, const char *key)
{
    const uint64_t hash = key_hash(key);
    size_t at = 0;
    uint32_t id = dh_index_first(&p->index->ops, hash, &at);
    while (id != DH_NONE && strcmp(p->ops.at[id].key, key) != 0)
        id = dh_index_next(&p->index->ops, hash, &at);
    return id;
}

/* The hash of a pair is its numbers, mixed: equal for no others. */
uint32_t dh_profile_find_pair(const dh_profile *p, uint32_t a, uint32_t b)
{
    size_t at = 0;
    return dh_index_first(&p->index->pairs, pair_hash(a, b), &at);
}

/* ---- life ------------------------------------------------------------------------------- */

static dh_status no_memory(dh_ctx *ctx, const dh_profile *p)
{
    return dh_no_memory_while(ctx, "reading %s", p->name);
}

dh_status dh_profile_create(dh_ctx *ctx, const char *name, dh_profile **profile)
{
    dh_arena *arena = dh_arena_create();
    dh_profile *p = arena ? DH_NEW(arena, dh_profile) : NULL;
    if (p) {
        p->arena = arena;
        p->name = dh_arena_strdup(arena, name);
        p->index = DH_NEW(arena, struct dh_profile_index);
    }
    if (!p || !p->name || !p->index) {
        dh_arena_destroy(arena);
        return dh_no_memory_while(ctx, "reading %s", name);
    }
    *profile = p;
    return DH_OK;
}

void dh_profile_destroy(dh_profile *profile)
{
    if (!profile) return;
    dh_index_fini(&profile->index->ops);
    dh_index_fini(&profile->index->pairs);
    dh_vec_fini(&profile->facts);
    dh_vec_fini(&profile->ops);
    dh_vec_fini(&profile->pairs);
    dh_arena_destroy(profile->arena);
}

/* ---- adding ----------------------------------------------------------------------------- */

dh_status dh_profile_add_fact(dh_ctx *ctx, dh_profile *p, const char *name, const char *value)
{
    for (size_t i = 0; i < p->facts.n; i++)
        if (strcmp(p->facts.at[i].name, name) == 0)
            return dh_fail(ctx, DH_EINVAL, "%s: fact %.80s twice", p->name, name);
    const dh_profile_fact fact = {dh_arena_strdup(p->arena, name),
                                  dh_arena_strdup(p->arena, value)};
    if (!fact.name || !fact.value || !dh_vec_push(&p->facts, fact)) return no_memory(ctx, p);
    return DH_OK;
}

static bool is_time(int64_t ns)
{
    return ns >= 1 && ns <= DH_PAIR_MAX_NS;
}

/* A spread or an estimate may be 0. */
static bool is_extent(int64_t ns)
{
    return ns >= 0 && ns <= DH_PAIR_MAX_NS;
}

static dh_status check_op(dh_ctx *ctx, const dh_profile *p, const dh_profile_op *op)
{
    if ((unsigned)op->stream >= DH_N_STREAM)
        return dh_fail(ctx, DH_EINVAL, "%s: %.80s runs on stream %d; 0 to %d are possible", p->name,
                       op->label, (int)op->stream, DH_N_STREAM - 1);
    if (!is_time(op->solo_ns) || !is_extent(op->spread_ns) || !is_extent(op->estimate_ns) ||
        op->n_samples < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "%s: %.80s takes %lld ns (spread %lld, estimate %lld, %d samples): times "
                       "are 1 to %lld",
                       p->name, op->label, (long long)op->solo_ns, (long long)op->spread_ns,
                       (long long)op->estimate_ns, op->n_samples, (long long)DH_PAIR_MAX_NS);
    return DH_OK;
}

dh_status dh_profile_add_op(dh_ctx *ctx, dh_profile *p, const dh_profile_op *op, uint32_t *id)
{
    DH_TRY(check_op(ctx, p, op));
    uint32_t at = dh_profile_find_op(p, op->key);
    dh_profile_op own = *op;
    own.label = dh_arena_strdup(p->arena, op->label);
    if (!own.label) return no_memory(ctx, p);
    if (at != DH_NONE) {
        own.key = p->ops.at[at].key;
        p->ops.at[at] = own;
    } else {
        own.key = dh_arena_strdup(p->arena, op->key);
        at = (uint32_t)p->ops.n;
        if (!own.key || !dh_vec_push(&p->ops, own)) return no_memory(ctx, p);
        if (!index_op(p, at)) {
            p->ops.n--;
            return no_memory(ctx, p);
        }
    }
    if (id) *id = at;
    return DH_OK;
}

static dh_status check_pair(dh_ctx *ctx, const dh_profile *p, const dh_profile_pair *pair)
{
    if (pair->a >= p->ops.n || pair->b >= p->ops.n)
        return dh_fail(ctx, DH_EINVAL, "%s: a pair of operators %u and %u; there are %zu", p->name,
                       pair->a, pair->b, p->ops.n);
    if (!is_time(pair->a_ns) || !is_time(pair->b_ns) || !is_extent(pair->a_spread_ns) ||
        !is_extent(pair->b_spread_ns) || pair->n_samples < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "%s: %.80s and %.80s together take %lld and %lld ns (%d samples): times "
                       "are 1 to %lld",
                       p->name, p->ops.at[pair->a].label, p->ops.at[pair->b].label,
                       (long long)pair->a_ns, (long long)pair->b_ns, pair->n_samples,
                       (long long)DH_PAIR_MAX_NS);
    return DH_OK;
}

dh_status dh_profile_add_pair(dh_ctx *ctx, dh_profile *p, const dh_profile_pair *pair)
{
    DH_TRY(check_pair(ctx, p, pair));
    const uint32_t at = dh_profile_find_pair(p, pair->a, pair->b);
    if (at != DH_NONE) {
        p->pairs.at[at] = *pair;
        return DH_OK;
    }
    if (!dh_vec_push(&p->pairs, *pair)) return no_memory(ctx, p);
    if (index_pair(p, (uint32_t)p->pairs.n - 1)) return DH_OK;
    p->pairs.n--;
    return no_memory(ctx, p);
}

/* ---- copying ---------------------------------------------------------------------------- */

static void *copied(dh_arena *arena, const void *at, size_t n_bytes)
{
    void *copy = dh_arena_alloc(arena, n_bytes + 1);
    if (copy && n_bytes) memcpy(copy, at, n_bytes);
    return copy;
}
#define COPIED(arena, v) copied((arena), (v)->at, (v)->n * sizeof *(v)->at)

static bool copy_index(dh_arena *arena, dh_index *index)
{
    index->places = copied(arena, index->places, index->n_places * sizeof *index->places);
    return index->places != NULL;
}

static bool copy_texts(dh_arena *arena, dh_profile *p)
{
    for (size_t i = 0; i < p->ops.n; i++) {
        dh_profile_op *op = &p->ops.at[i];
        op->key = dh_arena_strdup(arena, op->key);
        op->label = dh_arena_strdup(arena, op->label);
        if (!op->key || !op->label) return false;
    }
    for (size_t i = 0; i < p->facts.n; i++) {
        dh_profile_fact *fact = &p->facts.at[i];
        fact->name = dh_arena_strdup(arena, fact->name);
        fact->value = dh_arena_strdup(arena, fact->value);
        if (!fact->name || !fact->value) return false;
    }
    p->name = dh_arena_strdup(arena, p->name);
    return p->name != NULL;
}

const dh_profile *dh_profile_copy(dh_arena *arena, const dh_profile *profile)
{
    dh_profile *p = copied(arena, profile, sizeof *profile);
    if (!p) return NULL;
    p->arena = arena;
    p->index = copied(arena, profile->index, sizeof *profile->index);
    p->facts.at = COPIED(arena, &profile->facts);
    p->ops.at = COPIED(arena, &profile->ops);
    p->pairs.at = COPIED(arena, &profile->pairs);
    if (!p->index || !p->facts.at || !p->ops.at || !p->pairs.at) return NULL;
    const bool ok = copy_index(arena, &p->index->ops) && copy_index(arena, &p->index->pairs) &&
                    copy_texts(arena, p);
    return ok ? p : NULL;
}

/* ---- facts ------------------------------------------------------------------------------ */

static const char *value_of(const dh_profile_fact *facts, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(facts[i].name, name) == 0) return facts[i].value;
    return NULL;
}

static dh_status differs(dh_ctx *ctx, const dh_profile *p, const char *name, const char *there,
                         const char *here)
{
    return dh_fail(ctx, DH_EINVAL,
                   "profile %s was not made for this: %s is %.200s there and %.200s here; "
                   "`dhelix profile JOB` makes one",
                   p->name, name, there ? there : "not known", here ? here : "not known");
}

dh_status dh_profile_check(dh_ctx *ctx, const dh_profile *p, const dh_profile_fact *facts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *there = value_of(p->facts.at, p->facts.n, facts[i].name);
        if (!there || strcmp(there, facts[i].value) != 0)
            return differs(ctx, p, facts[i].name, there, facts[i].value);
    }
    for (size_t i = 0; i < p->facts.n; i++)
        if (!value_of(facts, n, p->facts.at[i].name))
            return differs(ctx, p, p->facts.at[i].name, p->facts.at[i].value, NULL);
    return DH_OK;
}

uint64_t dh_profile_facts_hash(const dh_profile_fact *facts, size_t n)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) {
        hash = XXH3_64bits_withSeed(facts[i].name, strlen(facts[i].name), hash);
        hash = XXH3_64bits_withSeed(facts[i].value, strlen(facts[i].value), hash);
    }
    return hash;
}

static uint64_t add_number(uint64_t hash, int64_t number)
{
    return dh_mix64(hash ^ (uint64_t)number);
}

uint64_t dh_profile_hash(const dh_profile *p)
{
    uint64_t hash = dh_profile_facts_hash(p->facts.at, p->facts.n);
    for (size_t i = 0; i < p->ops.n; i++)
        hash = add_number(hash ^ key_hash(p->ops.at[i].key), p->ops.at[i].solo_ns);
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        hash = add_number(hash ^ pair_hash(pair->a, pair->b), pair->a_ns);
        hash = add_number(hash, pair->b_ns);
    }
    return add_number(add_number(hash, p->launch_ns), p->event_ns);
}

/* ---- merging ---------------------------------------------------------------------------- */

static dh_status merge(dh_ctx *ctx, dh_profile *into, const dh_profile *from, uint32_t *ids)
{
    for (size_t i = 0; i < from->ops.n; i++)
        DH_TRY(dh_profile_add_op(ctx, into, &from->ops.at[i], &ids[i]));
    for (size_t i = 0; i < from->pairs.n; i++) {
        dh_profile_pair pair = from->pairs.at[i];
        pair.a = ids[pair.a];
        pair.b = ids[pair.b];
        DH_TRY(dh_profile_add_pair(ctx, into, &pair));
    }
    if (from->launch_ns > 0) into->launch_ns = from->launch_ns;
    if (from->event_ns > 0) into->event_ns = from->event_ns;
    return DH_OK;
}

dh_status dh_profile_merge(dh_ctx *ctx, dh_profile *into, const dh_profile *from)
{
    DH_TRY(dh_profile_check(ctx, into, from->facts.at, from->facts.n));
    uint32_t *ids = malloc((from->ops.n + 1) * sizeof *ids);
    dh_status st = ids ? merge(ctx, into, from, ids) : no_memory(ctx, into);
    free(ids);
    return st;
}
