/* One setting's value: text to dh_job field and back. A row per type in
 * type_rows; nothing else knows how a type is stored. */
#include "base/base.h"
#include "base/c_locale.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES sizeof(((dh_model *)0)->name)
#define LIST_MAX 100000

static void *field(dh_job *job, const dh_setting *s)
{
    return (char *)job + s->offset;
}

static const void *const_field(const dh_job *job, const dh_setting *s)
{
    return (const char *)job + s->offset;
}

/* ---- what is right ---------------------------------------------------------------- */

static const char *const type_texts[DH_N_SETTING_TYPES] = {
    [DH_SET_INT] = "whole number",
    [DH_SET_FLOAT] = "number",
    [DH_SET_BOOL] = "true or false",
    [DH_SET_ENUM] = "one of",
    [DH_SET_ENUM_OR_INT] = "one of",
    [DH_SET_STRING] = "text",
    [DH_SET_CHARS] = "text",
    [DH_SET_NAMES] = "names, or a list of them",
    [DH_SET_FLOW] = "text or mapping",
    [DH_SET_INTS] = "whole numbers",
    [DH_SET_SPLIT] = "whole numbers, or * once for all that are not listed",
    [DH_SET_REALS] = "numbers above 0",
    [DH_SET_FACTORS] = "numbers above 0",
    [DH_SET_ENTRIES] = "text or list",
    [DH_SET_PATH] = "path",
    [DH_SET_PATHS] = "path or list",
    [DH_SET_NAME_OR_PATH] = "name or path",
    [DH_SET_MODEL] = "preset or path",
};

void dh_setting_describe(const dh_setting *s, dh_str *out)
{
    dh_str_printf(out, "%s", type_texts[s->type]);
    if (dh_setting_has_names(s))
        for (size_t i = 0; s->names[i]; i++)
            dh_str_printf(out, "%s%s", i ? ", " : " ", s->names[i]);
    if (s->type == DH_SET_ENUM_OR_INT) dh_str_printf(out, "; or a whole number");
    if (s->type != DH_SET_INT && s->type != DH_SET_FLOAT && s->type != DH_SET_ENUM_OR_INT) return;
    if (s->max < 1e9)
        dh_str_printf(out, ", %.10g to %.10g", s->min, s->max);
    else
        dh_str_printf(out, ", %.10g or more", s->min);
    if (s->unit) dh_str_printf(out, ", %s", s->unit);
}

dh_status dh_setting_reject(dh_ctx *ctx, const dh_assignment *v, const char *text,
                            const char *extra)
{
    dh_str want = DH_STR_INIT;
    dh_setting_describe(v->setting, &want);
    if (v->setting->automatic) dh_str_printf(&want, ", or auto");
    dh_fail(ctx, DH_EINVAL, "%s: \"%.60s\" is not valid; it must be: %s%s", v->where, text,
            want.text ? want.text : "?", extra);
    dh_str_fini(&want);
    return DH_EINVAL;
}

/* ---- numbers ------------------------------------------------------------------------- */

/* Copy without the underscores between digits; false when a character is none of
 * `allowed` (so no inf, nan, hexadecimal or blanks reach the parsers). */
static bool plain_number(const char *text, const char *allowed, char *out, size_t cap)
{
    static const char digits[] = "0123456789";
    size_t n = 0;
    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '_') {
            bool between =
                i && strchr(digits, text[i - 1]) && text[i + 1] && strchr(digits, text[i + 1]);
            if (!between) return false;
            continue;
        }
        if ((!strchr(digits, text[i]) && !strchr(allowed, text[i])) || n + 1 >= cap) return false;
        out[n++] = text[i];
    }
    out[n] = '\0';
    return n > 0;
}

bool dh_setting_real(const char *text, double *value)
{
    char number[64];
    return plain_number(text, "+-.eE", number, sizeof number) && dh_parse_f64(number, value) &&
           isfinite(*value);
}

bool dh_setting_whole(const char *text, int64_t *value)
{
    char number[64];
    return plain_number(text, "+-", number, sizeof number) && dh_parse_i64(number, value);
}

static bool is_auto(const dh_assignment *v)
{
    return v->setting->automatic && strcmp(v->items[0], "auto") == 0;
}

static dh_status store_int(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    const dh_setting *s = v->setting;
    int64_t value = 0;
    if (!is_auto(v) && !dh_setting_whole(v->items[0], &value)) {
        double real;
        char hint[64] = "";
        if (dh_setting_real(v->items[0], &real) && real == floor(real) && fabs(real) < 1e15)
            dh_snprintf(hint, sizeof hint, " (write %.0f)", real);
        return dh_setting_reject(ctx, v, v->items[0], hint);
    }
    if (!is_auto(v) && ((double)value < s->min || (double)value > s->max))
        return dh_setting_reject(ctx, v, v->items[0], "");
    memcpy(field(job, s), &value, sizeof value);
    return DH_OK;
}

static dh_status store_float(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    const dh_setting *s = v->setting;
    double value = 0;
    if (!is_auto(v) && (!dh_setting_real(v->items[0], &value) || value < s->min || value > s->max))
        return dh_setting_reject(ctx, v, v->items[0], "");
    memcpy(field(job, s), &value, sizeof value);
    return DH_OK;
}

static void print_int(const dh_job *job, const dh_setting *s, dh_str *out)
{
    int64_t value;
    memcpy(&value, const_field(job, s), sizeof value);
    if (s->automatic && value == 0)
        dh_str_printf(out, "auto");
    else
        dh_str_printf(out, "%lld", (long long)value);
}

void dh_setting_write_real(double value, dh_str *out)
{
    double again;
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        dh_snprintf(text, sizeof text, "%.*g", digits, value);
        if (dh_parse_f64(text, &again) && again == value) break;
    }
    dh_str_printf(out, "%s", text);
}

static void print_float(const dh_job *job, const dh_setting *s, dh_str *out)
{
    double value;
    memcpy(&value, const_field(job, s), sizeof value);
    if (s->automatic && value == 0)
        dh_str_printf(out, "auto");
    else
        dh_setting_write_real(value, out);
}

/* ---- words -------------------------------------------------------------------------------- */

static dh_status store_bool(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"true", true}, {"false", false}, {"yes", true},
                 {"no", false},  {"on", true},     {"off", false}};
    for (size_t i = 0; i < DH_COUNTOF(words); i++)
        if (strcmp(v->items[0], words[i].word) == 0) {
            memcpy(field(job, v->setting), &words[i].value, sizeof words[i].value);
            return DH_OK;
        }
    return dh_setting_reject(ctx, v, v->items[0], "");
}

static void print_bool(const dh_job *job, const dh_setting *s, dh_str *out)
{
    bool value;
    memcpy(&value, const_field(job, s), sizeof value);
    dh_str_printf(out, value ? "true" : "false");
}

/* Index of the name a value is; false: it is none. */
static bool find_name(const dh_assignment *v, unsigned *index)
{
    const char *const *names = v->setting->names;
    for (*index = 0; names[*index]; ++*index)
        if (strcmp(v->items[0], names[*index]) == 0) return true;
    return false;
}

static dh_status reject_name(dh_ctx *ctx, const dh_assignment *v)
{
    size_t n = 0;
    char hint[80] = "";
    while (v->setting->names[n]) n++;
    const char *near = dh_nearest(v->items[0], v->setting->names, n);
    if (near) snprintf(hint, sizeof hint, "; did you mean %s?", near);
    char key[80]; /* a setting of the same section: train.fp8 beside train.dtype */
    snprintf(key, sizeof key, "%.*s.%s", (int)strcspn(v->setting->key, "."), v->setting->key,
             v->items[0]);
    const char *here = dh_foreign_value(v->setting->key, v->items[0]);
    if (here)
        snprintf(hint, sizeof hint, "; here: %s", here);
    else if (dh_setting_find(key))
        snprintf(hint, sizeof hint, "; see %s", key);
    return dh_setting_reject(ctx, v, v->items[0], hint);
}

static dh_status store_enum(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    unsigned index;
    if (!find_name(v, &index)) return reject_name(ctx, v);
    memcpy(field(job, v->setting), &index, sizeof index); /* enumerations are unsigned here */
    return DH_OK;
}

static dh_status store_enum_or_int(dh_ctx *ctx, dh_job *job, const dh_assignment *v,
                                   const char *base_dir)
{
    const dh_setting *s = v->setting;
    unsigned index;
    int64_t value;
    if (find_name(v, &index)) {
        value = -(int64_t)index;
        memcpy(field(job, s), &value, sizeof value);
        return DH_OK;
    }
    if (!dh_setting_whole(v->items[0], &value)) return reject_name(ctx, v);
    return store_int(ctx, job, v, base_dir);
}

static void print_enum_or_int(const dh_job *job, const dh_setting *s, dh_str *out)
{
    int64_t value;
    memcpy(&value, const_field(job, s), sizeof value);
    if (value <= 0)
        dh_str_printf(out, "%s", s->names[-value]);
    else
        dh_str_printf(out, "%lld", (long long)value);
}

static void print_enum(const dh_job *job, const dh_setting *s, dh_str *out)
{
    unsigned value;
    memcpy(&value, const_field(job, s), sizeof value);
    unsigned n = 0;
    while (s->names[n]) n++;
    DH_CHECK(value < n, "%s holds %u", s->key, value);
    dh_str_printf(out, "%s", s->names[value]);
}

/* ---- text and paths ------------------------------------------------------------------------- */

/* YAML double-quoted: any text comes back as it was. Line breaks of Unicode (U+0085, U+2028,
 * U+2029) would be folded to blanks. */
static void print_quoted(const char *text, dh_str *out)
{
    uint32_t code;
    dh_str_append(out, "\"", 1);
    for (const char *p = text; *p; p++) {
        const size_t n = dh_control_at(p, &code);
        if (*p == '"' || *p == '\\')
            dh_str_printf(out, "\\%c", *p);
        else if (*p == '\n' || *p == '\t' || n == 1)
            dh_str_printf(out, "\\x%02x", (unsigned char)*p);
        else if (n > 1)
            dh_str_printf(out, "\\u%04x", code);
        else
            dh_str_append(out, p, 1);
        if (n > 1) p += n - 1;
    }
    dh_str_append(out, "\"", 1);
}

static void set_text(dh_job *job, const dh_setting *s, char *text)
{
    memcpy(field(job, s), &text, sizeof text);
}

static char *get_text(const dh_job *job, const dh_setting *s)
{
    char *text;
    memcpy(&text, const_field(job, s), sizeof text);
    return text;
}

static dh_status store_text(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    char *copy = dh_arena_strdup(job->arena, v->items[0]);
    if (!copy) return dh_no_memory(ctx);
    set_text(job, v->setting, copy);
    return DH_OK;
}

static dh_status store_entries(dh_ctx *ctx, dh_job *job, const dh_assignment *v,
                               const char *base_dir)
{
    dh_str all = DH_STR_INIT;
    dh_str_printf(&all, "%s", "");
    for (size_t i = 0; i < v->n; i++) dh_str_printf(&all, "%s%s", i ? "; " : "", v->items[i]);
    char *copy = all.failed ? NULL : dh_arena_strdup(job->arena, all.text);
    dh_str_fini(&all);
    if (!copy) return dh_no_memory(ctx);
    set_text(job, v->setting, copy);
    return DH_OK;
}

static void print_text(const dh_job *job, const dh_setting *s, dh_str *out)
{
    const char *text = get_text(job, s);
    print_quoted(text ? text : "", out);
}

static dh_status store_chars(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    size_t n = strlen(v->items[0]);
    if (n >= NAME_BYTES)
        return dh_fail(ctx, DH_EINVAL, "%s: the text has %zu bytes; at most %zu fit", v->where, n,
                       NAME_BYTES - 1);
    memset(field(job, v->setting), 0, NAME_BYTES);
    memcpy(field(job, v->setting), v->items[0], n);
    return DH_OK;
}

/* A sequence [a, b], or the text "a,b". */
static dh_status store_names(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    dh_str text = DH_STR_INIT;
    for (size_t i = 0; i < v->n; i++) dh_str_printf(&text, "%s%s", i ? "," : "", v->items[i]);
    dh_str_printf(&text, "%s", "");
    char *all = text.failed || !text.text ? "" : text.text;
    dh_assignment one = *v;
    one.items = &all;
    dh_status st = text.failed ? dh_no_memory(ctx) : store_chars(ctx, job, &one, base_dir);
    dh_str_fini(&text);
    return st;
}

static void print_factors(const dh_job *job, const dh_setting *s, dh_str *out)
{
    dh_str_printf(out, "\"");
    dh_setting_write_factors(job, s, out);
    dh_str_printf(out, "\"");
}

static void print_chars(const dh_job *job, const dh_setting *s, dh_str *out)
{
    print_quoted(const_field(job, s), out);
}

char *dh_job_join_path(dh_job *job, const char *base_dir, const char *path)
{
    if (!base_dir || !*base_dir || *path == '/') return dh_arena_strdup(job->arena, path);
    size_t n = strlen(base_dir);
    return dh_arena_printf(job->arena, base_dir[n - 1] == '/' ? "%s%s" : "%s/%s", base_dir, path);
}

static dh_status store_path(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    char *path = NULL;
    if (*v->items[0] && !(path = dh_job_join_path(job, base_dir, v->items[0])))
        return dh_no_memory(ctx);
    set_text(job, v->setting, path);
    return DH_OK;
}

static bool looks_like_path(const char *text)
{
    return strpbrk(text, "/.") != NULL;
}

static dh_status store_name_or_path(dh_ctx *ctx, dh_job *job, const dh_assignment *v,
                                    const char *base_dir)
{
    if (!*v->items[0]) return dh_setting_reject(ctx, v, "", "");
    return looks_like_path(v->items[0]) ? store_path(ctx, job, v, base_dir)
                                        : store_text(ctx, job, v, base_dir);
}

static void set_list(dh_job *job, const dh_setting *s, char **items, size_t n)
{
    memcpy(field(job, s), &items, sizeof items);
    memcpy((char *)job + s->offset_n, &n, sizeof n);
}

static char **get_list(const dh_job *job, const dh_setting *s, size_t *n)
{
    char **items;
    memcpy(&items, const_field(job, s), sizeof items);
    memcpy(n, (const char *)job + s->offset_n, sizeof *n);
    return items;
}

static dh_status store_paths(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    size_t n = v->is_list || *v->items[0] ? v->n : 0;
    char **items = DH_NEW_N(job->arena, char *, n + 1);
    if (!items) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) {
        if (!*v->items[i])
            return dh_fail(ctx, DH_EINVAL, "%s: entry %zu is empty; it must be a path", v->where,
                           i + 1);
        if (!(items[i] = dh_job_join_path(job, base_dir, v->items[i]))) return dh_no_memory(ctx);
    }
    set_list(job, v->setting, items, n);
    return DH_OK;
}

static void print_paths(const dh_job *job, const dh_setting *s, dh_str *out)
{
    size_t n;
    char **items = get_list(job, s, &n);
    dh_str_printf(out, "[");
    for (size_t i = 0; i < n; i++) {
        if (i) dh_str_printf(out, ", ");
        print_quoted(items[i], out);
    }
    dh_str_printf(out, "]");
}

/* ---- dispatch ------------------------------------------------------------------------------- */

static const struct type_row {
    bool list; /* takes a YAML sequence */
    dh_status (*store)(dh_ctx *, dh_job *, const dh_assignment *, const char *base_dir);
    void (*print)(const dh_job *, const dh_setting *, dh_str *);
} type_rows[DH_N_SETTING_TYPES] = {
    [DH_SET_INT] = {false, store_int, print_int},
    [DH_SET_FLOAT] = {false, store_float, print_float},
    [DH_SET_BOOL] = {false, store_bool, print_bool},
    [DH_SET_ENUM] = {false, store_enum, print_enum},
    [DH_SET_ENUM_OR_INT] = {false, store_enum_or_int, print_enum_or_int},
    [DH_SET_STRING] = {false, store_text, print_text},
    [DH_SET_FLOW] = {false, store_text, print_text},
    [DH_SET_CHARS] = {false, store_chars, print_chars},
    [DH_SET_NAMES] = {true, store_names, print_chars},
    [DH_SET_INTS] = {true, dh_setting_store_numbers, print_text},
    [DH_SET_SPLIT] = {true, dh_setting_store_numbers, print_text},
    [DH_SET_REALS] = {true, dh_setting_store_numbers, print_text},
    [DH_SET_FACTORS] = {true, dh_setting_store_factors, print_factors},
    [DH_SET_ENTRIES] = {true, store_entries, print_text},
    [DH_SET_PATH] = {false, store_path, print_text},
    [DH_SET_PATHS] = {true, store_paths, print_paths},
    [DH_SET_NAME_OR_PATH] = {false, store_name_or_path, print_text},
    [DH_SET_MODEL] = {false, store_text, print_text},
};

/* A job's values appear in job.yaml, summary.json, plans and reports, all of which are UTF-8. */
static dh_status check_utf8(dh_ctx *ctx, const dh_assignment *v, const char *base_dir)
{
    size_t at;
    for (size_t i = 0; i < v->n; i++)
        if (!dh_json_can_hold(v->items[i], &at))
            return dh_fail(ctx, DH_EINVAL, "%s: the value is not UTF-8 (byte %zu)", v->where,
                           at + 1);
    if (base_dir && !dh_json_can_hold(base_dir, &at))
        return dh_fail(ctx, DH_EINVAL,
                       "%s: the job's folder has a name that is not UTF-8 (byte %zu)", v->where,
                       at + 1);
    return DH_OK;
}

dh_status dh_setting_store(dh_ctx *ctx, dh_job *job, const dh_assignment *v, const char *base_dir)
{
    const struct type_row *row = &type_rows[v->setting->type];
    if (v->is_list && !row->list) return dh_setting_reject(ctx, v, "[...]", ", not a list");
    if (v->n > LIST_MAX)
        return dh_fail(ctx, DH_EINVAL, "%s: %zu entries; at most %d are allowed", v->where, v->n,
                       LIST_MAX);
    DH_TRY(check_utf8(ctx, v, base_dir));
    return row->store(ctx, job, v, base_dir);
}

dh_status dh_setting_store_default(dh_ctx *ctx, dh_job *job, const dh_setting *s)
{
    if (!s->fallback) return DH_OK;
    char *text = dh_arena_strdup(job->arena, s->fallback);
    if (!text) return dh_no_memory(ctx);
    dh_assignment value = {.setting = s, .where = s->key, .items = &text, .n = 1};
    return dh_setting_store(ctx, job, &value, NULL);
}

void dh_setting_print(const dh_job *job, const dh_setting *s, dh_str *out)
{
    type_rows[s->type].print(job, s, out);
}

void dh_setting_text(const dh_job *job, const dh_setting *s, dh_str *out)
{
    const char *text =
        s->type == DH_SET_CHARS || s->type == DH_SET_NAMES ? const_field(job, s) : NULL;
    if (type_rows[s->type].print == print_text)
        text = get_text(job, s);
    else if (s->type == DH_SET_FACTORS)
        dh_setting_write_factors(job, s, out);
    else if (!text)
        dh_setting_print(job, s, out);
    dh_str_printf(out, "%s", text ? text : "");
}

/* ---- anchoring ------------------------------------------------------------------------------ */

/* Changes every path of the job. change: NULL when out of memory */
static dh_status change_paths(dh_ctx *ctx, dh_job *job, const char *dir,
                              char *(*change)(dh_job *job, const char *dir, const char *path))
{
    size_t n_settings;
    const dh_setting *settings = dh_settings(&n_settings);
    for (size_t i = 0; i < n_settings; i++) {
        const dh_setting *s = &settings[i];
        if (s->type == DH_SET_PATHS) {
            size_t n;
            char **items = get_list(job, s, &n);
            for (size_t k = 0; k < n; k++)
                if (!(items[k] = change(job, dir, items[k]))) return dh_no_memory(ctx);
            continue;
        }
        char *text =
            s->type == DH_SET_PATH || s->type == DH_SET_NAME_OR_PATH ? get_text(job, s) : NULL;
        if (!text || (s->type == DH_SET_NAME_OR_PATH && !looks_like_path(text))) continue;
        char *changed = change(job, dir, text);
        if (!changed) return dh_no_memory(ctx);
        set_text(job, s, changed);
    }
    return DH_OK;
}

dh_status dh_job_anchor_paths(dh_ctx *ctx, dh_job *job, const char *dir)
{
    return change_paths(ctx, job, dir, dh_job_join_path);
}

static char *path_from(dh_job *job, const char *dir, const char *path)
{
    return dh_job_path_from(job->arena, dir, path);
}

dh_status dh_job_relate_paths(dh_ctx *ctx, dh_job *job, const char *dir)
{
    return change_paths(ctx, job, dir, path_from);
}
