/* Cross-entropy over a vocabulary that may be sharded: statistics, their merge, losses, gradient.
 *
 * Statistics read each logit once. A thread keeps the maximum so far and the sum of e^(x -
 * maximum), rescaled when the maximum rises (Milakov & Gimelshein 2018, arXiv 1805.02867, algorithm
 * 3). Threads join theirs in a fixed order. The gradient reads and writes once. Reference:
 * dh_k_ce_*. */
#include "run/cuda/kernels/device.cuh"

enum { CE_THREADS = 512 };

/* ---- statistics
 * ---------------------------------------------------------------------------------- */

struct softmax_part {
    float max, sum;
};

/* e^(x - max), 0 where both are -inf. */
DEVICE float weight_of(float x, float max)
{
    return x == -INFINITY ? 0.0f : expf(x - max);
}

/* A value that is not a number stays one. */
DEVICE void see(float x, softmax_part *part)
{
    if (x > part->max) {
        part->sum = part->sum * weight_of(part->max, x) + 1.0f;
        part->max = x;
    } else {
        part->sum += weight_of(x, part->max);
    }
}

DEVICE softmax_part join(softmax_part a, softmax_part b)
{
    softmax_part both;
    both.max = a.max > b.max ? a.max : b.max;
    both.sum = a.sum * weight_of(a.max, both.max) + b.sum * weight_of(b.max, both.max);
    return both;
}

/* Statistics of the whole block, in thread 0. */
DEVICE softmax_part block_join(softmax_part part, softmax_part *room)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2) {
        softmax_part other;
        other.max = __shfl_xor_sync(ALL_LANES, part.max, step);
        other.sum = __shfl_xor_sync(ALL_LANES, part.sum, step);
        part = lane_id() & step ? join(other, part) : join(part, other);
    }
    if (lane_id() == 0) room[warp_id()] = part;
    __syncthreads();
    part = room[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++) part = join(part, room[w]);
    return part;
}

template <class T, int V>
__global__ void ce_stats(int64_t n_columns, int64_t v0, const T *logits, const int32_t *targets,
                         float *stats)
{
    DH_SHARED(softmax_part, room, [WARP]);
    const int64_t r = blockIdx.x;
    const T *row = logits + r * n_columns;
    softmax_part part = {-INFINITY, 0};
    float x[V];
    for (int64_t i = (int64_t)threadIdx.x * V; i < n_columns; i += (int64_t)blockDim.x * V) {
        load<T, V>(row + i, x);
        for (int k = 0; k < V; k++) see(x[k], &part);
    }
    part = block_join(part, room);
    if (threadIdx.x != 0) return;
    const int64_t target = targets[r] - v0;
    stats[3 * r] = part.max;
    stats[3 * r + 1] = part.sum;
    stats[3 * r + 2] = target >= 0 && target < n_columns ? widen(row[target]) : 0.0f;
}

void dh_cuda_ce_stats(dh_cuda_stream stream, dh_dtype dtype, int64_t n, int64_t v0, int64_t v1,
                      const void *logits, const int32_t *targets, float *stats)
{
    by_type(dtype, is_aligned(logits), v1 - v0, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(ce_stats<T, t.width>, n, CE_THREADS, stream, v1 - v0, v0, (const T *)logits, targets,
               stats);
    });
}

__global__ void ce_merge(int64_t tp, int64_t n, const float *parts, float *stats)
{
    for (int64_t r = first_of_grid(); r < n; r += grid_step()) {
        softmax_part all = {parts[3 * r], parts[3 * r + 1]};
        float target = parts[3 * r + 2];
        for (int64_t i = 1; i < tp; i++) {
            const float *part = parts + 3 * (i * n + r);
            const softmax_part other = {part[0], part[1]};
            all = join(all, other);
            target += part[2];
        }
        stats[3 * r] = all.max;
        stats[3 * r + 1] = all.sum;
        stats[3 * r + 2] = target;
    }
}

void dh_cuda_ce_merge(dh_cuda_stream stream, int64_t tp, int64_t n, const float *parts,
                      float *stats)
{
    launch(ce_merge, flat_blocks(n), FLAT_THREADS, stream, tp, n, parts, stats);
}

/* ---- losses
 * ---------------------------------------------------------------------------------------- */

__global__ void ce_loss(int64_t n, const float *stats, const int32_t *targets, float *loss)
{
    for (int64_t r = first_of_grid(); r < n; r += grid_step()) {
        const float *s = stats + 3 * r;
        loss[r] =
            targets[r] < 0 ? 0.0f : (float)(log((double)s[1]) + ((double)s[0] - (double)s[2]));
    }
}

void dh_cuda_ce_loss(dh_cuda_stream stream, int64_t n, const float *stats, const int32_t *targets,
                     float *loss)
{
    launch(ce_loss, flat_blocks(n), FLAT_THREADS, stream, n, stats, targets, loss);
}

/* One block: rows are few, and their sum has one order. */
__global__ void ce_total(int64_t n, const float *loss, const int32_t *targets, bool accumulate,
                         double *total)
{
    DH_SHARED(double, room, [WARP]);
    double sum = 0, rows = 0;
    for (int64_t r = threadIdx.x; r < n; r += blockDim.x) {
        sum += (double)loss[r];
        rows += targets[r] >= 0 ? 1.0 : 0.0;
    }
    sum = block_sum(sum, room);
    rows = block_sum(rows, room);
    if (threadIdx.x != 0) return;
    total[0] = accumulate ? total[0] + sum : sum;
    total[1] = accumulate ? total[1] + rows : rows;
}

void dh_cuda_ce_total(dh_cuda_stream stream, int64_t n, const float *loss, const int32_t *targets,
                      bool accumulate, double *total)
{
    launch(ce_total, 1, MOST_THREADS, stream, n, loss, targets, accumulate, total);
}

/* ---- gradient
 * ---------------------------------------------------------------------------------------- */

/* (softmax - onehot) scale; the target's minus one is formed before rounding. */
template <class T, class G>
__global__ void ce_grad(const dh_scalars *scalars, int64_t n_columns, int64_t v0, const T *logits,
                        const int32_t *targets, const float *stats, float scale, G *dlogits)
{
    if (scalars && scalars->loss_rows > 0) scale = (float)(1 / scalars->loss_rows);
    const int64_t r = blockIdx.x, target = targets[r] - v0;
    const float max = stats[3 * r], sum = stats[3 * r + 1], factor = scale / sum;
    const bool counts = targets[r] >= 0;
    for (int64_t i = threadIdx.x; i < n_columns; i += blockDim.x) {
        const float e = weight_of(widen(logits[r * n_columns + i]), max);
        const float hot = i == target ? (e / sum - 1.0f) * scale : e * factor;
        narrow(counts ? hot : 0.0f, &dlogits[r * n_columns + i]);
    }
}

void dh_cuda_ce_grad(dh_cuda_stream stream, dh_dtype dtype, dh_dtype out_dtype,
                     const dh_scalars *scalars, int64_t n, int64_t v0, int64_t v1,
                     const void *logits, const int32_t *targets, const float *stats, float scale,
                     void *dlogits)
{
    by_type(dtype, [&](auto t) {
        by_type(out_dtype, [&](auto g) {
            typedef typename decltype(t)::type T;
            typedef typename decltype(g)::type G;
            launch(ce_grad<T, G>, n, CE_THREADS, stream, scalars, v1 - v0, v0, (const T *)logits,
                   targets, stats, scale, (G *)dlogits);
        });
    });
}
