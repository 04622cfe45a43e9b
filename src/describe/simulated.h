/* One training step of a job, simulated with one strategy and schedule or with several. */
#ifndef DH_DESCRIBE_SIMULATED_H
#define DH_DESCRIBE_SIMULATED_H

#include <jansson.h>

#include "costs/cluster.h"
#include "costs/precedents.h"
#include "describe/cargo.h"
#include "train/simulation.h"

/* The step of a strategy with a schedule. */
typedef struct dh_simulated {
    const dh_strategy *strategy;
    const char *schedule;   /* asked for; NULL: what the strategy needs */
    bool as_given;          /* the job's strategy and schedule, as it says them */
    dh_resolved *job;       /* with both */
    dh_sim *sim;            /* NULL: they cannot run this job */
    const char *taken;      /* schedule of sim */
    const char *chosen;     /* strategy of sim, in place of auto; else NULL */
    int64_t virtual_stages; /* of sim, of a rank and a copy of the model */
    uint64_t digest;        /* of sim's programs */
    dh_cargo_means cargo;
    dh_system_memory *system; /* [sim->n_classes] by the job's system; NULL: that is ours */
    char reason[512];         /* why not */
} dh_simulated;

typedef struct dh_simulated_list {
    const dh_job *job;         /* its vocabulary known, its strategy as it was given */
    const dh_cluster *cluster; /* NULL: this machine */
    double peak_flops_per_s;   /* of a device; 0: not known */
    /* [n]: the job as given, where there are others; then every strategy of each schedule */
    dh_simulated *at;
    size_t n;
    /* Different ones of all rows; n_schedules 0: none asked for. */
    size_t n_strategies, n_schedules;
    dh_resolved *open; /* owns the job */
    dh_arena *arena;   /* owns the list and strategies that have no row */
} dh_simulated_list;

typedef struct dh_simulated_how {
    const dh_cluster *cluster; /* NULL: this machine */
    double peak_flops_per_s;   /* of a device; 0: the cluster's */
    dh_train_simulation simulation;
    bool progress; /* a line on a terminal; the simulation's watch is that line's */
} dh_simulated_how;

/* Strategies and schedules by their names with commas between them, "all", or (NULL) the job's. For
 * a job whose strategy is auto, NULL means all and then auto, the strategy that simulated steps
 * choose. The first of several rows is the job as given. Where its strategy is auto, it is the
 * first strategy of all, with the job's schedule.
 * out       caller frees with dh_simulated_fini, also after a failure */
dh_status dh_simulated_open(dh_ctx *ctx, const dh_job *job, const char *strategies,
                            const char *schedules, dh_simulated_list *list);
/* Simulates each row. A row that is not possible has its reason, unless it is the only one. A row
 * with the settings of the job as given is left out, since that stands first.
 *
 * A schedule that was asked for has the number of virtual stages of a rank that it fixes, or the
 * job's where it accepts any number from 2 on. Where none was asked for, a strategy takes the first
 * of these that applies:
 *   1. The job's schedule, if it makes pairs or the strategy needs none.
 *   2. The strategy's own schedule, with the number of virtual stages that this fixes.
 *   3. The schedule with the shortest step among the others with pairs and one copy of the
 *      model. */
dh_status dh_simulated_run(dh_ctx *ctx, const dh_job *job, const dh_simulated_how *how,
                           dh_simulated_list *list);
void dh_simulated_fini(dh_simulated_list *list);

/* Writes the files of a run; with several rows, each in a folder of its name. */
dh_status dh_simulated_write(dh_ctx *ctx, const dh_simulated_list *list, const char *dir);

/* Every figure is of one training step. Times of several ranks are means over all ranks of the
 * mesh, each rank that was simulated counting for those that it stands for. */
typedef struct dh_simulated_figures {
    double step_s, tokens_per_s;
    double model_flops_per_s, hardware_flops_per_s;               /* of a device */
    double compute_ns, hidden_ns, exposed_ns, idle_ns, bubble_ns; /* of a rank, on average */
    double exposed_by_ns[DH_N_EXPOSURE];
    double partners_ns;    /* of idle_ns, as bubble_ns is */
    double hidden_percent; /* of communication */
    uint64_t peak_bytes;   /* most of any rank */
} dh_simulated_figures;

dh_simulated_figures dh_simulated_figures_of(const dh_sim *sim);
/* The first row before this one with the same programs: the strategy found nothing of its own to
 * do. NULL: none. */
const dh_simulated *dh_simulated_same(const dh_simulated_list *list, const dh_simulated *one);

/* The row over which speed-ups are: the job as given, else the first that could be simulated. NULL:
 * none could. */
const dh_simulated *dh_simulated_first(const dh_simulated_list *list);

/* Most of any rank, as the job's system would need it; 0: the system is ours. */
uint64_t dh_simulated_system_bytes(const dh_simulated *one);
/* The bytes that decide whether a row fits: as many as the job's system needs. */
uint64_t dh_simulated_needed_bytes(const dh_simulated *one);
bool dh_simulated_fits(const dh_simulated *one, const dh_cluster *cluster);

/* Without a cluster: whether this machine could ever hold the job.
 * errors    DH_EINVAL it could not */
dh_status dh_simulated_check_here(dh_ctx *ctx, const dh_job *job, const dh_cluster *cluster);
/* Of a device, in the job's type; 0: not known. */
double dh_simulated_peak(const dh_simulated_how *how, const dh_job *job);
/* Length of the first of texts with commas between them; commas in brackets are part of one. */
size_t dh_simulated_word(const char *texts);

/* Of dh_simulated_first's step. False: there is none, or it is this machine's. */
bool dh_simulated_facts(const dh_simulated_list *list, dh_step_facts *facts);
/* Of a resolved job, with the schedule that it takes. False: it is this machine's. */
bool dh_resolved_facts(const dh_resolved *job, dh_step_facts *facts);
/* Sets "nearest": the published steps that are nearest to this one. */
void dh_nearest_json(const dh_step_facts *facts, json_t *document);

/* NULL: out of memory */
json_t *dh_simulated_json(const dh_simulated_list *list);

#endif
