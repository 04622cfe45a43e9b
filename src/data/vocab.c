#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void dh_vocab_fini(dh_vocab *v)
{
    dh_str_fini(&v->bytes);
    dh_vec_fini(&v->pieces);
    free(v->slots);
    *v = (dh_vocab){0};
}

/* Extend the table with holes up to and including id. */
static dh_status reserve_id(dh_ctx *ctx, dh_vocab *v, uint64_t id)
{
    if (id >= DH_VOCAB_MAX)
        return dh_fail(ctx, DH_EFORMAT, "token id %llu is out of range (limit %u)",
                       (unsigned long long)id, DH_VOCAB_MAX);
    if (!dh_vec_reserve(&v->pieces, (size_t)id + 1))
        return dh_fail(ctx, DH_ENOMEM, "out of memory for a vocabulary of %llu tokens",
                       (unsigned long long)id + 1);
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
    if (v->bytes.failed) return dh_fail(ctx, DH_ENOMEM, "out of memory for token texts");
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

/* Slot that holds the piece with these bytes, or the empty one where it belongs. */
static size_t slot_of(const dh_vocab *v, const void *bytes, size_t len)
{
    size_t mask = v->n_slots - 1;
    size_t slot = (size_t)XXH3_64bits(bytes, len) & mask;
    while (v->slots[slot]) {
        const dh_piece *p = &v->pieces.at[v->slots[slot] - 1];
        if (p->len == len && memcmp(v->bytes.text + p->offset, bytes, len) == 0) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

dh_status dh_vocab_index(dh_ctx *ctx, dh_vocab *v)
{
    size_t n_slots = 16;
    while (n_slots < 2 * v->pieces.n) n_slots *= 2;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return dh_fail(ctx, DH_ENOMEM, "out of memory for the vocabulary index");
    free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    for (uint32_t id = 0; id < v->pieces.n; id++) {
        const dh_piece *p = &v->pieces.at[id];
        if (p->kind != DH_PIECE_NORMAL) continue;
        size_t slot = slot_of(v, v->bytes.text + p->offset, p->len);
        if (slots[slot])
            return dh_fail(ctx, DH_EFORMAT, "tokens %u and %u have the same text", slots[slot] - 1,
                           id);
        slots[slot] = id + 1;
    }
    return DH_OK;
}

dh_status dh_vocab_intern(dh_ctx *ctx, dh_vocab *v, const void *bytes, size_t len)
{
    if (dh_vocab_find(v, bytes, len) != DH_NO_ID) return DH_OK;
    size_t id = v->pieces.n;
    DH_TRY(dh_vocab_set(ctx, v, id, bytes, len, DH_PIECE_NORMAL));
    if (2 * v->pieces.n > v->n_slots) return dh_vocab_index(ctx, v);
    v->slots[slot_of(v, bytes, len)] = (uint32_t)id + 1;
    return DH_OK;
}

uint32_t dh_vocab_find(const dh_vocab *v, const void *bytes, size_t len)
{
    uint32_t held = v->n_slots ? v->slots[slot_of(v, bytes, len)] : 0;
    return held ? held - 1 : DH_NO_ID;
}

/* ---- matcher ------------------------------------------------------------------- */

void dh_matcher_fini(dh_matcher *m)
{
    dh_vec_fini(&m->entries);
}

dh_status dh_matcher_add(dh_ctx *ctx, dh_matcher *m, dh_match_entry entry)
{
    return dh_vec_push(&m->entries, entry)
               ? DH_OK
               : dh_fail(ctx, DH_ENOMEM, "out of memory for the special tokens");
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
