/* The choice of a sender for each slice. See reshard.h. */
#include <stdlib.h>
#include <string.h>

#include "program/reshard.h"

#include "program/reshard_load.h"

const char *dh_reshard_rule_name(dh_reshard_rule rule)
{
    static const char *const names[DH_N_RESHARD_RULE] = {
        [DH_RESHARD_HOTSPA] = "hotspa", [DH_RESHARD_FIRST] = "first", [DH_RESHARD_EXACT] = "exact"};
    return (unsigned)rule < DH_N_RESHARD_RULE ? names[rule] : "?";
}

int64_t dh_slice_bytes(const dh_reshard *r, const dh_slice *s)
{
    return dh_box_elements(&s->box) * (int64_t)dh_dtype_bytes(r->tensors.at[s->tensor].dtype);
}

/* ---- HotSPa's algorithm 1 -------------------------------------------------------------------- */

/* Every rank has two counters: bytes it sends inside its node, and bytes it sends to other nodes.
 * The source of a slice is an owner on the destination's node with the smallest inside counter. If
 * no owner is on that node, it is the owner with the smallest outside counter. The lowest rank wins
 * a tie. */
static uint32_t hotspa_owner(const dh_reshard *r, const dh_slice *s, int64_t *const sent[2])
{
    uint32_t best = DH_NONE;
    bool best_outside = false;
    for (uint32_t i = s->owner0; i < s->owner0 + s->n_owners; i++) {
        const uint32_t rank = r->owners.at[i].rank;
        const bool outside = !dh_reshard_is_local(r, rank, s->to);
        const bool better = best == DH_NONE || outside < best_outside ||
                            (outside == best_outside &&
                             sent[outside][rank] < sent[outside][r->owners.at[best].rank]);
        if (!better) continue;
        best = i;
        best_outside = outside;
    }
    return best;
}

/* A tensor's slices by their first element, and each for its destinations in order of rank. */
static int by_published_order(const void *a, const void *b)
{
    const dh_slice *x = *(dh_slice *const *)a, *y = *(dh_slice *const *)b;
    const int64_t keys[][2] = {{x->tensor, y->tensor},         {x->box.row, y->box.row},
                               {x->box.col, y->box.col},       {x->box.n_rows, y->box.n_rows},
                               {x->box.n_cols, y->box.n_cols}, {x->to, y->to}};
    for (size_t i = 0; i < DH_COUNTOF(keys); i++)
        if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static dh_status plan_hotspa(dh_ctx *ctx, dh_reshard *r)
{
    const size_t n = (size_t)r->n_ranks;
    int64_t *both = calloc(2 * n + 1, sizeof *both);
    dh_slice **order = calloc(r->slices.n + 1, sizeof *order);
    for (size_t i = 0; order && i < r->slices.n; i++) order[i] = &r->slices.at[i];
    if (order && r->slices.n) qsort(order, r->slices.n, sizeof *order, by_published_order);
    for (size_t i = 0; both && order && i < r->slices.n; i++) {
        dh_slice *s = order[i];
        int64_t *const sent[2] = {both, both + n};
        s->from = hotspa_owner(r, s, sent);
        const uint32_t rank = r->owners.at[s->from].rank;
        if (rank != s->to) sent[!dh_reshard_is_local(r, rank, s->to)][rank] += dh_slice_bytes(r, s);
    }
    const bool ok = both && order;
    free(both);
    free(order);
    return ok ? DH_OK : dh_no_memory(ctx);
}

static void plan_first(dh_reshard *r)
{
    for (size_t i = 0; i < r->slices.n; i++) r->slices.at[i].from = r->slices.at[i].owner0;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The chunk that a rank's last slice on one way is in, and how much of it is full. */
typedef struct filling {
    uint32_t chunk;
    int64_t bytes;
} filling;

static bool has_room(const filling *f, uint32_t chunk, int64_t bytes, int64_t chunk_bytes)
{
    return f->chunk < chunk || f->bytes == 0 || f->bytes + bytes <= chunk_bytes;
}

static void fill(filling *f, uint32_t chunk, int64_t bytes)
{
    f->bytes = f->chunk == chunk ? f->bytes + bytes : bytes;
    f->chunk = chunk;
}

/* In the order of slices, each goes into the first chunk with room for it on both its ranks, from
 * the chunks that these are at. So all ranks have something to do in every chunk. */
static dh_status cut_chunks(dh_ctx *ctx, dh_reshard *r, int64_t chunk_bytes)
{
    filling *out = calloc((size_t)r->n_ranks + 1, sizeof *out);
    filling *in = calloc((size_t)r->n_ranks + 1, sizeof *in);
    r->n_chunks = 1;
    for (size_t i = 0; out && in && i < r->slices.n; i++) {
        dh_slice *s = &r->slices.at[i];
        filling *sends = &out[r->owners.at[s->from].rank], *takes = &in[s->to];
        const int64_t bytes = dh_slice_bytes(r, s);
        s->chunk = 0;
        if (chunk_bytes <= 0 || r->owners.at[s->from].rank == s->to) continue;
        s->chunk = DH_MAX(sends->chunk, takes->chunk);
        if (!has_room(sends, s->chunk, bytes, chunk_bytes) ||
            !has_room(takes, s->chunk, bytes, chunk_bytes))
            s->chunk++;
        fill(sends, s->chunk, bytes);
        fill(takes, s->chunk, bytes);
        r->n_chunks = DH_MAX(r->n_chunks, s->chunk + 1);
    }
    const bool ok = out && in;
    free(out);
    free(in);
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_reshard_plan(dh_ctx *ctx, dh_reshard *reshard, dh_reshard_rule rule,
                          dh_reshard_wires wires, int64_t chunk_bytes, bool *proved)
{
    bool ended = false;
    if (rule == DH_RESHARD_FIRST)
        plan_first(reshard);
    else
        DH_TRY(plan_hotspa(ctx, reshard));
    if (rule == DH_RESHARD_EXACT) DH_TRY(dh_reshard_search(ctx, reshard, wires, &ended));
    if (proved) *proved = ended;
    return cut_chunks(ctx, reshard, chunk_bytes);
}

/* ---- what it comes to ------------------------------------------------------------------------ */

/* A message for each pair of ranks, chunk and type. */
static dh_status count_messages(dh_ctx *ctx, const dh_reshard *r, int64_t *n)
{
    dh_index seen = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        const uint32_t from = r->owners.at[s->from].rank;
        const bool wide = r->tensors.at[s->tensor].dtype == DH_F32;
        /* Ranks are below 2^24; what is mixed stays distinct. */
        const uint64_t key =
            dh_mix64(dh_mix64((uint64_t)s->chunk << 1 | wide) ^ ((uint64_t)from << 24 | s->to));
        size_t at = 0;
        if (from != s->to && dh_index_first(&seen, key, &at) == DH_NONE)
            ok = dh_index_add(&seen, key, (uint32_t)i);
    }
    *n = (int64_t)seen.n;
    dh_index_fini(&seen);
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_reshard_sum_up(dh_ctx *ctx, const dh_reshard *reshard, dh_reshard_wires wires,
                            dh_reshard_sum *sum)
{
    dh_reshard_load load;
    *sum = (dh_reshard_sum){0};
    DH_TRY(dh_reshard_load_init(ctx, reshard, wires, &load));
    for (size_t i = 0; i < reshard->slices.n; i++) {
        const dh_slice *s = &reshard->slices.at[i];
        const int64_t bytes = dh_slice_bytes(reshard, s);
        const uint32_t from = reshard->owners.at[s->from].rank;
        const bool local = dh_reshard_is_local(reshard, from, s->to);
        if (from == s->to) sum->kept_bytes += bytes;
        if (from != s->to) *(local ? &sum->local_bytes : &sum->cross_bytes) += bytes;
        dh_reshard_load_add(&load, from, s->to, bytes);
    }
    sum->busiest_ns = dh_reshard_load_busiest(&load);
    sum->bound_ns = dh_reshard_bound(&load);
    for (int64_t r = 0; r < reshard->n_ranks; r++) {
        sum->most_out = DH_MAX(sum->most_out, load.bytes[0][0][r] + load.bytes[1][0][r]);
        sum->most_in = DH_MAX(sum->most_in, load.bytes[0][1][r] + load.bytes[1][1][r]);
    }
    dh_reshard_load_fini(&load);
    return count_messages(ctx, reshard, &sum->n_messages);
}
