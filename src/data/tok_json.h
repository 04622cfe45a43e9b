/* JSON steps that the loaders of GPT-2 files and tokenizer.json share. */
#ifndef DH_DATA_TOK_JSON_H
#define DH_DATA_TOK_JSON_H

#include "data/tok.h"

#include <jansson.h>

/* An object at the top; caller drops the reference. Errors name line and column. */
dh_status dh_json_parse(dh_ctx *ctx, const void *text, size_t n_bytes, json_t **root);
/* A vocabulary: a non-empty object whose values are ids, without large gaps. */
dh_status dh_json_check_vocab(dh_ctx *ctx, json_t *vocab);
/* A byte-level token: its text in the alphabet of bytes; specials and texts outside of
 * the alphabet stand for themselves. */
dh_status dh_bpe_add_token(dh_ctx *ctx, dh_tokenizer *tok, const char *text, size_t n, uint64_t id,
                           dh_piece_kind kind);
/* dh_tokenizer_from_hf and dh_tokenizer_from_chars_json, of parsed JSON. */
dh_status dh_tokenizer_from_hf_root(dh_ctx *ctx, json_t *root, dh_tokenizer **tok);
dh_status dh_tokenizer_from_chars_root(dh_ctx *ctx, json_t *root, dh_tokenizer **tok);
/* BERT's vocab.txt, a token a line. config: of tokenizer_config.json (lower case, accents, special
 * tokens); NULL: what BertTokenizer takes for granted. */
dh_status dh_tokenizer_from_wordpiece(dh_ctx *ctx, const void *vocab_txt, size_t n_bytes,
                                      const json_t *config, dh_tokenizer **tok);
/* Largest id allowed for a vocabulary of n entries. */
uint64_t dh_json_id_limit(size_t n);

#endif
