/* The table of schedules, and the checks every row shares. */
#include <string.h>

#include "schedule_build.h"

static const dh_schedule_row *const rows[] = {
#define DH_SCHEDULE(id) &dh_row_##id,
#include "plan/schedules.def"
#undef DH_SCHEDULE
};

const dh_schedule_row *const *dh_schedule_rows(size_t *n)
{
    *n = DH_COUNTOF(rows);
    return rows;
}

dh_status dh_schedule_find(dh_ctx *ctx, const char *name, const dh_schedule_row **row)
{
    const char *names[DH_COUNTOF(rows)];
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        names[i] = rows[i]->name;
        if (strcmp(name, names[i]) == 0) {
            *row = rows[i];
            return DH_OK;
        }
    }
    const char *near = dh_nearest(name, names, DH_COUNTOF(rows));
    return dh_fail(ctx, DH_EMISSING, "no schedule \"%.80s\"%s%s%s; `dhelix list schedules` has all",
                   name, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* The spec with the row's number of chunks, all sizes in range. */
static dh_status resolve(dh_ctx *ctx, const dh_schedule_row *row, const dh_schedule_spec *given,
                         dh_schedule_spec *spec)
{
    *spec = *given;
    if (given->n_ranks < 1 || given->n_ranks > DH_SCHEDULE_MAX_RANKS)
        return dh_fail(ctx, DH_EINVAL, "schedule %s: %d pipeline stages; 1..%d are possible",
                       row->name, given->n_ranks, DH_SCHEDULE_MAX_RANKS);
    if (given->n_micro < 1 || given->n_micro > DH_SCHEDULE_MAX_MICRO)
        return dh_fail(ctx, DH_EINVAL, "schedule %s: %d micro-batches; 1..%d are possible",
                       row->name, given->n_micro, DH_SCHEDULE_MAX_MICRO);
    if (row->n_chunks && given->n_chunks > 1 && given->n_chunks != row->n_chunks)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "schedule %s: %d virtual stages a rank; it has %d by construction, so leave "
                       "the number away",
                       row->name, given->n_chunks, row->n_chunks);
    if (given->n_chunks < 0 || given->n_chunks > DH_SCHEDULE_MAX_RANKS)
        return dh_fail(
            ctx, DH_EINVAL,
            "schedule %s: %d virtual stages a rank: 0 (the schedule's own) to %d would be "
            "right",
            row->name, given->n_chunks, DH_SCHEDULE_MAX_RANKS);
    if (row->n_chunks) spec->n_chunks = row->n_chunks;
    if (spec->n_chunks == 0) spec->n_chunks = 2;
    if ((int64_t)spec->n_ranks * spec->n_chunks * spec->n_micro > DH_SCHEDULE_MAX_CELLS)
        return dh_fail(ctx, DH_EINVAL,
                       "schedule %s: %d ranks * %d virtual stages * %d micro-batches exceed %d: "
                       "take fewer of one",
                       row->name, spec->n_ranks, spec->n_chunks, spec->n_micro,
                       DH_SCHEDULE_MAX_CELLS);
    return DH_OK;
}

dh_status dh_schedule_applicable(dh_ctx *ctx, const dh_schedule_row *row,
                                 const dh_schedule_spec *spec)
{
    dh_schedule_spec full;
    DH_TRY(resolve(ctx, row, spec, &full));
    return row->applicable ? row->applicable(ctx, &full) : DH_OK;
}

dh_status dh_schedule_generate(dh_ctx *ctx, const dh_schedule_row *row,
                               const dh_schedule_spec *spec, dh_schedule **schedule)
{
    dh_schedule_spec full;
    DH_TRY(resolve(ctx, row, spec, &full));
    if (row->applicable) DH_TRY(row->applicable(ctx, &full));
    return row->generate(ctx, row, &full, schedule);
}
