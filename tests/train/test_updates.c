/* What a step that fails has done to masters and moments, as the executor tells it: nothing, all or
 * some of it, whichever instruction it fails at; and that whoever still reads them holds it up. */
#include "team.h"

#include <stdatomic.h>

static const char job_text[] =
    "model: {family: gpt2, n_layers: 1, width: 16, n_heads: 2, vocab: 29, max_seq: 8}\n"
    "train: {batch: 2, micro_batch: 1, seq_len: 8, threads: 1, dtype: bf16}\n"
    "data: {train: none.bin}\n"
    "device: %s\n";

enum { SAMPLES = 2, SEQ = 8 };
static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

/* The state's buffers, one after another. */
typedef struct state {
    unsigned char *at;
    size_t n_bytes;
} state;

static bool is_state(const dh_buffer *b)
{
    return b->kind == DH_BUF_MASTER || b->kind == DH_BUF_ADAM_M || b->kind == DH_BUF_ADAM_V;
}

static state new_state(const dh_program *p)
{
    state s = {0};
    for (size_t i = 0; i < p->buffers.n; i++)
        if (is_state(&p->buffers.at[i])) s.n_bytes += p->buffers.at[i].n_bytes;
    s.at = malloc(s.n_bytes);
    assert_non_null(s.at);
    return s;
}

static void move(const member *m, bool read, state *s)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_program *p = m->session->train;
    const dh_device *device = m->session->spec.device;
    unsigned char *at = s->at;
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (!is_state(b)) continue;
        assert_ok(&ctx,
                  read ? device->slab_read(&ctx, m->session->slab, b->offset, at, b->n_bytes)
                       : device->slab_write(&ctx, m->session->slab, b->offset, at, b->n_bytes));
        at += b->n_bytes;
    }
}

/* ---- stopping at an instruction ---------------------------------------------------------------
 */

typedef struct stop {
    _Atomic int n_left; /* instructions until it stops */
    _Atomic int n_held;
} stop;

static dh_status stop_there(dh_ctx *ctx, void *user)
{
    stop *s = user;
    return atomic_fetch_sub(&s->n_left, 1) > 1 ? DH_OK
                                               : dh_fail(ctx, DH_EINTERRUPTED, "stopped here");
}

static void count_held(void *user)
{
    ((stop *)user)->n_held++;
}

static dh_status run_step(dh_ctx *ctx, member *m, stop *s)
{
    rows_source rows = {tokens, targets, SAMPLES};
    dh_step step = member_step(m, 0);
    step.lr = 1e-2;
    step.source = (dh_batch_source){.load = rows_load, .self = &rows};
    step.hook = stop_there;
    step.hold = count_held;
    step.hook_user = step.hold_user = s;
    return dh_exec_run(ctx, m->session->train_exec, &step);
}

static bool same(const state *a, const state *b)
{
    return memcmp(a->at, b->at, a->n_bytes) == 0;
}

/* Instruction by instruction, from the same state. */
static void stop_everywhere(member *m)
{
    const int n = (int)m->session->train->instrs.n;
    int n_seen[3] = {0}, n_updates;
    dh_ctx ctx = DH_CTX_INIT;
    state before = new_state(m->session->train), after = new_state(m->session->train),
          now = new_state(m->session->train);
    stop never = {.n_left = n + 1};
    move(m, true, &before);
    assert_ok(&ctx, run_step(&ctx, m, &never));
    assert_int_equal(dh_exec_updated(m->session->train_exec), DH_UPDATED_ALL);
    move(m, true, &after);
    n_updates = never.n_held;
    assert_true(n_updates > 0 && !same(&before, &after));
    for (int i = 1; i <= n; i++) {
        stop here = {.n_left = i};
        move(m, false, &before);
        assert_fails(&ctx, run_step(&ctx, m, &here), DH_EINTERRUPTED, "stopped here");
        const dh_updated updated = dh_exec_updated(m->session->train_exec);
        move(m, true, &now);
        n_seen[updated]++;
        if (updated == DH_UPDATED_NONE) assert_true(same(&now, &before) && here.n_held == 0);
        if (updated == DH_UPDATED_ALL) assert_true(same(&now, &after) && here.n_held == n_updates);
    }
    printf("  %s: %d instructions, %d of them update; the state is as before %d times, in part %d, "
           "as after %d\n",
           m->session->spec.device->name, n, n_updates, n_seen[DH_UPDATED_NONE],
           n_seen[DH_UPDATED_SOME], n_seen[DH_UPDATED_ALL]);
    assert_true(n_seen[DH_UPDATED_NONE] > n / 2 && n_seen[DH_UPDATED_SOME] > 0);
    free(before.at);
    free(after.at);
    free(now.at);
}

static void a_failed_step_tells_what_it_has_done(void **unused)
{
    static const char *const devices[] = {"cpu", "staged"};
    uint64_t seed = test_seed("a_failed_step_tells_what_it_has_done");
    for (int i = 0; i < SAMPLES * SEQ; i++) tokens[i] = (int32_t)(test_rand(&seed) % 29);
    for (int i = 0; i < SAMPLES * SEQ; i++) targets[i] = (int32_t)(test_rand(&seed) % 29);
    for (size_t d = 0; d < DH_COUNTOF(devices); d++) {
        char text[600];
        dh_ctx ctx = DH_CTX_INIT;
        const dh_resolve_options quiet = {.quiet = true};
        dh_resolved *resolved;
        dh_job *job;
        snprintf(text, sizeof text, job_text, devices[d]);
        assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", ".", NULL, 0, &job));
        assert_ok(&ctx, dh_job_resolve(&ctx, job, &quiet, &resolved));
        member m = {.resolved = resolved};
        assert_ok(&ctx, member_begin(&ctx, &m));
        stop_everywhere(&m);
        dh_session_destroy(m.session);
        dh_resolved_destroy(resolved);
        dh_job_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_step_tells_what_it_has_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
