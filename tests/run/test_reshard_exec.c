/* Reshards, executed by ranks as threads: from layout to layout every element is found where it
 * belongs, and nothing else has changed, on every device, in one message or several; gradients are
 * added. The simulation of the same programs takes as long as their messages and copies do. */
#include "../program/layouts.h"

#include <pthread.h>

#include "run/exec/exec.h"
#include "sim/sim.h"

/* The value of an element, by its place in its tensor. */
static float value_of(uint32_t tensor, int64_t row, int64_t col)
{
    const uint64_t hash =
        dh_mix64(dh_mix64((uint64_t)tensor << 40 ^ (uint64_t)row) ^ (uint64_t)col);
    return (float)(int)(hash % 255) - 127; /* as exact in bf16 */
}

typedef struct rank_run {
    const pair *pair;
    const dh_device *device;
    dh_comm_world *world;
    int64_t rank;
    const dh_program *program;
    unsigned char *slab; /* what it holds, before and after */
    dh_status status;
    dh_ctx ctx;
} rank_run;

static void *place(rank_run *r, const dh_holding *h, const dh_held *held, size_t item, int64_t row)
{
    return r->slab + h->buffers.at[held->buffer].offset +
           (size_t)(held->first + row * held->stride) * item;
}

/* Element by element of what a rank holds of one side. */
static void each_held(rank_run *r, int side, void (*visit)(dh_dtype, void *, float))
{
    const dh_reshard *all = &r->pair->r;
    const dh_holding *h = &all->holdings[side][r->rank];
    for (size_t i = 0; i < h->held.n; i++) {
        const dh_held *held = &h->held.at[i];
        const dh_dtype dtype = all->tensors.at[held->tensor].dtype;
        const size_t item = dh_dtype_bytes(dtype);
        for (int64_t row = 0; row < held->box.n_rows; row++) {
            char *at = place(r, h, held, item, row);
            for (int64_t col = 0; col < held->box.n_cols; col++, at += item)
                visit(dtype, at, value_of(held->tensor, held->box.row + row, held->box.col + col));
        }
    }
}

static void put(dh_dtype dtype, void *at, float value)
{
    const dh_bf16 narrow = dh_f32_to_bf16(value);
    if (dtype == DH_F32)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &narrow, sizeof narrow);
}

static float get(dh_dtype dtype, const void *at)
{
    float value;
    dh_bf16 narrow;
    memcpy(&narrow, at, sizeof narrow);
    if (dtype != DH_F32) return dh_bf16_to_f32(narrow);
    memcpy(&value, at, sizeof value);
    return value;
}

static void put_three(dh_dtype dtype, void *at, float value)
{
    put(dtype, at, 3);
}

static void expect(dh_dtype dtype, void *at, float value)
{
    if (get(dtype, at) != value)
        fail_msg("%g where %g should be", (double)get(dtype, at), (double)value);
    memset(at, 0xa5, dh_dtype_bytes(dtype));
}

static void expect_three_more(dh_dtype dtype, void *at, float value)
{
    expect(dtype, at, value + 3);
}

/* ---- running -----------------------------------------------------------------------------------
 */

static dh_status run_program(rank_run *r, dh_slab *slab, dh_comm *comm)
{
    dh_exec *exec;
    const dh_step step = {0};
    const uint64_t n = r->program->persistent_bytes;
    DH_TRY(r->device->slab_write(&r->ctx, slab, 0, r->slab, n));
    DH_TRY(dh_exec_create(&r->ctx, r->device, r->program, slab, comm, &exec));
    dh_status st = dh_exec_run(&r->ctx, exec, &step);
    if (st == DH_OK) st = r->device->slab_read(&r->ctx, slab, 0, r->slab, n);
    dh_exec_destroy(exec);
    return st;
}

static void *rank_main(void *arg)
{
    rank_run *r = arg;
    dh_comm *comm;
    dh_slab *slab;
    r->status = dh_comm_attach(&r->ctx, r->world, (int)r->rank, &comm);
    if (r->status != DH_OK) return NULL;
    r->status = r->device->slab_create(&r->ctx, r->program->slab_bytes, &slab);
    if (r->status == DH_OK) {
        r->status = run_program(r, slab, comm);
        r->device->slab_destroy(slab);
    }
    dh_comm_detach(comm);
    return NULL;
}

static void run_on(const pair *p, dh_program **programs, const char *device)
{
    enum { MOST = 16 };
    static rank_run runs[MOST];
    pthread_t threads[MOST];
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    const int n = (int)p->r.n_ranks;
    const bool adds = p->r.adds;
    const dh_comm_config config = {.ranks = n, .ranks_per_node = (int)p->r.ranks_per_node};
    assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &world));
    for (int k = 0; k < n; k++) {
        rank_run *r = &runs[k];
        *r = (rank_run){.pair = p,
                        .device = dh_device_find(device),
                        .world = world,
                        .rank = k,
                        .program = programs[k]};
        r->slab = malloc(r->program->persistent_bytes);
        assert_non_null(r->slab);
        memset(r->slab, 0xa5, r->program->persistent_bytes);
        each_held(r, 0, put);
        if (adds) each_held(r, 1, put_three);
        assert_int_equal(pthread_create(&threads[k], NULL, rank_main, r), 0);
    }
    for (int k = 0; k < n; k++) pthread_join(threads[k], NULL);
    for (int k = 0; k < n; k++) {
        assert_ok(&runs[k].ctx, runs[k].status);
        each_held(&runs[k], 1, adds ? expect_three_more : expect);
        each_held(&runs[k], 0, expect); /* the first layout stays */
        for (uint64_t i = 0; i < runs[k].program->persistent_bytes; i++)
            assert_int_equal(runs[k].slab[i], 0xa5); /* and so does whatever is no layout's */
        free(runs[k].slab);
    }
    dh_comm_world_destroy(world);
}

static void every_element_is_where_it_belongs(void **state)
{
    uint64_t seed = test_seed("every_element_is_where_it_belongs");
    size_t n;
    const dh_device *const *devices = dh_devices(&n);
    for (int turn = 0; turn < (TEST_SANITIZED ? 6 : 24); turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_program *programs[16] = {NULL};
        pair p;
        const bool adds = turn % 4 == 3;
        draw_pair(&p, &seed, adds ? DH_RESHARD_GRADS : some_what(&seed));
        p.r.adds = adds;
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, turn % 2 ? DH_RESHARD_HOTSPA : DH_RESHARD_FIRST,
                                        DH_RESHARD_EVEN_WIRES, turn % 3 ? 0 : 30000, NULL));
        make_programs(&p, programs);
        if (verify_all(&ctx, &p, programs) != DH_OK) fail_msg("%s", ctx.message);
        for (size_t d = 0; d < n; d++)
            if (d == 0 || turn % 3 == 0) run_on(&p, programs, devices[d]->name);
        free_programs(&p, programs);
        close_pair(&p);
    }
}

/* ---- the simulation ----------------------------------------------------------------------------
 */

/* By estimates of links without latency and of memory without end the whole takes what the busiest
 * wire does, where all messages go at once. */
static void simulated_time_is_the_busiest_wire(void **state)
{
    uint64_t seed = test_seed("simulated_time_is_the_busiest_wire");
    dh_arena *arena = dh_arena_create();
    const dh_cost_model model = {
        .flops_per_s = 1e30,
        .bytes_per_s = 1e30,
        .link_bytes_per_s = {[DH_ENGINE_LOCAL] = 1e9, [DH_ENGINE_CROSS] = 25e7},
        .link_latency_ns = {[DH_ENGINE_LOCAL] = 1e-9, [DH_ENGINE_CROSS] = 1e-9}};
    const dh_costs *costs = dh_costs_estimated(arena, &model);
    const dh_reshard_wires wires = {1, 4};
    assert_non_null(costs);
    for (int turn = 0; turn < 8; turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_program *programs[16] = {NULL};
        const dh_sim_options options = {0};
        dh_reshard_sum sum;
        dh_sim *sim;
        pair p;
        const size_t place = (size_t)turn % DH_COUNTOF(places);
        for (int k = 0; k < 2; k++) p.setups[k] = draw(&seed, place, DH_F32, 1);
        open_pair(&p, DH_RESHARD_PARAMS);
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, wires, 0, NULL));
        assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, wires, &sum));
        make_programs(&p, programs);
        assert_ok(&ctx, dh_simulate_programs(&ctx, (const dh_program *const *)programs,
                                             (size_t)p.r.n_ranks, costs, &options, &sim));
        assert_true(fabs((double)sim->step_ns - sum.busiest_ns) <= 2);
        dh_sim_destroy(sim);
        free_programs(&p, programs);
        close_pair(&p);
    }
    dh_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_where_it_belongs),
        cmocka_unit_test(simulated_time_is_the_busiest_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
