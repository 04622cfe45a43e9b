/* Making checkpoints of a run: the steps of one (snapshot.c), taken by the training rank or by a
 * thread of its own (saving.c). */
#ifndef DH_TRAIN_SAVING_H
#define DH_TRAIN_SAVING_H

#include <pthread.h>
#include <stdatomic.h>

#include "dhelix/train.h"
#include "train/share.h"
#include "weights/checkpoint.h"

typedef struct dh_run dh_run;

/* ---- snapshot.c: one checkpoint, as one rank makes it ---------------------------------------- */

enum { DH_SAVE_FILES = 2, DH_SAVE_SECTIONS = 3 };

/* The part of the state in each file, and its names. */
typedef struct dh_save_section {
    size_t file; /* weights; moments */
    const char *prefix;
    dh_buffer_kind kind;
} dh_save_section;
extern const dh_save_section dh_save_sections[DH_SAVE_SECTIONS];
/* Declares a section's tensors. */
dh_status dh_save_declare(dh_ctx *ctx, const dh_model *model, const dh_save_section *section,
                          dh_st_writer *writer);

/* Zeroed: none. Its values are those of its step, while the run continues. */
typedef struct dh_save {
    int64_t step;
    char folder[DH_RUN_PATH_BYTES];
    dh_st_writer *files[DH_SAVE_FILES];
    /* on rank 0 */
    dh_ckpt_steps *proved; /* the run's */
    dh_ckpt_writer *ckpt;
    dh_ckpt_state state;
    char *config, *adapter, *spikes; /* NULL: there are no adapters, spikes are not watched */
} dh_save;

/* Between two steps, every rank: notes what the checkpoint says beside weights and moments, and
 * makes the folder that it will be in. Caller ends it with dh_save_end, whatever comes. */
dh_status dh_save_begin(dh_ctx *ctx, dh_run *run, dh_save *save);
/* Creates the files on rank 0, at their full size; on the others, which come later, joins them. */
dh_status dh_save_open(dh_ctx *ctx, const dh_run *run, dh_save *save);
/* This rank's share, synced. copy: as dh_share_store has it. */
dh_status dh_save_put(dh_ctx *ctx, const dh_run *run, dh_save *save, const dh_share *share,
                      const float *copy);
/* On rank 0, once all shares are there: the checkpoint appears, the metrics up to its step synced
 * before; old ones go. */
dh_status dh_save_seal(dh_ctx *ctx, const dh_run *run, dh_save *save);
/* Removes what was not sealed. */
void dh_save_end(dh_save *save);

/* ---- saving.c: beside training --------------------------------------------------------------- */

/* State of the checkpoint under way, shared by the writing threads of a process's ranks. It uses no
 * communicator, so a rank that fails meanwhile does not keep the others from completing it. */
typedef struct dh_save_board {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int64_t n_begun;   /* checkpoints so far; what follows is of the last */
    bool created;      /* rank 0 has made the files */
    int64_t n_written; /* shares that are there */
    bool failed;       /* a share never will be */
} dh_save_board;
void dh_save_board_init(dh_save_board *board);
void dh_save_board_fini(dh_save_board *board);

/* A rank's threads that write. */
typedef struct dh_saver {
    dh_save_board *board; /* the process's; NULL: ranks write between steps */
    bool apart;           /* the ranks are in several processes */
    pthread_t threads[2]; /* one writes, one copies */
    int n_threads;        /* that were started */
    dh_share share;
    float *copy; /* of the share */
    uint64_t copy_bytes;
    /* of the rank: */
    bool under_way; /* a checkpoint that it has not seen the end of */
    bool told;      /* its thread's failure ends the run */
    int64_t n_saves, stall_ns;
    atomic_bool copying; /* a thread reads what the next update of the session writes */
    /* guarded by the board's lock: */
    int64_t n_taken; /* the board's n_begun when it was last given something to write */
    bool busy, written, quit;
    int n_held; /* threads that wait for the copy */
    int64_t held_from_ns, held_ns;
    /* the threads' while they are busy, the copying one's first; else the rank's: */
    dh_save save;
    dh_ctx ctx;
} dh_saver;

/* Bytes that a copy of a rank's share takes, whose training program it is. */
dh_status dh_saver_bytes(dh_ctx *ctx, const dh_program *program, uint64_t *n_bytes);
/* Prepares checkpoint.async; does nothing without it. Every rank calls.
 * errors    DH_ENOMEM: also where the machine has no room for the ranks' copies */
dh_status dh_saver_open(dh_ctx *ctx, dh_run *run);
/* Before the session goes: lets a checkpoint under way be completed if all shares come to be
 * there, which they do without the ranks' help where these are threads. */
void dh_saver_close(dh_run *run);

/* ---- for the training loop; every rank calls ------------------------------------------------- */

/* A checkpoint of the run as it is; with checkpoint.async its copy, once the one before is
 * complete: begun here, and through before anything is updated (dh_saver_hold). */
dh_status dh_run_save(dh_ctx *ctx, dh_run *run);
/* Before masters or moments change, on any thread of the rank: waits until the copy under way is
 * through; user: the dh_saver. */
void dh_saver_hold(void *user);
/* Mean time for which a checkpoint stopped the run, ns; after the last one. */
double dh_saver_stall_ns(const dh_saver *saver);
/* The checkpoint under way is complete. */
dh_status dh_run_finish_saving(dh_ctx *ctx, dh_run *run);
/* In each step: this rank's knowledge of the checkpoint under way, and the sums. The knowledge is
 * two values to be added up over all ranks. Check: a failure to write, if there was one. */
void dh_saver_tell(dh_run *run, double values[2]);
void dh_saver_hear(dh_run *run, const double values[2]);
dh_status dh_saver_check(dh_ctx *ctx, dh_run *run);

#endif
