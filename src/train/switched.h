/* The time of a step over several meshes, by costs of operators: each group's program, moves
 * between layouts, the optimizer. The same documents packed for one mesh are computed for
 * comparison. */
#ifndef DH_TRAIN_SWITCHED_H
#define DH_TRAIN_SWITCHED_H

#include "config/groups.h"
#include "data/groups.h"
#include "train/resolve.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Documents of a group, of a mean step. */
typedef struct dh_switched_load {
    double docs, tokens, rows; /* tokens: with a target */
    double pairs_twice;        /* of queries and keys, in all rows */
} dh_switched_load;

/* Time and memory of a group's program, once. */
typedef struct dh_switched_pass {
    int64_t rows;              /* rows of all data-parallel ranks */
    int64_t ns[2];             /* [goes_on]: the last pass of a step, the others */
    uint64_t peak_bytes;       /* most of any rank: of its layout and its activations */
    uint64_t persistent_bytes; /* part of its layout, where that is not the home */
} dh_switched_pass;

/* To a group's layout and back. */
typedef struct dh_switched_moves {
    int64_t params_ns, grads_ns, params_bytes, grads_bytes;
} dh_switched_moves;

typedef struct dh_switched_group {
    const dh_resolved *job;
    bool at_home;
    dh_switched_load load;
    double passes; /* of a mean step */
    dh_switched_pass pass;
    dh_switched_moves moves; /* 0 at home */
    double ns;               /* of a mean step: passes and moves, one after another */
} dh_switched_group;

typedef struct dh_switched {
    dh_switched_group groups[DH_MAX_SWITCH_GROUPS];
    size_t n;
    int64_t n_steps;     /* that were counted */
    int64_t cores;       /* that the ranks share; 0: each has its own */
    int64_t update_ns;   /* the optimizer */
    uint64_t home_bytes; /* that it keeps on the rank with most */
    uint64_t peak_bytes; /* of any rank, at any time */
    double tokens, step_ns;
    double hidden_ns; /* that step_ns is shorter for moves beside passes (switch.overlap) */
    /* The same documents, packed: each step's rows over the last group's mesh. */
    double packed_ns;
    uint64_t packed_bytes;
} dh_switched;

/* Lengths of documents.
 * in        a file of lengths or of a histogram (data/lengths.h); NULL: those of the job's data
 * out       ds: packed, for counting; close with dh_dataset_close
 *           reading: how the file was read, for people
 * errors    DH_EIO; DH_EFORMAT the line; those of opening data */
enum { DH_READING_BYTES = 192 };
dh_status dh_switched_documents(dh_ctx *ctx, const dh_resolved *job, const char *path,
                                char reading[DH_READING_BYTES], dh_dataset **ds);

/* in        job: of data.packing=group, with groups. ds: of rows of its train.seq_len
 * out       borrows the job
 * errors    those of dh_simulate and dh_reshard_open
 * cost      a simulation for each group and program; documents of up to 64 steps are counted */
dh_status dh_switched_simulate(dh_ctx *ctx, const dh_resolved *job, const dh_dataset *ds,
                               dh_switched *switched);

/* Parts of the step, for searches: programs of a recipe, the optimizer at a home, and moves. A
 * program runs over documents whose rows have so many pairs (0: rows of one document each).
 * in        cores: cores that the ranks share (dh_train_cores) */
dh_status dh_switched_pass_of(dh_ctx *ctx, const dh_recipe *recipe, bool at_home,
                              double row_pairs_twice, int64_t cores, dh_switched_pass *pass);
/* Away from home: all passes at the cost of the first ones, without the sums over ranks. */
dh_status dh_switched_first_of(dh_ctx *ctx, const dh_recipe *recipe, double row_pairs_twice,
                               int64_t cores, dh_switched_pass *pass);
dh_status dh_switched_update_of(dh_ctx *ctx, const dh_recipe *home, int64_t cores, int64_t *ns,
                                uint64_t *bytes);
/* beside: in chunks, as with switch.overlap. */
dh_status dh_switched_moves_of(dh_ctx *ctx, const dh_recipe *home, const dh_recipe *away,
                               bool beside, int64_t cores, dh_switched_moves *moves);
/* Adds a share of what rows have. */
void dh_switched_count(const dh_pack *rows, double share, dh_switched_load *load);
/* Rows of a group as its passes have them: times of so many rows. */
double dh_switched_rows_ns(const dh_switched_pass *pass, double rows);

#ifdef __cplusplus
}
#endif
#endif
