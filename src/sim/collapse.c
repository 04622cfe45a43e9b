/* Which ranks are simulated: one for all that permuting coordinates exchanges.
 *
 * Exchanging two coordinates of the tp, cp, ep or edp axis carries groups to groups. Where both run
 * the same program with the same costs, it changes nothing. The ranks of both then do everything at
 * the same times. One of them, being its own partner, has the timeline of all. A slow rank breaks
 * the symmetry of its own coordinates only: on every axis they stand apart, and the others stay
 * together.
 *
 * Stages of groups (mesh.h): on an axis that nodes cut, whole runs may be exchanged, and places in
 * all runs alike, which still carries each coordinate to every other. So all of such an axis are
 * one class, or, where some stand apart, each is. */
#include <string.h>

#include "sim/sim.h"

/* ---- classes of coordinates ---------------------------------------------------------------- */

static int64_t coordinate(const dh_mesh *mesh, int64_t rank, int axis)
{
    const dh_coord c = dh_mesh_coord(mesh, rank);
    const int64_t by_axis[DH_N_MESH_AXES] = {c.tp, c.cp, c.ep, c.edp, c.pp};
    return by_axis[axis];
}

/* Class DH_NONE in `of`: not special, in the class of all such. */
static void mark_special(const dh_mesh *mesh, int axis, dh_sim_split split,
                         const dh_sim_options *options, dh_sim_axis *a)
{
    for (int64_t i = 0; i < a->size; i++)
        a->of[i] = i < split.n_alike && (i > 0 || !split.first_apart) ? DH_NONE : 0;
    for (size_t i = 0; i < options->n_slow; i++)
        a->of[coordinate(mesh, options->slow[i].rank, axis)] = 0;
}

static void number_classes(dh_sim_axis *a)
{
    uint32_t common = DH_NONE;
    for (int64_t i = 0; i < a->size; i++) {
        uint32_t class = a->of[i] == DH_NONE ? common : DH_NONE;
        if (class == DH_NONE) {
            class = a->n++;
            a->first[class] = i;
            if (a->of[i] == DH_NONE) common = class;
        }
        a->of[i] = class;
        a->count[class]++;
    }
}

dh_status dh_sim_nodes_init(dh_ctx *ctx, dh_arena *arena, const dh_mesh *mesh,
                            const dh_sim_split splits[DH_N_MESH_AXES],
                            const dh_sim_options *options, dh_sim_nodes *nodes)
{
    const int64_t sizes[DH_N_MESH_AXES] = {mesh->tp, mesh->cp, mesh->ep, mesh->edp, mesh->pp};
    *nodes = (dh_sim_nodes){.mesh = mesh, .n = 1};
    for (int k = 0; k < DH_N_MESH_AXES; k++) {
        dh_sim_axis *a = &nodes->axis[k];
        a->size = sizes[k];
        a->of = DH_NEW_N(arena, uint32_t, a->size);
        a->first = DH_NEW_N(arena, int64_t, a->size);
        a->count = DH_NEW_N(arena, int64_t, a->size);
        if (!a->of || !a->first || !a->count) return dh_no_memory(ctx);
        mark_special(mesh, k, splits[k], options, a);
        number_classes(a);
        nodes->n *= a->n;
    }
    return DH_OK;
}

/* ---- nodes --------------------------------------------------------------------------------- */

typedef struct digits {
    uint32_t at[DH_N_MESH_AXES];
} digits;

static digits digits_of(const dh_sim_nodes *nodes, uint32_t node)
{
    digits d;
    for (int k = 0; k < DH_N_MESH_AXES; k++) {
        d.at[k] = node % nodes->axis[k].n;
        node /= nodes->axis[k].n;
    }
    return d;
}

static uint32_t node_of(const dh_sim_nodes *nodes, const digits *d)
{
    uint32_t node = 0;
    for (int k = DH_N_MESH_AXES; k-- > 0;) node = node * nodes->axis[k].n + d->at[k];
    return node;
}

int64_t dh_sim_node_rank(const dh_sim_nodes *nodes, uint32_t node)
{
    const digits d = digits_of(nodes, node);
    int64_t at[DH_N_MESH_AXES];
    for (int k = 0; k < DH_N_MESH_AXES; k++) at[k] = nodes->axis[k].first[d.at[k]];
    const dh_coord c = {.tp = at[DH_MESH_TP],
                        .cp = at[DH_MESH_CP],
                        .dp = at[DH_MESH_EDP] * nodes->mesh->ep + at[DH_MESH_EP],
                        .pp = at[DH_MESH_PP]};
    return dh_mesh_rank(nodes->mesh, c);
}

int64_t dh_sim_node_n_ranks(const dh_sim_nodes *nodes, uint32_t node)
{
    const digits d = digits_of(nodes, node);
    int64_t n = 1;
    for (int k = 0; k < DH_N_MESH_AXES; k++) n *= nodes->axis[k].count[d.at[k]];
    return n;
}

/* ---- groups -------------------------------------------------------------------------------- */

/* Whether members are on two stages alone: the first and the last, or one and its mirror image.
 * Every stage is a class of its own. */
static bool takes_two(dh_group_kind group, int axis)
{
    return axis == DH_MESH_PP && (group == DH_GROUP_EMBED || dh_group_joins_copies(group));
}

/* Classes of coordinates on an axis that members of a group have: from the first one, every
 * step-th below the end. */
typedef struct digit_range {
    uint32_t first, end, step;
} digit_range;

/* The range for a group of a stage's ranks. An axis that nodes cut is one class, or each coordinate
 * is a class (simulate.c). With local groups alone, some coordinates may stand for others.
 * Coordinates of other nodes then behave alike, and all of them meet. */
static digit_range digits_of_stage(const dh_sim_nodes *nodes, dh_group_kind group, int axis,
                                   uint32_t digit)
{
    const dh_sim_axis *a = &nodes->axis[axis];
    const uint32_t run = (uint32_t)dh_mesh_group_run(nodes->mesh, group, axis);
    const bool local = dh_group_spread(group) == DH_STAGE_LOCAL;
    const bool none = local ? run == 1 : run == a->size;
    const bool all = local ? run == a->size || a->n < a->size : run == 1;
    if (a->n == 1 || none) return (digit_range){digit, digit + 1, 1};
    if (all) return (digit_range){0, a->n, 1};
    DH_ASSERT(a->n == a->size, "%u classes of %lld coordinates", a->n, (long long)a->size);
    const uint32_t first = digit - digit % run;
    return local ? (digit_range){first, first + run, 1} : (digit_range){digit % run, a->n, run};
}

/* Where one member has this one. If two stages mirror each other, the first and the last are one
 * step apart. */
static digit_range digits_of_group(const dh_sim_nodes *nodes, dh_group_kind group, int axis,
                                   uint32_t digit)
{
    const uint32_t n = nodes->axis[axis].n;
    if (!dh_group_varies(group, axis)) return (digit_range){digit, digit + 1, 1};
    if (dh_group_spread(group) != DH_STAGE_WHOLE) return digits_of_stage(nodes, group, axis, digit);
    if (!takes_two(group, axis)) return (digit_range){0, n, 1};
    const uint32_t first = dh_group_joins_copies(group) ? DH_MIN(digit, n - 1 - digit) : 0;
    return (digit_range){first, n - first, DH_MAX(n - 1 - 2 * first, 1)};
}

uint32_t dh_sim_group_first(const dh_sim_nodes *nodes, dh_group_kind group, uint32_t node)
{
    digits d = digits_of(nodes, node);
    for (int k = 0; k < DH_N_MESH_AXES; k++)
        d.at[k] = digits_of_group(nodes, group, k, d.at[k]).first;
    return node_of(nodes, &d);
}

dh_status dh_sim_group_members(dh_ctx *ctx, dh_arena *arena, const dh_sim_nodes *nodes,
                               dh_group_kind group, uint32_t first, dh_sim_members *members)
{
    digits d = digits_of(nodes, first);
    digit_range range[DH_N_MESH_AXES];
    uint32_t n = 1;
    for (int k = 0; k < DH_N_MESH_AXES; k++) {
        range[k] = digits_of_group(nodes, group, k, d.at[k]);
        n *= (range[k].end - range[k].first + range[k].step - 1) / range[k].step;
    }
    members->node = DH_NEW_N(arena, uint32_t, n);
    if (!members->node) return dh_no_memory(ctx);
    members->n = 0;
    for (int k = 0; k < DH_N_MESH_AXES;) { /* an odometer */
        members->node[members->n++] = node_of(nodes, &d);
        for (k = 0; k < DH_N_MESH_AXES; k++) {
            d.at[k] += range[k].step;
            if (d.at[k] < range[k].end) break;
            d.at[k] = range[k].first;
        }
    }
    return DH_OK;
}

uint32_t dh_sim_stage_peer(const dh_sim_nodes *nodes, uint32_t node, int32_t stage)
{
    digits d = digits_of(nodes, node);
    d.at[DH_MESH_PP] = nodes->axis[DH_MESH_PP].of[stage];
    return node_of(nodes, &d);
}
