/* Memory as another system would need it: our program's tensors, and what the system keeps beside
 * them.
 *
 * A forward operator that keeps something is joined with the backward one that uses it: both see
 * the same operand (packed queries, positions) of one block and micro-batch. If the backward makes
 * the forward again, its operator is the last one before. Softmax is kept as its result. With
 * dropout its mask and its remaining values are kept too (Korthikanti et al. 2022, equation 1): 5
 * bytes a score in half precision. */
#include "report/system_memory.h"

#include <stdlib.h>

#include "report/lives.h"

/* ---- what is kept beside ------------------------------------------------------------------- */

typedef struct keeping {
    dh_op_type forward, backward;
    int forward_in, backward_in; /* operand that both see */
    bool scores;                 /* else a mask */
} keeping;

static const keeping keepings[] = {{DH_OP_ATTN, DH_OP_ATTN_GRAD, 0, 1, true},
                                   {DH_OP_RING_ATTN, DH_OP_RING_ATTN_GRAD, 0, 1, true},
                                   {DH_OP_RESIDUAL, DH_OP_DROPOUT_GRAD, 3, 1, false},
                                   {DH_OP_EMBED, DH_OP_EMBED_GRAD, 1, 2, false}};

/* An instruction that keeps something, or uses what was kept. */
typedef struct use {
    int64_t key[6]; /* the same for all that share what is kept */
    uint32_t instr;
    bool backward;
    int64_t kept_bytes, work_bytes; /* work: while it runs */
} use;

static int compare_uses(const void *a, const void *b)
{
    const use *x = a, *y = b;
    for (size_t i = 0; i < DH_COUNTOF(x->key); i++)
        if (x->key[i] != y->key[i]) return x->key[i] < y->key[i] ? -1 : 1;
    return (x->instr > y->instr) - (x->instr < y->instr);
}

static bool share(const use *a, const use *b)
{
    for (size_t i = 0; i < DH_COUNTOF(a->key); i++)
        if (a->key[i] != b->key[i]) return false;
    return true;
}

static double scores_of(const dh_graph *g, const dh_op *op)
{
    const dh_ring_part part = dh_ring_part_of(&g->dims, op->step);
    const dh_attn_sizes s = dh_op_attn_sizes(g, op);
    return (double)(s.batch * s.n_heads) * (double)part.n_q * (double)part.n_k;
}

/* The forward has scores beside their softmax, the backward two gradients of them. */
static void size_scores(const dh_graph *g, const dh_op *op, use *u)
{
    const double item = (double)dh_dtype_bytes(g->dtype), scores = scores_of(g, op);
    const double kept = scores * (g->dims.dropout > 0 ? 2 * item + 1 : item);
    u->kept_bytes = (int64_t)kept;
    u->work_bytes = (int64_t)(scores * item * (u->backward ? 2 : 1));
}

static void size_mask(const dh_graph *g, const dh_op *op, use *u)
{
    u->kept_bytes = u->backward ? 0 : dh_tensor_elements(&g->tensors.at[op->out[0]]);
}

static bool keeps(const dh_system *system, const keeping *k)
{
    return dh_system_has(system, k->scores ? DH_TRAIT_SCORES : DH_TRAIT_MASKS);
}

/* The keeping that an operator makes or uses; NULL: none. */
static const keeping *keeping_of(const dh_system *system, const dh_graph *g, const dh_op *op)
{
    for (size_t i = 0; i < DH_COUNTOF(keepings); i++) {
        const keeping *k = &keepings[i];
        if (op->type != k->forward && op->type != k->backward) continue;
        if (keeps(system, k) && (k->scores || g->dims.dropout > 0)) return k;
    }
    return NULL;
}

/* Whether the backward makes what this forward operator keeps again. */
static bool is_made_again(const dh_graph *g, const dh_op *op)
{
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *other = &g->ops.at[i];
        if (other->type == op->type && other->phase != DH_PHASE_F && other->step == op->step &&
            other->site == op->site)
            return true;
    }
    return false;
}

dh_system_block dh_system_block_of(const dh_system *system, const dh_system_job *job,
                                   const dh_graph *g)
{
    dh_system_block sum = {0};
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        const keeping *k = keeping_of(system, g, op);
        use u = {.backward = k && op->type == k->backward};
        if (!k) continue;
        (k->scores ? size_scores : size_mask)(g, op, &u);
        const bool kept = op->type == k->forward && op->phase == DH_PHASE_F &&
                          !(k->scores && job->scores_again) && !is_made_again(g, op);
        if (kept) sum.kept_bytes += (double)u.kept_bytes;
        sum.work_bytes = DH_MAX(sum.work_bytes, (double)(u.work_bytes + (kept ? 0 : u.kept_bytes)));
    }
    return sum;
}

/* false: the instruction keeps nothing and uses nothing kept. */
static bool use_of(const dh_system *system, const dh_program *p, uint32_t instr, use *u)
{
    const dh_instr *in = &p->instrs.at[instr];
    const dh_graph *g = dh_instr_graph(p, in);
    const dh_op *op = dh_instr_op(p, in);
    for (size_t i = 0; i < DH_COUNTOF(keepings); i++) {
        const keeping *k = &keepings[i];
        const bool backward = op->type == k->backward;
        if ((!backward && op->type != k->forward) || !keeps(system, k)) continue;
        const dh_operand *seen = dh_instr_operand(p, in, backward ? k->backward_in : k->forward_in);
        if (seen->buffer == DH_NONE || (!k->scores && g->dims.dropout <= 0)) return false;
        const int64_t part = k->scores ? op->step : op->site;
        *u = (use){.key = {in->block, in->mb, (int64_t)i, part, seen->buffer, (int64_t)seen->byte0},
                   .instr = instr,
                   .backward = backward};
        (k->scores ? size_scores : size_mask)(g, op, u);
        return true;
    }
    return false;
}

/* ---- curves ---------------------------------------------------------------------------------- */

typedef struct measuring {
    const dh_system *system;
    const dh_system_job *job;
    const dh_program *program;
    const dh_span *spans;
    dh_span *lives;            /* [buffers] */
    bool *of_layers;           /* [buffers] kept by layers' forwards */
    use *uses;                 /* [instructions] */
    dh_live_point *all, *kept; /* changes */
    size_t n_uses, n_all, n_kept;
} measuring;

static void add_life(dh_live_point *changes, size_t *n, int64_t bytes, int64_t start, int64_t end)
{
    if (bytes == 0 || start >= end) return;
    changes[*n] = (dh_live_point){.at = start, .bytes = {[DH_LIVE_ACTIVATIONS] = bytes}};
    changes[*n + 1] = (dh_live_point){.at = end, .bytes = {[DH_LIVE_ACTIVATIONS] = -bytes}};
    *n += 2;
}

/* Of a forward operator whose backward follows: until that has ended. One that is made again, or
 * whose scores are not kept, has them while it runs. */
static void add_use(measuring *m, const use *u, const use *next)
{
    const dh_program *p = m->program;
    const dh_span *own = &m->spans[u->instr];
    const bool scores = keepings[u->key[2]].scores, again = scores && m->job->scores_again;
    const bool kept = !u->backward && next && next->backward && !again;
    const int64_t end = kept ? m->spans[next->instr].end_ns : own->end_ns;
    add_life(m->all, &m->n_all, u->work_bytes, own->start_ns, own->end_ns);
    if (!u->backward || again) add_life(m->all, &m->n_all, u->kept_bytes, own->start_ns, end);
    const dh_instr *instr = &p->instrs.at[u->instr];
    if (kept && dh_instr_op(p, instr)->phase == DH_PHASE_F &&
        dh_instr_graph(p, instr)->kind == DH_BLOCK_LAYER)
        add_life(m->kept, &m->n_kept, u->kept_bytes, own->start_ns, end);
}

static void add_uses(measuring *m)
{
    for (uint32_t i = 0; i < m->program->instrs.n; i++)
        if (use_of(m->system, m->program, i, &m->uses[m->n_uses])) m->n_uses++;
    qsort(m->uses, m->n_uses, sizeof *m->uses, compare_uses);
    for (size_t i = 0; i < m->n_uses; i++) {
        const bool more = i + 1 < m->n_uses && share(&m->uses[i], &m->uses[i + 1]);
        add_use(m, &m->uses[i], more ? &m->uses[i + 1] : NULL);
    }
}

/* Buffers that a forward writes and a layer's backward reads. */
static void find_kept(measuring *m)
{
    const dh_program *p = m->program;
    bool *forward = m->of_layers, *read = m->of_layers + p->buffers.n;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op *op = dh_instr_op(p, instr);
        const dh_op_info *info = dh_op_info_of(op->type);
        const bool layer = dh_instr_graph(p, instr)->kind == DH_BLOCK_LAYER;
        for (int k = 0; k < info->n_in + info->n_out; k++) {
            const uint32_t buffer = dh_instr_operand(p, instr, k)->buffer;
            if (buffer == DH_NONE) continue;
            const uint32_t storage = dh_lives_storage(p, buffer);
            if (op->phase == DH_PHASE_F)
                forward[storage] |= k >= info->n_in;
            else
                read[storage] |= layer && k < info->n_in;
        }
    }
    for (size_t b = 0; b < p->buffers.n; b++) m->of_layers[b] = forward[b] && read[b];
}

/* Scratch for gradients rounded on their way: a system that keeps them so has none. */
static void drop_rounded(measuring *m)
{
    const dh_program *p = m->program;
    for (uint32_t i = 0; i < p->instrs.n; i++)
        if (p->instrs.at[i].work != DH_NONE && dh_instr_op(p, &p->instrs.at[i])->wire != DH_F32)
            m->lives[p->instrs.at[i].work] = (dh_span){0};
}

static dh_status measure(dh_ctx *ctx, measuring *m, dh_system_memory *memory)
{
    const dh_program *p = m->program;
    dh_lives_find(p, m->spans, m->lives);
    if (dh_system_has(m->system, DH_TRAIT_HALF_GRADIENTS)) drop_rounded(m);
    find_kept(m);
    m->n_all = dh_lives_changes(p, m->lives, NULL, m->all);
    m->n_kept = dh_lives_changes(p, m->lives, m->of_layers, m->kept);
    add_uses(m);
    if (!dh_live_sort(m->all, m->n_all) || !dh_live_sort(m->kept, m->n_kept))
        return dh_no_memory(ctx);
    const dh_live_point *most = dh_live_highest(m->all, dh_live_sum(m->all, m->n_all));
    const dh_live_point *kept = dh_live_highest(m->kept, dh_live_sum(m->kept, m->n_kept));
    memory->peak_bytes = memory->states_bytes + (most ? (uint64_t)dh_live_total(most) : 0);
    memory->peak_ns = most ? most->at : 0;
    memory->layers_kept_bytes = kept ? (uint64_t)dh_live_total(kept) : 0;
    return DH_OK;
}

/* ---- states ---------------------------------------------------------------------------------- */

/* Of a bucket's parameters those of layers, as a share of their elements. */
static double layer_share(const dh_program *p, uint32_t flat)
{
    double all = 0, layers = 0;
    for (size_t i = 0; i < p->params.n; i++) {
        const dh_block *block = &p->blocks.at[p->homes.at[i].block];
        if (block->flat != flat) continue;
        const double n = (double)dh_param_elements(&p->params.at[i]);
        all += n;
        if (p->graphs.at[block->graph]->kind == DH_BLOCK_LAYER) layers += n;
    }
    return all > 0 ? layers / all : 0;
}

double dh_system_gradient_bytes(const dh_system *system, const dh_program *p, const dh_buffer *b)
{
    const dh_group_kind group = dh_program_data_group(p, p->flats.at[b->owner].first_block);
    double bytes = (double)b->n_bytes;
    if (dh_system_has(system, DH_TRAIT_HALF_GRADIENTS)) bytes /= 2;
    if (dh_system_has(system, DH_TRAIT_SHARDED_GRADIENTS))
        bytes /= (double)dh_mesh_group_size(&p->mesh, group);
    return bytes;
}

static void add_states(const dh_system *system, const dh_program *p, dh_system_memory *memory)
{
    double states = 0, layers = 0, whole = 0;
    for (size_t i = 0; i < p->buffers.n; i++) {
        const dh_buffer *b = &p->buffers.at[i];
        if (!dh_buffer_is_persistent(b->kind)) continue;
        const bool gradients = b->kind == DH_BUF_GRAD;
        const double bytes =
            gradients ? dh_system_gradient_bytes(system, p, b) : (double)b->n_bytes;
        states += bytes;
        if (b->kind != DH_BUF_STATE && b->kind != DH_BUF_KV)
            layers += bytes * layer_share(p, b->owner);
        if (gradients && bytes < (double)b->n_bytes) whole = DH_MAX(whole, (double)b->n_bytes);
    }
    if (dh_system_has(system, DH_TRAIT_SHARDED_GRADIENTS)) states += whole;
    memory->states_bytes = (uint64_t)states;
    memory->layer_states_bytes = (uint64_t)layers;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static void fini(measuring *m, dh_span *places)
{
    free(m->lives);
    free(m->of_layers);
    free(m->uses);
    free(m->all);
    free(m->kept);
    free(places);
}

dh_status dh_system_memory_of(dh_ctx *ctx, const dh_system *system, const dh_system_job *job,
                              const dh_program *p, const dh_span *spans, dh_system_memory *memory)
{
    const size_t n_instrs = p->instrs.n, n_buffers = p->buffers.n;
    const size_t n_changes = 2 * n_buffers + 4 * n_instrs + 1;
    dh_span *places = calloc(n_instrs + 1, sizeof *places);
    measuring m = {.system = system,
                   .job = job,
                   .program = p,
                   .spans = spans ? spans : places,
                   .lives = calloc(n_buffers + 1, sizeof *m.lives),
                   .of_layers = calloc(2 * n_buffers + 1, sizeof *m.of_layers),
                   .uses = calloc(n_instrs + 1, sizeof *m.uses),
                   .all = calloc(n_changes, sizeof *m.all),
                   .kept = calloc(n_changes, sizeof *m.kept)};
    dh_system_memory found = {0};
    const bool ok = places && m.lives && m.of_layers && m.uses && m.all && m.kept;
    for (size_t i = 0; ok && i < n_instrs; i++)
        places[i] = (dh_span){(int64_t)i, (int64_t)i, (int64_t)i + 1};
    if (ok) add_states(system, p, &found);
    const dh_status st = ok ? measure(ctx, &m, &found) : dh_no_memory(ctx);
    if (st == DH_OK) *memory = found;
    fini(&m, places);
    return st;
}
