/* dhelix check: a job's programs built, verified and measured, without running them. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/passes.h"
#include "cli/table.h"
#include "describe/checked.h"
#include "describe/memory.h"

typedef enum dump {
    DUMP_NONE,
    DUMP_RECIPE,
    DUMP_PASSES,
    DUMP_GRAPH,
    DUMP_PROGRAM,
    DUMP_SCHEDULE,
    DUMP_CSV
} dump;
static const char *const dump_names[] = {"none",    "recipe",   "passes", "graph",
                                         "program", "schedule", "csv",    NULL};

typedef struct check_args {
    int64_t ranks, rank;
    int print; /* dump */
} check_args;

static const dh_cli_option options[] = {
    {.name = "print",
     .kind = DH_CLI_ENUM,
     .offset = offsetof(check_args, print),
     .names = dump_names,
     .doc = "recipe: what was derived where the job leaves it open, and why; passes: which passes "
            "rewrote the graphs, and why others did not; graph: the operator graphs; program: the "
            "instructions with operands, offsets and waits; schedule: a drawing of the pipeline "
            "schedule; csv: the schedule in PyTorch's notation"},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(check_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks of the run; the same as --set ranks=N"},
    {.name = "rank",
     .kind = DH_CLI_INT,
     .offset = offsetof(check_args, rank),
     .value = "R",
     .min = 0,
     .max = 1 << 24,
     .doc = "whose programs to show; 0 by default"},
};

/* ---- as text ------------------------------------------------------------------------------ */

static void print_bytes(dh_str *out, const char *name, uint64_t n_bytes)
{
    char text[32];
    dh_str_printf(out, "  %-18s %12s\n", name, dh_format_bytes(text, sizeof text, (double)n_bytes));
}

static void print_memory(dh_str *out, const dh_checked_program *c)
{
    const dh_program *p = c->program;
    char text[256];
    for (size_t i = 0; i < DH_N_MEMORY_ROWS; i++)
        if (dh_memory_row_bytes(c->memory.persistent, i) > 0)
            print_bytes(out, dh_memory_rows[i].name, dh_memory_row_bytes(c->memory.persistent, i));
    if (c->memory.kept > 0) print_bytes(out, "kept for training", c->memory.kept);
    print_bytes(out, "activations", c->memory.activations);
    print_bytes(out, "scratch", c->memory.scratch);
    if (dh_program_kept_bytes(p) > 0) print_bytes(out, "kept by steps", dh_program_kept_bytes(p));
    print_bytes(out, "between buffers", c->memory.padding + c->memory.unused);
    print_bytes(out, "planned peak", p->slab_bytes);
    print_bytes(out, "lower bound", p->live_bytes);
    if (dh_program_kept_bytes(p) > 0) print_bytes(out, "kept by steps", dh_program_kept_bytes(p));
    if (c->system.peak_bytes > 0) print_bytes(out, "as system", c->system.peak_bytes);
    if (p->instrs.n > 0) {
        dh_str line = DH_STR_INIT;
        dh_str_printf(&line, "most is alive at %s",
                      dh_instr_describe(p, c->memory.peak_instr, text, sizeof text));
        dh_str_printf(out, "  ");
        dh_cli_paragraph(out, &line, 2);
    }
}

static void print_model(dh_str *out, const dh_job *job, const dh_recipe *recipe)
{
    const dh_model *m = &recipe->model;
    char number[32];
    dh_str text = DH_STR_INIT;
    const double n_params = (double)dh_model_n_params(m);
    dh_str_printf(&text, "model %s: %s parameters (%.0f), %lld layers, width %lld, vocabulary %lld",
                  m->name, dh_format_count(number, sizeof number, n_params), n_params,
                  (long long)m->n_layers, (long long)m->width, (long long)m->vocab);
    dh_cli_paragraph(out, &text, 2);
    const double flop =
        dh_model_flops_per_token(m, job->seq_len) * (double)(job->global_batch * job->seq_len);
    dh_str_printf(
        &text, "step: %lld sequences of %lld tokens in %lld micro-batches, %s, %s of the model",
        (long long)job->global_batch, (long long)job->seq_len, (long long)recipe->n_micro,
        dh_precision_name(recipe->dtype, recipe->fp8), dh_format_flop(number, sizeof number, flop));
    dh_cli_paragraph(out, &text, 2);
}

static void print_room(dh_str *out, const dh_room *room)
{
    dh_str line = DH_STR_INIT;
    dh_room_print(room, &line);
    if (!dh_room_is_there(room))
        dh_str_printf(&line, ": dhelix train refuses it here; dhelix simulate --cluster says what "
                             "it does on a cluster");
    dh_cli_paragraph(out, &line, 2);
}

static void print_missing(dh_str *out, const dh_missing *missing)
{
    for (size_t i = 0; i < missing->n; i++) {
        dh_str line = DH_STR_INIT;
        dh_str_printf(&line, "%s is not here, and dhelix train refuses the job here: %s",
                      missing->at[i].setting, missing->at[i].message);
        dh_cli_paragraph(out, &line, 2);
    }
}

static void print_text(dh_str *out, const dh_resolved *job, const dh_checked *all)
{
    char text[32];
    print_model(out, &job->job, &job->recipe);
    for (size_t i = 0; i < all->n; i++) {
        const dh_checked_program *c = &all->at[i];
        dh_str_printf(out, "\n%s program: %zu instructions, %zu waits, %s; verified\n",
                      dh_checked_mode(c->mode), c->program->instrs.n, c->program->waits.n,
                      dh_format_flop(text, sizeof text, c->flops));
        print_memory(out, c);
    }
    if (all->mesh.n_ranks > 0) {
        dh_str line = DH_STR_INIT;
        dh_str_printf(&line,
                      "all %zu ranks verified together: no deadlock, calls match (%zu classes of "
                      "ranks, %llu instructions)",
                      all->mesh.n_ranks, all->mesh.n_classes,
                      (unsigned long long)all->mesh.n_instrs);
        dh_str_printf(out, "\n");
        dh_cli_paragraph(out, &line, 2);
        dh_str_printf(out, "most memory of any rank in training: %s\n",
                      dh_format_bytes(text, sizeof text, (double)all->mesh.slab_bytes));
    }
    dh_str_printf(out, "\nmemory of %s rank: %s, fixed before the first step\n",
                  all->mesh.n_ranks > 0 ? "this" : "the",
                  dh_format_bytes(text, sizeof text, (double)all->slab_bytes));
    if (all->copy_bytes > 0)
        dh_str_printf(out,
                      "in addition, on the host: %s, a copy for checkpoints (checkpoint.async)\n",
                      dh_format_bytes(text, sizeof text, (double)all->copy_bytes));
    if (all->room.n_ranks > 0) print_room(out, &all->room);
    print_missing(out, &all->missing);
}

/* ---- as listings ---------------------------------------------------------------------------- */

static dh_status dump_program(dh_ctx *ctx, const dh_program *p, int what, dh_str *out)
{
    if (what == DUMP_PROGRAM) return dh_program_print(ctx, p, out);
    for (size_t g = 0; g < p->graphs.n; g++) DH_TRY(dh_graph_print(ctx, p->graphs.at[g], out));
    return DH_OK;
}

static dh_status print_dump(dh_ctx *ctx, const dh_checked *all, int what)
{
    dh_str out = DH_STR_INIT;
    dh_status st = DH_OK;
    for (size_t i = 0; i < all->n && st == DH_OK; i++)
        st = dump_program(ctx, all->at[i].program, what, &out);
    if (st == DH_OK) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------- */

static dh_status print_recipe(dh_ctx *ctx, const dh_cli *cli, const dh_resolved *job)
{
    if (cli->json) return dh_cli_print_json(ctx, dh_derived_json(job));
    dh_str out = DH_STR_INIT;
    dh_cli_table table;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "derived", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(&table, "value", DH_CLI_COLUMN_TEXT);
    dh_cli_table_column(&table, "why", DH_CLI_COLUMN_NOTE);
    for (size_t i = 0; i < job->n_derived; i++) {
        dh_cli_table_cell(&table, "%s", job->derived[i].name);
        dh_cli_table_cell(&table, "%s", job->derived[i].value);
        dh_cli_table_cell(&table, "%s", job->derived[i].why);
    }
    dh_cli_table_end(&table, dh_cli_columns(), &out);
    return dh_cli_print_str(ctx, &out);
}

static dh_status print_schedule(dh_ctx *ctx, const dh_recipe *recipe, int what)
{
    dh_schedule *made = NULL;
    const dh_schedule *schedule = recipe->schedule;
    if (!schedule) { /* one stage */
        const dh_schedule_row *row;
        const dh_schedule_spec one = {.n_ranks = 1, .n_micro = (int32_t)recipe->n_micro};
        DH_TRY(dh_schedule_find(ctx, "1f1b", &row));
        DH_TRY(dh_schedule_generate(ctx, row, &one, &made));
        schedule = made;
    }
    dh_str out = DH_STR_INIT;
    dh_status st = what == DUMP_CSV ? dh_schedule_print_csv(ctx, schedule, &out)
                                    : dh_schedule_draw(ctx, schedule, &out);
    dh_schedule_destroy(made);
    if (st == DH_OK) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return st;
}

static dh_status print_passes(dh_ctx *ctx, const dh_resolved *job)
{
    dh_str out = DH_STR_INIT;
    const dh_session_spec session = dh_train_session(&job->job, &job->recipe);
    const dh_program_spec spec =
        dh_session_program_spec(&session, session.train ? DH_MODE_TRAIN : DH_MODE_EVAL);
    dh_status st = dh_cli_describe_passes(ctx, &spec, &out);
    if (st == DH_OK) return dh_cli_print_str(ctx, &out);
    dh_str_fini(&out);
    return st;
}

static dh_status report(dh_ctx *ctx, const dh_cli *cli, const check_args *a, const dh_resolved *job,
                        const dh_checked *all)
{
    if (a->print != DUMP_NONE) return print_dump(ctx, all, a->print);
    if (cli->json) return dh_cli_print_json(ctx, dh_checked_json(job, all));
    dh_str out = DH_STR_INIT;
    print_text(&out, job, all);
    return dh_cli_print_str(ctx, &out);
}

/* Output that does not come from programs is also shown for jobs without programs: a schedule that
 * cannot be trained can be drawn. */
static dh_status check(dh_ctx *ctx, const dh_cli *cli, const check_args *a, const dh_resolved *job)
{
    if (a->print == DUMP_SCHEDULE || a->print == DUMP_CSV)
        return print_schedule(ctx, &job->recipe, a->print);
    if (a->print == DUMP_RECIPE) return print_recipe(ctx, cli, job);
    if (a->print == DUMP_PASSES) return print_passes(ctx, job);
    dh_checked all;
    dh_status st = dh_checked_make(ctx, job, a->rank, &all);
    if (st == DH_OK) st = report(ctx, cli, a, job, &all);
    dh_checked_fini(&all);
    return st;
}

static dh_status check_rank(dh_ctx *ctx, const check_args *a, const dh_job *job)
{
    if (a->rank < job->ranks) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "--rank=%lld: the job has ranks 0 to %lld", (long long)a->rank,
                   (long long)job->ranks - 1);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const check_args *a = args;
    const dh_resolve_options how = {.quiet = cli->quiet};
    dh_job *job;
    dh_resolved *resolved = NULL;
    if (cli->json && a->print != DUMP_NONE && a->print != DUMP_RECIPE)
        return dh_cli_misuse(ctx, cli, "--print %s has no JSON form: leave --json away",
                             dump_names[a->print]);
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks, &job));
    dh_status st = check_rank(ctx, a, job);
    if (st == DH_OK) st = dh_job_resolve(ctx, job, &how, &resolved);
    if (st == DH_OK) st = check(ctx, cli, a, resolved);
    dh_resolved_destroy(resolved);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_check = {
    .name = "check",
    .doc = "build and verify a job's programs, and say what they need, without running them",
    .usage = "JOB",
    .notes =
        "The verifier proves that the programs end, that no two unordered instructions touch\n"
        "the same bytes with a write, and that nothing lies outside the planned memory.\n"
        "\n"
        "Activations and scratch are counted at the moment that needs most. \"As system\" is\n"
        "the most that is alive where the job's system keeps more than ours does (its\n"
        "traits). \"Kept by steps\" are weights and moments that steps ahead of the gradient\n"
        "norm overwrite (optimizer.post_validation). At the end of the step they take the\n"
        "place of activations, so they raise the peak only where they are larger.\n"
        "\n"
        "At the end the memory of all ranks, as threads of one process, is compared with the\n"
        "free memory of this machine. Lines below it name files of data.train, data.val and\n"
        "data.tokenizer that cannot be opened. Neither is an error, since the job may be meant\n"
        "for other machines.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(check_args),
    .run = run};
