/* Runs a fuzz target without libFuzzer: over every file of the folders named, each whole, cut short,
 * and with single bytes changed. Deterministic, so a regression test; under the sanitizers it finds
 * what a reader takes on trust.
 *
 *   fuzz_NAME [--drawn N] [--seed S] FOLDER...
 *
 * --drawn: also N drawn damages of every file, each of one to four stretches that are exchanged for
 * others, removed, repeated or made of chance. The input at which a run ends badly is in the file
 * DHELIX_FUZZ_INPUT, where that is set: an address sanitizer ends the process. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 1 << 20,
    MAX_VARIANTS = 1024, /* per file and kind of damage: seconds, not minutes, in all */
    MOST_DAMAGES = 4,
    MOST_STRETCH = 64,
};

static long n_drawn;
static uint64_t state;

static size_t drawn(size_t n) /* 0..n - 1 */
{
    state = dh_mix64(state + 1);
    return n ? (size_t)(state % n) : 0;
}

/* A copy of exactly n bytes, so that the address sanitizer sees reads behind it. */
static void run_copy(const char *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) return;
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void run_cut_short(const char *data, size_t n)
{
    size_t step = 1 + n / MAX_VARIANTS;
    for (size_t len = 0; len < n; len += step) run_copy(data, len);
}

static void run_bytes_changed(char *data, size_t n)
{
    size_t step = 1 + n / MAX_VARIANTS;
    for (size_t i = 0; i < n; i += step) {
        char kept = data[i];
        data[i] = (char)dh_mix64(i);
        run_copy(data, n);
        data[i] = kept;
    }
}

/* One more damage. */
static void damage(dh_str *text)
{
    const size_t from = drawn(text->len), n = drawn(DH_MIN(text->len - from, MOST_STRETCH) + 1);
    const size_t at = drawn(text->len + 1), kind = drawn(4);
    dh_str out = DH_STR_INIT;
    if (kind == 0) { /* a stretch put in again elsewhere */
        dh_str_append(&out, text->text, at);
        dh_str_append(&out, text->text + from, n);
        dh_str_append(&out, text->text + at, text->len - at);
    } else { /* in its place others of the file, nothing, or chance */
        dh_str_append(&out, text->text, from);
        const size_t other = drawn(text->len), m = DH_MIN(n, text->len - other);
        if (kind == 1) dh_str_append(&out, text->text + other, m);
        for (size_t i = 0; kind == 2 && i < n; i++)
            dh_str_append(&out, &(char){(char)drawn(256)}, 1);
        dh_str_append(&out, text->text + from + n, text->len - from - n);
    }
    dh_str_fini(text);
    *text = out;
}

static void keep_input(const dh_str *text)
{
    const char *path = getenv("DHELIX_FUZZ_INPUT");
    FILE *out = path ? fopen(path, "wb") : NULL;
    if (!out) return;
    fwrite(text->text, 1, text->len, out);
    fclose(out);
}

static void run_drawn(const char *data, size_t n)
{
    for (long i = 0; n > 0 && i < n_drawn; i++) {
        dh_str text = DH_STR_INIT;
        dh_str_append(&text, data, n);
        for (size_t left = 1 + drawn(MOST_DAMAGES); left > 0 && text.len > 0; left--) damage(&text);
        if (text.len > 0 && !text.failed) {
            keep_input(&text);
            run_copy(text.text, text.len);
        }
        dh_str_fini(&text);
    }
}

static dh_status replay_file(dh_ctx *ctx, const char *path)
{
    char *data;
    size_t n;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &data, &n));
    run_copy(data, n);
    run_cut_short(data, n);
    run_bytes_changed(data, n);
    run_drawn(data, n);
    free(data);
    return DH_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static dh_status replay_folder(dh_ctx *ctx, const char *folder, int *n_files)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, by_name);
    if (n < 0) return dh_fail(ctx, DH_EIO, "cannot read folder %s", folder);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && ctx->status == DH_OK) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            if (replay_file(ctx, path) == DH_OK) (*n_files)++;
        }
        free(entries[i]);
    }
    free(entries);
    return ctx->status;
}

int main(int argc, char **argv)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n_files = 0;
    for (int i = 1; i < argc; i++) {
        const bool counts = strcmp(argv[i], "--drawn") == 0;
        if (i + 1 < argc && (counts || strcmp(argv[i], "--seed") == 0)) {
            const uint64_t value = strtoull(argv[++i], NULL, 0);
            if (counts)
                n_drawn = (long)value;
            else
                state = value;
            continue;
        }
        if (replay_folder(&ctx, argv[i], &n_files) != DH_OK) {
            fprintf(stderr, "%s\n", ctx.message);
            return 1;
        }
    }
    printf("%d seeds, whole and damaged: ok\n", n_files);
    return n_files > 0 ? 0 : 1;
}
