/* Precedents: published steps of training with their predicted times. A new prediction is judged by
 * the errors of the nearest ones.
 *
 * The rows are validation/predicted/steps.csv, which is part of the library
 * (scripts/predicted_steps.py writes it from `dhelix validate --json`). A row counts only where its
 * device is the job's: the same number of processors with the same peak. */
#ifndef DH_COSTS_PRECEDENTS_H
#define DH_COSTS_PRECEDENTS_H

#include <jansson.h>

#include "costs/cluster.h"
#include "dhelix/job.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_PRECEDENT_TEXT = 96, DH_PRECEDENT_SHOWN = 3, DH_PRECEDENT_MEAN_OF = 5 };

/* Facts by which steps are compared. Columns of the file have these names. */
typedef struct dh_step_facts {
    char cluster[DH_PRECEDENT_TEXT], system[DH_PRECEDENT_TEXT];
    char family[DH_PRECEDENT_TEXT], strategy[DH_PRECEDENT_TEXT];
    char schedule[DH_PRECEDENT_TEXT], recompute[DH_PRECEDENT_TEXT]; /* schedule "": no stages */
    double parameters, experts; /* parameters of the model; experts of a layer, 0: dense */
    double devices, tp, pp, cp, ep, zero;
    double seq_len, fp8;                             /* fp8 1: products of 8 bits */
    double processors, peak_tflops, memory_gb_per_s; /* of a device; the peak is that of bf16 */
    double local_gb_per_s, network_gb_per_s;         /* of a device; of a node */
} dh_step_facts;

typedef struct dh_precedent {
    dh_step_facts facts;
    char table[DH_PRECEDENT_TEXT], row[DH_PRECEDENT_TEXT]; /* as `dhelix validate` has them */
    double predicted, published;
    bool rate;   /* tokens or operations a second; else a time */
    bool fitted; /* a constant was fitted to it */
    double distance;
    unsigned differs; /* bits: rows of DH_STEP_TERM_LIST that make it so */
} dh_precedent;

typedef struct dh_precedents {
    size_t n_of_device; /* rows of the job's device */
    dh_precedent shown[DH_PRECEDENT_SHOWN];
    size_t n_shown; /* the nearest, nearest first; at equal distance as in the file */
    /* Mean |error| of the nearest rows to which nothing was fitted, in percent of the published
     * time. */
    double mean_error;
    size_t n_mean; /* of so many rows */
} dh_precedents;

/* Facts of a step of the job on that cluster. */
void dh_step_facts_of(const dh_job *job, const dh_cluster *cluster, dh_step_facts *facts);
/* One of its texts, cut where it is too long. */
void dh_step_facts_take(char out[DH_PRECEDENT_TEXT], const char *text);
/* By name. NULL: out of memory */
json_t *dh_step_facts_json(const dh_step_facts *facts);

/* errors    DH_EFORMAT the file, with its line: a bug */
dh_status dh_precedents_find(dh_ctx *ctx, const dh_step_facts *facts, dh_precedents *found);
/* From text, for tests. */
dh_status dh_precedents_find_in(dh_ctx *ctx, const char *text, size_t n_bytes,
                                const dh_step_facts *facts, dh_precedents *found);
/* Terms of the distance, by name and doc. */
const char *dh_step_term(size_t i, const char **doc);
/* Percent of what was published, > 0: predicted too fast. */
double dh_precedent_error(const dh_precedent *row);

/* "nearest measured: ...", without a line's end. */
void dh_precedents_print(const dh_precedents *found, dh_str *out);
/* NULL: out of memory */
json_t *dh_precedents_json(const dh_precedents *found);

#ifdef __cplusplus
}
#endif
#endif
