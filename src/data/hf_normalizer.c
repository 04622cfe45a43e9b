/* "normalizer" of tokenizer.json: one row a type. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/hf.h"

static dh_status add(dh_ctx *ctx, hf_file *hf, dh_normalize_step step, uint64_t hash)
{
    return dh_normalizer_add(ctx, &hf->tok->normalizer, step, hash);
}

static dh_status add_form(dh_ctx *ctx, hf_file *hf, dh_unicode_form form)
{
    return add(ctx, hf, (dh_normalize_step){.kind = &dh_normalize_form, .form = form}, 0);
}

static dh_status read_nfc(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add_form(ctx, hf, DH_NFC);
}

static dh_status read_nfd(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add_form(ctx, hf, DH_NFD);
}

static dh_status read_nfkc(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add_form(ctx, hf, DH_NFKC);
}

static dh_status read_nfkd(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add_form(ctx, hf, DH_NFKD);
}

static dh_status read_lowercase(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_normalize_step){.kind = &dh_normalize_lowercase}, 0);
}

static dh_status read_strip_accents(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_normalize_step){.kind = &dh_normalize_strip_accents}, 0);
}

static dh_status read_nmt(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_normalize_step){.kind = &dh_normalize_nmt}, 0);
}

static dh_status read_bytes(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_normalize_step){.kind = &dh_normalize_bytes}, 0);
}

static dh_status read_strip(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const dh_normalize_step step = {.kind = &dh_normalize_strip,
                                    .left = hf_is_set(node, "strip_left"),
                                    .right = hf_is_set(node, "strip_right")};
    return add(ctx, hf, step, 0);
}

/* A copy of a node's text. */
static dh_status take_text(dh_ctx *ctx, const json_t *node, const char *key,
                           dh_normalize_step *step, uint64_t *hash)
{
    const json_t *text = json_object_get(node, key);
    if (!json_is_string(text))
        return dh_fail(ctx, DH_EFORMAT, "normalizer %s has no text \"%s\"", hf_string(node, "type"),
                       key);
    step->n_text = json_string_length(text);
    step->text = malloc(step->n_text + 1);
    if (!step->text) return dh_no_memory(ctx);
    memcpy(step->text, json_string_value(text), step->n_text + 1);
    *hash = XXH3_64bits_withSeed(step->text, step->n_text, *hash);
    return DH_OK;
}

static dh_status read_prepend(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_normalize_step step = {.kind = &dh_normalize_prepend};
    uint64_t hash = 0;
    DH_TRY(take_text(ctx, node, "prepend", &step, &hash));
    return add(ctx, hf, step, hash);
}

static dh_status read_replace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_normalize_step step = {.kind = &dh_normalize_replace};
    const char *text;
    size_t n;
    bool regex;
    DH_TRY(hf_pattern(ctx, node, &text, &n, &regex));
    uint64_t hash = XXH3_64bits_withSeed(text, n, regex);
    DH_TRY(take_text(ctx, node, "content", &step, &hash));
    dh_status st = dh_pattern_compile(ctx, text, n, !regex, &step.pattern);
    if (st != DH_OK) {
        free(step.text);
        return st;
    }
    return add(ctx, hf, step, hash);
}

/* strip_accents null: as lowercase says. */
static dh_status read_bert(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const bool lowercase = hf_is_set(node, "lowercase");
    const json_t *accents = json_object_get(node, "strip_accents");
    const bool strip = json_is_boolean(accents) ? json_is_true(accents) : lowercase;
    const struct {
        bool wanted;
        const dh_normalize_kind *kind;
    } steps[] = {{hf_is_set(node, "clean_text"), &dh_normalize_bert_clean},
                 {hf_is_set(node, "handle_chinese_chars"), &dh_normalize_bert_chinese},
                 {strip, &dh_normalize_bert_accents},
                 {lowercase, &dh_normalize_lowercase}};
    for (size_t i = 0; i < DH_COUNTOF(steps); i++)
        if (steps[i].wanted) DH_TRY(add(ctx, hf, (dh_normalize_step){.kind = steps[i].kind}, 0));
    return DH_OK;
}

/* ---- Precompiled: base64 --------------------------------------------------------------------- */

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* out: [3 * n / 4 + 3]. false: a character that is no digit. */
static bool base64_decode(const char *text, size_t n, unsigned char *out, size_t *n_out)
{
    uint32_t bits = 0;
    unsigned n_bits = 0;
    *n_out = 0;
    while (n > 0 && text[n - 1] == '=') n--;
    for (size_t i = 0; i < n; i++) {
        const int digit = base64_digit(text[i]);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[(*n_out)++] = (unsigned char)(bits >> n_bits);
    }
    return true;
}

static dh_status read_precompiled(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_normalize_step step = {.kind = &dh_normalize_charsmap};
    const json_t *text = json_object_get(node, "precompiled_charsmap");
    const size_t n = json_string_length(text);
    size_t n_bytes;
    if (json_is_null(text) || (text && n == 0)) return DH_OK; /* writes everything as it is */
    if (!json_is_string(text))
        return dh_fail(ctx, DH_EFORMAT, "normalizer Precompiled has no precompiled_charsmap");
    unsigned char *bytes = malloc(n / 4 * 3 + 3);
    if (!bytes) return dh_no_memory(ctx);
    dh_status st = base64_decode(json_string_value(text), n, bytes, &n_bytes)
                       ? dh_charsmap_read(ctx, bytes, n_bytes, &step.map)
                       : dh_fail(ctx, DH_EFORMAT, "precompiled_charsmap is not base64");
    free(bytes);
    return st == DH_OK ? add(ctx, hf, step, dh_charsmap_hash(&step.map)) : st;
}

static const hf_row rows[] = {{"NFC", read_nfc},
                              {"NFD", read_nfd},
                              {"NFKC", read_nfkc},
                              {"NFKD", read_nfkd},
                              {"Lowercase", read_lowercase},
                              {"StripAccents", read_strip_accents},
                              {"Strip", read_strip},
                              {"Replace", read_replace},
                              {"Prepend", read_prepend},
                              {"BertNormalizer", read_bert},
                              {"Nmt", read_nmt},
                              {"Precompiled", read_precompiled},
                              {"ByteLevel", read_bytes}};
static const hf_section section = {"normalizer", "normalizers", rows, DH_COUNTOF(rows), true};

dh_status hf_read_normalizer(dh_ctx *ctx, hf_file *hf)
{
    return hf_apply_section(ctx, hf, &section);
}
