/* Life of a schedule, placements, and the builder all rows share.
 *
 * The idea: a published schedule is a formula for lockstep times, or a per-rank list of
 * counted phases. Both become (rank, time, action) triples here; sorting by time gives
 * the lists, and a forward and a backward at one time are a co-executed pair. Nothing
 * here knows durations. */
#include <stdio.h>
#include <stdlib.h>

#include "schedule_build.h"

static const struct {
    char letter;
    const char *meaning;
} kinds[DH_N_PIPE_KINDS] = {
#define X(name, letter, meaning) {letter, meaning},
    DH_PIPE_KIND_LIST(X)
#undef X
};

static const struct {
    const char *name, *doc;
} placements[DH_N_PLACEMENTS] = {
#define X(name, text, doc) {text, doc},
    DH_PLACEMENT_LIST(X)
#undef X
};

char dh_pipe_kind_letter(dh_pipe_kind kind)
{
    return (unsigned)kind < DH_N_PIPE_KINDS ? kinds[kind].letter : '?';
}

const char *dh_placement_name(dh_placement placement)
{
    return (unsigned)placement < DH_N_PLACEMENTS ? placements[placement].name : "?";
}

const char *dh_placement_doc(dh_placement placement)
{
    return (unsigned)placement < DH_N_PLACEMENTS ? placements[placement].doc : "?";
}

const char *dh_action_text(char *buf, size_t cap, dh_pipe_action a)
{
    snprintf(buf, cap, "%s of micro-batch %d on stage %d", kinds[a.kind].meaning, a.micro, a.stage);
    return buf;
}

const char *dh_slot_text(char *buf, size_t cap, const dh_pipe_slot *slot)
{
    const dh_pipe_action *a = slot->action;
    if (slot->n_actions == 1)
        snprintf(buf, cap, "%d%c%d", a[0].stage, kinds[a[0].kind].letter, a[0].micro);
    else
        snprintf(buf, cap, "%d%c%d|%d%c%d", a[0].stage, kinds[a[0].kind].letter, a[0].micro,
                 a[1].stage, kinds[a[1].kind].letter, a[1].micro);
    return buf;
}

/* ---- life ------------------------------------------------------------------------------ */

void dh_schedule_destroy(dh_schedule *schedule)
{
    if (schedule) dh_arena_destroy(schedule->arena);
}

dh_status dh_schedule_alloc(dh_ctx *ctx, const char *name, int32_t n_ranks, int32_t n_stages,
                            int32_t n_micro, int32_t n_copies, dh_schedule **schedule)
{
    dh_arena *arena = dh_arena_create();
    dh_schedule *s = arena ? DH_NEW(arena, dh_schedule) : NULL;
    if (!s) goto err;
    *s = (dh_schedule){
        .arena = arena,
        .name = dh_arena_strdup(arena, name),
        .n_ranks = n_ranks,
        .n_stages = n_stages,
        .n_micro = n_micro,
        .n_copies = n_copies,
        .rank_of = DH_NEW_N(arena, int32_t, (size_t)n_copies * (size_t)n_stages),
        .copy_of = DH_NEW_N(arena, int32_t, n_micro),
        .first_slot = DH_NEW_N(arena, int32_t, n_ranks + 1),
    };
    if (!s->name || !s->rank_of || !s->copy_of || !s->first_slot) goto err;
    *schedule = s;
    return DH_OK;
err:
    dh_arena_destroy(arena);
    return dh_no_memory(ctx);
}

dh_schedule_copies dh_schedule_copies_of(const dh_schedule *s)
{
    const int32_t *first = s->rank_of, *second = s->rank_of + s->n_stages;
    bool together = true, mirrored = true;
    if (s->n_copies == 1) return DH_COPIES_ONE;
    for (int32_t v = 0; v < s->n_stages; v++) {
        together &= second[v] == first[v];
        mirrored &= second[v] == s->n_ranks - 1 - first[v];
    }
    if (s->n_copies > 2) return DH_COPIES_OTHER;
    return together ? DH_COPIES_TOGETHER : mirrored ? DH_COPIES_MIRRORED : DH_COPIES_OTHER;
}

/* ---- placements --------------------------------------------------------------------------- */

static int32_t n_stages_of(dh_placement placement, const dh_schedule_spec *spec)
{
    int32_t chunks = placement == DH_PLACE_ROUND_ROBIN ? spec->n_chunks
                     : placement == DH_PLACE_FOLDED    ? 2
                                                       : 1;
    return chunks * spec->n_ranks;
}

static int32_t n_copies_of(dh_placement placement)
{
    return placement == DH_PLACE_BIDIRECTIONAL || placement == DH_PLACE_PARALLEL ? 2 : 1;
}

static int32_t place(dh_placement placement, int32_t p, int32_t copy, int32_t stage)
{
    switch (placement) {
    case DH_PLACE_ROUND_ROBIN:
        return stage % p;
    case DH_PLACE_FOLDED:
        return stage < p ? stage : 2 * p - 1 - stage;
    case DH_PLACE_BIDIRECTIONAL:
        return copy == 0 ? stage : p - 1 - stage;
    default:
        return stage;
    }
}

/* ---- builder ------------------------------------------------------------------------------- */

static void release_builder(dh_builder *b)
{
    if (b->ranks)
        for (int32_t g = 0; g < b->schedule->n_ranks; g++) dh_vec_fini(&b->ranks[g]);
    free(b->ranks);
    b->ranks = NULL;
}

dh_status dh_builder_init(dh_ctx *ctx, dh_builder *b, const char *name, dh_placement placement,
                          const dh_schedule_spec *spec)
{
    int32_t n_copies = n_copies_of(placement);
    *b = (dh_builder){0};
    DH_TRY(dh_schedule_alloc(ctx, name, spec->n_ranks, n_stages_of(placement, spec), spec->n_micro,
                             n_copies, &b->schedule));
    dh_schedule *s = b->schedule;
    for (int32_t copy = 0; copy < n_copies; copy++)
        for (int32_t v = 0; v < s->n_stages; v++)
            s->rank_of[copy * s->n_stages + v] = place(placement, s->n_ranks, copy, v);
    b->ranks = calloc((size_t)s->n_ranks, sizeof *b->ranks);
    if (!b->ranks) {
        dh_schedule_destroy(s);
        return dh_no_memory(ctx);
    }
    return DH_OK;
}

void dh_build_at(dh_builder *b, int64_t time, dh_pipe_kind kind, int32_t stage, int32_t micro)
{
    dh_timed_actions *list = &b->ranks[dh_schedule_rank(b->schedule, stage, micro)];
    dh_timed_action item = {time, {kind, stage, micro}};
    if (!dh_vec_push(list, item)) b->out_of_memory = true;
}

static int64_t next_time(const dh_builder *b, int32_t stage, int32_t micro)
{
    const dh_timed_actions *list = &b->ranks[dh_schedule_rank(b->schedule, stage, micro)];
    return list->n ? list->at[list->n - 1].time + 1 : 0;
}

void dh_build_next(dh_builder *b, dh_pipe_kind kind, int32_t stage, int32_t micro)
{
    dh_build_at(b, next_time(b, stage, micro), kind, stage, micro);
}

void dh_build_next_pair(dh_builder *b, int32_t f_stage, int32_t f_micro, int32_t b_stage,
                        int32_t b_micro)
{
    dh_build_next_two(b, (dh_pipe_action){DH_PIPE_F, f_stage, f_micro},
                      (dh_pipe_action){DH_PIPE_B, b_stage, b_micro});
}

void dh_build_next_two(dh_builder *b, dh_pipe_action first, dh_pipe_action second)
{
    const int64_t time = next_time(b, first.stage, first.micro);
    dh_build_at(b, time, first.kind, first.stage, first.micro);
    dh_build_at(b, time, second.kind, second.stage, second.micro);
}

static int by_time(const void *left, const void *right)
{
    const dh_timed_action *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    return (int)a->action.kind - (int)b->action.kind;
}

static void sort_by_time(dh_timed_actions *list)
{
    for (size_t i = 1; i < list->n; i++)
        if (by_time(&list->at[i - 1], &list->at[i]) > 0) {
            qsort(list->at, list->n, sizeof *list->at, by_time);
            return;
        }
}

/* Slots of one rank from its sorted actions. */
static dh_status emit_rank(dh_ctx *ctx, const dh_builder *b, int32_t rank)
{
    dh_schedule *s = b->schedule;
    const dh_timed_actions *list = &b->ranks[rank];
    int32_t n = s->first_slot[rank];
    for (size_t i = 0; i < list->n; n++) {
        dh_pipe_slot *slot = &s->slots[n];
        *slot = (dh_pipe_slot){.n_actions = 1, .action = {list->at[i].action}};
        int64_t time = list->at[i++].time;
        if (i == list->n || list->at[i].time != time) continue;
        slot->action[1] = list->at[i++].action;
        slot->n_actions = 2;
        const dh_pipe_kind first = slot->action[0].kind, second = slot->action[1].kind;
        const bool is_pair = dh_pipe_may_pair(first, second) &&
                             (b->any_pair || second == DH_PIPE_B || second == DH_PIPE_I);
        if (!is_pair || (i < list->n && list->at[i].time == time)) {
            char text[64];
            return dh_fail(ctx, DH_EINTERNAL, "schedule %s: rank %d does too much at once: %s",
                           s->name, rank, dh_slot_text(text, sizeof text, slot));
        }
    }
    s->first_slot[rank + 1] = n;
    return DH_OK;
}

static dh_status emit_all(dh_ctx *ctx, dh_builder *b)
{
    dh_schedule *s = b->schedule;
    size_t n_actions = 0;
    for (int32_t g = 0; g < s->n_ranks; g++) n_actions += b->ranks[g].n;
    s->slots = DH_NEW_N(s->arena, dh_pipe_slot, n_actions);
    if (b->out_of_memory || !s->slots) return dh_no_memory(ctx);
    for (int32_t g = 0; g < s->n_ranks; g++) {
        sort_by_time(&b->ranks[g]);
        DH_TRY(emit_rank(ctx, b, g));
    }
    return DH_OK;
}

dh_status dh_builder_finish(dh_ctx *ctx, dh_builder *b, dh_schedule **schedule)
{
    dh_status st = emit_all(ctx, b);
    release_builder(b);
    if (st == DH_OK)
        *schedule = b->schedule;
    else
        dh_schedule_destroy(b->schedule);
    return st;
}
