/* Transient bytes alive over the time of a step.
 *
 * A buffer is alive from the start of the first instruction that touches it to the end
 * of the last one, whatever streams they are on. Buffers that overlay each other count
 * once. Every buffer makes two changes; sorted by time, their running sums are the
 * curve. */
#include "report/lives.h"

#include <stdlib.h>

#include "report/timeline.h"

/* ---- lives ---------------------------------------------------------------------------------- */

uint32_t dh_lives_storage(const dh_program *p, uint32_t buffer)
{
    while (p->buffers.at[buffer].alias != DH_NONE) buffer = p->buffers.at[buffer].alias;
    return buffer;
}

static void touch(const dh_program *p, dh_span *lives, uint32_t buffer, const dh_span *span)
{
    if (buffer == DH_NONE) return;
    dh_span *life = &lives[dh_lives_storage(p, buffer)];
    life->start_ns = DH_MIN(life->start_ns, span->start_ns);
    life->end_ns = DH_MAX(life->end_ns, span->end_ns);
}

void dh_lives_find(const dh_program *p, const dh_span *spans, dh_span *lives)
{
    for (size_t b = 0; b < p->buffers.n; b++)
        lives[b] = (dh_span){.start_ns = INT64_MAX, .end_ns = INT64_MIN};
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
        for (int k = 0; k < info->n_in + info->n_out; k++)
            touch(p, lives, dh_instr_operand(p, instr, k)->buffer, &spans[i]);
        touch(p, lives, instr->work, &spans[i]);
    }
}

size_t dh_lives_changes(const dh_program *p, const dh_span *lives, const bool *of,
                        dh_live_point *changes)
{
    size_t n = 0;
    for (size_t b = 0; b < p->buffers.n; b++) {
        const dh_buffer *buffer = &p->buffers.at[b];
        if (dh_buffer_is_persistent(buffer->kind) || lives[b].start_ns >= lives[b].end_ns) continue;
        if (of && !of[b]) continue;
        const int kind = buffer->kind == DH_BUF_WORK ? DH_LIVE_SCRATCH : DH_LIVE_ACTIVATIONS;
        changes[n] = (dh_live_point){.at = lives[b].start_ns};
        changes[n++].bytes[kind] = (int64_t)buffer->n_bytes;
        changes[n] = (dh_live_point){.at = lives[b].end_ns};
        changes[n++].bytes[kind] = -(int64_t)buffer->n_bytes;
    }
    return n;
}

/* ---- the curve ------------------------------------------------------------------------------ */

static bool make_curve(dh_live_point *changes, size_t n_changes, dh_memory_point *curve, size_t *n)
{
    if (!dh_live_sort(changes, n_changes)) return false;
    *n = dh_live_sum(changes, n_changes);
    for (size_t i = 0; i < *n; i++)
        curve[i] = (dh_memory_point){.at_ns = changes[i].at,
                                     .activation_bytes = changes[i].bytes[DH_LIVE_ACTIVATIONS],
                                     .scratch_bytes = changes[i].bytes[DH_LIVE_SCRATCH]};
    return true;
}

dh_status dh_memory_over_time(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              dh_memory_point **points, size_t *n)
{
    const size_t n_buffers = program->buffers.n;
    dh_span *lives = calloc(n_buffers + 1, sizeof *lives);
    dh_live_point *changes = calloc(2 * n_buffers + 1, sizeof *changes);
    dh_memory_point *curve = calloc(2 * n_buffers + 1, sizeof *curve);
    bool ok = lives && changes && curve;
    if (ok) {
        dh_lives_find(program, spans, lives);
        ok = make_curve(changes, dh_lives_changes(program, lives, NULL, changes), curve, n);
    }
    if (ok)
        *points = curve;
    else
        free(curve);
    free(lives);
    free(changes);
    return ok ? DH_OK : dh_no_memory(ctx);
}
