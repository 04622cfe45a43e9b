/* Launches of CUDA's kernels by suites, on no stream. What is called has a name and its arguments'
 * values, for those who read of a failure elsewhere. On a GPU (DH_TEST_ON_GPU) each is waited for, and arrays of the suites
 * and what their functions have on the stack lie in memory that a GPU reads (gpu_memory.h). */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdlib.h>

#include "keep.h"
#include "run/cuda/kernels.h"

#ifdef DH_TEST_ON_GPU
#include "gpu_memory.h"
#define malloc(n) gpu_malloc(n)
#define calloc(n, size) gpu_calloc(n, size)
#define aligned_alloc(alignment, n) gpu_malloc(n)
#define free(at) gpu_free(at)
#else
static inline void gpu_await(void)
{
}
#endif

/* ---- values of arguments -----------------------------------------------------------------------
 */

#define KEEP_N(x) "\"" #x "\": %lld"
#define KEEP_V(x) (long long)(s->x)

static inline void keep_attn_shape(const dh_attn_shape *s)
{
    keep_object(KEEP_N(dtype) ", " KEEP_N(o_dtype) ", " KEEP_N(g_dtype) ", " KEEP_N(B) ", " KEEP_N(Tq) ", " KEEP_N(Tk) ", " KEEP_N(H) ", " KEEP_N(KV) ", " KEEP_N(D) ", " KEEP_N(q_batch) ", " KEEP_N(q_row) ", " KEEP_N(
                    kv_batch) ", " KEEP_N(kv_row) ", " KEEP_N(o_batch) ", " KEEP_N(o_row) ","
                                                                                          " " KEEP_N(dq_batch) ", " KEEP_N(dq_row) ", " KEEP_N(dkv_batch) ", " KEEP_N(dkv_row) ", \"has_q_pos\": %d, \"has_k_pos\": %d, "
                                                                                                                                                                               "\"has_q_doc\": %d, \"scale\": %.9g, \"softcap\": %.9g, " KEEP_N(
                                                                                                                                                                                   window) ", " KEEP_N(q_doc_batch),
                KEEP_V(dtype), KEEP_V(o_dtype), KEEP_V(g_dtype), KEEP_V(B), KEEP_V(Tq), KEEP_V(Tk),
                KEEP_V(H), KEEP_V(KV), KEEP_V(D), KEEP_V(q_batch), KEEP_V(q_row), KEEP_V(kv_batch),
                KEEP_V(kv_row), KEEP_V(o_batch), KEEP_V(o_row), KEEP_V(dq_batch), KEEP_V(dq_row),
                KEEP_V(dkv_batch), KEEP_V(dkv_row), s->q_pos != NULL, s->k_pos != NULL,
                s->q_doc != NULL, (double)s->scale, (double)s->softcap, KEEP_V(window),
                KEEP_V(q_doc_batch));
}

static inline void keep_linear_shape(const dh_linear_shape *s)
{
    keep_object(KEEP_N(dtype) ", " KEEP_N(o_dtype) ", " KEEP_N(g_dtype) ", " KEEP_N(B) ", " KEEP_N(
                    T) ", " KEEP_N(H) ", " KEEP_N(KV) ", " KEEP_N(D),
                KEEP_V(dtype), KEEP_V(o_dtype), KEEP_V(g_dtype), KEEP_V(B), KEEP_V(T), KEEP_V(H),
                KEEP_V(KV), KEEP_V(D));
}

static inline void keep_latent(const dh_latent *s)
{
    keep_object(
        KEEP_N(N) ", " KEEP_N(H) ", " KEEP_N(D) ", " KEEP_N(R) ", " KEEP_N(V) ", " KEEP_N(pairs),
        KEEP_V(N), KEEP_V(H), KEEP_V(D), KEEP_V(R), KEEP_V(V), KEEP_V(pairs));
}

static inline void keep_grouped(const dh_grouped_desc *s)
{
    keep_object(KEEP_N(kind) ", " KEEP_N(dtype) ", " KEEP_N(E) ", " KEEP_N(O) ", " KEEP_N(
                    I) ", " KEEP_N(rows) ", " KEEP_N(accumulate),
                KEEP_V(kind), KEEP_V(dtype), KEEP_V(E), KEEP_V(O), KEEP_V(I), KEEP_V(rows),
                KEEP_V(accumulate));
}

static inline void keep_heads(dh_heads h)
{
    const dh_heads *s = &h;
    keep_object(KEEP_N(N) ", " KEEP_N(H) ", " KEEP_N(KV) ", " KEEP_N(D), KEEP_V(N), KEEP_V(H),
                KEEP_V(KV), KEEP_V(D));
}

static inline void keep_scalars(const dh_scalars *s)
{
    keep_object(
        KEEP_N(step) ", \"seed\": %llu, \"lr\": %.17g, \"beta1\": %.17g, \"beta2\": %.17g, "
                     "\"eps\": %.17g, \"weight_decay\": %.17g, \"grad_clip\": %.17g, "
                     "\"router_bias_rate\": %.17g, \"loss_rows\": %.17g, " KEEP_N(even_experts),
        KEEP_V(step), (unsigned long long)s->seed, s->lr, s->beta1, s->beta2, s->eps,
        s->weight_decay, s->grad_clip, s->router_bias_rate, s->loss_rows, KEEP_V(even_experts));
}

static inline void keep_dropout(const dh_cuda_dropout *d)
{
    if (!d) {
        keep_address(NULL);
        return;
    }
    keep_object("\"prob\": %.9g, \"site\": %u, \"seed\": %llu, \"step\": %lld", (double)d->prob,
                d->site, (unsigned long long)(d->scalars ? d->scalars->seed : 0),
                (long long)(d->scalars ? d->scalars->step : 0));
}

/* A value's kind is its type's. */
#define KEEP(x)                                                                                    \
    _Generic((x), bool: keep_integer, char: keep_integer, signed char: keep_integer,               \
             short: keep_integer, int: keep_integer, long: keep_integer,                           \
             long long: keep_integer, unsigned char: keep_unsigned,                                \
             unsigned short: keep_unsigned, unsigned: keep_unsigned,                               \
             unsigned long: keep_unsigned, unsigned long long: keep_unsigned, float: keep_real,    \
             double: keep_real, dh_heads: keep_heads, dh_attn_shape *: keep_attn_shape,            \
             const dh_attn_shape *: keep_attn_shape, dh_linear_shape *: keep_linear_shape,         \
             const dh_linear_shape *: keep_linear_shape, dh_latent *: keep_latent,                 \
             const dh_latent *: keep_latent, dh_grouped_desc *: keep_grouped,                      \
             const dh_grouped_desc *: keep_grouped, dh_scalars *: keep_scalars,                    \
             const dh_scalars *: keep_scalars, dh_cuda_dropout *: keep_dropout,                    \
             const dh_cuda_dropout *: keep_dropout, default: keep_address)(x);

/* KEEP of each of 1 to 20 arguments, in their order. */
#define KEEP_1(x) KEEP(x)
#define KEEP_2(x, ...) KEEP(x) KEEP_1(__VA_ARGS__)
#define KEEP_3(x, ...) KEEP(x) KEEP_2(__VA_ARGS__)
#define KEEP_4(x, ...) KEEP(x) KEEP_3(__VA_ARGS__)
#define KEEP_5(x, ...) KEEP(x) KEEP_4(__VA_ARGS__)
#define KEEP_6(x, ...) KEEP(x) KEEP_5(__VA_ARGS__)
#define KEEP_7(x, ...) KEEP(x) KEEP_6(__VA_ARGS__)
#define KEEP_8(x, ...) KEEP(x) KEEP_7(__VA_ARGS__)
#define KEEP_9(x, ...) KEEP(x) KEEP_8(__VA_ARGS__)
#define KEEP_10(x, ...) KEEP(x) KEEP_9(__VA_ARGS__)
#define KEEP_11(x, ...) KEEP(x) KEEP_10(__VA_ARGS__)
#define KEEP_12(x, ...) KEEP(x) KEEP_11(__VA_ARGS__)
#define KEEP_13(x, ...) KEEP(x) KEEP_12(__VA_ARGS__)
#define KEEP_14(x, ...) KEEP(x) KEEP_13(__VA_ARGS__)
#define KEEP_15(x, ...) KEEP(x) KEEP_14(__VA_ARGS__)
#define KEEP_16(x, ...) KEEP(x) KEEP_15(__VA_ARGS__)
#define KEEP_17(x, ...) KEEP(x) KEEP_16(__VA_ARGS__)
#define KEEP_18(x, ...) KEEP(x) KEEP_17(__VA_ARGS__)
#define KEEP_19(x, ...) KEEP(x) KEEP_18(__VA_ARGS__)
#define KEEP_20(x, ...) KEEP(x) KEEP_19(__VA_ARGS__)
#define KEEP_PICK(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, macro, ...) macro
#define KEEP_EACH(...)                                                                             \
    KEEP_PICK(__VA_ARGS__, KEEP_20, KEEP_19, KEEP_18, KEEP_17, KEEP_16, KEEP_15, KEEP_14, KEEP_13, \
              KEEP_12, KEEP_11, KEEP_10, KEEP_9, KEEP_8, KEEP_7, KEEP_6, KEEP_5, KEEP_4, KEEP_3,   \
              KEEP_2, KEEP_1, )                                                                    \
    (__VA_ARGS__)

/* Arguments are evaluated twice. */
#define LAUNCH(f, ...)                                                                             \
    do {                                                                                           \
        keep_call(#f, #__VA_ARGS__);                                                               \
        KEEP_EACH(__VA_ARGS__)                                                                     \
        f(NULL, __VA_ARGS__);                                                                      \
        gpu_await();                                                                               \
    } while (0)

#endif
