#include "data/merge.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- pair table -------------------------------------------------------------------- */

void dh_pairs_fini(dh_pair_table *t)
{
    dh_vec_fini(&t->pairs);
    dh_index_fini(&t->index);
}

/* Both ids, mixed (Fibonacci hashing). */
uint64_t dh_pair_hash(uint32_t left, uint32_t right)
{
    const uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return mixed ^ mixed >> 32;
}

dh_status dh_pairs_add(dh_ctx *ctx, dh_pair_table *t, uint32_t left, uint32_t right, uint32_t rank,
                       uint32_t id)
{
    size_t at = 0;
    const uint64_t hash = dh_pair_hash(left, right);
    const dh_pair pair = {left, right, rank, id};
    if (dh_index_first(&t->index, hash, &at) != DH_NONE) return DH_OK;
    if (!dh_vec_reserve(&t->pairs, t->pairs.n + 1) ||
        !dh_index_add(&t->index, hash, (uint32_t)t->pairs.n))
        return dh_no_memory(ctx);
    t->pairs.at[t->pairs.n++] = pair;
    return DH_OK;
}

const dh_pair *dh_pairs_find(const dh_pair_table *t, uint32_t left, uint32_t right)
{
    size_t at = 0;
    if (left == DH_NO_ID || right == DH_NO_ID) return NULL;
    const uint32_t i = dh_index_first(&t->index, dh_pair_hash(left, right), &at);
    return i == DH_NONE ? NULL : &t->pairs.at[i];
}

/* ---- merge engine -------------------------------------------------------------------- */

void dh_merger_fini(dh_merger *m)
{
    dh_vec_fini(&m->symbols);
    dh_vec_fini(&m->heap);
}

void dh_merger_clear(dh_merger *m)
{
    m->symbols.n = 0;
    m->heap.n = 0;
}

bool dh_merger_add(dh_merger *m, uint32_t id, size_t start)
{
    uint32_t i = (uint32_t)m->symbols.n;
    dh_symbol symbol = {id, (uint32_t)start, i ? i - 1 : DH_SYMBOL_END, DH_SYMBOL_END};
    if (!dh_vec_push(&m->symbols, symbol)) return false;
    if (i) m->symbols.at[i - 1].next = i;
    return true;
}

static bool heap_push(dh_merger *m, dh_candidate c)
{
    if (!dh_vec_push(&m->heap, c)) return false;
    dh_candidate *heap = m->heap.at;
    size_t i = m->heap.n - 1;
    for (; i > 0 && heap[(i - 1) / 2].key > c.key; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
    return true;
}

static dh_candidate heap_pop(dh_merger *m)
{
    dh_candidate *heap = m->heap.at, top = heap[0], last = heap[--m->heap.n];
    size_t n = m->heap.n, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= last.key) break;
        heap[i] = heap[child];
    }
    if (n) heap[i] = last;
    return top;
}

/* Put the pair that starts at symbol `at` on the heap, if it can merge. */
static bool propose(dh_merger *m, const dh_pair_table *pairs, uint32_t at)
{
    if (at == DH_SYMBOL_END || m->symbols.at[at].next == DH_SYMBOL_END) return true;
    uint32_t left = m->symbols.at[at].id, right = m->symbols.at[m->symbols.at[at].next].id;
    const dh_pair *p = dh_pairs_find(pairs, left, right);
    return !p || heap_push(m, (dh_candidate){(uint64_t)p->rank << 32 | at, left, right, p->id});
}

bool dh_merger_run(dh_merger *m, const dh_pair_table *pairs)
{
    for (uint32_t i = 0; i < m->symbols.n; i++)
        if (!propose(m, pairs, i)) return false;
    dh_symbol *s = m->symbols.at;
    while (m->heap.n) {
        dh_candidate c = heap_pop(m);
        uint32_t at = (uint32_t)c.key, next = s[at].next;
        /* Stale when either side has changed since. A symbol that was merged into its left
         * neighbour keeps no id, so it never matches. */
        if (s[at].id != c.left || next == DH_SYMBOL_END || s[next].id != c.right) continue;
        s[at].id = c.id;
        s[at].next = s[next].next;
        s[next].id = DH_NO_ID;
        if (s[at].next != DH_SYMBOL_END) s[s[at].next].prev = at;
        if (!propose(m, pairs, s[at].prev) || !propose(m, pairs, at)) return false;
    }
    return true;
}

/* ---- word cache ------------------------------------------------------------------------- */

/* TUNING: 2^17 words take about 8 MB; English corpora of some MB stay well below. */
#define MAX_CACHED_WORDS ((size_t)1 << 17)

void dh_cache_fini(dh_word_cache *c)
{
    dh_vec_fini(&c->records);
    dh_index_fini(&c->index);
}

const int32_t *dh_cache_get(const dh_word_cache *c, const void *word, size_t len, size_t *n_ids)
{
    if (c->index.n == 0 || len > DH_CACHED_WORD_MAX) return NULL;
    size_t at = 0;
    const uint64_t hash = XXH3_64bits(word, len);
    for (uint32_t i = dh_index_first(&c->index, hash, &at); i != DH_NONE;
         i = dh_index_next(&c->index, hash, &at)) {
        const int32_t *record = c->records.at + i;
        *n_ids = (size_t)*record >> 16;
        if ((*record & 0xffff) == (int32_t)len && memcmp(record + 1 + *n_ids, word, len) == 0)
            return record + 1;
    }
    return NULL;
}

static void cache_forget(dh_word_cache *c)
{
    dh_index_clear(&c->index);
    c->records.n = 0;
}

void dh_cache_put(dh_word_cache *c, const void *word, size_t len, const int32_t *ids, size_t n_ids)
{
    if (len == 0 || len > DH_CACHED_WORD_MAX || n_ids == 0) return;
    if (c->index.n == MAX_CACHED_WORDS) cache_forget(c);
    const size_t n = 1 + n_ids + (len + sizeof *ids - 1) / sizeof *ids;
    if (!dh_vec_reserve(&c->records, c->records.n + n)) return;
    if (!dh_index_add(&c->index, XXH3_64bits(word, len), (uint32_t)c->records.n)) return;
    int32_t *record = c->records.at + c->records.n;
    record[0] = (int32_t)(n_ids << 16 | len);
    memcpy(record + 1, ids, n_ids * sizeof *ids);
    memcpy(record + 1 + n_ids, word, len);
    c->records.n += n;
}
