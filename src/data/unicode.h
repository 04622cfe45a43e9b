/* Characters as Unicode describes them, by libutf8proc: classes, lower case, normal forms. */
#ifndef DH_DATA_UNICODE_H
#define DH_DATA_UNICODE_H

#include "base/base.h"

bool dh_is_white_space(uint32_t code);     /* property White_Space */
bool dh_is_word_char(uint32_t code);       /* \w of regular expressions */
bool dh_is_mark(uint32_t code);            /* Mn, Mc, Me */
bool dh_is_nonspacing_mark(uint32_t code); /* Mn */
bool dh_is_other(uint32_t code);           /* Cc, Cf, Cn, Co, Cs */

/* Texts here are valid UTF-8, and results are appended to out (out->failed: out of memory). */

/* The full lower case of each character by itself: no rule looks at its neighbours. */
void dh_lowercase(const unsigned char *text, size_t n, dh_str *out);

typedef enum dh_unicode_form { DH_NFC, DH_NFD, DH_NFKC, DH_NFKD } dh_unicode_form;

typedef struct dh_form_work {
    DH_VEC(int32_t) codes; /* decomposed, not yet written */
    DH_VEC(int32_t) spare; /* while marks are put in order */
} dh_form_work;

void dh_form_work_fini(dh_form_work *work);
/* A normal form (Unicode Standard Annex 15).
 * cost      O(n) for any text; memory beside out: a few thousand characters, or a run of marks */
void dh_normal_form(dh_unicode_form form, dh_form_work *work, const unsigned char *text, size_t n,
                    dh_str *out);

/* Bytes of the grapheme cluster (Annex 29, extended) at text; n > 0. */
size_t dh_grapheme(const unsigned char *text, size_t n);

#endif
