/* The job file: everything one training run needs, as one struct filled from YAML, --set key=value
 * and defaults. One table row per setting (src/config/job_table.c) gives name, type, unit, default,
 * range and help. The parser, `dhelix help job`, the printed job and the manual page come from that
 * table.
 *
 * The struct is plain data, for reading; its fields may change between versions. Keys do not
 * change; dh_job_set and dh_job_get use them. */
#ifndef DHELIX_JOB_H
#define DHELIX_JOB_H

#include "dhelix/dtype.h"
#include "dhelix/export.h"
#include "dhelix/growable.h"
#include "dhelix/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dh_lr_schedule { DH_LR_COSINE, DH_LR_LINEAR, DH_LR_CONSTANT } dh_lr_schedule;
typedef enum dh_data_order {
    DH_ORDER_SHUFFLE,    /* every window once per epoch, in a seeded order */
    DH_ORDER_SEQUENTIAL, /* sample i = tokens [i*T, i*T + T] */
    DH_ORDER_RANDOM      /* seeded random offsets, as nanoGPT draws them */
} dh_data_order;
typedef enum dh_data_format {
    DH_FORMAT_TEXT,
    DH_FORMAT_CHAT /* conversations, of which the answers are learnt */
} dh_data_format;
typedef enum dh_packing {
    DH_PACKING_NONE,
    DH_PACKING_PACK, /* whole documents in rows of T, that do not see each other */
    DH_PACKING_GROUP /* the same rows' documents by length, with a mesh for each group */
} dh_packing;
typedef enum dh_recompute {
    DH_RECOMPUTE_NONE,
    DH_RECOMPUTE_SELECTIVE,
    DH_RECOMPUTE_FULL,
    DH_RECOMPUTE_ATTENTION /* scores alone, of systems that would keep them */
} dh_recompute;
/* How many pieces at least a bucket is stepped in, each as its gradients come (CoCoNet's fused
 * optimizer); auto: by costs where the strategy searches, else off. */
typedef enum dh_fuse {
    DH_FUSE_AUTO,
    DH_FUSE_OFF,
    DH_FUSE_1,
    DH_FUSE_2,
    DH_FUSE_4,
    DH_FUSE_8,
    DH_N_FUSE
} dh_fuse;
/* 0 of auto and off. */
static inline int64_t dh_fuse_pieces(dh_fuse fuse)
{
    return fuse < DH_FUSE_1 ? 0 : (int64_t)1 << (fuse - DH_FUSE_1);
}

/* When ranks that share out the optimizer send each other the parameters they updated. */
typedef enum dh_param_gather { DH_GATHER_OPTIMIZER, DH_GATHER_FORWARD } dh_param_gather;
/* Of how many micro-batches gradients are reduced at once, where ranks share them out. */
typedef enum dh_gradient_sync { DH_GRADIENT_SYNC_LAST, DH_GRADIENT_SYNC_EVERY } dh_gradient_sync;
/* For how long parameters that ranks share out stay gathered in a forward or backward: for one
 * micro-batch, or for those that follow each other through a virtual stage. */
typedef enum dh_regather_by { DH_REGATHER_MICRO, DH_REGATHER_STAGE } dh_regather_by;
/* The fate of gathered parameters between a block's forward and its backward: one of these, or the
 * number of ranks that keep shards of them. */
enum { DH_RESHARD_TRUE = 0, DH_RESHARD_FALSE = -1, DH_RESHARD_NODE = -2 };
typedef enum dh_mpi_wait { DH_MPI_WAIT_YIELD, DH_MPI_WAIT_SLEEP, DH_MPI_WAIT_BLOCK } dh_mpi_wait;
/* How ranks whose programs run on GPUs communicate. */
typedef enum dh_gpu_comm {
    DH_GPU_COMM_AUTO,
    DH_GPU_COMM_NCCL,
    DH_GPU_COMM_DEVICE, /* by copies on the GPU that they share */
    DH_GPU_COMM_HOST
} dh_gpu_comm;
/* Whether a step's commands on a GPU are launched as one graph. */
typedef enum dh_job_capture {
    DH_JOB_CAPTURE_OFF,
    DH_JOB_CAPTURE_AUTO,
    DH_JOB_CAPTURE_ON
} dh_job_capture;
/* Whether products make GELU of what they compute; auto: where the device gains by it. */
typedef enum dh_fuse_gelu { DH_FUSE_GELU_AUTO, DH_FUSE_GELU_OFF, DH_FUSE_GELU_ON } dh_fuse_gelu;
typedef enum dh_barriers { DH_BARRIERS_AUTO, DH_BARRIERS_EVENTS, DH_BARRIERS_FULL } dh_barriers;
typedef enum dh_cp_linear { DH_CP_LINEAR_LASP2, DH_CP_LINEAR_LASP1 } dh_cp_linear;
/* Type in which data-parallel ranks reduce gradients. */
typedef enum dh_grad_dtype { DH_GRAD_DTYPE_FLOAT32, DH_GRAD_DTYPE_COMPUTE } dh_grad_dtype;
typedef enum dh_cp_grad_dtype { DH_CP_GRAD_COMPUTE, DH_CP_GRAD_FLOAT32 } dh_cp_grad_dtype;
/* How rows travel to experts on other nodes: a copy for each expert, or one for each node. */
typedef enum dh_dispatch { DH_DISPATCH_FLAT, DH_DISPATCH_NODE, DH_DISPATCH_AUTO } dh_dispatch;
/* Rows of experts whose columns are on several tensor-parallel ranks. WHOLE: every such rank sends the
 * whole row. SHARED: each sends a share of its columns, and the ranks gather them at the experts. */
typedef enum dh_tp_rows { DH_TP_ROWS_WHOLE, DH_TP_ROWS_SHARED, DH_TP_ROWS_AUTO } dh_tp_rows;
typedef enum dh_moe_mode { DH_MOE_DROPLESS, DH_MOE_CAPACITY } dh_moe_mode;

typedef enum dh_elastic_action { DH_ELASTIC_STOP, DH_ELASTIC_CONTINUE } dh_elastic_action;
typedef enum dh_spike_action { DH_SPIKE_OFF, DH_SPIKE_STOP, DH_SPIKE_BACK } dh_spike_action;
enum { DH_SPIKE_MAX_WINDOW = 1024 };

/* Work of a virtual stage on one micro-batch. */
typedef enum dh_stage_work {
    DH_STAGE_FORWARD,
    DH_STAGE_INPUT,
    DH_STAGE_WEIGHT,
    DH_N_STAGE_WORK
} dh_stage_work;

typedef struct dh_link {
    double gbps;       /* gigabits per second; 0: not paced */
    double latency_us; /* per transfer */
} dh_link;

typedef struct dh_arena dh_arena; /* memory that is freed at once, with what owns it */

/* Values that dh_job_check gave to settings left to "auto"; 0: the setting was given or is open. */
typedef struct dh_job_derived {
    int64_t ranks, dp, nodes, ranks_per_node, micro_batch, seq_len;
    bool stale; /* dh_job_set was called since: they are derived anew */
} dh_job_derived;

typedef struct dh_job {
    dh_arena *arena; /* owns every string below */
    /* Paths are NULL when not given; other strings are never NULL ("" when not given). */

    char *model_spec; /* model: preset name or path of config.json / its folder; NULL: from keys */
    dh_model model;   /* resolved; model.* overrides applied; vocab 0: from the tokenizer */
    double dropout;   /* model.dropout: residual, embedding and attention-output sites */

    char **train_files, **val_files; /* data.train, data.val */
    size_t n_train_files, n_val_files;
    char *data_weights;    /* data.weights: "7,2,1", as many as train_files, or empty: one stream */
    char *tokenizer;       /* data.tokenizer: bytes | chars | gpt2 | path */
    char *text_field;      /* data.text_field of JSON lines */
    bool special_tokens;   /* data.special_tokens: their texts become tokens */
    char *data_cache;      /* data.cache: folder for tokenized text */
    double val_fraction;   /* data.val_fraction: tail of train used when val is not given */
    dh_data_order order;   /* data.order */
    dh_packing packing;    /* data.packing */
    dh_data_format format; /* data.format */
    char *chat_template;   /* data.chat_template: a name, or auto */
    char *switch_groups;   /* switch.groups: "1024 dp=4; 8192 cp=2 tp=2", or empty */
    bool switch_overlap;   /* parameters and gradients move while groups are computed */

    int64_t steps;        /* train.steps */
    int64_t global_batch; /* train.batch: sequences per optimizer step, over all ranks */
    int64_t micro_batch;  /* train.micro_batch: sequences per micro-batch and data-parallel rank */
    int64_t seq_len;      /* train.seq_len: T */
    uint64_t seed;        /* train.seed */
    dh_dtype dtype;       /* train.dtype: f32 or bf16 (float32 master weights) */
    dh_fp8 fp8;           /* train.fp8: formats of layers' products, with dtype bf16 */
    int64_t threads;      /* train.threads: OpenMP threads per rank; 0: cores / ranks */
    dh_recompute recompute; /* train.recompute */
    dh_job_capture capture; /* train.capture */
    dh_fuse_gelu fuse_gelu; /* train.fuse_gelu */
    char *init_from;        /* train.init_from: checkpoint, safetensors folder or file */
    char *lora_init_from;   /* lora.init_from: adapters; the others of lora.* are model.lora */

    double lr, min_lr; /* optimizer.* */
    dh_lr_schedule lr_schedule;
    int64_t warmup_steps, decay_steps;                 /* decay_steps 0: steps */
    double beta1, beta2, eps, weight_decay, grad_clip; /* grad_clip 0: off */
    double router_bias_rate; /* optimizer.router_bias_rate; 0: biases of routers stay */
    bool post_validation;    /* optimizer.post_validation: stages step before the norm is known */
    dh_fuse fuse;            /* optimizer.fuse: shards step as their gradients come, in pieces */

    int64_t eval_every, eval_batches;          /* eval.*; 0: never / all windows */
    int64_t checkpoint_every, checkpoint_keep; /* checkpoint.*; every 0: only at the end */
    bool checkpoint_async; /* checkpoint.async: written while training goes on */
    bool checkpoint_last;  /* checkpoint.last: one is written after the last step */
    char *out_dir;         /* out: run folder */

    dh_spike_action spike_action; /* spike.*: what a step does that leaves the recent band */
    int64_t spike_window, spike_most;
    double spike_deviations;

    dh_elastic_action elastic_action; /* elastic.*: what a run does that has lost ranks */
    int64_t elastic_min_ranks;

    int64_t log_every;
    bool tensorboard;   /* metrics.tensorboard */
    int64_t trace_step; /* trace.step: the step that is written as a trace; 0: none */

    int64_t dp, tp, pp, cp, ep;     /* parallel.*; product dp*tp*pp*cp = ranks; ep divides dp */
    int64_t ranks;                  /* ranks; --ranks and the launcher set it by an override */
    int64_t vpp;                    /* parallel.virtual_stages */
    char *schedule;                 /* parallel.schedule: row name or a CSV file */
    char *layer_split;              /* parallel.layer_split: "3,4,4,3", "-1,*", "auto"; "": even */
    int64_t max_activations;        /* parallel.max_activations, of zb-auto; 0: pp */
    double wgrad_share;             /* parallel.wgrad_share, of zb-auto; 0: the model's */
    bool sequence_parallel;         /* parallel.sequence: SP with TP */
    dh_cp_linear cp_linear;         /* parallel.cp_linear: how states of linear attention travel */
    dh_cp_grad_dtype cp_grad_dtype; /* parallel.cp_grad_dtype: of keys' and values' gradients */
    dh_tp_rows expert_rows;  /* parallel.expert_rows: what tp ranks send of a row of experts */
    int64_t expert_tp;       /* parallel.expert_tp: ranks that share an expert; 0: tp */
    int64_t zero;            /* parallel.zero: what data-parallel ranks share out */
    int64_t prefetch;        /* parallel.prefetch: blocks gathered ahead with zero 3 */
    int64_t reshard;         /* parallel.reshard_after_forward, with zero 3: DH_RESHARD_* */
    dh_regather_by regather; /* parallel.regather: how often they are, with zero 3 */
    dh_param_gather gather;  /* parallel.gather: when parameters are, with zero 1 and 2 */
    dh_gradient_sync gradient_sync; /* parallel.gradient_sync: when gradients are, with zero 2, 3 */
    dh_grad_dtype grad_dtype;       /* parallel.grad_dtype: type in which gradients are reduced */
    double bucket_mb;               /* parallel.bucket_mb: gradient bucket size; 0: auto */
    double timeout_s;               /* parallel.timeout_s: longest wait for another rank; 0: auto */
    dh_mpi_wait mpi_wait;           /* parallel.mpi_wait: how a rank waits for others */
    dh_gpu_comm gpu_comm;           /* parallel.gpu_comm: how ranks on GPUs communicate */
    int64_t gpu_comm_sms; /* parallel.gpu_comm_sms: of a stream's calls; 0: none are held */
    bool gpu_comm_search; /* parallel.gpu_comm_search: by simulated steps */
    int64_t nodes, ranks_per_node;  /* topology.*; 0: from the launcher */
    dh_link link_local, link_cross; /* links.local, links.cross */

    char *slow_ranks, *slow_links, *slow_nodes; /* slow.*: "3,5" or empty; in simulations only */
    double slow_factor, slow_link_factor;       /* slow.factor, slow.link_factor */

    dh_moe_mode moe_mode;     /* moe.mode */
    dh_dispatch moe_dispatch; /* moe.dispatch */
    double moe_capacity;      /* moe.capacity: factor over even load; dropless: buffer bound */
    double moe_load;    /* moe.load: of the busiest expert over its even share, in predictions */
    char *moe_recorded; /* moe.recorded: run folder with what experts got; empty: moe_load */

    char *stage_ms[DH_N_STAGE_WORK]; /* stages.*: "1.5,2", all or none; not empty: no model */
    double stage_transfer_ms;

    char *device;         /* device: a row of `dhelix list devices`, "auto" */
    char *profile;        /* profile: auto | none | path; measured times of operators */
    char *system;         /* system: a row of `dhelix list systems`, and traits (system.h) */
    char *strategy;       /* strategy: a row, a sum or a mapping (src/strategy/text.c) */
    char *overlap_policy; /* overlap.policy: row of `dhelix list policies`, "auto" */
    dh_barriers overlap_barriers;
    bool overlap_local, overlap_cross, overlap_comm_comm, overlap_wgrad;
    /* overlap.memory: memory in addition to one strand's, in activations of a block; 0: auto. */
    double overlap_memory;
    dh_job_derived derived;
} dh_job;

/* A job of defaults, with the model unset.
 * out       caller frees with dh_job_destroy
 * errors    DH_ENOMEM */
DH_API dh_status dh_job_create(dh_ctx *ctx, dh_job **job);
DH_API void dh_job_destroy(dh_job *job);
/* Reads a YAML job file, applies n overrides "section.key=value", resolves the model, and checks
 * ranges and combinations (dh_job_check). Errors have file, line, column and key, and for an
 * unknown key the nearest valid one. Errors in overrides begin with "--set section.key=value".
 *
 * A later override wins. "model=name" replaces all earlier settings of the model,
 * "model.preset=name" only its source. Where path is no file, it may be the name of a job of
 * `dhelix list jobs`, "sc21-7.5b", or its path, "validation/jobs/sc21-7.5b.yaml". A value in [ ]
 * or { } is read as YAML. Relative paths of the file start at its folder, those of overrides and
 * defaults at the working folder. In the job all are absolute, except model_spec.
 *
 * out       set only on DH_OK; caller frees with dh_job_destroy
 * errors    DH_EFORMAT syntax; DH_EINVAL a value; DH_EMISSING a preset; DH_EIO; those of
 *           dh_job_check; DH_ENOMEM */
DH_API dh_status dh_job_load(dh_ctx *ctx, const char *path, const char *const *overrides,
                             size_t n_overrides, dh_job **job);
/* The same from memory (tests, fuzzing).
 * in        base_dir: start of the file's relative paths; NULL: all paths stay as they are
 * errors    those of dh_job_load */
DH_API dh_status dh_job_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *file_name,
                              const char *base_dir, const char *const *overrides,
                              size_t n_overrides, dh_job **job);
/* One setting, by its key in the job file ("train.steps"; dh_job_help lists them), as an override
 * of dh_job_load changes it: dh_job_set(ctx, job, "parallel.tp", "2"). Settings that depend on each
 * other may be set in any order; dh_job_check, called after the last, sees how they go together and
 * derives what is "auto". A setting that was derived before stays "auto": after "ranks" is set,
 * parallel.dp is derived anew. Relative paths start at the working folder.
 * errors    DH_EINVAL unknown key, with the nearest one; value: then the setting is as before;
 *           those of a model's source */
DH_API dh_status dh_job_set(dh_ctx *ctx, dh_job *job, const char *key, const char *value);
/* Its value as a text that dh_job_set takes, appended to out.
 * errors    DH_EINVAL no such setting, with the nearest names; DH_ENOMEM */
DH_API dh_status dh_job_get(dh_ctx *ctx, const dh_job *job, const char *key, dh_str *out);
/* Derives settings left to "auto", which are 0 in the struct, and checks all combinations, as
 * loading does. These settings are dp and ranks, nodes and ranks_per_node, micro_batch and seq_len.
 * Call it after the last dh_job_set. Callers that change the struct itself first set values to 0
 * that shall be derived anew. The message names the setting to change and values that would be
 * right. Vocabulary rule: shards over tp hold ceil(V / tp) rows, the last one fewer; there are no
 * padding rows.
 *
 * errors    DH_EINVAL; DH_EUNSUPPORTED settings that exclude each other. The job may then be partly
 *           derived */
DH_API dh_status dh_job_check(dh_ctx *ctx, dh_job *job);
/* Whether it has times of stages instead of a model. */
DH_API bool dh_job_has_stage_times(const dh_job *job);
/* Micro-batches of one step on each data-parallel rank. */
DH_API int64_t dh_job_n_micro(const dh_job *job);
/* Whether its sequences are rows of documents, or of conversations, and not windows of a stream. */
DH_API bool dh_job_has_rows(const dh_job *job);
/* Whether parallel.layer_split is "auto": resolving the job chooses it. */
DH_API bool dh_job_splits(const dh_job *job);
/* Step at which the learning rate is min_lr: decay_steps, or with auto the run's last. 0: it stays
 * (constant). */
DH_API int64_t dh_job_decay_end(const dh_job *job);
/* Learning rate of step s (0-based): linear warm-up lr*(s+1)/warmup, then the
 * schedule from lr down to min_lr at decay_steps, then min_lr. */
DH_API double dh_job_lr(const dh_job *job, int64_t step);
/* The job as YAML with every setting and its value. It parses back to the same job. The model is
 * spelled out, so its file is no longer needed and model_spec becomes NULL.
 * out       *text: caller frees
 * errors    DH_ENOMEM */
DH_API dh_status dh_job_print(dh_ctx *ctx, const dh_job *job, char **text);
/* Appends a line "section.key: value" for every setting that must be equal on all ranks of a
 * run. Paths of data and profiles on a rank's own machine, and its threads, are not among them.
 * errors    DH_ENOMEM */
DH_API dh_status dh_job_print_common(dh_ctx *ctx, const dh_job *job, dh_str *out);
/* Settings with type, unit, default, range and help, in lines of width columns: all (name NULL), a
 * section ("parallel" or "train.") or one ("train.steps"). Returns how many there are. */
DH_API size_t dh_job_help(const char *name, int width, dh_str *out);

#ifdef __cplusplus
}
#endif
#endif
