/* A rank's share of a run's state in a checkpoint: runs of elements of its parameters that no
 * other rank writes. Of state that the distributed optimizer shards it is the rank's shard. Of
 * state that several ranks hold each writes an equal part. Nothing has to be gathered, and the
 * shares of all ranks together are one copy of the state. */
#ifndef DH_TRAIN_SHARE_H
#define DH_TRAIN_SHARE_H

#include "train/session.h"

typedef struct dh_share_run {
    uint32_t param;
    dh_buffer_kind kind; /* MASTER, ADAM_M or ADAM_V */
    int64_t first, n;    /* elements of the parameter, float32 */
    uint64_t at;         /* place of the first element in the slab */
} dh_share_run;
typedef DH_VEC(dh_share_run) dh_share;

/* The rank's share, whose program it is: that of every kind. Caller frees with dh_vec_fini.
 * in        has: by rank, which ones there are to share with, itself among them; NULL: all
 * errors    DH_ENOMEM */
dh_status dh_share_find(dh_ctx *ctx, const dh_program *program, const bool *has, dh_share *share);
/* Whether the shares of the ranks in `has` together hold all state of the program's rank. This rank
 * need not be in `has`.
 *
 * errors    DH_EMISSING: the missing part, for a message: "rank 3 alone had ..." */
dh_status dh_share_check(dh_ctx *ctx, const dh_program *program, const bool *has);
uint64_t dh_share_bytes(const dh_share *share);
/* Into copy [dh_share_bytes], run by run. */
dh_status dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share, float *copy);
/* Writes the runs of one kind into the tensors PREFIX + Hugging Face name of a file that was
 * declared and started. The source is a copy, or the slab where that is NULL. Any thread: with a
 * copy only constant parts of the session are read. */
dh_status dh_share_store(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                         const float *copy, dh_st_writer *writer, const char *prefix,
                         dh_buffer_kind kind);

#endif
