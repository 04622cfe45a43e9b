/* Mesh arithmetic: a rank is a number in mixed radix over the axes of dh_mesh_axis.
 *
 * A group is a mask of axes: its members share the digits of all other axes. The embedding group
 * uses only the first and last digit of the pipeline axis. A stage of a group uses some digits of
 * an axis that nodes cut. Every loop therefore asks digit_count() and digit_at() instead of the
 * axis size.
 *
 * Stages. Nodes that are equal runs of one axis split each of its digits in two: the place in the
 * run, and which run. Faster axes are all place, slower ones all run. Members of a local group
 * differ in the places of their axes, those of a cross group in the runs. */
#include "config/mesh.h"
#include "base/base.h"

#include <string.h>

#define MAX_RANKS (INT64_C(1) << 24)

typedef struct group_row {
    const char *name, *doc;
    unsigned axes;
} group_row;

static const group_row group_rows[DH_N_GROUPS] = {
#define X(code, name, axes, doc) {name, doc, axes},
    DH_GROUP_LIST(X)
#undef X
};

/* ---- construction ------------------------------------------------------------------- */

static dh_status check_sizes(dh_ctx *ctx, const dh_mesh *m)
{
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"dp", m->dp}, {"tp", m->tp}, {"pp", m->pp}, {"cp", m->cp}, {"ep", m->ep}};
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++)
        if (sizes[i].size < 1 || sizes[i].size > MAX_RANKS)
            return dh_fail(ctx, DH_EINVAL, "parallel.%s is %lld; it must lie between 1 and %lld",
                           sizes[i].name, (long long)sizes[i].size, (long long)MAX_RANKS);
    if (m->dp % m->ep)
        return dh_fail(ctx, DH_EINVAL,
                       "parallel.ep %lld does not divide parallel.dp %lld: expert parallelism uses "
                       "the data-parallel ranks",
                       (long long)m->ep, (long long)m->dp);
    return DH_OK;
}

static dh_status place_on_nodes(dh_ctx *ctx, dh_mesh *m)
{
    if (m->nodes < 0 || m->ranks_per_node < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "topology.nodes %lld, topology.ranks_per_node %lld: must not be negative",
                       (long long)m->nodes, (long long)m->ranks_per_node);
    if (!m->nodes && !m->ranks_per_node) m->nodes = 1;
    if (m->nodes && m->ranks % m->nodes)
        return dh_fail(
            ctx, DH_EINVAL,
            "topology.nodes %lld does not divide the %lld ranks: nodes must have as many "
            "ranks each",
            (long long)m->nodes, (long long)m->ranks);
    if (!m->ranks_per_node) m->ranks_per_node = m->ranks / m->nodes;
    if (!m->nodes) {
        if (m->ranks % m->ranks_per_node)
            return dh_fail(ctx, DH_EINVAL,
                           "topology.ranks_per_node %lld does not divide the %lld ranks: nodes "
                           "must have as many ranks each",
                           (long long)m->ranks_per_node, (long long)m->ranks);
        m->nodes = m->ranks / m->ranks_per_node;
    }
    /* nodes divides ranks, so this compares without a product that could overflow. */
    if (m->ranks_per_node != m->ranks / m->nodes)
        return dh_fail(ctx, DH_EINVAL,
                       "topology.nodes %lld * topology.ranks_per_node %lld is not the number of "
                       "ranks %lld; leave one of them out",
                       (long long)m->nodes, (long long)m->ranks_per_node, (long long)m->ranks);
    return DH_OK;
}

dh_status dh_mesh_init(dh_ctx *ctx, int64_t dp, int64_t tp, int64_t pp, int64_t cp, int64_t ep,
                       int64_t nodes, int64_t ranks_per_node, dh_mesh *mesh)
{
    dh_mesh m = {.dp = dp,
                 .tp = tp,
                 .pp = pp,
                 .cp = cp,
                 .ep = ep,
                 .ranks = 1,
                 .nodes = nodes,
                 .ranks_per_node = ranks_per_node};
    DH_TRY(check_sizes(ctx, &m));
    const int64_t factors[] = {dp, tp, pp, cp};
    for (size_t i = 0; i < DH_COUNTOF(factors); i++) {
        m.ranks *= factors[i]; /* both at most MAX_RANKS: no overflow */
        if (m.ranks > MAX_RANKS)
            return dh_fail(ctx, DH_EINVAL,
                           "parallel.dp %lld * tp %lld * pp %lld * cp %lld is more than %lld ranks",
                           (long long)dp, (long long)tp, (long long)pp, (long long)cp,
                           (long long)MAX_RANKS);
    }
    m.edp = m.dp / m.ep;
    DH_TRY(place_on_nodes(ctx, &m));
    *mesh = m;
    return DH_OK;
}

dh_status dh_mesh_from_job(dh_ctx *ctx, const dh_job *job, dh_mesh *mesh)
{
    DH_TRY(dh_mesh_init(ctx, job->dp, job->tp, job->pp, job->cp, job->ep, job->nodes,
                        job->ranks_per_node, mesh));
    mesh->whole_experts = job->model.n_experts > 0 && job->tp > 1 && job->expert_tp == 1;
    mesh->kv_ranks = dh_mesh_kv_ranks(&job->model, job->tp);
    mesh->share_ranks = DH_MAX(job->reshard, (int64_t)0);
    return DH_OK;
}

/* In a row, with the same key and value head. */
static int64_t kv_ranks(const dh_mesh *m)
{
    return DH_MAX(m->kv_ranks, 1);
}

/* ---- coordinates ---------------------------------------------------------------------- */

bool dh_mesh_equal(const dh_mesh *a, const dh_mesh *b)
{
    return a->dp == b->dp && a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->ep == b->ep &&
           a->nodes == b->nodes && a->ranks_per_node == b->ranks_per_node &&
           a->whole_experts == b->whole_experts && kv_ranks(a) == kv_ranks(b) &&
           a->share_ranks == b->share_ranks;
}

static int64_t axis_size(const dh_mesh *m, int axis)
{
    const int64_t sizes[DH_N_MESH_AXES] = {m->tp, m->cp, m->ep, m->edp, m->pp};
    return sizes[axis];
}

dh_coord dh_mesh_coord(const dh_mesh *m, int64_t rank)
{
    DH_ASSERT(rank >= 0 && rank < m->ranks, "rank %lld of %lld", (long long)rank,
              (long long)m->ranks);
    dh_coord c;
    c.tp = rank % m->tp;
    rank /= m->tp;
    c.cp = rank % m->cp;
    rank /= m->cp;
    c.dp = rank % m->dp;
    c.pp = rank / m->dp;
    c.ep = c.dp % m->ep;
    c.edp = c.dp / m->ep;
    return c;
}

int64_t dh_mesh_rank(const dh_mesh *m, dh_coord c)
{
    return ((c.pp * m->dp + c.dp) * m->cp + c.cp) * m->tp + c.tp;
}

int64_t dh_mesh_node(const dh_mesh *m, int64_t rank)
{
    return rank / m->ranks_per_node;
}

/* ---- groups ------------------------------------------------------------------------------ */

const char *dh_group_name(dh_group_kind group)
{
    return (unsigned)group < DH_N_GROUPS ? group_rows[group].name : "?";
}

const char *dh_group_doc(dh_group_kind group)
{
    return (unsigned)group < DH_N_GROUPS ? group_rows[group].doc : "?";
}

bool dh_group_varies(dh_group_kind group, int axis)
{
    return group_rows[group].axes >> axis & 1u;
}

typedef struct stage_row {
    dh_group_kind whole, local, cross;
} stage_row;

static const stage_row stage_rows[] = {
#define X(whole, local, cross) {whole, local, cross},
    DH_GROUP_STAGE_LIST(X)
#undef X
};

static const dh_group_stage spread_of[DH_N_GROUPS] = {
#define X(whole, local, cross) [local] = DH_STAGE_LOCAL, [cross] = DH_STAGE_CROSS,
    DH_GROUP_STAGE_LIST(X)
#undef X
        [DH_GROUP_KV] = DH_STAGE_LOCAL,
    [DH_GROUP_DP_CP_SHARE] = DH_STAGE_LOCAL,
    [DH_GROUP_EDP_CP_SHARE] = DH_STAGE_LOCAL,
};

dh_group_stage dh_group_spread(dh_group_kind group)
{
    return spread_of[group];
}

dh_group_kind dh_group_whole(dh_group_kind group)
{
    for (size_t i = 0; i < DH_COUNTOF(stage_rows); i++)
        if (stage_rows[i].local == group || stage_rows[i].cross == group)
            return stage_rows[i].whole;
    return group;
}

bool dh_mesh_cuts_one_axis(const dh_mesh *m)
{
    int64_t stride = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; stride *= axis_size(m, axis++))
        if (m->ranks_per_node % stride == 0 && stride * axis_size(m, axis) % m->ranks_per_node == 0)
            return true;
    return false;
}

/* From the fastest axis on, as long as all faster ones lie whole on a node. */
int64_t dh_mesh_run_on_node(const dh_mesh *m, int axis)
{
    int64_t stride = 1;
    for (int k = 0; k < axis; k++) stride *= axis_size(m, k);
    const int64_t size = axis_size(m, axis), left = m->ranks_per_node / stride;
    if (m->ranks_per_node % stride) return 1;
    if (left % size == 0) return size;
    return size % left == 0 ? left : 1;
}

const char *dh_mesh_group_stages(const dh_mesh *m, dh_group_kind group, dh_group_stages *stages)
{
    const stage_row *row = NULL;
    for (size_t i = 0; i < DH_COUNTOF(stage_rows); i++)
        if (stage_rows[i].whole == group) row = &stage_rows[i];
    if (!row) return "groups of its kind have no stages";
    if (!dh_mesh_cuts_one_axis(m)) return "nodes cut groups into unequal parts";
    if (dh_mesh_group_is_local(m, group, 0)) return "its group is on one node";
    const dh_group_stages made = {.local = row->local,
                                  .cross = row->cross,
                                  .per_node = dh_mesh_group_size(m, row->local),
                                  .n_nodes = dh_mesh_group_size(m, row->cross)};
    if (made.per_node < 2) return "every rank of its group is on a node of its own";
    *stages = made;
    return NULL;
}

const char *dh_mesh_dispatch_stages(const dh_mesh *m, dh_group_stages *stages)
{
    const dh_group_kind group = dh_mesh_expert_group(m);
    if (dh_mesh_group_size(m, group) <= 1) return "every expert is on every rank (parallel.ep)";
    return dh_mesh_group_stages(m, group, stages);
}

/* Whether members take two digits of the axis alone: the lower one, and its mirror image. */
static bool takes_two(dh_group_kind group, int axis)
{
    return axis == DH_MESH_PP && (group == DH_GROUP_EMBED || dh_group_joins_copies(group));
}

/* From the fastest axis of the group on, as many neighbours as share. */
static int64_t share_run(const dh_mesh *m, dh_group_kind group, int axis)
{
    int64_t left = DH_MAX(m->share_ranks, 1), run = 1;
    for (int k = 0; k <= axis; k++) {
        const int64_t size = axis_size(m, k);
        run = 1;
        if (!dh_group_varies(group, k)) continue;
        run = left % size == 0 ? size : size % left == 0 ? left : 1;
        left = left % size == 0 ? left / size : 1;
    }
    return run;
}

int64_t dh_mesh_group_run(const dh_mesh *m, dh_group_kind group, int axis)
{
    if (group == DH_GROUP_DP_CP_SHARE || group == DH_GROUP_EDP_CP_SHARE)
        return share_run(m, group, axis);
    return group == DH_GROUP_KV ? kv_ranks(m) : dh_mesh_run_on_node(m, axis);
}

/* Digits of an axis that the group's members take: all, a run of them, one of each run, or two of
 * the pipeline. */
static int64_t digit_count(const dh_mesh *m, dh_group_kind group, int axis)
{
    const int64_t size = axis_size(m, axis);
    if (takes_two(group, axis)) return DH_MIN(size, 2);
    if (dh_group_spread(group) == DH_STAGE_WHOLE) return size;
    const int64_t run = dh_mesh_group_run(m, group, axis);
    return dh_group_spread(group) == DH_STAGE_LOCAL ? run : size / run;
}

/* Of a digit the part that all members of a stage have in common, as a number below
 * size / digit_count. */
static int64_t common_digit(const dh_mesh *m, dh_group_kind group, int axis, int64_t digit)
{
    if (dh_group_spread(group) == DH_STAGE_WHOLE) return 0;
    const int64_t run = dh_mesh_group_run(m, group, axis);
    return dh_group_spread(group) == DH_STAGE_LOCAL ? digit / run : digit % run;
}

/* The lowest of the digits that the members of the group with this digit take. */
static int64_t lower_digit(const dh_mesh *m, dh_group_kind group, int axis, int64_t digit)
{
    return dh_group_joins_copies(group) ? DH_MIN(digit, axis_size(m, axis) - 1 - digit) : 0;
}

/* own: the digit of any of its members. */
static int64_t digit_at(const dh_mesh *m, dh_group_kind group, int axis, int64_t own, int64_t i)
{
    if (dh_group_spread(group) != DH_STAGE_WHOLE) {
        const int64_t run = dh_mesh_group_run(m, group, axis);
        return dh_group_spread(group) == DH_STAGE_LOCAL ? own / run * run + i : i * run + own % run;
    }
    if (!takes_two(group, axis)) return i;
    const int64_t lower = lower_digit(m, group, axis, own);
    return i ? axis_size(m, axis) - 1 - lower : lower;
}

/* Inverse of digit_at; -1 when no member has the digit. */
static int64_t digit_index(const dh_mesh *m, dh_group_kind group, int axis, int64_t digit)
{
    const int64_t size = axis_size(m, axis);
    if (dh_group_spread(group) != DH_STAGE_WHOLE) {
        const int64_t run = dh_mesh_group_run(m, group, axis);
        return dh_group_spread(group) == DH_STAGE_LOCAL ? digit % run : digit / run;
    }
    if (!takes_two(group, axis) || size == 1) return digit;
    const int64_t lower = lower_digit(m, group, axis, digit), upper = size - 1 - lower;
    if (lower == upper) return -1;
    return digit == lower ? 0 : digit == upper ? 1 : -1;
}

int64_t dh_mesh_group_size(const dh_mesh *m, dh_group_kind group)
{
    int64_t size = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++)
        if (dh_group_varies(group, axis)) size *= digit_count(m, group, axis);
    return size;
}

int64_t dh_mesh_group_id(const dh_mesh *m, dh_group_kind group, int64_t rank)
{
    int64_t id = 0, place = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++) {
        int64_t size = axis_size(m, axis);
        if (!dh_group_varies(group, axis)) {
            id += rank % size * place;
            place *= size;
        } else if (takes_two(group, axis)) { /* the slowest axis: further groups come behind */
            id += lower_digit(m, group, axis, rank % size) * place;
        } else {
            id += common_digit(m, group, axis, rank % size) * place;
            place *= size / digit_count(m, group, axis);
        }
        rank /= size;
    }
    return id;
}

int64_t dh_mesh_group_index(const dh_mesh *m, dh_group_kind group, int64_t rank)
{
    int64_t index = 0, place = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++) {
        int64_t size = axis_size(m, axis);
        if (dh_group_varies(group, axis)) {
            int64_t i = digit_index(m, group, axis, rank % size);
            if (i < 0) return -1;
            index += i * place;
            place *= digit_count(m, group, axis);
        }
        rank /= size;
    }
    return index;
}

int64_t dh_mesh_group_member(const dh_mesh *m, dh_group_kind group, int64_t rank, int64_t i)
{
    DH_ASSERT(i >= 0 && i < dh_mesh_group_size(m, group), "member %lld of %s", (long long)i,
              dh_group_name(group));
    int64_t member = 0, stride = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++) {
        int64_t size = axis_size(m, axis), digit = rank % size;
        if (dh_group_varies(group, axis)) {
            int64_t count = digit_count(m, group, axis);
            digit = digit_at(m, group, axis, digit, i % count);
            i /= count;
        }
        member += digit * stride;
        stride *= size;
        rank /= size;
    }
    return member;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* So many steps on an axis that they pass whole nodes lead to the same place of another one. Where
 * the axis is cut into such runs, a step on any slower axis does too. Members of a cross group are
 * at the same place to begin with. */
int64_t dh_mesh_group_pattern(const dh_mesh *m, dh_group_kind group)
{
    if (dh_group_spread(group) == DH_STAGE_CROSS && dh_mesh_cuts_one_axis(m)) return 1;
    int64_t n = 1, stride = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; stride *= axis_size(m, axis++)) {
        const int64_t run = m->ranks_per_node / common_divisor(m->ranks_per_node, stride);
        const bool is_cut = axis_size(m, axis) % run == 0;
        const int64_t count = digit_count(m, group, axis);
        const bool repeats =
            is_cut && (dh_group_spread(group) != DH_STAGE_LOCAL || count % run == 0);
        if (dh_group_varies(group, axis)) n *= repeats ? DH_MIN(run, count) : count;
        if (is_cut) break;
    }
    return n;
}

/* Members come in rank order, so those of one node are neighbours. */
dh_group_span dh_mesh_group_span(const dh_mesh *m, dh_group_kind group, int64_t rank)
{
    dh_group_span span = {0};
    int64_t n = dh_mesh_group_pattern(m, group);
    if (n < 1) n = 1;
    int64_t last_node = -1, run = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t node = dh_mesh_node(m, dh_mesh_group_member(m, group, rank, i));
        run = node == last_node ? run + 1 : 1;
        if (node != last_node) span.n_nodes++;
        span.max_per_node = DH_MAX(span.max_per_node, run);
        last_node = node;
    }
    span.n_nodes *= dh_mesh_group_size(m, group) / n;
    return span;
}

bool dh_mesh_group_is_local(const dh_mesh *m, dh_group_kind group, int64_t rank)
{
    int64_t first = 0, last = 0, stride = 1;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++) {
        const int64_t size = axis_size(m, axis);
        if (size == 1) continue;
        const int64_t own = rank % size;
        int64_t low = own, high = own;
        if (dh_group_varies(group, axis)) {
            low = digit_at(m, group, axis, own, 0);
            high = digit_at(m, group, axis, own, digit_count(m, group, axis) - 1);
        }
        first += low * stride;
        last += high * stride;
        stride *= size;
        rank /= size;
    }
    return dh_mesh_node(m, first) == dh_mesh_node(m, last);
}
