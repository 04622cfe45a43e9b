/* Exported orders, read back as another program would: against what `dhelix plan` says of the same
 * job, against themselves, and their names against those of models in Hugging Face's library. */
#include "dh_test.h"

#include <jansson.h>

#include "dhelix/describe.h"

#define MESH "train: {batch: 8, micro_batch: 1, seq_len: 64}\n"
#define SIZES "n_layers: 4, width: 64, n_heads: 4, ffn_width: 128, vocab: 500, max_seq: 64"

typedef struct example {
    const char *job, *layer;
    const char *names[6][3]; /* phase, operator, modules with commas: one that the order has */
} example;

static const example examples[] = {
    {"model: {family: gpt2, " SIZES "}\n" MESH "parallel: {tp: 2}\n",
     "h.{layer}",
     {{"forward", "linear", "attn.c_attn"},
      {"forward", "all_gather", "attn.c_attn"},
      {"forward", "reduce_scatter", "mlp.c_proj"},
      {"forward", "attention", "attn"},
      {"weight-gradient", "linear_wgrad", "mlp.c_fc"},
      {"input-gradient", "activation_grad", "mlp"}}},
    {"model: {family: llama, " SIZES "}\n" MESH
     "parallel: {tp: 2, cp: 2}\nstrategy: dhelix-paper\n",
     "model.layers.{layer}",
     {{"forward", "linear", "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj"},
      {"forward", "norm", "post_attention_layernorm"},
      {"forward", "ring_attention", "self_attn"},
      {"input-gradient", "linear_dgrad", "mlp.down_proj"},
      {"forward", "residual", ""},
      {"weight-gradient", "linear_wgrad", "mlp.gate_proj,mlp.up_proj"}}},
    {"model: {family: mixtral, n_experts: 4, top_k: 2, " SIZES "}\n" MESH
     "parallel: {dp: 2, ep: 2}\n",
     "model.layers.{layer}",
     {{"forward", "linear", "block_sparse_moe.gate"},
      {"forward", "grouped_linear",
       "block_sparse_moe.experts.{expert}.w1,block_sparse_moe.experts.{expert}.w3"},
      {"forward", "all_to_all_rows", "block_sparse_moe"},
      {"input-gradient", "grouped_dgrad", "block_sparse_moe.experts.{expert}.w2"},
      {"forward", "activation", "block_sparse_moe"},
      {"forward", "linear", "self_attn.o_proj"}}},
};

static dh_job *job_of(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job;
    assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "order.yaml", ".", NULL, 0, &job));
    return job;
}

typedef dh_status describe(dh_ctx *ctx, const dh_job *job, const dh_describe_plan_options *options,
                           dh_str *json);

static json_t *document_of(describe *make, const char *job_text, const char *policy)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    json_error_t error;
    dh_cluster *cluster;
    dh_job *job = job_of(job_text);
    assert_ok(&ctx, dh_cluster_find(&ctx, "a100", &cluster));
    const dh_describe_plan_options how = {.cluster = cluster, .policy = policy};
    assert_ok(&ctx, make(&ctx, job, &how, &text));
    json_t *document = json_loads(text.text, 0, &error);
    if (!document) fail_msg("line %d: %s", error.line, error.text);
    dh_str_fini(&text);
    dh_cluster_destroy(cluster);
    dh_job_destroy(job);
    return document;
}

static double real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number %s", key);
    return json_number_value(value);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) fail_msg("no text %s", key);
    return text;
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * DH_MAX(fabs(a), fabs(b)) + 1e-6) fail_msg("%.9g is not %.9g", a, b);
}

/* ---- against `dhelix plan` ------------------------------------------------------------------ */

static void check_figures(const json_t *order, const json_t *plan)
{
    size_t i;
    const json_t *row;
    bool found = false;
    assert_near(real(order, "bound_us"), real(plan, "bound_us"));
    json_array_foreach(json_object_get(plan, "policies"), i, row)
    {
        if (strcmp(text_of(row, "policy"), text_of(order, "policy")) != 0) continue;
        found = true;
        assert_near(real(order, "slot_us"), real(row, "slot_us"));
        assert_near(real(order, "exposed_us"), real(row, "exposed_us"));
        assert_near(1 - real(order, "exposed_us") / real(order, "communication_us"),
                    real(row, "hidden"));
    }
    assert_true(found);
}

/* ---- against itself ------------------------------------------------------------------------- */

/* An operator's name: what it is told apart by. */
static void name_of(const json_t *op, dh_str *name)
{
    char *modules = json_dumps(json_object_get(op, "modules"), 0);
    dh_str_printf(name, "%s %s %s %d", text_of(op, "phase"), text_of(op, "operator"), modules,
                  (int)real(op, "occurrence"));
    free(modules);
}

static void check_needs(const json_t *operators, size_t index)
{
    const json_t *op = json_array_get(operators, index), *need;
    size_t i;
    json_array_foreach(json_object_get(op, "after"), i, need)
    {
        assert_true(json_is_integer(need) && (size_t)json_integer_value(need) < index);
        const json_t *before = json_array_get(operators, (size_t)json_integer_value(need));
        assert_true(real(before, "end_us") <= real(op, "start_us") + 1e-6);
    }
}

static void check_operators(const json_t *order)
{
    const json_t *operators = json_object_get(order, "operators"), *op;
    json_t *seen = json_object(), *stream_ends = json_object(), *busy = json_object();
    double last_us = 0, communication_us = 0, most_us = 0;
    size_t i;
    json_array_foreach(operators, i, op)
    {
        dh_str name = DH_STR_INIT;
        const char *stream = text_of(op, "stream");
        const double ended = json_number_value(json_object_get(stream_ends, stream));
        const double alone = json_number_value(json_object_get(busy, stream));
        name_of(op, &name);
        if (json_object_get(seen, name.text)) fail_msg("two operators are \"%s\"", name.text);
        json_object_set_new(seen, name.text, json_true());
        dh_str_fini(&name);
        check_needs(operators, i);
        assert_true(real(op, "start_us") >= ended - 1e-6);
        json_object_set_new(stream_ends, stream, json_real(real(op, "end_us")));
        json_object_set_new(busy, stream, json_real(alone + real(op, "alone_us")));
        last_us = fmax(last_us, real(op, "end_us"));
        if (strcmp(stream, "compute") != 0) communication_us += real(op, "alone_us");
        most_us = fmax(most_us, alone + real(op, "alone_us"));
    }
    assert_near(last_us, real(order, "makespan_us"));
    assert_near(communication_us, real(order, "communication_us"));
    assert_near(most_us, real(order, "bound_us")); /* a stream an engine in these jobs */
    json_decref(seen);
    json_decref(stream_ends);
    json_decref(busy);
}

/* Time in which two operators both run, by their own times. */
static double together_us(const json_t *a, const json_t *b)
{
    return fmin(real(a, "end_us"), real(b, "end_us")) -
           fmax(real(a, "start_us"), real(b, "start_us"));
}

static void check_pairs(const json_t *order)
{
    const json_t *operators = json_object_get(order, "operators"), *pair;
    const size_t n = json_array_size(operators);
    size_t i, n_together = 0;
    json_array_foreach(json_object_get(order, "pairs"), i, pair)
    {
        const json_t *a = json_array_get(operators, (size_t)real(pair, "a"));
        const json_t *b = json_array_get(operators, (size_t)real(pair, "b"));
        assert_near(real(pair, "together_us"), together_us(a, b));
        assert_string_not_equal(text_of(a, "stream"), text_of(b, "stream"));
        assert_true(real(pair, "rate_a") > 0 && real(pair, "rate_a") <= 1 + 1e-9);
    }
    for (size_t a = 0; a < n; a++)
        for (size_t b = a + 1; b < n; b++)
            n_together += together_us(json_array_get(operators, a), json_array_get(operators, b)) >=
                          1e-3 * (1 - 1e-9);
    assert_int_equal(n_together, json_array_size(json_object_get(order, "pairs")));
}

/* Of transfers that run one at a time, what is exposed of each adds up to what is of all. */
static void check_exposed(const json_t *order)
{
    const json_t *operators = json_object_get(order, "operators"), *row;
    double sum_us = 0;
    size_t i;
    json_array_foreach(json_object_get(order, "exposed"), i, row)
    {
        const json_t *op = json_array_get(operators, (size_t)real(row, "operator"));
        const json_t *next = json_object_get(row, "next");
        const bool tail = strcmp(text_of(row, "reason"), "tail") == 0;
        assert_string_not_equal(text_of(op, "stream"), "compute");
        assert_true(tail == json_is_null(next));
        sum_us += real(row, "exposed_us");
        if (tail) continue;
        const json_t *after =
            json_object_get(json_array_get(operators, (size_t)json_integer_value(next)), "after");
        bool needed = false;
        for (size_t k = 0; k < json_array_size(after); k++)
            needed |= json_number_value(json_array_get(after, k)) == real(row, "operator");
        assert_true(needed == (strcmp(text_of(row, "reason"), "dependency") == 0));
    }
    const double stood_us = real(order, "exposed_us") - real(order, "slowdown_us");
    assert_true(sum_us >= stood_us - 1e-3 * (double)(i + 1));
}

static void test_read_back(void **state)
{
    static const char *const policies[] = {NULL, "list"};
    for (size_t e = 0; e < DH_COUNTOF(examples); e++)
        for (size_t p = 0; p < DH_COUNTOF(policies); p++) {
            json_t *order = document_of(dh_describe_order, examples[e].job, policies[p]);
            json_t *plan = document_of(dh_describe_plan, examples[e].job, policies[p]);
            assert_string_equal(text_of(order, "format"), "dhelix.order");
            assert_string_equal(text_of(order, "policy"), text_of(plan, "policy"));
            check_figures(order, plan);
            check_operators(order);
            check_pairs(order);
            check_exposed(order);
            json_decref(order);
            json_decref(plan);
        }
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool has_operator(const json_t *order, const char *const name[3])
{
    size_t i, k;
    const json_t *op, *module;
    json_array_foreach(json_object_get(order, "operators"), i, op)
    {
        dh_str modules = DH_STR_INIT;
        json_array_foreach(json_object_get(op, "modules"), k, module)
            dh_str_printf(&modules, "%s%s", k ? "," : "", json_string_value(module));
        const bool same = strcmp(text_of(op, "phase"), name[0]) == 0 &&
                          strcmp(text_of(op, "operator"), name[1]) == 0 &&
                          strcmp(modules.text ? modules.text : "", name[2]) == 0;
        dh_str_fini(&modules);
        if (same) return true;
    }
    return false;
}

static void test_names(void **state)
{
    for (size_t e = 0; e < DH_COUNTOF(examples); e++) {
        json_t *order = document_of(dh_describe_order, examples[e].job, NULL);
        assert_string_equal(text_of(order, "layer"), examples[e].layer);
        for (size_t i = 0; i < DH_COUNTOF(examples[e].names); i++)
            if (!has_operator(order, examples[e].names[i]))
                fail_msg("%s: no %s %s of %s", examples[e].layer, examples[e].names[i][0],
                         examples[e].names[i][1], examples[e].names[i][2]);
        json_decref(order);
    }
}

static void test_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_job *job = job_of(examples[0].job);
    const dh_describe_plan_options unknown = {.policy = "lisst"};
    assert_fails(&ctx, dh_describe_order(&ctx, job, &unknown, &text), DH_EMISSING, "list");
    assert_null(text.text);
    dh_job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read_back),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
