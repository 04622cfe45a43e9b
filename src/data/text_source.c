/* Text files and JSON lines -> tokens, through the cache.
 *
 * A cache file is a header, then the tokens as uint16 or uint32. The header tells what
 * the tokens were made from; one that differs in anything is made anew. */
#include "data/text_source.h"
#include "base/json_text.h"
#include "base/mapped.h"
#include "base/memory.h"
#include "base/stop.h"
#include "data/chat.h"
#include "data/json_mend.h"
#include "data/json_rows.h"
#include "data/tok.h"
#include "data/unpack.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct text_source {
    const char *path, *field; /* field: NULL for plain text */
    dh_rows rows;             /* how those with a field lie in the file */
    bool chats;               /* rows are conversations; whoever takes them is given the row */
    dh_text_file file;
    dh_map map;        /* the file's */
    size_t begin, end; /* the part wanted */
} text_source;

/* ---- which part of the file ------------------------------------------------------------- */

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

/* Also behind what says that it is compressed: "a.jsonl.gz" */
static bool has_inner_suffix(const char *path, const char *suffix)
{
    const size_t n = dh_unpacked_name(path), m = strlen(suffix);
    return n >= m && strncmp(path + n - m, suffix, m) == 0;
}

static bool starts_char(unsigned char byte)
{
    return (byte & 0xC0) != 0x80;
}

/* Offset of the code point number floor(n * share). */
static size_t cut_text(const dh_map *map, double share)
{
    size_t n = 0;
    for (size_t i = 0; i < map->n_bytes; i++) n += starts_char(map->at[i]);
    size_t wanted = (size_t)((double)n * share), at = 0;
    for (size_t seen = 0; at < map->n_bytes; at++)
        if (starts_char(map->at[at]) && seen++ == wanted) break;
    return at;
}

/* Files with text in a form that is not read here. Their first bytes tell, or their name where
 * these bytes could begin a text. */
static const struct {
    const char *magic, *suffix, *what;
} packed[] = {
    {"\x1f\x8b", NULL, "compressed twice: unpack it once"},
    {"\x28\xb5\x2f\xfd", NULL, "compressed twice: unpack it once"},
    {"BZh", ".bz2", "compressed by bzip2: unpack it first (bunzip2)"},
    {"\xfd\x37zXZ", ".xz", "compressed by xz: unpack it first (unxz)"},
    {"PAR1", ".parquet", "Parquet: write the texts as JSON lines (.jsonl), an object a line"},
    {"ARROW1", ".arrow", "Arrow: write the texts as JSON lines (.jsonl), an object a line"},
    {NULL, ".bin.gz", "compressed tokens, which are read in place: unpack them first (gunzip)"},
    {NULL, ".bin.zst", "compressed tokens, which are read in place: unpack them first (unzstd)"},
};

static dh_status refuse_packed(dh_ctx *ctx, const char *path, const dh_map *map)
{
    for (size_t i = 0; i < DH_COUNTOF(packed); i++) {
        const char *magic = packed[i].magic;
        const size_t n = magic ? strlen(magic) : 0;
        const bool begins = n > 0 && map->n_bytes >= n && memcmp(map->at, magic, n) == 0;
        const char *suffix = packed[i].suffix;
        const bool named = suffix && (has_suffix(path, suffix) || has_inner_suffix(path, suffix));
        if (named || begins) return dh_fail(ctx, DH_EUNSUPPORTED, "%s is %s", path, packed[i].what);
    }
    return DH_OK;
}

/* ---- what a file holds ---------------------------------------------------------------------- */

/* As it is; where that is refused, without what no text depends on (json_mend.h). *row: NULL with
 * the error of the line as it is */
static dh_status read_row(dh_ctx *ctx, const char *line, size_t n, json_error_t *error,
                          json_t **row, size_t *n_mended)
{
    dh_str mended = DH_STR_INIT;
    json_error_t other;
    size_t n_halves;
    DH_TRY(dh_json_read(ctx, line, n, JSON_ALLOW_NUL, error, row));
    if (*row) return DH_OK;
    dh_json_mend(line, n, &mended, &n_halves);
    dh_status st = mended.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && mended.text)
        st = dh_json_read(ctx, mended.text, mended.len, JSON_ALLOW_NUL, &other, row);
    *n_mended += *row && n_halves > 0;
    dh_str_fini(&mended);
    return st;
}

/* Names that promise JSON. Under others it is looked for too, but found no error where it is
 * not. */
static bool named_json(const char *path)
{
    static const char *const names[] = {".jsonl", ".ndjson", ".json"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (has_inner_suffix(path, names[i])) return true;
    return false;
}

/* Whether the first row is what a row of such a source has to be. */
static dh_status has_row(dh_ctx *ctx, const text_source *s, dh_rows rows, const char *field,
                         bool *has)
{
    dh_ctx scratch = dh_ctx_like(ctx);
    dh_row first = {0};
    json_error_t error;
    json_t *row = NULL;
    size_t n_mended = 0;
    *has = false;
    if (!dh_rows_next(&s->map, rows, s->map.n_bytes, &first)) return DH_OK;
    const char *at = (const char *)s->map.at + first.at;
    const dh_status st = read_row(&scratch, at, first.n, &error, &row, &n_mended);
    if (st == DH_ENOMEM) return dh_fail(ctx, st, "out of memory reading %s", s->path);
    if (st == DH_EINTERRUPTED) return dh_fail(ctx, st, "%s", scratch.message);
    *has = s->chats ? json_is_object(row) : json_is_string(json_object_get(row, field));
    json_decref(row);
    return DH_OK;
}

/* Content decides. A file that is named as JSON is rows in any case: what is wrong in it is an
 * error of a line, and no plain text. */
static dh_status find_rows(dh_ctx *ctx, const char *text_field, text_source *s)
{
    const char *field = text_field && *text_field ? text_field : "text";
    dh_rows rows = dh_rows_form(&s->map);
    bool has = named_json(s->path);
    if (has && rows == DH_ROWS_NONE) rows = DH_ROWS_LINES;
    if (!has && rows != DH_ROWS_NONE && dh_rows_closed(&s->map, rows)) {
        DH_TRY(has_row(ctx, s, rows, field, &has));
        if (has)
            dh_log(DH_LOG_INFO, "%s holds %s, and is read as such", s->path,
                   rows == DH_ROWS_ARRAY ? "an array of JSON objects" : "JSON lines");
    }
    if (has) {
        s->rows = rows;
        s->field = field;
    } else if (s->chats) {
        return dh_fail(ctx, DH_EINVAL,
                       "%s: conversations (data.format=chat) are read from JSON lines or from an "
                       "array of JSON objects, compressed or not; this is plain text",
                       s->path);
    }
    return DH_OK;
}

/* keep_dir: of dh_text_file_open */
static dh_status open_source(dh_ctx *ctx, const char *path, const char *text_field, bool chats,
                             const char *keep_dir, text_source *s)
{
    *s = (text_source){.path = path, .chats = chats};
    DH_TRY(dh_text_file_open(ctx, path, keep_dir, 0, &s->file));
    if (!dh_map_own(&s->file.map))
        return dh_fail(ctx, DH_EIO, "%s was cut short by another program while it was being read",
                       path);
    s->map = s->file.map;
    s->end = s->map.n_bytes;
    if (s->end == 0) return dh_fail(ctx, DH_EFORMAT, "%s is empty", path);
    DH_TRY(refuse_packed(ctx, path, &s->map));
    return find_rows(ctx, text_field, s);
}

static void select_part(text_source *s, dh_data_part part, double val_fraction)
{
    if (part == DH_PART_ALL || val_fraction == 0) return;
    double share = 1.0 - val_fraction;
    size_t cut = s->field ? dh_rows_cut(&s->map, s->rows, share) : cut_text(&s->map, share);
    if (part == DH_PART_TRAIN)
        s->end = cut;
    else
        s->begin = cut;
}

/* ---- the texts of a source ----------------------------------------------------------------- */

/* Number of the line that begins at `at`, counted only for messages. */
static size_t line_number(const text_source *s, size_t at)
{
    size_t line = 1;
    for (size_t i = 0; i < at; i++) line += s->map.at[i] == '\n';
    return line;
}

/* Of a row: its text, or where rows are conversations the row. */
typedef dh_status (*row_fn)(dh_ctx *ctx, void *arg, json_t *row, size_t at);

/* Where in the file the parser's place in a row is. */
static dh_status no_json(dh_ctx *ctx, const text_source *s, const dh_row *row,
                         const json_error_t *error)
{
    const bool starts = row->at == 0 || s->map.at[row->at - 1] == '\n';
    const size_t line = line_number(s, row->at) + (size_t)DH_MAX(error->line - 1, 0);
    const bool broken = s->rows == DH_ROWS_LINES && line == 1 && row->next < s->map.n_bytes &&
                        json_error_code(error) == json_error_premature_end_of_input;
    char column[32] = "";
    if (s->rows == DH_ROWS_LINES || starts || error->line > 1)
        snprintf(column, sizeof column, ", column %d", error->column);
    return dh_fail(ctx, DH_EFORMAT, "%s, line %zu%s: %s%s", s->path, line, column, error->text,
                   broken ? "; an object over several lines is not read: write an object a line "
                            "(jq -c . FILE), or one array of objects"
                          : "");
}

static dh_status parse_row(dh_ctx *ctx, const text_source *s, const dh_row *place, dh_text_fn fn,
                           void *arg, size_t *n_mended)
{
    json_error_t error;
    json_t *row;
    DH_TRY(read_row(ctx, (const char *)s->map.at + place->at, place->n, &error, &row, n_mended));
    const json_t *text = json_object_get(row, s->field);
    const row_fn *whole = s->chats ? arg : NULL; /* the first member of who takes them */
    const size_t at = place->at;
    dh_status st;
    if (!row)
        st = no_json(ctx, s, place, &error);
    else if (!whole && !json_is_string(text))
        st = dh_fail(ctx, DH_EFORMAT, "%s, line %zu: %s \"%s\"", s->path, line_number(s, at),
                     text ? "not a text in field" : "no field", s->field);
    else if ((st = whole ? (*whole)(ctx, arg, row, at)
                         : fn(ctx, arg, json_string_value(text), json_string_length(text), at)) !=
             DH_OK)
        dh_ctx_while(ctx, "reading %s, line %zu", s->path, line_number(s, at));
    json_decref(row);
    return st;
}

/* Calls fn for each text; `at` is where in the file it lies. */
static dh_status each_text(dh_ctx *ctx, const text_source *s, dh_text_fn fn, void *arg)
{
    if (!s->field) {
        const char *text = (const char *)s->map.at + s->begin;
        return fn(ctx, arg, text, s->end - s->begin, s->begin) == DH_OK
                   ? DH_OK
                   : dh_ctx_while(ctx, "reading %s from byte %zu", s->path, s->begin);
    }
    size_t n_mended = 0;
    dh_row row = {.next = s->begin};
    while (dh_rows_next(&s->map, s->rows, s->end, &row))
        DH_TRY(parse_row(ctx, s, &row, fn, arg, &n_mended));
    const char *wrong = dh_rows_wrong_end(&s->map, s->rows, s->end, &row);
    if (wrong && s->begin < s->end) return dh_fail(ctx, DH_EFORMAT, "%s: %s", s->path, wrong);
    if (n_mended > 0)
        dh_log(DH_LOG_WARN, "%s: half of a surrogate pair, read as U+FFFD, in %zu of the %s",
               s->path, n_mended, s->rows == DH_ROWS_ARRAY ? "objects" : "lines");
    return DH_OK;
}

static dh_status mark_text(dh_ctx *ctx, void *arg, const char *text, size_t n, size_t at)
{
    return dh_chars_mark(ctx, (const unsigned char *)text, n, arg);
}

dh_status dh_text_each(dh_ctx *ctx, const char *path, const char *text_field, dh_text_fn fn,
                       void *arg)
{
    text_source s;
    dh_status st = open_source(ctx, path, text_field, false, NULL, &s);
    if (st == DH_OK) st = each_text(ctx, &s, fn, arg);
    if (st == DH_OK) st = dh_text_file_check(ctx, path, &s.file);
    dh_text_file_close(&s.file);
    return st;
}

dh_status dh_text_mark_chars(dh_ctx *ctx, const char *path, const char *text_field, uint8_t *seen)
{
    return dh_text_each(ctx, path, text_field, mark_text, seen);
}

/* ---- encoding ------------------------------------------------------------------------------- */

typedef struct encode_job {
    row_fn encode_row; /* of conversations */
    const dh_dataset_spec *spec;
    const text_source *source;
    dh_encoder *enc;
    dh_token_writer *writer; /* NULL: into memory */
    dh_ids *ids, *memory;    /* ids: those that wait to be drained */
    size_t at;               /* where in the file the current text begins */
} encode_job;

static void report(const encode_job *job, size_t done_bytes)
{
    const text_source *s = job->source;
    size_t total = s->end - s->begin, done = job->at - s->begin + done_bytes;
    if (job->spec->progress)
        job->spec->progress(job->spec->progress_arg, s->path, DH_MIN(done, total), total);
}

enum { CHAT_DRAIN = 1 << 16, MANY_IDS = 1 << 22 };

/* Many ids grow by a quarter, and only where the memory for it is there. */
static dh_status make_room(dh_ctx *ctx, const encode_job *job, size_t n_more)
{
    dh_ids *all = job->memory;
    const size_t need = all->n + n_more, cap = need + need / 4;
    char what[512];
    if (need <= all->cap) return DH_OK;
    snprintf(what, sizeof what,
             "%.300s has %zu tokens so far and is held in memory (with data.cache tokens are kept "
             "in a file), which",
             job->source->path, need);
    if (need > MANY_IDS)
        DH_TRY(dh_memory_check(ctx, (double)(cap - all->cap) * (double)sizeof *all->at, what));
    int32_t *grown = need > MANY_IDS ? realloc(all->at, cap * sizeof *grown) : NULL;
    if (!grown && !dh_vec_reserve(all, need)) return dh_no_memory(ctx);
    if (grown) {
        all->at = grown;
        all->cap = cap;
    }
    return DH_OK;
}

static dh_status hold(dh_ctx *ctx, const encode_job *job, const dh_ids *ids)
{
    if (ids->n == 0) return DH_OK;
    DH_TRY(make_room(ctx, job, ids->n));
    memcpy(job->memory->at + job->memory->n, ids->at, ids->n * sizeof *ids->at);
    job->memory->n += ids->n;
    return DH_OK;
}

static dh_status heed_stop(dh_ctx *ctx, const encode_job *job)
{
    if (!dh_stop_asked(ctx->stop)) return DH_OK;
    return dh_fail(ctx, DH_EINTERRUPTED, "stopped while %s was tokenized", job->source->path);
}

static dh_status drain(dh_ctx *ctx, void *arg, dh_ids *ids, size_t done_bytes)
{
    const encode_job *job = arg;
    DH_TRY(heed_stop(ctx, job));
    DH_TRY(dh_text_file_check(ctx, job->source->path, &job->source->file));
    DH_TRY(job->writer ? dh_token_writer_add(ctx, job->writer, ids->at, ids->n)
                       : hold(ctx, job, ids));
    ids->n = 0;
    report(job, done_bytes);
    return DH_OK;
}

static dh_status encode_one(dh_ctx *ctx, void *arg, const char *text, size_t n, size_t at)
{
    encode_job *job = arg;
    job->at = at;
    unsigned flags = job->source->field ? DH_ENCODE_EOS : 0;
    if (job->spec->special_tokens) flags |= DH_ENCODE_SPECIAL;
    DH_TRY(heed_stop(ctx, job));
    return dh_encoder_encode(ctx, job->enc, text, n, flags, job->ids);
}

static dh_status encode_chat(dh_ctx *ctx, void *arg, json_t *row, size_t at)
{
    encode_job *job = arg;
    dh_chat_messages list = {0};
    job->at = at;
    DH_TRY(heed_stop(ctx, job));
    dh_status st = dh_chat_read(ctx, row, &list);
    if (st == DH_OK)
        st = dh_chat_encode(ctx, job->spec->chat, job->spec->tokenizer, job->enc, &list, false,
                            job->ids);
    dh_vec_fini(&list);
    if (st == DH_OK && job->ids->n >= CHAT_DRAIN) st = drain(ctx, job, job->ids, 0);
    return st;
}

/* Encode the part: into the writer, or into memory where there is none. */
static dh_status encode_source(dh_ctx *ctx, const dh_dataset_spec *spec, const text_source *s,
                               dh_token_writer *writer, dh_ids *memory)
{
    dh_ids ids = {0};
    encode_job job = {.encode_row = encode_chat,
                      .spec = spec,
                      .source = s,
                      .writer = writer,
                      .ids = &ids,
                      .memory = memory};
    if (spec->chat) DH_TRY(dh_chat_check(ctx, spec->chat, spec->tokenizer));
    DH_TRY(dh_encoder_create(ctx, spec->tokenizer, &job.enc));
    if (s->field && !s->chats && dh_tokenizer_eos(spec->tokenizer) < 0)
        dh_log(DH_LOG_INFO,
               "%s: documents follow each other without a mark between them: the tokenizer has no "
               "end-of-text token",
               s->path);
    if (!s->chats) { /* a conversation's tokens are told apart first */
        job.enc->drain = drain;
        job.enc->drain_arg = &job;
    }
    job.at = s->begin;
    report(&job, 0);
    dh_status st = each_text(ctx, s, encode_one, &job);
    job.at = s->begin;
    if (st == DH_OK) st = drain(ctx, &job, &ids, s->end - s->begin);
    dh_encoder_destroy(job.enc);
    dh_vec_fini(&ids);
    return st;
}

/* ---- cache ---------------------------------------------------------------------------------- */

/* Of 8-byte fields only, so that the bytes are the same everywhere. */
typedef struct cache_header {
    char magic[8];
    uint64_t version;
    uint64_t width, count, tokens_hash;
    uint64_t fingerprint, recipe;    /* tokenizer; kind of source, field, EOS */
    uint64_t text_bytes, begin, end; /* bytes of the text; its part */
    uint64_t text_hash[2];           /* hash of all of the text: XXH3, 128 bits */
    uint64_t header_hash;            /* hash of all fields before it */
} cache_header;

enum { CHATS = 2 }; /* bump when templates change, or what is learnt */

static const char cache_magic[8] = {'D', 'H', 'T', 'O', 'K', 'E', 'N', 'S'};

static dh_token_type cache_type(const dh_dataset_spec *spec)
{
    const dh_tokenizer *tok = spec->tokenizer;
    if (spec->chat) return DH_TOKEN_U32;
    return dh_tokenizer_vocab_size(tok) <= 65536 ? DH_TOKEN_U16 : DH_TOKEN_U32;
}

static uint64_t header_hash(const cache_header *h)
{
    return XXH3_64bits(h, offsetof(cache_header, header_hash));
}

/* The head of a valid cache file of this source, without count and hashes. */
static void expected_header(const dh_dataset_spec *spec, const text_source *s, cache_header *h)
{
    *h = (cache_header){.version = 2};
    memcpy(h->magic, cache_magic, sizeof cache_magic);
    h->width = dh_token_bytes(cache_type(spec));
    h->fingerprint = dh_tokenizer_fingerprint(spec->tokenizer);
    h->recipe = s->field ? XXH3_64bits(s->field, strlen(s->field)) : 0;
    if (spec->special_tokens) h->recipe = XXH3_64bits(&h->recipe, sizeof h->recipe);
    if (spec->chat)
        h->recipe = XXH3_64bits_withSeed(spec->chat->name, strlen(spec->chat->name), CHATS);
    h->text_bytes = s->map.n_bytes;
    h->begin = s->begin;
    h->end = s->end;
    dh_text_file_hash(&s->file, h->text_hash);
}

/* One file per source, tokenizer, field and part. */
static dh_status cache_path(dh_ctx *ctx, const dh_dataset_spec *spec, const text_source *s,
                            const cache_header *h, char **path)
{
    char real[PATH_MAX];
    const char *full = realpath(s->path, real) ? real : s->path;
    const char *slash = strrchr(s->path, '/');
    uint64_t key[] = {h->fingerprint, h->recipe, spec->part == DH_PART_VAL ? h->begin : 0,
                      spec->part == DH_PART_TRAIN ? h->end : 0, (uint64_t)spec->part};
    uint64_t hash = XXH3_64bits_withSeed(key, sizeof key, XXH3_64bits(full, strlen(full)));
    dh_str out = DH_STR_INIT;
    dh_str_printf(&out, "%s/%.100s-%016llx.tokens", spec->cache_dir, slash ? slash + 1 : s->path,
                  (unsigned long long)hash);
    if (out.failed) {
        dh_str_fini(&out);
        return dh_no_memory(ctx);
    }
    *path = out.text;
    return DH_OK;
}

/* Whether a mapped cache file is whole and made from what we have; sets the run. */
static bool cache_matches(const dh_map *map, const cache_header *want, dh_token_run *run)
{
    cache_header h, same = *want;
    uint64_t hash;
    if (map->n_bytes < sizeof h || !dh_copy_mapped(&h, map->at, sizeof h)) return false;
    same.count = h.count;
    same.tokens_hash = h.tokens_hash;
    same.header_hash = h.header_hash;
    size_t n_tokens = (map->n_bytes - sizeof h) / want->width;
    if (memcmp(&h, &same, sizeof h) != 0 || h.header_hash != header_hash(&h) ||
        h.count != n_tokens || map->n_bytes != sizeof h + n_tokens * want->width ||
        !dh_map_hash64(map->at + sizeof h, map->n_bytes - sizeof h, &hash) || h.tokens_hash != hash)
        return false;
    *run = (dh_token_run){map->at + sizeof h, want->width == 2 ? DH_TOKEN_U16 : DH_TOKEN_U32,
                          (int64_t)h.count};
    return true;
}

/* A text that changed while it was tokenized is none of which the tokens could be kept. */
static dh_status check_text(dh_ctx *ctx, const text_source *s, const cache_header *h)
{
    uint64_t hash[2];
    dh_text_file_hash(&s->file, hash);
    if (memcmp(hash, h->text_hash, sizeof hash) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "another program wrote to %s while it was read", s->path);
}

/* Maps what was written, whatever takes its name next. */
static dh_status cache_write(dh_ctx *ctx, const dh_dataset_spec *spec, const text_source *s,
                             cache_header *h, const char *path, dh_map *map)
{
    dh_token_writer *w;
    DH_TRY(dh_dir_create(ctx, spec->cache_dir));
    DH_TRY(dh_token_writer_open(ctx, path, sizeof *h, cache_type(spec), &w));
    dh_status st = encode_source(ctx, spec, s, w, NULL);
    if (st == DH_OK) st = check_text(ctx, s, h);
    if (st == DH_OK) st = dh_token_writer_flush(ctx, w);
    if (st != DH_OK) {
        dh_token_writer_abort(w);
        return st;
    }
    h->count = dh_token_writer_count(w);
    h->tokens_hash = dh_token_writer_hash(w);
    h->header_hash = header_hash(h);
    return dh_token_writer_commit(ctx, w, h, map);
}

static bool take_cached(const char *path, const cache_header *want, dh_text_tokens *out)
{
    dh_ctx unreadable = DH_CTX_INIT;
    if (!dh_path_exists(path)) return false;
    if (dh_map_open(&unreadable, path, &out->tokens) == DH_OK &&
        cache_matches(&out->tokens, want, &out->run))
        return true;
    dh_log(DH_LOG_INFO, "%s is out of date or damaged: tokenizing again", path);
    dh_map_close(&out->tokens);
    return false;
}

static dh_status through_cache(dh_ctx *ctx, const dh_dataset_spec *spec, const text_source *s,
                               dh_text_tokens *out)
{
    cache_header want;
    char *path = NULL;
    dh_status st = DH_OK;
    expected_header(spec, s, &want);
    DH_TRY(cache_path(ctx, spec, s, &want, &path));
    if (!take_cached(path, &want, out)) {
        st = cache_write(ctx, spec, s, &want, path, &out->tokens);
        if (st == DH_OK && !cache_matches(&out->tokens, &want, &out->run))
            st = dh_fail(ctx, DH_EIO, "%s does not hold what was written to it", path);
        if (st != DH_OK) dh_map_close(&out->tokens);
    }
    if (st == DH_OK && dh_stamp_take(path, &out->stamp))
        out->cached = path;
    else
        free(path);
    return st;
}

dh_status dh_text_tokenize(dh_ctx *ctx, const dh_dataset_spec *spec, const char *path,
                           dh_text_tokens *out)
{
    if (!spec->tokenizer)
        return dh_fail(ctx, DH_EINVAL, "%s is text, and no tokenizer was given", path);
    text_source s;
    *out = (dh_text_tokens){0};
    dh_status st =
        open_source(ctx, path, spec->text_field, spec->chat != NULL, spec->cache_dir, &s);
    if (st == DH_OK) {
        out->is_lines = s.field != NULL;
        select_part(&s, spec->part, spec->val_fraction);
        if (spec->cache_dir && *spec->cache_dir) {
            st = through_cache(ctx, spec, &s, out);
        } else {
            st = encode_source(ctx, spec, &s, NULL, &out->memory);
            out->run = (dh_token_run){(const unsigned char *)out->memory.at, DH_TOKEN_I32,
                                      (int64_t)out->memory.n};
        }
    }
    dh_text_file_close(&s.file);
    if (st != DH_OK) dh_vec_fini(&out->memory);
    return st;
}
