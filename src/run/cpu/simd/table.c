/* The table of inner loops of one instruction set. CMake compiles this file once
 * for each, with DH_SIMD_TABLE and DH_SIMD_NAME set (see CMakeLists.txt). */
#include "run/cpu/simd/act.h"
#include "run/cpu/simd/attn.h"
#include "run/cpu/simd/attn_grad.h"
#include "run/cpu/simd/dropout.h"
#include "run/cpu/simd/elementwise.h"
#include "run/cpu/simd/exact.h"
#include "run/cpu/simd/linear_attn.h"
#include "run/cpu/simd/loss.h"
#include "run/cpu/simd/norm.h"

extern const dh_simd DH_SIMD_TABLE;

const dh_simd DH_SIMD_TABLE = {
    .name = DH_SIMD_NAME,
    .width = W,
    .cast = cast,
    .add = add,
    .scale = scale,
    .sum = sum,
    .exact_squares = exact_squares,
    .all_finite = all_finite,
    .exp = exp_array,
    .norm_fwd = norm_fwd,
    .norm_dgrad = norm_dgrad,
    .col_sums = col_sums,
    .residual = residual,
    .embed_add = embed_add,
    .gelu_fwd = gelu_fwd,
    .gelu_bwd = gelu_bwd,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .geglu_fwd = geglu_fwd,
    .geglu_bwd = geglu_bwd,
    .rope = rope,
    .ce_stats = ce_stats,
    .ce_grad = ce_grad,
    .adamw = adamw,
    .axpy = axpy,
    .dot = dot,
    .blend = blend,
    .attn_pack = attn_pack,
    .attn_fwd = attn_fwd,
    .attn_few = attn_few,
    .attn_bwd = attn_bwd,
    .feature_map = feature_map,
    .linear_fwd = linear_fwd,
    .linear_state = linear_state,
    .linear_join = linear_join,
    .linear_bwd = linear_bwd,
    .linear_join_bwd = linear_join_bwd,
};
