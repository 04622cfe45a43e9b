/* Checkpoints of a run: folders RUN/checkpoints/step-000123 that appear complete or
 * not at all.
 *
 * A checkpoint is written into a temporary folder next to the others, in four steps:
 *   1. Files of any kind are written (safetensors for weights and moments, state.json). Each is put
 *      on the disk by fsync.
 *   2. manifest.json is written, with every file's size and XXH3-128 checksum.
 *   3. The folder is synced, and renamed to its name.
 *   4. The parent folder is synced.
 * A killed process, a full disk or a power cut therefore leaves the earlier checkpoints as they
 * were. After a power cut the new one is there completely or not at all.
 *
 * Under a limit on file sizes the process must ignore SIGXFSZ. Otherwise the signal kills it, and
 * it gets no error.
 *
 * RUN/saved.json names the newest checkpoint. It lies outside of RUN/checkpoints: if that folder is
 * gone, it tells a run that had checkpoints from one that never had any. Several ranks may write
 * files of one checkpoint; one rank begins and commits it. */
#ifndef DH_WEIGHTS_CHECKPOINT_H
#define DH_WEIGHTS_CHECKPOINT_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DH_CKPT_HASH_TEXT 33 /* 32 hexadecimal digits and the terminator */
#define DH_CKPT_NAME_MAX 128

/* One file: plain data, fit for gathering between ranks. */
typedef struct dh_ckpt_file {
    char name[DH_CKPT_NAME_MAX]; /* within the folder; letters, digits, '.', '_', '-' */
    int64_t n_bytes;
    char xxh3_128[DH_CKPT_HASH_TEXT]; /* lower-case hexadecimal, high word first */
} dh_ckpt_file;

/* A setting by name, and its value as it is printed. Of a long value the first bytes, its length
 * and its hash: texts are equal where the whole values are. */
typedef struct dh_ckpt_setting {
    char name[80], value[160];
} dh_ckpt_setting;
enum { DH_CKPT_MAX_SETTINGS = 96 };
/* errors    DH_EUNSUPPORTED the name is too long */
dh_status dh_ckpt_setting_make(dh_ctx *ctx, dh_ckpt_setting *s, const char *name, size_t n_name,
                               const char *value, size_t n_value);
/* Whether a checkpoint's value is the one of now. cut: it is of a version that kept only the start
 * of long values, which is equal. */
bool dh_ckpt_same_value(const dh_ckpt_setting *then, const dh_ckpt_setting *now, bool *cut);
/* For checkpoints of adapters: the setting that names their weights, and the prefix of the hash
 * in its value. */
#define DH_BASE_SETTING "train.init_from"
#define DH_BASE_VALUE "weights with hash "

/* Where the run stands; stored as state.json. */
typedef struct dh_ckpt_state {
    int64_t step;        /* optimizer steps done */
    int64_t next_sample; /* index of the first training sample not yet used */
    uint64_t seed;
    char job_fingerprint[DH_CKPT_HASH_TEXT]; /* hash of settings that must not change on resuming */
    char tokenizer_fingerprint[DH_CKPT_HASH_TEXT];
    char version[32];                               /* version of the program that wrote it */
    dh_ckpt_setting settings[DH_CKPT_MAX_SETTINGS]; /* settings that must not change, by name */
    size_t n_settings;                              /* 0: of a version without them */
    int64_t n_ranks, n_threads; /* of each rank, which its bits depend on; 0: not known */
    int64_t decay_steps;        /* where the learning rate's curve was to end; 0: not known */
    double lr;                  /* learning rate of the step that follows; below 0: not known */
    int64_t from_text;          /* 1: the tokenizer made the ids; 0: ready tokens, or not known */
} dh_ckpt_state;

/* Steps whose checkpoints this process wrote, or proved by their checksums. */
typedef DH_VEC(int64_t) dh_ckpt_steps;

/* XXH3-128 of bytes as text: fingerprints. */
void dh_ckpt_fingerprint(const void *data, size_t n_bytes, char text[DH_CKPT_HASH_TEXT]);

/* ---- writing ------------------------------------------------------------------------- */

typedef struct dh_ckpt_writer dh_ckpt_writer;

/* Remove what dead processes left under RUN/checkpoints (temporary folders whose makers are
 * gone), as dh_ckpt_begin does. Logs what it cannot remove. */
void dh_ckpt_clean(const char *run_dir);
/* Remove RUN/checkpoints where it is empty. */
void dh_ckpt_drop_empty(const char *run_dir);

/* Start a checkpoint: clean, create the temporary folder.
 * out       caller calls dh_ckpt_destroy, committed or not
 * errors    DH_EIO, disk full included; DH_EINVAL negative step */
dh_status dh_ckpt_begin(dh_ctx *ctx, const char *run_dir, int64_t step, dh_ckpt_writer **out);
/* The folder being written; any rank puts its files there. */
const char *dh_ckpt_folder(const dh_ckpt_writer *c);
/* Sync FOLDER/NAME and measure it. Any rank, any process; in the end `file` goes to
 * the committing rank's dh_ckpt_add_file. Every file is sealed once, after its last
 * writer.
 * cost      reads the file */
dh_status dh_ckpt_seal_file(dh_ctx *ctx, const char *folder, const char *name, dh_ckpt_file *file);
/* The checkpoint consists of the files added.
 * errors    DH_EINVAL a bad name, a name twice, or a file that was not sealed; DH_ENOMEM */
dh_status dh_ckpt_add_file(dh_ctx *ctx, dh_ckpt_writer *c, const dh_ckpt_file *file);
/* Write, seal and add a small file. */
dh_status dh_ckpt_put_file(dh_ctx *ctx, dh_ckpt_writer *c, const char *name, const void *data,
                           size_t n_bytes);
/* Take the space of a file of so many bytes, to see whether it is there; nothing is added.
 * errors    DH_EIO: no such space, named with what is free */
dh_status dh_ckpt_reserve(dh_ctx *ctx, const dh_ckpt_writer *c, const char *name, int64_t n_bytes);
/* Write, seal and add state.json; required. state->step must be the step begun. */
dh_status dh_ckpt_put_state(dh_ctx *ctx, dh_ckpt_writer *c, const dh_ckpt_state *state);
/* Commits a checkpoint: checks that every added file is there in its size, writes the manifest, and
 * makes the checkpoint appear, replacing one of the same step. Then it removes the oldest ones
 * until `keep` intact ones are left, never this one. A checkpoint that is not among `proved` is
 * verified once before it counts; a damaged one is set aside. Failures to remove old ones are only
 * logged.
 * in        keep: below 1 keeps all
 *           proved: steps known to be intact, which is extended; NULL: none is known */
dh_status dh_ckpt_commit(dh_ctx *ctx, dh_ckpt_writer *c, int64_t keep, dh_ckpt_steps *proved);
/* Renames RUN/checkpoints/step-N to suspect-N, which does not count as a checkpoint. Nothing
 * happens unless N is the newest and there is an older one.
 * errors    DH_EIO, DH_ENOMEM */
dh_status dh_ckpt_set_aside(dh_ctx *ctx, const char *run_dir, int64_t step);
/* Renames checkpoints after `step`, which were passed over as damaged, to damaged-N. These do
 * not count as checkpoints and are never removed. Logs it, also where the one that saved.json
 * names is gone. */
dh_status dh_ckpt_leave_damaged(dh_ctx *ctx, const char *run_dir, int64_t step);
/* Frees; removes the temporary folder if there was no commit. */
void dh_ckpt_destroy(dh_ckpt_writer *c);

/* ---- reading ---------------------------------------------------------------------------- */

typedef struct dh_ckpt dh_ckpt;

/* The state of a checkpoint. Only `damaged` means that its files are bad; in other states it may be
 * whole. */
typedef enum dh_ckpt_condition {
    DH_CKPT_INTACT,
    DH_CKPT_DAMAGED,
    DH_CKPT_NEWER,     /* written by a later version of the program */
    DH_CKPT_FORBIDDEN, /* permission denied */
    DH_CKPT_UNREADABLE /* a read failed */
} dh_ckpt_condition;
/* By the status that opening it gave. */
dh_ckpt_condition dh_ckpt_condition_of(dh_status st);
/* "damaged", to follow "is". */
const char *dh_ckpt_condition_name(dh_ckpt_condition condition);

/* Opens a checkpoint. Manifest and sizes are always verified, checksums with `checksums`. Until it
 * is closed, a run that is under way does not remove it (where the file system has locks).
 * in        where: a checkpoint folder, a run folder (its newest intact checkpoint), or "latest"
 *           (that of run_dir; otherwise run_dir is unused and may be NULL)
 * out       caller closes with dh_ckpt_close
 * errors    DH_EMISSING no checkpoint; DH_EFORMAT damaged: names the file, what it is
 *           and what it should be; DH_EUNSUPPORTED newer; DH_EPERM; DH_EIO */
dh_status dh_ckpt_open(dh_ctx *ctx, const char *run_dir, const char *where, bool checksums,
                       dh_ckpt **out);
/* Steps of a run's checkpoints, newest first, whatever is in them; caller frees *steps.
 * errors    DH_EPERM, DH_EIO: they cannot be listed; DH_ENOMEM */
dh_status dh_ckpt_list(dh_ctx *ctx, const char *run_dir, int64_t **steps, size_t *n);
/* The checkpoint of a step.
 * errors    those of dh_ckpt_open. DH_EMISSING: it was removed meanwhile */
dh_status dh_ckpt_open_step(dh_ctx *ctx, const char *run_dir, int64_t step, bool checksums,
                            dh_ckpt **out);
/* The newest intact checkpoint of a run, by step. Damaged ones are passed over with a warning each.
 * One that may be whole and cannot be read is an error.
 * errors    DH_EMISSING there never was one; DH_EFORMAT none is intact, or there were some and all
 *           are gone (it names the evidence); DH_EUNSUPPORTED, DH_EPERM, DH_EIO of the one that
 *           cannot be read */
dh_status dh_ckpt_find_latest(dh_ctx *ctx, const char *run_dir, bool checksums, dh_ckpt **out);
/* Of a run without checkpoints: whether there never was one.
 * errors    DH_EFORMAT there was one (it names the evidence) */
dh_status dh_ckpt_check_none(dh_ctx *ctx, const char *run_dir);
void dh_ckpt_close(dh_ckpt *c);

const char *dh_ckpt_path(const dh_ckpt *c); /* the folder */
const dh_ckpt_state *dh_ckpt_get_state(const dh_ckpt *c);
size_t dh_ckpt_n_files(const dh_ckpt *c);
const dh_ckpt_file *dh_ckpt_file_at(const dh_ckpt *c, size_t i);
bool dh_ckpt_has_file(const dh_ckpt *c, const char *name);

#ifdef __cplusplus
}
#endif
#endif
