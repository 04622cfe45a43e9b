/* Ranks agree before they train: each has a text of what it was given, a line "name: value"
 * a fact, and all texts must be equal. Lengths and fingerprints are compared first; the texts
 * themselves travel only where these differ, to say whose facts are not the others'. */
#include "train/rank.h"

#include <stdlib.h>
#include <string.h>

#include "weights/checkpoint.h"

enum { MOST_TOLD = 6 }; /* differences in one message */

typedef struct texts {
    int64_t *lengths; /* [n] */
    char *all;        /* one behind the other */
    char **of;        /* [n] into all */
    int64_t n;
} texts;

static void texts_fini(texts *t)
{
    free(t->lengths);
    free(t->all);
    free(t->of);
}

/* ---- gathering ------------------------------------------------------------------------------- */

typedef struct brief {
    char hash[DH_CKPT_HASH_TEXT];
} brief;

/* Whether all ranks have the same text; their lengths go to t. */
static dh_status compare(dh_ctx *ctx, const dh_ranks *ranks, const char *text, texts *t, bool *same)
{
    brief mine = {.hash = ""}, *briefs = calloc((size_t)ranks->n, sizeof *briefs);
    int64_t length = (int64_t)strlen(text);
    t->n = ranks->n;
    t->lengths = calloc((size_t)ranks->n, sizeof *t->lengths);
    dh_ckpt_fingerprint(text, (size_t)length, mine.hash);
    dh_status st = briefs && t->lengths ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) st = dh_comm_all_gather(ctx, ranks->control, &length, t->lengths, 1, DH_I64);
    if (st == DH_OK)
        st = dh_comm_all_gather(ctx, ranks->control, &mine, briefs, (int64_t)sizeof mine, DH_U8);
    *same = true;
    for (int64_t r = 0; st == DH_OK && r < ranks->n; r++)
        *same = *same && t->lengths[r] == length && memcmp(&briefs[r], &mine, sizeof mine) == 0;
    free(briefs);
    return st;
}

static dh_status gather(dh_ctx *ctx, const dh_ranks *ranks, const char *text, texts *t)
{
    int64_t total = 0;
    for (int64_t r = 0; r < t->n; r++) total += t->lengths[r];
    t->all = malloc((size_t)(total + 1));
    t->of = calloc((size_t)t->n, sizeof *t->of);
    if (!t->all || !t->of) return dh_no_memory(ctx);
    for (int64_t r = 0, at = 0; r < t->n; at += t->lengths[r++]) t->of[r] = t->all + at;
    return dh_comm_all_gatherv(ctx, ranks->control, text, t->all, t->lengths, DH_U8);
}

/* ---- saying what differs --------------------------------------------------------------------- */

static bool same_texts(const texts *t, int64_t a, int64_t b)
{
    return t->lengths[a] == t->lengths[b] && memcmp(t->of[a], t->of[b], (size_t)t->lengths[a]) == 0;
}

/* The first rank of those that most agree with. */
static int64_t reference(const texts *t)
{
    int64_t best = 0, n_best = 0;
    for (int64_t r = 0; r < t->n && 2 * n_best < t->n; r++) {
        int64_t n = 0;
        for (int64_t other = 0; other < t->n; other++) n += same_texts(t, r, other);
        if (n <= n_best) continue;
        best = r;
        n_best = n;
    }
    return best;
}

typedef struct line {
    const char *at;
    size_t n_name, n; /* bytes before the colon, and in all */
} line;

/* The line at *at, which moves on; false at the end. */
static bool next_line(const char **at, const char *end, line *l)
{
    if (*at == end) return false;
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));
    if (!stop) stop = end;
    *l = (line){.at = *at, .n = (size_t)(stop - *at)};
    const char *colon = memchr(*at, ':', l->n);
    l->n_name = colon ? (size_t)(colon - *at) : l->n;
    *at = stop == end ? end : stop + 1;
    return true;
}

static bool find_name(const texts *t, int64_t rank, const line *wanted, line *l)
{
    const char *at = t->of[rank], *end = at + t->lengths[rank];
    while (next_line(&at, end, l))
        if (l->n_name == wanted->n_name && memcmp(l->at, wanted->at, l->n_name) == 0) return true;
    return false;
}

static void print_value(const line *l, dh_str *out)
{
    const size_t skip = DH_MIN(l->n, l->n_name + 1); /* the colon; a blank follows */
    dh_str_append(out, l->at + skip, DH_MIN(l->n - skip, (size_t)120));
}

static bool same_line(const line *a, const line *b)
{
    return a->n == b->n && memcmp(a->at, b->at, a->n) == 0;
}

/* One more difference, unless there are enough; NULL is a line that is missing. */
static void tell(int64_t r, const line *mine, int64_t ref, const line *theirs, int *n_told,
                 dh_str *out)
{
    const line *name = mine ? mine : theirs;
    if ((*n_told)++ >= MOST_TOLD) return;
    dh_str_printf(out, "%s rank %lld has %s%.*s", *n_told > 1 ? ";" : "", (long long)r,
                  mine ? "" : "no line ", (int)name->n_name, name->at);
    if (mine) print_value(mine, out);
    dh_str_printf(out, ", rank %lld has%s", (long long)ref, theirs ? "" : " no such line");
    if (theirs) print_value(theirs, out);
}

/* Tell the lines that differ between rank r and `ref`. */
static void tell_rank(const texts *t, int64_t ref, int64_t r, int *n_told, dh_str *out)
{
    const char *at = t->of[r], *end = at + t->lengths[r];
    line mine, theirs;
    while (next_line(&at, end, &mine)) {
        const bool there = find_name(t, ref, &mine, &theirs);
        if (!there || !same_line(&mine, &theirs))
            tell(r, &mine, ref, there ? &theirs : NULL, n_told, out);
    }
    at = t->of[ref];
    end = at + t->lengths[ref];
    while (next_line(&at, end, &theirs))
        if (!find_name(t, r, &theirs, &mine)) tell(r, NULL, ref, &theirs, n_told, out);
}

static dh_status fail_unlike(dh_ctx *ctx, const texts *t)
{
    const int64_t ref = reference(t);
    int n_told = 0;
    dh_str out = DH_STR_INIT;
    for (int64_t r = 0; r < t->n; r++)
        if (!same_texts(t, r, ref)) tell_rank(t, ref, r, &n_told, &out);
    dh_status st =
        dh_fail(ctx, DH_EINVAL, "the ranks were not started alike:%s%s",
                out.text ? out.text : " their jobs differ", n_told > MOST_TOLD ? "; and more" : "");
    dh_str_fini(&out);
    return st;
}

dh_status dh_ranks_alike(dh_ctx *ctx, const dh_ranks *ranks, const char *facts)
{
    texts t = {.n = 0};
    bool same = true;
    if (!ranks->control) return DH_OK;
    dh_status st = compare(ctx, ranks, facts, &t, &same);
    if (st == DH_OK && !same) {
        st = gather(ctx, ranks, facts, &t);
        if (st == DH_OK) st = fail_unlike(ctx, &t);
    }
    texts_fini(&t);
    return st;
}
