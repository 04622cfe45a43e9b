/* Graph text, writing: header, dims, tensors, ends and operators, a line each.
 *
 * A tensor is referred to as %id:name. The id counts; the name is for the reader,
 * and the parser checks it against the id. Any graph prints, also one that fails
 * dh_graph_check; one that passes reads back equal. */
#include "text_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/mesh.h"

enum { MAX_COLUMN = 100 };

static void print_ref(dh_str *out, const dh_graph *g, uint32_t id)
{
    if (id == DH_NONE) {
        dh_str_printf(out, "-");
        return;
    }
    dh_str_printf(out, "%%%u", id);
    if (id < g->tensors.n && g->tensors.at[id].name[0])
        dh_str_printf(out, ":%.*s", (int)sizeof g->tensors.at[id].name, g->tensors.at[id].name);
}

/* The fewest digits that read back to the same number. */
static void print_f64(dh_str *out, double value)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        dh_snprintf(text, sizeof text, "%.*g", digits, value);
        if (dh_strtod(text, NULL) == value) break;
    }
    dh_str_printf(out, "%s", text);
}

/* ---- dims -------------------------------------------------------------------------- */

static void print_factors(dh_str *out, const char *name, const dh_rope_factors *f)
{
    for (int64_t k = 0; k < f->n; k++) {
        dh_str_printf(out, k ? "," : " %s=", name);
        print_f64(out, f->at[k]);
    }
}

/* " name=value", or nothing for 0 (the first name, where there are no dims at all). */
static void print_field(dh_str *out, const dh_dims *dims, const dh_dims_field *field)
{
    const char *at = (const char *)dims + field->offset;
    int64_t i;
    double f;
    unsigned name;
    switch (field->type) {
    case DH_FIELD_I64:
        memcpy(&i, at, sizeof i);
        if (i) dh_str_printf(out, " %s=%lld", field->name, (long long)i);
        break;
    case DH_FIELD_F64:
        memcpy(&f, at, sizeof f);
        if (f == 0) break;
        dh_str_printf(out, " %s=", field->name);
        print_f64(out, f);
        break;
    case DH_FIELD_NAME:
    case DH_FIELD_MAY_NAME:
        memcpy(&name, at, sizeof name);
        if (name || (dims->batch && field->type == DH_FIELD_NAME))
            dh_str_printf(out, " %s=%s", field->name, dh_name_of(field->names, name));
        break;
    case DH_FIELD_FACTORS:
        print_factors(out, field->name, (const dh_rope_factors *)(const void *)at);
        break;
    }
}

static void print_dims(dh_str *out, const dh_dims *dims)
{
    dh_str field = DH_STR_INIT;
    size_t line = out->len;
    dh_str_printf(out, "dims");
    for (size_t i = 0; i < DH_COUNTOF(dh_dims_fields); i++) {
        dh_str_clear(&field);
        print_field(&field, dims, &dh_dims_fields[i]);
        if (out->len - line + field.len > MAX_COLUMN) {
            dh_str_printf(out, "\n");
            line = out->len;
            dh_str_printf(out, "dims");
        }
        dh_str_append(out, field.text ? field.text : "", field.len);
    }
    dh_str_printf(out, "\n");
    out->failed |= field.failed;
    dh_str_fini(&field);
}

/* ---- tensors ------------------------------------------------------------------------- */

static void print_slot(dh_str *out, const dh_tensor *t)
{
    if (t->which == DH_NONE) return;
    if (t->kind == DH_TENSOR_INPUT)
        dh_str_printf(out, " slot=%s", dh_name_of(&dh_input_names, t->which));
    else if (t->kind == DH_TENSOR_STATE)
        dh_str_printf(out, " slot=%s", dh_name_of(&dh_state_names, t->which));
    else
        dh_str_printf(out, " slot=%u", t->which);
}

static void print_tensor(dh_str *out, const dh_graph *g, uint32_t id)
{
    const dh_tensor *t = &g->tensors.at[id];
    size_t start = out->len;
    print_ref(out, g, id);
    int pad = 20 - (int)DH_MIN(out->len - start, (size_t)19);
    dh_str_printf(out, "%*s%s %s[", pad, " ", dh_name_of(&dh_tensor_kind_names, t->kind),
                  (unsigned)t->dtype < DH_N_DTYPE ? dh_dtype_name(t->dtype) : "?");
    for (int i = 0; i < DH_MIN(t->ndim, 3); i++) {
        dh_str_printf(out, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
        if (t->axis[i] != DH_AXIS_NONE)
            dh_str_printf(out, " %s", dh_name_of(&dh_axis_names, t->axis[i]));
    }
    dh_str_printf(out, "]");
    print_slot(out, t);
    if (t->base != DH_NONE) {
        dh_str_printf(out, " view=");
        print_ref(out, g, t->base);
        dh_str_printf(out, "+%lld", (long long)t->row0);
    }
    dh_str_printf(out, "\n");
}

static void print_ends(dh_str *out, const dh_graph *g)
{
    bool any = false;
    for (size_t i = 0; i < DH_N_END_FIELD; i++) {
        uint32_t id;
        memcpy(&id, (const char *)g + dh_end_fields[i].offset, sizeof id);
        if (id == DH_NONE) continue;
        dh_str_printf(out, "%s %s=", any ? "" : "ends", dh_end_fields[i].name);
        print_ref(out, g, id);
        any = true;
    }
    if (any) dh_str_printf(out, "\n");
}

/* ---- operators -------------------------------------------------------------------------- */

static void print_refs(dh_str *out, const dh_graph *g, const uint32_t *ids, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) dh_str_printf(out, ", ");
        print_ref(out, g, ids[i]);
    }
}

static void print_attributes(dh_str *out, const dh_op *op)
{
    const char *separator = " {";
    for (dh_op_attr a = 0; a < DH_N_OP_ATTR; a++) {
        const int64_t value = dh_op_attr_get(op, a);
        if (value == dh_op_attr_unset(a)) continue;
        dh_str_printf(out, "%s%s=", separator, dh_op_attr_name(a));
        if (a == DH_ATTR_SITE)
            dh_str_printf(out, "%s", dh_name_of(&dh_site_names, (size_t)value));
        else if (a == DH_ATTR_GROUP)
            dh_str_printf(out, "%s",
                          value >= 0 && value < DH_N_GROUPS ? dh_group_name((dh_group_kind)value)
                                                            : "?");
        else
            dh_str_printf(out, "%lld", (long long)value);
        separator = ", ";
    }
    if (separator[0] == ',') dh_str_printf(out, "}");
}

static void print_op(dh_str *out, const dh_graph *g, const dh_op *op)
{
    dh_str_printf(out, "%s  ", dh_name_of(&dh_phase_names, op->phase));
    if ((unsigned)op->type >= DH_N_OP_TYPE) {
        dh_str_printf(out, "?\n");
        return;
    }
    const dh_op_info *info = dh_op_info_of(op->type);
    print_refs(out, g, op->out, info->n_out);
    dh_str_printf(out, "%s%s(", info->n_out ? " = " : "", info->name);
    print_refs(out, g, op->in, info->n_in);
    dh_str_printf(out, ")");
    print_attributes(out, op);
    dh_str_printf(out, "\n");
}

/* ---- entry ---------------------------------------------------------------------------------- */

dh_status dh_graph_print(dh_ctx *ctx, const dh_graph *graph, dh_str *out)
{
    dh_str_printf(out, "%s %s %s %s %s\n", DH_GRAPH_TEXT_MAGIC, DH_GRAPH_TEXT_VERSION,
                  dh_name_of(&dh_block_kind_names, graph->kind),
                  dh_name_of(&dh_mode_names, graph->mode),
                  (unsigned)graph->dtype < DH_N_DTYPE ? dh_dtype_name(graph->dtype) : "?");
    print_dims(out, &graph->dims);
    dh_str_printf(out, "\n");
    for (uint32_t i = 0; i < graph->tensors.n; i++) print_tensor(out, graph, i);
    print_ends(out, graph);
    dh_str_printf(out, "\n");
    for (uint32_t i = 0; i < graph->ops.n; i++) print_op(out, graph, &graph->ops.at[i]);
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}
