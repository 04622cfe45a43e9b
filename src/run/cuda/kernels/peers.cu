/* Work of ranks on one GPU on each other's memory. Sums are in the order of ranks, each element by
 * one thread, so they are those of run/comm/reduce.c bit for bit. Kernels of one warp stay on a
 * stream for as long as a paced wire would take (run/comm/local_wires.c).
 *
 * The speed of a transfer follows from how many are on its wires each time that it looks: one that
 * comes or goes is noticed a nap later. */
#include "run/cuda/kernels/device.cuh"

/* ---- sums -------------------------------------------------------------------------------------
 */

/* V elements at once, float32 and bf16. */
template <class T, int V> __global__ void sum_floats(int64_t n, dh_cuda_ranks x)
{
    for (int64_t i = first_of_grid() * V; i < n; i += grid_step() * V) {
        float sum[V];
        load<T, V>(static_cast<const T *>(x.from[0]) + i, sum);
        for (int j = 1; j < x.n_from; j++) {
            float more[V];
            load<T, V>(static_cast<const T *>(x.from[j]) + i, more);
            for (int k = 0; k < V; k++) sum[k] = sum[k] + more[k];
        }
        for (int j = 0; j < x.n_to; j++) store<T, V>(sum, static_cast<T *>(x.to[j]) + i);
    }
}

/* Unsigned types stand for signed ones, whose sums wrap. */
template <class T> __global__ void sum_plain(int64_t n, dh_cuda_ranks x)
{
    for (int64_t i = first_of_grid(); i < n; i += grid_step()) {
        T sum = static_cast<const T *>(x.from[0])[i];
        for (int j = 1; j < x.n_from; j++)
            sum = static_cast<T>(sum + static_cast<const T *>(x.from[j])[i]);
        for (int j = 0; j < x.n_to; j++) static_cast<T *>(x.to[j])[i] = sum;
    }
}

static bool all_aligned(const dh_cuda_ranks *x)
{
    bool all = true;
    for (int j = 0; j < x->n_from; j++) all = all && is_aligned(x->from[j]);
    for (int j = 0; j < x->n_to; j++) all = all && is_aligned(x->to[j]);
    return all;
}

void dh_cuda_sum_ranks(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const dh_cuda_ranks *x)
{
    const int64_t blocks = flat_blocks(n);
    if (dtype == DH_F32 || dtype == DH_BF16)
        by_type(dtype, all_aligned(x), n, [&](auto t) {
            typedef decltype(t) kind;
            launch(sum_floats<typename kind::type, kind::width>, flat_blocks(n / kind::width),
                   FLAT_THREADS, stream, n, *x);
        });
    else if (dtype == DH_F64)
        launch(sum_plain<double>, blocks, FLAT_THREADS, stream, n, *x);
    else if (dtype == DH_I64)
        launch(sum_plain<unsigned long long>, blocks, FLAT_THREADS, stream, n, *x);
    else if (dtype == DH_I32)
        launch(sum_plain<unsigned>, blocks, FLAT_THREADS, stream, n, *x);
    else
        launch(sum_plain<unsigned char>, blocks, FLAT_THREADS, stream, n, *x);
}

/* ---- paced wires ------------------------------------------------------------------------------
 */

DEVICE void count(const dh_cuda_wires &wires, const dh_cuda_flow &flow, int more)
{
    for (int i = 0; flow.counts && i < flow.n_wires; i++)
        atomicAdd(&wires.n_on[flow.wires[i]], more);
}

/* Transfers on the fullest of its wires, itself among them, whether it is counted yet or not. */
DEVICE int most_on(const dh_cuda_wires &wires, const dh_cuda_flow &flow)
{
    int most = 1;
    for (int i = 0; i < flow.n_wires; i++) {
        const int n = peek(&wires.n_on[flow.wires[i]]);
        most = n > most ? n : most;
    }
    return most;
}

__global__ void begin_flow(dh_cuda_wires wires, dh_cuda_flow flow, dh_cuda_flow_state *state)
{
    if (threadIdx.x != 0) return;
    state->flow = flow;
    state->left_ns = (double)flow.ns;
    state->ended = 0;
    count(wires, flow, 1);
    state->seen_ns = clock_ns();
}

/* Whether it has come as far as left_ns from its end. */
DEVICE bool has_come(const dh_cuda_wires &wires, dh_cuda_flow_state *f, double left_ns, bool stopped)
{
    if (f->ended) return true;
    const int64_t now = clock_ns();
    f->left_ns -= (double)(now - f->seen_ns) / most_on(wires, f->flow);
    f->seen_ns = now;
    if (f->left_ns <= 0 || stopped) {
        f->ended = 1;
        count(wires, f->flow, -1);
    }
    return f->ended || f->left_ns <= left_ns;
}

__global__ void pass_flows(dh_cuda_wires wires, int n, double share, dh_cuda_flow_state *states)
{
    if (threadIdx.x != 0) return;
    for (bool all = false; !all;) {
        const bool stopped = peek(wires.stop) != 0;
        all = true;
        for (int i = 0; i < n; i++) {
            const double left_ns = (1 - share) * (double)states[i].flow.ns;
            if (!has_come(wires, &states[i], left_ns, stopped)) all = false;
        }
        if (!all) nap();
    }
}

__global__ void rest(dh_cuda_wires wires, int64_t ns)
{
    if (threadIdx.x != 0) return;
    const int64_t from = clock_ns();
    while (clock_ns() - from < ns && peek(wires.stop) == 0) nap();
}

void dh_cuda_flow_begin(dh_cuda_stream stream, const dh_cuda_wires *wires, const dh_cuda_flow *flow,
                        dh_cuda_flow_state *state)
{
    launch(begin_flow, 1, WARP, stream, *wires, *flow, state);
}

void dh_cuda_flows_pass(dh_cuda_stream stream, const dh_cuda_wires *wires, int n, double share,
                        dh_cuda_flow_state *states)
{
    launch(pass_flows, 1, WARP, stream, *wires, n, share, states);
}

void dh_cuda_flow_rest(dh_cuda_stream stream, const dh_cuda_wires *wires, int64_t ns)
{
    if (ns > 0) launch(rest, 1, WARP, stream, *wires, ns);
}
