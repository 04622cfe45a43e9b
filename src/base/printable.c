/* Names of tensors, tokens, settings and files come from files that anybody may have written. Their
 * control characters could move the cursor, rename the window or hide a message. Their newlines
 * could begin messages of their own. Terminals that are not in UTF-8 take single bytes for
 * control characters, too. */
#include "base/printable.h"

#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/utf8.h"

enum { ESCAPE_BYTES = 6 /* \uXXXX */ };

static bool is_control(uint32_t code)
{
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
           code == 0x200e || code == 0x200f || code == 0x061c || code == 0xfeff;
}

size_t dh_control_at(const char *text, uint32_t *code)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t n = *p ? dh_utf8_decode(p, 4, code) : 0; /* reads no byte after the last */
    return n > 0 && is_control(*code) ? n : 0;
}

/* Bytes of the character at p[0..n), or of what is none (1). escape: what is printed in its place,
 * empty where it is printed. By hand: printf is nothing for signal handlers. */
static size_t look_at(const char *p, size_t n, bool one_line, char escape[ESCAPE_BYTES + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint32_t code = (unsigned char)*p;
    const size_t n_bytes = dh_utf8_decode((const unsigned char *)p, n, &code);
    char *at = escape;
    if (n_bytes == 0 || is_control(code) || (one_line && code == '\n')) {
        *at++ = '\\';
        *at++ = n_bytes > 0 ? 'u' : 'x';
        for (int shift = n_bytes > 0 ? 12 : 4; shift >= 0; shift -= 4)
            *at++ = digits[code >> shift & 15];
    }
    *at = '\0';
    return DH_MAX(n_bytes, 1u);
}

static bool is_clean(const char *text, size_t n_bytes)
{
    char escape[ESCAPE_BYTES + 1];
    for (size_t i = 0; i < n_bytes;) {
        i += look_at(text + i, n_bytes - i, false, escape);
        if (*escape) return false;
    }
    return true;
}

void dh_str_printable(dh_str *text)
{
    char escape[ESCAPE_BYTES + 1];
    if (!text->text || is_clean(text->text, text->len)) return;
    dh_str out = DH_STR_INIT;
    for (size_t at = 0, n; at < text->len; at += n) {
        n = look_at(text->text + at, text->len - at, false, escape);
        dh_str_append(&out, *escape ? escape : text->text + at, *escape ? strlen(escape) : n);
    }
    out.failed |= text->failed;
    dh_str_fini(text);
    *text = out;
}

/* In place: messages are made where memory has run out, too. */
void dh_printable(char *text, size_t cap)
{
    char escape[ESCAPE_BYTES + 1];
    size_t left = strlen(text);
    for (char *at = text; left > 0;) {
        const size_t n = look_at(at, left, true, escape), n_escape = strlen(escape);
        left -= n;
        if (n_escape == 0) {
            at += n;
            continue;
        }
        const size_t room = cap - (size_t)(at - text) - 1;
        if (n_escape > room) {
            *at = '\0';
            return;
        }
        left = DH_MIN(left, room - n_escape);
        memmove(at + n_escape, at + n, left);
        memcpy(at, escape, n_escape);
        at += n_escape;
        at[left] = '\0';
    }
}

void dh_vmessage(char *text, size_t cap, const char *fmt, va_list args)
{
    dh_vsnprintf(text, cap, fmt, args);
    dh_printable(text, cap);
}
