/* Plans as text, after the paper's figure 10: the two strands side by side, cut into rounds. */
#include <string.h>

#include "pair_build.h"

#define BAR_CHARS 72
#define MAX_NAME_CHARS 24

static double us(int64_t ns)
{
    return (double)ns / 1e3;
}

static double percent(int64_t part, int64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* ---- totals ----------------------------------------------------------------------------- */

static void draw_totals(const dh_pair_problem *p, const dh_pair_plan *plan, dh_str *out)
{
    const dh_pair_exposure *e = &plan->exposed;
    const int64_t exposed = e->dependency_ns + e->contention_ns + e->launch_ns;
    dh_str_printf(out, "%s: %d forward and %d backward operators in %d rounds, %.1f us\n",
                  plan->policy, p->f.n, p->b.n, plan->n_rounds, us(plan->makespan_ns));
    dh_str_printf(out, "  one after the other %.1f us (%.1f %% saved); bound %.1f us (",
                  us(plan->sequential_ns),
                  percent(plan->sequential_ns - plan->makespan_ns, plan->sequential_ns),
                  us(plan->bound_ns));
    for (int c = 0; c < DH_N_ENGINE; c++)
        dh_str_printf(out, "%s%s %.1f", c ? ", " : "", dh_engine_name((dh_engine)c),
                      us(plan->work_ns[c]));
    dh_str_printf(
        out, ")\n  communication %.1f us, exposed %.1f us (%.1f %%): ", us(plan->communication_ns),
        us(exposed), percent(exposed, plan->communication_ns));
    dh_str_printf(out, "nothing beside it %.1f, contention %.1f, launch %.1f\n",
                  us(e->dependency_ns), us(e->contention_ns), us(e->launch_ns));
    dh_str_printf(out, "  pairs of operators beside each other:");
    for (int s = 0; s < DH_N_PAIR_SOURCES; s++)
        dh_str_printf(out, "%s %d %s", s ? "," : "", plan->n_pairs[s],
                      dh_pair_source_name((dh_pair_source)s));
    dh_str_printf(out, "\n");
    if (plan->n_states)
        dh_str_printf(out, "  searched %lld states, %lld moves\n", (long long)plan->n_states,
                      (long long)plan->n_moves);
    if (plan->note) dh_str_printf(out, "  note: %s\n", plan->note);
}

/* ---- bars ------------------------------------------------------------------------------- */

/* Column of a time: the bar is the whole plan. */
static int column_of(const dh_pair_plan *plan, int64_t ns)
{
    return (int)((double)ns * BAR_CHARS / (double)DH_MAX(plan->makespan_ns, 1));
}

/* An operator shows in every column that it touches first; at least one where there is room. */
static void draw_bar(const char *label, const dh_pair_plan *plan, dh_pair_strand strand,
                     const dh_pair_span *spans, dh_str *out)
{
    char bar[BAR_CHARS + 1];
    memset(bar, ' ', BAR_CHARS);
    bar[BAR_CHARS] = '\0';
    for (int32_t k = 0; k < strand.n; k++) {
        const int from = column_of(plan, spans[k].start_ns), to = column_of(plan, spans[k].end_ns);
        for (int c = from; c < DH_MIN(DH_MAX(to, from + 1), BAR_CHARS); c++)
            if (spans[k].end_ns > spans[k].start_ns) bar[c] = dh_engine_mark(strand.ops[k].engine);
    }
    dh_str_printf(out, "  %-8s |%s|\n", label, bar);
}

static void draw_barriers(const dh_pair_plan *plan, dh_str *out)
{
    char bar[BAR_CHARS + 1];
    memset(bar, ' ', BAR_CHARS);
    bar[BAR_CHARS] = '\0';
    for (int32_t k = 0; k < plan->n_rounds; k++)
        bar[DH_MIN(column_of(plan, plan->rounds[k].start_ns), BAR_CHARS - 1)] = '^';
    dh_str_printf(out, "  %-8s |%s|\n  ", "rounds", bar);
    for (int c = 0; c < DH_N_ENGINE; c++)
        dh_str_printf(out, "%s%c %s", c ? ", " : "", dh_engine_mark((dh_engine)c),
                      dh_engine_name((dh_engine)c));
    dh_str_printf(out, "\n");
}

/* ---- rounds ------------------------------------------------------------------------------ */

static int name_width(dh_pair_strand strand)
{
    size_t widest = strlen("backward");
    for (int32_t k = 0; k < strand.n; k++) widest = DH_MAX(widest, strlen(strand.ops[k].name));
    return (int)DH_MIN(widest, (size_t)MAX_NAME_CHARS);
}

/* "= qkv          120.5 x1.08"; empty: as wide. */
static void draw_op(dh_pair_strand strand, const dh_pair_span *spans, const int32_t *run, int32_t n,
                    int32_t i, int width, dh_str *out)
{
    if (i >= n) {
        dh_str_printf(out, "%*s", width + 19, "");
        return;
    }
    const dh_pair_op *op = &strand.ops[run[i]];
    const int64_t ns = spans[run[i]].end_ns - spans[run[i]].start_ns;
    dh_str_printf(out, "%c %-*.*s %10.1f x%4.2f", dh_engine_mark(op->engine), width, width,
                  op->name, us(ns), op->solo_ns ? (double)ns / (double)op->solo_ns : 1.0);
}

static void draw_round(const dh_pair_problem *p, const dh_pair_plan *plan, int32_t k, dh_str *out)
{
    const dh_pair_round *s = &plan->rounds[k];
    const int f_width = name_width(p->f), b_width = name_width(p->b);
    for (int32_t i = 0; i < DH_MAX(s->n_f, s->n_b); i++) {
        if (i == 0)
            dh_str_printf(out, "%4d %10.1f  ", k + 1, us(s->start_ns));
        else
            dh_str_printf(out, "%17s", "");
        draw_op(p->f, plan->f_span, s->f_ops, s->n_f, i, f_width, out);
        dh_str_printf(out, " | ");
        draw_op(p->b, plan->b_span, s->b_ops, s->n_b, i, b_width, out);
        if (i == 0)
            dh_str_printf(out, "  %9.1f %10.1f %6.1f", us(s->exposed.dependency_ns),
                          us(s->exposed.contention_ns), us(s->exposed.launch_ns));
        dh_str_printf(out, "\n");
    }
}

static void draw_others(const dh_pair_plan *plan, dh_str *out)
{
    for (int32_t k = 0; k < plan->n_others; k++) {
        const dh_pair_other *o = &plan->others[k];
        dh_str_printf(out, "  %s %-12s %10.1f us (%+.1f %%)\n", k ? "     " : "other", o->policy,
                      us(o->makespan_ns),
                      percent(o->makespan_ns - plan->makespan_ns, plan->makespan_ns));
    }
}

dh_status pair_plan_draw(dh_ctx *ctx, const dh_pair_problem *p, const dh_pair_plan *plan,
                         dh_str *out)
{
    draw_totals(p, plan, out);
    draw_bar("forward", plan, p->f, plan->f_span, out);
    draw_bar("backward", plan, p->b, plan->b_span, out);
    draw_barriers(plan, out);
    dh_str_printf(out, "round  start us  %-*s | %-*s  exposed: alone contention launch\n",
                  name_width(p->f) + 19, "  forward, us, slow-down", name_width(p->b) + 19,
                  "  backward, us, slow-down");
    for (int32_t k = 0; k < plan->n_rounds; k++) draw_round(p, plan, k, out);
    draw_others(plan, out);
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}
