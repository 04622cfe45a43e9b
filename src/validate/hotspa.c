/* HotSPa (SOSP 2024), table 3: a mini-batch by groups of lengths, each over a mesh of its own.
 *
 * How long the documents of its two data sets are is not published. The rows of strategy static
 * give it indirectly. There each group's documents are packed into rows of 32K tokens, and a group
 * takes (rows + stages - 1) times as long as a row. So the times of static give the tokens of each
 * group, and are no rows here. The other strategies' times follow: the same tokens, packed into
 * rows of their group's length. Attention is that of whole rows, since the artifact packs documents
 * without a mask between them.
 *
 * "Others" is switching: parameters to every mesh that is not the home, and gradients back, one after
 * another. Its home is the layout with the least memory, which for these is static's. */
#include <stdlib.h>
#include <string.h>

#include "train/switched.h"
#include "validate/dhelix_jobs.h"

enum { ROW_TOKENS = 32768, MOST_MESHES = 8 };
#define STATIC_MESH "DP1 TP16 PP2"

/* A mesh with rows of one length. */
typedef struct layout {
    const char *mesh;
    int64_t tokens; /* of a row */
    int64_t dp, pp;
    double slot_s;  /* time of one row more on every data-parallel rank */
    double moves_s; /* parameters from the home, gradients to it; below 0: not asked yet */
    dh_shipped_job job;
    double step_ns;
} layout;

typedef struct tables {
    dh_ctx *ctx;
    dh_validation *v;
    dh_published t;
    layout layouts[MOST_MESHES];
    size_t n_layouts;
} tables;

/* ---- what meshes take ------------------------------------------------------------------------ */

static dh_status make_job(tables *s, const layout *l, int64_t rows, dh_shipped_job *job)
{
    *job = (dh_shipped_job){.file = "hotspa-32b", .cluster = "a800"};
    DH_TRY(dh_paper_mesh(s->ctx, s->v, l->mesh, job));
    return dh_shipped_words(s->ctx, s->v, job,
                            dh_arena_printf(s->v->arena, "train.seq_len=%lld train.batch=%lld",
                                            (long long)l->tokens, (long long)rows));
}

/* By two steps: what the second half of the longer one's rows takes. */
static dh_status measure(tables *s, layout *l)
{
    dh_shipped_job shorter;
    dh_shipped_step less, more;
    dh_shipped_run run;
    DH_TRY(make_job(s, l, 8, &shorter));
    dh_status st = dh_shipped_read(s->ctx, s->v, &shorter, &run);
    if (st == DH_OK) {
        l->dp = run.job->dp;
        l->pp = run.job->pp;
    }
    dh_shipped_fini(&run);
    DH_TRY(st);
    DH_TRY(make_job(s, l, 2 * l->dp * l->pp, &shorter));
    DH_TRY(make_job(s, l, 4 * l->dp * l->pp, &l->job));
    DH_TRY(dh_shipped_step_of(s->ctx, s->v, &shorter, &less));
    DH_TRY(dh_shipped_step_of(s->ctx, s->v, &l->job, &more));
    l->slot_s = (more.ns - less.ns) * 1e-9 / (double)(2 * l->pp);
    l->step_ns = more.ns;
    return DH_OK;
}

static dh_status layout_of(tables *s, const char *mesh, int64_t tokens, layout **found)
{
    for (size_t i = 0; i < s->n_layouts; i++) {
        *found = &s->layouts[i];
        if ((*found)->tokens == tokens && strcmp((*found)->mesh, mesh) == 0) return DH_OK;
    }
    DH_CHECK(s->n_layouts < MOST_MESHES);
    *found = &s->layouts[s->n_layouts++];
    **found = (layout){.mesh = mesh, .tokens = tokens, .moves_s = -1};
    return measure(s, *found);
}

static dh_status resolve(tables *s, const char *mesh, dh_shipped_run *run)
{
    const layout l = {.mesh = mesh, .tokens = ROW_TOKENS};
    dh_shipped_job job;
    DH_TRY(make_job(s, &l, 8, &job));
    DH_TRY(dh_shipped_read(s->ctx, s->v, &job, run));
    const dh_resolve_options how = {.cluster = run->cluster, .quiet = true};
    return dh_job_resolve(s->ctx, run->job, &how, &run->resolved);
}

static dh_status moves_of(tables *s, layout *l)
{
    dh_shipped_run home = {0}, away = {0};
    dh_switched_moves moves;
    if (l->moves_s >= 0) return DH_OK;
    dh_status st = resolve(s, STATIC_MESH, &home);
    if (st == DH_OK) st = resolve(s, l->mesh, &away);
    if (st == DH_OK)
        st = dh_switched_moves_of(s->ctx, &home.resolved->recipe, &away.resolved->recipe, false, 0,
                                  &moves);
    if (st == DH_OK) l->moves_s = (double)(moves.params_ns + moves.grads_ns) * 1e-9;
    dh_shipped_fini(&home);
    dh_shipped_fini(&away);
    return st;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* "4K-16K": most tokens of a document. */
static int64_t longest_of(const char *group)
{
    const char *dash = strchr(group, '-');
    return dash ? strtol(dash + 1, NULL, 10) << 10 : 0;
}

/* Tokens of a group of static, from its time. */
static dh_status tokens_of(tables *s, const char *dataset, const char *group, size_t length,
                           double *tokens)
{
    layout *l;
    DH_TRY(layout_of(s, STATIC_MESH, ROW_TOKENS, &l));
    for (size_t i = 0; i < s->t.n_rows; i++) {
        const char *set, *strategy, *name;
        double seconds;
        DH_TRY(dh_published_text(s->ctx, &s->t, i, "dataset", &set));
        DH_TRY(dh_published_text(s->ctx, &s->t, i, "strategy", &strategy));
        DH_TRY(dh_published_text(s->ctx, &s->t, i, "group", &name));
        if (strcmp(set, dataset) != 0 || strcmp(strategy, "static") != 0 ||
            strlen(name) != length || strncmp(name, group, length) != 0)
            continue;
        DH_TRY(dh_published_real(s->ctx, &s->t, i, "seconds", &seconds));
        *tokens += ROW_TOKENS * (seconds / l->slot_s - (double)(l->pp - 1));
        return DH_OK;
    }
    return dh_fail(s->ctx, DH_EFORMAT, "%s: no row of %s, static, %.*s", s->t.file, dataset,
                   (int)length, group);
}

/* Time of the groups that a cell covers ("0-1K+1K-4K") over this mesh. */
static dh_status time_of(tables *s, const char *dataset, const char *covers, const layout *l,
                         double *seconds)
{
    double tokens = 0;
    for (const char *at = covers; *at; at += strspn(at, "+")) {
        const size_t n = strcspn(at, "+");
        DH_TRY(tokens_of(s, dataset, at, n, &tokens));
        at += n;
    }
    const double rows = tokens / (double)l->tokens / (double)l->dp;
    *seconds = l->slot_s * (rows + (double)(l->pp - 1));
    return DH_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Of a strategy, so far. */
typedef struct sums {
    double groups_s, moves_s;
} sums;

static dh_status add_cell(tables *s, size_t i, sums *sum)
{
    const char *dataset, *strategy, *group, *covers, *mesh;
    double published, predicted;
    layout *l = NULL;
    DH_TRY(dh_published_text(s->ctx, &s->t, i, "dataset", &dataset));
    DH_TRY(dh_published_text(s->ctx, &s->t, i, "strategy", &strategy));
    DH_TRY(dh_published_text(s->ctx, &s->t, i, "group", &group));
    DH_TRY(dh_published_text(s->ctx, &s->t, i, "covers", &covers));
    DH_TRY(dh_published_text(s->ctx, &s->t, i, "mesh", &mesh));
    DH_TRY(dh_published_real(s->ctx, &s->t, i, "seconds", &published));
    if (strcmp(strategy, "static") == 0) return DH_OK;
    if (*mesh) {
        DH_TRY(layout_of(s, mesh, longest_of(group), &l));
        DH_TRY(time_of(s, dataset, covers, l, &predicted));
        sum->groups_s += predicted;
        if (strcmp(mesh, STATIC_MESH) == 0) return DH_OK; /* as static has it: no prediction */
        DH_TRY(moves_of(s, l));
        sum->moves_s += l->moves_s;
    } else {
        const bool is_total = strcmp(group, "total") == 0;
        predicted = is_total ? sum->groups_s + sum->moves_s : sum->moves_s;
    }
    DH_TRY(dh_validation_add(s->ctx, s->v, predicted, published, "%s %s %s", dataset, strategy,
                             group));
    dh_validation_series(s->v, group);
    if (l) DH_TRY(dh_shipped_name_row(s->ctx, s->v, &l->job, l->step_ns));
    if (strcmp(group, "total") == 0) *sum = (sums){0};
    return DH_OK;
}

dh_status dh_validate_hotspa(dh_ctx *ctx, dh_validation *v)
{
    tables s = {.ctx = ctx, .v = v};
    sums sum = {0};
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &s.t));
    for (size_t i = 0; i < s.t.n_rows; i++) DH_TRY(add_cell(&s, i, &sum));
    v->remark = "A command simulates one step over the group's mesh, with rows of its length; "
                "bench/switch/32b.yaml and --lengths FILE simulate all groups and the moves.";
    return DH_OK;
}
