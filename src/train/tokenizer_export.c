/* Further files that Transformers needs to make the same ids of a text. They are:
 *   - tokenizer_config.json, with the class and the tokens that begin and end a text;
 *   - files under the names that Transformers looks for;
 *   - tokenizer.json, for tokenizers of bytes and characters.
 * Existing files stay as they are. */
#include <string.h>

#include "base/stop.h"
#include "data/save.h"
#include "train/trained.h"

typedef struct export_dir {
    const char *path;
    size_t n_files;
    bool failed; /* it could not be looked into: what was made of it does not count */
} export_dir;

static bool holds(export_dir *dir, const char *name)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/%s", dir->path, name);
    dir->failed = dir->failed || path.failed;
    const bool there = !path.failed && dh_path_exists(path.text);
    dh_str_fini(&path);
    return there;
}

static dh_status add_config(dh_ctx *ctx, export_dir *dir, const dh_tokenizer *tok,
                            const char *class_name)
{
    if (holds(dir, "tokenizer_config.json")) return DH_OK;
    DH_TRY(dh_save_config_of(ctx, tok, class_name, dir->path));
    dir->n_files++;
    return DH_OK;
}

/* GPT-2's own names, which Transformers does not look for. */
static dh_status rename_gpt2(dh_ctx *ctx, export_dir *dir)
{
    static const char *const names[][2] = {{"encoder.json", "vocab.json"},
                                           {"vocab.bpe", "merges.txt"}};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (holds(dir, names[i][0]) && !holds(dir, names[i][1]))
            DH_TRY(dh_file_copy_as(ctx, dir->path, names[i][0], dir->path, names[i][1],
                                   &dir->n_files));
    return DH_OK;
}

/* Transformers would derive merges from a tokenizer.model alone, in another order than scores. */
static dh_status add_merges_of_spm(dh_ctx *ctx, export_dir *dir, const dh_tokenizer *tok,
                                   bool *added)
{
    dh_ctx refused = DH_CTX_INIT;
    const dh_status st = dh_save_spm_tokenizer(&refused, tok, dir->path);
    *added = st == DH_OK;
    dir->n_files += *added;
    return st == DH_OK || st == DH_EUNSUPPORTED ? DH_OK : dh_fail(ctx, st, "%s", refused.message);
}

/* The files that are there, in the order in which Transformers prefers them. */
static dh_status complete(dh_ctx *ctx, export_dir *dir, const dh_tokenizer *tok, bool *reads)
{
    const char *kind = dh_tokenizer_kind(tok);
    *reads = true;
    if (holds(dir, "tokenizer.json")) return add_config(ctx, dir, tok, DH_FAST_TOKENIZER);
    if (strcmp(kind, "bytes") == 0 || strcmp(kind, "chars") == 0) {
        DH_TRY(dh_save_plain_tokenizer(ctx, tok, dir->path));
        dir->n_files += 2;
        return DH_OK;
    }
    DH_TRY(rename_gpt2(ctx, dir));
    if (holds(dir, "vocab.json")) return add_config(ctx, dir, tok, "GPT2Tokenizer");
    bool added;
    DH_TRY(add_merges_of_spm(ctx, dir, tok, &added));
    if (added) return add_config(ctx, dir, tok, DH_FAST_TOKENIZER);
    if (holds(dir, "tokenizer.model") && strcmp(kind, "unigram") != 0)
        return add_config(ctx, dir, tok, "LlamaTokenizer");
    if (holds(dir, "vocab.txt")) return add_config(ctx, dir, tok, "BertTokenizer");
    *reads = false;
    return DH_OK;
}

/* Files that are not read here, though Transformers may. */
static bool of_another_kind(dh_status st)
{
    return st == DH_EUNSUPPORTED || st == DH_EFORMAT || st == DH_EINVAL;
}

dh_status dh_tokenizer_for_transformers(dh_ctx *ctx, const char *spec, const char *to_dir,
                                        size_t *n_files, bool *reads)
{
    dh_tokenizer *tok = NULL;
    dh_ctx unread = dh_ctx_like(ctx);
    export_dir dir = {.path = to_dir};
    dh_status st = dh_tokenizer_load(&unread, spec, &tok);
    if (st == DH_OK) {
        st = complete(ctx, &dir, tok, reads);
        dh_tokenizer_destroy(tok);
    } else if (of_another_kind(st)) {
        *reads = holds(&dir, "tokenizer.json") || holds(&dir, "tokenizer_config.json");
        st = DH_OK;
    } else {
        dh_fail(ctx, st, "%s", unread.message);
    }
    if (st == DH_OK && dir.failed) st = dh_no_memory(ctx);
    *n_files += dir.n_files;
    return st;
}
