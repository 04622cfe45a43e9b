/* Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef DH_BASE_UTF8_H
#define DH_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the code point at p (1..4) and its value, or 0 where p[0..n) starts no valid one. */
static inline size_t dh_utf8_decode(const unsigned char *p, size_t n, uint32_t *code)
{
    if (n == 0) return 0;
    unsigned lead = p[0];
    if (lead < 0x80) {
        *code = lead;
        return 1;
    }
    size_t len = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || n < len) return 0;
    uint32_t value = lead & (0xFFu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (p[i] & 0x3Fu);
    }
    if ((len == 3 && value < 0x800) || (len == 4 && (value < 0x10000 || value > 0x10FFFF)) ||
        (value >= 0xD800 && value < 0xE000))
        return 0;
    *code = value;
    return len;
}

/* Bytes of the unit at p: a code point, or one byte where there is none. n > 0. */
static inline size_t dh_utf8_unit(const unsigned char *p, size_t n)
{
    uint32_t code;
    size_t len = dh_utf8_decode(p, n, &code);
    return len ? len : 1;
}

/* The unit at p and its value, U+FFFD where it is no code point. n > 0. */
static inline size_t dh_utf8_next(const unsigned char *p, size_t n, uint32_t *code)
{
    *code = 0xFFFD;
    size_t len = dh_utf8_decode(p, n, code);
    return len ? len : 1;
}

/* Writes code (a valid scalar value) to out, returns the bytes written. */
static inline size_t dh_utf8_encode(uint32_t code, unsigned char out[4])
{
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    size_t len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3F));
    out[0] = (unsigned char)((0xF00u >> len & 0xFFu) | code);
    return len;
}

#endif
