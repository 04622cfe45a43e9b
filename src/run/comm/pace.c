/* Paced links: how long a call keeps wires busy, by the formulas in comm.h.
 * Bandwidth terms are those of ring algorithms, which are bandwidth-optimal, so
 * an emulated link is never slower than a well-used real one of its figures. */
#include "impl.h"

bool dh_comm_pace_on(dh_comm_pace pace)
{
    return pace.gbps > 0 || pace.latency_us > 0;
}

int64_t dh_comm_bytes_ns(int64_t wire_bytes, dh_comm_pace pace)
{
    return pace.gbps > 0 ? (int64_t)((double)wire_bytes * 8 / pace.gbps) : 0; /* Gbit/s = bit/ns */
}

static int ring_steps(dh_comm_kind kind, int n)
{
#define X(code, name, steps, wire) [code] = steps,
    const int table[DH_N_COMM_KIND] = {DH_COMM_KIND_LIST(X)};
#undef X
    return table[kind];
}

int64_t dh_comm_latency_ns(dh_comm_kind kind, int n, dh_comm_pace pace)
{
    return (int64_t)(ring_steps(kind, n) * pace.latency_us * 1000);
}

/* Slices of `total` over n ranks, the smallest being `least`. */
static int64_t ring_units(dh_comm_kind kind, int n, int64_t total, int64_t least)
{
#define X(code, name, steps, wire) [code] = wire,
    const int64_t table[DH_N_COMM_KIND] = {DH_COMM_KIND_LIST(X)};
#undef X
    return table[kind];
}

static int64_t least_part(int n, const dh_comm_part *parts)
{
    int64_t least = parts[0].n;
    for (int j = 1; j < n; j++) least = DH_MIN(least, parts[j].n);
    return least;
}

static int64_t foreign_elements(int n, int me, const dh_comm_part *parts)
{
    int64_t sum = 0;
    for (int j = 0; j < n; j++) sum += j == me ? 0 : parts[j].n;
    return sum;
}

static int64_t busiest_all_to_all(int n, const dh_comm_call *const *calls)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        most = DH_MAX(most, foreign_elements(n, i, calls[i]->send_parts));
        most = DH_MAX(most, foreign_elements(n, i, calls[i]->recv_parts));
    }
    return most;
}

int64_t dh_comm_wire_bytes(int n, const dh_comm_call *const *calls)
{
    const dh_comm_head *head = &calls[0]->head;
    int64_t item = (int64_t)dh_dtype_bytes((dh_dtype)head->dtype);
    if (head->kind == DH_COMM_ALL_TO_ALL) return busiest_all_to_all(n, calls) * item;
    int64_t least = calls[0]->send_parts ? least_part(n, calls[0]->send_parts) : 0;
    return ring_units((dh_comm_kind)head->kind, n, head->count, least) * item;
}

int64_t dh_comm_bytes_of(int n, int me, const dh_comm_call *call)
{
    const dh_comm_head *head = &call->head;
    const int64_t item = (int64_t)dh_dtype_bytes((dh_dtype)head->dtype);
    if (head->kind == DH_COMM_ALL_TO_ALL) return foreign_elements(n, me, call->send_parts) * item;
    const int64_t least = call->send_parts ? least_part(n, call->send_parts) : 0;
    return ring_units((dh_comm_kind)head->kind, n, head->count, least) * item;
}

int64_t dh_comm_paced_ns(dh_comm_kind kind, int n, int64_t bytes, dh_comm_pace pace)
{
    return dh_comm_bytes_ns(ring_units(kind, n, bytes, bytes / n), pace) +
           dh_comm_latency_ns(kind, n, pace);
}
