/* One training step of a job with every value of one or two settings, as a table. */
#ifndef DH_DESCRIBE_GRID_H
#define DH_DESCRIBE_GRID_H

#include "describe/simulated.h"

/* X(id, name, key in JSON and CSV, form, doc): figures of a cell. */
#define DH_GRID_FIGURE_LIST(X)                                                                     \
    X(STEP, "step", "step_ms", TIME, "a training step")                                            \
    X(TOKENS, "tokens", "tokens_per_s", NUMBER, "tokens a second")                                 \
    X(TFLOPS, "tflops", "model_tflops_per_device", NUMBER, "model TFLOP/s of a device")            \
    X(MFU, "mfu", "mfu", SHARE, "model FLOPs' share of the peak")                                  \
    X(HIDDEN, "hidden", "hidden_share", SHARE,                                                     \
      "share of communication's own time that does not make the step longer")                      \
    X(EXPOSED, "exposed", "exposed_ms", TIME, "time by which communication makes the step longer") \
    X(BUBBLE, "bubble", "bubble_ms", TIME, "standing still for other stages")                      \
    X(MEMORY, "memory", "peak_bytes", BYTES, "memory of the rank that needs most")

typedef enum dh_grid_figure {
#define X(id, name, key, form, doc) DH_GRID_##id,
    DH_GRID_FIGURE_LIST(X)
#undef X
        DH_N_GRID_FIGURE
} dh_grid_figure;

typedef enum dh_grid_form {
    DH_GRID_TIME, /* milliseconds */
    DH_GRID_NUMBER,
    DH_GRID_SHARE,
    DH_GRID_BYTES
} dh_grid_form;

typedef struct dh_grid_figure_info {
    const char *name, *key, *doc;
    dh_grid_form form;
} dh_grid_figure_info;
extern const dh_grid_figure_info dh_grid_figures[DH_N_GRID_FIGURE];

typedef struct dh_grid_axis {
    const char *key;
    const char **values; /* [n] */
    size_t n;
} dh_grid_axis;

typedef struct dh_grid_cell {
    const char *reason;          /* why there are no figures; NULL: there are */
    const char *strategy;        /* of auto the one that was taken */
    int64_t ranks;               /* this and all below: where there are figures */
    double at[DH_N_GRID_FIGURE]; /* NaN: not known */
    bool fits;                   /* on the cluster's devices */
} dh_grid_cell;

enum { DH_GRID_MOST = 4096 }; /* cells */

typedef struct dh_grid {
    dh_arena *arena;             /* owns all below */
    const char *model, *cluster; /* cluster NULL: this machine */
    dh_grid_axis axes[2];
    size_t n_axes;
    dh_grid_cell *cells; /* [values of the first][values of the second, or 1] */
    size_t n;
    dh_step_facts *facts; /* of the best cell's step; NULL: there is none, or no cluster */
} dh_grid;

/* Settings to vary: "parallel.tp=1,2,4", one or two of them.
 * out       caller frees with dh_grid_fini, also after a failure
 * errors    DH_EINVAL with what would be right */
dh_status dh_grid_open(dh_ctx *ctx, const char *const *settings, size_t n, dh_grid *grid);
/* Simulates every cell: the job file with the overrides, then the cell's values. A cell that is not
 * possible has its reason.
 * errors    of the job without the values; an unknown setting; the first reason where no cell is
 *           possible; DH_EIO, DH_ENOMEM */
dh_status dh_grid_run(dh_ctx *ctx, const char *path, const char *const *overrides, size_t n,
                      const dh_simulated_how *how, dh_grid *grid);
void dh_grid_fini(dh_grid *grid);

/* Values of the cell, by axis. */
const char *dh_grid_value(const dh_grid *grid, size_t cell, size_t axis);
/* Shortest step among cells that fit; NULL: none does. */
const dh_grid_cell *dh_grid_best(const dh_grid *grid);
/* NULL: out of memory */
json_t *dh_grid_json(const dh_grid *grid);
/* A line of headings, and one a cell. */
void dh_grid_csv(const dh_grid *grid, dh_str *out);
/* Writes table.json and table.csv into the folder, which is made where it is absent.
 * errors    DH_EIO; DH_ENOMEM */
dh_status dh_grid_write(dh_ctx *ctx, const dh_grid *grid, const char *dir);

#endif
