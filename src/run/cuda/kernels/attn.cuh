/* Common to the kernels of attention, of float32 (attn.cu) and on tensor cores (attn_mma.cu): which
 * keys a query sees, and which rows a block works on. */
#ifndef DH_RUN_CUDA_KERNELS_ATTN_CUH
#define DH_RUN_CUDA_KERNELS_ATTN_CUH

#include "run/cuda/kernels/device.cuh"

/* ---- on tensor cores ---------------------------------------------------------------------------
 */

/* Whether attn_mma.cu has kernels of this shape. */
bool dh_cuda_attn_mma_takes(const dh_attn_shape *s);
/* As dh_cuda_attn_fwd and _bwd; the shape names its scale. delta [B,H,Tq]: dO . o. */
void dh_cuda_attn_mma_fwd(dh_cuda_stream stream, const dh_attn_shape *s, const void *q,
                          const void *k, const void *v, void *o, float *lse);
/* What backward reads. */
typedef struct dh_cuda_attn_inputs {
    const void *dout, *q, *k, *v;
    const float *lse, *delta;
} dh_cuda_attn_inputs;
void dh_cuda_attn_mma_bwd(dh_cuda_stream stream, const dh_attn_shape *s,
                          const dh_cuda_attn_inputs *in, void *dq, void *dk, void *dv, bool adds);

/* ---- by wgmma ----------------------------------------------------------------------------------
 */

/* As dh_cuda_attn_mma_*. False: attn_wgmma.cu has no kernels of this shape, or the calling thread's
 * device may not use them; nothing is launched. */
bool dh_cuda_attn_wgmma_fwd(dh_cuda_stream stream, const dh_attn_shape *s, const void *q,
                            const void *k, const void *v, void *o, float *lse);
bool dh_cuda_attn_wgmma_bwd(dh_cuda_stream stream, const dh_attn_shape *s,
                            const dh_cuda_attn_inputs *in, void *dq, void *dk, void *dv, bool adds);

/* ---- who sees what --------------------------------------------------------------------------- */

/* Positions rise with the index in both. */
DEVICE int64_t query_position(const dh_attn_shape &s, int64_t t)
{
    return t >= s.Tq ? -1 : s.q_pos ? (int64_t)s.q_pos[t] : t;
}

DEVICE int64_t key_position(const dh_attn_shape &s, int64_t u)
{
    return s.k_pos ? (int64_t)s.k_pos[u] : u;
}

/* How many of the keys from k0 on, `most` at most, any query before t_end sees. */
DEVICE int64_t keys_seen(const dh_attn_shape &s, int64_t t_end, int64_t k0, int64_t most)
{
    const int64_t last = query_position(s, (t_end < s.Tq ? t_end : s.Tq) - 1);
    int64_t n = s.Tk - k0 < most ? s.Tk - k0 : most;
    while (n > 0 && key_position(s, k0 + n - 1) > last) n--;
    return n > 0 ? n : 0;
}

/* The lowest position that a query sees; it does not fall from query to query (dh_attn_first_seen).
 */
DEVICE int64_t first_seen(const dh_attn_shape &s, int64_t b, int64_t t)
{
    const int64_t pos = query_position(s, t);
    if (t >= s.Tq) return pos;
    const int64_t back = s.window > 0 ? s.window - 1 : pos;
    const int64_t in_doc = s.q_doc ? (int64_t)s.q_doc[b * s.q_doc_batch + t] : back;
    return pos - (in_doc < back ? in_doc : back);
}

/* Whether the n keys from k0 on lie too far back for query t and those behind it. */
DEVICE bool all_hidden(const dh_attn_shape &s, int64_t b, int64_t t, int64_t k0, int64_t n)
{
    if (s.window == 0 && !s.q_doc) return false;
    return key_position(s, k0 + n - 1) < first_seen(s, b, t);
}

/* first: of the query. */
DEVICE bool sees(const dh_attn_shape &s, int64_t t, int64_t first, int64_t u)
{
    return u < s.Tk && key_position(s, u) <= query_position(s, t) && key_position(s, u) >= first;
}

/* ---- places ------------------------------------------------------------------------------------
 */

DEVICE int64_t stat_at(const dh_attn_shape &s, int64_t b, int64_t head, int64_t t)
{
    return (b * s.H + head) * s.Tq + t;
}

/* Which of the grid's blocks this is: first channel, rows, head, sample. */
struct block_place {
    int64_t c0, row0, rows, head, b;
};

/* In blocks of so many rows, n_rows together. */
DEVICE block_place place_of(int64_t n_chunks, int64_t chunk, int64_t rows, int64_t n_rows,
                            int64_t n_heads)
{
    const int64_t n_blocks = (n_rows + rows - 1) / rows;
    int64_t i = blockIdx.x;
    block_place p;
    p.c0 = i % n_chunks * chunk;
    i /= n_chunks;
    p.rows = rows;
    p.row0 = (n_blocks - 1 - i % n_blocks) * rows; /* of queries the longest first */
    i /= n_blocks;
    p.head = i % n_heads;
    p.b = i / n_heads;
    return p;
}

#endif
