/* Streams on threads of the host, by themselves: commands of next to no work, many at once, so that
 * threads meet at the counters where they seldom do in a program (paused_streams.c). */
#include "dh_test.h"

#include "run/exec/host_streams.h"

#include <sched.h>
#include <stdatomic.h>

enum { MAX_COMMANDS = 40, MAX_WAITS = 3, MAX_PARTS = 3 };

typedef struct fixture {
    dh_stream_command commands[MAX_COMMANDS];
    dh_call calls[MAX_COMMANDS];
    uint32_t waits[MAX_COMMANDS][MAX_WAITS];
    int delays[MAX_COMMANDS];
    uint32_t command_of[MAX_COMMANDS * MAX_PARTS], part_of[MAX_COMMANDS * MAX_PARTS];
    uint32_t n, n_events;
    uint32_t fails; /* at this command; n: at none */
    _Atomic uint32_t told[MAX_COMMANDS], on_stream[DH_N_STREAM], n_failures;
} fixture;

static void delay(int n)
{
    if (n == 0) sched_yield();
    for (volatile int i = 0; i < n; i++) continue;
}

/* ---- what streams call ---------------------------------------------------------------------- */

/* All that it waits for is there, and it comes in its stream's order. */
static dh_status work(dh_ctx *ctx, const dh_streams *streams, const dh_stream_command *c)
{
    fixture *f = c->host_user;
    for (uint32_t w = 0; w < c->n_waits; w++)
        if (atomic_load(&f->told[f->command_of[c->waits[w]]]) <= f->part_of[c->waits[w]])
            return dh_fail(ctx, DH_EINTERNAL, "command %u begins before event %u", c->id,
                           c->waits[w]);
    if (atomic_exchange(&f->on_stream[c->stream], c->id + 1) > c->id)
        return dh_fail(ctx, DH_EINTERNAL, "command %u out of order", c->id);
    if (c->id == f->fails) return dh_fail(ctx, DH_EIO, "as asked for");
    for (uint32_t k = 0; k < c->n_parts; k++) {
        delay(f->delays[c->id]);
        atomic_store(&f->told[c->id], k + 1);
        if (k + 1 < c->n_parts) dh_part_tell(&c->call->progress, k);
    }
    return DH_OK;
}

static void working(void *user, uint32_t stream, bool works)
{
}

static void explain(dh_ctx *ctx, void *user, uint32_t id)
{
}

static void failed(void *user, dh_status status, const char *message)
{
    fixture *f = user;
    atomic_fetch_add(&f->n_failures, 1);
}

/* ---- random commands ------------------------------------------------------------------------ */

/* On two streams or more; each may wait for events of commands before it. */
static dh_streams *make(dh_ctx *ctx, fixture *f, uint64_t *rng)
{
    dh_streams *streams = NULL;
    memset(f, 0, sizeof *f);
    f->n = f->fails = 2 + (uint32_t)(test_rand(rng) % (MAX_COMMANDS - 2));
    const uint32_t n_streams = 2 + (uint32_t)(test_rand(rng) % (DH_N_STREAM - 1));
    for (uint32_t id = 0; id < f->n; id++) {
        dh_stream_command *c = &f->commands[id];
        *c = (dh_stream_command){.id = id,
                                 .stream = (uint32_t)(test_rand(rng) % n_streams),
                                 .waits = f->waits[id],
                                 .event0 = f->n_events,
                                 .n_parts = 1 + (uint32_t)(test_rand(rng) % MAX_PARTS),
                                 .call = &f->calls[id],
                                 .host_user = f};
        while (f->n_events > 0 && c->n_waits < MAX_WAITS && test_rand(rng) % 2)
            f->waits[id][c->n_waits++] = (uint32_t)(test_rand(rng) % f->n_events);
        f->delays[id] = test_rand(rng) % 8 ? (int)(test_rand(rng) % 200) : 0;
        for (uint32_t k = 0; k < c->n_parts; k++) {
            f->command_of[f->n_events] = id;
            f->part_of[f->n_events++] = k;
        }
    }
    const dh_streams_spec spec = {
        .n_commands = f->n,
        .n_events = f->n_events,
        .log_rank = -1,
        .watch = {.user = f, .working = working, .explain = explain, .failed = failed}};
    assert_ok(ctx, dh_host_streams_create(ctx, NULL, NULL, &spec, work, &streams));
    for (uint32_t id = 0; id < f->n; id++)
        assert_ok(ctx, dh_host_streams_issue(ctx, streams, &f->commands[id]));
    return streams;
}

static void begin(fixture *f)
{
    for (uint32_t id = 0; id < f->n; id++) atomic_store(&f->told[id], 0);
    for (int s = 0; s < DH_N_STREAM; s++) atomic_store(&f->on_stream[s], 0);
    atomic_store(&f->n_failures, 0);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void commands_come_after_what_they_wait_for(void **state)
{
    static fixture f;
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t rng = test_seed("streams");
    const int n_programs = test_is_short() ? 40 : 200;
    for (int i = 0; i < n_programs; i++) {
        dh_streams *streams = make(&ctx, &f, &rng);
        for (int run = 0; run < 100; run++) {
            begin(&f);
            assert_ok(&ctx, dh_host_streams_run(&ctx, streams, false));
            for (uint32_t id = 0; id < f.n; id++)
                assert_int_equal(atomic_load(&f.told[id]), f.commands[id].n_parts);
            assert_int_equal(atomic_load(&f.n_failures), 0);
        }
        dh_host_streams_destroy(streams);
    }
}

/* It is told once, and the streams run again as if nothing had been. */
static void a_failure_stops_all_streams(void **state)
{
    static fixture f;
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t rng = test_seed("streams");
    for (int i = 0; i < 40; i++) {
        dh_streams *streams = make(&ctx, &f, &rng);
        for (int run = 0; run < 20; run++) {
            f.fails = (uint32_t)(test_rand(&rng) % f.n);
            begin(&f);
            assert_fails(&ctx, dh_host_streams_run(&ctx, streams, false), DH_EIO, "as asked for");
            assert_int_equal(atomic_load(&f.n_failures), 1);
            f.fails = f.n;
            begin(&f);
            assert_ok(&ctx, dh_host_streams_run(&ctx, streams, false));
        }
        dh_host_streams_destroy(streams);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_come_after_what_they_wait_for),
        cmocka_unit_test(a_failure_stops_all_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
