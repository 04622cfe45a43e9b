/* What of a job does not go with what, each said with the number to change. */
#include "job_cases.h"

static void combinations_name_the_number_to_change(void **state)
{
    static const char *const cases[][2] = {
        {"ranks: 6\nparallel: {tp: 4}", "use 8 ranks"},
        {"ranks: 4\nparallel: {dp: 3}", "parallel.dp=null), or use 3 ranks"},
        {"ranks: 4\ntrain: {batch: 10}", "8 or 12 would be"},
        {"parallel: {dp: 2}\ntrain: {batch: 10, micro_batch: 2}", "train.batch 10"},
        {"ranks: 4\ntrain: {batch: 3}", ": 4 would be"},
        {"train: {seq_len: 2048}", "model.max_seq 1024"},
        {"parallel: {tp: 5}", "parallel.tp 4 would"},
        {"parallel: {cp: 4}\ntrain: {seq_len: 1020}", "1016 would be"},
        {"parallel: {tp: 4}\ntrain: {seq_len: 1022}", "1020 would be"},
        {"parallel: {tp: 2, cp: 2}\ntrain: {seq_len: 1020, batch: 1}", NULL},
        {"parallel: {tp: 4, cp: 2}\ntrain: {seq_len: 1020, batch: 1}", "1008 would be"},
        {"parallel: {pp: 5}\ntrain: {batch: 5}", "3,3,2,2,2"},
        {"parallel: {pp: 5, layer_split: [4, 2, 2, 2, 2]}", NULL},
        {"parallel: {pp: 5}\ntrain: {batch: 5}", "or * for as even as can be"},
        {"parallel: {pp: 5, layer_split: \"*\"}", NULL},
        {"parallel: {pp: 5, layer_split: [-1, \"*\", -1]}", NULL},
        {"parallel: {pp: 2, layer_split: [3, 3, 3, 3]}", NULL}, /* of a folded schedule */
        {"parallel: {pp: 2, virtual_stages: 3, layer_split: [3, 3, 3, 3]}", "has 4 entries"},
        {"stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}", "times instead of a model"},
        {"parallel: {pp: 8, virtual_stages: 2}", "only 12 layers"},
        {"parallel: {pp: 2, layer_split: [6, 5]}", "adds up to 11"},
        {"parallel: {pp: 2, layer_split: [6, 3, 3]}", "has 3 entries"},
        {"parallel: {dp: 2, ep: 2}", "no experts"},
        {"parallel: {dp: 4, ep: 3}", "parallel.ep 3 does not divide parallel.dp 4"},
        {"parallel: {tp: 16777216, pp: 16777216}", "more than"},
        {"ranks: 4\ntopology: {nodes: 3}", "topology.nodes 3"},
        {"optimizer: {lr: 1e-4, min_lr: 1e-3}", "min_lr"},
        {"slow: {ranks: [0], factor: 1.3}", NULL},
        {"slow: {ranks: [0]}", "slow.factor"},
        {"slow: {factor: 1.3}", "give slow.ranks"},
        {"slow: {nodes: [0]}", "slow.link_factor"},
        {"slow: {link_factor: 2}", "nothing is slow: give slow.links"},
        {"optimizer: {warmup_steps: 10, decay_steps: 5}", "warmup_steps"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        char text[256];
        dh_job *j = NULL;
        snprintf(text, sizeof text, "model: gpt2\n%s\n", cases[i][0]);
        dh_status st = parse(&ctx, text, NULL, 0, &j);
        if (cases[i][1] ? st != DH_EINVAL || !strstr(ctx.message, cases[i][1]) : st != DH_OK)
            fail_msg("%s: %s", cases[i][0], ctx.message);
        dh_job_destroy(j);
        dh_ctx_reset(&ctx);
    }
    dh_job *j = NULL;
    assert_fails(&ctx, parse(&ctx, "model: mixtral-tiny\nparallel: {dp: 3, ep: 3}\n", NULL, 0, &j),
                 DH_EINVAL, "parallel.ep 2 would");
    assert_fails(
        &ctx,
        parse(
            &ctx,
            "model: {preset: llama-tiny, n_heads: 12, n_kv_heads: 4, head_dim: 8, ffn_width: 96}\n"
            "parallel: {tp: 6}\n",
            NULL, 0, &j),
        DH_EINVAL, "n_kv_heads 4, nor is it a multiple of it: parallel.tp 4");
}

/* Jobs, and what is said of each that is refused; NULL: it is accepted. */
static void expect_all(const char *const (*cases)[2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_job *j = NULL;
        const dh_status st = parse(&ctx, cases[i][0], NULL, 0, &j);
        if (cases[i][1] ? st == DH_OK || !strstr(ctx.message, cases[i][1]) : st != DH_OK)
            fail_msg("%s: %s", cases[i][0], ctx.message);
        dh_job_destroy(j);
    }
}

/* Shares of a sequence are one piece each, and documents would see each other. */
static void linear_attention_has_its_own_limits(void **state)
{
    static const char *const cases[][2] = {
        {"model: {preset: llama-tiny, attention: linear}\nparallel: {cp: 3}\ntrain: {seq_len: 93}",
         NULL},
        {"model: {preset: llama-tiny}\nparallel: {cp: 3}\ntrain: {seq_len: 93}", "90 would be"},
        {"model: {preset: llama-tiny, attention: linear}\nparallel: {cp: 3}\ntrain: {seq_len: 94}",
         "not a multiple of parallel.cp = 3: 93 would be"},
        {"model: {preset: llama-tiny, attention: linear}\ndata: {packing: pack}",
         "documents side by side would see each other"},
        {"model: {preset: llama-tiny}\nparallel: {cp_linear: lasp1}", "model.attention=linear"},
        {"model: {preset: llama-tiny, attention: linear}\nparallel: {cp_linear: lasp1}", NULL},
        {"model: {preset: llama-tiny, attention: linear, softmax_every: 2}\nparallel: {tp: 2}",
         NULL},
        {"model: {preset: llama-tiny, attention: linear, softmax_every: 2}\nparallel: {cp: 2}",
         NULL},
        {"model: {preset: llama-tiny, attention: linear, softmax_every: 2}\nparallel: {cp: 3}\n"
         "train: {seq_len: 93}",
         "not a multiple of 2 * parallel.cp = 6: 90 would be"},
        {"model: {preset: llama-tiny, attention: linear, softmax_every: 2}\n"
         "parallel: {cp: 2, cp_linear: lasp1}",
         "lasp2 would be right"},
        {"model: {preset: llama-tiny, softmax_every: 2}", "softmax in all layers"},
        {"model: {preset: gpt2, attention: linear}", "does not apply to the gpt2 family"},
        {"model: {preset: llama-tiny, attention: quadratic}", "linear"},
    };
    expect_all(cases, DH_COUNTOF(cases));
}

/* Products of 8 bits. */
static void fp8_needs_bf16(void **state)
{
    static const char *const cases[][2] = {
        {"model: {preset: llama-tiny}\ntrain: {dtype: bf16, fp8: hybrid}", NULL},
        {"model: {preset: llama-tiny}\ntrain: {dtype: bf16, fp8: e4m3}", NULL},
        {"model: {preset: llama-tiny}\ntrain: {fp8: off}", NULL},
        {"model: {preset: llama-tiny}\ntrain: {fp8: hybrid}", "give train.dtype=bf16"},
        {"model: {preset: llama-tiny}\ntrain: {dtype: bf16, fp8: hybird}", "hybrid"},
        {"model: {preset: llama-tiny}\ntrain: {dtype: bf16, fp8: e4m3}\nlora: {rank: 4}",
         "train.fp8=off would be right"},
    };
    expect_all(cases, DH_COUNTOF(cases));
}

/* The feed-forward parts of layers without experts are split over tensor-parallel ranks too. */
#define QWEN3_MOE_EVERY                                                                            \
    "model: {family: qwen3_moe, n_layers: 4, width: 32, n_heads: 4, head_dim: 8, ffn_width: 40,\n" \
    "        n_experts: 4, top_k: 2, vocab: 65, max_seq: 32, moe_every: 2, dense_width: 88}\n"

static void dense_layers_are_checked(void **state)
{
    static const char *const cases[][2] = {
        {"model: {preset: deepseek-tiny, dense_first: 1, dense_width: 96}\nparallel: {tp: 2}",
         NULL},
        {"model: {preset: deepseek-tiny, dense_first: 1, dense_width: 95}\nparallel: {tp: 2}",
         "does not divide model.dense_width 95"},
        {"model: {preset: deepseek-tiny, dense_first: 1}", "need a feed-forward width"},
        {"model: {preset: deepseek-tiny, moe_every: 2, dense_width: 96}",
         "does not apply to the deepseek_v3 family"},
        {"model: {preset: mixtral-tiny, dense_first: 1}", "does not apply to the mixtral family"},
        {"model: {preset: deepseek-tiny, dense_first: 1, dense_width: 96}\nlora: {rank: 4}",
         "adapters are not supported"},
        {QWEN3_MOE_EVERY "lora: {rank: 4}", NULL},
        {QWEN3_MOE_EVERY "lora: {rank: 4, targets: \"q_proj,gate_proj\"}", NULL},
        {QWEN3_MOE_EVERY "lora: {rank: 4, targets: \"gate_proj\"}",
         "names no linear that layer 1 has"},
        {QWEN3_MOE_EVERY "lora: {rank: 4, targets: \"c_attn\"}", "no layer of this model"},
    };
    expect_all(cases, DH_COUNTOF(cases));
}

#define PHIMOE                                                                                     \
    "model: {family: phimoe, n_layers: 1, width: 16, n_heads: 4, ffn_width: 8, vocab: 8, "
static void longrope_needs_its_factors(void **state)
{
    static const char *const cases[][2] = {
        {PHIMOE "rope_scaling: longrope, rope_original_max_seq: 8, rope_short_factor: [1, 2.5],\n"
                "  rope_long_factor: \"1, 3\", rope_short_mscale: 1, rope_long_mscale: 1.5}\n",
         NULL},
        {PHIMOE "rope_scaling: longrope, rope_original_max_seq: 0, rope_short_factor: [1, 2.5],\n"
                "  rope_long_factor: [1, 3], rope_short_mscale: 1, rope_long_mscale: 1.5}\n",
         "original_max_seq is 0"},
        {"model: {preset: phi-3.5-moe, rope_short_factor: [1, 0]}", "\"0\" is not valid"},
        {"model: {preset: phi-3.5-moe, rope_short_factor: [1, x]}", "\"x\" is not valid"},
        {"model: {preset: phi-3.5-moe, rope_short_factor: '1 9, 1'}", "\"1 9\" is not valid"},
        {"model: {preset: phi-3.5-moe, rope_short_factor: "
         "[1.0000000000000000000000000000000000000e5]}",
         "is not valid"},
        {"model: {preset: phi-3.5-moe, rope_long_factor: [1, 2]}",
         "give model.rope_scaling=longrope"},
        {"model: {preset: phi-3.5-moe, rope_scaling: longrope, rope_long_factor: [1, 2]}",
         "rope_short_factor has 0 numbers"},
        {"model: {preset: llama-tiny, rope_scaling: longrope}", "in the phimoe family alone"},
        {"model: {preset: phi-3.5-moe, rope_scaling: yarn, rope_factor: 2}",
         "model rope beta_slow"},
        {"model: {preset: phi-3.5-moe, top_k: 1}", "chooses 2 experts"},
    };
    expect_all(cases, DH_COUNTOF(cases));
}

/* Times of stages stand for a model, and come back as they were. */
static void stage_times_need_no_model(void **state)
{
    static const struct {
        const char *text, *message; /* NULL: it is right */
    } cases[] = {
        {"stages: {forward_ms: 1, input_ms: [1, 2.5], weight_ms: 3}\nparallel: {pp: 2}", NULL},
        {"stages: {forward_ms: 1, input_ms: 1}", "stages.weight_ms is missing"},
        {"stages: {forward_ms: 0, input_ms: 1, weight_ms: 1}", "numbers above 0"},
        {"stages: {forward_ms: -1, input_ms: 1, weight_ms: 1}", "numbers above 0"},
        {"stages: {forward_ms: [1, x], input_ms: 1, weight_ms: 1}", "numbers above 0"},
        {"stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}\nparallel: {tp: 2}", "divide a model"},
        {"stages: {forward_ms: 1, input_ms: 1, weight_ms: 1}\nmodel: {n_layers: 2}",
         "give one of the two"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_job *j = NULL, *again;
        char *text;
        dh_status st = parse(&ctx, cases[i].text, NULL, 0, &j);
        if (cases[i].message ? st != DH_EINVAL || !strstr(ctx.message, cases[i].message)
                             : st != DH_OK)
            fail_msg("%s: %s", cases[i].text, ctx.message);
        dh_ctx_reset(&ctx);
        if (cases[i].message) continue;
        assert_true(dh_job_has_stage_times(j));
        assert_ok(&ctx, dh_job_print(&ctx, j, &text));
        assert_ok(&ctx, dh_job_parse(&ctx, text, strlen(text), "again", NULL, NULL, 0, &again));
        assert_string_equal(again->stage_ms[DH_STAGE_INPUT], "1,2.5");
        assert_int_equal(again->pp, 2);
        free(text);
        dh_job_destroy(again);
        dh_job_destroy(j);
    }
}

/* Sequences may be longer than what a token sees of them. */
static void windows_are_shorter_than_sequences(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *j = job_of("model: {preset: mistral-7b, sliding_window: 512}\n");
    assert_int_equal(j->seq_len, 1024);
    assert_int_equal(j->model.window, 512);
    dh_job_destroy(j);
    j = job_of("model: {preset: qwen3-8b, window: 512, max_window_layers: 4}\n");
    assert_int_equal(j->model.window_from, 4);
    dh_job_destroy(j);
    j = NULL;
    assert_fails(&ctx, parse(&ctx, "model: {preset: mistral-7b, window_from: 1}\n", NULL, 0, &j),
                 DH_EINVAL, "does not apply to the mistral family");
    assert_fails(&ctx, parse(&ctx, "model: {preset: llama-tiny, window: 8}\n", NULL, 0, &j),
                 DH_EINVAL, "does not apply to the llama family");
}

static void degrees_are_derived_from_ranks(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const char *sets[] = {"ranks=16"};
    dh_job *j = job_with("model: gpt2\nparallel: {tp: 2, pp: 2}\ntopology: {ranks_per_node: 8}\n"
                         "train: {batch: 32}\n",
                         sets, 1);
    assert_int_equal(j->dp, 4);
    assert_int_equal(j->nodes, 2);
    assert_int_equal(dh_job_n_micro(j), 8);

    /* A caller may change the job and have it checked again. */
    j->tp = 4;
    assert_fails(&ctx, dh_job_check(&ctx, j), DH_EINVAL, "there are 16 ranks");
    j->dp = 0;
    assert_ok(&ctx, dh_job_check(&ctx, j));
    assert_int_equal(j->dp, 2);
    dh_job_destroy(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combinations_name_the_number_to_change),
        cmocka_unit_test(linear_attention_has_its_own_limits),
        cmocka_unit_test(fp8_needs_bf16),
        cmocka_unit_test(dense_layers_are_checked),
        cmocka_unit_test(longrope_needs_its_factors),
        cmocka_unit_test(stage_times_need_no_model),
        cmocka_unit_test(windows_are_shorter_than_sequences),
        cmocka_unit_test(degrees_are_derived_from_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
