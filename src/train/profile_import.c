/* A matrix of overlap effectiveness from elsewhere, for the operators of a job. */
#include <stdlib.h>
#include <string.h>

#include "train/profile.h"
#include "train/profiling.h"
#include "train/recipe.h"

/* Where an operator stands in the matrix, by the published name or its label; -1. */
static int32_t place_of(const char *const *names, int32_t n, const char *published,
                        const char *label)
{
    for (int32_t i = 0; i < n; i++)
        if ((published && strcmp(names[i], published) == 0) || strcmp(names[i], label) == 0)
            return i;
    return -1;
}

/* By operator of the profile. */
typedef struct names {
    int32_t *row, *column;
} names;

static dh_status add_classes(dh_ctx *ctx, const dh_program *p, const dh_oef_matrix *m,
                             dh_profile *profile, names *at)
{
    for (size_t c = 0; c < p->probe_classes.n; c++) {
        const dh_probe_class *cls = &p->probe_classes.at[c];
        const dh_instr *instr = &p->instrs.at[cls->instr];
        const char *published = dh_op_oef_name(dh_instr_graph(p, instr), dh_instr_op(p, instr),
                                               dh_stream_engine(cls->stream));
        const dh_profile_op op = {.key = cls->key,
                                  .label = cls->label,
                                  .stream = cls->stream,
                                  .forward = cls->forward,
                                  .backward = cls->backward,
                                  .source = DH_PAIR_MODELLED,
                                  .solo_ns = DH_MAX(cls->estimate_ns, 1),
                                  .estimate_ns = DH_MAX(cls->estimate_ns, 1)};
        uint32_t id;
        DH_TRY(dh_profile_add_op(ctx, profile, &op, &id));
        at->row[id] = cls->forward ? place_of(m->row_names, m->n_rows, published, cls->label) : -1;
        at->column[id] =
            cls->backward ? place_of(m->column_names, m->n_columns, published, cls->label) : -1;
    }
    return DH_OK;
}

static dh_status add_pairs(dh_ctx *ctx, const dh_oef_matrix *m, const names *at, const char *name,
                           dh_profile *profile)
{
    for (uint32_t f = 0; f < profile->ops.n; f++)
        for (uint32_t b = 0; b < profile->ops.n; b++) {
            // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all were set
            if (at->row[f] < 0 || at->column[b] < 0) continue;
            const double oef =
                m->at[(size_t)at->row[f] * (size_t)m->n_columns + (size_t)at->column[b]];
            const dh_pair_time t = dh_pair_time_from_oef(
                profile->ops.at[f].solo_ns, profile->ops.at[b].solo_ns, oef, DH_PAIR_IMPORTED);
            const dh_profile_pair pair = {.a = f,
                                          .b = b,
                                          .source = t.source,
                                          .a_ns = DH_MAX(t.f_ns, 1),
                                          .b_ns = DH_MAX(t.b_ns, 1)};
            DH_TRY(dh_profile_add_pair(ctx, profile, &pair));
        }
    if (profile->pairs.n > 0) return DH_OK;
    return dh_fail(ctx, DH_EMISSING,
                   "%s has none of the job's pairs: rows are looked up as gemm_attn_c, "
                   "gemm_attn_l, gemm_mlp_c, gemm_mlp_l, fa, intra_rs, ... or as `dhelix profile` "
                   "names operators, columns as attn_c_d, attn_c_W, ..., fa_bwd, intra_rs, ...",
                   name);
}

static dh_status import(dh_ctx *ctx, const dh_stage_programs *stages, const dh_oef_matrix *m,
                        const char *name, dh_profile *profile)
{
    size_t n = 1;
    for (size_t s = 0; s < stages->n; s++) n += stages->at[s]->probe_classes.n;
    names at = {malloc(n * sizeof *at.row), malloc(n * sizeof *at.column)};
    dh_status st = at.row && at.column ? DH_OK : dh_no_memory(ctx);
    for (size_t s = 0; st == DH_OK && s < stages->n; s++)
        st = add_classes(ctx, stages->at[s], m, profile, &at);
    if (st == DH_OK) st = add_pairs(ctx, m, &at, name, profile);
    free(at.row);
    free(at.column);
    return st;
}

dh_status dh_profile_import(dh_ctx *ctx, const dh_job *job, const dh_oef_matrix *matrix,
                            const char *name, dh_profile **profile)
{
    const dh_pass_list none = {.n = 0};
    dh_probe_job probe = {.schedule = NULL};
    dh_stage_programs stages = {0};
    dh_profile *made = NULL;
    dh_job known = *job;
    dh_status st = dh_job_vocab(ctx, job, NULL, &known.model.vocab);
    if (st == DH_OK) st = dh_probe_job_init(ctx, &known, &none, &probe);
    if (st == DH_OK) st = dh_stage_programs_build(ctx, &probe, &stages);
    if (st == DH_OK) st = dh_profile_of_job(ctx, &known, name, &made);
    if (st == DH_OK) st = import(ctx, &stages, matrix, name, made);
    dh_stage_programs_fini(&stages);
    dh_probe_job_fini(&probe);
    if (st == DH_OK)
        *profile = made;
    else
        dh_profile_destroy(made);
    return st;
}
