/* See replay.h. */
#include "program/replay.h"

#include <stdlib.h>

dh_status dh_replay_init(dh_ctx *ctx, dh_replay *replay, const dh_program *program)
{
    const size_t n = program->instrs.n;
    *replay = (dh_replay){.program = program};
    replay->queue = malloc((n + 1) * sizeof *replay->queue);
    replay->position = malloc((n + 1) * sizeof *replay->position);
    if (!replay->queue || !replay->position) return dh_no_memory(ctx);
    size_t filled[DH_N_STREAM] = {0};
    for (size_t i = 0; i < n; i++)
        replay->position[i] = (uint32_t)++filled[program->instrs.at[i].stream];
    for (int s = 0; s < DH_N_STREAM; s++) replay->first[s + 1] = replay->first[s] + filled[s];
    for (uint32_t i = 0; i < n; i++)
        replay->queue[replay->first[program->instrs.at[i].stream] + replay->position[i] - 1] = i;
    return DH_OK;
}

void dh_replay_fini(dh_replay *replay)
{
    free(replay->queue);
    free(replay->position);
    *replay = (dh_replay){0};
}
