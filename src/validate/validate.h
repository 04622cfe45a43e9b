/* Predictions beside published measurements.
 *
 * Every table of validation/ that somebody measured has a row here: a function that predicts what
 * the table holds. Times of jobs are those of shipped job files (validation/jobs), simulated by
 * what `dhelix simulate` calls, and every such row names the command. Nothing is fitted here;
 * calibration constants live in cluster files, where each says which table it comes from. */
#ifndef DH_VALIDATE_VALIDATE_H
#define DH_VALIDATE_VALIDATE_H

#include "base/base.h"
#include "costs/precedents.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, name, doc): how far a prediction is from what was published. */
#define DH_VALIDATION_MEASURE_LIST(X)                                                              \
    X(RELATIVE, "%", "|predicted - published| in percent of published")                            \
    X(POINTS, "points", "|predicted - published|, both in percent")                                \
    X(ABSOLUTE, "", "|predicted - published| in the table's unit")

typedef enum dh_validation_measure {
#define X(id, name, doc) DH_VALIDATION_##id,
    DH_VALIDATION_MEASURE_LIST(X)
#undef X
} dh_validation_measure;
const char *dh_validation_measure_name(dh_validation_measure measure);

/* How a table is drawn. */
typedef enum dh_validation_form {
    DH_VALIDATION_DOTS,  /* predicted over published */
    DH_VALIDATION_BARS,  /* both side by side, rows of one job together */
    DH_VALIDATION_STACKS /* rows of one job on top of each other, both side by side */
} dh_validation_form;

typedef struct dh_validation_row {
    const char *label;
    int block;         /* rows of one measurement, or of one job or group of ranks */
    const char *group; /* rows in a line that are shown as one where not all are; NULL: by itself */
    double predicted, published; /* in the table's unit */
    double error;                /* by the table's measure */
    const char *series;          /* how the label ends: rows that stand together; NULL */
    const char *command;         /* that simulates the job of this row; NULL: there is none */
    double step_ns;              /* of that job */
    dh_step_facts facts;         /* of that job; of no cluster: empty */
    bool fitted;                 /* a constant was fitted to it */
} dh_validation_row;

/* Simulated steps by command, so that tables of the same jobs simulate them once. */
typedef struct dh_validation_steps dh_validation_steps;
dh_validation_steps *dh_validation_steps_create(void); /* NULL: out of memory */
void dh_validation_steps_destroy(dh_validation_steps *steps);

typedef struct dh_validation dh_validation;

enum { DH_VALIDATION_CONSTANTS = 6 };

typedef struct dh_validation_table {
    const char *name;
    const char *paper;  /* name of the tables of one paper, which stand together; NULL */
    const char *file;   /* of validation/, without extension */
    const char *figure; /* of files with several: how column figure begins; NULL: all */
    const char *doc;    /* the compared figures, one line */
    const char *how;    /* how the prediction is made, with its denominators */
    const char *unit;
    dh_validation_measure measure;
    double aim; /* for the mean error; 0: none is set */
    bool exact; /* the aim is no error in any row */
    dh_validation_form form;
    /* Settings of cluster files that rest on this table, and the cluster whose they are; NULL: no
     * more. */
    const char *rests[DH_VALIDATION_CONSTANTS];
    const char *rests_cluster;
    /* Rows that any constant was fitted to: "*" all, else parts of their labels, with | between;
     * NULL: none. */
    const char *fitted;
    dh_status (*run)(dh_ctx *ctx, dh_validation *validation);
} dh_validation_table;

struct dh_validation {
    dh_arena *arena; /* owns the struct and all below */
    const dh_validation_table *table;
    const char *cluster;        /* in place of the table's own; NULL */
    dh_validation_steps *steps; /* borrowed */
    const char *source;         /* first line of the table's file */
    dh_validation_row *rows;
    size_t n_rows;
    const char *group;                       /* of rows that are added */
    int block;                               /* the same */
    bool lists;                              /* its jobs are listed, none is simulated */
    bool rested_on;                          /* only rows that the table's constants rest on */
    const struct dh_cluster_change *changes; /* [n_changes] to every cluster; borrowed */
    size_t n_changes;
    double mean_error, max_error;
    /* Groups of rows with a published order (which system is faster), and the number of groups
     * predicted in that order; 0: no such groups. */
    int n_orders, n_orders_right;
    const char *remark; /* a finding in addition to the rows; NULL */
};

/* All tables. */
const dh_validation_table *dh_validation_tables(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_validation_find(dh_ctx *ctx, const char *name, const dh_validation_table **table);
/* The table of that name, or all of the paper of that name: [n] */
dh_status dh_validation_find_all(dh_ctx *ctx, const char *name, const dh_validation_table **first,
                                 size_t *n);
/* Predict one table.
 * in        cluster: name or path, in place of the table's own; NULL. steps: what is simulated is
 *           added
 * out       set only on DH_OK; caller frees with dh_validation_destroy */
dh_status dh_validate(dh_ctx *ctx, const dh_validation_table *table, const char *cluster,
                      dh_validation_steps *steps, dh_validation **validation);
/* Predict tables in their order, while other threads simulate ahead.
 * in        n_threads: of which the calling one is one, DH_MOST_THREADS at most. shown: called by the
 *           calling thread with each table when it is done
 * errors    those of dh_validate and of shown, which end the rest */
typedef dh_status dh_validation_shown(dh_ctx *ctx, const dh_validation *validation, void *user);
dh_status dh_validate_tables(dh_ctx *ctx, const dh_validation_table *const *tables, size_t n,
                             const char *cluster, size_t n_threads, dh_validation_shown *shown,
                             void *user);
/* Lists the jobs of a table (steps.c). NULL: there are none */
dh_validation *dh_validation_list(dh_ctx *ctx, const dh_validation_table *table,
                                  const char *cluster, dh_validation_steps *steps);
bool dh_validation_has_aim(const dh_validation_table *table);
/* Whether the aim, which there is, is met, and every order is right. */
bool dh_validation_meets_aim(const dh_validation *validation);
void dh_validation_destroy(dh_validation *validation);

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Jobs of the library (config/shipped.h) that rows of a table are simulated with. */
typedef struct dh_validation_job {
    const char *names;   /* "korthikanti-22b sc21-*", with a blank between them */
    const char *table;   /* its name */
    const char *cluster; /* name or path for those rows; NULL: their times are their own */
} dh_validation_job;

/* By table, in the order of dh_validation_tables. */
const dh_validation_job *dh_validation_jobs(size_t *n);
/* Whether the row is of the job of that name. */
bool dh_validation_job_is(const dh_validation_job *row, const char *name);

/* ---- constants ------------------------------------------------------------------------------- */

typedef struct dh_validation_constant {
    const char *key;
    double shipped, fitted, part_fitted; /* to all rows; without those left out */
} dh_validation_constant;

/* Fits the constants that rest on a table again: least squares of relative errors, starting at
 * the shipped values. One fit uses all their rows, the other leaves out a third: the second of
 * every three blocks of rows. Errors are means by the table's measure. */
typedef struct dh_validation_fit {
    dh_validation_constant constants[DH_VALIDATION_CONSTANTS];
    size_t n_constants, n_rows, n_left_out;
    double shipped, shipped_left_out; /* by the shipped constants: all rows; those left out */
    double fitted;                    /* by the constants fitted to all rows */
    double part, part_left_out;       /* by those of the rest: of the rest; of the rows left out */
} dh_validation_fit;

/* in        cluster: as in dh_validate
 * errors    DH_EINVAL no constant rests on the table; those of dh_validate and dh_fit */
dh_status dh_validation_fit_table(dh_ctx *ctx, const dh_validation_table *table,
                                  const char *cluster, dh_validation_fit *fit);

#ifdef __cplusplus
}
#endif
#endif
