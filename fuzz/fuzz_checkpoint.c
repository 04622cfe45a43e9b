/* Checkpoints: a manifest and a state of any content, behind checksums that are right, since a
 * wrong one ends the reading. The first byte says which of the two the rest is. */
#include "fuzz.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/checkpoint.h"

static char folder[] = "/tmp/dhelix-fuzz-XXXXXX";

static void remove_folder(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dir_remove(&ctx, folder);
}

static void write_file(const char *name, const void *data, size_t n_bytes)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    DH_CHECK(fd >= 0 && dh_fd_write_all(&ctx, fd, path, data, n_bytes) == DH_OK, "%s", path);
    close(fd);
}

/* Takes the reference. */
static void write_manifest(json_t *content)
{
    char hash[DH_CKPT_HASH_TEXT], *canonical = json_dumps(content, JSON_COMPACT | JSON_SORT_KEYS);
    DH_CHECK(canonical, "out of memory");
    dh_ckpt_fingerprint(canonical, strlen(canonical), hash);
    json_t *root = json_pack("{s:o, s:s}", "manifest", content, "xxh3_128", hash);
    char *text = json_dumps(root, JSON_COMPACT);
    DH_CHECK(text, "out of memory");
    write_file("manifest.json", text, strlen(text));
    json_decref(root);
    free(canonical);
    free(text);
}

static void write_state(const void *data, size_t n_bytes)
{
    char hash[DH_CKPT_HASH_TEXT];
    dh_ckpt_fingerprint(data, n_bytes, hash);
    write_file("state.json", data, n_bytes);
    write_manifest(json_pack("{s:s, s:i, s:i, s:[{s:s, s:I, s:s}]}", "format", "dhelix-checkpoint",
                             "version", 1, "step", 3, "files", "name", "state.json", "bytes",
                             (json_int_t)n_bytes, "xxh3_128", hash));
}

/* What is not JSON stands for the whole manifest file. */
static void write_content(const void *data, size_t n_bytes)
{
    json_t *content = json_loadb(data, n_bytes, 0, NULL);
    if (content)
        write_manifest(content);
    else
        write_file("manifest.json", data, n_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    if (!made) {
        DH_CHECK(mkdtemp(folder), "cannot create %s", folder);
        atexit(remove_folder);
        made = true;
    }
    if (size == 0) return 0;
    if (data[0] == 's')
        write_state(data + 1, size - 1);
    else
        write_content(data + 1, size - 1);
    if (dh_ckpt_open(&ctx, NULL, folder, true, &c) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    const dh_ckpt_state *state = dh_ckpt_get_state(c);
    DH_CHECK(state->step >= 0 && state->next_sample >= 0, "step %lld", (long long)state->step);
    DH_CHECK(state->n_settings <= DH_CKPT_MAX_SETTINGS, "%zu settings", state->n_settings);
    dh_ckpt_close(c);
    return 0;
}
