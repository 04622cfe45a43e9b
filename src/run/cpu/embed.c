/* Token and position embedding. The gradient is a scatter-add: each thread owns a
 * stripe of columns and adds all rows in order. Repeated tokens therefore sum in the
 * same order on any number of threads. */
#include "base/base.h"
#include "run/cpu/split.h"

#include <string.h>

/* x[n] = wte row + wpe row; absent ones count as zeros. */
static void embed_row(const dh_simd *simd, dh_dtype dtype, int64_t C, const void *token,
                      const void *position, void *x)
{
    const size_t bytes = (size_t)C * dh_dtype_bytes(dtype);
    if (token && position)
        simd->add(dtype, C, token, position, x);
    else if (token || position)
        memcpy(x, token ? token : position, bytes);
    else
        memset(x, 0, bytes);
}

void dh_k_embed_fwd(dh_dtype dtype, int64_t N, int64_t C, const int32_t *tokens,
                    const int32_t *row_pos, const void *wte, int64_t v0, int64_t v1,
                    const void *wpe, const dh_dropout *drop, void *x)
{
    const dh_simd *simd = dh_simd_get();
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t n = 0; n < N; n++) {
        const bool owned = tokens[n] >= v0 && tokens[n] < v1;
        void *row = at(dtype, x, n * C);
        embed_row(simd, dtype, C, owned ? const_at(dtype, wte, (tokens[n] - v0) * C) : NULL,
                  wpe ? const_at(dtype, wpe, row_pos[n] * C) : NULL, row);
        dh_drop_row storage;
        const dh_drop_row *drop_row = dh_drop_row_of(drop, n, &storage);
        if (drop_row) simd->residual(dtype, 0, C, NULL, row, NULL, drop_row, row);
    }
}

/* Columns [c0, c0+n) of all rows. */
static void embed_bwd_stripe(const dh_simd *simd, dh_dtype dtype, int64_t N, int64_t C, int64_t c0,
                             int64_t n, const void *dx, const int32_t *tokens,
                             const int32_t *row_pos, const dh_dropout *drop, int64_t v0, int64_t v1,
                             float *dwte, float *dwpe)
{
    for (int64_t r = 0; r < N; r++) {
        const bool owned = tokens[r] >= v0 && tokens[r] < v1;
        if (!owned && !dwpe) continue;
        dh_drop_row storage;
        simd->embed_add(dtype, c0, n, const_at(dtype, dx, r * C), dh_drop_row_of(drop, r, &storage),
                        owned ? dwte + (tokens[r] - v0) * C + c0 : NULL,
                        dwpe ? dwpe + row_pos[r] * C + c0 : NULL);
    }
}

void dh_k_embed_bwd(dh_dtype dtype, int64_t N, int64_t C, const void *dx, const int32_t *tokens,
                    const int32_t *row_pos, const dh_dropout *drop, int64_t v0, int64_t v1,
                    int64_t n_pos, float *dwte, float *dwpe, bool accumulate)
{
    const dh_simd *simd = dh_simd_get();
    if (!accumulate) {
        dh_k_zero((size_t)((v1 - v0) * C) * sizeof *dwte, dwte);
        if (dwpe) dh_k_zero((size_t)(n_pos * C) * sizeof *dwpe, dwpe);
    }
#pragma omp parallel for schedule(static) if (N * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += DH_STRIPE)
        embed_bwd_stripe(simd, dtype, N, C, c, DH_MIN(DH_STRIPE, C - c), dx, tokens, row_pos, drop,
                         v0, v1, dwte, dwpe);
}
