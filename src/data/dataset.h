/* Datasets: files -> one stream of tokens -> training samples.
 *
 * Several files follow one another, or take turns by shares. Files of a folder or a pattern come in
 * the order of their names. Sources are recognised by content and name:
 *   text          UTF-8, one document, tokenized
 *   JSON lines    one object a line with a text field, or the objects of one JSON array; every
 *                 document is followed by the tokenizer's EOS, if it has one.
 *                 *.jsonl, *.ndjson and *.json are never plain text
 *   llm.c         header of 256 int32: magic 20240520, version 1, count, then uint16;
 *                 or magic 20240801, version 7, count, then uint32 (Llama 3)
 *   Megatron      X.bin + X.idx ("MMIDIDX\0\0", version 1), named by either or by X
 *   *.u16         uint16, nothing else; so is a .bin without header and .idx (nanoGPT's)
 * Texts and JSON lines may be compressed by gzip or zstd (a.jsonl.gz).
 * All integers are little endian. Files are mapped, not read. Text is tokenized once into a
 * cache file, which is used again while source, tokenizer and split are the same.
 *
 * A sample is a pure function of its index, the seed and the order. The position in the data
 * is one integer, and samples do not depend on the mesh or the number of workers. */
#ifndef DH_DATA_DATASET_H
#define DH_DATA_DATASET_H

#include <signal.h>

#include "dhelix/job.h"
#include "dhelix/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_dataset dh_dataset;

/* Part of every file. The cut depends on the source:
 *   text          after floor(n * (1 - val_fraction)) of its n code points; each part is tokenized
 *                 by itself (nanoGPT)
 *   JSON lines    at the first document that begins at or after that share of the bytes
 *   token files   after that share of the tokens */
typedef enum dh_data_part { DH_PART_ALL, DH_PART_TRAIN, DH_PART_VAL } dh_data_part;

#define DH_DATASET_SHARES 65536

typedef struct dh_dataset_spec {
    const char *const *files; /* or folders, or patterns */
    size_t n_files;
    /* Samples of each entry of `files` in so many samples of all (shares[0] + shares[1] + ...), 1
     * or more; NULL: the entries are one stream. At most DH_DATASET_SHARES together. */
    const int64_t *shares;
    const dh_tokenizer *tokenizer; /* for text and JSON lines; may be NULL otherwise */
    const char *text_field;        /* of JSON lines; NULL: "text" */
    bool special_tokens;           /* texts of special tokens become those tokens */
    /* JSON lines are conversations, by this template (chat.h); NULL: texts. Samples are then rows
     * (dh_dataset_pack comes next), in which answers alone have targets. */
    const struct dh_chat *chat;
    /* dh_dataset_pack comes next: where documents end by Megatron's index is kept, 8 bytes each. */
    bool documents;
    const char *cache_dir; /* created when missing; NULL or "": tokens stay in memory */
    dh_data_part part;
    double val_fraction; /* [0, 1); part VAL needs more than 0 */
    int64_t vocab_size;  /* ids must be below it; 0: the tokenizer's size, or no bound */
    dh_data_order order;
    uint64_t seed;
    /* Told now and then while text is tokenized; may be NULL. */
    void (*progress)(void *arg, const char *file, size_t done_bytes, size_t total_bytes);
    void *progress_arg;
} dh_dataset_spec;

/* Opens, and tokenizes texts that are not in the cache. Borrows only the strings and the tokenizer
 * during the call. Where ranks share a cache folder, let one open first. The context's flag `stop`
 * ends this call, and later hashing and packing with any context. The flag must outlive the dataset.
 *
 * errors    DH_EIO the file
 *           DH_EFORMAT malformed, cut off, empty, or counts and pointers outside of the file; names
 *           the file, and the line of JSON lines
 *           DH_EINVAL the spec, or text that cannot be encoded
 *           DH_ENOMEM */
dh_status dh_dataset_open(dh_ctx *ctx, const dh_dataset_spec *spec, dh_dataset **ds);
void dh_dataset_close(dh_dataset *ds); /* NULL is fine */

int64_t dh_dataset_tokens(const dh_dataset *ds);
/* Whether the tokenizer made ids of any of its files; false: all had ready tokens. */
bool dh_dataset_has_text(const dh_dataset *ds);
/* A hash of all tokens, computed by several threads. It does not depend on the files in which the
 * tokens lie, nor on the bytes of a token there. Streams of equal length and hash are taken to be
 * the same.
 * errors    those of dh_dataset_check_same; DH_ENOMEM */
dh_status dh_dataset_hash(dh_ctx *ctx, const dh_dataset *ds, uint64_t *hash);
/* The hash that old checkpoints have for more than 2^24 tokens. It covers that many tokens, in
 * 1,024 stretches from the first to the last. 0: there are fewer tokens, and they have the hash
 * of all. */
uint64_t dh_dataset_sample_hash(const dh_dataset *ds);
/* Whether another program has written to a token file since it was opened. A file put in its place
 * does not count, since the old one is still read.
 * errors    DH_EIO: which file, and how */
dh_status dh_dataset_check_same(dh_ctx *ctx, const dh_dataset *ds);
/* Non-overlapping windows of seq_len + 1 tokens, neighbours sharing one: (tokens - 1) / T; with
 * shares, those of the entries together. */
int64_t dh_dataset_windows(const dh_dataset *ds, int64_t seq_len);
/* errors    DH_EINVAL there is not even one window: names what there is */
dh_status dh_dataset_check(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len);

/* Tokens of sample i >= 0: inputs are tokens[0..T), targets tokens[1..T].
 *   shuffle     window p(i mod W) of epoch i / W, p a permutation drawn by seed and epoch
 *               (Feistel network with cycle walking: no memory)
 *   sequential  window i mod W, that is tokens [i*T, i*T + T]
 *   random      offset uniform over all n - T, drawn by seed and i (Philox)
 * With shares, sample i belongs to the entry whose turn it is. In any run of samples from a
 * multiple of the shares' sum on, each entry has its share to within one sample. An entry's samples
 * come in its own order, which begins anew when it ends. Any thread, at the same time.
 * out       tokens: seq_len + 1 ids
 * errors    DH_EINVAL no window; DH_EFORMAT an id outside the vocabulary (file, position in it, id,
 *           vocabulary); DH_EIO a token file was cut short */
dh_status dh_dataset_sample(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                            int64_t seq_len, int32_t *tokens);
/* Offset in the stream where that sample begins. */
int64_t dh_dataset_offset(const dh_dataset *ds, int64_t sample_index, int64_t seq_len);
/* Tokens [first, first + n) of the stream. */
dh_status dh_dataset_read(dh_ctx *ctx, const dh_dataset *ds, int64_t first, int64_t n,
                          int32_t *tokens);

/* ---- packed documents ------------------------------------------------------------------ */

/* Makes samples rows of whole documents instead of windows. Windows then count rows, and every
 * order is one of rows. Documents end where Megatron's index marks several, else with the token
 * eos, and with their file. A document longer than a row is cut; one of a single token is left out.
 * The data, the seed and the order decide which documents share a row (src/data/pack.h). Rows are
 * the same in all epochs.
 * in        ds: opened with spec.documents
 *           eos: -1: there is no such token. Documents are then files of plain text, and those that
 *           an index marks
 * errors    DH_EINVAL the ends of documents are not known. Token files without an eos in their first
 *           4 Mi tokens count as such
 *           DH_EFORMAT an id outside the vocabulary
 *           DH_ENOMEM */
dh_status dh_dataset_pack(dh_ctx *ctx, dh_dataset *ds, int64_t row_len, int32_t eos);
/* Conversations in rows: several whole ones, or one a row. A conversation longer than a row is cut;
 * parts without an answer are left out.
 * errors    those of dh_dataset_pack */
dh_status dh_dataset_pack_chats(dh_ctx *ctx, dh_dataset *ds, int64_t row_len, bool alone);
bool dh_dataset_is_packed(const dh_dataset *ds);

/* A row, token by token: [row_len] each. */
typedef struct dh_dataset_row {
    int32_t *tokens, *targets; /* a target of -1: padding, or a token that is not learnt */
    int32_t *positions;        /* in the document; of padding 0 */
    int64_t *documents;        /* number of the token's document; of padding 0 */
} dh_dataset_row;

/* Row of sample i >= 0 of packed documents. Any thread, at the same time.
 * errors    those of dh_dataset_sample */
dh_status dh_dataset_packed_row(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                                const dh_dataset_row *row);
/* Lengths of the row's documents, in tokens that another one follows. n_targets is the number of
 * targets: all of these tokens, except in conversations.
 *
 * errors    those of dh_dataset_read, from reading conversations */
typedef void (*dh_take_length)(void *user, int64_t n, int64_t n_targets);
dh_status dh_dataset_lengths(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                             dh_take_length take, void *user);

/* The chars tokenizer of all texts of these files (text or JSON lines). */
dh_status dh_dataset_chars(dh_ctx *ctx, const char *const *files, size_t n_files,
                           const char *text_field, dh_tokenizer **tok);

/* ---- token files -------------------------------------------------------------------- */

/* Writes an llm.c file, atomically. A vocab_size up to 65,536 gives uint16 (version 1). A larger
 * one gives uint32 (magic 20240801, version 7).
 *
 * errors    DH_EINVAL an id outside [0, vocab_size), more than 2^31 - 1 tokens; DH_EIO */
dh_status dh_tokens_write_llmc(dh_ctx *ctx, const char *path, const int32_t *ids, size_t n,
                               int64_t vocab_size);
/* The same of a whole dataset; vocab_size > 0. */
dh_status dh_dataset_write_llmc(dh_ctx *ctx, const dh_dataset *ds, const char *path,
                                int64_t vocab_size);

typedef enum dh_token_type {
    DH_TOKEN_U8,
    DH_TOKEN_U16,
    DH_TOKEN_I16,
    DH_TOKEN_I32,
    DH_TOKEN_U32,
    DH_TOKEN_I64,
    DH_N_TOKEN_TYPES
} dh_token_type;

/* A run of tokens inside a file's bytes. */
typedef struct dh_token_run {
    const unsigned char *at; /* not necessarily aligned */
    dh_token_type type;
    int64_t n;
} dh_token_run;
typedef DH_VEC(dh_token_run) dh_token_runs;

/* Where documents end: numbers of tokens from the file's begin, ascending. */
typedef DH_VEC(int64_t) dh_token_ends;

/* Readers of mapped token files. Runs point into the bytes given. llm.c gives one run, Megatron one
 * for each stretch of sequences that lie one after another.
 *
 * out       ends: of the index' documents, empty where it marks none; NULL: not wanted */
dh_status dh_tokens_parse_llmc(dh_ctx *ctx, const void *data, size_t n_bytes, dh_token_run *run);
dh_status dh_tokens_parse_megatron(dh_ctx *ctx, const void *idx, size_t n_idx, const void *bin,
                                   size_t n_bin, dh_token_runs *runs, dh_token_ends *ends);

#ifdef __cplusplus
}
#endif
#endif
