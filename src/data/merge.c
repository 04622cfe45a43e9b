#include "data/merge.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- pair table -------------------------------------------------------------------- */

#define EMPTY_KEY UINT64_MAX

void dh_pairs_fini(dh_pair_table *t)
{
    free(t->slots);
    *t = (dh_pair_table){0};
}

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Slot that holds the key, or the empty one where it belongs (Fibonacci hashing). */
static size_t pair_slot(const dh_pair_table *t, uint64_t key)
{
    size_t mask = t->n_slots - 1;
    uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    size_t slot = (size_t)(mixed ^ mixed >> 32) & mask;
    while (t->slots[slot].key != EMPTY_KEY && t->slots[slot].key != key) slot = (slot + 1) & mask;
    return slot;
}

static bool pairs_grow(dh_pair_table *t)
{
    dh_pair_table bigger = {.n = t->n, .n_slots = t->n_slots ? 2 * t->n_slots : 1024};
    bigger.slots = malloc(bigger.n_slots * sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < bigger.n_slots; i++) bigger.slots[i].key = EMPTY_KEY;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].key != EMPTY_KEY)
            bigger.slots[pair_slot(&bigger, t->slots[i].key)] = t->slots[i];
    free(t->slots);
    *t = bigger;
    return true;
}

dh_status dh_pairs_add(dh_ctx *ctx, dh_pair_table *t, uint32_t left, uint32_t right, uint32_t rank,
                       uint32_t id)
{
    if (2 * (t->n + 1) > t->n_slots && !pairs_grow(t))
        return dh_fail(ctx, DH_ENOMEM, "out of memory for %zu merges", t->n + 1);
    size_t slot = pair_slot(t, pair_key(left, right));
    if (t->slots[slot].key != EMPTY_KEY) return DH_OK;
    t->slots[slot] = (dh_pair){pair_key(left, right), rank, id};
    t->n++;
    return DH_OK;
}

const dh_pair *dh_pairs_find(const dh_pair_table *t, uint32_t left, uint32_t right)
{
    if (t->n_slots == 0 || left == DH_NO_ID || right == DH_NO_ID) return NULL;
    const dh_pair *p = &t->slots[pair_slot(t, pair_key(left, right))];
    return p->key == EMPTY_KEY ? NULL : p;
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
    free(c->slots);
    dh_str_fini(&c->texts);
    dh_vec_fini(&c->ids);
    *c = (dh_word_cache){0};
}

static size_t cache_slot(const dh_word_cache *c, uint64_t hash, const void *word, size_t len)
{
    size_t mask = c->n_slots - 1, slot = (size_t)hash & mask;
    for (; c->slots[slot].len; slot = (slot + 1) & mask) {
        const dh_cached_word *w = &c->slots[slot];
        if (w->hash == hash && w->len == len && memcmp(c->texts.text + w->text, word, len) == 0)
            break;
    }
    return slot;
}

const int32_t *dh_cache_get(const dh_word_cache *c, const void *word, size_t len, size_t *n_ids)
{
    if (c->n == 0 || len > DH_CACHED_WORD_MAX) return NULL;
    const dh_cached_word *w = &c->slots[cache_slot(c, XXH3_64bits(word, len), word, len)];
    if (w->len == 0) return NULL;
    *n_ids = w->n_ids;
    return c->ids.at + w->ids;
}

static void cache_forget(dh_word_cache *c)
{
    if (c->n_slots) memset(c->slots, 0, c->n_slots * sizeof *c->slots);
    c->n = 0;
    dh_str_clear(&c->texts);
    c->ids.n = 0;
}

static bool cache_grow(dh_word_cache *c)
{
    size_t n_slots = c->n_slots ? 2 * c->n_slots : 1024;
    dh_cached_word *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < c->n_slots; i++) {
        if (!c->slots[i].len) continue;
        size_t slot = (size_t)c->slots[i].hash & (n_slots - 1);
        while (slots[slot].len) slot = (slot + 1) & (n_slots - 1);
        slots[slot] = c->slots[i];
    }
    free(c->slots);
    c->slots = slots;
    c->n_slots = n_slots;
    return true;
}

void dh_cache_put(dh_word_cache *c, const void *word, size_t len, const int32_t *ids, size_t n_ids)
{
    if (len == 0 || len > DH_CACHED_WORD_MAX) return;
    if (c->n == MAX_CACHED_WORDS) cache_forget(c);
    if (2 * (c->n + 1) > c->n_slots && !cache_grow(c)) return;
    if (!dh_vec_reserve(&c->ids, c->ids.n + n_ids)) return;
    size_t text = c->texts.len;
    dh_str_append(&c->texts, word, len);
    if (c->texts.failed) {
        c->texts.failed = false;
        cache_forget(c);
        return;
    }
    uint64_t hash = XXH3_64bits(word, len);
    c->slots[cache_slot(c, hash, word, len)] =
        (dh_cached_word){hash, (uint32_t)text, (uint32_t)c->ids.n, (uint16_t)len, (uint16_t)n_ids};
    if (n_ids) memcpy(c->ids.at + c->ids.n, ids, n_ids * sizeof *ids);
    c->ids.n += n_ids;
    c->n++;
}
