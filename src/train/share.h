/* What of a run's state a rank writes into a checkpoint: runs of elements of its parameters, none
 * of which another rank writes too. What the distributed optimizer shards is its shard; of what
 * ranks hold alike each writes an equal part. So nobody has to gather anything, and a copy of the
 * shares of all ranks is one copy of the state. */
#ifndef DH_TRAIN_SHARE_H
#define DH_TRAIN_SHARE_H

#include "train/session.h"

typedef struct dh_share_run {
    uint32_t param;
    dh_buffer_kind kind; /* MASTER, ADAM_M or ADAM_V */
    int64_t first, n;    /* elements of the parameter, float32 */
    uint64_t at;         /* of the first of them, in the slab */
} dh_share_run;
typedef DH_VEC(dh_share_run) dh_share;

/* The rank's share, whose program it is: that of every kind. Caller frees with dh_vec_fini.
 * in        has: by rank, which ones there are to share with, itself among them; NULL: all
 * errors    DH_ENOMEM */
dh_status dh_share_find(dh_ctx *ctx, const dh_program *program, const bool *has, dh_share *share);
/* Whether the shares of those that `has` names hold all that the program's rank has, itself among
 * them or not.
 * errors    DH_EMISSING: what nobody of them has, for a message: "rank 3 alone had ..." */
dh_status dh_share_check(dh_ctx *ctx, const dh_program *program, const bool *has);
uint64_t dh_share_bytes(const dh_share *share);
/* Into copy [dh_share_bytes], run by run. */
dh_status dh_share_copy(dh_ctx *ctx, const dh_session *session, const dh_share *share, float *copy);
/* Put the runs of one kind into the tensors PREFIX + Hugging Face name of a file that was declared
 * and started, from a copy, or where that is NULL from the slab. Any thread: of the session only
 * what does not change is read where there is a copy. */
dh_status dh_share_store(dh_ctx *ctx, const dh_session *session, const dh_share *share,
                         const float *copy, dh_st_writer *writer, const char *prefix,
                         dh_buffer_kind kind);

#endif
