#include "data/normalize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/utf8.h"
#include "data/growth.h"
#include "data/tok.h"

struct dh_normalize_work {
    dh_str text[2]; /* the steps' results, in turn */
    dh_form_work form;
    dh_pattern_work *pattern;
    size_t most; /* bytes that the text at hand may become */
    bool full;   /* a step wanted to write more */
};

/* ---- steps: normal forms, case, accents ---------------------------------------------------- */

static dh_status by_form(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                         const unsigned char *text, size_t n, dh_str *out)
{
    dh_normal_form(step->form, &work->form, text, n, out);
    return DH_OK;
}

static dh_status by_lowercase(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                              const unsigned char *text, size_t n, dh_str *out)
{
    dh_lowercase(text, n, out);
    return DH_OK;
}

/* The code points for which `drop` is false. */
static void keep(const unsigned char *text, size_t n, bool (*drop)(uint32_t code), dh_str *out)
{
    size_t from = 0;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t code;
        len = dh_utf8_next(text + at, n - at, &code);
        if (!drop(code)) continue;
        dh_str_append(out, (const char *)text + from, at - from);
        from = at + len;
    }
    dh_str_append(out, (const char *)text + from, n - from);
}

static dh_status by_dropping_marks(dh_ctx *ctx, const dh_normalize_step *step,
                                   dh_normalize_work *work, const unsigned char *text, size_t n,
                                   dh_str *out)
{
    keep(text, n, dh_is_mark, out);
    return DH_OK;
}

/* ---- steps: spaces and strings -------------------------------------------------------------- */

static dh_status by_stripping(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                              const unsigned char *text, size_t n, dh_str *out)
{
    size_t begin = 0, end = n;
    uint32_t code;
    for (size_t len; step->left && begin < end; begin += len) {
        len = dh_utf8_next(text + begin, end - begin, &code);
        if (!dh_is_white_space(code)) break;
    }
    while (step->right && end > begin) {
        size_t at = end - 1;
        while ((text[at] & 0xC0) == 0x80) at--;
        dh_utf8_next(text + at, end - at, &code);
        if (!dh_is_white_space(code)) break;
        end = at;
    }
    dh_str_append(out, (const char *)text + begin, end - begin);
    return DH_OK;
}

/* Every match of the pattern; nothing right behind a match is none. */
static dh_status by_replacing(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                              const unsigned char *text, size_t n, dh_str *out)
{
    size_t done = 0;
    bool found = true, matched = false;
    for (size_t at = 0, begin, end; at <= n && found && !work->full;) {
        DH_TRY(
            dh_pattern_next(ctx, step->pattern, work->pattern, text, n, at, &found, &begin, &end));
        if (!found) break;
        if (begin == end && matched && end == done) {
            do at++;
            while (at < n && (text[at] & 0xC0) == 0x80);
            continue;
        }
        work->full = !dh_growth_put(out, work->most, text + done, begin - done) ||
                     !dh_growth_put(out, work->most, step->text, step->n_text);
        at = done = end;
        matched = true;
    }
    dh_str_append(out, (const char *)text + done, n - done);
    return DH_OK;
}

static dh_status by_prepending(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                               const unsigned char *text, size_t n, dh_str *out)
{
    work->full = !dh_growth_put(out, work->most, step->text, step->n_text) ||
                 !dh_growth_put(out, work->most, text, n);
    return DH_OK;
}

static dh_status by_bytes(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                          const unsigned char *text, size_t n, dh_str *out)
{
    dh_bytelevel_encode(text, n, out);
    return DH_OK;
}

/* ---- steps: BERT's (Devlin et al. 2018, tokenization.py) ------------------------------------ */

static dh_status by_cleaning(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                             const unsigned char *text, size_t n, dh_str *out)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t code;
        len = dh_utf8_next(text + at, n - at, &code);
        const bool line = code == '\t' || code == '\n' || code == '\r';
        if (line || dh_is_white_space(code)) {
            if (line || !dh_is_other(code)) dh_str_append(out, " ", 1);
        } else if (code != 0xFFFD && !dh_is_other(code)) {
            dh_str_append(out, (const char *)text + at, len);
        }
    }
    return DH_OK;
}

/* The blocks of CJK ideographs as BERT lists them. */
static bool is_chinese(uint32_t code)
{
    static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < DH_COUNTOF(blocks); i++)
        if (code >= blocks[i][0] && code <= blocks[i][1]) return true;
    return false;
}

static dh_status by_spacing_chinese(dh_ctx *ctx, const dh_normalize_step *step,
                                    dh_normalize_work *work, const unsigned char *text, size_t n,
                                    dh_str *out)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t code;
        len = dh_utf8_next(text + at, n - at, &code);
        const bool chinese = is_chinese(code);
        if (chinese) dh_str_append(out, " ", 1);
        dh_str_append(out, (const char *)text + at, len);
        if (chinese) dh_str_append(out, " ", 1);
    }
    return DH_OK;
}

static dh_status by_dropping_accents(dh_ctx *ctx, const dh_normalize_step *step,
                                     dh_normalize_work *work, const unsigned char *text, size_t n,
                                     dh_str *out)
{
    dh_str decomposed = DH_STR_INIT;
    dh_normal_form(DH_NFD, &work->form, text, n, &decomposed);
    if (decomposed.text)
        keep((const unsigned char *)decomposed.text, decomposed.len, dh_is_nonspacing_mark, out);
    out->failed = out->failed || decomposed.failed;
    dh_str_fini(&decomposed);
    return DH_OK;
}

/* ---- steps: tables --------------------------------------------------------------------------- */

/* Control characters go, what stands for a space becomes one (SentencePiece's nmt rules). */
static bool nmt_drops(uint32_t code)
{
    return (code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) ||
           code == 0x7F || code == 0x8F || code == 0x9F;
}

static bool nmt_space(uint32_t code)
{
    return code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
           (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
           code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
}

static dh_status by_nmt(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                        const unsigned char *text, size_t n, dh_str *out)
{
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t code;
        len = dh_utf8_next(text + at, n - at, &code);
        if (nmt_space(code))
            dh_str_append(out, " ", 1);
        else if (!nmt_drops(code))
            dh_str_append(out, (const char *)text + at, len);
    }
    return DH_OK;
}

static dh_status by_charsmap(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                             const unsigned char *text, size_t n, dh_str *out)
{
    work->full = !dh_charsmap_by_graphemes(&step->map, text, n, work->most, out);
    return DH_OK;
}

const dh_normalize_kind dh_normalize_form = {"form", by_form},
                        dh_normalize_lowercase = {"lowercase", by_lowercase},
                        dh_normalize_strip_accents = {"strip accents", by_dropping_marks},
                        dh_normalize_strip = {"strip", by_stripping},
                        dh_normalize_replace = {"replace", by_replacing},
                        dh_normalize_prepend = {"prepend", by_prepending},
                        dh_normalize_bert_clean = {"bert clean", by_cleaning},
                        dh_normalize_bert_chinese = {"bert chinese", by_spacing_chinese},
                        dh_normalize_bert_accents = {"bert accents", by_dropping_accents},
                        dh_normalize_nmt = {"nmt", by_nmt},
                        dh_normalize_charsmap = {"charsmap", by_charsmap},
                        dh_normalize_bytes = {"bytes", by_bytes};

/* ---- the list -------------------------------------------------------------------------------- */

static void free_step(dh_normalize_step *step)
{
    dh_pattern_free(step->pattern);
    free(step->text);
    dh_charsmap_fini(&step->map);
}

void dh_normalizer_fini(dh_normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->steps.n; i++) free_step(&normalizer->steps.at[i]);
    dh_vec_fini(&normalizer->steps);
}

dh_status dh_normalizer_add(dh_ctx *ctx, dh_normalizer *normalizer, dh_normalize_step step,
                            uint64_t hash)
{
    if (normalizer->steps.n == DH_MOST_NORMALIZE_STEPS) {
        free_step(&step);
        return dh_fail(ctx, DH_EUNSUPPORTED, "more than %d steps that normalise text",
                       DH_MOST_NORMALIZE_STEPS);
    }
    const uint64_t facts[] = {normalizer->hash, hash, step.form, step.left, step.right};
    normalizer->hash = XXH3_64bits_withSeed(step.kind->name, strlen(step.kind->name),
                                            XXH3_64bits(facts, sizeof facts));
    normalizer->n_patterns += step.pattern != NULL;
    if (dh_vec_push(&normalizer->steps, step)) return DH_OK;
    free_step(&step);
    return dh_no_memory(ctx);
}

dh_status dh_normalize_work_create(dh_ctx *ctx, dh_normalize_work **work)
{
    dh_normalize_work *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    dh_status st = dh_pattern_work_create(ctx, &made->pattern);
    if (st == DH_OK)
        *work = made;
    else
        free(made);
    return st;
}

void dh_normalize_work_destroy(dh_normalize_work *work)
{
    if (!work) return;
    dh_str_fini(&work->text[0]);
    dh_str_fini(&work->text[1]);
    dh_form_work_fini(&work->form);
    dh_pattern_work_destroy(work->pattern);
    free(work);
}

dh_status dh_normalize(dh_ctx *ctx, const dh_normalizer *normalizer, dh_normalize_work *work,
                       const unsigned char *text, size_t n, const unsigned char **out,
                       size_t *n_out)
{
    const size_t n_given = n;
    if (normalizer->n_patterns) dh_pattern_begin(work->pattern, n, normalizer->n_patterns);
    work->most = dh_growth_most(n);
    work->full = false;
    for (size_t i = 0; i < normalizer->steps.n && n > 0; i++) {
        const dh_normalize_step *step = &normalizer->steps.at[i];
        dh_str *to = &work->text[i % 2];
        dh_str_clear(to);
        DH_TRY(step->kind->apply(ctx, step, work, text, n, to));
        if (to->failed) return dh_no_memory(ctx);
        if (work->full || to->len > work->most) {
            char name[64];
            snprintf(name, sizeof name, "normalizer %zu (%s)", i + 1, step->kind->name);
            return dh_growth_fail(ctx, name, n_given);
        }
        text = (const unsigned char *)to->text;
        n = to->len;
    }
    *out = text;
    *n_out = n;
    return DH_OK;
}
