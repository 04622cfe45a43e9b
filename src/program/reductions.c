/* Reductions of gradients.
 *
 * Gradients travel in buckets (Li et al. 2020, arXiv 2006.15704, 3.2.1). A backward goes from the
 * last block of a stage to its first, so blocks are collected from the end until a bucket is full.
 * A bucket is reduced when its first block is through. A block larger than a bucket goes in pieces,
 * the last parameters first: each waits only for the gradients in it. Sums are by element in a
 * fixed order, so buckets change no bit of them.
 *
 * Gradients of several micro-batches are added up whole and reduced once. Or, from ZeRO-2 on, each
 * is reduced by itself, and the shards are added up. PyTorch's fully_shard has a
 * setting for this, set_requires_gradient_sync: false until the last one, or always true. There are
 * then whole gradients of two buckets, one being made and one being reduced. When the next bucket's
 * gradients are there, or the next backward begins, the shards of the bucket before are added and
 * its whole gradients go. Vectors, which every rank has whole, are reduced once.
 *
 * Sums over data-parallel ranks have their values rounded to recipe.grad_dtype on the way. All that
 * is summed on a rank stays float32, and so do the sums over other groups. */
#include "program/reductions.h"
#include "program/recipe.h"

#include <stdlib.h>

static const dh_mesh *mesh_of(const dh_reducer *r)
{
    return &r->spec->recipe.mesh;
}

static bool first_shard(const dh_reducer *r, uint32_t block, uint32_t which, dh_param *param)
{
    return dh_reductions_shard(r, block, which, 0, param);
}

/* ---- reductions ---------------------------------------------------------------------------- */

/* One operator on gradients (dh_grad_reduction), on `range`. It follows what makes `all`: the same,
 * or more. */
typedef struct sum {
    dh_op_type type;
    int32_t group;
    dh_operand all, range, shard, addend;
    int64_t n_row;       /* elements of a row of what passes; 0: nothing does */
    int64_t row, n_rows; /* of it, where it is written */
    bool reads_passing;  /* in place of `range` */
    dh_dtype wire;       /* type in which the values travel */
} sum;
typedef DH_VEC(sum) sum_list;

static const dh_operand none = {.buffer = DH_NONE};

static dh_status add_sum(dh_ctx *ctx, const dh_reducer *r, sum_list *list, dh_group_kind group,
                         dh_operand all, dh_operand shard, dh_dtype wire)
{
    if (all.buffer == DH_NONE || dh_mesh_group_size(mesh_of(r), group) == 1) return DH_OK;
    const dh_op_type type = shard.buffer == DH_NONE ? DH_OP_ALL_REDUCE : DH_OP_REDUCE_SCATTER;
    const sum made = {.type = type,
                      .group = (int32_t)group,
                      .all = all,
                      .range = all,
                      .shard = shard,
                      .addend = none,
                      .wire = wire};
    return dh_vec_push(list, made) ? DH_OK : dh_no_memory(ctx);
}

/* A sum that every rank has afterwards. In stages (pass_two_stage.c) a rank scatters it over its
 * node, sums its own slice in place over nodes, and gathers the other slices. */
static dh_status add_whole_sum(dh_ctx *ctx, const dh_reducer *r, sum_list *list,
                               dh_group_kind group, dh_operand all, dh_dtype wire)
{
    dh_group_stages s;
    bool found;
    DH_TRY(dh_reductions_stages(ctx, r, group, DH_SHARED_SUM, &s, &found));
    if (!found || all.buffer == DH_NONE) return add_sum(ctx, r, list, group, all, none, wire);
    const int64_t n = (int64_t)(all.n_bytes / sizeof(float)) / s.per_node;
    const int64_t place = dh_mesh_group_index(mesh_of(r), s.local, r->spec->rank);
    const dh_operand own = dh_flat_part(all, place * n, n, sizeof(float));
    const sum stages[] = {{.type = DH_OP_REDUCE_SCATTER,
                           .group = (int32_t)s.local,
                           .all = all,
                           .range = all,
                           .shard = own,
                           .addend = none,
                           .wire = wire},
                          {.type = DH_OP_ALL_REDUCE,
                           .group = (int32_t)s.cross,
                           .all = all,
                           .range = own,
                           .shard = none,
                           .addend = none,
                           .wire = wire},
                          {.type = DH_OP_ALL_GATHER,
                           .group = (int32_t)s.local,
                           .all = all,
                           .range = own,
                           .shard = all,
                           .addend = none,
                           .wire = wire}};
    for (size_t i = 0; i < DH_COUNTOF(stages); i++)
        if (!dh_vec_push(list, stages[i])) return dh_no_memory(ctx);
    return DH_OK;
}

/* A sum of which every rank has its shard afterwards. In stages: ranks are in the order of nodes,
 * so node a's ranks have the shards of block a. Block by block, a node's ranks scatter their data,
 * each to the rank at its place. The shards of a place, one a block, then go to the sum over
 * nodes, which leaves each rank its own. */
static dh_status add_shard_sum(dh_ctx *ctx, const dh_reducer *r, sum_list *list,
                               dh_group_kind group, dh_operand all, dh_operand shard)
{
    const dh_dtype wire = r->spec->recipe.grad_dtype;
    dh_group_stages s;
    bool found;
    DH_TRY(dh_reductions_stages(ctx, r, group, DH_SHARED_SHARDS, &s, &found));
    if (!found || r->reduces_each || all.buffer == DH_NONE)
        return add_sum(ctx, r, list, group, all, shard, wire);
    const int64_t n_shard = (int64_t)(shard.n_bytes / sizeof(float)), n = s.per_node * n_shard;
    for (int64_t k = 0; k < s.n_nodes; k++) {
        const sum on_node = {.type = DH_OP_REDUCE_SCATTER,
                             .group = (int32_t)s.local,
                             .all = all,
                             .range = dh_flat_part(all, k * n, n, sizeof(float)),
                             .shard = none,
                             .addend = none,
                             .n_row = n_shard,
                             .row = k,
                             .n_rows = s.n_nodes,
                             .wire = wire};
        if (!dh_vec_push(list, on_node)) return dh_no_memory(ctx);
    }
    const sum across = {.type = DH_OP_REDUCE_SCATTER,
                        .group = (int32_t)s.cross,
                        .all = all,
                        .range = none,
                        .shard = shard,
                        .addend = none,
                        .n_row = n_shard,
                        .n_rows = s.n_nodes,
                        .reads_passing = true,
                        .wire = wire};
    return dh_vec_push(list, across) ? DH_OK : dh_no_memory(ctx);
}

/* Matrices and vectors of a flat's gradients, which lie side by side. */
static dh_operand all_gradients(const dh_flat *f)
{
    const dh_operand matrix = f->matrix[DH_BUF_GRAD], vector = f->vector[DH_BUF_GRAD];
    dh_operand both = matrix;
    if (matrix.buffer == DH_NONE || vector.buffer == DH_NONE)
        return matrix.buffer == DH_NONE ? vector : matrix;
    both.n_bytes += vector.n_bytes;
    return both;
}

/* Add the gradients of the same layers in a second copy of the model on this rank. */
static dh_status add_own_copies(dh_ctx *ctx, const dh_reducer *r, uint32_t id, sum_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    for (uint32_t i = 0; i < p->flats.n; i++) {
        if (p->flats.at[i].first_copy != id) continue;
        const dh_operand all = all_gradients(&p->flats.at[id]);
        const sum made = {.type = DH_OP_ADD,
                          .group = -1,
                          .all = all,
                          .range = all,
                          .shard = none,
                          .addend = all_gradients(&p->flats.at[i])};
        if (!dh_vec_push(list, made)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* Add the head's part of the embedding's gradient, where the head is on this rank. */
static dh_status add_own_tied(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, bool first,
                              sum_list *list)
{
    if (dh_reductions_kind(r, f->first_block) != DH_BLOCK_EMBED) return DH_OK;
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t tied = dh_program_state_buffer(p, DH_STATE_TIED_GRAD);
    dh_param param;
    if (tied == DH_NONE) return DH_OK;
    const uint32_t own = p->blocks.at[f->first_block].params[DH_PARAM_WTE];
    sum made = {.type = DH_OP_ADD,
                .group = -1,
                .all = p->homes.at[own].at[DH_BUF_GRAD],
                .shard = none,
                .addend = {.buffer = tied}};
    if (first && first_shard(r, f->first_block, DH_PARAM_WTE, &param))
        made.all.n_bytes = (uint64_t)dh_param_elements(&param) * sizeof(float);
    made.addend.n_bytes = made.all.n_bytes;
    made.range = made.all;
    return dh_vec_push(list, made) ? DH_OK : dh_no_memory(ctx);
}

/* The other end of a tied embedding has the rest of its gradient. */
static dh_status add_tied(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, sum_list *list)
{
    if (!dh_reductions_last(r, f->first_block)) return DH_OK;
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t which =
        dh_reductions_kind(r, f->first_block) == DH_BLOCK_HEAD ? DH_PARAM_HEAD_W : DH_PARAM_WTE;
    const uint32_t param = p->blocks.at[f->first_block].params[which];
    return add_sum(ctx, r, list, DH_GROUP_EMBED, p->homes.at[param].at[DH_BUF_GRAD], none, DH_F32);
}

/* ---- gradients that do not persist ---------------------------------------------------------- */

/* Storage that others had before has no zeros between the gradients: clears the gaps, as many on
 * every tensor-parallel rank as the one with most of them has. */
static dh_status add_clears(dh_ctx *ctx, const dh_reducer *r, uint32_t id, const dh_flat *f,
                            bool first, sum_list *list)
{
    const int64_t own = dh_mesh_coord(mesh_of(r), r->spec->rank).tp;
    dh_gaps gaps = {0};
    size_t n;
    dh_status st = dh_reductions_gaps(ctx, r, id, first ? 0 : own, &gaps, &n);
    for (size_t i = 0; st == DH_OK && i < n; i++) {
        const dh_operand all = f->matrix[DH_BUF_GRAD];
        const dh_gap g = i < gaps.n ? gaps.at[i] : (dh_gap){0, 0};
        const sum made = {.type = DH_OP_CLEAR,
                          .group = -1,
                          .all = all,
                          .range = dh_flat_part(all, g.begin, g.end - g.begin, sizeof(float)),
                          .shard = none,
                          .addend = none};
        if (!dh_vec_push(list, made)) st = dh_no_memory(ctx);
    }
    dh_vec_fini(&gaps);
    return st;
}

static dh_flat first_flat(const dh_reducer *r, uint32_t id);

/* Releases the storage of the gradients that were reduced before. The next writer has waited for
 * their reduction. */
static dh_status add_release(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first,
                             sum_list *list)
{
    if (id == DH_NONE) return DH_OK;
    const dh_flat f = first ? first_flat(r, id) : dh_emitter_program(r->emitter)->flats.at[id];
    const dh_operand all = f.matrix[DH_BUF_GRAD];
    const sum made = {.type = DH_OP_RELEASE,
                      .group = -1,
                      .all = all,
                      .range = all,
                      .shard = none,
                      .addend = none};
    if (f.reduced.buffer == DH_NONE) return DH_OK;
    return dh_vec_push(list, made) ? DH_OK : dh_no_memory(ctx);
}

/* ---- sums over ranks ------------------------------------------------------------------------ */

/* Where the rank's shard of the sum of a piece goes. */
static dh_operand shard_of(const dh_flat *f, int64_t k, dh_operand piece, dh_sums which)
{
    const bool adds = f->reduces_each && which != DH_SUMS_FIRST;
    const dh_operand run = adds ? f->addend : f->reduced;
    return run.buffer != DH_NONE ? dh_flat_part(run, k * f->n_shard, f->n_shard, sizeof(float))
                                 : dh_flat_part(piece, f->shard0, f->n_shard, sizeof(float));
}

/* Sums over the ranks that saw other samples or tokens. */
static dh_status add_matrices(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, dh_sums which,
                              sum_list *list)
{
    const dh_group_kind group =
        dh_program_data_group(dh_emitter_program(r->emitter), f->first_block);
    for (int64_t k = f->n_pieces; k-- > 0;) {
        const dh_operand piece =
            dh_flat_part(f->matrix[DH_BUF_GRAD], k * f->n_piece, f->n_piece, sizeof(float));
        if (r->spec->recipe.sharing.moments)
            DH_TRY(add_shard_sum(ctx, r, list, group, piece, shard_of(f, k, piece, which)));
        else
            DH_TRY(add_whole_sum(ctx, r, list, group, piece, r->spec->recipe.grad_dtype));
    }
    return DH_OK;
}

/* Vectors have the type of matrices, unless loads of experts are among them, by which routers'
 * biases go: a rounded load would be another one. */
static dh_status add_data(dh_ctx *ctx, const dh_reducer *r, const dh_flat *f, dh_sums which,
                          sum_list *list)
{
    const dh_group_kind group =
        dh_program_data_group(dh_emitter_program(r->emitter), f->first_block);
    const dh_dtype wire = r->spec->recipe.grad_dtype;
    const dh_dtype vectors = r->spec->recipe.balances_routers ? DH_F32 : wire;
    if (!r->spec->recipe.sharing.moments && f->n_pieces == 1 && vectors == wire)
        return add_whole_sum(ctx, r, list, group, all_gradients(f), wire);
    DH_TRY(add_matrices(ctx, r, f, which, list));
    return add_whole_sum(ctx, r, list, group, f->vector[DH_BUF_GRAD], vectors);
}

/* Sums of keys' and values' gradients over the ranks that have the same heads; vectors: of biases
 * too. */
static dh_status add_repeats(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first,
                             bool vectors, sum_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    dh_repeats repeats = {0};
    dh_status st = DH_OK;
    for (int matrices = 1; st == DH_OK && matrices >= (vectors ? 0 : 1); matrices--) {
        const dh_flat *f = &p->flats.at[id];
        const dh_operand run = matrices ? f->matrix[DH_BUF_GRAD] : f->vector[DH_BUF_GRAD];
        st = dh_flat_repeats(ctx, p, id, matrices, &repeats);
        for (size_t i = 0; st == DH_OK && i < repeats.n; i++) {
            const dh_repeat *k = &repeats.at[i];
            const dh_operand own = dh_flat_part(run, k->begin, k->end - k->begin, sizeof(float));
            st = add_sum(ctx, r, list, DH_GROUP_KV, own, none, DH_F32);
            if (st == DH_OK && first) list->at[list->n - 1].all = dh_reductions_place(r, k->param);
        }
    }
    dh_vec_fini(&repeats);
    return st;
}

/* List everything that one rank's gradients lack. Vectors that tensor parallelism replicates lack
 * other shards' parts: all of them if it splits the tokens, else those shared by heads. Keys and
 * values lack other query heads, a tied embedding its other end. All lack the samples of the other
 * data-parallel (and context-parallel) ranks. */
static dh_status list_all_of(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first,
                             dh_sums which, sum_list *list)
{
    const dh_flat own = dh_emitter_program(r->emitter)->flats.at[id];
    const dh_flat flat = first ? first_flat(r, id) : own, *f = &flat;
    const bool whole = dh_recipe_sequence(&r->spec->recipe) == DH_SEQUENCE_WHOLE;
    const int64_t n_parts = whole ? f->n_by_heads : f->n_vector - f->replicated0;
    const dh_operand in_parts =
        dh_flat_part(f->vector[DH_BUF_GRAD], f->replicated0, n_parts, sizeof(float));
    DH_TRY(add_release(ctx, r, f->frees, first, list));
    DH_TRY(add_own_copies(ctx, r, id, list));
    DH_TRY(add_own_tied(ctx, r, f, first, list));
    DH_TRY(add_sum(ctx, r, list, DH_GROUP_TP, in_parts, none, DH_F32));
    DH_TRY(add_repeats(ctx, r, id, first, true, list));
    DH_TRY(add_tied(ctx, r, f, list));
    if (f->reduced.buffer != DH_NONE) DH_TRY(add_clears(ctx, r, id, f, first, list));
    return add_data(ctx, r, f, which, list);
}

/* Of a micro-batch that others follow. */
static dh_status list_one_of(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first,
                             dh_sums which, sum_list *list)
{
    const dh_flat own = dh_emitter_program(r->emitter)->flats.at[id];
    const dh_flat flat = first ? first_flat(r, id) : own;
    DH_TRY(add_repeats(ctx, r, id, first, false, list));
    DH_TRY(add_clears(ctx, r, id, &flat, first, list));
    return add_matrices(ctx, r, &flat, which, list);
}

/* Shards of a micro-batch's sums are added to those before, and its whole gradients go. Probes,
 * which run operators again, want them. */
static dh_status list_settled(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first,
                              dh_sums which, sum_list *list)
{
    const dh_flat own = dh_emitter_program(r->emitter)->flats.at[id];
    const dh_flat f = first ? first_flat(r, id) : own;
    for (int64_t k = f.n_pieces; which == DH_SUMS_SETTLE && k-- > 0;) {
        const dh_operand part = dh_flat_part(f.reduced, k * f.n_shard, f.n_shard, sizeof(float));
        const sum made = {.type = DH_OP_ADD,
                          .group = -1,
                          .all = f.matrix[DH_BUF_GRAD],
                          .range = part,
                          .shard = none,
                          .addend =
                              dh_flat_part(f.addend, k * f.n_shard, f.n_shard, sizeof(float))};
        if (!dh_vec_push(list, made)) return dh_no_memory(ctx);
    }
    return r->spec->probes ? DH_OK : add_release(ctx, r, id, first, list);
}

static dh_status list_flat(dh_ctx *ctx, const dh_reducer *r, uint32_t id, bool first, dh_sums which,
                           sum_list *list)
{
    const dh_flat *f = &dh_emitter_program(r->emitter)->flats.at[id];
    if (f->frozen) return DH_OK;
    if (which == DH_SUMS_STEP || which == DH_SUMS_LAST)
        return list_all_of(ctx, r, id, first, which, list);
    if (!f->reduces_each) return DH_OK;
    if (which == DH_SUMS_FIRST || which == DH_SUMS_NEXT)
        return list_one_of(ctx, r, id, first, which, list);
    return list_settled(ctx, r, id, first, which, list);
}

/* ---- the first rank's ---------------------------------------------------------------------- */

static dh_operand run_of(dh_operand own, int64_t first, int64_t n)
{
    if (n == 0) return none;
    own.byte0 = (uint64_t)first * sizeof(float);
    own.n_bytes = (uint64_t)n * sizeof(float);
    return own;
}

/* A flat as the first tensor-parallel rank has it, where its gradients are concerned. */
static dh_flat first_flat(const dh_reducer *r, uint32_t id)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    dh_flat f = p->flats.at[id];
    int64_t n_replicated = 0;
    f.n_matrix = f.n_vector = f.n_by_heads = f.shard0 = 0;
    for (uint32_t b = f.first_block; b <= f.last_block; b++) {
        if (p->blocks.at[b].flat != id) continue;
        const dh_weight w = dh_reductions_weigh(r, b);
        f.n_matrix += w.n_matrix;
        f.n_vector += w.n_vector;
        n_replicated += w.n_replicated;
        f.n_by_heads += w.n_by_heads;
    }
    f.replicated0 = f.n_vector - n_replicated;
    dh_emit_cut_flat(&f, dh_emit_flat_shards(r->emitter, f.first_block));
    f.matrix[DH_BUF_GRAD] = run_of(f.matrix[DH_BUF_GRAD], 0, f.n_matrix);
    f.vector[DH_BUF_GRAD] = run_of(f.vector[DH_BUF_GRAD], f.n_matrix, f.n_vector);
    return f;
}

/* Elements of matrices in a flat before those of a parameter of the block. */
static int64_t matrices_before(const dh_reducer *r, uint32_t block, uint32_t which)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t flat = p->blocks.at[block].flat;
    int64_t n = 0;
    for (uint32_t b = p->flats.at[flat].first_block; b < block; b++)
        if (p->blocks.at[b].flat == flat) n += dh_reductions_weigh(r, b).n_matrix;
    for (uint32_t k = 0; k < which; k++) {
        dh_param param;
        const uint32_t own = p->blocks.at[block].params[k];
        if (own != DH_NONE && p->homes.at[own].block != block) continue;
        if (first_shard(r, block, k, &param) && dh_param_is_matrix(&param))
            n += dh_flat_pad(dh_param_elements(&param), DH_FLAT_ALIGN);
    }
    return n;
}

dh_operand dh_reductions_place(const dh_reducer *r, uint32_t id)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    const uint32_t block = p->homes.at[id].block;
    const dh_flat f = first_flat(r, p->blocks.at[block].flat);
    dh_param param;
    uint32_t which = 0;
    while (p->blocks.at[block].params[which] != id) which++;
    if (!dh_param_is_matrix(&p->params.at[id]) || !first_shard(r, block, which, &param))
        return f.vector[DH_BUF_GRAD];
    return run_of(f.matrix[DH_BUF_GRAD], matrices_before(r, block, which),
                  dh_param_elements(&param));
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* first: as on the first tensor-parallel rank. */
static dh_status list_sums(dh_ctx *ctx, const dh_reducer *r, uint32_t block, bool first,
                           dh_sums which, sum_list *list)
{
    const dh_program *p = dh_emitter_program(r->emitter);
    for (uint32_t id = 0; id < p->flats.n; id++) {
        if (p->flats.at[id].after != block) continue;
        DH_TRY(list_flat(ctx, r, id, first, which, list));
    }
    return DH_OK;
}

/* The first rank's graph is for sizes: its ranges are nobody's. */
static dh_status name_range(dh_ctx *ctx, const dh_reducer *r, dh_operand operand, bool first,
                            uint32_t *range)
{
    if (!first) return dh_emit_range(ctx, r->emitter, operand, range);
    *range = operand.buffer == DH_NONE ? DH_NONE : 0;
    return DH_OK;
}

static dh_status build_graph(dh_ctx *ctx, const dh_reducer *r, const sum_list *sums, bool first,
                             dh_graph **graph)
{
    DH_VEC(dh_grad_reduction) list = {0};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < sums->n; i++) {
        const sum *s = &sums->at[i];
        dh_grad_reduction made = {.type = s->type,
                                  .group = s->group,
                                  .n = (int64_t)(s->range.n_bytes / sizeof(float)),
                                  .n_shard = (int64_t)(s->shard.n_bytes / sizeof(float)),
                                  .passing = {s->n_row, s->row, s->n_rows},
                                  .reads_passing = s->reads_passing,
                                  .wire = s->wire};
        st = name_range(ctx, r, s->range, first, &made.range);
        if (st == DH_OK) st = name_range(ctx, r, s->shard, first, &made.shard);
        if (st == DH_OK) st = name_range(ctx, r, s->addend, first, &made.addend);
        if (st == DH_OK && !dh_vec_push(&list, made)) st = dh_no_memory(ctx);
    }
    if (st == DH_OK) st = dh_graph_build_reductions(ctx, list.at, list.n, graph);
    dh_vec_fini(&list);
    return st;
}

static dh_status add_block(dh_ctx *ctx, const dh_reducer *r, uint32_t block, dh_sums which,
                           uint32_t *id)
{
    sum_list list = {0};
    dh_graph *g = NULL;
    uint32_t graph;
    *id = DH_NONE;
    dh_status st = list_sums(ctx, r, block, false, which, &list);
    if (st == DH_OK && list.n > 0) st = build_graph(ctx, r, &list, false, &g);
    dh_vec_fini(&list);
    if (st != DH_OK || !g) return st;
    DH_TRY(dh_emit_add_graph(ctx, r->emitter, g, &graph));
    DH_TRY(dh_emit_add_block(ctx, r->emitter, graph, 0, id));
    dh_emitter_program(r->emitter)->blocks.at[*id].of = block;
    return DH_OK;
}

dh_status dh_reductions_add(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which, uint32_t *id)
{
    dh_reducing made = {.place = block, .which = which};
    for (size_t i = 0; i < r->made.n; i++)
        if (r->made.at[i].place == block && r->made.at[i].which == which) {
            *id = r->made.at[i].id;
            return DH_OK;
        }
    DH_TRY(add_block(ctx, r, block, which, &made.id));
    *id = made.id;
    return dh_vec_push(&r->made, made) ? DH_OK : dh_no_memory(ctx);
}

static const dh_reducing *find_made(const dh_reducer *r, uint32_t id)
{
    size_t i = 0;
    while (i < r->made.n && r->made.at[i].id != id) i++;
    DH_CHECK(i < r->made.n, "block %u has no reductions", id);
    return &r->made.at[i];
}

dh_status dh_reductions_first(dh_ctx *ctx, const dh_reducer *r, uint32_t id, dh_graph **graph,
                              dh_operand **sums)
{
    const dh_reducing of = *find_made(r, id);
    sum_list list = {0};
    dh_status st = list_sums(ctx, r, of.place, true, of.which, &list);
    dh_operand *made = malloc((list.n + 1) * sizeof *made);
    if (st == DH_OK && !made) st = dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < list.n; i++) made[i] = list.at[i].all;
    if (st == DH_OK) st = build_graph(ctx, r, &list, true, graph);
    dh_vec_fini(&list);
    if (st == DH_OK)
        *sums = made;
    else
        free(made);
    return st;
}

dh_status dh_reductions_emit(dh_ctx *ctx, dh_reducer *r, uint32_t block, dh_sums which, int32_t mb)
{
    uint32_t id;
    DH_TRY(dh_reductions_add(ctx, r, block, which, &id));
    if (id == DH_NONE) return DH_OK;
    return dh_emit_phases(ctx, r->emitter, id, mb, DH_PHASES(DH_PHASE_W));
}
