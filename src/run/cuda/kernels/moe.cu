/* Mixture of experts: router, order of choices by expert, rows into that order and back.
 *
 * A row's router is a thread's: experts are few. The order needs no scratch and no atomics. There
 * is a block an expert. It counts the choices of experts before its own, then numbers its own in
 * order, 256 at a time by ballots. Reference: run/cpu/moe.c. */
#include "run/cuda/kernels/device.cuh"

/* ---- router -------------------------------------------------------------------------------------
 */

DEVICE bool is_chosen(const int32_t *experts, int64_t n, int64_t e)
{
    for (int64_t j = 0; j < n; j++)
        if (experts[j] == e) return true;
    return false;
}

template <class T>
__global__ void router_fwd(int64_t N, int64_t E, int64_t top_k, const T *logits, float *probs,
                           int32_t *experts, float *weights)
{
    const int64_t n = first_of_grid();
    if (n >= N) return;
    float max = -INFINITY, sum = 0, chosen = 0;
    for (int64_t e = 0; e < E; e++) max = fmaxf(max, widen(logits[n * E + e]));
    for (int64_t e = 0; e < E; e++) sum += probs[n * E + e] = expf(widen(logits[n * E + e]) - max);
    for (int64_t e = 0; e < E; e++) probs[n * E + e] /= sum;
    for (int64_t j = 0; j < top_k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++)
            if (!is_chosen(experts + n * top_k, j, e) &&
                (best < 0 || probs[n * E + e] > probs[n * E + best]))
                best = e;
        experts[n * top_k + j] = (int32_t)best;
        chosen += probs[n * E + best];
    }
    for (int64_t j = 0; j < top_k; j++)
        weights[n * top_k + j] = probs[n * E + experts[n * top_k + j]] / chosen;
}

void dh_cuda_router_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E, int64_t top_k,
                        const void *logits, float *probs, int32_t *experts, float *weights)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_fwd<T>, div_up(N, FLAT_THREADS), FLAT_THREADS, stream, N, E, top_k,
               (const T *)logits, probs, experts, weights);
    });
}

__global__ void router_deal(int64_t n, int64_t E, const dh_scalars *scalars, int32_t *experts)
{
    if (scalars && !scalars->even_experts) return;
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) experts[i] = (int32_t)(i % E);
}

void dh_cuda_router_deal(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                         const dh_scalars *scalars, int32_t *experts)
{
    launch(router_deal, flat_blocks(N * top_k), FLAT_THREADS, stream, N * top_k, E, scalars,
           experts);
}

/* The values from which a row's gradient is made; see run/cpu/moe.c. */
struct router_row {
    const int32_t *experts;
    const float *weights, *dweights;
    double mean, sum;
};

DEVICE double prob_gradient(const router_row &row, int64_t top_k, int64_t e, double aux)
{
    for (int64_t j = 0; j < top_k; j++)
        if (row.experts[j] == e) return ((double)row.dweights[j] - row.mean) / row.sum + aux;
    return aux;
}

template <class T>
__global__ void router_bwd(int64_t N, int64_t E, int64_t top_k, const float *probs,
                           const int32_t *experts, const float *weights, const float *dweights,
                           const double *counts, double aux_factor, T *dlogits)
{
    const int64_t n = first_of_grid();
    if (n >= N) return;
    router_row row = {experts + n * top_k, weights ? weights + n * top_k : NULL,
                      dweights + n * top_k, 0, 0};
    const float *p = probs + n * E;
    double dot = 0;
    if (!weights) row.sum = 1; /* they are the probabilities */
    for (int64_t j = 0; j < top_k && weights; j++) {
        row.mean += (double)row.dweights[j] * (double)row.weights[j];
        row.sum += (double)p[row.experts[j]];
    }
    for (int64_t e = 0; e < E; e++)
        dot += (double)p[e] * prob_gradient(row, top_k, e, aux_factor * counts[e]);
    for (int64_t e = 0; e < E; e++) {
        const double g = prob_gradient(row, top_k, e, aux_factor * counts[e]);
        narrow((float)((double)p[e] * (g - dot)), &dlogits[n * E + e]);
    }
}

void dh_cuda_router_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E, int64_t top_k,
                        const float *probs, const int32_t *experts, const float *weights,
                        const float *dweights, const double *counts, int64_t rows, double aux_coef,
                        void *dlogits)
{
    const double aux_factor = aux_coef * (double)E / ((double)rows * (double)rows);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(router_bwd<T>, div_up(N, FLAT_THREADS), FLAT_THREADS, stream, N, E, top_k, probs,
               experts, weights, dweights, counts, aux_factor, (T *)dlogits);
    });
}

/* A block an expert. */
__global__ void router_sums(int64_t N, int64_t E, int64_t top_k, const float *probs,
                            const int32_t *experts, double *counts, double *prob_sums)
{
    DH_SHARED(double, room, [WARP]);
    const int64_t e = blockIdx.x;
    double count = 0, sum = 0;
    for (int64_t i = threadIdx.x; i < N * top_k; i += blockDim.x) count += experts[i] == e;
    for (int64_t n = threadIdx.x; n < N; n += blockDim.x) sum += (double)probs[n * E + e];
    count = block_sum(count, room);
    sum = block_sum(sum, room);
    if (threadIdx.x != 0) return;
    counts[e] += count;
    prob_sums[e] += sum;
}

void dh_cuda_router_sums(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                         const float *probs, const int32_t *experts, double *counts,
                         double *prob_sums)
{
    launch(router_sums, E, FLAT_THREADS, stream, N, E, top_k, probs, experts, counts, prob_sums);
}

__global__ void router_aux(int64_t E, double rows, const double *counts, const double *prob_sums,
                           bool accumulate, double *aux)
{
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (int64_t e = 0; e < E; e++) sum += counts[e] * prob_sums[e];
    const double loss = (double)E * sum / (rows * rows);
    aux[0] = accumulate ? aux[0] + loss : loss;
    aux[1] = accumulate ? aux[1] + 1 : 1;
}

void dh_cuda_router_aux(dh_cuda_stream stream, int64_t E, int64_t rows, const double *counts,
                        const double *prob_sums, bool accumulate, double *aux)
{
    launch(router_aux, 1, WARP, stream, E, (double)rows, counts, prob_sums, accumulate, aux);
}

/* ---- order by expert ----------------------------------------------------------------------------
 */

/* Number of the block's threads before this one that say yes; *all: of all threads. `room`: a count
 * a warp. */
DEVICE int64_t rank_among(bool yes, int *room, int64_t *all)
{
    const unsigned votes = __ballot_sync(ALL_LANES, yes);
    if (lane_id() == 0) room[warp_id()] = __popc(votes);
    __syncthreads();
    int64_t before = __popc(votes & ((1u << lane_id()) - 1u)), total = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
        if (w < warp_id()) before += room[w];
        total += room[w];
    }
    __syncthreads();
    *all = total;
    return before;
}

__global__ void moe_order(int64_t n, int64_t E, const int32_t *experts, int64_t capacity,
                          int64_t *offsets, int32_t *slot_of)
{
    DH_SHARED(long long, sums, [WARP]);
    DH_SHARED(int, room, [WARP]);
    const int64_t e = blockIdx.x;
    long long smaller = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) smaller += experts[i] < e;
    const int64_t first = capacity > 0 ? e * capacity : (int64_t)block_sum(smaller, sums);
    int64_t taken = 0, all;
    for (int64_t i0 = 0; i0 < n; i0 += blockDim.x) {
        const int64_t i = i0 + threadIdx.x;
        const bool mine = i < n && experts[i] == e;
        const int64_t rank = taken + rank_among(mine, room, &all);
        if (mine) slot_of[i] = capacity > 0 && rank >= capacity ? -1 : (int32_t)(first + rank);
        taken += all;
    }
    if (threadIdx.x != 0) return;
    offsets[e] = first;
    if (e == E - 1) offsets[E] = capacity > 0 ? E * capacity : first + taken;
}

void dh_cuda_moe_order(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                       const int32_t *experts, int64_t capacity, int64_t *offsets, int32_t *slot_of)
{
    launch(moe_order, E, FLAT_THREADS, stream, N * top_k, E, experts, capacity, offsets, slot_of);
}

__global__ void moe_count(int64_t n, const int32_t *experts, int64_t *counts)
{
    DH_SHARED(long long, room, [WARP]);
    long long count = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) count += experts[i] == (int)blockIdx.x;
    count = block_sum(count, room);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

void dh_cuda_moe_count(dh_cuda_stream stream, int64_t n, int64_t E, const int32_t *experts,
                       int64_t *counts)
{
    launch(moe_count, E, FLAT_THREADS, stream, n, experts, counts);
}

/* Whether choice i, of a row that begins with choice n0, is its row's first one on node d. */
DEVICE bool is_first_there(int64_t i, int64_t n0, int64_t per_node, int64_t d,
                           const int32_t *experts, const int32_t *slots)
{
    if (slots[i] < 0 || experts[i] / per_node != d) return false;
    for (int64_t k = n0; k < i; k++)
        if (slots[k] >= 0 && experts[k] / per_node == d) return false;
    return true;
}

/* A block a node. A choice that is not its row's first there is written by its own node's block.
 * The first block writes choices without a slot, the last block places after the last. */
__global__ void moe_nodes(int64_t n, int64_t per_node, int64_t top_k, int64_t n_nodes,
                          const int32_t *experts, const int32_t *slots, int64_t n_places,
                          int32_t *rows, int64_t *starts, int32_t *here)
{
    DH_SHARED(long long, sums, [WARP]);
    DH_SHARED(int, room, [WARP]);
    const int64_t d = blockIdx.x;
    long long smaller = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t node = experts[i] / per_node;
        smaller +=
            node < d && is_first_there(i, i / top_k * top_k, per_node, node, experts, slots);
    }
    const int64_t first = (int64_t)block_sum(smaller, sums);
    int64_t taken = 0, all;
    for (int64_t i0 = 0; i0 < n; i0 += blockDim.x) {
        const int64_t i = i0 + threadIdx.x, row0 = i / top_k * top_k;
        const bool mine = i < n && is_first_there(i, row0, per_node, d, experts, slots);
        const int64_t place = first + taken + rank_among(mine, room, &all);
        if (mine) {
            rows[i] = (int32_t)place;
            for (int64_t k = 0; k < top_k; k++) {
                const bool on_it = slots[row0 + k] >= 0 && experts[row0 + k] / per_node == d;
                here[place * top_k + k] =
                    on_it ? (int32_t)(experts[row0 + k] - d * per_node) : -1;
            }
        } else if (i < n && (slots[i] < 0 ? d == 0 : experts[i] / per_node == d)) {
            rows[i] = -1;
        }
        taken += all;
    }
    if (threadIdx.x == 0) starts[d] = first;
    if (d != n_nodes - 1) return;
    if (threadIdx.x == 0) starts[n_nodes] = first + taken;
    for (int64_t i = (first + taken) * top_k + threadIdx.x; i < n_places * top_k; i += blockDim.x)
        here[i] = -1;
}

void dh_cuda_moe_nodes(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k, int64_t n_nodes,
                       const int32_t *experts, const int32_t *slots, int64_t n_places,
                       int32_t *rows, int64_t *starts, int32_t *here)
{
    launch(moe_nodes, n_nodes, FLAT_THREADS, stream, N * top_k, E / n_nodes, top_k, n_nodes,
           experts, slots, n_places, rows, starts, here);
}

/* A block a number, which is an expert of rows from one node. The block of the first expert writes
 * the places without a choice, the last block the rows that nobody sent. */
__global__ void moe_node_order(int64_t n, int64_t per_node, int64_t top_k, const int32_t *here,
                               const int64_t *arrived, int64_t capacity, int64_t room,
                               int64_t *counts, int32_t *slots)
{
    DH_SHARED(long long, sums, [WARP]);
    DH_SHARED(int, votes, [WARP]);
    const int64_t number = blockIdx.x, a = number / per_node, e = number % per_node;
    const int64_t from = arrived[a] * top_k < n ? arrived[a] * top_k : n;
    const int64_t end = arrived[a + 1] * top_k < n ? arrived[a + 1] * top_k : n;
    long long smaller = 0;
    for (int64_t i = threadIdx.x; i < end; i += blockDim.x)
        smaller += here[i] >= 0 && (i < from || here[i] < e);
    const int64_t before = (int64_t)block_sum(smaller, sums);
    const int64_t first = capacity > 0 ? number * capacity : before;
    int64_t taken = 0, all;
    for (int64_t i0 = from; i0 < end; i0 += blockDim.x) {
        const int64_t i = i0 + threadIdx.x;
        const bool mine = i < end && here[i] == e;
        const int64_t rank = taken + rank_among(mine, votes, &all), slot = first + rank;
        const bool fits = (capacity == 0 || rank < capacity) && (room == 0 || slot < room);
        if (mine) slots[i] = fits ? (int32_t)slot : -1;
        if (i < end && here[i] < 0 && e == 0) slots[i] = -1;
        taken += all;
    }
    if (threadIdx.x == 0) counts[number] = taken;
    if (number != gridDim.x - 1) return;
    for (int64_t i = end + threadIdx.x; i < n; i += blockDim.x) slots[i] = -1;
}

void dh_cuda_moe_node_order(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                            int64_t n_nodes, const int32_t *here, const int64_t *arrived,
                            int64_t capacity, int64_t room, int64_t *counts, int32_t *slots)
{
    launch(moe_node_order, E, FLAT_THREADS, stream, N * top_k, E / n_nodes, top_k, here, arrived,
           capacity, room, counts, slots);
}

__global__ void moe_lengths(int64_t n_runs, const int64_t *offsets, int64_t *lengths)
{
    for (int64_t s = first_of_grid(); s < n_runs; s += grid_step())
        lengths[s] = offsets[s + 1] - offsets[s];
}

void dh_cuda_moe_lengths(dh_cuda_stream stream, int64_t n_runs, const int64_t *offsets,
                         int64_t *lengths)
{
    launch(moe_lengths, flat_blocks(n_runs), FLAT_THREADS, stream, n_runs, offsets, lengths);
}

__global__ void moe_offsets(int64_t n_runs, const int64_t *counts, int64_t *offsets)
{
    if (threadIdx.x != 0) return;
    int64_t at = 0;
    for (int64_t s = 0; s < n_runs; s++) {
        offsets[s] = at;
        at += counts[s];
    }
    offsets[n_runs] = at;
}

void dh_cuda_moe_offsets(dh_cuda_stream stream, int64_t n_runs, const int64_t *counts,
                         int64_t *offsets)
{
    launch(moe_offsets, 1, WARP, stream, n_runs, counts, offsets);
}

/* ---- rows
 * ------------------------------------------------------------------------------------------ */

static size_t rows_bytes(dh_dtype dtype, int64_t n_elements)
{
    return (size_t)n_elements * (dtype == DH_BF16 ? 2 : 4);
}

/* A block a choice. */
template <class T>
__global__ void moe_permute(int64_t C, int64_t top_k, const T *x, const int32_t *slot_of, T *y)
{
    const int64_t i = blockIdx.x, slot = slot_of[i];
    if (slot < 0) return;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) y[slot * C + c] = x[i / top_k * C + c];
}

/* Only the device knows which slots stay empty: all are zeros before. */
void dh_cuda_moe_permute(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, int64_t top_k,
                         const void *x, const int32_t *slot_of, int64_t n_slots, void *y)
{
    dh_cuda_zero(stream, rows_bytes(dtype, n_slots * C), y);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(moe_permute<T>, N * top_k, row_threads(C), stream, C, top_k, (const T *)x, slot_of,
               (T *)y);
    });
}

template <class T>
__global__ void moe_unpermute(int64_t n, int64_t C, int64_t top_k, const T *y,
                              const int32_t *slot_of, const float *weights, T *x)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        const int64_t row = i / C, c = i % C;
        float sum = 0;
        for (int64_t j = row * top_k; j < (row + 1) * top_k; j++)
            if (slot_of[j] >= 0)
                sum += (weights ? weights[j] : 1.0f) * widen(y[(int64_t)slot_of[j] * C + c]);
        narrow(sum, &x[i]);
    }
}

void dh_cuda_moe_unpermute(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                           int64_t top_k, const void *y, const int32_t *slot_of,
                           const float *weights, void *x)
{
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(moe_unpermute<T>, flat_blocks(N * C), FLAT_THREADS, stream, N * C, C, top_k,
               (const T *)y, slot_of, weights, (T *)x);
    });
}

/* A block a choice. */
template <class T>
__global__ void moe_unpermute_bwd(int64_t C, int64_t top_k, const T *dx, const T *y,
                                  const int32_t *slot_of, const float *weights, T *dy,
                                  float *dweights)
{
    DH_SHARED(float, room, [WARP]);
    const int64_t i = blockIdx.x, slot = slot_of[i];
    const T *row = dx + i / top_k * C;
    float dot = 0;
    for (int64_t c = threadIdx.x; slot >= 0 && c < C; c += blockDim.x) {
        const float d = widen(row[c]);
        dot += d * widen(y[slot * C + c]);
        narrow(d * weights[i], &dy[slot * C + c]);
    }
    dot = block_sum(dot, room);
    if (threadIdx.x == 0) dweights[i] = dot;
}

void dh_cuda_moe_unpermute_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                               int64_t top_k, const void *dx, const void *y, const int32_t *slot_of,
                               const float *weights, int64_t n_slots, void *dy, float *dweights)
{
    dh_cuda_zero(stream, rows_bytes(dtype, n_slots * C), dy);
    by_type(dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        launch(moe_unpermute_bwd<T>, N * top_k, row_threads(C), stream, C, top_k, (const T *)dx,
               (const T *)y, slot_of, weights, (T *)dy, dweights);
    });
}
