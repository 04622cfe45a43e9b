/* Loading by specification: name, folder or file, recognised by content. */
#include "base/needs.h"
#include "base/stop.h"
#include "data/tok_json.h"
#include "data/unread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILE_BYTES ((size_t)1 << 30)
enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- one file ------------------------------------------------------------------------ */

static char *path_join(const char *folder, size_t n_folder, const char *name)
{
    dh_str path = DH_STR_INIT;
    dh_str_append(&path, folder, n_folder);
    if (n_folder && folder[n_folder - 1] != '/') dh_str_append(&path, "/", 1);
    dh_str_append(&path, name, strlen(name));
    if (!path.failed) return path.text;
    dh_str_fini(&path);
    return NULL;
}

/* A file of the folder that `path` lies in. */
static char *path_beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return path_join(path, slash ? (size_t)(slash - path) + 1 : 0, name);
}

static dh_status load_gpt2_pair(dh_ctx *ctx, const char *encoder, const char *merges,
                                dh_tokenizer **tok)
{
    char *e = NULL, *m = NULL;
    size_t n_e = 0, n_m = 0;
    dh_status st = dh_file_read(ctx, encoder, MAX_FILE_BYTES, &e, &n_e);
    if (st == DH_OK) st = dh_file_read(ctx, merges, MAX_FILE_BYTES, &m, &n_m);
    if (st == DH_OK) {
        st = dh_tokenizer_from_gpt2(ctx, e, n_e, m, n_m, tok);
        if (st != DH_OK) dh_ctx_while(ctx, "loading %s and %s", encoder, merges);
    }
    free(e);
    free(m);
    return st;
}

/* encoder.json or vocab.json alone: its merges lie beside it. */
static dh_status load_encoder(dh_ctx *ctx, const char *path, dh_tokenizer **tok)
{
    static const char *const names[] = {"vocab.bpe", "merges.txt"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        char *merges = path_beside(path, names[i]);
        if (!merges) return dh_no_memory_while(ctx, "loading %s", path);
        bool there = dh_path_exists(merges);
        dh_status st = there ? load_gpt2_pair(ctx, path, merges, tok) : DH_OK;
        free(merges);
        if (there) return st;
    }
    return dh_fail(ctx, DH_EMISSING,
                   "%s is a vocabulary without vocab.bpe or merges.txt next to it", path);
}

/* "bos_token": "text" or {"content": "text"}; null means none; absent changes nothing. */
static void apply_config_token(const dh_tokenizer *tok, const json_t *config, const char *key,
                               int32_t *id)
{
    const json_t *value = json_object_get(config, key);
    if (!value) return;
    if (json_is_object(value)) value = json_object_get(value, "content");
    *id = json_is_string(value) ? dh_tokenizer_special(tok, json_string_value(value)) : -1;
}

/* The tokenizer_config.json beside a file; NULL: there is none. */
static dh_status read_config(dh_ctx *ctx, const char *path, json_t **config)
{
    char *config_path = path_beside(path, "tokenizer_config.json");
    *config = NULL;
    if (!config_path) return dh_no_memory_while(ctx, "loading %s", path);
    dh_status st = DH_OK;
    char *text = NULL;
    size_t n = 0;
    if (dh_path_exists(config_path)) {
        st = dh_file_read(ctx, config_path, MAX_CONFIG_BYTES, &text, &n);
        if (st == DH_OK && (st = dh_json_parse(ctx, text, n, config)) != DH_OK)
            dh_ctx_while(ctx, "loading %s", config_path);
    }
    free(text);
    free(config_path);
    return st;
}

static void apply_config(dh_tokenizer *tok, const json_t *config)
{
    apply_config_token(tok, config, "bos_token", &tok->bos);
    apply_config_token(tok, config, "eos_token", &tok->eos);
    dh_tokenizer_seal(tok);
}

static dh_status load_hf(dh_ctx *ctx, const char *path, json_t *root, dh_tokenizer **tok)
{
    json_t *config;
    DH_TRY(read_config(ctx, path, &config));
    const dh_status st = dh_tokenizer_from_hf_root(ctx, root, tok);
    if (st == DH_OK && config) apply_config(*tok, config);
    json_decref(config);
    return st;
}

static dh_status load_wordpiece(dh_ctx *ctx, const char *path, const dh_map *map,
                                dh_tokenizer **tok)
{
    json_t *config;
    DH_TRY(read_config(ctx, path, &config));
    const dh_status st = dh_tokenizer_from_wordpiece(ctx, map->at, map->n_bytes, config, tok);
    if (st == DH_OK && config) apply_config(*tok, config);
    json_decref(config);
    return st;
}

static const char no_tokenizer[] =
    "no tokenizer: want tokenizer.json, encoder.json, a SentencePiece .model, llama2.c's "
    "tokenizer.bin, BERT's vocab.txt or a chars file";

/* Other JSON: a vocabulary, whose values are ids, or what it is instead. */
static dh_status load_plain_json(dh_ctx *ctx, const char *path, json_t *root, dh_tokenizer **tok)
{
    const json_t *piece = json_array_get(json_object_get(root, "vocab"), 0);
    const json_t *first = json_object_iter_value(json_object_iter(root));
    if (json_object_get(piece, "token_bytes"))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "this is Mistral's tekken.json, which is not read; take the tokenizer.json "
                       "of the same model");
    if (first && !json_is_number(first)) return dh_fail(ctx, DH_EFORMAT, "%s", no_tokenizer);
    return load_encoder(ctx, path, tok);
}

/* The keys at the top say what kind of JSON file it is. */
static dh_status load_json(dh_ctx *ctx, const char *path, const dh_map *map, dh_tokenizer **tok)
{
    json_t *root;
    DH_TRY(dh_json_parse(ctx, map->at, map->n_bytes, &root));
    dh_status st;
    if (json_object_get(root, "dhelix_tokenizer"))
        st = dh_tokenizer_from_chars_root(ctx, root, tok);
    else if (json_is_object(json_object_get(root, "model")))
        st = load_hf(ctx, path, root, tok);
    else
        st = load_plain_json(ctx, path, root, tok);
    json_decref(root);
    return st;
}

/* Tiktoken's: in each line bytes in base64, a space, their rank. */
static bool is_tiktoken(const dh_map *map)
{
    static const char base64[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    size_t n = 0, at;
    while (n < map->n_bytes && memchr(base64, map->at[n], sizeof base64 - 1)) n++;
    for (at = n + 1; at < map->n_bytes && map->at[at] >= '0' && map->at[at] <= '9';) at++;
    const bool ends = at >= map->n_bytes || map->at[at] == '\n' || map->at[at] == '\r';
    return n > 0 && n % 4 == 0 && n < map->n_bytes && map->at[n] == ' ' && at > n + 1 && ends;
}

/* JSON starts with a brace; tokenizer.bin with a small int32, so its bytes 2 and 3 are
 * zero; a SentencePiece model with its first piece: 0x0A, length, 0x0A, length. */
static dh_status load_mapped(dh_ctx *ctx, const char *path, const dh_map *map, dh_tokenizer **tok)
{
    if (map->n_bytes > MAX_FILE_BYTES)
        return dh_fail(ctx, DH_EINVAL, "%zu bytes; a tokenizer file has at most 1 GiB",
                       map->n_bytes);
    size_t at = 0;
    while (at < map->n_bytes && memchr(" \t\r\n", map->at[at], 4)) at++;
    if (at < map->n_bytes && map->at[at] == '{') return load_json(ctx, path, map, tok);
    if (map->n_bytes >= 4 && map->at[2] == 0 && map->at[3] == 0)
        return dh_tokenizer_from_llama2c(ctx, map->at, map->n_bytes, tok);
    if (map->n_bytes >= 4 && map->at[0] == 0x0A && map->at[2] == 0x0A)
        return dh_tokenizer_from_spm(ctx, map->at, map->n_bytes, tok);
    if (map->n_bytes >= 4 && memcmp(map->at, "GGUF", 4) == 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "GGUF is not read; take the tokenizer.json that it was made from");
    if (is_tiktoken(map))
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "this is a tiktoken file (bytes in base64 and a rank a line), which does not "
            "say how texts are split; take the tokenizer.json of the same model");
    if (strlen(path) >= 4 && strcmp(path + strlen(path) - 4, ".txt") == 0)
        return load_wordpiece(ctx, path, map, tok);
    return dh_fail(ctx, DH_EFORMAT, "%s", no_tokenizer);
}

static dh_status load_file(dh_ctx *ctx, const char *path, dh_tokenizer **tok)
{
    dh_map map;
    DH_TRY(dh_map_open(ctx, path, &map));
    dh_status st = load_mapped(ctx, path, &map, tok);
    dh_map_close(&map);
    if (st == DH_OK) (*tok)->path = strdup(path); /* without it a message is only shorter */
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "loading %s", path);
}

/* ---- a folder --------------------------------------------------------------------------- */

/* In order of preference; the next is tried when one is there but not supported. */
static const char *const folder_files[] = {"tokenizer.json",  "encoder.json",  "vocab.json",
                                           "tokenizer.model", "tokenizer.bin", "vocab.txt"};

/* A folder without any of these: why not, by the file that it has. */
static dh_status refuse_folder(dh_ctx *ctx, const char *folder, dh_tokenizer **tok)
{
    char name[DH_UNREAD_NAME];
    dh_unread_tokenizer_in(folder, name);
    if (!*name)
        return dh_fail(ctx, DH_EMISSING,
                       "%s holds no tokenizer.json, encoder.json, vocab.json, tokenizer.model, "
                       "tokenizer.bin or vocab.txt",
                       folder);
    char *path = path_join(folder, strlen(folder), name);
    if (!path) return dh_no_memory_while(ctx, "loading %s", folder);
    const dh_status st = load_file(ctx, path, tok);
    free(path);
    return st;
}

static dh_status load_folder(dh_ctx *ctx, const char *folder, dh_tokenizer **tok)
{
    dh_status st = DH_EMISSING;
    dh_ctx first = DH_CTX_INIT; /* why the first one found is not supported */
    for (size_t i = 0; i < DH_COUNTOF(folder_files); i++) {
        char *path = path_join(folder, strlen(folder), folder_files[i]);
        if (!path) return dh_no_memory_while(ctx, "loading %s", folder);
        dh_ctx attempt = dh_ctx_like(ctx);
        bool there = dh_path_exists(path);
        if (there) st = load_file(&attempt, path, tok);
        free(path);
        if (!there) continue;
        if (st == DH_OK) return DH_OK;
        if (first.status == DH_OK) first = attempt;
        if (st != DH_EUNSUPPORTED) return dh_fail(ctx, st, "%s", attempt.message);
    }
    if (first.status != DH_OK) return dh_fail(ctx, first.status, "%s", first.message);
    return refuse_folder(ctx, folder, tok);
}

static dh_status load_gpt2_folder(dh_ctx *ctx, const char *folder, dh_tokenizer **tok)
{
    static const char *const names[] = {"encoder.json", "vocab.json"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        char *path = path_join(folder, strlen(folder), names[i]);
        if (!path) return dh_no_memory_while(ctx, "loading %s", folder);
        bool there = dh_path_exists(path);
        dh_status st = there ? load_encoder(ctx, path, tok) : DH_OK;
        free(path);
        if (there) return st;
    }
    return dh_fail(ctx, DH_EMISSING, "\"%s\" holds neither encoder.json nor vocab.json", folder);
}

/* A folder that cannot be looked at is no file: that would be refused as one of another kind. */
static dh_status look_at(dh_ctx *ctx, const char *spec, bool *there, bool *folder)
{
    struct stat info;
    *there = stat(spec, &info) == 0;
    *folder = *there && S_ISDIR(info.st_mode);
    if (*there || errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) return DH_OK;
    return dh_fail(ctx, dh_status_of_errno(errno), "cannot stat %s: %s", spec, strerror(errno));
}

dh_status dh_tokenizer_load(dh_ctx *ctx, const char *spec, dh_tokenizer **tok)
{
    DH_NEEDS(ctx, spec);
    DH_NEEDS(ctx, tok);
    if (strcmp(spec, "bytes") == 0) return dh_tokenizer_bytes(ctx, tok);
    if (strncmp(spec, "gpt2:", 5) == 0) return load_gpt2_folder(ctx, spec + 5, tok);
    bool there, folder;
    DH_TRY(look_at(ctx, spec, &there, &folder));
    if (there) return folder ? load_folder(ctx, spec, tok) : load_file(ctx, spec, tok);
    if (strcmp(spec, "chars") == 0)
        return dh_fail(ctx, DH_EINVAL,
                       "tokenizer \"chars\" is built from a text; only a chars "
                       "file can be loaded");
    return dh_fail(ctx, DH_EMISSING,
                   "tokenizer \"%s\" is no file or folder; want bytes, gpt2:FOLDER or a path",
                   spec);
}
