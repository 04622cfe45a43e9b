#include "data/shown.h"

#include <string.h>

#include "data/tok.h"

void dh_shown_fini(dh_shown *shown)
{
    dh_vocab_fini(&shown->text);
    dh_vocab_fini(&shown->first);
    dh_vec_fini(&shown->ends_word);
}

/* ---- one step, of one token -------------------------------------------------------------- */

/* A token on its way: as it stands somewhere, or first. */
typedef struct token {
    dh_str text;
    bool first, fused;
    bool ends_word;
} token;

static void set(dh_str *to, dh_str *from)
{
    dh_str_fini(to);
    *to = *from;
}

static void replace_all(token *t, const char *from, const char *to)
{
    const size_t n_from = strlen(from);
    dh_str out = DH_STR_INIT;
    size_t at = 0;
    while (n_from > 0 && at + n_from <= t->text.len) {
        const char *found = memmem(t->text.text + at, t->text.len - at, from, n_from);
        if (!found) break;
        const size_t begin = (size_t)(found - t->text.text);
        dh_str_append(&out, t->text.text + at, begin - at);
        dh_str_append(&out, to, strlen(to));
        at = begin + n_from;
    }
    if (t->text.text) dh_str_append(&out, t->text.text + at, t->text.len - at);
    out.failed = out.failed || t->text.failed;
    set(&t->text, &out);
}

static bool begins(const token *t, const char *with)
{
    const size_t n = strlen(with);
    return n > 0 && t->text.len >= n && memcmp(t->text.text, with, n) == 0;
}

static bool ends(const token *t, const char *with)
{
    const size_t n = strlen(with);
    return n > 0 && t->text.len >= n && memcmp(t->text.text + t->text.len - n, with, n) == 0;
}

static void drop_front(token *t, size_t n)
{
    memmove(t->text.text, t->text.text + n, t->text.len - n + 1);
    t->text.len -= n;
}

static void put_front(token *t, const char *text)
{
    dh_str out = DH_STR_INIT;
    dh_str_append(&out, text, strlen(text));
    if (t->text.text) dh_str_append(&out, t->text.text, t->text.len);
    out.failed = out.failed || t->text.failed;
    set(&t->text, &out);
}

static void to_byte(token *t)
{
    const int byte = dh_spm_byte_piece(t->text.text ? t->text.text : "", t->text.len);
    if (byte < 0) return;
    const char value = (char)byte;
    dh_str_clear(&t->text);
    dh_str_append(&t->text, &value, 1);
}

/* A fused text begins in its first token. */
static void strip(token *t, const dh_shown_step *s)
{
    const size_t n = strlen(s->from);
    for (size_t i = 0; i < s->n_left && (!t->fused || t->first) && begins(t, s->from); i++)
        drop_front(t, n);
    for (size_t i = 0; i < s->n_right && !t->fused && ends(t, s->from); i++) t->text.len -= n;
}

static void wordpiece(token *t, const dh_shown_step *s)
{
    static const char *const tidy[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                          {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                          {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                          {" 've", "'ve"}, {" 're", "'re"}};
    if (!t->first && begins(t, s->from))
        drop_front(t, strlen(s->from));
    else if (!t->first)
        put_front(t, " ");
    for (size_t i = 0; s->cleanup && i < DH_COUNTOF(tidy); i++)
        replace_all(t, tidy[i][0], tidy[i][1]);
}

static void end_word(token *t, const char *suffix)
{
    t->ends_word = ends(t, suffix);
    if (t->ends_word) t->text.len -= strlen(suffix);
    replace_all(t, suffix, " ");
}

static void to_bytes(token *t)
{
    size_t n;
    dh_str out = DH_STR_INIT;
    if (t->text.len == 0) return;
    unsigned char *bytes = malloc(t->text.len);
    if (bytes && dh_bytelevel_decode(t->text.text, t->text.len, bytes, &n)) {
        dh_str_append(&out, (const char *)bytes, n);
        set(&t->text, &out);
    }
    t->text.failed = t->text.failed || !bytes;
    free(bytes);
}

static void apply(token *t, const dh_shown_step *s)
{
    switch (s->kind) {
    case DH_SHOWN_REPLACE:
        replace_all(t, s->from, s->to);
        break;
    case DH_SHOWN_BYTE:
        to_byte(t);
        break;
    case DH_SHOWN_FUSE:
        t->fused = true;
        break;
    case DH_SHOWN_STRIP:
        strip(t, s);
        break;
    case DH_SHOWN_METASPACE:
        replace_all(t, s->from, t->first && s->strips ? "" : " ");
        break;
    case DH_SHOWN_WORDPIECE:
        wordpiece(t, s);
        break;
    case DH_SHOWN_SUFFIX:
        end_word(t, s->from);
        break;
    case DH_SHOWN_BYTES:
        to_bytes(t);
        break;
    case DH_SHOWN_SPACED:
        if (!t->first) put_front(t, " ");
        break;
    }
}

/* ---- the vocabulary ---------------------------------------------------------------------- */

static dh_status add(dh_ctx *ctx, dh_shown *shown, const dh_shown_steps *steps, uint32_t id,
                     const void *text, size_t n, bool first)
{
    token t = {.first = first};
    dh_str_append(&t.text, n ? text : "", n);
    for (size_t i = 0; i < steps->n && !t.text.failed; i++) apply(&t, &steps->at[i]);
    if (shown->by_suffix) put_front(&t, " ");
    dh_status st = t.text.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK)
        st = dh_vocab_replace(ctx, first ? &shown->first : &shown->text, id, t.text.text,
                              t.text.len, DH_PIECE_NORMAL);
    if (st == DH_OK && shown->by_suffix) shown->ends_word.at[id] = t.ends_word;
    dh_str_fini(&t.text);
    return st;
}

dh_status dh_shown_add(dh_ctx *ctx, dh_shown *shown, const dh_shown_steps *steps, uint32_t id,
                       const void *text, size_t n)
{
    for (size_t i = 0; i < steps->n; i++)
        if (steps->at[i].kind == DH_SHOWN_SUFFIX) shown->by_suffix = true;
    if (shown->by_suffix) {
        if (!dh_vec_reserve(&shown->ends_word, (size_t)id + 1)) return dh_no_memory(ctx);
        while (shown->ends_word.n <= id) shown->ends_word.at[shown->ends_word.n++] = false;
    }
    DH_TRY(add(ctx, shown, steps, id, text, n, false));
    return add(ctx, shown, steps, id, text, n, true);
}

const char *dh_shown_piece(const dh_shown *shown, bool first, int32_t prev, int32_t id,
                           size_t *n_bytes)
{
    const dh_vocab *v = first ? &shown->first : &shown->text;
    const char *text = (const char *)dh_vocab_bytes(v, (uint32_t)id);
    const bool behind_word =
        !first && prev >= 0 && (size_t)prev < shown->ends_word.n && shown->ends_word.at[prev];
    const bool skip = shown->by_suffix && !behind_word;
    *n_bytes = v->pieces.at[id].len - skip;
    return text + skip;
}
