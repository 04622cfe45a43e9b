/* Compute kernels for CUDA: launches on a stream. Their arithmetic, shapes and layouts are those of
 * run/cpu/kernels.h, function by function; said here is what differs.
 *
 * Conventions
 *   memory    Every address is the device's, tables and results of one value included.
 *   stream    A call puts kernels on it and returns. Nothing is allocated, copied or waited for.
 *   aliasing  As there, "in place" included.
 *   bits      A repeated call gives the same. They are not those of the cpu, except for dropout's
 *             masks, casts, copies, the order of rows by expert, and counts.
 *   scratch   Functions with a `ws` name their workspace function, in bytes; 256-byte aligned.
 *   errors    The owner of the stream finds a launch that CUDA refuses (cudaGetLastError).
 * The source in kernels/ is also compiled for the host, where a call returns when all is done and
 * the stream is not looked at: tests/cuda. */
#ifndef DH_RUN_CUDA_KERNELS_H
#define DH_RUN_CUDA_KERNELS_H

#include "run/cpu/kernels.h"
#include "run/exec/scalars.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *dh_cuda_stream; /* cudaStream_t */

/* ---- rounding to 8 bits: not as the cpu's functions, which store bf16 -------------------------
 */

/* Bytes from one run of n numbers of 8 bits to the next. */
static inline int64_t dh_cuda_fp8_row(int64_t n)
{
    return (n + 15) / 16 * 16;
}
/* Rows of x [N,C], bf16, as codes of the format y [N, fp8_row(C)], and of each the power of two by
 * which its codes' values are multiplied: scales [N]. */
void dh_cuda_fp8_rows(dh_cuda_stream stream, dh_fp8_format format, int64_t N, int64_t C,
                      const void *x, uint8_t *y, float *scales);
/* Columns of x: y [C, fp8_row(N)], scales [C]. */
void dh_cuda_fp8_columns(dh_cuda_stream stream, dh_fp8_format format, int64_t N, int64_t C,
                         const void *x, uint8_t *y, float *scales);
/* Columns of each expert's rows (dh_k_fp8_expert_columns): y as above, scales [E,C]. Runs have as
 * many rows each, N / n_runs, where there are no offsets (NULL), which lie on the device. Codes of
 * rows behind the last run are left as they are. */
void dh_cuda_fp8_expert_columns(dh_cuda_stream stream, dh_fp8_format format, int64_t E,
                                int64_t n_runs, const int64_t *offsets, int64_t N, int64_t C,
                                const void *x, uint8_t *y, float *scales);

/* ---- norms ----------------------------------------------------------------------------------- */

void dh_cuda_norm_fwd(dh_cuda_stream stream, dh_norm_kind kind, dh_dtype dtype, int64_t N,
                      int64_t C, const void *x, const float *w, const float *b, float eps, void *y,
                      float *stats);
void dh_cuda_norm_dgrad(dh_cuda_stream stream, dh_norm_kind kind, dh_dtype dtype, int64_t N,
                        int64_t C, const void *dy, const void *x, const float *w,
                        const float *stats, const void *dres, void *dx);
/* Scratch of norm_wgrad and bias_grad. */
size_t dh_cuda_columns_workspace(int64_t N, int64_t C);
void dh_cuda_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                        const void *x, const float *stats, float *dw, float *db, bool accumulate,
                        void *ws);
void dh_cuda_bias_grad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dy,
                       float *db, bool accumulate, void *ws);
void dh_cuda_head_norm_fwd(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                           const float *w_q, const float *w_k, float eps, void *out, float *stats);
void dh_cuda_head_norm_dgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                             const void *qkv, const float *w_q, const float *w_k,
                             const float *stats, void *dqkv);
size_t dh_cuda_head_norm_wgrad_workspace(dh_heads h);
void dh_cuda_head_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                             const void *qkv, const float *stats, float *dw_q, float *dw_k,
                             unsigned accumulate, void *ws);

/* Both norms of all heads together: sums and dots as there. */
void dh_cuda_qk_squares(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                        float *sums);
void dh_cuda_qk_norm_fwd(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *qkv,
                         const float *sums, const float *w_q, const float *w_k, float eps,
                         void *out);
void dh_cuda_qk_norm_dots(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                          const void *qkv, const float *w_q, const float *w_k, float *dots);
void dh_cuda_qk_norm_dgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                           const void *qkv, const float *sums, const float *w_q, const float *w_k,
                           const float *dots, float eps, void *dqkv);
size_t dh_cuda_qk_norm_wgrad_workspace(dh_heads h);
void dh_cuda_qk_norm_wgrad(dh_cuda_stream stream, dh_dtype dtype, dh_heads h, const void *dy,
                           const void *qkv, const float *sums, float eps, float *dw_q, float *dw_k,
                           unsigned accumulate, void *ws);
/* y [n] = value + x; x NULL: value. */
void dh_cuda_offset(dh_cuda_stream stream, int64_t n, float value, const float *x, float *y);

/* ---- dropout, residual ------------------------------------------------------------------------
 */

/* Seed and step are read on the device, since they change under a captured graph. */
typedef struct dh_cuda_dropout {
    float prob;
    uint32_t site;
    const dh_scalars *scalars;
    const int64_t *row_sample;
    const int32_t *row_pos;
} dh_cuda_dropout;

void dh_cuda_residual(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *x,
                      const void *p, const float *bias, const dh_cuda_dropout *drop, void *out);
void dh_cuda_dropout_grad(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                          const void *dout, const dh_cuda_dropout *drop, void *dp);

/* ---- activations, rotary position embedding -----------------------------------------------------
 */

void dh_cuda_gelu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *h, void *g);
void dh_cuda_gelu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *dg,
                      const void *h, void *dh);
void dh_cuda_geglu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *h,
                       void *g);
void dh_cuda_geglu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *dg,
                       const void *h, void *dh);
void dh_cuda_softcap_fwd(dh_cuda_stream stream, int64_t n, float c, const float *x, float *y);
void dh_cuda_softcap_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t n, float c, const void *dy,
                         const float *y, void *dx);
void dh_cuda_swiglu_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *h,
                        void *g);
void dh_cuda_swiglu_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t F, const void *dg,
                        const void *h, void *dh);
void dh_cuda_rope(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t T, int64_t H,
                  int64_t KV, int64_t D, const void *qkv, const float *table,
                  const int32_t *row_pos, bool inverse, void *out);

/* ---- attention --------------------------------------------------------------------------------
 */

/* Positions of the shape lie on the device too. Forward needs no scratch. */
void dh_cuda_attn_fwd(dh_cuda_stream stream, const dh_attn_shape *s, const void *q, const void *k,
                      const void *v, void *o, float *lse);
void dh_cuda_attn_merge(dh_cuda_stream stream, const dh_attn_shape *s, void *o, float *lse,
                        const void *o_part, const float *lse_part);
size_t dh_cuda_attn_bwd_workspace(const dh_attn_shape *s);
void dh_cuda_attn_bwd(dh_cuda_stream stream, const dh_attn_shape *s, const void *dout,
                      const void *o, const float *lse, const void *q, const void *k, const void *v,
                      void *dq, void *dk, void *dv, bool accumulate, void *ws);

/* Attention by wgmma, instead of the kernels for all GPUs. Only GPUs of compute capability 9.0 have
 * it. The functions tell whether this build has it, and whether a device uses it for the shapes
 * that it takes. A device uses it only after dh_cuda_allow_wgmma (attn_check.c calls that). */
bool dh_cuda_wgmma_is_built(void);
void dh_cuda_allow_wgmma(int device, bool allowed);
bool dh_cuda_allows_wgmma(int device);

/* ---- embedding --------------------------------------------------------------------------------
 */

void dh_cuda_embed_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                       const int32_t *tokens, const int32_t *row_pos, const void *wte, int64_t v0,
                       int64_t v1, const void *wpe, const dh_cuda_dropout *drop, void *x);
size_t dh_cuda_embed_bwd_workspace(int64_t N);
void dh_cuda_embed_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, const void *dx,
                       const int32_t *tokens, const int32_t *row_pos, const dh_cuda_dropout *drop,
                       int64_t v0, int64_t v1, int64_t n_pos, float *dwte, float *dwpe,
                       bool accumulate, void *ws);

/* ---- cross-entropy ----------------------------------------------------------------------------
 */

void dh_cuda_ce_stats(dh_cuda_stream stream, dh_dtype dtype, int64_t n, int64_t v0, int64_t v1,
                      const void *logits, const int32_t *targets, float *stats);
void dh_cuda_ce_merge(dh_cuda_stream stream, int64_t tp, int64_t n, const float *parts,
                      float *stats);
void dh_cuda_ce_loss(dh_cuda_stream stream, int64_t n, const float *stats, const int32_t *targets,
                     float *loss);
/* total [2] = sum of the rows' losses, rows that count; overwritten or added to. */
void dh_cuda_ce_total(dh_cuda_stream stream, int64_t n, const float *loss, const int32_t *targets,
                      bool accumulate, double *total);
/* dlogits of a type of their own. In place where the types are the same. scalars, on the device,
 * may name another divisor of the loss than scale; NULL: none does. */
void dh_cuda_ce_grad(dh_cuda_stream stream, dh_dtype dtype, dh_dtype out_dtype,
                     const dh_scalars *scalars, int64_t n, int64_t v0, int64_t v1,
                     const void *logits, const int32_t *targets, const float *stats, float scale,
                     void *dlogits);

/* ---- whole arrays ------------------------------------------------------------------------------
 */

void dh_cuda_sum(dh_cuda_stream stream, int64_t n, const float *x, double *sum);
size_t dh_cuda_sqsum_workspace(int64_t n);
void dh_cuda_sqsum(dh_cuda_stream stream, int64_t n, const float *x, double *digits, void *ws);
void dh_cuda_exact_sum(dh_cuda_stream stream, int64_t n, const double *rows, double *digits);
/* norm [2] = root of an exact sum, factor that clips gradients to scalars.grad_clip. */
void dh_cuda_clip(dh_cuda_stream stream, const double *digits, const dh_scalars *scalars,
                  double *norm);
void dh_cuda_first_nonfinite(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *x,
                             int64_t *first);
void dh_cuda_cast(dh_cuda_stream stream, int64_t n, dh_dtype from, const void *x, dh_dtype to,
                  void *y);
void dh_cuda_cast_rows(dh_cuda_stream stream, int64_t rows, int64_t n, dh_dtype from, const void *x,
                       int64_t x_row, dh_dtype to, void *y, int64_t y_row);
/* y[at[r]] = x[r]: rows of n elements, x_row apart in x, side by side in y. */
void dh_cuda_put_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n, const void *x,
                      int64_t x_row, const int32_t *at, void *y);
/* y [rows,n] += x, float32; rows x_row and y_row elements apart. */
void dh_cuda_add_rows(dh_cuda_stream stream, int64_t rows, int64_t n, const float *x, int64_t x_row,
                      float *y, int64_t y_row);
void dh_cuda_add(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *a, const void *b,
                 void *y);
/* y [n] = three lists of n_shares[k] arrays of n, one behind another, added in that order. */
void dh_cuda_sum_shares(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const void *const x[3],
                        const int64_t n_shares[3], void *y);
void dh_cuda_scale(dh_cuda_stream stream, dh_dtype dtype, int64_t n, float factor, const void *x,
                   void *y);
void dh_cuda_copy(dh_cuda_stream stream, size_t n_bytes, const void *x, void *y);
void dh_cuda_zero(dh_cuda_stream stream, size_t n_bytes, void *y);

void dh_cuda_add_scaled_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n,
                             float factor, const void *x, void *y, int64_t y_row);
void dh_cuda_scale_rows(dh_cuda_stream stream, dh_dtype dtype, int64_t rows, int64_t n,
                        float factor, const void *x, int64_t x_row, void *y);

/* ---- linear attention ------------------------------------------------------------------------ */

size_t
dh_cuda_linear_workspace(const dh_linear_shape *s); /* of fwd and bwd; the others have none */
/* pos (NULL: not looked at): where its first value is 0 there are no tokens before, whatever the
 * state says. */
void dh_cuda_linear_fwd(dh_cuda_stream stream, const dh_linear_shape *s, const void *qkv,
                        float *state, const int32_t *pos, void *o, void *ws);
void dh_cuda_linear_bwd(dh_cuda_stream stream, const dh_linear_shape *s, const void *dout,
                        const void *qkv, void *dqkv, void *ws);
/* The state of these tokens; with dout, what they give to the gradient of the state before them. */
void dh_cuda_linear_state(dh_cuda_stream stream, const dh_linear_shape *s, const void *dout,
                          const void *qkv, float *state);
void dh_cuda_linear_join(dh_cuda_stream stream, const dh_linear_shape *s, const float *o_own,
                         const void *qkv, const float *before, void *o);
void dh_cuda_linear_join_bwd(dh_cuda_stream stream, const dh_linear_shape *s, const float *dqkv_own,
                             const void *dout, const void *qkv, const float *before,
                             const float *behind, void *dqkv);
void dh_cuda_feature_map_fwd(dh_cuda_stream stream, dh_feature_map map, dh_dtype dtype, dh_heads h,
                             const void *qkv, void *out);
void dh_cuda_feature_map_bwd(dh_cuda_stream stream, dh_feature_map map, dh_dtype dtype, dh_heads h,
                             const void *dout, const void *qkv, void *dqkv);

/* ---- latent attention ------------------------------------------------------------------------ */

void dh_cuda_latent_pack(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype, const void *q,
                         const void *kv, const void *k_rot, const float *table, const int32_t *pos,
                         void *qkv);
void dh_cuda_latent_pack_bwd(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype,
                             const void *dqkv, const float *table, const int32_t *pos, void *dq,
                             void *dkv, void *dk_rot);
void dh_cuda_latent_cut(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype, const void *o,
                        void *cut);
void dh_cuda_latent_cut_bwd(dh_cuda_stream stream, const dh_latent *l, dh_dtype dtype,
                            const void *dcut, void *dout);

/* ---- optimizer ------------------------------------------------------------------------------- */

/* One step of AdamW, in place.
 *
 * in        scalars: step, learning rate and the other settings; weight decay counts if `decays`
 *           norm [2]: as dh_cuda_clip writes it; if it is not finite, nothing changes
 * out       old [3,n]: p, m and v before the step; NULL: not wanted. With it, nothing else changes
 *           if norm clips */
void dh_cuda_adamw(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                   bool decays, int64_t n, const float *g, float *p, float *m, float *v,
                   dh_bf16 *copy, float *old);
/* Behind that with old, by norm so_far: what it would have done by norm. */
void dh_cuda_amend(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                   const double *so_far, bool decays, int64_t n, const float *g, const float *old,
                   float *p, float *m, float *v, dh_bf16 *copy);

/* ---- mixture of experts ---------------------------------------------------------------------- */

void dh_cuda_router_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E, int64_t top_k,
                        const void *logits, float *probs, int32_t *experts, float *weights);
void dh_cuda_router_plain(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                          const float *probs, const int32_t *experts, float *weights);
void dh_cuda_router_groups_fwd(dh_cuda_stream stream, const dh_grouped_router *r, dh_dtype dtype,
                               const void *logits, const float *bias, float *probs,
                               int32_t *experts, float *weights);
void dh_cuda_router_groups_bwd(dh_cuda_stream stream, const dh_grouped_router *r, dh_dtype dtype,
                               const float *probs, const int32_t *experts, const float *dweights,
                               void *dlogits);
void dh_cuda_router_groups_sums(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                                const float *scores, const int32_t *experts, double *counts,
                                double *prob_sums);
void dh_cuda_router_mix_fwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E,
                            double jitter, const void *logits, float *probs, int32_t *experts,
                            float *weights);
void dh_cuda_router_mix_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E,
                            double jitter, const void *logits, const float *probs,
                            const int32_t *experts, const float *dweights, const double *counts,
                            int64_t rows, double aux_coef, void *dlogits);
void dh_cuda_router_load(dh_cuda_stream stream, int64_t n, int64_t E, const int32_t *experts,
                         float *load, bool accumulate);
/* By the rate of scalars; nothing where norm [2] is not finite. */
void dh_cuda_balance(dh_cuda_stream stream, const dh_scalars *scalars, const double *norm,
                     int64_t n, const float *load, float *bias);
/* Where scalars say so (even_experts); NULL: always. */
void dh_cuda_router_deal(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                         const dh_scalars *scalars, int32_t *experts);
/* weights NULL: they are the chosen probabilities as they are. */
void dh_cuda_router_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t E, int64_t top_k,
                        const float *probs, const int32_t *experts, const float *weights,
                        const float *dweights, const double *counts, int64_t rows, double aux_coef,
                        void *dlogits);
void dh_cuda_router_sums(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                         const float *probs, const int32_t *experts, double *counts,
                         double *prob_sums);
/* aux [2] = balancing loss, 1; overwritten or added to. */
void dh_cuda_router_aux(dh_cuda_stream stream, int64_t E, int64_t rows, const double *counts,
                        const double *prob_sums, bool accumulate, double *aux);
void dh_cuda_moe_order(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                       const int32_t *experts, int64_t capacity, int64_t *offsets,
                       int32_t *slot_of);
void dh_cuda_moe_count(dh_cuda_stream stream, int64_t n, int64_t E, const int32_t *experts,
                       int64_t *counts);
/* lengths [n_runs] of runs between offsets [n_runs + 1]. */
void dh_cuda_moe_lengths(dh_cuda_stream stream, int64_t n_runs, const int64_t *offsets,
                         int64_t *lengths);
void dh_cuda_moe_offsets(dh_cuda_stream stream, int64_t n_runs, const int64_t *counts,
                         int64_t *offsets);
void dh_cuda_moe_nodes(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k, int64_t n_nodes,
                       const int32_t *experts, const int32_t *slots, int64_t n_places,
                       int32_t *rows, int64_t *starts, int32_t *here);
void dh_cuda_moe_node_order(dh_cuda_stream stream, int64_t N, int64_t E, int64_t top_k,
                            int64_t n_nodes, const int32_t *here, const int64_t *arrived,
                            int64_t capacity, int64_t room, int64_t *counts, int32_t *slots);
void dh_cuda_moe_permute(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C, int64_t top_k,
                         const void *x, const int32_t *slot_of, int64_t n_slots, void *y);
void dh_cuda_moe_unpermute(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                           int64_t top_k, const void *y, const int32_t *slot_of,
                           const float *weights, void *x);
void dh_cuda_moe_unpermute_bwd(dh_cuda_stream stream, dh_dtype dtype, int64_t N, int64_t C,
                               int64_t top_k, const void *dx, const void *y, const int32_t *slot_of,
                               const float *weights, int64_t n_slots, void *dy, float *dweights);
/* dh_grouped_run's products; offsets lie on the device. No scratch. */
void dh_cuda_grouped(dh_cuda_stream stream, const dh_grouped_desc *desc, int64_t n_runs,
                     const int64_t *offsets, const void *a, const void *b, void *c);
/* The same of codes, by runs of the summed dimension; desc->dtype, bf16, is the type of y and dx:
 *   forward  x by rows, w [E*O,I] by rows
 *   dgrad    dy by rows, w by columns of each expert
 *   wgrad    dy and x by columns of each expert's rows
 * The second one's are e4m3. Codes begin at a multiple of 4 bytes. */
typedef struct dh_cuda_codes {
    dh_fp8_format format;
    const uint8_t *codes;
    const float *scales;
} dh_cuda_codes;
void dh_cuda_grouped_fp8(dh_cuda_stream stream, const dh_grouped_desc *desc, int64_t n_runs,
                         const int64_t *offsets, const dh_cuda_codes *a, const dh_cuda_codes *b,
                         void *c);

/* ---- between ranks on one GPU ----------------------------------------------------------------
 */

/* The same elements of every rank: where they lie, and where their sum goes. */
typedef struct dh_cuda_ranks {
    int n_from, n_to;
    const void *from[64];
    void *to[64];
} dh_cuda_ranks;
/* to[k][i] = from[0][i] + from[1][i] + ... in this order, all k, i < n. As dh_comm_reduce_ordered,
 * with its bits: bf16 in float32, rounded once; integers wrap. A `to` may be one of `from`. */
void dh_cuda_sum_ranks(dh_cuda_stream stream, dh_dtype dtype, int64_t n, const dh_cuda_ranks *x);

/* Wires of paced links: how many transfers are on each, and whether these are to end at once, which
 * lies in memory of the host. */
typedef struct dh_cuda_wires {
    int32_t *n_on;
    int32_t *stop;
} dh_cuda_wires;
/* A transfer that takes ns where it has its wires [n_wires] to itself. counts: others feel it. */
typedef struct dh_cuda_flow {
    const int32_t *wires;
    int32_t n_wires, counts;
    int64_t ns;
} dh_cuda_flow;
/* One under way, on the device. */
typedef struct dh_cuda_flow_state {
    dh_cuda_flow flow;
    int64_t seen_ns; /* accounted for until then, by the device's clock */
    double left_ns;
    int32_t ended, room;
} dh_cuda_flow_state;
void dh_cuda_flow_begin(dh_cuda_stream stream, const dh_cuda_wires *wires, const dh_cuda_flow *flow,
                        dh_cuda_flow_state *state);
/* Stays until this share, 1 for all, of each of n flows has passed. */
void dh_cuda_flows_pass(dh_cuda_stream stream, const dh_cuda_wires *wires, int n, double share,
                        dh_cuda_flow_state *states);
/* Stays for ns. */
void dh_cuda_flow_rest(dh_cuda_stream stream, const dh_cuda_wires *wires, int64_t ns);

#ifdef __cplusplus
}
#endif
#endif
