/* DeepSeek V3's router: sigmoids, groups of experts, a bias where they are chosen. As in moe.c rows
 * are few and experts fewer: plain loops. */
#include <math.h>

#include "base/base.h"
#include "run/cpu/split.h"

/* The value by which an expert is chosen. */
static float choice(const float *probs, const float *bias, int64_t e)
{
    return probs[e] + bias[e];
}

/* Sum of the two best of a group. */
static float score_of_group(const dh_grouped_router *r, const float *probs, const float *bias,
                            int64_t group)
{
    const int64_t n = r->E / r->n_groups;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = group * n; e < (group + 1) * n; e++) {
        const float score = choice(probs, bias, e);
        if (score > best) {
            second = best;
            best = score;
        } else if (score > second) {
            second = score;
        }
    }
    return best + second;
}

/* The group is one of the token's: fewer than top_groups are before it. */
static bool has_group(const dh_grouped_router *r, const float *probs, const float *bias,
                      int64_t group)
{
    const float score = score_of_group(r, probs, bias, group);
    int64_t before = 0;
    for (int64_t other = 0; other < r->n_groups && r->top_groups < r->n_groups; other++) {
        const float its = score_of_group(r, probs, bias, other);
        before += its > score || (its == score && other < group);
    }
    return before < r->top_groups;
}

static void choose(const dh_grouped_router *r, const float *probs, const float *bias,
                   int32_t *experts)
{
    const int64_t n = r->E / r->n_groups;
    int64_t n_chosen = 0;
    for (int64_t j = 0; j < r->top_k; j++) experts[j] = -1;
    /* By insertion: groups one after another, each expert before those it is better than. */
    for (int64_t group = 0; group < r->n_groups; group++) {
        if (!has_group(r, probs, bias, group)) continue;
        for (int64_t e = group * n; e < (group + 1) * n; e++) {
            int64_t j = n_chosen;
            while (j > 0 && choice(probs, bias, e) > choice(probs, bias, experts[j - 1])) j--;
            if (j >= r->top_k) continue;
            if (n_chosen < r->top_k) n_chosen++;
            for (int64_t k = n_chosen - 1; k > j; k--) experts[k] = experts[k - 1];
            experts[j] = (int32_t)e;
        }
    }
}

/* Divisor of the weights; DeepSeek's 1e-20 keeps it from 0. */
static float sum_of_chosen(const dh_grouped_router *r, const float *probs, const int32_t *experts)
{
    float sum = 0;
    for (int64_t j = 0; j < r->top_k; j++) sum += probs[experts[j]];
    return r->plain ? 1 : sum + 1e-20f;
}

void dh_k_router_groups_fwd(const dh_grouped_router *r, dh_dtype dtype, const void *logits,
                            const float *bias, float *probs, int32_t *experts, float *weights)
{
#pragma omp parallel for schedule(static) if (r->N * r->E >= PARALLEL_MIN)
    for (int64_t n = 0; n < r->N; n++) {
        float *p = probs + n * r->E, *w = weights + n * r->top_k;
        int32_t *chosen = experts + n * r->top_k;
        for (int64_t e = 0; e < r->E; e++)
            p[e] = 1 / (1 + expf(-element(dtype, logits, n * r->E + e)));
        choose(r, p, bias, chosen);
        const float sum = sum_of_chosen(r, p, chosen);
        for (int64_t j = 0; j < r->top_k; j++) w[j] = (float)r->scale * p[chosen[j]] / sum;
    }
}

/* With w_j = c p_j / s: dL/dp_j = c (dw_j - sum_i dw_i p_i / s) / s, with plain weights c dw_j; and
 * dp/dlogit = p (1 - p). */
static void bwd_row(const dh_grouped_router *r, const float *p, const int32_t *chosen,
                    const float *dw, dh_dtype dtype, void *dlogits)
{
    const double sum = sum_of_chosen(r, p, chosen);
    double mean = 0;
    for (int64_t j = 0; j < r->top_k && !r->plain; j++) mean += (double)dw[j] * p[chosen[j]] / sum;
    for (int64_t e = 0; e < r->E; e++) set_element(dtype, dlogits, e, 0);
    for (int64_t j = 0; j < r->top_k; j++) {
        const double q = p[chosen[j]];
        set_element(dtype, dlogits, chosen[j],
                    (float)(r->scale * ((double)dw[j] - mean) / sum * q * (1 - q)));
    }
}

void dh_k_router_groups_bwd(const dh_grouped_router *r, dh_dtype dtype, const float *probs,
                            const int32_t *experts, const float *dweights, void *dlogits)
{
#pragma omp parallel for schedule(static) if (r->N * r->E >= PARALLEL_MIN)
    for (int64_t n = 0; n < r->N; n++)
        bwd_row(r, probs + n * r->E, experts + n * r->top_k, dweights + n * r->top_k, dtype,
                at(dtype, dlogits, n * r->E));
}

void dh_k_router_groups_sums(int64_t N, int64_t E, int64_t top_k, const float *scores,
                             const int32_t *experts, double *counts, double *prob_sums)
{
    for (int64_t i = 0; i < N * top_k; i++) counts[experts[i]] += 1;
    for (int64_t n = 0; n < N; n++) {
        double sum = 0;
        for (int64_t e = 0; e < E; e++) sum += scores[n * E + e];
        for (int64_t e = 0; e < E; e++) prob_sums[e] += scores[n * E + e] / sum;
    }
}

/* ---- balance by load --------------------------------------------------------------------- */

void dh_k_router_load(int64_t n, int64_t E, const int32_t *experts, float *load, bool accumulate)
{
    for (int64_t e = 0; e < E; e++) load[e] = (accumulate ? load[e] : 0) - (float)n;
    for (int64_t i = 0; i < n; i++) load[experts[i]] += (float)E;
}

void dh_k_balance(int64_t n, float rate, const float *load, float *bias)
{
    for (int64_t i = 0; i < n; i++) bias[i] -= rate * (float)((load[i] > 0) - (load[i] < 0));
}
