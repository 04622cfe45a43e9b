/* vocab.txt of BERT and its relatives: a token a line, whose number is its id (Devlin et al. 2019).
 * The file leaves out the rules that Transformers' BertTokenizer takes for granted. They are put
 * together as the tokenizer.json that it makes of the file. */
#include "base/json_text.h"
#include "data/tok_json.h"

#include <string.h>

/* By the key under which tokenizer_config.json may have another text. */
static const struct {
    const char *key, *usual;
} special_tokens[] = {{"pad_token", "[PAD]"},
                      {"unk_token", "[UNK]"},
                      {"cls_token", "[CLS]"},
                      {"sep_token", "[SEP]"},
                      {"mask_token", "[MASK]"}};

static const char *text_of(const json_t *config, const char *key, const char *usual)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? json_string_value(value) : usual;
}

static bool is_on(const json_t *config, const char *key, bool usual)
{
    const json_t *value = json_object_get(config, key);
    return json_is_boolean(value) ? json_is_true(value) : usual;
}

/* {"token": id}; of equal lines the last one counts. */
static dh_status read_lines(dh_ctx *ctx, const char *text, size_t n_bytes, json_t *vocab)
{
    json_int_t id = 0;
    for (size_t at = 0; at < n_bytes; id++) {
        const char *begin = text + at, *newline = memchr(begin, '\n', n_bytes - at);
        size_t n = newline ? (size_t)(newline - begin) : n_bytes - at;
        at += n + 1;
        if (n > 0 && begin[n - 1] == '\r') n--;
        if (json_object_setn_new(vocab, begin, n, json_integer(id)) == 0) continue;
        if (!dh_json_is_whole()) return dh_no_memory(ctx);
        return dh_fail(ctx, DH_EFORMAT, "line %lld of the vocabulary is not UTF-8",
                       (long long)id + 1);
    }
    return DH_OK;
}

static json_t *added_tokens(const json_t *config, const json_t *vocab)
{
    json_t *all = json_array();
    for (size_t i = 0; i < DH_COUNTOF(special_tokens); i++) {
        const char *text = text_of(config, special_tokens[i].key, special_tokens[i].usual);
        json_t *id = json_object_get(vocab, text);
        if (!id) continue;
        json_array_append_new(
            all, json_pack("{s:O, s:s, s:b}", "id", id, "content", text, "special", 1));
    }
    return all;
}

static json_t *normalizer(const json_t *config)
{
    const json_t *accents = json_object_get(config, "strip_accents");
    return json_pack("{s:s, s:b, s:b, s:o, s:b}", "type", "BertNormalizer", "clean_text", 1,
                     "handle_chinese_chars", is_on(config, "tokenize_chinese_chars", true),
                     "strip_accents",
                     json_is_boolean(accents) ? json_boolean(json_is_true(accents)) : json_null(),
                     "lowercase", is_on(config, "do_lower_case", true));
}

/* Takes the vocabulary. NULL: out of memory. */
static json_t *as_tokenizer_json(const json_t *config, json_t *vocab)
{
    json_t *added = added_tokens(config, vocab);
    json_t *model = json_pack("{s:s, s:o, s:s, s:s, s:i}", "type", "WordPiece", "vocab", vocab,
                              "unk_token", text_of(config, "unk_token", "[UNK]"),
                              "continuing_subword_prefix", "##", "max_input_chars_per_word", 100);
    return json_pack("{s:o, s:o, s:{s:s}, s:{s:s}, s:o}", "added_tokens", added, "normalizer",
                     normalizer(config), "pre_tokenizer", "type", "BertPreTokenizer", "decoder",
                     "type", "WordPiece", "model", model);
}

dh_status dh_tokenizer_from_wordpiece(dh_ctx *ctx, const void *vocab_txt, size_t n_bytes,
                                      const json_t *config, dh_tokenizer **tok)
{
    json_t *vocab = json_object();
    if (!vocab) return dh_no_memory(ctx);
    dh_status st = read_lines(ctx, vocab_txt, n_bytes, vocab);
    const char *unknown = text_of(config, "unk_token", "[UNK]");
    if (st == DH_OK && !json_object_get(vocab, unknown))
        st = dh_fail(ctx, DH_EFORMAT,
                     "no tokenizer: BERT's vocab.txt has a token a line, and no line is \"%.40s\"",
                     unknown);
    if (st != DH_OK) {
        json_decref(vocab);
        return st;
    }
    json_t *root = as_tokenizer_json(config, vocab);
    if (!root || !dh_json_is_whole()) {
        json_decref(root);
        return dh_no_memory(ctx);
    }
    st = dh_tokenizer_from_hf_root(ctx, root, tok);
    json_decref(root);
    return st;
}
