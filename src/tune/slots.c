/* A slot of the schedule: its time, its memory, and what its time is made of. */
#include "tune/tuner.h"

/* ---- memory --------------------------------------------------------------------------------- */

typedef double dh_block_lives_of(const dh_block_lives *lives);

static double kept(const dh_block_lives *l)
{
    return l->kept;
}
static double kept_w(const dh_block_lives *l)
{
    return l->kept_w;
}

/* Sum over layers, without one of kind `but`; -1: over all. */
static double sum_layers(const tune_blocks *b, const tune_stage *s, int but, dh_block_lives_of *of)
{
    double sum = 0;
    for (int k = 0; k < DH_N_LAYER_KINDS; k++)
        sum += (double)(s->kinds.of[k] - (k == but)) * of(&b->at[TUNE_LAYER + k].lives);
    return sum;
}

/* The layer of a stage of which most is there at once. */
static double largest_layer(const tune_blocks *b, const tune_stage *s, dh_block_lives_of *of)
{
    double most = 0;
    for (int k = 0; k < DH_N_LAYER_KINDS; k++)
        if (s->kinds.of[k] > 0) most = DH_MAX(most, of(&b->at[TUNE_LAYER + k].lives));
    return most;
}

static double sum_blocks(const tune_blocks *b, const tune_stage *s, dh_block_lives_of *of)
{
    return sum_layers(b, s, -1, of) + (s->embed ? of(&b->at[TUNE_EMBED].lives) : 0) +
           (s->head ? of(&b->at[TUNE_HEAD].lives) : 0);
}

/* Most bytes of a stage while a strand goes over its blocks. One block has its peak. Blocks that
 * are done (forward) or still to come (backward) have the bytes that they keep. */
static double strand_peak(const tune_blocks *b, const tune_stage *s, dh_block_lives_of *others,
                          dh_block_lives_of *peak)
{
    const dh_block_lives *embed = &b->at[TUNE_EMBED].lives, *head = &b->at[TUNE_HEAD].lives;
    const double below = s->embed ? others(embed) : 0;
    double most = s->embed ? peak(embed) : 0;
    for (int k = 0; k < DH_N_LAYER_KINDS; k++)
        if (s->kinds.of[k] > 0)
            most = DH_MAX(most,
                          below + sum_layers(b, s, k, others) + peak(&b->at[TUNE_LAYER + k].lives));
    if (s->head) most = DH_MAX(most, below + sum_layers(b, s, -1, others) + peak(head));
    return most;
}

static double f_peak(const dh_block_lives *l)
{
    return l->f_peak;
}
static double b_peak(const dh_block_lives *l)
{
    return l->b_peak;
}
static double i_peak(const dh_block_lives *l)
{
    return l->i_peak;
}
static double w_peak(const dh_block_lives *l)
{
    return l->w_peak;
}

typedef struct bytes {
    double before, peak, after; /* bytes of the stage's micro-batch; the peak includes it */
} bytes;

/* Input gradients leave tensors for weight gradients, and these stay. */
static double input_peak(const tune_blocks *b, const tune_stage *s)
{
    const double peak = strand_peak(b, s, kept, i_peak), left = sum_blocks(b, s, kept_w);
    return DH_MAX(peak, left + largest_layer(b, s, i_peak));
}

static bytes bytes_of(const tune_blocks *b, const tune_stage *s, int32_t kind)
{
    const double all = sum_blocks(b, s, kept), weights = sum_blocks(b, s, kept_w);
    switch (kind) {
    case DH_PIPE_F:
        return (bytes){0, strand_peak(b, s, kept, f_peak), all};
    case DH_PIPE_I:
        return (bytes){all, input_peak(b, s), weights};
    case DH_PIPE_W:
        return (bytes){weights, strand_peak(b, s, kept_w, w_peak), 0};
    default:
        return (bytes){all, strand_peak(b, s, kept, b_peak), 0};
    }
}

/* The peak of a forward's layer above the bytes that it keeps. */
static double forth(const dh_block_lives *l)
{
    return l->f_peak - l->kept;
}

/* Two strands go over their layers together: one's memory grows as the other's shrinks. */
static double pair_peak(const tune_blocks *b, const tune_stage *f, const tune_stage *back,
                        const bytes *fb, const bytes *bb)
{
    const bool whole = bb->after <= 0;
    const double steady = DH_MAX(fb->after, bb->before) + largest_layer(b, f, forth) +
                          largest_layer(b, back, whole ? b_peak : i_peak);
    const double start =
        bb->peak + (f->embed ? b->at[TUNE_EMBED].lives.f_peak : largest_layer(b, f, f_peak));
    const double end = fb->peak + bb->after + (back->embed ? b->at[TUNE_EMBED].lives.b_peak : 0);
    return DH_MAX(steady, DH_MAX(start, end));
}

tune_held tune_held_of(const tune_blocks *blocks, const tune_stage *stage)
{
    return (tune_held){sum_blocks(blocks, stage, kept), sum_blocks(blocks, stage, kept_w)};
}

/* ---- times ----------------------------------------------------------------------------------- */

static const unsigned phases_of[DH_N_PIPE_KINDS] = {[DH_PIPE_F] = 1u << TUNE_F,
                                                    [DH_PIPE_B] = 1u << TUNE_B | 1u << TUNE_W,
                                                    [DH_PIPE_I] = 1u << TUNE_B,
                                                    [DH_PIPE_W] = 1u << TUNE_W};

static double single_ns(const tune_times *t, const tune_stage *s, int32_t kind)
{
    const tune_chain *chains[DH_N_PIPE_KINDS] = {
        [DH_PIPE_F] = &t->f, [DH_PIPE_B] = &t->b, [DH_PIPE_I] = &t->i, [DH_PIPE_W] = &t->w};
    return tune_chain_ns(chains[kind], s);
}

/* Layer beside layer, of kinds that meet as often as there are layers of them; what is left of
 * either alone. Rare pairs are taken as one after the other. */
static double pair_ns(const tune_times *t, const tune_stage *f, const tune_stage *b, int32_t kind)
{
    if (kind == DH_PIPE_F || kind == DH_PIPE_W)
        return single_ns(t, f, DH_PIPE_F) + single_ns(t, b, kind);
    const tune_chain *back = kind == DH_PIPE_I ? &t->i : &t->b;
    const int64_t n = DH_MIN(f->n_layers, b->n_layers);
    double ns = 0;
    for (int x = 0; n > 0 && x < DH_N_LAYER_KINDS; x++)
        for (int y = 0; y < DH_N_LAYER_KINDS; y++) {
            const tune_layers_ns *pair = kind == DH_PIPE_I ? &t->fi[x][y] : &t->fb[x][y];
            ns += tune_share(f, x) * tune_share(b, y) * (pair->one + (double)(n - 1) * pair->more);
        }
    ns += (double)(f->n_layers - n) * tune_more_ns(&t->f, f) +
          (double)(b->n_layers - n) * tune_more_ns(back, b);
    ns += (f->embed ? t->f.embed : 0) + (f->head ? t->f.head : 0);
    return ns + (b->embed ? back->embed : 0) + (b->head ? back->head : 0);
}

/* Adds the operators of a stage's phases to each stream's. */
static void add_streams(const tune_blocks *b, const tune_stage *s, unsigned phases,
                        double ns[DH_N_STREAM])
{
    for (int i = 0; i < TUNE_N_BLOCK; i++) {
        const int64_t n = i == TUNE_EMBED  ? s->embed
                          : i == TUNE_HEAD ? s->head
                                           : s->kinds.of[i - TUNE_LAYER];
        for (int p = 0; n > 0 && p < TUNE_N_PHASE; p++)
            for (int k = 0; phases >> p & 1 && k < DH_N_STREAM; k++)
                ns[k] += (double)n * b->at[i].stream_ns[p][k];
    }
}

double tune_slot_floor_ns(const tune_blocks *blocks, const tune_timetable *t, const tune_class *c)
{
    double ns[DH_N_STREAM] = {0}, most = 0;
    add_streams(blocks, &t->types[c->type], phases_of[c->kind], ns);
    if (c->f >= 0) add_streams(blocks, &t->types[c->f], phases_of[DH_PIPE_F], ns);
    for (int k = 0; k < DH_N_STREAM; k++) most = DH_MAX(most, ns[k]);
    return most;
}

tune_slot_cost tune_slot_cost_of(const tune_basis *p, const tune_timetable *t, const tune_class *c)
{
    const tune_stage *stage = &t->types[c->type];
    const bytes b = bytes_of(p->blocks, stage, c->kind);
    const double floor_ns = p->times ? tune_slot_floor_ns(p->blocks, t, c) : 0;
    if (c->f < 0)
        return (tune_slot_cost){p->times ? DH_MAX(single_ns(p->times, stage, c->kind), floor_ns)
                                         : 0,
                                .peak_bytes = b.peak - b.before};
    const tune_stage *f = &t->types[c->f];
    const bytes fb = bytes_of(p->blocks, f, DH_PIPE_F);
    return (tune_slot_cost){p->times ? DH_MAX(pair_ns(p->times, f, stage, c->kind), floor_ns) : 0,
                            .peak_bytes = pair_peak(p->blocks, f, stage, &fb, &b) - b.before};
}

/* ---- items ---------------------------------------------------------------------------------- */

typedef struct work {
    double compute_ns, comm_ns[TUNE_N_COMM], n_launched;
} work;

static void add_block(const tune_block *b, unsigned phases, double n, work *w)
{
    for (int p = 0; p < TUNE_N_PHASE; p++) {
        if (!(phases >> p & 1)) continue;
        w->compute_ns += n * b->compute_ns[p];
        w->n_launched += n * b->n_launched[p];
        for (int k = 0; k < TUNE_N_COMM; k++) w->comm_ns[k] += n * b->comm_ns[p][k];
    }
}

static void add_stage(const tune_blocks *b, const tune_stage *s, unsigned phases, work *w)
{
    for (int k = 0; k < DH_N_LAYER_KINDS; k++)
        add_block(&b->at[TUNE_LAYER + k], phases, (double)s->kinds.of[k], w);
    if (s->embed) add_block(&b->at[TUNE_EMBED], phases, 1, w);
    if (s->head) add_block(&b->at[TUNE_HEAD], phases, 1, w);
}

static work work_of(const tune_blocks *b, const tune_timetable *t, const tune_class *c)
{
    work w = {0};
    add_stage(b, &t->types[c->type], phases_of[c->kind], &w);
    if (c->f >= 0) add_stage(b, &t->types[c->f], phases_of[DH_PIPE_F], &w);
    return w;
}

/* Time without computation or launches is exposed communication, or slow-down by communication.
 * It is shared out by how much of each kind there is. */
void tune_slot_items(const tune_basis *p, const tune_timetable *t, const tune_class *c, double ns,
                     double n, double items[DH_N_TUNE_ITEM])
{
    static const dh_tune_item kinds[TUNE_N_COMM] = {DH_TUNE_ITEM_TP, DH_TUNE_ITEM_CP,
                                                    DH_TUNE_ITEM_EP};
    const work own = work_of(p->blocks, t, c), plain = work_of(p->plain, t, c);
    const double recompute = DH_MAX(own.compute_ns - plain.compute_ns, 0);
    double comm_ns = 0, launch_ns = own.n_launched * p->launch_ns;
    for (int k = 0; k < TUNE_N_COMM; k++) comm_ns += own.comm_ns[k];
    const double rest = ns - own.compute_ns - launch_ns;
    if (comm_ns <= 0) launch_ns += rest;
    for (int k = 0; comm_ns > 0 && k < TUNE_N_COMM; k++)
        items[kinds[k]] += n * rest * own.comm_ns[k] / comm_ns;
    items[DH_TUNE_ITEM_COMPUTE] += n * (own.compute_ns - recompute);
    items[DH_TUNE_ITEM_RECOMPUTE] += n * recompute;
    items[DH_TUNE_ITEM_LAUNCH] += n * launch_ns;
}
