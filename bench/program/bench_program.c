/* What building and verifying a program costs, by size. README.md has examples. */
#include "program/program.h"
#include "program/program_spec.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct options {
    const char *model, *schedule;
    int64_t tp, pp, dp, layers, micro, seq, per_node; /* layers 0: the model's own */
    bool zero1, bf16, joint;
} options;

/* ---- one measurement ---------------------------------------------------------------------- */

static size_t scratch(const dh_graph *graph, const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMPUTE ? 4096 : 0;
}
static const dh_backend_info backend = {.name = "bench", .workspace_bytes = scratch};

static dh_status schedule_of(dh_ctx *ctx, const options *o, dh_schedule **schedule)
{
    const dh_schedule_row *row;
    const dh_schedule_spec want = {.n_ranks = (int32_t)o->pp, .n_micro = (int32_t)o->micro};
    DH_TRY(dh_schedule_find(ctx, o->schedule, &row));
    return dh_schedule_generate(ctx, row, &want, schedule);
}

static dh_status spec_of(dh_ctx *ctx, const options *o, dh_model *model, dh_program_spec *spec)
{
    DH_TRY(dh_model_from_preset(ctx, o->model, model));
    if (o->layers) model->n_layers = o->layers;
    *spec = (dh_program_spec){.recipe = {.model = *model,
                                         .dtype = o->bf16 ? DH_BF16 : DH_F32,
                                         .sharing = dh_sharing_of(o->zero1),
                                         .micro_batch = 1,
                                         .seq = o->seq,
                                         .n_micro = o->micro,
                                         .backend = &backend},
                              .mode = DH_MODE_TRAIN};
    return dh_mesh_init(ctx, o->dp, o->tp, o->pp, 1, 1, 0, o->per_node, &spec->recipe.mesh);
}

static double ms_since(int64_t start_ns)
{
    return (double)(dh_now_ns() - start_ns) / 1e6;
}

static dh_status measure_rank(dh_ctx *ctx, const dh_program_spec *spec)
{
    dh_program *p;
    int64_t start = dh_now_ns();
    DH_TRY(dh_program_build(ctx, spec, &p));
    double built = ms_since(start);
    start = dh_now_ns();
    dh_status st = dh_program_verify(ctx, p);
    printf("rank %" PRId64 ": %zu instructions, %zu buffers, %zu waits: build %.1f ms, "
           "verify %.1f ms; slab %" PRIu64 ", live %" PRIu64 "\n",
           spec->rank, p->instrs.n, p->buffers.n, p->waits.n, built, ms_since(start), p->slab_bytes,
           p->live_bytes);
    dh_program_destroy(p);
    return st;
}

static dh_status measure_mesh(dh_ctx *ctx, const dh_program_spec *spec)
{
    dh_mesh_footprint f;
    int64_t start = dh_now_ns();
    DH_TRY(dh_mesh_verify(ctx, spec, &f));
    printf("mesh: %zu ranks of %zu classes, %" PRIu64
           " instructions: built and verified in %.1f ms; "
           "slab %" PRIu64 "\n",
           f.n_ranks, f.n_classes, f.n_instrs, ms_since(start), f.slab_bytes);
    return DH_OK;
}

static dh_status measure(dh_ctx *ctx, const options *o)
{
    dh_model model;
    dh_program_spec spec;
    dh_schedule *schedule = NULL;
    DH_TRY(spec_of(ctx, o, &model, &spec));
    DH_TRY(schedule_of(ctx, o, &schedule));
    spec.recipe.schedule = schedule;
    printf("%s, %" PRId64 " layers: tp %" PRId64 " pp %" PRId64 " dp %" PRId64 ", %" PRId64
           " micro-batches, %s%s\n",
           o->model, model.n_layers, o->tp, o->pp, o->dp, o->micro, o->schedule,
           o->zero1 ? ", distributed optimizer" : "");
    dh_status st = DH_OK;
    const int64_t stages[] = {0, o->pp / 2, o->pp - 1};
    for (size_t i = 0; st == DH_OK && i < DH_COUNTOF(stages); i++) {
        if (i > 0 && stages[i] == stages[i - 1]) continue;
        spec.rank = dh_mesh_rank(&spec.recipe.mesh, (dh_coord){.pp = stages[i]});
        st = measure_rank(ctx, &spec);
    }
    if (st == DH_OK && o->joint) st = measure_mesh(ctx, &spec);
    dh_schedule_destroy(schedule);
    return st;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static const char usage[] =
    "bench_program [--model PRESET] [--layers N] [--tp N] [--pp N] [--dp N] [--micro N] [--seq N]\n"
    "              [--schedule NAME] [--ranks-per-node N] [--zero1] [--bf16] [--joint]\n";

static bool parse(int argc, char **argv, options *o)
{
    static const struct option longs[] = {{"model", 1, 0, 'm'},
                                          {"layers", 1, 0, 'l'},
                                          {"tp", 1, 0, 't'},
                                          {"pp", 1, 0, 'p'},
                                          {"dp", 1, 0, 'd'},
                                          {"micro", 1, 0, 'n'},
                                          {"seq", 1, 0, 's'},
                                          {"schedule", 1, 0, 'S'},
                                          {"ranks-per-node", 1, 0, 'r'},
                                          {"zero1", 0, 0, 'z'},
                                          {"bf16", 0, 0, 'b'},
                                          {"joint", 0, 0, 'j'},
                                          {0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        int64_t n = 1;
        if (strchr("ltpdnsr", c) && (!dh_parse_i64(optarg, &n) || n < 1)) return false;
        switch (c) {
        case 'm':
            o->model = optarg;
            break;
        case 'S':
            o->schedule = optarg;
            break;
        case 'l':
            o->layers = n;
            break;
        case 't':
            o->tp = n;
            break;
        case 'p':
            o->pp = n;
            break;
        case 'd':
            o->dp = n;
            break;
        case 'n':
            o->micro = n;
            break;
        case 's':
            o->seq = n;
            break;
        case 'r':
            o->per_node = n;
            break;
        case 'z':
            o->zero1 = true;
            break;
        case 'b':
            o->bf16 = true;
            break;
        case 'j':
            o->joint = true;
            break;
        default:
            return false;
        }
    }
    return optind == argc;
}

int main(int argc, char **argv)
{
    options o = {.model = "llama-tiny",
                 .schedule = "1f1b",
                 .tp = 1,
                 .pp = 1,
                 .dp = 1,
                 .micro = 8,
                 .seq = 64};
    dh_ctx ctx = DH_CTX_INIT;
    if (!parse(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    if (measure(&ctx, &o) == DH_OK) return 0;
    fprintf(stderr, "bench_program: %s\n", ctx.message);
    return 1;
}
