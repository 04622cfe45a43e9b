/* Replays lifetimes in issue order; the parts always add up to the slab. */
#include "describe/footprint.h"

#include <stdlib.h>

/* First and last instruction that touches the storage of a buffer. */
typedef struct life {
    uint32_t first, last;
} life;

typedef struct change {
    int64_t activations, scratch;
} change;

static uint32_t storage_of(const dh_program *p, uint32_t buffer)
{
    while (p->buffers.at[buffer].alias != DH_NONE) buffer = p->buffers.at[buffer].alias;
    return buffer;
}

static void touch(const dh_program *p, life *lives, uint32_t buffer, uint32_t instr)
{
    if (buffer == DH_NONE) return;
    life *l = &lives[storage_of(p, buffer)];
    if (l->first == DH_NONE) l->first = instr;
    l->last = instr;
}

static void find_lives(const dh_program *p, life *lives)
{
    for (size_t b = 0; b < p->buffers.n; b++) lives[b] = (life){DH_NONE, 0};
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
        for (int k = 0; k < info->n_in + info->n_out; k++)
            touch(p, lives, dh_instr_operand(p, instr, k)->buffer, i);
        touch(p, lives, instr->work, i);
    }
    if (p->result.buffer != DH_NONE) touch(p, lives, p->result.buffer, (uint32_t)p->instrs.n - 1);
}

static void find_changes(const dh_program *p, const life *lives, change *changes)
{
    for (size_t b = 0; b < p->buffers.n; b++) {
        const dh_buffer *buffer = &p->buffers.at[b];
        if (dh_buffer_is_persistent(buffer->kind) || lives[b].first == DH_NONE) continue;
        int64_t n = (int64_t)buffer->n_bytes;
        change *begin = &changes[lives[b].first], *end = &changes[lives[b].last + 1];
        *(buffer->kind == DH_BUF_WORK ? &begin->scratch : &begin->activations) += n;
        *(buffer->kind == DH_BUF_WORK ? &end->scratch : &end->activations) -= n;
    }
}

static void find_peak(const dh_program *p, const change *changes, dh_footprint *f)
{
    int64_t activations = 0, scratch = 0, most = -1;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        activations += changes[i].activations;
        scratch += changes[i].scratch;
        if (activations + scratch <= most) continue;
        most = activations + scratch;
        f->peak_instr = i;
        f->activations = (uint64_t)activations;
        f->scratch = (uint64_t)scratch;
    }
}

static void measure_persistent(const dh_program *p, dh_footprint *f)
{
    uint64_t end = 0, sum = 0;
    for (size_t b = 0; b < p->buffers.n; b++) {
        const dh_buffer *buffer = &p->buffers.at[b];
        if (!dh_buffer_is_persistent(buffer->kind)) continue;
        f->persistent[buffer->kind] += buffer->n_bytes;
        sum += buffer->n_bytes;
        end = DH_MAX(end, buffer->offset + buffer->n_bytes);
    }
    f->kept = (p->persistent_bytes - end) / DH_BUFFER_ALIGN * DH_BUFFER_ALIGN;
    f->padding = p->persistent_bytes - f->kept - sum;
}

dh_status dh_footprint_of(dh_ctx *ctx, const dh_program *p, dh_footprint *footprint)
{
    life *lives = calloc(p->buffers.n + 1, sizeof *lives);
    change *changes = calloc(p->instrs.n + 1, sizeof *changes);
    dh_footprint f = {.padding = 0};
    if (lives && changes) {
        find_lives(p, lives);
        find_changes(p, lives, changes);
        find_peak(p, changes, &f);
    }
    bool ok = lives && changes;
    free(lives);
    free(changes);
    if (!ok) return dh_no_memory(ctx);
    measure_persistent(p, &f);
    f.unused = p->slab_bytes - p->persistent_bytes - f.activations - f.scratch;
    *footprint = f;
    return DH_OK;
}
