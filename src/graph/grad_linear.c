/* Differentiation of linear attention, on one rank and over those that share a sequence
 * (pass_cp.c).
 *
 * The gradient of the state that came from earlier tokens goes the other way. Each rank sums q do^T
 * over its tokens, and needs the sums of all later ranks. */
#include "grad.h"

#include <stdio.h>

#include "config/mesh.h"

void grad_feature_map(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_FEATURE_MAP_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[0]),
              IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

void grad_head_rms(tape *t, const dh_op op)
{
    uint32_t dx = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_HEAD_RMS_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[0], op.out[1]),
              IDS(dx));
    tape_contribute(t, op.in[0], dx);
}

void grad_linear_attn(tape *t, const dh_op op)
{
    uint32_t dqkv = tape_like(t, op.in[0]);
    tape_emit(t, DH_OP_LINEAR_ATTN_GRAD, DH_PHASE_B, -1, IDS(t->grads[op.out[0]], op.in[0]),
              IDS(dqkv));
    tape_contribute(t, op.in[0], dqkv);
}

/* Against the order of the sequence: the last operator emitted. */
static void set_back(tape *t)
{
    if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].back = 1;
}

/* A rank's share of the gradient of one attention. */
typedef struct share {
    uint32_t dout, qkv;
    uint32_t dm, dqkv_own; /* gradient of the state before its tokens; what these give each other */
} share;

static void grad_of_own(tape *t, const share *s)
{
    tape_emit(t, DH_OP_LINEAR_ATTN_GRAD, DH_PHASE_B, -1, IDS(s->dout, s->qkv), IDS(s->dqkv_own));
}

static uint32_t gather_back(tape *t, const share *s)
{
    if (t->failed) return DH_NONE;
    dh_tensor all = t->graph->tensors.at[s->dm];
    all.shape[0] *= t->graph->dims.cp;
    snprintf(all.name, sizeof all.name, "dm.all");
    const uint32_t id = tape_add(t, &all), behind = tape_step(t, s->dm, "dm.behind", 0, DH_F32);
    tape_emit_comm(t, DH_OP_ALL_GATHER, DH_PHASE_B, DH_GROUP_CP, s->dm, id);
    grad_of_own(t, s);
    tape_emit(t, DH_OP_LINEAR_BEFORE, DH_PHASE_B, -1, IDS(id), IDS(behind));
    set_back(t);
    return behind;
}

/* From the last rank to the first: a step back is cp - 1 steps on. */
static uint32_t hand_back(tape *t, const share *s)
{
    const int32_t cp = (int32_t)t->graph->dims.cp;
    uint32_t next = s->dm, came = DH_NONE;
    for (int32_t k = 1; k < cp && !t->failed; k++) {
        if (k > 1) {
            next = tape_step(t, s->dm, "dm.next", k, DH_F32);
            tape_emit(t, DH_OP_LINEAR_PASS, DH_PHASE_B, -1, IDS(s->dm, came), IDS(next));
            set_back(t);
        }
        came = tape_step(t, s->dm, "dm.came", k, DH_F32);
        tape_emit_comm(t, DH_OP_SHIFT, DH_PHASE_B, DH_GROUP_CP, next, came);
        if (!t->failed) t->graph->ops.at[t->graph->ops.n - 1].by = cp - 1;
        if (k == 1) grad_of_own(t, s);
    }
    return came;
}

/* The forward's operators are not differentiated one by one. States of gradients travel in one
 * collective too, during the gradient among the rank's own tokens (LASP-2, algorithm 4). */
void grad_linear_join(tape *t, const dh_op op)
{
    const uint32_t qkv = op.in[1], before = op.in[2], dqkv = tape_like(t, qkv);
    const share s = {.dout = t->grads[op.out[0]],
                     .qkv = qkv,
                     .dm = tape_step(t, before, "dm", 0, DH_F32),
                     .dqkv_own = tape_step(t, qkv, "dqkv.own", 0, DH_F32)};
    tape_emit(t, DH_OP_LINEAR_STATE_GRAD, DH_PHASE_B, -1, IDS(s.dout, qkv), IDS(s.dm));
    const uint32_t behind = t->graph->dims.linear_ring ? hand_back(t, &s) : gather_back(t, &s);
    tape_emit(t, DH_OP_LINEAR_JOIN_GRAD, DH_PHASE_B, -1,
              IDS(s.dqkv_own, s.dout, qkv, before, behind), IDS(dqkv));
    tape_contribute(t, qkv, dqkv);
}
