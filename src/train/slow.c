/* Slow ranks and links: from the job's lists and a simulation's own to ranks' factors.
 *
 * A rank's computation, a rank's links, a node's links to others: what is slow is an engine, or
 * several, of one rank or of all of a node. */
#include "train/slow.h"
#include "train/simulation.h"

#include <stdlib.h>
#include <string.h>

typedef struct slow_list {
    dh_sim_slow *at;
    size_t n;
} slow_list;

static void add(slow_list *list, int64_t rank, double compute, double local, double cross)
{
    dh_sim_slow *s = &list->at[list->n++];
    *s = (dh_sim_slow){.rank = rank};
    s->factor[DH_ENGINE_COMPUTE] = compute;
    s->factor[DH_ENGINE_LOCAL] = local;
    s->factor[DH_ENGINE_CROSS] = cross;
}

static size_t count(const char *numbers)
{
    size_t n = *numbers != '\0';
    for (; *numbers; numbers++) n += *numbers == ',';
    return n;
}

/* The next of "3,5", and moves behind it. */
static int64_t next_number(const char **numbers)
{
    char *end;
    const int64_t value = strtoll(*numbers, &end, 10);
    *numbers = *end ? end + 1 : end;
    return value;
}

static dh_status check_numbers(dh_ctx *ctx, const char *key, const char *numbers, int64_t n,
                               const char *what)
{
    for (const char *p = numbers; *p;) {
        const int64_t value = next_number(&p);
        if (value < 0 || value >= n)
            return dh_fail(ctx, DH_EINVAL, "%s: %s %lld: there are %ss 0 to %lld", key, what,
                           (long long)value, what, (long long)n - 1);
        for (const char *q = p; *q;)
            if (next_number(&q) == value)
                return dh_fail(ctx, DH_EINVAL, "%s names %s %lld twice", key, what,
                               (long long)value);
    }
    return DH_OK;
}

static void add_node(slow_list *list, const dh_mesh *mesh, int64_t node, double factor)
{
    for (int64_t rank = 0; rank < mesh->ranks; rank++)
        if (dh_mesh_node(mesh, rank) == node) add(list, rank, 1, 1, factor);
}

static dh_status add_nodes(dh_ctx *ctx, const dh_train_simulation *how, const dh_mesh *mesh,
                           slow_list *list)
{
    for (size_t i = 0; i < how->n_slow_nodes; i++) {
        const dh_slow_node *s = &how->slow_nodes[i];
        if (s->node < 0 || s->node >= mesh->nodes)
            return dh_fail(ctx, DH_EINVAL, "slow node %lld: there are nodes 0 to %lld",
                           (long long)s->node, (long long)mesh->nodes - 1);
        add_node(list, mesh, s->node, s->factor);
    }
    return DH_OK;
}

static dh_status add_of_job(dh_ctx *ctx, const dh_job *job, const dh_mesh *mesh, slow_list *list)
{
    const double link = job->slow_link_factor;
    DH_TRY(check_numbers(ctx, "slow.ranks", job->slow_ranks, mesh->ranks, "rank"));
    DH_TRY(check_numbers(ctx, "slow.links", job->slow_links, mesh->ranks, "rank"));
    DH_TRY(check_numbers(ctx, "slow.nodes", job->slow_nodes, mesh->nodes, "node"));
    for (const char *p = job->slow_ranks; *p;) add(list, next_number(&p), job->slow_factor, 1, 1);
    for (const char *p = job->slow_links; *p;) add(list, next_number(&p), 1, link, link);
    for (const char *p = job->slow_nodes; *p;) add_node(list, mesh, next_number(&p), link);
    return DH_OK;
}

dh_status dh_train_slow(dh_ctx *ctx, const dh_job *job, const dh_train_simulation *how,
                        const dh_mesh *mesh, dh_sim_options *options)
{
    const size_t per_node = (size_t)mesh->ranks_per_node;
    const size_t room = how->sim.n_slow + how->n_slow_nodes * per_node + count(job->slow_ranks) +
                        count(job->slow_links) + count(job->slow_nodes) * per_node;
    slow_list list = {.at = DH_NEW_N(job->arena, dh_sim_slow, room + 1)};
    if (!list.at) return dh_no_memory(ctx);
    for (size_t i = 0; i < how->sim.n_slow; i++) list.at[list.n++] = how->sim.slow[i];
    DH_TRY(add_nodes(ctx, how, mesh, &list));
    DH_TRY(add_of_job(ctx, job, mesh, &list));
    *options = how->sim;
    options->slow = list.at;
    options->n_slow = list.n;
    return DH_OK;
}
