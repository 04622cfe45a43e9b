/* Point to point in the local world. Sends towards a member and that member's
 * receives stand in two queues; whoever comes second finds the first, takes it
 * out, and copies straight from buffer to buffer. Small sends that come first
 * leave a copy behind and go on. Posting never waits, so a batch cannot deadlock. A member
 * that waits is woken once, when the last of its transfers is done, or, where copying that takes
 * less long than waking, as it begins. */
#include "local.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- queues ----------------------------------------------------------------------------- */

void local_queue_init(local_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void enqueue(local_queue *queue, local_post *post)
{
    post->next = NULL;
    *queue->last = post;
    queue->last = &post->next;
}

static void take_out(local_queue *queue, local_post *post)
{
    for (local_post **at = &queue->first; *at; at = &(*at)->next)
        if (*at == post) {
            *at = post->next;
            if (queue->last == &post->next) queue->last = at;
            return;
        }
}

void local_queue_free_detached(local_queue *queue)
{
    while (queue->first) {
        local_post *post = queue->first;
        queue->first = post->next;
        if (post->detached) free(post);
    }
    local_queue_init(queue);
}

/* Where a post waits, and where its partner would. */
static local_queue *queue_of(local_shared *s, const local_post *post, bool is_send)
{
    return is_send ? &s->slots[post->dst].sends_in : &s->slots[post->dst].recvs;
}

static local_post *find_partner(local_shared *s, const local_post *post, bool is_send)
{
    for (local_post *p = queue_of(s, post, !is_send)->first; p; p = p->next)
        if (p->src == post->src && p->tag == post->tag) return p;
    return NULL;
}

/* ---- posting ---------------------------------------------------------------------------- */

static int64_t post_bytes(const local_post *post)
{
    return post->count * (int64_t)dh_dtype_bytes(post->dtype);
}

static int64_t latency_ns(dh_comm_pace pace)
{
    return dh_comm_latency_ns(DH_COMM_RECV, 2, pace);
}

static void claim_wire(local_shared *s, local_post *post)
{
    dh_comm_pace pace = s->world->base.config.pace[s->wire];
    if (!dh_comm_pace_on(pace) || post->src == post->dst) return;
    const local_way way = {s->wire, &s->members[post->src], &s->members[post->dst], 1, 1};
    post->on_wire = local_wire_begin(s->world, way, dh_now_ns(),
                                     dh_comm_bytes_ns(post_bytes(post), pace), latency_ns(pace));
}

/* Leave a copy of a small send behind; false when it is not small, or no memory. */
static bool detach_send(local_shared *s, local_post *post)
{
    int64_t n_bytes = post_bytes(post);
    if (n_bytes > s->world->base.config.eager_bytes) return false;
    local_post *copy = malloc(sizeof *copy + (size_t)n_bytes);
    if (!copy) return false;
    *copy = *post;
    copy->buf = (char *)(copy + 1);
    if (n_bytes > 0) memcpy(copy->buf, post->buf, (size_t)n_bytes);
    copy->detached = true;
    claim_wire(s, copy);
    enqueue(queue_of(s, copy, true), copy);
    return true;
}

static bool posts_differ(const local_group *g, const local_post *send, const local_post *recv,
                         char *buf, size_t cap)
{
    if (send->count == recv->count && send->dtype == recv->dtype) return false;
    snprintf(buf, cap,
             "transfers on group %s do not fit together: rank %d sends %lld %s with tag %d where "
             "rank %d expects %lld %s",
             g->base.name, g->base.members[send->src], (long long)send->count,
             dh_dtype_name(send->dtype), send->tag, g->base.members[send->dst],
             (long long)recv->count, dh_dtype_name(recv->dtype));
    return true;
}

/* True when its owner has nothing left to wait for. */
static bool finish(local_post *post, local_slot *owner)
{
    post->state = POST_DONE;
    owner->n_open--;
    return owner->n_open == 0 || owner->gives_up;
}

/* The lock is given back meanwhile: a thread that wakes at once would only meet it, and sleep
 * again. */
static void wake(local_shared *s, local_slot *slot)
{
    pthread_mutex_unlock(&s->lock);
    pthread_cond_signal(&slot->wake);
    pthread_mutex_lock(&s->lock);
}

/* Whether a member is woken before its transfer is copied: it is there by the time that it
 * looks. */
static bool is_woken_first(const local_slot *slot, const local_post *post)
{
    /* TUNING: bytes; about what is copied while a thread wakes. */
    enum { SHORT = 256 * 1024 };
    return slot->n_open == 1 && !post->detached && post_bytes(post) <= SHORT;
}

/* Both are out of the queues; the lock is held, but not during the copy. */
static void copy_pair(local_group *g, local_post *send, local_post *recv, local_post *partner)
{
    local_shared *s = g->shared;
    local_slot *me = &s->slots[g->base.me];
    local_slot *other = &s->slots[partner == send ? send->src : recv->dst];
    if (!send->detached) claim_wire(s, send);
    recv->on_wire = send->on_wire;
    send->state = recv->state = POST_COPYING;
    const bool first = other != me && is_woken_first(other, partner);
    send->met_ns = recv->met_ns = dh_now_ns();
    pthread_mutex_unlock(&s->lock);
    if (first) pthread_cond_signal(&other->wake);
    if (send->count > 0) memmove(recv->buf, send->buf, (size_t)post_bytes(send));
    pthread_mutex_lock(&s->lock);
    finish(partner == send ? recv : send, me);
    if (partner->detached)
        free(partner);
    else if (finish(partner, other) && other != me)
        wake(s, other);
}

/* False when the partner's transfer does not fit; text says why. */
static bool post(local_group *g, local_post *p, bool is_send, char *text, size_t cap)
{
    local_shared *s = g->shared;
    local_post *partner = find_partner(s, p, is_send);
    if (!partner) {
        p->state = POST_POSTED;
        if (is_send && detach_send(s, p))
            finish(p, &s->slots[g->base.me]);
        else
            enqueue(queue_of(s, p, is_send), p);
        return true;
    }
    local_post *send = is_send ? p : partner, *recv = is_send ? partner : p;
    if (posts_differ(g, send, recv, text, cap)) return false;
    take_out(queue_of(s, partner, !is_send), partner);
    copy_pair(g, send, recv, partner);
    return true;
}

/* ---- one call --------------------------------------------------------------------------- */

static bool reserve_posts(local_group *g, size_t n)
{
    if (n > g->n_posts) {
        local_post *grown = realloc(g->posts, n * sizeof *grown);
        if (!grown) return false;
        g->posts = grown;
        g->n_posts = n;
    }
    return true;
}

static void init_post(local_post *p, const local_group *g, const dh_comm_xfer *x)
{
    bool is_send = x->direction == DH_XFER_SEND;
    *p = (local_post){.src = is_send ? g->base.me : x->peer,
                      .dst = is_send ? x->peer : g->base.me,
                      .tag = x->tag,
                      .dtype = x->dtype,
                      .count = x->count,
                      .buf = x->buf,
                      .state = POST_DONE};
}

static size_t count_state(const local_group *g, size_t n, local_post_state state)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += g->posts[i].state == state;
    return found;
}

/* Peers without whom a transfer cannot end, into g->missing; true when one has left. */
static bool absent_peers(local_group *g, const dh_comm_xfer *xfers, size_t n)
{
    bool left = false;
    memset(g->missing, 0, (size_t)g->base.n * sizeof *g->missing);
    for (size_t i = 0; i < n; i++)
        if (g->posts[i].state == POST_POSTED) {
            g->missing[xfers[i].peer] = true;
            left |= g->shared->slots[xfers[i].peer].left;
        }
    return left;
}

/* "recv #3 of group pp (ranks 0 1), 64 f32 from rank 1 with tag 0" */
static void describe_wait(const local_group *g, const dh_comm_head *head, const dh_comm_xfer *xfers,
                          size_t n, char *buf, size_t cap)
{
    char text[DH_COMM_CALL_TEXT_BYTES];
    dh_comm_call_text(&g->base, head, text, sizeof text);
    size_t i = 0;
    while (i < n && g->posts[i].state != POST_POSTED) i++;
    if (i == n) {
        snprintf(buf, cap, "%s", text);
        return;
    }
    snprintf(buf, cap, "%s, %lld %s %s rank %d with tag %d", text, (long long)xfers[i].count,
             dh_dtype_name(xfers[i].dtype), xfers[i].direction == DH_XFER_SEND ? "to" : "from",
             g->base.members[xfers[i].peer], xfers[i].tag);
}

static void withdraw(local_group *g, const dh_comm_xfer *xfers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (g->posts[i].state == POST_POSTED)
            take_out(queue_of(g->shared, &g->posts[i], xfers[i].direction == DH_XFER_SEND),
                     &g->posts[i]);
}

/* Why a call ended: DH_OK fields all false. */
typedef struct outcome {
    bool stopped, left, late;
    char misfit[DH_COMM_CALL_TEXT_BYTES]; /* "" when all fits */
    char what[2 * DH_COMM_CALL_TEXT_BYTES];
} outcome;

static bool has_failed(const outcome *o)
{
    return o->stopped || o->left || o->late || o->misfit[0];
}

/* Post everything, then wait until all is done, or for the copies under way once
 * it cannot be done. The lock is held. */
static void post_and_wait(local_group *g, const dh_comm_head *head, const dh_comm_xfer *xfers,
                          size_t n, outcome *o)
{
    local_shared *s = g->shared;
    local_slot *me = &s->slots[g->base.me];
    int64_t deadline = local_deadline(&g->base);
    me->n_open = n;
    me->gives_up = false;
    for (size_t i = 0; i < n && !o->misfit[0] && !s->broken; i++)
        post(g, &g->posts[i], xfers[i].direction == DH_XFER_SEND, o->misfit, sizeof o->misfit);
    for (;;) {
        size_t copying = count_state(g, n, POST_COPYING), posted = count_state(g, n, POST_POSTED);
        o->stopped = s->broken;
        if (!o->late) o->left = absent_peers(g, xfers, n);
        if (copying == 0 && posted == 0) o->left = o->late = false; /* came after all */
        if (copying == 0 && (posted == 0 || has_failed(o))) break;
        me->gives_up = has_failed(o);
        int64_t until = has_failed(o) ? INT64_MAX : deadline;
        if (!local_wait(&me->wake, &s->lock, until)) o->late = true;
    }
    if (has_failed(o)) {
        describe_wait(g, head, xfers, n, o->what, sizeof o->what);
        me->gave_up = true; /* others may ask before this rank has told */
        withdraw(g, xfers, n);
    }
}

/* When the last partner had come; 0: nobody was waited for. */
static int64_t arrived(const local_group *g, size_t n)
{
    int64_t last = 0;
    for (size_t i = 0; i < n; i++) last = DH_MAX(last, g->posts[i].met_ns);
    return last;
}

/* Until all are off the wire: a send when its last byte has gone, a receive one latency later. */
static void wait_for_wires(const local_group *g, const dh_comm_xfer *xfers, size_t n)
{
    local_world *world = g->shared->world;
    const int64_t latency = latency_ns(world->base.config.pace[g->shared->wire]);
    for (size_t i = 0; i < n; i++)
        local_wire_wait(world, g->posts[i].on_wire, 1,
                        xfers[i].direction == DH_XFER_RECV ? latency : 0);
}

dh_status local_transfer(dh_ctx *ctx, dh_comm_group *group, const dh_comm_head *head,
                         const dh_comm_xfer *xfers, size_t n)
{
    local_group *g = (local_group *)group;
    local_shared *s = g->shared;
    if (!reserve_posts(g, n)) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) init_post(&g->posts[i], g, &xfers[i]);

    outcome o = {0};
    pthread_mutex_lock(&s->lock);
    local_note(&s->slots[group->me], ACT_WAITING, head);
    post_and_wait(g, head, xfers, n, &o);
    if (!has_failed(&o)) local_note(&s->slots[group->me], ACT_FINISHED, head);
    pthread_mutex_unlock(&s->lock);
    group->times.arrived_ns = arrived(g, n);

    if (o.stopped) return local_fail_stopped(ctx, g, head);
    if (o.misfit[0]) return local_fail_here(ctx, g, o.misfit);
    if (o.left || o.late) return local_fail_missing(ctx, g, o.what, o.left);
    wait_for_wires(g, xfers, n);
    return DH_OK;
}
