/* Sums over the mesh, and one by one on the first rank of every stage. */
#include "describe/cargo.h"

#include <string.h>

#include "base/json_text.h"
#include "graph/text_names.h"

/* ---- words ----------------------------------------------------------------------------------- */

const char *dh_cargo_phase(dh_phase phase)
{
    static const char *const letters[DH_N_PHASE] = {
        [DH_PHASE_F] = "F", [DH_PHASE_B] = "B", [DH_PHASE_W] = "W", [DH_PHASE_OPT] = "O"};
    return letters[phase];
}

static void put_block(const dh_program *p, uint32_t id, dh_str *out)
{
    const dh_block *b = &p->blocks.at[id];
    const dh_block_kind kind = p->graphs.at[b->graph]->kind;
    dh_str_printf(out, "%s", dh_name_of(&dh_block_kind_names, kind));
    if (kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EXPERTS || kind == DH_BLOCK_ADAPTERS)
        dh_str_printf(out, " %d", b->layer);
}

void dh_cargo_put_blocks(const dh_program *p, const dh_cargo_row *row, dh_str *out)
{
    if (row->first_block == DH_NONE) return;
    const dh_block *first = &p->blocks.at[row->first_block], *last = &p->blocks.at[row->last_block];
    const bool layers = first->graph == last->graph && first < last &&
                        p->graphs.at[first->graph]->kind == DH_BLOCK_LAYER;
    if (layers) {
        dh_str_printf(out, "layers %d to %d", first->layer, last->layer);
        return;
    }
    put_block(p, row->first_block, out);
    if (row->first_block == row->last_block) return;
    dh_str_printf(out, " to ");
    put_block(p, row->last_block, out);
}

void dh_cargo_put_slot(const dh_cargo_row *row, dh_str *out)
{
    dh_str_printf(out, "%s", dh_cargo_phase(row->phase));
    if (row->mb >= 0) dh_str_printf(out, "%d", row->mb);
}

/* Ranks are by number, and so the stages'. */
bool dh_cargo_is_first(const dh_sim *sim, size_t k)
{
    return k == 0 || sim->ranks[k].stage != sim->ranks[k - 1].stage;
}

/* ---- means over the mesh --------------------------------------------------------------------- */

static void add_mean(dh_cargo_mean *mean, const dh_haul *haul, double share)
{
    mean->n += share * haul->n;
    mean->n_bytes += share * haul->n_bytes;
    mean->local_bytes += share * haul->sent_bytes[DH_ENGINE_LOCAL];
    mean->cross_bytes += share * haul->sent_bytes[DH_ENGINE_CROSS];
    mean->alone_ns += share * haul->alone_ns;
    mean->ns += share * (double)haul->ns;
    mean->hidden_ns += share * (double)dh_haul_hidden_ns(haul);
    mean->exposed_ns += share * (double)dh_haul_exposed_ns(haul);
}

static dh_status add_means(dh_ctx *ctx, const dh_sim *sim, dh_cargo_means *means)
{
    *means = (dh_cargo_means){.of = {{0}}};
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const double share = (double)r->n_ranks / (double)sim->n_ranks;
        dh_cargo_list list;
        dh_status st = dh_cargo_read(ctx, r->program, r->spans, r->alone_ns, &list);
        for (int c = 0; st == DH_OK && c < DH_N_CARGO; c++)
            add_mean(&means->of[c], &list.all[c], share);
        dh_cargo_list_fini(&list);
        DH_TRY(st);
    }
    return DH_OK;
}

dh_status dh_cargo_means_of(dh_ctx *ctx, const dh_sim *sim, dh_cargo_means *means)
{
    enum { N = sizeof *means / sizeof(double) };
    dh_cargo_means shorter;
    double with[N], without[N];
    DH_TRY(add_means(ctx, sim, means));
    if (!sim->shorter) return DH_OK;
    DH_TRY(add_means(ctx, sim->shorter, &shorter));
    memcpy(with, means, sizeof with);
    memcpy(without, &shorter, sizeof without);
    dh_sim_extend(sim, without, N, with);
    memcpy(means, with, sizeof with);
    return DH_OK;
}

json_t *dh_cargo_means_json(const dh_cargo_means *means)
{
    json_t *all = json_object();
    for (int c = 0; all && c < DH_N_CARGO; c++) {
        const dh_cargo_mean *m = &means->of[c];
        if (m->n <= 0) continue;
        json_object_set_new(all, dh_cargo_name((dh_cargo)c),
                            json_pack("{sf sf sf sf sf sf sf sf}", "calls", m->n, "bytes",
                                      m->n_bytes, "local_bytes", m->local_bytes, "cross_bytes",
                                      m->cross_bytes, "alone_ms", m->alone_ns * 1e-6, "run_ms",
                                      m->ns * 1e-6, "hidden_ms", m->hidden_ns * 1e-6, "exposed_ms",
                                      m->exposed_ns * 1e-6));
    }
    return all;
}

/* ---- one by one ------------------------------------------------------------------------------ */

typedef void put_text(const dh_program *p, const dh_cargo_row *row, dh_str *out);

static json_t *text_json(put_text *put, const dh_program *p, const dh_cargo_row *row)
{
    dh_str text = DH_STR_INIT;
    put(p, row, &text);
    return dh_json_of_text(&text);
}

static void put_slot_of(const dh_program *p, const dh_cargo_row *row, dh_str *out)
{
    dh_cargo_put_slot(row, out);
}

static json_t *beside_json(const dh_haul *haul)
{
    json_t *by = json_object();
    for (int k = 0; by && k < DH_N_PHASE; k++)
        json_object_set_new(by, dh_cargo_phase((dh_phase)k),
                            json_real((double)haul->times.beside_ns[k] * 1e-6));
    return by;
}

static json_t *exposed_json(const dh_haul *haul)
{
    json_t *by = json_object();
    for (int k = 0; by && k < DH_N_EXPOSURE; k++)
        json_object_set_new(by, dh_exposure_name((dh_exposure)k),
                            json_real((double)haul->times.exposed_by_ns[k] * 1e-6));
    return by;
}

static json_t *row_json(const dh_sim_rank *r, const dh_cargo_row *row)
{
    const dh_haul *h = &row->haul;
    return json_pack(
        "{sI sI so ss ss ss so sI sf sf sf sf sf so so}", "stage", (json_int_t)r->stage, "rank",
        (json_int_t)r->rank, "in", text_json(put_slot_of, r->program, row), "cargo",
        dh_cargo_name(row->cargo), "operator", dh_op_info_of(row->type)->name, "group",
        dh_group_name(row->group), "blocks", text_json(dh_cargo_put_blocks, r->program, row),
        "calls", (json_int_t)h->n, "bytes", h->n_bytes, "start_ms", (double)row->start_ns * 1e-6,
        "end_ms", (double)row->end_ns * 1e-6, "alone_ms", h->alone_ns * 1e-6, "run_ms",
        (double)h->ns * 1e-6, "beside_ms", beside_json(h), "exposed_by_ms", exposed_json(h));
}

static dh_status append_rank(dh_ctx *ctx, const dh_sim_rank *r, json_t *all)
{
    dh_cargo_list list;
    dh_status st = dh_cargo_read(ctx, r->program, r->spans, r->alone_ns, &list);
    for (size_t i = 0; st == DH_OK && i < list.rows.n; i++)
        if (json_array_append_new(all, row_json(r, &list.rows.at[i])) != 0) st = dh_no_memory(ctx);
    dh_cargo_list_fini(&list);
    return st;
}

dh_status dh_cargo_slots_json(dh_ctx *ctx, const dh_sim *sim, json_t **list)
{
    json_t *all = json_array();
    dh_status st = all ? DH_OK : dh_no_memory(ctx);
    for (size_t k = 0; st == DH_OK && k < sim->n_classes; k++)
        if (dh_cargo_is_first(sim, k)) st = append_rank(ctx, &sim->ranks[k], all);
    if (st == DH_OK)
        *list = all;
    else
        json_decref(all);
    return st;
}
