/* Layers as pairing problems, for tests and bench/plan: operators in the order of the layer
 * builders, times of the size that a 70B-like layer has on eight GPUs. */
#ifndef DH_TESTS_PAIRING_CASES_H
#define DH_TESTS_PAIRING_CASES_H

#include <stdlib.h>
#include <string.h>

#include "plan/pair_build.h"

typedef struct case_op {
    const char *name;
    dh_engine engine;
    int32_t solo_us;
    const char *preds; /* names, one blank between them */
    const char *oef;   /* name in the published H100 matrix, or NULL */
    bool movable;
} case_op;

/* Dense layer with tensor and sequence parallelism: 14 and 18 operators. */
static const case_op dense_f[] = {
    {"norm1", DH_ENGINE_COMPUTE, 60, "", NULL, false},
    {"ag1", DH_ENGINE_LOCAL, 420, "norm1", "intra_ag", false},
    {"qkv", DH_ENGINE_COMPUTE, 700, "ag1", "gemm_attn_c", false},
    {"rope", DH_ENGINE_COMPUTE, 50, "qkv", NULL, false},
    {"attn", DH_ENGINE_COMPUTE, 800, "rope", "fa", false},
    {"proj", DH_ENGINE_COMPUTE, 560, "attn", "gemm_attn_l", false},
    {"rs1", DH_ENGINE_LOCAL, 430, "proj", "intra_rs", false},
    {"add1", DH_ENGINE_COMPUTE, 40, "rs1", NULL, false},
    {"norm2", DH_ENGINE_COMPUTE, 60, "add1", NULL, false},
    {"ag2", DH_ENGINE_LOCAL, 420, "norm2", "intra_ag", false},
    {"fc1", DH_ENGINE_COMPUTE, 1900, "ag2", "gemm_mlp_c", false},
    {"act", DH_ENGINE_COMPUTE, 120, "fc1", NULL, false},
    {"fc2", DH_ENGINE_COMPUTE, 1850, "act", "gemm_mlp_l", false},
    {"rs2", DH_ENGINE_LOCAL, 430, "fc2", "intra_rs", false},
};
static const case_op dense_b[] = {
    {"ag_dy2", DH_ENGINE_LOCAL, 420, "", "intra_ag", false},
    {"fc2.d", DH_ENGINE_COMPUTE, 1870, "ag_dy2", "mlp_l_d", false},
    {"fc2.w", DH_ENGINE_COMPUTE, 1900, "ag_dy2", "mlp_l_w", true},
    {"act.g", DH_ENGINE_COMPUTE, 160, "fc2.d", NULL, false},
    {"fc1.d", DH_ENGINE_COMPUTE, 1950, "act.g", "mlp_c_d", false},
    {"ag_x2", DH_ENGINE_LOCAL, 420, "", "intra_ag", false},
    {"fc1.w", DH_ENGINE_COMPUTE, 1920, "act.g ag_x2", "mlp_c_W", true},
    {"rs_dx2", DH_ENGINE_LOCAL, 430, "fc1.d", "intra_rs", false},
    {"norm2.g", DH_ENGINE_COMPUTE, 110, "rs_dx2", NULL, false},
    {"ag_dy1", DH_ENGINE_LOCAL, 420, "norm2.g", "intra_ag", false},
    {"proj.d", DH_ENGINE_COMPUTE, 570, "ag_dy1", "attn_l_d", false},
    {"proj.w", DH_ENGINE_COMPUTE, 580, "ag_dy1", "attn_l_w", true},
    {"attn.g", DH_ENGINE_COMPUTE, 2000, "proj.d", "fa_bwd", false},
    {"qkv.d", DH_ENGINE_COMPUTE, 720, "attn.g", "attn_c_d", false},
    {"ag_x1", DH_ENGINE_LOCAL, 420, "", "intra_ag", false},
    {"qkv.w", DH_ENGINE_COMPUTE, 710, "attn.g ag_x1", "attn_c_W", true},
    {"rs_dx1", DH_ENGINE_LOCAL, 430, "qkv.d", "intra_rs", false},
    {"norm1.g", DH_ENGINE_COMPUTE, 110, "rs_dx1", NULL, false},
};

/* Mixture of experts with context and expert parallelism: 24 and 34 operators. */
static const case_op moe_f[] = {
    {"norm1", DH_ENGINE_COMPUTE, 60, "", NULL, false},
    {"ag1", DH_ENGINE_LOCAL, 210, "norm1", "intra_ag", false},
    {"qkv", DH_ENGINE_COMPUTE, 400, "ag1", "gemm_attn_c", false},
    {"rope", DH_ENGINE_COMPUTE, 40, "qkv", NULL, false},
    {"kv1", DH_ENGINE_CROSS, 300, "rope", "inter_p2p", false},
    {"attn0", DH_ENGINE_COMPUTE, 350, "rope", "fa", false},
    {"kv2", DH_ENGINE_CROSS, 300, "kv1", "inter_p2p", false},
    {"attn1", DH_ENGINE_COMPUTE, 350, "attn0 kv1", "fa", false},
    {"kv3", DH_ENGINE_CROSS, 300, "kv2", "inter_p2p", false},
    {"attn2", DH_ENGINE_COMPUTE, 350, "attn1 kv2", "fa", false},
    {"attn3", DH_ENGINE_COMPUTE, 350, "attn2 kv3", "fa", false},
    {"proj", DH_ENGINE_COMPUTE, 300, "attn3", "gemm_attn_l", false},
    {"rs1", DH_ENGINE_LOCAL, 220, "proj", "intra_rs", false},
    {"add1", DH_ENGINE_COMPUTE, 30, "rs1", NULL, false},
    {"norm2", DH_ENGINE_COMPUTE, 60, "add1", NULL, false},
    {"router", DH_ENGINE_COMPUTE, 50, "norm2", NULL, false},
    {"permute", DH_ENGINE_COMPUTE, 90, "router", NULL, false},
    {"a2a1", DH_ENGINE_CROSS, 900, "permute", "inter_all2all", false},
    {"experts1", DH_ENGINE_COMPUTE, 1100, "a2a1", "gemm_mlp_c", false},
    {"act", DH_ENGINE_COMPUTE, 100, "experts1", NULL, false},
    {"experts2", DH_ENGINE_COMPUTE, 1050, "act", "gemm_mlp_l", false},
    {"a2a2", DH_ENGINE_CROSS, 900, "experts2", "inter_all2all", false},
    {"unpermute", DH_ENGINE_COMPUTE, 90, "a2a2 router", NULL, false},
    {"add2", DH_ENGINE_COMPUTE, 30, "unpermute", NULL, false},
};
static const case_op moe_b[] = {
    {"unpermute.g", DH_ENGINE_COMPUTE, 110, "", NULL, false},
    {"a2a_dy", DH_ENGINE_CROSS, 900, "unpermute.g", "inter_all2all", false},
    {"experts2.d", DH_ENGINE_COMPUTE, 1080, "a2a_dy", "mlp_l_d", false},
    {"experts2.w", DH_ENGINE_COMPUTE, 1100, "a2a_dy", "mlp_l_w", true},
    {"act.g", DH_ENGINE_COMPUTE, 130, "experts2.d", NULL, false},
    {"experts1.d", DH_ENGINE_COMPUTE, 1120, "act.g", "mlp_c_d", false},
    {"experts1.w", DH_ENGINE_COMPUTE, 1110, "act.g", "mlp_c_W", true},
    {"a2a_dx", DH_ENGINE_CROSS, 900, "experts1.d", "inter_all2all", false},
    {"permute.g", DH_ENGINE_COMPUTE, 110, "a2a_dx", NULL, false},
    {"router.d", DH_ENGINE_COMPUTE, 60, "unpermute.g", NULL, false},
    {"router.w", DH_ENGINE_COMPUTE, 50, "unpermute.g", NULL, true},
    {"norm2.d", DH_ENGINE_COMPUTE, 90, "permute.g router.d", NULL, false},
    {"norm2.w", DH_ENGINE_COMPUTE, 50, "permute.g router.d", NULL, true},
    {"ag_dy1", DH_ENGINE_LOCAL, 210, "norm2.d", "intra_ag", false},
    {"proj.d", DH_ENGINE_COMPUTE, 310, "ag_dy1", "attn_l_d", false},
    {"proj.w", DH_ENGINE_COMPUTE, 310, "ag_dy1", "attn_l_w", true},
    {"kv1", DH_ENGINE_CROSS, 300, "", "inter_p2p", false},
    {"kv2", DH_ENGINE_CROSS, 300, "kv1", "inter_p2p", false},
    {"kv3", DH_ENGINE_CROSS, 300, "kv2", "inter_p2p", false},
    {"attn0.g", DH_ENGINE_COMPUTE, 800, "proj.d", "fa_bwd", false},
    {"attn1.g", DH_ENGINE_COMPUTE, 800, "attn0.g kv1", "fa_bwd", false},
    {"dkv1", DH_ENGINE_CROSS, 300, "attn1.g kv3", "inter_p2p", false},
    {"attn2.g", DH_ENGINE_COMPUTE, 800, "attn1.g kv2", "fa_bwd", false},
    {"dkv2", DH_ENGINE_CROSS, 300, "attn2.g dkv1", "inter_p2p", false},
    {"attn3.g", DH_ENGINE_COMPUTE, 800, "attn2.g kv3", "fa_bwd", false},
    {"dkv3", DH_ENGINE_CROSS, 300, "attn3.g dkv2", "inter_p2p", false},
    {"qkv_join", DH_ENGINE_COMPUTE, 40, "attn3.g dkv3", NULL, false},
    {"rope.g", DH_ENGINE_COMPUTE, 50, "qkv_join", NULL, false},
    {"qkv.d", DH_ENGINE_COMPUTE, 410, "rope.g", "attn_c_d", false},
    {"ag_x1", DH_ENGINE_LOCAL, 210, "", "intra_ag", false},
    {"qkv.w", DH_ENGINE_COMPUTE, 400, "rope.g ag_x1", "attn_c_W", true},
    {"rs_dx1", DH_ENGINE_LOCAL, 220, "qkv.d", "intra_rs", false},
    {"norm1.d", DH_ENGINE_COMPUTE, 90, "rs_dx1", NULL, false},
    {"norm1.w", DH_ENGINE_COMPUTE, 50, "rs_dx1", NULL, true},
};

/* A problem in memory of its own. */
typedef struct pairing_case {
    dh_pair_problem problem;
    dh_pair_op f[DH_PAIR_MAX_EXACT_OPS], b[DH_PAIR_MAX_EXACT_OPS];
    const char *f_oef[DH_PAIR_MAX_EXACT_OPS], *b_oef[DH_PAIR_MAX_EXACT_OPS];
    int32_t preds[2][DH_PAIR_MAX_EXACT_OPS][4];
    dh_pair_time together[DH_PAIR_MAX_EXACT_OPS * DH_PAIR_MAX_EXACT_OPS];
} pairing_case;

static inline int32_t case_find(const case_op *ops, int32_t n, const char *name, size_t length)
{
    for (int32_t k = 0; k < n; k++)
        if (strlen(ops[k].name) == length && strncmp(ops[k].name, name, length) == 0) return k;
    abort();
}

static inline dh_pair_strand case_strand(const case_op *rows, size_t n, dh_pair_op *ops,
                                         const char **oef, int32_t (*preds)[4])
{
    for (int32_t k = 0; k < (int32_t)n; k++) {
        ops[k] = (dh_pair_op){.name = rows[k].name,
                              .engine = rows[k].engine,
                              .solo_ns = 1000 * (int64_t)rows[k].solo_us,
                              .source = DH_PAIR_MEASURED,
                              .preds = preds[k],
                              .movable = rows[k].movable};
        oef[k] = rows[k].oef;
        for (const char *at = rows[k].preds; *at;) {
            const size_t length = strcspn(at, " ");
            preds[k][ops[k].n_preds++] = case_find(rows, k, at, length);
            at += length + (at[length] == ' ');
        }
    }
    return (dh_pair_strand){ops, (int32_t)n};
}

/* Pairs from the matrix where it has both operators, modelled otherwise; matrix may be NULL. */
static inline dh_status case_make(dh_ctx *ctx, bool moe, const dh_oef_matrix *matrix,
                                  int64_t round_ns, pairing_case *c)
{
    memset(c, 0, sizeof *c);
    const case_op *f = moe ? moe_f : dense_f, *b = moe ? moe_b : dense_b;
    const size_t n_f = moe ? DH_COUNTOF(moe_f) : DH_COUNTOF(dense_f);
    const size_t n_b = moe ? DH_COUNTOF(moe_b) : DH_COUNTOF(dense_b);
    c->problem.f = case_strand(f, n_f, c->f, c->f_oef, c->preds[0]);
    c->problem.b = case_strand(b, n_b, c->b, c->b_oef, c->preds[1]);
    c->problem.round_ns = round_ns;
    c->problem.together = c->together;
    return pair_times_from_matrix(ctx, matrix, c->problem.f, c->f_oef, c->problem.b, c->b_oef,
                                  c->together);
}

#endif
