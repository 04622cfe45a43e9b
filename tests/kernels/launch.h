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

#define FIELD(x)                                                                                   \
    {                                                                                              \
#x, (double)s->x                                                                           \
    }

static inline void keep_attn_shape(const dh_attn_shape *s)
{
    const keep_field fields[] = {FIELD(dtype),
                                 FIELD(o_dtype),
                                 FIELD(g_dtype),
                                 FIELD(B),
                                 FIELD(Tq),
                                 FIELD(Tk),
                                 FIELD(H),
                                 FIELD(KV),
                                 FIELD(D),
                                 FIELD(q_batch),
                                 FIELD(q_row),
                                 FIELD(kv_batch),
                                 FIELD(kv_row),
                                 FIELD(o_batch),
                                 FIELD(o_row),
                                 FIELD(dq_batch),
                                 FIELD(dq_row),
                                 FIELD(dkv_batch),
                                 FIELD(dkv_row),
                                 FIELD(scale),
                                 FIELD(softcap),
                                 FIELD(window),
                                 FIELD(q_doc_batch),
                                 {"has_q_pos", s->q_pos != NULL},
                                 {"has_k_pos", s->k_pos != NULL},
                                 {"has_q_doc", s->q_doc != NULL}};
    keep_fields(fields, sizeof fields / sizeof *fields);
}

static inline void keep_linear_shape(const dh_linear_shape *s)
{
    const keep_field fields[] = {FIELD(dtype), FIELD(o_dtype), FIELD(g_dtype), FIELD(B),
                                 FIELD(T),     FIELD(H),       FIELD(KV),      FIELD(D)};
    keep_fields(fields, sizeof fields / sizeof *fields);
}

static inline void keep_latent(const dh_latent *s)
{
    const keep_field fields[] = {FIELD(N), FIELD(H), FIELD(D), FIELD(R), FIELD(V), FIELD(pairs)};
    keep_fields(fields, sizeof fields / sizeof *fields);
}

static inline void keep_grouped(const dh_grouped_desc *s)
{
    const keep_field fields[] = {FIELD(kind), FIELD(dtype), FIELD(E),         FIELD(O),
                                 FIELD(I),    FIELD(rows),  FIELD(accumulate)};
    keep_fields(fields, sizeof fields / sizeof *fields);
}

static inline void keep_heads(dh_heads h)
{
    const dh_heads *s = &h;
    const keep_field fields[] = {FIELD(N), FIELD(H), FIELD(KV), FIELD(D)};
    keep_fields(fields, sizeof fields / sizeof *fields);
}

static inline void keep_scalars(const dh_scalars *s)
{
    const keep_field fields[] = {FIELD(step),         FIELD(seed),        FIELD(lr),
                                 FIELD(beta1),        FIELD(beta2),       FIELD(eps),
                                 FIELD(weight_decay), FIELD(grad_clip),   FIELD(router_bias_rate),
                                 FIELD(loss_rows),    FIELD(even_experts)};
    keep_fields(fields, sizeof fields / sizeof *fields);
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
