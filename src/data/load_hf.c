/* Hugging Face tokenizer.json: BPE, unigram, WordPiece and whole-word models.
 *
 * Two kinds of BPE are read in forms of their own, which are quicker and take any bytes:
 *
 *   byte-level  pre_tokenizer that ends with ByteLevel (GPT-2, Llama 3, Qwen, NeoX, Falcon)
 *   SPM         normalizer Prepend + Replace or pre_tokenizer Metaspace, which leave the text whole
 *               (Llama 2, Mistral)
 *
 * All others go through the steps of the file one by one: normalizer, pre_tokenizer, model (kinds
 * of tok_words.c), decoder. Each section is a node {"type": ...} or a Sequence of them; a node type
 * is one row of a table. A type without a row is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "base/needs.h"
#include "data/hf.h"

const char *hf_string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

bool hf_is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* ---- sections ---------------------------------------------------------------------------- */

static dh_status unknown_type(dh_ctx *ctx, const hf_section *s, const char *type)
{
    const char *names[32] = {NULL};
    const size_t n = DH_MIN(s->n_rows, DH_COUNTOF(names));
    for (size_t i = 0; i < n; i++) names[i] = s->rows[i].type;
    const char *near = dh_nearest(type, names, n);
    return dh_fail(ctx, DH_EUNSUPPORTED, "%s of type \"%.60s\" is not read%s%s", s->name, type,
                   near ? ": did you mean " : "", near ? near : "");
}

static bool has_nul(const json_t *value)
{
    const char *key;
    size_t i;
    json_t *one;
    if (json_is_string(value)) return strlen(json_string_value(value)) != json_string_length(value);
    json_object_foreach((json_t *)value, key, one) if (has_nul(one)) return true;
    json_array_foreach(value, i, one) if (has_nul(one)) return true;
    return false;
}

/* Settings are read as texts that end at a NUL. One with a NUL in it would be another text. */
static dh_status check_nul(dh_ctx *ctx, const hf_section *s, json_t *node, const char *type)
{
    const char *key;
    json_t *value;
    json_object_foreach(node, key, value)
    {
        if (has_nul(value))
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "%s of type \"%.60s\": \"%.40s\" has a NUL (\\u0000), which is not read",
                           s->name, type, key);
    }
    return DH_OK;
}

/* Sequences of sequences: files nest two, and a reader's stack is not theirs. */
enum { DEEPEST = 16 };

static dh_status apply_node(dh_ctx *ctx, hf_file *hf, const hf_section *s, json_t *node, int depth)
{
    if (!node || json_is_null(node)) return DH_OK;
    const char *type = hf_string(node, "type");
    if (depth > DEEPEST)
        return dh_fail(ctx, DH_EUNSUPPORTED, "%s: Sequences more than %d deep", s->name, DEEPEST);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *part;
        json_array_foreach(json_object_get(node, s->list), i, part)
            DH_TRY(apply_node(ctx, hf, s, part, depth + 1));
        return DH_OK;
    }
    if (!s->any_text) DH_TRY(check_nul(ctx, s, node, type));
    for (size_t i = 0; i < s->n_rows; i++)
        if (strcmp(type, s->rows[i].type) == 0) return s->rows[i].apply(ctx, hf, node);
    return unknown_type(ctx, s, type);
}

dh_status hf_apply_section(dh_ctx *ctx, hf_file *hf, const hf_section *s)
{
    return apply_node(ctx, hf, s, json_object_get(hf->root, s->name), 0);
}

dh_status hf_pattern(dh_ctx *ctx, const json_t *node, const char **text, size_t *n, bool *regex)
{
    const json_t *pattern = json_object_get(node, "pattern");
    const json_t *expression = json_object_get(pattern, "Regex");
    const json_t *found = expression ? expression : json_object_get(pattern, "String");
    if (!json_is_string(found))
        return dh_fail(ctx, DH_EFORMAT, "%s has no pattern", hf_string(node, "type"));
    *text = json_string_value(found);
    *n = json_string_length(found);
    *regex = expression != NULL;
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
    int32_t bos = dh_tokenizer_special(hf->tok, hf_string(before, "id"));
    int32_t eos = dh_tokenizer_special(hf->tok, hf_string(after, "id"));
    if (bos >= 0) hf->tok->bos = bos;
    if (eos >= 0) hf->tok->eos = eos;
    return DH_OK;
}

/* "cls" and "sep": [text, id] of what goes before and after. */
static dh_status process_bert(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const json_t *cls = json_array_get(json_object_get(node, "cls"), 0);
    const json_t *sep = json_array_get(json_object_get(node, "sep"), 0);
    if (!json_is_string(cls) || !json_is_string(sep))
        return dh_fail(ctx, DH_EFORMAT, "post_processor %s without [text, id] of cls and sep",
                       hf_string(node, "type"));
    const int32_t bos = dh_tokenizer_special(hf->tok, json_string_value(cls));
    const int32_t eos = dh_tokenizer_special(hf->tok, json_string_value(sep));
    if (bos >= 0) hf->tok->bos = bos;
    if (eos >= 0) hf->tok->eos = eos;
    return DH_OK;
}

static dh_status process_nothing(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return DH_OK;
}

static const hf_row processor_rows[] = {{"TemplateProcessing", process_template},
                                        {"BertProcessing", process_bert},
                                        {"RobertaProcessing", process_bert},
                                        {"ByteLevel", process_nothing}};
static const hf_section processors = {"post_processor", "processors", processor_rows,
                                      DH_COUNTOF(processor_rows), false};

static dh_status find_bos_eos(dh_ctx *ctx, hf_file *hf)
{
    static const char *const bos[] = {"<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>",
                                      "[CLS]"};
    static const char *const eos[] = {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>", "[SEP]"};
    hf->tok->bos = first_known(hf->tok, bos, DH_COUNTOF(bos));
    hf->tok->eos = first_known(hf->tok, eos, DH_COUNTOF(eos));
    return hf_apply_section(ctx, hf, &processors);
}

/* ---- the file ------------------------------------------------------------------------------- */

static dh_status build(dh_ctx *ctx, hf_file *hf)
{
    const dh_tok_kind *kind = hf->tok->kind;
    if (kind == &dh_tok_spm)
        DH_TRY(hf_read_metaspace(ctx, hf));
    else if (kind == &dh_tok_bpe)
        DH_TRY(hf_read_byte_level(ctx, hf));
    else {
        DH_TRY(hf_read_normalizer(ctx, hf));
        DH_TRY(hf_read_pre_tokenizer(ctx, hf));
    }
    DH_TRY(hf_read_model(ctx, hf));
    if (kind != &dh_tok_spm && kind != &dh_tok_bpe) DH_TRY(hf_read_decoder(ctx, hf));
    return find_bos_eos(ctx, hf);
}

dh_status dh_tokenizer_from_hf_root(dh_ctx *ctx, json_t *root, dh_tokenizer **tok)
{
    hf_file hf = {.root = root, .model = json_object_get(root, "model")};
    const dh_tok_kind *kind;
    hf.vocab = json_object_get(hf.model, "vocab");
    DH_TRY(hf_choose_kind(ctx, &hf, &kind));
    hf.tok = dh_tokenizer_new(ctx, kind);
    dh_status st = hf.tok ? dh_tokenizer_finish(ctx, hf.tok, build(ctx, &hf), tok) : DH_ENOMEM;
    dh_vec_fini(&hf.decoder);
    return st;
}

dh_status dh_tokenizer_from_hf(dh_ctx *ctx, const void *json, size_t n_bytes, dh_tokenizer **tok)
{
    DH_NEEDS(ctx, json);
    DH_NEEDS(ctx, tok);
    json_t *root;
    DH_TRY(dh_json_parse(ctx, json, n_bytes, &root));
    dh_status st = dh_tokenizer_from_hf_root(ctx, root, tok);
    json_decref(root);
    return st;
}
