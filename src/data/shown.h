/* Tokens as text, by a list of decoding steps (Hugging Face's decoders).
 *
 * A decoder takes all tokens of a text at once. The supported ones depend only on the token, on
 * whether it is the first, and on whether the token before it ended a word. They are therefore
 * applied once, to every token of the vocabulary, when it is loaded. */
#ifndef DH_DATA_SHOWN_H
#define DH_DATA_SHOWN_H

#include "data/vocab.h"

typedef struct dh_shown {
    dh_vocab text;  /* by id; empty: the vocabulary's own bytes are the text */
    dh_vocab first; /* by id: at the beginning of a text */
    /* Words end where a token says so: a space stands before every text and first, written only
     * behind tokens that end a word. */
    bool by_suffix;
    DH_VEC(bool) ends_word; /* by id, of by_suffix */
} dh_shown;

/* The step kinds, in the order in which a file gives them. */
typedef enum dh_shown_kind {
    DH_SHOWN_REPLACE,   /* every `from` becomes `to` */
    DH_SHOWN_BYTE,      /* <0xHH> becomes its byte */
    DH_SHOWN_FUSE,      /* later steps see one text */
    DH_SHOWN_STRIP,     /* up to n_left times `from` goes at the beginning, n_right at the end */
    DH_SHOWN_METASPACE, /* `from` becomes a space, and nothing in the first token where `strips` */
    DH_SHOWN_WORDPIECE, /* a space before tokens that do not begin with `from`, which goes */
    DH_SHOWN_SUFFIX,    /* `from` ends a word */
    DH_SHOWN_BYTES,     /* characters of the byte-level alphabet become their bytes */
    DH_SHOWN_SPACED     /* without a decoder: a space between tokens */
} dh_shown_kind;

typedef struct dh_shown_step {
    dh_shown_kind kind;
    const char *from, *to; /* borrowed */
    size_t n_left, n_right;
    bool strips;  /* metaspace */
    bool cleanup; /* wordpiece: no space before punctuation and 's, 're, n't */
} dh_shown_step;

typedef DH_VEC(dh_shown_step) dh_shown_steps;

void dh_shown_fini(dh_shown *shown);
/* The text of token `id`, whose own text is given.
 * errors    DH_ENOMEM */
dh_status dh_shown_add(dh_ctx *ctx, dh_shown *shown, const dh_shown_steps *steps, uint32_t id,
                       const void *text, size_t n);
/* Bytes of a token: first: at the beginning of a text; else behind `prev`, -1: nothing known. */
const char *dh_shown_piece(const dh_shown *shown, bool first, int32_t prev, int32_t id,
                           size_t *n_bytes);

#endif
