/* The page: a template into which style, scripts and data are put.
 *
 * The data is JSON in a script element that is not run. Inside JSON, '<' occurs in strings
 * only, where \u003c is the same character: so nothing in a name can end the element. */
#include "report/html/page.h"
#include "base/json_text.h"
#include "base/needs.h"
#include "report/timeline.h"
#include "train/inputs.h"

#include <string.h>

enum { DEFAULT_MAX_RANKS = 64 };

static void append(dh_str *page, const char *text)
{
    dh_str_append(page, text, strlen(text));
}

static void append_data(dh_str *page, const dh_str *json)
{
    const char *at = json->text, *end = json->text + json->len;
    while (at < end) {
        const char *less = memchr(at, '<', (size_t)(end - at));
        const char *stop = less ? less : end;
        dh_str_append(page, at, (size_t)(stop - at));
        if (less) append(page, "\\u003c");
        at = stop + (less ? 1 : 0);
    }
}

/* Text without indentation, empty lines, and comments that begin a line. */
static void append_stripped(dh_str *page, const dh_embedded *file)
{
    const char *at = (const char *)file->text, *end = at + file->n_bytes;
    while (at < end) {
        at += strspn(at, " \n");
        const char *stop = strncmp(at, "/*", 2) == 0 ? strstr(at, "*/") : NULL;
        stop = strchr(stop ? stop : at, '\n');
        stop = stop ? stop + 1 : end;
        if (strncmp(at, "//", 2) != 0 && strncmp(at, "/*", 2) != 0)
            dh_str_append(page, at, (size_t)(stop - at));
        at = stop;
    }
}

static const dh_embedded *part(const char *name)
{
    for (size_t i = 0; i < dh_page_parts_n; i++)
        if (strcmp(dh_page_parts[i].name, name) == 0) return &dh_page_parts[i];
    return NULL;
}

static void append_scripts(dh_str *page)
{
    for (size_t i = 0; i < dh_page_scripts_n; i++) append_stripped(page, &dh_page_scripts[i]);
}

/* The template's {{NAME}} marks, in any order. */
static void fill(dh_str *page, const dh_str *data)
{
    const char *at = (const char *)part("page")->text;
    for (const char *mark; (mark = strstr(at, "{{"));) {
        dh_str_append(page, at, (size_t)(mark - at));
        if (strncmp(mark, "{{style}}", 9) == 0) append_stripped(page, part("style"));
        if (strncmp(mark, "{{scripts}}", 11) == 0) append_scripts(page);
        if (strncmp(mark, "{{data}}", 8) == 0) append_data(page, data);
        at = strstr(mark, "}}") + 2;
    }
    append(page, at);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The run that others are compared with, where it is named. */
static dh_status find_named(dh_ctx *ctx, const char *const *runs, size_t n, const char *name,
                            size_t *baseline)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(runs[i], name) == 0 || strcmp(last_part(runs[i]), name) == 0) {
            *baseline = i;
            return DH_OK;
        }
    return dh_fail(ctx, DH_EINVAL, "baseline %s is none of the runs, such as %s", name,
                   last_part(runs[0]));
}

static dh_status write_runs(dh_ctx *ctx, const char *const *runs, size_t n, int64_t max_ranks,
                            json_out *out, size_t *baseline)
{
    bool found = false;
    *baseline = 0;
    for (size_t i = 0; i < n; i++) {
        bool sequential = false;
        DH_TRY(dh_html_run(ctx, runs[i], max_ranks, out, &sequential));
        if (sequential && !found) *baseline = i;
        found |= sequential;
    }
    return DH_OK;
}

static dh_status write_data(dh_ctx *ctx, const char *const *runs, size_t n, int64_t max_ranks,
                            const char *named, json_out *out)
{
    size_t baseline;
    out_open(out, '{');
    out_key(out, "version");
    out_text(out, dh_version());
    out_key(out, "runs");
    out_open(out, '[');
    DH_TRY(write_runs(ctx, runs, n, max_ranks, out, &baseline));
    if (named) DH_TRY(find_named(ctx, runs, n, named, &baseline));
    out_close(out, ']');
    out_key(out, "baseline");
    out_int(out, (int64_t)baseline);
    out_close(out, '}');
    return DH_OK;
}

dh_status dh_html_page(dh_ctx *ctx, const char *const *runs, size_t n,
                       const dh_report_options *options, dh_str *page)
{
    DH_NEEDS_LIST(ctx, runs, n);
    const int64_t asked = options ? options->max_ranks : 0;
    if (n < 1 || n > DH_REPORT_MAX_RUNS || asked < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "a report of %zu runs and %lld ranks: 1 to %d runs, and 0 "
                       "ranks or more",
                       n, (long long)asked, DH_REPORT_MAX_RUNS);
    json_out data = {.comma = false};
    dh_status st = write_data(ctx, runs, n, asked ? asked : DEFAULT_MAX_RANKS,
                              options ? options->baseline : NULL, &data);
    if (st == DH_OK && !data.text.failed) fill(page, &data.text);
    const bool whole = dh_json_is_whole() && !data.text.failed && !page->failed;
    if (st == DH_OK && !whole) st = dh_no_memory(ctx);
    dh_str_fini(&data.text);
    return st;
}

dh_status dh_report_write(dh_ctx *ctx, const char *const *runs, size_t n,
                          const dh_report_options *options, const char *path)
{
    dh_str page = DH_STR_INIT;
    DH_NEEDS(ctx, path);
    DH_NEEDS_LIST(ctx, runs, n);
    dh_status st = dh_html_page(ctx, runs, n, options, &page);
    for (size_t i = 0; st == DH_OK && i < n; i++) st = dh_output_check(ctx, path, runs[i], false);
    if (st == DH_OK) st = dh_file_write_atomic(ctx, path, page.text, page.len);
    dh_str_fini(&page);
    return st;
}

dh_status dh_report_traces(dh_ctx *ctx, const char *run, const char *path)
{
    DH_NEEDS(ctx, run);
    DH_NEEDS(ctx, path);
    DH_TRY(dh_output_check(ctx, path, run, false));
    return dh_trace_join(ctx, run, path);
}
