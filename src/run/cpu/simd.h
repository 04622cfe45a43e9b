/* The inner loops, once per instruction set. kernels.h functions split work into
 * rows or ranges (which fixes the order of sums, and so the bits) and call these. */
#ifndef DH_RUN_CPU_SIMD_H
#define DH_RUN_CPU_SIMD_H

#include "base/base.h"
#include "run/cpu/kernels.h"

#define DH_STRIPE 64 /* columns that column sums and dropout handle together */

/* Dropout of one row; threshold and scale from the probability. */
typedef struct dh_drop_row {
    dh_philox_key key;
    uint32_t pos, sample_lo, sample_hi;
    uint32_t threshold; /* keep when (bits >> 8) >= threshold */
    float scale;        /* 1 / (1 - prob) */
} dh_drop_row;

/* A sum in fixed point (simd/exact.h). It is the sum of digits[i] times 2^(32 i + DH_EXACT_LOWEST).
 * Digits are wide enough for many additions. odd: the sum of values that are not finite, else 0. */
enum { DH_EXACT_LOWEST = -352 };

typedef struct dh_exact {
    uint64_t digits[DH_SQSUM_DIGITS];
    double odd;
} dh_exact;

/* ---- attention: one call's operands and its scratch, cut for the inner loops ---- */

enum {
    DH_ATTN_BLOCK = 64,     /* queries, and keys, handled together */
    DH_ATTN_MAX_DIM = 1024, /* largest head dimension, the model table's */
    DH_ATTN_PAD = 16        /* packed rows are whole multiples of it */
};

typedef struct dh_attn_job {
    dh_attn_shape s;
    float scale;
    int64_t n_blocks; /* of keys */
    int64_t dp;       /* D rounded up to DH_ATTN_PAD: length of a packed row */
    bool accumulate;
    const void *q, *k, *v, *dout, *o;
    const float *lse;
    void *out, *dq, *dk, *dv;
    float *lse_out;
    float *packed; /* fwd: K^T and V of every (sample, key head); bwd: one part per slot */
} dh_attn_job;

/* Linear attention: a call's operands. */
typedef struct dh_linear_job {
    dh_linear_shape s;
    int64_t dp; /* D rounded up to DH_ATTN_PAD: length of a packed row */
    const void *qkv, *dout;
    const float *own, *before, *behind;
    float *state;
    void *out;
} dh_linear_job;

/* From row to row: elements of dy and x, floats of stats. */
typedef struct dh_row_steps {
    int64_t x, stats;
} dh_row_steps;

typedef struct dh_simd {
    const char *name;
    int width; /* floats in a vector */

    void (*cast)(int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y);
    void (*add)(dh_dtype dtype, int64_t n, const void *a, const void *b, void *y);
    void (*scale)(dh_dtype dtype, int64_t n, float factor, const void *x, void *y);
    double (*sum)(int64_t n, const float *x);
    void (*exact_squares)(int64_t n, const float *x, dh_exact *sum);
    bool (*all_finite)(dh_dtype dtype, int64_t n, const void *x);
    void (*exp)(int64_t n, const float *x, float *y);

    /* One row of C. */
    void (*norm_fwd)(dh_norm_kind kind, dh_dtype dtype, int64_t C, const void *x, const float *w,
                     const float *b, float eps, void *y, float stats[2]);
    void (*norm_dgrad)(dh_norm_kind kind, dh_dtype dtype, int64_t C, const void *dy, const void *x,
                       const float *w, const float stats[2], const void *dres, void *dx);
    /* Up to DH_STRIPE columns from c0 on of C, all rows. stats NULL: dw stays untouched. */
    void (*col_sums)(dh_dtype dtype, dh_row_steps step, int64_t N, int64_t C, int64_t c0,
                     const void *dy, const void *x, const float *stats, float *dw, float *db,
                     bool accumulate);

    /* Columns [c0, c0+n) of a row; c0 a multiple of DH_STRIPE. x, bias and drop may be
     * NULL. */
    void (*residual)(dh_dtype dtype, int64_t c0, int64_t n, const void *x, const void *p,
                     const float *bias, const dh_drop_row *drop, void *out);
    /* Both sums [n] += dropout mask applied to dx columns [c0, c0+n); either may be NULL. */
    void (*embed_add)(dh_dtype dtype, int64_t c0, int64_t n, const void *dx,
                      const dh_drop_row *drop, float *sum1, float *sum2);

    void (*gelu_fwd)(dh_dtype dtype, int64_t n, const void *h, void *g);
    void (*gelu_bwd)(dh_dtype dtype, int64_t n, const void *dg, const void *h, void *dh);
    void (*swiglu_fwd)(dh_dtype dtype, int64_t F, const void *h, void *g);
    void (*swiglu_bwd)(dh_dtype dtype, int64_t F, const void *dg, const void *h, void *dh);
    void (*geglu_fwd)(dh_dtype dtype, int64_t F, const void *h, void *g);
    void (*geglu_bwd)(dh_dtype dtype, int64_t F, const void *dg, const void *h, void *dh);
    /* n_heads heads of one row; cs [2,D/2] = cos, sin; sign -1 rotates back. */
    void (*rope)(dh_dtype dtype, int64_t n_heads, int64_t D, const void *x, const float *cs,
                 float sign, void *y);

    void (*ce_stats)(dh_dtype dtype, int64_t n, const void *logits, float *max, float *sum);
    void (*ce_grad)(dh_dtype dtype, int64_t n, const void *logits, float max, float factor,
                    void *dlogits);

    void (*adamw)(const dh_adamw *opt, int64_t n, const float *g, float *p, float *m, float *v,
                  dh_bf16 *copy);

    /* y[n] (+)= factor * x[n]; dot product of n. */
    void (*axpy)(dh_dtype dtype, int64_t n, float factor, const void *x, float *y, bool accumulate);
    float (*dot)(dh_dtype dtype, int64_t n, const void *x, const void *y);
    /* y[n] = a y + b x. */
    void (*blend)(dh_dtype dtype, int64_t n, float a, void *y, float b, const void *x);

    /* See simd/attn.h. */
    void (*attn_pack)(const dh_attn_job *job, int64_t b, int64_t kv_head, int64_t block);
    void (*attn_fwd)(const dh_attn_job *job, int64_t b, int64_t head, int64_t q0);
    void (*attn_few)(const dh_attn_job *job, int64_t b, int64_t head);
    void (*attn_bwd)(const dh_attn_job *job, int64_t b, int64_t kv_head, float *slot);

    /* y[n] = map(x), or dy times its slope at x; dy may be NULL. */
    void (*feature_map)(dh_feature_map map, dh_dtype dtype, int64_t n, const void *dy,
                        const void *x, void *y);
    /* See simd/linear_attn.h. */
    void (*linear_fwd)(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);
    void (*linear_state)(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);
    void (*linear_join)(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);
    void (*linear_bwd)(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);
    void (*linear_join_bwd)(const dh_linear_job *job, int64_t b, int64_t kv_head, float *slot);
} dh_simd;

/* Chosen once, at the first call. */
const dh_simd *dh_simd_get(void);
/* For tests: the named table, or NULL when this machine or build lacks it; NULL name
 * goes back to the machine's best. Not while kernels run. */
const dh_simd *dh_simd_force(const char *name);

#endif
