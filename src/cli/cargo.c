/* Sums over the mesh, and one by one on the first rank of every stage. */
#include "cli/cargo.h"

#include "cli/cli.h"
#include "cli/table.h"
#include "graph/text_names.h"

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* ---- means over the mesh --------------------------------------------------------------------- */

static void add_mean(dh_cargo_mean *mean, const dh_haul *haul, double share)
{
    mean->n += share * haul->n;
    mean->n_bytes += share * haul->n_bytes;
    mean->alone_ns += share * haul->alone_ns;
    mean->ns += share * (double)haul->ns;
    mean->hidden_ns += share * (double)dh_haul_hidden_ns(haul);
    mean->exposed_ns += share * (double)dh_haul_exposed_ns(haul);
}

dh_status dh_cargo_means_of(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs,
                            dh_cargo_means *means)
{
    *means = (dh_cargo_means){.of = {{0}}};
    for (size_t k = 0; k < sim->n_classes; k++) {
        const dh_sim_rank *r = &sim->ranks[k];
        const double share = (double)r->n_ranks / (double)sim->n_ranks;
        dh_cargo_list list;
        dh_status st = dh_cargo_read(ctx, r->program, r->spans, costs, &list);
        for (int c = 0; st == DH_OK && c < DH_N_CARGO; c++)
            add_mean(&means->of[c], &list.all[c], share);
        dh_cargo_list_fini(&list);
        DH_TRY(st);
    }
    return DH_OK;
}

static void add_mean_row(dh_cargo cargo, const dh_cargo_mean *m, dh_cli_table *table)
{
    const double ns[] = {m->alone_ns, m->ns, m->hidden_ns, m->exposed_ns};
    char text[32];
    dh_cli_table_cell(table, "%s", dh_cargo_name(cargo));
    dh_cli_table_cell(table, "%.4g", m->n);
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, m->n_bytes));
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
}

void dh_cargo_print_means(const dh_cargo_means *means, dh_str *out)
{
    static const char *const headings[] = {"calls", "bytes", "alone", "runs", "hidden", "exposed"};
    dh_cli_table table;
    bool any = false;
    dh_cli_table_begin(&table);
    dh_cli_table_column(&table, "traffic", DH_CLI_COLUMN_LEFT);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++)
        dh_cli_table_column(&table, headings[i], DH_CLI_COLUMN_RIGHT);
    for (int c = 0; c < DH_N_CARGO; c++) {
        if (means->of[c].n <= 0) continue;
        add_mean_row((dh_cargo)c, &means->of[c], &table);
        any = true;
    }
    dh_str body = DH_STR_INIT;
    dh_cli_table_end(&table, dh_cli_columns(), &body);
    if (any) dh_str_printf(out, "\n%s", body.text ? body.text : "");
    out->failed |= body.failed;
    dh_str_fini(&body);
}

json_t *dh_cargo_means_json(const dh_cargo_means *means)
{
    json_t *all = json_object();
    for (int c = 0; all && c < DH_N_CARGO; c++) {
        const dh_cargo_mean *m = &means->of[c];
        if (m->n <= 0) continue;
        json_object_set_new(all, dh_cargo_name((dh_cargo)c),
                            json_pack("{sf sf sf sf sf sf}", "calls", m->n, "bytes", m->n_bytes,
                                      "alone_ms", m->alone_ns * 1e-6, "run_ms", m->ns * 1e-6,
                                      "hidden_ms", m->hidden_ns * 1e-6, "exposed_ms",
                                      m->exposed_ns * 1e-6));
    }
    return all;
}

/* ---- one by one ------------------------------------------------------------------------------ */

static const char *const phase_letters[DH_N_PHASE] = {
    [DH_PHASE_F] = "F", [DH_PHASE_B] = "B", [DH_PHASE_W] = "W", [DH_PHASE_OPT] = "O"};

static const char *const reasons[DH_N_EXPOSURE] = {
    [DH_EXPOSED_DEPENDENCY] = "the next computation waits for it",
    [DH_EXPOSED_CONTENTION] = "the next computation waits for what comes behind it",
    [DH_EXPOSED_TAIL] = "no computation is left",
    [DH_EXPOSED_OTHER] = "the next computation waits for others"};

static void put_block(const dh_program *p, uint32_t id, dh_str *out)
{
    const dh_block *b = &p->blocks.at[id];
    const dh_block_kind kind = p->graphs.at[b->graph]->kind;
    dh_str_printf(out, "%s", dh_name_of(&dh_block_kind_names, kind));
    if (kind == DH_BLOCK_LAYER || kind == DH_BLOCK_EXPERTS) dh_str_printf(out, " %d", b->layer);
}

/* "layers 0 to 19", "layer 60 to head" */
static void put_blocks(const dh_program *p, const dh_cargo_row *row, dh_str *out)
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

/* "B31": in the backward of that micro-batch. */
static void put_slot(const dh_cargo_row *row, dh_str *out)
{
    if (row->mb >= 0)
        dh_str_printf(out, "%s%d", phase_letters[DH_PHASE_B], row->mb);
    else
        dh_str_printf(out, "%s", phase_letters[DH_PHASE_OPT]);
}

static void put_beside(const dh_haul *haul, dh_str *out)
{
    const double ns = (double)haul->ns;
    const char *separator = "beside ";
    for (int k = 0; k < DH_N_PHASE; k++) {
        if (haul->times.hidden_ns[k] == 0) continue;
        dh_str_printf(out, "%s%s %.0f %%", separator, phase_letters[k],
                      percent((double)haul->times.hidden_ns[k], ns));
        separator = ", ";
    }
    if (dh_haul_exposed_ns(haul) > 0)
        dh_str_printf(out, "%sexposed: %s", dh_haul_hidden_ns(haul) > 0 ? "; " : "",
                      reasons[dh_haul_cause(haul)]);
}

typedef void put_text(const dh_program *p, const dh_cargo_row *row, dh_str *out);

static void put_what(const dh_program *p, const dh_cargo_row *row, dh_str *out)
{
    dh_str_printf(out, "%s %s", dh_op_info_of(row->type)->name, dh_group_name(row->group));
    dh_str_printf(out, row->first_block == DH_NONE ? ", %s" : ", ", dh_cargo_name(row->cargo));
    put_blocks(p, row, out);
}

static void add_row(const dh_sim_rank *r, const dh_cargo_row *row, dh_cli_table *table)
{
    const double ns[] = {(double)row->haul.ns, (double)dh_haul_exposed_ns(&row->haul)};
    dh_str slot = DH_STR_INIT, what = DH_STR_INIT, beside = DH_STR_INIT;
    char text[32];
    put_slot(row, &slot);
    put_what(r->program, row, &what);
    put_beside(&row->haul, &beside);
    dh_cli_table_cell(table, "%lld", (long long)r->stage);
    dh_cli_table_cell(table, "%s", slot.text ? slot.text : "");
    dh_cli_table_cell(table, "%s", what.text ? what.text : "");
    dh_cli_table_cell(table, "%u", row->haul.n);
    dh_cli_table_cell(table, "%s", dh_format_bytes(text, sizeof text, row->haul.n_bytes));
    for (size_t i = 0; i < DH_COUNTOF(ns); i++)
        dh_cli_table_cell(table, "%s", dh_format_ns(text, sizeof text, ns[i]));
    dh_cli_table_cell(table, "%s", beside.text ? beside.text : "");
    table->failed |= slot.failed || what.failed || beside.failed;
    dh_str_fini(&slot);
    dh_str_fini(&what);
    dh_str_fini(&beside);
}

/* Ranks are by number, and so the stages'. */
static bool is_first(const dh_sim *sim, size_t k)
{
    return k == 0 || sim->ranks[k].stage != sim->ranks[k - 1].stage;
}

static dh_status add_rank(dh_ctx *ctx, const dh_sim_rank *r, const dh_costs *costs,
                          dh_cli_table *table)
{
    dh_cargo_list list;
    dh_status st = dh_cargo_read(ctx, r->program, r->spans, costs, &list);
    for (size_t i = 0; st == DH_OK && i < list.rows.n; i++) add_row(r, &list.rows.at[i], table);
    dh_cargo_list_fini(&list);
    return st;
}

static void begin_table(dh_cli_table *table)
{
    static const char *const numbers[] = {"calls", "bytes", "runs", "exposed"};
    dh_cli_table_begin(table);
    dh_cli_table_column(table, "stage", DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "in", DH_CLI_COLUMN_LEFT);
    dh_cli_table_column(table, "gradients and parameters", DH_CLI_COLUMN_TEXT);
    for (size_t i = 0; i < DH_COUNTOF(numbers); i++)
        dh_cli_table_column(table, numbers[i], DH_CLI_COLUMN_RIGHT);
    dh_cli_table_column(table, "", DH_CLI_COLUMN_NOTE);
}

dh_status dh_cargo_print_slots(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs, dh_str *out)
{
    dh_cli_table table;
    dh_str body = DH_STR_INIT;
    dh_status st = DH_OK;
    begin_table(&table);
    for (size_t k = 0; st == DH_OK && k < sim->n_classes; k++)
        if (is_first(sim, k)) st = add_rank(ctx, &sim->ranks[k], costs, &table);
    const bool any = table.cells.n > 0;
    dh_cli_table_end(&table, dh_cli_columns(), &body);
    if (any) {
        dh_str_wrap(out,
                    "gradients and parameters between ranks, on the first rank of each stage, in a "
                    "simulated step (in: B backward of a micro-batch, O optimizer; beside: F "
                    "forward, B input gradients, W weight gradients, O optimizer)",
                    0, dh_cli_columns());
        dh_str_printf(out, "\n%s", body.text ? body.text : "");
    } else {
        dh_str_printf(out, "gradients and parameters stay on their rank\n");
    }
    out->failed |= body.failed;
    dh_str_fini(&body);
    return st;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static json_t *text_json(put_text *put, const dh_program *p, const dh_cargo_row *row)
{
    dh_str text = DH_STR_INIT;
    put(p, row, &text);
    json_t *made = text.failed ? NULL : json_string(text.text ? text.text : "");
    dh_str_fini(&text);
    return made;
}

static void put_slot_of(const dh_program *p, const dh_cargo_row *row, dh_str *out)
{
    put_slot(row, out);
}

static json_t *hidden_json(const dh_haul *haul)
{
    json_t *by = json_object();
    for (int k = 0; by && k < DH_N_PHASE; k++)
        json_object_set_new(by, phase_letters[k],
                            json_real((double)haul->times.hidden_ns[k] * 1e-6));
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
        dh_group_name(row->group), "blocks", text_json(put_blocks, r->program, row), "calls",
        (json_int_t)h->n, "bytes", h->n_bytes, "start_ms", (double)row->start_ns * 1e-6, "end_ms",
        (double)row->end_ns * 1e-6, "alone_ms", h->alone_ns * 1e-6, "run_ms", (double)h->ns * 1e-6,
        "hidden_beside_ms", hidden_json(h), "exposed_by_ms", exposed_json(h));
}

static dh_status append_rank(dh_ctx *ctx, const dh_sim_rank *r, const dh_costs *costs, json_t *all)
{
    dh_cargo_list list;
    dh_status st = dh_cargo_read(ctx, r->program, r->spans, costs, &list);
    for (size_t i = 0; st == DH_OK && i < list.rows.n; i++)
        if (json_array_append_new(all, row_json(r, &list.rows.at[i])) != 0)
            st = dh_fail(ctx, DH_ENOMEM, "out of memory listing what travels");
    dh_cargo_list_fini(&list);
    return st;
}

dh_status dh_cargo_slots_json(dh_ctx *ctx, const dh_sim *sim, const dh_costs *costs, json_t **list)
{
    json_t *all = json_array();
    dh_status st = all ? DH_OK : dh_fail(ctx, DH_ENOMEM, "out of memory listing what travels");
    for (size_t k = 0; st == DH_OK && k < sim->n_classes; k++)
        if (is_first(sim, k)) st = append_rank(ctx, &sim->ranks[k], costs, all);
    if (st == DH_OK)
        *list = all;
    else
        json_decref(all);
    return st;
}
