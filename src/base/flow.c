/* Two flows from beginning to end, and back. */
#include "base/flow.h"

void dh_flows_together(dh_flow flows[2], double end_ns[2])
{
    dh_flows_settle(flows, 2);
    const double first_ns = dh_flow_pair_step(&flows[0], &flows[1]);
    for (int i = 0; i < 2; i++) end_ns[i] = first_ns + flows[i].left_ns;
}

/* The one that ends first ran beside the other all its time; the other did what it had not done
 * by then alone. */
void dh_flow_speeds(const double solo_ns[2], const double end_ns[2], double speed[2])
{
    const int first = end_ns[0] <= end_ns[1] ? 0 : 1, other = 1 - first;
    const double together_ns = end_ns[first];
    speed[first] = solo_ns[first] / together_ns;
    speed[other] = (solo_ns[other] - (end_ns[other] - together_ns)) / together_ns;
}
