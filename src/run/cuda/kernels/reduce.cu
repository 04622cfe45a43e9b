/* Sums of whole arrays; exact sums of squares; the clipping factor; a scan for non-finite values.
 *
 * Exact sums (Neal 2015, arXiv 1505.05571, section 2): the squares of each run of 32 elements are
 * added in float64 by a warp in a fixed order. Runs are added as integers, which may come in any
 * order. Each float64 is cut into digits of 32 bits, in words of 64 that take 2^31 additions before
 * they carry. Reference: run/cpu/reduce.c, simd/exact.h. */
#include "run/cuda/kernels/device.cuh"

enum { DIGITS = DH_SQSUM_DIGITS, LOWEST = -352, HIGHEST = 2 * 128 + 5 };

/* ---- sum ----------------------------------------------------------------------------------------
 */

__global__ void sum_all(int64_t n, const float *x, double *sum)
{
    DH_SHARED(double, room, [WARP]);
    double total = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) total += (double)x[i];
    total = block_sum(total, room);
    if (threadIdx.x == 0) *sum = total;
}

void dh_cuda_sum(dh_cuda_stream stream, int64_t n, const float *x, double *sum)
{
    launch(sum_all, 1, MOST_THREADS, stream, n, x, sum);
}

/* ---- exact sums
 * ----------------------------------------------------------------------------------- */

/* `odd`: sum of what is not finite, else 0. */
struct exact {
    unsigned long long digits[DIGITS];
    double odd;
};

DEVICE void exact_clear(exact *e)
{
    for (int i = 0; i < DIGITS; i++) e->digits[i] = 0;
    e->odd = 0;
}

/* x is a sum of squares: no sign. */
DEVICE void exact_add(exact *e, double x)
{
    const uint64_t bits = (uint64_t)__double_as_longlong(x);
    const int exponent = (int)(bits >> 52);
    if (exponent == 0) return;
    if (exponent > 1023 + HIGHEST) {
        e->odd += x;
        return;
    }
    const uint64_t mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    const int at = exponent - 1075 - LOWEST, digit = at / 32, shift = at % 32;
    const uint64_t above = mantissa >> (32 - shift);
    e->digits[digit] += (uint32_t)(mantissa << shift);
    e->digits[digit + 1] += (uint32_t)above;
    e->digits[digit + 2] += above >> 32;
}

/* Digits below 2^32, except the last: one form for one value. */
DEVICE void exact_write(exact *e, double *digits)
{
    for (int i = 0; i + 1 < DIGITS; i++) {
        e->digits[i + 1] += e->digits[i] >> 32;
        e->digits[i] = (uint32_t)e->digits[i];
    }
    for (int i = 0; i < DIGITS; i++) digits[i] = (double)e->digits[i];
    if (e->odd != 0) digits[0] = e->odd;
}

/* Each warp takes every n-th run of 32 runs; lane k keeps the sum of run k. */
__global__ void sqsum_parts(int64_t n, const float *x, exact *parts)
{
    DH_SHARED(unsigned long long, room, [WARP]);
    DH_SHARED(double, room_odd, [WARP]);
    const int64_t batch = WARP * WARP;
    exact mine;
    exact_clear(&mine);
    for (int64_t at = first_of_grid() / WARP * batch; at < n; at += grid_step() / WARP * batch) {
        double kept = 0;
        for (unsigned run = 0; run < WARP; run++) {
            const int64_t i = at + run * WARP + lane_id();
            const double v = i < n ? (double)x[i] : 0.0, total = warp_sum(v * v);
            if (lane_id() == run) kept = total;
        }
        exact_add(&mine, kept);
    }
    exact *part = &parts[blockIdx.x];
    for (int i = 0; i < DIGITS; i++) {
        const unsigned long long digit = block_sum(mine.digits[i], room);
        if (threadIdx.x == 0) part->digits[i] = digit;
    }
    const double odd = block_sum(mine.odd, room_odd);
    if (threadIdx.x == 0) part->odd = odd;
}

/* One warp: a lane a digit. */
__global__ void sqsum_total(int64_t n_parts, const exact *parts, double *digits)
{
    DH_SHARED(exact, sum, [1]);
    const unsigned i = threadIdx.x;
    if (i < DIGITS) {
        unsigned long long total = 0;
        for (int64_t k = 0; k < n_parts; k++) total += parts[k].digits[i];
        sum[0].digits[i] = total;
    } else if (i == DIGITS) {
        sum[0].odd = 0;
        for (int64_t k = 0; k < n_parts; k++) sum[0].odd += parts[k].odd;
    }
    __syncthreads();
    if (i == 0) exact_write(&sum[0], digits);
}

/* At least one, so that no elements have a sum too. */
static int64_t sqsum_blocks(int64_t n)
{
    const int64_t blocks = div_up(n, (int64_t)WARP * WARP * FLAT_THREADS / WARP);
    return blocks < 1 ? 1 : blocks < FLAT_BLOCKS ? blocks : FLAT_BLOCKS;
}

size_t dh_cuda_sqsum_workspace(int64_t n)
{
    return (size_t)sqsum_blocks(n) * sizeof(exact);
}

void dh_cuda_sqsum(dh_cuda_stream stream, int64_t n, const float *x, double *digits, void *ws)
{
    const int64_t blocks = sqsum_blocks(n);
    launch(sqsum_parts, blocks, FLAT_THREADS, stream, n, x, (exact *)ws);
    launch(sqsum_total, 1, WARP, stream, blocks, (const exact *)ws, digits);
}

DEVICE bool is_odd(const double *row)
{
    return !is_finite(row[0]);
}

/* A row whose first digit is not finite is that value; its other digits count all the same. */
__global__ void exact_sum(int64_t n, const double *rows, double *digits)
{
    DH_SHARED(exact, sum, [1]);
    const unsigned i = threadIdx.x;
    if (i < DIGITS) {
        unsigned long long total = 0;
        for (int64_t k = 0; k < n; k++) {
            const double digit = rows[k * DIGITS + i];
            if (is_finite(digit)) total += (unsigned long long)digit;
        }
        sum[0].digits[i] = total;
    } else if (i == DIGITS) {
        sum[0].odd = 0;
        for (int64_t k = 0; k < n; k++)
            if (is_odd(rows + k * DIGITS)) sum[0].odd += rows[k * DIGITS];
    }
    __syncthreads();
    if (i == 0) exact_write(&sum[0], digits);
}

void dh_cuda_exact_sum(dh_cuda_stream stream, int64_t n, const double *rows, double *digits)
{
    launch(exact_sum, 1, WARP, stream, n, rows, digits);
}

/* torch.nn.utils.clip_grad_norm_'s factor, its 1e-6 included. */
__global__ void clip(const double *digits, const dh_scalars *scalars, double *norm)
{
    if (threadIdx.x != 0) return;
    double carried[DIGITS], square = 0;
    exact e;
    for (int i = 0; i < DIGITS; i++)
        e.digits[i] = is_finite(digits[i]) ? (unsigned long long)digits[i] : 0;
    e.odd = is_odd(digits) ? digits[0] : 0;
    const double odd = e.odd;
    e.odd = 0;
    exact_write(&e, carried);
    for (int i = DIGITS - 1; i >= 0; i--) square += ldexp(carried[i], 32 * i + LOWEST);
    norm[0] = sqrt(odd != 0 ? odd : square);
    const double factor = scalars->grad_clip / (norm[0] + 1e-6);
    norm[1] = scalars->grad_clip > 0 && factor < 1.0 ? factor : 1.0;
}

void dh_cuda_clip(dh_cuda_stream stream, const double *digits, const dh_scalars *scalars,
                  double *norm)
{
    launch(clip, 1, WARP, stream, digits, scalars, norm);
}

/* ---- what is not finite
 * -------------------------------------------------------------------------- */

DEVICE bool is_finite_value(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

/* The smallest of all threads' finds: no order changes it. -1 as an unsigned is above all. */
template <class T> __global__ void first_nonfinite(int64_t n, const T *x, unsigned long long *first)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        if (is_finite_value(widen(x[i]))) continue;
        atomicMin(first, (unsigned long long)i);
        return;
    }
}

__global__ void set_none(unsigned long long *first)
{
    if (threadIdx.x == 0) *first = ~0ull;
}

void dh_cuda_first_nonfinite(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *x,
                             int64_t *first)
{
    unsigned long long *at = (unsigned long long *)first;
    launch(set_none, 1, WARP, stream, at);
    if (n == 0) return;
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(first_nonfinite<T>, flat_blocks(n), FLAT_THREADS, stream, n, (const T *)x, at);
    });
}
