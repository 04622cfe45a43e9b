/* dhelix verify: whether a run folder's checkpoints are whole, and which one a run goes on from. */
#include <stdio.h>

#include "cli/cli.h"
#include "dhelix/train.h"
#include "train/inspect.h"

static const char *const resume_names[] = {[DH_RESUME_BEGINS] = "begins",
                                           [DH_RESUME_CONTINUES] = "continues",
                                           [DH_RESUME_REFUSED] = "refused"};

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *finding_json(const dh_run_finding *f)
{
    json_t *object = json_pack("{sI ss sI sI}", "step", (json_int_t)f->step, "condition",
                               dh_ckpt_condition_name(f->condition), "files",
                               (json_int_t)f->n_files, "bytes", (json_int_t)f->n_bytes);
    if (object && *f->message) json_object_set_new(object, "message", json_string(f->message));
    return object;
}

static dh_status print_json(dh_ctx *ctx, const char *run, const dh_run_findings *found)
{
    json_t *list = json_array();
    for (size_t i = 0; i < found->checkpoints.n; i++)
        json_array_append_new(list, finding_json(&found->checkpoints.at[i]));
    json_t *object =
        json_pack("{ss so ss s{sI sI}}", "run", run, "checkpoints", list, "resume",
                  resume_names[found->resume], "metrics", "lines", (json_int_t)found->n_lines,
                  "unreadable", (json_int_t)found->n_unreadable);
    if (object && found->resume == DH_RESUME_CONTINUES)
        json_object_set_new(object, "resume_step", json_integer((json_int_t)found->resume_step));
    return dh_cli_print_json(ctx, object);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_finding(const dh_run_finding *f, dh_str *out)
{
    char size[32];
    dh_str_printf(out, "step %-8lld %s", (long long)f->step, dh_ckpt_condition_name(f->condition));
    if (f->n_files > 0)
        dh_str_printf(out, ", %zu files, %s", f->n_files,
                      dh_format_bytes(size, sizeof size, (double)f->n_bytes));
    dh_str_printf(out, "%s%s\n", *f->message ? ": " : "", f->message);
}

static dh_status print_text(dh_ctx *ctx, const dh_run_findings *found)
{
    dh_str out = DH_STR_INIT;
    for (size_t i = 0; i < found->checkpoints.n; i++)
        print_finding(&found->checkpoints.at[i], &out);
    dh_str_printf(&out, "metrics       %zu lines", found->n_lines);
    if (found->n_unreadable > 0)
        dh_str_printf(&out, ", of which %zu cannot be read: %s", found->n_unreadable,
                      found->unreadable);
    dh_str_printf(&out, "\nresume        %s", resume_names[found->resume]);
    if (found->resume == DH_RESUME_CONTINUES)
        dh_str_printf(&out, " from step %lld", (long long)found->resume_step);
    if (found->resume == DH_RESUME_BEGINS) dh_str_printf(&out, ": there is no checkpoint");
    dh_str_printf(&out, "\n");
    return dh_cli_print_str(ctx, &out);
}

/* ---- the command ----------------------------------------------------------------------------- */

static dh_status judge(dh_ctx *ctx, const char *run, const dh_run_findings *found)
{
    size_t n_bad = 0;
    for (size_t i = 0; i < found->checkpoints.n; i++)
        n_bad += found->checkpoints.at[i].condition != DH_CKPT_INTACT;
    if (*found->lost) return dh_fail(ctx, DH_EFORMAT, "%s", found->lost);
    if (n_bad == 0) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: %zu of %zu checkpoints are not intact", run, n_bad,
                   found->checkpoints.n);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    (void)args;
    const char *folder = cli->args.at[0];
    dh_run_findings found;
    DH_TRY(dh_run_inspect(ctx, folder, &found));
    dh_status st = DH_OK;
    if (cli->json)
        st = print_json(ctx, folder, &found);
    else if (!cli->quiet)
        st = print_text(ctx, &found);
    if (st == DH_OK) st = judge(ctx, folder, &found);
    dh_run_findings_fini(&found);
    return st;
}

const dh_command dh_command_verify = {
    .name = "verify",
    .doc = "check the checkpoints of a run folder, and name the one that a run continues from",
    .usage = "RUN",
    .notes = "Reads every checkpoint whole: manifest, sizes, checksums, state, and the shapes of\n"
             "weights and moments against config.json. The exit code is 1 when a checkpoint is\n"
             "damaged, is of a newer program, or cannot be read. Nothing is changed.\n",
    .min_args = 1,
    .max_args = 1,
    .run = run};
