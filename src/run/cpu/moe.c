/* Mixture of experts: the router (HF Mixtral's arithmetic), the order of tokens by
 * expert, and moving rows into and out of that order. Rows are few and experts
 * fewer: plain loops, except for the row copies. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <math.h>
#include <string.h>

/* ---- router ---------------------------------------------------------------------------- */

static void softmax(dh_dtype dtype, int64_t E, const void *logits, float *probs)
{
    float max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) max = fmaxf(max, element(dtype, logits, e));
    for (int64_t e = 0; e < E; e++) sum += probs[e] = expf(element(dtype, logits, e) - max);
    for (int64_t e = 0; e < E; e++) probs[e] /= sum;
}

static bool is_chosen(const int32_t *experts, int64_t n, int64_t e)
{
    for (int64_t j = 0; j < n; j++)
        if (experts[j] == e) return true;
    return false;
}

static void choose(int64_t E, int64_t top_k, const float *probs, int32_t *experts, float *weights)
{
    float sum = 0;
    for (int64_t j = 0; j < top_k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++)
            if (!is_chosen(experts, j, e) && (best < 0 || probs[e] > probs[best])) best = e;
        experts[j] = (int32_t)best;
        sum += probs[best];
    }
    for (int64_t j = 0; j < top_k; j++) weights[j] = probs[experts[j]] / sum;
}

void dh_k_router_fwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const void *logits,
                     float *probs, int32_t *experts, float *weights)
{
#pragma omp parallel for schedule(static) if (N * E >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        softmax(dtype, E, const_at(dtype, logits, n * E), probs + n * E);
        choose(E, top_k, probs + n * E, experts + n * top_k, weights + n * top_k);
    }
}

void dh_k_router_plain(int64_t N, int64_t E, int64_t top_k, const float *probs,
                       const int32_t *experts, float *weights)
{
    for (int64_t i = 0; i < N * top_k; i++) weights[i] = probs[i / top_k * E + experts[i]];
}

void dh_k_router_deal(int64_t N, int64_t E, int64_t top_k, int32_t *experts)
{
    for (int64_t i = 0; i < N * top_k; i++) experts[i] = (int32_t)(i % E);
}

/* Gradient of one row's probability of expert e. With w_j = p_j / s, s the sum over
 * the chosen: dL/dp_j = (dw_j - sum_i dw_i w_i) / s. */
static double prob_gradient(int64_t top_k, int64_t e, const int32_t *experts, const float *dweights,
                            double mean, double sum, double aux)
{
    for (int64_t j = 0; j < top_k; j++)
        if (experts[j] == e) return (dweights[j] - mean) / sum + aux;
    return aux;
}

/* aux_factor * counts[e] = gradient of the balancing loss by any row's p_e. */
static void router_bwd_row(dh_dtype dtype, int64_t E, int64_t top_k, const float *probs,
                           const int32_t *experts, const float *weights, const float *dweights,
                           const double *counts, double aux_factor, void *dlogits)
{
    double mean = 0, sum = 0, dot = 0;
    for (int64_t j = 0; j < top_k; j++) {
        mean += (double)dweights[j] * weights[j];
        sum += probs[experts[j]];
    }
    for (int64_t e = 0; e < E; e++)
        dot += probs[e] *
               prob_gradient(top_k, e, experts, dweights, mean, sum, aux_factor * counts[e]);
    for (int64_t e = 0; e < E; e++) {
        const double g =
            prob_gradient(top_k, e, experts, dweights, mean, sum, aux_factor * counts[e]);
        set_element(dtype, dlogits, e, (float)(probs[e] * (g - dot)));
    }
}

void dh_k_router_bwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const float *probs,
                     const int32_t *experts, const float *weights, const float *dweights,
                     const double *counts, int64_t rows, double aux_coef, void *dlogits)
{
    const double aux_factor = aux_coef * (double)E / ((double)rows * (double)rows);
#pragma omp parallel for schedule(static) if (N * E >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        router_bwd_row(dtype, E, top_k, probs + n * E, experts + n * top_k, weights + n * top_k,
                       dweights + n * top_k, counts, aux_factor, at(dtype, dlogits, n * E));
}

/* dL/dp_j = dw_j: as above with sum 1 and mean 0. */
static void plain_bwd_row(dh_dtype dtype, int64_t E, int64_t top_k, const float *probs,
                          const int32_t *experts, const float *dweights, const double *counts,
                          double aux_factor, void *dlogits)
{
    double dot = 0;
    for (int64_t e = 0; e < E; e++)
        dot += probs[e] * prob_gradient(top_k, e, experts, dweights, 0, 1, aux_factor * counts[e]);
    for (int64_t e = 0; e < E; e++)
        set_element(dtype, dlogits, e,
                    (float)(probs[e] * (prob_gradient(top_k, e, experts, dweights, 0, 1,
                                                      aux_factor * counts[e]) -
                                        dot)));
}

void dh_k_router_plain_bwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const float *probs,
                           const int32_t *experts, const float *dweights, const double *counts,
                           int64_t rows, double aux_coef, void *dlogits)
{
    const double aux_factor = aux_coef * (double)E / ((double)rows * (double)rows);
#pragma omp parallel for schedule(static) if (N * E >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        plain_bwd_row(dtype, E, top_k, probs + n * E, experts + n * top_k, dweights + n * top_k,
                      counts, aux_factor, at(dtype, dlogits, n * E));
}

/* ---- sparsemixer ----------------------------------------------------------------------- */

enum { MIXED = 2 }; /* experts of a token */

/* A row's softmax over logits near `max`, without the expert `other` (-1: with all). */
typedef struct near_row {
    dh_dtype dtype;
    const void *logits;
    int64_t E, other, best; /* best: the expert with the largest logit */
    float max, threshold;
    double sum; /* of exp(logit - max) over the near ones */
} near_row;

static double near_exp(const near_row *r, int64_t e)
{
    const float s = element(r->dtype, r->logits, e);
    const bool far = r->max - s > r->threshold * fmaxf(fabsf(s), r->max);
    return e == r->other || far ? 0 : exp((double)s - (double)r->max);
}

static near_row near_of(dh_dtype dtype, int64_t E, double jitter, const void *logits, int64_t other)
{
    near_row r = {dtype, logits, E, other, -1, -INFINITY, (float)(2 * jitter), 0};
    for (int64_t e = 0; e < E; e++)
        if (e != other && (r.best < 0 || element(dtype, logits, e) > r.max)) {
            r.best = e;
            r.max = element(dtype, logits, e);
        }
    for (int64_t e = 0; e < E; e++) r.sum += near_exp(&r, e);
    return r;
}

void dh_k_router_mix_fwd(dh_dtype dtype, int64_t N, int64_t E, double jitter, const void *logits,
                         float *probs, int32_t *experts, float *weights)
{
#pragma omp parallel for schedule(static) if (N * E >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        int64_t other = -1;
        softmax(dtype, E, const_at(dtype, logits, n * E), probs + n * E);
        for (int64_t j = 0; j < MIXED; j++) {
            const near_row r = near_of(dtype, E, jitter, const_at(dtype, logits, n * E), other);
            other = r.best;
            experts[n * MIXED + j] = (int32_t)r.best;
            weights[n * MIXED + j] = (float)(near_exp(&r, r.best) / r.sum);
        }
    }
}

/* Of a weight w that is p(own): dL/dlogit_e = dw w ([e is own] - p(e)). */
static double mix_gradient(const near_row *r, int64_t own, float dweight, int64_t e)
{
    const double w = near_exp(r, own) / r->sum;
    return (double)dweight * w * ((e == own ? 1 : 0) - near_exp(r, e) / r->sum);
}

void dh_k_router_mix_bwd(dh_dtype dtype, int64_t N, int64_t E, double jitter, const void *logits,
                         const float *probs, const int32_t *experts, const float *dweights,
                         const double *counts, int64_t rows, double aux_coef, void *dlogits)
{
    const double aux_factor = aux_coef * (double)E / ((double)rows * (double)rows);
#pragma omp parallel for schedule(static) if (N * E >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        const int32_t *own = experts + n * MIXED;
        const void *row = const_at(dtype, logits, n * E);
        const near_row first = near_of(dtype, E, jitter, row, -1),
                       second = near_of(dtype, E, jitter, row, own[0]);
        const float *dw = dweights + n * MIXED, *p = probs + n * E;
        double dot = 0;
        for (int64_t e = 0; e < E; e++) dot += p[e] * (aux_factor * counts[e]);
        for (int64_t e = 0; e < E; e++)
            set_element(dtype, dlogits, n * E + e,
                        (float)(p[e] * (aux_factor * counts[e] - dot) +
                                mix_gradient(&first, own[0], dw[0], e) +
                                mix_gradient(&second, own[1], dw[1], e)));
    }
}

/* ---- sums and load-balancing loss ------------------------------------------------------- */

void dh_k_router_sums(int64_t N, int64_t E, int64_t top_k, const float *probs,
                      const int32_t *experts, double *counts, double *prob_sums)
{
    for (int64_t i = 0; i < N * top_k; i++) counts[experts[i]] += 1;
    for (int64_t i = 0; i < N * E; i++) prob_sums[i % E] += probs[i];
}

double dh_k_router_aux(int64_t E, int64_t rows, const double *counts, const double *prob_sums)
{
    double sum = 0;
    for (int64_t e = 0; e < E; e++) sum += counts[e] * prob_sums[e];
    return (double)E * sum / ((double)rows * (double)rows);
}

/* ---- order by expert ------------------------------------------------------------------- */

void dh_k_moe_order(int64_t N, int64_t E, int64_t top_k, const int32_t *experts, int64_t capacity,
                    int64_t *offsets, int32_t *slot_of)
{
    for (int64_t e = 0; e <= E; e++) offsets[e] = e * capacity;
    if (capacity == 0) {
        for (int64_t i = 0; i < N * top_k; i++) offsets[experts[i] + 1]++;
        for (int64_t e = 0; e < E; e++) offsets[e + 1] += offsets[e];
    }
    /* offsets[e] walks from its expert's first slot to the end, then is set back. */
    for (int64_t i = 0; i < N * top_k; i++) {
        const int64_t e = experts[i];
        const bool full = capacity > 0 && offsets[e] == (e + 1) * capacity;
        slot_of[i] = full ? -1 : (int32_t)offsets[e]++;
    }
    for (int64_t e = E; e > 0; e--) offsets[e] = capacity > 0 ? e * capacity : offsets[e - 1];
    offsets[0] = 0;
}

void dh_k_moe_count(int64_t n, int64_t E, const int32_t *experts, int64_t *counts)
{
    for (int64_t e = 0; e < E; e++) counts[e] = 0;
    for (int64_t i = 0; i < n; i++) counts[experts[i]]++;
}

void dh_k_moe_offsets(int64_t n_runs, const int64_t *counts, int64_t *offsets)
{
    offsets[0] = 0;
    for (int64_t s = 0; s < n_runs; s++) offsets[s + 1] = offsets[s] + counts[s];
}

/* ---- order by node --------------------------------------------------------------------- */

/* The node of a token's choice j, if that is its first one there; else -1. */
static int64_t first_on_node(int64_t j, int64_t per_node, const int32_t *experts,
                             const int32_t *slots)
{
    if (slots[j] < 0) return -1;
    const int64_t node = experts[j] / per_node;
    for (int64_t i = 0; i < j; i++)
        if (slots[i] >= 0 && experts[i] / per_node == node) return -1;
    return node;
}

/* A token's choices on a node, by their number there. */
static void choices_here(int64_t top_k, int64_t per_node, int64_t node, const int32_t *experts,
                         const int32_t *slots, int32_t *here)
{
    for (int64_t i = 0; i < top_k; i++) {
        const bool on_it = slots[i] >= 0 && experts[i] / per_node == node;
        here[i] = on_it ? (int32_t)(experts[i] - node * per_node) : -1;
    }
}

void dh_k_moe_nodes(int64_t N, int64_t E, int64_t top_k, int64_t n_nodes, const int32_t *experts,
                    const int32_t *slots, int64_t n_places, int32_t *rows, int64_t *starts,
                    int32_t *here)
{
    const int64_t per_node = E / n_nodes;
    for (int64_t d = 0; d <= n_nodes; d++) starts[d] = 0;
    for (int64_t i = 0; i < N * top_k; i++) {
        const int64_t n0 = i / top_k * top_k;
        rows[i] = (int32_t)first_on_node(i - n0, per_node, experts + n0, slots + n0);
        if (rows[i] >= 0) starts[rows[i] + 1]++;
    }
    for (int64_t d = 0; d < n_nodes; d++) starts[d + 1] += starts[d];
    for (int64_t i = starts[n_nodes] * top_k; i < n_places * top_k; i++) here[i] = -1;
    /* starts[d] walks from its node's first place to the end, then is set back. */
    for (int64_t i = 0; i < N * top_k; i++) {
        const int64_t n0 = i / top_k * top_k, node = rows[i];
        if (node < 0) continue;
        rows[i] = (int32_t)starts[node]++;
        choices_here(top_k, per_node, node, experts + n0, slots + n0, here + rows[i] * top_k);
    }
    for (int64_t d = n_nodes; d > 0; d--) starts[d] = starts[d - 1];
    starts[0] = 0;
}

/* Slots of the choices of rows [row0, row1) from one node, whose experts' next ones are in `next`. */
static void order_block(int64_t row0, int64_t row1, int64_t top_k, int64_t first,
                        const int32_t *here, int64_t capacity, int64_t room, int64_t *next,
                        int32_t *slots)
{
    for (int64_t i = row0 * top_k; i < row1 * top_k; i++) {
        if (here[i] < 0) continue;
        const int64_t number = first + here[i], at = next[number]++;
        const int64_t slot = capacity > 0 ? number * capacity + at : at;
        const bool fits = (capacity == 0 || at < capacity) && (room == 0 || slot < room);
        slots[i] = fits ? (int32_t)slot : -1;
    }
}

/* Rows of a block that the buffer has: where more came the run has ended already, or will. */
static int64_t end_of(int64_t N, int64_t row)
{
    return DH_MIN(row, N);
}

void dh_k_moe_node_order(int64_t N, int64_t E, int64_t top_k, int64_t n_nodes, const int32_t *here,
                         const int64_t *arrived, int64_t capacity, int64_t room, int64_t *counts,
                         int32_t *slots)
{
    const int64_t per_node = E / n_nodes;
    for (int64_t e = 0; e < E; e++) counts[e] = 0;
    for (int64_t i = 0; i < N * top_k; i++) slots[i] = -1;
    for (int64_t a = 0; capacity == 0 && a < n_nodes; a++)
        for (int64_t i = arrived[a] * top_k; i < end_of(N, arrived[a + 1]) * top_k; i++)
            if (here[i] >= 0) counts[a * per_node + here[i]]++;
    /* counts[e] becomes the number's first slot, walks to its end, and is a count again. */
    for (int64_t e = 0, at = 0; capacity == 0 && e < E; e++) {
        const int64_t n = counts[e];
        counts[e] = at;
        at += n;
    }
    for (int64_t a = 0; a < n_nodes; a++)
        order_block(arrived[a], end_of(N, arrived[a + 1]), top_k, a * per_node, here, capacity,
                    room, counts, slots);
    for (int64_t e = E - 1; capacity == 0 && e > 0; e--) counts[e] -= counts[e - 1];
}

/* ---- rows ------------------------------------------------------------------------------ */

/* Whether some slot is nobody's: there are more of them than choices, or a choice has none. */
static bool leaves_slots(int64_t n_choices, const int32_t *slot_of, int64_t n_slots)
{
    bool dropped = false;
    for (int64_t i = 0; i < n_choices; i++) dropped |= slot_of[i] < 0;
    return dropped || n_slots > n_choices;
}

void dh_k_moe_permute(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *x,
                      const int32_t *slot_of, int64_t n_slots, void *y)
{
    const size_t bytes = (size_t)C * dh_dtype_bytes(dtype);
    if (leaves_slots(N * top_k, slot_of, n_slots)) dh_k_zero((size_t)n_slots * bytes, y);
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t i = 0; i < N * top_k; i++)
        if (slot_of[i] >= 0)
            memcpy(at(dtype, y, slot_of[i] * C), const_at(dtype, x, i / top_k * C), bytes);
}

enum { COLUMNS = 256 };

/* Columns [c, c+n) of one row: weighted sum of its experts' rows, in float32. */
static void gather_columns(const dh_simd *simd, dh_dtype dtype, int64_t C, int64_t top_k, int64_t c,
                           int64_t n, const void *y, const int32_t *slots, const float *weights,
                           void *x)
{
    float sum[COLUMNS] = {0};
    for (int64_t j = 0; j < top_k; j++)
        if (slots[j] >= 0)
            simd->axpy(dtype, n, weights ? weights[j] : 1.0f, const_at(dtype, y, slots[j] * C + c),
                       sum, true);
    simd->cast(n, DH_F32, sum, dtype, at(dtype, x, c));
}

void dh_k_moe_unpermute(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *y,
                        const int32_t *slot_of, const float *weights, void *x)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < C; c += COLUMNS)
            gather_columns(simd, dtype, C, top_k, c, DH_MIN(COLUMNS, C - c), y, slot_of + n * top_k,
                           weights ? weights + n * top_k : NULL, at(dtype, x, n * C));
}

void dh_k_moe_unpermute_bwd(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *dx,
                            const void *y, const int32_t *slot_of, const float *weights,
                            int64_t n_slots, void *dy, float *dweights)
{
    const dh_simd *simd = dh_simd_get();
    if (leaves_slots(N * top_k, slot_of, n_slots))
        dh_k_zero((size_t)(n_slots * C) * dh_dtype_bytes(dtype), dy);
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t i = 0; i < N * top_k; i++) {
        const int64_t slot = slot_of[i];
        const void *row = const_at(dtype, dx, i / top_k * C);
        dweights[i] = slot < 0 ? 0 : simd->dot(dtype, C, row, const_at(dtype, y, slot * C));
        if (slot >= 0) simd->scale(dtype, C, weights[i], row, at(dtype, dy, slot * C));
    }
}
