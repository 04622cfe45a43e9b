/* The moments at which a rank may hold most, however long slots take.
 *
 * A rank's slots run in the order of its schedule. The tensors at the beginning of a slot therefore
 * do not depend on times. For each type of stage these are micro-batches between forward and
 * backward, and between input and weight gradients. A slot counts only if no other one of its class
 * holds at least as much of everything. These are a few slots a rank, however many micro-batches
 * there are. Running the timetable looks at every slot. */
#include <stdlib.h>
#include <string.h>

#include "tune/tuner.h"

/* Numbers of a moment: its class; of each type of stage the micro-batches that are whole, and those
 * of which weight gradients are left. */
static size_t width_of(const tune_timetable *t)
{
    return 1 + 2 * (size_t)t->n_types;
}

/* Moments of one rank while they are found. */
typedef struct tune_finding {
    DH_VEC(int32_t) numbers; /* [moments][width] */
    int32_t *now;            /* [width] */
    size_t width;
} tune_finding;

static bool is_covered(const int32_t *less, const int32_t *more, size_t width)
{
    if (less[0] != more[0]) return false;
    for (size_t i = 1; i < width; i++)
        if (less[i] > more[i]) return false;
    return true;
}

/* The moment at hand, in place of those that it covers, unless another one covers it. */
static bool note(tune_finding *f)
{
    size_t n = f->numbers.n / f->width, kept = 0;
    for (size_t i = 0; i < n; i++)
        if (is_covered(f->now, &f->numbers.at[i * f->width], f->width)) return true;
    for (size_t i = 0; i < n; i++) {
        int32_t *at = &f->numbers.at[i * f->width];
        if (is_covered(at, f->now, f->width)) continue;
        memmove(&f->numbers.at[f->width * kept++], at, f->width * sizeof *at);
    }
    f->numbers.n = kept * f->width;
    for (size_t i = 0; i < f->width; i++)
        if (!dh_vec_push(&f->numbers, f->now[i])) return false;
    return true;
}

static void pass(const tune_class *c, int32_t *whole, int32_t *left)
{
    const size_t type = 2 * (size_t)c->type;
    if (c->f >= 0) whole[2 * (size_t)c->f]++;
    if (c->kind == DH_PIPE_F) whole[type]++;
    if (c->kind == DH_PIPE_B || c->kind == DH_PIPE_I) whole[type]--;
    if (c->kind == DH_PIPE_I) left[type]++;
    if (c->kind == DH_PIPE_W) left[type]--;
}

/* Every slot once, in the order that all ranks share. */
static bool find_all(const tune_timetable *t, tune_finding *ranks)
{
    for (int32_t i = 0; i < t->n_slots; i++) {
        const tune_slot *slot = &t->slots[i];
        tune_finding *f = &ranks[slot->rank];
        if (slot->peer >= 0) continue;
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): every rank has one
        f->now[0] = slot->cls;
        if (!note(f)) return false;
        pass(&t->classes[slot->cls], f->now + 1, f->now + 2);
    }
    return true;
}

static bool keep_found(dh_arena *arena, const tune_finding *f, int32_t **numbers, size_t *n)
{
    *n = f->numbers.n / f->width;
    *numbers = DH_NEW_N(arena, int32_t, f->numbers.n + 1);
    if (*numbers && f->numbers.n) memcpy(*numbers, f->numbers.at, f->numbers.n * sizeof **numbers);
    return *numbers != NULL;
}

dh_status tune_moments_find(dh_ctx *ctx, dh_arena *arena, tune_timetable *t)
{
    const size_t n = (size_t)t->n_ranks, width = width_of(t);
    tune_finding *ranks = calloc(n + 1, sizeof *ranks);
    int32_t *now = calloc(n * width + 1, sizeof *now);
    t->moments = DH_NEW_N(arena, int32_t *, n);
    t->n_moments = DH_NEW_N(arena, size_t, n);
    bool ok = ranks && now && t->moments && t->n_moments;
    for (size_t r = 0; ok && r < n; r++)
        ranks[r] = (tune_finding){.now = now + r * width, .width = width};
    ok = ok && find_all(t, ranks);
    for (size_t r = 0; ok && r < n; r++)
        ok = keep_found(arena, &ranks[r], &t->moments[r], &t->n_moments[r]);
    for (size_t r = 0; ranks && r < n; r++) dh_vec_fini(&ranks[r].numbers);
    free(ranks);
    free(now);
    return ok ? DH_OK : dh_no_memory(ctx);
}

double tune_moments_peak(const tune_timetable *t, int32_t rank, const tune_slot_cost *costs,
                         const tune_held *held)
{
    const size_t width = width_of(t);
    double most = 0;
    for (size_t i = 0; i < t->n_moments[rank]; i++) {
        const int32_t *at = &t->moments[rank][i * width];
        double bytes = costs[at[0]].peak_bytes;
        for (int32_t k = 0; k < t->n_types; k++)
            bytes += at[1 + 2 * k] * held[k].whole_bytes + at[2 + 2 * k] * held[k].left_bytes;
        most = DH_MAX(most, bytes);
    }
    return most;
}
