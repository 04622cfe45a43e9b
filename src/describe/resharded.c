/* Reshards between the layouts of two jobs: planned by every rule, verified, simulated. */
#include "describe/resharded.h"

#include <stdio.h>
#include <stdlib.h>

#include "program/ranks.h"
#include "sim/sim.h"

const char *const dh_resharded_names[] = {"params", "grads", "states", NULL};

/* ---- wires ---------------------------------------------------------------------------------- */

/* Time of a message of n bytes by the costs. */
static double message_ns(const dh_costs *costs, const dh_mesh *mesh, dh_group_kind group, int64_t n)
{
    dh_tensor x = {.name = "x", .dtype = DH_U8, .ndim = 1, .shape = {n}, .base = DH_NONE};
    dh_op op = {.type = DH_OP_MESSAGES, .group = (int32_t)group, .site = -1, .flat = DH_NONE};
    dh_graph g = {.kind = DH_BLOCK_RESHARD};
    for (int k = 0; k < DH_MAX_OPERANDS; k++) op.in[k] = op.out[k] = DH_NONE;
    op.in[0] = 0;
    if (!dh_vec_push(&g.tensors, x)) return 0;
    const dh_cost_op at = {&g, &op, mesh, 0};
    const double ns = costs->solo(costs->self, &at).ns;
    dh_vec_fini(&g.tensors);
    return ns;
}

static double byte_ns(const dh_costs *costs, const dh_mesh *mesh, dh_group_kind group)
{
    const int64_t n = (int64_t)1 << 26;
    if (dh_mesh_group_size(mesh, group) < 2) return 0;
    return (message_ns(costs, mesh, group, 2 * n) - message_ns(costs, mesh, group, n)) / (double)n;
}

/* Where there is one node, or one rank on each, the other wire is not used. */
static dh_reshard_wires wires_of(const dh_costs *costs, const dh_mesh *mesh)
{
    dh_reshard_wires w = {byte_ns(costs, mesh, DH_GROUP_TP), byte_ns(costs, mesh, DH_GROUP_WORLD)};
    if (mesh->nodes == 1) w.cross_ns = w.local_ns;
    if (mesh->ranks_per_node == 1) w.local_ns = w.cross_ns;
    return w;
}

/* ---- programs -------------------------------------------------------------------------------- */

static dh_status simulate(dh_ctx *ctx, const dh_costs *costs, dh_program **programs, int64_t n,
                          dh_resharded_row *row)
{
    const dh_program *const *all = (const dh_program *const *)programs;
    const dh_sim_options options = {0};
    dh_sim *sim;
    DH_TRY(dh_programs_verify(ctx, all, (size_t)n));
    DH_TRY(dh_simulate_programs(ctx, all, (size_t)n, costs, &options, &sim));
    row->step_ns = sim->step_ns;
    dh_sim_destroy(sim);
    for (int64_t r = 0; r < n; r++)
        row->staged_bytes =
            DH_MAX(row->staged_bytes, programs[r]->slab_bytes - programs[r]->persistent_bytes);
    return DH_OK;
}

static dh_status run_programs(dh_ctx *ctx, const dh_reshard *r, const dh_costs *costs,
                              dh_resharded_row *row)
{
    dh_program **programs = calloc((size_t)r->n_ranks, sizeof *programs);
    dh_status st = programs ? DH_OK : dh_no_memory(ctx);
    for (int64_t rank = 0; st == DH_OK && rank < r->n_ranks; rank++)
        st = dh_reshard_program(ctx, r, rank, 0, NULL, &programs[rank]);
    if (st == DH_OK) st = simulate(ctx, costs, programs, r->n_ranks, row);
    for (int64_t rank = 0; programs && rank < r->n_ranks; rank++)
        dh_program_destroy(programs[rank]);
    free(programs);
    return st;
}

static dh_status make_rows(dh_ctx *ctx, dh_reshard *r, const dh_costs *costs, int64_t chunk_bytes,
                           dh_resharded *out)
{
    static const dh_reshard_rule rules[] = {DH_RESHARD_FIRST, DH_RESHARD_HOTSPA, DH_RESHARD_EXACT};
    for (size_t i = 0; i < DH_COUNTOF(rules); i++) {
        dh_resharded_row row = {.rule = rules[i]};
        DH_TRY(dh_reshard_plan(ctx, r, row.rule, out->wires, chunk_bytes, &row.proved));
        if (row.rule == DH_RESHARD_EXACT && !row.proved) continue;
        DH_TRY(dh_reshard_sum_up(ctx, r, out->wires, &row.sum));
        row.proved |= row.sum.busiest_ns <= row.sum.bound_ns;
        DH_TRY(run_programs(ctx, r, costs, &row));
        out->n_chunks = r->n_chunks;
        out->rows[out->n++] = row;
    }
    return DH_OK;
}

dh_status dh_resharded_make(dh_ctx *ctx, const dh_resolved *from, const dh_resolved *to, int what,
                            int64_t chunk_bytes, dh_resharded *resharded)
{
    static const unsigned moves[] = {DH_RESHARD_PARAMS, DH_RESHARD_GRADS, DH_RESHARD_STATES};
    const dh_layout sides[] = {{.recipe = &from->recipe},
                               {.recipe = &to->recipe, .base = DH_LAYOUT_BEHIND}};
    const dh_mesh *m = &from->recipe.mesh;
    const dh_costs *costs = from->recipe.costs;
    dh_mesh nodes;
    dh_reshard r;
    *resharded = (dh_resharded){.from = from, .to = to, .what = dh_resharded_names[what]};
    dh_status st = dh_reshard_open(ctx, &sides[0], &sides[1], moves[what], &r);
    if (st == DH_OK)
        st = dh_mesh_init(ctx, m->nodes, m->ranks_per_node, 1, 1, 1, m->nodes, m->ranks_per_node,
                          &nodes);
    if (st == DH_OK) {
        resharded->wires = wires_of(costs, &nodes);
        st = make_rows(ctx, &r, costs, chunk_bytes, resharded);
    }
    dh_reshard_fini(&r);
    return st;
}

/* ---- saying it ------------------------------------------------------------------------------- */

const char *dh_resharded_layout(const dh_resolved *job, char *buf, size_t cap)
{
    const dh_mesh *m = &job->recipe.mesh;
    const struct {
        const char *name;
        int64_t size, unset;
    } parts[] = {{"dp", m->dp, 0}, {"tp", m->tp, 0},
                 {"pp", m->pp, 0}, {"cp", m->cp, 1},
                 {"ep", m->ep, 1}, {"zero", dh_sharing_zero(&job->recipe.sharing), 0}};
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < DH_COUNTOF(parts) && at < cap; i++) {
        if (parts[i].size == parts[i].unset) continue;
        const int n = snprintf(buf + at, cap - at, "%s%s %lld", at ? ", " : "", parts[i].name,
                               (long long)parts[i].size);
        at += n > 0 ? (size_t)n : 0;
    }
    return buf;
}

static json_t *row_json(const dh_resharded_row *row)
{
    const dh_reshard_sum *s = &row->sum;
    return json_pack(
        "{ss sb sI sI sI sI sI sI sf sf sf sI}", "rule", dh_reshard_rule_name(row->rule), "proved",
        row->proved, "kept_bytes", (json_int_t)s->kept_bytes, "local_bytes",
        (json_int_t)s->local_bytes, "cross_bytes", (json_int_t)s->cross_bytes, "messages",
        (json_int_t)s->n_messages, "most_out_bytes", (json_int_t)s->most_out, "most_in_bytes",
        (json_int_t)s->most_in, "busiest_ms", s->busiest_ns * 1e-6, "bound_ms", s->bound_ns * 1e-6,
        "step_ms", (double)row->step_ns * 1e-6, "staged_bytes", (json_int_t)row->staged_bytes);
}

json_t *dh_resharded_json(const dh_resharded *r)
{
    char from[96], to[96];
    json_t *rows = json_array();
    bool ok = rows != NULL;
    for (size_t i = 0; ok && i < r->n; i++)
        ok = json_array_append_new(rows, row_json(&r->rows[i])) == 0;
    if (!ok) {
        json_decref(rows);
        return NULL;
    }
    return json_pack("{ss ss ss ss sI sI so}", "what", r->what, "from",
                     dh_resharded_layout(r->from, from, sizeof from), "to",
                     dh_resharded_layout(r->to, to, sizeof to), "costs",
                     r->from->recipe.costs->name, "ranks", (json_int_t)r->from->recipe.mesh.ranks,
                     "chunks", (json_int_t)r->n_chunks, "plans", rows);
}
