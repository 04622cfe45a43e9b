/* Profiles: measured times of operators, alone and in pairs, and their file.
 *
 * Operators form a class when everything that their time depends on is equal. A class has a
 * canonical text, its key, and is measured once. Facts hold for a whole profile: machine, threads,
 * mesh, links, versions. They are its signature. A profile answers only for runs with the same
 * facts. All times are in nanoseconds. */
#ifndef DH_COSTS_PROFILE_H
#define DH_COSTS_PROFILE_H

#include "costs/costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- classes of operators -------------------------------------------------------------- */

#define DH_OP_KEY_BYTES 768
#define DH_OP_LABEL_BYTES 64

/* The key of an operator's class, as in these examples:
 *
 *   linear x=bf16[512,256] w=bf16[768,256] y=bf16[512,768]; B=4 T=128 H=4 K=4 D=64 ...
 *   all_gather x=bf16[256,256] y=bf16[512,256]; tp of 2, local
 *
 * Both ends of a transfer between stages are one class, since they take their time together.
 * Optional parameters are left out. A bias adds little. Position embeddings are only on the first
 * rank of a tensor-parallel group, and all ranks of a group must have the same classes.
 * in        op: with the shapes of the first tensor-parallel rank, where they differ
 * returns   key */
const char *dh_op_class_key(const dh_cost_op *op, char key[DH_OP_KEY_BYTES]);
/* "linear qkv": operator and its result, for people.
 * returns   label */
const char *dh_op_label(const dh_graph *graph, const dh_op *op, char label[DH_OP_LABEL_BYTES]);

/* Name of an operator on this engine in the published H100 matrix: "gemm_mlp_c", "attn_l_d",
 * "intra_rs"; NULL where it has none. */
const char *dh_op_oef_name(const dh_graph *graph, const dh_op *op, dh_engine engine);

/* ---- profiles ---------------------------------------------------------------------------- */

/* "parallel.tp" is "2" */
typedef struct dh_profile_fact {
    const char *name, *value;
} dh_profile_fact;

typedef struct dh_profile_op {
    const char *key;   /* dh_op_class_key */
    const char *label; /* label of the class' first operator */
    dh_stream stream;
    bool forward, backward; /* strands in which it occurs; neither: the optimizer's and others */
    dh_pair_source source;
    int64_t solo_ns;     /* median of the samples, 1..DH_PAIR_MAX_NS */
    int64_t spread_ns;   /* from their first to their third quartile */
    int64_t estimate_ns; /* by the estimates of that run; 0: not known */
    int32_t n_samples;
} dh_profile_op;

/* Completion times of two operators that start together. */
typedef struct dh_profile_pair {
    uint32_t a, b; /* indices of operators: of the forward strand, of the backward strand */
    dh_pair_source source;
    int64_t a_ns, b_ns; /* medians, 1..DH_PAIR_MAX_NS */
    int64_t a_spread_ns, b_spread_ns;
    int32_t n_samples;
} dh_profile_pair;

typedef struct dh_profile {
    dh_arena *arena;  /* owns the struct and all texts */
    const char *name; /* for messages: its file, or what made it */
    DH_VEC(dh_profile_fact) facts;
    DH_VEC(dh_profile_op) ops;
    DH_VEC(dh_profile_pair) pairs;
    int64_t launch_ns, event_ns; /* as in dh_costs; 0: not known */
    struct dh_profile_index *index;
} dh_profile;

/* An empty profile.
 * in        name: copied
 * out       caller frees with dh_profile_destroy
 * errors    DH_ENOMEM */
dh_status dh_profile_create(dh_ctx *ctx, const char *name, dh_profile **profile);
void dh_profile_destroy(dh_profile *profile);

/* Add an entry. An operator of a known key, or a pair of the same operators, replaces the present
 * one.
 * in        texts: copied
 * out       *id: index of the operator; id may be NULL
 * errors    DH_EINVAL a fact twice, or times or indices out of range; DH_ENOMEM */
dh_status dh_profile_add_fact(dh_ctx *ctx, dh_profile *profile, const char *name,
                              const char *value);
dh_status dh_profile_add_op(dh_ctx *ctx, dh_profile *profile, const dh_profile_op *op,
                            uint32_t *id);
dh_status dh_profile_add_pair(dh_ctx *ctx, dh_profile *profile, const dh_profile_pair *pair);

/* DH_NONE when there is none. Constant time, any thread. */
uint32_t dh_profile_find_op(const dh_profile *profile, const char *key);
/* Index of the ordered pair (a, b). */
uint32_t dh_profile_find_pair(const dh_profile *profile, uint32_t a, uint32_t b);

/* Whether a profile has these facts. The message names the first that differs, with both values.
 * errors    DH_EINVAL */
dh_status dh_profile_check(dh_ctx *ctx, const dh_profile *profile, const dh_profile_fact *facts,
                           size_t n);
/* A copy for reading, all of it in the arena; NULL: out of memory. Not to be destroyed. */
const dh_profile *dh_profile_copy(dh_arena *arena, const dh_profile *profile);
/* Hash of everything that costs depend on. */
uint64_t dh_profile_hash(const dh_profile *profile);
/* Hash of the facts, for names of files. */
uint64_t dh_profile_facts_hash(const dh_profile_fact *facts, size_t n);

/* Adds the content of `from` to `into`. Where both know something, `from` counts.
 * errors    DH_EINVAL other facts; DH_ENOMEM (into may then have part of it) */
dh_status dh_profile_merge(dh_ctx *ctx, dh_profile *into, const dh_profile *from);

/* ---- profile_trust.c: times from a busy machine ------------------------------------------- */

/* Measured times of a profile that are impossible unless another program was running. Other load
 * makes operators slower, never faster. A pair with times s (shorter) and l (longer) alone is doubtful
 * in two cases (overlap effectiveness outside of -1 to 1):
 *   - it ends before l;
 *   - it ends after l + 2 s.
 * Deviations below a tenth of l, and those of operators below 20 us, are no sign of load. */
typedef struct dh_profile_doubts {
    size_t n_pairs, n_doubtful;
} dh_profile_doubts;
dh_profile_doubts dh_profile_doubt(const dh_profile *profile);
/* More than a twentieth of the pairs: other load was there. */
bool dh_profile_is_noisy(dh_profile_doubts doubts);
/* Keep the quieter of two measurements of each operator and of each pair: the shorter one. Operators
 * and pairs that only `from` has are added.
 * errors    DH_ENOMEM */
dh_status dh_profile_keep_quieter(dh_ctx *ctx, dh_profile *into, const dh_profile *from);
/* Makes the measured times of a profile agree with each other, in place:
 *
 *   measured                                          becomes
 *   an operator ends sooner in half of its pairs      its time alone: the lower quartile of its
 *   than alone, by a tenth or more                    times in pairs
 *   a pair that is impossible                         neither end is known; costs take the median
 *                                                     of the two engines
 *
 * errors    DH_ENOMEM */
dh_status dh_profile_repair(dh_ctx *ctx, dh_profile *profile);

/* ---- files ------------------------------------------------------------------------------- */

/* JSON with a checksum over its content. White space and the order of keys do not matter. Operator
 * keys of earlier versions are read, too.
 *
 *   {"profile": {"format": "dhelix-profile", "version": 1, "unit": "ns",
 *     "signature": {NAME: VALUE, ...}, "launch": N, "event": N,
 *     "operators": [{"key", "label", "stream", "strands", "source", "solo", "spread",
 *                    "estimate", "samples"}, ...],
 *     "pairs": [{"a", "b", "source", "a_end", "b_end", "a_spread", "b_spread", "samples"}]},
 *    "xxh3_128": "..."}
 *
 * out       *profile: caller frees with dh_profile_destroy; set only on DH_OK
 * errors    DH_ENOMEM, DH_EIO; reading also DH_EFORMAT malformed or changed, and DH_EUNSUPPORTED
 *           another version. The message begins with the file's name */
dh_status dh_profile_print(dh_ctx *ctx, const dh_profile *profile, dh_str *out);
dh_status dh_profile_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *name,
                           dh_profile **profile);
dh_status dh_profile_read(dh_ctx *ctx, const char *path, dh_profile **profile);
/* The old content or the new, never half. */
dh_status dh_profile_write(dh_ctx *ctx, const dh_profile *profile, const char *path);

/* ---- costs ------------------------------------------------------------------------------- */

/* Costs by a profile, which is repaired first (dh_profile_repair). No operator is faster beside
 * another than alone. Where the profile does not know an operator, the answer is `modelled`:
 *
 *   solo time   that of fallback, scaled by the ratio of the nearest measured operator on the same
 *               engine: its measured over its estimated time
 *   pair        the median rates of pairs on the same two engines
 *
 * The nearest operator is of the same type. Without one, it is the operator whose gradient the
 * unknown one is. Among several, the nearest estimate decides.
 *
 * in        profile: copied; fallback: borrowed
 * out       in the arena, valid as long as the arena and fallback; any thread
 * errors    DH_ENOMEM */
dh_status dh_profile_costs(dh_ctx *ctx, dh_arena *arena, const dh_profile *profile,
                           const dh_costs *fallback, const dh_costs **costs);

#ifdef __cplusplus
}
#endif
#endif
