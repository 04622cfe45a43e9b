#include "data/split.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/growth.h"
#include "data/tok.h"

#define MAX_STEPS 32

struct dh_split_scratch {
    dh_pattern_work *work;
    dh_str rewritten[MAX_STEPS]; /* by step */
};

void dh_splitter_fini(dh_splitter *s)
{
    for (size_t i = 0; i < s->steps.n; i++) dh_pattern_free(s->steps.at[i].pattern);
    dh_vec_fini(&s->steps);
}

/* ---- the steps -------------------------------------------------------------------------- */

static dh_status add_step(dh_ctx *ctx, dh_splitter *s, dh_split_step step)
{
    dh_status st = DH_OK;
    if (s->steps.n == MAX_STEPS)
        st = dh_fail(ctx, DH_EUNSUPPORTED, "more than %d steps that split text", MAX_STEPS);
    else if (!dh_vec_push(&s->steps, step))
        st = dh_no_memory(ctx);
    if (st != DH_OK) dh_pattern_free(step.pattern);
    return st;
}

/* Whether a pattern stands at line breaks, outside of classes. */
static bool has_anchor(const char *pattern, size_t n)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (pattern[i] == '\\')
            i++;
        else if (pattern[i] == '[' || pattern[i] == ']')
            in_class = pattern[i] == '[';
        else if (!in_class && (pattern[i] == '^' || pattern[i] == '$'))
            return true;
    }
    return false;
}

dh_status dh_splitter_add_pattern(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n,
                                  bool literal, dh_split_behavior behavior, bool invert)
{
    dh_split_step step = {.behavior = behavior, .invert = invert};
    if (n == 0) return dh_fail(ctx, DH_EFORMAT, "a split pattern of 0 bytes");
    DH_TRY(dh_pattern_compile(ctx, pattern, n, literal, &step.pattern));
    s->hash = XXH3_64bits_withSeed(pattern, n, 2 * s->hash + literal);
    if (behavior || invert || (!literal && has_anchor(pattern, n))) {
        const uint64_t rest[] = {behavior, invert};
        s->hash = XXH3_64bits_withSeed(rest, sizeof rest, s->hash);
    }
    return add_step(ctx, s, step);
}

dh_status dh_splitter_add(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n, bool literal)
{
    return dh_splitter_add_pattern(ctx, s, pattern, n, literal, DH_SPLIT_ISOLATED, false);
}

dh_status dh_splitter_add_rewrite(dh_ctx *ctx, dh_splitter *s, dh_split_step step)
{
    const uint64_t kind[] = {step.rewrite, step.mark_before};
    s->hash = XXH3_64bits_withSeed(kind, sizeof kind, s->hash);
    s->hash = XXH3_64bits_withSeed(step.mark, strlen(step.mark), s->hash);
    return add_step(ctx, s, step);
}

dh_status dh_split_scratch_create(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch **scratch)
{
    dh_split_scratch *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    dh_status st = dh_pattern_work_create(ctx, &made->work);
    if (st == DH_OK)
        *scratch = made;
    else
        free(made);
    return st;
}

void dh_split_scratch_destroy(dh_split_scratch *scratch)
{
    if (!scratch) return;
    dh_pattern_work_destroy(scratch->work);
    for (size_t i = 0; i < MAX_STEPS; i++) dh_str_fini(&scratch->rewritten[i]);
    free(scratch);
}

/* ---- rewriting ------------------------------------------------------------------------------ */

/* false: it grows beyond `most` bytes. */
static bool mark_spaces(const unsigned char *text, size_t n, const char *mark, size_t most,
                        dh_str *out)
{
    bool fits = true;
    for (size_t at = 0; at < n && fits;) {
        const unsigned char *space = memchr(text + at, ' ', n - at);
        const size_t end = space ? (size_t)(space - text) : n;
        fits = dh_growth_put(out, most, text + at, end - at) &&
               (!space || dh_growth_put(out, most, mark, strlen(mark)));
        at = end + (space != NULL);
    }
    return fits;
}

static bool rewrite(const dh_split_step *step, const unsigned char *text, size_t n, bool first,
                    size_t most, dh_str *out)
{
    bool fits = true;
    const size_t n_mark = strlen(step->mark);
    const bool marked = n >= n_mark && memcmp(text, step->mark, n_mark) == 0;
    const bool wanted =
        step->mark_before == DH_MARK_ALWAYS || (step->mark_before == DH_MARK_FIRST && first);
    dh_str_clear(out);
    switch (step->rewrite) {
    case DH_REWRITE_NONE:
        break;
    case DH_REWRITE_SPACE_BEFORE:
        if (*text != ' ') dh_str_append(out, " ", 1);
        dh_str_append(out, (const char *)text, n);
        break;
    case DH_REWRITE_METASPACE:
        if (wanted && !marked && *text != ' ') dh_str_append(out, step->mark, n_mark);
        fits = mark_spaces(text, n, step->mark, most, out);
        break;
    case DH_REWRITE_BYTES:
        dh_bytelevel_encode(text, n, out);
        break;
    }
    return fits && out->len <= most;
}

/* ---- splitting ------------------------------------------------------------------------------ */

typedef struct split_job {
    const dh_splitter *splitter;
    dh_split_scratch *scratch;
    dh_word_fn fn;
    void *arg;
    size_t n, most;              /* bytes of the text; that it may become */
    size_t rewritten[MAX_STEPS]; /* bytes of what each step wrote */
} split_job;

/* The words of one step, as they are found. */
typedef struct cutting {
    const unsigned char *text;
    size_t begin, end; /* of a word that may still grow */
    bool waits, matched;
    bool first;
    size_t level;
} cutting;

static dh_status split_level(dh_ctx *ctx, split_job *job, size_t level, const unsigned char *text,
                             size_t n, bool first);

static dh_status word(dh_ctx *ctx, split_job *job, const cutting *c, size_t begin, size_t end)
{
    if (begin == end) return DH_OK;
    return split_level(ctx, job, c->level + 1, c->text + begin, end - begin,
                       c->first && begin == 0);
}

static dh_status word_that_waits(dh_ctx *ctx, split_job *job, cutting *c)
{
    const bool waits = c->waits;
    c->waits = false;
    return waits ? word(ctx, job, c, c->begin, c->end) : DH_OK;
}

/* Whether a part belongs to the one that waits in front of it. */
static bool joins(dh_split_behavior behavior, const cutting *c, bool match)
{
    if (!c->waits) return false;
    switch (behavior) {
    case DH_SPLIT_MERGED_WITH_PREVIOUS:
        return match && !c->matched;
    case DH_SPLIT_MERGED_WITH_NEXT:
        return !match && c->matched;
    case DH_SPLIT_CONTIGUOUS:
        return match == c->matched;
    default:
        return false;
    }
}

/* The next part of the text: a match, or what is between two. */
static dh_status part(dh_ctx *ctx, split_job *job, cutting *c, size_t begin, size_t end, bool match)
{
    const dh_split_step *step = &job->splitter->steps.at[c->level];
    match ^= step->invert;
    if (step->behavior == DH_SPLIT_ISOLATED) return word(ctx, job, c, begin, end);
    if (step->behavior == DH_SPLIT_REMOVED) return match ? DH_OK : word(ctx, job, c, begin, end);
    if (joins(step->behavior, c, match)) {
        c->end = end;
    } else {
        DH_TRY(word_that_waits(ctx, job, c));
        c->begin = begin;
        c->end = end;
        c->waits = true;
    }
    c->matched = match;
    return DH_OK;
}

/* Where the search goes on behind an empty match at `at`: one character further. */
static size_t one_further(const unsigned char *text, size_t n, size_t at)
{
    do at++;
    while (at < n && (text[at] & 0xC0) == 0x80);
    return at;
}

static dh_status cut(dh_ctx *ctx, split_job *job, cutting *c, size_t n)
{
    const dh_pattern *pattern = job->splitter->steps.at[c->level].pattern;
    const bool may_be_empty = dh_pattern_matches_empty(pattern);
    size_t done = 0;
    bool matched = false; /* a match ended at `done` */
    for (size_t at = 0; at < n + may_be_empty;) {
        size_t begin = n, end = n;
        bool found;
        DH_TRY(dh_pattern_next(ctx, pattern, job->scratch->work, c->text, n, at, &found, &begin,
                               &end));
        if (!found) break;
        if (begin == end && matched && end == done) { /* nothing behind a match is none */
            at = one_further(c->text, n, at);
            continue;
        }
        if (begin > done) DH_TRY(part(ctx, job, c, done, begin, false));
        DH_TRY(part(ctx, job, c, begin, end, true));
        at = done = end;
        matched = true;
    }
    if (done < n) DH_TRY(part(ctx, job, c, done, n, false));
    return word_that_waits(ctx, job, c);
}

static dh_status split_level(dh_ctx *ctx, split_job *job, size_t level, const unsigned char *text,
                             size_t n, bool first)
{
    if (n == 0) return DH_OK;
    if (level == job->splitter->steps.n) return job->fn(ctx, job->arg, text, n);
    if (!job->scratch) return dh_fail(ctx, DH_EINVAL, "splitting in steps needs scratch memory");
    const dh_split_step *step = &job->splitter->steps.at[level];
    if (step->pattern) {
        cutting c = {.text = text, .level = level, .first = first};
        return cut(ctx, job, &c, n);
    }
    dh_str *out = &job->scratch->rewritten[level];
    const bool fits = rewrite(step, text, n, first, job->most - job->rewritten[level], out);
    if (out->failed) return dh_no_memory(ctx);
    if (!fits) return dh_growth_fail(ctx, "pre_tokenizer", job->n);
    job->rewritten[level] += out->len;
    return split_level(ctx, job, level + 1, (const unsigned char *)out->text, out->len, first);
}

dh_status dh_split(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch *scratch,
                   const unsigned char *text, size_t n, bool first, dh_word_fn fn, void *arg)
{
    split_job job = {
        .splitter = s, .scratch = scratch, .fn = fn, .arg = arg, .n = n, .most = dh_growth_most(n)};
    if (scratch) dh_pattern_begin(scratch->work, n, s->steps.n);
    return split_level(ctx, &job, 0, text, n, first);
}
