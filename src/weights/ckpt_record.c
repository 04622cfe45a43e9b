/* RUN/saved.json, and other files of a run folder that tell of checkpoints.
 *
 * A folder of checkpoints that is empty or gone says nothing: its volume may not be mounted, it may
 * have been renamed. The files beside it say whether the run ever had one. */
#include "ckpt_impl.h"

#include "base/json_text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_BYTES = 16 << 20 };

/* RUN/NAME of RUN/checkpoints. */
static dh_status beside(dh_ctx *ctx, const char *parent, const char *name, dh_str *path)
{
    const char *slash = strrchr(parent, '/');
    dh_str_printf(path, "%.*s/%s", (int)(slash - parent), parent, name);
    return path->failed ? dh_no_memory_while(ctx, "reading %s", name) : DH_OK;
}

/* ---- the record ----------------------------------------------------------------------------- */

dh_status ckpt_record_write(dh_ctx *ctx, const char *parent, int64_t step)
{
    char text[64];
    dh_str path = DH_STR_INIT;
    const int n = snprintf(text, sizeof text, "{\"step\": %lld}\n", (long long)step);
    dh_status st = beside(ctx, parent, CKPT_RECORD, &path);
    if (st == DH_OK) st = dh_file_write_atomic(ctx, path.text, text, (size_t)n);
    dh_str_fini(&path);
    return st;
}

/* RUN/NAME, NULL where there is no such file or no JSON in it. */
static dh_status read_json(dh_ctx *ctx, const char *parent, const char *name, bool *there,
                           json_t **root)
{
    char *text;
    size_t n;
    dh_str path = DH_STR_INIT;
    *root = NULL;
    dh_status st = beside(ctx, parent, name, &path);
    *there = st == DH_OK && dh_path_exists(path.text);
    if (*there) st = dh_file_read(ctx, path.text, MAX_BYTES, &text, &n);
    if (*there && st == DH_OK) {
        st = dh_json_read(ctx, text, n, 0, NULL, root);
        free(text);
    }
    dh_str_fini(&path);
    return st;
}

dh_status ckpt_record_read(dh_ctx *ctx, const char *parent, bool *there, int64_t *step)
{
    json_t *root;
    DH_TRY(read_json(ctx, parent, CKPT_RECORD, there, &root));
    const json_t *value = json_object_get(root, "step");
    *step = json_is_integer(value) ? json_integer_value(value) : -1;
    json_decref(root);
    return DH_OK;
}

/* ---- what speaks of checkpoints -------------------------------------------------------------- */

/* Whether an ended run's summary names its last checkpoint, as before there was the record. */
static dh_status summary_names_one(dh_ctx *ctx, const char *parent, bool *names)
{
    json_t *root;
    bool there;
    DH_TRY(read_json(ctx, parent, "summary.json", &there, &root));
    *names = json_string_length(json_object_get(root, "checkpoint")) > 0;
    json_decref(root);
    return DH_OK;
}

/* An entry of PARENT that was a checkpoint. */
static void tell_aside(const char *parent, dh_str *what)
{
    DIR *dir = opendir(parent);
    for (struct dirent *e; dir && !what->len && (e = readdir(dir));)
        if (strncmp(e->d_name, "suspect-", 8) == 0 || strncmp(e->d_name, "damaged-", 8) == 0)
            dh_str_printf(what, "%s was one", e->d_name);
    if (dir) closedir(dir);
}

static dh_status tell_evidence(dh_ctx *ctx, const char *parent, dh_str *what)
{
    int64_t step;
    bool recorded, named;
    struct stat link;
    DH_TRY(ckpt_record_read(ctx, parent, &recorded, &step));
    DH_TRY(summary_names_one(ctx, parent, &named));
    if (recorded && step >= 0)
        dh_str_printf(what, CKPT_RECORD " says that the one of step %lld was written",
                      (long long)step);
    else if (recorded || named)
        dh_str_printf(what, "%s says that there were some",
                      recorded ? CKPT_RECORD : "summary.json");
    else
        tell_aside(parent, what);
    if (!what->len && lstat(parent, &link) == 0 && !dh_path_exists(parent))
        dh_str_printf(what, "is a link to a place that is not there");
    return DH_OK;
}

static dh_status check_none(dh_ctx *ctx, const char *parent)
{
    dh_str what = DH_STR_INIT;
    dh_status st = tell_evidence(ctx, parent, &what);
    if (st == DH_OK && what.failed)
        st = dh_no_memory_while(ctx, "reading %s", parent);
    else if (st == DH_OK && what.len)
        st = dh_fail(ctx, DH_EFORMAT,
                     "%s holds no checkpoint, and %s: put them back (is a volume not mounted, a "
                     "folder renamed?)",
                     parent, what.text);
    dh_str_fini(&what);
    return st;
}

dh_status dh_ckpt_check_none(dh_ctx *ctx, const char *run_dir)
{
    dh_str parent = DH_STR_INIT;
    dh_str_printf(&parent, "%s/checkpoints", run_dir);
    const dh_status st = parent.failed ? dh_no_memory(ctx) : check_none(ctx, parent.text);
    dh_str_fini(&parent);
    return st;
}
