/* Measurements of a cluster: rows that its costs can be held against. */
#ifndef DH_CALIBRATE_MEASURED_H
#define DH_CALIBRATE_MEASURED_H

#include "costs/cluster.h"
#include "costs/profile.h"

/* X(id, text): what a row tells about. */
#define DH_MEASURED_LIST(X)                                                                        \
    X(LOCAL, "collectives inside a node")                                                          \
    X(LOCAL_TRANSFER, "transfers inside a node")                                                   \
    X(NETWORK, "collectives between nodes")                                                        \
    X(NETWORK_TRANSFER, "transfers between nodes")                                                 \
    X(GEMM, "GEMMs")                                                                               \
    X(NORM, "norms")                                                                               \
    X(ATTN, "attention")                                                                           \
    X(ATTN_GRAD, "gradients of attention")

typedef enum dh_measured_kind {
#define X(id, text) DH_MEASURED_##id,
    DH_MEASURED_LIST(X)
#undef X
        DH_N_MEASURED
} dh_measured_kind;
const char *dh_measured_text(dh_measured_kind kind);

typedef struct dh_measured_row {
    dh_measured_kind kind;
    const char *group; /* "all_reduce, 8 ranks on 1 node, from 1 MiB": rows that differ by size */
    double weight;     /* in the fit */
    const char *file;
    int32_t line;      /* 0: of several places of a trace */
    int32_t n_samples; /* that it is the median of; 0: not known */
    double ns;
    dh_op_type type; /* of a collective, with its span and its bytes as cluster.h counts them */
    dh_cluster_span span;
    double bytes; /* of a norm those that it reads and writes */
    dh_gemm_shape gemm;
    dh_attention_work attention;
    bool held; /* left out of the fit */
} dh_measured_row;
static inline bool dh_measured_is_call(const dh_measured_row *row)
{
    return row->kind < DH_MEASURED_GEMM;
}

/* The kind of computation of a device's kernel. */
typedef enum dh_kernel_kind {
    DH_KERNEL_GEMM,      /* rows, columns, shared, batch */
    DH_KERNEL_ATTN,      /* batch, heads, heads of keys, tokens, channels of a head */
    DH_KERNEL_ATTN_GRAD, /* the same */
    DH_KERNEL_NORM,      /* rows, width */
    /* The sizes of the following are rows and width, too. No constant rests on them. */
    DH_KERNEL_SOFTMAX,
    DH_KERNEL_SOFTMAX_GRAD,
    DH_KERNEL_SILU,
    DH_KERNEL_SILU_GRAD,
    DH_KERNEL_GELU,
    DH_KERNEL_GELU_GRAD,
    DH_KERNEL_MUL,
    DH_KERNEL_ADD
} dh_kernel_kind;

enum { DH_KERNEL_SIZES = 5 };

/* Median of the kernels of one kind and these sizes in a trace. */
typedef struct dh_measured_kernel {
    dh_kernel_kind kind;
    dh_dtype dtype;
    int64_t size[DH_KERNEL_SIZES]; /* as the kind says; 0: none */
    bool unmasked;                 /* attention of every token to all others */
    double ns;
    int32_t n_samples;
} dh_measured_kernel;

/* Two operators that ran at the same time. */
typedef struct dh_measured_pair {
    dh_cluster_class classes[2];
    double oef;
    const char *file;
} dh_measured_pair;

typedef struct dh_measured {
    dh_arena *arena;                /* owns strings */
    DH_VEC(dh_measured_pair) pairs; /* of profiles */
    DH_VEC(dh_measured_row) rows;
    DH_VEC(dh_measured_kernel) kernels; /* of traces; rows too */
    DH_VEC(const char *) notes;         /* missing parts of files, for people */
    int64_t node_devices;               /* how ranks lie on nodes where a file does not say */
} dh_measured;

dh_status dh_measured_init(dh_ctx *ctx, int64_t node_devices, dh_measured *measured);
void dh_measured_fini(dh_measured *measured);
/* Measurements on which constants can rest: rows and pairs. */
static inline size_t dh_measured_count(const dh_measured *measured)
{
    return measured->rows.n + measured->pairs.n;
}
/* Add what a file says; its form is found by its contents.
 * errors    DH_EFORMAT with file, line and what would be right; DH_EIO; DH_ENOMEM */
dh_status dh_measured_read(dh_ctx *ctx, const char *path, dh_measured *measured);

/* ---- inside the folder: readers ---------------------------------------------------------- */

/* A file while it is read. */
typedef struct measured_file {
    dh_ctx *ctx;
    dh_measured *m;
    const char *path; /* in the arena */
    const char *text; /* terminated */
    size_t n_bytes;
} measured_file;

dh_status measured_read_nccl(const measured_file *file);
dh_status measured_read_gemms(const measured_file *file);
dh_status measured_read_kineto(const measured_file *file);
dh_status measured_read_profile(const measured_file *file);
bool measured_is_profile(const char *text);
/* Of an operator of a profile, by the first word of its key; DH_N_OP_TYPE: none. */
dh_op_type measured_op_type(const dh_profile_op *op);
/* Add what a profile's operators took alone. */
dh_status measured_add_solos(const measured_file *file, const dh_profile *profile);

dh_status measured_no_memory(const measured_file *file);
dh_status measured_note(const measured_file *file, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Add a row of `ranks` ranks, evenly on `nodes` nodes whose other devices do the same meanwhile.
 * type RING_EXCHANGE: all send to the next. */
dh_status measured_add_collective(const measured_file *file, int32_t line, dh_op_type type,
                                  int64_t ranks, int64_t nodes, double bytes, double ns);
/* m x k times k x n, `batch` of them. */
dh_status measured_add_gemm(const measured_file *file, int32_t line, dh_dtype dtype, int64_t m,
                            int64_t n, int64_t k, int64_t batch, double ns);
/* Whether it can be a row's time, its bytes or its rate: above 0, and within what is computed with.
 * NaN cannot. */
static inline bool measured_is_number(double value)
{
    return value > 0 && value < 1e18;
}
/* Nothing is done in less than a nanosecond. */
static inline bool measured_is_time(double ns)
{
    return ns >= 1 && ns < 1e18;
}
/* A kernel of a trace; a row too where it is a GEMM, attention or a norm. */
dh_status measured_add_kernel(const measured_file *file, const dh_measured_kernel *kernel);
/* By any of the names that files have for it ("fp16", "c10::BFloat16"); false: neither float32 nor
 * a half. */
bool measured_dtype(const char *name, dh_dtype *dtype);

#endif
