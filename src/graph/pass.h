/* Passes: rewrites of a block's graph, one row each (passes.def; `dhelix list passes`).
 *
 * One loop makes the graph of every block (dh_graph_make). Passes that follow from the job's
 * settings, such as the mesh, are always applied. Others are applied where a strategy's list names
 * them. Other code asks the rows for the effects of a list of passes, never a pass by name. Effects
 * are for example: which ranks are alike, which operators to measure, which configurations are
 * equal. */
#ifndef DH_GRAPH_PASS_H
#define DH_GRAPH_PASS_H

#include "config/mesh.h"
#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_pass dh_pass;
enum { DH_MAX_PASS_PARAMS = 4, DH_MAX_PASSES = 4 };

/* A pass with its arguments, in the order of its parameters; unused ones are 0. */
typedef struct dh_pass_use {
    const dh_pass *pass;
    int64_t args[DH_MAX_PASS_PARAMS];
} dh_pass_use;

/* The passes of a strategy, in order of application. Uses beyond n are zero, so lists compare by
 * their bytes. */
typedef struct dh_pass_list {
    dh_pass_use at[DH_MAX_PASSES];
    int64_t n;
} dh_pass_list;

/* Everything that the graphs of a job, and so its passes, depend on. */
typedef struct dh_graph_spec {
    dh_build build; /* its model NULL: a program of its own, written by hand */
    dh_mesh mesh;
    dh_recompute_kind recompute;
    dh_sharing sharing; /* passes read moments and sequence */
    double moe_room;    /* room of a rank over its even share of rows (dh_pass_expert_parallel) */
    dh_dispatch moe_dispatch; /* how rows travel to experts: flat or node */
    dh_tp_rows expert_rows;   /* rows that tensor-parallel ranks send: whole or shared */
    bool fuse_gelu;           /* GEMMs apply GELU, and its gradient, to their result */
    dh_pass_list passes;      /* the strategy's */
} dh_graph_spec;

/* The rank of a graph, as far as graphs of ranks differ. */
typedef struct dh_graph_rank {
    dh_shard shard;
    int64_t cp_rank;
    int64_t rank; /* for a program of its own (dh_graph_spec.build.model NULL); else not read */
} dh_graph_rank;

/* The stages of moe.dispatch node.
 * errors    DH_EUNSUPPORTED the mesh has none: says why */
dh_status dh_dispatch_by_node(dh_ctx *ctx, const dh_mesh *mesh, dh_group_stages *stages);

/* Whether tensor-parallel ranks can share out the columns of rows (parallel.expert_rows shared): NULL, or why
 * not. */
const char *dh_tp_rows_obstacle(const dh_graph_spec *spec);

/* ---- reports of passes --------------------------------------------------------------------- */

/* A candidate that was not rewritten. */
typedef struct dh_pass_note {
    char what[64];
    const char *why;
} dh_pass_note;

typedef struct dh_pass_report {
    dh_pass_use use;
    const char *idle;         /* why it does not apply; NULL: it was applied */
    size_t n_before, n_after; /* operators */
    size_t n_places;          /* candidates rewritten, where it looks for such */
    DH_VEC(dh_pass_note) left;
} dh_pass_report;
typedef DH_VEC(dh_pass_report) dh_pass_reports;
void dh_pass_reports_fini(dh_pass_reports *reports);
/* Notes a candidate that was not rewritten. report NULL: not wanted. false: out of memory */
bool dh_pass_leave(dh_pass_report *report, const char *what, const char *why);

/* ---- rows ---------------------------------------------------------------------------------- */

typedef enum dh_pass_place {
    DH_PASS_BEFORE_MESH,      /* on the forward graph as it was built */
    DH_PASS_ON_MESH,          /* a forward graph becomes that of one rank */
    DH_PASS_BEFORE_GRADIENTS, /* on the rank's forward graph */
    DH_PASS_ON_GRADIENTS,     /* the backward is appended */
    DH_PASS_AFTER_GRADIENTS,
    DH_PASS_ON_RECOMPUTE, /* the backward computes again what is not kept */
    DH_PASS_AFTER_RECOMPUTE,
    DH_PASS_LAST, /* on the result of all others */
    DH_N_PASS_PLACE
} dh_pass_place;
/* "after recomputation" */
const char *dh_pass_place_name(dh_pass_place place);

typedef enum dh_pass_param_kind { DH_PASS_INT, DH_PASS_WORD, DH_PASS_FLAG } dh_pass_param_kind;

typedef struct dh_pass_param {
    const char *name; /* NULL: no more */
    const char *doc;
    dh_pass_param_kind kind;
    int64_t fallback, min, max; /* min, max: of an integer */
    const char *const *words;   /* of a choice, which is stored as the word's index; ends in NULL */
    /* Values among which costs may choose if the argument is "auto"; ends in 0. "auto" is stored as
     * 0. That is outside the range of an integer, and the first word of a choice. NULL: the
     * argument must be given. (dh_recipe_settle) */
    const int64_t *choices;
} dh_pass_param;

/* Possible values: "forth, both". */
void dh_pass_param_describe(const dh_pass_param *param, dh_str *out);

/* One rank's graph to rewrite. */
typedef struct dh_pass_work {
    dh_graph *graph;
    const dh_graph_spec *spec;
    dh_graph_rank rank;
    const int64_t *args;
    dh_pass_report *report; /* NULL: not wanted */
} dh_pass_work;

struct dh_pass {
    const char *name;
    const char *doc; /* one line, with its source */
    dh_pass_place place;
    bool of_job; /* follows from the job's settings; no strategy names it */
    dh_pass_param params[DH_MAX_PASS_PARAMS];
    /* Mesh axes (1 << dh_mesh_axis) along which the pass makes graphs of ranks differ in more than
     * rows and ids. Each index on them is verified by itself (classes.c of program). */
    unsigned varies_by;
    bool slices_stream; /* where it applies, tp ranks split the tokens between blocks */
    /* In a program of its own, inputs without an axis that ranks split count as equal on all
     * ranks. */
    bool takes_same;
    bool in_stages; /* operators work on stages of groups (dh_mesh_group_stages) */
    /* With in_stages: whether costs choose the sums of gradients that do so; NULL: all that can. */
    bool (*stages_by_costs)(const int64_t *args);
    /* Why its result runs on no device and is only simulated; NULL: it runs. */
    const char *simulated;
    /* Returns the reason for which it changes no graph of the job; NULL: it applies. Every row has
     * one. Pure. */
    const char *(*applicable)(const dh_graph_spec *spec, const int64_t *args);
    /* Replaces arguments by the canonical ones that give the same operators in this job. NULL:
     * different arguments always give different operators. Pure. */
    void (*reduce)(const dh_graph_spec *spec, int64_t *args);
    /* Rewrites the graph, or leaves it unchanged and reports why.
     * errors    DH_EINVAL where sizes do not divide, DH_ENOMEM */
    dh_status (*apply)(dh_ctx *ctx, const dh_pass_work *work);
};

#define DH_PASS(id) extern const dh_pass dh_pass_row_##id;
#include "graph/passes.def"
#undef DH_PASS

/* Lists in code. Every argument is given, since 0 is no default. */
#define DH_PASS_USE(id, ...)                                                                       \
    {                                                                                              \
        &dh_pass_row_##id,                                                                         \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define DH_PASSES(n_passes, ...)                                                                   \
    {                                                                                              \
        .at = {__VA_ARGS__}, .n = (n_passes)                                                       \
    }
#define DH_NO_PASSES                                                                               \
    {                                                                                              \
        .n = 0                                                                                     \
    }
enum { DH_BY_COSTS = 0 }; /* an argument that says auto */
/* Words of arguments: ways of ring-gemm, cut of part-wise, order of two-stage. */
enum { DH_RING_FORTH, DH_RING_BOTH };
enum { DH_CUT_AUTO, DH_CUT_ALL, DH_CUT_NONE };
enum { DH_STAGES_AUTO, DH_STAGES_NARROW, DH_STAGES_WIDE, DH_STAGES_WHOLE };

/* Whether recomputation rewrites blocks of the kind; others do not depend on it. */
bool dh_pass_recomputes(dh_block_kind kind);

const dh_pass *const *dh_passes(size_t *n);
/* errors    DH_EMISSING with the nearest name */
dh_status dh_pass_find(dh_ctx *ctx, const char *name, const dh_pass **pass);

/* ---- lists --------------------------------------------------------------------------------- */

/* "ring-gemm(both), ...": an argument is name=value, or a value alone for the parameter in its
 * place. A flag's name alone switches it on. Printed lists read back the same.
 * errors    DH_EMISSING with the nearest name; DH_EINVAL as dh_pass_list_check, or a value that an
 *           argument cannot have */
dh_status dh_pass_list_parse(dh_ctx *ctx, const char *text, dh_pass_list *list);
/* Appends the passes of a text of n bytes to a list. The result is not checked.
 * errors    those of a single pass; DH_EINVAL more than DH_MAX_PASSES */
dh_status dh_pass_list_read(dh_ctx *ctx, const char *text, size_t n, dh_pass_list *list);
/* Appends `more`.
 * errors    DH_EINVAL more than DH_MAX_PASSES; the list then has the first of them */
dh_status dh_pass_list_append(dh_ctx *ctx, const dh_pass_list *more, dh_pass_list *list);
void dh_pass_list_print(const dh_pass_list *list, dh_str *out);
void dh_pass_use_print(const dh_pass_use *use, dh_str *out);
/* Whether a strategy may have these passes in this order.
 * errors    DH_EINVAL a pass stands twice, follows from the job, or stands before a pass of an
 *           earlier place; an argument is out of range */
dh_status dh_pass_list_check(dh_ctx *ctx, const dh_pass_list *list);
/* The canonical list among all that give the same operators in the job: passes that do not apply
 * are left out, and arguments are reduced. Equal lists have the same graphs and are measured
 * once. */
dh_pass_list dh_pass_list_reduced(const dh_graph_spec *spec, const dh_pass_list *list);
bool dh_pass_list_equal(const dh_pass_list *a, const dh_pass_list *b);
/* Tokens between blocks: split by the setting, or by a pass of the same effect
 * (dh_pass.slices_stream). */
dh_sequence dh_graph_sequence(const dh_graph_spec *spec);
/* The first argument of the list that costs shall choose, and its parameter, which has choices;
 * false: all arguments are given. */
bool dh_pass_list_open(dh_pass_list *list, int64_t **arg, const dh_pass_param **param);
/* A value of the parameter as text. */
void dh_pass_param_put(const dh_pass_param *param, int64_t value, dh_str *out);
/* Whether a pass that applies makes operators work on stages of groups. Sums of gradients
 * (reductions.c of program) are among them. */
bool dh_graph_in_stages(const dh_graph_spec *spec);
/* Whether costs choose the sums of gradients that do so (dh_pass.stages_by_costs). */
bool dh_graph_stages_by_costs(const dh_graph_spec *spec);
/* Mesh axes along which the job's graphs differ (dh_pass.varies_by), or along which the partners of
 * an operator differ. Partners in a stage follow from the place on an axis that nodes cut. */
unsigned dh_graph_varies_by(const dh_graph_spec *spec);

/* ---- graphs -------------------------------------------------------------------------------- */

/* The graph of a block: built forward, then rewritten by every pass in its place.
 * in        reports: the report of each pass is appended; NULL: not wanted
 * out       caller frees with dh_graph_destroy */
dh_status dh_graph_make(dh_ctx *ctx, const dh_graph_spec *spec, dh_block_kind kind,
                        dh_graph_rank rank, dh_pass_reports *reports, dh_graph **graph);

#ifdef __cplusplus
}
#endif
#endif
