/* Replay of one program's order: where its streams stand, and what blocks them.
 *
 * Executes nothing. Instructions may be stepped in any order that the streams and waits allow; the
 * caller decides which, and what it checks at each. Verifiers step whole instructions only, and
 * take a wait for a part as a wait for its instruction. Started instructions end by themselves, so
 * both kinds of wait let the same programs end. */
#ifndef DH_PROGRAM_REPLAY_H
#define DH_PROGRAM_REPLAY_H

#include "program/program.h"

typedef struct dh_replay {
    const dh_program *program; /* borrowed */
    uint32_t *queue;           /* instruction ids, stream by stream, each in order */
    size_t first[DH_N_STREAM + 1];
    size_t at[DH_N_STREAM];      /* instructions of the stream that are complete */
    uint32_t parts[DH_N_STREAM]; /* parts of the next one that are */
    uint32_t met[DH_N_STREAM];   /* waits of the next one, from its first, that are over */
    uint32_t *position;          /* by instruction: index in its stream plus one */
} dh_replay;

/* Streams and waits of the program must be in range. Free with dh_replay_fini, also
 * after a failure.
 * errors    DH_ENOMEM */
dh_status dh_replay_init(dh_ctx *ctx, dh_replay *replay, const dh_program *program);
void dh_replay_fini(dh_replay *replay);

/* The stream's next instruction; DH_NONE when it has ended. */
static inline uint32_t dh_replay_head(const dh_replay *r, int stream)
{
    size_t next = r->first[stream] + r->at[stream];
    return next == r->first[stream + 1] ? DH_NONE : r->queue[next];
}

static inline bool dh_replay_is_complete(const dh_replay *r, uint32_t instr)
{
    return r->position[instr] <= r->at[r->program->instrs.at[instr].stream];
}

/* The part that is waited for, or all of it. */
static inline bool dh_replay_is_there(const dh_replay *r, dh_wait wait)
{
    if (dh_replay_is_complete(r, wait.instr)) return true;
    const int stream = r->program->instrs.at[wait.instr].stream;
    return wait.part < r->parts[stream] && dh_replay_head(r, stream) == wait.instr;
}

/* An instruction that the stream's head waits for and that is not so far; DH_NONE: all are. */
static inline uint32_t dh_replay_blocker(dh_replay *r, int stream)
{
    const dh_program *p = r->program;
    const dh_instr *head = &p->instrs.at[dh_replay_head(r, stream)];
    for (uint32_t *met = &r->met[stream]; *met < head->n_waits; ++*met) {
        const dh_wait wait = p->waits.at[head->wait0 + *met];
        if (!dh_replay_is_there(r, wait)) return wait.instr;
    }
    return DH_NONE;
}

/* The stream's head is complete. */
static inline void dh_replay_step(dh_replay *r, int stream)
{
    r->at[stream]++;
    r->parts[stream] = r->met[stream] = 0;
}

#endif
