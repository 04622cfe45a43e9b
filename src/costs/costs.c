/* Times of pairs from speeds, and back. */
#include "dhelix/costs.h"

#include <math.h>

int dh_cost_stream(const dh_cost_op *op)
{
    if (dh_op_info_of(op->op->type)->resource != DH_RES_COMM) return 0;
    const dh_group_kind group = (dh_group_kind)op->op->group;
    return dh_mesh_group_is_local(op->mesh, group, op->rank) ? 1 : 2;
}

static int64_t whole_ns(double ns)
{
    return (int64_t)llround(DH_MIN(DH_MAX(ns, 1.0), (double)DH_PAIR_MAX_NS));
}

/* One runs at its rate until the other ends, then alone. A rate of 0 or less: not at all
 * until then, and what it lost is made good afterwards. */
dh_pair_time dh_costs_together(const dh_costs *costs, const dh_cost_op *a, const dh_cost_op *b)
{
    const dh_op_time ta = costs->solo(costs->self, a), tb = costs->solo(costs->self, b);
    const dh_pair_source source = DH_MAX(ta.source, tb.source);
    if (dh_cost_stream(a) == dh_cost_stream(b))
        return (dh_pair_time){whole_ns(ta.ns), whole_ns(ta.ns + tb.ns), source};
    const dh_op_rates r = costs->beside(costs->self, a, b);
    const double end_a = r.a > 0 ? ta.ns / r.a : INFINITY, end_b = r.b > 0 ? tb.ns / r.b : INFINITY;
    const double first = DH_MIN(end_a, end_b);
    if (isinf(first)) return (dh_pair_time){whole_ns(ta.ns), whole_ns(ta.ns + tb.ns), source};
    return end_a <= end_b
               ? (dh_pair_time){whole_ns(end_a), whole_ns(first + tb.ns - first * r.b), r.source}
               : (dh_pair_time){whole_ns(first + ta.ns - first * r.a), whole_ns(end_b), r.source};
}

dh_op_rates dh_rates_from_times(double solo_a_ns, double solo_b_ns, double a_ns, double b_ns,
                                dh_pair_source source)
{
    const double first = DH_MIN(a_ns, b_ns);
    if (first <= 0) return (dh_op_rates){1, 1, source};
    if (a_ns <= b_ns)
        return (dh_op_rates){solo_a_ns / first, (solo_b_ns - (b_ns - first)) / first, source};
    return (dh_op_rates){(solo_a_ns - (a_ns - first)) / first, solo_b_ns / first, source};
}
