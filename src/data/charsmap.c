#include "data/charsmap.h"

#include <string.h>
#include <xxhash.h>

#include "base/utf8.h"
#include "data/growth.h"
#include "data/unicode.h"

/* ---- the table -------------------------------------------------------------------------- */

dh_status dh_charsmap_read(dh_ctx *ctx, const unsigned char *data, size_t n, dh_charsmap *map)
{
    uint32_t n_trie;
    if (n < sizeof n_trie)
        return dh_fail(ctx, DH_EFORMAT, "precompiled_charsmap of %zu bytes is cut off", n);
    memcpy(&n_trie, data, sizeof n_trie);
    data += sizeof n_trie;
    n -= sizeof n_trie;
    if (n_trie == 0 || n_trie % sizeof *map->trie || n_trie > n)
        return dh_fail(ctx, DH_EFORMAT,
                       "precompiled_charsmap: a trie of %u bytes in a table of %zu", n_trie, n);
    dh_charsmap made = {.n_units = n_trie / sizeof *map->trie, .n_bytes = n - n_trie + 1};
    made.trie = malloc(n_trie);
    made.texts = calloc(made.n_bytes, 1);
    if (!made.trie || !made.texts) {
        dh_charsmap_fini(&made);
        return dh_no_memory(ctx);
    }
    memcpy(made.trie, data, n_trie);
    memcpy(made.texts, data + n_trie, n - n_trie);
    *map = made;
    return DH_OK;
}

void dh_charsmap_fini(dh_charsmap *map)
{
    free(map->trie);
    free(map->texts);
    *map = (dh_charsmap){0};
}

uint64_t dh_charsmap_hash(const dh_charsmap *map)
{
    return XXH3_64bits_withSeed(map->texts, map->n_bytes,
                                XXH3_64bits(map->trie, map->n_units * sizeof *map->trie));
}

/* ---- units of the trie: label in bits 0-7 and 31, bit 8: has a leaf, bits 9-31: offset ------- */

static uint32_t label(uint32_t unit)
{
    return unit & (1u << 31 | 0xFF);
}

static uint32_t offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

enum { MOST_KEY_BYTES = 256 };

const char *dh_charsmap_find(const dh_charsmap *map, const unsigned char *text, size_t n,
                             bool longest, size_t *n_found)
{
    const char *found = NULL;
    n = DH_MIN(n, MOST_KEY_BYTES); /* a table may go in circles */
    size_t at = offset(map->trie[0]);
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= text[i];
        if (at >= map->n_units || label(map->trie[at]) != text[i]) break;
        const uint32_t unit = map->trie[at];
        at ^= offset(unit);
        if (at >= map->n_units) break;
        if (!(unit >> 8 & 1)) continue;
        const uint32_t value = map->trie[at] & ~(1u << 31);
        if (value >= map->n_bytes) break;
        found = map->texts + value;
        *n_found = i + 1;
        if (!longest) break;
    }
    return found;
}

/* ---- texts ---------------------------------------------------------------------------------- */

enum { LONG_GRAPHEME = 6 }; /* bytes */

/* Whether a table has something for what text begins with; appends it instead of all of text. */
static bool put_found(const dh_charsmap *map, const unsigned char *text, size_t n, size_t most,
                      dh_str *out, bool *fits)
{
    size_t n_found;
    const char *written = dh_charsmap_find(map, text, n, false, &n_found);
    if (written) *fits = dh_growth_put(out, most, written, strlen(written));
    return written != NULL;
}

bool dh_charsmap_by_graphemes(const dh_charsmap *map, const unsigned char *text, size_t n,
                              size_t most, dh_str *out)
{
    bool fits = true;
    for (size_t at = 0, len; at < n && fits && !out->failed; at += len) {
        len = dh_grapheme(text + at, n - at);
        if (len < LONG_GRAPHEME && put_found(map, text + at, len, most, out, &fits)) continue;
        for (size_t i = 0, part; i < len && fits; i += part) {
            part = dh_utf8_unit(text + at + i, len - i);
            if (!put_found(map, text + at + i, part, most, out, &fits))
                dh_str_append(out, (const char *)text + at + i, part);
        }
    }
    return fits;
}
