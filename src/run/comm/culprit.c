/* The ranks that hold up one that has waited too long, the teller. It waits for members of its group,
 * these may wait for others, and so on. The chain is followed to ranks that wait for nobody. They are
 * to blame, and every rank between is only the messenger. The teller is to blame, too, where the
 * chain comes back to it: another of its streams may wait for somebody else, or compute, or
 * hang. */
#include "impl.h"

#include <stdio.h>
#include <stdlib.h>

enum { NOBODY = -1, NOT_SEEN = -2 };

typedef struct search {
    const dh_comm_state *states;
    int n, teller;
    int *order; /* [n] ranks as they were found, breadth first: chains are shortest */
    int *by;    /* [n] whom each holds up; NOBODY: the teller; NOT_SEEN */
    int n_found;
} search;

static void find(search *s, int rank, int by)
{
    if (s->by[rank] != NOT_SEEN) return;
    s->by[rank] = by;
    s->order[s->n_found++] = rank;
}

static void search_all(search *s, const bool *missing)
{
    for (int r = 0; r < s->n; r++) s->by[r] = NOT_SEEN;
    for (int r = 0; r < s->n; r++)
        if (missing[r]) find(s, r, NOBODY);
    for (int i = 0; i < s->n_found; i++) {
        const dh_comm_state *state = &s->states[s->order[i]];
        for (int k = 0; k < state->n_awaited; k++) find(s, state->awaited[k], s->order[i]);
    }
}

/* The teller too, where a chain comes back to it: one of its streams waits, and another is inside an
 * instruction that does not. */
static bool is_to_blame(const search *s, int rank)
{
    const dh_comm_state *state = &s->states[rank];
    return state->n_awaited == 0 && (rank != s->teller || state->waiting_streams != 0);
}

static void print_rank(const search *s, int rank, dh_str *out)
{
    dh_str_printf(out, " rank %d (%s)", rank, s->states[rank].text);
}

static int chain_length(const search *s, int rank)
{
    int n = 0;
    for (; rank != NOBODY; rank = s->by[rank]) n++;
    return n;
}

/* From one whom the teller waits for to `rank`, the at-th of the chain. Of a long one the
 * beginning and the end: the message has room for them, and they say what is to be done. */
static void print_chain(const search *s, int rank, int at, int length, dh_str *out)
{
    enum { HEAD = 3, TAIL = 2 };
    if (at > 0) print_chain(s, s->by[rank], at - 1, length, out);
    if (at > 0 && (at <= HEAD || at >= length - TAIL)) dh_str_printf(out, ", for want of");
    if (at < HEAD || at >= length - TAIL)
        print_rank(s, rank, out);
    else if (at == HEAD)
        dh_str_printf(out, " %d more, one after the other", length - HEAD - TAIL);
}

static void print_culprits(const search *s, dh_str *out)
{
    enum { MOST_TOLD = 4 };
    int n_told = 0;
    for (int i = 0; i < s->n_found; i++) {
        if (!is_to_blame(s, s->order[i])) continue;
        if (n_told++ >= MOST_TOLD) continue;
        if (n_told > 1) dh_str_printf(out, ", and");
        const int length = chain_length(s, s->order[i]);
        print_chain(s, s->order[i], length - 1, length, out);
    }
    if (n_told > MOST_TOLD) dh_str_printf(out, ", and %d more", n_told - MOST_TOLD);
    if (n_told > 0) return;
    for (int i = 0; i < s->n_found; i++)
        if (s->order[i] != s->teller && n_told++ < MOST_TOLD) print_rank(s, s->order[i], out);
    dh_str_printf(out, "%s; they wait for one another", n_told > MOST_TOLD ? " ..." : "");
}

void dh_comm_print_culprits(const dh_comm_state *states, int n, int teller, const bool *missing,
                            bool *lost, dh_str *out)
{
    search s = {.states = states, .n = n, .teller = teller};
    s.order = calloc((size_t)n, sizeof *s.order);
    s.by = calloc((size_t)n, sizeof *s.by);
    if (s.order && s.by) {
        search_all(&s, missing);
        print_culprits(&s, out);
        for (int r = 0; lost && r < n; r++) lost[r] = false;
        for (int i = 0; lost && i < s.n_found; i++) lost[s.order[i]] = is_to_blame(&s, s.order[i]);
    }
    free(s.order);
    free(s.by);
}

/* ---- states ---------------------------------------------------------------------------------- */

void dh_comm_state_begin(dh_comm_state *state)
{
    *state = (dh_comm_state){.text = "no call yet"};
}

void dh_comm_state_wait(dh_comm_state *state, int stream, const char *text)
{
    const size_t used = state->waits ? strlen(state->text) : 0;
    snprintf(state->text + used, sizeof state->text - used, "%s%s",
             state->waits ? " and in " : "waiting in ", text);
    state->waits = true;
    if (stream < 32) state->waiting_streams |= UINT32_C(1) << stream;
}

void dh_comm_state_await(dh_comm_state *state, int rank)
{
    for (int i = 0; i < state->n_awaited; i++)
        if (state->awaited[i] == rank) return;
    if (state->n_awaited < DH_COMM_MOST_AWAITED) state->awaited[state->n_awaited++] = rank;
}

bool dh_comm_state_end(dh_comm_state *state, uint32_t running)
{
    if ((running & ~state->waiting_streams) == 0) return state->waits;
    snprintf(state->text, sizeof state->text, "computing");
    state->waits = false;
    state->n_awaited = 0;
    return false;
}
