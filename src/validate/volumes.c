/* DHelix (arXiv 2411.15871), table 1: what a device sends in a step of Llama 3 405B.
 *
 * The bytes are those that the instructions of the simulated programs send, added up. The table
 * gives numbers and degrees. These conventions of counting give every printed digit:
 *   - Units are GiB, for 16 Mi tokens a step, in the mean of all devices.
 *   - Tokens are those of a data-parallel replica. They are not divided by its context-parallel
 *     ranks, so bytes of layers and stages are multiplied by the number of these.
 *   - Inside a node count the layers' gathers and reductions of both directions. Not counted are
 *     second gathers of inputs for weight gradients, and embedding and head.
 *   - Between nodes count activations one way and gradients the other, and exchanges of keys and
 *     values. The backward's exchanges have twice the bytes of the forward's.
 *   - Between nodes count gradients of parameters in half precision (ours are summed in float32),
 *     once round the ring of all ranks with the same parameters. They are a stage's share of the
 *     layers, and all of embedding and head.
 * Cells are compared in the table's own digits. */
#include <math.h>
#include <string.h>

#include "report/cargo.h"
#include "validate/job.h"

#define GIB 1073741824.0

enum { SEQ = 8192, STEP_TOKENS = 1 << 24 };

typedef struct row {
    int64_t gpus, dp, tp, pp, cp;
    const char *local, *cross; /* GiB, as printed */
} row;

static dh_status read_row(dh_ctx *ctx, const dh_published *t, size_t i, row *r)
{
    DH_TRY(dh_published_int(ctx, t, i, "gpus", &r->gpus));
    DH_TRY(dh_published_int(ctx, t, i, "dp", &r->dp));
    DH_TRY(dh_published_int(ctx, t, i, "tp", &r->tp));
    DH_TRY(dh_published_int(ctx, t, i, "pp", &r->pp));
    DH_TRY(dh_published_int(ctx, t, i, "cp", &r->cp));
    DH_TRY(dh_published_text(ctx, t, i, "local_gb", &r->local));
    return dh_published_text(ctx, t, i, "cross_gb", &r->cross);
}

static dh_status job_of(dh_ctx *ctx, dh_validation *v, const row *r, dh_shipped_job *job)
{
    const long long seq = SEQ * r->cp, batch = STEP_TOKENS / seq;
    const struct {
        const char *key;
        long long value;
    } sets[] = {{"parallel.dp", r->dp}, {"parallel.tp", r->tp}, {"parallel.pp", r->pp},
                {"parallel.cp", r->cp}, {"train.seq_len", seq}, {"train.batch", batch}};
    *job = (dh_shipped_job){.file = "dhelix-405b-volumes", .cluster = "h100"};
    for (size_t i = 0; i < DH_COUNTOF(sets); i++)
        if (!(job->set[i] = dh_arena_printf(v->arena, "%s=%lld", sets[i].key, sets[i].value)))
            return dh_no_memory(ctx);
    return DH_OK;
}

/* ---- what is sent, in bytes of a device on average ------------------------------------------- */

typedef struct sent {
    double tensor;          /* by layers' tensor parallelism, except for weight gradients */
    double forward_ring;    /* keys and values of the forward */
    double stages;          /* from stage to stage */
    double gradients, ends; /* once round a ring; of these embedding's and head's */
} sent;

static bool is_end(const dh_program *p, uint32_t block)
{
    const dh_block_kind kind = p->graphs.at[p->blocks.at[block].graph]->kind;
    return kind == DH_BLOCK_EMBED || kind == DH_BLOCK_HEAD;
}

static void count_instr(const dh_program *p, uint32_t id, double share, sent *s)
{
    const dh_op *op = dh_instr_op(p, &p->instrs.at[id]);
    const dh_cargo cargo = dh_instr_cargo(p, id);
    if (cargo == DH_N_CARGO) return;
    const double bytes = share * dh_instr_sent_bytes(p, id);
    if (cargo == DH_CARGO_STAGES) s->stages += bytes;
    if (cargo == DH_CARGO_GRADIENTS)
        s->gradients += op->type == DH_OP_ALL_REDUCE ? bytes / 2 : bytes;
    if (dh_instr_graph(p, &p->instrs.at[id])->kind != DH_BLOCK_LAYER) return;
    if (op->group == DH_GROUP_TP && op->phase != DH_PHASE_W) s->tensor += bytes;
    if (op->group == DH_GROUP_CP && op->phase == DH_PHASE_F) s->forward_ring += bytes;
}

static sent count_shown(const dh_sim *sim)
{
    sent s = {0};
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_program *p = sim->ranks[k].program;
        const double share = (double)sim->ranks[k].n_ranks / (double)sim->n_ranks;
        const double alike = (double)(p->mesh.dp * p->mesh.cp);
        for (uint32_t i = 0; i < p->instrs.n; i++) count_instr(p, i, share, &s);
        for (size_t i = 0; i < p->homes.n; i++)
            if (is_end(p, p->homes.at[i].block))
                s.ends +=
                    share * (double)p->homes.at[i].at[DH_BUF_GRAD].n_bytes * (alike - 1) / alike;
    }
    return s;
}

static sent count(const dh_sim *sim)
{
    enum { N = sizeof(sent) / sizeof(double) };
    sent s = count_shown(sim);
    if (!sim->shorter) return s;
    const sent less = count_shown(sim->shorter);
    double with[N], without[N];
    memcpy(with, &s, sizeof with);
    memcpy(without, &less, sizeof without);
    dh_sim_extend(sim, without, N, with);
    memcpy(&s, with, sizeof with);
    return s;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* A value with as many decimals as a printed one. */
static double as_printed(double value, const char *printed)
{
    const char *point = strchr(printed, '.');
    const double unit = point ? pow(10, -(double)strlen(point + 1)) : 1;
    return rint(value / unit) * unit;
}

static dh_status add_cell(dh_ctx *ctx, dh_validation *v, const row *r, const char *where,
                          double bytes, const char *printed)
{
    double published;
    if (!dh_parse_f64(printed, &published))
        return dh_fail(ctx, DH_EFORMAT, "%s: \"%s\" is not a number", v->table->file, printed);
    return dh_validation_add(ctx, v, as_printed(bytes / GIB, printed), published,
                             "%lld devices, dp%lld cp%lld, %s", (long long)r->gpus,
                             (long long)r->dp, (long long)r->cp, where);
}

static dh_status add_cells(dh_ctx *ctx, dh_validation *v, const row *r, const dh_shipped_job *job,
                           const dh_sim *sim)
{
    const sent s = count(sim);
    const double cp = (double)r->cp;
    const double gradients = (s.gradients - s.ends + s.ends * (double)r->pp) / 2;
    const double cross = (3 * s.forward_ring + s.stages) * cp + gradients;
    DH_TRY(add_cell(ctx, v, r, "inside a node", s.tensor * cp, r->local));
    DH_TRY(dh_shipped_name_row(ctx, v, job, (double)sim->step_ns));
    DH_TRY(add_cell(ctx, v, r, "between nodes", cross, r->cross));
    return dh_shipped_name_row(ctx, v, job, (double)sim->step_ns);
}

static dh_status add_row(dh_ctx *ctx, dh_validation *v, const row *r)
{
    dh_shipped_job job;
    dh_shipped_run run;
    DH_TRY(job_of(ctx, v, r, &job));
    dh_status st = dh_shipped_simulate(ctx, v, &job, &run);
    if (st == DH_OK) st = add_cells(ctx, v, r, &job, run.sim);
    dh_shipped_fini(&run);
    return st;
}

dh_status dh_validate_volumes(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    for (size_t i = 0; i < t.n_rows; i++) {
        row r;
        DH_TRY(read_row(ctx, &t, i, &r));
        DH_TRY(add_row(ctx, v, &r));
    }
    v->remark = "Its times are these volumes over 450 and 50 GB/s, but for 0.3 s inside a node in "
                "the second row, which would be 0.49 s.";
    return DH_OK;
}
