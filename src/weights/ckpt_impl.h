/* Shared by writing and reading checkpoints: the manifest and the folders. */
#ifndef DHELIX_CKPT_IMPL_H
#define DHELIX_CKPT_IMPL_H

#include "weights/checkpoint.h"

#define CKPT_MANIFEST "manifest.json"
#define CKPT_STATE "state.json"
#define CKPT_RECORD "saved.json" /* in the run folder */

typedef struct ckpt_manifest {
    int64_t step;
    DH_VEC(dh_ckpt_file) files;
} ckpt_manifest;

void ckpt_manifest_fini(ckpt_manifest *m);
/* NULL when absent. */
const dh_ckpt_file *ckpt_manifest_find(const ckpt_manifest *m, const char *name);
/* A name that stays inside its folder and is not the manifest's. */
bool ckpt_name_ok(const char *name);
/* manifest.json's text (caller frees), with a checksum of its own content. */
dh_status ckpt_manifest_text(dh_ctx *ctx, const ckpt_manifest *m, char **text);
/* Read FOLDER/manifest.json; *m is initialised on DH_OK only. */
dh_status ckpt_manifest_read(dh_ctx *ctx, const char *folder, ckpt_manifest *m);
/* Every file there, in its size, and with its checksum when asked. */
dh_status ckpt_manifest_verify(dh_ctx *ctx, const char *folder, const ckpt_manifest *m,
                               bool checksums);
/* Size and checksum of a file; sync: fsync it before. */
dh_status ckpt_measure(dh_ctx *ctx, const char *folder, const char *name, bool sync,
                       dh_ckpt_file *file);

dh_status ckpt_state_text(dh_ctx *ctx, const dh_ckpt_state *state, char **text);
dh_status ckpt_state_read(dh_ctx *ctx, const char *folder, dh_ckpt_state *state);

/* Steps that have a folder step-N under `parent`, or a former one, newest first; caller frees
 * *steps. A missing parent has none. */
dh_status ckpt_list_steps(dh_ctx *ctx, const char *parent, int64_t **steps, size_t *n);
/* PARENT/former-N, where file systems that exchange no folders have step-N while it is replaced. It
 * counts as long as there is no step-N. false: out of memory */
bool ckpt_former_path(const char *parent, int64_t step, dh_str *path);
/* Puts former ones back whose step has no other, removes the rest of them, and what dead processes
 * left. */
void ckpt_clean(const char *parent);
/* An empty folder in `parent` whose place a checkpoint takes by rename before it is removed. */
dh_status ckpt_trash_create(dh_ctx *ctx, const char *parent, dh_temporary *trash);
/* Keep the newest `keep` intact checkpoints, this step counted and never removed. */
void ckpt_prune(const char *parent, int64_t step, int64_t keep, dh_ckpt_steps *proved);
/* PARENT/../saved.json names the step. */
dh_status ckpt_record_write(dh_ctx *ctx, const char *parent, int64_t step);
/* *there: whether it is; *step: -1 where it names none. */
dh_status ckpt_record_read(dh_ctx *ctx, const char *parent, bool *there, int64_t *step);

#endif
