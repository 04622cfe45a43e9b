/* A binary heap. */
#include "sim/heap.h"

static bool precedes(const dh_sim_event *a, const dh_sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->sequence < b->sequence;
}

bool dh_sim_heap_push(dh_sim_heap *heap, int64_t at_ns, uint32_t lane, uint32_t version)
{
    const dh_sim_event e = {at_ns, heap->n_pushed++, lane, version};
    if (!dh_vec_push(&heap->events, e)) return false;
    dh_sim_event *at = heap->events.at;
    size_t i = heap->events.n - 1;
    for (; i > 0 && precedes(&e, &at[(i - 1) / 2]); i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
    at[i] = e;
    return true;
}

dh_sim_event dh_sim_heap_pop(dh_sim_heap *heap)
{
    dh_sim_event *at = heap->events.at;
    const dh_sim_event top = at[0], last = at[--heap->events.n];
    const size_t n = heap->events.n;
    size_t i = 0;
    for (size_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && precedes(&at[child + 1], &at[child])) child++;
        if (precedes(&last, &at[child])) break;
        at[i] = at[child];
        i = child;
    }
    at[i] = last;
    return top;
}
