/* llama2.c and llm.c checkpoints: every tensor of an accepted file can be read whole.
 * The reader maps files by name, so each input becomes one. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weights/weights.h"

static char path[] = "/tmp/dhelix-fuzz-XXXXXX.bin";

static void remove_file(void)
{
    unlink(path);
}

static void write_input(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemps(path, 4);
        DH_CHECK(fd >= 0, "cannot create %s", path);
        atexit(remove_file);
    }
    DH_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "%s", path);
}

static void read_whole(const dh_weights *w, const dh_weight_info *info)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t n_cols = info->ndim > 0 ? info->shape[info->ndim - 1] : 1, n_rows = 1;
    for (int i = 0; i + 1 < info->ndim; i++) n_rows *= info->shape[i];
    if (n_rows <= 0 || n_cols <= 0) return;
    float *dst = malloc((size_t)(n_rows * n_cols) * sizeof *dst);
    if (!dst) return;
    DH_CHECK(dh_weights_read(&ctx, w, info->name, 0, n_rows, 0, n_cols, false, dst, n_cols) ==
                 DH_OK,
             "%s", ctx.message);
    free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_weights *w;
    write_input(data, size);
    if (dh_weights_open(&ctx, path, &w) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    dh_model model;
    if (dh_weights_model(&ctx, w, &model) == DH_OK)
        DH_CHECK(dh_model_validate(&ctx, &model) == DH_OK, "%s", ctx.message);
    for (size_t i = 0; i < dh_weights_n(w); i++) {
        dh_weight_info info;
        dh_weights_at(w, i, &info);
        read_whole(w, &info);
    }
    dh_weights_close(w);
    return 0;
}
