/* Lengths that groups of documents may end at (length_cuts.h).
 *
 * A document costs what the end of its group asks for: a mesh for rows of that length. The end is
 * to be near, on a scale of octaves, as halves are, and for many tokens rather than many
 * documents. */
#include "tune/length_cuts.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "data/groups.h"

enum { SHORTEST_CUT = 256 };

/* TUNING: not measured; a cut is then at most 3 % of the longest length above its documents. The
 * step is a power of two, which degrees of meshes divide. */
enum { N_STEPS = 32, SHORTEST_STEP = 64, MOST_BINS = 2 * N_STEPS };

/* Tokens of documents by length. at[k] is for lengths above k * step, up to (k + 1) * step. */
typedef struct density {
    int64_t step, n;
    double at[MOST_BINS];
} density;

typedef struct cut_list {
    int64_t *at; /* rising */
    size_t n;
} cut_list;

static void find_halves(int64_t seq_len, cut_list *cuts)
{
    int64_t halves[DH_LENGTH_HALVES] = {0};
    size_t n = 0;
    for (int64_t len = seq_len; n < DH_LENGTH_HALVES; len /= 2) {
        if (n > 0 && (len < SHORTEST_CUT || len * 2 != halves[n - 1])) break;
        halves[n++] = len;
    }
    for (size_t i = 0; i < n; i++) cuts->at[i] = halves[n - 1 - i];
    cuts->n = n;
}

static dh_status count_tokens(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len, int64_t n_rows,
                              density *d)
{
    dh_length_groups all;
    *d = (density){.step = SHORTEST_STEP};
    while (d->step * 2 * N_STEPS <= seq_len) d->step *= 2;
    d->n = DH_MIN((seq_len + d->step - 1) / d->step, MOST_BINS);
    dh_status st = dh_length_groups_make(ctx, ds, 0, n_rows, &seq_len, 1, &all);
    for (size_t i = 0; st == DH_OK && i < all.rows[0].pieces.n; i++) {
        const int64_t n = all.rows[0].pieces.at[i].n;
        d->at[DH_MIN(DH_MAX(n - 1, 0) / d->step, d->n - 1)] += (double)n;
    }
    dh_length_groups_fini(&all);
    return st;
}

/* The end of the group that documents of a length are in. */
static int64_t end_of(const cut_list *cuts, int64_t length)
{
    size_t i = 0;
    while (i + 1 < cuts->n && length > cuts->at[i]) i++;
    return cuts->at[i];
}

/* By how many octaves another cut would bring the end nearer, over tokens: for the documents of its
 * group that are no longer. */
static double gain_of(const cut_list *cuts, const density *d, int64_t cut)
{
    const int64_t end = end_of(cuts, cut);
    double tokens = 0;
    for (int64_t k = 0; (k + 1) * d->step <= cut; k++)
        if (end_of(cuts, (k + 1) * d->step) == end) tokens += d->at[k];
    return tokens * log2((double)end / (double)cut);
}

static void insert(cut_list *cuts, int64_t cut)
{
    size_t i = cuts->n++;
    for (; i > 0 && cuts->at[i - 1] > cut; i--) cuts->at[i] = cuts->at[i - 1];
    cuts->at[i] = cut;
}

/* That which brings most, 0 where none brings anything; not below the shortest half. */
static int64_t best_cut(const cut_list *cuts, const density *d, int64_t seq_len)
{
    int64_t best = 0;
    double most = 0;
    for (int64_t cut = d->step; cut < seq_len; cut += d->step) {
        const double gain = cut > cuts->at[0] ? gain_of(cuts, d, cut) : 0;
        if (gain <= most) continue;
        most = gain;
        best = cut;
    }
    return best;
}

dh_status dh_length_cuts_find(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len, int64_t n_rows,
                              int64_t cuts[DH_LENGTH_CUTS], size_t *n_cuts)
{
    density d;
    cut_list list = {.at = cuts};
    find_halves(seq_len, &list);
    DH_TRY(count_tokens(ctx, ds, seq_len, n_rows, &d));
    while (list.n < DH_LENGTH_CUTS) {
        const int64_t cut = best_cut(&list, &d, seq_len);
        if (cut == 0) break;
        insert(&list, cut);
    }
    *n_cuts = list.n;
    return DH_OK;
}
