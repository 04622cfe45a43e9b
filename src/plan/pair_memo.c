/* Plans that were made before, by the content of their problems. */
#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/table.h"
#include "plan/pairing.h"

struct dh_pair_memo {
    pthread_mutex_t lock;
    int users;
    dh_table plans;
    dh_arena *arena; /* of keys */
};

dh_pair_memo *dh_pair_memo_create(void)
{
    dh_pair_memo *memo = calloc(1, sizeof *memo);
    if (memo && (memo->arena = dh_arena_create())) {
        memo->users = 1;
        pthread_mutex_init(&memo->lock, NULL);
        return memo;
    }
    free(memo);
    return NULL;
}

dh_pair_memo *dh_pair_memo_share(dh_pair_memo *memo)
{
    pthread_mutex_lock(&memo->lock);
    memo->users++;
    pthread_mutex_unlock(&memo->lock);
    return memo;
}

void dh_pair_memo_destroy(dh_pair_memo *memo)
{
    if (!memo) return;
    pthread_mutex_lock(&memo->lock);
    const bool last = --memo->users == 0;
    pthread_mutex_unlock(&memo->lock);
    if (!last) return;
    for (size_t i = 0; i < memo->plans.rows.n; i++)
        dh_pair_plan_destroy(memo->plans.rows.at[i].value);
    dh_table_fini(&memo->plans);
    dh_arena_destroy(memo->arena);
    pthread_mutex_destroy(&memo->lock);
    free(memo);
}

/* ---- keys ------------------------------------------------------------------------------- */

static void put(XXH3_state_t *key, const void *data, size_t n_bytes)
{
    XXH3_128bits_update(key, data, n_bytes);
}
#define PUT(key, value) put((key), &(value), sizeof(value))

static void put_strand(XXH3_state_t *key, dh_pair_strand strand)
{
    PUT(key, strand.n);
    for (int32_t k = 0; k < strand.n; k++) {
        const dh_pair_op *op = &strand.ops[k];
        PUT(key, op->engine);
        PUT(key, op->solo_ns);
        PUT(key, op->source);
        PUT(key, op->movable);
        PUT(key, op->n_preds);
        if (op->n_preds) put(key, op->preds, (size_t)op->n_preds * sizeof *op->preds);
    }
}

/* Where an operator takes no time, nobody reads its time beside another. */
static void put_together(XXH3_state_t *key, const dh_pair_problem *problem)
{
    const dh_pair_time *at = problem->together;
    for (int32_t f = 0; f < problem->f.n; f++)
        for (int32_t b = 0; b < problem->b.n; b++, at++) {
            if (problem->f.ops[f].solo_ns == 0 || problem->b.ops[b].solo_ns == 0) continue;
            PUT(key, at->f_ns);
            PUT(key, at->b_ns);
            PUT(key, at->source);
        }
}

/* Everything that a plan depends on, and nothing else: names of operators are not in it. */
static dh_status make_key(dh_ctx *ctx, const dh_pair_policy *policy, const dh_pair_problem *problem,
                          const dh_pair_options *options, XXH128_hash_t *hash)
{
    XXH3_state_t *key = XXH3_createState();
    if (!key) return dh_no_memory(ctx);
    XXH3_128bits_reset(key);
    PUT(key, policy);
#define X(field, doc) PUT(key, options->field);
    DH_PAIR_SWITCH_LIST(X)
#undef X
    PUT(key, options->max_segment);
    PUT(key, options->max_states);
    PUT(key, options->max_moves);
    PUT(key, options->compare);
    PUT(key, problem->round_ns);
    put_strand(key, problem->f);
    put_strand(key, problem->b);
    put_together(key, problem);
    *hash = XXH3_128bits_digest(key);
    XXH3_freeState(key);
    return DH_OK;
}

/* ---- entry ------------------------------------------------------------------------------ */

dh_status dh_pair_memo_get(dh_ctx *ctx, dh_pair_memo *memo, const dh_pair_policy *policy,
                           const dh_pair_problem *problem, const dh_pair_options *options,
                           const dh_pair_plan **plan)
{
    XXH128_hash_t key;
    DH_TRY(make_key(ctx, policy, problem, options, &key));
    pthread_mutex_lock(&memo->lock);
    void **place = dh_table_at(&memo->plans, memo->arena, &key, sizeof key);
    dh_pair_plan *made = place ? *place : NULL;
    dh_status st = place ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK && !made) {
        st = dh_pair_plan_make(ctx, policy, problem, options, &made);
        if (st == DH_OK) *place = made;
    }
    pthread_mutex_unlock(&memo->lock);
    *plan = made;
    return st;
}
