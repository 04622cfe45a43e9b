/* LOAD: a micro-batch put together on the host, row by row of the data, and copied to the
 * device. */
#include <string.h>

#include "run/exec/internal.h"

enum { TOKENS, TARGETS, POSITIONS, SAMPLES, N_OUTPUTS };

typedef struct load {
    const dh_exec *exec;
    int32_t *row;       /* a sequence and the token behind it */
    dh_batch_row whole; /* the same of documents, apart */
    int32_t *tokens, *targets, *positions;
    int64_t *samples;
} load;

static int64_t rows_of(const dh_call *c)
{
    return c->graph->tensors.at[c->op->out[TOKENS]].shape[0];
}

/* The tokens that one decoding step is given. */
static void take_tokens(const load *l, const dh_step *step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        l->tokens[i] = step->tokens[i];
        l->targets[i] = -1;
        l->positions[i] = (int32_t)(step->pos0 + i);
        l->samples[i] = 0;
    }
}

/* A sequence's T+1 tokens give T inputs and T targets, one apart; the rank has some of
 * them where context parallelism splits the sequence. */
static void take_row(const load *l, const dh_dims *d, int64_t sample, int64_t at)
{
    for (int64_t t = 0; t < d->seq; t++) {
        const int64_t p = dh_cp_position(d, d->cp_rank, t);
        l->tokens[at + t] = l->row[p];
        l->targets[at + t] = l->row[p + 1];
        l->positions[at + t] = (int32_t)p;
        l->samples[at + t] = sample;
    }
}

static void take_document_row(const load *l, const dh_dims *d, int64_t at)
{
    for (int64_t t = 0; t < d->seq; t++) {
        const int64_t p = dh_cp_position(d, d->cp_rank, t);
        l->tokens[at + t] = l->whole.tokens[p];
        l->targets[at + t] = l->whole.targets[p];
        l->positions[at + t] = l->whole.positions[p];
        l->samples[at + t] = l->whole.samples[p];
    }
}

static int64_t whole_sequence(const dh_dims *d)
{
    return d->seq * DH_MAX(d->cp, 1);
}

static dh_status fill(dh_ctx *ctx, void *user, const dh_call *c)
{
    const load *l = user;
    const dh_step *step = l->exec->step;
    const dh_dims *d = &c->graph->dims;
    const int64_t n = rows_of(c);
    if (step->tokens) {
        take_tokens(l, step, n);
        return DH_OK;
    }
    for (int64_t b = 0; b < n / d->seq; b++) {
        const int64_t sample = step->first_sample + c->mb * step->sample_stride + b;
        const dh_batch_source *from = &step->source;
        if (from->load_row) {
            DH_TRY(from->load_row(ctx, from->self, sample, whole_sequence(d), &l->whole));
            take_document_row(l, d, b * d->seq);
            continue;
        }
        DH_TRY(from->load(ctx, from->self, sample, whole_sequence(d), l->row));
        take_row(l, d, sample, b * d->seq);
    }
    return DH_OK;
}

dh_status dh_exec_add_load(dh_ctx *ctx, dh_exec *e, dh_stream_command *command)
{
    const dh_call *c = command->call;
    const int64_t n = rows_of(c);
    load *l = DH_NEW(e->arena, load);
    dh_copy *copies = DH_NEW_N(e->arena, dh_copy, N_OUTPUTS);
    if (!l || !copies) return dh_no_memory(ctx);
    l->exec = e;
    const int64_t n_whole = whole_sequence(&c->graph->dims);
    l->row = DH_NEW_N(e->arena, int32_t, n_whole + 1);
    l->whole = (dh_batch_row){.tokens = DH_NEW_N(e->arena, int32_t, n_whole),
                              .targets = DH_NEW_N(e->arena, int32_t, n_whole),
                              .positions = DH_NEW_N(e->arena, int32_t, n_whole),
                              .samples = DH_NEW_N(e->arena, int64_t, n_whole)};
    if (!l->whole.tokens || !l->whole.targets || !l->whole.positions || !l->whole.samples ||
        !l->row)
        return dh_no_memory(ctx);
    const size_t n_bytes = (size_t)n * sizeof(int32_t);
    l->samples = dh_exec_host_memory(e, (size_t)n * sizeof(int64_t) + 3 * n_bytes);
    if (!l->samples) return dh_no_memory(ctx);
    l->tokens = (int32_t *)(l->samples + n);
    l->targets = l->tokens + n;
    l->positions = l->targets + n;
    copies[TOKENS] = (dh_copy){c->out[TOKENS], l->tokens, n_bytes};
    copies[TARGETS] = (dh_copy){c->out[TARGETS], l->targets, n_bytes};
    copies[POSITIONS] = (dh_copy){c->out[POSITIONS], l->positions, n_bytes};
    copies[SAMPLES] = (dh_copy){c->out[SAMPLES], l->samples, (size_t)n * sizeof(int64_t)};
    command->host = fill;
    command->host_user = l;
    command->copies = copies;
    command->n_copies = N_OUTPUTS;
    return DH_OK;
}
