/* A rank's memory over the step, and its peak. */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

dh_status dh_sim_memory_of(dh_ctx *ctx, dh_arena *arena, dh_sim_rank *rank)
{
    const dh_program *p = rank->program;
    dh_sim_memory *m = &rank->memory;
    dh_memory_point *points;
    DH_TRY(dh_memory_over_time(ctx, p, rank->spans, &points, &m->n_transient));
    dh_memory_point *own = DH_NEW_N(arena, dh_memory_point, m->n_transient + 1);
    if (own && m->n_transient > 0) memcpy(own, points, m->n_transient * sizeof *own);
    free(points);
    if (!own) return dh_no_memory(ctx);
    m->transient = own;
    m->slab_bytes = p->slab_bytes;
    m->peak_bytes = p->persistent_bytes;
    for (size_t b = 0; b < p->buffers.n; b++)
        if (dh_buffer_is_persistent(p->buffers.at[b].kind))
            m->persistent[p->buffers.at[b].kind] += p->buffers.at[b].n_bytes;
    for (size_t i = 0; i < m->n_transient; i++) {
        const uint64_t activations = (uint64_t)own[i].activation_bytes;
        const uint64_t scratch = (uint64_t)own[i].scratch_bytes;
        if (p->persistent_bytes + activations + scratch <= m->peak_bytes) continue;
        m->peak_bytes = p->persistent_bytes + activations + scratch;
        m->peak_ns = own[i].at_ns;
        m->peak_activations = activations;
        m->peak_scratch = scratch;
    }
    return DH_OK;
}
