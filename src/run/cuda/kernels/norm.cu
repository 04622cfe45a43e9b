/* LayerNorm and RMSNorm of rows and of heads; column sums.
 *
 *   y = (x - mean) rstd w + b, xh = (x - mean) rstd, g = dy w.
 *   dx = rstd (g - mean[g] - xh mean[g xh]) + dres.     RMSNorm: mean and mean[g] are 0.
 *   dw[c] = sum over rows of dy xh, db[c] = sum over rows of dy
 *
 * A block does a row of C, with as many threads as it has runs of elements, 256 at most: one pass
 * from memory, the others out of the cache. Column sums take two launches, since rows are many and
 * columns few: partial sums of CHUNK rows, 32 columns a block, then of the chunks in order.
 * Reference: dh_k_norm_*, dh_k_head_norm_*, dh_k_bias_grad. */
#include "run/cuda/kernels/device.cuh"

/* ---- forward -----------------------------------------------------------------------------------
 */

/* Common to norms of rows and of heads. */
struct norm_rule {
    bool center; /* LayerNorm */
    int64_t C;
    float eps;
};

template <class T, int V>
DEVICE float row_sum(const norm_rule &rule, const T *x, float mean, bool squares, float *room)
{
    float total = 0, v[V];
    for (int64_t i = (int64_t)threadIdx.x * V; i < rule.C; i += (int64_t)blockDim.x * V) {
        load<T, V>(x + i, v);
        for (int k = 0; k < V; k++) {
            const float d = v[k] - mean;
            total += squares ? d * d : d;
        }
    }
    return block_sum(total, room);
}

template <class T, int V>
DEVICE void norm_row(const norm_rule &rule, const T *x, const float *w, const float *b, T *y,
                     float *stats, float *room)
{
    const float mean = rule.center ? row_sum<T, V>(rule, x, 0, false, room) / (float)rule.C : 0.0f;
    const float variance = row_sum<T, V>(rule, x, mean, true, room) / (float)rule.C;
    const float rstd = 1.0f / sqrtf(variance + rule.eps);
    float v[V], weight[V], bias[V];
    for (int64_t i = (int64_t)threadIdx.x * V; i < rule.C; i += (int64_t)blockDim.x * V) {
        load<T, V>(x + i, v);
        load_floats<V>(w + i, weight);
        if (b) load_floats<V>(b + i, bias);
        for (int k = 0; k < V; k++) v[k] = (v[k] - mean) * rstd * weight[k] + (b ? bias[k] : 0.0f);
        store<T, V>(v, y + i);
    }
    if (threadIdx.x == 0) {
        stats[0] = mean;
        stats[1] = rstd;
    }
}

template <class T, int V>
__global__ void norm_fwd(norm_rule rule, const T *x, const float *w, const float *b, T *y,
                         float *stats)
{
    DH_SHARED(float, room, [WARP]);
    const int64_t row = blockIdx.x;
    norm_row<T, V>(rule, x + row * rule.C, w, b, y + row * rule.C, stats + 2 * row, room);
}

void dh_cuda_norm_fwd(dh_cuda_stream stream, dh_norm_kind kind, dh_dtype dtype, int64_t N,
                      int64_t C, const void *x, const float *w, const float *b, float eps, void *y,
                      float *stats)
{
    const norm_rule rule = {kind == DH_NORM_LAYER, C, eps};
    by_type(dtype, are_aligned(x, w, b, y), C, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(norm_fwd<T, t.width>, N, row_threads(div_up(C, t.width)), stream, rule, (const T *)x,
               w, b, (T *)y, stats);
    });
}

/* ---- gradient of the input --------------------------------------------------------------------
 */

template <class T, int V>
DEVICE void norm_row_dgrad(const norm_rule &rule, const T *dy, const T *x, const float *w,
                           const float *stats, const T *dres, T *dx, float *room)
{
    const float mean = stats[0], rstd = stats[1];
    float d[V], v[V], weight[V], sum_g = 0, sum_gx = 0;
    for (int64_t i = (int64_t)threadIdx.x * V; i < rule.C; i += (int64_t)blockDim.x * V) {
        load<T, V>(dy + i, d);
        load<T, V>(x + i, v);
        load_floats<V>(w + i, weight);
        for (int k = 0; k < V; k++) {
            sum_g += d[k] * weight[k];
            sum_gx += d[k] * weight[k] * ((v[k] - mean) * rstd);
        }
    }
    sum_g = block_sum(sum_g, room);
    sum_gx = block_sum(sum_gx, room);
    const float mean_g = rule.center ? sum_g / (float)rule.C : 0.0f;
    const float mean_gx = sum_gx / (float)rule.C;
    for (int64_t i = (int64_t)threadIdx.x * V; i < rule.C; i += (int64_t)blockDim.x * V) {
        float res[V];
        load<T, V>(dy + i, d);
        load<T, V>(x + i, v);
        load_floats<V>(w + i, weight);
        if (dres) load<T, V>(dres + i, res);
        for (int k = 0; k < V; k++) {
            const float g = d[k] * weight[k], xh = (v[k] - mean) * rstd;
            v[k] = (g - mean_g - xh * mean_gx) * rstd + (dres ? res[k] : 0.0f);
        }
        store<T, V>(v, dx + i);
    }
}

template <class T, int V>
__global__ void norm_dgrad(norm_rule rule, const T *dy, const T *x, const float *w,
                           const float *stats, const T *dres, T *dx)
{
    DH_SHARED(float, room, [WARP]);
    const int64_t at = (int64_t)blockIdx.x * rule.C;
    norm_row_dgrad<T, V>(rule, dy + at, x + at, w, stats + 2 * (int64_t)blockIdx.x,
                         dres ? dres + at : dres, dx + at, room);
}

void dh_cuda_norm_dgrad(dh_cuda_stream stream, dh_norm_kind kind, dh_dtype dtype, int64_t N,
                        int64_t C, const void *dy, const void *x, const float *w,
                        const float *stats, const void *dres, void *dx)
{
    const norm_rule rule = {kind == DH_NORM_LAYER, C, 0};
    by_type(dtype, are_aligned(dy, x, w, dres, dx), C, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(norm_dgrad<T, t.width>, N, row_threads(div_up(C, t.width)), stream, rule,
               (const T *)dy, (const T *)x, w, stats, (const T *)dres, (T *)dx);
    });
}

/* ---- column sums --------------------------------------------------------------------------------
 */

enum { CHUNK = 128, COLUMNS = 32, ROW_LANES = 8 };

/* Rows of n_groups heads side by side, or one of them: whole rows. Partial sums lie in [group]
 * [chunk] [2: of dy xh, of dy] [C]. */
struct column_rule {
    int64_t N, C, n_groups;
    int64_t row, stats_row; /* elements, floats, from row to row */
};

static int64_t chunks_of(int64_t N)
{
    return div_up(N, CHUNK);
}

/* A block: COLUMNS columns of a group, CHUNK rows, of which each of ROW_LANES lanes adds every
 * eighth; the lanes' sums are added in order. */
template <class T>
__global__ void column_parts(column_rule rule, const T *dy, const T *x, const float *stats,
                             float *parts)
{
    DH_SHARED(float, sums, [2][ROW_LANES][COLUMNS]);
    const int64_t tiles = (rule.C + COLUMNS - 1) / COLUMNS;
    const int64_t chunks = (rule.N + CHUNK - 1) / CHUNK;
    const int64_t tile = blockIdx.x % tiles, chunk = blockIdx.x / tiles % chunks;
    const int64_t group = blockIdx.x / (tiles * chunks);
    const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    const int64_t c = tile * COLUMNS + column, end = (chunk + 1) * CHUNK;
    float sum_w = 0, sum_b = 0;
    for (int64_t r = chunk * CHUNK + lane; c < rule.C && r < end && r < rule.N; r += ROW_LANES) {
        const int64_t at = r * rule.row + group * rule.C + c;
        const float d = widen(dy[at]);
        sum_b += d;
        if (stats) {
            const float *s = stats + r * rule.stats_row + 2 * group;
            sum_w += d * ((widen(x[at]) - s[0]) * s[1]);
        }
    }
    sums[0][lane][column] = sum_w;
    sums[1][lane][column] = sum_b;
    __syncthreads();
    if (lane >= 2 || c >= rule.C) return;
    float total = 0;
    for (int k = 0; k < ROW_LANES; k++) total += sums[lane][k][column];
    parts[((group * chunks + chunk) * 2 + lane) * rule.C + c] = total;
}

/* Totals of the parts of n_groups groups, group after group; either may be NULL. */
__global__ void column_totals(int64_t C, int64_t n_parts, const float *parts, float *dw,
                              bool dw_adds, float *db, bool db_adds)
{
    const int64_t c = first_of_grid();
    if (c >= C) return;
    float sum_w = 0, sum_b = 0;
    for (int64_t k = 0; k < n_parts; k++) {
        sum_w += parts[2 * k * C + c];
        sum_b += parts[(2 * k + 1) * C + c];
    }
    if (dw) dw[c] = dw_adds ? dw[c] + sum_w : sum_w;
    if (db) db[c] = db_adds ? db[c] + sum_b : sum_b;
}

static size_t parts_floats(int64_t n_groups, int64_t N, int64_t C)
{
    return (size_t)(n_groups * chunks_of(N) * 2 * C);
}

static void sum_columns(dh_cuda_stream stream, dh_dtype dtype, const column_rule &rule,
                        const void *dy, const void *x, const float *stats, float *parts)
{
    const int64_t n_blocks = rule.n_groups * chunks_of(rule.N) * div_up(rule.C, COLUMNS);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(column_parts<T>, n_blocks, COLUMNS * ROW_LANES, stream, rule, (const T *)dy,
               (const T *)x, stats, parts);
    });
}

static void add_columns(dh_cuda_stream stream, int64_t C, int64_t n_parts, const float *parts,
                        float *dw, bool dw_adds, float *db, bool db_adds)
{
    launch(column_totals, div_up(C, FLAT_THREADS), FLAT_THREADS, stream, C, n_parts, parts, dw,
           dw_adds, db, db_adds);
}

size_t dh_cuda_columns_workspace(int64_t N, int64_t C)
{
    return parts_floats(1, N, C) * sizeof(float);
}

void dh_cuda_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                        const void *x, const float *stats, float *dw, float *db, bool accumulate,
                        void *ws)
{
    const column_rule rule = {N, C, 1, C, 2};
    sum_columns(stream, dtype, rule, dy, x, stats, (float *)ws);
    add_columns(stream, C, chunks_of(N), (float *)ws, dw, accumulate, db, accumulate);
}

void dh_cuda_bias_grad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                       float *db, bool accumulate, void *ws)
{
    const column_rule rule = {N, C, 1, C, 0};
    sum_columns(stream, dtype, rule, dy, NULL, NULL, (float *)ws);
    add_columns(stream, C, chunks_of(N), (float *)ws, NULL, false, db, accumulate);
}

/* ---- heads
 * ---------------------------------------------------------------------------------------- */

/* A block does a head of a row, as if it were a row of its own; those of values are copied. */
struct head_place {
    int64_t row, head, at, stats;
    bool is_query, is_value;
};

DEVICE head_place place_of(const dh_heads &h)
{
    const int64_t n_heads = h.H + 2 * h.KV, normed = h.H + h.KV;
    head_place p;
    p.row = blockIdx.x / n_heads;
    p.head = blockIdx.x % n_heads;
    p.at = (int64_t)blockIdx.x * h.D;
    p.stats = 2 * (p.row * normed + p.head);
    p.is_query = p.head < h.H;
    p.is_value = p.head >= normed;
    return p;
}

template <class T> DEVICE void copy_head(int64_t D, const T *x, T *y)
{
    for (int64_t i = threadIdx.x; i < D; i += blockDim.x) y[i] = x[i];
}

template <class T, int V>
__global__ void head_norm_fwd(dh_heads h, norm_rule rule, const T *qkv, const float *w_q,
                              const float *w_k, T *out, float *stats)
{
    DH_SHARED(float, room, [WARP]);
    const head_place p = place_of(h);
    if (p.is_value)
        copy_head(h.D, qkv + p.at, out + p.at);
    else
        norm_row<T, V>(rule, qkv + p.at, p.is_query ? w_q : w_k, NULL, out + p.at, stats + p.stats,
                       room);
}

void dh_cuda_head_norm_fwd(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                           const float *w_q, const float *w_k, float eps, void *out, float *stats)
{
    const norm_rule rule = {false, h.D, eps};
    by_type(dtype, are_aligned(qkv, w_q, w_k, out), h.D, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(head_norm_fwd<T, t.width>, h.N * (h.H + 2 * h.KV), row_threads(div_up(h.D, t.width)),
               stream, h, rule, (const T *)qkv, w_q, w_k, (T *)out, stats);
    });
}

template <class T, int V>
__global__ void head_norm_dgrad(dh_heads h, norm_rule rule, const T *dy, const T *qkv,
                                const float *w_q, const float *w_k, const float *stats, T *dqkv)
{
    DH_SHARED(float, room, [WARP]);
    const head_place p = place_of(h);
    if (p.is_value)
        copy_head(h.D, dy + p.at, dqkv + p.at);
    else
        norm_row_dgrad<T, V>(rule, dy + p.at, qkv + p.at, p.is_query ? w_q : w_k, stats + p.stats,
                             (const T *)NULL, dqkv + p.at, room);
}

void dh_cuda_head_norm_dgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                             const void *qkv, const float *w_q, const float *w_k,
                             const float *stats, void *dqkv)
{
    const norm_rule rule = {false, h.D, 0};
    by_type(dtype, are_aligned(dy, qkv, w_q, w_k, dqkv), h.D, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(head_norm_dgrad<T, t.width>, h.N * (h.H + 2 * h.KV),
               row_threads(div_up(h.D, t.width)), stream, h, rule, (const T *)dy, (const T *)qkv,
               w_q, w_k, stats, (T *)dqkv);
    });
}

size_t dh_cuda_head_norm_wgrad_workspace(dh_heads h)
{
    return parts_floats(h.H + h.KV, h.N, h.D) * sizeof(float);
}

void dh_cuda_head_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                             const void *qkv, const float *stats, float *dw_q, float *dw_k,
                             unsigned accumulate, void *ws)
{
    const int64_t normed = h.H + h.KV, chunks = chunks_of(h.N);
    const column_rule rule = {h.N, h.D, normed, (normed + h.KV) * h.D, 2 * normed};
    float *parts = (float *)ws;
    sum_columns(stream, dtype, rule, dy, qkv, stats, parts);
    add_columns(stream, h.D, h.H * chunks, parts, dw_q, accumulate & 1, NULL, false);
    add_columns(stream, h.D, h.KV * chunks, parts + h.H * chunks * 2 * h.D, dw_k,
                accumulate >> 1 & 1, NULL, false);
}

/* ---- all heads of queries together, and of keys -------------------------------------------------
 *
 * A rank may have some of them, so sums over columns are left as sums, with how many columns they
 * are of; a block a row. The totals are used element by element. Reference:
 * run/cpu/qk_norm.c.
 */

struct qk_rule {
    int64_t N, n_q, n_k, row; /* columns */
};

static qk_rule qk_rule_of(const dh_heads &h)
{
    const qk_rule rule = {h.N, h.H * h.D, h.KV * h.D, (h.H + 2 * h.KV) * h.D};
    return rule;
}

template <class T>
__global__ void qk_sums(qk_rule rule, const T *dy, const T *qkv, const float *w_q, const float *w_k,
                        float *sums)
{
    DH_SHARED(float, room, [WARP]);
    const int64_t n = blockIdx.x, at = n * rule.row;
    float q = 0, k = 0;
    for (int64_t c = threadIdx.x; c < rule.n_q + rule.n_k; c += blockDim.x) {
        const bool is_query = c < rule.n_q;
        const float x = widen(qkv[at + c]);
        const float w = !dy ? x : widen(dy[at + c]) * (is_query ? w_q[c] : w_k[c - rule.n_q]);
        (is_query ? q : k) += w * x;
    }
    q = block_sum(q, room);
    k = block_sum(k, room);
    if (threadIdx.x > 0) return;
    sums[4 * n] = q;
    sums[4 * n + 1] = dy ? 0 : (float)rule.n_q;
    sums[4 * n + 2] = k;
    sums[4 * n + 3] = dy ? 0 : (float)rule.n_k;
}

static void sum_qk(dh_cuda_stream stream, dh_dtype dtype, const dh_heads &h, const void *dy,
                   const void *qkv, const float *w_q, const float *w_k, float *sums)
{
    const qk_rule rule = qk_rule_of(h);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(qk_sums<T>, h.N, row_threads(rule.n_q), stream, rule, (const T *)dy, (const T *)qkv,
               w_q, w_k, sums);
    });
}

void dh_cuda_qk_squares(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                        float *sums)
{
    sum_qk(stream, dtype, h, NULL, qkv, NULL, NULL, sums);
}

void dh_cuda_qk_norm_dots(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                          const void *qkv, const float *w_q, const float *w_k, float *dots)
{
    sum_qk(stream, dtype, h, dy, qkv, w_q, w_k, dots);
}

DEVICE float qk_rstd(const float *sums, float eps)
{
    return 1.0f / sqrtf(sums[0] / sums[1] + eps);
}

/* y = rstd w x; or, where dots are given, dx = rstd (w dy - x rstd^2 dot / columns). */
template <class T>
__global__ void qk_norm(qk_rule rule, const T *dy, const T *qkv, const float *sums,
                        const float *w_q, const float *w_k, const float *dots, float eps, T *out)
{
    for (int64_t i = first_of_grid(); i < rule.N * rule.row; i += grid_step()) {
        const int64_t n = i / rule.row, c = i % rule.row;
        const int64_t which = c < rule.n_q ? 0 : 2;
        if (c >= rule.n_q + rule.n_k) {
            out[i] = dots ? dy[i] : qkv[i];
            continue;
        }
        const float *s = sums + 4 * n + which;
        const float rstd = qk_rstd(s, eps), w = which ? w_k[c - rule.n_q] : w_q[c];
        const float x = widen(qkv[i]);
        const float y =
            dots ? rstd * (w * widen(dy[i]) - x * (rstd * rstd * (dots[4 * n + which] / s[1])))
                 : x * (rstd * w);
        narrow(y, &out[i]);
    }
}

void dh_cuda_qk_norm_fwd(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                         const float *sums, const float *w_q, const float *w_k, float eps,
                         void *out)
{
    dh_cuda_qk_norm_dgrad(stream, dtype, h, NULL, qkv, sums, w_q, w_k, NULL, eps, out);
}

void dh_cuda_qk_norm_dgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                           const void *qkv, const float *sums, const float *w_q, const float *w_k,
                           const float *dots, float eps, void *dqkv)
{
    const qk_rule rule = qk_rule_of(h);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(qk_norm<T>, flat_blocks(rule.N * rule.row), FLAT_THREADS, stream, rule,
               (const T *)dy, (const T *)qkv, sums, w_q, w_k, dots, eps, (T *)dqkv);
    });
}

/* Statistics of a norm's rows: mean 0 and rstd, of queries and of keys. */
__global__ void qk_stats(int64_t N, const float *sums, float eps, float *stats)
{
    const int64_t i = first_of_grid();
    if (i >= 2 * N) return;
    stats[2 * i] = 0;
    stats[2 * i + 1] = qk_rstd(sums + 2 * i, eps);
}

size_t dh_cuda_qk_norm_wgrad_workspace(dh_heads h)
{
    return ((size_t)(4 * h.N) + parts_floats(1, h.N, h.H * h.D)) * sizeof(float);
}

void dh_cuda_qk_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                           const void *qkv, const float *sums, float eps, float *dw_q, float *dw_k,
                           unsigned accumulate, void *ws)
{
    const qk_rule all = qk_rule_of(h);
    const size_t item = dh_dtype_bytes(dtype), keys = (size_t)all.n_q * item;
    float *stats = (float *)ws, *parts = stats + 4 * h.N;
    const column_rule q = {h.N, all.n_q, 1, all.row, 4}, k = {h.N, all.n_k, 1, all.row, 4};
    launch(qk_stats, div_up(2 * h.N, FLAT_THREADS), FLAT_THREADS, stream, h.N, sums, eps, stats);
    sum_columns(stream, dtype, q, dy, qkv, stats, parts);
    add_columns(stream, all.n_q, chunks_of(h.N), parts, dw_q, accumulate & 1, NULL, false);
    sum_columns(stream, dtype, k, (const char *)dy + keys, (const char *)qkv + keys, stats + 2,
                parts);
    add_columns(stream, all.n_k, chunks_of(h.N), parts, dw_k, accumulate >> 1 & 1, NULL, false);
}
