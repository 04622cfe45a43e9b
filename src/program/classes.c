/* Verification of a mesh by classes of like ranks.
 *
 * A program depends on few facts. The builder looks only at a rank's pipeline stage and
 * context-parallel index, at which groups are node-local, and at its tensor-parallel and
 * expert-parallel index. With the distributed optimizer it also looks at which copy of the experts
 * the rank has (one rank, without expert parallelism). The last three enter as follows:
 *   tp  The first index has the position embeddings and counts replicated vectors in the gradient
 *       norm. The last may have fewer rows of the vocabulary; if others have none at all, the last
 *       has none either, and its program cannot be built. The others differ only in their rows of
 *       the micro-batch's inputs, in their ids and, with experts spread over tp, in their experts.
 *   ep  The first index counts in the gradient norm the values that all have alike. The others
 *       differ only in their experts.
 *   edp The first index of either kind counts vectors in the gradient norm. The others differ
 *       only in the place of their shard in a piece of matrices.
 *
 * Where tensor-parallel ranks share heads of keys and values, the first of those with the same head
 * counts it in the gradient norm, and each tp index is a class of its own.
 * Where two copies of the model lie in opposite directions, members of a group are on two stages
 * that mirror each other. The stage says which of the two it is, and so where a shard lies.
 *
 * A class is all ranks with the same stage and cp index, and with the same kind of the other
 * indices. A tp index is the first, a middle one or the last. An ep or edp index is the first or a
 * later one. The ranks of a class run the same instructions with the same waits, sizes, peers and
 * offsets. Only those rows and shards lie at other places in their buffers. (A backend's scratch
 * follows from shapes alone, and these are equal.)
 *
 * Why the replay of one rank a class is enough. Let the full replay step all ranks of a
 * class together. A computing instruction is ready on all of them or on none. A call is
 * complete for rank r when the members of r's group have come. Members of a group share all
 * coordinates except the group's own. So the class of r alone says of which class the i-th member
 * is. The call is then complete for all ranks of the class or for none, exactly when it is in the
 * reduced replay. Both replays take the same steps and end in the same state. The order of steps
 * does not matter (verify_ranks.c), so every other full replay ends there too. This needs locality
 * to follow from the class as well. If some groups straddle nodes and others of the kind do not,
 * every rank is a class of its own.
 *
 * Why the data of one rank a class are enough. Waits, and therefore the order, are equal. A second
 * check widens the operands whose place varies to all the bytes they may take. Every conflict of
 * two accesses on any rank of the class is one of the widened program, so if that has no race, no
 * rank has one. */
#include "base/memory.h"
#include "base/stop.h"
#include "program/places.h"
#include "program/program_spec.h"
#include "program/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- classes ------------------------------------------------------------------------------ */

/* Nodes are runs of ranks. Suppose that one axis is cut into equal runs, and all faster axes lie
 * whole inside them. Then a group leaves its node if it varies along a slower axis or beyond such a
 * run, wherever it begins. */
/* Whether ranks with the same key and value head are on one node, all of them, or on whole ones. */
static bool cuts_no_heads(const dh_mesh *m)
{
    const int64_t n = DH_MAX(m->kv_ranks, 1);
    return m->ranks_per_node % n == 0 || n % m->ranks_per_node == 0 ||
           m->ranks_per_node % m->tp == 0;
}

static bool cuts_no_run(const dh_mesh *m, dh_group_kind run, dh_group_kind on_node)
{
    const int64_t n = dh_mesh_group_size(m, run), k = dh_mesh_group_size(m, on_node);
    return n % k == 0 || k % n == 0;
}

/* Nor ranks that keep shares of parameters. */
static bool cuts_no_shares(const dh_mesh *m)
{
    return m->share_ranks == 0 || (cuts_no_run(m, DH_GROUP_DP_CP_SHARE, DH_GROUP_DP_CP_NODE) &&
                                   cuts_no_run(m, DH_GROUP_EDP_CP_SHARE, DH_GROUP_EDP_CP_NODE));
}

bool dh_mesh_nodes_alike(const dh_mesh *m)
{
    if (dh_mesh_cuts_one_axis(m) && cuts_no_heads(m) && cuts_no_shares(m)) return true;
    for (int g = 0; g < DH_N_GROUPS; g++) {
        const bool first = dh_mesh_group_is_local(m, (dh_group_kind)g, 0);
        for (int64_t r = 1; r < m->ranks; r++)
            if (dh_mesh_group_is_local(m, (dh_group_kind)g, r) != first) return false;
    }
    return true;
}

/* First, middle or last; one index alone is the first. A middle one that counts key and value heads
 * in the gradient norm differs from one that does not. */
static uint32_t place_of(const dh_mesh *m, int64_t index)
{
    const bool counts = m->kv_ranks > 1 && index % m->kv_ranks == 0;
    return index == 0 ? 0 : index == m->tp - 1 ? 2 : counts ? 3 : 1;
}

enum { N_TP_PLACES = 4, N_DP_PLACES = 4 };

size_t dh_rank_n_keys(const dh_recipe *recipe)
{
    return (size_t)(recipe->mesh.pp * recipe->mesh.cp) * N_TP_PLACES * N_DP_PLACES;
}

size_t dh_rank_key(const dh_recipe *recipe, int64_t rank)
{
    const dh_coord c = dh_mesh_coord(&recipe->mesh, rank);
    const size_t stage = (size_t)(c.pp * recipe->mesh.cp + c.cp);
    const size_t data = (c.ep > 0 ? 2 : 0) + (recipe->sharing.moments && c.edp > 0);
    return (stage * N_TP_PLACES + place_of(&recipe->mesh, c.tp)) * N_DP_PLACES + data;
}

/* Keys of ranks. Passes may make programs differ along an axis in ways that the second check
 * cannot widen over (dh_pass.varies_by): each index on it is then verified by itself. */
typedef struct rank_keys {
    const dh_recipe *recipe;
    unsigned apart; /* such axes */
    size_t n;
} rank_keys;

static int64_t axis_size(const dh_mesh *m, int axis)
{
    const int64_t sizes[DH_N_MESH_AXES] = {m->tp, m->cp, m->ep, m->edp, m->pp};
    return sizes[axis];
}

static int64_t axis_index(const dh_mesh *m, int64_t rank, int axis)
{
    const dh_coord c = dh_mesh_coord(m, rank);
    const int64_t at[DH_N_MESH_AXES] = {c.tp, c.cp, c.ep, c.edp, c.pp};
    return at[axis];
}

static rank_keys rank_keys_of_spec(const dh_program_spec *spec)
{
    const dh_graph_spec graphs = dh_program_graph_spec(spec);
    rank_keys keys = {.recipe = &spec->recipe,
                      .apart = dh_graph_varies_by(&graphs),
                      .n = dh_rank_n_keys(&spec->recipe)};
    if (spec->recipe.mesh.kv_ranks > 1) keys.apart |= 1u << DH_MESH_TP;
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++)
        if (keys.apart >> axis & 1) keys.n *= (size_t)axis_size(&spec->recipe.mesh, axis);
    return keys;
}

static size_t rank_keys_of(const rank_keys *keys, int64_t rank)
{
    const dh_mesh *m = &keys->recipe->mesh;
    size_t key = dh_rank_key(keys->recipe, rank);
    for (int axis = 0; axis < DH_N_MESH_AXES; axis++)
        if (keys->apart >> axis & 1)
            key = key * (size_t)axis_size(m, axis) + (size_t)axis_index(m, rank, axis);
    return key;
}

/* Numbers the keys that occur in the order of their first ranks. */
static dh_status number_classes(dh_ctx *ctx, const dh_program_spec *spec, dh_rank_classes *classes)
{
    const int64_t n_ranks = spec->recipe.mesh.ranks;
    const bool alike = dh_mesh_nodes_alike(&spec->recipe.mesh);
    const rank_keys keys = rank_keys_of_spec(spec);
    const size_t n_keys = alike ? keys.n : (size_t)n_ranks;
    uint32_t *number = malloc(n_keys * sizeof *number);
    if (!number) return dh_no_memory(ctx);
    memset(number, 0xff, n_keys * sizeof *number);
    for (int64_t r = 0; r < n_ranks; r++) {
        uint32_t *mine = &number[alike ? rank_keys_of(&keys, r) : (size_t)r];
        if (*mine == DH_NONE) {
            *mine = (uint32_t)classes->n;
            classes->first[classes->n++] = r;
        }
        classes->of[r] = *mine;
    }
    free(number);
    return DH_OK;
}

dh_status dh_rank_classes_find(dh_ctx *ctx, const dh_program_spec *spec, dh_rank_classes *classes)
{
    const size_t n = (size_t)spec->recipe.mesh.ranks;
    *classes = (dh_rank_classes){.first = malloc(n * sizeof *classes->first),
                                 .of = malloc(n * sizeof *classes->of)};
    if (!classes->first || !classes->of) return dh_no_memory(ctx);
    return number_classes(ctx, spec, classes);
}

void dh_rank_classes_fini(dh_rank_classes *classes)
{
    free(classes->first);
    free(classes->of);
    *classes = (dh_rank_classes){0};
}

/* ---- one class ------------------------------------------------------------------------------ */

/* All bytes that the operand may take on a rank of the class. */
static dh_operand widened(const dh_program *p, const dh_tensor *t, dh_operand o)
{
    if (o.buffer == DH_NONE) return o;
    const dh_buffer *b = &p->buffers.at[o.buffer];
    if (t->kind == DH_TENSOR_INPUT) return (dh_operand){.buffer = o.buffer, .n_bytes = b->n_bytes};
    if (t->kind == DH_TENSOR_RANGE) return dh_program_piece(p, o);
    return o;
}

static void widen(dh_program *p)
{
    for (size_t k = 0; k < p->instrs.n; k++) {
        const dh_instr *i = &p->instrs.at[k];
        const dh_graph *g = dh_instr_graph(p, i);
        const dh_op *op = dh_instr_op(p, i);
        const dh_op_info *info = dh_op_info_of(op->type);
        for (int n = 0; n < info->n_in + info->n_out; n++) {
            const uint32_t tensor = n < info->n_in ? op->in[n] : op->out[n - info->n_in];
            dh_operand *o = &p->operands.at[i->operand0 + (uint32_t)n];
            if (tensor != DH_NONE) *o = widened(p, &g->tensors.at[tensor], *o);
        }
    }
}

dh_status dh_class_verify(dh_ctx *ctx, const dh_program *program)
{
    DH_TRY(dh_program_verify(ctx, program));
    dh_program wide = *program; /* shares everything except the operands */
    wide.gathers_first = false; /* a shard wherever it may lie is not one that is up to date */
    wide.operands.at = malloc((program->operands.n + 1) * sizeof *wide.operands.at);
    if (!wide.operands.at) return dh_no_memory(ctx);
    memcpy(wide.operands.at, program->operands.at, program->operands.n * sizeof *wide.operands.at);
    widen(&wide);
    dh_status st = dh_program_verify(ctx, &wide);
    free(wide.operands.at);
    return st == DH_OK ? DH_OK : dh_ctx_while(ctx, "verifying what all ranks like this one do");
}

/* ---- entry ---------------------------------------------------------------------------------- */

/* TUNING: of a class of so many instructions building and verifying takes about 50 ms, of which a
 * thread's start is nothing. */
enum { MIN_INSTRS_OF_THREADS = 10000 };

/* Classes that are built and verified, in turn, by whoever is free. */
typedef struct class_work {
    const dh_program_spec *spec;
    const dh_rank_classes *classes;
    dh_program **programs; /* by class */
    pthread_mutex_t lock;  /* of all below */
    size_t next;           /* class that nobody has begun */
    size_t failed;         /* the lowest one that failed, whose failure is kept; else DH_NONE */
    dh_ctx failure;
    const dh_ctx *like; /* of who waits for all of them */
} class_work;

static dh_status build_class(dh_ctx *ctx, const class_work *w, size_t class)
{
    dh_program_spec own = *w->spec;
    own.rank = w->classes->first[class];
    DH_TRY(dh_program_build(ctx, &own, &w->programs[class]));
    return dh_class_verify(ctx, w->programs[class]);
}

/* The next class; false: there is none left, or one before it has failed. */
static bool take_class(class_work *w, size_t *class)
{
    pthread_mutex_lock(&w->lock);
    const bool any = w->next < w->classes->n && w->failed == DH_NONE;
    *class = w->next;
    w->next += any;
    pthread_mutex_unlock(&w->lock);
    return any;
}

static void keep_failure(class_work *w, size_t class, const dh_ctx *failure)
{
    pthread_mutex_lock(&w->lock);
    if (class < w->failed) {
        w->failed = class;
        w->failure = *failure;
    }
    pthread_mutex_unlock(&w->lock);
}

static void *build_classes(void *work)
{
    for (size_t class; take_class(work, &class);) {
        dh_ctx own = dh_ctx_like(((class_work *)work)->like);
        if (build_class(&own, work, class) != DH_OK) keep_failure(work, class, &own);
    }
    return NULL;
}

/* By the programs of the first class, which is there. */
static size_t threads_for(const class_work *w)
{
    const size_t left = w->classes->n - w->next;
    size_t n = (size_t)DH_MAX(w->spec->n_threads, 0);
    if (n == 0 && w->programs[0]->instrs.n >= MIN_INSTRS_OF_THREADS)
        n = (size_t)DH_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
    return DH_MIN(DH_MIN(DH_MAX(n, (size_t)1), (size_t)DH_MOST_THREADS), DH_MAX(left, (size_t)1));
}

/* All are there at once for the replay: whether they can be, by the first of them. Building and
 * verifying one takes as much again. */
static dh_status check_memory(dh_ctx *ctx, const class_work *w)
{
    char what[96];
    const double bytes = 2 * (double)dh_program_bytes(w->programs[0]);
    snprintf(what, sizeof what, "verifying the programs of %zu kinds of ranks together",
             w->classes->n);
    return dh_memory_check(ctx, bytes * (double)(w->classes->n - 1), what);
}

/* The first class here; the others by threads. */
static dh_status build_all(dh_ctx *ctx, class_work *w)
{
    w->next = 1;
    DH_TRY(build_class(ctx, w, 0));
    DH_TRY(check_memory(ctx, w));
    dh_work_together(threads_for(w), build_classes, w);
    if (w->failed == DH_NONE) return DH_OK;
    *ctx = w->failure;
    return ctx->status;
}

void dh_mesh_footprint_add(dh_mesh_footprint *sum, const dh_program *program, uint64_t n_ranks)
{
    sum->all_slabs_bytes += n_ranks * program->slab_bytes;
    sum->program_bytes = DH_MAX(sum->program_bytes, dh_program_bytes(program));
    sum->n_instrs += program->instrs.n;
    sum->slab_bytes = DH_MAX(sum->slab_bytes, program->slab_bytes);
    sum->digest = dh_mix64(sum->digest ^ dh_program_digest(program));
}

static uint64_t ranks_of(const dh_rank_classes *classes, size_t class, size_t n_ranks)
{
    uint64_t n = 0;
    for (size_t r = 0; r < n_ranks; r++) n += classes->of[r] == class;
    return n;
}

static dh_status verify_classes(dh_ctx *ctx, const dh_program_spec *spec,
                                const dh_rank_classes *classes, dh_mesh_footprint *sum)
{
    class_work w = {.spec = spec, .classes = classes, .failed = DH_NONE, .like = ctx};
    // NOLINTNEXTLINE(clang-analyzer-optin.portability.UnixAPI): there is always a class
    w.programs = calloc(classes->n, sizeof *w.programs);
    if (!w.programs) return dh_no_memory(ctx);
    pthread_mutex_init(&w.lock, NULL);
    dh_status st = build_all(ctx, &w);
    for (size_t c = 0; st == DH_OK && c < classes->n; c++)
        dh_mesh_footprint_add(sum, w.programs[c], ranks_of(classes, c, sum->n_ranks));
    if (st == DH_OK)
        st = dh_ranks_replay(ctx, (const dh_program *const *)w.programs, classes->n, classes->of);
    for (size_t c = 0; c < classes->n; c++) dh_program_destroy(w.programs[c]);
    pthread_mutex_destroy(&w.lock);
    free(w.programs);
    return st;
}

/* The order of a slot is found once for all classes. */
static dh_status share_orders(dh_ctx *ctx, dh_recipe *recipe, dh_order_cache **cache)
{
    *cache = NULL;
    if (recipe->ordering.cache) return DH_OK;
    DH_TRY(dh_recipe_ordering(ctx, recipe, &recipe->ordering));
    recipe->ordering.cache = *cache = dh_order_cache_create();
    return *cache ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_mesh_verify(dh_ctx *ctx, const dh_program_spec *spec, dh_mesh_footprint *footprint)
{
    dh_program_spec whole = *spec;
    dh_recipe *r = &whole.recipe;
    dh_order_cache *cache;
    if (r->mesh.ranks == 0) DH_TRY(dh_mesh_init(ctx, 1, 1, 1, 1, 1, 1, 1, &r->mesh));
    dh_rank_classes classes = {.n = 0};
    dh_mesh_footprint sum = {.n_ranks = (size_t)r->mesh.ranks};
    DH_TRY(share_orders(ctx, r, &cache));
    whole.places = dh_places_create();
    dh_status st = whole.places ? dh_rank_classes_find(ctx, &whole, &classes) : dh_no_memory(ctx);
    if (st == DH_OK) st = verify_classes(ctx, &whole, &classes, &sum);
    sum.n_classes = classes.n;
    dh_rank_classes_fini(&classes);
    dh_order_cache_destroy(cache);
    dh_places_destroy(whole.places);
    if (st == DH_OK && footprint) *footprint = sum;
    return st;
}
