/* Programs that were written by hand: made, verified, run. See graph_run.h. */
#include "train/graph_run.h"

#include <stdlib.h>
#include <string.h>

#include "program/program_spec.h"
#include "program/ranks.h"
#include "run/exec/exec.h"
#include "train/graph_rewrite.h"
#include "train/graph_values.h"
#include "train/launch.h"
#include "train/room.h"

enum { MAX_TEXT = 64 << 20, MAX_RANKS = 4096 };

/* ---- text ---------------------------------------------------------------------------------- */

dh_status dh_graph_text_read(dh_ctx *ctx, const char *path, dh_graph_text *text)
{
    char *bytes = NULL;
    size_t n = 0;
    *text = (dh_graph_text){.file = path};
    DH_TRY(dh_file_read(ctx, path, MAX_TEXT, &bytes, &n));
    const dh_status st = dh_graph_parse_lines(ctx, bytes, n, &text->graph, &text->lines);
    free(bytes);
    return st == DH_OK ? st : dh_ctx_while(ctx, "reading %s", path);
}

void dh_graph_text_fini(dh_graph_text *text)
{
    dh_graph_destroy(text->graph);
    dh_graph_lines_fini(&text->lines);
}

/* ---- programs ------------------------------------------------------------------------------ */

static dh_status check_text(dh_ctx *ctx, const dh_graph_run *run)
{
    uint32_t op;
    const dh_status st = dh_graph_check_alone(ctx, run->text->graph, &run->mesh, &op);
    if (st == DH_OK) return st;
    return dh_ctx_while(ctx, "reading %s, line %u", run->text->file, run->text->lines.ops.at[op]);
}

static dh_status make_program(dh_ctx *ctx, dh_graph_run *run, int64_t rank,
                              const dh_pass_list *passes)
{
    DH_TRY(dh_graph_run_rewrite(ctx, run, rank, passes, &run->graphs[rank]));
    return dh_program_of_graph(ctx, run->graphs[rank], &run->ios, &run->mesh, rank,
                               &run->device->info, &run->programs[rank]);
}

static dh_status make_programs(dh_ctx *ctx, dh_graph_run *run, const dh_pass_list *passes)
{
    const int64_t n = run->mesh.ranks;
    run->graphs = calloc((size_t)n, sizeof *run->graphs);
    run->programs = calloc((size_t)n, sizeof *run->programs);
    run->left = calloc((size_t)n * (run->ios.n + 1), sizeof *run->left);
    if (!run->graphs || !run->programs || !run->left) return dh_no_memory(ctx);
    for (int64_t r = 0; r < n; r++) DH_TRY(make_program(ctx, run, r, passes));
    return dh_programs_verify(ctx, (const dh_program *const *)run->programs, (size_t)n);
}

dh_status dh_graph_run_prepare(dh_ctx *ctx, const dh_job *job, const dh_graph_text *text,
                               const dh_graph_run_options *options, dh_graph_run *run)
{
    *run = (dh_graph_run){.job = job, .text = text, .quiet = options->quiet};
    DH_TRY(dh_device_get(ctx, job->device, &run->device));
    DH_TRY(dh_mesh_from_job(ctx, job, &run->mesh));
    if (run->mesh.ranks > MAX_RANKS)
        return dh_fail(ctx, DH_EUNSUPPORTED, "%lld ranks: programs are run on at most %d",
                       (long long)run->mesh.ranks, MAX_RANKS);
    DH_TRY(check_text(ctx, run));
    const dh_status st =
        dh_graph_find_ios(ctx, text->graph, options->keep, options->n_keep, &run->ios);
    if (st != DH_OK) return dh_ctx_while(ctx, "reading %s", text->file);
    if (options->search == DH_GRAPH_AS_SAID) {
        run->passes = options->passes;
    } else {
        DH_TRY(dh_graph_run_search(ctx, options, run));
        run->passes = run->rewrites->at[run->rewrites->best].passes;
    }
    return make_programs(ctx, run, &run->passes);
}

void dh_graph_run_fini(dh_graph_run *run)
{
    const size_t n = (size_t)run->mesh.ranks;
    for (size_t r = 0; run->graphs && r < n; r++) dh_graph_destroy(run->graphs[r]);
    for (size_t r = 0; run->programs && r < n; r++) dh_program_destroy(run->programs[r]);
    for (size_t i = 0; run->left && i < n * run->ios.n; i++) free(run->left[i]);
    free(run->graphs);
    free(run->programs);
    free(run->left);
    free(run->rewrites);
    dh_vec_fini(&run->ios);
}

/* ---- running ------------------------------------------------------------------------------- */

static const dh_tensor *io_tensor(const dh_graph_run *run, size_t io)
{
    return &run->text->graph->tensors.at[run->ios.at[io].tensor];
}

static uint64_t io_offset(const dh_graph_run *run, int64_t rank, size_t io)
{
    return run->programs[rank]->buffers.at[io].offset;
}

static dh_status give(dh_ctx *ctx, const dh_graph_run *run, int64_t rank, dh_slab *slab)
{
    for (size_t i = 0; i < run->ios.n; i++) {
        const dh_tensor *t = io_tensor(run, i);
        const size_t n_bytes = (size_t)dh_tensor_bytes(t);
        if (!run->ios.at[i].in) continue;
        void *part = malloc(n_bytes);
        if (!part) return dh_no_memory_while(ctx, "reading %s", t->name);
        dh_status st = dh_graph_given_read(ctx, run, i, rank, part);
        if (st == DH_OK)
            st = run->device->slab_write(ctx, slab, io_offset(run, rank, i), part, n_bytes);
        free(part);
        DH_TRY(st);
    }
    return DH_OK;
}

static dh_status take(dh_ctx *ctx, dh_graph_run *run, int64_t rank, const dh_slab *slab)
{
    for (size_t i = 0; i < run->ios.n; i++) {
        const size_t n_bytes = (size_t)dh_tensor_bytes(io_tensor(run, i));
        void **at = &run->left[(size_t)rank * run->ios.n + i];
        if (!run->ios.at[i].out) continue;
        if (!(*at = malloc(n_bytes))) return dh_no_memory(ctx);
        DH_TRY(run->device->slab_read(ctx, slab, io_offset(run, rank, i), *at, n_bytes));
    }
    return DH_OK;
}

/* Of processes each has its own rank's; here all get all. */
static dh_status gather(dh_ctx *ctx, dh_graph_run *run, const dh_ranks *ranks)
{
    const size_t n = (size_t)run->mesh.ranks;
    for (size_t i = 0; i < run->ios.n; i++) {
        const size_t n_bytes = (size_t)dh_tensor_bytes(io_tensor(run, i));
        if (!run->ios.at[i].out) continue;
        char *all = malloc(n * n_bytes);
        dh_status st = all ? DH_OK : dh_no_memory(ctx);
        if (st == DH_OK)
            st = dh_comm_all_gather(ctx, ranks->control,
                                    run->left[(size_t)ranks->rank * run->ios.n + i], all,
                                    (int64_t)n_bytes, DH_U8);
        for (size_t r = 0; st == DH_OK && r < n; r++) {
            void **at = &run->left[r * run->ios.n + i];
            if (!*at && !(*at = malloc(n_bytes)))
                st = dh_no_memory(ctx);
            else
                memcpy(*at, all + r * n_bytes, n_bytes);
        }
        free(all);
        DH_TRY(st);
    }
    return DH_OK;
}

static dh_step step_of(const dh_job *job)
{
    return (dh_step){.seed = job->seed,
                     .lr = job->lr,
                     .beta1 = job->beta1,
                     .beta2 = job->beta2,
                     .eps = job->eps,
                     .weight_decay = job->weight_decay,
                     .grad_clip = job->grad_clip,
                     .router_bias_rate = job->router_bias_rate};
}

static dh_status run_program(dh_ctx *ctx, dh_graph_run *run, const dh_ranks *ranks, dh_slab *slab)
{
    const dh_step step = step_of(run->job);
    dh_exec *exec = NULL;
    dh_status st = give(ctx, run, ranks->rank, slab);
    if (st == DH_OK)
        st = dh_exec_create(ctx, run->device, run->programs[ranks->rank], slab, ranks->comm, &exec);
    st = dh_ranks_agree(ctx, ranks, st); /* this rank may be ready where another is not */
    const int64_t start = dh_now_ns();
    if (st == DH_OK) st = dh_exec_run(ctx, exec, &step);
    if (ranks->rank == 0) run->step_ns = dh_now_ns() - start;
    if (st == DH_OK) st = take(ctx, run, ranks->rank, slab);
    dh_exec_destroy(exec);
    return st;
}

static dh_status work(dh_ctx *ctx, dh_launch *launch, const dh_place *place)
{
    dh_graph_run *run = launch->user;
    const dh_ranks *ranks = &place->ranks;
    int n_threads, first = 0, n = 1;
    dh_slab *slab;
    if (ranks->rank == 0) run->here = true;
    DH_TRY(run->device->bind_rank(ctx, place->local_rank, place->n_local_ranks,
                                  launch->job->threads, &n_threads));
    DH_TRY(run->device->slab_create(ctx, run->programs[ranks->rank]->slab_bytes, &slab));
    dh_status st = run_program(ctx, run, ranks, slab);
    run->device->slab_destroy(slab);
    DH_TRY(dh_ranks_agree(ctx, ranks, st));
    if (launch->world) dh_comm_world_here(launch->world, &first, &n);
    return n < run->mesh.ranks ? gather(ctx, run, ranks) : DH_OK;
}

/* All ranks must run the same text. */
static void add_facts(const dh_graph_run *run, dh_launch *launch)
{
    dh_str_printf(&launch->facts, "programs of %s: %016llx\n", run->text->file,
                  (unsigned long long)dh_program_digest(run->programs[0]));
}

static dh_status check_room(dh_ctx *ctx, const dh_graph_run *run)
{
    dh_mesh_footprint all = {.n_ranks = (size_t)run->mesh.ranks};
    if (!run->device->slab_is_host || dh_launched_ranks() > 0) return DH_OK;
    for (size_t r = 0; r < all.n_ranks; r++) dh_mesh_footprint_add(&all, run->programs[r], 1);
    const dh_room room = dh_room_of(run->job, &all);
    return dh_room_check(ctx, &room);
}

dh_status dh_graph_run_start(dh_ctx *ctx, dh_graph_run *run)
{
    dh_launch launch;
    DH_TRY(dh_launch_prepare(ctx, run->job, run->quiet, &launch));
    DH_TRY(check_room(ctx, run));
    add_facts(run, &launch);
    launch.work = work;
    launch.user = run;
    return dh_launch_run(ctx, &launch);
}
