/* Hugging Face tokenizer.json with a BPE model, of two kinds:
 *
 *   byte-level  pre_tokenizer with a ByteLevel step, after any Split and Digits steps
 *               (GPT-2, Llama 3, Qwen without NFC)
 *   SPM         normalizer Prepend + Replace or pre_tokenizer Metaspace, byte_fallback
 *               (Llama 2, Mistral)
 *
 * Each section is a node {"type": ...} or a Sequence of them; a node type is one row of
 * a table here. What has no row is refused by name. */
#include "data/tok_json.h"

#include <stdlib.h>
#include <string.h>

typedef struct hf_file {
    dh_tokenizer *tok;
    json_t *root, *model, *vocab;
    bool byte_level_seen;
} hf_file;

static const char *string_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* ---- sections: a node or a Sequence of nodes ------------------------------------------- */

typedef struct node_row {
    const char *type;
    dh_status (*apply)(dh_ctx *ctx, hf_file *hf, json_t *node);
} node_row;

typedef struct section {
    const char *name, *list; /* key in the file; key of a Sequence's list */
    const node_row *rows;
    size_t n_rows;
} section;

static dh_status apply_node(dh_ctx *ctx, hf_file *hf, const section *s, json_t *node)
{
    if (!node || json_is_null(node)) return DH_OK;
    const char *type = string_at(node, "type");
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *part;
        json_array_foreach(json_object_get(node, s->list), i, part)
            DH_TRY(apply_node(ctx, hf, s, part));
        return DH_OK;
    }
    for (size_t i = 0; i < s->n_rows; i++)
        if (strcmp(type, s->rows[i].type) == 0) return s->rows[i].apply(ctx, hf, node);
    return dh_fail(ctx, DH_EUNSUPPORTED, "%s of type \"%.60s\" in a %s tokenizer", s->name, type,
                   hf->tok->kind == &dh_tok_bpe ? "byte-level" : "SentencePiece-like");
}

static dh_status apply_section(dh_ctx *ctx, hf_file *hf, const section *s)
{
    return apply_node(ctx, hf, s, json_object_get(hf->root, s->name));
}

/* ---- byte-level steps -------------------------------------------------------------------- */

static dh_status check_before_byte_level(dh_ctx *ctx, const hf_file *hf, const char *type)
{
    if (!hf->byte_level_seen) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED, "pre_tokenizer %s after ByteLevel", type);
}

static dh_status step_split(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    DH_TRY(check_before_byte_level(ctx, hf, "Split"));
    const json_t *pattern = json_object_get(node, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    const char *behavior = string_at(node, "behavior");
    if (!json_is_string(text))
        return dh_fail(ctx, DH_EFORMAT, "pre_tokenizer Split has no pattern");
    if (strcmp(behavior, "Isolated") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "pre_tokenizer Split with behavior \"%.40s\"; "
                       "Isolated is read",
                       behavior);
    return dh_splitter_add(ctx, &hf->tok->splitter, json_string_value(text),
                           json_string_length(text), !regex);
}

static dh_status step_digits(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    DH_TRY(check_before_byte_level(ctx, hf, "Digits"));
    const char *pattern = is_set(node, "individual_digits") ? "\\p{N}" : "\\p{N}+";
    return dh_splitter_add(ctx, &hf->tok->splitter, pattern, strlen(pattern), false);
}

static dh_status step_byte_level(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    DH_TRY(check_before_byte_level(ctx, hf, "ByteLevel"));
    hf->byte_level_seen = true;
    if (is_set(node, "add_prefix_space")) {
        if (hf->tok->splitter.codes.n)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "pre_tokenizer ByteLevel with add_prefix_space after a split");
        hf->tok->prefix = DH_PREFIX_MISSING;
    }
    if (json_is_false(json_object_get(node, "use_regex"))) return DH_OK;
    return dh_splitter_add(ctx, &hf->tok->splitter, DH_GPT2_PATTERN, strlen(DH_GPT2_PATTERN),
                           false);
}

static const node_row byte_level_rows[] = {
    {"Split", step_split}, {"Digits", step_digits}, {"ByteLevel", step_byte_level}};
static const section byte_level_steps = {"pre_tokenizer", "pretokenizers", byte_level_rows,
                                         DH_COUNTOF(byte_level_rows)};
static const section no_normalizer = {"normalizer", "normalizers", NULL, 0};

/* ---- SentencePiece-like steps --------------------------------------------------------------- */

#define META_SPACE "\xE2\x96\x81"

static dh_status normalize_prepend(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    if (strcmp(string_at(node, "prepend"), META_SPACE) != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED, "normalizer Prepend of other than U+2581");
    hf->tok->prefix = DH_PREFIX_ALWAYS;
    return DH_OK;
}

static dh_status normalize_replace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const char *from = string_at(json_object_get(node, "pattern"), "String");
    if (strcmp(from, " ") != 0 || strcmp(string_at(node, "content"), META_SPACE) != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED, "normalizer Replace of other than space by U+2581");
    return DH_OK;
}

static dh_status step_metaspace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    static const struct {
        const char *scheme;
        dh_prefix prefix;
        bool first_only;
    } schemes[] = {{"always", DH_PREFIX_MISSING, false},
                   {"first", DH_PREFIX_MISSING, true},
                   {"never", DH_PREFIX_NONE, false}};
    if (strcmp(string_at(node, "replacement"), META_SPACE) != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED, "pre_tokenizer Metaspace with other than U+2581");
    if (!json_is_false(json_object_get(node, "split")))
        return dh_fail(ctx, DH_EUNSUPPORTED, "pre_tokenizer Metaspace without \"split\": false");
    const char *scheme = string_at(node, "prepend_scheme");
    for (size_t i = 0; i < DH_COUNTOF(schemes); i++) {
        if (strcmp(scheme, schemes[i].scheme) != 0) continue;
        hf->tok->prefix = schemes[i].prefix;
        hf->tok->prefix_first_only = schemes[i].first_only;
        return DH_OK;
    }
    return dh_fail(ctx, DH_EUNSUPPORTED, "pre_tokenizer Metaspace with prepend_scheme \"%.40s\"",
                   scheme);
}

static const node_row spm_normalizer_rows[] = {{"Prepend", normalize_prepend},
                                               {"Replace", normalize_replace}};
static const node_row spm_step_rows[] = {{"Metaspace", step_metaspace}};
static const section spm_normalizers = {"normalizer", "normalizers", spm_normalizer_rows,
                                        DH_COUNTOF(spm_normalizer_rows)};
static const section spm_steps = {"pre_tokenizer", "pretokenizers", spm_step_rows,
                                  DH_COUNTOF(spm_step_rows)};

/* ---- vocabulary ---------------------------------------------------------------------------- */

static dh_status add_spm_token(dh_ctx *ctx, hf_file *hf, const char *text, size_t n, uint64_t id)
{
    dh_tokenizer *tok = hf->tok;
    int byte = is_set(hf->model, "byte_fallback") ? dh_spm_byte_piece(text, n) : -1;
    if (byte >= 0) {
        unsigned char value = (unsigned char)byte;
        tok->byte_id[value] = (uint32_t)id;
        return dh_vocab_set(ctx, &tok->vocab, id, &value, 1, DH_PIECE_BYTE);
    }
    char *copy = malloc(n + 1);
    if (!copy) return dh_fail(ctx, DH_ENOMEM, "out of memory for token %llu", (long long)id);
    memcpy(copy, text, n);
    dh_status st =
        dh_vocab_set(ctx, &tok->vocab, id, copy, dh_spm_unescape(copy, n), DH_PIECE_NORMAL);
    free(copy);
    return st;
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
        else
            DH_TRY(add_spm_token(ctx, hf, text, n, value));
    }
    return DH_OK;
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
    if (is_set(node, "single_word"))
        return dh_fail(ctx, DH_EUNSUPPORTED, "\"single_word\" for \"%.60s\"",
                       json_string_value(content));
    dh_match_entry entry = {.id = (uint32_t)json_integer_value(id),
                            .always = !is_set(node, "special"),
                            .lstrip = is_set(node, "lstrip"),
                            .rstrip = is_set(node, "rstrip")};
    DH_TRY(dh_vocab_replace(ctx, &tok->vocab, entry.id, json_string_value(content),
                            json_string_length(content),
                            entry.always ? DH_PIECE_USER : DH_PIECE_SPECIAL));
    return dh_matcher_add(ctx, &tok->specials, entry);
}

static dh_status add_special_tokens(dh_ctx *ctx, hf_file *hf)
{
    json_t *list = json_object_get(hf->root, "added_tokens"), *node;
    uint64_t limit = dh_json_id_limit(json_object_size(hf->vocab) + json_array_size(list));
    size_t i;
    json_array_foreach(list, i, node)
    {
        if (add_special_token(ctx, hf, node, limit) != DH_OK)
            return dh_ctx_while(ctx, "reading added token %zu", i);
    }
    return DH_OK;
}

static dh_status set_unknown(dh_ctx *ctx, hf_file *hf)
{
    const char *text = string_at(hf->model, "unk_token");
    const json_t *id = json_object_get(hf->vocab, text);
    if (!*text) return DH_OK;
    if (!id) return dh_fail(ctx, DH_EFORMAT, "unk_token \"%.60s\" is not in the vocabulary", text);
    hf->tok->unk = (uint32_t)json_integer_value(id);
    hf->tok->vocab.pieces.at[hf->tok->unk].kind = DH_PIECE_UNKNOWN;
    return DH_OK;
}

/* ---- merges -------------------------------------------------------------------------------- */

static dh_status add_spm_merge(dh_ctx *ctx, dh_tokenizer *tok, const char *left, size_t n_left,
                               const char *right, size_t n_right, uint32_t rank)
{
    char *joined = malloc(n_left + n_right + 1);
    if (!joined) return dh_fail(ctx, DH_ENOMEM, "out of memory for merge %u", rank);
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
    return (hf->tok->kind == &dh_tok_bpe ? dh_bpe_add_merge : add_spm_merge)(
        ctx, hf->tok, left, n_left, right, n_right, rank);
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

/* ---- BOS and EOS ---------------------------------------------------------------------------- */

static int32_t first_known(const dh_tokenizer *tok, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = dh_tokenizer_special(tok, names[i]);
        if (id >= 0) return id;
    }
    return -1;
}

/* TemplateProcessing says what goes before and after a text. */
static dh_status process_template(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const json_t *single = json_object_get(node, "single");
    size_t n = json_array_size(single);
    if (n == 0) return DH_OK;
    const json_t *before = json_object_get(json_array_get(single, 0), "SpecialToken");
    const json_t *after = json_object_get(json_array_get(single, n - 1), "SpecialToken");
    int32_t bos = dh_tokenizer_special(hf->tok, string_at(before, "id"));
    int32_t eos = dh_tokenizer_special(hf->tok, string_at(after, "id"));
    if (bos >= 0) hf->tok->bos = bos;
    if (eos >= 0) hf->tok->eos = eos;
    return DH_OK;
}

static dh_status process_nothing(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return DH_OK;
}

static const node_row processor_rows[] = {{"TemplateProcessing", process_template},
                                          {"ByteLevel", process_nothing}};
static const section processors = {"post_processor", "processors", processor_rows,
                                   DH_COUNTOF(processor_rows)};

static dh_status find_bos_eos(dh_ctx *ctx, hf_file *hf)
{
    static const char *const bos[] = {"<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>"};
    static const char *const eos[] = {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"};
    hf->tok->bos = first_known(hf->tok, bos, DH_COUNTOF(bos));
    hf->tok->eos = first_known(hf->tok, eos, DH_COUNTOF(eos));
    return apply_section(ctx, hf, &processors);
}

/* ---- the file ------------------------------------------------------------------------------- */

static bool contains_type(const json_t *node, const char *list, const char *type)
{
    if (strcmp(string_at(node, "type"), type) == 0) return true;
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(node, list), i, part)
    {
        if (contains_type(part, list, type)) return true;
    }
    return false;
}

static const dh_tok_kind *kind_of(const hf_file *hf)
{
    const json_t *pre = json_object_get(hf->root, "pre_tokenizer");
    if (contains_type(pre, "pretokenizers", "ByteLevel")) return &dh_tok_bpe;
    if (is_set(hf->model, "byte_fallback") || contains_type(pre, "pretokenizers", "Metaspace"))
        return &dh_tok_spm;
    return NULL;
}

static dh_status check_model(dh_ctx *ctx, const hf_file *hf)
{
    const char *type = string_at(hf->model, "type");
    if (!json_is_object(hf->model)) return dh_fail(ctx, DH_EFORMAT, "there is no \"model\"");
    if (*type && strcmp(type, "BPE") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED, "model of type \"%.40s\"; BPE is read", type);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < DH_COUNTOF(affixes); i++)
        if (*string_at(hf->model, affixes[i]))
            return dh_fail(ctx, DH_EUNSUPPORTED, "model with \"%s\"", affixes[i]);
    if (!kind_of(hf))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "neither a ByteLevel pre_tokenizer nor Metaspace or byte_fallback");
    if (kind_of(hf) == &dh_tok_spm && is_set(hf->model, "ignore_merges"))
        return dh_fail(ctx, DH_EUNSUPPORTED, "\"ignore_merges\" without ByteLevel");
    return DH_OK;
}

static dh_status build(dh_ctx *ctx, hf_file *hf)
{
    dh_tokenizer *tok = hf->tok;
    bool spm = tok->kind == &dh_tok_spm;
    tok->ignore_merges = is_set(hf->model, "ignore_merges");
    tok->fuse_unk = is_set(hf->model, "fuse_unk");
    tok->escape_space = spm;
    DH_TRY(apply_section(ctx, hf, spm ? &spm_normalizers : &no_normalizer));
    DH_TRY(apply_section(ctx, hf, spm ? &spm_steps : &byte_level_steps));
    tok->strip_prefix = spm && tok->prefix != DH_PREFIX_NONE;
    DH_TRY(add_vocab(ctx, hf));
    DH_TRY(dh_vocab_index(ctx, &tok->vocab));
    DH_TRY(add_merges(ctx, hf));
    DH_TRY(add_special_tokens(ctx, hf));
    DH_TRY(set_unknown(ctx, hf));
    DH_TRY(dh_vocab_index(ctx, &tok->vocab)); /* without those that turned out special */
    if (spm)
        dh_spm_survey(tok);
    else
        dh_bpe_set_bytes(tok);
    return find_bos_eos(ctx, hf);
}

dh_status dh_tokenizer_from_hf_root(dh_ctx *ctx, json_t *root, dh_tokenizer **tok)
{
    hf_file hf = {.root = root, .model = json_object_get(root, "model")};
    hf.vocab = json_object_get(hf.model, "vocab");
    DH_TRY(check_model(ctx, &hf));
    hf.tok = dh_tokenizer_new(ctx, kind_of(&hf));
    return hf.tok ? dh_tokenizer_finish(ctx, hf.tok, build(ctx, &hf), tok) : DH_ENOMEM;
}

dh_status dh_tokenizer_from_hf(dh_ctx *ctx, const void *json, size_t n_bytes, dh_tokenizer **tok)
{
    json_t *root;
    DH_TRY(dh_json_parse(ctx, json, n_bytes, &root));
    dh_status st = dh_tokenizer_from_hf_root(ctx, root, tok);
    json_decref(root);
    return st;
}
