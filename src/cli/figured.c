#include "cli/figured.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/child.h"
#include "report/html/figures.h"

/* The program writes to a file that it does not know by name. So it cannot make one again that was
 * removed because a signal ends this process. */
static dh_status convert(dh_ctx *ctx, const char *svg, int out)
{
    const char *const words[] = {"rsvg-convert", "--format=pdf", "--", svg, NULL};
    pid_t child;
    int status;
    const int why = dh_cli_spawn(words, out, &child);
    if (why == ENOENT)
        return dh_fail(ctx, DH_EMISSING,
                       "--pdf runs the program rsvg-convert, which is not on PATH: install "
                       "librsvg (package librsvg2-bin or librsvg2-tools)");
    if (why) return dh_fail(ctx, DH_EIO, "cannot run rsvg-convert: %s", strerror(why));
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return dh_fail(ctx, DH_EIO, "cannot wait for rsvg-convert: %s", strerror(errno));
    if (WIFSIGNALED(status))
        return dh_fail(ctx, DH_EIO, "rsvg-convert %s was killed by signal %d (%s)", svg,
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "rsvg-convert %s ends with exit code %d", svg, WEXITSTATUS(status));
}

static dh_status write_pdf(dh_ctx *ctx, const char *dir, const char *name)
{
    dh_str svg = DH_STR_INIT, pdf = DH_STR_INIT;
    dh_temporary made = DH_TEMPORARY_NONE;
    dh_str_printf(&svg, "%s/%s.svg", dir, name);
    dh_str_printf(&pdf, "%s/%s.pdf", dir, name);
    dh_status st =
        svg.failed || pdf.failed ? dh_no_memory(ctx) : dh_temporary_file(ctx, pdf.text, &made);
    if (st == DH_OK) st = convert(ctx, svg.text, made.fd);
    if (st == DH_OK) st = dh_temporary_commit(ctx, &made, pdf.text);
    dh_temporary_drop(&made);
    dh_str_fini(&svg);
    dh_str_fini(&pdf);
    return st;
}

static dh_status say_figures(dh_ctx *ctx, const dh_cli *cli, const char *out,
                             const dh_figures *figures)
{
    dh_str text = DH_STR_INIT;
    if (cli->json) return dh_cli_print_json(ctx, dh_figures_json(figures, out));
    if (cli->quiet) return DH_OK;
    for (size_t i = 0; i < figures->n; i++) {
        const dh_figure *f = &figures->at[i];
        dh_str_printf(&text, "%-11s %s%s%s\n", f->why[0] ? "not drawn" : "figure", f->name,
                      f->why[0] ? ": " : "", f->why);
    }
    return dh_cli_print_str(ctx, &text);
}

dh_status dh_cli_draw(dh_ctx *ctx, const dh_cli *cli, const char *const *sources,
                      const dh_figures_options *how, const char *out, bool pdf)
{
    dh_figures figures;
    if (cli->json) DH_TRY(dh_figures_check_json(ctx, out));
    DH_TRY(dh_figures_make(ctx, sources, cli->args.n, how, &figures));
    dh_status st = dh_figures_write(ctx, &figures, out, pdf);
    for (size_t i = 0; pdf && st == DH_OK && i < figures.n; i++)
        if (!figures.at[i].why[0]) st = write_pdf(ctx, figures.folder.text, figures.at[i].name);
    if (st == DH_OK) st = say_figures(ctx, cli, out, &figures);
    dh_figures_fini(&figures);
    return st;
}
