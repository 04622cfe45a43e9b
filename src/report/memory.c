/* Transient bytes alive over the time of a step.
 *
 * A buffer is alive from the start of the first instruction that touches it to the end
 * of the last one, whatever streams they are on. Buffers that overlay each other count
 * once. Every buffer makes two changes; sorted by time, their running sums are the
 * curve. */
#include <stdlib.h>

#include "dhelix/timeline.h"

typedef struct change {
    int64_t at_ns;
    int64_t bytes[2]; /* activations, scratch */
} change;

static uint32_t storage_of(const dh_program *p, uint32_t buffer)
{
    while (p->buffers.at[buffer].alias != DH_NONE) buffer = p->buffers.at[buffer].alias;
    return buffer;
}

static void touch(const dh_program *p, dh_span *lives, uint32_t buffer, const dh_span *span)
{
    if (buffer == DH_NONE) return;
    dh_span *life = &lives[storage_of(p, buffer)];
    life->start_ns = DH_MIN(life->start_ns, span->start_ns);
    life->end_ns = DH_MAX(life->end_ns, span->end_ns);
}

/* lives [buffers]; of a buffer that nothing touches the start lies behind the end. */
static void find_lives(const dh_program *p, const dh_span *spans, dh_span *lives)
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

static size_t find_changes(const dh_program *p, const dh_span *lives, change *changes)
{
    size_t n = 0;
    for (size_t b = 0; b < p->buffers.n; b++) {
        const dh_buffer *buffer = &p->buffers.at[b];
        if (dh_buffer_is_persistent(buffer->kind) || lives[b].start_ns >= lives[b].end_ns) continue;
        const int kind = buffer->kind == DH_BUF_WORK;
        changes[n] = (change){.at_ns = lives[b].start_ns};
        changes[n++].bytes[kind] = (int64_t)buffer->n_bytes;
        changes[n] = (change){.at_ns = lives[b].end_ns};
        changes[n++].bytes[kind] = -(int64_t)buffer->n_bytes;
    }
    return n;
}

static int by_time(const void *x, const void *y)
{
    const int64_t a = ((const change *)x)->at_ns, b = ((const change *)y)->at_ns;
    return a < b ? -1 : a > b;
}

/* Changes of one moment make one point; points that change nothing are left out. */
static size_t sum_up(const change *changes, size_t n, dh_memory_point *points)
{
    size_t n_points = 0;
    dh_memory_point now = {0};
    for (size_t i = 0; i < n; i++) {
        now.at_ns = changes[i].at_ns;
        now.activation_bytes += changes[i].bytes[0];
        now.scratch_bytes += changes[i].bytes[1];
        if (i + 1 < n && changes[i + 1].at_ns == now.at_ns) continue;
        const dh_memory_point *last = n_points ? &points[n_points - 1] : NULL;
        if (!last || last->activation_bytes != now.activation_bytes ||
            last->scratch_bytes != now.scratch_bytes)
            points[n_points++] = now;
    }
    return n_points;
}

dh_status dh_memory_over_time(dh_ctx *ctx, const dh_program *program, const dh_span *spans,
                              dh_memory_point **points, size_t *n)
{
    const size_t n_buffers = program->buffers.n;
    dh_span *lives = calloc(n_buffers + 1, sizeof *lives);
    change *changes = calloc(2 * n_buffers + 1, sizeof *changes);
    dh_memory_point *curve = calloc(2 * n_buffers + 1, sizeof *curve);
    const bool ok = lives && changes && curve;
    if (ok) {
        find_lives(program, spans, lives);
        const size_t n_changes = find_changes(program, lives, changes);
        qsort(changes, n_changes, sizeof *changes, by_time);
        *n = sum_up(changes, n_changes, curve);
        *points = curve;
    } else {
        free(curve);
    }
    free(lives);
    free(changes);
    return ok ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory measuring a step's memory");
}
