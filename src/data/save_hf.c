/* Tokenizers as Hugging Face's files: the parts, and the two kinds that have no files of their own
 * there. Bytes are a byte-level BPE without merges; characters are words of one character. */
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "data/save.h"
#include "data/tok.h"

json_t *dh_byte_level_json(json_t *vocab, json_t *merges, json_t *added_tokens, bool words)
{
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", (int)words);
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:O, s:n, s:o, s:o}", "version", "1.0",
                     "truncation", "padding", "added_tokens", added_tokens, "normalizer",
                     "pre_tokenizer", bytes, "post_processor", "decoder", bytes, "model", model);
}

dh_status dh_save_json(dh_ctx *ctx, const char *dir, const char *name, json_t *document)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dir, name);
    char *text = NULL;
    dh_status st = DH_OK;
    if (path.failed || !document) {
        json_decref(document);
        st = dh_no_memory(ctx);
    } else {
        st = dh_json_text_exact(ctx, document, JSON_INDENT(2), &text);
    }
    if (st == DH_OK) st = dh_file_write_atomic(ctx, path.text, text, strlen(text));
    free(text);
    dh_str_fini(&path);
    return st;
}

dh_status dh_save_tokenizer_config(dh_ctx *ctx, const char *dir, const char *class_name,
                                   const char *bos, const char *eos)
{
    json_t *config = json_pack("{s:s, s:s*, s:s*, s:b}", "tokenizer_class", class_name, "bos_token",
                               bos, "eos_token", eos, "clean_up_tokenization_spaces", 0);
    return dh_save_json(ctx, dir, "tokenizer_config.json", config);
}

/* The token's own text; empty for -1. */
static void append_text(const dh_tokenizer *tok, int32_t id, dh_str *text)
{
    if (id < 0) return;
    dh_str_append(text, (const char *)dh_vocab_bytes(&tok->vocab, (uint32_t)id),
                  tok->vocab.pieces.at[id].len);
}

dh_status dh_save_config_of(dh_ctx *ctx, const dh_tokenizer *tok, const char *class_name,
                            const char *dir)
{
    dh_str bos = DH_STR_INIT, eos = DH_STR_INIT;
    append_text(tok, tok->bos, &bos);
    append_text(tok, tok->eos, &eos);
    const dh_status st =
        bos.failed || eos.failed
            ? dh_no_memory(ctx)
            : dh_save_tokenizer_config(ctx, dir, class_name, bos.len ? bos.text : NULL,
                                       eos.len ? eos.text : NULL);
    dh_str_fini(&bos);
    dh_str_fini(&eos);
    return st;
}

/* ---- bytes and characters -------------------------------------------------------------------- */

/* {"token": id}; spelled: bytes by their characters in such files. */
static json_t *plain_vocab(const dh_vocab *v, bool spelled)
{
    json_t *all = json_object();
    for (uint32_t id = 0; all && id < v->pieces.n; id++) {
        dh_str text = DH_STR_INIT;
        const size_t n = v->pieces.at[id].len;
        if (spelled)
            dh_bytelevel_encode(dh_vocab_bytes(v, id), n, &text);
        else
            dh_str_append(&text, (const char *)dh_vocab_bytes(v, id), n);
        const bool added =
            !text.failed && json_object_setn_new(all, text.text, text.len, json_integer(id)) == 0;
        dh_str_fini(&text);
        if (added) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

/* Without an unknown token: a character that is none of the vocabulary is an error there too. */
static json_t *chars_json(json_t *vocab)
{
    json_t *model =
        json_pack("{s:s, s:o, s:s}", "type", "WordLevel", "vocab", vocab, "unk_token", "");
    return json_pack("{s:s, s:n, s:n, s:[], s:n, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:{s:s}, s:o}",
                     "version", "1.0", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "type", "Split", "pattern", "Regex", "[\\s\\S]", "behavior",
                     "Isolated", "invert", 0, "post_processor", "decoder", "type", "Fuse", "model",
                     model);
}

dh_status dh_save_plain_tokenizer(dh_ctx *ctx, const dh_tokenizer *tok, const char *dir)
{
    const bool bytes = tok->kind == &dh_tok_bytes;
    if (!bytes && tok->kind != &dh_tok_chars)
        return dh_fail(ctx, DH_EINVAL, "a %s tokenizer is neither bytes nor chars",
                       tok->kind->name);
    json_t *vocab = plain_vocab(&tok->vocab, bytes);
    DH_TRY(dh_save_json(ctx, dir, "tokenizer.json",
                        bytes ? dh_byte_level_json(vocab, json_array(), json_array(), false)
                              : chars_json(vocab)));
    return dh_save_tokenizer_config(ctx, dir, DH_FAST_TOKENIZER, NULL, NULL);
}
