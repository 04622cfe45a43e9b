/* Normal forms go through the text by stretches: ASCII is copied, what is between is decomposed
 * character by character, its marks are put into canonical order and composed again. A stretch may
 * end in front of any character that neither is reordered nor composes with one before it. */
#include "data/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"

/* ---- classes ---------------------------------------------------------------------------- */

bool dh_is_white_space(uint32_t code)
{
    if (code <= 0x20) return code == 0x20 || (code >= 0x09 && code <= 0x0D);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
           code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

static utf8proc_category_t category(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

bool dh_is_mark(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool dh_is_nonspacing_mark(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_MN;
}

bool dh_is_other(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return c == UTF8PROC_CATEGORY_CN || c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_CS || c == UTF8PROC_CATEGORY_CO;
}

/* Alphabetic (of symbols those that are letters in circles or squares), marks, decimal digits,
 * connectors, joiners (Unicode Technical Standard 18, Annex C). */
bool dh_is_word_char(uint32_t code)
{
    switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
               (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
               code == 0x200C || code == 0x200D;
    }
}

/* ---- lower case ---------------------------------------------------------------------------- */

static void put(dh_str *out, uint32_t code)
{
    unsigned char bytes[4];
    const size_t n = dh_utf8_encode(code, bytes);
    dh_str_append(out, (const char *)bytes, n);
}

/* How many of the first bytes are ASCII; eight at a time. */
static size_t ascii_run(const unsigned char *text, size_t n)
{
    size_t at = 0;
    for (uint64_t eight; n - at >= 8; at += 8) {
        memcpy(&eight, text + at, 8);
        if (eight & 0x8080808080808080u) break;
    }
    while (at < n && text[at] < 0x80) at++;
    return at;
}

void dh_lowercase(const unsigned char *text, size_t n, dh_str *out)
{
    for (size_t at = 0; at < n;) {
        uint32_t code;
        size_t len = ascii_run(text + at, n - at);
        dh_str_append(out, (const char *)text + at, len);
        if (out->failed) return;
        for (size_t i = out->len - len; i < out->len; i++) {
            const char c = out->text[i];
            if (c >= 'A' && c <= 'Z') out->text[i] = (char)(c + ('a' - 'A'));
        }
        at += len;
        if (at == n) return;
        len = dh_utf8_next(text + at, n - at, &code);
        if (code == 0x130) /* the one character with a lower case of two */
            dh_str_append(out, "i\xCC\x87", 3);
        else
            put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
        at += len;
    }
}

/* ---- normal forms --------------------------------------------------------------------------- */

/* TUNING: characters that wait before they are composed and written; 16 KiB stay in the L1
 * cache. */
enum { WAITING = 4096, MOST_DECOMPOSED = 32, FEW_MARKS = 16 };

static const struct {
    utf8proc_option_t decompose;
    bool composes;
} forms[] = {[DH_NFC] = {UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, true},
             [DH_NFD] = {UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, false},
             [DH_NFKC] = {UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, true},
             [DH_NFKD] = {UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, false}};

void dh_form_work_fini(dh_form_work *work)
{
    dh_vec_fini(&work->codes);
    dh_vec_fini(&work->spare);
}

static unsigned combining_class(int32_t code)
{
    return code < 0x300 ? 0 : (unsigned)utf8proc_get_property(code)->combining_class;
}

static void insertion_sort(int32_t *codes, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const int32_t code = codes[i];
        const unsigned class = combining_class(code);
        size_t at = i;
        for (; at > 0 && combining_class(codes[at - 1]) > class; at--) codes[at] = codes[at - 1];
        codes[at] = code;
    }
}

/* Stable, by classes 1..254, in time that a long run of marks cannot square. */
static bool counting_sort(dh_form_work *work, int32_t *codes, size_t n)
{
    size_t begin[257] = {0};
    if (!dh_vec_reserve(&work->spare, n)) return false;
    for (size_t i = 0; i < n; i++) begin[combining_class(codes[i]) + 1]++;
    for (size_t c = 1; c < DH_COUNTOF(begin); c++) begin[c] += begin[c - 1];
    for (size_t i = 0; i < n; i++) work->spare.at[begin[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, work->spare.at, n * sizeof *codes);
    return true;
}

/* Canonical ordering: every run of characters of class above 0 by class. */
static bool order_marks(dh_form_work *work)
{
    int32_t *codes = work->codes.at;
    const size_t n = work->codes.n;
    for (size_t at = 0; at < n; at++) {
        size_t end = at;
        while (end < n && combining_class(codes[end]) > 0) end++;
        if (end - at > FEW_MARKS) {
            if (!counting_sort(work, codes + at, end - at)) return false;
        } else if (end - at > 1) {
            insertion_sort(codes + at, end - at);
        }
        at = end;
    }
    return true;
}

/* Orders, composes and writes the waiting characters. */
static void flush(dh_unicode_form form, dh_form_work *work, dh_str *out)
{
    if (work->codes.n == 0) return;
    if (!order_marks(work)) {
        out->failed = true;
        return;
    }
    utf8proc_ssize_t n = (utf8proc_ssize_t)work->codes.n;
    if (forms[form].composes)
        n = utf8proc_normalize_utf32(work->codes.at, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n; i++) put(out, (uint32_t)work->codes.at[i]);
    work->codes.n = 0;
}

/* Whether a character stays apart from what is in front of it: those that compose with one before
 * are marks, or vowels and final consonants of Hangul. */
static bool starts_anew(int32_t first)
{
    return combining_class(first) == 0 && (first < 0x1160 || first > 0x11FF) &&
           !dh_is_mark((uint32_t)first);
}

static bool decompose(dh_unicode_form form, dh_form_work *work, uint32_t code, dh_str *out)
{
    int32_t parts[MOST_DECOMPOSED];
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        (utf8proc_int32_t)code, parts, MOST_DECOMPOSED, forms[form].decompose, &boundary);
    DH_CHECK(n > 0 && n <= MOST_DECOMPOSED, "U+%04X has %d parts", code, (int)n);
    if (work->codes.n >= WAITING && starts_anew(parts[0])) flush(form, work, out);
    if (!dh_vec_reserve(&work->codes, work->codes.n + (size_t)n)) return false;
    memcpy(work->codes.at + work->codes.n, parts, (size_t)n * sizeof *parts);
    work->codes.n += (size_t)n;
    return true;
}

void dh_normal_form(dh_unicode_form form, dh_form_work *work, const unsigned char *text, size_t n,
                    dh_str *out)
{
    work->codes.n = 0;
    for (size_t at = 0; at < n && !out->failed;) {
        uint32_t code;
        const size_t ascii = ascii_run(text + at, n - at);
        if (ascii > 0) { /* its last character may yet compose with what follows */
            flush(form, work, out);
            const bool last = at + ascii == n;
            dh_str_append(out, (const char *)text + at, ascii - !last);
            at += ascii - !last;
            if (last) break;
        }
        const size_t len = dh_utf8_next(text + at, n - at, &code);
        if (!decompose(form, work, code, out)) out->failed = true;
        at += len;
        while (at < n && text[at] >= 0x80 && !out->failed) {
            const size_t more = dh_utf8_next(text + at, n - at, &code);
            if (!decompose(form, work, code, out)) out->failed = true;
            at += more;
        }
    }
    if (!out->failed) flush(form, work, out);
}

/* ---- grapheme clusters ---------------------------------------------------------------------- */

size_t dh_grapheme(const unsigned char *text, size_t n)
{
    uint32_t code, next;
    utf8proc_int32_t state = 0;
    size_t at = dh_utf8_next(text, n, &code);
    for (size_t len; at < n; at += len, code = next) {
        len = dh_utf8_next(text + at, n - at, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)code, (utf8proc_int32_t)next,
                                             &state))
            break;
    }
    return at;
}
