#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void dh_vocab_fini(dh_vocab *v)
{
    dh_str_fini(&v->bytes);
    dh_vec_fini(&v->pieces);
    dh_index_fini(&v->index);
    *v = (dh_vocab){0};
}

/* Extend the table with holes up to and including id. */
static dh_status reserve_id(dh_ctx *ctx, dh_vocab *v, uint64_t id)
{
    if (id >= DH_VOCAB_MAX)
        return dh_fail(ctx, DH_EFORMAT, "token id %llu is out of range (limit %u)",
                       (unsigned long long)id, DH_VOCAB_MAX);
    if (!dh_vec_reserve(&v->pieces, (size_t)id + 1)) return dh_no_memory(ctx);
    while (v->pieces.n <= id) v->pieces.at[v->pieces.n++] = (dh_piece){0};
    return DH_OK;
}

dh_status dh_vocab_replace(dh_ctx *ctx, dh_vocab *v, uint64_t id, const void *bytes, size_t len,
                           dh_piece_kind kind)
{
    DH_TRY(reserve_id(ctx, v, id));
    size_t offset = v->bytes.len;
    if (len > (size_t)1 << 30 || offset + len > (size_t)1 << 31)
        return dh_fail(ctx, DH_EFORMAT, "token texts exceed 2 GiB");
    dh_str_append(&v->bytes, bytes, len);
    if (v->bytes.failed) return dh_no_memory(ctx);
    v->pieces.at[id] = (dh_piece){(uint32_t)offset, (uint32_t)len, kind};
    return DH_OK;
}

dh_status dh_vocab_set(dh_ctx *ctx, dh_vocab *v, uint64_t id, const void *bytes, size_t len,
                       dh_piece_kind kind)
{
    if (id < v->pieces.n && v->pieces.at[id].kind != DH_PIECE_HOLE)
        return dh_fail(ctx, DH_EFORMAT, "token id %llu is given to two tokens",
                       (unsigned long long)id);
    return dh_vocab_replace(ctx, v, id, bytes, len, kind);
}

static uint32_t find(const dh_vocab *v, uint64_t hash, const void *bytes, size_t len)
{
    size_t at = 0;
    uint32_t id = dh_index_first(&v->index, hash, &at);
    for (; id != DH_NONE; id = dh_index_next(&v->index, hash, &at)) {
        const dh_piece *p = &v->pieces.at[id];
        if (p->len == len && memcmp(v->bytes.text + p->offset, bytes, len) == 0) break;
    }
    return id;
}

static dh_status index_piece(dh_ctx *ctx, dh_vocab *v, uint64_t hash, uint32_t id)
{
    if (dh_index_add(&v->index, hash, id)) return DH_OK;
    return dh_no_memory(ctx);
}

dh_status dh_vocab_index(dh_ctx *ctx, dh_vocab *v)
{
    dh_index_clear(&v->index);
    for (uint32_t id = 0; id < v->pieces.n; id++) {
        const dh_piece *p = &v->pieces.at[id];
        if (p->kind != DH_PIECE_NORMAL) continue;
        const char *bytes = v->bytes.text + p->offset;
        const uint64_t hash = XXH3_64bits(bytes, p->len);
        const uint32_t first = find(v, hash, bytes, p->len);
        if (first != DH_NONE)
            return dh_fail(ctx, DH_EFORMAT, "tokens %u and %u have the same text", first, id);
        DH_TRY(index_piece(ctx, v, hash, id));
    }
    return DH_OK;
}

dh_status dh_vocab_intern(dh_ctx *ctx, dh_vocab *v, const void *bytes, size_t len)
{
    const uint64_t hash = XXH3_64bits(bytes, len);
    if (find(v, hash, bytes, len) != DH_NONE) return DH_OK;
    const uint32_t id = (uint32_t)v->pieces.n;
    DH_TRY(dh_vocab_set(ctx, v, id, bytes, len, DH_PIECE_NORMAL));
    return index_piece(ctx, v, hash, id);
}

uint32_t dh_vocab_find(const dh_vocab *v, const void *bytes, size_t len)
{
    return find(v, XXH3_64bits(bytes, len), bytes, len);
}

/* ---- matcher ------------------------------------------------------------------- */

void dh_matcher_fini(dh_matcher *m)
{
    dh_vec_fini(&m->entries);
}

dh_status dh_matcher_add(dh_ctx *ctx, dh_matcher *m, dh_match_entry entry)
{
    return dh_vec_push(&m->entries, entry) ? DH_OK : dh_no_memory(ctx);
}

static int by_first_byte_then_longest(const void *a, const void *b, void *vocab)
{
    const dh_vocab *v = vocab;
    uint32_t ia = ((const dh_match_entry *)a)->id, ib = ((const dh_match_entry *)b)->id;
    const dh_piece *pa = &v->pieces.at[ia], *pb = &v->pieces.at[ib];
    int fa = *dh_vocab_bytes(v, ia), fb = *dh_vocab_bytes(v, ib);
    if (fa != fb) return fa - fb;
    if (pa->len != pb->len) return pa->len > pb->len ? -1 : 1;
    return ia < ib ? -1 : ia > ib;
}

void dh_matcher_sort(dh_matcher *m, const dh_vocab *v)
{
    size_t kept = 0; /* a token without text can match nothing */
    for (size_t i = 0; i < m->entries.n; i++)
        if (v->pieces.at[m->entries.at[i].id].len > 0) m->entries.at[kept++] = m->entries.at[i];
    m->entries.n = kept;
    if (kept)
        qsort_r(m->entries.at, kept, sizeof *m->entries.at, by_first_byte_then_longest,
                (void *)(uintptr_t)v);
    size_t i = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        m->first[byte] = (uint32_t)i;
        while (i < kept && *dh_vocab_bytes(v, m->entries.at[i].id) == byte) i++;
    }
    m->first[256] = (uint32_t)kept;
}

const dh_match_entry *dh_matcher_find(const dh_matcher *m, const dh_vocab *v, bool special,
                                      const unsigned char *text, size_t n)
{
    for (uint32_t i = m->first[*text]; i < m->first[*text + 1]; i++) {
        const dh_match_entry *e = &m->entries.at[i];
        const dh_piece *p = &v->pieces.at[e->id];
        if ((special || e->always) && p->len <= n &&
            memcmp(dh_vocab_bytes(v, e->id), text, p->len) == 0)
            return e;
    }
    return NULL;
}
