/* The settings table for people: the effective job as YAML, and the help text. */
#include "settings.h"

#include <stdio.h>
#include <string.h>

/* ---- YAML ----------------------------------------------------------------------------- */

/* Open the sections of `key` that differ from those of the key before;
 * returns the depth of its last part. */
static int open_sections(const char *key, const char *before, dh_str *out)
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

static bool is_printed(const dh_job *job, const dh_setting *s)
{
    if (s->type == DH_SET_MODEL) return false; /* the model is spelled out */
    return !s->families || s->families >> job->model.family & 1u;
}

dh_status dh_job_print(dh_ctx *ctx, const dh_job *job, char **text)
{
    dh_str out = DH_STR_INIT;
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    const char *before = "";
    for (size_t i = 0; i < n; i++) {
        const dh_setting *s = &settings[i];
        if (!is_printed(job, s)) continue;
        int depth = open_sections(s->key, before, &out);
        const char *last = strrchr(s->key, '.');
        dh_str_printf(&out, "%*s%s: ", 2 * depth, "", last ? last + 1 : s->key);
        dh_setting_print(job, s, &out);
        dh_str_append(&out, "\n", 1);
        before = s->key;
    }
    if (out.failed) {
        dh_str_fini(&out);
        return dh_fail(ctx, DH_ENOMEM, "out of memory printing the job");
    }
    *text = out.text;
    return DH_OK;
}

dh_status dh_job_print_common(dh_ctx *ctx, const dh_job *job, dh_str *out)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    for (size_t i = 0; i < n; i++) {
        if (settings[i].own || !is_printed(job, &settings[i])) continue;
        dh_str_printf(out, "%s: ", settings[i].key);
        dh_setting_print(job, &settings[i], out);
        dh_str_append(out, "\n", 1);
    }
    return out->failed ? dh_fail(ctx, DH_ENOMEM, "out of memory printing the job") : DH_OK;
}

/* ---- help ------------------------------------------------------------------------------- */

static void describe_default(const dh_setting *s, dh_str *out)
{
    if (!s->fallback)
        dh_str_printf(out, "%s", s->type == DH_SET_MODEL ? "" : "the model's");
    else if (!*s->fallback)
        dh_str_printf(out, "none");
    else
        dh_str_printf(out, "%s", s->fallback);
}

static void help_row(const dh_setting *s, dh_str *out)
{
    dh_str type = DH_STR_INIT, def = DH_STR_INIT;
    dh_setting_describe(s, &type);
    describe_default(s, &def);
    dh_str_printf(out, "  %-29s %-38s %-12s %s", s->key, type.text ? type.text : "",
                  def.text ? def.text : "", s->help);
    if (s->automatic) dh_str_printf(out, " (auto: %s)", s->automatic);
    if (s->zero) dh_str_printf(out, " (0: %s)", s->zero);
    dh_str_append(out, "\n", 1);
    dh_str_fini(&type);
    dh_str_fini(&def);
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

void dh_job_help(dh_str *out)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    dh_str_printf(out, "  %-29s %-38s %-12s %s\n", "setting", "value", "default", "meaning");
    for (size_t i = 0; i < n; i++) {
        if (i && begins_section(settings[i].key, settings[i - 1].key)) dh_str_append(out, "\n", 1);
        help_row(&settings[i], out);
    }
}
