/* Routers whose weights are probabilities as they are, sparsemixer's, and DeepSeek V3's: sigmoids,
 * groups of experts, a bias where they are chosen. A thread a row, for experts are few. Reference:
 * run/cpu/moe.c, run/cpu/moe_groups.c. */
#include "run/cuda/kernels/device.cuh"

__global__ void router_plain(int64_t n, int64_t E, int64_t top_k, const float *probs,
                             const int32_t *experts, float *weights)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step())
        weights[i] = probs[i / top_k * E + experts[i]];
}

void dh_cuda_router_plain(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                          const float *probs, const int32_t *experts, float *weights)
{
    launch(router_plain, flat_blocks(N * top_k), FLAT_THREADS, stream, N * top_k, E, top_k, probs,
           experts, weights);
}

/* ---- sparsemixer -------------------------------------------------------------------------------
 */

enum { MIXED = 2 }; /* experts of a token */

/* A row's softmax over logits near `max`, without the expert `other` (-1: with all). */
template <class T> struct near_row {
    const T *logits;
    int64_t E, other, best;
    float max, threshold;
    double sum;
};

template <class T> DEVICE double near_exp(const near_row<T> &r, int64_t e)
{
    const float s = widen(r.logits[e]);
    const bool far = r.max - s > r.threshold * fmaxf(fabsf(s), r.max);
    return e == r.other || far ? 0 : exp((double)s - (double)r.max);
}

template <class T>
DEVICE near_row<T> near_of(int64_t E, float threshold, const T *logits, int64_t other)
{
    near_row<T> r = {logits, E, other, -1, -INFINITY, threshold, 0};
    for (int64_t e = 0; e < E; e++)
        if (e != other && (r.best < 0 || widen(logits[e]) > r.max)) {
            r.best = e;
            r.max = widen(logits[e]);
        }
    for (int64_t e = 0; e < E; e++) r.sum += near_exp(r, e);
    return r;
}

template <class T>
DEVICE double mix_gradient(const near_row<T> &r, int64_t own, float dweight, int64_t e)
{
    const double w = near_exp(r, own) / r.sum;
    return (double)dweight * w * ((e == own ? 1 : 0) - near_exp(r, e) / r.sum);
}

template <class T>
__global__ void router_mix_fwd(int64_t N, int64_t E, float threshold, const T *logits, float *probs,
                               int32_t *experts, float *weights)
{
    const int64_t n = first_of_grid();
    if (n >= N) return;
    float max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) max = fmaxf(max, widen(logits[n * E + e]));
    for (int64_t e = 0; e < E; e++) sum += probs[n * E + e] = expf(widen(logits[n * E + e]) - max);
    for (int64_t e = 0; e < E; e++) probs[n * E + e] /= sum;
    int64_t other = -1;
    for (int64_t j = 0; j < MIXED; j++) {
        const near_row<T> r = near_of(E, threshold, logits + n * E, other);
        other = r.best;
        experts[n * MIXED + j] = (int32_t)r.best;
        weights[n * MIXED + j] = (float)(near_exp(r, r.best) / r.sum);
    }
}

void dh_cuda_router_mix_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E,
                            double jitter, const void *logits, float *probs, int32_t *experts,
                            float *weights)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_mix_fwd<T>, div_up(N, FLAT_THREADS), FLAT_THREADS, stream, N, E,
               (float)(2 * jitter), (const T *)logits, probs, experts, weights);
    });
}

template <class T>
__global__ void router_mix_bwd(int64_t N, int64_t E, float threshold, const T *logits,
                               const float *probs, const int32_t *experts, const float *dweights,
                               const double *counts, double aux_factor, T *dlogits)
{
    const int64_t n = first_of_grid();
    if (n >= N) return;
    const int32_t *own = experts + n * MIXED;
    const near_row<T> first = near_of(E, threshold, logits + n * E, -1),
                      second = near_of(E, threshold, logits + n * E, own[0]);
    const float *dw = dweights + n * MIXED, *p = probs + n * E;
    double dot = 0;
    for (int64_t e = 0; e < E; e++) dot += (double)p[e] * (aux_factor * counts[e]);
    for (int64_t e = 0; e < E; e++)
        narrow((float)((double)p[e] * (aux_factor * counts[e] - dot) +
                       mix_gradient(first, own[0], dw[0], e) +
                       mix_gradient(second, own[1], dw[1], e)),
               &dlogits[n * E + e]);
}

void dh_cuda_router_mix_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E,
                            double jitter, const void *logits, const float *probs,
                            const int32_t *experts, const float *dweights, const double *counts,
                            int64_t rows, double aux_coef, void *dlogits)
{
    const double aux_factor = aux_coef * (double)E / ((double)rows * (double)rows);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_mix_bwd<T>, div_up(N, FLAT_THREADS), FLAT_THREADS, stream, N, E,
               (float)(2 * jitter), (const T *)logits, probs, experts, dweights, counts, aux_factor,
               (T *)dlogits);
    });
}

/* ---- groups ------------------------------------------------------------------------------------
 */

/* Sum of the two best of a group, by what experts are chosen by. */
DEVICE float score_of_group(const dh_grouped_router &r, const float *probs, const float *bias,
                            int64_t group)
{
    const int64_t n = r.E / r.n_groups;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = group * n; e < (group + 1) * n; e++) {
        const float score = probs[e] + bias[e];
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
DEVICE bool has_group(const dh_grouped_router &r, const float *probs, const float *bias,
                      int64_t group)
{
    const float score = score_of_group(r, probs, bias, group);
    int64_t before = 0;
    for (int64_t other = 0; other < r.n_groups && r.top_groups < r.n_groups; other++) {
        const float its = score_of_group(r, probs, bias, other);
        before += its > score || (its == score && other < group);
    }
    return before < r.top_groups;
}

/* By insertion: groups one after another, each expert before those it is better than. */
DEVICE void choose(const dh_grouped_router &r, const float *probs, const float *bias,
                   int32_t *experts)
{
    const int64_t n = r.E / r.n_groups;
    int64_t n_chosen = 0;
    for (int64_t j = 0; j < r.top_k; j++) experts[j] = -1;
    for (int64_t group = 0; group < r.n_groups; group++) {
        if (!has_group(r, probs, bias, group)) continue;
        for (int64_t e = group * n; e < (group + 1) * n; e++) {
            int64_t j = n_chosen;
            while (j > 0 && probs[e] + bias[e] > probs[experts[j - 1]] + bias[experts[j - 1]]) j--;
            if (j >= r.top_k) continue;
            if (n_chosen < r.top_k) n_chosen++;
            for (int64_t k = n_chosen - 1; k > j; k--) experts[k] = experts[k - 1];
            experts[j] = (int32_t)e;
        }
    }
}

/* Divisor of the weights; DeepSeek's 1e-20 keeps it from 0. */
DEVICE float sum_of_chosen(const dh_grouped_router &r, const float *probs, const int32_t *experts)
{
    float sum = 0;
    for (int64_t j = 0; j < r.top_k; j++) sum += probs[experts[j]];
    return r.plain ? 1.0f : sum + 1e-20f;
}

template <class T>
__global__ void router_groups_fwd(dh_grouped_router r, const T *logits, const float *bias,
                                  float *probs, int32_t *experts, float *weights)
{
    const int64_t n = first_of_grid();
    if (n >= r.N) return;
    float *p = probs + n * r.E, *w = weights + n * r.top_k;
    int32_t *chosen = experts + n * r.top_k;
    for (int64_t e = 0; e < r.E; e++) p[e] = 1.0f / (1.0f + expf(-widen(logits[n * r.E + e])));
    choose(r, p, bias, chosen);
    const float sum = sum_of_chosen(r, p, chosen);
    for (int64_t j = 0; j < r.top_k; j++) w[j] = (float)r.scale * p[chosen[j]] / sum;
}

void dh_cuda_router_groups_fwd(dh_cuda_stream stream, const dh_grouped_router *r, dh_dtype dtype,
                               const void *logits, const float *bias, float *probs,
                               int32_t *experts, float *weights)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_groups_fwd<T>, div_up(r->N, FLAT_THREADS), FLAT_THREADS, stream, *r,
               (const T *)logits, bias, probs, experts, weights);
    });
}

/* With w_j = c p_j / s: dL/dp_j = c (dw_j - sum_i dw_i p_i / s) / s, with plain weights c dw_j; and
 * dp/dlogit = p (1 - p). */
template <class T>
__global__ void router_groups_bwd(dh_grouped_router r, const float *probs, const int32_t *experts,
                                  const float *dweights, T *dlogits)
{
    const int64_t n = first_of_grid();
    if (n >= r.N) return;
    const float *p = probs + n * r.E, *dw = dweights + n * r.top_k;
    const int32_t *chosen = experts + n * r.top_k;
    const double sum = (double)sum_of_chosen(r, p, chosen);
    double mean = 0;
    for (int64_t j = 0; j < r.top_k && !r.plain; j++)
        mean += (double)dw[j] * (double)p[chosen[j]] / sum;
    for (int64_t e = 0; e < r.E; e++) narrow(0.0f, &dlogits[n * r.E + e]);
    for (int64_t j = 0; j < r.top_k; j++) {
        const double q = (double)p[chosen[j]];
        narrow((float)(r.scale * ((double)dw[j] - mean) / sum * q * (1 - q)),
               &dlogits[n * r.E + chosen[j]]);
    }
}

void dh_cuda_router_groups_bwd(dh_cuda_stream stream, const dh_grouped_router *r, dh_dtype dtype,
                               const float *probs, const int32_t *experts, const float *dweights,
                               void *dlogits)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_groups_bwd<T>, div_up(r->N, FLAT_THREADS), FLAT_THREADS, stream, *r, probs,
               experts, dweights, (T *)dlogits);
    });
}

/* A block an expert; rows' scores are made to sum to 1. */
__global__ void router_groups_sums(int64_t N, int64_t E, int64_t top_k, const float *scores,
                                   const int32_t *experts, double *counts, double *prob_sums)
{
    DH_SHARED(double, room, [WARP]);
    const int64_t e = blockIdx.x;
    double count = 0, share = 0;
    for (int64_t i = threadIdx.x; i < N * top_k; i += blockDim.x) count += experts[i] == e;
    for (int64_t n = threadIdx.x; n < N; n += blockDim.x) {
        double sum = 0;
        for (int64_t k = 0; k < E; k++) sum += (double)scores[n * E + k];
        share += (double)scores[n * E + e] / sum;
    }
    count = block_sum(count, room);
    share = block_sum(share, room);
    if (threadIdx.x > 0) return;
    counts[e] += count;
    prob_sums[e] += share;
}

void dh_cuda_router_groups_sums(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                                const float *scores, const int32_t *experts, double *counts,
                                double *prob_sums)
{
    launch(router_groups_sums, E, FLAT_THREADS, stream, N, E, top_k, scores, experts, counts,
           prob_sums);
}

/* ---- balance by load ----------------------------------------------------------------------------
 */

/* A block an expert. */
__global__ void router_load(int64_t n, int64_t E, const int32_t *experts, bool accumulate,
                            float *load)
{
    DH_SHARED(double, room, [WARP]);
    const int64_t e = blockIdx.x;
    double count = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) count += experts[i] == e;
    count = block_sum(count, room);
    if (threadIdx.x > 0) return;
    load[e] = (accumulate ? load[e] : 0.0f) + (float)((double)E * count - (double)n);
}

void dh_cuda_router_load(dh_cuda_stream stream, int64_t n, int64_t E, const int32_t *experts,
                         float *load, bool accumulate)
{
    launch(router_load, E, FLAT_THREADS, stream, n, E, experts, accumulate, load);
}

__global__ void balance(const dh_scalars *scalars, const double *norm, int64_t n, const float *load,
                        float *bias)
{
    const float rate = (float)scalars->router_bias_rate;
    if (!is_finite(norm[0])) return;
    for (int64_t i = first_of_grid(); i < n; i += grid_step())
        bias[i] -= rate * (float)((load[i] > 0) - (load[i] < 0));
}

void dh_cuda_balance(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                     int64_t n, const float *load, float *bias)
{
    launch(balance, flat_blocks(n), FLAT_THREADS, stream, scalars, norm, n, load, bias);
}
