/* DHelix (arXiv 2411.15871), figures 11, 12, 13a and 15: throughput of systems, and of the switches
 * of its own, one after another.
 *
 * All systems except Megatron-LM are as in section 6.1. Intra-batch is MegaScale's rings. Wavelet+
 * takes the operators of both strands in turn. A strand's communication therefore runs during the
 * other strand's operator, and never during its own weight gradients (trait gradients-apart of
 * megatron-core). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "validate/dhelix_jobs.h"

enum { MOST_BARS = 5, SYSTEM_SETS = 5 };
#define PAPER "system=megatron-dhelix", "strategy=dhelix-paper"

/* As settings of the shipped jobs, which are Megatron-LM's. */
static const struct {
    const char *name; /* in column system */
    const char *set[SYSTEM_SETS];
} systems[] = {
    {"Megatron-LM", {NULL}},
    {"Intra-batch", {"system=megascale", "strategy=intra-batch"}},
    {"Wavelet+", {"strategy=wavelet+"}},
    {"DHelix", {PAPER}},
    {"Base", {NULL}},
    {"+TP overlap",
     {PAPER, "overlap.cross=false", "overlap.comm_comm=false", "overlap.wgrad=false"}},
    {"+CP overlap", {PAPER, "overlap.comm_comm=false", "overlap.wgrad=false"}},
    {"+Comm&Comm", {PAPER, "overlap.wgrad=false"}},
    {"+Wgrad move", {PAPER}},
};

/* Tokens of a step. 8 Mi on A40 (figure 11); on A800 nothing is said. */
static int64_t tokens_of(const char *cluster)
{
    return (int64_t)(strcmp(cluster, "a40") == 0 ? 8 : 2) << 20;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

/* The first place without a setting gets that one. */
static dh_status set(dh_ctx *ctx, dh_shipped_job *job, const char *setting)
{
    size_t n = 0;
    while (n < DH_SHIPPED_SETS && job->set[n]) n++;
    DH_CHECK(n < DH_SHIPPED_SETS);
    job->set[n] = setting;
    return setting ? DH_OK : dh_no_memory(ctx);
}

/* "DP8 TP4 PP1 CP2" */
dh_status dh_paper_mesh(dh_ctx *ctx, dh_validation *v, const char *text, dh_shipped_job *job)
{
    for (const char *at = text; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " "), letters = strcspn(at, "0123456789");
        if (letters != 2 || n < 3)
            return dh_fail(ctx, DH_EFORMAT, "\"%s\" is no mesh: as DP8 TP4 PP1 CP2", text);
        char *setting = dh_arena_printf(v->arena, "parallel.%.2s=%.*s", at, (int)(n - 2), at + 2);
        if (setting) dh_to_lower(setting);
        DH_TRY(set(ctx, job, setting));
        at += n;
    }
    return DH_OK;
}

/* Column cluster: "64xA40". */
static dh_status cluster_of(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                            const char **cluster)
{
    const char *text;
    DH_TRY(dh_published_text(ctx, t, row, "cluster", &text));
    const char *devices = strchr(text, 'x');
    char *name = dh_arena_printf(v->arena, "%s", devices ? devices + 1 : text);
    if (!name) return dh_no_memory(ctx);
    dh_to_lower(name);
    *cluster = name;
    return DH_OK;
}

dh_status dh_paper_job(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row,
                       dh_shipped_job *job)
{
    const char *model, *mesh;
    int64_t seq;
    *job = (dh_shipped_job){0};
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_text(ctx, t, row, "parallelism", &mesh));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    DH_TRY(cluster_of(ctx, v, t, row, &job->cluster));
    char *file = dh_arena_printf(v->arena, "dhelix-%s", model);
    if (!file) return dh_no_memory(ctx);
    dh_to_lower(file);
    job->file = file;
    DH_TRY(dh_paper_mesh(ctx, v, mesh, job));
    DH_TRY(set(ctx, job, dh_arena_printf(v->arena, "model.max_seq=%lld", (long long)seq)));
    DH_TRY(set(ctx, job, dh_arena_printf(v->arena, "train.seq_len=%lld", (long long)seq)));
    return set(ctx, job,
               dh_arena_printf(v->arena, "train.batch=%lld",
                               (long long)(tokens_of(job->cluster) / DH_MAX(seq, 1))));
}

dh_status dh_paper_system(dh_ctx *ctx, const char *name, dh_shipped_job *job)
{
    for (size_t i = 0; i < DH_COUNTOF(systems); i++) {
        if (strcmp(systems[i].name, name) != 0) continue;
        for (size_t k = 0; k < SYSTEM_SETS && systems[i].set[k]; k++)
            DH_TRY(set(ctx, job, systems[i].set[k]));
        return DH_OK;
    }
    return dh_fail(ctx, DH_EMISSING, "nothing is known of system %s", name);
}

/* ---- bars that stand together --------------------------------------------------------------- */

/* One model and length of sequences: TFLOP/s a device, predicted and published. */
typedef struct bars {
    const char *label; /* "Llama-8B", with the length where it is not the first of that model */
    size_t n;
    double predicted[MOST_BARS], published[MOST_BARS];
    const char *names[MOST_BARS];
    dh_shipped_job jobs[MOST_BARS];
    double step_ns[MOST_BARS];
} bars;

static dh_status read_bar(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row, bars *b)
{
    dh_shipped_step step;
    const size_t s = b->n++;
    dh_shipped_job *job = &b->jobs[s];
    DH_TRY(dh_published_text(ctx, t, row, "system", &b->names[s]));
    DH_TRY(dh_published_real(ctx, t, row, "tflops_per_gpu", &b->published[s]));
    DH_TRY(dh_paper_job(ctx, v, t, row, job));
    DH_TRY(dh_paper_system(ctx, b->names[s], job));
    DH_TRY(dh_shipped_step_of(ctx, v, job, &step));
    b->step_ns[s] = step.ns;
    b->predicted[s] = step.model_flops / step.devices / step.ns * 1e-3;
    return DH_OK;
}

/* Whether two rows are of one job, under any system. */
static dh_status together(dh_ctx *ctx, const dh_published *t, size_t x, size_t y, bool *yes)
{
    static const char *const columns[] = {"figure", "model", "seq", "parallelism"};
    *yes = true;
    for (size_t i = 0; i < DH_COUNTOF(columns); i++) {
        const char *a, *b;
        DH_TRY(dh_published_text(ctx, t, x, columns[i], &a));
        DH_TRY(dh_published_text(ctx, t, y, columns[i], &b));
        *yes &= strcmp(a, b) == 0;
    }
    return DH_OK;
}

static dh_status label_of(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t row, bars *b)
{
    const char *model;
    int64_t seq;
    DH_TRY(dh_published_text(ctx, t, row, "model", &model));
    DH_TRY(dh_published_int(ctx, t, row, "seq", &seq));
    b->label = dh_arena_printf(v->arena, "%s %lldK", model, (long long)(seq >> 10));
    return b->label ? DH_OK : dh_no_memory(ctx);
}

typedef dh_status add_bars(dh_ctx *ctx, dh_validation *v, const bars *b);

/* Of figures whose numbers begin as the table's do. */
static dh_status each_job(dh_ctx *ctx, dh_validation *v, add_bars *add)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0, next; i < t.n_rows; i = next) {
        const char *figure;
        bars b = {0};
        bool more = true;
        next = i + 1;
        DH_TRY(dh_published_text(ctx, &t, i, "figure", &figure));
        if (strncmp(figure, v->table->figure, strlen(v->table->figure)) != 0) continue;
        DH_TRY(label_of(ctx, v, &t, i, &b));
        DH_TRY(read_bar(ctx, v, &t, i, &b));
        for (; next < t.n_rows && b.n < MOST_BARS; next++) {
            DH_TRY(together(ctx, &t, i, next, &more));
            if (!more) break;
            DH_TRY(read_bar(ctx, v, &t, next, &b));
        }
        DH_TRY(add(ctx, v, &b));
    }
    return DH_OK;
}

/* ---- absolute ------------------------------------------------------------------------------- */

static dh_status add_throughput(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 0; s < b->n; s++) {
        DH_TRY(dh_validation_add(ctx, v, b->predicted[s], b->published[s], "%s %s", b->label,
                                 b->names[s]));
        dh_validation_series(v, b->names[s]);
        DH_TRY(dh_shipped_name_row(ctx, v, &b->jobs[s], b->step_ns[s]));
    }
    return DH_OK;
}

dh_status dh_validate_dhelix_systems(dh_ctx *ctx, dh_validation *v)
{
    return each_job(ctx, v, add_throughput);
}

/* ---- over Megatron-LM ----------------------------------------------------------------------- */

static dh_status add_speedups(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    for (size_t s = 1; s < b->n; s++) {
        DH_TRY(dh_validation_add(ctx, v, 100 * (b->predicted[s] / b->predicted[0] - 1),
                                 100 * (b->published[s] / b->published[0] - 1), "%s %s", b->label,
                                 b->names[s]));
        dh_validation_series(v, b->names[s]);
        DH_TRY(dh_shipped_name_row(ctx, v, &b->jobs[s], b->step_ns[s]));
    }
    return DH_OK;
}

/* Whether two systems that the figure tells apart stand the same way round. */
static bool agree(const bars *b, size_t x, size_t y)
{
    return b->published[x] == b->published[y] ||
           (b->published[x] < b->published[y]) == (b->predicted[x] < b->predicted[y]);
}

/* One order a job; wrong orders are named. */
static dh_status add_order(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    char wrong[256] = "";
    for (size_t x = 0; x < b->n; x++)
        for (size_t y = x + 1; y < b->n; y++) {
            const size_t used = strlen(wrong);
            if (!agree(b, x, y))
                snprintf(wrong + used, sizeof wrong - used, "%s%s and %s", used ? ", " : "",
                         b->names[x], b->names[y]);
        }
    v->n_orders++;
    v->n_orders_right += !*wrong;
    if (!*wrong) return DH_OK;
    v->remark = dh_arena_printf(v->arena, "%s%s%s: the wrong way round %s",
                                v->remark ? v->remark : "", v->remark ? "; " : "", b->label, wrong);
    return v->remark ? DH_OK : dh_no_memory(ctx);
}

static dh_status add_speedups_and_order(dh_ctx *ctx, dh_validation *v, const bars *b)
{
    DH_TRY(add_speedups(ctx, v, b));
    return add_order(ctx, v, b);
}

dh_status dh_validate_dhelix_speedups(dh_ctx *ctx, dh_validation *v)
{
    return each_job(ctx, v, add_speedups_and_order);
}
