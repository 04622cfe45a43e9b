/* Tokenizer files that lie beside weights: found, and copied with them, so that a
 * model folder can be sampled wherever it goes. */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/unread.h"
#include "train/trained.h"

/* Everything the loaders read; one folder holds the files of one tokenizer. The characters of a
 * text come first: a tokenizer.json beside them is the same one for others. */
static const char *const file_names[] = {
    DH_CHARS_FILE, "tokenizer.json", "tokenizer_config.json", "encoder.json",  "vocab.bpe",
    "vocab.json",  "merges.txt",     "tokenizer.model",       "tokenizer.bin", "vocab.txt",
};

static dh_status join(dh_ctx *ctx, const char *dir, const char *name, dh_str *path)
{
    dh_str_clear(path);
    dh_str_printf(path, "%s/%s", dir, name);
    return path->failed ? dh_no_memory(ctx) : DH_OK;
}

/* ---- finding -------------------------------------------------------------------------- */

/* Appends `place` or a file of it to spec when a tokenizer is there. */
static dh_status look_into(dh_ctx *ctx, const char *place, dh_str *spec, bool *found)
{
    dh_str path = DH_STR_INIT;
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && !*found && i < DH_COUNTOF(file_names); i++) {
        st = join(ctx, place, file_names[i], &path);
        if (st != DH_OK || !dh_path_exists(path.text)) continue;
        /* A folder is loaded as one; the characters are a file that loads by itself. */
        bool chars = strcmp(file_names[i], DH_CHARS_FILE) == 0;
        dh_str_printf(spec, "%s", chars ? path.text : place);
        *found = true;
    }
    dh_str_fini(&path);
    if (spec->failed) return dh_no_memory(ctx);
    return st;
}

/* A folder whose tokenizer is not read is one all the same: loading it says why. */
static dh_status look_for_unread(dh_ctx *ctx, const char *place, dh_str *spec)
{
    char name[DH_UNREAD_NAME];
    dh_unread_tokenizer_in(place, name);
    if (*name) dh_str_printf(spec, "%s", place);
    return spec->failed ? dh_no_memory(ctx) : DH_OK;
}

static dh_status look_beside(dh_ctx *ctx, const char *place, const char *run_dir, dh_str *spec)
{
    bool found = false;
    DH_TRY(look_into(ctx, place, spec, &found));
    if (found) return DH_OK;
    if (!run_dir) return look_for_unread(ctx, place, spec);
    dh_str dir = DH_STR_INIT;
    dh_status st = join(ctx, run_dir, DH_TOKENIZER_DIR, &dir);
    if (st == DH_OK) st = look_into(ctx, dir.text, spec, &found);
    if (st == DH_OK && !found) st = look_into(ctx, run_dir, spec, &found);
    dh_str_fini(&dir);
    return st == DH_OK && !found ? look_for_unread(ctx, place, spec) : st;
}

/* Weights folder, the run's tokenizer folder, the run folder: in this order. */
dh_status dh_tokenizer_beside(dh_ctx *ctx, const char *weights, const char *run_dir, dh_str *spec)
{
    char *copy = strdup(weights);
    if (!copy) return dh_no_memory(ctx);
    const dh_status st =
        look_beside(ctx, dh_path_is_dir(weights) ? weights : dirname(copy), run_dir, spec);
    free(copy);
    return st;
}

bool dh_tokenizer_owns_file(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(file_names); i++)
        if (strcmp(name, file_names[i]) == 0) return true;
    return dh_unread_tokenizer(name);
}

/* ---- links ------------------------------------------------------------------------------- */

static bool lies_in(const char *path, const char *dir, size_t n)
{
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* Of a folder MODELS--X/snapshots/REVISION the length of MODELS--X; 0: it is none. */
static size_t cached_repository(const char *dir)
{
    const char *at = strstr(dir, "/snapshots/");
    const char *name = at;
    while (name && name > dir && name[-1] != '/') name--;
    return name && strncmp(name, "models--", 8) == 0 ? (size_t)(at - dir) : 0;
}

static bool may_follow(const char *target, const char *dir)
{
    static const char blobs[] = "/blobs/";
    const size_t n = cached_repository(dir);
    return lies_in(target, dir, strlen(dir)) ||
           (n > 0 && lies_in(target, dir, n) && strncmp(target + n, blobs, sizeof blobs - 1) == 0);
}

/* A file of a model folder may be a link to a secret that whoever made the folder cannot read. */
static dh_status check_link(dh_ctx *ctx, const char *from_dir, const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode)) return DH_OK;
    char *target = realpath(path, NULL), *dir = realpath(from_dir, NULL);
    dh_status st = DH_OK;
    if (!target || !dir)
        st = dh_fail(ctx, DH_EIO, "cannot follow the link %s: %s", path, strerror(errno));
    else if (!may_follow(target, dir))
        st = dh_fail(ctx, DH_EPERM,
                     "%s is a link to %s, outside of its folder, and is not copied: put the file "
                     "itself there, or remove the link",
                     path, target);
    free(target);
    free(dir);
    return st;
}

/* ---- copying ----------------------------------------------------------------------------- */

#define MOST_COPIED ((size_t)1 << 30)

static dh_status copy_file(dh_ctx *ctx, const char *from, const char *to)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, from, MOST_COPIED, &text, &n_bytes));
    const dh_status st = dh_file_write_atomic(ctx, to, text, n_bytes);
    free(text);
    return st;
}

dh_status dh_file_copy_as(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                          const char *new_name, size_t *n_copied)
{
    dh_str from = DH_STR_INIT, to = DH_STR_INIT;
    dh_status st = join(ctx, from_dir, name, &from);
    if (st == DH_OK) st = join(ctx, to_dir, new_name, &to);
    if (st == DH_OK && dh_path_exists(from.text)) {
        st = check_link(ctx, from_dir, from.text);
        if (st == DH_OK) st = copy_file(ctx, from.text, to.text);
        if (st == DH_OK) ++*n_copied;
    }
    dh_str_fini(&from);
    dh_str_fini(&to);
    return st;
}

dh_status dh_file_copy_into(dh_ctx *ctx, const char *from_dir, const char *name, const char *to_dir,
                            size_t *n_copied)
{
    return dh_file_copy_as(ctx, from_dir, name, to_dir, name, n_copied);
}

static const char *known_name(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(file_names); i++)
        if (strcmp(name, file_names[i]) == 0) return file_names[i];
    const char *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".json") == 0) return "tokenizer.json";
    if (dot && strcmp(dot, ".txt") == 0) return "vocab.txt";
    return dot && strcmp(dot, ".bin") == 0 ? "tokenizer.bin" : "tokenizer.model";
}

/* A file that is read together with another one. */
static const struct {
    const char *name, *with;
} companions[] = {{"encoder.json", "vocab.bpe"},
                  {"vocab.json", "merges.txt"},
                  {"tokenizer.json", "tokenizer_config.json"},
                  {"tokenizer.json", "chat_template.jinja"},
                  {"vocab.txt", "tokenizer_config.json"}};

static dh_status copy_companions(dh_ctx *ctx, const char *dir, const char *name, const char *to_dir,
                                 size_t *n_copied)
{
    for (size_t i = 0; i < DH_COUNTOF(companions); i++)
        if (strcmp(companions[i].name, name) == 0)
            DH_TRY(dh_file_copy_into(ctx, dir, companions[i].with, to_dir, n_copied));
    return DH_OK;
}

/* A single file, under a name by which it is found again, and what belongs to it. One that a job
 * names may be a link to anywhere; the characters were found beside weights. */
static dh_status copy_single(dh_ctx *ctx, const char *from, const char *to_dir, size_t *n_copied)
{
    char *copy = strdup(from), *copy2 = strdup(from);
    dh_str to = DH_STR_INIT;
    dh_status st = copy && copy2 ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        const char *name = known_name(basename(copy));
        const char *dir = dirname(copy2);
        st = join(ctx, to_dir, name, &to);
        if (st == DH_OK && strcmp(name, DH_CHARS_FILE) == 0) st = check_link(ctx, dir, from);
        if (st == DH_OK) st = copy_file(ctx, from, to.text);
        if (st == DH_OK) ++*n_copied;
        if (st == DH_OK) st = copy_companions(ctx, dir, name, to_dir, n_copied);
    }
    free(copy);
    free(copy2);
    dh_str_fini(&to);
    return st;
}

dh_status dh_tokenizer_copy_files(dh_ctx *ctx, const char *spec, const char *to_dir,
                                  size_t *n_copied)
{
    *n_copied = 0;
    if (strncmp(spec, "gpt2:", 5) == 0) spec += 5;
    if (!dh_path_exists(spec)) return DH_OK; /* bytes */
    DH_TRY(dh_dir_create(ctx, to_dir));
    if (!dh_path_is_dir(spec)) return copy_single(ctx, spec, to_dir, n_copied);
    for (size_t i = 0; i < DH_COUNTOF(file_names); i++)
        DH_TRY(dh_file_copy_into(ctx, spec, file_names[i], to_dir, n_copied));
    char unread[DH_UNREAD_NAME];
    dh_unread_tokenizer_in(spec, unread);
    if (*unread) DH_TRY(dh_file_copy_into(ctx, spec, unread, to_dir, n_copied));
    return dh_file_copy_into(ctx, spec, "chat_template.jinja", to_dir, n_copied);
}
