/* Names of tensors, tokens, settings and files come from files that anybody may have written; their
 * control characters would move the cursor, rename the window, or hide what is said. */
#include "base/printable.h"

#include <stdio.h>
#include <string.h>

enum { ESCAPE_BYTES = 6 /* \uXXXX */ };

static bool is_control(uint32_t code)
{
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
           code == 0x200e || code == 0x200f || code == 0xfeff;
}

/* Characters of one to three bytes; none of those of four is asked for. */
size_t dh_control_at(const char *text, uint32_t *code)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 1;
    *code = p[0];
    if (p[0] >= 0xc2 && p[0] < 0xe0 && (p[1] & 0xc0) == 0x80) {
        n = 2;
        *code = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    } else if ((p[0] & 0xf0) == 0xe0 && (p[1] & 0xc0) == 0x80 && (p[2] & 0xc0) == 0x80) {
        n = 3;
        *code = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    } else if (p[0] >= 0x80) {
        return 0; /* no character: terminals show that as such */
    }
    return *code != 0 && is_control(*code) ? n : 0;
}

static void append_escaped(dh_str *out, const char *text, size_t n_bytes)
{
    uint32_t code;
    const char *from = text, *at = text;
    for (; at < text + n_bytes; at++) {
        const size_t n = dh_control_at(at, &code);
        if (n == 0) continue;
        dh_str_append(out, from, (size_t)(at - from));
        dh_str_printf(out, "\\u%04x", code);
        at += n - 1;
        from = at + 1;
    }
    dh_str_append(out, from, (size_t)(at - from));
}

static bool is_clean(const char *text, size_t n_bytes)
{
    uint32_t code;
    for (size_t i = 0; i < n_bytes; i++)
        if (dh_control_at(text + i, &code) > 0) return false;
    return true;
}

void dh_str_printable(dh_str *text)
{
    if (!text->text || is_clean(text->text, text->len)) return;
    dh_str out = DH_STR_INIT;
    append_escaped(&out, text->text, text->len);
    out.failed |= text->failed;
    dh_str_fini(text);
    *text = out;
}

/* In place: messages are made where memory has run out, too. */
void dh_printable(char *text, size_t cap)
{
    uint32_t code;
    if (is_clean(text, strlen(text))) return;
    for (char *at = text; *at; at++) {
        const size_t n = dh_control_at(at, &code);
        if (n == 0) continue;
        const size_t room = cap - (size_t)(at - text);
        if (room <= ESCAPE_BYTES) {
            *at = '\0';
            return;
        }
        const size_t n_rest = DH_MIN(strlen(at + n), room - ESCAPE_BYTES - 1);
        memmove(at + ESCAPE_BYTES, at + n, n_rest);
        at[ESCAPE_BYTES + n_rest] = '\0';
        char escape[ESCAPE_BYTES + 1];
        snprintf(escape, sizeof escape, "\\u%04x", code & 0xffff);
        memcpy(at, escape, ESCAPE_BYTES);
        at += ESCAPE_BYTES - 1;
    }
}
