/* Import: every flag finds its row, then the project's rules put the job together.
 *
 * A flag is never dropped: it is expressed, or changes nothing, or is named as lost. One without a row
 * is refused. */
#include "exchange/import.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/settings.h"

enum { MOST_BYTES = 4 << 20 };

/* ---- rules' words ---------------------------------------------------------------------------------- */

void im_fail(importer *im, dh_status st, const char *fmt, ...)
{
    char text[1024];
    va_list list;
    if (im->st != DH_OK) return;
    va_start(list, fmt);
    dh_vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    im->st = dh_fail(im->ctx, st, "%s", text);
}

static void no_memory(importer *im)
{
    im_fail(im, DH_ENOMEM, "out of memory importing a job");
}

static const char *keep(importer *im, const char *text)
{
    const char *copy = dh_arena_strdup(im->arena, text);
    if (!copy) no_memory(im);
    return copy ? copy : "";
}

static bool is_name(const char *a, const char *b)
{
    for (; *a && (*a == '_' ? '-' : *a) == (*b == '_' ? '-' : *b); a++, b++) {}
    return !*a && !*b;
}

im_flag *im_find(importer *im, const char *name)
{
    for (size_t i = im->flags.n; i-- > 0;)
        if (!im->flags.at[i].off && is_name(im->flags.at[i].name, name)) return &im->flags.at[i];
    return NULL;
}

bool im_has(importer *im, const char *name)
{
    return im_find(im, name) != NULL;
}

const char *im_text(importer *im, const char *name, const char *fallback)
{
    const im_flag *f = im_find(im, name);
    return f && f->given.value ? f->given.value : fallback;
}

static bool number(importer *im, const char *name, double *value)
{
    const im_flag *f = im_find(im, name);
    if (!f) return false;
    const char *text = f->given.value ? f->given.value : "";
    if (dh_parse_f64(text, value)) return true;
    if (strchr(text, '$'))
        im_fail(im, DH_EINVAL,
                "%s: %s is %s, which the file gives no value: --define NAME=VALUE gives it",
                f->place, f->given.name, text);
    else
        im_fail(im, DH_EINVAL, "%s: %s is \"%s\", not a number", f->place, f->given.name, text);
    return false;
}

double im_real(importer *im, const char *name, double fallback)
{
    double value;
    return number(im, name, &value) ? value : fallback;
}

int64_t im_int(importer *im, const char *name, int64_t fallback)
{
    double value;
    if (!number(im, name, &value)) return fallback;
    if (value > -9e15 && value < 9e15) return (int64_t)value;
    im_fail(im, DH_EINVAL, "%s is %g", name, value);
    return fallback;
}

bool im_is(importer *im, const char *name, const char *value)
{
    return dh_is_same_word(im_text(im, name, ""), value);
}

static void set(importer *im, const char *key, const char *value)
{
    for (size_t i = 0; i < im->settings.n; i++)
        if (strcmp(im->settings.at[i].key, key) == 0) {
            im->settings.at[i].value = value;
            return;
        }
    if (!dh_vec_push(&im->settings, (im_setting){key, value})) no_memory(im);
}

void im_set(importer *im, const char *key, const char *fmt, ...)
{
    char text[1024];
    va_list list;
    va_start(list, fmt);
    dh_vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    set(im, key, keep(im, text));
}

void im_unset(importer *im, const char *key)
{
    for (size_t i = 0; i < im->settings.n; i++)
        if (strcmp(im->settings.at[i].key, key) == 0) im->settings.at[i].value = NULL;
}

const char *im_get(const importer *im, const char *key)
{
    for (size_t i = 0; i < im->settings.n; i++)
        if (strcmp(im->settings.at[i].key, key) == 0) return im->settings.at[i].value;
    return NULL;
}

int64_t im_get_int(const importer *im, const char *key, int64_t fallback)
{
    const char *text = im_get(im, key);
    int64_t value;
    return text && dh_parse_i64(text, &value) ? value : fallback;
}

const char *im_given_model(const importer *im)
{
    for (size_t i = 0; i < im->how->n_set; i++)
        if (strncmp(im->how->set[i], "model=", 6) == 0) return im->how->set[i] + 6;
    return NULL;
}

void im_trait(importer *im, const char *trait)
{
    dh_str_printf(&im->traits, "+%s", trait);
}

void im_fate(importer *im, const char *name, dh_fate fate, const char *here, const char *note)
{
    for (size_t i = 0; i < im->flags.n; i++) {
        im_flag *f = &im->flags.at[i];
        if (f->off || !is_name(f->name, name)) continue;
        f->given.fate = fate;
        if (here || fate != DH_FATE_EXPRESSED) f->given.here = here ? keep(im, here) : NULL;
        f->given.note = note ? keep(im, note) : NULL;
    }
}

void im_default(importer *im, const char *name, const char *value, dh_fate fate, const char *here,
                const char *note)
{
    const im_flag f = {.given = {.name = keep(im, name),
                                 .value = value ? keep(im, value) : NULL,
                                 .here = here ? keep(im, here) : NULL,
                                 .note = note ? keep(im, note) : NULL,
                                 .fate = fate},
                       .name = "",
                       .place = "",
                       .off = true};
    if (!dh_vec_push(&im->flags, f)) no_memory(im);
}

void im_note(importer *im, const char *fmt, ...)
{
    char text[1024];
    va_list list;
    va_start(list, fmt);
    dh_vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    if (!dh_vec_push(&im->source.notes, keep(im, text))) no_memory(im);
}

void im_ranks(importer *im, int64_t unit)
{
    const int64_t per_node = im->source.per_node, nodes = DH_MAX(im->source.nodes, (int64_t)1);
    int64_t ranks = im->how->ranks ? im->how->ranks : per_node * nodes, fit = ranks;
    if (im->st != DH_OK || unit < 1 || unit > (1 << 24)) return;
    if (im->how->ranks == 0 && (ranks < 1 || ranks > (1 << 24) || ranks % unit != 0)) {
        fit = ranks < unit ? unit : (ranks + unit - 1) / unit * unit;
        if (ranks > 0)
            im_note(im,
                    "The command starts %lld ranks, the mesh needs a multiple of %lld: the job has "
                    "%lld. --ranks N says another number.",
                    (long long)ranks, (long long)unit, (long long)fit);
        else
            im_note(
                im,
                "The number of devices is not said: the job has the fewest that its mesh takes, "
                "%lld. --ranks N says another number.",
                (long long)fit);
    }
    im_set(im, "ranks", "%lld", (long long)fit);
    if (per_node > 0 && fit > per_node && fit % per_node == 0)
        im_set(im, "topology.ranks_per_node", "%lld", (long long)per_node);
}

/* ---- rows of flags --------------------------------------------------------------------------------- */

static bool is_word_of(const char *list, const char *word)
{
    char one[64];
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += *p == ' ') {
        dh_snprintf(one, sizeof one, "%.*s", (int)strcspn(p, " "), p);
        if (dh_is_same_word(one, word)) return true;
    }
    return false;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        if (dh_is_same_word(text, words[i])) return true;
    return false;
}

static bool is_false(const char *value)
{
    static const char *const words[] = {"false", "null", "none", "~", "0", "no", "off", "", NULL};
    return value && is_one_of(value, words);
}

static bool is_nothing(const char *value)
{
    static const char *const words[] = {"null", "none", "~", "", "???", NULL};
    return value && is_one_of(value, words);
}

/* "parallel.zero: 1" as a key and its value. */
static void set_pair(importer *im, const char *pair)
{
    const char *colon = strstr(pair, ": ");
    DH_CHECK(colon, "%s", pair);
    const char *key = dh_arena_printf(im->arena, "%.*s", (int)(colon - pair), pair);
    if (key)
        set(im, key, colon + 2);
    else
        no_memory(im);
}

static const char *setting_of(importer *im, const char *key, const char *value)
{
    const char *text = dh_arena_printf(im->arena, "%s: %s", key, value);
    if (!text) no_memory(im);
    return text ? text : key;
}

static bool is_numeric(const dh_setting *s)
{
    return s && (s->type == DH_SET_INT || s->type == DH_SET_FLOAT);
}

/* A value that goes into the job as it is, with numbers written as the job's. */
static void set_value(importer *im, im_flag *f)
{
    const dh_setting *s = dh_setting_find(f->row->here);
    const char *value = f->given.value ? f->given.value : "true";
    double x;
    if (strchr(value, '$') || (is_numeric(s) && !dh_parse_f64(value, &x))) {
        (void)im_real(im, f->name, 0); /* says what is wrong */
        return;
    }
    if (s && s->type == DH_SET_INT) {
        (void)dh_parse_f64(value, &x);
        value = dh_arena_printf(im->arena, "%.0f", x);
        if (!value) return no_memory(im);
    }
    set(im, f->row->here, value);
    f->given.here = setting_of(im, f->row->here, value);
}

static void first_fate(importer *im, im_flag *f)
{
    const dh_flag_effect effect = dh_flag_effect_of(f->row);
    const char *value = f->given.value ? f->given.value : "";
    if (effect == DH_FLAG_NONE || effect == DH_FLAG_CANNOT) f->given.note = f->row->note;
    if (f->off) {
        f->given.fate = DH_FATE_IDLE;
        f->given.note = is_nothing(value) ? "not set" : "it is so here";
        return;
    }
    switch (effect) {
    case DH_FLAG_SET:
        set_value(im, f);
        return;
    case DH_FLAG_WITH:
        f->given.here = f->row->here;
        if (f->row->kind == DH_FLAG_FLAG && f->row->here && strstr(f->row->here, ": ") &&
            strncmp(f->row->here, "system", 6) != 0)
            set_pair(im, f->row->here);
        return;
    case DH_FLAG_NONE:
        f->given.fate = DH_FATE_IDLE;
        return;
    case DH_FLAG_CANNOT:
        f->given.fate = DH_FATE_LOST;
        if (is_word_of(f->row->neutral, value)) {
            f->given.fate = DH_FATE_IDLE;
            f->given.note = "it is so here";
        }
    }
}

static void add_flag(importer *im, const dh_said *said, const char *name, const dh_flag *row,
                     bool inverse)
{
    im_flag f = {.given = {.name = said->name, .value = said->value},
                 .name = name,
                 .row = row,
                 .place = said->place};
    if (row->kind == DH_FLAG_FLAG || inverse) {
        f.off = is_false(said->value) != inverse;
        if (!f.off && !inverse && said->value && dh_is_same_word(said->value, "true"))
            f.given.value = NULL;
    } else {
        f.off = is_nothing(said->value);
    }
    if (!dh_vec_push(&im->flags, f)) no_memory(im);
}

/* ---- finding rows ------------------------------------------------------------------------------------ */

static const dh_flag *find_part(const char *path, const char *wildcard)
{
    size_t n;
    const dh_flag *rows = dh_flags(DH_PROJECT_NEMO, &n);
    for (size_t i = 0; i < n; i++) {
        const size_t m = strlen(rows[i].name);
        if (!wildcard || m < 3 || strcmp(rows[i].name + m - 2, ".*") != 0) continue;
        for (const char *p = path; p; p = strchr(p, '.'), p = p ? p + 1 : NULL)
            if (strncmp(p, rows[i].name, m - 1) == 0 ||
                (strncmp(p, rows[i].name, m - 2) == 0 && p[m - 2] == '\0'))
                return &rows[i];
    }
    return NULL;
}

/* The row of NeMo's for as much of the end of the path as one has; then whole mappings. */
static const dh_flag *find_nemo(const char *path)
{
    for (const char *p = path; p; p = strchr(p, '.'), p = p ? p + 1 : NULL) {
        const dh_flag *row = dh_flag_find(DH_PROJECT_NEMO, p);
        if (row) return row;
    }
    return find_part(path, ".*");
}

/* A flag that is no row of NeMo's is one of Megatron-LM's; *name is its name there. */
static const dh_flag *find_for_nemo(importer *im, const char *path, const char **name,
                                    bool *inverse)
{
    const dh_flag *row = find_nemo(path);
    const char *dot = strrchr(path, '.'), *last = dot ? dot + 1 : path;
    *inverse = false;
    if (row && strcmp(row->effect, "as") != 0 && strcmp(row->effect, "not") != 0) {
        *name = row->name;
        return row;
    }
    if (row) {
        *inverse = strcmp(row->effect, "not") == 0;
        *name = row->here;
        row = dh_flag_find(DH_PROJECT_MEGATRON, *name);
        DH_CHECK(row, "nemo.def: %s", *name);
        return row;
    }
    *name = dh_arena_printf(im->arena, "--%s", last);
    row = *name ? dh_flag_find(DH_PROJECT_MEGATRON, *name) : NULL;
    if (row || !*name) return row;
    *name = dh_arena_printf(im->arena, "--no-%s", last);
    row = *name ? dh_flag_find(DH_PROJECT_MEGATRON, *name) : NULL;
    *inverse = row != NULL;
    return row;
}

static const char *const whose[] = {"a flag of Megatron-LM", "a key of torchtitan's",
                                    "a key of NeMo's"};
_Static_assert(DH_COUNTOF(whose) == DH_N_PROJECTS, "a name for each");

static void unknown(importer *im, dh_project project, const dh_said *said)
{
    static const dh_flag row = {.section = "other",
                                .name = "",
                                .kind = DH_FLAG_VALUE,
                                .effect = "cannot",
                                .note = "not known"};
    const char *near = dh_flag_near(project, said->name);
    if (im->how->lenient)
        add_flag(im, said, said->name, &row, false);
    else
        im_fail(
            im, DH_EINVAL,
            "%s: %s is not %s that is known%s%s%s; --lenient lists it with those that cannot be "
            "expressed",
            said->place, said->name, whose[project], near ? ": did you mean " : "",
            near ? near : "", near ? "?" : "");
}

static void find_rows(importer *im, dh_project project)
{
    for (size_t i = 0; i < im->source.said.n && im->st == DH_OK; i++) {
        const dh_said *said = &im->source.said.at[i];
        const char *name = said->name;
        bool inverse = false;
        const dh_flag *row = project == DH_PROJECT_NEMO
                                 ? find_for_nemo(im, said->name, &name, &inverse)
                                 : dh_flag_find(project, name);
        if (row)
            add_flag(im, said, name, row, inverse);
        else
            unknown(im, project, said);
    }
    for (size_t i = 0; i < im->flags.n && im->st == DH_OK; i++) first_fate(im, &im->flags.at[i]);
}

/* ---- the job's text ------------------------------------------------------------------------------------ */

static void apply_set(importer *im)
{
    for (size_t i = 0; i < im->how->n_set; i++) {
        const char *text = im->how->set[i], *equals = strchr(text, '=');
        const char *key =
            equals ? dh_arena_printf(im->arena, "%.*s", (int)(equals - text), text) : NULL;
        const dh_setting *s = key ? dh_setting_find(key) : NULL;
        if (!s) {
            im_fail(im, DH_EINVAL, "--set %s: not a setting with its value", text);
            return;
        }
        if (s->type == DH_SET_MODEL) {
            for (size_t k = 0; k < im->settings.n; k++)
                if (strncmp(im->settings.at[k].key, "model", 5) == 0 &&
                    strcmp(im->settings.at[k].key, "model.dropout") != 0)
                    im->settings.at[k].value = NULL;
            set(im, strchr(equals, '.') && strchr(equals, '/') ? "model.config" : "model.preset",
                equals + 1);
        } else {
            set(im, s->key, equals + 1);
        }
    }
}

static void print_value(const char *value, dh_str *out)
{
    static const char marks[] = " \t\n{}[],:#&*!|>'\"%@`\\~?=";
    const bool is_plain = *value && *value != '-' && !strpbrk(value, marks);
    if (is_plain) {
        dh_str_printf(out, "%s", value);
        return;
    }
    dh_str_append(out, "\"", 1);
    for (const char *p = value; *p; p++) dh_str_printf(out, strchr("\"\\", *p) ? "\\%c" : "%c", *p);
    dh_str_append(out, "\"", 1);
}

/* A line for each section, in the order of the table of settings. */
static void print_job(importer *im, dh_str *out)
{
    size_t n;
    const dh_setting *settings = dh_settings(&n);
    const char *open = NULL; /* key of the section that is open */
    for (size_t i = 0; i < n; i++) {
        const char *value = im_get(im, settings[i].key), *dot = strchr(settings[i].key, '.');
        if (!value || (settings[i].fallback && strcmp(value, settings[i].fallback) == 0)) continue;
        const bool same = open && dh_setting_same_section(open, settings[i].key);
        if (open && !same) dh_str_printf(out, "}\n");
        if (!same) open = NULL;
        if (!dot) {
            dh_str_printf(out, "%s: ", settings[i].key);
        } else if (same) {
            dh_str_printf(out, ", %s: ", dot + 1);
        } else {
            dh_str_printf(out, "%.*s: {%s: ", (int)(dot - settings[i].key), settings[i].key,
                          dot + 1);
            open = settings[i].key;
        }
        print_value(value, out);
        if (!dot) dh_str_printf(out, "\n");
    }
    if (open) dh_str_printf(out, "}\n");
}

/* The text reads as a job: what is wrong with it is said here. */
static void check_job(importer *im, const dh_str *text)
{
    dh_job *job = NULL;
    if (im->st != DH_OK) return;
    im->st = dh_job_parse(im->ctx, text->text, text->len, "the imported job", NULL, NULL, 0, &job);
    dh_job_destroy(job);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static bool is_arguments(dh_project project, const char *what)
{
    return project == DH_PROJECT_MEGATRON && (strpbrk(what, " \n") || what[0] == '-') &&
           !dh_path_exists(what);
}

static void read_source(importer *im, dh_project project, const char *what)
{
    const dh_defines defines = {im->how->defines, im->how->n_defines};
    char *text = NULL;
    size_t n_bytes = 0;
    if (is_arguments(project, what)) {
        im->st = dh_shell_read(im->ctx, "the arguments", what, defines, &im->source);
        return;
    }
    im->st = dh_file_read(im->ctx, what, MOST_BYTES, &text, &n_bytes);
    if (im->st != DH_OK) return;
    if (strlen(text) != n_bytes)
        im_fail(im, DH_EFORMAT, "%s: a text is wanted, this has zero bytes", what);
    else if (project == DH_PROJECT_MEGATRON)
        im->st = dh_shell_read(im->ctx, what, text, defines, &im->source);
    else if (project == DH_PROJECT_TORCHTITAN)
        im->st = dh_toml_read(im->ctx, what, text, &im->source);
    else
        im->st = dh_omega_read(im->ctx, what, text, n_bytes, &im->source);
    free(text);
}

/* The value of a flag's setting, where its row names one: "parallel.layer_split: 15,16,15". */
static void name_values(importer *im)
{
    for (size_t i = 0; i < im->flags.n; i++) {
        dh_given *g = &im->flags.at[i].given;
        const char *value = g->here && !strstr(g->here, ": ") ? im_get(im, g->here) : NULL;
        if (value) g->here = setting_of(im, g->here, value);
    }
}

static void hand_over(importer *im, const char *what, dh_str *text, dh_imported *imported)
{
    *imported = (dh_imported){.arena = im->arena,
                              .given = DH_NEW_N(im->arena, dh_given, im->flags.n + 1),
                              .notes = DH_NEW_N(im->arena, const char *, im->source.notes.n + 1),
                              .origin = dh_arena_strdup(im->arena, what),
                              .job = dh_arena_strdup(im->arena, text->text)};
    if (!imported->given || !imported->notes || !imported->origin || !imported->job) {
        no_memory(im);
        return;
    }
    for (size_t i = 0; i < im->flags.n; i++)
        imported->given[imported->n_given++] = im->flags.at[i].given;
    for (size_t i = 0; i < im->source.notes.n; i++)
        imported->notes[imported->n_notes++] = im->source.notes.at[i];
}

static void (*const rules[])(importer *) = {im_megatron, im_torchtitan, im_nemo};
_Static_assert(DH_COUNTOF(rules) == DH_N_PROJECTS, "rules for each");

dh_status dh_import(dh_ctx *ctx, dh_project project, const char *what, const dh_import_options *how,
                    dh_imported *imported)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    importer im = {.ctx = ctx, .arena = arena, .how = how, .source = {.arena = arena}};
    dh_str text = DH_STR_INIT;
    read_source(&im, project, what);
    if (im.st == DH_OK) find_rows(&im, project);
    if (im.st == DH_OK) rules[project](&im);
    if (im.st == DH_OK)
        im_set(&im, "system", "%s%s", how->system ? how->system : im.system,
               im.traits.text ? im.traits.text : "");
    if (im.st == DH_OK) apply_set(&im);
    if (im.st == DH_OK) name_values(&im);
    if (im.st == DH_OK) print_job(&im, &text);
    if (im.st == DH_OK && (text.failed || im.traits.failed)) no_memory(&im);
    check_job(&im, &text);
    if (im.st == DH_OK) hand_over(&im, what, &text, imported);
    dh_str_fini(&text);
    dh_str_fini(&im.traits);
    dh_vec_fini(&im.source.said);
    dh_vec_fini(&im.source.notes);
    dh_vec_fini(&im.flags);
    dh_vec_fini(&im.settings);
    if (im.st != DH_OK) dh_arena_destroy(arena);
    return im.st;
}

void dh_imported_free(dh_imported *imported)
{
    dh_arena_destroy(imported->arena);
    imported->arena = NULL;
}

/* ---- printing --------------------------------------------------------------------------------------------- */

static void comment(const char *text, dh_str *out)
{
    dh_str line = DH_STR_INIT;
    dh_str_wrap(&line, text, 2, 110);
    for (char *p = line.text; p && *p;) {
        const size_t n = strcspn(p, "\n");
        dh_str_printf(out, "# %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    dh_str_fini(&line);
}

static void print_given(const dh_given *g, dh_str *out)
{
    dh_str line = DH_STR_INIT;
    dh_str_printf(&line, "%s%s%s%s%s%s%s%s", g->name, g->value ? " " : "", g->value ? g->value : "",
                  g->here ? " -> " : "", g->here ? g->here : "", g->note ? " (" : "",
                  g->note ? g->note : "", g->note ? ")" : "");
    comment(line.text, out);
    dh_str_fini(&line);
}

static void print_idle(const dh_imported *im, dh_str *out)
{
    dh_str line = DH_STR_INIT;
    for (size_t i = 0; i < im->n_given; i++)
        if (im->given[i].fate == DH_FATE_IDLE)
            dh_str_printf(&line, "%s%s", line.len ? " " : "", im->given[i].name);
    dh_str_printf(out, "#\n# Changes nothing in a step here:\n");
    comment(line.text ? line.text : "nothing", out);
    dh_str_fini(&line);
}

void dh_imported_print(const dh_imported *im, dh_str *out)
{
    static const char *const titles[] = {"Cannot be expressed:", "Expressed:"};
    static const dh_fate fates[] = {DH_FATE_LOST, DH_FATE_EXPRESSED};
    dh_str_printf(out, "# Imported from %s\n", strchr(im->origin, '\n') ? "arguments" : im->origin);
    for (size_t i = 0; i < im->n_notes; i++) comment(im->notes[i], out);
    for (size_t k = 0; k < DH_COUNTOF(fates); k++) {
        size_t n = 0;
        dh_str_printf(out, "#\n# %s\n", titles[k]);
        for (size_t i = 0; i < im->n_given; i++)
            if (im->given[i].fate == fates[k] && ++n) print_given(&im->given[i], out);
        if (n == 0) comment("nothing", out);
    }
    print_idle(im, out);
    dh_str_printf(out, "%s", im->job);
}
