/* Programs with outputs in parts, executed by two ranks: nobody begins before the part it waits
 * for, somebody begins before the instruction is done, and the numbers are those of the same
 * program without parts, on every device. Operands are small integers, so that every sum is exact.
 *
 * The staged device, and CUDA's streams on the host, are to find what others let pass: a wait that
 * is missing, an address that the host follows. */
#include "../program/one_block.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run/exec/exec.h"
#ifdef TEST_CUDA /* the same over CUDA's runtime on the host */
#include "run/cuda/device.h"
#include "run/cuda/host/host.h"
#endif

enum { TP = 2, PARTS = 4, OWN = 16, ROWS = TP * OWN, PIECE = ROWS / PARTS, WIDTH = 64 };
enum { ENTRY, GATHER, FIRST_PIECE, PRODUCT = FIRST_PIECE + PARTS, FIRST_SUM = PRODUCT + 1 };

/* The first product keeps both operands apart in memory. Gathered rows are multiplied piece by
 * piece as they come, the result once more, as one GEMM, and pieces of that are summed over the
 * ranks as they are done. */
static dh_graph *make_graph(int rank, int parts)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    dh_str t = DH_STR_INIT;
    const int first = rank * PARTS / TP;
    dh_str_printf(&t, "dhelix.graph v2 data train f32\ndims batch=1 seq=%d width=%d\n", ROWS,
                  WIDTH);
    dh_str_printf(&t, "ends x_in=%%0:x dx_out=%%1:w x_out=%%5:s\n");
    dh_str_printf(&t, "%%0:x act f32[%d tokens, %d width]\n", OWN, WIDTH);
    dh_str_printf(&t, "%%1:w act f32[%d width, %d width]\n", WIDTH, WIDTH);
    const int xw = 6 + 4 * PARTS;
    static const char *const names[] = {"all", "y", "z", "s"};
    for (int i = 0; i < 4; i++)
        dh_str_printf(&t, "%%%d:%s act f32[%d tokens, %d width]\n", 2 + i, names[i], ROWS, WIDTH);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < PARTS; k++)
            dh_str_printf(&t, "%%%d:%s%d act f32[%d tokens, %d width] view=%%%d+%d\n",
                          6 + i * PARTS + k, names[i], k, PIECE, WIDTH, 2 + i, k * PIECE);
    dh_str_printf(&t, "%%%d:xw act f32[%d tokens, %d width]\n", xw, OWN, WIDTH);
    dh_str_printf(&t, "F %%%d = linear(%%0, %%1)\n", xw);
    dh_str_printf(&t, "F %%2 = all_gather(%%%d) {group=tp, parts=%d, part0=%d}\n", xw, parts,
                  parts ? first : 0);
    for (int k = 0; k < PARTS; k++) {
        const int chunk = (first + k) % PARTS;
        dh_str_printf(&t, "F %%%d = linear(%%%d, %%1)\n", 6 + PARTS + chunk, 6 + chunk);
    }
    dh_str_printf(&t, "F %%4 = linear(%%3, %%1) {parts=%d, part0=%d}\n", parts, parts ? 1 : 0);
    for (int k = 0; k < PARTS; k++) {
        const int chunk = (1 + k) % PARTS;
        dh_str_printf(&t, "F %%%d = all_reduce(%%%d) {group=tp}\n", 6 + 3 * PARTS + chunk,
                      6 + 2 * PARTS + chunk);
    }
    assert_false(t.failed);
    assert_ok(&ctx, dh_graph_parse(&ctx, t.text, t.len, &g));
    dh_str_fini(&t);
    return g;
}

typedef struct rank_run {
    const dh_device *device;
    dh_comm_world *world;
    int rank;
    dh_program *program;
    dh_span *spans;
    float result[ROWS * WIDTH];
    dh_status status;
    dh_ctx ctx;
} rank_run;

static const dh_operand *tensor_at(const dh_program *p, uint32_t instr, int operand)
{
    return dh_instr_operand(p, &p->instrs.at[instr], operand);
}

static uint64_t offset_of(const dh_program *p, const dh_operand *o)
{
    return p->buffers.at[o->buffer].offset + o->byte0;
}

/* Small integers of an operand that the program only reads. */
static dh_status put_integers(rank_run *r, dh_slab *slab, const dh_operand *o, uint64_t salt)
{
    float data[WIDTH * WIDTH];
    const uint64_t n = o->n_bytes / sizeof *data;
    for (uint64_t i = 0; i < n; i++) data[i] = (float)(int)(dh_mix64(salt * 100003 + i) % 5) - 2;
    return r->device->slab_write(&r->ctx, slab, offset_of(r->program, o), data, o->n_bytes);
}

static dh_status run_program(rank_run *r, dh_slab *slab, dh_comm *comm)
{
    dh_exec *exec;
    const dh_step step = {0};
    const dh_program *p = r->program;
    const dh_operand *sum = tensor_at(p, FIRST_SUM, 1);
    DH_TRY(put_integers(r, slab, tensor_at(p, ENTRY, 0), 1 + (uint64_t)r->rank));
    DH_TRY(put_integers(r, slab, tensor_at(p, ENTRY, 1), 99));
    DH_TRY(dh_exec_create(&r->ctx, r->device, p, slab, comm, &exec));
    dh_status st = dh_exec_run(&r->ctx, exec, &step);
    if (st == DH_OK) memcpy(r->spans, dh_exec_spans(exec), dh_program_n_spans(p) * sizeof(dh_span));
    if (st == DH_OK)
        st = r->device->slab_read(&r->ctx, slab, p->buffers.at[sum->buffer].offset, r->result,
                                  sizeof r->result);
    dh_exec_destroy(exec);
    return st;
}

static void *rank_main(void *arg)
{
    rank_run *r = arg;
    dh_comm *comm;
    dh_slab *slab;
    r->status = dh_comm_attach(&r->ctx, r->world, r->rank, &comm);
    if (r->status != DH_OK) return NULL;
    r->status = r->device->slab_create(&r->ctx, r->program->slab_bytes, &slab);
    if (r->status == DH_OK) {
        r->status = run_program(r, slab, comm);
        r->device->slab_destroy(slab);
    }
    dh_comm_detach(comm);
    return NULL;
}

/* A wait that rank r's program is to lack: number `wait` of instruction `of`. */
typedef struct missing {
    int rank;
    uint32_t of, wait;
} missing;

static void drop_wait(dh_program *p, missing m)
{
    dh_instr *i = &p->instrs.at[m.of];
    assert_true(m.wait < i->n_waits);
    dh_wait *waits = &p->waits.at[i->wait0];
    waits[m.wait] = waits[--i->n_waits];
}

static void run_with(rank_run runs[TP], const char *device, int parts, double gbps,
                     const missing *without)
{
    dh_ctx ctx = DH_CTX_INIT;
    pthread_t threads[TP];
    /* What is left out is looked for in calls through the host. Those on a device's own streams
     * (CUDA's) are as late as what they should wait for, which so comes first by chance. */
    const dh_comm_config config = {.ranks = TP,
                                   .pace[DH_ENGINE_LOCAL].gbps = gbps,
                                   .links = without ? DH_LINKS_NEVER : DH_LINKS_AUTO};
    dh_comm_world *world;
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int r = 0; r < TP; r++) {
        const dh_device *on = dh_device_find(device);
        const dh_model none = {.n_layers = 0};
        dh_program *p = one_block_with(&none, &on->info, make_graph(r, parts), TP, r);
        if (without && without->rank == r) drop_wait(p, *without);
        runs[r] = (rank_run){.device = on, .world = world, .rank = r, .program = p};
        runs[r].spans = calloc(dh_program_n_spans(p), sizeof *runs[r].spans);
        assert_non_null(runs[r].spans);
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &runs[r]), 0);
    }
    for (int r = 0; r < TP; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < TP; r++) assert_ok(&runs[r].ctx, runs[r].status);
    dh_comm_world_destroy(world);
}

static void run_ranks(rank_run runs[TP], int parts, double gbps)
{
    run_with(runs, "cpu", parts, gbps, NULL);
}

static void free_runs(rank_run runs[TP])
{
    for (int r = 0; r < TP; r++) {
        dh_program_destroy(runs[r].program);
        free(runs[r].spans);
    }
}

/* ---- cases -------------------------------------------------------------------------------- */

static void assert_waits_kept(const rank_run *r)
{
    const dh_program *p = r->program;
    int n_partly = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        for (uint32_t w = 0; w < p->instrs.at[i].n_waits; w++) {
            const dh_wait wait = p->waits.at[p->instrs.at[i].wait0 + w];
            assert_true(r->spans[i].start_ns >= dh_wait_end_ns(p, r->spans, wait));
            n_partly += dh_wait_parts_left(p, wait) > 0;
        }
    assert_int_equal(n_partly, 2 * (PARTS - 1));
}

/* Spans of parts lie one behind the other in that of their instruction. */
static void assert_parts_in_turn(const rank_run *r, uint32_t instr)
{
    const dh_span *whole = &r->spans[instr];
    int64_t before = whole->met_ns;
    for (uint32_t k = 0; k < PARTS; k++) {
        const dh_span *part = &r->spans[dh_program_part_span(r->program, instr, k)];
        assert_int_equal(part->start_ns, before);
        assert_true(part->end_ns >= part->start_ns && part->end_ns <= whole->end_ns);
        before = part->end_ns;
    }
}

static void assert_same_numbers(const char *device, const rank_run *without)
{
    static rank_run with[TP];
    run_with(with, device, PARTS, 0, NULL);
    for (int r = 0; r < TP; r++) {
        assert_waits_kept(&with[r]);
        assert_parts_in_turn(&with[r], GATHER);
        assert_parts_in_turn(&with[r], PRODUCT);
        assert_memory_equal(with[r].result, without[r].result, sizeof with[r].result);
    }
    free_runs(with);
}

static void parts_change_no_number(void **state)
{
    static rank_run without[TP];
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    double sum = 0;
    run_ranks(without, 0, 0);
    assert_memory_equal(without[0].result, without[1].result, sizeof without[0].result);
    for (int i = 0; i < ROWS * WIDTH; i++) sum += fabs((double)without[0].result[i]);
    assert_true(sum > 0);
    for (size_t d = 0; d < n; d++) assert_same_numbers(devices[d]->name, without);
    free_runs(without);
}

/* The other rank's rows take 200 ms: its first half is multiplied before the second is there, and
 * the first part of a product is there before the product is. */
static void somebody_begins_early(void **state)
{
    static rank_run runs[TP];
    const double bits = OWN * WIDTH * sizeof(float) * 8.0;
    run_ranks(runs, PARTS, bits / 200e6);
    for (int r = 0; r < TP; r++) {
        const rank_run *x = &runs[r];
        assert_waits_kept(x);
        const dh_span *gather = &x->spans[GATHER], *half = &x->spans[FIRST_PIECE + PARTS / 2];
        print_message(
            "rank %d: gather %.0f ms, first half of the others' rows read after %.0f ms\n", r,
            (double)(gather->end_ns - gather->met_ns) * 1e-6,
            (double)(half->start_ns - gather->met_ns) * 1e-6);
        assert_true(half->start_ns < gather->end_ns);
        assert_true(half->start_ns - gather->met_ns >= 100 * 1000 * 1000);
        const size_t first = dh_program_part_span(x->program, PRODUCT, 0);
        assert_true(x->spans[first].end_ns < x->spans[PRODUCT].end_ns);
    }
    free_runs(runs);
}

/* ---- what late devices find -------------------------------------------------------------------
 */

#ifdef TEST_CUDA
static const char late_device[] = "cuda";
enum { N_KINDS = 2, N_SEEDS = 4 }; /* those of four that do nothing early: host/runtime.c */
#else
static const char late_device[] = "staged";
enum { N_KINDS = 1, N_SEEDS = 1 };
#endif

/* All waits of a program, one after another. */
static missing nth_wait(const dh_program *p, uint32_t n)
{
    uint32_t i = 0;
    for (n %= (uint32_t)p->waits.n; n >= p->instrs.at[i].n_waits; i++) n -= p->instrs.at[i].n_waits;
    return (missing){0, i, n};
}

static bool same_numbers(const rank_run *a, const rank_run *b)
{
    for (size_t i = 0; i < DH_COUNTOF(a->result); i++)
        if (a->result[i] != b->result[i]) return false;
    return true;
}

static void seed_delays(int seed)
{
    char text[16];
    snprintf(text, sizeof text, "%d", seed);
    setenv("DHELIX_STAGED_SEED", text, 1);
#ifdef TEST_CUDA
    dh_host_seed_streams((uint64_t)seed);
#endif
}

/* Whether a run, or one of two that go through delays of either kind, has other numbers. */
static bool finds(missing m, int seed, const rank_run right[TP])
{
    static rank_run runs[TP];
    bool found = false;
    for (int k = 0; k < N_KINDS && !found; k++) {
        seed_delays(N_SEEDS * seed + k);
        run_with(runs, late_device, PARTS, 0, &m);
        found = !same_numbers(&runs[0], &right[0]) || !same_numbers(&runs[1], &right[1]);
        free_runs(runs);
    }
    return found;
}

/* One wait a run, each of them several times, on either rank. */
static void a_missing_wait_is_always_found(void **state)
{
    enum { RUNS = 100 };
    static rank_run right[TP];
    int n_found = 0;
    run_ranks(right, PARTS, 0);
    for (int seed = 1; seed <= RUNS; seed++) {
        missing m = nth_wait(right[0].program, (uint32_t)seed);
        m.rank = seed % TP;
        const bool found = finds(m, seed, right);
        if (!found) {
            char name[200];
            print_message("seed %d: not found: wait %u of %s\n", seed, m.wait,
                          dh_instr_describe(right[0].program, m.of, name, sizeof name));
        }
        n_found += found;
    }
    print_message("%d runs, a wait less each, other numbers in %d\n", RUNS, n_found);
    assert_int_equal(n_found, RUNS);
    free_runs(right);
}

/* In a child, which is to die of it. */
static void the_host_cannot_follow_an_address(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_device *device = dh_device_find(late_device);
    dh_slab *slab;
    assert_ok(&ctx, device->slab_create(&ctx, 4096, &slab));
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile unsigned char *)slab->at);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    device->slab_destroy(slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_change_no_number),
        cmocka_unit_test(somebody_begins_early),
        cmocka_unit_test(a_missing_wait_is_always_found),
        cmocka_unit_test(the_host_cannot_follow_an_address),
    };
#ifdef TEST_CUDA
    if (!dh_device_add(&dh_device_cuda)) return 1;
#endif
    setenv("DHELIX_STAGED_SEED", "1", 1); /* printed where it matters, by the tests */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
