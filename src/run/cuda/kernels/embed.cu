/* Token and position embedding, and their gradients without atomics.
 *
 * A gradient row is the sum of the rows of dx that have its token. Rows with the same token (or
 * position) form a chain. Each row finds the next one, and whether any comes before it. The first
 * of a chain then walks it, a block for a stripe of columns, so each sum has the order of rows.
 * Finding the next one reads tokens in the worst case N^2 / 2 times out of the cache. Reference:
 * dh_k_embed_*. */
#include "run/cuda/kernels/device.cuh"

/* ---- forward -----------------------------------------------------------------------------------
 */

/* A block a row. Threads go by the columns that one Philox block decides, dropped or not. */
template <class T>
__global__ void embed_fwd(int64_t C, const int32_t *tokens, const int32_t *row_pos, const T *wte,
                          int64_t v0, int64_t v1, const T *wpe, drop_rule rule, T *x)
{
    const int64_t n = blockIdx.x, stripes = (C + STRIPE - 1) / STRIPE;
    const int64_t token = tokens[n];
    const bool owned = token >= v0 && token < v1;
    for (int64_t i = threadIdx.x; i < stripes * STRIPE_LANES; i += blockDim.x) {
        const int lane = (int)(i % STRIPE_LANES);
        const int64_t stripe = i / STRIPE_LANES;
        float factor[STRIPE_WORDS] = {1, 1, 1, 1};
        if (rule.scalars) drop_factors(rule, n, stripe, lane, factor);
        for (int j = 0; j < STRIPE_WORDS; j++) {
            const int64_t c = stripe * STRIPE + j * STRIPE_LANES + lane;
            if (c >= C) break;
            T sum; /* rounded before it is scaled, as there */
            narrow((owned ? widen(wte[(token - v0) * C + c]) : 0.0f) +
                       (wpe ? widen(wpe[row_pos[n] * C + c]) : 0.0f),
                   &sum);
            narrow(widen(sum) * factor[j], &x[n * C + c]);
        }
    }
}

void dh_cuda_embed_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                       const int32_t *tokens, const int32_t *row_pos, const void *wte, int64_t v0,
                       int64_t v1, const void *wpe, const dh_cuda_dropout *drop, void *x)
{
    const drop_rule rule = drop_rule_of(drop);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(embed_fwd<T>, N, row_threads(div_up(C, STRIPE) * STRIPE_LANES), stream, C, tokens,
               row_pos, (const T *)wte, v0, v1, (const T *)wpe, rule, (T *)x);
    });
}

/* ---- backward
 * ------------------------------------------------------------------------------------ */

enum { NOBODY = -1 };

/* next[n]: the next row with the key of row n, or NOBODY; begins[n]: none comes before. Rows whose
 * key lies outside of [low, high) begin no chain. */
__global__ void chain_rows(int64_t N, const int32_t *keys, int64_t low, int64_t high, int32_t *next,
                           int32_t *begins)
{
    for (int64_t n = first_of_grid(); n < N; n += grid_step()) {
        const int32_t key = keys[n];
        int64_t after = n + 1, before = n - 1;
        while (after < N && keys[after] != key) after++;
        next[n] = after < N ? (int32_t)after : (int32_t)NOBODY;
        while (before >= 0 && keys[before] != key) before--;
        begins[n] = before < 0 && key >= low && key < high;
    }
}

/* A block: one stripe of columns of one row that begins a chain. */
template <class T>
__global__ void sum_chains(int64_t C, const T *dx, const int32_t *keys, int64_t low,
                           const int32_t *next, const int32_t *begins, drop_rule rule, float *sums)
{
    const int64_t stripes = (C + STRIPE - 1) / STRIPE;
    const int64_t stripe = blockIdx.x % stripes, first = blockIdx.x / stripes;
    const int lane = (int)threadIdx.x;
    if (!begins[first] || lane >= STRIPE_LANES) return;
    float total[STRIPE_WORDS] = {0, 0, 0, 0};
    for (int64_t n = first; n != NOBODY; n = next[n]) {
        float factor[STRIPE_WORDS] = {1, 1, 1, 1};
        if (rule.scalars) drop_factors(rule, n, stripe, lane, factor);
        for (int j = 0; j < STRIPE_WORDS; j++) {
            const int64_t c = stripe * STRIPE + j * STRIPE_LANES + lane;
            if (c < C) total[j] += widen(dx[n * C + c]) * factor[j];
        }
    }
    for (int j = 0; j < STRIPE_WORDS; j++) {
        const int64_t c = stripe * STRIPE + j * STRIPE_LANES + lane;
        if (c < C) sums[(keys[first] - low) * C + c] += total[j];
    }
}

size_t dh_cuda_embed_bwd_workspace(int64_t N)
{
    return (size_t)(2 * N) * sizeof(int32_t);
}

/* sums[key - low] += rows of dx with that key. */
static void add_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dx,
                     const int32_t *keys, int64_t low, int64_t high, const drop_rule &rule,
                     float *sums, int32_t *ws)
{
    launch(chain_rows, flat_blocks(N), FLAT_THREADS, stream, N, keys, low, high, ws, ws + N);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(sum_chains<T>, N * div_up(C, STRIPE), WARP, stream, C, (const T *)dx, keys, low, ws,
               ws + N, rule, sums);
    });
}

void dh_cuda_embed_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dx,
                       const int32_t *tokens, const int32_t *row_pos, const dh_cuda_dropout *drop,
                       int64_t v0, int64_t v1, int64_t n_pos, float *dwte, float *dwpe,
                       bool accumulate, void *ws)
{
    const drop_rule rule = drop_rule_of(drop);
    if (!accumulate) {
        dh_cuda_zero(stream, (size_t)((v1 - v0) * C) * sizeof *dwte, dwte);
        if (dwpe) dh_cuda_zero(stream, (size_t)(n_pos * C) * sizeof *dwpe, dwpe);
    }
    add_rows(stream, dtype, N, C, dx, tokens, v0, v1, rule, dwte, (int32_t *)ws);
    if (dwpe) add_rows(stream, dtype, N, C, dx, row_pos, 0, n_pos, rule, dwpe, (int32_t *)ws);
}
