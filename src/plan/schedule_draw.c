/* A schedule as text for people: ranks down, steps across, one step a slot. */
#include <stdio.h>
#include <stdlib.h>

#include "schedule_build.h"

#define MAX_CELL_CHARS 63

typedef struct canvas {
    const dh_schedule *s;
    int32_t *chunk;  /* [copy][stage]: how many earlier stages of the copy share the rank */
    bool has_chunks; /* a rank holds more than one: cells show them */
    int32_t *width;  /* [step] */
} canvas;

static void number_chunks(canvas *c)
{
    const dh_schedule *s = c->s;
    for (int32_t copy = 0; copy < s->n_copies; copy++) {
        const int32_t *rank_of = s->rank_of + (int64_t)copy * s->n_stages;
        int32_t *chunk = c->chunk + (int64_t)copy * s->n_stages;
        for (int32_t v = 0; v < s->n_stages; v++)
            for (int32_t u = v - 1; u >= 0; u--) /* nearest earlier stage of the rank */
                if (rank_of[u] == rank_of[v]) {
                    chunk[v] = chunk[u] + 1;
                    c->has_chunks = true;
                    break;
                }
    }
}

static int draw_action(const canvas *c, char *buf, size_t cap, dh_pipe_action a)
{
    const char letter = dh_pipe_kind_letter(a.kind);
    if (!c->has_chunks) return snprintf(buf, cap, "%c%d", letter, a.micro);
    int64_t at = (int64_t)c->s->copy_of[a.micro] * c->s->n_stages + a.stage;
    return snprintf(buf, cap, "%c%d.%d", letter, a.micro, c->chunk[at]);
}

/* Text of a slot, its length as result. */
static int32_t draw_slot(const canvas *c, char buf[MAX_CELL_CHARS + 1], const dh_pipe_slot *slot)
{
    size_t cap = MAX_CELL_CHARS + 1;
    int n = draw_action(c, buf, cap, slot->action[0]);
    if (slot->n_actions == 2) {
        buf[n++] = '|';
        n += draw_action(c, buf + n, cap - (size_t)n, slot->action[1]);
    }
    return n;
}

static void draw_all(const canvas *c, const dh_schedule_timing *steps, dh_str *out)
{
    const dh_schedule *s = c->s;
    char cell[MAX_CELL_CHARS + 1];
    for (int32_t n = 0; n < s->first_slot[s->n_ranks]; n++) {
        int32_t *width = &c->width[steps->start_ns[n]], length = draw_slot(c, cell, &s->slots[n]);
        *width = DH_MAX(*width, length);
    }
    for (int32_t g = 0; g < s->n_ranks; g++) {
        dh_str_printf(out, "rank %-4d", g);
        int32_t n = s->first_slot[g];
        for (int64_t step = 0; step < steps->makespan_ns; step++) {
            bool busy = n < s->first_slot[g + 1] && steps->start_ns[n] == step;
            if (busy) draw_slot(c, cell, &s->slots[n++]);
            bool last = n == s->first_slot[g + 1];
            dh_str_printf(out, " %-*s", busy && last ? 0 : c->width[step], busy ? cell : ".");
            if (last) break;
        }
        dh_str_printf(out, "\n");
    }
}

dh_status dh_schedule_draw(dh_ctx *ctx, const dh_schedule *s, dh_str *out)
{
    dh_schedule_timing steps;
    DH_TRY(dh_schedule_time(ctx, s, &dh_one_step_each, &steps));
    canvas c = {
        .s = s,
        .chunk = calloc((size_t)s->n_copies * (size_t)s->n_stages, sizeof(int32_t)),
        .width = calloc((size_t)steps.makespan_ns + 1, sizeof(int32_t)),
    };
    if (c.chunk && c.width) {
        number_chunks(&c);
        draw_all(&c, &steps, out);
    }
    dh_status st = c.chunk && c.width && !out->failed ? DH_OK : dh_no_memory(ctx);
    free(c.chunk);
    free(c.width);
    dh_schedule_timing_fini(&steps);
    return st;
}
