/* NeMo's files: what they say besides Megatron-LM's settings, whose rules do the rest. */
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "exchange/import.h"

/* As if the flag of Megatron-LM had been given. */
static void give(importer *im, const char *flag, const char *value)
{
    const dh_flag *row = dh_flag_find(DH_PROJECT_MEGATRON, flag);
    DH_CHECK(row, "%s", flag);
    const im_flag f = {.given = {.name = flag,
                                 .value = value,
                                 .here = row->here,
                                 .note = "said by another key",
                                 .fate = DH_FATE_EXPRESSED},
                       .name = flag,
                       .row = row,
                       .place = ""};
    if (!dh_vec_push(&im->flags, f)) im_fail(im, DH_ENOMEM, "out of memory importing a job");
}

static void activation(importer *im)
{
    const char *name = im_text(im, "activation", im_text(im, "activation_func", ""));
    if (strstr(name, "swiglu") || strstr(name, "silu"))
        give(im, "--swiglu", NULL);
    else if (strstr(name, "squared"))
        give(im, "--squared-relu", NULL);
    else if (strstr(name, "glu"))
        give(im, "--quick-geglu", NULL);
}

/* "rmsnorm" and "layernorm1p" as Megatron-LM writes them. */
static void normalization(importer *im)
{
    im_flag *f = im_find(im, "--normalization");
    if (f && dh_is_same_word(f->given.value, "rmsnorm")) f->given.value = "RMSNorm";
}

static void precision(importer *im)
{
    const char *name = im_text(im, "trainer.precision", im_text(im, "precision", ""));
    if (strstr(name, "bf16")) {
        im_set(im, "train.dtype", "bf16");
        im_fate(im, "trainer.precision", DH_FATE_EXPRESSED, "train.dtype: bf16", NULL);
    } else if (strncmp(name, "16", 2) == 0) {
        im_set(im, "train.dtype", "bf16");
        im_fate(im, "trainer.precision", DH_FATE_EXPRESSED, "train.dtype: bf16",
                "float16 is not trained here; its step takes as long");
    }
    if (im_is(im, "fp8", "true")) {
        const bool e4m3 = im_is(im, "fp8_e4m3", "true");
        im_set(im, "train.fp8", e4m3 ? "e4m3" : "hybrid");
        im_fate(im, "fp8", DH_FATE_EXPRESSED, e4m3 ? "train.fp8: e4m3" : "train.fp8: hybrid", NULL);
    } else if (im_has(im, "fp8")) {
        if (!im_is(im, "fp8", "false")) give(im, "--fp8-format", im_text(im, "fp8", "hybrid"));
        im_fate(im, "fp8", im_is(im, "fp8", "false") ? DH_FATE_IDLE : DH_FATE_EXPRESSED, NULL,
                "it is so here");
        im_fate(im, "fp8_e4m3", DH_FATE_IDLE, NULL, "with fp8: true");
        im_fate(im, "fp8_hybrid", DH_FATE_IDLE, NULL, "with fp8: true");
    }
}

static void optimizer(importer *im)
{
    static const char *const shared[] = {"mcore_distributed_optim", "distributed_fused_adam", NULL};
    const char *name = im_text(im, "optim.name", "");
    bool zero1 = false;
    for (size_t i = 0; shared[i]; i++) zero1 |= dh_is_same_word(name, shared[i]);
    if (zero1) {
        im_set(im, "parallel.zero", "1");
        im_fate(im, "optim.name", DH_FATE_EXPRESSED, "parallel.zero: 1", NULL);
    } else if (*name) {
        im_fate(im, "optim.name", strstr(name, "adam") ? DH_FATE_EXPRESSED : DH_FATE_LOST,
                "parallel.zero: 0", strstr(name, "adam") ? NULL : "the optimizer is AdamW");
    }
    const char *betas = im_text(im, "optim.betas", "");
    double beta[2];
    char one[32];
    const size_t n = strcspn(betas, " ");
    snprintf(one, sizeof one, "%.*s", (int)n, betas);
    if (*betas && betas[n] && dh_parse_f64(one, &beta[0]) &&
        dh_parse_f64(betas + n + 1, &beta[1])) {
        im_set(im, "optimizer.beta1", "%.10g", beta[0]);
        im_set(im, "optimizer.beta2", "%.10g", beta[1]);
    }
    if (strstr(im_text(im, "optim.sched.name", ""), "Cosine"))
        im_set(im, "optimizer.schedule", "cosine");
}

/* The class of a model's configuration, which has its sizes. */
static void preset(importer *im)
{
    static const char *const classes[][2] = {
        {"Llama3Config8B", "llama3-8b"},        {"Llama31Config8B", "llama3-8b"},
        {"Llama3Config70B", "llama3-70b"},      {"Llama31Config70B", "llama3-70b"},
        {"Llama31Config405B", "llama3.1-405b"}, {"Llama2Config7B", "llama2-7b"},
        {"MixtralConfig8x7B", "mixtral-8x7b"},  {"MistralConfig7B", "mistral-7b"},
        {"Qwen3Config8B", "qwen3-8b"},          {"DeepSeekV3Config", "deepseek-v3"}};
    for (size_t i = 0; i < im->flags.n; i++)
        for (size_t k = 0; k < DH_COUNTOF(classes); k++) {
            im_flag *f = &im->flags.at[i];
            const char *last = f->given.value ? strrchr(f->given.value, '.') : NULL;
            if (strcmp(f->name, "_target_") != 0 || !last || strcmp(last + 1, classes[k][0]) != 0)
                continue;
            im->preset = classes[k][1];
            f->given.fate = DH_FATE_EXPRESSED;
            f->given.here = "model.preset";
            f->given.note = NULL;
        }
}

void im_nemo(importer *im)
{
    preset(im);
    const int64_t per_node = im_int(im, "trainer.devices", 0);
    if (per_node > 0) {
        im->source.per_node = per_node;
        im->source.nodes = im_int(im, "trainer.num_nodes", 1);
    }
    /* NeMo-Framework-Launcher's files, and NeMo's of that time, have these. */
    const bool launcher = im_has(im, "mcore_gpt") || im_has(im, "megatron_amp_O2");
    im->system = launcher ? "nemo+second-flash" : "nemo";
    activation(im);
    normalization(im);
    precision(im);
    optimizer(im);
    if (im_has(im, "--num-query-groups")) give(im, "--group-query-attention", NULL);
    if (!im_has(im, "--overlap-grad-reduce") && im_is(im, "optim.name", "distributed_fused_adam"))
        give(im, "--overlap-grad-reduce", NULL);
    im_megatron(im);
}
