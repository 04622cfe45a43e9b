/* A published table's cells, and rows of predictions. */
#ifndef DH_VALIDATE_TABLE_H
#define DH_VALIDATE_TABLE_H

#include "costs/cluster.h"
#include "validate/validate.h"

/* CSV: lines that begin with # are skipped, the first of the others names the columns. */
typedef struct dh_published {
    dh_arena *arena; /* borrowed */
    const char *file;
    const char *source;   /* first line, without # */
    const char **columns; /* [n_columns] */
    size_t n_columns, n_rows;
    const char **cells; /* [n_rows][n_columns] */
} dh_published;

/* The file of that name (without extension) in validation/; in the arena.
 * errors    DH_EMISSING; DH_EFORMAT with line; DH_ENOMEM */
dh_status dh_published_read(dh_ctx *ctx, dh_arena *arena, const char *file, dh_published *table);
/* From text, for tests. */
dh_status dh_published_parse(dh_ctx *ctx, dh_arena *arena, const char *text, size_t n_bytes,
                             const char *file, dh_published *table);
/* A cell by the name of its column.
 * errors    DH_EMISSING no such column; of numbers also DH_EFORMAT */
dh_status dh_published_text(dh_ctx *ctx, const dh_published *table, size_t row, const char *column,
                            const char **text);
dh_status dh_published_real(dh_ctx *ctx, const dh_published *table, size_t row, const char *column,
                            double *value);
dh_status dh_published_int(dh_ctx *ctx, const dh_published *table, size_t row, const char *column,
                           int64_t *value);

/* Append a prediction; the error follows from the table's measure. */
dh_status dh_validation_add(dh_ctx *ctx, dh_validation *validation, double predicted,
                            double published, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* The row added last is of that series, with which its label ends. */
void dh_validation_series(dh_validation *validation, const char *name);

/* Rows added from here on belong to a group of that name. */
dh_status dh_validation_group(dh_ctx *ctx, dh_validation *validation, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Rows added from here on are of another measurement than those before. Rows that no block was
 * begun for are each by themselves. */
void dh_validation_begin_block(dh_validation *validation);

/* A number that a cluster has instead of its file's. */
typedef struct dh_cluster_change {
    const char *key;
    double value;
} dh_cluster_change;
/* dh_validate with changes to every cluster, of the rows that the table's constants rest on. */
dh_status dh_validate_changed(dh_ctx *ctx, const dh_validation_table *table, const char *cluster,
                              dh_validation_steps *steps, const dh_cluster_change *changes,
                              size_t n_changes, dh_validation **validation);

/* The folder of clusters that only tables have. */
#define DH_SHIPPED_CLUSTERS "validation/clusters/"
/* The cluster of a table, or the one asked for in its place.
 * in        name: as dh_cluster_find has it, or a file in DH_SHIPPED_CLUSTERS, which is built in */
dh_status dh_validation_cluster(dh_ctx *ctx, const dh_validation *validation, const char *name,
                                dh_cluster **cluster);

/* Rows of the table's file, of what that cluster takes. */
typedef dh_status dh_validation_add_rows(dh_ctx *ctx, dh_validation *v, const dh_cluster *cluster,
                                         const dh_published *table);
dh_status dh_validation_on_cluster(dh_ctx *ctx, dh_validation *validation, const char *name,
                                   dh_validation_add_rows *add_rows);

/* ---- tables: one function each ------------------------------------------------------------ */

dh_status dh_validate_zero_bubble(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_zero_bubble_split(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_zero_bubble_jobs(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_zero_bubble_memory(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_torchtitan(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_held_out(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_mpt(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_mpt_h100(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_nemo(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_gemm_fp8(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_b200_gemm(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_a100_gemm(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_a100_attention(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_flash_attention(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_b200_attention(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_b200_dense(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_b200_memory(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_vtrain(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_vtrain_node(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_moe_folding(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_moe_zoo(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_megascale(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_korthikanti(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_korthikanti_utilisation(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_korthikanti_layer(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_korthikanti_scaling(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_memory(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_memory_shares(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_sc21(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_systems(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_speedups(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_shares(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_experts(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_text(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_h100(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_h100_visible(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_largest(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_hotspa(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_survey(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_dhelix_hidden(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_oef(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_hardware(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_contention(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_volumes(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_nccl_constants(dh_ctx *ctx, dh_validation *v);
dh_status dh_validate_nccl(dh_ctx *ctx, dh_validation *v);

#endif
