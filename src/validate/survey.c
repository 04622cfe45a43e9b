/* Speed-ups that other overlapping systems publish, over one strand without overlap.
 *
 * Most papers give "up to": the largest gain of many jobs, without that job. A row's prediction is
 * for one job of the kind that was measured. Column same says how near it is; no error of such a
 * row is one of the simulator alone. */
#include "validate/job.h"

typedef struct row {
    const char *system, *claim, *measured, *same, *what, *file, *cluster, *strategy, *sets;
    double gain;
} row;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, row *r)
{
    const struct {
        const char *column, **text;
    } cells[] = {{"system", &r->system},   {"claim", &r->claim},       {"measured", &r->measured},
                 {"same", &r->same},       {"what", &r->what},         {"job", &r->file},
                 {"cluster", &r->cluster}, {"strategy", &r->strategy}, {"sets", &r->sets}};
    for (size_t k = 0; k < DH_COUNTOF(cells); k++)
        DH_TRY(dh_published_text(ctx, t, i, cells[k].column, cells[k].text));
    return dh_published_real(ctx, t, i, "gain", &r->gain);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const row *r)
{
    dh_shipped_job job = {.file = r->file, .cluster = r->cluster}, base = job;
    dh_shipped_step with, without;
    DH_TRY(dh_shipped_words(ctx, v, &base, r->sets));
    DH_TRY(dh_shipped_words(ctx, v, &job,
                            dh_arena_printf(v->arena, "strategy=%s %s", r->strategy, r->sets)));
    DH_TRY(dh_shipped_step_of(ctx, v, &base, &without));
    DH_TRY(dh_shipped_step_of(ctx, v, &job, &with));
    DH_TRY(dh_validation_add(ctx, v, without.ns / with.ns, r->gain,
                             "%s, %s: %s (same setting: %s; measured: %s)", r->system, r->claim,
                             r->what, r->same, r->measured));
    return dh_shipped_name_row(ctx, v, &job, with.ns);
}

dh_status dh_validate_survey(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        row r;
        DH_TRY(read_row(ctx, &t, i, &r));
        DH_TRY(add_row(ctx, v, &r));
    }
    return DH_OK;
}
