/* Calls between ranks on one GPU, over CUDA as the host plays it: they have the communicator's
 * numbers, whatever the seed of the streams, and a wait that is left out shows; calls that do not
 * fit together are named; paced wires take their time, and let go. Nothing here has seen a GPU. */
#include "dh_test.h"

#include <pthread.h>

#include "run/comm/impl.h"
#include "run/cuda/cuda.h"
#include "run/cuda/device.h"
#include "run/cuda/host/host.h"
#include "run/cuda/kernels.h"

/* ---- waits that are left out ------------------------------------------------------------------
 */

typedef enum left_out { NO_WAIT, READY_WAITS, DONE_WAITS } left_out;
static left_out leaves_out;

dh_status __real_peer_wait_ready(dh_ctx *ctx, void *stream, cudaEvent_t event);
dh_status __wrap_peer_wait_ready(dh_ctx *ctx, void *stream, cudaEvent_t event);
dh_status __real_peer_wait_done(dh_ctx *ctx, void *stream, cudaEvent_t event);
dh_status __wrap_peer_wait_done(dh_ctx *ctx, void *stream, cudaEvent_t event);

dh_status __wrap_peer_wait_ready(dh_ctx *ctx, void *stream, cudaEvent_t event)
{
    return leaves_out == READY_WAITS ? DH_OK : __real_peer_wait_ready(ctx, stream, event);
}

dh_status __wrap_peer_wait_done(dh_ctx *ctx, void *stream, cudaEvent_t event)
{
    return leaves_out == DONE_WAITS ? DH_OK : __real_peer_wait_done(ctx, stream, event);
}

/* ---- members that call ------------------------------------------------------------------------
 */

enum { N = 3, COUNT = 101, LINKS = 2 };

typedef struct memory {
    float source[N * COUNT], send[N * COUNT], recv[N * COUNT], other[N * COUNT];
} memory;

typedef struct member {
    dh_comm_world *world;
    int rank;
    void (*body)(struct member *m);
    const struct call_case *call;
    bool fits_not, backwards;
    int n_links;
    dh_comm_pace pace;
    dh_comm *comm;
    dh_comm_group *groups[LINKS];
    dh_devlink *links[LINKS];
    dh_slab *slab;
    cudaStream_t streams[LINKS];
    memory after;
    int64_t ns[LINKS]; /* of the calls */
    dh_ctx ctx;
    dh_status status;
} member;

static const dh_devlinks *peers(void)
{
    return dh_device_links(&dh_device_cuda, DH_LINKS_DEVICE);
}

static memory *there(const member *m)
{
    return (memory *)(void *)m->slab->at;
}

static dh_status make_link(member *m, int k)
{
    static const int members[N] = {2, 0, 1}; /* whose order is the sums' */
    static const char *const names[LINKS] = {"one", "two"};
    char why[200];
    const dh_comm_group_spec group = {names[k], members, N, k, DH_ENGINE_LOCAL};
    DH_TRY(dh_comm_group_create(&m->ctx, m->comm, &group, &m->groups[k]));
    const dh_devlink_spec spec = {.name = names[k],
                                  .comm = m->comm,
                                  .group = m->groups[k],
                                  .n = N,
                                  .rank = m->rank,
                                  .wire = DH_ENGINE_LOCAL,
                                  .pace = m->pace};
    DH_TRY(peers()->create(&m->ctx, m->slab, &spec, &m->links[k], why, sizeof why));
    DH_TRY(dh_cuda_check(&m->ctx, cudaStreamCreateWithFlags(&m->streams[k], cudaStreamNonBlocking),
                         "stream"));
    return m->links[k] ? DH_OK : dh_fail(&m->ctx, DH_EUNSUPPORTED, "%s", why);
}

static dh_status set_up(member *m)
{
    static memory first;
    DH_TRY(dh_comm_attach(&m->ctx, m->world, m->rank, &m->comm));
    DH_TRY(dh_cuda_check(&m->ctx, cudaSetDevice(0), "device"));
    DH_TRY(cuda_slab_create(&m->ctx, sizeof(memory), &m->slab));
    memory *mine = malloc(sizeof *mine);
    assert_non_null(mine);
    *mine = first;
    for (int i = 0; i < N * COUNT; i++)
        mine->source[i] = (float)(int)(dh_mix64((uint64_t)(m->rank * 1000 + i)) % 1000) / 7;
    const dh_status st = cuda_slab_write(&m->ctx, m->slab, 0, mine, sizeof *mine);
    free(mine);
    for (int k = 0; st == DH_OK && k < m->n_links; k++) DH_TRY(make_link(m, k));
    return st;
}

static void *member_main(void *arg)
{
    member *m = arg;
    m->status = set_up(m);
    if (m->status == DH_OK) m->body(m);
    if (m->status != DH_OK && m->comm) dh_comm_abort(m->comm, m->ctx.message);
    for (int k = 0; k < LINKS; k++) {
        if (m->links[k] && m->status != DH_OK) peers()->abort(m->links[k]);
        if (m->streams[k]) cudaStreamDestroy(m->streams[k]);
        peers()->destroy(m->links[k]);
        dh_comm_group_destroy(m->groups[k]);
    }
    cuda_slab_destroy(m->slab);
    if (m->comm) dh_comm_detach(m->comm);
    return NULL;
}

/* All in one played device; nothing is left of them. */
static void run_members(member members[N], const member *like)
{
    dh_ctx ctx = DH_CTX_INIT;
    pthread_t threads[N];
    dh_comm_world *world;
    const dh_comm_config config = {.ranks = N, .timeout_ns = INT64_C(60000000000)};
    dh_host_set_devices(1);
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int r = 0; r < N; r++) {
        members[r] = *like;
        members[r].world = world;
        members[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, member_main, &members[r]), 0);
    }
    for (int r = 0; r < N; r++) pthread_join(threads[r], NULL);
    dh_comm_world_destroy(world);
    assert_int_equal(dh_host_n_objects(), 0);
}

/* ---- calls ------------------------------------------------------------------------------------
 */

typedef struct call_case {
    const char *name;
    dh_devlink_kind kind;
    bool in_place;
    int n_send, n_recv; /* slices of COUNT */
} call_case;

static const call_case cases[] = {{"all-gather", DH_DEVLINK_ALL_GATHER, false, 1, N},
                                  {"reduce-scatter", DH_DEVLINK_REDUCE_SCATTER, false, N, 1},
                                  {"all-reduce", DH_DEVLINK_ALL_REDUCE, false, 1, 1},
                                  {"all-reduce in place", DH_DEVLINK_ALL_REDUCE, true, 1, 1},
                                  {"ring", DH_DEVLINK_TRANSFERS, false, 1, 1},
                                  {"all-to-all", DH_DEVLINK_TRANSFERS, false, N, N}};

static int index_of(const member *m)
{
    return dh_comm_group_index(m->groups[0]);
}

static dh_status make_call(member *m, int link)
{
    const call_case *c = m->call;
    memory *at = there(m);
    const int me = index_of(m), other = m->fits_not && me == 1;
    dh_comm_xfer xfers[2 * N];
    size_t n = 0;
    for (int k = 0; k < N; k++) {
        const bool ring = c->n_send == 1;
        const int to = ring ? (me + 1) % N : k, from = ring ? (me + N - 1) % N : k;
        if (ring && k > 0) break;
        xfers[n++] = (dh_comm_xfer){DH_XFER_SEND, to, 0, DH_F32, COUNT, at->send + k * COUNT};
        xfers[n++] =
            (dh_comm_xfer){DH_XFER_RECV, from, 0, DH_F32, COUNT - other, at->recv + k * COUNT};
    }
    const dh_devlink_call call = {.kind = c->kind,
                                  .dtype = DH_F32,
                                  .count = COUNT - other,
                                  .send = at->send,
                                  .recv = c->in_place ? at->send : at->recv,
                                  .xfers = xfers,
                                  .n_xfers = c->kind == DH_DEVLINK_TRANSFERS ? n : 0,
                                  .steps = c->n_send == N ? N - 1 : 1};
    return peers()->call(&m->ctx, m->links[link], m->streams[link], &call);
}

static dh_status copy_here(member *m, float *to, const float *from)
{
    return dh_cuda_check(
        &m->ctx,
        cudaMemcpyAsync(to, from, sizeof m->after.send, cudaMemcpyDeviceToDevice, m->streams[0]),
        "copy");
}

/* What is sent is made late, and overwritten by what comes behind the call. */
static dh_status call_between_writes(member *m)
{
    memory *at = there(m);
    DH_TRY(copy_here(m, at->send, at->source));
    DH_TRY(make_call(m, 0));
    if (m->call->in_place) DH_TRY(copy_here(m, at->recv, at->send));
    return copy_here(m, at->send, at->other);
}

/* One member's stream is waited for behind another's, in this order or the other one. */
static void call_once(member *m)
{
    m->status = call_between_writes(m);
    for (int k = 0; k < N && m->status == DH_OK; k++) {
        if ((m->backwards ? N - 1 - k : k) == m->rank)
            m->status = dh_cuda_check(&m->ctx, cudaStreamSynchronize(m->streams[0]), "synchronize");
        if (m->status == DH_OK) m->status = dh_comm_barrier(&m->ctx, m->groups[0]);
    }
    if (m->status == DH_OK)
        m->status = cuda_slab_read(&m->ctx, m->slab, 0, &m->after, sizeof m->after);
}

/* By the communicator of the host, from what members' sources were. */
static bool is_right(const member members[N], const member *m)
{
    static const int ranks[N] = {2, 0, 1};
    const call_case *c = m->call;
    int me = 0;
    while (ranks[me] != m->rank) me++;
    const void *from[N];
    float want[N * COUNT];
    for (int j = 0; j < N; j++) from[j] = members[ranks[j]].after.source;
    const float *previous = from[(me + N - 1) % N];
    for (int j = 0; j < N; j++) {
        const float *sent = from[j];
        memcpy(want + j * COUNT, sent + (c->n_send == N ? me * COUNT : 0), COUNT * sizeof *want);
    }
    if (c->kind == DH_DEVLINK_TRANSFERS && c->n_send == 1)
        memcpy(want, previous, COUNT * sizeof *want);
    if (c->kind == DH_DEVLINK_ALL_REDUCE || c->kind == DH_DEVLINK_REDUCE_SCATTER) {
        const int64_t at = c->kind == DH_DEVLINK_ALL_REDUCE ? 0 : (int64_t)me * COUNT;
        float sum[N * COUNT];
        dh_comm_reduce_ordered(DH_F32, DH_REDUCE_SUM, sum, from, N, at, COUNT);
        memcpy(want, sum + at, COUNT * sizeof *want);
    }
    return memcmp(m->after.recv, want, (size_t)c->n_recv * COUNT * sizeof *want) == 0;
}

/* Whether all have what they should. */
static bool call_by(const call_case *c, uint64_t seed)
{
    static member members[N];
    const member like = {
        .body = call_once, .call = c, .n_links = 1, .backwards = seed / 4 % 2 != 0};
    bool right = true;
    dh_host_seed_streams(seed);
    run_members(members, &like);
    for (int r = 0; r < N; r++) {
        assert_ok(&members[r].ctx, members[r].status);
        right = is_right(members, &members[r]) && right;
    }
    return right;
}

static void calls_have_the_numbers_of_the_host(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        for (uint64_t seed = 1; seed <= 8; seed++)
            if (!call_by(&cases[i], seed))
                fail_msg("%s, seed %d: other numbers", cases[i].name, (int)seed);
}

/* A member that does not wait for the others' data finds what was there before; one that does not
 * wait until the others are through overwrites what they were to have. */
static void a_missing_wait_is_found(void **state)
{
    enum { SEEDS = 8 };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        int found[DONE_WAITS + 1] = {0};
        for (left_out k = READY_WAITS; k <= DONE_WAITS; k++) {
            leaves_out = k;
            for (uint64_t seed = 1; seed <= SEEDS; seed++) found[k] += !call_by(&cases[i], seed);
        }
        leaves_out = NO_WAIT;
        print_message("  %-20s of %d runs found without waits for data %d, for the others %d\n",
                      cases[i].name, (int)SEEDS, found[READY_WAITS], found[DONE_WAITS]);
        assert_true(found[READY_WAITS] >= SEEDS / 2 && found[DONE_WAITS] >= SEEDS / 2);
    }
}

static void calls_that_do_not_fit_are_named(void **state)
{
    static member members[N];
    static const size_t tried[] = {0, 1, 2, 4};
    for (size_t i = 0; i < DH_COUNTOF(tried); i++) {
        const member like = {
            .body = call_once, .call = &cases[tried[i]], .n_links = 1, .fits_not = true};
        run_members(members, &like);
        int n_named = 0;
        for (int r = 0; r < N; r++) {
            assert_int_equal(members[r].status, DH_ECOMM);
            n_named += strstr(members[r].ctx.message, "calls on group one do not fit") != NULL;
        }
        print_message("  %s\n", members[0].ctx.message);
        assert_int_equal(n_named, N);
    }
}

/* Every type of element, lengths that no run of elements divides, places that are not aligned. */
static void sums_have_the_bits_of_the_host(void **state)
{
    enum { RANKS = 5, ROOM = 700 };
    static const dh_dtype types[] = {DH_F32, DH_BF16, DH_F64, DH_I64, DH_I32, DH_U8};
    static _Alignas(16) unsigned char data[RANKS][8 * ROOM], host[8 * ROOM], gpu[2][8 * ROOM];
    for (size_t t = 0; t < DH_COUNTOF(types); t++)
        for (int64_t n = 1; n <= ROOM - 8; n += n < 9 ? 1 : 113)
            for (size_t shift = 0; shift < 2; shift++) {
                const size_t item = dh_dtype_bytes(types[t]), from = shift * item;
                dh_cuda_ranks x = {.n_from = RANKS, .n_to = 2, .to = {gpu[0] + from, gpu[1]}};
                const void *operands[RANKS];
                for (int r = 0; r < RANKS; r++) {
                    x.from[r] = operands[r] = data[r] + from;
                    for (size_t i = 0; i < sizeof data[r] / 2; i++) {
                        const uint64_t bits = dh_mix64((t << 20) + (uint64_t)r * 10007 + i);
                        /* No NaN of float32: exponents below the highest. */
                        ((uint16_t *)(void *)data[r])[i] = (uint16_t)(bits & 0x8fff) | 0x2000;
                    }
                }
                dh_cuda_sum_ranks(NULL, types[t], n, &x);
                dh_comm_reduce_ordered(types[t], DH_REDUCE_SUM, host, operands, RANKS, 0, n);
                assert_memory_equal(gpu[0] + from, host, (size_t)n * item);
                assert_memory_equal(gpu[1], host, (size_t)n * item);
            }
}

/* ---- paced wires ------------------------------------------------------------------------------
 */

static dh_status time_calls(member *m)
{
    cudaEvent_t at[LINKS][2] = {{NULL}};
    float ms;
    for (int k = 0; k < m->n_links; k++)
        for (int i = 0; i < 2; i++)
            DH_TRY(dh_cuda_check(&m->ctx, cudaEventCreateWithFlags(&at[k][i], cudaEventDefault),
                                 "event"));
    DH_TRY(dh_comm_barrier(&m->ctx, m->groups[0]));
    for (int k = 0; k < m->n_links; k++) cudaEventRecord(at[k][0], m->streams[k]);
    for (int k = 0; k < m->n_links; k++) DH_TRY(make_call(m, k));
    for (int k = 0; k < m->n_links; k++) cudaEventRecord(at[k][1], m->streams[k]);
    for (int k = 0; k < m->n_links; k++) (void)cudaStreamQuery(m->streams[k]); /* begins */
    for (int k = 0; k < m->n_links; k++) cudaStreamSynchronize(m->streams[k]);
    for (int k = 0; k < m->n_links; k++) {
        cudaEventElapsedTime(&ms, at[k][0], at[k][1]);
        m->ns[k] = (int64_t)((double)ms * 1e6);
    }
    cudaEventElapsedTime(&ms, at[0][0], at[m->n_links - 1][1]);
    m->ns[0] = DH_MAX(m->ns[0], (int64_t)((double)ms * 1e6));
    for (int k = 0; k < m->n_links; k++)
        for (int i = 0; i < 2; i++) cudaEventDestroy(at[k][i]);
    return DH_OK;
}

static void time_them(member *m)
{
    m->status = time_calls(m);
}

/* Longest of the members' times, from the first call's begin to the last one's end. */
static int64_t paced_ns(const call_case *c, dh_comm_pace pace, int n_links)
{
    static member members[N];
    int64_t most = 0;
    const member like = {.body = time_them, .call = c, .n_links = n_links, .pace = pace};
    run_members(members, &like);
    for (int r = 0; r < N; r++) {
        assert_ok(&members[r].ctx, members[r].status);
        most = DH_MAX(most, members[r].ns[0]);
    }
    return most;
}

/* A vector of all slices takes 40 ms, a step 10 ms. */
static const dh_comm_pace slow = {.gbps = N * COUNT * 32 / 40e6, .latency_us = 10e3};
static const dh_comm_kind paced_as[] = {DH_COMM_ALL_GATHER, DH_COMM_REDUCE_SCATTER,
                                        DH_COMM_ALL_REDUCE, DH_COMM_ALL_REDUCE,
                                        DH_COMM_SEND,       DH_COMM_ALL_TO_ALL};

static int64_t formula(size_t i)
{
    const int64_t slice = COUNT * sizeof(float), all = N * slice;
    return dh_comm_paced_ns(paced_as[i], N, i < 2 || i == 5 ? all : slice, slow);
}

static void a_paced_call_takes_its_time(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(paced_as); i++) {
        const int64_t want = formula(i), ns = paced_ns(&cases[i], slow, 1);
        print_message("  %-20s %.1f ms, by the formula %.1f ms\n", cases[i].name, (double)ns * 1e-6,
                      (double)want * 1e-6);
        assert_true(ns >= want);
    }
}

/* Two calls on one wire take as long as one behind the other, if both begin at once or not. */
static void calls_share_a_wire(void **state)
{
    static const size_t tried[] = {0, 4};
    for (size_t i = 0; i < DH_COUNTOF(tried); i++) {
        const dh_comm_pace no_steps = {.gbps = slow.gbps};
        const int64_t slice = COUNT * sizeof(float);
        const int64_t alone =
            dh_comm_paced_ns(paced_as[tried[i]], N, i == 0 ? N * slice : slice, no_steps);
        const int64_t both = paced_ns(&cases[tried[i]], no_steps, LINKS);
        print_message("  %-20s two together %.1f ms, one %.1f ms\n", cases[tried[i]].name,
                      (double)both * 1e-6, (double)alone * 1e-6);
        assert_true(both >= 2 * alone - alone / 10);
    }
}

/* Once all have called, one gives up. */
static void call_and_give_up(member *m)
{
    m->status = make_call(m, 0);
    if (m->status == DH_OK) (void)cudaStreamQuery(m->streams[0]); /* begins */
    if (m->status == DH_OK) m->status = dh_comm_barrier(&m->ctx, m->groups[0]);
    if (m->rank == 0) peers()->abort(m->links[0]);
    cudaStreamSynchronize(m->streams[0]);
}

/* Wires on which a call takes minutes let go. */
static void who_gives_up_ends_paced_calls(void **state)
{
    static const size_t tried[] = {0, 2, 4};
    for (size_t i = 0; i < DH_COUNTOF(tried); i++) {
        static member members[N];
        const int64_t from = dh_now_ns();
        const member like = {.body = call_and_give_up,
                             .call = &cases[tried[i]],
                             .n_links = 1,
                             .pace = {.gbps = 1e-7, .latency_us = 200e6}};
        run_members(members, &like);
        for (int r = 0; r < N; r++) assert_ok(&members[r].ctx, members[r].status);
        assert_true(dh_now_ns() - from < INT64_C(100000000000));
    }
}

/* ---- kernels that fail ------------------------------------------------------------------------
 */

static _Atomic int n_ran;

static void count(const void *user)
{
    n_ran += *(const int *)user;
}

static void enqueue(cudaStream_t stream)
{
    const int one = 1;
    assert_int_equal(dh_host_enqueue(stream, count, &one, sizeof one), cudaSuccess);
}

/* As on a GPU: kernels read what those before them made. Neither on its stream nor on one that
 * waits for it, and not after somebody has been told; on others. */
static void nothing_runs_behind_a_kernel_that_failed(void **state)
{
    cudaStream_t first, behind, other;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&behind, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    n_ran = 0;
    dh_host_fail_kernel(2);
    for (int i = 0; i < 3; i++) enqueue(first);
    cudaEventRecord(event, first);
    cudaStreamWaitEvent(behind, event, 0);
    enqueue(behind);
    assert_int_equal(cudaStreamSynchronize(behind), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(first), cudaErrorLaunchFailure);
    assert_int_equal(n_ran, 1);
    enqueue(first);
    assert_int_equal(cudaStreamSynchronize(first), cudaSuccess);
    assert_int_equal(n_ran, 1);
    enqueue(other);
    assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
    assert_int_equal(n_ran, 2);
    dh_host_fail_kernel(0);
    cudaEventDestroy(event);
    cudaStreamDestroy(first);
    cudaStreamDestroy(behind);
    cudaStreamDestroy(other);
    assert_int_equal(dh_host_n_objects(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_bits_of_the_host),
        cmocka_unit_test(calls_have_the_numbers_of_the_host),
        cmocka_unit_test(a_missing_wait_is_found),
        cmocka_unit_test(calls_that_do_not_fit_are_named),
        cmocka_unit_test(a_paced_call_takes_its_time),
        cmocka_unit_test(calls_share_a_wire),
        cmocka_unit_test(who_gives_up_ends_paced_calls),
        cmocka_unit_test(nothing_runs_behind_a_kernel_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
