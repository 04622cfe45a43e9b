/* Products on tensor cores as the host has them: fragments against plain products, mistakes that
 * are found, and attention of bf16, which goes through them. Compiled without cuda_calls.h's names:
 * dh_k_f is the cpu's. */
#include "kernel_test.h"

#include <cuda_runtime_api.h>
#include <signal.h>

#include "cuda_faults.h"
#include "cuda_matrices.h"
#include "launch.h"
#include "run/cuda/kernels.h"

#ifndef DH_TEST_ON_GPU

static const uint16_t *bits_of(buf x)
{
    return (const uint16_t *)(const void *)x.raw;
}

/* ---- fragments ---------------------------------------------------------------------------------
 */

/* c [M,N] += a [M,K] b [K,N], element (m, k) of a at m * a_row + k * a_step, (k, n) of b alike. */
typedef struct product {
    int64_t M, N, K, a_row, a_step, b_row, b_step;
} product;

static void multiply(const product *p, buf a, buf b, double *c)
{
    for (int64_t m = 0; m < p->M; m++)
        for (int64_t n = 0; n < p->N; n++)
            for (int64_t k = 0; k < p->K; k++)
                c[m * p->N + n] +=
                    get(a, m * p->a_row + k * p->a_step) * get(b, k * p->b_row + n * p->b_step);
}

static bool one_is_right(uint64_t *seed)
{
    static const product p = {16, 8, 16, 16, 1, 8, 1};
    buf a = buf_random(DH_BF16, 256, 1, seed), b = buf_random(DH_BF16, 128, 1, seed);
    buf c = buf_random(DH_F32, 128, 1, seed);
    double *want = widen(c);
    bool right = true;
    multiply(&p, a, b, want);
    cuda_mma_once(bits_of(a), bits_of(b), f32(c));
    for (int64_t i = 0; i < c.n; i++) right = right && fabs(get(c, i) - want[i]) < 1e-5;
    free(want);
    buf all[] = {a, b, c};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    return right;
}

static void fragments_are_laid_out_as_told(void **state)
{
    uint64_t seed = test_seed("fragments");
    for (int twist = 0; twist <= 3; twist++) {
        cuda_mma_twist(twist);
        const bool right = one_is_right(&seed);
        cuda_mma_twist(0);
        assert_true(right == (twist == 0));
    }
}

static void check_tiles(const cuda_tiles_case *c, uint64_t *seed)
{
    enum { M = 32, N = 48 };
    const int64_t K = c->K;
    const product p = {.M = M,
                       .N = N,
                       .K = K,
                       .a_row = c->a_transposed ? 1 : K,
                       .a_step = c->a_transposed ? M : 1,
                       .b_row = c->b_transposed ? N : 1,
                       .b_step = c->b_transposed ? 1 : K};
    buf a = buf_random(DH_BF16, M * K, 1, seed), b = buf_random(DH_BF16, K * N, 1, seed);
    buf out = buf_new(DH_F32, M * N);
    double *want = zeros(M * N);
    multiply(&p, a, b, want);
    cuda_mma_tiles(c, bits_of(a), bits_of(b), f32(out));
    check_close("product of tiles", out, want, 1e-5);
    free(want);
    buf all[] = {a, b, out};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

/* Depths that end inside of an instruction and of a chunk, where rows are longer than these. */
static void tiles_multiply_either_way(void **state)
{
    static const int64_t depths[] = {16, 64, 40, 8, 37, 1};
    uint64_t seed = test_seed("tiles");
    for (int way = 0; way < 8; way++)
        for (size_t i = 0; i < DH_COUNTOF(depths); i++) {
            const cuda_tiles_case c = {way & 1, way & 2, way & 4 || depths[i] % 8, depths[i]};
            check_tiles(&c, &seed);
        }
}

/* ---- mistakes -----------------------------------------------------------------------------------
 */

static void copies_without_a_wait_are_found(void **state)
{
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cuda_fault_seed(seed);
        wrong += !cuda_copies_arrive(false);
        assert_true(cuda_copies_arrive(true));
    }
    assert_int_equal(wrong, 20);
}

static void instructions_of_a_warp_are_checked(void **state)
{
    assert_int_equal(signal_of(cuda_fault_banks), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_lane_missing), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_two_instructions), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_launched_less), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_launched_too_much), SIGABRT);
}

#endif

/* ---- attention ----------------------------------------------------------------------------------
 */

/* Attention of some queries over some keys, whose results are added to those of others: everything
 * float32 but the inputs. */
typedef struct part_case {
    dh_dtype dtype;
    int64_t B, Tq, Tk, H, KV, D, window;
    float cap;
    bool documents;
    dh_dtype results;
} part_case;

enum { O, LSE, DQ, DKV, N_RESULTS };
static const char *const result_names[N_RESULTS] = {"o", "lse", "dq", "dkv"};

typedef struct part {
    dh_attn_shape s;
    buf q, kv, dout, o_all, lse_all; /* o_all, lse_all: of all keys, for backward */
    int32_t q_pos[256], k_pos[256], doc[2 * 256];
    buf got[N_RESULTS], want[N_RESULTS];
} part;

/* Queries at positions from 20 on, keys at every other stretch of 8: some see none of them. */
static void make_part(const part_case *c, uint64_t *seed, part *p)
{
    dh_attn_shape *s = &p->s;
    *s = dh_attn_packed(c->dtype, c->B, c->Tq, c->H, c->KV, c->D);
    s->Tk = c->Tk;
    s->o_dtype = s->g_dtype = c->results;
    s->q_row = s->o_row = s->dq_row = c->H * c->D;
    s->q_batch = s->o_batch = s->dq_batch = c->Tq * s->q_row;
    s->kv_row = s->dkv_row = 2 * c->KV * c->D;
    s->kv_batch = s->dkv_batch = c->Tk * s->kv_row;
    s->window = c->window;
    s->softcap = c->cap;
    for (int32_t t = 0; t < c->Tq; t++) p->q_pos[t] = 20 + t;
    for (int32_t u = 0; u < c->Tk; u++) p->k_pos[u] = u / 8 * 16 + 8 + u % 8;
    for (int32_t i = 0; i < c->B * c->Tq; i++) p->doc[i] = i % (int32_t)c->Tq % 29;
    s->q_pos = p->q_pos;
    s->k_pos = p->k_pos;
    s->q_doc = c->documents ? p->doc : NULL;
    s->q_doc_batch = c->Tq;
    p->q = buf_random(c->dtype, c->B * s->q_batch, 1, seed);
    p->kv = buf_random(c->dtype, c->B * s->kv_batch, 1, seed);
    p->dout = buf_random(c->dtype, c->B * s->o_batch, 1, seed);
    const int64_t sizes[N_RESULTS] = {p->q.n, c->B * c->H * c->Tq, p->q.n, p->kv.n};
    for (int i = 0; i < N_RESULTS; i++) {
        p->want[i] = buf_random(i == LSE ? DH_F32 : c->results, sizes[i], 1, seed);
        p->got[i] = buf_copy(p->want[i]);
    }
}

static void free_part(part *p)
{
    buf all[] = {p->q, p->kv, p->dout};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    for (int i = 0; i < N_RESULTS; i++) {
        buf_free(p->got[i]);
        buf_free(p->want[i]);
    }
}

/* Backward adds to what is there; both devices read the cpu's o and lse. */
static void run_part_on_cpu(const part *p)
{
    const dh_attn_shape *s = &p->s;
    const buf *to = p->want;
    const int64_t v = s->KV * s->D;
    const size_t n_fwd = dh_k_attn_fwd_workspace(s), n_bwd = dh_k_attn_bwd_workspace(s);
    void *ws = scratch_new(n_fwd);
    dh_k_attn_fwd(s, p->q.raw, p->kv.raw, at(p->kv, v), to[O].raw, f32(to[LSE]), ws);
    scratch_free(ws, n_fwd);
    ws = scratch_new(n_bwd);
    dh_k_attn_bwd(s, p->dout.raw, to[O].raw, f32(to[LSE]), p->q.raw, p->kv.raw, at(p->kv, v),
                  to[DQ].raw, to[DKV].raw, at(to[DKV], v), true, ws);
    scratch_free(ws, n_bwd);
}

static void run_part_on_cuda(const part *p)
{
    const dh_attn_shape *s = &p->s;
    const int64_t v = s->KV * s->D;
    const size_t n_bwd = dh_cuda_attn_bwd_workspace(s);
    void *ws = scratch_new(n_bwd);
    LAUNCH(dh_cuda_attn_fwd, s, p->q.raw, p->kv.raw, at(p->kv, v), p->got[O].raw, f32(p->got[LSE]));
    LAUNCH(dh_cuda_attn_bwd, s, p->dout.raw, p->want[O].raw, f32(p->want[LSE]), p->q.raw, p->kv.raw,
           at(p->kv, v), p->got[DQ].raw, p->got[DKV].raw, at(p->got[DKV], v), true, ws);
    scratch_free(ws, n_bwd);
}

/* The largest difference of a result, relative to numbers above 1. */
static double difference(const part *p, int result)
{
    double most = 0;
    for (int64_t i = 0; i < p->got[result].n; i++) {
        const double got = get(p->got[result], i), want = get(p->want[result], i);
        if (got == want) continue; /* also -inf */
        const double off = fabs(got - want) / fmax(1, fabs(want));
        most = off <= most ? most : isnan(off) ? INFINITY : off;
    }
    return most;
}

/* Weights have 16 bits: as close as sums of float32 are held to be. Results of bf16 are rounded
 * twice, what is there and what comes to it. */
static void check_part(const part_case *c, const part *p)
{
    for (int r = 0; r < N_RESULTS; r++) {
        const double most = p->got[r].dtype == DH_BF16 ? 1e-2 : 2e-5, off = difference(p, r);
        keep_error(result_names[r], dh_dtype_name(c->dtype), off, most);
        if (!(off <= most))
            fail_msg("%lld queries, %lld keys, %lld channels, %s: off by %g", (long long)c->Tq,
                     (long long)c->Tk, (long long)c->D, result_names[r], off);
    }
}

static void parts_are_those_of_the_cpu(void **state)
{
    static const part_case cases[] = {
        {DH_BF16, 2, 70, 40, 4, 2, 24, 0, 0, false, DH_F32},
        {DH_BF16, 1, 33, 77, 2, 1, 128, 25, 0, false, DH_F32},
        {DH_BF16, 1, 65, 40, 2, 1, 192, 0, 0.7f, true, DH_F32},
        {DH_BF16, 1, 40, 24, 2, 2, 250, 0, 0, false, DH_F32},
        {DH_BF16, 1, 20, 70, 3, 1, 13, 40, 2, true, DH_F32},
        {DH_F32, 1, 70, 40, 2, 1, 24, 0, 0, false, DH_F32},
        {DH_BF16, 1, 20, 40, 1, 1, 264, 0, 0, false, DH_F32},
    };
    uint64_t seed = test_seed("attention parts");
    for (size_t i = 0; i < DH_COUNTOF(cases); i += test_stride(1, 2)) {
        const part_case *c = &cases[i];
        part p;
        make_part(c, &seed, &p);
        run_part_on_cpu(&p);
        const int64_t before = cuda_mma_count();
        run_part_on_cuda(&p);
        assert_true(multiplied_since(before, c->dtype == DH_BF16 && c->D <= 256));
        check_part(c, &p);
        free_part(&p);
    }
}

#ifndef DH_TEST_ON_GPU

/* Results of bf16 too: had a kernel the layout of any operand wrong, all results would say so. */
static void a_wrong_layout_changes_attention(void **state)
{
    static const part_case c = {DH_BF16, 1, 40, 24, 2, 1, 40, 0, 0, false, DH_F32};
    uint64_t seed = test_seed("attention layout");
    for (int twist = 1; twist <= 3; twist++) {
        part p;
        make_part(&c, &seed, &p);
        run_part_on_cpu(&p);
        cuda_mma_twist(twist);
        run_part_on_cuda(&p);
        cuda_mma_twist(0);
        for (int r = 0; r < N_RESULTS; r++) assert_true(difference(&p, r) > 1e-3);
        free_part(&p);
    }
}

#endif

/* ---- attention by wgmma -------------------------------------------------------------------------
 */

/* Heads that it takes, tiles that are whole and cut, queries and keys of which some see nothing,
 * windows, documents, caps; several query heads a key head. */
static const part_case by_wgmma[] = {
    {DH_BF16, 2, 70, 40, 4, 2, 64, 0, 0, false, DH_F32},
    {DH_BF16, 1, 150, 200, 2, 1, 128, 0, 0, false, DH_F32},
    {DH_BF16, 1, 200, 140, 3, 1, 64, 25, 0, false, DH_BF16},
    {DH_BF16, 1, 129, 60, 2, 2, 128, 0, 0.7f, true, DH_F32},
    {DH_BF16, 1, 256, 130, 2, 1, 64, 0, 0, true, DH_F32},
    {DH_BF16, 1, 100, 128, 1, 1, 128, 40, 0, false, DH_BF16},
};

/* Whether the first device has it. */
static bool allow_wgmma(bool allowed)
{
    struct cudaDeviceProp is;
    if (!dh_cuda_wgmma_is_built() || cudaGetDeviceProperties(&is, 0) != cudaSuccess ||
        is.major != 9 || is.minor != 0)
        return false;
    dh_cuda_allow_wgmma(0, allowed);
    return true;
}

static void wgmma_parts_are_those_of_the_cpu(void **state)
{
    uint64_t seed = test_seed("attention by wgmma");
    if (!allow_wgmma(true)) skip();
    for (size_t i = 0; i < DH_COUNTOF(by_wgmma); i += test_stride(1, 2)) {
        part p;
        make_part(&by_wgmma[i], &seed, &p);
        run_part_on_cpu(&p);
        const int64_t before = cuda_mma_count();
        run_part_on_cuda(&p);
        assert_true(multiplied_since(before, false)); /* not by attn_mma.cu */
        check_part(&by_wgmma[i], &p);
        free_part(&p);
    }
    allow_wgmma(false);
}

/* Shapes that it has not, and rows that tensor copies do not reach. */
static void other_attention_stays_portable(void **state)
{
    static const part_case cases[] = {{DH_BF16, 1, 63, 40, 1, 1, 64, 0, 0, false, DH_F32},
                                      {DH_BF16, 1, 70, 40, 1, 1, 96, 0, 0, false, DH_F32}};
    uint64_t seed = test_seed("portable attention");
    if (!allow_wgmma(true)) skip();
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        part p;
        make_part(&cases[i], &seed, &p);
        run_part_on_cpu(&p);
        const int64_t before = cuda_mma_count();
        run_part_on_cuda(&p);
        assert_true(multiplied_since(before, true));
        check_part(&cases[i], &p);
        free_part(&p);
    }
    allow_wgmma(false);
}

#ifndef DH_TEST_ON_GPU

/* Any order of threads and of arrivals gives the same bits. */
static void wgmma_has_the_same_bits_in_any_order(void **state)
{
    static const part_case c = {DH_BF16, 1, 140, 140, 2, 1, 64, 0, 0, false, DH_F32};
    uint64_t draws = test_seed("orders of wgmma");
    part first;
    allow_wgmma(true);
    for (uint64_t order = 1; order <= (test_is_slow() ? 2 : 4); order++) {
        uint64_t seed = draws;
        part p;
        make_part(&c, &seed, &p);
        cuda_fault_seed(order);
        run_part_on_cuda(&p);
        for (int r = 0; order > 1 && r < N_RESULTS; r++)
            assert_true(buf_same(p.got[r], first.got[r]));
        if (order > 1)
            free_part(&p);
        else
            first = p;
    }
    free_part(&first);
    allow_wgmma(false);
}

/* A layout that is wrong, and work that is used before it is there, changes every result. */
static void wrong_wgmma_changes_attention(void **state)
{
    static const part_case c = {DH_BF16, 1, 70, 40, 2, 1, 64, 0, 0, false, DH_F32};
    uint64_t seed = test_seed("wrong wgmma");
    allow_wgmma(true);
    for (int twist = 1; twist <= 3; twist++) {
        part p;
        make_part(&c, &seed, &p);
        run_part_on_cpu(&p);
        cuda_wgmma_twist(twist);
        run_part_on_cuda(&p);
        cuda_wgmma_twist(0);
        /* A's registers are weights, of which lse knows nothing. */
        for (int r = 0; r < N_RESULTS; r++)
            assert_true(difference(&p, r) > 1e-3 || (twist == 1 && r == LSE));
        free_part(&p);
    }
    allow_wgmma(false);
}

static void warpgroups_are_checked(void **state)
{
    assert_int_equal(signal_of(cuda_fault_unmade_barrier), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_too_many_arrive), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_never_arrives), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_unfenced), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_unwaited), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_copy_left), SIGABRT);
    assert_int_equal(signal_of(cuda_fault_no_warpgroup_fault), 0);
    assert_true(cuda_wgmma_early(true));
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cuda_fault_seed(seed);
        wrong += !cuda_wgmma_early(false);
    }
    assert_true(wrong > 0);
}

#endif

/* ---- experts' products --------------------------------------------------------------------------
 */

/* Runs of none, of less and of more rows than a tile has, rows behind the last. */
enum { E = 2, RUNS = 4, ROWS = 190 };
static const int64_t run_ends[RUNS + 1] = {0, 140, 140, 147, 183};

typedef struct experts_case {
    dh_grouped_kind kind;
    int64_t O, I;
} experts_case;

static void check_experts(const experts_case *c, uint64_t *seed)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t run_offsets[RUNS + 1]; /* not run_ends: where a GPU reads them */
    memcpy(run_offsets, run_ends, sizeof run_offsets);
    const bool wgrad = c->kind == DH_GROUPED_WGRAD, forward = c->kind == DH_GROUPED_FORWARD;
    const dh_grouped_desc d = {c->kind, DH_BF16, E, c->O, c->I, ROWS, wgrad};
    const dh_dtype out = wgrad ? DH_F32 : DH_BF16;
    const int64_t n_out = wgrad ? E * c->O * c->I : ROWS * (forward ? c->O : c->I);
    buf a = buf_random(DH_BF16, ROWS * (forward ? c->I : c->O), 0.3f, seed);
    buf b = buf_random(DH_BF16, (wgrad ? ROWS : E * c->O) * c->I, 0.3f, seed);
    buf want = buf_random(out, n_out, 1, seed), got = buf_copy(want);
    dh_grouped *g;
    assert_ok(&ctx, dh_grouped_create(&ctx, &d, &g));
    void *ws = scratch_new(dh_grouped_workspace(g));
    assert_ok(&ctx, dh_grouped_run(&ctx, g, RUNS, run_offsets, a.raw, b.raw, want.raw, ws));
    scratch_free(ws, dh_grouped_workspace(g));
    dh_grouped_destroy(g);
    const int64_t before = cuda_mma_count();
    LAUNCH(dh_cuda_grouped, &d, RUNS, run_offsets, a.raw, b.raw, got.raw);
    assert_true(multiplied_since(before, true));
    for (int64_t i = 0; i < n_out; i++)
        check_value("experts", get(got, i), get(want, i), wgrad ? 2e-5 : 8e-3);
    buf all[] = {a, b, want, got};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

/* Tiles of 128 that are whole, cut, and cut inside of a pair; rows with and without copies of 16
 * bytes. */
static void experts_multiply_in_tiles(void **state)
{
    static const int64_t sizes[][2] = {{136, 72}, {72, 200}, {130, 67}, {67, 130}};
    uint64_t seed = test_seed("experts in tiles");
    for (size_t i = 0; i < DH_COUNTOF(sizes); i += test_stride(1, 3))
        for (dh_grouped_kind kind = DH_GROUPED_FORWARD; kind <= DH_GROUPED_WGRAD; kind++) {
            const experts_case c = {kind, sizes[i][0], sizes[i][1]};
            check_experts(&c, &seed);
        }
}

const struct CMUnitTest cuda_mma_tests[] = {
#ifndef DH_TEST_ON_GPU
    cmocka_unit_test(fragments_are_laid_out_as_told),
    cmocka_unit_test(tiles_multiply_either_way),
    cmocka_unit_test(copies_without_a_wait_are_found),
    cmocka_unit_test(instructions_of_a_warp_are_checked),
    cmocka_unit_test(a_wrong_layout_changes_attention),
#endif
    cmocka_unit_test(parts_are_those_of_the_cpu),
    cmocka_unit_test(experts_multiply_in_tiles),
};
const size_t n_cuda_mma_tests = DH_COUNTOF(cuda_mma_tests);

const struct CMUnitTest wgmma_tests[] = {
#ifndef DH_TEST_ON_GPU
    cmocka_unit_test(warpgroups_are_checked),
    cmocka_unit_test(wrong_wgmma_changes_attention),
    cmocka_unit_test(wgmma_has_the_same_bits_in_any_order),
#endif
    cmocka_unit_test(wgmma_parts_are_those_of_the_cpu),
    cmocka_unit_test(other_attention_stays_portable),
};
const size_t n_wgmma_tests = DH_COUNTOF(wgmma_tests);
