/* CoCoNet's rewrites in training: which bits they leave.
 *
 * split alone computes what plain tensor parallelism does, to the bit; with reorder what sequence
 * parallelism does, to the bit: the same operators on the same rows, sums in the same order. fuse
 * cuts them into chunks of rows, each row as before. */
#include "ranks.h"

typedef struct pair_of_runs {
    const char *model, *settings; /* of both */
    const char *one, *other;
} pair_of_runs;

#define PLAIN " parallel.sequence=false"

static void bits_are_those_of(void **state)
{
    static const pair_of_runs list[] = {
        {RUN_GPT2, "parallel.tp=2", PLAIN, PLAIN " strategy=split+sequential"},
        {RUN_GPT2, "parallel.tp=2 model.dropout=0.1", "",
         PLAIN " strategy=split+reorder+sequential"},
        {RUN_GPT2, "parallel.tp=2 model.dropout=0.1", "", " strategy=fuse(4)+sequential"},
        {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 train.dtype=bf16 train.recompute=selective", "",
         PLAIN " strategy=split+reorder+fuse+dhelix"},
        {RUN_GPT2, "parallel.tp=4 model.dropout=0.1", "", " strategy=fuse(2,gather)+sequential"},
        {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 train.dtype=bf16 train.recompute=selective", "",
         PLAIN " strategy=split+reorder+fuse(2,gather)+dhelix"},
        {RUN_LLAMA, "parallel.tp=4 train.recompute=selective", "",
         PLAIN " strategy=split+reorder+sequential"},
        {RUN_LLAMA, "parallel.tp=2 parallel.pp=2 parallel.zero=1 parallel.dp=1", "",
         PLAIN " strategy=split+reorder+dhelix"},
        {RUN_GPT2, "parallel.tp=2 parallel.cp=2 train.dtype=bf16 train.recompute=full", "",
         PLAIN " strategy=split+reorder(regather=false)+sequential"},
    };
    for (size_t i = 0; i < DH_COUNTOF(list); i++) {
        if (test_leaves_out(i)) continue;
        const pair_of_runs *c = &list[i];
        char settings[2][300], out[2][300];
        run_curve curve[2];
        for (int k = 0; k < 2; k++) {
            char name[16];
            snprintf(name, sizeof name, "run%d", k);
            run_folder(out[k], sizeof out[k], name);
            snprintf(settings[k], sizeof settings[k], "%s%s", c->settings, k ? c->other : c->one);
            run_curve_of(c->model, settings[k], out[k], &curve[k]);
        }
        if (run_distance(&curve[0], &curve[1], 0) != 0 ||
            !run_same_bytes(out[0], out[1], curve[0].n))
            fail_msg("%s and %s differ by %g", settings[0], settings[1],
                     run_distance(&curve[0], &curve[1], 0));
    }
}

/* Whatever the search finds on a link that is slow or fast, the losses are those of the mesh. */
static void what_is_found_trains(void **state)
{
    static const char *const settings[] = {
        "parallel.tp=2", "parallel.tp=2 parallel.sequence=false",
        "parallel.tp=4 parallel.sequence=false links.local.gbps=0.5"};
    for (size_t i = 0; i < DH_COUNTOF(settings); i++) {
        if (test_leaves_out(i)) continue;
        char with[300], out[2][300];
        run_curve curve[2];
        run_folder(out[0], sizeof out[0], "plain");
        run_folder(out[1], sizeof out[1], "found");
        snprintf(with, sizeof with, "%s strategy=coconet", settings[i]);
        run_curve_of(RUN_LLAMA, settings[i], out[0], &curve[0]);
        run_curve_of(RUN_LLAMA, with, out[1], &curve[1]);
        assert_true(run_distance(&curve[0], &curve[1], 0) <= run_tolerance(DH_F32));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_found_trains),
        cmocka_unit_test(bits_are_those_of),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
