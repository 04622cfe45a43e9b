/* Why a configuration is not the one. */
#include <stdio.h>

#include "tune/tuner.h"

static const char *seconds(char *buf, size_t cap, double ns)
{
    return dh_format_ns(buf, cap, ns);
}

/* The part that grew most over the best one's; DH_N_TUNE_PART: none. */
static int largest_loss(const dh_tune_row *row, const dh_tune_row *best, int except, double *ns)
{
    int found = DH_N_TUNE_PART;
    *ns = 0;
    for (int p = 0; p < DH_N_TUNE_PART; p++) {
        const double more = row->part_ns[p] - best->part_ns[p];
        if (p == except || more <= *ns) continue;
        *ns = more;
        found = p;
    }
    return found;
}

/* TUNING: a second part is named where it is a quarter of the first or more. */
#define WORTH_NAMING 0.25

const char *tune_why_slower(dh_arena *arena, const dh_tune_row *row, const dh_tune_row *best)
{
    char first_text[32], second_text[32];
    double first_ns, second_ns;
    const int first = largest_loss(row, best, DH_N_TUNE_PART, &first_ns);
    const int second = largest_loss(row, best, first, &second_ns);
    if (first == DH_N_TUNE_PART) return dh_arena_strdup(arena, "as good by the estimate");
    seconds(first_text, sizeof first_text, first_ns);
    if (second == DH_N_TUNE_PART || second_ns < WORTH_NAMING * first_ns)
        return dh_arena_printf(arena, "%s +%s", dh_tune_part_name((dh_tune_part)first), first_text);
    return dh_arena_printf(arena, "%s +%s, %s +%s", dh_tune_part_name((dh_tune_part)first),
                           first_text, dh_tune_part_name((dh_tune_part)second),
                           seconds(second_text, sizeof second_text, second_ns));
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
