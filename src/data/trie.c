#include "data/trie.h"

#include <stdlib.h>
#include <string.h>

void dh_trie_fini(dh_trie *trie)
{
    dh_vec_fini(&trie->nodes);
}

static int by_bytes(const void *a, const void *b, void *vocab)
{
    const dh_vocab *v = vocab;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const dh_piece *p = &v->pieces.at[x], *q = &v->pieces.at[y];
    const size_t n = DH_MIN(p->len, q->len);
    const int order = n ? memcmp(dh_vocab_bytes(v, x), dh_vocab_bytes(v, y), n) : 0;
    return order ? order : (p->len > q->len) - (p->len < q->len);
}

/* Tokens of one prefix, sorted: they lie below one node. */
typedef struct range {
    uint32_t node, depth;
    size_t begin, end;
} range;

typedef DH_VEC(range) ranges;

/* The node's own token, and a child for every byte that comes next. */
static bool grow(dh_trie *trie, const dh_vocab *v, const uint32_t *ids, range r, ranges *pending)
{
    while (r.begin < r.end && v->pieces.at[ids[r.begin]].len == r.depth) {
        trie->nodes.at[r.node].id = ids[r.begin];
        r.begin++;
    }
    trie->nodes.at[r.node].children = (uint32_t)trie->nodes.n;
    for (size_t at = r.begin, end; at < r.end; at = end) {
        const unsigned char byte = dh_vocab_bytes(v, ids[at])[r.depth];
        for (end = at; end < r.end && dh_vocab_bytes(v, ids[end])[r.depth] == byte;) end++;
        const range below = {(uint32_t)trie->nodes.n, r.depth + 1, at, end};
        const dh_trie_node child = {.id = DH_NO_ID, .byte = byte};
        if (!dh_vec_push(&trie->nodes, child) || !dh_vec_push(pending, below)) return false;
        trie->nodes.at[r.node].n_children++;
    }
    return true;
}

dh_status dh_trie_build(dh_ctx *ctx, const dh_vocab *v, dh_trie *trie)
{
    for (uint32_t id = 0; id < v->pieces.n; id++)
        if (v->pieces.at[id].kind == DH_PIECE_NORMAL && v->pieces.at[id].len > DH_MOST_TRIE_BYTES)
            return dh_fail(ctx, DH_EUNSUPPORTED, "token %u has %u bytes (at most %d)", id,
                           v->pieces.at[id].len, DH_MOST_TRIE_BYTES);
    uint32_t *ids = malloc((v->pieces.n + 1) * sizeof *ids);
    size_t n = 0;
    ranges pending = {0};
    const dh_trie_node root = {.id = DH_NO_ID};
    bool ok = ids && dh_vec_push(&trie->nodes, root);
    for (uint32_t id = 0; ok && id < v->pieces.n; id++)
        if (v->pieces.at[id].kind == DH_PIECE_NORMAL) ids[n++] = id;
    if (ok && n > 0) {
        qsort_r(ids, n, sizeof *ids, by_bytes, (void *)(uintptr_t)v);
        ok = dh_vec_push(&pending, (range){0, 0, 0, n});
    }
    for (size_t i = 0; ok && i < pending.n; i++) ok = grow(trie, v, ids, pending.at[i], &pending);
    dh_vec_fini(&pending);
    free(ids);
    return ok ? DH_OK : dh_no_memory(ctx);
}
