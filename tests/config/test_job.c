#include "job_cases.h"

#include "config/settings.h"

/* ---- values ------------------------------------------------------------------------ */

static void defaults_are_complete(void **state)
{
    dh_job *j = job_of("model: gpt2\n");
    assert_string_equal(j->model_spec, "gpt2");
    assert_string_equal(j->model.name, "gpt2");
    assert_int_equal(j->steps, 1000);
    assert_int_equal(j->global_batch, 8);
    assert_int_equal(j->micro_batch, 8);
    assert_int_equal(j->seq_len, 1024);
    assert_int_equal(j->dp * j->tp * j->pp * j->cp * j->ep * j->vpp * j->ranks * j->nodes, 1);
    assert_true(j->lr == 6e-4 && j->beta1 == 0.9 && j->beta2 == 0.95 && j->eps == 1e-8);
    assert_true(j->sequence_parallel && j->zero == 0);
    assert_null(j->init_from);
    assert_null(j->data_cache);
    assert_string_equal(j->layer_split, "");
    assert_string_equal(j->tokenizer, "bytes");
    assert_int_equal(j->n_train_files, 0);
    dh_job_destroy(j);
    dh_job_destroy(NULL);
}

static void reads_every_type(void **state)
{
    dh_job *j = job_of("# a comment\n"
                       "model: stories260K\n"
                       "strategy: dhelix\n"
                       "out: runs/a\n"
                       "data:\n"
                       "  train: [a.txt, /abs/b.txt]\n"
                       "  val: 'one file.txt'\n"
                       "  tokenizer: ./tok\n"
                       "  order: random\n"
                       "train:\n"
                       "  steps: 1_000_000\n"
                       "  batch: 24\n"
                       "  seq_len: 256\n"
                       "  dtype: bf16\n"
                       "  seed: 9007199254740992\n"
                       "optimizer: {lr: 1e-3, min_lr: 1_0.5e-5, schedule: linear}\n"
                       "parallel:\n"
                       "  pp: 2\n"
                       "  layer_split: [3, 2]\n"
                       "  sequence: off\n"
                       "eval:\n" /* empty section */
                       "links: {local: {gbps: 100}, cross: {gbps: 10, latency_us: 2.5}}\n"
                       "moe: {mode: capacity, capacity: 1.25}\n");
    assert_string_equal(j->strategy, "dhelix");
    assert_string_equal(j->out_dir, "/base/runs/a");
    assert_int_equal(j->n_train_files, 2);
    assert_string_equal(j->train_files[0], "/base/a.txt");
    assert_string_equal(j->train_files[1], "/abs/b.txt");
    assert_int_equal(j->n_val_files, 1);
    assert_string_equal(j->val_files[0], "/base/one file.txt");
    assert_string_equal(j->tokenizer, "/base/./tok");
    assert_int_equal(j->order, DH_ORDER_RANDOM);
    assert_int_equal(j->steps, 1000000);
    assert_int_equal(j->dtype, DH_BF16);
    assert_true(j->seed == 9007199254740992u);
    assert_true(j->lr == 1e-3 && j->min_lr == 10.5e-5);
    assert_int_equal(j->lr_schedule, DH_LR_LINEAR);
    assert_string_equal(j->layer_split, "3,2");
    assert_false(j->sequence_parallel);
    assert_true(j->link_local.gbps == 100 && j->link_cross.gbps == 10);
    assert_true(j->link_cross.latency_us == 2.5);
    assert_int_equal(j->moe_mode, DH_MOE_CAPACITY);
    assert_int_equal(j->ranks, 2);
    assert_int_equal(j->micro_batch, 1); /* pipelines want many */
    assert_int_equal(dh_job_n_micro(j), 24);
    dh_job_destroy(j);
}

static void overrides_win_in_order(void **state)
{
    const char *sets[] = {"train.batch=4",     "train.batch=6",         "optimizer.lr=2e-3",
                          "data.train=[x, y]", "links.local={gbps: 7}", "data.val=p=q.txt",
                          "train.init_from=",  "train.steps=null",      "train.batch_size=10"};
    dh_job *j = job_with("model: gpt2\ntrain: {batch: 2, steps: 5, init_from: w}\n", sets,
                         DH_COUNTOF(sets));
    assert_int_equal(j->global_batch, 10);
    assert_int_equal(j->steps, 1000);
    assert_true(j->lr == 2e-3 && j->link_local.gbps == 7);
    assert_string_equal(j->train_files[1], "y"); /* not relative to the file's folder */
    assert_string_equal(j->val_files[0], "p=q.txt");
    assert_null(j->init_from);
    dh_job_destroy(j);
}

/* An override of the degree counts, and what was derived from it does not come back. */
static void overrides_of_zero_count(void **state)
{
    static const struct {
        const char *file, *set;
        int64_t zero;
    } cases[] = {{"zero: 1", "parallel.zero=0", 0},
                 {"zero: 1", "parallel.zero=3", 3},
                 {"zero: 1", "parallel.zero=null", 0},
                 {"zero: 1", "parallel.tp=1", 1}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char text[128];
        dh_ctx ctx = DH_CTX_INIT;
        snprintf(text, sizeof text, "model: gpt2\nparallel: {dp: 2, %s}\n", cases[i].file);
        dh_job *j = job_with(text, &cases[i].set, 1);
        assert_int_equal(j->zero, cases[i].zero);
        assert_ok(&ctx, dh_job_set(&ctx, j, "parallel.zero", "0"));
        assert_ok(&ctx, dh_job_check(&ctx, j));
        assert_int_equal(j->zero, 0);
        dh_job_destroy(j);
    }
}

static void anchors_and_aliases_of_yaml_work(void **state)
{
    dh_job *j = job_of("model: gpt2\nlinks:\n  local: &wire {gbps: 5}\n  cross: *wire\n");
    assert_true(j->link_local.gbps == 5 && j->link_cross.gbps == 5);
    dh_job_destroy(j);
}

/* ---- the model ------------------------------------------------------------------------ */

static void model_keys_change_a_preset(void **state)
{
    dh_job *j =
        job_of("model: {preset: gpt2, width: 512, n_heads: 8, vocab: auto, dropout: 0.1}\n");
    assert_int_equal(j->model.head_dim, 64);
    assert_int_equal(j->model.n_kv_heads, 8);
    assert_int_equal(j->model.ffn_width, 2048);
    assert_int_equal(j->model.vocab, 0);
    assert_true(j->dropout == 0.1);
    dh_job_destroy(j);

    j = job_of("model: {preset: llama-tiny, num_hidden_layers: 6, hidden_size: 128}\n");
    assert_int_equal(j->model.n_layers, 6);
    assert_int_equal(j->model.head_dim, 32);
    assert_int_equal(j->model.n_kv_heads, 2);
    assert_int_equal(j->model.ffn_width, 176);
    dh_job_destroy(j);

    j = job_of("model: {family: gpt2, n_layers: 1, width: 8, n_heads: 2, bias: false}\n");
    assert_int_equal(j->model.ffn_width, 32);
    assert_int_equal(j->model.vocab, 0);
    assert_null(j->model_spec);
    assert_string_equal(j->model.name, "custom");
    assert_false(j->model.bias);
    dh_job_destroy(j);

    const char *replace[] = {"model=llama-tiny"};
    j = job_with("model: {preset: gpt2, width: 96, n_heads: 3}\n", replace, 1);
    assert_int_equal(j->model.width, 64);
    dh_job_destroy(j);
    const char *source[] = {"model.preset=gpt2-medium"};
    j = job_with("model: {preset: gpt2, n_layers: 3}\n", source, 1);
    assert_int_equal(j->model.width, 1024);
    assert_int_equal(j->model.n_layers, 3);
    dh_job_destroy(j);
}

static void model_comes_from_config_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/m", dir);
    assert_ok(&ctx, dh_dir_create(&ctx, path));
    snprintf(path, sizeof path, "%s/m/config.json", dir);
    const char *json = "{\"model_type\": \"llama\", \"num_hidden_layers\": 3}";
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, json, strlen(json)));
    static const char *const jobs[] = {"model: m\n", "model: m/config.json\n",
                                       "model: {config: m}\n"};
    for (size_t i = 0; i < DH_COUNTOF(jobs); i++) {
        dh_job *j = NULL;
        snprintf(path, sizeof path, "%s/job.yaml", dir);
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, jobs[i], strlen(jobs[i])));
        assert_ok(&ctx, dh_job_load(&ctx, path, NULL, 0, &j));
        assert_int_equal(j->model.n_layers, 3);
        assert_int_equal(j->model_spec[0], '/');
        assert_int_equal(j->out_dir[0], '/');
        dh_job_destroy(j);
    }
    dh_job *j = NULL;
    const char *bad = "model: m/none.json\n";
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, bad, strlen(bad)));
    assert_fails(&ctx, dh_job_load(&ctx, path, NULL, 0, &j), DH_EIO, "job.yaml:1:8: model");
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    assert_fails(&ctx, dh_job_load(&ctx, path, NULL, 0, &j), DH_EIO, "job.yaml");
}

/* ---- errors ------------------------------------------------------------------------------ */

static void errors_say_where_and_what_is_right(void **state)
{
    static const struct {
        const char *yaml;
        dh_status status;
        const char *parts[3];
    } cases[] = {
        {"", DH_EINVAL, {"job.yaml", "model is missing", "list models"}},
        {"model: gpt2\ntrain:\n  stepz: 3\n",
         DH_EINVAL,
         {"job.yaml:3:3:", "\"train.stepz\"", "\"train.steps\""}},
        {"model: gpt2\ntrain: {lr: 1}\n", DH_EINVAL, {"job.yaml:2:9:", "\"optimizer.lr\""}},
        {"model: gpt2\noptimiser: {lr: 1}\n", DH_EINVAL, {"job.yaml:2:1:", "\"optimizer\""}},
        {"model: gpt2\nmoe: {qqqqqqqqqq: 1}\n", DH_EINVAL, {"moe.mode, moe.capacity"}},
        {"model: gpt2\ntrain:\n  steps: many\n",
         DH_EINVAL,
         {"job.yaml:3:10: train.steps", "\"many\"", "whole number, 1 or more"}},
        {"model: gpt2\ntrain: {steps: 1e3}\n", DH_EINVAL, {"write 1000"}},
        {"model: gpt2\ntrain: {steps: 0}\n", DH_EINVAL, {"train.steps", "1 or more"}},
        {"model: gpt2\ntrain: {steps: 99999999999999999999}\n", DH_EINVAL, {"train.steps"}},
        {"model: gpt2\ntrain: {steps: 1__0}\n", DH_EINVAL, {"train.steps"}},
        {"model: gpt2\ntrain: {steps: 0x10}\n", DH_EINVAL, {"train.steps"}},
        {"model: gpt2\ntrain: {steps: auto}\n", DH_EINVAL, {"train.steps"}},
        {"model: gpt2\ntrain: {steps: [1]}\n", DH_EINVAL, {"not a list"}},
        {"model: gpt2\ntrain: {steps: {a: 1}}\n", DH_EFORMAT, {"a mapping stands"}},
        {"model: gpt2\ntrain: {steps: }\n", DH_EFORMAT, {"value is missing"}},
        {"model: gpt2\ntrain: 3\n", DH_EFORMAT, {"job.yaml:2:8:", "is a section"}},
        {"model: gpt2\noptimizer: {lr: nan}\n", DH_EINVAL, {"optimizer.lr"}},
        {"model: gpt2\noptimizer: {lr: -1}\n", DH_EINVAL, {"0 to 1000"}},
        {"model: gpt2\noptimizer: {schedule: cosin}\n", DH_EINVAL, {"did you mean cosine?"}},
        {"model: gpt2\nparallel: {sequence: 2}\n", DH_EINVAL, {"true or false"}},
        {"model: gpt2\nparallel: {zero1: true}\n",
         DH_EINVAL,
         {"parallel.zero1", "parallel.zero: 1"}},
        {"model: gpt2\nparallel: {layer_split: \"6,x\"}\n", DH_EINVAL, {"3,4,4,3"}},
        {"model: gpt2\ndata: {train: [a, '']}\n", DH_EINVAL, {"entry 2 is empty"}},
        {"model: gpt2\ndata: {train: [a, [b]]}\n", DH_EFORMAT, {"a sequence stands"}},
        {"model: gpt2\ntrain: {batch: 1, batch: 2}\n",
         DH_EFORMAT,
         {"job.yaml:2:19:", "set twice", "job.yaml:2:9"}},
        {"model: gpt2\ntrain: {batch: 1, batch_size: 2}\n", DH_EFORMAT, {"set twice"}},
        {"model: gpt2\ntrain: {}\ntrain: {}\n", DH_EFORMAT, {"job.yaml:3:1", "set twice"}},
        {"- a\n- b\n", DH_EFORMAT, {"a sequence"}},
        {"? [a]\n: 3\n", DH_EFORMAT, {"a sequence stands"}},
        {"model: gpt2\n---\nmodel: gpt2\n", DH_EFORMAT, {"more than one"}},
        {"model: \"gpt2\n", DH_EFORMAT, {"job.yaml:2:1", "quoted scalar"}},
        {"model: gpt2\n\ttrain: 1\n", DH_EFORMAT, {"job.yaml:2"}},
        {"model: \"a\\0b\"\n", DH_EFORMAT, {"NUL"}},
        {"model: \xff\n", DH_EFORMAT, {"byte 7"}},
        {"model: &a {model: *a}\n", DH_EINVAL, {"\"model.model\""}},
        {"model: gpt3\n", DH_EMISSING, {"job.yaml:1:8: model", "\"gpt2\""}},
        {"model: {preset: gpt2, config: x}\n", DH_EFORMAT, {"either"}},
        {"model: {width: 3}\n", DH_EINVAL, {"model is missing"}},
        {"model: {family: llama, n_layers: 1, width: 8}\n",
         DH_EINVAL,
         {"model.n_heads is missing"}},
        {"model: {family: llama, n_layers: 1, width: 8, n_heads: 2}\n",
         DH_EINVAL,
         {"model.ffn_width is missing"}},
        {"model: {preset: gpt2, family: llama}\n", DH_EINVAL, {"cannot be changed"}},
        {"model: {preset: gpt2, rope_theta: 5}\n", DH_EINVAL, {"job.yaml:1:35", "does not apply"}},
        {"model: {preset: gpt2, n_heads: 7}\n", DH_EINVAL, {"n_heads 7", "768"}},
        {"model: {preset: llama-tiny, n_kv_heads: 3}\n", DH_EINVAL, {"n_kv_heads 3"}},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_job *j = NULL;
        dh_status st = parse(&ctx, cases[i].yaml, NULL, 0, &j);
        if (st != cases[i].status) fail_msg("%s: %s", cases[i].yaml, ctx.message);
        for (size_t k = 0; k < 3 && cases[i].parts[k]; k++)
            if (!strstr(ctx.message, cases[i].parts[k]))
                fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].yaml, ctx.message, cases[i].parts[k]);
        assert_null(j);
        dh_ctx_reset(&ctx);
    }
}

static void override_errors_begin_with_the_override(void **state)
{
    static const char *const cases[][2] = {
        {"optimizer.lr=abc", "--set optimizer.lr=abc: \"abc\" is not valid"},
        {"model.width=abc", "--set model.width=abc: \"abc\" is not valid"},
        {"optimizr.lr=1", "did you mean \"optimizer.lr\"?"},
        {"lr=1", "\"optimizer.lr\""},
        {"train.steps", "section.key=value"},
        {"=3", "section.key=value"},
        {"train=3", "is a section"},
        {"train={stepz: 3}", "--set train={stepz: 3}: unknown setting \"train.stepz\""},
        {"data.train=[a", "--set data.train=[a: "},
        {"model=gpt3", "--set model=gpt3"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_job *j = NULL;
        dh_status st = parse(&ctx, "model: gpt2\n", &cases[i][0], 1, &j);
        if (st == DH_OK || !strstr(ctx.message, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], ctx.message);
        dh_ctx_reset(&ctx);
    }
}

/* ---- learning rate -------------------------------------------------------------------------- */

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-15) fail_msg("got %.17g, want %.17g", got, want);
}

static void learning_rate_follows_the_schedule(void **state)
{
    dh_job *j = job_of("model: gpt2\ntrain: {steps: 110}\n"
                       "optimizer: {lr: 1e-3, min_lr: 1e-4, warmup_steps: 10}\n");
    assert_near(dh_job_lr(j, 0), 1e-4);
    assert_near(dh_job_lr(j, 9), 1e-3);
    assert_near(dh_job_lr(j, 10), 1e-3);
    assert_near(dh_job_lr(j, 60), 5.5e-4);
    assert_near(dh_job_lr(j, 35), 1e-4 + 0.5 * (1 + sqrt(0.5)) * 9e-4);
    assert_near(dh_job_lr(j, 110), 1e-4);
    assert_near(dh_job_lr(j, 10000), 1e-4);
    j->lr_schedule = DH_LR_LINEAR;
    assert_near(dh_job_lr(j, 35), 1e-4 + 0.75 * 9e-4);
    j->lr_schedule = DH_LR_CONSTANT;
    assert_near(dh_job_lr(j, 5), 6e-4);
    assert_near(dh_job_lr(j, 10000), 1e-3);
    j->lr_schedule = DH_LR_COSINE;
    j->decay_steps = 60;
    assert_near(dh_job_lr(j, 35), 5.5e-4);
    assert_near(dh_job_lr(j, 60), 1e-4);
    j->decay_steps = 10; /* no room between warm-up and end */
    assert_near(dh_job_lr(j, 9), 1e-3);
    assert_near(dh_job_lr(j, 10), 1e-4);
    dh_job_destroy(j);
}

/* ---- printing ------------------------------------------------------------------------------- */

static char *printed(const dh_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text = NULL;
    assert_ok(&ctx, dh_job_print(&ctx, job, &text));
    return text;
}

static void assert_print_parses_back(const dh_job *job)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text = printed(job), *text_again;
    dh_job *again = NULL;
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "printed", NULL, NULL, 0, &again));
    text_again = printed(again);
    assert_string_equal(text, text_again);
    assert_int_equal(dh_model_n_params(&job->model), dh_model_n_params(&again->model));
    assert_string_equal(job->model.name, again->model.name);
    assert_true(job->lr == again->lr && job->model.rope.theta == again->model.rope.theta);
    free(text);
    free(text_again);
    dh_job_destroy(again);
}

/* A mapping is kept as text, whatever its form, and as text it reads back. */
static void strategies_are_written_out(void **state)
{
    static const char *const forms[] = {
        "strategy: {passes: [ring-gemm(both), other(n=2, fast)], schedule: dhelix-w, order: "
        "auto}\n",
        "strategy:\n  passes:\n    - ring-gemm(both)\n    - other(n=2, fast)\n"
        "  schedule: dhelix-w\n  order: auto\n",
        "strategy: '{passes: [ring-gemm(both), other(n=2, fast)], schedule: dhelix-w, order: "
        "auto}'\n",
    };
    (void)state;
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        char text[512];
        snprintf(text, sizeof text, "model: gpt2-tiny\ndata: {train: a}\n%s", forms[i]);
        dh_job *j = job_of(text);
        assert_string_equal(j->strategy, "{passes: [ring-gemm(both), other(n=2, fast)], "
                                         "schedule: dhelix-w, order: auto}");
        assert_print_parses_back(j);
        dh_job_destroy(j);
    }
}

static void print_parses_back(void **state)
{
    size_t n;
    const dh_model_preset *presets = dh_model_presets(&n);
    for (size_t i = 0; i < n; i++) {
        char set[96];
        snprintf(set, sizeof set, "model=%s", presets[i].name);
        const char *sets[] = {set, "optimizer.lr=0.0012345678901234567"};
        dh_job *j = job_with("{}", sets, 2);
        assert_print_parses_back(j);
        dh_job_destroy(j);
    }
    const char *breaks[] = {"data.text_field=a\xc2\x85"
                            "b\xe2\x80\xa8"
                            "c\xe2\x80\xa9"
                            "d\xef\xbb\xbf"
                            "e\xc2\x9b"
                            "f\x7fg \xe2\x80\xae",
                            "out=\xe2\x80\xa8"};
    dh_job *b = job_with("model: {preset: gpt2, vocab: auto}\n", breaks, DH_COUNTOF(breaks));
    assert_string_equal(b->out_dir, "\xe2\x80\xa8");
    assert_print_parses_back(b);
    dh_job_destroy(b);
    const char *sets[] = {"data.text_field=a \"quoted\" \\ # text:\twith\x01 controls \xc3\xa9",
                          "data.train=[\"x y\", 'null', '~']",
                          "train.init_from=null",
                          "parallel.layer_split=6,6",
                          "parallel.pp=2",
                          "out=true"};
    dh_job *j = job_with("model: {preset: gpt2, vocab: auto}\n", sets, DH_COUNTOF(sets));
    assert_string_equal(j->out_dir, "true");
    assert_string_equal(j->train_files[1], "null");
    assert_print_parses_back(j);
    dh_job_destroy(j);
}

/* Every setting that is printed is explained, and the other way round. */
/* ---- by key --------------------------------------------------------------------------- */

static void assert_setting(const dh_job *j, const char *key, const char *want)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_job_get(&ctx, j, key, &text));
    assert_string_equal(text.text, want);
    dh_str_fini(&text);
}

static void settings_are_set_and_got(void **state)
{
    static const char *const values[][2] = {
        {"train.steps", "17"},       {"optimizer.lr", "0.001"},
        {"parallel.zero", "2"},      {"train.recompute", "full"},
        {"parallel.tp", "2"},        {"ranks", "2"},
        {"data.tokenizer", "chars"}, {"data.train", "[\"/a/b.txt\", \"/c.txt\"]"},
        {"out", "/runs/x"},          {"parallel.layer_split", "6,6"},
        {"model.name", "mine"},      {"strategy", "{passes: [ring-gemm], order: auto}"}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *j = job_of("model: gpt2\nparallel: {dp: 1}\n");
    for (size_t i = 0; i < DH_COUNTOF(values); i++) {
        assert_ok(&ctx, dh_job_set(&ctx, j, values[i][0], values[i][1]));
        assert_setting(j, values[i][0], values[i][1]);
    }
    assert_true(j->steps == 17 && j->tp == 2 && j->n_train_files == 2);
    assert_setting(j, "train.seq_len", "1024");
    dh_job_destroy(j);
}

/* A job file of the changes alone reads as the job, and says no more than was said. */
static void changes_parse_back(void **state)
{
    static const struct {
        const char *text, *want, *lacks;
    } cases[] = {
        {"model: gpt2\n", "model:\n  preset: \"gpt2\"\n", "train"},
        {"model: {preset: llama3-8b, n_layers: 8}\ntrain: {batch: 32}\nparallel: {tp: 2, zero: 1}\n"
         "ranks: 4\n",
         "ranks: 4\nmodel:\n  preset: \"llama3-8b\"\n  n_layers: 8\ntrain:\n  batch: 32\n"
         "parallel:\n  tp: 2\n  zero: 1\n",
         "topology"},
        {"model: {family: llama, n_layers: 2, width: 64, n_heads: 2, ffn_width: 128, vocab: 50}\n"
         "topology: {ranks_per_node: 1}\nparallel: {dp: 2}\ntrain: {batch: 4, seq_len: 32}\n",
         "family: llama", "nodes"},
        {"stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}\ntrain: {batch: 8, micro_batch: 1}\n"
         "parallel: {pp: 4}\n",
         "forward_ms", "model"},
        {"model: gpt2\nstrategy: {passes: [ring-gemm], order: auto}\ndata: {tokenizer: chars}\n",
         "tokenizer: \"chars\"", "out"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char *text, *before, *after;
        dh_job *j = job_of(cases[i].text), *again;
        assert_ok(&ctx, dh_job_print_changes(&ctx, j, "./best.yaml", &text));
        if (!strstr(text, cases[i].want) || strstr(text, cases[i].lacks))
            fail_msg("case %zu: %s", i, text);
        again = job_of(text);
        assert_ok(&ctx, dh_job_print(&ctx, j, &before));
        assert_ok(&ctx, dh_job_print(&ctx, again, &after));
        assert_string_equal(before, after);
        dh_job_destroy(j);
        dh_job_destroy(again);
        free(text), free(before), free(after);
    }
}

static void paths_start_at_a_folder(void **state)
{
    static const char *const cases[][3] = {
        {"/a/b", "/a/b/c.txt", "c.txt"},        {"/a/b", "/a/b/c", "./c"},
        {"/a/b", "/a/c/d.txt", "../c/d.txt"},   {"/a/b/c", "/a", "../../."},
        {"/a/b", "/a/bc/d.txt", "../bc/d.txt"}, {"/a/b", "/c/d.txt", "/c/d.txt"},
        {"/", "/c/d.txt", "/c/d.txt"},          {"/a/b", "/a/b/e/../c.txt", "c.txt"},
        {"/a/b", "/a/e/.././b//c/d", "c/d"},    {"/a/b", "/a/../../c", "/c"}};
    dh_arena *arena = dh_arena_create();
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        assert_string_equal(dh_job_path_from(arena, cases[i][0], cases[i][1]), cases[i][2]);
    /* What is above a link is not what is above its name. */
    assert_string_equal(dh_job_path_from(arena, "/proc", "/proc/self/../net/tcp"),
                        "self/../net/tcp");
    dh_arena_destroy(arena);
}

/* What was derived is derived anew after the last change, whatever the order of changes. */
static void derived_settings_follow_later_ones(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int order = 0; order < 2; order++) {
        const char *const changes[2][2] = {{"ranks", "16"}, {"parallel.tp", "4"}};
        dh_job *j = job_of("model: gpt2\nparallel: {tp: 2}\ntrain: {batch: 16}\n");
        assert_true(j->dp == 1 && j->ranks == 2 && j->micro_batch == 16 && j->seq_len == 1024);
        for (int i = 0; i < 2; i++) {
            const char *const *change = changes[i ^ order];
            assert_ok(&ctx, dh_job_set(&ctx, j, change[0], change[1]));
        }
        assert_ok(&ctx, dh_job_check(&ctx, j));
        assert_true(j->dp == 4 && j->ranks == 16 && j->micro_batch == 4);
        assert_ok(&ctx, dh_job_set(&ctx, j, "parallel.dp", "2")); /* 16 are given by now */
        assert_fails(&ctx, dh_job_check(&ctx, j), DH_EINVAL, "there are 16 ranks");
        assert_ok(&ctx, dh_job_set(&ctx, j, "ranks", "auto"));
        assert_ok(&ctx, dh_job_check(&ctx, j));
        assert_int_equal(j->ranks, 8);
        assert_ok(&ctx, dh_job_set(&ctx, j, "model.max_seq", "512"));
        assert_ok(&ctx, dh_job_check(&ctx, j));
        assert_int_equal(j->seq_len, 512);
        dh_job_destroy(j);
    }
    /* A value that is set to what was derived is given. */
    dh_job *j = job_of("model: gpt2\nparallel: {tp: 2}\n");
    assert_ok(&ctx, dh_job_set(&ctx, j, "parallel.dp", "1"));
    assert_ok(&ctx, dh_job_set(&ctx, j, "ranks", "8"));
    assert_fails(&ctx, dh_job_check(&ctx, j), DH_EINVAL, "there are 8 ranks");
    dh_job_destroy(j);
}

static void a_model_is_changed_by_key(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *j = job_of("model: gpt2\n");
    assert_ok(&ctx, dh_job_set(&ctx, j, "model.width", "1536"));
    assert_int_equal(j->model.ffn_width, 4 * 1536); /* derived, as when a job is read */
    assert_fails(&ctx, dh_job_set(&ctx, j, "model.n_heads", "7"), DH_EINVAL, "does not divide");
    assert_int_equal(j->model.n_heads, 12);
    assert_ok(&ctx, dh_job_set(&ctx, j, "model", "llama-tiny"));
    assert_int_equal(j->model.family, DH_FAMILY_LLAMA);
    assert_fails(&ctx, dh_job_set(&ctx, j, "model", "llama-tinny"), DH_EMISSING, "llama-tiny");
    assert_setting(j, "model", "llama-tiny");
    assert_ok(&ctx, dh_job_set(&ctx, j, "train.seq_len", "1024"));
    assert_fails(&ctx, dh_job_check(&ctx, j), DH_EINVAL, "shorten it");
    assert_ok(&ctx, dh_job_set(&ctx, j, "train.seq_len", "64"));
    assert_ok(&ctx, dh_job_check(&ctx, j));
    dh_job_destroy(j);
}

static void a_wrong_key_or_value_changes_nothing(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_job *j = job_of("model: gpt2\n");
    assert_fails(&ctx, dh_job_set(&ctx, j, "train.stepz", "1"), DH_EINVAL, "train.steps");
    assert_fails(&ctx, dh_job_get(&ctx, j, "train.stepz", &text), DH_EINVAL, "train.steps");
    assert_null(text.text);
    assert_fails(&ctx, dh_job_set(&ctx, j, "train.steps", "many"), DH_EINVAL, "whole number");
    assert_int_equal(j->steps, 1000);
    dh_job_destroy(j);
}

static void help_lists_every_setting(void **state)
{
    dh_str help = DH_STR_INIT;
    size_t n;
    dh_settings(&n);
    assert_int_equal(dh_job_help(NULL, 1000, &help), n);
    static const char *const some[] = {"model.rope_theta",
                                       "links.cross.latency_us",
                                       "one of cosine, linear, constant",
                                       "auto: ranks/(tp*pp*cp)",
                                       "whole number, 1 or more, sequences",
                                       "\n\n  train.steps"};
    for (size_t i = 0; i < DH_COUNTOF(some); i++) assert_non_null(strstr(help.text, some[i]));
    for (const char *line = help.text; *line; line = strchr(line, '\n') + 1)
        if (*line != '\n') assert_memory_equal(line, "  ", 2);
    dh_str_fini(&help);
}

/* Broken text must end in an error or a job, never in a crash: the sanitizers judge. */
static void mutated_text_is_survived(void **state)
{
    static const char base[] =
        "model: {preset: gpt2, width: 64, n_heads: 4}\ntrain:\n  batch: 8\n  steps: 10\n"
        "data: {train: [a, b]}\nparallel: {tp: 2, layer_split: \"6,6\"}\nlinks: {local: {gbps: "
        "1}}\n";
    static const char alphabet[] = "{}[]:,&*!|>'\"%@`#-? \n\t\x80_.~0a=\\";
    uint64_t seed = test_seed("mutated_text_is_survived");
    dh_ctx ctx = DH_CTX_INIT;
    for (int trial = 0; trial < 2000; trial++) {
        char text[sizeof base];
        memcpy(text, base, sizeof base);
        size_t n = sizeof base - 1;
        for (uint64_t edits = 1 + test_rand(&seed) % 4; edits; edits--)
            text[test_rand(&seed) % n] = alphabet[test_rand(&seed) % (sizeof alphabet - 1)];
        if (trial % 3 == 0) n = (size_t)(test_rand(&seed) % n);
        dh_job *j = NULL;
        const char *set = text + test_rand(&seed) % (sizeof base - 1); /* any tail as override */
        dh_status st = dh_job_parse(&ctx, text, n, "mutant", NULL, &set, trial % 2, &j);
        assert_true(st == DH_OK ? j != NULL : j == NULL && ctx.message[0]);
        dh_job_destroy(j);
        dh_ctx_reset(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_complete),
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(overrides_win_in_order),
        cmocka_unit_test(overrides_of_zero_count),
        cmocka_unit_test(anchors_and_aliases_of_yaml_work),
        cmocka_unit_test(model_keys_change_a_preset),
        cmocka_unit_test(model_comes_from_config_files),
        cmocka_unit_test(errors_say_where_and_what_is_right),
        cmocka_unit_test(override_errors_begin_with_the_override),
        cmocka_unit_test(learning_rate_follows_the_schedule),
        cmocka_unit_test(strategies_are_written_out),
        cmocka_unit_test(print_parses_back),
        cmocka_unit_test(settings_are_set_and_got),
        cmocka_unit_test(changes_parse_back),
        cmocka_unit_test(paths_start_at_a_folder),
        cmocka_unit_test(derived_settings_follow_later_ones),
        cmocka_unit_test(a_model_is_changed_by_key),
        cmocka_unit_test(a_wrong_key_or_value_changes_nothing),
        cmocka_unit_test(help_lists_every_setting),
        cmocka_unit_test(mutated_text_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
