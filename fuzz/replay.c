/* Runs a fuzz target without libFuzzer: over every file of the folders named,
 * each whole, cut short, and with single bytes changed. Deterministic, so a
 * regression test; under the sanitizers it finds what a reader takes on trust. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_FILE_BYTES = 1 << 20,
    MAX_VARIANTS = 1024, /* per file and kind of damage: seconds, not minutes, in all */
};

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

static dh_status replay_file(dh_ctx *ctx, const char *path)
{
    char *data;
    size_t n;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &data, &n));
    run_copy(data, n);
    run_cut_short(data, n);
    run_bytes_changed(data, n);
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
        if (replay_folder(&ctx, argv[i], &n_files) != DH_OK) {
            fprintf(stderr, "%s\n", ctx.message);
            return 1;
        }
    }
    printf("%d seeds, whole and damaged: ok\n", n_files);
    return n_files > 0 ? 0 : 1;
}
