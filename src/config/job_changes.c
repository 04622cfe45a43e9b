/* A job as a person would write it: what differs from the defaults and from the model's source. Its
 * paths start at the file's folder. */
#include "settings.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "model_names.h"

/* ---- paths ------------------------------------------------------------------------------ */

/* Length of the folders that both paths begin with, without the last slash. */
static size_t common_folders(const char *a, const char *b)
{
    size_t n = 0;
    for (size_t i = 0;; i++) {
        const bool ends = (!a[i] || a[i] == '/') && (!b[i] || b[i] == '/');
        if (ends) n = i;
        if (!a[i] || a[i] != b[i]) return n;
    }
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* ".." takes away the folder before it. Behind a link it stays: there it is another folder. */
static void go_up(dh_str *path)
{
    const char *last = path->len ? strrchr(path->text, '/') : NULL;
    if (!last) return; /* the root is above itself */
    if (strcmp(last, "/..") == 0 || is_link(path->text))
        dh_str_printf(path, "/..");
    else
        path->text[path->len = (size_t)(last - path->text)] = '\0';
}

/* A whole path without "." and ".."; NULL: out of memory. */
static char *fold(dh_arena *arena, const char *path)
{
    dh_str out = DH_STR_INIT;
    for (size_t n; *path; path += n) {
        path += *path == '/';
        n = strcspn(path, "/");
        if (n == 2 && memcmp(path, "..", 2) == 0)
            go_up(&out);
        else if (n > 0 && !(n == 1 && *path == '.'))
            dh_str_printf(&out, "/%.*s", (int)n, path);
    }
    char *text = out.failed ? NULL : dh_arena_strdup(arena, out.len ? out.text : "/");
    dh_str_fini(&out);
    return text;
}

char *dh_job_path_from(dh_arena *arena, const char *dir, const char *path)
{
    if (*dir != '/' || *path != '/') return dh_arena_strdup(arena, path);
    if (!(path = fold(arena, path))) return NULL;
    const size_t n = common_folders(dir, path);
    if (n == 0) return dh_arena_strdup(arena, path); /* only the root is common */
    dh_str out = DH_STR_INIT;
    for (const char *at = dir + n; *at; at++)
        if (*at == '/' && at[1]) dh_str_printf(&out, "../");
    const char *rest = path + n + (path[n] == '/');
    const bool is_name = out.len == 0 && !strpbrk(rest, "/."); /* it could be that of a row */
    dh_str_printf(&out, "%s%s", is_name ? "./" : "", *rest ? rest : ".");
    char *text = out.failed ? NULL : dh_arena_strdup(arena, out.text);
    dh_str_fini(&out);
    return text;
}

/* ---- what it is compared with ------------------------------------------------------------ */

static dh_status read_model(dh_ctx *ctx, const dh_job *job, bool *is_path, dh_model *model)
{
    *is_path = false;
    if (!job->model_spec || !*job->model_spec) {
        dh_model_init(model, job->model.family);
        return DH_OK;
    }
    dh_ctx quiet = DH_CTX_INIT;
    if (dh_model_from_preset(&quiet, job->model_spec, model) == DH_OK) return DH_OK;
    *is_path = true;
    return dh_model_from_config_file(ctx, job->model_spec, model);
}

/* Whether a setting has a value of its own that was given. */
static bool is_given(const dh_job *job, const dh_setting *s)
{
    const dh_job_derived *d = &job->derived;
    const struct {
        const int64_t *value, *derived;
    } list[] = {{&job->ranks, &d->ranks},
                {&job->dp, &d->dp},
                {&job->nodes, &d->nodes},
                {&job->ranks_per_node, &d->ranks_per_node},
                {&job->micro_batch, &d->micro_batch},
                {&job->seq_len, &d->seq_len}};
    for (size_t i = 0; i < DH_COUNTOF(list); i++)
        if ((const char *)job + s->offset == (const char *)list[i].value)
            return *list[i].value != *list[i].derived;
    return true;
}

static bool is_same(const dh_job *a, const dh_job *b, const dh_setting *s)
{
    dh_str one = DH_STR_INIT, other = DH_STR_INIT;
    dh_setting_text(a, s, &one);
    dh_setting_text(b, s, &other);
    const bool same = strcmp(one.text ? one.text : "", other.text ? other.text : "") == 0;
    dh_str_fini(&one);
    dh_str_fini(&other);
    return same;
}

/* ---- printing ------------------------------------------------------------------------------ */

typedef struct printer {
    const dh_job *job;  /* as it is */
    dh_job *copy;       /* the same, with its paths from the file's folder */
    dh_job *plain;      /* defaults, and the model's source */
    const char *source; /* the model's: a path from the folder, or a preset; NULL: none */
    bool from_path;
    const char *before; /* key printed last */
    dh_str out;
} printer;

static void print_setting(printer *p, const dh_setting *s)
{
    const char *last = dh_setting_last_part(s->key);
    const int depth = dh_job_open_sections(s->key, p->before, &p->out);
    dh_str_printf(&p->out, "%*s%s: ", 2 * depth, "", last);
    if (s->type == DH_SET_MODEL)
        dh_str_printf(&p->out, "\"%s\"", p->source);
    else
        dh_setting_print(p->copy, s, &p->out);
    dh_str_append(&p->out, "\n", 1);
    p->before = s->key;
}

static bool is_wanted(const printer *p, const dh_setting *s)
{
    if (s->type == DH_SET_MODEL)
        return p->source && strcmp(s->key, p->from_path ? "model.config" : "model.preset") == 0;
    if (!dh_job_is_printed(p->job, s) || !is_given(p->job, s)) return false;
    if (!p->source && strcmp(s->key, "model.family") == 0) return true;
    return !is_same(p->copy, p->plain, s);
}

static dh_status prepare(dh_ctx *ctx, const char *dir, printer *p)
{
    char cwd[PATH_MAX], *text = NULL;
    const bool timed = dh_job_has_stage_times(p->job);
    if (!getcwd(cwd, sizeof cwd))
        return dh_fail(ctx, DH_EIO, "the path of the working folder cannot be found");
    DH_TRY(dh_job_create(ctx, &p->plain));
    DH_TRY(dh_job_anchor_paths(ctx, p->plain, cwd));
    if (!timed) DH_TRY(read_model(ctx, p->job, &p->from_path, &p->plain->model));
    DH_TRY(dh_job_print(ctx, p->job, &text));
    const dh_status st = dh_job_parse(ctx, text, strlen(text), "the job", NULL, NULL, 0, &p->copy);
    free(text);
    DH_TRY(st);
    DH_TRY(dh_job_anchor_paths(ctx, p->copy, cwd));
    if (!timed && p->job->model_spec && *p->job->model_spec) {
        p->source = p->from_path ? dh_job_path_from(p->copy->arena, dir, p->job->model_spec)
                                 : p->job->model_spec;
        if (!p->source) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* Settings are compared with whole paths, and printed with those from the folder. */
static dh_status print_wanted(dh_ctx *ctx, const char *dir, printer *p)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    bool *wanted = DH_NEW_N(p->copy->arena, bool, n);
    if (!wanted) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) wanted[i] = is_wanted(p, &settings[i]);
    DH_TRY(dh_job_relate_paths(ctx, p->copy, dir));
    for (size_t i = 0; i < n; i++)
        if (wanted[i]) print_setting(p, &settings[i]);
    return p->out.failed || !p->out.text ? dh_no_memory(ctx) : DH_OK;
}

/* Without links and "..", as "../" from it needs. */
static dh_status folder_of(dh_ctx *ctx, const char *file, char dir[PATH_MAX])
{
    const char *slash = strrchr(file, '/');
    char *name = slash ? strndup(file, DH_MAX((size_t)(slash - file), (size_t)1)) : strdup(".");
    if (!name) return dh_no_memory(ctx);
    const bool found = realpath(name, dir) != NULL;
    free(name);
    return found ? DH_OK : dh_fail(ctx, DH_EIO, "%s: its folder is not there", file);
}

dh_status dh_job_print_changes(dh_ctx *ctx, const dh_job *job, const char *file, char **text)
{
    char dir[PATH_MAX];
    printer p = {.job = job, .before = ""};
    DH_TRY(folder_of(ctx, file, dir));
    dh_status st = prepare(ctx, dir, &p);
    if (st == DH_OK) st = print_wanted(ctx, dir, &p);
    dh_job_destroy(p.copy);
    dh_job_destroy(p.plain);
    if (st == DH_OK)
        *text = p.out.text;
    else
        dh_str_fini(&p.out);
    return st;
}
