/* Reductions in a fixed order. Every element is x0 + x1 + x2 + ..., added from the left,
 * whatever the slicing, so all worlds give the same bits. Blocks keep the
 * accumulators in the first-level cache while the operands
 * stream by once. */
#include "impl.h"

enum { BLOCK = 512 };

static inline float max_f32(float a, float b)
{
    return a > b || a != a ? a : b;
}

static inline double max_f64(double a, double b)
{
    return a > b || a != a ? a : b;
}

#define SAME(x) (x)
#define ADD(a, b) ((a) + (b))

/* fn: reduces elements of `type`, accumulating in `acc_type`. Unsigned types
 * stand for signed ones in sums, where wrapping must be defined. */
#define DEFINE_REDUCE(fn, type, acc_type, load, store, combine)                                    \
    static void fn(void *dst, const void *const *src, int n, int64_t at, int64_t count)            \
    {                                                                                              \
        for (int64_t end = at + count; at < end; at += BLOCK) {                                    \
            acc_type acc[BLOCK];                                                                   \
            int m = (int)DH_MIN((int64_t)BLOCK, end - at);                                         \
            const type *x = (const type *)src[0] + at;                                             \
            for (int i = 0; i < m; i++) acc[i] = load(x[i]);                                       \
            for (int j = 1; j < n; j++) {                                                          \
                x = (const type *)src[j] + at;                                                     \
                for (int i = 0; i < m; i++) acc[i] = combine(acc[i], load(x[i]));                  \
            }                                                                                      \
            type *y = (type *)dst + at;                                                            \
            for (int i = 0; i < m; i++) y[i] = (type)store(acc[i]);                                \
        }                                                                                          \
    }

DEFINE_REDUCE(sum_f32, float, float, SAME, SAME, ADD)
DEFINE_REDUCE(max_of_f32, float, float, SAME, SAME, max_f32)
DEFINE_REDUCE(sum_bf16, dh_bf16, float, dh_bf16_to_f32, dh_f32_to_bf16, ADD)
DEFINE_REDUCE(max_of_bf16, dh_bf16, float, dh_bf16_to_f32, dh_f32_to_bf16, max_f32)
DEFINE_REDUCE(sum_i32, uint32_t, uint32_t, SAME, SAME, ADD)
DEFINE_REDUCE(max_of_i32, int32_t, int32_t, SAME, SAME, DH_MAX)
DEFINE_REDUCE(sum_u8, uint8_t, uint32_t, SAME, SAME, ADD)
DEFINE_REDUCE(max_of_u8, uint8_t, uint8_t, SAME, SAME, DH_MAX)
DEFINE_REDUCE(sum_f64, double, double, SAME, SAME, ADD)
DEFINE_REDUCE(max_of_f64, double, double, SAME, SAME, max_f64)
DEFINE_REDUCE(sum_i64, uint64_t, uint64_t, SAME, SAME, ADD)
DEFINE_REDUCE(max_of_i64, int64_t, int64_t, SAME, SAME, DH_MAX)

typedef void (*reduce_fn)(void *dst, const void *const *src, int n, int64_t at, int64_t count);

static const reduce_fn reduce_table[DH_N_DTYPE][DH_N_REDUCE] = {
    [DH_F32] = {sum_f32, max_of_f32}, [DH_BF16] = {sum_bf16, max_of_bf16},
    [DH_I32] = {sum_i32, max_of_i32}, [DH_U8] = {sum_u8, max_of_u8},
    [DH_F64] = {sum_f64, max_of_f64}, [DH_I64] = {sum_i64, max_of_i64},
};

void dh_comm_reduce_ordered(dh_dtype dtype, dh_comm_reduce reduce, void *dst,
                            const void *const *src, int n, int64_t at, int64_t count)
{
    reduce_table[dtype][reduce](dst, src, n, at, count);
}
