/* What suites share that look into the slabs of all ranks of a mesh: a session for each, on a
 * thread of its own. */
#ifndef TEST_TRAIN_TEAM_H
#define TEST_TRAIN_TEAM_H

#include "fixture.h"

#include <pthread.h>

#include "dhelix/train.h"
#include "train/params.h"
#include "train/resolve.h"

enum { TEAM_MAX_RANKS = 8 };

typedef struct member member;
typedef dh_status member_work(dh_ctx *ctx, member *m);

/* One rank of a job: what it does leaves a session. */
struct member {
    const dh_resolved *resolved;
    dh_comm_world *world;
    int rank;
    member_work *work;
    void *arg;
    dh_session *session;
    double norm;
    dh_ctx ctx;
};

typedef struct team {
    member members[TEAM_MAX_RANKS];
    int n;
    dh_job *job;
    dh_resolved *resolved;
    dh_comm_world *world;
} team;

/* A training session of the rank, with initial weights of one seed. */
static inline dh_status member_begin(dh_ctx *ctx, member *m)
{
    const dh_job *job = &m->resolved->job;
    dh_session_spec spec = dh_train_session(job, &m->resolved->recipe);
    int n_threads;
    spec.groups = m->resolved->group_recipes;
    spec.n_groups = m->resolved->n_groups;
    spec.rank = m->rank;
    DH_TRY(spec.device->bind_rank(ctx, m->rank, (int)job->ranks, 1, &n_threads));
    if (m->world) DH_TRY(dh_comm_attach(ctx, m->world, m->rank, &spec.comm));
    DH_TRY(dh_session_create(ctx, &spec, &m->session));
    return dh_session_init_params(ctx, m->session, 11);
}

/* A step of the rank on the samples from `first` on. */
static inline dh_step member_step(const member *m, int64_t first)
{
    const dh_job *job = &m->resolved->job;
    const int64_t dp = dh_mesh_coord(&m->session->spec.recipe.mesh, m->rank).dp;
    return (dh_step){.first_sample = first + dp * job->micro_batch,
                     .sample_stride = job->dp * job->micro_batch,
                     .seed = 5,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8};
}

static void *member_main(void *arg)
{
    member *m = arg;
    m->work(&m->ctx, m);
    return NULL;
}

/* Of the links between the ranks of the teams to come. */
static dh_comm_pace team_pace[DH_N_ENGINE];

/* All ranks of a job, whose text team_end releases; all must end well. */
static inline void team_run_alone(const char *text, member_work *work, void *arg, team *t)
{
    dh_ctx ctx = DH_CTX_INIT;
    pthread_t threads[TEAM_MAX_RANKS];
    *t = (team){0};
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "job", ".", NULL, 0, &t->job));
    t->n = (int)t->job->ranks;
    assert_in_range(t->n, 1, TEAM_MAX_RANKS);
    const dh_resolve_options options = {.quiet = true};
    assert_ok(&ctx, dh_job_resolve(&ctx, t->job, &options, &t->resolved));
    dh_comm_config config = {.ranks = t->n};
    memcpy(config.pace, team_pace, sizeof config.pace);
    if (t->n > 1) assert_ok(&ctx, dh_comm_world_create(&ctx, "local", &config, &t->world));
    for (int r = 0; r < t->n; r++) {
        t->members[r] = (member){.resolved = t->resolved,
                                 .world = t->world,
                                 .rank = r,
                                 .work = work,
                                 .arg = arg,
                                 .ctx = DH_CTX_INIT};
        assert_int_equal(pthread_create(&threads[r], NULL, member_main, &t->members[r]), 0);
    }
    for (int r = 0; r < t->n; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < t->n; r++)
        if (t->members[r].ctx.status != DH_OK)
            fail_msg("%s: rank %d: %s", text, r, t->members[r].ctx.message);
}

static inline void team_end(team *t)
{
    for (int r = 0; r < t->n; r++) dh_session_destroy(t->members[r].session);
    dh_comm_world_destroy(t->world);
    dh_resolved_destroy(t->resolved);
    dh_job_destroy(t->job);
}

/* ---- another device than the cpu ---------------------------------------------------------------
 */

/* All that a rank keeps between steps, gradients among it, has the bits that it has in b. */
static inline void team_expect_same(const char *text, const member *a, const member *b)
{
    const dh_program *p = a->session->train, *q = b->session->train;
    const member *members[2] = {a, b};
    size_t n_seen = 0;
    assert_int_equal(p->buffers.n, q->buffers.n);
    for (uint32_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *x = &p->buffers.at[i], *y = &q->buffers.at[i];
        dh_ctx ctx = DH_CTX_INIT;
        char *bytes[2];
        if (x->kind > DH_BUF_ADAM_V) continue;
        assert_true(x->kind == y->kind && x->n_bytes == y->n_bytes);
        for (int k = 0; k < 2; k++) {
            const dh_session *s = members[k]->session;
            bytes[k] = malloc(x->n_bytes + 1);
            assert_non_null(bytes[k]);
            assert_ok(&ctx, s->spec.device->slab_read(&ctx, s->slab, k ? y->offset : x->offset,
                                                      bytes[k], x->n_bytes));
        }
        if (memcmp(bytes[0], bytes[1], x->n_bytes) != 0)
            fail_msg("%s: rank %d: buffer %u, of kind %d, has not the cpu's bits", text, a->rank,
                     (unsigned)i, (int)x->kind);
        free(bytes[0]);
        free(bytes[1]);
        n_seen++;
    }
    assert_true(n_seen > 3);
}

/* All ranks of a job; where DHELIX_DEVICE says another device than the cpu, and the job does not,
 * on the cpu first, for its bits. What the work leaves in arg is of the run that comes last. */
static inline void team_run(const char *text, member_work *work, void *arg, team *t)
{
    const char *device = getenv("DHELIX_DEVICE");
    char on_cpu[2048];
    team cpu;
    const bool compared =
        device && *device && strcmp(device, "cpu") != 0 && !strstr(text, "device:");
    snprintf(on_cpu, sizeof on_cpu, "%sdevice: cpu\n", text);
    if (compared) team_run_alone(on_cpu, work, arg, &cpu);
    team_run_alone(text, work, arg, t);
    for (int r = 0; compared && r < t->n; r++)
        team_expect_same(text, &t->members[r], &cpu.members[r]);
    if (compared) team_end(&cpu);
}

#endif
