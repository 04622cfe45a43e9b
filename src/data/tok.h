/* Inside of a tokenizer: what the loaders fill and the encoders read. */
#ifndef DH_DATA_TOK_H
#define DH_DATA_TOK_H

#define DH_META_SPACE "\xE2\x96\x81" /* U+2581, which files write for a space */

#include "data/merge.h"
#include "data/normalize.h"
#include "data/shown.h"
#include "data/split.h"
#include "data/trie.h"
#include "data/vocab.h"
#include "dhelix/tokenizer.h"

/* One family of tokenizers. */
typedef struct dh_tok_kind {
    const char *name;
    /* Encode a stretch of text between special tokens, not empty. */
    dh_status (*encode)(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                        bool first);
    /* Put the symbols that a word starts from into enc->merger; false: out of memory. */
    bool (*symbols)(dh_encoder *enc, const unsigned char *word, size_t n);
    /* Append a word's ids to enc->word; NULL: its symbols are merged. */
    dh_status (*segment)(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n);
} dh_tok_kind;

extern const dh_tok_kind dh_tok_bytes, dh_tok_chars, dh_tok_bpe, dh_tok_spm, dh_tok_character_bpe,
    dh_tok_unigram, dh_tok_spm_unigram, dh_tok_wordpiece, dh_tok_wordlevel;

typedef enum dh_prefix {
    DH_PREFIX_NONE,
    DH_PREFIX_ALWAYS, /* a space before every stretch of text */
    DH_PREFIX_MISSING /* only before those that do not start with one */
} dh_prefix;

struct dh_tokenizer {
    const dh_tok_kind *kind;
    dh_vocab vocab;
    dh_pair_table pairs;
    uint32_t byte_id[256]; /* bpe: first symbols; spm: fallback tokens; DH_NO_ID: none */
    uint32_t unk;          /* DH_NO_ID: none */
    int32_t bos, eos;
    dh_matcher specials; /* cut out of the text before anything else */
    uint64_t fingerprint;
    char *path; /* path of its file, for messages; NULL: none */

    dh_prefix prefix;
    bool prefix_first_only; /* only before the first stretch of text */
    bool ignore_merges;     /* bpe: a word that is a token is not merged */
    bool drops_unknown;     /* bpe: what has no token is left out, and there is no unknown token */
    bool fuse_unk;          /* a run of unknown characters is one unknown token */

    dh_normalizer normalizer; /* bpe, and the kinds of tok_words.c */
    dh_splitter splitter;     /* the same */
    dh_shown shown;           /* how tokens are written; empty: by their bytes */

    dh_matcher user;         /* matched in the normalised text */
    dh_vocab user_texts;     /* the texts that they match, by id; empty: their tokens' texts */
    dh_vocab stray;          /* spm: characters inside pieces that are no piece; id - vocab size */
    bool escape_space;       /* spm: U+2581 and space are the same; kept as space */
    bool collapse_spaces;    /* spm: strip and squeeze spaces */
    bool words_end_at_space; /* spm: no piece has a space after another character */
    bool strip_prefix;       /* spm: decoding drops the leading space */
    dh_charsmap charsmap;    /* spm: how characters are written; n_units 0: as they are */

    DH_VEC(uint32_t) codes; /* chars: code points, ascending; id = index */

    dh_str word_prefix;    /* character-bpe: of all characters but a word's first */
    dh_str word_suffix;    /* character-bpe: of a word's last character */
    bool cut_at_mark;      /* character-bpe: no merge has U+2581 behind another character */
    dh_trie trie;          /* unigram, wordpiece: of the normal pieces */
    DH_VEC(double) scores; /* unigram: by id */
    double unk_score;      /* unigram: of a character that has no token */
    uint32_t continuing;   /* wordpiece: node behind the prefix of all pieces but a word's first */
    size_t longest_word;   /* wordpiece: characters; longer ones are unknown */
};

/* Below the lowest score of all tokens: what a character costs that has none (sentencepiece's
 * kUnkPenalty). */
#define DH_UNIGRAM_UNK_PENALTY 10.0

/* unigram: the best way to a place in a word. */
typedef struct dh_path_node {
    double score;
    uint32_t start; /* where its last token begins; DH_NONE: nothing leads here */
    uint32_t id;    /* of that token; DH_NO_ID: an unknown character */
    uint32_t next;  /* where the token ends that begins here, on the best way of all */
} dh_path_node;

struct dh_encoder {
    const dh_tokenizer *tok;
    dh_ids *ids; /* where ids go */
    dh_merger merger;
    dh_word_cache cache;
    dh_split_scratch *split;
    dh_normalize_work *normalize;
    dh_str norm;    /* spm: normalised text; bpe: text with its prefix */
    dh_str written; /* spm: text by the charsmap */
    dh_str spelled; /* character-bpe: a character with its affixes */
    dh_ids word;    /* ids of the present word */
    DH_VEC(dh_path_node) path;
    bool last_unk;
    unsigned flags;
    const unsigned char *text; /* all of it */
    /* Called between words once many ids wait: takes them away (ids->n = 0).
     * done_bytes: about how much of the text has been encoded. */
    dh_status (*drain)(dh_ctx *ctx, void *arg, dh_ids *ids, size_t done_bytes);
    void *drain_arg;
    size_t done_bytes;
};

/* New, empty; ids of bytes, unk, bos, eos all absent. NULL: out of memory (recorded). */
dh_tokenizer *dh_tokenizer_new(dh_ctx *ctx, const dh_tok_kind *kind);
/* Last step of every loader: index, specials, fingerprint. On failure the tokenizer
 * is destroyed, and on success handed over. st: how the loader fared so far. */
dh_status dh_tokenizer_finish(dh_ctx *ctx, dh_tokenizer *made, dh_status st, dh_tokenizer **tok);
/* Compute the fingerprint again, after changing bos or eos. */
void dh_tokenizer_seal(dh_tokenizer *tok);
/* Declare a token of the vocabulary special (matched on request), or user-defined. */
dh_status dh_tokenizer_add_special(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, bool always);

/* For the kinds: append ids; merge a word (with cache). */
dh_status dh_encoder_push(dh_ctx *ctx, dh_encoder *enc, uint32_t id);
dh_status dh_encoder_word(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n);
/* Cut a matcher's tokens (whose texts are those of v) out of a text; fn encodes what is between. */
typedef dh_status (*dh_stretch_fn)(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text,
                                   size_t n, bool first);
dh_status dh_encoder_cut(dh_ctx *ctx, dh_encoder *enc, const dh_matcher *matcher, const dh_vocab *v,
                         const unsigned char *text, size_t n, bool first, dh_stretch_fn fn);
/* `encode` of the kinds that normalise and split: words, and runs of invalid bytes as words. */
dh_status dh_encode_words(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                          bool first);
/* `segment` of unigram models. */
dh_status dh_unigram_segment(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n);
/* Bytes from text on that are valid UTF-8 (valid) or start no character (!valid). */
size_t dh_utf8_run(const unsigned char *text, size_t n, bool valid);

/* Words of a byte-level BPE: `fn` for those of valid UTF-8, `broken` for runs of bytes that are
 * none. */
dh_status dh_bpe_each_word(dh_ctx *ctx, const dh_splitter *splitter, dh_split_scratch *scratch,
                           const unsigned char *text, size_t n, dh_word_fn fn, dh_word_fn broken,
                           void *arg);

/* The byte whose character is the place-th of the alphabet, and bytes as the files spell them. */
unsigned char dh_bytelevel_byte(unsigned place);
void dh_bytelevel_encode(const unsigned char *bytes, size_t n, dh_str *out);
/* Byte-level alphabet: token text as written in the files -> the bytes it stands for.
 * false: a character outside the alphabet. out holds at least n bytes. */
bool dh_bytelevel_decode(const char *text, size_t n, unsigned char *out, size_t *n_out);
/* Set byte_id from the one-byte tokens. Needs the index. */
void dh_bpe_set_bytes(dh_tokenizer *tok);
/* Register "left right" -> rank; texts as in the files. Needs the index. */
dh_status dh_bpe_add_merge(dh_ctx *ctx, dh_tokenizer *tok, const char *left, size_t n_left,
                           const char *right, size_t n_right, uint32_t rank);

/* Characters of texts: mark them in a bit set of all code points, then number them. */
#define DH_CODE_SET_BYTES (0x110000 / 8)
dh_status dh_chars_mark(dh_ctx *ctx, const unsigned char *text, size_t n, uint8_t *seen);
dh_status dh_chars_build(dh_ctx *ctx, const uint8_t *seen, dh_tokenizer **tok);

/* Space for every U+2581; returns the new length. */
size_t dh_spm_unescape(char *text, size_t n);
/* The byte of a piece "<0xHH>", or -1. */
int dh_spm_byte_piece(const char *text, size_t n);
/* Derive the merges from scores (one per id): any two symbols whose joined text is a
 * piece merge, higher scores first, leftmost among equals. Needs the index. */
dh_status dh_spm_pairs_from_scores(dh_ctx *ctx, dh_tokenizer *tok, const float *scores);
/* Facts about the pieces that the encoder relies on. Needs the index. */
void dh_spm_survey(dh_tokenizer *tok);

#endif
