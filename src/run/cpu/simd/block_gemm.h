/* GEMMs of small float32 blocks in cache, for attention:
 *   C[m,n] (+)= A[m,k] B[k,n],  n a multiple of W.
 * A has strides rs (rows) and cs (columns), so that a transposed A costs nothing.
 * Each element of C is summed over k in order, whatever m and n are. */
#ifndef DH_RUN_CPU_SIMD_BLOCK_GEMM_H
#define DH_RUN_CPU_SIMD_BLOCK_GEMM_H

#include "run/cpu/simd/vec.h"

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Sums fill 24 of AVX-512's 32 registers. With narrower vectors they fill 12 of 16. */
enum { TILE_ROWS = 6, TILE_VECTORS = W == 16 ? 4 : 2 };

typedef struct operand {
    const float *a;
    int64_t rs, cs;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    int64_t k;
    bool add;
} operand;

/* rows x nv vectors of C, both known when compiled. */
INLINE void tile(const operand *p, int rows, int nv, const float *a, const float *b, float *c)
{
    vf sum[TILE_ROWS][TILE_VECTORS];
    const int64_t rs = p->rs, cs = p->cs, ldb = p->ldb, ldc = p->ldc;
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int j = 0; j < nv; j++)
            sum[i][j] = p->add ? load_f32(c + i * ldc + j * W, W) : (vf){0};
    }
    for (int64_t l = 0; l < p->k; l++) {
        vf right[TILE_VECTORS];
        UNROLL
        for (int j = 0; j < nv; j++) right[j] = load_f32(b + l * ldb + j * W, W);
        UNROLL
        for (int i = 0; i < rows; i++) {
            const vf left = splat(a[i * rs + l * cs]);
            UNROLL
            for (int j = 0; j < nv; j++) sum[i][j] += left * right[j];
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) store_f32(c + i * ldc + j * W, W, sum[i][j]);
    }
}

/* All rows of nv vectors from column n0 on. */
INLINE void tile_column(const operand *p, int nv, int64_t m, int64_t n0)
{
    int64_t i = 0;
    const float *b = p->b + n0;
    for (; i + 6 <= m; i += 6) tile(p, 6, nv, p->a + i * p->rs, b, p->c + i * p->ldc + n0);
    if (i + 4 <= m) {
        tile(p, 4, nv, p->a + i * p->rs, b, p->c + i * p->ldc + n0);
        i += 4;
    }
    if (i + 2 <= m) {
        tile(p, 2, nv, p->a + i * p->rs, b, p->c + i * p->ldc + n0);
        i += 2;
    }
    if (i < m) tile(p, 1, nv, p->a + i * p->rs, b, p->c + i * p->ldc + n0);
}

static void block_gemm(operand p, int64_t m, int64_t n)
{
    int64_t j = 0;
    for (; j + TILE_VECTORS * W <= n; j += TILE_VECTORS * W) tile_column(&p, TILE_VECTORS, m, j);
#if W == 16
    if (j + 2 * W <= n) {
        tile_column(&p, 2, m, j);
        j += 2 * W;
    }
#endif
    if (j < n) tile_column(&p, 1, m, j);
}

#endif
