/* The manifest lists a checkpoint's files and proves them. Its own checksum, over its content in
 * canonical JSON, proves the manifest. */
#include "ckpt_impl.h"

#include "base/json_text.h"
#include "base/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { FORMAT_VERSION = 1, READ_BYTES = 1 << 20, TEXT_MAX_BYTES = 64 << 20 };
static const char format_name[] = "dhelix-checkpoint";

/* ---- checksums ------------------------------------------------------------------------ */

static void hash_text(XXH128_hash_t hash, char text[DH_CKPT_HASH_TEXT])
{
    snprintf(text, DH_CKPT_HASH_TEXT, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

void dh_ckpt_fingerprint(const void *data, size_t n_bytes, char text[DH_CKPT_HASH_TEXT])
{
    hash_text(XXH3_128bits(data, n_bytes), text);
}

static dh_status hash_stream(dh_ctx *ctx, int fd, const char *path, XXH3_state_t *state,
                             char *buffer, int64_t *n_bytes)
{
    XXH3_128bits_reset(state);
    *n_bytes = 0;
    for (;;) {
        DH_TRY(dh_heed_stop(ctx, "a checkpoint was read"));
        ssize_t n = read(fd, buffer, READ_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return dh_fail(ctx, DH_EIO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0) return DH_OK;
        XXH3_128bits_update(state, buffer, (size_t)n);
        *n_bytes += n;
    }
}

static dh_status hash_open_file(dh_ctx *ctx, int fd, const char *path, dh_ckpt_file *file)
{
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(READ_BYTES);
    dh_status st = state && buffer ? hash_stream(ctx, fd, path, state, buffer, &file->n_bytes)
                                   : dh_no_memory_while(ctx, "reading %s", path);
    if (st == DH_OK) hash_text(XXH3_128bits_digest(state), file->xxh3_128);
    free(buffer);
    XXH3_freeState(state);
    return st;
}

static dh_status measure_path(dh_ctx *ctx, const char *path, bool sync, dh_ckpt_file *file)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
    dh_status st = DH_OK;
    if (sync && fsync(fd) != 0)
        st = dh_fail(ctx, DH_EIO, "cannot sync %s: %s", path, strerror(errno));
    if (st == DH_OK) st = hash_open_file(ctx, fd, path, file);
    close(fd);
    return st;
}

dh_status ckpt_measure(dh_ctx *ctx, const char *folder, const char *name, bool sync,
                       dh_ckpt_file *file)
{
    dh_ckpt_file measured = {.n_bytes = 0};
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, name);
    dh_status st = path.failed ? dh_no_memory_while(ctx, "reading %s", name)
                               : measure_path(ctx, path.text, sync, &measured);
    dh_str_fini(&path);
    if (st != DH_OK) return st;
    snprintf(measured.name, sizeof measured.name, "%s", name);
    *file = measured;
    return DH_OK;
}

/* ---- the manifest ----------------------------------------------------------------------- */

void ckpt_manifest_fini(ckpt_manifest *m)
{
    dh_vec_fini(&m->files);
}

const dh_ckpt_file *ckpt_manifest_find(const ckpt_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->files.n; i++)
        if (strcmp(m->files.at[i].name, name) == 0) return &m->files.at[i];
    return NULL;
}

bool ckpt_name_ok(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n < DH_CKPT_NAME_MAX && name[0] != '.' && strspn(name, allowed) == n &&
           strcmp(name, CKPT_MANIFEST) != 0;
}

static json_t *content_json(const ckpt_manifest *m)
{
    json_t *files = json_array();
    for (size_t i = 0; i < m->files.n; i++) {
        const dh_ckpt_file *f = &m->files.at[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", f->name, "bytes",
                                               (json_int_t)f->n_bytes, "xxh3_128", f->xxh3_128));
    }
    if (json_array_size(files) != m->files.n) { /* out of memory on the way */
        json_decref(files);
        return NULL;
    }
    return json_pack("{s:s, s:i, s:I, s:o}", "format", format_name, "version", FORMAT_VERSION,
                     "step", (json_int_t)m->step, "files", files);
}

/* Checksum of a JSON value, whatever its white space and order of keys were. */
static bool hash_json(const json_t *value, char text[DH_CKPT_HASH_TEXT])
{
    char *canonical = dh_json_print(value, JSON_COMPACT | JSON_SORT_KEYS);
    if (!canonical) return false;
    dh_ckpt_fingerprint(canonical, strlen(canonical), text);
    free(canonical);
    return true;
}

dh_status ckpt_manifest_text(dh_ctx *ctx, const ckpt_manifest *m, char **text)
{
    json_t *content = content_json(m), *root = NULL;
    char hash[DH_CKPT_HASH_TEXT];
    if (content && hash_json(content, hash))
        root = json_pack("{s:O, s:s}", "manifest", content, "xxh3_128", hash);
    char *out = dh_json_text(root, JSON_INDENT(1));
    json_decref(content);
    if (!out) return dh_no_memory(ctx);
    *text = out;
    return DH_OK;
}

static dh_status read_file_entry(dh_ctx *ctx, json_t *entry, ckpt_manifest *m)
{
    const char *name = NULL, *hash = NULL;
    json_int_t n_bytes = -1;
    if (json_unpack(entry, "{s:s, s:I, s:s}", "name", &name, "bytes", &n_bytes, "xxh3_128",
                    &hash) != 0 ||
        !ckpt_name_ok(name) || n_bytes < 0 || strlen(hash) != DH_CKPT_HASH_TEXT - 1)
        return dh_fail(ctx, DH_EFORMAT, "entry %zu of \"files\" is malformed", m->files.n);
    dh_ckpt_file file = {.n_bytes = n_bytes};
    snprintf(file.name, sizeof file.name, "%s", name);
    snprintf(file.xxh3_128, sizeof file.xxh3_128, "%s", hash);
    if (!dh_vec_push(&m->files, file)) return dh_no_memory(ctx);
    return DH_OK;
}

static dh_status read_content(dh_ctx *ctx, json_t *root, ckpt_manifest *m)
{
    json_t *content = NULL, *files = NULL;
    const char *claimed = NULL, *format = NULL;
    char hash[DH_CKPT_HASH_TEXT];
    json_int_t step = -1;
    int version = 0;
    if (json_unpack(root, "{s:o, s:s}", "manifest", &content, "xxh3_128", &claimed) != 0)
        return dh_fail(ctx, DH_EFORMAT, "it lacks \"manifest\" or \"xxh3_128\"");
    if (!hash_json(content, hash)) return dh_fail(ctx, DH_EFORMAT, "its content is malformed");
    if (strcmp(hash, claimed) != 0)
        return dh_fail(ctx, DH_EFORMAT, "its content has XXH3-128 %s, should have %.40s", hash,
                       claimed);
    if (json_unpack(content, "{s:s, s:i}", "format", &format, "version", &version) != 0 ||
        strcmp(format, format_name) != 0)
        return dh_fail(ctx, DH_EFORMAT, "it is not a manifest of %s", format_name);
    if (version > FORMAT_VERSION) /* its other content is not known here */
        return dh_fail(ctx, DH_EUNSUPPORTED, "its version is %d; this program reads %d", version,
                       FORMAT_VERSION);
    if (version != FORMAT_VERSION ||
        json_unpack(content, "{s:I, s:o}", "step", &step, "files", &files) != 0 ||
        !json_is_array(files) || step < 0)
        return dh_fail(ctx, DH_EFORMAT, "its version, step or list of files is malformed");
    m->step = step;
    for (size_t i = 0; i < json_array_size(files); i++)
        DH_TRY(read_file_entry(ctx, json_array_get(files, i), m));
    return DH_OK;
}

/* A required file that is absent, or no file, is damage. If it cannot be looked at, that is
 * no damage. */
static dh_status look(dh_ctx *ctx, const char *path, struct stat *info)
{
    if (stat(path, info) != 0) {
        const bool absent = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
        return dh_fail(ctx, absent ? DH_EFORMAT : dh_status_of_errno(errno),
                       "%s cannot be read (%s)", path, strerror(errno));
    }
    if (S_ISREG(info->st_mode)) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s is not a regular file", path);
}

static dh_status read_small(dh_ctx *ctx, const char *folder, const char *name, char **text,
                            size_t *n_bytes)
{
    struct stat info;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, name);
    dh_status st =
        path.failed ? dh_no_memory_while(ctx, "reading %s", name) : look(ctx, path.text, &info);
    if (st == DH_OK) st = dh_file_read(ctx, path.text, TEXT_MAX_BYTES, text, n_bytes);
    dh_str_fini(&path);
    return st;
}

/* Small JSON file of a checkpoint; NULL on failure. */
static json_t *load_json(dh_ctx *ctx, const char *folder, const char *name)
{
    char *text;
    size_t n_bytes = 0;
    if (read_small(ctx, folder, name, &text, &n_bytes) != DH_OK) return NULL;
    json_error_t fault;
    json_t *root;
    dh_status st = dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, &fault, &root);
    free(text);
    if (st == DH_OK && !root) dh_fail(ctx, DH_EFORMAT, "line %d: %s", fault.line, fault.text);
    return root;
}

dh_status ckpt_manifest_read(dh_ctx *ctx, const char *folder, ckpt_manifest *m)
{
    ckpt_manifest out = {.step = -1};
    json_t *root = load_json(ctx, folder, CKPT_MANIFEST);
    if (root && read_content(ctx, root, &out) == DH_OK) {
        json_decref(root);
        *m = out;
        return DH_OK;
    }
    json_decref(root);
    ckpt_manifest_fini(&out);
    return dh_ctx_while(ctx, "reading %s/%s", folder, CKPT_MANIFEST);
}

/* ---- proving the files ------------------------------------------------------------------- */

static dh_status verify_size(dh_ctx *ctx, const char *folder, const dh_ckpt_file *want)
{
    struct stat info;
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", folder, want->name);
    dh_status st =
        path.failed ? dh_no_memory_while(ctx, "verifying %s", folder) : look(ctx, path.text, &info);
    if (st != DH_OK)
        dh_ctx_while(ctx, "proving %s (the manifest lists it with %lld bytes)", want->name,
                     (long long)want->n_bytes);
    else if (info.st_size != want->n_bytes)
        st = dh_fail(ctx, DH_EFORMAT, "%s has %lld bytes, should have %lld", path.text,
                     (long long)info.st_size, (long long)want->n_bytes);
    dh_str_fini(&path);
    return st;
}

static dh_status verify_checksum(dh_ctx *ctx, const char *folder, const dh_ckpt_file *want)
{
    dh_ckpt_file have;
    DH_TRY(ckpt_measure(ctx, folder, want->name, false, &have));
    if (strcmp(have.xxh3_128, want->xxh3_128) == 0) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s/%s has XXH3-128 %s, should have %s: its content changed",
                   folder, want->name, have.xxh3_128, want->xxh3_128);
}

dh_status ckpt_manifest_verify(dh_ctx *ctx, const char *folder, const ckpt_manifest *m,
                               bool checksums)
{
    for (size_t i = 0; i < m->files.n; i++) DH_TRY(verify_size(ctx, folder, &m->files.at[i]));
    for (size_t i = 0; checksums && i < m->files.n; i++)
        DH_TRY(verify_checksum(ctx, folder, &m->files.at[i]));
    return DH_OK;
}

/* ---- settings ------------------------------------------------------------------------------- */

/* Kept bytes of a long value. Earlier versions kept nothing else: a value of just this length is
 * one of theirs, whole or cut. */
enum { CUT_BYTES = 79 };

/* The start of a text, which ends with a whole character of UTF-8. */
static size_t start_of(const char *text, size_t n)
{
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    return n;
}

dh_status dh_ckpt_setting_make(dh_ctx *ctx, dh_ckpt_setting *s, const char *name, size_t n_name,
                               const char *value, size_t n_value)
{
    char hash[DH_CKPT_HASH_TEXT];
    if (n_name >= sizeof s->name)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the setting %.*s has a name of %zu bytes, %zu fit",
                       (int)n_name, name, n_name, sizeof s->name - 1);
    snprintf(s->name, sizeof s->name, "%.*s", (int)n_name, name);
    if (n_value < CUT_BYTES) {
        snprintf(s->value, sizeof s->value, "%.*s", (int)n_value, value);
        return DH_OK;
    }
    dh_ckpt_fingerprint(value, n_value, hash);
    snprintf(s->value, sizeof s->value, "%.*s... (%zu bytes, hash %s)",
             (int)start_of(value, CUT_BYTES), value, n_value, hash);
    return DH_OK;
}

bool dh_ckpt_same_value(const dh_ckpt_setting *then, const dh_ckpt_setting *now, bool *cut)
{
    *cut = strlen(then->value) == CUT_BYTES && strlen(now->value) > CUT_BYTES &&
           strncmp(then->value, now->value, CUT_BYTES) == 0;
    return *cut || strcmp(then->value, now->value) == 0;
}

/* ---- state.json ----------------------------------------------------------------------------- */

static bool put_settings(json_t *root, const dh_ckpt_state *s)
{
    json_t *settings = json_object();
    for (size_t i = 0; i < s->n_settings; i++)
        if (json_object_set_new(settings, s->settings[i].name, json_string(s->settings[i].value)) !=
            0) {
            json_decref(settings);
            return false;
        }
    return json_object_set_new(root, "settings", settings) == 0;
}

/* Absent where they are not known. */
static const struct {
    const char *key;
    size_t offset; /* of an int64_t of the state */
} counts[] = {{"ranks", offsetof(dh_ckpt_state, n_ranks)},
              {"threads", offsetof(dh_ckpt_state, n_threads)},
              {"decay_steps", offsetof(dh_ckpt_state, decay_steps)},
              {"from_text", offsetof(dh_ckpt_state, from_text)}};

static bool put_counts(json_t *root, const dh_ckpt_state *s)
{
    bool ok = true;
    for (size_t i = 0; i < DH_COUNTOF(counts); i++) {
        int64_t n;
        memcpy(&n, (const char *)s + counts[i].offset, sizeof n);
        if (n) ok = json_object_set_new(root, counts[i].key, json_integer(n)) == 0 && ok;
    }
    return ok;
}

/* Absent in checkpoints of before there were any. */
static dh_status unpack_settings(dh_ctx *ctx, json_t *root, dh_ckpt_state *s)
{
    json_t *settings = json_object_get(root, "settings"), *value;
    const char *name;
    if (json_object_size(settings) > DH_CKPT_MAX_SETTINGS)
        return dh_fail(ctx, DH_EFORMAT, "it has %zu settings, more than %d",
                       json_object_size(settings), DH_CKPT_MAX_SETTINGS);
    json_object_foreach(settings, name, value)
    {
        dh_ckpt_setting *to = &s->settings[s->n_settings++];
        if (!json_is_string(value) || strlen(name) >= sizeof to->name ||
            json_string_length(value) >= sizeof to->value)
            return dh_fail(ctx, DH_EFORMAT, "its setting %.100s is no text, or too long", name);
        snprintf(to->name, sizeof to->name, "%s", name);
        snprintf(to->value, sizeof to->value, "%s", json_string_value(value));
    }
    return DH_OK;
}

dh_status ckpt_state_text(dh_ctx *ctx, const dh_ckpt_state *s, char **text)
{
    char seed[24]; /* as text: JSON readers keep 53 bits of a number */
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    json_t *root =
        json_pack("{s:I, s:I, s:s, s:s, s:s, s:s}", "step", (json_int_t)s->step, "next_sample",
                  (json_int_t)s->next_sample, "seed", seed, "job_fingerprint", s->job_fingerprint,
                  "tokenizer_fingerprint", s->tokenizer_fingerprint, "version", s->version);
    bool ok = root && put_settings(root, s) && put_counts(root, s);
    if (ok && s->lr >= 0) ok = json_object_set_new(root, "lr", json_real(s->lr)) == 0;
    if (!ok) {
        json_decref(root);
        root = NULL;
    }
    char *out = dh_json_text(root, JSON_INDENT(1));
    if (!out) return dh_fail(ctx, DH_EINVAL, "the state's texts are not UTF-8 (or out of memory)");
    *text = out;
    return DH_OK;
}

static dh_status unpack_state(dh_ctx *ctx, json_t *root, dh_ckpt_state *s)
{
    const char *seed = NULL, *job = NULL, *tokenizer = NULL, *version = NULL;
    json_int_t step = -1, next_sample = -1;
    json_error_t fault;
    if (json_unpack_ex(root, &fault, 0, "{s:I, s:I, s:s, s:s, s:s, s:s}", "step", &step,
                       "next_sample", &next_sample, "seed", &seed, "job_fingerprint", &job,
                       "tokenizer_fingerprint", &tokenizer, "version", &version) != 0)
        return dh_fail(ctx, DH_EFORMAT, "%s", fault.text);
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(seed, &end, 10);
    if (step < 0 || next_sample < 0 || errno || *end || end == seed)
        return dh_fail(ctx, DH_EFORMAT, "step, next_sample or seed is out of range");
    const json_t *lr = json_object_get(root, "lr");
    *s = (dh_ckpt_state){.step = step,
                         .next_sample = next_sample,
                         .seed = value,
                         .lr = lr ? json_number_value(lr) : -1};
    snprintf(s->job_fingerprint, sizeof s->job_fingerprint, "%s", job);
    snprintf(s->tokenizer_fingerprint, sizeof s->tokenizer_fingerprint, "%s", tokenizer);
    snprintf(s->version, sizeof s->version, "%s", version);
    for (size_t i = 0; i < DH_COUNTOF(counts); i++) {
        const int64_t n = json_integer_value(json_object_get(root, counts[i].key));
        memcpy((char *)s + counts[i].offset, &n, sizeof n);
    }
    return unpack_settings(ctx, root, s);
}

dh_status ckpt_state_read(dh_ctx *ctx, const char *folder, dh_ckpt_state *state)
{
    json_t *root = load_json(ctx, folder, CKPT_STATE);
    dh_status st = root ? unpack_state(ctx, root, state) : ctx->status;
    json_decref(root);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "reading %s/%s", folder, CKPT_STATE);
}
