/* Additions of some families of models, element by element: GEGLU, capped logits, norms by 1 +
 * weight, adapters' rows, feature maps of linear attention. As pointwise.cu, bound by memory. Rows
 * are seldom whole runs of 16 bytes, and are taken one by one. Reference: run/cpu/kernels.h. */
#include "run/cuda/kernels/act.cuh"
#include "run/cuda/kernels/device.cuh"

/* ---- GEGLU ------------------------------------------------------------------------------------
 */

template <class T> __global__ void geglu_fwd(int64_t n, int64_t F, const T *h, T *g)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        const T *row = h + i / F * 2 * F + i % F;
        narrow(gelu(widen(row[0])) * widen(row[F]), &g[i]);
    }
}

template <class T> __global__ void geglu_bwd(int64_t n, int64_t F, const T *dg, const T *h, T *dh)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        const int64_t at = i / F * 2 * F + i % F;
        const float gate = widen(h[at]), up = widen(h[at + F]), d = widen(dg[i]);
        narrow(d * up * gelu_slope(gate), &dh[at]);
        narrow(d * gelu(gate), &dh[at + F]);
    }
}

void dh_cuda_geglu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *h,
                       void *g)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(geglu_fwd<T>, flat_blocks(N * F), FLAT_THREADS, stream, N * F, F, (const T *)h,
               (T *)g);
    });
}

void dh_cuda_geglu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *dg,
                       const void *h, void *dh)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(geglu_bwd<T>, flat_blocks(N * F), FLAT_THREADS, stream, N * F, F, (const T *)dg,
               (const T *)h, (T *)dh);
    });
}

/* ---- capped logits ----------------------------------------------------------------------------
 */

__global__ void softcap_fwd(int64_t n, float c, const float *x, float *y)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) y[i] = c * tanhf(x[i] / c);
}

template <class T>
__global__ void softcap_bwd(int64_t n, float c, const T *dy, const float *y, T *dx)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        const float r = y[i] / c;
        narrow(widen(dy[i]) * (1.0f - r * r), &dx[i]);
    }
}

void dh_cuda_softcap_fwd(dh_cuda_stream stream, int64_t n, float c, const float *x, float *y)
{
    launch(softcap_fwd, flat_blocks(n), FLAT_THREADS, stream, n, c, x, y);
}

void dh_cuda_softcap_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, float c, const void *dy,
                         const float *y, void *dx)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(softcap_bwd<T>, flat_blocks(n), FLAT_THREADS, stream, n, c, (const T *)dy, y,
               (T *)dx);
    });
}

/* ---- weights of norms --------------------------------------------------------------------------
 */

__global__ void offset(int64_t n, float value, const float *x, float *y)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) y[i] = value + (x ? x[i] : 0.0f);
}

void dh_cuda_offset(dh_cuda_stream stream, int64_t n, float value, const float *x, float *y)
{
    launch(offset, flat_blocks(n), FLAT_THREADS, stream, n, value, x, y);
}

/* ---- adapters ----------------------------------------------------------------------------------
 */

template <class T>
__global__ void scale_rows(int64_t n_items, int64_t n, float factor, const T *x, int64_t x_row,
                           T *y, int64_t y_row, bool adds)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        T *to = &y[i / n * y_row + i % n];
        const float v = factor * widen(x[i / n * x_row + i % n]);
        narrow(adds ? widen(*to) + v : v, to);
    }
}

static void scaled_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n,
                        float factor, const void *x, int64_t x_row, void *y, int64_t y_row,
                        bool adds)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(scale_rows<T>, flat_blocks(rows * n), FLAT_THREADS, stream, rows * n, n, factor,
               (const T *)x, x_row, (T *)y, y_row, adds);
    });
}

void dh_cuda_add_scaled_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n,
                             float factor, const void *x, void *y, int64_t y_row)
{
    scaled_rows(stream, dtype, rows, n, factor, x, n, y, y_row, true);
}

void dh_cuda_scale_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n,
                        float factor, const void *x, int64_t x_row, void *y)
{
    scaled_rows(stream, dtype, rows, n, factor, x, x_row, y, n, false);
}

/* ---- feature maps ------------------------------------------------------------------------------
 */

/* 1 + elu(x) is 1 + x above 0, e^x below; x; silu(x). Slopes likewise. */
DEVICE float feature_of(int map, float x)
{
    float rest;
    if (map == DH_FEATURE_ELU) return x > 0.0f ? x + 1.0f : expf(x);
    return map == DH_FEATURE_SILU ? x * sigmoid(x, &rest) : x;
}

DEVICE float feature_slope(int map, float x)
{
    float rest;
    if (map == DH_FEATURE_ELU) return x > 0.0f ? 1.0f : expf(x);
    if (map != DH_FEATURE_SILU) return 1.0f;
    const float s = sigmoid(x, &rest);
    return s * (1.0f + x * rest);
}

/* Map the first `mapped` columns of a row; the others are copied. dy NULL: forward. */
template <class T>
__global__ void feature_map(int map, int64_t n_items, int64_t row, int64_t mapped, const T *dy,
                            const T *x, T *y)
{
    for (int64_t i = first_of_grid(); i < n_items; i += grid_step()) {
        const float v = widen(x[i]);
        if (i % row >= mapped)
            y[i] = dy ? dy[i] : x[i];
        else
            narrow(dy ? widen(dy[i]) * feature_slope(map, v) : feature_of(map, v), &y[i]);
    }
}

void dh_cuda_feature_map_fwd(dh_cuda_stream stream, dh_feature_map map, dh_dtype dtype, dh_heads h,
                             const void *qkv, void *out)
{
    dh_cuda_feature_map_bwd(stream, map, dtype, h, NULL, qkv, out);
}

void dh_cuda_feature_map_bwd(dh_cuda_stream stream, dh_feature_map map, dh_dtype dtype, dh_heads h,
                             const void *dout, const void *qkv, void *dqkv)
{
    const int64_t mapped = (h.H + h.KV) * h.D, row = mapped + h.KV * h.D;
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(feature_map<T>, flat_blocks(h.N * row), FLAT_THREADS, stream, (int)map, h.N * row,
               row, mapped, (const T *)dout, (const T *)qkv, (T *)dqkv);
    });
}
