/* Tokenizers written as Hugging Face's files. */
#ifndef DH_DATA_SAVE_H
#define DH_DATA_SAVE_H

#include <jansson.h>

#include "base/base.h"
#include "dhelix/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Transformers' class of what a tokenizer.json says alone. */
#define DH_FAST_TOKENIZER "PreTrainedTokenizerFast"

/* tokenizer.json of a byte-level BPE; takes its parts. words: texts are cut by GPT-2's pattern
 * before they are merged. NULL: out of memory, also of the parts. */
json_t *dh_byte_level_json(json_t *vocab, json_t *merges, json_t *added_tokens, bool words);
/* A document, which it takes, into a folder; NULL counts as out of memory. */
dh_status dh_save_json(dh_ctx *ctx, const char *dir, const char *name, json_t *document);
/* tokenizer_config.json, by which AutoTokenizer knows the class, and which tokens begin and end a
 * text; NULL: none. */
dh_status dh_save_tokenizer_config(dh_ctx *ctx, const char *dir, const char *class_name,
                                   const char *bos, const char *eos);
/* The same of a loaded tokenizer: its own tokens. */
dh_status dh_save_config_of(dh_ctx *ctx, const dh_tokenizer *tok, const char *class_name,
                            const char *dir);
/* Writes tokenizer.json and tokenizer_config.json of a "bytes" or "chars" tokenizer. Under
 * Transformers they give the same ids and texts. Characters without a token are refused there, too.
 *
 * errors    DH_EINVAL another kind; DH_EIO; DH_ENOMEM */
dh_status dh_save_plain_tokenizer(dh_ctx *ctx, const dh_tokenizer *tok, const char *dir);
/* tokenizer.json of a SentencePiece model, BPE or unigram. It gives the same ids of any text, with
 * two exceptions under Hugging Face. There a unigram model's table of characters is applied by
 * grapheme clusters. A text that spells a byte's token ("<0x41>") is read as that token. A BPE
 * model's file, as Llama's, puts the BOS token before a text where special tokens are asked for.
 * errors    DH_EUNSUPPORTED the file cannot express the model; DH_EIO; DH_ENOMEM */
dh_status dh_save_spm_tokenizer(dh_ctx *ctx, const dh_tokenizer *tok, const char *dir);

#ifdef __cplusplus
}
#endif
#endif
