/* Every final step of an optimizer uses the norm of all gradients.
 *
 * A stage of a pipeline may step by the sum so far (optimizer.c). That races with nobody and meets
 * all its partners in any case. Only the numbers would differ, if a later stage's gradients make
 * the norm clip or are not finite. So every AdamW that keeps what it overwrites must be followed by
 * an amendment of the same bytes, from the kept values. A final step is an amendment, or an AdamW
 * that keeps nothing. It must use the norm of a sum over all stages. This sum comes from one
 * collective, or from the later stages' answer. At the end of the chain it is the sum of the
 * earlier stages. verify.c shows that it arrives in time.
 *
 * Where nothing is clipped (dh_program.steps_by_own) a final step may go by the norm of the very
 * gradient that it reads instead. */
#include <stdlib.h>
#include <string.h>

#include "program/ranks.h"

typedef struct stepper {
    dh_ctx *ctx;
    const dh_program *p;
    uint32_t end;     /* end of the step: the steps of later probes do not count */
    uint32_t *writer; /* by buffer: instruction that wrote to it last, DH_NONE */
    uint32_t *sum;    /* by buffer of a norm: what wrote the sum that it was made of */
    bool hears;       /* a stage behind tells it the sum over all */
} stepper;

static const dh_operand *input(const stepper *s, uint32_t instr, int k)
{
    return dh_instr_operand(s->p, &s->p->instrs.at[instr], k);
}

static dh_op_type type_of(const stepper *s, uint32_t instr)
{
    return dh_instr_op(s->p, &s->p->instrs.at[instr])->type;
}

static const dh_operand *output(const stepper *s, uint32_t instr, int k)
{
    return input(s, instr, dh_op_info_of(type_of(s, instr))->n_in + k);
}

static bool same(const dh_operand *a, const dh_operand *b)
{
    if (a->buffer == DH_NONE || b->buffer == DH_NONE) return a->buffer == b->buffer;
    return a->buffer == b->buffer && a->byte0 == b->byte0 && a->n_bytes == b->n_bytes;
}

/* ---- steps ahead ---------------------------------------------------------------------------- */

enum { G, NORM, SO_FAR, OLD };                /* inputs of both */
enum { P, M, V, C, N_STEPPED, KEPT = C + 1 }; /* outputs of both; of AdamW alone */

static bool goes_ahead(const stepper *s, uint32_t instr)
{
    return type_of(s, instr) == DH_OP_ADAMW && output(s, instr, KEPT)->buffer != DH_NONE;
}

static bool amends(const stepper *s, uint32_t step, uint32_t instr)
{
    if (type_of(s, instr) != DH_OP_AMEND) return false;
    for (int k = P; k < N_STEPPED; k++)
        if (!same(output(s, step, k), output(s, instr, k))) return false;
    return same(input(s, step, G), input(s, instr, G)) &&
           same(input(s, step, NORM), input(s, instr, SO_FAR)) &&
           same(output(s, step, KEPT), input(s, instr, OLD));
}

static dh_status check_amended(const stepper *s, uint32_t step)
{
    char text[256];
    for (uint32_t i = step + 1; i < s->end; i++)
        if (amends(s, step, i)) return DH_OK;
    return dh_fail(s->ctx, DH_EVERIFY,
                   "%s uses the norm of some stages only, and no later operator corrects it by the "
                   "norm of all stages",
                   dh_instr_describe(s->p, step, text, sizeof text));
}

/* ---- final steps ---------------------------------------------------------------------------- */

static bool is_chain(const stepper *s, const dh_operand *o)
{
    return o->buffer != DH_NONE && s->p->buffers.at[o->buffer].kind == DH_BUF_STATE &&
           s->p->buffers.at[o->buffer].owner == DH_STATE_SQCHAIN;
}

static bool hears(const stepper *s, uint32_t instr)
{
    return type_of(s, instr) == DH_OP_RECV && !is_chain(s, output(s, instr, 0));
}

/* Whether what an instruction writes is a sum over all stages. */
static bool is_of_all(const stepper *s, uint32_t instr, bool amended)
{
    if (instr == DH_NONE) return false;
    const dh_op *op = dh_instr_op(s->p, &s->p->instrs.at[instr]);
    if (op->type == DH_OP_ALL_REDUCE) return dh_group_varies((dh_group_kind)op->group, DH_MESH_PP);
    if (amended) return hears(s, instr);
    return op->type == DH_OP_SUM && is_chain(s, input(s, instr, 0)) && !s->hears;
}

/* The last one of a type before an instruction that writes an operand; DH_NONE. It mostly stands
 * right before. */
static uint32_t find_maker(const stepper *s, uint32_t before, dh_op_type type, const dh_operand *o)
{
    for (uint32_t i = before; i-- > 0;)
        if (type_of(s, i) == type && same(output(s, i, 0), o)) return i;
    return DH_NONE;
}

static bool is_own(const stepper *s, const dh_operand *norm)
{
    const dh_buffer *b = &s->p->buffers.at[norm->buffer];
    return b->kind == DH_BUF_STATE && b->owner == DH_STATE_NORM_SO_FAR;
}

static dh_status check_own(const stepper *s, uint32_t instr)
{
    char text[256];
    dh_instr_describe(s->p, instr, text, sizeof text);
    if (!s->p->steps_by_own)
        return dh_fail(
            s->ctx, DH_EVERIFY,
            "%s is final, but it uses a norm that does not cover the gradients of all stages",
            text);
    const uint32_t clip = find_maker(s, instr, DH_OP_CLIP, input(s, instr, NORM));
    const uint32_t sum =
        clip == DH_NONE ? clip : find_maker(s, clip, DH_OP_SQSUM, input(s, clip, 0));
    if (sum != DH_NONE && same(input(s, sum, 0), input(s, instr, G))) return DH_OK;
    return dh_fail(s->ctx, DH_EVERIFY, "%s uses the norm of one gradient and reads another", text);
}

/* Routers' biases go by the norm of all alone, whichever way a stage comes to know it. */
static dh_status check_final(const stepper *s, uint32_t instr)
{
    const dh_operand *norm = input(s, instr, NORM);
    const bool balances = type_of(s, instr) == DH_OP_BALANCE;
    const bool amended = type_of(s, instr) == DH_OP_AMEND || (balances && s->hears);
    char text[256];
    if (!amended && !balances && is_own(s, norm)) return check_own(s, instr);
    if (s->p->mesh.pp == 1 || is_of_all(s, s->sum[norm->buffer], amended)) return DH_OK;
    return dh_fail(
        s->ctx, DH_EVERIFY,
        "%s is final, but it uses a norm that does not cover the gradients of all stages",
        dh_instr_describe(s->p, instr, text, sizeof text));
}

/* ---- entry ---------------------------------------------------------------------------------- */

static void note_writes(const stepper *s, uint32_t instr)
{
    const dh_op_info *info = dh_op_info_of(type_of(s, instr));
    if (type_of(s, instr) == DH_OP_CLIP)
        s->sum[output(s, instr, 0)->buffer] = s->writer[input(s, instr, 0)->buffer];
    for (int k = 0; k < info->n_out; k++)
        if (output(s, instr, k)->buffer != DH_NONE) s->writer[output(s, instr, k)->buffer] = instr;
}

static bool is_optimizer(const stepper *s, uint32_t instr)
{
    return dh_instr_graph(s->p, &s->p->instrs.at[instr])->kind == DH_BLOCK_OPT;
}

static dh_status check(stepper *s)
{
    for (uint32_t i = 0; i < s->end; i++) s->hears |= is_optimizer(s, i) && hears(s, i);
    for (uint32_t i = 0; i < s->end; i++) {
        if (!is_optimizer(s, i)) continue;
        const dh_op_type type = type_of(s, i);
        if (goes_ahead(s, i))
            DH_TRY(check_amended(s, i));
        else if (type == DH_OP_ADAMW || type == DH_OP_AMEND || type == DH_OP_BALANCE)
            DH_TRY(check_final(s, i));
        note_writes(s, i);
    }
    return DH_OK;
}

dh_status dh_steps_verify(dh_ctx *ctx, const dh_program *p)
{
    const size_t n_bytes = (p->buffers.n + 1) * sizeof(uint32_t);
    stepper s = {.ctx = ctx,
                 .p = p,
                 .end = p->probes.n ? p->probes.at[0].instr[0] : (uint32_t)p->instrs.n,
                 .writer = malloc(n_bytes),
                 .sum = malloc(n_bytes)};
    dh_status st = DH_OK;
    if (s.writer && s.sum) {
        memset(s.writer, 0xff, n_bytes);
        memset(s.sum, 0xff, n_bytes);
        st = check(&s);
    } else {
        st = dh_no_memory(ctx);
    }
    free(s.writer);
    free(s.sum);
    return st;
}
