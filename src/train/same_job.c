/* Settings that must not change when a run is continued: the model, the data and their order, and
 * the optimizer's own constants. With another value of any of these the run would be neither the
 * old one nor a new one. A checkpoint keeps them by name, so that a refusal can say which. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "train/run.h"

/* Every setting of the model is compared, future ones too, except these. */
static const char *const free_in_model[] = {
    "model.preset",  /* where its settings come from, */
    "model.config",  /* which are compared themselves */
    "model.name",    /* for reports alone */
    "model.init_std" /* of weights that are there by now */
};

static const char *const lasting[] = {"lora.rank",          "lora.alpha",          "lora.targets",
                                      "data.order",         "data.packing",        "data.format",
                                      "data.chat_template", "data.special_tokens", "data.weights",
                                      "train.seed",         "train.seq_len",       "train.batch",
                                      "optimizer.beta1",    "optimizer.beta2",     "optimizer.eps"};

/* ---- taking down ----------------------------------------------------------------------------- */

/* The same as one number, all that checkpoints of before the settings have. */
static void fingerprint(const dh_run *run, char text[DH_CKPT_HASH_TEXT])
{
    const dh_job *j = run->job;
    const dh_model *m = &j->model;
    char line[1024];
    int n = dh_snprintf(
        line, sizeof line,
        "family %d layers %" PRId64 " width %" PRId64 " heads %" PRId64 " %" PRId64 " %" PRId64
        " ffn %" PRId64 " experts %" PRId64 " %" PRId64 " aux %.17g vocab %" PRId64
        " tied %d bias %d norm %d %.17g "
        "act %d theta %.17g dropout %.17g seed %" PRIu64 " order %d seq %" PRId64 " batch %" PRId64
        " tokens %" PRId64 " beta %.17g %.17g eps %.17g",
        (int)m->family, m->n_layers, m->width, m->n_heads, m->n_kv_heads, m->head_dim, m->ffn_width,
        m->n_experts, m->top_k, m->router_aux_coef, m->vocab, m->tied_head, m->bias, (int)m->norm,
        m->norm_eps, (int)m->act, m->rope.theta, j->dropout, j->seed, (int)j->order, j->seq_len,
        j->global_batch, dh_dataset_tokens(run->train_data), j->beta1, j->beta2, j->eps);
    /* Older settings keep their text; newer ones follow if they are used. */
    if (j->packing != DH_PACKING_NONE)
        n += snprintf(line + n, sizeof line - (size_t)n, " packing %d", (int)j->packing);
    if (m->attn_softcap > 0)
        n += dh_snprintf(line + n, sizeof line - (size_t)n, " attn_softcap %.17g", m->attn_softcap);
    if (m->lora.rank > 0)
        n += dh_snprintf(line + n, sizeof line - (size_t)n, " lora %" PRId64 " %.17g %s",
                         m->lora.rank, dh_model_lora_scale(m), m->lora.targets);
    dh_ckpt_fingerprint(line, (size_t)n, text);
}

static void tokenizer_fingerprint(const dh_run *run, char text[DH_CKPT_HASH_TEXT])
{
    uint64_t value = run->tokenizer ? dh_tokenizer_fingerprint(run->tokenizer) : 0;
    snprintf(text, DH_CKPT_HASH_TEXT, "%016" PRIx64, value);
}

static bool is_among(const char *name, size_t n, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return true;
    return false;
}

bool dh_run_is_lasting(const char *name, size_t n)
{
    static const char section[] = "model.";
    if (n >= strlen(section) && memcmp(name, section, strlen(section)) == 0)
        return !is_among(name, n, free_in_model, DH_COUNTOF(free_in_model));
    return is_among(name, n, lasting, DH_COUNTOF(lasting));
}

static dh_status add_setting(dh_ctx *ctx, dh_ckpt_state *state, const char *name, size_t n_name,
                             const char *value, size_t n_value)
{
    if (state->n_settings == DH_CKPT_MAX_SETTINGS)
        return dh_fail(ctx, DH_EUNSUPPORTED, "more than %d settings must not change",
                       DH_CKPT_MAX_SETTINGS);
    return dh_ckpt_setting_make(ctx, &state->settings[state->n_settings++], name, n_name, value,
                                n_value);
}

/* From lines "name: value". */
static dh_status keep_lasting(dh_ctx *ctx, const char *text, dh_ckpt_state *state)
{
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *colon = memchr(line, ':', (size_t)(end - line));
        if (!colon || !dh_run_is_lasting(line, (size_t)(colon - line))) continue;
        DH_TRY(add_setting(ctx, state, line, (size_t)(colon - line), colon + 2,
                           (size_t)(end - colon - 2)));
    }
    return DH_OK;
}

static dh_status keep(dh_ctx *ctx, dh_ckpt_state *state, const char *name, const char *value)
{
    return add_setting(ctx, state, name, strlen(name), value, strlen(value));
}

static void data_value(const dh_run *run, uint64_t hash, char *value, size_t cap)
{
    snprintf(value, cap, "%" PRId64 " tokens, hash %016" PRIx64, dh_dataset_tokens(run->train_data),
             hash);
}

/* Other data of the same length are other data. */
static dh_status keep_data(dh_ctx *ctx, const dh_run *run, dh_ckpt_state *state)
{
    char value[80];
    data_value(run, run->data_hash, value, sizeof value);
    return keep(ctx, state, "data.train", value);
}

/* Adapters mean nothing beside other weights than those that they were trained with. */
static dh_status keep_base(dh_ctx *ctx, const dh_run *run, dh_ckpt_state *state)
{
    char value[80];
    if (!*run->base_hash) return DH_OK;
    snprintf(value, sizeof value, DH_BASE_VALUE "%s", run->base_hash);
    return keep(ctx, state, DH_BASE_SETTING, value);
}

dh_status dh_run_describe(dh_ctx *ctx, const dh_run *run, dh_ckpt_state *state)
{
    dh_str text = DH_STR_INIT;
    dh_status st = dh_job_print_common(ctx, run->job, &text);
    state->n_settings = 0;
    if (st == DH_OK) st = keep_lasting(ctx, text.text, state);
    dh_str_fini(&text);
    DH_TRY(st);
    DH_TRY(keep_data(ctx, run, state));
    DH_TRY(keep_base(ctx, run, state));
    fingerprint(run, state->job_fingerprint);
    tokenizer_fingerprint(run, state->tokenizer_fingerprint);
    return DH_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static const dh_ckpt_setting *find_setting(const dh_ckpt_state *state, const char *name)
{
    for (size_t i = 0; i < state->n_settings; i++)
        if (strcmp(state->settings[i].name, name) == 0) return &state->settings[i];
    return NULL;
}

/* Tell the differences of settings that both know. */
static void tell_differences(const dh_run *run, const dh_ckpt_state *was, const dh_ckpt_state *is,
                             dh_str *out)
{
    for (size_t i = 0; i < is->n_settings; i++) {
        const dh_ckpt_setting *now = &is->settings[i], *then = find_setting(was, now->name);
        bool cut = false;
        if (then && !dh_ckpt_same_value(then, now, &cut))
            dh_str_printf(out, "%s%s %s, this job has %s", out->len ? "; " : "", now->name,
                          then->value, now->value);
        if (cut && !run->ranks.rank)
            dh_log(DH_LOG_WARN, "%s: of an earlier version's checkpoint only its start is compared",
                   now->name);
    }
}

/* Checkpoints of old know long data by a sample, which then is all that can be compared. */
static void accept_sample(const dh_run *run, const dh_ckpt_state *was, dh_ckpt_state *is)
{
    char sample[sizeof is->settings[0].value];
    const dh_ckpt_setting *then = find_setting(was, "data.train");
    dh_ckpt_setting *now = (dh_ckpt_setting *)(uintptr_t)find_setting(is, "data.train");
    const uint64_t hash = then ? dh_dataset_sample_hash(run->train_data) : 0;
    if (!now || hash == 0 || strcmp(then->value, now->value) == 0) return;
    data_value(run, hash, sample, sizeof sample);
    if (strcmp(then->value, sample) != 0) return;
    memcpy(now->value, sample, sizeof sample);
    dh_log(DH_LOG_WARN, "the checkpoint knows a sample of the training data, which is unchanged; "
                        "the next one knows all of them");
}

/* Not a reason to refuse: it is the same run, to other roundings. On another number of ranks they
 * are others anyway. */
static void warn_of_threads(const dh_run *run, const dh_ckpt_state *was)
{
    if (run->ranks.rank != 0 || was->n_threads == 0 || was->n_ranks != run->ranks.n ||
        was->n_threads == run->n_threads)
        return;
    dh_log(DH_LOG_WARN,
           "the checkpoint was made with %lld threads a rank, this run has %d: its roundings may "
           "differ from here on; train.threads=%lld keeps them",
           (long long)was->n_threads, run->n_threads, (long long)was->n_threads);
}

/* A run that goes on at another learning rate than it was to have. With optimizer.decay_steps auto the
 * curve ends where the run does, so a run that is made longer leaves the one that it was on.
 * Checkpoints of old do not know the rate, but where the curve was to end. */
static void warn_of_curve(const dh_run *run, const dh_ckpt_state *was)
{
    const dh_job *job = run->job;
    dh_job before = *job;
    before.decay_steps = was->decay_steps;
    const double now = dh_job_lr(job, was->step);
    const double kept = was->decay_steps ? dh_job_lr(&before, was->step) : now;
    const double then = was->lr >= 0 ? was->lr : job->decay_steps ? now : kept;
    if (run->ranks.rank != 0 || then == now) return;
    if (kept != then || job->decay_steps != 0)
        dh_log(DH_LOG_WARN,
               "the learning rate was to be %.4g at step %lld and is %.4g, as optimizer.* say now",
               then, (long long)was->step, now);
    else
        dh_log(
            DH_LOG_WARN,
            "the learning rate was to be %.4g at step %lld and is %.4g: with optimizer.decay_steps "
            "auto its curve now ends at step %lld, and ended at %lld before; give "
            "optimizer.decay_steps=%lld "
            "to keep the old curve",
            then, (long long)was->step, now, (long long)job->steps, (long long)was->decay_steps,
            (long long)was->decay_steps);
}

dh_status dh_run_check_same(dh_ctx *ctx, const dh_run *run, const dh_ckpt *ckpt)
{
    const dh_ckpt_state *was = dh_ckpt_get_state(ckpt);
    dh_ckpt_state is = {.step = 0};
    dh_str what = DH_STR_INIT;
    DH_TRY(dh_run_describe(ctx, run, &is));
    accept_sample(run, was, &is);
    if (strcmp(was->tokenizer_fingerprint, is.tokenizer_fingerprint) != 0)
        dh_str_printf(&what, "another tokenizer (data.tokenizer is %s)", run->job->tokenizer);
    else
        tell_differences(run, was, &is, &what);
    if (!what.len && strcmp(was->job_fingerprint, is.job_fingerprint) != 0)
        dh_str_printf(&what, "another model, data, batch, seed or optimizer constants");
    dh_status st = DH_OK;
    if (what.failed)
        st = dh_no_memory(ctx);
    else if (what.len)
        st = dh_fail(ctx, DH_EINVAL,
                     "%s was written with %s; use --fresh to set the run folder aside, another "
                     "`out`, or train.init_from to take its weights",
                     dh_ckpt_path(ckpt), what.text);
    dh_str_fini(&what);
    if (st == DH_OK) warn_of_threads(run, was);
    if (st == DH_OK) warn_of_curve(run, was);
    return st;
}
