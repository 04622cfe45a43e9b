/* Front of the communication layer: checks arguments, turns every function of comm.h into one call
 * record, and hands it to the world's kind. The parts common to all kinds are here: the table,
 * slices, descriptions of calls, hooks. */
#include "base/c_locale.h"
#include "impl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the table -------------------------------------------------------------------------- */

static const dh_comm_ops table[] = {
    {"local", "ranks are threads of this process, over shared memory; links can be paced",
     &dh_comm_local_impl},
#ifdef DH_HAVE_MPI
    {"mpi", "ranks are processes started by mpirun or srun", &dh_comm_mpi_impl},
#else
    {"mpi", "ranks are processes started by mpirun or srun (not built in)", NULL},
#endif
};

const dh_comm_ops *dh_comm_table(size_t *n)
{
    *n = DH_COUNTOF(table);
    return table;
}

static const dh_comm_ops *find_row(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(table); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

static dh_status unknown_row(dh_ctx *ctx, const char *name)
{
    const char *names[DH_COUNTOF(table)];
    for (size_t i = 0; i < DH_COUNTOF(table); i++) names[i] = table[i].name;
    const char *near = dh_nearest(name, names, DH_COUNTOF(table));
    return dh_fail(ctx, DH_EMISSING, "no communicator is called \"%s\"%s%s%s", name,
                   near ? "; did you mean \"" : "; there are local and mpi", near ? near : "",
                   near ? "\"?" : "");
}

const char *dh_comm_kind_name(dh_comm_kind kind)
{
#define X(code, name, steps, wire) [code] = name,
    static const char *const names[] = {DH_COMM_KIND_LIST(X)};
#undef X
    return (unsigned)kind < DH_N_COMM_KIND ? names[kind] : "unknown";
}

static const char *reduce_name(int reduce)
{
    return reduce == DH_REDUCE_MAX ? "max" : "sum";
}

/* ---- worlds ----------------------------------------------------------------------------- */

static dh_status check_config(dh_ctx *ctx, const dh_comm_config *c)
{
    if (c->ranks < 0 || c->ranks_per_node < 0)
        return dh_fail(ctx, DH_EINVAL, "ranks %d and ranks per node %d must not be negative",
                       c->ranks, c->ranks_per_node);
    if (c->timeout_ns < 0 || c->eager_bytes < 0 || c->max_message_bytes < 0 ||
        c->max_message_bytes > INT_MAX)
        return dh_fail(ctx, DH_EINVAL, "a communicator limit is negative or too large");
    if ((unsigned)c->progress >= DH_N_PROGRESS)
        return dh_fail(ctx, DH_EINVAL, "unknown progress policy %d", (int)c->progress);
    for (int i = 0; i < DH_N_ENGINE; i++)
        if (!(c->pace[i].gbps >= 0 && c->pace[i].latency_us >= 0))
            return dh_fail(ctx, DH_EINVAL,
                           "a paced link needs gbps and latency_us of 0 or more, not %g and %g",
                           c->pace[i].gbps, c->pace[i].latency_us);
    return DH_OK;
}

dh_status dh_comm_world_create(dh_ctx *ctx, const char *name, const dh_comm_config *config,
                               dh_comm_world **world)
{
    const dh_comm_ops *row = find_row(name);
    if (!row) return unknown_row(ctx, name);
    if (!row->impl)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "communicator \"%s\" is not built in; configure with -DDH_MPI=ON", name);
    dh_comm_config c = {0};
    if (config) c = *config;
    DH_TRY(check_config(ctx, &c));
    if (c.timeout_ns == 0) c.timeout_ns = 60 * (int64_t)1000000000;
    if (c.eager_bytes == 0) c.eager_bytes = 16 << 10;
    if (c.max_message_bytes == 0) c.max_message_bytes = 1 << 30;
    dh_comm_world *made = NULL;
    DH_TRY(row->impl->world_create(ctx, &c, &made));
    made->ops = row;
    made->config = c;
    *world = made;
    return DH_OK;
}

void dh_comm_world_destroy(dh_comm_world *world)
{
    if (world) world->ops->impl->world_destroy(world);
}

int dh_comm_world_size(const dh_comm_world *world)
{
    return world->size;
}

void dh_comm_world_here(const dh_comm_world *world, int *first, int *n)
{
    *first = world->first_here;
    *n = world->n_here;
}

static const char *wire_text(const dh_comm_world *world, dh_engine wire, char *buf, size_t cap)
{
    dh_comm_pace pace = world->config.pace[wire];
    if (!dh_comm_pace_on(pace)) return "shared memory";
    if (pace.gbps > 0)
        dh_snprintf(buf, cap, "paced at %g Gbit/s + %g us", pace.gbps, pace.latency_us);
    else
        dh_snprintf(buf, cap, "paced at %g us", pace.latency_us);
    return buf;
}

bool dh_comm_world_lost(const dh_comm_world *world, int rank)
{
    return world->lost && world->lost[rank];
}

const char *dh_comm_world_describe(const dh_comm_world *world, char *buf, size_t cap)
{
    char local[64], cross[64];
    if (world->n_here == world->size && world->ops->impl == &dh_comm_local_impl)
        snprintf(buf, cap, "%s: %d ranks, local link %s, cross link %s", world->ops->name,
                 world->size, wire_text(world, DH_ENGINE_LOCAL, local, sizeof local),
                 wire_text(world, DH_ENGINE_CROSS, cross, sizeof cross));
    else
        snprintf(buf, cap, "%s: %d ranks on %d nodes, real links", world->ops->name, world->size,
                 1 + world->node[world->size - 1]);
    return buf;
}

dh_status dh_comm_attach(dh_ctx *ctx, dh_comm_world *world, int rank, dh_comm **comm)
{
    if (rank < world->first_here || rank >= world->first_here + world->n_here)
        return dh_fail(ctx, DH_EINVAL, "rank %d does not live in this process (%d .. %d do)", rank,
                       world->first_here, world->first_here + world->n_here - 1);
    DH_TRY(world->ops->impl->attach(ctx, world, rank, comm));
    (*comm)->timeout_ns = world->config.timeout_ns;
    return DH_OK;
}

void dh_comm_detach(dh_comm *comm)
{
    if (comm) comm->world->ops->impl->detach(comm);
}

void dh_comm_abort(dh_comm *comm, const char *message)
{
    comm->world->ops->impl->abort(comm, message);
}

dh_status dh_comm_check(dh_ctx *ctx, dh_comm *comm)
{
    return comm->world->ops->impl->check(ctx, comm);
}

void dh_comm_set_timeout(dh_comm *comm, int64_t timeout_ns, const char *why)
{
    comm->timeout_ns = timeout_ns;
    snprintf(comm->timeout_why, sizeof comm->timeout_why, "%s", why);
}

int64_t dh_comm_timeout_ns(const dh_comm *comm)
{
    return comm->timeout_ns;
}

const dh_comm_config *dh_comm_config_of(const dh_comm *comm)
{
    return &comm->world->config;
}

void dh_comm_enter(dh_comm *comm, int stream)
{
    comm->running |= UINT32_C(1) << stream;
}

void dh_comm_leave(dh_comm *comm, int stream)
{
    comm->running &= ~(UINT32_C(1) << stream);
}

/* ---- groups ----------------------------------------------------------------------------- */

dh_comm_group *dh_comm_group_new(size_t bytes, dh_comm *comm, const dh_comm_group_spec *spec)
{
    dh_comm_group *g = calloc(1, bytes);
    if (!g) return NULL;
    g->comm = comm;
    snprintf(g->name, sizeof g->name, "%s", spec->name);
    g->stream = spec->stream;
    g->wire = spec->wire;
    g->n = spec->n;
    size_t n = (size_t)spec->n;
    g->members = calloc(n, sizeof *g->members);
    g->operands = calloc(n, sizeof *g->operands);
    g->parts[0] = calloc(n, sizeof *g->parts[0]);
    g->parts[1] = calloc(n, sizeof *g->parts[1]);
    if (!g->members || !g->operands || !g->parts[0] || !g->parts[1]) {
        dh_comm_group_free(g);
        return NULL;
    }
    for (int i = 0; i < spec->n; i++) {
        g->members[i] = spec->members[i];
        if (spec->members[i] == comm->rank) g->me = i;
    }
    return g;
}

void dh_comm_group_free(dh_comm_group *g)
{
    if (!g) return;
    free(g->members);
    free(g->operands);
    free(g->parts[0]);
    free(g->parts[1]);
    free(g->scratch);
    free(g);
}

void dh_comm_groups_free(dh_comm *comm)
{
    while (comm->groups) {
        dh_comm_group *g = comm->groups;
        comm->groups = g->next;
        dh_comm_group_free(g);
    }
}

static dh_status check_spec(dh_ctx *ctx, const dh_comm *comm, const dh_comm_group_spec *spec)
{
    int size = comm->world->size;
    if (!spec->name || strlen(spec->name) >= DH_COMM_NAME_BYTES)
        return dh_fail(ctx, DH_EINVAL, "a group's name has 1 to %d bytes", DH_COMM_NAME_BYTES - 1);
    if (spec->n < 1 || spec->n > size || !spec->members)
        return dh_fail(ctx, DH_EINVAL, "group %s has %d members; the world has %d ranks",
                       spec->name, spec->n, size);
    if (!dh_engine_is_link(spec->wire))
        return dh_fail(ctx, DH_EINVAL, "group %s: %d is no link", spec->name, (int)spec->wire);
    bool mine = false;
    for (int i = 0; i < spec->n; i++) {
        int rank = spec->members[i];
        if (rank < 0 || rank >= size)
            return dh_fail(ctx, DH_EINVAL, "group %s: no rank %d; the world has %d", spec->name,
                           rank, size);
        for (int j = 0; j < i; j++)
            if (spec->members[j] == rank)
                return dh_fail(ctx, DH_EINVAL, "group %s: rank %d is named twice", spec->name,
                               rank);
        mine |= rank == comm->rank;
    }
    if (!mine)
        return dh_fail(ctx, DH_EINVAL, "group %s: rank %d creates it but is no member", spec->name,
                       comm->rank);
    return DH_OK;
}

dh_status dh_comm_group_create(dh_ctx *ctx, dh_comm *comm, const dh_comm_group_spec *spec,
                               dh_comm_group **group)
{
    DH_TRY(check_spec(ctx, comm, spec));
    dh_comm_group *g = NULL;
    DH_TRY(comm->world->ops->impl->group_create(ctx, comm, spec, &g));
    g->next = comm->groups;
    comm->groups = g;
    *group = g;
    return DH_OK;
}

void dh_comm_group_destroy(dh_comm_group *group)
{
    if (!group) return;
    dh_comm_group **at = &group->comm->groups;
    while (*at != group) at = &(*at)->next;
    *at = group->next;
    group->comm->world->ops->impl->group_destroy(group);
    dh_comm_group_free(group);
}

int dh_comm_group_size(const dh_comm_group *group)
{
    return group->n;
}

int dh_comm_group_index(const dh_comm_group *group)
{
    return group->me;
}

dh_comm_times dh_comm_group_times(const dh_comm_group *group)
{
    return group->times;
}

dh_status dh_comm_scratch(dh_ctx *ctx, dh_comm_group *g, size_t n_bytes)
{
    if (n_bytes <= g->scratch_bytes) return DH_OK;
    char *grown = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    if (!grown) return dh_no_memory(ctx);
    free(g->scratch);
    g->scratch = grown;
    g->scratch_bytes = n_bytes;
    return DH_OK;
}

dh_status dh_comm_group_reserve(dh_ctx *ctx, dh_comm_group *group, int64_t n_bytes)
{
    if (group->comm->world->ops->impl == &dh_comm_local_impl) return DH_OK;
    /* Slices are padded to cache lines; small vectors are gathered whole. */
    size_t per_member = DH_COMM_SMALL_BYTES + 64 + 2 * sizeof(dh_comm_head);
    return dh_comm_scratch(ctx, group, (size_t)n_bytes + (size_t)group->n * per_member);
}

/* ---- describing calls ------------------------------------------------------------------- */

static void print_members(dh_str *s, const dh_comm_group *g)
{
    enum { SHOWN = 8 };
    dh_str_printf(s, " of group %s (ranks", g->name);
    for (int i = 0; i < g->n && i < SHOWN; i++) dh_str_printf(s, " %d", g->members[i]);
    dh_str_printf(s, g->n > SHOWN ? " ... %d)" : ")", g->members[g->n - 1]);
}

const char *dh_comm_call_text(const dh_comm_group *g, const dh_comm_head *head, char *buf,
                              size_t cap)
{
    dh_str s = DH_STR_INIT;
    if (head)
        dh_str_printf(&s, "%s #%lld", dh_comm_kind_name((dh_comm_kind)head->kind),
                      (long long)head->seq);
    else
        dh_str_printf(&s, "the creation");
    print_members(&s, g);
    snprintf(buf, cap, "%s", s.text ? s.text : "a call");
    dh_str_fini(&s);
    return buf;
}

static bool has_reduction(const dh_comm_head *head)
{
    return head->kind == DH_COMM_REDUCE_SCATTER || head->kind == DH_COMM_ALL_REDUCE;
}

static void print_head(const dh_comm_head *head, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, "%s #%lld", dh_comm_kind_name((dh_comm_kind)head->kind),
                     (long long)head->seq);
    if (head->kind == DH_COMM_BARRIER || n < 0 || (size_t)n >= cap) return;
    if (head->kind == DH_COMM_ALL_TO_ALL)
        snprintf(buf + n, cap - (size_t)n, " (%s)", dh_dtype_name((dh_dtype)head->dtype));
    else if (head->kind == DH_COMM_BROADCAST)
        snprintf(buf + n, cap - (size_t)n, " (%lld %s from member %d)", (long long)head->count,
                 dh_dtype_name((dh_dtype)head->dtype), head->root);
    else
        snprintf(buf + n, cap - (size_t)n, " (%lld %s%s%s)", (long long)head->count,
                 dh_dtype_name((dh_dtype)head->dtype), has_reduction(head) ? " " : "",
                 has_reduction(head) ? reduce_name(head->reduce) : "");
}

bool dh_comm_heads_differ(const dh_comm_group *g, int a, const dh_comm_head *head_a, int b,
                          const dh_comm_head *head_b, char *buf, size_t cap)
{
    if (memcmp(head_a, head_b, sizeof *head_a) == 0) return false;
    char text_a[96], text_b[96];
    print_head(head_a, text_a, sizeof text_a);
    print_head(head_b, text_b, sizeof text_b);
    snprintf(buf, cap, "calls on group %s do not fit together: rank %d called %s, rank %d %s%s",
             g->name, g->members[a], text_a, g->members[b], text_b,
             strcmp(text_a, text_b) == 0 ? ", with other slice sizes" : "");
    return true;
}

void dh_comm_print_waited(const dh_comm *comm, const char *what, dh_str *out)
{
    const char *why = comm->timeout_why;
    dh_str_printf(out, "rank %d waited %.3g s%s%s%s in %s", comm->rank,
                  (double)comm->timeout_ns * 1e-9, *why ? " (" : "", why, *why ? ")" : "", what);
}

dh_status dh_comm_fail_stopped(dh_ctx *ctx, const dh_comm_group *group, const dh_comm_head *head,
                               int by_rank, const char *message)
{
    char text[DH_COMM_CALL_TEXT_BYTES];
    if (!group) return dh_fail(ctx, DH_ECOMM, "rank %d stopped: %s", by_rank, message);
    int rank = group->comm->rank;
    if (!head)
        return dh_fail(ctx, DH_ECOMM, "rank %d stopped: %s; rank %d was creating group %s", by_rank,
                       message, rank, group->name);
    return dh_fail(ctx, DH_ECOMM, "rank %d stopped: %s; rank %d was waiting in %s", by_rank,
                   message, rank, dh_comm_call_text(group, head, text, sizeof text));
}

/* ---- collectives ------------------------------------------------------------------------ */

static dh_status check_sizes(dh_ctx *ctx, const dh_comm_group *g, dh_comm_kind kind, int64_t total,
                             dh_dtype dtype)
{
    if ((unsigned)dtype >= DH_N_DTYPE)
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: unknown element type %d",
                       dh_comm_kind_name(kind), g->name, (int)dtype);
    if (total < 0 || total > INT64_MAX / 64)
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: %lld elements are out of range",
                       dh_comm_kind_name(kind), g->name, (long long)total);
    return DH_OK;
}

static dh_status check_buffers(dh_ctx *ctx, const dh_comm_group *g, const dh_comm_call *call,
                               int64_t n_send, int64_t n_recv)
{
    if ((n_send > 0 && !call->send) || (n_recv > 0 && !call->recv))
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: %s buffer is missing",
                       dh_comm_kind_name((dh_comm_kind)call->head.kind), g->name,
                       n_send > 0 && !call->send ? "send" : "receive");
    return DH_OK;
}

int64_t dh_comm_sent_bytes(const dh_comm *comm, dh_engine wire)
{
    return comm->sent_bytes[wire];
}

void dh_comm_add_sent(dh_comm_group *group, int64_t n_bytes)
{
    group->comm->sent_bytes[group->wire] += n_bytes;
}

/* The common way of all collectives, once their slices are known. */
static dh_status run(dh_ctx *ctx, dh_comm_group *g, dh_comm_call *call)
{
    dh_comm_world *world = g->comm->world;
    int64_t call_seq = ++g->comm->n_calls;
    call->head.seq = ++g->n_collectives;
    if (world->config.hook && world->config.hook(world->config.hook_user, g->comm->rank, call_seq,
                                                 (dh_comm_kind)call->head.kind) == DH_COMM_DROP)
        return DH_OK;
    g->times = (dh_comm_times){.called_ns = dh_now_ns()};
    g->comm->sent_bytes[g->wire] += dh_comm_bytes_of(g->n, g->me, call);
    dh_status st = world->ops->impl->collective(ctx, g, call);
    g->times.ended_ns = dh_now_ns();
    return st;
}

/* Slices of counts[j], or of count each, one after another. */
static dh_status set_slices(dh_ctx *ctx, dh_comm_group *g, dh_comm_call *call, int64_t count,
                            const int64_t *counts)
{
    dh_comm_kind kind = (dh_comm_kind)call->head.kind;
    int64_t at = 0;
    uint64_t shape = 1;
    for (int j = 0; j < g->n; j++) {
        int64_t n = counts ? counts[j] : count;
        DH_TRY(check_sizes(ctx, g, kind, n, (dh_dtype)call->head.dtype));
        g->parts[0][j] = (dh_comm_part){at, n};
        at += n;
        DH_TRY(check_sizes(ctx, g, kind, at, (dh_dtype)call->head.dtype));
        shape = dh_mix64(shape ^ (uint64_t)n);
    }
    call->head.count = at;
    call->head.shape = shape;
    call->send_parts = call->recv_parts = g->parts[0];
    return DH_OK;
}

/* `each` elements are cut into n parts; members that do otherwise have another shape. */
static dh_status set_progress(dh_ctx *ctx, const dh_comm_group *g, dh_comm_call *call, int64_t each,
                              int64_t n, const dh_part_hook *progress)
{
    if (!progress || progress->n < 2) return DH_OK;
    if (n == 0 || each % n != 0)
        return dh_fail(ctx, DH_EINVAL,
                       "%s on group %s: %lld elements of each of %d members are not %u equal parts",
                       dh_comm_kind_name((dh_comm_kind)call->head.kind), g->name, (long long)each,
                       g->n, progress->n);
    call->progress = progress;
    call->head.shape = dh_mix64(call->head.shape ^ progress->n);
    return DH_OK;
}

static dh_status all_gather(dh_ctx *ctx, dh_comm_group *g, const void *send, void *recv,
                            int64_t count, const int64_t *counts, dh_dtype dtype,
                            const dh_part_hook *progress)
{
    dh_comm_call call = {
        .head = {.kind = DH_COMM_ALL_GATHER, .dtype = (int32_t)dtype}, .send = send, .recv = recv};
    DH_TRY(set_slices(ctx, g, &call, count, counts));
    const int64_t n_parts = progress && progress->n % (uint32_t)g->n == 0 ? progress->n : 0;
    DH_TRY(set_progress(ctx, g, &call, count, n_parts / g->n, progress));
    DH_TRY(check_buffers(ctx, g, &call, g->parts[0][g->me].n, call.head.count));
    return run(ctx, g, &call);
}

dh_status dh_comm_all_gather(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                             int64_t count, dh_dtype dtype)
{
    return all_gather(ctx, group, send, recv, count, NULL, dtype, NULL);
}

dh_status dh_comm_all_gather_parts(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                                   int64_t count, dh_dtype dtype, const dh_part_hook *progress)
{
    return all_gather(ctx, group, send, recv, count, NULL, dtype, progress);
}

dh_status dh_comm_all_gatherv(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                              const int64_t *counts, dh_dtype dtype)
{
    return all_gather(ctx, group, send, recv, 0, counts, dtype, NULL);
}

static dh_status check_reduce(dh_ctx *ctx, const dh_comm_group *g, dh_comm_kind kind,
                              dh_comm_reduce reduce)
{
    if ((unsigned)reduce < DH_N_REDUCE) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "%s on group %s: unknown reduction %d", dh_comm_kind_name(kind),
                   g->name, (int)reduce);
}

dh_status dh_comm_reduce_scatter_parts(dh_ctx *ctx, dh_comm_group *g, const void *send, void *recv,
                                       int64_t count, dh_dtype dtype, dh_comm_reduce reduce,
                                       const dh_part_hook *progress)
{
    DH_TRY(check_reduce(ctx, g, DH_COMM_REDUCE_SCATTER, reduce));
    dh_comm_call call = {.head = {.kind = DH_COMM_REDUCE_SCATTER,
                                  .dtype = (int32_t)dtype,
                                  .reduce = (int32_t)reduce},
                         .send = send,
                         .recv = recv};
    DH_TRY(set_slices(ctx, g, &call, count, NULL));
    DH_TRY(set_progress(ctx, g, &call, count, progress ? progress->n : 0, progress));
    DH_TRY(check_buffers(ctx, g, &call, call.head.count, count));
    return run(ctx, g, &call);
}

dh_status dh_comm_reduce_scatter(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                                 int64_t count, dh_dtype dtype, dh_comm_reduce reduce)
{
    return dh_comm_reduce_scatter_parts(ctx, group, send, recv, count, dtype, reduce, NULL);
}

/* Which member reduces what: nearly equal slices, cut at multiples of 64 elements
 * so that two members never write one cache line. */
static void balance(dh_comm_group *g, int64_t count)
{
    int64_t each = (count + g->n - 1) / g->n;
    each = (each + 63) / 64 * 64;
    for (int j = 0; j < g->n; j++) {
        int64_t at = DH_MIN(count, each * j);
        g->parts[0][j] = (dh_comm_part){at, DH_MIN(count, at + each) - at};
    }
}

dh_status dh_comm_all_reduce(dh_ctx *ctx, dh_comm_group *g, const void *send, void *recv,
                             int64_t count, dh_dtype dtype, dh_comm_reduce reduce)
{
    DH_TRY(check_reduce(ctx, g, DH_COMM_ALL_REDUCE, reduce));
    DH_TRY(check_sizes(ctx, g, DH_COMM_ALL_REDUCE, count, dtype));
    balance(g, count);
    dh_comm_call call = {.head = {.kind = DH_COMM_ALL_REDUCE,
                                  .dtype = (int32_t)dtype,
                                  .reduce = (int32_t)reduce,
                                  .count = count},
                         .send = send,
                         .recv = recv,
                         .send_parts = g->parts[0],
                         .recv_parts = g->parts[0]};
    DH_TRY(check_buffers(ctx, g, &call, count, count));
    return run(ctx, g, &call);
}

static dh_status all_to_all(dh_ctx *ctx, dh_comm_group *g, const void *send, void *recv,
                            dh_dtype dtype)
{
    int64_t n_send = 0, n_recv = 0;
    for (int j = 0; j < g->n; j++) {
        for (int k = 0; k < 2; k++) {
            DH_TRY(check_sizes(ctx, g, DH_COMM_ALL_TO_ALL, g->parts[k][j].n, dtype));
            DH_TRY(check_sizes(ctx, g, DH_COMM_ALL_TO_ALL, g->parts[k][j].at, dtype));
        }
        n_send += g->parts[0][j].n;
        n_recv += g->parts[1][j].n;
        DH_TRY(check_sizes(ctx, g, DH_COMM_ALL_TO_ALL, DH_MAX(n_send, n_recv), dtype));
    }
    dh_comm_call call = {.head = {.kind = DH_COMM_ALL_TO_ALL, .dtype = (int32_t)dtype},
                         .send = send,
                         .recv = recv,
                         .send_parts = g->parts[0],
                         .recv_parts = g->parts[1]};
    DH_TRY(check_buffers(ctx, g, &call, n_send, n_recv));
    if (send == recv && n_send > 0 && g->n > 1)
        return dh_fail(ctx, DH_EINVAL, "all_to_all on group %s cannot work in place", g->name);
    return run(ctx, g, &call);
}

dh_status dh_comm_all_to_all(dh_ctx *ctx, dh_comm_group *group, const void *send, void *recv,
                             int64_t count, dh_dtype dtype)
{
    DH_TRY(check_sizes(ctx, group, DH_COMM_ALL_TO_ALL, count, dtype));
    for (int j = 0; j < group->n; j++)
        group->parts[0][j] = group->parts[1][j] = (dh_comm_part){count * j, count};
    return all_to_all(ctx, group, send, recv, dtype);
}

/* Elements of rows [offsets[0], offsets[1]); n negative where they do not rise. */
static dh_comm_part rows_part(int64_t first, int64_t end, int64_t width)
{
    dh_comm_part part;
    if (first < 0 || __builtin_mul_overflow(first, width, &part.at) ||
        __builtin_mul_overflow(end - first, width, &part.n))
        return (dh_comm_part){0, -1};
    return part;
}

dh_status dh_comm_all_to_all_rows(dh_ctx *ctx, dh_comm_group *group, const void *send,
                                  const int64_t *send_offsets, void *recv,
                                  const int64_t *recv_offsets, int64_t runs, int64_t width,
                                  dh_dtype dtype)
{
    for (int j = 0; j < group->n; j++) {
        const int64_t first = j * runs, end = first + runs;
        group->parts[0][j] = rows_part(send_offsets[first], send_offsets[end], width);
        group->parts[1][j] = rows_part(recv_offsets[first], recv_offsets[end], width);
    }
    return all_to_all(ctx, group, send, recv, dtype);
}

dh_status dh_comm_broadcast(dh_ctx *ctx, dh_comm_group *g, void *buf, int64_t count, dh_dtype dtype,
                            int root)
{
    DH_TRY(check_sizes(ctx, g, DH_COMM_BROADCAST, count, dtype));
    if (root < 0 || root >= g->n)
        return dh_fail(ctx, DH_EINVAL, "broadcast on group %s: no member %d among %d", g->name,
                       root, g->n);
    dh_comm_call call = {
        .head = {.kind = DH_COMM_BROADCAST, .dtype = (int32_t)dtype, .root = root, .count = count},
        .send = buf,
        .recv = buf};
    DH_TRY(check_buffers(ctx, g, &call, count, count));
    return run(ctx, g, &call);
}

dh_status dh_comm_barrier(dh_ctx *ctx, dh_comm_group *g)
{
    dh_comm_call call = {.head = {.kind = DH_COMM_BARRIER, .dtype = DH_U8}};
    return run(ctx, g, &call);
}

/* ---- point to point --------------------------------------------------------------------- */

static dh_status check_xfer(dh_ctx *ctx, const dh_comm_group *g, dh_comm_kind kind,
                            const dh_comm_xfer *x)
{
    DH_TRY(check_sizes(ctx, g, kind, x->count, x->dtype));
    if (x->peer < 0 || x->peer >= g->n)
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: no member %d among %d",
                       dh_comm_kind_name(kind), g->name, x->peer, g->n);
    if (x->tag < 0 || x->tag > DH_COMM_MAX_TAG)
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: tag %d is not in 0 .. %d",
                       dh_comm_kind_name(kind), g->name, x->tag, DH_COMM_MAX_TAG);
    if (x->count > 0 && !x->buf)
        return dh_fail(ctx, DH_EINVAL, "%s on group %s: the buffer is missing",
                       dh_comm_kind_name(kind), g->name);
    return DH_OK;
}

static dh_status transfer(dh_ctx *ctx, dh_comm_group *g, dh_comm_kind kind,
                          const dh_comm_xfer *xfers, size_t n)
{
    dh_comm_head head = {.kind = (int32_t)kind, .dtype = DH_U8};
    for (size_t i = 0; i < n; i++) DH_TRY(check_xfer(ctx, g, kind, &xfers[i]));
    dh_comm_world *world = g->comm->world;
    int64_t call_seq = ++g->comm->n_calls;
    head.seq = ++g->n_transfers;
    if (world->config.hook &&
        world->config.hook(world->config.hook_user, g->comm->rank, call_seq, kind) == DH_COMM_DROP)
        return DH_OK;
    g->times = (dh_comm_times){.called_ns = dh_now_ns()};
    for (size_t i = 0; i < n; i++)
        if (xfers[i].direction == DH_XFER_SEND && xfers[i].peer != g->me)
            g->comm->sent_bytes[g->wire] +=
                xfers[i].count * (int64_t)dh_dtype_bytes(xfers[i].dtype);
    dh_status st = world->ops->impl->transfer(ctx, g, &head, xfers, n);
    g->times.ended_ns = dh_now_ns();
    return st;
}

/* A send only reads, but shares the field with receives. */
static void *readable(const void *buf)
{
    union {
        const void *in;
        void *out;
    } u = {.in = buf};
    return u.out;
}

dh_status dh_comm_send(dh_ctx *ctx, dh_comm_group *group, const void *buf, int64_t count,
                       dh_dtype dtype, int peer, int tag)
{
    dh_comm_xfer x = {DH_XFER_SEND, peer, tag, dtype, count, readable(buf)};
    return transfer(ctx, group, DH_COMM_SEND, &x, 1);
}

dh_status dh_comm_recv(dh_ctx *ctx, dh_comm_group *group, void *buf, int64_t count, dh_dtype dtype,
                       int peer, int tag)
{
    dh_comm_xfer x = {DH_XFER_RECV, peer, tag, dtype, count, buf};
    return transfer(ctx, group, DH_COMM_RECV, &x, 1);
}

dh_status dh_comm_exchange(dh_ctx *ctx, dh_comm_group *group, const void *send, int send_peer,
                           void *recv, int recv_peer, int64_t count, dh_dtype dtype, int tag)
{
    dh_comm_xfer x[2] = {{DH_XFER_SEND, send_peer, tag, dtype, count, readable(send)},
                         {DH_XFER_RECV, recv_peer, tag, dtype, count, recv}};
    return transfer(ctx, group, DH_COMM_EXCHANGE, x, 2);
}

dh_status dh_comm_batch(dh_ctx *ctx, dh_comm_group *group, const dh_comm_xfer *xfers, size_t n)
{
    return transfer(ctx, group, DH_COMM_BATCH, xfers, n);
}
