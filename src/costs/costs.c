/* Times of pairs from speeds, and back. */
#include "costs/costs.h"

#include <math.h>

#include "base/flow.h"

static int64_t whole_ns(double ns)
{
    return (int64_t)llround(DH_MIN(DH_MAX(ns, 1.0), (double)DH_PAIR_MAX_NS));
}

dh_pair_time dh_costs_together(const dh_costs *costs, const dh_cost_op *a, const dh_cost_op *b)
{
    const dh_op_time ta = costs->solo(costs->self, a), tb = costs->solo(costs->self, b);
    const dh_pair_source source = DH_MAX(ta.source, tb.source);
    if (dh_cost_stream(a) == dh_cost_stream(b))
        return (dh_pair_time){whole_ns(ta.ns), whole_ns(ta.ns + tb.ns), source};
    const dh_op_rates r = costs->beside(costs->self, a, b);
    double end[2];
    dh_flows_together((dh_flow[]){{ta.ns, r.a}, {tb.ns, r.b}}, end);
    return (dh_pair_time){whole_ns(end[0]), whole_ns(end[1]), r.source};
}

dh_op_rates dh_rates_from_times(double solo_a_ns, double solo_b_ns, double a_ns, double b_ns,
                                dh_pair_source source)
{
    double speed[2];
    if (DH_MIN(a_ns, b_ns) <= 0) return (dh_op_rates){1, 1, source};
    dh_flow_speeds((double[]){solo_a_ns, solo_b_ns}, (double[]){a_ns, b_ns}, speed);
    return (dh_op_rates){speed[0], speed[1], source};
}
