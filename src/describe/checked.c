/* Programs as dh_session_program makes them; of several ranks, one program for each class of like
 * ranks is replayed (dh_session_verify_mesh). */
#include "describe/checked.h"

#include "describe/memory.h"
#include "train/recipe.h"
#include "train/saving.h"
#include "train/switch.h"

/* ---- programs --------------------------------------------------------------------------- */

const char *dh_checked_mode(dh_mode mode)
{
    static const char *const names[] = {
        [DH_MODE_TRAIN] = "train", [DH_MODE_EVAL] = "eval", [DH_MODE_DECODE] = "decode"};
    return names[mode];
}

static double program_flops(const dh_program *p)
{
    double flops = 0;
    for (size_t i = 0; i < p->instrs.n; i++)
        flops += dh_op_flops(dh_instr_graph(p, &p->instrs.at[i]), dh_instr_op(p, &p->instrs.at[i]));
    return flops;
}

static dh_status add_program(dh_ctx *ctx, const dh_session_spec *spec, dh_mode mode,
                             dh_checked *all)
{
    dh_checked_program *c = &all->at[all->n];
    c->mode = mode;
    uint64_t keep = all->n > 0 ? all->at[0].program->persistent_bytes : 0;
    dh_status st = dh_session_program(ctx, spec, mode, keep, &c->program);
    if (st != DH_OK) return dh_ctx_while(ctx, "checking the %s program", dh_checked_mode(mode));
    all->n++;
    all->slab_bytes = DH_MAX(all->slab_bytes, c->program->slab_bytes);
    c->flops = program_flops(c->program);
    return dh_footprint_of(ctx, c->program, &c->memory);
}

/* The programs of groups of documents, which share the slab. */
static dh_status add_groups(dh_ctx *ctx, const dh_session_spec *spec, dh_checked *all)
{
    dh_switch *s;
    DH_TRY(dh_switch_create(ctx, spec, all->at[0].program, &all->slab_bytes, &s));
    dh_switch_destroy(s);
    return DH_OK;
}

static dh_status measure_system(dh_ctx *ctx, const dh_job *job, dh_checked_program *c)
{
    dh_system system;
    dh_system_job said;
    DH_TRY(dh_job_system(ctx, job, &system, &said));
    if (system.traits == 0) return DH_OK;
    return dh_system_memory_of(ctx, &system, &said, c->program, NULL, &c->system);
}

/* As training would find it. */
static void find_room(const dh_session_spec *spec, const dh_job *job, dh_checked *all)
{
    if (!spec->device->slab_is_host) return;
    all->room = job->ranks > 1 ? dh_room_of(job, &all->mesh)
                               : dh_room_of_rank(spec, all->slab_bytes + all->copy_bytes);
}

dh_status dh_checked_make(dh_ctx *ctx, const dh_resolved *job, int64_t rank, dh_checked *checked)
{
    dh_session_spec spec = dh_train_session(&job->job, &job->recipe);
    spec.rank = rank;
    spec.groups = job->group_recipes;
    spec.n_groups = job->n_groups;
    *checked = (dh_checked){.n = 0};
    if (spec.train) {
        DH_TRY(add_program(ctx, &spec, DH_MODE_TRAIN, checked));
        DH_TRY(measure_system(ctx, &job->job, &checked->at[0]));
        if (job->job.checkpoint_async)
            DH_TRY(dh_saver_bytes(ctx, checked->at[0].program, &checked->copy_bytes));
    }
    if (spec.n_groups > 0) DH_TRY(add_groups(ctx, &spec, checked));
    if (spec.eval) DH_TRY(add_program(ctx, &spec, DH_MODE_EVAL, checked));
    if (job->job.ranks > 1) DH_TRY(dh_session_verify_mesh(ctx, &spec, &checked->mesh));
    find_room(&spec, &job->job, checked);
    return spec.train ? dh_missing_find(ctx, &job->job, &checked->missing) : DH_OK;
}

void dh_checked_fini(dh_checked *checked)
{
    for (size_t i = 0; i < checked->n; i++) dh_program_destroy(checked->at[i].program);
    checked->n = 0;
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static json_t *memory_json(const dh_checked_program *c)
{
    json_t *memory = json_object();
    for (size_t i = 0; i < DH_N_MEMORY_ROWS; i++)
        json_object_set_new(memory, dh_memory_rows[i].key,
                            json_integer((json_int_t)dh_memory_row_bytes(c->memory.persistent, i)));
    json_object_set_new(memory, "kept_for_training", json_integer((json_int_t)c->memory.kept));
    json_object_set_new(memory, "activations", json_integer((json_int_t)c->memory.activations));
    json_object_set_new(memory, "scratch", json_integer((json_int_t)c->memory.scratch));
    json_object_set_new(memory, "between_buffers",
                        json_integer((json_int_t)(c->memory.padding + c->memory.unused)));
    return memory;
}

static json_t *program_json(const dh_checked_program *c)
{
    const dh_program *p = c->program;
    json_t *program =
        json_pack("{ss sI sI sf sI sI so}", "mode", dh_checked_mode(c->mode), "instructions",
                  (json_int_t)p->instrs.n, "waits", (json_int_t)p->waits.n, "flops", c->flops,
                  "planned_bytes", (json_int_t)p->slab_bytes, "lower_bound_bytes",
                  (json_int_t)p->live_bytes, "memory_bytes", memory_json(c));
    if (program && dh_program_kept_bytes(p) > 0)
        json_object_set_new(program, "kept_by_steps_bytes",
                            json_integer((json_int_t)dh_program_kept_bytes(p)));
    if (program && c->system.peak_bytes > 0)
        json_object_set_new(program, "system_peak_bytes",
                            json_integer((json_int_t)c->system.peak_bytes));
    return program;
}

json_t *dh_derived_json(const dh_resolved *job)
{
    json_t *lines = json_array();
    for (size_t i = 0; i < job->n_derived; i++) {
        const dh_derived *d = &job->derived[i];
        json_array_append_new(
            lines, json_pack("{ss ss ss}", "name", d->name, "value", d->value, "why", d->why));
    }
    return lines;
}

static json_t *room_json(const dh_room *room)
{
    json_t *object = json_pack("{sI sI sI sb}", "ranks", (json_int_t)room->n_ranks, "rank_bytes",
                               (json_int_t)room->rank_bytes, "needed_bytes",
                               (json_int_t)room->bytes, "enough", dh_room_is_there(room));
    if (object && !dh_room_is_there(room)) /* else it differs from one time to the next */
        json_object_set_new(object, "available_bytes", json_integer((json_int_t)room->available));
    return object;
}

json_t *dh_checked_json(const dh_resolved *job, const dh_checked *checked)
{
    json_t *programs = json_array();
    for (size_t i = 0; i < checked->n; i++)
        json_array_append_new(programs, program_json(&checked->at[i]));
    const dh_recipe *r = &job->recipe;
    const dh_model *m = &r->model;
    json_t *object = json_pack("{ss sI sI sI sI sf sI so so}", "model", m->name, "parameters",
                               (json_int_t)dh_model_n_params(m), "vocab", (json_int_t)m->vocab,
                               "tokens_per_step", (json_int_t)r->global_tokens, "micro_batches",
                               (json_int_t)r->n_micro, "model_flops_per_step",
                               dh_model_flops_per_token(m, r->seq) * (double)r->global_tokens,
                               "planned_bytes", (json_int_t)checked->slab_bytes, "programs",
                               programs, "derived", dh_derived_json(job));
    if (object && checked->room.n_ranks > 0)
        json_object_set_new(object, "this_machine", room_json(&checked->room));
    if (object && checked->missing.n > 0)
        json_object_set_new(object, "missing", dh_missing_json(&checked->missing));
    if (object && checked->copy_bytes > 0)
        json_object_set_new(object, "checkpoint_copy_bytes",
                            json_integer((json_int_t)checked->copy_bytes));
    return object;
}
