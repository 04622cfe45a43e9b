/* Settings that are lists of numbers, kept as text. */
#include "base/base.h"
#include "settings.h"

#include <stdio.h>
#include <string.h>

/* An entry as it is kept; false: it is none of its list. */
static bool keep_entry(const dh_setting *s, const char *entry, dh_str *list)
{
    int64_t value;
    double real;
    const char *comma = list->len ? "," : "";
    if (s->type == DH_SET_REALS) {
        if (!dh_setting_real(entry, &real) || !(real > 0)) return false;
        dh_str_printf(list, "%s%s", comma, entry);
        return true;
    }
    if (s->type == DH_SET_SPLIT && strcmp(entry, "*") == 0) {
        dh_str_printf(list, "%s*", comma);
        return true;
    }
    if (!dh_setting_whole(entry, &value) || (value < 0 && s->type != DH_SET_SPLIT)) return false;
    dh_str_printf(list, "%s%lld", comma, (long long)value);
    return true;
}

static dh_status keep_entries(dh_ctx *ctx, const dh_assignment *v, const char *text, dh_str *list)
{
    for (const char *p = text; *p;) {
        const size_t len = strcspn(p, ",");
        char entry[32];
        snprintf(entry, sizeof entry, "%.*s", (int)DH_MIN(len, sizeof entry - 1),
                 p + strspn(p, " "));
        entry[strcspn(entry, ", ")] = '\0';
        if (!keep_entry(v->setting, entry, list))
            return dh_setting_reject(
                ctx, v, text, v->setting->type == DH_SET_REALS ? ", as 1.5,2" : ", as 3,4,4,3");
        p += len;
        if (*p) p++;
    }
    return DH_OK;
}

/* A sequence [3, 4], or the text "3,4", normalized to the latter. */
dh_status dh_setting_store_numbers(dh_ctx *ctx, dh_job *job, const dh_assignment *v,
                                   const char *base_dir)
{
    dh_str text = DH_STR_INIT, list = DH_STR_INIT;
    for (size_t i = 0; i < v->n; i++) dh_str_printf(&text, "%s%s", i ? "," : "", v->items[i]);
    dh_str_printf(&list, "%s", "");
    const bool open = v->setting->automatic && text.text && strcmp(text.text, "auto") == 0;
    if (open) dh_str_printf(&list, "auto");
    dh_status st = text.text && !open ? keep_entries(ctx, v, text.text, &list) : DH_OK;
    char *copy =
        st == DH_OK && !list.failed && list.text ? dh_arena_strdup(job->arena, list.text) : NULL;
    if (st == DH_OK && !copy) st = dh_no_memory(ctx);
    if (st == DH_OK) memcpy((char *)job + v->setting->offset, &copy, sizeof copy);
    dh_str_fini(&text);
    dh_str_fini(&list);
    return st;
}

/* ---- factors of longrope -------------------------------------------------------------------- */

static dh_status add_factor(dh_ctx *ctx, const dh_assignment *v, const char *text, size_t n,
                            dh_rope_factors *f)
{
    char entry[40];
    size_t end = n, begin = 0;
    while (begin < end && text[begin] == ' ') begin++;
    while (end > begin && text[end - 1] == ' ') end--;
    snprintf(entry, sizeof entry, "%.*s", (int)DH_MIN(end - begin, sizeof entry - 1), text + begin);
    if (end - begin >= sizeof entry) return dh_setting_reject(ctx, v, entry, ", as 1.5,2");
    if (f->n == DH_ROPE_MAX_PAIRS)
        return dh_fail(ctx, DH_EINVAL, "%s: there are more than %d numbers", v->where,
                       DH_ROPE_MAX_PAIRS);
    if (!dh_setting_real(entry, &f->at[f->n]) || !(f->at[f->n] > 0))
        return dh_setting_reject(ctx, v, entry, ", as 1.5,2");
    f->n++;
    return DH_OK;
}

dh_status dh_setting_store_factors(dh_ctx *ctx, dh_job *job, const dh_assignment *v,
                                   const char *base_dir)
{
    dh_rope_factors f = {0};
    for (size_t i = 0; i < v->n; i++)
        for (const char *p = v->items[i]; *p; p += *p == ',') {
            const size_t n = strcspn(p, ",");
            DH_TRY(add_factor(ctx, v, p, n, &f));
            p += n;
        }
    memcpy((char *)job + v->setting->offset, &f, sizeof f);
    return DH_OK;
}

void dh_setting_write_factors(const dh_job *job, const dh_setting *s, dh_str *out)
{
    dh_rope_factors f;
    memcpy(&f, (const char *)job + s->offset, sizeof f);
    for (int64_t i = 0; i < f.n; i++) {
        if (i) dh_str_printf(out, ",");
        dh_setting_write_real(f.at[i], out);
    }
}
