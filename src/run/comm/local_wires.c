/* Sharing of paced wires. See local_wires.h. */
#include "local_wires.h"

#include <stdlib.h>
#include <string.h>

bool local_wires_init(local_wires *w, int n_ranks)
{
    *w = (local_wires){.n_wires = (size_t)n_ranks * DH_N_ENGINE * 2};
    w->n_on = calloc(w->n_wires, sizeof *w->n_on);
    return w->n_on != NULL;
}

void local_wires_fini(local_wires *w)
{
    dh_vec_fini(&w->flows);
    dh_vec_fini(&w->ahead);
    free(w->n_on);
}

/* ---- speeds ------------------------------------------------------------------------------- */

enum { OUT, IN };

static int *n_on(local_wires *w, const local_way *way, int rank, int direction)
{
    return &w->n_on[(rank * DH_N_ENGINE + (int)way->wire) * 2 + direction];
}

static void count(local_wires *w, const local_way *way)
{
    for (int i = 0; i < way->n_out; i++) ++*n_on(w, way, way->out[i], OUT);
    for (int i = 0; i < way->n_in; i++) ++*n_on(w, way, way->in[i], IN);
}

static int most_on(local_wires *w, const local_way *way)
{
    int most = 1;
    for (int i = 0; i < way->n_out; i++) most = DH_MAX(most, *n_on(w, way, way->out[i], OUT));
    for (int i = 0; i < way->n_in; i++) most = DH_MAX(most, *n_on(w, way, way->in[i], IN));
    return most;
}

static void set_speeds(local_wires *w, local_flows *flows)
{
    memset(w->n_on, 0, w->n_wires * sizeof *w->n_on);
    for (size_t i = 0; i < flows->n; i++)
        if (!flows->at[i].ended) count(w, &flows->at[i].way);
    for (size_t i = 0; i < flows->n; i++)
        if (!flows->at[i].ended) flows->at[i].flow.speed = 1.0 / most_on(w, &flows->at[i].way);
}

/* ---- time --------------------------------------------------------------------------------- */

/* End of the flow that ends first; INT64_MAX: none is under way. */
static int64_t next_end(const local_flows *flows, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < flows->n; i++)
        if (!flows->at[i].ended)
            next = DH_MIN(next, now_ns + (int64_t)llround(dh_flow_needs(&flows->at[i].flow)));
    return next;
}

static void pass(local_flows *flows, int64_t now_ns, int64_t ns)
{
    for (size_t i = 0; i < flows->n; i++) {
        local_flow *f = &flows->at[i];
        if (f->ended) continue;
        f->ended = llround(dh_flow_needs(&f->flow)) <= ns;
        f->end_ns = now_ns + ns;
        dh_flow_pass(&f->flow, (double)ns);
    }
}

/* One end further, or to to_ns, whatever comes first; returns the time then. */
static int64_t step(local_wires *w, local_flows *flows, int64_t now_ns, int64_t to_ns)
{
    set_speeds(w, flows);
    const int64_t next = DH_MIN(next_end(flows, now_ns), to_ns);
    pass(flows, now_ns, next - now_ns);
    return next;
}

static void forget(local_wires *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->flows.n; i++) {
        const local_flow f = w->flows.at[i];
        if (!f.ended || f.end_ns + f.keep_ns >= w->now_ns) w->flows.at[n++] = f;
    }
    w->flows.n = n;
}

static void advance(local_wires *w, int64_t to_ns)
{
    while (w->now_ns < to_ns) w->now_ns = step(w, &w->flows, w->now_ns, to_ns);
    forget(w);
}

/* ---- entries ------------------------------------------------------------------------------ */

local_ticket local_wires_begin(local_wires *w, local_way way, int64_t from_ns, int64_t ns,
                               int64_t keep_ns)
{
    advance(w, from_ns);
    const local_flow f = {.number = w->n_begun + 1,
                          .way = way,
                          .flow = {.left_ns = (double)ns},
                          .all_ns = (double)ns,
                          .ended = ns <= 0,
                          .end_ns = w->now_ns,
                          .keep_ns = keep_ns};
    if (!dh_vec_reserve(&w->ahead, w->flows.n + 1) || !dh_vec_push(&w->flows, f))
        return (local_ticket){0, w->now_ns + ns};
    return (local_ticket){++w->n_begun, 0};
}

static const local_flow *find(const local_flows *flows, uint64_t number)
{
    for (size_t i = 0; i < flows->n; i++)
        if (flows->at[i].number == number) return &flows->at[i];
    return NULL;
}

int64_t local_wires_when(local_wires *w, local_ticket ticket, double share, int64_t now_ns)
{
    if (ticket.number == 0) return ticket.end_ns;
    advance(w, now_ns);
    if (!find(&w->flows, ticket.number)) return 0;
    memcpy(w->ahead.at, w->flows.at, w->flows.n * sizeof *w->flows.at);
    w->ahead.n = w->flows.n;
    const local_flow *f = find(&w->ahead, ticket.number);
    const double left_ns = f->all_ns * (1 - share);
    int64_t at = w->now_ns;
    while (!f->ended && f->flow.left_ns > left_ns) {
        const double before_ns = f->flow.left_ns;
        const int64_t next = step(w, &w->ahead, at, INT64_MAX);
        if (share < 1 && f->flow.left_ns <= left_ns)
            return at + (int64_t)llround((before_ns - left_ns) / f->flow.speed);
        at = next;
    }
    return f->ended ? f->end_ns : at;
}
