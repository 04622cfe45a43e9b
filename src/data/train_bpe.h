/* A byte-level BPE tokenizer learned from texts, and written as Hugging Face's tokenizer.json. */
#ifndef DH_DATA_TRAIN_BPE_H
#define DH_DATA_TRAIN_BPE_H

#include "data/vocab.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_BPE_END_OF_TEXT "<|endoftext|>"
#define DH_BPE_SMALLEST 257 /* tokens: the bytes, and the end of a text */

typedef struct dh_learned_merge {
    uint32_t left, right;
} dh_learned_merge;

/* Token 0 is the end of a text, 1 to 256 are the bytes in the order of their characters in the
 * files, the rest were merged, in this order. */
typedef struct dh_learned_bpe {
    dh_vocab vocab;
    DH_VEC(dh_learned_merge) merges; /* first ones first */
    size_t n_words;                  /* different ones in the texts */
} dh_learned_bpe;

/* Learns a BPE from texts and JSON lines, as dh_dataset reads them.
 *   1. Words are split by GPT-2's pattern.
 *   2. The most frequent pair of neighbours becomes a token; of equal ones that of the lowest ids.
 *   3. Step 2 repeats until there are `vocab` tokens, or no pair occurs twice.
 * The order of merges is that of Hugging Face's BpeTrainer with min_frequency 2 over the same
 * words.
 * errors    those of reading the files; DH_EINVAL vocab below DH_BPE_SMALLEST, or above the most
 *           that a tokenizer may have */
dh_status dh_bpe_learn(dh_ctx *ctx, const char *const *files, size_t n_files,
                       const char *text_field, int64_t vocab, dh_learned_bpe *learned);
void dh_learned_bpe_fini(dh_learned_bpe *learned);

/* Writes tokenizer.json and tokenizer_config.json into a folder, which is made where there is none.
 * errors    DH_EINVAL the folder has a tokenizer.json; DH_EIO; DH_ENOMEM */
dh_status dh_learned_bpe_save(dh_ctx *ctx, const dh_learned_bpe *learned, const char *dir);

#ifdef __cplusplus
}
#endif
#endif
