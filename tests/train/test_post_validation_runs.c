/* Stages that step ahead of the gradient norm leave the bits of stages that wait for it: losses,
 * norms, weights and moments, where clipping never says otherwise, always, or now and then, and
 * where a gradient is not finite. Other ranks than the one that has it have stepped by then. */
#include "ranks.h"
#include "team.h"

/* ---- whole runs ----------------------------------------------------------------------------- */

static const struct {
    const char *model, *settings;
    bool deep;
} runs[] = {
    {RUN_GPT2, "parallel.pp=4 parallel.schedule=1f1b", false},
    {RUN_LLAMA, "parallel.pp=2 parallel.tp=2 parallel.schedule=zb-h1 train.dtype=bf16", false},
    {RUN_GPT2, "parallel.pp=2 parallel.dp=2 parallel.schedule=zb-v parallel.zero=1", false},
    {RUN_LLAMA, "parallel.pp=4 parallel.schedule=zb-h2 model.dropout=0.1", true},
    {RUN_LLAMA, "parallel.pp=2 parallel.dp=2 parallel.zero=2 parallel.bucket_mb=0.02", true},
    {RUN_GPT2, "parallel.pp=2 parallel.dp=2 parallel.zero=3 train.dtype=bf16", true},
    {RUN_LLAMA, "parallel.pp=2 parallel.dp=2 parallel.zero=1 parallel.gather=forward", true},
    {RUN_GPT2, "parallel.pp=2 parallel.cp=2 parallel.schedule=gpipe", true},
    {RUN_GPT2, "parallel.pp=2 parallel.virtual_stages=2 parallel.schedule=interleaved-1f1b", true},
    {RUN_GPT2, "parallel.pp=2 strategy=dhelix parallel.tp=2", true},
    {RUN_LLAMA, "parallel.pp=2 parallel.schedule=dualpipe parallel.dp=2 parallel.zero=1", true},
    {RUN_EXPERTS, "parallel.pp=2 parallel.dp=2 parallel.ep=2", true},
};

/* By settings that clip nothing, everything, or what lies above a norm. */
static void expect_same(size_t run, double clip, run_curve *curve)
{
    char settings[400], out[2][300];
    run_curve ahead;
    for (int k = 0; k < 2; k++) {
        snprintf(settings, sizeof settings,
                 "%s train.steps=8 eval.every=8 optimizer.grad_clip=%.17g "
                 "optimizer.post_validation=%s",
                 runs[run].settings, clip, k ? "true" : "false");
        run_folder(out[k], sizeof out[k], k ? "ahead" : "waits");
        if (k)
            run_compared_of(runs[run].model, settings, out[k], &ahead);
        else
            run_reference_of(runs[run].model, settings, out[k], curve);
    }
    double norms = 0;
    for (int i = 0; i < curve->n; i++) norms = fmax(norms, fabs(curve->norm[i] - ahead.norm[i]));
    if (run_distance(curve, &ahead, 0) != 0 || curve->last != ahead.last || norms != 0 ||
        !run_same_bytes(out[0], out[1], curve->n))
        fail_msg("%s: other bits", settings);
    for (int k = 0; k < 2; k++) run_remove(out[k]);
}

static int by_size(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static double median(const run_curve *c)
{
    double sorted[RUN_MAX_STEPS];
    memcpy(sorted, c->norm, sizeof sorted);
    qsort(sorted, (size_t)c->n, sizeof *sorted, by_size);
    return (sorted[c->n / 2 - 1] + sorted[c->n / 2]) / 2;
}

static void stepping_ahead_changes_no_bit(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(runs); i++) {
        run_curve curve;
        int n_above = 0;
        if (runs[i].deep && test_is_thin()) continue;
        expect_same(i, 1e6, &curve);
        const double some = median(&curve);
        expect_same(i, some, &curve);
        for (int k = 0; k < curve.n; k++) n_above += curve.norm[k] > some;
        if (n_above == 0 || n_above == curve.n)
            fail_msg("%s: %d of %d steps clip", runs[i].settings, n_above, curve.n);
        if (test_is_thin() && i > 0) continue;
        expect_same(i, 0.02, &curve);
        expect_same(i, 0, &curve);
    }
}

static void refused(const char *settings, const char *message)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300];
    run_folder(out, sizeof out, "refused");
    assert_fails(&ctx, run_job(&ctx, RUN_GPT2, settings, out, NULL), DH_EINVAL, message);
}

static void one_stage_is_refused(void **state)
{
    refused("parallel.dp=2 optimizer.post_validation=true",
            "optimizer.post_validation is for pipelines");
}

/* ---- a gradient that is not finite ---------------------------------------------------------- */

enum { STEPS = 4, POISONED = 1, SEQ = 32, SAMPLES = 64 };
static int32_t tokens[SAMPLES * SEQ], targets[SAMPLES * SEQ];

enum { MOST_THREADS = 16 };

/* Whose gradient is poisoned in which step, and how: by the thread that runs its compute stream, in
 * front of the first sum of squares, where all its gradients are there. Which thread that is, the
 * step before shows: the one that runs most instructions. */
typedef struct poison {
    bool at_end; /* of the chain: by the stage that the others have stepped ahead of */
    float value;
    int n_ahead; /* stages that had stepped by then */
    pthread_mutex_t lock;
    pthread_t threads[MOST_THREADS];
    uint32_t n_run[MOST_THREADS];
    int n_threads;
} poison;

typedef struct syringe {
    const member *m;
    const poison *p;
    pthread_t thread;
    uint32_t n_before; /* of its compute stream's instructions */
} syringe;

static bool is_end(const dh_program *p)
{
    return dh_program_kept_bytes(p) == 0;
}

static dh_status count_by_thread(dh_ctx *ctx, void *user)
{
    poison *p = user;
    int k = 0;
    pthread_mutex_lock(&p->lock);
    while (k < p->n_threads && !pthread_equal(p->threads[k], pthread_self())) k++;
    const bool room = k < MOST_THREADS;
    if (room && k == p->n_threads) {
        p->threads[p->n_threads] = pthread_self();
        p->n_run[p->n_threads++] = 0;
    }
    if (room) p->n_run[k]++;
    pthread_mutex_unlock(&p->lock);
    return room ? DH_OK : dh_fail(ctx, DH_EINTERNAL, "too many threads run instructions");
}

static dh_status find_thread(dh_ctx *ctx, const poison *p, pthread_t *thread)
{
    uint32_t most = 0, all = 0;
    for (int k = 0; k < p->n_threads; k++) {
        all += p->n_run[k];
        if (p->n_run[k] <= most) continue;
        most = p->n_run[k];
        *thread = p->threads[k];
    }
    return 2 * most > all ? DH_OK : dh_fail(ctx, DH_EINTERNAL, "no thread runs most instructions");
}

static dh_status inject(dh_ctx *ctx, void *user)
{
    syringe *s = user;
    if (!pthread_equal(pthread_self(), s->thread) || s->n_before-- > 0) return DH_OK;
    s->n_before = UINT32_MAX;
    const dh_program *p = s->m->session->train;
    const dh_buffer *b = &p->buffers.at[p->flats.at[0].vector[DH_BUF_GRAD].buffer];
    return s->m->session->spec.device->slab_write(
        ctx, s->m->session->slab, b->offset + p->flats.at[0].vector[DH_BUF_GRAD].byte0,
        &s->p->value, sizeof s->p->value);
}

static uint32_t computed_before_squares(const dh_program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (p->instrs.at[i].stream != DH_STREAM_COMPUTE) continue;
        if (dh_instr_op(p, &p->instrs.at[i])->type == DH_OP_SQSUM) return n;
        n++;
    }
    return n;
}

static dh_status read_pair(dh_ctx *ctx, const member *m, dh_state state, double pair[2])
{
    const dh_program *p = m->session->train;
    const uint32_t buffer = dh_program_state_buffer(p, state);
    return m->session->spec.device->slab_read(ctx, m->session->slab, p->buffers.at[buffer].offset,
                                              pair, 2 * sizeof *pair);
}

/* Where it has stepped ahead, the norm so far clipped nothing. */
static dh_status count_ahead(dh_ctx *ctx, const member *m, poison *p)
{
    double so_far[2];
    if (is_end(m->session->train)) return DH_OK;
    DH_TRY(read_pair(ctx, m, DH_STATE_NORM_SO_FAR, so_far));
    pthread_mutex_lock(&p->lock);
    p->n_ahead += isfinite(so_far[0]) && so_far[1] == 1;
    pthread_mutex_unlock(&p->lock);
    return DH_OK;
}

static dh_status run_step(dh_ctx *ctx, member *m, int64_t i)
{
    rows_source rows = {tokens, targets, SAMPLES};
    poison *p = m->arg;
    const bool ahead = m->resolved->recipe.post_validation;
    syringe s = {.m = m, .p = p, .n_before = computed_before_squares(m->session->train)};
    dh_step step = member_step(m, i * m->resolved->job.global_batch);
    double norm[2];
    step.step = i;
    step.lr = 1e-2;
    step.weight_decay = 0.1;
    step.grad_clip = 1e3;
    step.source = (dh_batch_source){.load = rows_load, .self = &rows};
    /* The pipeline rank of the chain's end, and of its beginning, in runs with and without. */
    const bool hurt = m->rank == (p->at_end ? 0 : (int)m->resolved->job.ranks - 1);
    if (ahead && (p->at_end || m->rank == 0) && is_end(m->session->train) != (m->rank == 0))
        return dh_fail(ctx, DH_EINTERNAL, "rank %d is not where the chain ends", m->rank);
    if (hurt && i == POISONED - 1) {
        p->n_threads = 0;
        step.hook = count_by_thread;
        step.hook_user = p;
    }
    if (hurt && i == POISONED) {
        DH_TRY(find_thread(ctx, p, &s.thread));
        step.hook = inject;
        step.hook_user = &s;
    }
    DH_TRY(dh_exec_run(ctx, m->session->train_exec, &step));
    DH_TRY(read_pair(ctx, m, DH_STATE_NORM, norm));
    if (isfinite(norm[0]) != (i != POISONED))
        return dh_fail(ctx, DH_EINTERNAL, "step %d: norm %g", (int)i, norm[0]);
    return i == POISONED && ahead ? count_ahead(ctx, m, p) : DH_OK;
}

static dh_status train_member(dh_ctx *ctx, member *m)
{
    DH_TRY(member_begin(ctx, m));
    for (int64_t i = 0; i < STEPS; i++) DH_TRY(run_step(ctx, m, i));
    return DH_OK;
}

/* Parameters, their copies and moments of two teams. */
static void compare_members(const member *a, const member *b)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_program *p = a->session->train, *q = b->session->train;
    static const dh_buffer_kind kinds[] = {DH_BUF_MASTER, DH_BUF_COPY, DH_BUF_ADAM_M,
                                           DH_BUF_ADAM_V};
    size_t n_seen = 0;
    for (uint32_t i = 0; i < p->params.n; i++)
        for (size_t k = 0; k < DH_COUNTOF(kinds); k++) {
            const dh_operand x = p->homes.at[i].at[kinds[k]], y = q->homes.at[i].at[kinds[k]];
            if (x.buffer == DH_NONE) continue;
            char *bytes[2] = {malloc(x.n_bytes), malloc(x.n_bytes)};
            assert_int_equal(x.n_bytes, y.n_bytes);
            assert_ok(&ctx, a->session->spec.device->slab_read(
                                &ctx, a->session->slab, p->buffers.at[x.buffer].offset + x.byte0,
                                bytes[0], x.n_bytes));
            assert_ok(&ctx, b->session->spec.device->slab_read(
                                &ctx, b->session->slab, q->buffers.at[y.buffer].offset + y.byte0,
                                bytes[1], x.n_bytes));
            if (memcmp(bytes[0], bytes[1], x.n_bytes) != 0)
                fail_msg("rank %d: %s of kind %d has other bits", a->rank, p->params.at[i].name,
                         (int)kinds[k]);
            free(bytes[0]);
            free(bytes[1]);
            n_seen++;
        }
    assert_true(n_seen > 10);
}

static void train_poisoned(const char *dtype, bool at_end, float value)
{
    team teams[2];
    poison p = {.at_end = at_end, .value = value, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (int ahead = 0; ahead < 2; ahead++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "model: {family: llama, n_layers: 6, width: 32, n_heads: 8, n_kv_heads: 4,\n"
                 "        head_dim: 8, ffn_width: 88, vocab: 65, max_seq: 32, tied_head: false}\n"
                 "data: {train: none}\ntrain: {batch: 6, micro_batch: 1, seq_len: 32, threads: 1, "
                 "dtype: %s}\nparallel: {pp: 3, schedule: 1f1b, layer_split: \"3,2,1\"}\n"
                 "strategy: sequential\nprofile: none\noptimizer: {post_validation: %s}\n"
                 "device: %s\n",
                 dtype, ahead ? "true" : "false", ahead ? "auto" : "cpu");
        team_run(text, train_member, &p, &teams[ahead]);
    }
    for (int r = 0; r < teams[0].n; r++)
        compare_members(&teams[0].members[r], &teams[1].members[r]);
    if (p.n_ahead != (at_end ? 2 : 0))
        fail_msg("%s, %g: %d stages stepped ahead", dtype, (double)value, p.n_ahead);
    for (int k = 0; k < 2; k++) team_end(&teams[k]);
}

/* At the chain's end: both other stages take their step back. Where it begins: nobody steps. */
static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    uint64_t seed = test_seed("a_gradient_that_is_not_finite");
    for (int i = 0; i < SAMPLES * SEQ; i++) {
        tokens[i] = (int32_t)(test_rand(&seed) % 65);
        targets[i] = (int32_t)(test_rand(&seed) % 65);
    }
    static const float values[] = {INFINITY, NAN};
    for (int k = 0; k < 4; k++) train_poisoned(k / 2 ? "bf16" : "f32", k % 2 == 0, values[k / 2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stepping_ahead_changes_no_bit),
        cmocka_unit_test(one_stage_is_refused),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
