/* An operator has the name by which it is found in a graph of PyTorch. The name is the path of the
 * module, the function called, and the number among several such calls.
 * docs/reference/plan-export.md describes the document; a change of it raises VERSION. */
#include "describe/order.h"

#include <string.h>

#include "config/model_names.h"
#include "describe/modules.h"

enum { VERSION = 1 };

typedef struct export
{
    dh_layer_plan *l;
    const dh_model *model;
    dh_model layers[2]; /* as the forward's layer sees it, and the backward's */
    dh_slot_timing t;
    uint32_t *place[2]; /* [operators of the strand] in the order */
    json_t *operators;
}
export;

static const dh_slot_op *op_of(const export *e, uint32_t pick)
{
    const dh_slot_pick *p = &e->l->order[pick];
    return &e->l->slot->strand[p->strand].ops[p->op];
}

/* ---- operators ------------------------------------------------------------------------------ */

static const char *phase_of(const export *e, uint32_t pick)
{
    if (e->l->order[pick].strand == 0) return "forward";
    return op_of(e, pick)->wgrad ? "weight-gradient" : "input-gradient";
}

/* Places of the operators that must have ended before. */
static json_t *needs_of(const export *e, uint32_t pick)
{
    const dh_slot_op *op = op_of(e, pick);
    const uint8_t strand = e->l->order[pick].strand;
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; ok && i < op->n_preds; i++)
        ok = json_array_append_new(list, json_integer(e->place[strand][op->preds[i]])) == 0;
    for (uint32_t i = 0; ok && strand == 1 && i < op->after_f; i++)
        ok = json_array_append_new(list, json_integer(e->place[0][i])) == 0;
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static const char *output_of(const dh_slot_op *op)
{
    const uint32_t out = op->at.op->out[0];
    return out == DH_NONE ? "" : op->at.graph->tensors.at[out].name;
}

static json_t *operator_json(const export *e, uint32_t i)
{
    const dh_slot_op *op = op_of(e, i);
    const dh_model *model = &e->layers[e->l->order[i].strand];
    const dh_op_type type = op->at.op->type;
    const dh_pair_source source = e->l->costs->solo(e->l->costs->self, &op->at).source;
    return json_pack(
        "{ss ss ss so so ss ss sf sf sf ss sb so}", "strand",
        e->l->order[i].strand ? "backward" : "forward", "phase", phase_of(e, i), "operator",
        dh_op_info_of(type)->name, "modules", dh_modules_of(model, op->at.graph, op->at.op),
        "targets", dh_modules_targets(type), "output", output_of(op), "stream",
        dh_stream_name(op->stream), "start_us", e->t.start_ns[i] / 1e3, "end_us",
        e->t.end_ns[i] / 1e3, "alone_us", op->ns / 1e3, "source", dh_pair_source_name(source),
        "barrier", (int)e->l->order[i].barrier, "after", needs_of(e, i));
}

static bool same_name(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"phase", "operator", "modules"};
    bool same = true;
    for (size_t k = 0; same && k < DH_COUNTOF(keys); k++)
        same = json_equal(json_object_get(a, keys[k]), json_object_get(b, keys[k]));
    return same;
}

/* How many of a strand's operators before this one, in the order that computes, have its name. */
static bool count_occurrence(const export *e, uint8_t strand, uint32_t op)
{
    json_t *own = json_array_get(e->operators, e->place[strand][op]);
    json_int_t n = 0;
    for (uint32_t i = 0; i < op; i++)
        n += same_name(own, json_array_get(e->operators, e->place[strand][i]));
    return json_object_set_new(own, "occurrence", json_integer(n)) == 0;
}

static bool list_operators(const export *e)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < e->l->n; i++)
        ok = json_array_append_new(e->operators, operator_json(e, i)) == 0;
    for (uint8_t s = 0; s < 2; s++)
        for (uint32_t i = 0; ok && i < e->l->slot->strand[s].n; i++) ok = count_occurrence(e, s, i);
    return ok;
}

/* ---- pairs and exposed communication -------------------------------------------------------- */

/* Time in which two picks both run. */
static double together_ns(const export *e, uint32_t a, uint32_t b)
{
    const double from = DH_MAX(e->t.start_ns[a], e->t.start_ns[b]);
    return DH_MIN(e->t.end_ns[a], e->t.end_ns[b]) - from;
}

static json_t *pair_json(const export *e, uint32_t a, uint32_t b, double ns)
{
    const dh_costs *costs = e->l->costs;
    const dh_op_rates r = costs->beside(costs->self, &op_of(e, a)->at, &op_of(e, b)->at);
    return json_pack("{si si sf sf sf ss}", "a", (int)a, "b", (int)b, "together_us", ns / 1e3,
                     "rate_a", r.a, "rate_b", r.b, "source", dh_pair_source_name(r.source));
}

static bool list_pairs(const export *e, json_t *pairs)
{
    bool ok = true;
    for (uint32_t a = 0; ok && a < e->l->n; a++)
        for (uint32_t b = a + 1; ok && b < e->l->n; b++) {
            const double ns = together_ns(e, a, b);
            if (ns >= 1) ok = json_array_append_new(pairs, pair_json(e, a, b, ns)) == 0;
        }
    return ok;
}

static bool list_exposed(const export *e, json_t *exposed)
{
    dh_slot_exposure x;
    bool ok = true;
    for (uint32_t i = 0; ok && i < e->l->n; i++) {
        if (!dh_slot_exposed(e->l->slot, e->l->order, &e->t, i, &x) || x.ns < 1) continue;
        const char *why = x.next == DH_NONE ? "tail" : x.needed ? "dependency" : "other-data";
        json_t *row =
            json_pack("{si sf ss}", "operator", (int)i, "exposed_us", x.ns / 1e3, "reason", why);
        json_t *next = x.next == DH_NONE ? json_null() : json_integer(x.next);
        ok = json_object_set_new(row, "next", next) == 0 && json_array_append(exposed, row) == 0;
        json_decref(row);
    }
    return ok;
}

/* ---- the document --------------------------------------------------------------------------- */

static json_t *whole(const export *e, const dh_resolved *job)
{
    char layer[80];
    dh_modules_layer(e->model, layer);
    const dh_job *j = &job->job;
    json_t *mesh =
        json_pack("{sI sI sI sI sI}", "tp", (json_int_t)j->tp, "cp", (json_int_t)j->cp, "ep",
                  (json_int_t)j->ep, "pp", (json_int_t)j->pp, "dp", (json_int_t)j->dp);
    return json_pack("{ss si ss ss so ss ss sf sf sf sf sf sf}", "format", "dhelix.order",
                     "version", VERSION, "family", dh_family_names[e->model->family], "layer",
                     layer, "mesh", mesh, "costs", e->l->costs->name, "policy",
                     e->l->ordering.policy->name, "slot_us", e->t.period_ns / 1e3, "makespan_us",
                     e->t.makespan_ns / 1e3, "bound_us", dh_slot_bound(e->l->slot) / 1e3,
                     "communication_us", e->t.communication_ns / 1e3, "exposed_us",
                     e->t.exposed_ns / 1e3, "slowdown_us", e->t.slowdown_ns / 1e3);
}

static bool prepare(export *e)
{
    const dh_layer_plan *l = e->l;
    e->t.start_ns = DH_NEW_N(l->arena, double, l->n + 1);
    e->t.end_ns = DH_NEW_N(l->arena, double, l->n + 1);
    for (int s = 0; s < 2; s++)
        e->place[s] = DH_NEW_N(l->arena, uint32_t, l->slot->strand[s].n + 1);
    return e->t.start_ns && e->t.end_ns && e->place[0] && e->place[1];
}

/* Which layers they are, where these are not all alike. */
static bool add_layers(const export *e, json_t *document)
{
    if (dh_model_kinds(e->model, 0, e->model->n_layers).n == 1) return true;
    json_t *layers = json_pack("{sI sI}", "forward", (json_int_t)e->l->layer[0], "backward",
                               (json_int_t)e->l->layer[1]);
    return json_object_set_new(document, "layers", layers) == 0;
}

static bool fill(export *e, const dh_resolved *job, json_t **document)
{
    json_t *pairs = json_array(), *exposed = json_array();
    e->operators = json_array();
    *document = whole(e, job);
    bool ok = json_object_set_new(*document, "operators", e->operators) == 0;
    ok &= add_layers(e, *document);
    ok &= json_object_set_new(*document, "pairs", pairs) == 0;
    ok &= json_object_set_new(*document, "exposed", exposed) == 0;
    return ok && list_operators(e) && list_pairs(e, pairs) && list_exposed(e, exposed);
}

dh_status dh_order_json(dh_ctx *ctx, const dh_resolved *job, dh_layer_plan *l, json_t **made)
{
    export e = {.l = l, .model = &job->job.model};
    for (int s = 0; s < 2; s++) e.layers[s] = dh_model_of_layer(e.model, l->layer[s]);
    json_t *document = NULL;
    if (!prepare(&e)) return dh_no_memory(ctx);
    DH_TRY(dh_slot_order(ctx, l->slot, l->ordering.policy, &l->ordering.options, l->order));
    DH_TRY(dh_slot_time(ctx, l->slot, l->order, &e.t));
    for (uint32_t i = 0; i < l->n; i++) e.place[l->order[i].strand][l->order[i].op] = i;
    if (fill(&e, job, &document)) {
        *made = document;
        return DH_OK;
    }
    json_decref(document);
    return dh_no_memory(ctx);
}
