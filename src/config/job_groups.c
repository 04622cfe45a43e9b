/* Entries of switch.groups: "1024 dp=4; 8192 cp=2 tp=2" (groups.h). */
#include "config/groups.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "config/settings.h"

#define LL(x) ((long long)(x))
#define BLANKS " \t\n,"

/* The words of an entry, and their settings. */
static const struct {
    const char *word, *key;
    bool degree;
} words[] = {
    {"dp", "parallel.dp", true},
    {"tp", "parallel.tp", true},
    {"pp", "parallel.pp", true},
    {"cp", "parallel.cp", true},
    {"schedule", "parallel.schedule", false},
    {"virtual_stages", "parallel.virtual_stages", false},
    {"layer_split", "parallel.layer_split", false},
    {"zero", "parallel.zero", false},
    {"sequence", "parallel.sequence", false},
    {"bucket_mb", "parallel.bucket_mb", false},
    {"strategy", "strategy", false},
    {"recompute", "train.recompute", false},
    {"micro_batch", "train.micro_batch", false},
};

/* ---- entries --------------------------------------------------------------------------------- */

size_t dh_job_n_groups(const dh_job *job)
{
    size_t n = 0;
    for (const char *at = job->switch_groups; at && *at; n++) {
        at += strcspn(at, ";");
        at += *at == ';';
    }
    return n;
}

/* In the job's arena, without blanks before it. */
static char *entry_at(const dh_job *job, size_t group)
{
    const char *at = job->switch_groups;
    for (size_t i = 0; i < group; i++) at += strcspn(at, ";") + 1;
    at += strspn(at, BLANKS);
    return dh_arena_printf(job->arena, "%.*s", (int)strcspn(at, ";"), at);
}

/* The result of one entry, word by word. */
typedef struct reading {
    dh_job *of;
    const char *entry;
    int64_t max_len, micro_batch, micro_batches; /* 0: not said */
    bool degrees;
} reading;

static dh_status reject(dh_ctx *ctx, const reading *r, const char *word)
{
    dh_str all = DH_STR_INIT;
    for (size_t i = 0; i < DH_COUNTOF(words); i++) dh_str_printf(&all, " %s=", words[i].word);
    dh_fail(ctx, DH_EINVAL,
            "switch.groups: \"%s\" in \"%s\" is not right: an entry is the most tokens a document "
            "of the group has, then any of micro_batches=%s, as \"8192 cp=2 tp=2\"",
            word, r->entry, all.text ? all.text : "");
    dh_str_fini(&all);
    return DH_EINVAL;
}

/* As if only the group's degrees had been given. */
static void forget_degrees(dh_job *job)
{
    job->tp = job->pp = job->cp = job->ep = job->vpp = 1;
    job->dp = 0;
    job->layer_split = dh_arena_strdup(job->arena, "");
}

static dh_status read_word(dh_ctx *ctx, reading *r, char *word)
{
    char *equals = strchr(word, '=');
    if (!equals) return reject(ctx, r, word);
    *equals = '\0';
    if (strcmp(word, "micro_batches") == 0) {
        if (dh_setting_whole(equals + 1, &r->micro_batches) && r->micro_batches > 0) return DH_OK;
        *equals = '=';
        return reject(ctx, r, word);
    }
    for (size_t i = 0; i < DH_COUNTOF(words); i++) {
        if (strcmp(words[i].word, word) != 0) continue;
        if (words[i].degree && !r->degrees) forget_degrees(r->of);
        r->degrees |= words[i].degree;
        if (!r->of->layer_split) return dh_no_memory(ctx);
        DH_TRY(dh_job_set(ctx, r->of, words[i].key, equals + 1));
        if (strcmp(word, "micro_batch") == 0) r->micro_batch = r->of->micro_batch;
        return DH_OK;
    }
    *equals = '=';
    return reject(ctx, r, word);
}

static dh_status read_entry(dh_ctx *ctx, reading *r)
{
    char *text = dh_arena_strdup(r->of->arena, r->entry), *rest = NULL;
    if (!text) return dh_no_memory(ctx);
    char *word = strtok_r(text, BLANKS, &rest);
    if (!word || !dh_setting_whole(word, &r->max_len) || r->max_len < 1)
        return reject(ctx, r, word ? word : "");
    while ((word = strtok_r(NULL, BLANKS, &rest))) DH_TRY(read_word(ctx, r, word));
    return DH_OK;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static dh_status complete(dh_ctx *ctx, const reading *r)
{
    dh_job *of = r->of;
    DH_TRY(dh_job_derive_ranks(ctx, of));
    of->seq_len = r->max_len;
    of->micro_batch = r->micro_batch ? r->micro_batch : 1;
    of->global_batch = of->dp * of->micro_batch * (r->micro_batches ? r->micro_batches : of->pp);
    return dh_job_check(ctx, of);
}

dh_status dh_job_group(dh_ctx *ctx, const dh_job *job, size_t group, dh_job *of)
{
    *of = *job;
    of->derived = (dh_job_derived){.stale = false}; /* all is given from here on */
    of->packing = DH_PACKING_PACK;
    of->zero = DH_MIN(job->zero, 1); /* shards of gradients and parameters are at home alone */
    of->fuse = DH_FUSE_OFF;          /* the layout of parallel.* alone has an optimizer */
    of->switch_groups = dh_arena_strdup(job->arena, "");
    reading r = {.of = of, .entry = entry_at(job, group)};
    if (!r.entry || !of->switch_groups) return dh_no_memory(ctx);
    DH_TRY(read_entry(ctx, &r));
    const dh_status st = complete(ctx, &r);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "in \"%s\" of switch.groups", r.entry);
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Groups keep whole gradients, which lie where one program of a step leaves and another expects
 * them. */
static dh_status check_zero(dh_ctx *ctx, const dh_job *of)
{
    if (of->zero <= 1) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "parallel.zero %lld of a group with data.packing group: gradients do not stay "
                   "between two programs of a step; 0 or 1 would be right, and more in parallel.* "
                   "alone",
                   LL(of->zero));
}

/* Each rank has the gradient of its own query heads until they are summed, and what moves between
 * meshes is one rank's. */
static dh_status check_heads(dh_ctx *ctx, const dh_job *job, const char *where)
{
    if (job->model.n_kv_heads == 0 || job->model.n_kv_heads >= job->tp) return DH_OK;
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "parallel.tp %lld%s with data.packing group: ranks would share the %lld heads of "
        "keys and values, whose gradients do not move between meshes; parallel.tp %lld "
        "would be right",
        LL(job->tp), where, LL(job->model.n_kv_heads), LL(job->model.n_kv_heads));
}

static dh_status check_each(dh_ctx *ctx, const dh_job *job, size_t n)
{
    int64_t before = 0;
    for (size_t i = 0; i < n; i++) {
        dh_job of;
        DH_TRY(dh_job_group(ctx, job, i, &of));
        DH_TRY(check_zero(ctx, &of));
        DH_TRY(check_heads(ctx, &of, " of a group"));
        if (of.seq_len <= before)
            return dh_fail(ctx, DH_EINVAL,
                           "switch.groups: lengths must rise, but %lld comes after %lld",
                           LL(of.seq_len), LL(before));
        before = of.seq_len;
    }
    if (before == job->seq_len) return DH_OK;
    return dh_fail(ctx, DH_EINVAL,
                   "the last of switch.groups has documents of %lld tokens, but train.seq_len is "
                   "%lld: the last group must have length train.seq_len",
                   LL(before), LL(job->seq_len));
}

/* Check a job's other settings, with which groups may not go. */
static dh_status check_others(dh_ctx *ctx, const dh_job *job)
{
    if (job->elastic_action == DH_ELASTIC_CONTINUE)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "elastic.action continue with data.packing group: switch.groups names no "
                       "meshes for fewer ranks; stop would be right");
    if (job->trace_step > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "trace.step with data.packing group: a trace is that of one program, and a "
                       "step that switches meshes has several; 0 would be right");
    if (job->post_validation)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "optimizer.post_validation with data.packing group: gradients of all groups "
                       "are there before the optimizer begins; false would be right");
    if (dh_fuse_pieces(job->fuse) > 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "optimizer.fuse with data.packing group: gradients of all groups are there "
                       "before the optimizer begins; off would be right");
    if (job->gradient_sync == DH_GRADIENT_SYNC_EVERY)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "parallel.gradient_sync every with data.packing group: the home gets gradients "
            "of whole groups; last would be right");
    if (job->grad_dtype != DH_GRAD_DTYPE_FLOAT32)
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "parallel.grad_dtype compute with data.packing group: gradients move between meshes "
            "in float32; float32 would be right");
    if (job->gather == DH_GATHER_FORWARD)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "parallel.gather forward with data.packing group: parameters move from "
                       "where the optimizer leaves them; optimizer would be right");
    return DH_OK;
}

dh_status dh_job_check_groups(dh_ctx *ctx, const dh_job *job)
{
    const size_t n = dh_job_n_groups(job);
    if (job->packing != DH_PACKING_GROUP) {
        if (n == 0) return DH_OK;
        return dh_fail(ctx, DH_EINVAL,
                       "switch.groups are for data.packing group: leave them out, or set that");
    }
    if (n == 0 || n > DH_MAX_SWITCH_GROUPS)
        return dh_fail(ctx, DH_EINVAL,
                       "data.packing group takes 1 to %d entries in switch.groups, as "
                       "\"1024 dp=4; 8192 cp=2 tp=2\"; there are %zu",
                       DH_MAX_SWITCH_GROUPS, n);
    DH_TRY(check_heads(ctx, job, ""));
    DH_TRY(check_others(ctx, job));
    return check_each(ctx, job, n);
}
