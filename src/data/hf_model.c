/* "model" and "added_tokens" of tokenizer.json. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/hf.h"

/* ---- which kind -------------------------------------------------------------------------- */

/* Nodes of a section, Sequences opened, calls fn for each until it says no. */
static bool all_nodes(const json_t *node, const char *list,
                      bool (*fn)(const json_t *node, void *arg), void *arg)
{
    if (!node || json_is_null(node)) return true;
    if (strcmp(hf_string(node, "type"), "Sequence") != 0) return fn(node, arg);
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(node, list), i, part)
    {
        if (!all_nodes(part, list, fn, arg)) return false;
    }
    return true;
}

/* How the pre_tokenizer ends in ByteLevel: how many there are, how many nodes behind the first. */
typedef struct byte_levels {
    int n, behind;
} byte_levels;

static bool count_byte_level(const json_t *node, void *arg)
{
    byte_levels *b = arg;
    const bool is = strcmp(hf_string(node, "type"), "ByteLevel") == 0;
    b->behind += b->n > 0;
    b->n += is;
    return true;
}

/* Also where the file's text has a NUL. */
static bool is_text(const json_t *node, const char *key, const char *want)
{
    const json_t *text = json_object_get(node, key);
    return json_string_length(text) == strlen(want) && strcmp(hf_string(node, key), want) == 0;
}

/* Spaces become U+2581 and nothing else happens. */
static bool marks_spaces(const json_t *node, void *arg)
{
    bool *marks = arg;
    const char *type = hf_string(node, "type");
    const bool replace = strcmp(type, "Replace") == 0, metaspace = strcmp(type, "Metaspace") == 0;
    if (strcmp(type, "Prepend") == 0) return is_text(node, "prepend", DH_META_SPACE);
    if (replace && (!is_text(json_object_get(node, "pattern"), "String", " ") ||
                    !is_text(node, "content", DH_META_SPACE)))
        return false;
    if (metaspace && (!is_text(node, "replacement", DH_META_SPACE) ||
                      !json_is_false(json_object_get(node, "split"))))
        return false;
    *marks = *marks || replace || metaspace;
    return replace || metaspace;
}

static bool has_affixes(const hf_file *hf)
{
    return json_string_length(json_object_get(hf->model, "continuing_subword_prefix")) > 0 ||
           json_string_length(json_object_get(hf->model, "end_of_word_suffix")) > 0;
}

/* The Llama 2 kind: U+2581 may be kept as a space, since texts are not split. */
static bool is_whole_text(const hf_file *hf)
{
    const json_t *normalizer = json_object_get(hf->root, "normalizer");
    const json_t *pre = json_object_get(hf->root, "pre_tokenizer");
    bool marks = false;
    return !hf_is_set(hf->model, "ignore_merges") && !has_affixes(hf) &&
           all_nodes(normalizer, "normalizers", marks_spaces, &marks) &&
           all_nodes(pre, "pretokenizers", marks_spaces, &marks) && marks;
}

static const dh_tok_kind *kind_of_bpe(const hf_file *hf)
{
    byte_levels b = {0};
    all_nodes(json_object_get(hf->root, "pre_tokenizer"), "pretokenizers", count_byte_level, &b);
    if (b.n == 1 && b.behind == 0 && !has_affixes(hf)) return &dh_tok_bpe;
    return is_whole_text(hf) ? &dh_tok_spm : &dh_tok_character_bpe;
}

dh_status hf_choose_kind(dh_ctx *ctx, const hf_file *hf, const dh_tok_kind **kind)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    static const dh_tok_kind *const kinds[] = {NULL, &dh_tok_unigram, &dh_tok_wordpiece,
                                               &dh_tok_wordlevel};
    if (!json_is_object(hf->model)) return dh_fail(ctx, DH_EFORMAT, "there is no \"model\"");
    const char *type = hf_string(hf->model, "type");
    if (!*type) type = json_is_array(hf->vocab) ? "Unigram" : "BPE"; /* older files */
    const json_t *dropout = json_object_get(hf->model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "model with \"dropout\" %g, which draws tokens: set it to null",
                       json_number_value(dropout));
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        if (strcmp(type, names[i]) != 0) continue;
        *kind = kinds[i] ? kinds[i] : kind_of_bpe(hf);
        return DH_OK;
    }
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "model of type \"%.40s\"; BPE, Unigram, WordPiece and WordLevel are read", type);
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

static dh_status add_spm_token(dh_ctx *ctx, hf_file *hf, const char *text, size_t n, uint64_t id)
{
    dh_tokenizer *tok = hf->tok;
    int byte = hf_is_set(hf->model, "byte_fallback") ? dh_spm_byte_piece(text, n) : -1;
    if (byte >= 0) {
        unsigned char value = (unsigned char)byte;
        tok->byte_id[value] = (uint32_t)id;
        return dh_vocab_set(ctx, &tok->vocab, id, &value, 1, DH_PIECE_BYTE);
    }
    char *copy = malloc(n + 1);
    if (!copy) return dh_no_memory(ctx);
    memcpy(copy, text, n);
    dh_status st =
        dh_vocab_set(ctx, &tok->vocab, id, copy, dh_spm_unescape(copy, n), DH_PIECE_NORMAL);
    free(copy);
    return st;
}

/* As the file spells it; tokens of single bytes are remembered where they stand in for the rest. */
static dh_status add_plain_token(dh_ctx *ctx, hf_file *hf, const char *text, size_t n, uint64_t id)
{
    const int byte = hf_is_set(hf->model, "byte_fallback") ? dh_spm_byte_piece(text, n) : -1;
    DH_TRY(dh_vocab_set(ctx, &hf->tok->vocab, id, text, n, DH_PIECE_NORMAL));
    if (byte >= 0) hf->tok->byte_id[byte] = (uint32_t)id;
    return DH_OK;
}

static dh_status add_vocab(dh_ctx *ctx, hf_file *hf)
{
    const char *text;
    size_t n;
    json_t *id;
    DH_TRY(dh_json_check_vocab(ctx, hf->vocab));
    json_object_keylen_foreach(hf->vocab, text, n, id)
    {
        uint64_t value = (uint64_t)json_integer_value(id);
        if (hf->tok->kind == &dh_tok_bpe)
            DH_TRY(dh_bpe_add_token(ctx, hf->tok, text, n, value, DH_PIECE_NORMAL));
        else if (hf->tok->kind == &dh_tok_spm)
            DH_TRY(add_spm_token(ctx, hf, text, n, value));
        else
            DH_TRY(add_plain_token(ctx, hf, text, n, value));
    }
    return DH_OK;
}

/* Of unigram: [[text, score], ...]; ids are places. */
static dh_status add_scored_vocab(dh_ctx *ctx, hf_file *hf)
{
    dh_tokenizer *tok = hf->tok;
    double lowest = HUGE_VAL;
    size_t i;
    json_t *piece;
    if (!json_is_array(hf->vocab) || json_array_size(hf->vocab) == 0)
        return dh_fail(ctx, DH_EFORMAT, "the vocabulary is not a list of [text, score]");
    if (!dh_vec_reserve(&tok->scores, json_array_size(hf->vocab))) return dh_no_memory(ctx);
    json_array_foreach(hf->vocab, i, piece)
    {
        const json_t *text = json_array_get(piece, 0), *score = json_array_get(piece, 1);
        const double value = json_number_value(score);
        if (!json_is_string(text) || !json_is_number(score) || !isfinite(value))
            return dh_fail(ctx, DH_EFORMAT, "token %zu is not [text, score]", i);
        DH_TRY(add_plain_token(ctx, hf, json_string_value(text), json_string_length(text), i));
        tok->scores.at[tok->scores.n++] = value;
        lowest = DH_MIN(lowest, value);
    }
    tok->unk_score = lowest - DH_UNIGRAM_UNK_PENALTY;
    return DH_OK;
}

/* ---- merges -------------------------------------------------------------------------------- */

static dh_status add_spm_merge(dh_ctx *ctx, dh_tokenizer *tok, const char *left, size_t n_left,
                               const char *right, size_t n_right, uint32_t rank)
{
    char *joined = malloc(n_left + n_right + 1);
    if (!joined) return dh_no_memory(ctx);
    memcpy(joined, left, n_left);
    size_t n_l = dh_spm_unescape(joined, n_left);
    memcpy(joined + n_l, right, n_right);
    size_t n_r = dh_spm_unescape(joined + n_l, n_right);
    uint32_t l = dh_vocab_find(&tok->vocab, joined, n_l);
    uint32_t r = dh_vocab_find(&tok->vocab, joined + n_l, n_r);
    uint32_t id = dh_vocab_find(&tok->vocab, joined, n_l + n_r);
    free(joined);
    if (l == DH_NO_ID || r == DH_NO_ID || id == DH_NO_ID)
        return dh_fail(ctx, DH_EFORMAT,
                       "\"%.*s\" + \"%.*s\": a part or the result is not in the "
                       "vocabulary",
                       (int)DH_MIN(n_left, 60), left, (int)DH_MIN(n_right, 60), right);
    return dh_pairs_add(ctx, &tok->pairs, l, r, rank, id);
}

/* The right part's prefix of continuing pieces is not in the result. */
static dh_status add_plain_merge(dh_ctx *ctx, dh_tokenizer *tok, const char *left, size_t n_left,
                                 const char *right, size_t n_right, uint32_t rank)
{
    const size_t skip = DH_MIN(tok->word_prefix.len, n_right);
    dh_str joined = DH_STR_INIT;
    dh_str_append(&joined, left, n_left);
    dh_str_append(&joined, right + skip, n_right - skip);
    if (joined.failed) {
        dh_str_fini(&joined);
        return dh_no_memory(ctx);
    }
    const uint32_t l = dh_vocab_find(&tok->vocab, left, n_left);
    const uint32_t r = dh_vocab_find(&tok->vocab, right, n_right);
    const uint32_t id = dh_vocab_find(&tok->vocab, joined.text, joined.len);
    dh_str_fini(&joined);
    if (l == DH_NO_ID || r == DH_NO_ID || id == DH_NO_ID)
        return dh_fail(ctx, DH_EFORMAT,
                       "\"%.*s %.*s\": a part or the result is not in the vocabulary",
                       (int)DH_MIN(n_left, 60), left, (int)DH_MIN(n_right, 60), right);
    return dh_pairs_add(ctx, &tok->pairs, l, r, rank, id);
}

/* A merge is "a b", or ["a", "b"] in newer files. */
static dh_status add_merge(dh_ctx *ctx, hf_file *hf, const json_t *merge, uint32_t rank)
{
    const json_t *first = json_array_get(merge, 0), *second = json_array_get(merge, 1);
    const char *left = json_string_value(json_is_string(merge) ? merge : first);
    const char *right = json_string_value(second);
    size_t n_left = json_string_length(first), n_right = json_string_length(second);
    if (json_is_string(merge)) {
        const char *space = memchr(left, ' ', json_string_length(merge));
        n_left = space ? (size_t)(space - left) : 0;
        n_right = space ? json_string_length(merge) - n_left - 1 : 0;
        right = space ? space + 1 : NULL;
    }
    if (!left || !right || n_left == 0 || n_right == 0)
        return dh_fail(ctx, DH_EFORMAT, "neither \"a b\" nor [\"a\", \"b\"]");
    const bool bytes = hf->tok->kind == &dh_tok_bpe, spaces = hf->tok->kind == &dh_tok_spm;
    return (bytes    ? dh_bpe_add_merge
            : spaces ? add_spm_merge
                     : add_plain_merge)(ctx, hf->tok, left, n_left, right, n_right, rank);
}

static dh_status add_merges(dh_ctx *ctx, hf_file *hf)
{
    json_t *list = json_object_get(hf->model, "merges"), *merge;
    if (!json_is_array(list)) return dh_fail(ctx, DH_EFORMAT, "\"model\" has no list \"merges\"");
    size_t i;
    json_array_foreach(list, i, merge)
    {
        if (add_merge(ctx, hf, merge, (uint32_t)i) != DH_OK)
            return dh_ctx_while(ctx, "reading merge %zu", i);
    }
    return DH_OK;
}

/* The form of an added token in a normalised text. */
static dh_status add_normalized(dh_ctx *ctx, hf_file *hf, uint32_t id, const json_t *content)
{
    const unsigned char *text;
    size_t n;
    DH_TRY(dh_normalize(ctx, &hf->tok->normalizer, hf->normalize,
                        (const unsigned char *)json_string_value(content),
                        json_string_length(content), &text, &n));
    return dh_vocab_replace(ctx, &hf->tok->user_texts, id, n ? (const void *)text : "", n,
                            DH_PIECE_USER);
}

static dh_status add_special_token(dh_ctx *ctx, hf_file *hf, json_t *node, uint64_t limit)
{
    dh_tokenizer *tok = hf->tok;
    const json_t *id = json_object_get(node, "id"), *content = json_object_get(node, "content");
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        (uint64_t)json_integer_value(id) > limit || !json_is_string(content) ||
        json_string_length(content) == 0)
        return dh_fail(ctx, DH_EFORMAT, "not {\"id\": 0..%llu, \"content\": text, ...}",
                       (unsigned long long)limit);
    dh_match_entry entry = {.id = (uint32_t)json_integer_value(id),
                            .always = !hf_is_set(node, "special"),
                            .lstrip = hf_is_set(node, "lstrip"),
                            .rstrip = hf_is_set(node, "rstrip"),
                            .single_word = hf_is_set(node, "single_word")};
    DH_TRY(dh_vocab_replace(ctx, &tok->vocab, entry.id, json_string_value(content),
                            json_string_length(content),
                            entry.always ? DH_PIECE_USER : DH_PIECE_SPECIAL));
    if (!hf->normalize || !hf_is_set(node, "normalized"))
        return dh_matcher_add(ctx, &tok->specials, entry);
    DH_TRY(add_normalized(ctx, hf, entry.id, content));
    return dh_matcher_add(ctx, &tok->user, entry);
}

static dh_status add_special_tokens(dh_ctx *ctx, hf_file *hf)
{
    json_t *list = json_object_get(hf->root, "added_tokens"), *node;
    uint64_t limit = dh_json_id_limit(json_object_size(hf->vocab) + json_array_size(list));
    size_t i;
    if (hf->tok->normalizer.steps.n) DH_TRY(dh_normalize_work_create(ctx, &hf->normalize));
    dh_status st = DH_OK;
    json_array_foreach(list, i, node)
    {
        if (st != DH_OK) break;
        st = add_special_token(ctx, hf, node, limit);
        if (st != DH_OK) dh_ctx_while(ctx, "reading added token %zu", i);
    }
    dh_normalize_work_destroy(hf->normalize);
    hf->normalize = NULL;
    return st;
}

/* An unknown token that is an added token stays special, except in tokenizers that know one
 * kind. */
static void mark_unknown(dh_tokenizer *tok)
{
    dh_piece *p = &tok->vocab.pieces.at[tok->unk];
    const bool one = tok->kind == &dh_tok_spm || tok->kind == &dh_tok_bpe;
    if (one || p->kind == DH_PIECE_NORMAL) p->kind = DH_PIECE_UNKNOWN;
}

static dh_status set_unknown_id(dh_ctx *ctx, hf_file *hf)
{
    const json_t *id = json_object_get(hf->model, "unk_id");
    const json_int_t value = json_integer_value(id);
    if (!id || json_is_null(id)) return DH_OK;
    if (!json_is_integer(id) || value < 0 || (size_t)value >= json_array_size(hf->vocab))
        return dh_fail(ctx, DH_EFORMAT, "unk_id is not the index of a token of the vocabulary");
    hf->tok->unk = (uint32_t)value;
    mark_unknown(hf->tok);
    return DH_OK;
}

static dh_status set_unknown(dh_ctx *ctx, hf_file *hf)
{
    if (hf->tok->kind == &dh_tok_unigram) return set_unknown_id(ctx, hf);
    const char *text = hf_string(hf->model, "unk_token");
    const size_t n = json_string_length(json_object_get(hf->model, "unk_token"));
    const json_t *id = json_object_getn(hf->vocab, text, n);
    if (n == 0) return DH_OK;
    if (!id) return dh_fail(ctx, DH_EFORMAT, "unk_token \"%.60s\" is not in the vocabulary", text);
    hf->tok->unk = (uint32_t)json_integer_value(id);
    mark_unknown(hf->tok);
    return DH_OK;
}

/* ---- the model ------------------------------------------------------------------------------ */

static dh_status take_affix(dh_ctx *ctx, const hf_file *hf, const char *key, const char *absent,
                            dh_str *affix)
{
    const json_t *text = json_object_get(hf->model, key);
    const bool said = json_is_string(text);
    dh_str_append(affix, said ? json_string_value(text) : absent,
                  said ? json_string_length(text) : strlen(absent));
    return affix->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status read_bpe(dh_ctx *ctx, hf_file *hf)
{
    dh_tokenizer *tok = hf->tok;
    const bool spaces = tok->kind == &dh_tok_spm;
    tok->ignore_merges = hf_is_set(hf->model, "ignore_merges");
    tok->fuse_unk = hf_is_set(hf->model, "fuse_unk");
    tok->escape_space = spaces;
    tok->strip_prefix = spaces && tok->prefix != DH_PREFIX_NONE;
    DH_TRY(take_affix(ctx, hf, "continuing_subword_prefix", "", &tok->word_prefix));
    DH_TRY(take_affix(ctx, hf, "end_of_word_suffix", "", &tok->word_suffix));
    DH_TRY(add_vocab(ctx, hf));
    DH_TRY(dh_vocab_index(ctx, &tok->vocab));
    return add_merges(ctx, hf);
}

static dh_status read_wordpiece(dh_ctx *ctx, hf_file *hf)
{
    const json_t *longest = json_object_get(hf->model, "max_input_chars_per_word");
    if (longest && (!json_is_integer(longest) || json_integer_value(longest) < 0))
        return dh_fail(ctx, DH_EFORMAT, "max_input_chars_per_word must be a number of characters");
    hf->tok->longest_word = longest ? (size_t)json_integer_value(longest) : 100;
    DH_TRY(take_affix(ctx, hf, "continuing_subword_prefix", "##", &hf->tok->word_prefix));
    return add_vocab(ctx, hf);
}

/* Whether no merge makes a token with U+2581 behind another character. */
static bool words_end_at_mark(const dh_tokenizer *tok)
{
    enum { LEN = sizeof DH_META_SPACE - 1 };
    if (tok->ignore_merges || tok->word_prefix.len || tok->word_suffix.len ||
        dh_vocab_find(&tok->vocab, DH_META_SPACE, LEN) == DH_NO_ID)
        return false;
    for (size_t i = 0; i < tok->pairs.pairs.n; i++) {
        const uint32_t id = tok->pairs.pairs.at[i].id;
        const unsigned char *text = dh_vocab_bytes(&tok->vocab, id);
        for (size_t at = 1; at + LEN <= tok->vocab.pieces.at[id].len; at++)
            if (memcmp(text + at, DH_META_SPACE, LEN) == 0 &&
                (at < LEN || memcmp(text + at - LEN, DH_META_SPACE, LEN) != 0))
                return false;
    }
    return true;
}

/* BPE alone goes on without an unknown token. Texts lose characters then, silently elsewhere. */
static void set_dropping(dh_tokenizer *tok)
{
    const bool bpe =
        tok->kind == &dh_tok_spm || tok->kind == &dh_tok_bpe || tok->kind == &dh_tok_character_bpe;
    bool all = true;
    for (int i = 0; i < 256; i++) all = all && tok->byte_id[i] != DH_NO_ID;
    tok->drops_unknown = bpe && tok->unk == DH_NO_ID && !all;
    if (tok->drops_unknown)
        dh_log(DH_LOG_WARN, "the tokenizer has neither tokens of all bytes nor an unknown token: "
                            "characters without a token are left out, as by Transformers");
}

/* Further tables for encoding, made of the pieces that are not special. */
static dh_status derive(dh_ctx *ctx, dh_tokenizer *tok)
{
    if (tok->kind == &dh_tok_spm) dh_spm_survey(tok);
    if (tok->kind == &dh_tok_bpe) dh_bpe_set_bytes(tok);
    set_dropping(tok);
    if (tok->kind == &dh_tok_character_bpe) tok->cut_at_mark = words_end_at_mark(tok);
    if (tok->kind != &dh_tok_unigram && tok->kind != &dh_tok_wordpiece) return DH_OK;
    DH_TRY(dh_trie_build(ctx, &tok->vocab, &tok->trie));
    tok->continuing = 0;
    for (size_t i = 0; i < tok->word_prefix.len && tok->continuing != DH_NONE; i++)
        tok->continuing =
            dh_trie_step(&tok->trie, tok->continuing, (unsigned char)tok->word_prefix.text[i]);
    return DH_OK;
}

dh_status hf_read_model(dh_ctx *ctx, hf_file *hf)
{
    const dh_tok_kind *kind = hf->tok->kind;
    if (kind == &dh_tok_unigram)
        DH_TRY(add_scored_vocab(ctx, hf));
    else if (kind == &dh_tok_wordpiece)
        DH_TRY(read_wordpiece(ctx, hf));
    else if (kind == &dh_tok_wordlevel)
        DH_TRY(add_vocab(ctx, hf));
    else
        DH_TRY(read_bpe(ctx, hf));
    DH_TRY(add_special_tokens(ctx, hf));
    DH_TRY(set_unknown(ctx, hf));
    DH_TRY(dh_vocab_index(ctx, &hf->tok->vocab)); /* without those that turned out special */
    return derive(ctx, hf->tok);
}
