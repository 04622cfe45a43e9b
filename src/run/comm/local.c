/* The local world: ranks are threads of one process. Here: worlds, groups, waiting,
 * failing. Collectives are in local_ops.c, point to point in local_p2p.c.
 *
 * A member's place in a group (slot) has a condition variable of its own, so that
 * a wake-up reaches only threads that can go on. Failing is one-way. The world's
 * flag is set once and every group is marked broken under its lock. A call that has
 * not yet begun to copy then touches no buffer any more. */
#include "local.h"
#include "base/c_locale.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

/* ---- waiting ---------------------------------------------------------------------------- */

static bool cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
              pthread_cond_init(cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok;
}

int64_t local_deadline(const dh_comm_group *group)
{
    int64_t timeout = group->comm->timeout_ns;
    int64_t now = dh_now_ns();
    return timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
}

bool local_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) return pthread_cond_wait(cond, lock) == 0;
    struct timespec ts = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    return pthread_cond_timedwait(cond, lock, &ts) != ETIMEDOUT;
}

static void sleep_until(local_world *world, int64_t end_ns)
{
    enum { SLICE_NS = 10 * 1000 * 1000 }; /* an abort is noticed this soon */
    int64_t now = dh_now_ns();
    if (now >= end_ns) return;
    /* The default slack of 50 us would show in every short transfer. */
    prctl(PR_SET_TIMERSLACK, 1000UL);
    for (; now < end_ns && !atomic_load(&world->failed); now = dh_now_ns())
        dh_sleep_until_ns(DH_MIN(end_ns, now + SLICE_NS));
}

local_ticket local_wire_begin(local_world *world, local_way way, int64_t from_ns, int64_t ns,
                              int64_t latency_ns)
{
    pthread_mutex_lock(&world->wire_lock);
    const local_ticket made = local_wires_begin(&world->wires, way, from_ns, ns, latency_ns);
    pthread_mutex_unlock(&world->wire_lock);
    return made;
}

/* A transfer that began meanwhile has put the end off, so it is asked for again. */
void local_wire_wait(local_world *world, local_ticket ticket, double share, int64_t latency_ns)
{
    int64_t end_ns = 0;
    if (ticket.number == 0 && ticket.end_ns == 0) return;
    do {
        sleep_until(world, end_ns);
        pthread_mutex_lock(&world->wire_lock);
        end_ns = local_wires_when(&world->wires, ticket, share, dh_now_ns());
        pthread_mutex_unlock(&world->wire_lock);
        if (end_ns > 0) end_ns += latency_ns;
    } while (end_ns > dh_now_ns() && !atomic_load(&world->failed));
}

/* ---- reports: what was a rank last seen doing ------------------------------------------- */

void local_note(local_slot *slot, local_activity activity, const dh_comm_head *head)
{
    slot->activity = activity;
    slot->head = *head;
    slot->since_ns = dh_now_ns();
}

static int member_index(const local_shared *s, int rank)
{
    for (int i = 0; i < s->n; i++)
        if (s->members[i] == rank) return i;
    return -1;
}

/* head NULL: the creation of the group. */
static const char *shared_text(const local_shared *s, const dh_comm_head *head, char *buf,
                               size_t cap)
{
    dh_comm_group shown = {.n = s->n, .members = s->members};
    snprintf(shown.name, sizeof shown.name, "%s", s->name);
    return dh_comm_call_text(&shown, head, buf, cap);
}

/* Whether member `me`, which waits in a group, waits for member `other`; the group's lock
 * is held. */
static bool waits_for(const local_shared *s, int me, int other)
{
    const local_slot *mine = &s->slots[me], *theirs = &s->slots[other];
    if (me == other) return false;
    if (mine->gave_up) return mine->missing[other];
    if (mine->call) return theirs->arrived < mine->arrived;
    for (const local_post *p = mine->recvs.first; p; p = p->next)
        if (p->src == other) return true;
    for (const local_post *p = theirs->sends_in.first; p; p = p->next)
        if (p->src == me && !p->detached) return true;
    return false;
}

/* A group that this member has joined and others have not; world.lock is held. */
static void add_creation(const local_shared *s, int me, dh_comm_state *state)
{
    char text[DH_COMM_CALL_TEXT_BYTES];
    if (!s->slots[me].joined || s->n_joined == s->n) return;
    dh_comm_state_wait(state, s->stream, shared_text(s, NULL, text, sizeof text));
    for (int i = 0; i < s->n; i++)
        if (!s->slots[i].joined) dh_comm_state_await(state, s->members[i]);
}

/* A call of this member that waits; else it may be the last that has ended. */
static void add_call(const local_shared *s, int me, dh_comm_state *state, int64_t *last_ns,
                     char *last, size_t cap)
{
    char text[DH_COMM_CALL_TEXT_BYTES];
    const local_slot *slot = &s->slots[me];
    if (slot->activity == ACT_WAITING) {
        dh_comm_state_wait(state, s->stream, shared_text(s, &slot->head, text, sizeof text));
        for (int i = 0; i < s->n; i++)
            if (waits_for(s, me, i)) dh_comm_state_await(state, s->members[i]);
    } else if (slot->activity == ACT_FINISHED && slot->since_ns > *last_ns) {
        *last_ns = slot->since_ns;
        shared_text(s, &slot->head, last, cap);
    }
}

/* Describe a rank's activity; world.lock is held. It may wait in one call a stream: all count. */
static void find_state(const local_world *w, int rank, dh_comm_state *state)
{
    const local_rank *r = &w->ranks[rank];
    char last[DH_COMM_CALL_TEXT_BYTES] = "";
    int64_t last_ns = 0;
    dh_comm_state_begin(state);
    for (local_shared *s = w->groups; s; s = s->next) {
        const int me = member_index(s, rank);
        if (me < 0) continue;
        add_creation(s, me, state);
        pthread_mutex_lock(&s->lock);
        add_call(s, me, state, &last_ns, last, sizeof last);
        pthread_mutex_unlock(&s->lock);
    }
    if (r->left)
        dh_comm_state_begin(state); /* whatever it was waiting for when it left */
    else if (dh_comm_state_end(state, r->base.running))
        return;
    if (last_ns)
        dh_snprintf(state->text, sizeof state->text, "last finished %s, %.1f s ago", last,
                    (double)(dh_now_ns() - last_ns) * 1e-9);
    else if (!r->attached)
        snprintf(state->text, sizeof state->text, "never attached");
}

/* Whoever holds up the missing members of a group, and these the caller; world.lock is held.
 * left: it is members that have left, whoever else is not there yet. */
static void describe_missing(const local_world *w, const local_group *g, bool left, dh_str *out)
{
    const size_t n = (size_t)w->base.size;
    dh_comm_state *states = calloc(n, sizeof *states);
    bool *missing = calloc(n, sizeof *missing);
    for (int i = 0; missing && i < g->base.n; i++) {
        const int rank = g->base.members[i];
        missing[rank] = g->missing[i] && (!left || w->ranks[rank].left);
    }
    for (int r = 0; states && r < w->base.size; r++) find_state(w, r, &states[r]);
    if (states && missing)
        dh_comm_print_culprits(states, w->base.size, g->base.comm->rank, missing, w->base.lost,
                               out);
    free(states);
    free(missing);
}

/* ---- failing ---------------------------------------------------------------------------- */

static void break_group(local_shared *s)
{
    pthread_mutex_lock(&s->lock);
    s->broken = true;
    for (int i = 0; i < s->n; i++) pthread_cond_broadcast(&s->slots[i].wake);
    pthread_mutex_unlock(&s->lock);
}

static void world_stop(local_world *w, int rank, const char *message)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->failed)) {
        w->by_rank = rank;
        snprintf(w->message, sizeof w->message, "%s", message);
        atomic_store(&w->failed, true);
        for (local_shared *s = w->groups; s; s = s->next) break_group(s);
        pthread_cond_broadcast(&w->joined);
    }
    pthread_mutex_unlock(&w->lock);
}

static local_world *world_of(const local_group *g)
{
    return (local_world *)g->base.comm->world;
}

dh_status local_fail_stopped(dh_ctx *ctx, const local_group *g, const dh_comm_head *head)
{
    local_world *w = world_of(g);
    /* Written once before the flag that brought us here. */
    return dh_comm_fail_stopped(ctx, &g->base, head, w->by_rank, w->message);
}

dh_status local_fail_here(dh_ctx *ctx, local_group *g, const char *message)
{
    world_stop(world_of(g), g->base.comm->rank, message);
    return dh_fail(ctx, DH_ECOMM, "%s", message);
}

dh_status local_fail_missing(dh_ctx *ctx, local_group *g, const char *what, bool left)
{
    local_world *w = world_of(g);
    dh_str s = DH_STR_INIT;
    if (left)
        dh_str_printf(&s, "rank %d cannot finish %s", g->base.comm->rank, what);
    else
        dh_comm_print_waited(g->base.comm, what, &s);
    dh_str_printf(&s, left ? ": gone without a call there:" : "; did not come:");
    pthread_mutex_lock(&w->lock);
    describe_missing(w, g, left, &s);
    pthread_mutex_unlock(&w->lock);
    dh_status st = local_fail_here(ctx, g, s.text ? s.text : "a call waited too long");
    dh_str_fini(&s);
    return st;
}

static void local_abort(dh_comm *comm, const char *message)
{
    world_stop((local_world *)comm->world, comm->rank, message);
}

static dh_status local_check(dh_ctx *ctx, dh_comm *comm)
{
    local_world *w = (local_world *)comm->world;
    if (!atomic_load(&w->failed)) return DH_OK;
    return dh_comm_fail_stopped(ctx, NULL, NULL, w->by_rank, w->message);
}

/* ---- worlds ----------------------------------------------------------------------------- */

static void shared_free(local_shared *s)
{
    for (int i = 0; i < s->n; i++) {
        local_queue_free_detached(&s->slots[i].sends_in);
        // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): n counts slots that are there
        pthread_cond_destroy(&s->slots[i].wake);
        free(s->slots[i].missing);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->slots);
    free(s->members);
    free(s);
}

/* Free a member's own parts, apart from the base. */
static void own_free(local_group *g)
{
    free(g->calls);
    free(g->posts);
}

static void rank_free(local_rank *rank)
{
    for (dh_comm_group *g = rank->base.groups; g; g = g->next) own_free((local_group *)g);
    dh_comm_groups_free(&rank->base);
}

static void local_world_destroy(dh_comm_world *world)
{
    local_world *w = (local_world *)world;
    for (int r = 0; w->ranks && r < w->base.size; r++) rank_free(&w->ranks[r]);
    while (w->groups) {
        local_shared *s = w->groups;
        w->groups = s->next;
        shared_free(s);
    }
    pthread_mutex_destroy(&w->wire_lock);
    pthread_cond_destroy(&w->joined);
    pthread_mutex_destroy(&w->lock);
    free(w->base.node);
    free(w->base.lost);
    free(w->ranks);
    local_wires_fini(&w->wires);
    free(w);
}

static dh_status local_world_create(dh_ctx *ctx, const dh_comm_config *config,
                                    dh_comm_world **world)
{
    if (config->ranks < 1)
        return dh_fail(ctx, DH_EINVAL, "a local world needs 1 rank or more, not %d", config->ranks);
    local_world *w = calloc(1, sizeof *w);
    if (!w) return dh_no_memory(ctx);
    size_t n = (size_t)config->ranks;
    w->base.size = w->base.n_here = config->ranks;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->wire_lock, NULL);
    bool ok = cond_init(&w->joined);
    w->base.node = calloc(n, sizeof *w->base.node);
    w->base.lost = calloc(n, sizeof *w->base.lost);
    w->ranks = calloc(n, sizeof *w->ranks);
    ok = local_wires_init(&w->wires, config->ranks) && ok;
    if (!ok || !w->base.node || !w->base.lost || !w->ranks) {
        local_world_destroy(&w->base);
        return dh_no_memory(ctx);
    }
    for (int r = 0; config->ranks_per_node > 0 && r < config->ranks; r++)
        w->base.node[r] = r / config->ranks_per_node;
    *world = &w->base;
    return DH_OK;
}

static dh_status local_attach(dh_ctx *ctx, dh_comm_world *world, int rank, dh_comm **comm)
{
    local_world *w = (local_world *)world;
    local_rank *r = &w->ranks[rank];
    pthread_mutex_lock(&w->lock);
    bool taken = r->attached;
    r->attached = true;
    pthread_mutex_unlock(&w->lock);
    if (taken) return dh_fail(ctx, DH_EINVAL, "rank %d is attached already", rank);
    r->base.world = world;
    r->base.rank = rank;
    *comm = &r->base;
    return DH_OK;
}

static void local_detach(dh_comm *comm)
{
    local_world *w = (local_world *)comm->world;
    pthread_mutex_lock(&w->lock);
    w->ranks[comm->rank].left = true;
    for (local_shared *s = w->groups; s; s = s->next) {
        int me = member_index(s, comm->rank);
        if (me < 0) continue;
        pthread_mutex_lock(&s->lock);
        s->slots[me].left = true;
        for (int i = 0; i < s->n; i++) pthread_cond_broadcast(&s->slots[i].wake);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_cond_broadcast(&w->joined);
    pthread_mutex_unlock(&w->lock);
}

/* ---- groups ----------------------------------------------------------------------------- */

/* The group this call belongs to: same spec, and this member has not joined it. */
static local_shared *find_open(local_world *w, const dh_comm_group_spec *spec, int me)
{
    for (local_shared *s = w->groups; s; s = s->next)
        if (s->n == spec->n && s->stream == spec->stream && s->wire == spec->wire &&
            !s->slots[me].joined && strcmp(s->name, spec->name) == 0 &&
            memcmp(s->members, spec->members, (size_t)spec->n * sizeof *spec->members) == 0)
            return s;
    return NULL;
}

static local_shared *shared_new(local_world *w, const dh_comm_group_spec *spec)
{
    local_shared *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->world = w;
    snprintf(s->name, sizeof s->name, "%s", spec->name);
    s->stream = spec->stream;
    s->wire = spec->wire;
    s->members = calloc((size_t)spec->n, sizeof *s->members);
    s->slots = calloc((size_t)spec->n, sizeof *s->slots);
    pthread_mutex_init(&s->lock, NULL);
    bool ok = s->members && s->slots;
    while (ok && s->n < spec->n) { /* n counts what shared_free has to undo */
        local_slot *slot = &s->slots[s->n];
        s->members[s->n] = spec->members[s->n];
        local_queue_init(&slot->sends_in);
        local_queue_init(&slot->recvs);
        slot->missing = calloc((size_t)spec->n, sizeof *slot->missing);
        ok = slot->missing && cond_init(&slot->wake);
        if (ok)
            s->n++;
        else
            free(slot->missing);
    }
    if (!ok) {
        shared_free(s);
        return NULL;
    }
    s->next = w->groups;
    w->groups = s;
    return s;
}

static local_group *group_new(dh_comm *comm, const dh_comm_group_spec *spec)
{
    local_group *g = (local_group *)dh_comm_group_new(sizeof *g, comm, spec);
    if (!g) return NULL;
    g->calls = calloc((size_t)spec->n, sizeof *g->calls);
    return g;
}

static void group_free(local_group *g)
{
    if (!g) return;
    own_free(g);
    dh_comm_group_free(&g->base);
}

typedef enum join_result { JOIN_OK, JOIN_STOPPED, JOIN_TIMEOUT, JOIN_LEFT } join_result;

/* Members not yet in the group, into g->missing; true when one of them has left. */
static bool absent_members(local_world *w, local_group *g)
{
    bool left = false;
    for (int i = 0; i < g->base.n; i++) {
        g->missing[i] = !g->shared->slots[i].joined;
        left |= g->missing[i] && w->ranks[g->base.members[i]].left;
    }
    return left;
}

/* Join and wait for all others; world.lock is held. */
static join_result join(local_world *w, local_group *g)
{
    local_shared *s = g->shared;
    int64_t deadline = local_deadline(&g->base);
    s->slots[g->base.me].joined = true;
    s->n_joined++;
    pthread_cond_broadcast(&w->joined);
    bool in_time = true;
    while (s->n_joined < s->n) {
        if (atomic_load(&w->failed)) return JOIN_STOPPED;
        if (absent_members(w, g)) return JOIN_LEFT;
        if (!in_time) return JOIN_TIMEOUT;
        in_time = local_wait(&w->joined, &w->lock, deadline);
    }
    return JOIN_OK;
}

static dh_status local_group_create(dh_ctx *ctx, dh_comm *comm, const dh_comm_group_spec *spec,
                                    dh_comm_group **group)
{
    local_world *w = (local_world *)comm->world;
    local_group *g = group_new(comm, spec);
    if (!g || !g->calls) {
        group_free(g);
        return dh_no_memory(ctx);
    }
    pthread_mutex_lock(&w->lock);
    join_result result = JOIN_STOPPED;
    if (!atomic_load(&w->failed)) {
        g->shared = find_open(w, spec, g->base.me);
        if (!g->shared) g->shared = shared_new(w, spec);
        if (g->shared) {
            g->missing = g->shared->slots[g->base.me].missing;
            result = join(w, g);
        }
    }
    pthread_mutex_unlock(&w->lock);

    dh_status st = DH_OK;
    if (result == JOIN_STOPPED) {
        st = atomic_load(&w->failed) ? local_fail_stopped(ctx, g, NULL) : dh_no_memory(ctx);
    } else if (result != JOIN_OK) {
        char what[DH_COMM_CALL_TEXT_BYTES];
        dh_comm_call_text(&g->base, NULL, what, sizeof what);
        st = local_fail_missing(ctx, g, what, result == JOIN_LEFT);
    }
    if (st != DH_OK) {
        group_free(g);
        return st;
    }
    *group = &g->base;
    return DH_OK;
}

/* The last member takes what all shared along; of a group that not all have joined, since the world
 * failed, the world does. */
static void local_group_destroy(dh_comm_group *group)
{
    local_shared *s = ((local_group *)group)->shared;
    local_world *w = s->world;
    own_free((local_group *)group);
    pthread_mutex_lock(&w->lock);
    if (++s->n_gone == s->n) {
        local_shared **at = &w->groups;
        while (*at != s) at = &(*at)->next;
        *at = s->next;
        shared_free(s);
    }
    pthread_mutex_unlock(&w->lock);
}

const dh_comm_impl dh_comm_local_impl = {
    .world_create = local_world_create,
    .world_destroy = local_world_destroy,
    .attach = local_attach,
    .detach = local_detach,
    .group_create = local_group_create,
    .group_destroy = local_group_destroy,
    .collective = local_collective,
    .transfer = local_transfer,
    .abort = local_abort,
    .check = local_check,
};
