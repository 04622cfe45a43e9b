/* What the pairing search costs and what it finds, by policy and segment length, on a dense
 * layer and on a mixture of experts. README.md says how to read it. */
#include <inttypes.h>
#include <stdio.h>

#include "pairing_cases.h"
#include "plan/pair_build.h"

/* Fastest of a few runs: the search has no state, so the rest is the machine. */
#define REPEATS 3

static dh_status measure(dh_ctx *ctx, const char *name, const dh_pair_policy *policy,
                         const dh_pair_problem *problem, const dh_pair_options *options)
{
    int64_t fastest = INT64_MAX;
    dh_pair_plan *plan = NULL;
    for (int i = 0; i < REPEATS; i++) {
        dh_pair_plan_destroy(plan);
        const int64_t start = dh_now_ns();
        DH_TRY(dh_pair_plan_make(ctx, policy, problem, options, &plan));
        fastest = DH_MIN(fastest, dh_now_ns() - start);
    }
    const int64_t exposed =
        plan->exposed.dependency_ns + plan->exposed.contention_ns + plan->exposed.launch_ns;
    printf("%s,%s,%d,%.3f,%" PRId64 ",%" PRId64 ",%.1f,%.1f,%s\n", name, policy->name,
           options->max_segment, (double)fastest / 1e6, plan->n_states, plan->n_moves,
           (double)plan->makespan_ns / 1e3,
           100 - 100 * (double)exposed / (double)plan->communication_ns,
           plan->note ? plan->note : "");
    dh_pair_plan_destroy(plan);
    return DH_OK;
}

static dh_status measure_case(dh_ctx *ctx, const char *name, bool moe, const dh_oef_matrix *matrix,
                              const char *draw)
{
    static pairing_case c;
    size_t n;
    const dh_pair_policy *rows = pair_policies(&n);
    DH_TRY(case_make(ctx, moe, matrix, 10000, &c));
    for (size_t k = 0; k < n; k++)
        for (int32_t longest = 1; longest <= 6; longest++) {
            dh_pair_options o = DH_PAIR_OPTIONS_INIT;
            o.max_segment = longest;
            DH_TRY(measure(ctx, name, &rows[k], &c.problem, &o));
        }
    if (!draw || strcmp(draw, name) != 0) return DH_OK;
    dh_pair_plan *plan;
    dh_str text = DH_STR_INIT;
    dh_pair_options o = DH_PAIR_OPTIONS_INIT;
    o.compare = true;
    DH_TRY(dh_pair_plan_make(ctx, &rows[n - 1], &c.problem, &o, &plan));
    dh_status st = pair_plan_draw(ctx, &c.problem, plan, &text);
    if (st == DH_OK) fputs(text.text, stdout);
    dh_str_fini(&text);
    dh_pair_plan_destroy(plan);
    return st;
}

int main(int argc, char **argv)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_oef_matrix *matrix = NULL;
    const char *draw = argc > 2 ? argv[2] : NULL;
    if (argc < 2) {
        fputs("bench_pairing OEF.csv [dense|moe|dense-modelled|moe-modelled]\n", stderr);
        return 2;
    }
    puts("case,policy,segment,ms,states,moves,makespan_us,hidden_percent,note");
    dh_status st = dh_oef_matrix_read(&ctx, argv[1], &matrix);
    if (st == DH_OK) st = measure_case(&ctx, "dense", false, matrix, draw);
    if (st == DH_OK) st = measure_case(&ctx, "moe", true, matrix, draw);
    if (st == DH_OK) st = measure_case(&ctx, "dense-modelled", false, NULL, draw);
    if (st == DH_OK) st = measure_case(&ctx, "moe-modelled", true, NULL, draw);
    dh_oef_matrix_destroy(matrix);
    if (st != DH_OK) fprintf(stderr, "bench_pairing: %s\n", ctx.message);
    return st != DH_OK;
}
