/* Normalising text before it is split: a list of steps (Hugging Face's normalizers). */
#ifndef DH_DATA_NORMALIZE_H
#define DH_DATA_NORMALIZE_H

#include "base/base.h"
#include "data/charsmap.h"
#include "data/pattern.h"
#include "data/unicode.h"

typedef struct dh_normalize_step dh_normalize_step;
typedef struct dh_normalize_work dh_normalize_work; /* work memory of one thread */

/* A kind of step: appends to out what becomes of a valid text of n > 0 bytes. */
typedef struct dh_normalize_kind {
    const char *name;
    dh_status (*apply)(dh_ctx *ctx, const dh_normalize_step *step, dh_normalize_work *work,
                       const unsigned char *text, size_t n, dh_str *out);
} dh_normalize_kind;

extern const dh_normalize_kind dh_normalize_form, dh_normalize_lowercase,
    dh_normalize_strip_accents, dh_normalize_strip, dh_normalize_replace, dh_normalize_prepend,
    dh_normalize_bert_clean, dh_normalize_bert_chinese, dh_normalize_bert_accents, dh_normalize_nmt,
    dh_normalize_charsmap, dh_normalize_bytes;

struct dh_normalize_step {
    const dh_normalize_kind *kind;
    dh_unicode_form form; /* form */
    bool left, right;     /* strip */
    dh_pattern *pattern;  /* replace */
    char *text;           /* replace, prepend: what is put there */
    size_t n_text;
    dh_charsmap map; /* charsmap */
};

typedef struct dh_normalizer {
    DH_VEC(dh_normalize_step) steps;
    size_t n_patterns;
    uint64_t hash; /* hash of all steps in order; 0: none */
} dh_normalizer;

enum { DH_MOST_NORMALIZE_STEPS = 256 };

void dh_normalizer_fini(dh_normalizer *normalizer);
/* Takes what the step owns, on failure too. hash: of its pattern and texts. */
dh_status dh_normalizer_add(dh_ctx *ctx, dh_normalizer *normalizer, dh_normalize_step step,
                            uint64_t hash);
dh_status dh_normalize_work_create(dh_ctx *ctx, dh_normalize_work **work);
void dh_normalize_work_destroy(dh_normalize_work *work);
/* Normalizes a valid text into *out, which lives until the next call with this work memory.
 * errors    DH_EUNSUPPORTED it grows beyond growth.h's limit, or a pattern gives up */
dh_status dh_normalize(dh_ctx *ctx, const dh_normalizer *normalizer, dh_normalize_work *work,
                       const unsigned char *text, size_t n, const unsigned char **out,
                       size_t *n_out);

#endif
