/* Tokenizers: text -> token ids -> bytes.
 *
 *   bytes       ids 0..255 are the bytes
 *   chars       one id per code point of a training text, sorted (nanoGPT's recipe)
 *   byte-level  GPT-2's encoder.json + vocab.bpe, Hugging Face tokenizer.json (GPT-2,
 *   BPE         Llama 3, Qwen, NeoX, Falcon kind): words split by regular expressions, then merged
 *   SPM         SentencePiece .model (BPE, unigram), llama2.c tokenizer.bin, tokenizer.json of
 *               the Llama 2 kind: merged by score, rare characters fall back to bytes
 *   others      tokenizer.json with BPE over characters (Gemma, CLIP, GPT), unigram (T5, XLM-R),
 *               WordPiece (BERT) or whole words, with its normalizer, pre_tokenizer and decoder:
 *               the ids and texts of Hugging Face's tokenizers 0.23
 *
 * A tokenizer with a setting that cannot be followed exactly is refused when it is loaded
 * (DH_EUNSUPPORTED, naming the setting).
 *
 * Text that is not UTF-8:
 *   byte-level  a run of invalid bytes is a word of its own. Text before and after it is split as
 *   BPE         if it ended and began there. Decoding gives the same bytes back
 *   others      the same; the word is unknown, or becomes tokens of bytes
 *   SPM         an invalid byte becomes its byte token, or the unknown token if there is none
 *   chars       an error that names the byte offset
 *
 * A tokenizer never changes after loading and may be used by many threads at once. */
#ifndef DHELIX_TOKENIZER_H
#define DHELIX_TOKENIZER_H

#include "dhelix/export.h"
#include "dhelix/growable.h"
#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_tokenizer dh_tokenizer;
typedef DH_VEC(int32_t) dh_ids; /* growable; free with dh_vec_fini */

/* ---- loading --------------------------------------------------------------------- */

/* Load by specification:
 *   "bytes"
 *   "gpt2:FOLDER"  encoder.json + vocab.bpe (or vocab.json + merges.txt)
 *   FOLDER         the first of tokenizer.json, encoder.json + vocab.bpe, vocab.json +
 *                  merges.txt, tokenizer.model, tokenizer.bin, vocab.txt that is there
 *                  and supported
 *   FILE           recognised by its content, BERT's vocab.txt by its name
 * A tokenizer_config.json next to a tokenizer.json or a vocab.txt names its BOS and EOS tokens. For
 * a vocab.txt it also says whether texts are put into lower case.
 * errors    DH_EMISSING, DH_EIO, DH_EFORMAT (what and where), DH_EUNSUPPORTED, DH_ENOMEM */
DH_API dh_status dh_tokenizer_load(dh_ctx *ctx, const char *spec, dh_tokenizer **tok);
DH_API void dh_tokenizer_destroy(dh_tokenizer *tok); /* NULL is fine */

/* The same from memory; nothing is borrowed.
 * errors    those of dh_tokenizer_load except DH_EIO */
DH_API dh_status dh_tokenizer_bytes(dh_ctx *ctx, dh_tokenizer **tok);
DH_API dh_status dh_tokenizer_from_gpt2(dh_ctx *ctx, const void *encoder_json, size_t n_encoder,
                                        const void *vocab_bpe, size_t n_vocab_bpe,
                                        dh_tokenizer **tok);
DH_API dh_status dh_tokenizer_from_hf(dh_ctx *ctx, const void *json, size_t n_bytes,
                                      dh_tokenizer **tok);
DH_API dh_status dh_tokenizer_from_spm(dh_ctx *ctx, const void *model, size_t n_bytes,
                                       dh_tokenizer **tok);
DH_API dh_status dh_tokenizer_from_llama2c(dh_ctx *ctx, const void *data, size_t n_bytes,
                                           dh_tokenizer **tok);
DH_API dh_status dh_tokenizer_from_chars_json(dh_ctx *ctx, const void *json, size_t n_bytes,
                                              dh_tokenizer **tok);

/* The vocabulary is the sorted code points of a UTF-8 text. Of files: dh_dataset_chars.
 * errors    DH_EINVAL the text is empty or not UTF-8; DH_ENOMEM */
DH_API dh_status dh_tokenizer_chars_from_text(dh_ctx *ctx, const void *text, size_t n_bytes,
                                              dh_tokenizer **tok);
/* Writes a chars tokenizer as JSON, atomically; dh_tokenizer_load reads it.
 * errors    DH_EINVAL a tokenizer of another kind; DH_EIO; DH_ENOMEM */
DH_API dh_status dh_tokenizer_save_chars(dh_ctx *ctx, const dh_tokenizer *tok, const char *path);

/* ---- facts ------------------------------------------------------------------------ */

/* "bytes", "chars", "bpe" (byte-level), "spm", "character-bpe", "unigram", "wordpiece",
 * "wordlevel" */
DH_API const char *dh_tokenizer_kind(const dh_tokenizer *tok);
DH_API int32_t dh_tokenizer_vocab_size(const dh_tokenizer *tok); /* highest id + 1 */
DH_API int32_t dh_tokenizer_bos(const dh_tokenizer *tok);        /* -1: none */
DH_API int32_t dh_tokenizer_eos(const dh_tokenizer *tok);        /* -1: none */
/* Id of a special, control or added token by its text; -1 if there is none. */
DH_API int32_t dh_tokenizer_special(const dh_tokenizer *tok, const char *text);
/* Hash of everything that decides ids: equal fingerprints encode equally. */
DH_API uint64_t dh_tokenizer_fingerprint(const dh_tokenizer *tok);

/* ---- encoding ---------------------------------------------------------------------- */

enum {
    DH_ENCODE_BOS = 1,    /* BOS first, if the tokenizer has one */
    DH_ENCODE_EOS = 2,    /* EOS last, if the tokenizer has one */
    DH_ENCODE_SPECIAL = 4 /* texts of special tokens become those tokens */
};

/* Append the ids of text to *ids, which is unchanged on failure.
 * cost      O(n log n) for any text; normal text a few ten MB/s
 * errors    DH_EINVAL not encodable (byte offset), DH_ENOMEM */
DH_API dh_status dh_tokenizer_encode(dh_ctx *ctx, const dh_tokenizer *tok, const void *text,
                                     size_t n_bytes, unsigned flags, dh_ids *ids);

/* An encoder keeps work memory and a cache of words between calls: for many texts.
 * One thread at a time; borrows the tokenizer. */
typedef struct dh_encoder dh_encoder;
DH_API dh_status dh_encoder_create(dh_ctx *ctx, const dh_tokenizer *tok, dh_encoder **enc);
DH_API void dh_encoder_destroy(dh_encoder *enc);
DH_API dh_status dh_encoder_encode(dh_ctx *ctx, dh_encoder *enc, const void *text, size_t n_bytes,
                                   unsigned flags, dh_ids *ids);

/* ---- decoding ---------------------------------------------------------------------- */

enum { DH_DECODE_SKIP_SPECIAL = 1 /* control tokens leave no text */ };

/* Append the bytes of ids to *out. SPM: the space put before the text when it was
 * encoded is taken away again.
 * errors    DH_EINVAL id outside the vocabulary (index and id), DH_ENOMEM */
DH_API dh_status dh_tokenizer_decode(dh_ctx *ctx, const dh_tokenizer *tok, const int32_t *ids,
                                     size_t n, unsigned flags, dh_str *out);

/* Bytes of one token after `prev` (-1: first of the text), for decoding as tokens come:
 * the space put before a text is dropped at the start and after BOS. May be part of a character.
 * Returns NULL for an invalid id; the bytes live as long as the tokenizer. */
DH_API const char *dh_tokenizer_piece(const dh_tokenizer *tok, int32_t prev, int32_t id,
                                      size_t *n_bytes);

#ifdef __cplusplus
}
#endif
#endif
