/* Strategies as text: a row by its name; passes added to a row, "ring-gemm(both)+dhelix"; or all
 * parts, "{passes: [ring-gemm], schedule: dhelix-w, order: auto, barriers: events}".
 *
 * In a sum a name of a pass means the pass. Parts that a text does not name are those of the first
 * row. With a schedule that makes pairs the order is then chosen (auto). */
#include <string.h>

#include "plan/schedule.h"
#include "strategy/strategy.h"

enum { NAME_BYTES = 128 };

typedef struct reader {
    dh_ctx *ctx;
    dh_arena *arena;
    const char *text; /* all of it */
    dh_strategy own;
    bool has_base; /* of a sum */
} reader;

static const dh_strategy *first_row(void)
{
    size_t n;
    return dh_strategies(&n);
}

typedef struct part {
    const char *at;
    size_t n;
} part;

static part trimmed(const char *begin, const char *end)
{
    while (begin < end && *begin == ' ') begin++;
    while (begin < end && end[-1] == ' ') end--;
    return (part){begin, (size_t)(end - begin)};
}

/* Up to the next separator outside brackets; *at moves behind it, to NULL at the end. */
static part next_part(const char **at, const char *end, char separator)
{
    const char *begin = *at, *p = begin;
    for (int depth = 0; p < end && (depth > 0 || *p != separator); p++)
        depth += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
    *at = p < end ? p + 1 : NULL;
    return trimmed(begin, p);
}

static dh_status copy_name(const reader *r, part p, char name[NAME_BYTES])
{
    if (p.n == 0 || p.n >= NAME_BYTES)
        return dh_fail(r->ctx, DH_EINVAL, "strategy \"%.200s\": a name is missing or too long",
                       r->text);
    memcpy(name, p.at, p.n);
    name[p.n] = '\0';
    return DH_OK;
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* The row whose name stands at `at` as a whole term: that may end in "+" itself. */
static const dh_strategy *row_at(const char *at, const char **behind)
{
    size_t n, longest = 0;
    const dh_strategy *rows = dh_strategies(&n), *found = NULL;
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(rows[i].name);
        const bool whole = strncmp(at, rows[i].name, len) == 0 && (!at[len] || at[len] == '+');
        if (!whole || len <= longest) continue;
        found = &rows[i];
        longest = len;
    }
    *behind = at + longest + (found && at[longest] == '+');
    return found;
}

static bool is_pass(part p)
{
    size_t n;
    const dh_pass *const *rows = dh_passes(&n);
    for (size_t i = 0; i < n; i++)
        if (strlen(rows[i]->name) == p.n && memcmp(rows[i]->name, p.at, p.n) == 0) return true;
    return false;
}

static dh_status add_base(reader *r, const dh_strategy *row)
{
    if (r->has_base)
        return dh_fail(r->ctx, DH_EINVAL,
                       "strategy \"%.200s\" names two strategies; one can be added to passes",
                       r->text);
    r->has_base = true;
    r->own.schedule = row->schedule;
    r->own.policy = row->policy;
    r->own.barriers = row->barriers;
    return dh_pass_list_append(r->ctx, &row->passes, &r->own.passes);
}

static dh_status no_term(const reader *r, part term)
{
    enum { MOST = 64 };
    char text[NAME_BYTES];
    const char *names[MOST];
    size_t n_rows, n_passes, n = 0;
    const dh_strategy *rows = dh_strategies(&n_rows);
    const dh_pass *const *passes = dh_passes(&n_passes);
    DH_TRY(copy_name(r, term, text));
    for (size_t i = 0; i < n_rows && n < MOST; i++) names[n++] = rows[i].name;
    for (size_t i = 0; i < n_passes && n < MOST; i++) names[n++] = passes[i]->name;
    const char *near = dh_nearest(text, names, n);
    return dh_fail(
        r->ctx, DH_EMISSING,
        "strategy \"%.200s\": no strategy or pass is called %s%s%s; dhelix list strategies "
        "and dhelix list passes have all",
        r->text, text, near ? "; did you mean " : "", near ? near : "");
}

static dh_status read_sum(reader *r)
{
    const char *at = r->text, *end = at + strlen(at);
    while (at) {
        const char *begin = at, *behind;
        const part term = next_part(&at, end, '+');
        const dh_strategy *row = is_pass(term) ? NULL : row_at(begin, &behind);
        if (!row) {
            if (!memchr(term.at, '(', term.n) && !is_pass(term)) return no_term(r, term);
            DH_TRY(dh_pass_list_read(r->ctx, term.at, term.n, &r->own.passes));
            continue;
        }
        DH_TRY(add_base(r, row));
        at = *behind ? behind : NULL;
    }
    return DH_OK;
}

/* ---- all of one said ------------------------------------------------------------------------ */

static dh_status read_passes(reader *r, part value)
{
    const bool list = value.n >= 2 && value.at[0] == '[' && value.at[value.n - 1] == ']';
    return dh_pass_list_read(r->ctx, value.at + list, value.n - (list ? 2 : 0), &r->own.passes);
}

static dh_status read_schedule(reader *r, part value)
{
    char name[NAME_BYTES];
    const dh_schedule_row *row;
    DH_TRY(copy_name(r, value, name));
    DH_TRY(dh_schedule_named(r->ctx, name, &row));
    r->own.schedule = row->name;
    return DH_OK;
}

static dh_status read_order(reader *r, part value)
{
    char name[NAME_BYTES];
    const dh_order_policy *row;
    DH_TRY(copy_name(r, value, name));
    if (strpbrk(name, "/."))
        return dh_fail(
            r->ctx, DH_EINVAL,
            "strategy: order is %s; it is a row of dhelix list policies, and an order in a "
            "file goes into overlap.policy",
            name);
    DH_TRY(dh_order_policy_find(r->ctx, name, &row));
    r->own.policy = row->name;
    return DH_OK;
}

static dh_status read_barriers(reader *r, part value)
{
    char name[NAME_BYTES];
    DH_TRY(copy_name(r, value, name));
    r->own.barriers = strcmp(name, "full") == 0;
    if (r->own.barriers || strcmp(name, "events") == 0) return DH_OK;
    return dh_fail(r->ctx, DH_EINVAL, "strategy: barriers is \"%s\"; it can be full, events", name);
}

static const struct key {
    const char *name;
    dh_status (*read)(reader *, part value);
} keys[] = {{"passes", read_passes},
            {"schedule", read_schedule},
            {"order", read_order},
            {"barriers", read_barriers}};

static dh_status find_key(const reader *r, part name, size_t *key)
{
    char text[NAME_BYTES];
    const char *names[DH_COUNTOF(keys)];
    DH_TRY(copy_name(r, name, text));
    for (*key = 0; *key < DH_COUNTOF(keys); ++*key) {
        names[*key] = keys[*key].name;
        if (strcmp(text, names[*key]) == 0) return DH_OK;
    }
    const char *near = dh_nearest(text, names, DH_COUNTOF(keys));
    return dh_fail(r->ctx, DH_EMISSING,
                   "strategy: there is no \"%s\"%s%s; it has passes, schedule, order, barriers",
                   text, near ? "; did you mean " : "", near ? near : "");
}

static dh_status read_entry(reader *r, part entry, unsigned *seen)
{
    size_t key;
    const char *colon = memchr(entry.at, ':', entry.n);
    if (!colon)
        return dh_fail(r->ctx, DH_EINVAL, "strategy \"%.200s\": \"%.*s\" is not key: value",
                       r->text, (int)DH_MIN(entry.n, (size_t)80), entry.at);
    DH_TRY(find_key(r, trimmed(entry.at, colon), &key));
    if (*seen >> key & 1)
        return dh_fail(r->ctx, DH_EINVAL, "strategy: %s is said twice", keys[key].name);
    *seen |= 1u << key;
    return keys[key].read(r, trimmed(colon + 1, entry.at + entry.n));
}

static dh_status read_mapping(reader *r)
{
    const char *at = r->text + 1, *end = r->text + strlen(r->text);
    const dh_schedule_row *row;
    unsigned seen = 0;
    if (end[-1] != '}')
        return dh_fail(r->ctx, DH_EINVAL, "strategy \"%.200s\": the bracket { is not closed",
                       r->text);
    r->own.policy = NULL;
    while (at) DH_TRY(read_entry(r, next_part(&at, end - 1, ','), &seen));
    if (r->own.policy) return DH_OK;
    r->own.policy = first_row()->policy;
    if (!r->own.schedule) return DH_OK;
    DH_TRY(dh_schedule_named(r->ctx, r->own.schedule, &row));
    if (row->pairs) r->own.policy = "auto";
    return DH_OK;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status finish(reader *r, const dh_strategy **strategy)
{
    DH_TRY(dh_pass_list_check(r->ctx, &r->own.passes));
    r->own.name = dh_arena_strdup(r->arena, r->text);
    r->own.doc = "the job's own";
    dh_strategy *made = DH_NEW(r->arena, dh_strategy);
    if (!r->own.name || !made) return dh_no_memory(r->ctx);
    *made = r->own;
    *strategy = made;
    return DH_OK;
}

dh_status dh_strategy_read(dh_ctx *ctx, dh_arena *arena, const char *text,
                           const dh_strategy **strategy)
{
    const char *behind;
    const part whole = {text, strlen(text)};
    const dh_strategy *row = row_at(text, &behind);
    reader r = {.ctx = ctx, .arena = arena, .text = text, .own = *first_row()};
    if ((row && !*behind) || !(strpbrk(text, "+({") || is_pass(whole)))
        return dh_strategy_find(ctx, text, strategy);
    DH_TRY(*text == '{' ? read_mapping(&r) : read_sum(&r));
    return finish(&r, strategy);
}
