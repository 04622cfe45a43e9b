/* One stream of tokens over several files, and the samples drawn from it. */
#include "base/mapped.h"
#include "base/stop.h"
#include "data/dataset_parts.h"
#include "data/expand.h"
#include "data/permute.h"
#include "data/tok.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- opening --------------------------------------------------------------------------- */

void dh_dataset_close(dh_dataset *ds)
{
    if (!ds) return;
    for (size_t i = 0; i < ds->files.n; i++) {
        dh_data_file *f = &ds->files.at[i];
        free(f->name);
        free(f->mapped);
        dh_map_close(&f->map);
        dh_map_close(&f->index);
        dh_map_close(&f->text.tokens);
        dh_vec_fini(&f->text.memory);
        dh_vec_fini(&f->ends);
    }
    for (size_t i = 0; i < ds->sources.n; i++) {
        free(ds->sources.at[i].name);
        dh_pack_fini(&ds->sources.at[i].pack);
    }
    dh_vec_fini(&ds->sources);
    dh_vec_fini(&ds->period);
    dh_vec_fini(&ds->files);
    dh_vec_fini(&ds->segments);
    free(ds);
}

static dh_status add_segment(dh_ctx *ctx, dh_dataset *ds, dh_token_run run, int64_t in_file)
{
    if (run.n == 0) return DH_OK;
    dh_segment s = {run, ds->n_tokens, in_file, ds->files.n - 1};
    if (!dh_vec_push(&ds->segments, s)) return dh_no_memory(ctx);
    ds->n_tokens += run.n;
    return DH_OK;
}

static dh_status map_tokens(dh_ctx *ctx, dh_data_file *f, const char *path)
{
    free(f->mapped);
    dh_map_close(&f->map);
    if (!(f->mapped = strdup(path))) return dh_no_memory(ctx);
    return dh_stamped_open(ctx, path, &f->map, &f->stamp);
}

/* The wanted part of the runs of a token file. */
static dh_status add_part(dh_ctx *ctx, dh_dataset *ds, const dh_token_run *runs, size_t n_runs)
{
    int64_t total = 0, at = 0;
    for (size_t i = 0; i < n_runs; i++) total += runs[i].n;
    if (total == 0) return dh_fail(ctx, DH_EFORMAT, "the file has no tokens");
    int64_t cut = (int64_t)((double)total * (1.0 - ds->val_fraction));
    int64_t begin = ds->part == DH_PART_VAL ? cut : 0;
    int64_t end = ds->part == DH_PART_TRAIN ? cut : total;
    for (size_t i = 0; i < n_runs; at += runs[i++].n) {
        int64_t from = DH_MAX(begin - at, 0), to = DH_MIN(end - at, runs[i].n);
        if (from >= to) continue;
        dh_token_run kept = {runs[i].at + (size_t)from * dh_token_bytes(runs[i].type), runs[i].type,
                             to - from};
        DH_TRY(add_segment(ctx, ds, kept, at + from));
    }
    return DH_OK;
}

/* ---- the kinds of token files ------------------------------------------------------------ */

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

/* PATH without .bin or .idx, with another suffix. Caller frees; NULL: out of memory. */
static char *sibling(const char *path, const char *suffix)
{
    size_t n = strlen(path);
    if (has_suffix(path, ".bin") || has_suffix(path, ".idx")) n -= 4;
    dh_str out = DH_STR_INIT;
    dh_str_append(&out, path, n);
    dh_str_append(&out, suffix, strlen(suffix));
    if (!out.failed) return out.text;
    dh_str_fini(&out);
    return NULL;
}

static dh_status add_megatron(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec,
                              dh_data_file *f)
{
    char *idx = sibling(f->name, ".idx"), *bin = sibling(f->name, ".bin");
    dh_token_runs runs = {0};
    dh_status st = idx && bin ? DH_OK : dh_no_memory(ctx);
    dh_stamp index = {0};
    if (st == DH_OK) st = dh_stamped_open(ctx, idx, &f->index, &index);
    if (st == DH_OK) st = map_tokens(ctx, f, bin);
    if (st == DH_OK && !dh_map_own(&f->index))
        st = dh_fail(ctx, DH_EIO, "%s was cut short by another program while it was read", idx);
    if (st == DH_OK)
        st = dh_tokens_parse_megatron(ctx, f->index.at, f->index.n_bytes, f->map.at, f->map.n_bytes,
                                      &runs, spec->documents ? &f->ends : NULL);
    if (st == DH_OK) st = add_part(ctx, ds, runs.at, runs.n);
    if (st == DH_OK) st = dh_stamp_check_same(ctx, idx, &index);
    dh_map_close(&f->index);
    dh_vec_fini(&runs);
    free(idx);
    free(bin);
    return st;
}

static dh_status add_llmc(dh_ctx *ctx, dh_dataset *ds, dh_data_file *f)
{
    dh_token_run run;
    DH_TRY(dh_tokens_parse_llmc(ctx, f->map.at, f->map.n_bytes, &run));
    return add_part(ctx, ds, &run, 1);
}

static dh_status add_u16(dh_ctx *ctx, dh_dataset *ds, dh_data_file *f)
{
    if (f->map.n_bytes % 2 != 0)
        return dh_fail(ctx, DH_EFORMAT,
                       "a file of uint16 tokens has an even number of bytes; this one has %zu",
                       f->map.n_bytes);
    dh_token_run run = {f->map.at, DH_TOKEN_U16, (int64_t)(f->map.n_bytes / 2)};
    return add_part(ctx, ds, &run, 1);
}

/* Whether the first tokens are rather int32 below 65,536: every second uint16 of those is zero. */
static bool looks_wider(const dh_data_file *f)
{
    enum { LOOKED_AT = 2048 };
    const size_t n = DH_MIN(f->map.n_bytes / 4, (size_t)LOOKED_AT);
    size_t n_zero = 0;
    unsigned char head[4 * LOOKED_AT];
    if (!dh_copy_mapped(head, f->map.at, 4 * n)) return false; /* cut short: found on reading */
    for (size_t i = 0; i < n; i++) n_zero += head[4 * i + 2] == 0 && head[4 * i + 3] == 0;
    return n_zero > n / 2;
}

/* nanoGPT's train.bin: uint16 and nothing else. Nothing in it says so, hence the warning. */
static dh_status add_bare(dh_ctx *ctx, dh_dataset *ds, dh_data_file *f)
{
    if (looks_wider(f))
        return dh_fail(ctx, DH_EFORMAT,
                       "neither an llm.c token file (magic 20240520 or 20240801) nor Megatron's "
                       "(no .idx next to it), nor nanoGPT's: its tokens look wider than uint16");
    dh_log(DH_LOG_WARN,
           "%s has no header, and no .idx next to it: read as nanoGPT's, uint16 tokens", f->name);
    return add_u16(ctx, ds, f);
}

static dh_status add_text(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec, dh_data_file *f)
{
    DH_TRY(dh_text_tokenize(ctx, spec, f->name, &f->text));
    ds->has_text = true;
    f->mapped = f->text.cached;
    f->stamp = f->text.stamp;
    return add_segment(ctx, ds, f->text.run, 0);
}

static bool has_index(const char *path)
{
    char *idx = sibling(path, ".idx");
    bool there = idx && dh_path_exists(idx);
    free(idx);
    return there;
}

/* by_prefix: the file is named by its index, or by what it and the index begin with. */
static dh_status add_tokens(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec,
                            dh_data_file *f, bool by_prefix)
{
    if (spec->chat)
        return dh_fail(ctx, DH_EINVAL,
                       "%s holds tokens; conversations (data.format=chat) are read from JSON lines "
                       "or from an array of JSON objects",
                       f->name);
    if (by_prefix) return add_megatron(ctx, ds, spec, f);
    if (f->map.n_bytes == 0) return dh_fail(ctx, DH_EFORMAT, "the file is empty");
    if (dh_is_llmc(f->map.at, f->map.n_bytes)) return add_llmc(ctx, ds, f);
    if (has_suffix(f->name, ".u16")) return add_u16(ctx, ds, f);
    return has_index(f->name) ? add_megatron(ctx, ds, spec, f) : add_bare(ctx, ds, f);
}

static dh_status add_file(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec,
                          const char *path)
{
    dh_data_file empty = {0};
    if (!dh_vec_push(&ds->files, empty)) return dh_no_memory(ctx);
    dh_data_file *f = &ds->files.at[ds->files.n - 1];
    if (!(f->name = strdup(path))) return dh_no_memory(ctx);
    const bool by_prefix = has_suffix(path, ".idx") || (!dh_path_exists(path) && has_index(path));
    if (!by_prefix) {
        DH_TRY(map_tokens(ctx, f, path));
        bool tokens = has_suffix(path, ".bin") || has_suffix(path, ".u16") ||
                      dh_is_llmc(f->map.at, f->map.n_bytes);
        if (!tokens) {
            free(f->mapped);
            f->mapped = NULL;
            dh_map_close(&f->map);
            return add_text(ctx, ds, spec, f);
        }
    }
    const dh_status st = add_tokens(ctx, ds, spec, f, by_prefix);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "opening %s", path);
}

static dh_status check_spec(dh_ctx *ctx, const dh_dataset_spec *spec)
{
    if (spec->n_files == 0) return dh_fail(ctx, DH_EINVAL, "a dataset needs at least one file");
    if (!(spec->val_fraction >= 0 && spec->val_fraction < 1))
        return dh_fail(ctx, DH_EINVAL, "val_fraction %g is not in [0, 1)", spec->val_fraction);
    if (spec->part == DH_PART_VAL && spec->val_fraction == 0)
        return dh_fail(ctx, DH_EINVAL, "the validation part is empty: val_fraction is 0");
    return DH_OK;
}

static int64_t bound_of(const dh_dataset_spec *spec)
{
    int64_t bound = spec->vocab_size;
    if (bound <= 0 && spec->tokenizer) bound = dh_tokenizer_vocab_size(spec->tokenizer);
    return bound > 0 && bound < INT32_MAX ? bound : (int64_t)INT32_MAX + 1;
}

/* ---- entries -------------------------------------------------------------------------------- */

static dh_status check_shares(dh_ctx *ctx, const dh_dataset_spec *spec)
{
    int64_t sum = 0;
    for (size_t i = 0; spec->shares && i < spec->n_files; i++) {
        const int64_t share = spec->shares[i];
        if (share < 1 || share > DH_DATASET_SHARES - sum)
            return dh_fail(ctx, DH_EINVAL,
                           "%s has a weight of %lld: weights are 1 or more, and together at most "
                           "%d",
                           spec->files[i], (long long)share, DH_DATASET_SHARES);
        sum += share;
    }
    return DH_OK;
}

static dh_status add_source(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec, size_t i)
{
    dh_source s = {.first = ds->n_tokens,
                   .share = spec->shares ? spec->shares[i] : 1,
                   .seed = i == 0 ? ds->seed : dh_mix64(ds->seed ^ dh_mix64(i)),
                   .name = strdup(spec->files[i])};
    if (s.name && dh_vec_push(&ds->sources, s)) return DH_OK;
    free(s.name);
    return dh_no_memory(ctx);
}

static dh_status add_entry(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec, size_t i)
{
    dh_path_list list = {{0}};
    dh_status st = DH_OK;
    if (i == 0 || spec->shares) st = add_source(ctx, ds, spec, i);
    if (st == DH_OK) st = dh_data_expand(ctx, spec->files[i], &list);
    for (size_t k = 0; st == DH_OK && k < list.paths.n; k++)
        st = add_file(ctx, ds, spec, list.paths.at[k]);
    dh_path_list_fini(&list);
    dh_source *s = ds->sources.n ? &ds->sources.at[ds->sources.n - 1] : NULL;
    if (s) s->n_tokens = ds->n_tokens - s->first;
    return st;
}

/* The entry that is furthest behind its share is next (the first of equals), which spreads turns
 * evenly. */
static dh_status make_period(dh_ctx *ctx, dh_dataset *ds)
{
    int64_t n = 0;
    for (size_t i = 0; i < ds->sources.n; i++) n += ds->sources.at[i].share;
    int32_t *had = calloc(ds->sources.n + 1, sizeof *had);
    bool ok = had != NULL;
    for (int64_t at = 0; ok && at < n; at++) {
        int32_t best = 0;
        int64_t most = INT64_MIN;
        for (size_t i = 0; i < ds->sources.n; i++) {
            const int64_t behind = ds->sources.at[i].share * (at + 1) - had[i] * n;
            if (behind <= most) continue;
            most = behind;
            best = (int32_t)i;
        }
        const dh_turn next = {best, had[best]++};
        ok = dh_vec_push(&ds->period, next);
    }
    free(had);
    return ok ? DH_OK : dh_no_memory(ctx);
}

static dh_status open_entries(dh_ctx *ctx, dh_dataset *ds, const dh_dataset_spec *spec)
{
    for (size_t i = 0; i < spec->n_files; i++) DH_TRY(add_entry(ctx, ds, spec, i));
    return ds->sources.n > 1 ? make_period(ctx, ds) : DH_OK;
}

dh_status dh_dataset_open(dh_ctx *ctx, const dh_dataset_spec *spec, dh_dataset **ds)
{
    DH_TRY(check_spec(ctx, spec));
    DH_TRY(check_shares(ctx, spec));
    dh_dataset *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    made->part = spec->val_fraction > 0 ? spec->part : DH_PART_ALL;
    made->val_fraction = spec->val_fraction;
    made->order = spec->order;
    made->seed = spec->seed;
    made->stop = ctx->stop;
    made->chats = spec->chat != NULL;
    made->bound = made->chats ? (int64_t)INT32_MAX + 1 : bound_of(spec);
    if (spec->cache_dir && *spec->cache_dir) dh_dir_drop_leftovers(spec->cache_dir);
    const dh_status st = open_entries(ctx, made, spec);
    if (st == DH_OK)
        *ds = made;
    else
        dh_dataset_close(made);
    return st;
}

static dh_status mark_chars(dh_ctx *ctx, const char *name, const char *text_field, uint8_t *seen)
{
    dh_path_list list = {{0}};
    dh_status st = dh_data_expand(ctx, name, &list);
    for (size_t k = 0; st == DH_OK && k < list.paths.n; k++)
        st = dh_text_mark_chars(ctx, list.paths.at[k], text_field, seen);
    dh_path_list_fini(&list);
    return st;
}

dh_status dh_dataset_chars(dh_ctx *ctx, const char *const *files, size_t n_files,
                           const char *text_field, dh_tokenizer **tok)
{
    uint8_t *seen = calloc(DH_CODE_SET_BYTES, 1);
    if (!seen) return dh_no_memory(ctx);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n_files; i++)
        st = mark_chars(ctx, files[i], text_field, seen);
    if (st == DH_OK) st = dh_chars_build(ctx, seen, tok);
    free(seen);
    return st;
}

/* ---- the stream ----------------------------------------------------------------------------- */

bool dh_dataset_has_text(const dh_dataset *ds)
{
    return ds->has_text;
}

int64_t dh_dataset_tokens(const dh_dataset *ds)
{
    return ds->n_tokens;
}

/* Index of the segment that holds token `at` of the stream. */
static size_t segment_of(const dh_dataset *ds, int64_t at)
{
    size_t low = 0, high = ds->segments.n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (ds->segments.at[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static dh_status check_files(dh_ctx *ctx, const dh_dataset *ds,
                             dh_status (*check)(dh_ctx *, const char *, const dh_stamp *))
{
    for (size_t i = 0; i < ds->files.n; i++) {
        const dh_data_file *f = &ds->files.at[i];
        if (f->mapped) DH_TRY(check(ctx, f->mapped, &f->stamp));
    }
    return DH_OK;
}

dh_status dh_dataset_check_same(dh_ctx *ctx, const dh_dataset *ds)
{
    return check_files(ctx, ds, dh_stamp_check_same);
}

dh_status dh_dataset_heed_stop(dh_ctx *ctx, const dh_dataset *ds)
{
    if (!dh_stop_asked(ds->stop)) return DH_OK;
    return dh_fail(ctx, DH_EINTERRUPTED, "stopped while the data were read");
}

/* The hash of a group is a chain over its blocks, so that threads can take a group each. */
enum { HASH_TOKENS = 1 << 14, HASH_GROUP = 1 << 24, HASH_STRETCHES = HASH_GROUP / HASH_TOKENS };

/* A number that cannot be an id is no fault here. Reading it later is one. */
static void widen_all(const dh_token_run *run, int64_t first, int64_t n, int32_t *ids)
{
    int64_t bad;
    for (int64_t i = 0; i < n; i++) {
        i += (int64_t)dh_token_widen(run, first + i, (size_t)(n - i), INT32_MAX, ids + i, &bad);
        if (i < n) ids[i] = (int32_t)bad;
    }
}

/* Tokens [first, first + n) of the stream, n at most HASH_TOKENS, as numbers of 32 bits: in which
 * files and types they are kept does not show. */
static uint64_t hash_tokens(const dh_dataset *ds, int64_t first, int64_t n, uint64_t hash)
{
    int32_t ids[HASH_TOKENS];
    int64_t done = 0;
    for (size_t i = segment_of(ds, first); done < n; i++) {
        const dh_segment *s = &ds->segments.at[i];
        const int64_t from = first + done - s->first, part = DH_MIN(n - done, s->run.n - from);
        widen_all(&s->run, from, part, ids + done);
        done += part;
    }
    return XXH3_64bits_withSeed(ids, (size_t)n * sizeof *ids, hash);
}

typedef struct hashing {
    const dh_dataset *ds;
    uint64_t *of_group;
    int64_t n_groups, next;
    bool stopped; /* a file was cut short, or somebody asked for it */
} hashing;

static void hash_group(hashing *h, int64_t group)
{
    const int64_t first = group * HASH_GROUP, end = DH_MIN(first + HASH_GROUP, h->ds->n_tokens);
    uint64_t hash = 0;
    for (int64_t at = first; at < end; at += HASH_TOKENS) {
        dh_ctx unused = DH_CTX_INIT;
        if ((at - first) % (1 << 20) == 0 &&
            (dh_dataset_heed_stop(&unused, h->ds) != DH_OK ||
             check_files(&unused, h->ds, dh_stamp_check_whole) != DH_OK)) {
            __atomic_store_n(&h->stopped, true, __ATOMIC_RELAXED);
            return;
        }
        hash = hash_tokens(h->ds, at, DH_MIN(end - at, HASH_TOKENS), hash);
    }
    h->of_group[group] = hash;
}

static void *hash_groups(void *user)
{
    hashing *h = user;
    for (int64_t group; !__atomic_load_n(&h->stopped, __ATOMIC_RELAXED) &&
                        (group = __atomic_fetch_add(&h->next, 1, __ATOMIC_RELAXED)) < h->n_groups;)
        hash_group(h, group);
    return NULL;
}

dh_status dh_dataset_hash(dh_ctx *ctx, const dh_dataset *ds, uint64_t *hash)
{
    const int64_t n = (ds->n_tokens + HASH_GROUP - 1) / HASH_GROUP;
    hashing h = {.ds = ds, .n_groups = n, .of_group = calloc((size_t)n + 1, sizeof *h.of_group)};
    if (!h.of_group) return dh_no_memory(ctx);
    const int64_t threads = DH_MIN(DH_MIN(dh_own_processors(), (int64_t)DH_MOST_THREADS), n);
    dh_work_together((size_t)DH_MAX(threads, 1), hash_groups, &h);
    *hash = n <= 1 ? h.of_group[0] : XXH3_64bits(h.of_group, (size_t)n * sizeof *h.of_group);
    free(h.of_group);
    if (h.stopped) DH_TRY(dh_dataset_heed_stop(ctx, ds));
    return dh_dataset_check_same(ctx, ds);
}

uint64_t dh_dataset_sample_hash(const dh_dataset *ds)
{
    const int64_t stride = (ds->n_tokens - HASH_TOKENS) / (HASH_STRETCHES - 1);
    uint64_t hash = 0;
    if (ds->n_tokens <= HASH_GROUP) return 0;
    for (int64_t first = 0; first < ds->n_tokens; first += stride)
        hash = hash_tokens(ds, first, DH_MIN(ds->n_tokens - first, HASH_TOKENS), hash);
    return hash;
}

static int64_t windows_of(const dh_source *s, int64_t seq_len)
{
    if (s->pack.row.n > 0) return dh_pack_rows(&s->pack);
    return seq_len > 0 && s->n_tokens > seq_len ? (s->n_tokens - 1) / seq_len : 0;
}

int64_t dh_dataset_windows(const dh_dataset *ds, int64_t seq_len)
{
    int64_t n = 0;
    for (size_t i = 0; i < ds->sources.n; i++) n += windows_of(&ds->sources.at[i], seq_len);
    return n;
}

dh_status dh_dataset_check(dh_ctx *ctx, const dh_dataset *ds, int64_t seq_len)
{
    for (size_t i = 0; i < ds->sources.n; i++) {
        const dh_source *s = &ds->sources.at[i];
        if (windows_of(s, seq_len) == 0)
            return dh_fail(
                ctx, DH_EINVAL,
                "%s%s: %lld tokens, but a sample of sequence length %lld needs %lld: "
                "give more text, or a shorter length (train.seq_len; the option seq of eval)",
                s->name, ds->sources.n == 1 && ds->files.n > 1 ? " and others" : "",
                (long long)s->n_tokens, (long long)seq_len, (long long)seq_len + 1);
    }
    return DH_OK;
}

static dh_status refuse_token(dh_ctx *ctx, const dh_dataset *ds, const dh_segment *s, int64_t at,
                              int64_t bad)
{
    const char *name = ds->files.at[s->file].name;
    if (bad == DH_TOKEN_CUT)
        return dh_fail(ctx, DH_EIO,
                       "%s was cut short by another program while it was being read, near token "
                       "%lld",
                       name, (long long)at);
    return dh_fail(ctx, DH_EFORMAT, "%s: token %lld is id %lld, outside the vocabulary of %lld",
                   name, (long long)at, (long long)bad, (long long)ds->bound);
}

dh_status dh_dataset_read(dh_ctx *ctx, const dh_dataset *ds, int64_t first, int64_t n,
                          int32_t *tokens)
{
    if (first < 0 || n < 0 || first > ds->n_tokens || n > ds->n_tokens - first)
        return dh_fail(ctx, DH_EINVAL, "tokens %lld..+%lld of a stream of %lld", (long long)first,
                       (long long)n, (long long)ds->n_tokens);
    if (n == 0) return DH_OK;
    for (size_t i = segment_of(ds, first); n > 0; i++) {
        const dh_segment *s = &ds->segments.at[i];
        const dh_data_file *f = &ds->files.at[s->file];
        int64_t from = first - s->first, part = DH_MIN(n, s->run.n - from), bad = 0;
        size_t good = dh_token_widen(&s->run, from, (size_t)part, ds->bound, tokens, &bad);
        const bool last = part == n || ds->segments.at[i + 1].file != s->file;
        if (f->mapped && (last || good < (size_t)part))
            DH_TRY(dh_stamp_check_whole(ctx, f->mapped, &f->stamp));
        if (good < (size_t)part)
            return refuse_token(ctx, ds, s, s->in_file + from + (int64_t)good, bad);
        first += part;
        tokens += part;
        n -= part;
    }
    return DH_OK;
}

/* ---- samples ------------------------------------------------------------------------------- */

/* Places of a source's i-th sample in it. */

static int64_t place_of(const dh_source *s, int64_t window, int64_t seq_len)
{
    return s->pack.row.n > 0 ? window : window * seq_len;
}
static int64_t shuffled(const dh_source *s, int64_t i, int64_t seq_len)
{
    uint64_t windows = (uint64_t)windows_of(s, seq_len);
    DH_CHECK(windows > 0, "dh_dataset_check comes first");
    uint64_t epoch = (uint64_t)i / windows;
    uint64_t key = dh_mix64(s->seed ^ dh_mix64(epoch + 1));
    return place_of(s, (int64_t)dh_permute(key, windows, (uint64_t)i % windows), seq_len);
}

static int64_t sequential(const dh_source *s, int64_t i, int64_t seq_len)
{
    int64_t windows = windows_of(s, seq_len);
    DH_CHECK(windows > 0, "dh_dataset_check comes first");
    return place_of(s, i % windows, seq_len);
}

static int64_t random_offset(const dh_source *s, int64_t i, int64_t seq_len)
{
    uint64_t mixed = dh_mix64(s->seed);
    dh_philox_key key = {{(uint32_t)mixed, (uint32_t)(mixed >> 32)}};
    uint32_t out[4];
    dh_philox4x32(key, (uint32_t[4]){(uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0, 0}, out);
    const int64_t n_places = s->pack.row.n > 0 ? dh_pack_rows(&s->pack) : s->n_tokens - seq_len;
    uint64_t bits = (uint64_t)out[1] << 32 | out[0], range = (uint64_t)n_places;
    return (int64_t)((__extension__(unsigned __int128) bits * range) >> 64);
}

static int64_t (*const order_places[])(const dh_source *s, int64_t i,
                                       int64_t seq_len) = {[DH_ORDER_SHUFFLE] = shuffled,
                                                           [DH_ORDER_SEQUENTIAL] = sequential,
                                                           [DH_ORDER_RANDOM] = random_offset};

const dh_source *dh_dataset_place(const dh_dataset *ds, int64_t sample_index, int64_t seq_len,
                                  int64_t *place)
{
    DH_CHECK(sample_index >= 0 && dh_dataset_windows(ds, seq_len) > 0);
    const dh_source *s = &ds->sources.at[0];
    int64_t own = sample_index;
    if (ds->period.n > 0) {
        const int64_t n = (int64_t)ds->period.n;
        const dh_turn *t = &ds->period.at[sample_index % n];
        s = &ds->sources.at[t->source];
        own = sample_index / n * s->share + t->n_before;
    }
    *place = order_places[ds->order](s, own, seq_len);
    return s;
}

int64_t dh_dataset_offset(const dh_dataset *ds, int64_t sample_index, int64_t seq_len)
{
    int64_t place;
    DH_CHECK(ds->row_len == 0, "packed rows have no place in the stream");
    const dh_source *s = dh_dataset_place(ds, sample_index, seq_len, &place);
    return s->first + place;
}

dh_status dh_dataset_sample(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                            int64_t seq_len, int32_t *tokens)
{
    DH_TRY(dh_dataset_check(ctx, ds, seq_len));
    if (sample_index < 0)
        return dh_fail(ctx, DH_EINVAL, "sample index %lld is negative", (long long)sample_index);
    return dh_dataset_read(ctx, ds, dh_dataset_offset(ds, sample_index, seq_len), seq_len + 1,
                           tokens);
}
