/* Compute kernels of the cpu device: plain functions on raw pointers.
 *
 * Conventions
 *   dtype     DH_F32 or DH_BF16 of activations and weights (`void *`). Sums and 1-D
 *             parameters (biases, norm weights) are float32. Gradients of parameters
 *             are float32, too. A call overwrites them, or adds to them if
 *             `accumulate` is set.
 *   layout    Row-major, rows are tokens; N rows, C columns unless named otherwise.
 *   aliasing  Outputs overlap no input, except where "in place" is said.
 *   threads   OpenMP inside; the calling thread's omp_set_num_threads() decides.
 *             Any number of threads may call at the same time. No call allocates,
 *             except that oneDNN keeps some bookkeeping per GEMM call.
 *   bits      Results do not depend on the number of threads, nor on how often a
 *             call is repeated. GEMMs: for the thread count of their creation.
 *   scratch   Functions with a `ws` name their workspace function, in bytes;
 *             64-byte aligned.
 *   errors    Only dh_gemm_create and the thread helpers can fail; arguments out
 *             of range are the caller's bug.
 *
 * Inner loops live in simd/, compiled for AVX-512, AVX2+FMA and the baseline; the
 * best one the machine has is used (DHELIX_CPU_ISA=base|avx2|avx512 lowers it). */
#ifndef DH_RUN_CPU_KERNELS_H
#define DH_RUN_CPU_KERNELS_H

#include "dhelix/dtype.h"
#include "dhelix/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- GEMM ------------------------------------------------------------------------------ */

/* C [m,n] = op(A) op(B) + bias [n], or C += op(A) op(B). op(A) is [m,k], op(B) is [k,n].
 *   linear        y[N,O]   = x[N,I] w[O,I]^T   m=N n=O k=I  trans_b
 *   linear dgrad  dx[N,I]  = dy[N,O] w[O,I]    m=N n=I k=O
 *   linear wgrad  dw[O,I] += dy[N,O]^T x[N,I]  m=O n=I k=N  trans_a, out f32 */
typedef struct dh_gemm_desc {
    int64_t m, n, k;
    bool trans_a, trans_b; /* A is stored [k,m]; B is stored [n,k] */
    int64_t lda, ldb, ldc; /* elements from one stored row to the next; 0: dense */
    dh_dtype in, out;      /* A and B; C. DH_F32 in needs DH_F32 out */
    bool accumulate;       /* C += */
    bool bias;             /* float32 [n]; not with accumulate */
    bool row_invariant;    /* row i of C must not change bits with m (sliced GEMMs) */
} dh_gemm_desc;

typedef struct dh_gemm dh_gemm;

/* Chooses the fastest way for the shape by a fixed rule (gemm.c). The caller's
 * thread count at creation is the one every run uses.
 * errors    DH_EINVAL sizes or types; DH_EINTERNAL, DH_ENOMEM from oneDNN */
dh_status dh_gemm_create(dh_ctx *ctx, const dh_gemm_desc *desc, dh_gemm **gemm);
void dh_gemm_destroy(dh_gemm *gemm);
size_t dh_gemm_workspace(const dh_gemm *gemm);
/* Generates the code that float32 GEMMs share, once a process.
 * errors    DH_ENOMEM; DH_EINTERNAL the code cannot be generated */
dh_status dh_gemm_get_ready(dh_ctx *ctx);
/* One line for logs: the method and oneDNN's implementation. */
const char *dh_gemm_method(const dh_gemm *gemm);
/* Runs of one object may overlap in time when each has its own ws.
 * errors    DH_EINTERNAL oneDNN refuses */
dh_status dh_gemm_run(dh_ctx *ctx, const dh_gemm *gemm, const void *a, const void *b,
                      const float *bias, void *c, void *ws);

/* ---- rounding to 8 bits (fp8.h) -------------------------------------------------------------- */

/* y = x [N,C], every row rounded to numbers of the format times a power of two of its own. The
 * result is bf16, which holds them; y may be x. */
void dh_k_fp8_rows(dh_fp8_format format, int64_t N, int64_t C, const dh_bf16 *x, dh_bf16 *y);
/* The same of every column; scales: C floats of scratch. */
void dh_k_fp8_columns(dh_fp8_format format, int64_t N, int64_t C, const dh_bf16 *x, dh_bf16 *y,
                      float *scales);
/* The columns of each expert's rows. Rows offsets[s] to offsets[s+1] are those of expert s mod
 * E, so an expert may have several runs. scales [E,C] as above. Rows of y after the last run
 * stay as they are. */
void dh_k_fp8_expert_columns(dh_fp8_format format, int64_t E, int64_t n_runs,
                             const int64_t *offsets, int64_t C, const dh_bf16 *x, dh_bf16 *y,
                             float *scales);

/* ---- norms ----------------------------------------------------------------------------- */

/* y = (x - mean) rstd w + b (LayerNorm; b may be NULL) or x rstd w (RMSNorm).
 * stats [N,2] = mean, rstd; RMSNorm leaves mean 0. */
void dh_k_norm_fwd(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *x,
                   const float *w, const float *b, float eps, void *y, float *stats);
/* dx = gradient through the norm + dres (may be NULL; may be dx itself). */
void dh_k_norm_dgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                     const void *x, const float *w, const float *stats, const void *dres, void *dx);
/* dw [C] and db [C] (may be NULL). */
void dh_k_norm_wgrad(dh_norm_kind kind, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                     const void *x, const float *stats, float *dw, float *db, bool accumulate);

/* Packed rows [N,(H+2KV)D]: every head of q and k is normed as RMSNorm does a row, v is copied.
 * stats [N,H+KV,2]. */
typedef struct dh_heads {
    int64_t N, H, KV, D;
} dh_heads;
void dh_k_head_norm_fwd(dh_dtype dtype, dh_heads h, const void *qkv, const float *w_q,
                        const float *w_k, float eps, void *out, float *stats);
void dh_k_head_norm_dgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                          const float *w_q, const float *w_k, const float *stats, void *dqkv);
/* dw_q [D], dw_k [D]; bit 0 and 1 of accumulate: added to. */
size_t dh_k_head_norm_wgrad_workspace(dh_heads h);
void dh_k_head_norm_wgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                          const float *stats, float *dw_q, float *dw_k, unsigned accumulate,
                          void *ws);

/* The same rows, with all heads of q normed together by w_q [HD], and all heads of k by w_k
 * [KD]; v is copied. A rank may have some of the heads. sums [N,4] = squares of q and their
 * number, squares of k and their number. They must be added over the ranks before use. */
void dh_k_qk_squares(dh_dtype dtype, dh_heads h, const void *qkv, float *sums);
void dh_k_qk_norm_fwd(dh_dtype dtype, dh_heads h, const void *qkv, const float *sums,
                      const float *w_q, const float *w_k, float eps, void *out);
/* dots [N,4] = sums of w dy x over q (first) and k (third), 0 else; to be added over the ranks. */
void dh_k_qk_norm_dots(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                       const float *w_q, const float *w_k, float *dots);
void dh_k_qk_norm_dgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                        const float *sums, const float *w_q, const float *w_k, const float *dots,
                        float eps, void *dqkv);
/* dw_q [HD], dw_k [KD]; bit 0 and 1 of accumulate: added to. */
size_t dh_k_qk_norm_wgrad_workspace(dh_heads h);
void dh_k_qk_norm_wgrad(dh_dtype dtype, dh_heads h, const void *dy, const void *qkv,
                        const float *sums, float eps, float *dw_q, float *dw_k, unsigned accumulate,
                        void *ws);

/* ---- dropout, residual, bias ----------------------------------------------------------- */

/* Bits are a function of (seed, step, site, sample, position, column). Every mesh and every
 * schedule therefore drops the same elements. NULL, or prob 0: none. */
typedef struct dh_dropout {
    float prob; /* of an element to become 0; in [0, 1) */
    uint64_t seed, step;
    uint32_t site;             /* layer and place in it */
    const int64_t *row_sample; /* [N] sample index of each row */
    const int32_t *row_pos;    /* [N] position of each row in its sample */
} dh_dropout;

/* out = x + dropout(p + bias); bias may be NULL. In place on x or p. */
void dh_k_residual(dh_dtype dtype, int64_t N, int64_t C, const void *x, const void *p,
                   const float *bias, const dh_dropout *drop, void *out);
/* dp = mask * dout / (1 - prob): gradient of dropout. In place. */
void dh_k_dropout_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dout,
                       const dh_dropout *drop, void *dp);
/* db[C] = column sums of dy. */
void dh_k_bias_grad(dh_dtype dtype, int64_t N, int64_t C, const void *dy, float *db,
                    bool accumulate);

/* ---- activations ----------------------------------------------------------------------- */

/* GELU(h) with tanh = h sigmoid(2 sqrt[2/pi] [h + 0.044715 h^3]), n elements. In place. */
void dh_k_gelu_fwd(dh_dtype dtype, int64_t n, const void *h, void *g);
void dh_k_gelu_bwd(dh_dtype dtype, int64_t n, const void *dg, const void *h, void *dh);
/* h [N,2F] = gate | up; g [N,F] = silu(gate) up. bwd: dh may be h. */
void dh_k_swiglu_fwd(dh_dtype dtype, int64_t N, int64_t F, const void *h, void *g);
void dh_k_swiglu_bwd(dh_dtype dtype, int64_t N, int64_t F, const void *dg, const void *h, void *dh);

/* g = gelu(gate) up, GELU with tanh. */
void dh_k_geglu_fwd(dh_dtype dtype, int64_t N, int64_t F, const void *h, void *g);
void dh_k_geglu_bwd(dh_dtype dtype, int64_t N, int64_t F, const void *dg, const void *h, void *dh);

/* y = c tanh(x / c) of n logits; gradient dx = dy (1 - y^2 / c^2), of dtype. In place both. */
void dh_k_softcap_fwd(int64_t n, float c, const float *x, float *y);
void dh_k_softcap_bwd(dh_dtype dtype, int64_t n, float c, const void *dy, const float *y, void *dx);

/* ---- rotary position embedding --------------------------------------------------------- */

/* table [max_pos, 2, D/2] = cos, then sin, of pos * frequency, computed in float64. Frequency i is
 * theta^(-2i/D), scaled as in HF's "linear" or "llama3"; theta 0 gives 0. */
void dh_k_rope_table(const dh_rope *rope, int64_t max_pos, int64_t D, float *table);
/* The same for longrope: frequency i is divided by factor i, and all is multiplied by mscale. Which
 * factors and mscale: short ones up to rope->original_max_seq positions, else long ones. */
void dh_k_longrope_table(const dh_rope *rope, const dh_longrope *longrope, int64_t max_pos,
                         int64_t D, float *table);
/* Rotates the q and k parts of packed rows [N,(H+2KV)D] by row_pos [N]. NULL: by n mod T.
 * Halves (i, i + D/2) form a pair (HF). v is copied. inverse rotates back (gradient).
 * In place. */
void dh_k_rope(dh_dtype dtype, int64_t N, int64_t T, int64_t H, int64_t KV, int64_t D,
               const void *qkv, const float *table, const int32_t *row_pos, bool inverse,
               void *out);

/* ---- attention ------------------------------------------------------------------------- */

/* Query and key sets of B samples. Element (b, t, h, d) of q lies at
 * b*q_batch + t*q_row + h*D + d; k and v (KV heads), o alike. Query head h uses key
 * head h / (H/KV). A key is seen when its position is the query's or one of those
 * before it: as many as the window has, and none of another document. */
typedef struct dh_attn_shape {
    dh_dtype dtype;   /* q, k, v, do */
    dh_dtype o_dtype; /* o; DH_F32 for partial results that are merged */
    dh_dtype g_dtype; /* dq, dk, dv */
    int64_t B, Tq, Tk, H, KV, D;
    int64_t q_batch, q_row, kv_batch, kv_row, o_batch, o_row; /* elements */
    int64_t dq_batch, dq_row, dkv_batch, dkv_row;             /* elements */
    const int32_t *q_pos, *k_pos; /* [Tq], [Tk], increasing; NULL: 0, 1, 2... */
    float scale;                  /* of q.k; 0: 1/sqrt(D) */
    float softcap;                /* c: scaled scores become c tanh(score / c); 0: as they are */
    int slots;                    /* most threads in the backward pass, whose scratch grows
                                   * with them; 0: 8 */
    int64_t window;               /* keys that a query sees, its own the last of them; 0: all */
    /* Query t of sample b is number q_doc[b*q_doc_batch + t] of its document, from 0: from query
     * to query one more than before, or 0 again. NULL: a sample is one document. */
    const int32_t *q_doc;
    int64_t q_doc_batch;
} dh_attn_shape;

/* The lowest position that query t of sample b sees; it does not fall from query to query. */
static inline int64_t dh_attn_first_seen(const dh_attn_shape *s, int64_t b, int64_t t)
{
    const int64_t pos = s->q_pos ? s->q_pos[t] : t;
    const int64_t back = s->window > 0 ? s->window - 1 : pos;
    const int64_t in_doc = s->q_doc ? s->q_doc[b * s->q_doc_batch + t] : back;
    return pos - (in_doc < back ? in_doc : back);
}

/* Packed self attention: q, k, v in rows [B*T,(H+2KV)D], o [B*T,HD]; gradients alike. */
dh_attn_shape dh_attn_packed(dh_dtype dtype, int64_t B, int64_t T, int64_t H, int64_t KV,
                             int64_t D);

/* o = softmax(scale q k^T, capped) v; lse [B,H,Tq] = log of the softmax denominators. A query
 * that sees no key gets o = 0, lse = -inf. Memory: no Tq x Tk array. */
size_t dh_k_attn_fwd_workspace(const dh_attn_shape *s);
void dh_k_attn_fwd(const dh_attn_shape *s, const void *q, const void *k, const void *v, void *o,
                   float *lse, void *ws);
/* Joins attention over two disjoint key sets into (o, lse): rows as in s (q side). */
void dh_k_attn_merge(const dh_attn_shape *s, void *o, float *lse, const void *o_part,
                     const float *lse_part);
/* dq, dk, dv. o and lse are those of all keys, also when k, v are a part of them.
 * accumulate adds to all three. */
size_t dh_k_attn_bwd_workspace(const dh_attn_shape *s);
void dh_k_attn_bwd(const dh_attn_shape *s, const void *dout, const void *o, const float *lse,
                   const void *q, const void *k, const void *v, void *dq, void *dk, void *dv,
                   bool accumulate, void *ws);

/* ---- linear attention ------------------------------------------------------------------ */

/* Packed rows [B*T,(H+2KV)D] of queries, keys and values, whose gradients are alike; o and dout
 * [B*T,HD]. Query head h uses key head h / (H/KV). States [B,KV,D,D] float32: element (i, j) of a
 * head is the sum of k_i v_j over tokens; gradients of states of q_i do_j. */
typedef struct dh_linear_shape {
    dh_dtype dtype;            /* qkv, dout */
    dh_dtype o_dtype, g_dtype; /* o; dqkv. DH_F32 for what is joined with other tokens' part */
    int64_t B, T, H, KV, D;
} dh_linear_shape;
size_t dh_k_linear_workspace(const dh_linear_shape *s); /* for all functions below */
/* o_t = q_t times the sum of k_s v_s^T over the sample's tokens s <= t. state: in, the sum over
 * earlier tokens; out, the sum with these tokens. NULL: there are no earlier ones. */
void dh_k_linear_fwd(const dh_linear_shape *s, const void *qkv, float *state, void *o, void *ws);
void dh_k_linear_bwd(const dh_linear_shape *s, const void *dout, const void *qkv, void *dqkv,
                     void *ws);
/* m: state of these tokens; dm: what they give to the gradient of the state before them. */
void dh_k_linear_state(const dh_linear_shape *s, const void *qkv, float *m, void *ws);
void dh_k_linear_state_grad(const dh_linear_shape *s, const void *dout, const void *qkv, float *dm,
                            void *ws);
/* o = o_own + q before; dq = own + dout before^T, dk = own + v behind^T, dv = own + k behind.
 * before, behind NULL: 0. In place where the types are the same. */
void dh_k_linear_join(const dh_linear_shape *s, const float *o_own, const void *qkv,
                      const float *before, void *o, void *ws);
void dh_k_linear_join_bwd(const dh_linear_shape *s, const float *dqkv_own, const void *dout,
                          const void *qkv, const float *before, const float *behind, void *dqkv,
                          void *ws);
/* Feature map of every channel of q and k of packed rows; v is copied, as its gradient is. In
 * place. */
void dh_k_feature_map_fwd(dh_feature_map map, dh_dtype dtype, dh_heads h, const void *qkv,
                          void *out);
void dh_k_feature_map_bwd(dh_feature_map map, dh_dtype dtype, dh_heads h, const void *dout,
                          const void *qkv, void *dqkv);

/* ---- embedding ------------------------------------------------------------------------- */

/* x[n] = dropout(wte[token - v0] + wpe[pos]): wte holds rows v0..v1-1 of the
 * vocabulary; other tokens contribute zeros. wpe may be NULL. */
void dh_k_embed_fwd(dh_dtype dtype, int64_t N, int64_t C, const int32_t *tokens,
                    const int32_t *row_pos, const void *wte, int64_t v0, int64_t v1,
                    const void *wpe, const dh_dropout *drop, void *x);
/* dwte [v1-v0,C] and dwpe [n_pos,C] (may be NULL): sums over rows in row order. */
void dh_k_embed_bwd(dh_dtype dtype, int64_t N, int64_t C, const void *dx, const int32_t *tokens,
                    const int32_t *row_pos, const dh_dropout *drop, int64_t v0, int64_t v1,
                    int64_t n_pos, float *dwte, float *dwpe, bool accumulate);

/* ---- cross-entropy --------------------------------------------------------------------- */

/* logits [n,v1-v0] are columns v0..v1-1; stats [n,3] = max, sum of exp(logit - max),
 * logit of the target (0 when it lies in another shard). A target < 0 ignores its row. */
void dh_k_ce_stats(dh_dtype dtype, int64_t n, int64_t v0, int64_t v1, const void *logits,
                   const int32_t *targets, float *stats);
/* parts [tp,n,3] of the vocabulary shards -> stats [n,3]. */
void dh_k_ce_merge(int64_t tp, int64_t n, const float *parts, float *stats);
/* loss [n] = log(sum) + max - target logit; 0 for ignored rows. */
void dh_k_ce_loss(int64_t n, const float *stats, const int32_t *targets, float *loss);
/* dlogits = (softmax - onehot) * scale, 0 for ignored rows. In place. */
void dh_k_ce_grad(dh_dtype dtype, int64_t n, int64_t v0, int64_t v1, const void *logits,
                  const int32_t *targets, const float *stats, float scale, void *dlogits);

/* ---- whole arrays ---------------------------------------------------------------------- */

double dh_k_sum(int64_t n, const float *x); /* in float64, fixed order */
/* Exact sums (DH_SQSUM_DIGITS). Squares of each run of 32 elements are added in float64 in a fixed
 * order; runs are added exactly. An array cut at multiples of 32, or summed in another order,
 * therefore has the same sum. It is not finite where an element or a square is not. */
void dh_k_sqsum(int64_t n, const float *x, double *digits);
/* Sum of n exact sums, rows of digits. */
void dh_k_exact_sum(int64_t n, const double *rows, double *digits);
double dh_k_exact_value(const double *digits); /* sums over ranks included */
/* Index of the first NaN or infinity, -1 when there is none. */
int64_t dh_k_first_nonfinite(dh_dtype dtype, int64_t n, const void *x);

void dh_k_cast(int64_t n, dh_dtype from, const void *x, dh_dtype to, void *y);
/* Rows of n elements, x_row and y_row elements apart. */
void dh_k_cast_rows(int64_t rows, int64_t n, dh_dtype from, const void *x, int64_t x_row,
                    dh_dtype to, void *y, int64_t y_row);
/* y [rows,n] += x, float32; rows x_row and y_row elements apart. */
void dh_k_add_rows(int64_t rows, int64_t n, const float *x, int64_t x_row, float *y, int64_t y_row);
void dh_k_add(dh_dtype dtype, int64_t n, const void *a, const void *b, void *y); /* in place */
/* y = x[0] + x[1] + ... in this order, n_x of them, accumulated in float32; y is none of them. */
void dh_k_sum_ordered(dh_dtype dtype, int64_t n, int n_x, const void *const *x, void *y);
void dh_k_scale(dh_dtype dtype, int64_t n, float factor, const void *x, void *y); /* in place */
/* Rows of n elements: y += factor x, of y y_row apart; y = factor x, of x x_row apart. */
void dh_k_add_scaled_rows(dh_dtype dtype, int64_t rows, int64_t n, float factor, const void *x,
                          void *y, int64_t y_row);
void dh_k_scale_rows(dh_dtype dtype, int64_t rows, int64_t n, float factor, const void *x,
                     int64_t x_row, void *y);
void dh_k_copy(size_t n_bytes, const void *x, void *y);
void dh_k_zero(size_t n_bytes, void *y);

/* ---- optimizer ------------------------------------------------------------------------- */

typedef struct dh_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;      /* 1 for the first update; bias corrections */
    double grad_scale; /* multiplies gradients: clipping, averaging */
} dh_adamw;

/* AdamW with decoupled decay (Loshchilov & Hutter 2019), as PyTorch computes it.
 * copy (bf16 [n], may be NULL) gets the updated p rounded. */
void dh_k_adamw(const dh_adamw *opt, int64_t n, const float *g, float *p, float *m, float *v,
                dh_bf16 *copy);
/* old [3,n] = p, m, v; and back, copy (may be NULL) being p rounded. */
void dh_k_keep(int64_t n, const float *p, const float *m, const float *v, float *old);
void dh_k_restore(int64_t n, const float *old, float *p, float *m, float *v, dh_bf16 *copy);

/* ---- latent attention ------------------------------------------------------------------ */

/* N rows of H heads with D channels of queries and keys, of which the last R are rotated (`pairs`:
 * neighbours, else halves), and V <= D of values. */
typedef struct dh_latent {
    int64_t N, H, D, R, V;
    bool pairs;
} dh_latent;
/* Makes packed qkv [N,3HD] from three parts:
 *   q       [N,HD]
 *   kv      [N,H(D-R+V)]: a head's keys, then its values, which are filled up with zeros
 *   k_rot   [N,R]: the end of every head's keys
 * table: of dh_k_rope_table for R channels; pos [N]. Rotated channels come out as halves, also where
 * neighbours were rotated. */
void dh_k_latent_pack(const dh_latent *l, dh_dtype dtype, const void *q, const void *kv,
                      const void *k_rot, const float *table, const int32_t *pos, void *qkv);
void dh_k_latent_pack_bwd(const dh_latent *l, dh_dtype dtype, const void *dqkv, const float *table,
                          const int32_t *pos, void *dq, void *dkv, void *dk_rot);
/* The first V channels of each head of o [N,HD]; and back, with zeros. */
void dh_k_latent_cut(const dh_latent *l, dh_dtype dtype, const void *o, void *cut);
void dh_k_latent_cut_bwd(const dh_latent *l, dh_dtype dtype, const void *dcut, void *dout);

/* ---- mixture of experts ---------------------------------------------------------------- */

/* HF Mixtral's router: probs [N,E] = softmax(logits); the top_k largest (ties: lower
 * index) in falling order in experts [N,top_k], weights [N,top_k] renormalised to sum 1. */
void dh_k_router_fwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const void *logits,
                     float *probs, int32_t *experts, float *weights);
/* Replaces the weights of dh_k_router_fwd by the chosen probabilities as they are. */
void dh_k_router_plain(int64_t N, int64_t E, int64_t top_k, const float *probs,
                       const int32_t *experts, float *weights);
/* Replaces the choices of N rows by ones that are dealt in turn. A row has top_k different experts.
 * The numbers of rows of any two experts differ by at most one. */
void dh_k_router_deal(int64_t N, int64_t E, int64_t top_k, int32_t *experts);
/* dlogits from dweights [N,top_k] and, added, from aux_coef times the balancing loss
 * over `rows` rows with these counts (dh_k_router_aux). */
void dh_k_router_bwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const float *probs,
                     const int32_t *experts, const float *weights, const float *dweights,
                     const double *counts, int64_t rows, double aux_coef, void *dlogits);
/* Gradient for plain weights. */
void dh_k_router_plain_bwd(dh_dtype dtype, int64_t N, int64_t E, int64_t top_k, const float *probs,
                           const int32_t *experts, const float *dweights, const double *counts,
                           int64_t rows, double aux_coef, void *dlogits);
/* Sparsemixer (Liu et al. 2023, arXiv 2310.00811) without its random draws, as Transformers computes
 * Phi-3.5-MoE outside training. E is 2 or more; probs as above. The two experts with the largest
 * logits are chosen (ties: lower index). The weight of the first is its part of a softmax over the
 * experts whose logit s is near the largest one, m: m - s <= 2 jitter max(|s|, m). The weight of the
 * second is the same without the first expert. */
void dh_k_router_mix_fwd(dh_dtype dtype, int64_t N, int64_t E, double jitter, const void *logits,
                         float *probs, int32_t *experts, float *weights);
/* dlogits: the gradient of both softmaxes, plus that of the balancing loss. Which experts are chosen
 * or near has none. */
void dh_k_router_mix_bwd(dh_dtype dtype, int64_t N, int64_t E, double jitter, const void *logits,
                         const float *probs, const int32_t *experts, const float *dweights,
                         const double *counts, int64_t rows, double aux_coef, void *dlogits);
/* DeepSeek V3's router (arXiv 2412.19437, 2.1.2): probs [N,E] = sigmoid(logits).
 *   1. Experts are in n_groups. A group's score is the sum of its two largest probs + bias.
 *   2. The top_groups groups with the largest scores stay.
 *   3. Among their experts the top_k largest probs + bias are chosen (ties: lower index).
 *   4. Weights are scale times the chosen probs, first made to sum to 1 unless `plain`.
 * bias [E] affects only the choice. */
typedef struct dh_grouped_router {
    int64_t N, E, top_k, n_groups, top_groups;
    double scale;
    bool plain;
} dh_grouped_router;
void dh_k_router_groups_fwd(const dh_grouped_router *r, dh_dtype dtype, const void *logits,
                            const float *bias, float *probs, int32_t *experts, float *weights);
/* dlogits from dweights [N,top_k]. */
void dh_k_router_groups_bwd(const dh_grouped_router *r, dh_dtype dtype, const float *probs,
                            const int32_t *experts, const float *dweights, void *dlogits);
/* load [E] (+)= E times how many of n choices are this expert's, less n: whole numbers, exact up to
 * 2^24 and of the right sign beyond. */
void dh_k_router_load(int64_t n, int64_t E, const int32_t *experts, float *load, bool accumulate);
/* bias -= rate sign(load), n of both. */
void dh_k_balance(int64_t n, float rate, const float *load, float *bias);
/* As dh_k_router_sums, of probabilities that are each row's scores made to sum to 1. */
void dh_k_router_groups_sums(int64_t N, int64_t E, int64_t top_k, const float *scores,
                             const int32_t *experts, double *counts, double *prob_sums);
/* Adds to counts [E] the choices and to prob_sums [E] the column sums of probs. Counts are
 * float64 so that one reduction over ranks serves both. */
void dh_k_router_sums(int64_t N, int64_t E, int64_t top_k, const float *probs,
                      const int32_t *experts, double *counts, double *prob_sums);
/* HF load_balancing_loss_func: E sum_e (counts[e] / rows) (prob_sums[e] / rows). HF sums
 * over the rows of all layers together: rows = layers * tokens. */
double dh_k_router_aux(int64_t E, int64_t rows, const double *counts, const double *prob_sums);
/* Places of the N*top_k choices in the order by expert, then by row: entry n*top_k + j of
 * slot_of belongs to choice j of row n. Expert e owns slots offsets[e]..offsets[e+1]-1.
 * capacity > 0: each expert owns `capacity` slots, and choices beyond get slot -1. */
void dh_k_moe_order(int64_t N, int64_t E, int64_t top_k, const int32_t *experts, int64_t capacity,
                    int64_t *offsets, int32_t *slot_of);
/* counts [E] of n choices. */
void dh_k_moe_count(int64_t n, int64_t E, const int32_t *experts, int64_t *counts);
/* Tokens in the order by node, of which each has E / n_nodes experts. Choices without a slot do not
 * count. Entry n*top_k + j of rows is the place of row n on the node of its choice j, if that is its
 * first one there, else -1. Node d owns places starts[d]..starts[d+1]-1. here [n_places, top_k]: the
 * choices of a place's row on its node, as experts 0..E/n_nodes-1, else -1. */
void dh_k_moe_nodes(int64_t N, int64_t E, int64_t top_k, int64_t n_nodes, const int32_t *experts,
                    const int32_t *slots, int64_t n_places, int32_t *rows, int64_t *starts,
                    int32_t *here);
/* Slots by source node and expert. Rows arrived[a]..arrived[a+1]-1 of N come from node a; rows
 * after the last are nobody's. Number a * (E / n_nodes) + e has the choices of expert e by rows
 * from node a, in their order.
 *
 * out       counts [E]: choices of each number
 *           slots: as of dh_k_moe_order. With capacity > 0 a number owns `capacity` slots, else the
 *           slots after those of the number before it. -1: no choice, a choice beyond the
 *           capacity, or a slot not below room > 0 */
void dh_k_moe_node_order(int64_t N, int64_t E, int64_t top_k, int64_t n_nodes, const int32_t *here,
                         const int64_t *arrived, int64_t capacity, int64_t room, int64_t *counts,
                         int32_t *slots);
/* offsets [n_runs + 1] of runs that follow one another, from their lengths. */
void dh_k_moe_offsets(int64_t n_runs, const int64_t *counts, int64_t *offsets);
/* y [n_slots,C]: y[slot_of[n*top_k+j]] = x[n]; slots that no choice has are zeros. */
void dh_k_moe_permute(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *x,
                      const int32_t *slot_of, int64_t n_slots, void *y);
/* x[n] = sum_j weights[n,j] y[slot_of[n*top_k+j]]; weights NULL: 1 (gradient of permute). */
void dh_k_moe_unpermute(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *y,
                        const int32_t *slot_of, const float *weights, void *x);
/* Gradient of unpermute: dy[slot] = weights[n,j] dx[n], dweights[n,j] = dx[n] . y[slot];
 * slots that no choice has get zeros. */
void dh_k_moe_unpermute_bwd(dh_dtype dtype, int64_t N, int64_t C, int64_t top_k, const void *dx,
                            const void *y, const int32_t *slot_of, const float *weights,
                            int64_t n_slots, void *dy, float *dweights);

/* GEMMs of runs of rows, each with the matrix of its expert; w [E,O,I], R rows in all.
 *   forward  y[r]  = x[r] w[e]^T         [R,I] -> [R,O]
 *   dgrad    dx[r] = dy[r] w[e]          [R,O] -> [R,I]
 *   wgrad    dw[e] += dy[r]^T x[r]       [R,O], [R,I] -> float32 [E,O,I]
 * Rows offsets[s] to offsets[s+1] are those of expert s mod E. The number of each expert's rows is
 * known only when the call runs; together they are at most R. */
typedef enum dh_grouped_kind {
    DH_GROUPED_FORWARD,
    DH_GROUPED_DGRAD,
    DH_GROUPED_WGRAD
} dh_grouped_kind;
typedef struct dh_grouped_desc {
    dh_grouped_kind kind;
    dh_dtype dtype; /* type of all operands except dw */
    int64_t E, O, I;
    int64_t rows;    /* R */
    bool accumulate; /* wgrad: dw +=; experts without rows leave theirs alone, else zeros */
} dh_grouped_desc;
typedef struct dh_grouped dh_grouped;

/* errors    those of dh_gemm_create */
dh_status dh_grouped_create(dh_ctx *ctx, const dh_grouped_desc *desc, dh_grouped **grouped);
void dh_grouped_destroy(dh_grouped *grouped);
size_t dh_grouped_workspace(const dh_grouped *grouped);
/* a: x, or dy; b: w, or x in wgrad; offsets [n_runs + 1] rise from 0 to at most R. Rows
 * of y and dx after the last run become zeros. */
dh_status dh_grouped_run(dh_ctx *ctx, const dh_grouped *grouped, int64_t n_runs,
                         const int64_t *offsets, const void *a, const void *b, void *c, void *ws);

/* ---- threads --------------------------------------------------------------------------- */

/* Fixes the size of the calling thread's team, and returns it: at most OMP_THREAD_LIMIT, and never
 * reduced by OMP_DYNAMIC. GEMMs are planned for a team of one size. A smaller team would compute only
 * a part of them. */
int dh_k_fit_team(void);
/* Physical cores this process may use (its cpuset); at least 1. */
int dh_k_cores_allowed(void);
/* Gives the calling thread and its OpenMP team its share of the c allowed cores. With r =
 * local_rank and R = n_local_ranks: [r*c/R, (r+1)*c/R). Ranks share cores when c < R.
 * in        threads: 0: one per core of the share
 * out       n_threads: the team's size, at most OMP_THREAD_LIMIT
 * errors    DH_EINVAL; a binding that the system refuses is only logged */
dh_status dh_k_bind_rank(dh_ctx *ctx, int local_rank, int n_local_ranks, int64_t threads,
                         int *n_threads);
/* "oneDNN 3.0.2, avx512": the library of GEMMs, the instructions of our own loops. */
const char *dh_k_describe(char *buf, size_t cap);
/* Best rate of a few GEMMs of 2048 x 2048 x 2048, FLOP/s; 0 on failure. threads 0: as set. */
double dh_k_gemm_peak(dh_dtype dtype, int threads);

#ifdef __cplusplus
}
#endif
#endif
