/* A job may be meant for another machine, which has its data. What is not here is therefore said
 * and refused only by what reads it. */
#include "describe/missing.h"

#include <string.h>

#include "base/stop.h"
#include "data/expand.h"
#include "train/recipe.h"

static dh_status open_each(dh_ctx *ctx, char *const *names, size_t n)
{
    dh_path_list list = {{0}};
    dh_map map;
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n; i++) st = dh_data_expand(ctx, names[i], &list);
    for (size_t i = 0; st == DH_OK && i < list.paths.n; i++) {
        st = dh_map_open(ctx, list.paths.at[i], &map);
        if (st == DH_OK) dh_map_close(&map);
    }
    dh_path_list_fini(&list);
    return st;
}

/* Characters are those of the data. */
static dh_status open_tokenizer(dh_ctx *ctx, const dh_job *job)
{
    dh_tokenizer *tokenizer;
    if (strcmp(job->tokenizer, "chars") == 0) return DH_OK;
    DH_TRY(dh_train_tokenizer(ctx, job, &tokenizer));
    dh_tokenizer_destroy(tokenizer);
    return DH_OK;
}

static dh_status note(dh_ctx *ctx, const dh_ctx *tried, const char *setting, dh_missing *missing)
{
    if (tried->status == DH_OK) return DH_OK;
    if (tried->status == DH_ENOMEM || tried->status == DH_EINTERRUPTED)
        return dh_fail(ctx, tried->status, "%s", tried->message);
    dh_missing_file *file = &missing->at[missing->n++];
    file->setting = setting;
    file->status = tried->status;
    memcpy(file->message, tried->message, sizeof file->message);
    return DH_OK;
}

dh_status dh_missing_find(dh_ctx *ctx, const dh_job *job, dh_missing *missing)
{
    dh_ctx tokenizer = dh_ctx_like(ctx), train = dh_ctx_like(ctx), val = dh_ctx_like(ctx);
    missing->n = 0;
    (void)open_tokenizer(&tokenizer, job);
    DH_TRY(note(ctx, &tokenizer, "data.tokenizer", missing));
    if (open_each(&train, job->train_files, job->n_train_files) != DH_OK)
        dh_ctx_while(&train, "opening data.train");
    DH_TRY(note(ctx, &train, "data.train", missing));
    if (job->eval_every > 0) (void)open_each(&val, job->val_files, job->n_val_files);
    return note(ctx, &val, "data.val", missing);
}

json_t *dh_missing_json(const dh_missing *missing)
{
    json_t *list = json_array();
    for (size_t i = 0; i < missing->n; i++) {
        const dh_missing_file *file = &missing->at[i];
        json_array_append_new(list,
                              json_pack("{ss ss ss}", "setting", file->setting, "status",
                                        dh_status_name(file->status), "message", file->message));
    }
    return list;
}
