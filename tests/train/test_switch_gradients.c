/* Gradients of a step over several meshes, tensor by tensor: what lies at home when all groups are
 * through and the optimizer has not begun, against one rank's of the same documents, packed.
 *
 * Tolerance: as in test_rank_gradients.c. float32 sums of the same products in another grouping;
 * errors are taken over the element plus its tensor's root mean square; measured up to 5e-6 over
 * 25 seeds, allowed: 2e-5. */
#include "gradients.h"

#include "data/groups.h"
#include "train/run.h"

enum { SEQ = 32, ROWS = 8 };
static const double tolerance = 2e-5;

static const char gpt2[] =
    "model: {family: gpt2, n_layers: 4, width: 32, n_heads: 4, vocab: 256, max_seq: 32}\n";
static const char llama[] =
    "model: {family: llama, n_layers: 4, width: 32, n_heads: 8, n_kv_heads: 4, head_dim: 8,\n"
    "        ffn_width: 88, vocab: 256, max_seq: 32, tied_head: false}\n";

/* ---- documents ------------------------------------------------------------------------------- */

static char data_dir[256];
static dh_dataset *documents;

/* Of 2 to 33 bytes, a file each; more than the first ROWS rows hold. */
static int make_documents(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = test_seed("documents of a step");
    dh_tokenizer *bytes;
    const char *files[] = {data_dir};
    test_tmpdir(data_dir, sizeof data_dir);
    for (int i = 0; i < 60; i++) {
        char path[300], text[40];
        const size_t n = 2 + test_rand(&seed) % (i % 3 == 0 ? 32 : i % 3 == 1 ? 15 : 7);
        for (size_t k = 0; k < n; k++) text[k] = (char)(1 + test_rand(&seed) % 127);
        snprintf(path, sizeof path, "%s/%02d.txt", data_dir, i);
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
    }
    assert_ok(&ctx, dh_tokenizer_load(&ctx, "bytes", &bytes));
    const dh_dataset_spec spec = {
        .files = files, .n_files = 1, .tokenizer = bytes, .order = DH_ORDER_SHUFFLE};
    assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &documents));
    assert_ok(&ctx, dh_dataset_pack(&ctx, documents, SEQ, -1));
    dh_tokenizer_destroy(bytes);
    return 0;
}

static int drop_documents(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset_close(documents);
    return dh_dir_remove(&ctx, data_dir) == DH_OK ? 0 : -1;
}

static void add_targets(void *user, int64_t n, int64_t n_targets)
{
    *(double *)user += (double)n_targets;
}

static double n_targets(dh_ctx *ctx)
{
    double n = 0;
    for (int64_t i = 0; i < ROWS; i++)
        if (dh_dataset_lengths(ctx, documents, i, add_targets, &n) != DH_OK) return -1;
    return n;
}

/* ---- a step of one rank ---------------------------------------------------------------------- */

/* All of a step that leaves the weights alone. */
static dh_status step_packed(dh_ctx *ctx, member *m)
{
    DH_TRY(member_begin(ctx, m));
    dh_step step = member_step(m, 0);
    step.source = dh_run_source(documents);
    step.loss_rows = n_targets(ctx);
    return dh_exec_run(ctx, m->session->train_exec, &step);
}

/* ---- a step of many ---------------------------------------------------------------------------
 */

typedef struct group_rows {
    const dh_length_groups *groups;
    size_t group;
} group_rows;

static dh_status load_row(dh_ctx *ctx, void *self, int64_t sample, int64_t seq,
                          const dh_batch_row *row)
{
    const group_rows *r = self;
    const dh_dataset_row to = {row->tokens, row->targets, row->positions, row->samples};
    return dh_length_groups_row(ctx, documents, r->groups, r->group, sample, &to);
}

static dh_status run_groups(dh_ctx *ctx, member *m, const dh_length_groups *groups)
{
    group_rows rows[DH_MAX_LENGTH_GROUPS];
    dh_switch_work work[DH_MAX_LENGTH_GROUPS];
    dh_switch_done done;
    for (size_t i = 0; i < groups->n; i++) {
        rows[i] = (group_rows){groups, i};
        work[i] = (dh_switch_work){.n_rows = dh_pack_rows(&groups->rows[i]),
                                   .source = {.self = &rows[i], .load_row = load_row}};
    }
    dh_step step = member_step(m, 0);
    step.loss_rows = n_targets(ctx);
    DH_TRY(dh_switch_run(ctx, m->session->switched, &step, work, NULL, NULL, &done));
    m->norm = done.rows; /* tokens whose losses the rank has counted */
    return DH_OK;
}

/* All of a step but the optimizer. */
static dh_status step_grouped(dh_ctx *ctx, member *m)
{
    int64_t max_len[DH_MAX_LENGTH_GROUPS];
    dh_length_groups groups;
    DH_TRY(member_begin(ctx, m));
    for (size_t i = 0; i < m->resolved->n_groups; i++)
        max_len[i] = m->resolved->group_recipes[i].seq;
    dh_status st =
        dh_length_groups_make(ctx, documents, 0, ROWS, max_len, m->resolved->n_groups, &groups);
    if (st == DH_OK) st = run_groups(ctx, m, &groups);
    dh_length_groups_fini(&groups);
    return st;
}

static void run_step(const char *model, const char *more, member_work *work, team *t)
{
    char text[1200];
    snprintf(text, sizeof text,
             "%sdata: {train: none, packing: %s}\n"
             "train: {batch: 8, micro_batch: 1, seq_len: 32, threads: 1}\nprofile: none\n%s",
             model, work == step_packed ? "pack" : "group", more);
    team_run(text, work, NULL, t);
}

/* ---- meshes -----------------------------------------------------------------------------------
 */

static const char *const meshes[] = {
    "parallel: {dp: 4}\nswitch: {groups: [8 dp=4, 32 dp=2 tp=2]}\n",
    "ranks: 4\nparallel: {tp: 2}\nswitch: {groups: [8 dp=4, 16 cp=2 tp=2, 32 pp=4]}\n",
    "parallel: {pp: 2, dp: 2, zero: 1}\n"
    "switch: {groups: [8 dp=2 cp=2, 16 dp=2 pp=2 zero=1, 32 tp=4]}\n",
    "parallel: {cp: 4}\nswitch: {groups: [16 pp=2 dp=2 schedule=zb-h1, 32 cp=4], overlap: false}\n",
    "parallel: {dp: 2, tp: 2, zero: 2}\nswitch: {groups: [8 dp=4, 16 cp=2 tp=2, 32 pp=2 tp=2]}\n",
    "parallel: {dp: 2, pp: 2, zero: 2}\ndevice: staged\n"
    "switch: {groups: [16 tp=2 pp=2 micro_batches=4, 32 dp=2 tp=2 zero=1]}\n",
    "parallel: {dp: 4, zero: 3}\nswitch: {groups: [8 dp=4, 16 dp=2 cp=2, 32 tp=2 pp=2]}\n",
    "parallel: {dp: 2, pp: 2, zero: 3, bucket_mb: 0.02}\n"
    "switch: {groups: [8 dp=2 tp=2, 32 cp=2 pp=2], overlap: false}\n",
    "parallel: {tp: 4}\nswitch: {groups: [4 dp=4 micro_batch=2, 8 dp=2 tp=2, 32 pp=2 cp=2]}\n",
};

static void gradients_of(const char *model)
{
    static size_t turn; /* of models: together they have all meshes */
    const size_t stride = test_is_short() ? 2 : 1;
    dh_ctx ctx = DH_CTX_INIT;
    const double want = n_targets(&ctx);
    team one;
    run_step(model, "parallel: {dp: 1}\n", step_packed, &one);
    for (size_t i = turn++ % stride; i < DH_COUNTOF(meshes); i += stride) {
        team many;
        double counted = 0;
        run_step(model, meshes[i], step_grouped, &many);
        for (int r = 0; r < many.n; r++) counted += many.members[r].norm;
        if (counted != want) fail_msg("%s: %g tokens counted of %g", meshes[i], counted, want);
        const double worst = compare_gradients(&one, &many, tolerance, meshes[i]);
        printf("  %.2g: %s", worst, meshes[i]);
        team_end(&many);
    }
    team_end(&one);
}

/* Its embedding is its head: two gradients that meet at home. */
static void gpt2_gradients(void **state)
{
    gradients_of(gpt2);
}

static void llama_gradients(void **state)
{
    gradients_of(llama);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_gradients),
        cmocka_unit_test(llama_gradients),
    };
    return cmocka_run_group_tests(tests, make_documents, drop_documents);
}
