/* Systems: differences of other software from ours, for the same job on the same devices.
 *
 * A system is a set of traits. A trait changes times of operators, which operators run at once,
 * or what the backward computes again; one line describes it. The rows are systems with
 * published measurements. A job names one and may add traits to it (setting `system`). Programs
 * stay ours: a job of another system is simulated, never trained. */
#ifndef DH_COSTS_SYSTEM_H
#define DH_COSTS_SYSTEM_H

#include "costs/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, name, doc) */
#define DH_TRAIT_LIST(X)                                                                           \
    X(SCORES, "scores",                                                                            \
      "attention writes its scores to memory, and keeps them unless train.recompute drops "        \
      "them")                                                                                      \
    X(WHOLE_FORWARD, "whole-forward",                                                              \
      "train.recompute=full computes the whole layer again, including results that no "            \
      "gradient reads")                                                                            \
    X(WHOLE_LOGITS, "whole-logits", "the head makes all logits of a micro-batch at once")          \
    X(GRADIENTS_APART, "gradients-apart",                                                          \
      "tensor parallelism's communication for input gradients does not run during weight "         \
      "gradients, nor the other way round")                                                        \
    X(WAITING_TRANSFERS, "waiting-transfers",                                                      \
      "a rank computes nothing while it sends to another stage or receives from one")              \
    X(ORDERED_TRANSFERS, "ordered-transfers",                                                      \
      "transfers between stages run one after another, as PyTorch issues those of a process "      \
      "group on one stream; in dhelix they run by link and direction")                             \
    X(SPLIT_TRANSFERS, "split-transfers",                                                          \
      "without sequence parallelism each tensor-parallel rank sends a part to the next stage, "    \
      "which gathers them")                                                                        \
    X(REPEATED_KV, "repeated-kv",                                                                  \
      "keys and values are repeated for all query heads before context-parallel ranks "            \
      "exchange them")                                                                             \
    X(REDUCED_LAST, "reduced-last",                                                                \
      "gradients are reduced over data-parallel ranks only when a rank has nothing else to do")    \
    X(UNFUSED_OPTIMIZER, "unfused-optimizer",                                                      \
      "separate passes unscale gradients and set them to zero, 12 bytes a parameter, and "         \
      "another one makes the half-precision copy, 4 bytes")                                        \
    X(HOST_WAITS, "host-waits",                                                                    \
      "the host waits for a message from another stage before it issues the next operators; "      \
      "they start 150 us later, or, in a system with a host time, as late as the host issues "     \
      "them")                                                                                      \
    X(LOSS_WAITS, "loss-waits",                                                                    \
      "the host waits for the loss of every micro-batch before it issues the next operators")      \
    X(TORCH_KERNELS, "torch-kernels",                                                              \
      "the host issues kernels as PyTorch launches them: several for an operator, and those "      \
      "of gradients four times as fast; without this trait an operator is one kernel")             \
    X(CAPTURED, "captured",                                                                        \
      "a layer's forward and its backward are CUDA graphs: the host issues each as one kernel")    \
    X(SECOND_PRODUCTS, "second-products",                                                          \
      "train.recompute=selective also computes every second matrix multiplication of a layer "     \
      "again")                                                                                     \
    X(FLOAT_LOSS, "float-loss",                                                                    \
      "logits become float32; separate passes compute the loss and its gradient, 26 bytes a "      \
      "logit more")                                                                                \
    X(EAGER, "eager",                                                                              \
      "norms, rotations and activations take one pass for every arithmetic operator, in "          \
      "float32")                                                                                   \
    X(MASKS, "masks", "the forward keeps a byte for each element that dropout was applied to")     \
    X(SHARDED_GRADIENTS, "sharded-gradients",                                                      \
      "each data-parallel rank keeps a shard of the gradients, and one bucket whole (ZeRO-2)")     \
    X(HALF_GRADIENTS, "half-gradients",                                                            \
      "gradients are kept and reduced in the type of train.dtype, as with "                        \
      "parallel.grad_dtype=compute")                                                               \
    X(MATRIX_COLLECTIVES, "matrix-collectives",                                                    \
      "zero 3: a block's parameters are gathered, and its gradients reduced, in as many "          \
      "messages as it has matrices, not in one")                                                   \
    X(FIRST_FLASH, "first-flash",                                                                  \
      "attention of the first FlashAttention: 0.4 of an A100's peak forward, 0.3 backward; on "    \
      "other devices 0.73 and 0.6 of the second version's speed")                                  \
    X(SECOND_FLASH, "second-flash",                                                                \
      "attention at most as fast as FlashAttention-2, which does not use Hopper's "                \
      "instructions: 335 TFLOP/s forward, 322 backward")                                           \
    X(TORCH_PRODUCTS, "torch-products",                                                            \
      "devices with 8-bit matrix multiplications (Hopper and later): all matrix "                  \
      "multiplications run at 0.68 of the cluster's rate, as in PyTorch")                          \
    X(TORCH_RINGS, "torch-rings",                                                                  \
      "context parallelism: attention to keys of other ranks takes 1.65 times as long, as in "     \
      "PyTorch")                                                                                   \
    X(ROUNDED_ONCE, "rounded-once",                                                                \
      "train.fp8: an operand is rounded once for all matrix multiplications that read it, "        \
      "with its transpose; weights once a step; tensor parallelism gathers rounded operands")      \
    X(TWO_STREAMS, "two-streams",                                                                  \
      "parts of a layer's matrix multiplication, as in rings, run on two streams in turn: "        \
      "together they fill their waves as the whole one does")                                      \
    X(SUMMED_ONCE, "summed-once",                                                                  \
      "rings of tensor parallelism keep partial sums and add all of them in one pass")             \
    X(OVERLAPPING_STEPS, "overlapping-steps",                                                      \
      "a stage begins its next step when it has ended its own (post-validation, Zero Bubble, "     \
      "4); planned schedules then shorten the span of the longest stage, not the whole step")      \
    X(EXPERT_KERNELS, "expert-kernels",                                                            \
      "experts: routers, sorts and the matrix multiplications of single experts are separate "     \
      "kernels, and rows are put in order by expert once more after their exchange")               \
    X(UNFUSED_EXPERTS, "unfused-experts",                                                          \
      "as expert-kernels, and choices and permutations are PyTorch's kernels, with one pass "      \
      "over rows each")                                                                            \
    X(SHARED_ROWS, "shared-rows",                                                                  \
      "tensor-parallel ranks that cut experts into columns each send a share of the rows and "     \
      "gather them after the exchange, where that is faster")                                      \
    X(ONE_COPY, "one-copy",                                                                        \
      "a token goes once to every node that has experts of its choice, and from there to "         \
      "their ranks (DeepEP, HybridEP)")

typedef enum dh_trait {
#define X(id, name, doc) DH_TRAIT_##id,
    DH_TRAIT_LIST(X)
#undef X
        DH_N_TRAIT
} dh_trait;
const char *dh_trait_name(dh_trait trait);
const char *dh_trait_doc(dh_trait trait);

typedef struct dh_system {
    const char *name, *doc;
    const char *source; /* where its traits are said, or measured; "" of ours */
    uint64_t traits;    /* 1 << dh_trait */
    double host_ns;     /* host's time for a kernel; a cluster's launch.host_us takes its place */
} dh_system;

static inline bool dh_system_has(const dh_system *system, dh_trait trait)
{
    return system->traits >> trait & 1;
}

/* The first one is ours, without traits. */
const dh_system *dh_systems(size_t *n);
/* "NAME", or "NAME+TRAIT+...".
 * out       its strings are the row's; its name is the text, borrowed
 * errors    DH_EMISSING with the nearest name */
dh_status dh_system_read(dh_ctx *ctx, const char *text, dh_system *system);

/* The job's values on which a system's costs depend. */
typedef struct dh_system_job {
    dh_sequence sequence;
    bool scores_again; /* the backward makes attention's scores again */
    bool selective;    /* train.recompute=selective */
    bool fp8;
    int64_t n_micro; /* micro-batches of a step */
} dh_system_job;

/* The job's values that the system's costs on that cluster depend on; the others are 0. Jobs
 * with equal values have equal costs. */
dh_system_job dh_system_heeds(const dh_system *system, const dh_system_job *job,
                              const dh_cluster *cluster);

static inline bool dh_system_jobs_equal(const dh_system_job *a, const dh_system_job *b)
{
    return a->sequence == b->sequence && a->scores_again == b->scores_again &&
           a->selective == b->selective && a->fp8 == b->fp8 && a->n_micro == b->n_micro;
}

/* Costs of a cluster under that system.
 * in        system: copied; cluster: must outlive the costs
 * out       in the arena; those of dh_cluster_costs for a system without traits
 * errors    DH_ENOMEM */
dh_status dh_system_costs(dh_ctx *ctx, dh_arena *arena, const dh_system *system,
                          const dh_system_job *job, const dh_cluster *cluster,
                          const dh_costs **costs);

#ifdef __cplusplus
}
#endif
#endif
