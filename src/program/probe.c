/* Probes: instructions behind a step that measure its operators.
 *
 * A probe is the operator again, on the same buffers, alone between two barriers. Or it is two
 * operators of different streams side by side, without common data: one of the first micro-batch's
 * forward, one of the last one's backward. Buffers live until their last use, so probes see what
 * the step left there, and the verifier proves them like the rest.
 *
 * Before a probe with communication the same call runs once: ranks leave it together,
 * so that waiting for a late partner is not taken for transfer time.
 *
 * Order and deadlock. Classes come in the order of their first instructions in the step, which all
 * ranks share (build.c). So two ranks meet in the same order at their common classes. A link has
 * two ends with different histories: every link is probed. Pairs come last, and communicate inside
 * a stage only, whose ranks have the same classes. */
#include <stdlib.h>
#include <string.h>

#include "costs/profile.h"
#include "program/build.h"

/* Where a class occurs in the step; DH_NONE: nowhere. */
typedef struct place {
    uint32_t first, forward, backward; /* instructions */
} place;

typedef struct prober {
    plan *b;
    dh_program *p;
    const dh_costs *costs;
    DH_VEC(place) places; /* by class */
} prober;

/* ---- classes ------------------------------------------------------------------------------ */

static dh_block_kind kind_of(const prober *r, const dh_instr *i)
{
    return dh_instr_graph(r->p, i)->kind;
}

/* Blocks whose operators strands consist of, alike on all ranks of a group. */
static bool in_strands(dh_block_kind kind)
{
    return kind == DH_BLOCK_DATA || kind == DH_BLOCK_EMBED || kind == DH_BLOCK_LAYER ||
           kind == DH_BLOCK_HEAD;
}

static bool is_forward(const prober *r, const dh_instr *i)
{
    return dh_instr_op(r->p, i)->phase == DH_PHASE_F && i->mb == 0 && in_strands(kind_of(r, i));
}

static bool is_backward(const prober *r, const dh_instr *i)
{
    const dh_phase phase = dh_instr_op(r->p, i)->phase;
    return (phase == DH_PHASE_B || phase == DH_PHASE_W) && i->mb == r->p->n_micro - 1 &&
           in_strands(kind_of(r, i));
}

/* Once a step, or of a link's first micro-batch; reductions may be of any. */
static bool is_other(const prober *r, const dh_instr *i)
{
    const dh_block_kind kind = kind_of(r, i);
    return i->mb == -1 || (i->mb == 0 && kind == DH_BLOCK_LINK) || kind == DH_BLOCK_GRADS;
}

static dh_status describe(dh_ctx *ctx, prober *r, const dh_instr *i, char key[DH_OP_KEY_BYTES],
                          dh_probe_class *cls)
{
    char label[DH_OP_LABEL_BYTES];
    const uint32_t graph = r->p->blocks.at[i->block].graph;
    const dh_graph *like = dh_instr_graph(r->p, i);
    if (in_strands(like->kind)) DH_TRY(plan_graph_like(ctx, r->b, graph, &like));
    const dh_op *op = &like->ops.at[i->op];
    const dh_cost_op at = {like, op, &r->p->mesh, r->p->rank};
    *cls = (dh_probe_class){
        .key = dh_op_class_key(&at, key),
        .label = dh_arena_strdup(r->p->arena, dh_op_label(like, op, label)),
        .estimate_ns = (int64_t)r->costs->solo(r->costs->self, &at).ns,
        .group = -1,
        .stream = i->stream,
    };
    const bool link = op->type == DH_OP_SEND || op->type == DH_OP_RECV;
    if (dh_op_info_of(op->type)->resource == DH_RES_COMM && !link) cls->group = op->group;
    return cls->label ? DH_OK : dh_no_memory(ctx);
}

static uint32_t find_class(const prober *r, const char *key)
{
    for (uint32_t c = 0; c < r->p->probe_classes.n; c++)
        if (strcmp(r->p->probe_classes.at[c].key, key) == 0) return c;
    return DH_NONE;
}

static dh_status class_of(dh_ctx *ctx, prober *r, uint32_t instr, uint32_t *id)
{
    char key[DH_OP_KEY_BYTES];
    dh_probe_class cls;
    DH_TRY(describe(ctx, r, &r->p->instrs.at[instr], key, &cls));
    *id = find_class(r, key);
    if (*id != DH_NONE) return DH_OK;
    const place none = {DH_NONE, DH_NONE, DH_NONE};
    cls.key = dh_arena_strdup(r->p->arena, key);
    cls.instr = instr;
    if (!cls.key || !dh_vec_push(&r->p->probe_classes, cls) || !dh_vec_push(&r->places, none))
        return dh_no_memory(ctx);
    *id = (uint32_t)r->p->probe_classes.n - 1;
    return DH_OK;
}

static void note(uint32_t *at, uint32_t instr)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): every class has its place
    if (*at == DH_NONE) *at = instr;
}

static dh_status list_class(dh_ctx *ctx, prober *r, uint32_t instr)
{
    const dh_instr i = r->p->instrs.at[instr];
    const bool forward = is_forward(r, &i), backward = is_backward(r, &i);
    uint32_t id;
    if (!forward && !backward && !is_other(r, &i)) return DH_OK;
    DH_TRY(class_of(ctx, r, instr, &id));
    dh_probe_class *cls = &r->p->probe_classes.at[id];
    cls->forward |= forward;
    cls->backward |= backward;
    note(&r->places.at[id].first, instr);
    if (forward) note(&r->places.at[id].forward, instr);
    if (backward) note(&r->places.at[id].backward, instr);
    return DH_OK;
}

/* ---- probes ------------------------------------------------------------------------------- */

static bool communicates(const prober *r, uint32_t instr)
{
    return dh_op_info_of(dh_instr_op(r->p, &r->p->instrs.at[instr])->type)->resource == DH_RES_COMM;
}

/* An instruction of the step again; *copy is the new one. */
static dh_status repeat(dh_ctx *ctx, prober *r, uint32_t instr, uint32_t *copy)
{
    const dh_instr i = r->p->instrs.at[instr];
    *copy = (uint32_t)r->p->instrs.n;
    return dh_emit_op(ctx, r->b->emitter, i.block, i.mb, i.op);
}

static dh_status align(dh_ctx *ctx, prober *r, uint32_t instr)
{
    uint32_t copy;
    if (!communicates(r, instr)) return DH_OK;
    dh_emit_barrier(r->b->emitter);
    return repeat(ctx, r, instr, &copy);
}

static dh_status add_probe(dh_ctx *ctx, prober *r, const dh_probe *probe)
{
    return dh_vec_push(&r->p->probes, *probe) ? DH_OK : dh_no_memory(ctx);
}

static dh_status emit_solo(dh_ctx *ctx, prober *r, uint32_t cls, uint32_t instr)
{
    dh_probe probe = {{cls, DH_NONE}, {DH_NONE, DH_NONE}};
    DH_TRY(align(ctx, r, instr));
    dh_emit_barrier(r->b->emitter);
    DH_TRY(repeat(ctx, r, instr, &probe.instr[0]));
    /* A send may return before its data have arrived: the receive's time is the transfer's. */
    const bool sends = dh_instr_op(r->p, &r->p->instrs.at[instr])->type == DH_OP_SEND;
    return sends ? DH_OK : add_probe(ctx, r, &probe);
}

static dh_status emit_pair(dh_ctx *ctx, prober *r, uint32_t f, uint32_t b)
{
    dh_probe probe = {{f, b}, {DH_NONE, DH_NONE}};
    const uint32_t instrs[2] = {r->places.at[f].forward, r->places.at[b].backward};
    for (int k = 0; k < 2; k++) DH_TRY(align(ctx, r, instrs[k]));
    dh_emit_barrier(r->b->emitter);
    for (int k = 0; k < 2; k++) DH_TRY(repeat(ctx, r, instrs[k], &probe.instr[k]));
    return add_probe(ctx, r, &probe);
}

/* The same two classes in the other strands need no second measurement. */
static bool pair_is_done(const prober *r, uint32_t f, uint32_t b)
{
    for (size_t i = 0; i < r->p->probes.n; i++)
        if (r->p->probes.at[i].cls[0] == b && r->p->probes.at[i].cls[1] == f) return true;
    return false;
}

static dh_status emit_solos(dh_ctx *ctx, prober *r, uint32_t n_step)
{
    for (uint32_t i = 0; i < n_step; i++) {
        const dh_instr instr = r->p->instrs.at[i];
        const bool link = instr.mb == 0 && kind_of(r, &instr) == DH_BLOCK_LINK;
        uint32_t id = DH_NONE;
        for (uint32_t c = 0; c < r->places.n && !link; c++)
            if (r->places.at[c].first == i) id = c;
        if (link) DH_TRY(class_of(ctx, r, i, &id));
        if (id != DH_NONE) DH_TRY(emit_solo(ctx, r, id, i));
    }
    return DH_OK;
}

/* Two operators of one stream run one after the other; nothing is to be measured there. */
static dh_status emit_pairs(dh_ctx *ctx, prober *r)
{
    const uint32_t n = (uint32_t)r->places.n;
    for (uint32_t f = 0; f < n; f++)
        for (uint32_t b = 0; b < n; b++) {
            const dh_probe_class *x = &r->p->probe_classes.at[f], *y = &r->p->probe_classes.at[b];
            if (x->forward && y->backward && x->stream != y->stream && !pair_is_done(r, f, b))
                DH_TRY(emit_pair(ctx, r, f, b));
        }
    return DH_OK;
}

dh_status plan_emit_probes(dh_ctx *ctx, plan *b)
{
    prober r = {.b = b,
                .p = dh_emitter_program(b->emitter),
                .costs = b->spec->recipe.costs ? b->spec->recipe.costs : &dh_costs_default};
    const uint32_t n_step = (uint32_t)r.p->instrs.n;
    dh_status st = r.p->n_micro >= 2 ? DH_OK
                                     : dh_fail(ctx, DH_EINVAL,
                                               "probes need 2 micro-batches: the forward of one "
                                               "runs during the backward of the other");
    for (uint32_t i = 0; st == DH_OK && i < n_step; i++) st = list_class(ctx, &r, i);
    if (st == DH_OK) st = emit_solos(ctx, &r, n_step);
    if (st == DH_OK) st = emit_pairs(ctx, &r);
    dh_vec_fini(&r.places);
    return st;
}
