/* A learned tokenizer as Hugging Face's files: tokenizer.json, and tokenizer_config.json, by which
 * Transformers knows the end of a text. */
#include <string.h>

#include "data/save.h"
#include "data/tok.h"
#include "data/train_bpe.h"

/* The token in the characters that stand for bytes; the end of a text as it is. */
static json_t *spelled(const dh_vocab *v, uint32_t id)
{
    dh_str text = DH_STR_INIT;
    const dh_piece *piece = &v->pieces.at[id];
    if (piece->kind == DH_PIECE_NORMAL)
        dh_bytelevel_encode(dh_vocab_bytes(v, id), piece->len, &text);
    else
        dh_str_append(&text, (const char *)dh_vocab_bytes(v, id), piece->len);
    json_t *string = text.failed ? NULL : json_stringn(text.text, text.len);
    dh_str_fini(&text);
    return string;
}

/* NULL: out of memory, also of those below. */
static json_t *vocabulary(const dh_vocab *v)
{
    json_t *all = json_object();
    bool failed = !all;
    for (uint32_t id = 0; id < v->pieces.n && !failed; id++) {
        json_t *token = spelled(v, id);
        failed =
            !token || json_object_set_new(all, json_string_value(token), json_integer(id)) != 0;
        json_decref(token);
    }
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

static json_t *merges(const dh_learned_bpe *b)
{
    json_t *all = json_array();
    for (size_t i = 0; all && i < b->merges.n; i++) {
        const dh_learned_merge m = b->merges.at[i];
        if (m.left == DH_NONE) continue; /* came again later */
        json_t *two = json_pack("[o,o]", spelled(&b->vocab, m.left), spelled(&b->vocab, m.right));
        if (two && json_array_append_new(all, two) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

static dh_status check_free(dh_ctx *ctx, const char *dir)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/tokenizer.json", dir);
    dh_status st = DH_OK;
    if (path.failed)
        st = dh_no_memory(ctx);
    else if (dh_path_exists(path.text))
        st = dh_fail(ctx, DH_EINVAL, "%s exists already; remove it or choose another folder",
                     path.text);
    dh_str_fini(&path);
    return st;
}

dh_status dh_learned_bpe_save(dh_ctx *ctx, const dh_learned_bpe *learned, const char *dir)
{
    DH_TRY(check_free(ctx, dir));
    DH_TRY(dh_dir_create(ctx, dir));
    DH_TRY(dh_save_tokenizer_config(ctx, dir, DH_FAST_TOKENIZER, DH_BPE_END_OF_TEXT,
                                    DH_BPE_END_OF_TEXT));
    json_t *end =
        json_pack("[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}]", "id", 0, "content", DH_BPE_END_OF_TEXT,
                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    return dh_save_json(
        ctx, dir, "tokenizer.json",
        dh_byte_level_json(vocabulary(&learned->vocab), merges(learned), end, true));
}
