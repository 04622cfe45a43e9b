/* DHelix (arXiv 2411.15871), table 6: Phi-31B with 16 experts on 64 A40, tokens a second of three
 * systems.
 *
 * Its load of experts rests on figure 3 and on the first row. The comparison therefore has
 * the other two rows, and the speed-ups of the systems over the first. */
#include "validate/dhelix_jobs.h"

static dh_status add_gain(dh_ctx *ctx, dh_validation *v, const char *system, double predicted,
                          double published)
{
    v->remark = dh_arena_printf(v->arena, "%s%s%s over Megatron-LM %+.1f %%, published %+.1f",
                                v->remark ? v->remark : "", v->remark ? "; " : "", system,
                                100 * (predicted - 1), 100 * (published - 1));
    return v->remark ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_validate_dhelix_experts(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    double first[2] = {1, 1}; /* predicted, published */
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *system;
        double published;
        dh_shipped_step step;
        dh_shipped_job job = {.file = "dhelix-phi-31b", .cluster = "a40"};
        DH_TRY(dh_published_text(ctx, &t, i, "system", &system));
        DH_TRY(dh_published_real(ctx, &t, i, "tokens_per_s", &published));
        DH_TRY(dh_paper_system(ctx, system, &job));
        DH_TRY(dh_shipped_step_of(ctx, v, &job, &step));
        const double predicted = 1600 * 3072.0 / step.ns * 1e9;
        DH_TRY(dh_validation_add(ctx, v, predicted, published, "Phi-31B %s", system));
        DH_TRY(dh_shipped_name_row(ctx, v, &job, step.ns));
        if (i > 0)
            DH_TRY(add_gain(ctx, v, system, predicted / first[0], published / first[1]));
        else {
            first[0] = predicted;
            first[1] = published;
        }
    }
    return DH_OK;
}
