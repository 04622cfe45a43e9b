/* Learning merges (Sennrich et al. 2016, arXiv 1508.07909, algorithm 1), with counts kept up to
 * date. A merge visits only the words that have its pair. The next pair comes from a heap whose
 * entries are corrected when they come up.
 *
 * Neighbours are counted at every place, those that overlap too ("aaa" has a, a twice), and a
 * pair's occurrences are merged from the left: as Hugging Face's trainer does. */
#include "data/train_bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "data/count_words.h"
#include "data/tok.h"

enum { FEWEST = 2 }; /* occurrences of a pair that is worth a token */

typedef struct pair {
    uint32_t left, right;
    int64_t count;
    size_t touched;         /* number of the merge that last added to it */
    size_t merged;          /* place + 1 among the merges; 0: not there */
    DH_VEC(uint32_t) words; /* that have it, or had */
} pair;

typedef struct candidate {
    int64_t count; /* as it was when the entry was made */
    uint32_t left, right, pair;
} candidate;

typedef struct word {
    size_t at, n; /* symbols */
    int64_t count;
} word;

typedef struct learner {
    dh_learned_bpe *learned;
    DH_VEC(word) words;
    uint32_t *symbols;
    DH_VEC(pair) pairs;
    dh_index index; /* of pairs, by their ids */
    DH_VEC(candidate) heap;
    DH_VEC(uint32_t) touched; /* pairs that the merge at hand has added to */
    size_t n_merges;          /* done so far */
    bool failed;
} learner;

/* ---- heap: most occurrences first, then lowest ids ------------------------------------------- */

static bool goes_before(const candidate *a, const candidate *b)
{
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void sink(learner *l, size_t at)
{
    const candidate moved = l->heap.at[at];
    for (size_t child; (child = 2 * at + 1) < l->heap.n; at = child) {
        if (child + 1 < l->heap.n && goes_before(&l->heap.at[child + 1], &l->heap.at[child]))
            child++;
        if (!goes_before(&l->heap.at[child], &moved)) break;
        l->heap.at[at] = l->heap.at[child];
    }
    l->heap.at[at] = moved;
}

static void push(learner *l, uint32_t id)
{
    const pair *p = &l->pairs.at[id];
    const candidate c = {p->count, p->left, p->right, id};
    if (p->count < FEWEST) return;
    if (!dh_vec_push(&l->heap, c)) {
        l->failed = true;
        return;
    }
    size_t at = l->heap.n - 1;
    for (size_t parent; at > 0 && goes_before(&c, &l->heap.at[parent = (at - 1) / 2]); at = parent)
        l->heap.at[at] = l->heap.at[parent];
    l->heap.at[at] = c;
}

/* The pair that is there most often, DH_NONE when none is there twice. Counts may have fallen, or
 * risen behind an entry of their own, since an entry was made. */
static uint32_t pop(learner *l)
{
    while (l->heap.n > 0 && !l->failed) {
        const candidate top = l->heap.at[0];
        l->heap.at[0] = l->heap.at[--l->heap.n];
        if (l->heap.n > 0) sink(l, 0);
        if (l->pairs.at[top.pair].count == top.count) return top.pair;
        if (l->pairs.at[top.pair].count < top.count) push(l, top.pair);
    }
    return DH_NONE;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static pair *find_pair(learner *l, uint32_t left, uint32_t right, bool make)
{
    const uint64_t hash = dh_pair_hash(left, right);
    size_t at = 0;
    const uint32_t known = dh_index_first(&l->index, hash, &at);
    if (known != DH_NONE) return &l->pairs.at[known];
    const pair fresh = {.left = left, .right = right};
    if (!make) return NULL;
    if (!dh_index_add(&l->index, hash, (uint32_t)l->pairs.n) || !dh_vec_push(&l->pairs, fresh)) {
        l->failed = true;
        return NULL;
    }
    return &l->pairs.at[l->pairs.n - 1];
}

/* Two neighbours more in a word. */
static void add_pair(learner *l, uint32_t left, uint32_t right, uint32_t in)
{
    pair *p = find_pair(l, left, right, true);
    if (!p) return;
    p->count += l->words.at[in].count;
    if (p->words.n == 0 || p->words.at[p->words.n - 1] != in)
        l->failed |= !dh_vec_push(&p->words, in);
    if (p->touched == l->n_merges + 1) return;
    p->touched = l->n_merges + 1;
    l->failed |= !dh_vec_push(&l->touched, (uint32_t)(p - l->pairs.at));
}

static void drop_pair(learner *l, uint32_t left, uint32_t right, uint32_t in)
{
    pair *p = find_pair(l, left, right, false);
    if (p) p->count -= l->words.at[in].count;
}

static void push_touched(learner *l)
{
    for (size_t i = 0; i < l->touched.n && !l->failed; i++) push(l, l->touched.at[i]);
    l->touched.n = 0;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* `fresh` for each `left`, `right` of a word; what this does to the pairs around it. */
static void merge_in(learner *l, uint32_t in, uint32_t left, uint32_t right, uint32_t fresh)
{
    word *w = &l->words.at[in];
    uint32_t *s = l->symbols + w->at;
    size_t to = 0;
    for (size_t from = 0; from < w->n; from++) {
        if (from + 1 >= w->n || s[from] != left || s[from + 1] != right) {
            s[to++] = s[from];
            continue;
        }
        if (to > 0) {
            drop_pair(l, s[to - 1], left, in);
            add_pair(l, s[to - 1], fresh, in);
        }
        if (from + 2 < w->n) {
            drop_pair(l, right, s[from + 2], in);
            add_pair(l, fresh, s[from + 2], in);
        }
        s[to++] = fresh;
        from++;
    }
    w->n = to;
}

/* A pair that comes up again, since a part of it was made in a second way, goes by its last rank,
 * as in Hugging Face's table of merges. */
static void note_merge(learner *l, pair *p)
{
    const dh_learned_merge made = {p->left, p->right};
    if (p->merged) l->learned->merges.at[p->merged - 1] = (dh_learned_merge){DH_NONE, DH_NONE};
    l->failed |= !dh_vec_push(&l->learned->merges, made);
    p->merged = l->learned->merges.n;
}

static dh_status merge(dh_ctx *ctx, learner *l, uint32_t id)
{
    pair *p = &l->pairs.at[id];
    const uint32_t left = p->left, right = p->right;
    uint32_t *words = p->words.at;
    const size_t n_words = p->words.n;
    dh_str joined = DH_STR_INIT;
    dh_vocab *v = &l->learned->vocab;
    dh_str_append(&joined, (const char *)dh_vocab_bytes(v, left), v->pieces.at[left].len);
    dh_str_append(&joined, (const char *)dh_vocab_bytes(v, right), v->pieces.at[right].len);
    dh_status st =
        joined.failed ? dh_no_memory(ctx) : dh_vocab_intern(ctx, v, joined.text, joined.len);
    note_merge(l, p);
    p->count = 0;
    memset(&p->words, 0, sizeof p->words);
    if (st == DH_OK) {
        const uint32_t fresh = dh_vocab_find(v, joined.text, joined.len);
        for (size_t i = 0; i < n_words && !l->failed; i++)
            merge_in(l, words[i], left, right, fresh);
        l->pairs.at[id].count = 0; /* overlapping pairs are gone too */
        push_touched(l);
    }
    l->n_merges++;
    free(words);
    dh_str_fini(&joined);
    return st;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static dh_status add_tokens(dh_ctx *ctx, dh_vocab *v, uint32_t byte_id[256])
{
    DH_TRY(
        dh_vocab_set(ctx, v, 0, DH_BPE_END_OF_TEXT, strlen(DH_BPE_END_OF_TEXT), DH_PIECE_SPECIAL));
    for (unsigned place = 0; place < 256; place++) {
        const unsigned char byte = dh_bytelevel_byte(place);
        byte_id[byte] = place + 1;
        DH_TRY(dh_vocab_set(ctx, v, place + 1, &byte, 1, DH_PIECE_NORMAL));
    }
    return dh_vocab_index(ctx, v);
}

/* Words as symbols, one for each byte to begin with, and the pairs in them. */
static dh_status begin(dh_ctx *ctx, learner *l, const dh_word_counts *counts,
                       const uint32_t byte_id[256])
{
    l->symbols = malloc((counts->bytes.len + 1) * sizeof *l->symbols);
    l->failed = !l->symbols;
    for (size_t i = 0; i < counts->bytes.len && !l->failed; i++)
        l->symbols[i] = byte_id[(unsigned char)counts->bytes.text[i]];
    for (size_t i = 0; i < counts->words.n && !l->failed; i++) {
        const dh_counted_word *c = &counts->words.at[i];
        const word w = {c->at, c->n, c->count};
        l->failed |= !dh_vec_push(&l->words, w);
        for (size_t k = 0; k + 1 < w.n && !l->failed; k++)
            add_pair(l, l->symbols[w.at + k], l->symbols[w.at + k + 1], (uint32_t)i);
    }
    push_touched(l);
    return l->failed ? dh_no_memory(ctx) : DH_OK;
}

static void learner_fini(learner *l)
{
    for (size_t i = 0; i < l->pairs.n; i++) dh_vec_fini(&l->pairs.at[i].words);
    dh_vec_fini(&l->pairs);
    dh_vec_fini(&l->words);
    dh_vec_fini(&l->heap);
    dh_vec_fini(&l->touched);
    dh_index_fini(&l->index);
    free(l->symbols);
}

static dh_status learn(dh_ctx *ctx, const dh_word_counts *counts, size_t vocab,
                       dh_learned_bpe *learned)
{
    learner l = {.learned = learned};
    uint32_t byte_id[256], best;
    dh_status st = add_tokens(ctx, &learned->vocab, byte_id);
    if (st == DH_OK) st = begin(ctx, &l, counts, byte_id);
    while (st == DH_OK && learned->vocab.pieces.n < vocab && (best = pop(&l)) != DH_NONE)
        st = merge(ctx, &l, best) == DH_OK ? dh_heed_stop(ctx, "merges were learnt") : ctx->status;
    if (st == DH_OK && l.failed) st = dh_no_memory(ctx);
    learner_fini(&l);
    return st;
}

dh_status dh_bpe_learn(dh_ctx *ctx, const char *const *files, size_t n_files,
                       const char *text_field, int64_t vocab, dh_learned_bpe *learned)
{
    *learned = (dh_learned_bpe){0};
    if (vocab < DH_BPE_SMALLEST || vocab > DH_VOCAB_MAX)
        return dh_fail(
            ctx, DH_EINVAL,
            "a vocabulary of %lld tokens: it must have between %d (the bytes and the end "
            "of a text) and %u",
            (long long)vocab, DH_BPE_SMALLEST, DH_VOCAB_MAX);
    dh_word_counts counts = {0};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n_files; i++)
        st = dh_count_words(ctx, files[i], text_field, &counts);
    learned->n_words = counts.words.n;
    if (st == DH_OK) st = learn(ctx, &counts, (size_t)vocab, learned);
    dh_word_counts_fini(&counts);
    if (st != DH_OK) dh_learned_bpe_fini(learned);
    return st;
}

void dh_learned_bpe_fini(dh_learned_bpe *learned)
{
    dh_vocab_fini(&learned->vocab);
    dh_vec_fini(&learned->merges);
}
