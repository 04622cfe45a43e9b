/* Whether the members of a group make the same call. Sizes are part of it: a vector that is
 * longer than its receiver expects must be noticed before it travels.
 *
 * A header to every member costs as much as a small collective. So by default a member sends
 * it only with a call that it has not made before on the group. Members that make the same calls
 * know the same ones, so either all compare or none does. If one of them makes another call for
 * the first time, one side waits for a header that does not come. That wait ends as any wait for a
 * missing call. */
#include "mpi_world.h"

#include <stdlib.h>

/* ---- calls made before ---------------------------------------------------------------------- */

/* All that is compared but the number; never 0, which marks a free place. */
static uint64_t hash_of(const dh_comm_head *head)
{
    const uint64_t what = (uint64_t)head->kind << 48 | (uint64_t)head->dtype << 40 |
                          (uint64_t)head->reduce << 32 | (uint32_t)head->root;
    return dh_mix64(dh_mix64(dh_mix64(what) ^ (uint64_t)head->count) ^ head->shape) | 1;
}

static uint64_t *place_of(uint64_t *table, size_t cap, uint64_t hash)
{
    size_t at = (size_t)(hash >> 1) & (cap - 1);
    while (table[at] != 0 && table[at] != hash) at = (at + 1) & (cap - 1);
    return &table[at];
}

static bool grow(mpi_known *known)
{
    const size_t cap = known->cap ? 2 * known->cap : 32;
    uint64_t *table = calloc(cap, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < known->cap; i++)
        if (known->table[i]) *place_of(table, cap, known->table[i]) = known->table[i];
    free(known->table);
    known->table = table;
    known->cap = cap;
    return true;
}

/* Whether the call was made before; if not, it is from now on. */
static dh_status is_known(dh_ctx *ctx, mpi_group *g, const dh_comm_head *head, bool *before)
{
    mpi_known *known = &g->known;
    const uint64_t hash = hash_of(head);
    if (2 * known->n >= known->cap && !grow(known)) return dh_no_memory(ctx);
    uint64_t *place = place_of(known->table, known->cap, hash);
    *before = *place == hash;
    *place = hash;
    known->n += !*before;
    return DH_OK;
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* Header for one peer: for all_to_all, `shape` is what this pair exchanges. */
static dh_comm_head head_for(const dh_comm_call *call, const dh_comm_part *parts, int peer)
{
    dh_comm_head head = call->head;
    if (head.kind == DH_COMM_ALL_TO_ALL) head.shape = (uint64_t)parts[peer].n;
    return head;
}

static dh_status exchange(dh_ctx *ctx, mpi_group *g, const dh_comm_call *call, int tag,
                          dh_comm_head *sent, dh_comm_head *got)
{
    for (int k = 1; k < g->base.n; k++) {
        const int to = (g->base.me + k) % g->base.n;
        const int from = (g->base.me + g->base.n - k) % g->base.n;
        sent[to] = head_for(call, call->send_parts, to);
        DH_TRY(mpi_irecv(ctx, g, &call->head, from, tag, (char *)&got[from], sizeof *got));
        DH_TRY(mpi_isend(ctx, g, &call->head, to, tag, (const char *)&sent[to], sizeof *sent));
    }
    return mpi_wait(ctx, g, &call->head);
}

dh_status mpi_check_call(dh_ctx *ctx, mpi_group *g, const dh_comm_call *call, int tag)
{
    bool before = false;
    const size_t n = (size_t)g->base.n;
    if (n == 1) return DH_OK;
    if (g->base.comm->world->config.check == DH_CHECK_FIRST)
        DH_TRY(is_known(ctx, g, &call->head, &before));
    if (before) return DH_OK;
    DH_TRY(dh_comm_scratch(ctx, &g->base, 2 * n * sizeof(dh_comm_head)));
    dh_comm_head *sent = (dh_comm_head *)(void *)g->base.scratch, *got = sent + n;
    DH_TRY(exchange(ctx, g, call, tag, sent, got));
    for (int j = 0; j < g->base.n; j++) {
        char text[DH_COMM_CALL_TEXT_BYTES];
        const dh_comm_head mine = head_for(call, call->recv_parts, j);
        if (j != g->base.me &&
            dh_comm_heads_differ(&g->base, g->base.me, &mine, j, &got[j], text, sizeof text))
            return mpi_fail_here(ctx, g, text);
    }
    return DH_OK;
}
