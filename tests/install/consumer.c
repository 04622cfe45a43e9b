/* A program outside the project: uses what was installed, nothing else. */
#include <dhelix/dhelix.h>
#include <stdio.h>
#include <string.h>

static dh_status read_job(dh_ctx *ctx, const char *text, dh_job **job)
{
    return dh_job_parse(ctx, text, strlen(text), "job.yaml", ".", NULL, 0, job);
}

static dh_status count_parameters(dh_ctx *ctx)
{
    dh_model model;
    DH_TRY(dh_model_from_preset(ctx, "gpt2", &model));
    printf("%lld\n", (long long)dh_model_n_params(&model));
    return DH_OK;
}

static dh_status count_tokens(dh_ctx *ctx)
{
    dh_ids ids = {0};
    dh_tokenizer *tokenizer;
    DH_TRY(dh_tokenizer_bytes(ctx, &tokenizer));
    dh_status st = dh_tokenizer_encode(ctx, tokenizer, "three", 5, 0, &ids);
    if (st == DH_OK) printf("%zu %s\n", ids.n, dh_tokenizer_kind(tokenizer));
    dh_vec_fini(&ids);
    dh_tokenizer_destroy(tokenizer);
    return st;
}

static dh_status simulate(dh_ctx *ctx)
{
    dh_job *job = NULL;
    dh_cluster *cluster = NULL;
    dh_simulate_result step;
    dh_status st = read_job(ctx,
                            "model: gpt2\ntrain: {batch: 8, micro_batch: 1, seq_len: 64}\n"
                            "parallel: {tp: 2, pp: 2}\nranks: 4\n",
                            &job);
    if (st == DH_OK) st = dh_cluster_find(ctx, "a100", &cluster);
    const dh_simulate_options options = {.cluster = cluster, .quiet = true};
    if (st == DH_OK) st = dh_simulate_job(ctx, job, &options, &step);
    if (st == DH_OK && step.step_s > 0 && step.peak_bytes > 0)
        printf("%lld tokens on %lld ranks\n", (long long)step.tokens, (long long)step.n_ranks);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return st;
}

int main(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (count_parameters(&ctx) != DH_OK || count_tokens(&ctx) != DH_OK || simulate(&ctx) != DH_OK) {
        fprintf(stderr, "%s\n", ctx.message);
        return 1;
    }
    dh_job *job;
    const dh_status st = read_job(&ctx, "trian: {steps: 10}\n", &job);
    printf("%s, %s: %s\n", dh_status_name(st), dh_status_text(st), ctx.message);
    return 0;
}
