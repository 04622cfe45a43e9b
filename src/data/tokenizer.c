/* Code common to all tokenizers: life cycle, encoding around special tokens, decoding. */
#include "base/needs.h"
#include "base/utf8.h"
#include "data/tok.h"
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- life cycle ----------------------------------------------------------------- */

dh_tokenizer *dh_tokenizer_new(dh_ctx *ctx, const dh_tok_kind *kind)
{
    dh_tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) {
        dh_no_memory(ctx);
        return NULL;
    }
    tok->kind = kind;
    for (size_t i = 0; i < 256; i++) tok->byte_id[i] = DH_NO_ID;
    tok->unk = DH_NO_ID;
    tok->bos = tok->eos = -1;
    return tok;
}

void dh_tokenizer_destroy(dh_tokenizer *tok)
{
    if (!tok) return;
    dh_vocab_fini(&tok->vocab);
    dh_vocab_fini(&tok->stray);
    dh_pairs_fini(&tok->pairs);
    dh_matcher_fini(&tok->specials);
    dh_matcher_fini(&tok->user);
    dh_normalizer_fini(&tok->normalizer);
    dh_splitter_fini(&tok->splitter);
    dh_shown_fini(&tok->shown);
    dh_vocab_fini(&tok->user_texts);
    dh_vec_fini(&tok->codes);
    dh_str_fini(&tok->word_prefix);
    dh_str_fini(&tok->word_suffix);
    dh_trie_fini(&tok->trie);
    dh_charsmap_fini(&tok->charsmap);
    dh_vec_fini(&tok->scores);
    free(tok->path);
    free(tok);
}

dh_status dh_tokenizer_add_special(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, bool always)
{
    return dh_matcher_add(ctx, &tok->specials, (dh_match_entry){.id = id, .always = always});
}

/* The fingerprint is a chain: each part is hashed with what came before as seed. */
static void hash_part(uint64_t *h, const void *data, size_t n)
{
    *h = XXH3_64bits_withSeed(data, n, *h);
}

static void hash_matcher(uint64_t *h, const dh_matcher *m)
{
    for (size_t i = 0; i < m->entries.n; i++) {
        const dh_match_entry *e = &m->entries.at[i];
        uint32_t fields[] = {e->id, e->always | (uint32_t)e->single_word << 1, e->lstrip,
                             e->rstrip};
        hash_part(h, fields, sizeof fields);
    }
}

static void hash_vocab(uint64_t *h, const dh_vocab *v)
{
    for (uint32_t id = 0; id < v->pieces.n; id++) {
        const dh_piece *p = &v->pieces.at[id];
        uint32_t fields[] = {p->len, (uint32_t)p->kind};
        hash_part(h, fields, sizeof fields);
        if (p->len) hash_part(h, dh_vocab_bytes(v, id), p->len);
    }
}

/* The order of the merges is in their ranks, that of the table means nothing: a sum. */
static uint64_t sum_of_pairs(const dh_pair_table *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < t->pairs.n; i++) {
        const dh_pair *p = &t->pairs.at[i];
        sum += dh_mix64(((uint64_t)p->left << 32 | p->right) ^
                        dh_mix64((uint64_t)p->rank << 32 | p->id));
    }
    return sum;
}

/* Further parts of the kinds of tok_words.c, and of byte-level BPE with a normalizer. */
static void hash_words(uint64_t *h, const dh_tokenizer *tok)
{
    const uint64_t facts[] = {tok->normalizer.hash, tok->longest_word, tok->continuing};
    hash_part(h, facts, sizeof facts);
    hash_vocab(h, &tok->user_texts);
    if (tok->word_prefix.len) hash_part(h, tok->word_prefix.text, tok->word_prefix.len);
    hash_part(h, ".", 1);
    if (tok->word_suffix.len) hash_part(h, tok->word_suffix.text, tok->word_suffix.len);
    if (tok->scores.n) hash_part(h, tok->scores.at, tok->scores.n * sizeof *tok->scores.at);
    hash_part(h, &tok->unk_score, sizeof tok->unk_score);
}

void dh_tokenizer_seal(dh_tokenizer *tok)
{
    uint64_t h = 0;
    uint64_t facts[] = {1, /* bump when encoding changes */
                        sum_of_pairs(&tok->pairs),
                        tok->splitter.hash,
                        tok->unk,
                        (uint64_t)tok->bos,
                        (uint64_t)tok->eos,
                        tok->prefix,
                        tok->prefix_first_only,
                        tok->ignore_merges,
                        tok->fuse_unk,
                        tok->escape_space,
                        tok->collapse_spaces};
    hash_part(&h, tok->kind->name, strlen(tok->kind->name));
    hash_part(&h, facts, sizeof facts);
    hash_part(&h, tok->byte_id, sizeof tok->byte_id);
    hash_vocab(&h, &tok->vocab);
    hash_vocab(&h, &tok->stray);
    hash_matcher(&h, &tok->specials);
    hash_matcher(&h, &tok->user);
    if (tok->charsmap.n_units) {
        const uint64_t written = dh_charsmap_hash(&tok->charsmap);
        hash_part(&h, &written, sizeof written);
    }
    if (tok->normalizer.hash || tok->scores.n || tok->kind->encode == dh_encode_words)
        hash_words(&h, tok);
    tok->fingerprint = h;
}

dh_status dh_tokenizer_finish(dh_ctx *ctx, dh_tokenizer *made, dh_status st, dh_tokenizer **tok)
{
    if (st == DH_OK && made->vocab.pieces.n == 0)
        st = dh_fail(ctx, DH_EFORMAT, "the tokenizer has no tokens");
    if (st != DH_OK) {
        dh_tokenizer_destroy(made);
        return st;
    }
    dh_matcher_sort(&made->specials, &made->vocab);
    dh_matcher_sort(&made->user, made->user_texts.pieces.n ? &made->user_texts : &made->vocab);
    dh_tokenizer_seal(made);
    *tok = made;
    return DH_OK;
}

/* ---- facts -------------------------------------------------------------------------- */

const char *dh_tokenizer_kind(const dh_tokenizer *tok)
{
    return tok->kind->name;
}

int32_t dh_tokenizer_vocab_size(const dh_tokenizer *tok)
{
    return (int32_t)tok->vocab.pieces.n;
}

int32_t dh_tokenizer_bos(const dh_tokenizer *tok)
{
    return tok->bos;
}

int32_t dh_tokenizer_eos(const dh_tokenizer *tok)
{
    return tok->eos;
}

uint64_t dh_tokenizer_fingerprint(const dh_tokenizer *tok)
{
    return tok->fingerprint;
}

int32_t dh_tokenizer_special(const dh_tokenizer *tok, const char *text)
{
    const dh_matcher *all[] = {&tok->specials, &tok->user};
    size_t n = strlen(text);
    for (size_t k = 0; k < DH_COUNTOF(all); k++)
        for (size_t i = 0; i < all[k]->entries.n; i++) {
            uint32_t id = all[k]->entries.at[i].id;
            if (tok->vocab.pieces.at[id].len == n &&
                memcmp(dh_vocab_bytes(&tok->vocab, id), text, n) == 0)
                return (int32_t)id;
        }
    return -1;
}

/* ---- encoding ------------------------------------------------------------------------- */

dh_status dh_encoder_create(dh_ctx *ctx, const dh_tokenizer *tok, dh_encoder **enc)
{
    DH_NEEDS(ctx, tok);
    DH_NEEDS(ctx, enc);
    dh_encoder *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    made->tok = tok;
    dh_status st = DH_OK;
    if (tok->splitter.steps.n) st = dh_split_scratch_create(ctx, &tok->splitter, &made->split);
    if (st == DH_OK && tok->normalizer.steps.n)
        st = dh_normalize_work_create(ctx, &made->normalize);
    if (st == DH_OK)
        *enc = made;
    else
        dh_encoder_destroy(made);
    return st;
}

void dh_encoder_destroy(dh_encoder *enc)
{
    if (!enc) return;
    dh_merger_fini(&enc->merger);
    dh_cache_fini(&enc->cache);
    dh_split_scratch_destroy(enc->split);
    dh_normalize_work_destroy(enc->normalize);
    dh_str_fini(&enc->norm);
    dh_str_fini(&enc->spelled);
    dh_str_fini(&enc->written);
    dh_vec_fini(&enc->word);
    dh_vec_fini(&enc->path);
    free(enc);
}

/* TUNING: waiting ids before they are drained; 256 KiB stays in the L2 cache. */
#define DRAIN_IDS 65536

dh_status dh_encoder_push(dh_ctx *ctx, dh_encoder *enc, uint32_t id)
{
    if (!dh_vec_push(enc->ids, (int32_t)id)) return dh_no_memory(ctx);
    enc->last_unk = false;
    if (enc->drain && enc->ids->n >= DRAIN_IDS)
        return enc->drain(ctx, enc->drain_arg, enc->ids, enc->done_bytes);
    return DH_OK;
}

/* A symbol that is no token: its bytes, if each has a token, or the unknown token. */
static dh_status push_unmerged(dh_ctx *ctx, dh_encoder *enc, const unsigned char *bytes, size_t n)
{
    const dh_tokenizer *tok = enc->tok;
    size_t known = 0;
    while (known < n && tok->byte_id[bytes[known]] != DH_NO_ID) known++;
    if (known == n) {
        for (size_t i = 0; i < n; i++) DH_TRY(dh_encoder_push(ctx, enc, tok->byte_id[bytes[i]]));
        return DH_OK;
    }
    if (tok->unk == DH_NO_ID)
        return dh_fail(ctx, DH_EINVAL,
                       "byte 0x%02X has no token, and the tokenizer has no unknown token",
                       bytes[known]);
    if (tok->fuse_unk && enc->last_unk) return DH_OK;
    DH_TRY(dh_encoder_push(ctx, enc, tok->unk));
    enc->last_unk = true;
    return DH_OK;
}

static dh_status push_symbols(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    const dh_symbol *symbols = enc->merger.symbols.at;
    for (uint32_t i = 0; i != DH_SYMBOL_END; i = symbols[i].next) {
        size_t end = symbols[i].next == DH_SYMBOL_END ? n : symbols[symbols[i].next].start;
        if (symbols[i].id < enc->tok->vocab.pieces.n)
            DH_TRY(dh_encoder_push(ctx, enc, symbols[i].id));
        else
            DH_TRY(push_unmerged(ctx, enc, word + symbols[i].start, end - symbols[i].start));
    }
    return DH_OK;
}

/* Remember a merged word, when all its symbols are tokens. */
static void remember(dh_encoder *enc, const unsigned char *word, size_t n)
{
    int32_t ids[DH_CACHED_WORD_MAX];
    size_t n_ids = 0;
    const dh_symbol *symbols = enc->merger.symbols.at;
    for (uint32_t i = 0; i != DH_SYMBOL_END; i = symbols[i].next) {
        if (symbols[i].id >= enc->tok->vocab.pieces.n) return;
        ids[n_ids++] = (int32_t)symbols[i].id;
    }
    dh_cache_put(&enc->cache, word, n, ids, n_ids);
}

static dh_status segment_word(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    enc->word.n = 0;
    DH_TRY(enc->tok->kind->segment(ctx, enc, word, n));
    dh_cache_put(&enc->cache, word, n, enc->word.at, enc->word.n);
    for (size_t i = 0; i < enc->word.n; i++)
        DH_TRY(dh_encoder_push(ctx, enc, (uint32_t)enc->word.at[i]));
    return DH_OK;
}

/* Takes out symbols that have neither a token nor tokens of their bytes: their neighbours may then
 * merge, as in Hugging Face's tokenizers. All others have ids afterwards, and their places in the
 * word no longer matter. */
static bool drop_unknown(dh_encoder *enc, const unsigned char *word, size_t n)
{
    dh_merger *m = &enc->merger;
    bool ok = true;
    enc->word.n = 0;
    for (size_t i = 0; ok && i < m->symbols.n; i++) {
        const dh_symbol *s = &m->symbols.at[i];
        const size_t end = i + 1 < m->symbols.n ? s[1].start : n;
        size_t known = s->start;
        while (known < end && enc->tok->byte_id[word[known]] != DH_NO_ID) known++;
        if (s->id != DH_NO_ID) ok = dh_vec_push(&enc->word, (int32_t)s->id);
        for (size_t k = s->start; ok && s->id == DH_NO_ID && known == end && k < end; k++)
            ok = dh_vec_push(&enc->word, (int32_t)enc->tok->byte_id[word[k]]);
    }
    dh_merger_clear(m);
    for (size_t i = 0; ok && i < enc->word.n; i++)
        ok = dh_merger_add(m, (uint32_t)enc->word.at[i], i);
    return ok;
}

dh_status dh_encoder_word(dh_ctx *ctx, dh_encoder *enc, const unsigned char *word, size_t n)
{
    if (n == 0) return DH_OK;
    enc->done_bytes += n;
    size_t n_ids;
    const int32_t *ids = dh_cache_get(&enc->cache, word, n, &n_ids);
    if (ids) {
        for (size_t i = 0; i < n_ids; i++) DH_TRY(dh_encoder_push(ctx, enc, (uint32_t)ids[i]));
        return DH_OK;
    }
    if (n > INT32_MAX)
        return dh_fail(ctx, DH_EINVAL, "a word of %zu bytes (at most 2 GiB can be merged)", n);
    if (enc->tok->kind->segment) return segment_word(ctx, enc, word, n);
    dh_merger_clear(&enc->merger);
    bool ok = enc->tok->kind->symbols(enc, word, n);
    if (enc->tok->drops_unknown) ok = ok && drop_unknown(enc, word, n);
    ok = ok && dh_merger_run(&enc->merger, &enc->tok->pairs);
    if (!ok) return dh_no_memory(ctx);
    if (enc->merger.symbols.n == 0) return DH_OK;
    if (n <= DH_CACHED_WORD_MAX) remember(enc, word, n);
    return push_symbols(ctx, enc, word, n);
}

/* The character in front of text[at], and its bytes; 0: there is none. */
static size_t char_before(const unsigned char *text, size_t at, uint32_t *code)
{
    for (size_t len = 1; len <= 4 && len <= at; len++)
        if ((text[at - len] & 0xC0) != 0x80)
            return dh_utf8_decode(text + at - len, len, code) == len ? len : 0;
    return 0;
}

/* Whether characters of words stand on either side of text[begin, end). */
static bool within_word(const unsigned char *text, size_t n, size_t begin, size_t end)
{
    uint32_t code;
    if (char_before(text, begin, &code) && dh_is_word_char(code)) return true;
    return dh_utf8_decode(text + end, n - end, &code) && dh_is_word_char(code);
}

/* Where the white space begins that ends at `at`, from `from` on; and where it ends. */
static size_t space_before(const unsigned char *text, size_t from, size_t at)
{
    uint32_t code;
    for (size_t len; at > from && (len = char_before(text, at, &code)); at -= len)
        if (len > at - from || !dh_is_white_space(code)) break;
    return at;
}

static size_t space_behind(const unsigned char *text, size_t n, size_t at)
{
    uint32_t code;
    for (size_t len; at < n && (len = dh_utf8_decode(text + at, n - at, &code)); at += len)
        if (!dh_is_white_space(code)) break;
    return at;
}

dh_status dh_encoder_cut(dh_ctx *ctx, dh_encoder *enc, const dh_matcher *matcher, const dh_vocab *v,
                         const unsigned char *text, size_t n, bool first, dh_stretch_fn fn)
{
    const bool special = enc->flags & DH_ENCODE_SPECIAL;
    size_t from = 0, at = matcher->entries.n ? 0 : n;
    while (at < n) {
        const dh_match_entry *e = dh_matcher_find(matcher, v, special, text + at, n - at);
        if (!e) {
            at++;
            continue;
        }
        size_t begin = at;
        at += v->pieces.at[e->id].len;
        if (e->single_word && within_word(text, n, begin, at)) continue;
        if (e->lstrip) begin = space_before(text, from, begin);
        if (begin > from) DH_TRY(fn(ctx, enc, text + from, begin - from, first && from == 0));
        DH_TRY(dh_encoder_push(ctx, enc, e->id));
        if (e->rstrip) at = space_behind(text, n, at);
        from = at;
    }
    return from < n ? fn(ctx, enc, text + from, n - from, first && from == 0) : DH_OK;
}

/* Encode a stretch without special tokens. */
static dh_status encode_stretch(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                                bool first)
{
    enc->last_unk = false;
    dh_status st = enc->tok->kind->encode(ctx, enc, text, n, first);
    enc->done_bytes = (size_t)(text - enc->text) + n;
    return st;
}

dh_status dh_encoder_encode(dh_ctx *ctx, dh_encoder *enc, const void *text, size_t n_bytes,
                            unsigned flags, dh_ids *ids)
{
    DH_NEEDS(ctx, enc);
    DH_NEEDS(ctx, ids);
    DH_NEEDS_LIST(ctx, text, n_bytes);
    size_t kept = ids->n;
    enc->ids = ids;
    enc->flags = flags;
    enc->done_bytes = 0;
    dh_status st = DH_OK;
    if ((flags & DH_ENCODE_BOS) && enc->tok->bos >= 0)
        st = dh_encoder_push(ctx, enc, (uint32_t)enc->tok->bos);
    enc->text = text;
    if (st == DH_OK && n_bytes)
        st = dh_encoder_cut(ctx, enc, &enc->tok->specials, &enc->tok->vocab, text, n_bytes, true,
                            encode_stretch);
    if (st == DH_OK && (flags & DH_ENCODE_EOS) && enc->tok->eos >= 0)
        st = dh_encoder_push(ctx, enc, (uint32_t)enc->tok->eos);
    if (st == DH_EUNSUPPORTED && enc->tok->path)
        dh_ctx_while(ctx, "encoding by %s", enc->tok->path);
    if (st != DH_OK && !enc->drain) ids->n = kept;
    enc->ids = NULL;
    return st;
}

dh_status dh_tokenizer_encode(dh_ctx *ctx, const dh_tokenizer *tok, const void *text,
                              size_t n_bytes, unsigned flags, dh_ids *ids)
{
    DH_NEEDS(ctx, tok);
    DH_NEEDS(ctx, ids);
    DH_NEEDS_LIST(ctx, text, n_bytes);
    dh_encoder *enc;
    DH_TRY(dh_encoder_create(ctx, tok, &enc));
    dh_status st = dh_encoder_encode(ctx, enc, text, n_bytes, flags, ids);
    dh_encoder_destroy(enc);
    return st;
}

/* ---- decoding ------------------------------------------------------------------------- */

static const dh_piece *piece_of(const dh_tokenizer *tok, int32_t id)
{
    if (id < 0 || (size_t)id >= tok->vocab.pieces.n) return NULL;
    const dh_piece *p = &tok->vocab.pieces.at[id];
    return p->kind == DH_PIECE_HOLE ? NULL : p;
}

const char *dh_tokenizer_piece(const dh_tokenizer *tok, int32_t prev, int32_t id, size_t *n_bytes)
{
    const dh_piece *p = piece_of(tok, id);
    if (!p) return NULL;
    const bool start = prev == -1 || prev == tok->bos;
    if (tok->shown.text.pieces.n) return dh_shown_piece(&tok->shown, start, prev, id, n_bytes);
    const char *bytes = tok->vocab.bytes.text + p->offset;
    bool strip = start && tok->strip_prefix && p->kind != DH_PIECE_SPECIAL &&
                 p->kind != DH_PIECE_UNKNOWN && p->len > 0 && bytes[0] == ' ';
    *n_bytes = p->len - strip;
    return bytes + strip;
}

dh_status dh_tokenizer_decode(dh_ctx *ctx, const dh_tokenizer *tok, const int32_t *ids, size_t n,
                              unsigned flags, dh_str *out)
{
    DH_NEEDS(ctx, tok);
    DH_NEEDS(ctx, out);
    DH_NEEDS_LIST(ctx, ids, n);
    int32_t prev = -1; /* stays so until the first token of the text proper */
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = dh_tokenizer_piece(tok, prev, ids[i], &len);
        if (!bytes)
            return dh_fail(ctx, DH_EINVAL,
                           "token %zu is id %d, which is not in the vocabulary of %zu", i, ids[i],
                           tok->vocab.pieces.n);
        bool special = tok->vocab.pieces.at[ids[i]].kind == DH_PIECE_SPECIAL;
        if (!special || !(flags & DH_DECODE_SKIP_SPECIAL)) dh_str_append(out, bytes, len);
        if (out->failed) return dh_no_memory(ctx);
        /* Decoders that make a token's text see every token that is written. */
        if (!special || (tok->shown.text.pieces.n && !(flags & DH_DECODE_SKIP_SPECIAL)))
            prev = ids[i];
    }
    return DH_OK;
}
