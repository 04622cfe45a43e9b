/* The settings table for people: the effective job as YAML, and the help text. */
#include "base/base.h"
#include "base/needs.h"
#include "settings.h"

#include <stdio.h>
#include <string.h>

/* ---- YAML ----------------------------------------------------------------------------- */

/* Open the sections of `key` that differ from those of the key before;
 * returns the depth of its last part. */
int dh_job_open_sections(const char *key, const char *before, dh_str *out)
{
    int depth = 0;
    bool same = true;
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1, depth++) {
        size_t n = (size_t)(dot - key) + 1;
        same = same && strncmp(key, before, n) == 0;
        if (same)
            before += n;
        else
            dh_str_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(n - 1), key);
    }
    return depth;
}

bool dh_job_is_printed(const dh_job *job, const dh_setting *s)
{
    if (s->type == DH_SET_MODEL) return false; /* the model is spelled out */
    if (dh_job_has_stage_times(job) && dh_setting_in_model(s)) return false;
    return !s->families || s->families >> job->model.family & 1u;
}

dh_status dh_job_print(dh_ctx *ctx, const dh_job *job, char **text)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, text);
    dh_str out = DH_STR_INIT;
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    const char *before = "";
    for (size_t i = 0; i < n; i++) {
        const dh_setting *s = &settings[i];
        if (!dh_job_is_printed(job, s)) continue;
        int depth = dh_job_open_sections(s->key, before, &out);
        const char *last = strrchr(s->key, '.');
        dh_str_printf(&out, "%*s%s: ", 2 * depth, "", last ? last + 1 : s->key);
        dh_setting_print(job, s, &out);
        dh_str_append(&out, "\n", 1);
        before = s->key;
    }
    if (out.failed) {
        dh_str_fini(&out);
        return dh_no_memory(ctx);
    }
    *text = out.text;
    return DH_OK;
}

dh_status dh_job_print_common(dh_ctx *ctx, const dh_job *job, dh_str *out)
{
    DH_NEEDS(ctx, job);
    DH_NEEDS(ctx, out);
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        if (settings[i].own || !dh_job_is_printed(job, &settings[i])) continue;
        dh_str_printf(out, "%s: ", settings[i].key);
        dh_setting_print(job, &settings[i], out);
        dh_str_append(out, "\n", 1);
    }
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}

/* ---- help ------------------------------------------------------------------------------- */

/* "whole number, 1 or more; default: 1000" */
static void describe_values(const dh_setting *s, dh_str *out)
{
    dh_setting_describe(s, out);
    if (s->fallback)
        dh_str_printf(out, "; default: %s", *s->fallback ? s->fallback : "none");
    else if (s->type != DH_SET_MODEL)
        dh_str_printf(out, "; default: the model's");
}

static void describe_meaning(const dh_setting *s, dh_str *out)
{
    dh_str_printf(out, "%s", s->help);
    if (s->automatic) dh_str_printf(out, " (auto: %s)", s->automatic);
    if (s->zero) dh_str_printf(out, " (0: %s)", s->zero);
}

/* Key, then meaning and values behind it; on lines of their own where the key is long. */
static void help_row(const dh_setting *s, int width, dh_str *out)
{
    enum { COLUMN = 30 };
    dh_str values = DH_STR_INIT, meaning = DH_STR_INIT;
    describe_meaning(s, &meaning);
    describe_values(s, &values);
    dh_str_printf(out, "  %-*s", COLUMN - 2, s->key);
    if (strlen(s->key) >= COLUMN - 2) dh_str_printf(out, "\n%*s", COLUMN, "");
    dh_str_wrap(out, meaning.text ? meaning.text : "", COLUMN, width);
    dh_str_printf(out, "%*s", COLUMN, "");
    dh_str_wrap(out, values.text ? values.text : "", COLUMN, width);
    out->failed |= values.failed || meaning.failed;
    dh_str_fini(&values);
    dh_str_fini(&meaning);
}

/* All there is to know of one setting, and how it is set. */
static void help_one(const dh_setting *s, int width, dh_str *out)
{
    enum { COLUMN = 10 };
    dh_str text = DH_STR_INIT;
    const char *dot = strchr(s->key, '.');
    dh_str_printf(&text, "%s: ", s->key);
    describe_meaning(s, &text);
    dh_str_wrap(out, text.text ? text.text : "", 4, width - 4);
    dh_str_clear(&text);
    describe_values(s, &text);
    dh_str_printf(out, "\nvalues    ");
    dh_str_wrap(out, text.text ? text.text : "", COLUMN, width);
    out->failed |= text.failed;
    dh_str_fini(&text);
    if (s->aliases) dh_str_printf(out, "also      %s\n", s->aliases);
    dh_str_printf(out, "to set    --set %s=VALUE, or in the job file\n", s->key);
    if (dot)
        dh_str_printf(out, "            %.*s:\n              %s: VALUE\n", (int)(dot - s->key),
                      s->key, dot + 1);
    else
        dh_str_printf(out, "            %s: VALUE\n", s->key);
}

/* Does a section begin here, after the setting `before`? */
static bool begins_section(const char *key, const char *before)
{
    size_t n = strcspn(key, ".");
    bool same = strncmp(key, before, n) == 0 && strcspn(before, ".") == n;
    char section[32];
    snprintf(section, sizeof section, "%.*s", (int)n, key);
    return !same && dh_setting_is_section(section);
}

/* Is the setting meant by the name: its own, its section's with or without a dot, or NULL? */
static bool is_meant(const char *key, const char *name)
{
    const size_t n = name ? strlen(name) : 0;
    if (!name) return true;
    if (n == 0 || strncmp(key, name, n) != 0) return false;
    return key[n] == '\0' || key[n] == '.' || name[n - 1] == '.';
}

size_t dh_job_help(const char *name, int width, dh_str *out)
{
    size_t n, n_shown = 0;
    const dh_setting *settings = dh_settings(&n);
    const dh_setting *one = name ? dh_setting_find(name) : NULL;
    if (one) {
        help_one(one, width, out);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_meant(settings[i].key, name)) continue;
        if (n_shown++ && begins_section(settings[i].key, settings[i - 1].key))
            dh_str_append(out, "\n", 1);
        help_row(&settings[i], width, out);
    }
    return n_shown;
}
