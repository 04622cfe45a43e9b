/* Which ranks are simulated: one for all that permuting coordinates exchanges.
 *
 * Exchanging two coordinates of the tp, cp, ep or edp axis carries groups to groups and, where
 * the two run the same program with the same costs, leaves everything as it was. Such
 * ranks do everything at the same times, so one of them, being its own partner, has the
 * timeline of all. A slow rank breaks the symmetry of its own coordinates only: on every axis
 * they stand apart, and the others stay together. */
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
        if (!a->of || !a->first || !a->count)
            return dh_fail(ctx, DH_ENOMEM, "out of memory simulating");
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

/* The first class of coordinates that members have on an axis where one of them has this one. */
static uint32_t first_digit(const dh_sim_axis *a, dh_group_kind group, int axis, uint32_t digit)
{
    if (axis != DH_MESH_PP || !dh_group_joins_copies(group)) return 0;
    return DH_MIN(digit, a->n - 1 - digit);
}

uint32_t dh_sim_group_first(const dh_sim_nodes *nodes, dh_group_kind group, uint32_t node)
{
    digits d = digits_of(nodes, node);
    for (int k = 0; k < DH_N_MESH_AXES; k++)
        if (dh_group_varies(group, k)) d.at[k] = first_digit(&nodes->axis[k], group, k, d.at[k]);
    return node_of(nodes, &d);
}

/* The next class of coordinates that members have on an axis; n: no more. */
static uint32_t next_digit(const dh_sim_axis *a, dh_group_kind group, int axis, uint32_t digit)
{
    if (!takes_two(group, axis)) return digit + 1;
    const uint32_t mirrored = a->n - 1 - digit; /* of the first of the two stages the other */
    return first_digit(a, group, axis, digit) == digit && mirrored > digit ? mirrored : a->n;
}

static uint32_t digit_count(const dh_sim_axis *a, dh_group_kind group, int axis)
{
    if (!dh_group_varies(group, axis)) return 1;
    return takes_two(group, axis) ? DH_MIN(a->n, 2) : a->n;
}

dh_status dh_sim_group_members(dh_ctx *ctx, dh_arena *arena, const dh_sim_nodes *nodes,
                               dh_group_kind group, uint32_t first, dh_sim_members *members)
{
    uint32_t n = 1;
    for (int k = 0; k < DH_N_MESH_AXES; k++) n *= digit_count(&nodes->axis[k], group, k);
    members->node = DH_NEW_N(arena, uint32_t, n);
    if (!members->node) return dh_fail(ctx, DH_ENOMEM, "out of memory simulating");
    members->n = 0;
    digits d = digits_of(nodes, first);
    for (int k = 0; k < DH_N_MESH_AXES;) { /* an odometer over the axes that vary */
        members->node[members->n++] = node_of(nodes, &d);
        for (k = 0; k < DH_N_MESH_AXES; k++) {
            if (!dh_group_varies(group, k)) continue;
            const uint32_t own = d.at[k];
            d.at[k] = next_digit(&nodes->axis[k], group, k, own);
            if (d.at[k] < nodes->axis[k].n) break;
            d.at[k] = first_digit(&nodes->axis[k], group, k, own);
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
