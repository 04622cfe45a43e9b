#include "base/json_text.h"
#include "base/c_locale.h"
#include "base/stop.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- allocation ----------------------------------------------------------------------------- */

/* Header of every block that jansson allocates. While a document is read its blocks form a ring,
 * and all of them are freed when one cannot be allocated. Any other block is in a ring of its
 * own. */
typedef union block {
    struct {
        union block *before, *behind;
    };
    max_align_t alignment;
} block;

/* Limits of a document's memory: MOST_BYTES altogether, and PER_BYTE for each byte of its text in
 * addition to BASE_BYTES. Files in use take a tenth of that; a file of empty objects would take a
 * hundred bytes for each byte. */
#define MOST_BYTES ((size_t)8 << 30)
#define BASE_BYTES ((size_t)16 << 20)
#define PER_BYTE 64

typedef struct reading {
    block ring;
    size_t n_left; /* bytes that it may still take */
    bool too_large, stopped;
    const volatile sig_atomic_t *stop;
    const char *text; /* the rest, which is still to be read */
    size_t n_text;
    jmp_buf out_of_memory;
} reading;

static _Thread_local reading *current; /* NULL: no document is being read */
static _Thread_local bool was_short;

static void *watched_malloc(size_t n_bytes)
{
    if (current && dh_stop_asked(current->stop)) {
        current->stopped = true;
        longjmp(current->out_of_memory, 1);
    }
    if (current && n_bytes + sizeof(block) > current->n_left) {
        current->too_large = true;
        longjmp(current->out_of_memory, 1);
    }
    block *b = n_bytes < SIZE_MAX - sizeof *b ? malloc(sizeof *b + n_bytes) : NULL;
    if (!b) {
        was_short = true;
        if (current) longjmp(current->out_of_memory, 1);
        return NULL;
    }
    b->before = b;
    b->behind = b;
    if (current) {
        block *ring = &current->ring;
        current->n_left -= n_bytes + sizeof *b;
        b->before = ring;
        b->behind = ring->behind;
        b->before->behind = b;
        b->behind->before = b;
    }
    return b + 1;
}

static void watched_free(void *at)
{
    if (!at) return;
    block *b = (block *)at - 1;
    b->before->behind = b->behind;
    b->behind->before = b->before;
    free(b);
}

void dh_json_watch_memory(void)
{
    json_set_alloc_funcs(watched_malloc, watched_free);
}

bool dh_json_is_whole(void)
{
    const bool whole = !was_short;
    was_short = false;
    return whole;
}

/* ---- reading -------------------------------------------------------------------------------- */

static void empty_ring(reading *r, bool with_blocks)
{
    for (block *b = r->ring.behind, *next; b != &r->ring; b = next) {
        next = b->behind;
        b->before = b;
        b->behind = b;
        if (with_blocks) free(b);
    }
}

/* The next bytes of the text, which jansson asks for in steps of a kilobyte. Where somebody asked to
 * stop there are none, whoever's the allocator is. */
static size_t next_bytes(void *to, size_t cap, void *user)
{
    reading *r = user;
    if (dh_stop_asked(r->stop)) {
        r->stopped = true;
        return (size_t)-1;
    }
    const size_t n = DH_MIN(cap, r->n_text);
    memcpy(to, r->text, n);
    r->text += n;
    r->n_text -= n;
    return n;
}

static json_t *read_within(reading *r, size_t flags, json_error_t *error)
{
    if (setjmp(r->out_of_memory) != 0) {
        current = NULL;
        empty_ring(r, true);
        return NULL;
    }
    current = r;
    json_t *document = json_load_callback(next_bytes, r, flags, error);
    current = NULL;
    empty_ring(r, false);
    return document;
}

/* An integer of this text that a long long does not hold. */
static bool is_too_large(const char *number, size_t n_digits)
{
    char digits[24]; /* a long long has 19 and a sign */
    if (n_digits >= sizeof digits) return true;
    memcpy(digits, number, n_digits);
    digits[n_digits] = '\0';
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* A copy in which integers that are too large are reals: with "e0" behind. */
static void as_reals(const char *text, size_t n_bytes, dh_str *out)
{
    size_t copied = 0;
    bool in_string = false;
    for (size_t at = 0; at < n_bytes; at++) {
        if (text[at] == '"') in_string = !in_string;
        if (text[at] == '\\') { /* only strings have them; the next may be the last byte */
            at++;
            continue;
        }
        if (in_string || text[at] == '\0' || !strchr("-0123456789", text[at])) continue;
        const size_t begin = at;
        while (at + 1 < n_bytes && text[at + 1] >= '0' && text[at + 1] <= '9') at++;
        const size_t end = at + 1;
        while (at + 1 < n_bytes && text[at + 1] != '\0' && strchr("+-.eE0123456789", text[at + 1]))
            at++;
        if (at + 1 > end || !is_too_large(text + begin, end - begin)) continue;
        dh_str_append(out, text + copied, end - copied);
        dh_str_append(out, "e0", 2);
        copied = end;
    }
    dh_str_append(out, text + copied, n_bytes - copied);
}

static dh_status read_once(dh_ctx *ctx, const char *text, size_t n_bytes, size_t flags,
                           json_error_t *error, json_t **document)
{
    reading r = {.ring = {{&r.ring, &r.ring}},
                 .stop = ctx->stop,
                 .text = text,
                 .n_text = n_bytes,
                 .n_left = n_bytes < MOST_BYTES / PER_BYTE
                               ? DH_MIN(MOST_BYTES, BASE_BYTES + PER_BYTE * n_bytes)
                               : MOST_BYTES};
    const locale_t before = dh_c_locale_enter();
    *document = read_within(&r, flags, error);
    dh_c_locale_leave(before);
    if (r.stopped) {
        json_decref(*document);
        *document = NULL;
        return dh_fail(ctx, DH_EINTERRUPTED, "stopped while JSON was read");
    }
    if (r.too_large)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "%zu bytes of JSON take more memory than is allowed: 16 MiB, and %d bytes "
                       "for each, 8 GiB at most",
                       n_bytes, PER_BYTE);
    if (dh_json_is_whole()) return DH_OK;
    json_decref(*document);
    *document = NULL;
    return dh_no_memory(ctx);
}

/* jansson's integers are long long; JSON's may be of any size. */
static dh_status read_numbers(dh_ctx *ctx, const char *text, size_t n_bytes, size_t flags,
                              json_error_t *why, json_t **document)
{
    dh_str copy = DH_STR_INIT;
    dh_status st = read_once(ctx, text, n_bytes, flags, why, document);
    if (st == DH_OK && !*document && json_error_code(why) == json_error_numeric_overflow)
        as_reals(text, n_bytes, &copy);
    if (copy.failed)
        st = dh_no_memory(ctx);
    else if (copy.len > n_bytes)
        st = read_once(ctx, copy.text, copy.len, flags, why, document);
    dh_str_fini(&copy);
    return st;
}

/* ---- NUL in keys ---------------------------------------------------------------------------- */

/* jansson stores such a key and cannot read it. The text is therefore read with a noncharacter of
 * U+FDD0 to U+FDEF in its place, one that the text does not contain. */
enum { N_MARKS = 32, FIRST_MARK = 0xfdd0 };

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
}

/* The first of them that the text has neither as it is nor escaped; N_MARKS: it has all. */
static unsigned unused_mark(const char *text, size_t n_bytes)
{
    uint32_t used = 0;
    for (size_t at = 0; at + 3 < n_bytes; at++) { /* a string never ends a text */
        const unsigned char last = (unsigned char)text[at + 2];
        int code = 0;
        if (memcmp(text + at, "\xef\xb7", 2) == 0 && last >= 0x90 && last < 0xb0)
            used |= 1u << (last - 0x90);
        for (size_t i = 0; i < 4 && code >= 0; i++) {
            const int digit = hex_digit(text[at + i]);
            code = digit < 0 ? -1 : 16 * code + digit;
        }
        if (code >= FIRST_MARK && code < FIRST_MARK + N_MARKS) used |= 1u << (code - FIRST_MARK);
    }
    unsigned mark = 0;
    while (mark < N_MARKS && (used >> mark & 1)) mark++;
    return mark;
}

static void hide_nul(char *text, size_t n_bytes, unsigned mark)
{
    char digits[8];
    snprintf(digits, sizeof digits, "%04x", FIRST_MARK + mark);
    for (size_t at = 0; at + 6 < n_bytes; at++) {
        if (text[at] != '\\') continue;
        at++; /* what is escaped */
        if (memcmp(text + at, "u0000", 5) == 0) memcpy(text + at + 1, digits, 4);
    }
}

/* A copy with NUL where a mark is; whether there is one. */
static bool show_nul(const char *text, size_t n, unsigned mark, dh_str *out)
{
    const char bytes[] = {(char)0xef, (char)0xb7, (char)(0x90 + mark)};
    size_t copied = 0;
    out->len = 0;
    for (size_t at = 0; at + sizeof bytes <= n; at++) {
        if (memcmp(text + at, bytes, sizeof bytes) != 0) continue;
        dh_str_append(out, text + copied, at - copied);
        dh_str_append(out, "", 1);
        copied = at + sizeof bytes;
    }
    if (copied > 0) dh_str_append(out, text + copied, n - copied);
    return copied > 0 && !out->failed;
}

static void show_nuls(json_t *value, unsigned mark, dh_str *text);

static void show_nuls_of_object(json_t *object, unsigned mark, dh_str *text)
{
    json_t *named = NULL, *one;
    const char *key;
    size_t n;
    json_object_keylen_foreach(object, key, n, one)
    {
        show_nuls(one, mark, text);
        if (!named && show_nul(key, n, mark, text)) named = json_object();
    }
    if (!named) return;
    json_object_keylen_foreach(object, key, n, one)
    {
        const bool other = show_nul(key, n, mark, text);
        json_object_setn_nocheck(named, other ? text->text : key, other ? text->len : n, one);
    }
    json_object_clear(object);
    json_object_keylen_foreach(named, key, n, one) /* json_object_update ends keys at NUL */
        json_object_setn_nocheck(object, key, n, one);
    json_decref(named);
}

/* text: for what is put together. Where memory lacks that is remembered. */
static void show_nuls(json_t *value, unsigned mark, dh_str *text)
{
    size_t i;
    json_t *one;
    if (json_is_object(value)) show_nuls_of_object(value, mark, text);
    json_array_foreach(value, i, one) show_nuls(one, mark, text);
    if (json_is_string(value) &&
        show_nul(json_string_value(value), json_string_length(value), mark, text))
        json_string_setn_nocheck(value, text->text, text->len);
}

static dh_status read_nul_keys(dh_ctx *ctx, const char *text, size_t n_bytes, size_t flags,
                               json_error_t *why, json_t **document)
{
    const unsigned mark = unused_mark(text, n_bytes);
    if (mark == N_MARKS) return DH_OK; /* it stays refused */
    dh_str copy = DH_STR_INIT, shown = DH_STR_INIT;
    dh_str_append(&copy, text, n_bytes);
    dh_status st = copy.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK) {
        hide_nul(copy.text, n_bytes, mark);
        st = read_numbers(ctx, copy.text, n_bytes, flags, why, document);
    }
    if (st == DH_OK && *document) show_nuls(*document, mark, &shown);
    if (!dh_json_is_whole() || shown.failed) {
        json_decref(*document);
        *document = NULL;
        if (st == DH_OK) st = dh_no_memory(ctx);
    }
    dh_str_fini(&copy);
    dh_str_fini(&shown);
    return st;
}

dh_status dh_json_read(dh_ctx *ctx, const char *text, size_t n_bytes, size_t flags,
                       json_error_t *error, json_t **document)
{
    json_error_t why = {.line = 0};
    dh_status st = read_numbers(ctx, text, n_bytes, flags, &why, document);
    if (st == DH_OK && !*document && (flags & JSON_ALLOW_NUL) &&
        json_error_code(&why) == json_error_null_byte_in_key)
        st = read_nul_keys(ctx, text, n_bytes, flags, &why, document);
    if (error) *error = why;
    return st;
}

/* ---- UTF-8 ---------------------------------------------------------------------------------- */

/* Bytes of the character at p, which a NUL ends; 0: none, as jansson has it. */
static size_t character(const unsigned char *p)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = *p < 0x80   ? 1
                     : *p < 0xc2 ? 0
                     : *p < 0xe0 ? 2
                     : *p < 0xf0 ? 3
                     : *p < 0xf5 ? 4
                                 : 0;
    uint32_t code = n > 1 ? *p & (0x7fu >> n) : *p;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[n] || code > 0x10ffff || surrogate ? 0 : n;
}

bool dh_json_can_hold(const char *text, size_t *at)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t n = 1; *p && n > 0; p += n) n = character(p);
    *at = (size_t)(p - (const unsigned char *)text);
    return !*p;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int append(const char *part, size_t n_bytes, void *text)
{
    dh_str *out = text;
    dh_str_append(out, part, n_bytes);
    return out->failed ? -1 : 0;
}

json_t *dh_json_of_text(dh_str *text)
{
    was_short = was_short || text->failed;
    json_t *value = text->failed ? NULL : json_string(text->text ? text->text : "");
    dh_str_fini(text);
    return value;
}

char *dh_json_print(const json_t *value, size_t flags)
{
    dh_str text = DH_STR_INIT;
    const locale_t before = dh_c_locale_enter();
    const int failed = json_dump_callback(value, append, &text, flags);
    dh_c_locale_leave(before);
    if (failed == 0) return text.text;
    was_short = was_short || text.failed;
    dh_str_fini(&text);
    return NULL;
}

char *dh_json_text(json_t *document, size_t flags)
{
    char *text = document ? dh_json_print(document, flags) : NULL;
    json_decref(document);
    if (dh_json_is_whole()) return text;
    free(text);
    return NULL;
}

/* At 15 digits what people wrote comes back as they wrote it; 17 tell any two numbers apart. */
dh_status dh_json_text_exact(dh_ctx *ctx, json_t *document, size_t flags, char **text)
{
    dh_status st = DH_OK;
    bool exact = false;
    char *out = NULL;
    for (size_t digits = 15; st == DH_OK && !exact && digits <= 17; digits += 2) {
        json_t *again = NULL;
        free(out);
        out = dh_json_text(json_incref(document), flags | JSON_REAL_PRECISION(digits));
        st = out ? dh_json_read(ctx, out, strlen(out), 0, NULL, &again) : dh_no_memory(ctx);
        exact = json_equal(document, again);
        json_decref(again);
    }
    json_decref(document);
    if (st == DH_OK)
        *text = out;
    else
        free(out);
    return st;
}

dh_status dh_json_append(dh_ctx *ctx, json_t *document, dh_str *out)
{
    char *text = dh_json_text(document, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    if (text) dh_str_append(out, text, strlen(text));
    const bool failed = !text || out->failed;
    free(text);
    return failed ? dh_no_memory(ctx) : DH_OK;
}
