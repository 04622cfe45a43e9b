/* Processors that communicators hold, chosen by whole simulated steps.
 *
 * The time that a stream's calls lose with fewer processors may be hidden behind computation. The
 * gain of GEMMs from them lasts all step long. So neither side's times alone tell. Streams are
 * taken in turn, with the others as they are by then, and once more if there are several. */
#include "train/link_sms.h"

#include <string.h>

#include "train/recipe.h"
#include "train/simulation.h"

/* Below what fills a link; the finer, the fewer. */
static const int numbers[] = {48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1};

typedef struct search {
    const dh_resolved *job;
    dh_link_choice *choice;
} search;

/* ---- the device and its streams -------------------------------------------------------------- */

/* A profile was measured with what the job gives, held or not (dh_profile_of_job). */
static bool device_of(const dh_resolved *r, dh_link_sms *sms)
{
    const dh_device *device = dh_device_find(r->job.device);
    if (r->job.ranks == 1 || r->job.gpu_comm == DH_GPU_COMM_HOST ||
        r->job.gpu_comm == DH_GPU_COMM_DEVICE || r->job.packing == DH_PACKING_GROUP)
        return false;
    if (r->cluster) {
        *sms = dh_link_sms_of_cluster(r->cluster);
        return sms->processors > 1;
    }
    if (!device || !dh_device_links(device, DH_LINKS_NCCL) || !device->processors ||
        r->recipe.costs->id == 0)
        return false;
    *sms = (dh_link_sms){.processors = device->processors()};
    for (int e = 0; e < DH_N_ENGINE; e++) sms->full[e] = dh_link_sms_full((dh_engine)e);
    return sms->processors > 1;
}

static void find_groups(const dh_program *p, uint64_t groups[DH_N_STREAM])
{
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (dh_op_info_of(op->type)->resource != DH_RES_COMM || op->group < 0) continue;
        if (dh_mesh_group_size(&p->mesh, (dh_group_kind)op->group) > 1)
            groups[p->instrs.at[i].stream] |= UINT64_C(1) << op->group;
    }
}

static dh_status find_streams(dh_ctx *ctx, const dh_resolved *job, dh_link_choice *choice)
{
    const dh_train_simulation how = {.sim.sums = true};
    dh_sim *sim;
    _Static_assert(DH_N_GROUPS <= 64, "a bit for each");
    DH_TRY(dh_train_simulate(ctx, job, &how, &sim));
    for (size_t k = 0; k < sim->n_classes; k++) find_groups(sim->ranks[k].program, choice->groups);
    choice->none_ns = sim->step_ns;
    dh_sim_destroy(sim);
    return DH_OK;
}

static int full_of(const dh_link_sms *sms, int stream)
{
    return sms->full[dh_stream_engine((dh_stream)stream)];
}

/* ---- steps ----------------------------------------------------------------------------------- */

static dh_status simulate_in(dh_ctx *ctx, dh_arena *arena, const search *s, const dh_link_sms *sms,
                             int64_t *step_ns)
{
    const dh_train_simulation how = {.sim.sums = true};
    const dh_link_sms_basis basis = {.plain = s->job->recipe.costs, .cluster = s->job->cluster};
    const dh_costs *costs;
    dh_sim *sim;
    DH_TRY(dh_link_sms_costs(ctx, arena, &basis, sms, &costs));
    DH_TRY(dh_train_simulate_on(ctx, s->job, &how, costs, &sim));
    *step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_status step_of(dh_ctx *ctx, const search *s, const dh_link_sms *sms, int64_t *step_ns)
{
    dh_arena *arena = dh_arena_create();
    if (!arena) return dh_no_memory(ctx);
    const dh_status st = simulate_in(ctx, arena, s, sms, step_ns);
    dh_arena_destroy(arena);
    return st;
}

static dh_status try_one(dh_ctx *ctx, search *s, int stream, int n, int64_t *step_ns)
{
    dh_link_choice *c = s->choice;
    dh_link_sms sms = c->sms;
    sms.of[stream] = n;
    DH_TRY(step_of(ctx, s, &sms, step_ns));
    if (c->n_tried < DH_MOST_LINK_SMS_TRIED)
        c->tried[c->n_tried++] = (dh_link_sms_tried){(dh_stream)stream, n, *step_ns};
    return DH_OK;
}

/* Of equal steps that with fewer. All are tried: products come in waves, so that some processors
 * more may bring nothing, and a few on top of them much. */
static dh_status choose_stream(dh_ctx *ctx, search *s, int stream)
{
    dh_link_choice *c = s->choice;
    const int full = full_of(&c->sms, stream), now = c->sms.of[stream];
    int best = now;
    int64_t best_ns = c->held_ns, step_ns;
    for (size_t i = 0; i < DH_COUNTOF(numbers); i++) {
        if (numbers[i] >= full || numbers[i] == now) continue;
        DH_TRY(try_one(ctx, s, stream, numbers[i], &step_ns));
        if (step_ns > best_ns || (step_ns == best_ns && numbers[i] > best)) continue;
        best = numbers[i];
        best_ns = step_ns;
    }
    c->sms.of[stream] = best;
    c->held_ns = best_ns;
    return DH_OK;
}

static dh_status choose(dh_ctx *ctx, search *s)
{
    dh_link_choice *c = s->choice;
    int n_streams = 0;
    for (int k = 0; k < DH_N_STREAM; k++) n_streams += c->groups[k] != 0;
    for (int round = 0; round < DH_MIN(n_streams, 2); round++) {
        const int64_t before = c->held_ns;
        for (int k = 0; k < DH_N_STREAM; k++)
            if (c->groups[k]) DH_TRY(choose_stream(ctx, s, k));
        if (c->held_ns == before) break;
    }
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* A number that is given holds for all streams. By a profile, times are already those with it. */
static dh_status use_given(dh_ctx *ctx, search *s)
{
    dh_link_choice *c = s->choice;
    for (int k = 0; k < DH_N_STREAM; k++)
        if (c->groups[k]) c->sms.of[k] = (int)s->job->job.gpu_comm_sms;
    c->held_ns = c->none_ns;
    return s->job->cluster ? step_of(ctx, s, &c->sms, &c->held_ns) : DH_OK;
}

static dh_status find(dh_ctx *ctx, const dh_resolved *job, dh_link_choice *c)
{
    *c = (dh_link_choice){.given = job->job.gpu_comm_sms > 0};
    search s = {.job = job, .choice = c};
    if (!device_of(job, &c->sms)) return DH_OK;
    DH_TRY(find_streams(ctx, job, c));
    for (int k = 0; k < DH_N_STREAM; k++)
        if (c->groups[k]) c->sms.of[k] = full_of(&c->sms, k);
    DH_TRY(step_of(ctx, &s, &c->sms, &c->full_ns));
    c->held_ns = c->full_ns;
    DH_TRY(c->given ? use_given(ctx, &s) : choose(ctx, &s));
    c->held = c->given || (job->job.gpu_comm_search && c->held_ns < c->none_ns);
    c->step_ns = c->held ? c->held_ns : c->none_ns;
    c->known = true;
    return DH_OK;
}

dh_status dh_resolved_link_sms(dh_ctx *ctx, const dh_resolved *job, dh_link_choice *choice)
{
    const dh_train_simulation how = {.sim.sums = true};
    dh_sim *sim;
    if (!job->links) return find(ctx, job, choice);
    *choice = *job->links;
    /* Since the choice the job has orders for it, and all else that was left open. */
    DH_TRY(dh_train_simulate(ctx, job, &how, &sim));
    choice->step_ns = sim->step_ns;
    *(choice->held ? &choice->held_ns : &choice->none_ns) = sim->step_ns;
    dh_sim_destroy(sim);
    return DH_OK;
}

static dh_status note(dh_ctx *ctx, dh_resolved *r, const dh_link_choice *c)
{
    dh_str text = DH_STR_INIT;
    if (c->held)
        dh_link_choice_print(c, &text);
    else
        dh_str_printf(&text, "none");
    const dh_status st =
        dh_resolved_note(ctx, r, "processors held", text.text ? text.text : "",
                         c->given ? "parallel.gpu_comm_sms; a step of %.3f ms, with none held %.3f"
                                  : "by simulated steps: %.3f ms, with none held %.3f",
                         (double)c->step_ns * 1e-6, (double)c->none_ns * 1e-6);
    dh_str_fini(&text);
    return st;
}

dh_status dh_resolved_hold(dh_ctx *ctx, dh_resolved *r)
{
    if (r->job.gpu_comm_sms == 0 && !r->job.gpu_comm_search) return DH_OK;
    dh_link_choice *c = DH_NEW(r->arena, dh_link_choice);
    if (!c) return dh_no_memory(ctx);
    DH_TRY(find(ctx, r, c));
    if (!c->known) return DH_OK;
    const dh_link_sms_basis basis = {.plain = r->recipe.costs, .cluster = r->cluster};
    if (c->held && (r->cluster || !c->given))
        DH_TRY(dh_link_sms_costs(ctx, r->arena, &basis, &c->sms, &r->recipe.costs));
    r->links = c;
    return note(ctx, r, c);
}

void dh_link_groups_print(uint64_t groups, dh_str *out)
{
    const char *between = "";
    for (int g = 0; g < DH_N_GROUPS; g++) {
        if (!(groups >> g & 1)) continue;
        dh_str_printf(out, "%s%s", between, dh_group_name((dh_group_kind)g));
        between = ", ";
    }
}

void dh_link_choice_print(const dh_link_choice *choice, dh_str *out)
{
    const char *between = "";
    for (int k = 0; k < DH_N_STREAM; k++) {
        if (!choice->groups[k]) continue;
        dh_str_printf(out, "%s%s %d (", between, dh_stream_name((dh_stream)k), choice->sms.of[k]);
        dh_link_groups_print(choice->groups[k], out);
        dh_str_printf(out, ")");
        between = ", ";
    }
}
