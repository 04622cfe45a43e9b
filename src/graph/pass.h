/* Passes: rewrites of a block's graph, one row each (passes.def; `dhelix list passes`).
 *
 * One loop makes the graph of every block (dh_graph_make): passes that follow from the job's
 * settings, as those of the mesh do, always; others where a strategy's list names them.
 * Whoever needs to know what a list of passes comes to (which ranks are alike, what is to be
 * measured, which configurations are the same) asks the rows, and none by name. */
#ifndef DH_GRAPH_PASS_H
#define DH_GRAPH_PASS_H

#include "config/mesh.h"
#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dh_pass dh_pass;
enum { DH_MAX_PASS_PARAMS = 4, DH_MAX_PASSES = 4 };

/* A pass with its arguments, in the order of its parameters; those beyond are 0. */
typedef struct dh_pass_use {
    const dh_pass *pass;
    int64_t args[DH_MAX_PASS_PARAMS];
} dh_pass_use;

/* What a strategy does to graphs, in this order; uses beyond n are zero, so that lists compare
 * by their bytes. */
typedef struct dh_pass_list {
    dh_pass_use at[DH_MAX_PASSES];
    int64_t n;
} dh_pass_list;

/* What the graphs of a job are made from: all that a pass may go by. */
typedef struct dh_graph_spec {
    dh_build build; /* its model NULL: of a program of its own, written by hand */
    dh_mesh mesh;
    dh_recompute_kind recompute;
    bool whole_tokens;   /* tensor parallelism without sequence parallelism (dh_shard) */
    int64_t zero;        /* degree to which ranks of data share what the optimizer holds */
    double moe_room;     /* of a rank over its even share of rows (dh_pass_expert_parallel) */
    bool fuse_gelu;      /* products make GELU, and its gradient, of what they compute */
    dh_pass_list passes; /* the strategy's */
} dh_graph_spec;

/* Of which rank, as far as graphs differ. */
typedef struct dh_graph_rank {
    dh_shard shard;
    int64_t cp_rank;
    int64_t rank; /* of a program of its own (dh_graph_spec.build.model NULL); else not looked at */
} dh_graph_rank;

/* ---- what a pass says it did --------------------------------------------------------------- */

/* A candidate that was left alone. */
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
/* A candidate left alone. report NULL: nobody wants to know. false: out of memory */
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
    DH_PASS_LAST, /* of what all others have left */
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
    /* Among which costs may choose where the argument is "auto", stored as 0, which is in no range
     * of an integer and of words the first; ends in 0. NULL: it is to be said. (dh_recipe_settle)
     */
    const int64_t *choices;
} dh_pass_param;

/* What its value can be: "forth, both". */
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
    /* Mesh axes (1 << dh_mesh_axis) along which the graphs of ranks differ by it in more than
     * which rows and ids are theirs: each index is verified by itself (classes.c of program). */
    unsigned varies_by;
    bool slices_stream; /* tokens between blocks are each tp rank's part behind it, if it applies */
    /* In a program of its own inputs without an axis that ranks split are taken for the same on all
     * ranks. */
    bool takes_same;
    bool in_stages; /* operators work on stages of groups (dh_mesh_group_stages) */
    /* Of such a pass: whether costs choose which sums of gradients do; NULL: all that can. */
    bool (*stages_by_costs)(const int64_t *args);
    /* Why what it makes runs on no device, and is simulated only; NULL: it runs. */
    const char *simulated;
    /* Says why it leaves every graph of such a job alone; NULL: it does not. Every row has one.
     * Pure. */
    const char *(*applicable)(const dh_graph_spec *spec, const int64_t *args);
    /* Other arguments that give the same operators here, to those by which they are known; NULL:
     * different ones never do. Pure. */
    void (*reduce)(const dh_graph_spec *spec, int64_t *args);
    /* Rewrites the graph, or leaves it alone and says why.
     * errors: DH_EINVAL where sizes do not divide, DH_ENOMEM */
    dh_status (*apply)(dh_ctx *ctx, const dh_pass_work *work);
};

#define DH_PASS(id) extern const dh_pass dh_pass_row_##id;
#include "graph/passes.def"
#undef DH_PASS

/* Whether recomputation rewrites blocks of the kind: others are alike whatever is recomputed. */
bool dh_pass_recomputes(dh_block_kind kind);

const dh_pass *const *dh_passes(size_t *n);
/* errors: DH_EMISSING with the nearest name */
dh_status dh_pass_find(dh_ctx *ctx, const char *name, const dh_pass **pass);

/* ---- lists --------------------------------------------------------------------------------- */

/* "ring-gemm(both), ...": an argument is name=value, or a value alone for the parameter in its
 * place; a flag's name alone switches it on. What is printed reads back the same.
 * errors: DH_EMISSING with the nearest name, DH_EINVAL as dh_pass_list_check and for what an
 *         argument cannot be */
dh_status dh_pass_list_parse(dh_ctx *ctx, const char *text, dh_pass_list *list);
void dh_pass_list_print(const dh_pass_list *list, dh_str *out);
void dh_pass_use_print(const dh_pass_use *use, dh_str *out);
/* Whether a strategy may have these passes in this order.
 * errors: DH_EINVAL: one stands twice, follows from the job, or stands before one whose place
 *         is earlier; an argument is out of range */
dh_status dh_pass_list_check(dh_ctx *ctx, const dh_pass_list *list);
/* The list that stands for all that give the same operators in such a job: without those that
 * do not apply, and arguments reduced. What is equal here is measured once, and its graphs are
 * the same. */
dh_pass_list dh_pass_list_reduced(const dh_graph_spec *spec, const dh_pass_list *list);
bool dh_pass_list_equal(const dh_pass_list *a, const dh_pass_list *b);
/* Whether every tp rank has all tokens between blocks: without sequence parallelism, and without a
 * pass that comes to the same (dh_pass.slices_stream). */
bool dh_graph_whole_tokens(const dh_graph_spec *spec);
/* The first argument that costs are to choose, in the list, and its parameter, which has choices;
 * false: all are said. */
bool dh_pass_list_open(dh_pass_list *list, int64_t **arg, const dh_pass_param **param);
/* A value of it as text. */
void dh_pass_param_put(const dh_pass_param *param, int64_t value, dh_str *out);
/* Whether a pass that applies has operators work on stages of groups, those that sum gradients
 * (reductions.c of program) among them. */
bool dh_graph_in_stages(const dh_graph_spec *spec);
/* Whether those sums that costs are to choose do (dh_pass.stages_by_costs). */
bool dh_graph_stages_by_costs(const dh_graph_spec *spec);
/* Mesh axes along which the graphs of such a job differ (dh_pass.varies_by), or the ranks that an
 * operator has for partners: of a stage they follow from the place on an axis that nodes cut. */
unsigned dh_graph_varies_by(const dh_graph_spec *spec);

/* ---- graphs -------------------------------------------------------------------------------- */

/* The graph of a block: built forward, then rewritten by every pass in its place.
 * in        reports: what each pass did, appended; NULL: not wanted
 * out       caller frees with dh_graph_destroy */
dh_status dh_graph_make(dh_ctx *ctx, const dh_graph_spec *spec, dh_block_kind kind,
                        dh_graph_rank rank, dh_pass_reports *reports, dh_graph **graph);

#ifdef __cplusplus
}
#endif
#endif
