/* Texts to train on: compressed or not, JSON lines, conversations. What a file holds is the same
 * kept or not; its tokens are the same from the file and from what it holds, in memory and from the
 * cache, and lie in the vocabulary. The first byte says what the file is called, and by which
 * template conversations are read. */
#include "fuzz_folder.h"

#include <string.h>

#include "data/chat.h"
#include "data/dataset.h"
#include "data/unpack.h"

enum { ROW = 32, MOST_UNPACKED = 1 << 16, LONGEST_PATH = 160 };

/* Of the same text without compression, the second of each. */
static const struct {
    const char *name, *inner;
    bool chats;
} files[] = {{"a.jsonl", "b.jsonl", true},
             {"a.jsonl.gz", "b.jsonl", true},
             {"a.jsonl.zst", "b.jsonl", true},
             {"a.jsonl", "b.jsonl", false},
             {"a.txt.gz", "b.txt", false}};

static const char *in_folder(const char *name, char path[LONGEST_PATH])
{
    snprintf(path, LONGEST_PATH, "%s/%s", fuzz_folder(), name);
    return path;
}

static const dh_tokenizer *tokenizer(void)
{
    static dh_tokenizer *tok;
    dh_ctx ctx = DH_CTX_INIT;
    if (!tok)
        DH_CHECK(dh_tokenizer_load(&ctx, "tests/data/chat", &tok) == DH_OK, "%s", ctx.message);
    return tok;
}

/* The n-th of those that the tokenizer can do. */
static const dh_chat *template_of(unsigned n)
{
    const dh_chat *chat = NULL, *row;
    for (size_t i = 0; (row = dh_chat_row(i)); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        if (dh_chat_check(&ctx, row, tokenizer()) != DH_OK) continue;
        chat = row;
        if (n-- == 0) break;
    }
    return chat;
}

/* ---- what files hold ------------------------------------------------------------------------- */

static bool unpack(const char *path, const char *keep, dh_text_file *file)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_status st = dh_text_file_open(&ctx, path, keep, 0, file);
    DH_CHECK(st == DH_OK || ctx.message[0], "a refusal says why");
    return st == DH_OK;
}

/* What is compressed twice is refused, but its inside alone is not. */
static bool is_twice(const dh_map *map)
{
    return (map->n_bytes >= 2 && memcmp(map->at, "\x1f\x8b", 2) == 0) ||
           (map->n_bytes >= 4 && memcmp(map->at, "\x28\xb5\x2f\xfd", 4) == 0);
}

static void check_kept(const char *path, const dh_map *map, bool accepted)
{
    dh_ctx ctx = DH_CTX_INIT;
    char keep[LONGEST_PATH];
    in_folder("kept", keep);
    for (int i = 0; i < 2; i++) { /* made, and found */
        dh_text_file again;
        DH_CHECK(unpack(path, keep, &again) == accepted, "accepted when kept");
        DH_CHECK(!accepted ||
                     (again.map.n_bytes == map->n_bytes &&
                      (map->n_bytes == 0 || memcmp(again.map.at, map->at, map->n_bytes) == 0)),
                 "kept as it was");
        dh_text_file_close(&again);
    }
    if (dh_path_exists(keep)) DH_CHECK(dh_dir_remove(&ctx, keep) == DH_OK, "%s", ctx.message);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static dh_dataset *open_data(const char *path, const dh_chat *chat, const char *cache)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds;
    const dh_dataset_spec spec = {.files = &path,
                                  .n_files = 1,
                                  .tokenizer = tokenizer(),
                                  .chat = chat,
                                  .cache_dir = cache,
                                  .order = DH_ORDER_SEQUENTIAL};
    if (dh_dataset_open(&ctx, &spec, &ds) == DH_OK) return ds;
    DH_CHECK(ctx.message[0], "a refusal says why");
    return NULL;
}

static uint64_t hash_of(const dh_dataset *ds)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t hash;
    DH_CHECK(dh_dataset_hash(&ctx, ds, &hash) == DH_OK, "%s", ctx.message);
    return hash;
}

static void check_same(const dh_dataset *ds, dh_dataset *other)
{
    DH_CHECK(!ds == !other, "only one is read");
    if (ds)
        DH_CHECK(dh_dataset_tokens(ds) == dh_dataset_tokens(other) && hash_of(ds) == hash_of(other),
                 "%lld tokens, and %lld", (long long)dh_dataset_tokens(ds),
                 (long long)dh_dataset_tokens(other));
    dh_dataset_close(other);
}

static void check_rows(dh_dataset *ds)
{
    dh_ctx ctx = DH_CTX_INIT;
    int32_t tokens[ROW], targets[ROW], positions[ROW];
    int64_t documents[ROW];
    const dh_dataset_row row = {tokens, targets, positions, documents};
    const int32_t n_tokens = (int32_t)dh_tokenizer_vocab_size(tokenizer());
    if (dh_dataset_pack_chats(&ctx, ds, ROW, false) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return;
    }
    const int64_t n_rows = dh_dataset_windows(ds, ROW);
    for (int64_t i = 0; i < n_rows; i++) {
        DH_CHECK(dh_dataset_packed_row(&ctx, ds, i, &row) == DH_OK, "%s", ctx.message);
        for (int t = 0; t < ROW; t++)
            DH_CHECK(tokens[t] >= 0 && tokens[t] < n_tokens && targets[t] >= -1 &&
                         targets[t] < n_tokens && positions[t] >= 0 && positions[t] < ROW,
                     "token %d, target %d of row %lld", tokens[t], targets[t], (long long)i);
    }
}

static void read_tokens(const char *path, const char *inner, const dh_map *map, const dh_chat *chat)
{
    dh_ctx ctx = DH_CTX_INIT;
    char cache[LONGEST_PATH];
    in_folder("cache", cache);
    const char *plain = fuzz_put(1, inner, map->at, map->n_bytes);
    dh_dataset *ds = open_data(path, chat, NULL);
    if (!is_twice(map)) check_same(ds, open_data(plain, chat, NULL));
    check_same(ds, open_data(path, chat, cache)); /* made */
    check_same(ds, open_data(path, chat, cache)); /* found */
    if (ds && chat) check_rows(ds);
    dh_dataset_close(ds);
    unlink(plain);
    if (dh_path_exists(cache)) DH_CHECK(dh_dir_remove(&ctx, cache) == DH_OK, "%s", ctx.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_text_file file;
    const dh_map *map = &file.map;
    if (size == 0) return 0;
    dh_log_set_level(DH_LOG_ERROR); /* half a surrogate pair is worth a warning */
    const unsigned kind = data[0] % DH_COUNTOF(files);
    const dh_chat *chat =
        files[kind].chats ? template_of(data[0] / (unsigned)DH_COUNTOF(files)) : NULL;
    const char *path = fuzz_put(0, files[kind].name, data + 1, size - 1);
    const bool accepted = unpack(path, NULL, &file);
    if (!accepted || map->n_bytes <= MOST_UNPACKED) { /* else minutes for what a few bytes say */
        check_kept(path, map, accepted);
        if (accepted) read_tokens(path, files[kind].inner, map, chat);
    }
    dh_text_file_close(&file);
    unlink(path);
    return 0;
}
