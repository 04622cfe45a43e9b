/* Flags of other projects: the tables, and looking for a flag in them. */
#include "flags.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define DH_FLAG(section, name, kind, effect, here, note, neutral)                                  \
    {(section), (name), DH_FLAG_##kind, (effect), (here), (note), (neutral)},
static const dh_flag megatron[] = {
#include "megatron.def"
};
static const dh_flag torchtitan[] = {
#include "torchtitan.def"
};
static const dh_flag nemo[] = {
#include "nemo.def"
};
#undef DH_FLAG

const char *const dh_project_names[] = {"megatron", "torchtitan", "nemo", NULL};
_Static_assert(DH_COUNTOF(dh_project_names) == DH_N_PROJECTS + 1, "a name for each");

static const struct {
    const dh_flag *rows;
    size_t n;
} tables[] = {{megatron, DH_COUNTOF(megatron)},
              {torchtitan, DH_COUNTOF(torchtitan)},
              {nemo, DH_COUNTOF(nemo)}};
_Static_assert(DH_COUNTOF(tables) == DH_N_PROJECTS, "a table for each");

const dh_flag *dh_flags(dh_project project, size_t *n)
{
    *n = tables[project].n;
    return tables[project].rows;
}

static char plain(char c)
{
    return c == '_' ? '-' : c;
}

static bool is_same(const char *a, const char *b)
{
    for (; *a && plain(*a) == plain(*b); a++, b++) {}
    return !*a && !*b;
}

const dh_flag *dh_flag_find(dh_project project, const char *name)
{
    size_t n;
    const dh_flag *rows = dh_flags(project, &n);
    for (size_t i = 0; i < n; i++)
        if (is_same(rows[i].name, name)) return &rows[i];
    return NULL;
}

const char *dh_flag_near(dh_project project, const char *name)
{
    enum { MOST = 2048 };
    const char *names[MOST];
    size_t n;
    const dh_flag *rows = dh_flags(project, &n);
    DH_CHECK(n <= MOST, "%zu flags", n);
    for (size_t i = 0; i < n; i++) names[i] = rows[i].name;
    return dh_nearest(name, names, n);
}

static const char *bare(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dot) return dot + 1;
    return name + strspn(name, "-");
}

const dh_flag *dh_flag_by_word(const char *word, dh_project *project)
{
    for (int p = 0; p < DH_N_PROJECTS; p++)
        for (size_t i = 0; i < tables[p].n; i++) {
            const dh_flag *row = &tables[p].rows[i];
            *project = (dh_project)p;
            if (!is_same(row->name, word) && !is_same(bare(row->name), bare(word))) continue;
            return row->here && *row->here == '-' ? dh_flag_find(DH_PROJECT_MEGATRON, row->here)
                                                  : row;
        }
    return NULL;
}

dh_flag_effect dh_flag_effect_of(const dh_flag *flag)
{
    static const struct {
        const char *name;
        dh_flag_effect effect;
    } effects[] = {{"set", DH_FLAG_SET},  {"with", DH_FLAG_WITH}, {"as", DH_FLAG_WITH},
                   {"not", DH_FLAG_WITH}, {"none", DH_FLAG_NONE}, {"cannot", DH_FLAG_CANNOT}};
    for (size_t i = 0; i < DH_COUNTOF(effects); i++)
        if (strcmp(effects[i].name, flag->effect) == 0) return effects[i].effect;
    dh_panic(__FILE__, __LINE__, "flag %s has the effect %s", flag->name, flag->effect);
}
