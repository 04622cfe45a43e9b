/* Why a configuration is not the one. */
#include <stdio.h>

#include "tune/tuner.h"

/* The parts of a step, by the estimate or by a simulation. */
typedef struct items {
    const double *ns, *best_ns;
    const char *const *names;
    int n;
} items;

/* The item that grew most over the best one's; items.n: none. */
static int largest_loss(const items *p, int except, double *ns)
{
    int found = p->n;
    *ns = 0;
    for (int i = 0; i < p->n; i++) {
        const double more = p->ns[i] - p->best_ns[i];
        if (i == except || more <= *ns) continue;
        *ns = more;
        found = i;
    }
    return found;
}

/* TUNING: a second item is named where it is a quarter of the first or more. */
#define WORTH_NAMING 0.25

/* "bubble +3.17 s, compute +1 s"; empty where nothing grew. */
static const char *describe(const items *p, char *buf, size_t cap)
{
    char text[32];
    double first_ns, second_ns;
    const int first = largest_loss(p, p->n, &first_ns);
    const int second = largest_loss(p, first, &second_ns);
    *buf = '\0';
    if (first == p->n) return buf;
    const int n =
        snprintf(buf, cap, "%s +%s", p->names[first], dh_format_ns(text, sizeof text, first_ns));
    if (second < p->n && second_ns >= WORTH_NAMING * first_ns)
        snprintf(buf + n, cap - (size_t)n, ", %s +%s", p->names[second],
                 dh_format_ns(text, sizeof text, second_ns));
    return buf;
}

/* Is the largest loss what tensor parallelism communicates, over more nodes than the best does? */
static const char *spanning(const items *p, bool simulated, const dh_tune_row *row,
                            const dh_tune_row *best, int64_t node_devices)
{
    double ns;
    const int item = simulated ? (int)DH_TUNE_SIMULATED_EXPOSED : (int)DH_TUNE_ITEM_TP;
    const bool more = node_devices > 0 && row->config.at[DH_TUNE_TP] > node_devices &&
                      best->config.at[DH_TUNE_TP] <= node_devices;
    return more && largest_loss(p, p->n, &ns) == item ? " (tp spans nodes)" : "";
}

/* Simulation beside simulation, or estimate beside estimate: never one beside the other. */
const char *tune_why_slower(dh_arena *arena, const dh_tune_row *row, const dh_tune_row *best,
                            int64_t node_devices)
{
    const char *names[DH_MAX((int)DH_N_TUNE_ITEM, (int)DH_N_TUNE_SIMULATED)];
    char text[192];
    const bool simulated = row->simulated_ns > 0 && best->simulated_ns > 0;
    items p = {row->item_ns, best->item_ns, names, DH_N_TUNE_ITEM};
    if (simulated)
        p = (items){row->simulated_item_ns, best->simulated_item_ns, names, DH_N_TUNE_SIMULATED};
    for (int i = 0; i < p.n; i++)
        names[i] = simulated ? dh_tune_simulated_name((dh_tune_simulated)i)
                             : dh_tune_item_name((dh_tune_item)i);
    if (!*describe(&p, text, sizeof text))
        return dh_arena_strdup(arena, simulated ? "as good" : "as good by the estimate");
    return dh_arena_printf(arena, "%s%s%s",
                           simulated || best->simulated_ns == 0 ? "" : "by the estimates of both: ",
                           text, spanning(&p, simulated, row, best, node_devices));
}

const char *tune_why_too_large(dh_arena *arena, const dh_tune_memory *m, double limit)
{
    char peak[32], room[32], weights[32], gradients[32], optimizer[32], activations[32];
    dh_format_bytes(peak, sizeof peak, (double)m->peak_bytes);
    dh_format_bytes(room, sizeof room, limit);
    dh_format_bytes(weights, sizeof weights, (double)m->parameters);
    dh_format_bytes(gradients, sizeof gradients, (double)m->gradients);
    dh_format_bytes(optimizer, sizeof optimizer, (double)m->optimizer);
    dh_format_bytes(activations, sizeof activations, (double)m->activations);
    return dh_arena_printf(arena,
                           "does not fit: stage %lld needs %s of %s (parameters %s, gradients %s, "
                           "optimizer %s, activations %s)",
                           (long long)m->stage, peak, room, weights, gradients, optimizer,
                           activations);
}
