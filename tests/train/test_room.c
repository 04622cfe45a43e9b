/* Memory that a job needs beside what there is; ranks that run out of it as they build programs. */
#include "ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/memory.h"
#include "train/resolve.h"
#include "train/room.h"

static const double gib = 1024.0 * 1024 * 1024;

/* ---- what is needed ------------------------------------------------------------------------- */

static dh_room least_of(const char *settings)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx, run_parse(&ctx, RUN_GPT2, settings, "out", &job));
    const dh_room room = dh_room_least(job);
    const double all = 12.0 * (double)dh_model_n_params(&job->model);
    assert_true(room.at_least && room.n_ranks == job->ranks);
    assert_true(room.rank_bytes * (double)job->ranks == room.bytes);
    assert_true(room.bytes == (job->zero ? all : all * (double)(job->dp * job->cp)));
    dh_job_destroy(job);
    return room;
}

static void the_least_is_what_no_mesh_saves(void **state)
{
    const dh_room one = least_of("parallel.tp=1");
    assert_true(least_of("parallel.tp=2 parallel.pp=2").bytes == one.bytes);
    assert_true(least_of("parallel.dp=4").bytes == 4 * one.bytes);
    assert_true(least_of("parallel.dp=4 parallel.zero=1").bytes == one.bytes);
}

/* A run's slabs lie between the bound from below and what is asked for. */
static void needs_are_in_order(void **state)
{
    static const char *const meshes[] = {"parallel.dp=2", "parallel.tp=2 parallel.pp=2",
                                         "parallel.dp=2 parallel.zero=1"};
    for (size_t i = 0; i < DH_COUNTOF(meshes); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_job *job;
        dh_resolved *resolved;
        dh_mesh_footprint all;
        assert_ok(&ctx, run_parse(&ctx, RUN_GPT2, meshes[i], "out", &job));
        const dh_resolve_options how = {.quiet = true};
        assert_ok(&ctx, dh_job_resolve(&ctx, job, &how, &resolved));
        const dh_session_spec spec = dh_train_session(&resolved->job, &resolved->recipe);
        assert_ok(&ctx, dh_session_verify_mesh(&ctx, &spec, &all));
        const dh_room room = dh_room_of(&resolved->job, &all);
        assert_true(all.all_slabs_bytes <= all.n_ranks * all.slab_bytes);
        assert_true(all.all_slabs_bytes > all.slab_bytes && all.program_bytes > 0);
        assert_true(dh_room_least(&resolved->job).bytes < (double)all.all_slabs_bytes);
        assert_true(room.bytes > (double)all.all_slabs_bytes);
        assert_true(room.rank_bytes > (double)all.slab_bytes);
        dh_resolved_destroy(resolved);
        dh_job_destroy(job);
    }
}

/* ---- messages ------------------------------------------------------------------------------- */

static void both_numbers_are_said(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_room room = {.n_ranks = 4, .rank_bytes = gib, .bytes = 3 * gib, .available = 2 * gib};
    assert_int_equal(dh_room_check(&ctx, &room), DH_ENOMEM);
    assert_non_null(strstr(ctx.message, "4 ranks need 3.00 GiB of memory on this machine, at most "
                                        "1.00 GiB each, and 2.00 GiB are free: take a smaller"));
    assert_non_null(strstr(ctx.message, "dhelix simulate --cluster"));
    assert_non_null(strstr(ctx.message, "DHELIX_MEMORY_CHECK=off"));
    dh_ctx_reset(&ctx);
    room.available = 3 * gib;
    assert_ok(&ctx, dh_room_check(&ctx, &room));
    room.available = 0; /* not known */
    assert_ok(&ctx, dh_room_check(&ctx, &room));
}

static void the_check_can_be_left_out(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_true(dh_memory_available() > 0);
    assert_int_equal(dh_memory_check(&ctx, 1e18, "this"), DH_ENOMEM);
    dh_ctx_reset(&ctx);
    assert_int_equal(setenv("DHELIX_MEMORY_CHECK", "off", 1), 0);
    assert_true(dh_memory_available() == 0);
    assert_ok(&ctx, dh_memory_check(&ctx, 1e18, "this"));
    assert_int_equal(unsetenv("DHELIX_MEMORY_CHECK"), 0);
}

/* ---- ranks that run out of it --------------------------------------------------------------- */

/* The linker sends calls of dh_program_build and dh_comm_abort here. The first of a rank's thread
 * fails; the others, however soon they come, wait until it has told the ranks so. */
static pthread_t main_thread;
static atomic_int n_begun; /* ranks, of those that build */
static atomic_bool failing, told;
static _Thread_local bool begun;

dh_status __real_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program);
dh_status __wrap_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program);
void __real_dh_comm_abort(dh_comm *comm, const char *message);
void __wrap_dh_comm_abort(dh_comm *comm, const char *message);

dh_status __wrap_dh_program_build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    if (atomic_load(&failing) && !pthread_equal(pthread_self(), main_thread) && !begun) {
        begun = true;
        if (atomic_fetch_add(&n_begun, 1) == 0)
            return dh_fail(ctx, DH_ENOMEM, "out of memory building a program");
        while (!atomic_load(&told)) nanosleep(&pause, NULL);
    }
    return __real_dh_program_build(ctx, spec, program);
}

void __wrap_dh_comm_abort(dh_comm *comm, const char *message)
{
    __real_dh_comm_abort(comm, message);
    atomic_store(&told, true);
}

/* After it only those build that had begun: as many as there are processors. */
static void the_others_build_no_more(void **state)
{
    char out[300];
    dh_ctx ctx = DH_CTX_INIT;
    run_folder(out, sizeof out, "run");
    main_thread = pthread_self();
    atomic_store(&failing, true);
    const dh_status st = run_job(
        &ctx, RUN_GPT2, "parallel.dp=8 parallel.tp=2 parallel.pp=2 parallel.zero=1", out, NULL);
    atomic_store(&failing, false);
    assert_int_equal(st, DH_ENOMEM);
    assert_non_null(strstr(ctx.message, "out of memory building a program"));
    assert_true(atomic_load(&n_begun) <= DH_MAX(dh_own_processors(), 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_is_what_no_mesh_saves),
        cmocka_unit_test(needs_are_in_order),
        cmocka_unit_test(both_numbers_are_said),
        cmocka_unit_test(the_check_can_be_left_out),
        cmocka_unit_test(the_others_build_no_more),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
