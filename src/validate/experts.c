/* Models with experts on H100: MoE Parallel Folding's best mesh of each method (arXiv 2504.14960, table
 * 3), and Megatron-MoE-ModelZoo's runs of Qwen 3 235B.
 *
 * A row's EP is over ranks of tensor parallelism too where its ETP is 1, which parallel.ep leaves
 * out. The time that a small kernel takes rests on the rows of Mixtral 8x22B and of Qwen 2 in the
 * first table, the host's on one row of the second. */
#include <stdlib.h>
#include <string.h>

#include "validate/job.h"

/* An empty cell: the method has no such degree. */
static dh_status degree(dh_ctx *ctx, const dh_published *t, size_t i, const char *column,
                        int64_t *value)
{
    const char *text;
    DH_TRY(dh_published_text(ctx, t, i, column, &text));
    *value = *text ? strtoll(text, NULL, 10) : 1;
    if (*value >= 1) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: row %zu: %s \"%s\" is no degree", t->file, i + 1, column,
                   text);
}

/* Multiplications of a token in all layers and the head, twice, forward and backward, as
 * Megatron-LM counts them; scores with `seen` of all tokens. */
static double flops_a_token(const dh_model *m, double seen)
{
    const double width = (double)m->width;
    const double heads = (double)(m->n_heads * m->head_dim);
    const double attention = 2 * width * (double)((m->n_heads + m->n_kv_heads) * m->head_dim);
    const double ffn = 3 * width * (double)(m->ffn_width * (m->top_k + m->n_shared));
    const double layers = (double)m->n_layers;
    return 6 * (layers * (attention + ffn + 2 * seen * heads) + width * (double)m->vocab);
}

/* Of a device, in FLOP/s. */
static dh_status rate_of(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                         const dh_shipped_step *step, bool causal, double *rate)
{
    dh_shipped_run run;
    dh_status st = dh_shipped_read(ctx, v, job, &run);
    if (st == DH_OK) {
        const double seq = (double)run.job->seq_len;
        const double tokens = (double)run.job->global_batch * seq;
        const double flops = flops_a_token(&run.job->model, causal ? seq / 2 : seq) * tokens;
        *rate = flops / step->devices / step->ns * 1e9;
    }
    dh_shipped_fini(&run);
    return st;
}

/* ---- methods of one model, which stand in an order ---------------------------------------------- */

enum { MOST_ROWS = 8 };

typedef struct rows {
    const char *of; /* rows of one order */
    size_t n;
    double predicted[MOST_ROWS], published[MOST_ROWS];
    const char *names[MOST_ROWS];
} rows;

static dh_status add_pairs(dh_ctx *ctx, dh_validation *v, const rows *r)
{
    for (size_t x = 0; x < r->n; x++)
        for (size_t y = x + 1; y < r->n; y++) {
            if (r->published[x] == r->published[y]) continue;
            const bool right =
                (r->published[x] < r->published[y]) == (r->predicted[x] < r->predicted[y]);
            v->n_orders++;
            v->n_orders_right += right;
            if (right) continue;
            v->remark = dh_arena_printf(v->arena, "%s%s%s: the wrong way round %s and %s",
                                        v->remark ? v->remark : "", v->remark ? "; " : "", r->of,
                                        r->names[x], r->names[y]);
            if (!v->remark) return dh_no_memory(ctx);
        }
    return DH_OK;
}

static dh_status keep(dh_ctx *ctx, rows *r, const char *name, double predicted, double published)
{
    DH_CHECK(r->n < MOST_ROWS, "%s: more than %d rows of one order", r->of, MOST_ROWS);
    r->names[r->n] = name;
    r->predicted[r->n] = predicted;
    r->published[r->n++] = published;
    (void)ctx;
    return DH_OK;
}

/* ---- MoE Parallel Folding ------------------------------------------------------------------------ */

static const struct model {
    const char *name, *file;
    bool rested_on;
} models[] = {{"Mixtral-8x22B", "folding-mixtral-8x22b", true},
              {"Qwen2-57B-A14B", "folding-qwen2-57b", true},
              {"Mixtral-8x22B-G8T8", "folding-g8t8", false},
              {"Llama3-8x70B", "folding-llama3-8x70b", false}};

typedef struct mesh {
    int64_t devices, tp, ep, pp;
} mesh;

static dh_status set_method(dh_ctx *ctx, dh_validation *v, const char *method, const mesh *m,
                            int64_t n_layers, dh_shipped_job *job)
{
    const bool folded = strcmp(method, "MCore w/ Folding") == 0;
    const bool fsdp = strncmp(method, "FSDP", 4) == 0;
    const int64_t ep = folded ? DH_MAX(m->ep / m->tp, 1) : m->ep;
    DH_TRY(
        dh_shipped_set(ctx, v, job, "parallel.dp=%lld", (long long)(m->devices / m->tp / m->pp)));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.tp=%lld", (long long)m->tp));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.pp=%lld", (long long)m->pp));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.ep=%lld", (long long)ep));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.virtual_stages=%lld",
                          (long long)(m->pp > 1 ? n_layers / m->pp : 1)));
    if (!folded) DH_TRY(dh_shipped_set(ctx, v, job, "parallel.expert_tp=%lld", (long long)m->tp));
    if (m->pp == 1) DH_TRY(dh_shipped_set(ctx, v, job, "parallel.schedule=1f1b"));
    if (!fsdp) return DH_OK;
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.zero=3"));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.gather=optimizer"));
    return dh_shipped_set(ctx, v, job, "parallel.gradient_sync=every");
}

static dh_status read_mesh(dh_ctx *ctx, const dh_published *t, size_t i, mesh *m)
{
    DH_TRY(dh_published_int(ctx, t, i, "gpus", &m->devices));
    DH_TRY(degree(ctx, t, i, "tp", &m->tp));
    DH_TRY(degree(ctx, t, i, "ep", &m->ep));
    return degree(ctx, t, i, "pp", &m->pp);
}

static dh_status layers_of(dh_ctx *ctx, const dh_validation *v, const dh_shipped_job *job,
                           int64_t *n_layers)
{
    dh_shipped_run run;
    const dh_status st = dh_shipped_read(ctx, v, job, &run);
    if (st == DH_OK) *n_layers = run.job->model.n_layers;
    dh_shipped_fini(&run);
    return st;
}

static dh_status add_method(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i,
                            const struct model *model, rows *order)
{
    mesh m;
    const char *method;
    double published, rate;
    int64_t n_layers = 1;
    dh_shipped_step step;
    const double peak = 989.5; /* TFLOP/s, of the paper's MFU */
    dh_shipped_job job = {.file = model->file, .cluster = "h100"};
    DH_TRY(dh_published_text(ctx, t, i, "method", &method));
    DH_TRY(dh_published_real(ctx, t, i, "mfu_pct", &published));
    DH_TRY(read_mesh(ctx, t, i, &m));
    DH_TRY(layers_of(ctx, v, &job, &n_layers));
    DH_TRY(set_method(ctx, v, method, &m, n_layers, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(rate_of(ctx, v, &job, &step, false, &rate));
    published *= peak / 100;
    DH_TRY(dh_validation_add(ctx, v, rate * 1e-12, published, "%s, %s", model->name, method));
    DH_TRY(keep(ctx, order, method, rate * 1e-12, published));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

static dh_status add_model(dh_ctx *ctx, dh_validation *v, const dh_published *t,
                           const struct model *model)
{
    rows order = {.of = model->name};
    if (v->rested_on && !model->rested_on) return DH_OK;
    DH_TRY(dh_validation_group(ctx, v, "%s",
                               model->rested_on ? "Mixtral 8x22B and Qwen 2 (constants)"
                                                : "G8T8 and Llama 3 8x70B (kept out)"));
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *name, *mfu;
        DH_TRY(dh_published_text(ctx, t, i, "model", &name));
        DH_TRY(dh_published_text(ctx, t, i, "mfu_pct", &mfu));
        if (strcmp(name, model->name) == 0 && strcmp(mfu, "OOM") != 0)
            DH_TRY(add_method(ctx, v, t, i, model, &order));
    }
    return add_pairs(ctx, v, &order);
}

dh_status dh_validate_moe_folding(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < DH_COUNTOF(models); i++) DH_TRY(add_model(ctx, v, &t, &models[i]));
    return DH_OK;
}

/* ---- Megatron-MoE-ModelZoo ----------------------------------------------------------------------- */

typedef struct zoo_row {
    const char *name, *dispatcher, *fsdp, *recompute;
    int64_t seq, tp, cp, ep, pp, virtual_stages, dp, micro_batch, batch;
    double published;
} zoo_row;

static dh_status read_zoo_row(dh_ctx *ctx, const dh_published *t, size_t i, zoo_row *r)
{
    DH_TRY(dh_published_text(ctx, t, i, "row", &r->name));
    DH_TRY(dh_published_text(ctx, t, i, "dispatcher", &r->dispatcher));
    DH_TRY(dh_published_text(ctx, t, i, "fsdp", &r->fsdp));
    DH_TRY(dh_published_text(ctx, t, i, "recompute", &r->recompute));
    DH_TRY(dh_published_int(ctx, t, i, "seq", &r->seq));
    DH_TRY(dh_published_int(ctx, t, i, "tp", &r->tp));
    DH_TRY(dh_published_int(ctx, t, i, "cp", &r->cp));
    DH_TRY(dh_published_int(ctx, t, i, "ep", &r->ep));
    DH_TRY(dh_published_int(ctx, t, i, "pp", &r->pp));
    DH_TRY(dh_published_int(ctx, t, i, "vpp", &r->virtual_stages));
    DH_TRY(dh_published_int(ctx, t, i, "dp", &r->dp));
    DH_TRY(dh_published_int(ctx, t, i, "mbs", &r->micro_batch));
    DH_TRY(dh_published_int(ctx, t, i, "gbs", &r->batch));
    return dh_published_real(ctx, t, i, "tflops", &r->published);
}

static dh_status set_fsdp(dh_ctx *ctx, dh_validation *v, dh_shipped_job *job)
{
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.zero=3"));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.gather=optimizer"));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.gradient_sync=every"));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.schedule=1f1b"));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.layer_split="));
    return dh_shipped_set(ctx, v, job, "system=megatron-moe+one-copy+half-gradients");
}

/* 96 layers with embedding and head: three a chunk of 32, one of 96. */
static dh_status set_stages(dh_ctx *ctx, dh_validation *v, const zoo_row *r, dh_shipped_job *job)
{
    if (strcmp(r->fsdp, "on") == 0) return set_fsdp(ctx, v, job);
    if (strcmp(r->dispatcher, "A2A") == 0)
        DH_TRY(dh_shipped_set(ctx, v, job, "system=megatron-moe"));
    if (r->pp * r->virtual_stages == 96)
        DH_TRY(dh_shipped_set(ctx, v, job, "parallel.layer_split=0,*,0"));
    if (!strstr(r->name, "overlap")) return DH_OK;
    DH_TRY(dh_shipped_set(ctx, v, job, "strategy=combined-1f1b"));
    return dh_shipped_set(ctx, v, job, "parallel.schedule=combined-1f1b");
}

static dh_status zoo_job(dh_ctx *ctx, dh_validation *v, const zoo_row *r, dh_shipped_job *job)
{
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.dp=%lld", (long long)r->dp));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.tp=%lld", (long long)r->tp));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.pp=%lld", (long long)r->pp));
    DH_TRY(dh_shipped_set(ctx, v, job, "parallel.ep=%lld", (long long)(r->ep / r->tp)));
    DH_TRY(
        dh_shipped_set(ctx, v, job, "parallel.virtual_stages=%lld", (long long)r->virtual_stages));
    DH_TRY(dh_shipped_set(ctx, v, job, "train.micro_batch=%lld", (long long)r->micro_batch));
    if (!*r->recompute) DH_TRY(dh_shipped_set(ctx, v, job, "train.recompute=none"));
    if (strcmp(r->recompute, "full") == 0)
        DH_TRY(dh_shipped_set(ctx, v, job, "train.recompute=full"));
    return set_stages(ctx, v, r, job);
}

/* Only rows of 4,096 tokens: the recomputation of longer ones cannot be given as settings. */
static dh_status add_zoo_row(dh_ctx *ctx, dh_validation *v, const dh_published *t, size_t i,
                             rows *order)
{
    zoo_row r;
    double rate;
    dh_shipped_step step;
    dh_shipped_job job = {.file = "zoo-qwen3-235b", .cluster = "h100"};
    DH_TRY(read_zoo_row(ctx, t, i, &r));
    if (r.seq != 4096) return DH_OK;
    DH_TRY(zoo_job(ctx, v, &r, &job));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
    DH_TRY(rate_of(ctx, v, &job, &step, true, &rate));
    DH_TRY(dh_validation_add(ctx, v, rate * 1e-12, r.published, "%s", r.name));
    DH_TRY(keep(ctx, order, r.name, rate * 1e-12, r.published));
    return dh_shipped_name_row(ctx, v, &job, step.ns);
}

dh_status dh_validate_moe_zoo(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    rows order = {.of = "Qwen 3 235B"};
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) DH_TRY(add_zoo_row(ctx, v, &t, i, &order));
    return add_pairs(ctx, v, &order);
}
