/* Groups of lengths, each a job of its own (config/groups.h). */
#include "job_cases.h"

#include "config/groups.h"

#define GROUPED                                                                                    \
    "model: gpt2-tiny\nranks: 4\ndata: {train: a.txt, packing: group}\n"                           \
    "train: {seq_len: 64, batch: 8, micro_batch: 1}\n"

static void groups_are_jobs_of_their_own(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *j =
        job_of(GROUPED "parallel: {tp: 2, zero: 1}\n"
                       "switch:\n  groups: [16 dp=4 strategy=dhelix, 64 cp=2 tp=2 zero=0]\n");
    dh_job of;
    assert_string_equal(j->switch_groups, "16 dp=4 strategy=dhelix; 64 cp=2 tp=2 zero=0");
    assert_int_equal(dh_job_n_groups(j), 2);
    assert_ok(&ctx, dh_job_group(&ctx, j, 0, &of));
    assert_true(of.dp == 4 && of.tp == 1 && of.cp == 1 && of.zero == 1 && of.seq_len == 16);
    assert_true(of.micro_batch == 1 && of.global_batch == 4);
    assert_string_equal(of.strategy, "dhelix");
    assert_ok(&ctx, dh_job_group(&ctx, j, 1, &of));
    assert_true(of.dp == 1 && of.tp == 2 && of.cp == 2 && of.zero == 0 && of.seq_len == 64);
    assert_true(of.packing == DH_PACKING_PACK && of.global_batch == 1);
    assert_string_equal(of.strategy, "sequential");
    dh_job_destroy(j);
    j = job_of(GROUPED "switch: {groups: \"8 pp=2 micro_batch=3; 64\"}\n");
    assert_ok(&ctx, dh_job_group(&ctx, j, 0, &of));
    assert_true(of.dp == 2 && of.pp == 2 && of.micro_batch == 3);
    assert_int_equal(of.global_batch, 2 * 3 * 2); /* as many micro-batches as stages */
    assert_ok(&ctx, dh_job_group(&ctx, j, 1, &of));
    assert_true(of.dp == 4 && of.micro_batch == 1);
    dh_job_destroy(j);
}

static void groups_that_cannot_be_are_refused(void **state)
{
    static const struct {
        const char *more, *why;
    } cases[] = {
        {"", "takes 1 to 8 entries in switch.groups"},
        {"switch: {groups: [16 dp=4]}\n", "but train.seq_len is 64"},
        {"switch: {groups: [64, 16]}\n", "16 comes after 64"},
        {"switch: {groups: [64 dq=4]}\n", "\"dq=4\" in \"64 dq=4\" is not right"},
        {"switch: {groups: [64 dp=3]}\n", "in \"64 dp=3\" of switch.groups"},
        {"switch: {groups: [long dp=4]}\n", "\"long\" in \"long dp=4\" is not right"},
        {"switch: {groups: [64 micro_batches=0]}\n", "\"micro_batches=0\""},
        {"switch: {groups: [64 zero=2]}\n", "parallel.zero 2 of a group"},
        {"switch: {groups: [64 zero=3]}\nparallel: {zero: 3}\n", "parallel.zero 3 of a group"},
        {"switch: {groups: [64]}\ntrace: {step: 3}\n", "trace.step"},
        {"switch: {groups: [64]}\nparallel: {zero: 1, gather: forward}\n",
         "parallel.gather forward"},
        {"switch: {groups: [64]}\nparallel: {grad_dtype: compute}\n",
         "parallel.grad_dtype compute"},
        {"switch: {groups: [64]}\noptimizer: {post_validation: true}\nparallel: {pp: 2}\n",
         "optimizer.post_validation with"},
        {"switch: {groups: [64]}\noptimizer: {fuse: 2}\nparallel: {zero: 1}\n",
         "optimizer.fuse with data.packing group"},
        {"switch: {groups: [64]}\nlora: {rank: 4}\n", "data.packing group with adapters"},
        {"switch: {groups: [64]}\nelastic: {action: continue}\n", "elastic.action continue"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char text[600];
        dh_job *j;
        snprintf(text, sizeof text, GROUPED "%s", cases[i].more);
        if (parse(&ctx, text, NULL, 0, &j) == DH_OK) fail_msg("%s is taken", cases[i].more);
        if (!strstr(ctx.message, cases[i].why)) fail_msg("%s: %s", cases[i].more, ctx.message);
    }
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *j;
    assert_fails(&ctx, parse(&ctx, "model: gpt2-tiny\nswitch: {groups: [64]}\n", NULL, 0, &j),
                 DH_EINVAL, "are for data.packing group");
}

/* A name or a number, which come back as they were; and what goes with what. */
static void what_ranks_share_out_is_read(void **state)
{
    static const struct {
        const char *value;
        int64_t reshard;
    } right[] = {{"true", DH_RESHARD_TRUE},
                 {"false", DH_RESHARD_FALSE},
                 {"node", DH_RESHARD_NODE},
                 {"2", 2}};
    static const struct {
        const char *parallel, *why;
    } wrong[] = {
        {"zero: 3, reshard_after_forward: nod", "did you mean node?"},
        {"zero: 3, reshard_after_forward: 1", "a whole number, 2 to"},
        {"zero: 3, reshard_after_forward: -1", "a whole number, 2 to"},
        {"zero: 3, reshard_after_forward: 2.5", "one of true, false, node; or a whole number"},
        {"zero: 2, gradient_sync: evry", "did you mean every?"},
        {"zero: 1, gradient_sync: every", "take zero 2 or 3"},
        {"grad_dtype: computed", "did you mean compute?"},
        {"grad_dtype: fp16", "one of float32, compute"},
        {"zero: 3, regather: stages", "did you mean stage?"},
        {"zero: 2, regather: stage", "take zero 3, or leave it out"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    char text[300];
    dh_job *j;
    for (size_t i = 0; i < DH_COUNTOF(right); i++) {
        char *printed;
        snprintf(text, sizeof text,
                 "model: gpt2-tiny\nparallel: {dp: 4, zero: 3, reshard_after_forward: %s, "
                 "gradient_sync: every}\n",
                 right[i].value);
        j = job_of(text);
        assert_int_equal(j->reshard, right[i].reshard);
        assert_int_equal(j->gradient_sync, DH_GRADIENT_SYNC_EVERY);
        assert_ok(&ctx, dh_job_print(&ctx, j, &printed));
        snprintf(text, sizeof text, "reshard_after_forward: %s\n", right[i].value);
        assert_non_null(strstr(printed, text));
        free(printed);
        dh_job_destroy(j);
    }
    for (size_t i = 0; i < DH_COUNTOF(wrong); i++) {
        snprintf(text, sizeof text, "model: gpt2-tiny\nparallel: {dp: 4, %s}\n", wrong[i].parallel);
        if (parse(&ctx, text, NULL, 0, &j) == DH_OK) fail_msg("%s is taken", wrong[i].parallel);
        if (!strstr(ctx.message, wrong[i].why)) fail_msg("%s: %s", wrong[i].parallel, ctx.message);
        dh_ctx_reset(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_jobs_of_their_own),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
        cmocka_unit_test(what_ranks_share_out_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
