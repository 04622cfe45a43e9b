/* What a run that goes on must not have otherwise: every setting of the model, but for a few that
 * say nothing of what is computed. */
#include "ranks.h"

#include "config/settings.h"
#include "train/run.h"
#include "weights/checkpoint.h"

/* ---- the list ---------------------------------------------------------------------------------
 */

/* And why a run may have it otherwise than the one that it goes on from. */
static const struct {
    const char *key, *why;
} may_change[] = {
    {"model.preset", "its settings are compared, wherever they are from"},
    {"model.config", "its settings are compared, wherever they are from"},
    {"model.name", "stands in reports only"},
    {"model.init_std", "a checkpoint has weights already"},
};

static bool named_here(const char *key)
{
    for (size_t i = 0; i < DH_COUNTOF(may_change); i++)
        if (strcmp(may_change[i].key, key) == 0) return true;
    return false;
}

static void every_setting_of_the_model_lasts(void **state)
{
    size_t n, n_lasting = 0, n_named = 0;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        const char *key = settings[i].key;
        const bool lasts = dh_run_is_lasting(key, strlen(key));
        n_lasting += lasts;
        if (strncmp(key, "model.", 6) != 0) continue;
        n_named += named_here(key);
        if (lasts == named_here(key))
            fail_msg("%s %s when a run goes on", key, lasts ? "must not change" : "may change");
    }
    assert_int_equal(n_named, DH_COUNTOF(may_change)); /* all of these exist */
    /* And a checkpoint has room for them, data and frozen weights. */
    assert_in_range(n_lasting + 2, 60, DH_CKPT_MAX_SETTINGS);
}

static void no_other_section_is_taken_for_the_model(void **state)
{
    static const char *const none[] = {"model", "modelx.width", "train.model.x",
                                       "out",   "ranks",        ""};
    for (size_t i = 0; i < DH_COUNTOF(none); i++)
        assert_false(dh_run_is_lasting(none[i], strlen(none[i])));
}

/* ---- a run that goes on -------------------------------------------------------------------------
 */

#define GEMMA3                                                                                     \
    "model: {family: gemma3_text, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: "   \
    "8,\n"                                                                                         \
    "        ffn_width: 48, vocab: 65, max_seq: 32, nth: 2}\n"
#define EXPERTS                                                                                    \
    "model: {family: qwen3_moe, n_layers: 2, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 8,\n" \
    "        ffn_width: 40, n_experts: 4, top_k: 2, vocab: 65, max_seq: 32}\n"
#define SHORT "eval.every=0 optimizer.decay_steps=9 train.batch=2"

static void a_changed_setting_is_refused_by_name(void **state)
{
    static const struct {
        const char *model, *begun, *change, *message;
    } cases[] = {
        {GEMMA3, "", "model.nth_rope_scaling=linear model.nth_rope_factor=8",
         "was written with model.nth_rope_scaling none, this job has linear"},
        {GEMMA3, "", "model.nth_rope_theta=20000",
         "model.nth_rope_theta 1e+06, this job has 20000"},
        {GEMMA3, "model.nth_rope_scaling=linear model.nth_rope_factor=8", "model.nth_rope_factor=4",
         "model.nth_rope_factor 8, this job has 4"},
        {EXPERTS, "", "model.topk_plain=true", "model.topk_plain false, this job has true"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char out[300], settings[300];
        dh_ctx ctx = DH_CTX_INIT;
        dh_train_result result;
        const char *begun = cases[i].begun;
        run_folder(out, sizeof out, "run");
        snprintf(settings, sizeof settings, SHORT " train.steps=1 %s", begun);
        assert_ok(&ctx, run_job(&ctx, cases[i].model, settings, out, NULL));
        snprintf(settings, sizeof settings, SHORT " train.steps=2 %s %s", begun, cases[i].change);
        assert_fails(&ctx, run_job(&ctx, cases[i].model, settings, out, NULL), DH_EINVAL,
                     cases[i].message);
        snprintf(settings, sizeof settings,
                 SHORT " train.steps=2 model.name=else model.init_std=0.5 %s", begun);
        assert_ok(&ctx, run_job(&ctx, cases[i].model, settings, out, &result));
        assert_int_equal(result.resumed_at, 1);
    }
}

/* ---- entry --------------------------------------------------------------------------------------
 */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_of_the_model_lasts),
        cmocka_unit_test(no_other_section_is_taken_for_the_model),
        cmocka_unit_test(a_changed_setting_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
