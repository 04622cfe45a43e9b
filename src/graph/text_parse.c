/* Graph text, reading: one statement a line, '#' begins a comment.
 *
 *   dhelix.graph v2 <block kind> <mode> <dtype>
 *   dims <field>=<value> ...
 *   %<id>[:<name>] <tensor kind> <dtype>[<size> [<axis>], ...] [slot=<slot>] [view=<ref>+<row>]
 *   ends <field>=<ref> ...
 *   F|B|W|O [<ref>, ... =] <operator>(<ref>, ...) [{<attribute>=<value>, ...}]
 *
 * Tensors are numbered from 0 in the order of their lines; a reference <ref> is
 * %<id>[:<name>], or '-' for an absent operand, and may stand before its tensor.
 * The input need not be terminated and may hold any bytes. */
#include "base/c_locale.h"
#include "check.h"
#include "text_names.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/mesh.h"

enum {
    MAX_OBJECTS = 1000000,
    MAX_WORD = 64,
    MAX_LISTED = 16,
    MAX_NAME = sizeof(((dh_tensor *)0)->name)
};

#define MAX_ROWS (((int64_t)1 << 48) - 1)

typedef struct place {
    uint32_t line, column;
} place;

/* A reference to a tensor that had no line yet: checked at the end. */
typedef struct late_ref {
    place place;
    uint32_t id;
    char name[MAX_NAME];
} late_ref;

/* Dimensions that operators' attributes have taken the place of: texts written before have them. */
typedef enum former_dim { EXPERT_CAPACITY, EXPERT_ROWS, ROUTER_ROWS, N_FORMER_DIM } former_dim;

typedef struct reader {
    dh_ctx *ctx;
    const char *at, *end, *line_start;
    uint32_t line;
    dh_graph *graph;
    bool dims_seen[DH_N_DIMS_FIELD + N_FORMER_DIM];
    int64_t former[N_FORMER_DIM];
    DH_VEC(late_ref) late;
    dh_graph_lines *lines;
} reader;

/* ---- faults --------------------------------------------------------------------------- */

static place place_of(const reader *r, const char *at)
{
    return (place){r->line, (uint32_t)(at - r->line_start) + 1};
}

static dh_status fail_at(reader *r, place where, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static dh_status fail_at(reader *r, place where, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dh_fail(r->ctx, DH_EFORMAT, "line %u, column %u: %s", where.line, where.column, text);
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static bool at_line_end(reader *r)
{
    skip_blanks(r);
    return r->at == r->end || *r->at == '\n' || *r->at == '#';
}

static bool is_word_char(char c)
{
    return dh_graph_name_char(c) || c == '+';
}

/* "expected <what>, found <what stands here>". */
static dh_status expected(reader *r, const char *what)
{
    place where = place_of(r, r->at);
    if (r->at == r->end) return fail_at(r, where, "expected %s, found the end of the text", what);
    if (at_line_end(r)) return fail_at(r, where, "expected %s, found the end of the line", what);
    int n = 0;
    while (n < MAX_WORD && r->at + n < r->end && is_word_char(r->at[n])) n++;
    if (n > 0) return fail_at(r, where, "expected %s, found '%.*s'", what, n, r->at);
    unsigned char c = (unsigned char)*r->at;
    if (c > ' ' && c < 0x7f) return fail_at(r, where, "expected %s, found '%c'", what, c);
    return fail_at(r, where, "expected %s, found byte 0x%02x", what, c);
}

/* An unknown name: the nearest one, or all of them when they are few. */
static dh_status unknown(reader *r, place where, const char *what, const char *word,
                         const char *const *names, size_t n)
{
    const char *near = strlen(word) > 1 ? dh_nearest(word, names, n) : NULL;
    if (near) return fail_at(r, where, "unknown %s '%s'; did you mean '%s'?", what, word, near);
    if (n > MAX_LISTED) return fail_at(r, where, "unknown %s '%s'", what, word);
    char list[256] = "";
    for (size_t i = 0, len = 0; i < n && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", names[i]);
    return fail_at(r, where, "unknown %s '%s'; it can be %s", what, word, list);
}

/* ---- words ------------------------------------------------------------------------------ */

static bool accept(reader *r, char c)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static dh_status expect(reader *r, char c)
{
    if (accept(r, c)) return DH_OK;
    char what[] = {'\'', c, '\'', '\0'};
    return expected(r, what);
}

/* A run of characters of names and numbers. */
static dh_status read_word(reader *r, const char *what, char word[MAX_WORD], place *where)
{
    skip_blanks(r);
    *where = place_of(r, r->at);
    int n = 0;
    while (n < MAX_WORD && r->at + n < r->end && is_word_char(r->at[n])) n++;
    if (n == 0) return expected(r, what);
    if (n == MAX_WORD) return fail_at(r, *where, "%s is longer than %d bytes", what, MAX_WORD - 1);
    memcpy(word, r->at, (size_t)n);
    word[n] = '\0';
    r->at += n;
    return DH_OK;
}

static dh_status read_name(reader *r, const dh_name_set *set, uint32_t *value)
{
    char word[MAX_WORD];
    place where;
    DH_TRY(read_word(r, set->what, word, &where));
    for (uint32_t i = 0; i < set->n; i++)
        if (strcmp(word, set->names[i]) == 0) {
            *value = i;
            return DH_OK;
        }
    return unknown(r, where, set->what, word, set->names, set->n);
}

static dh_status read_size(reader *r, const char *what, int64_t max, int64_t *value)
{
    char word[MAX_WORD];
    place where;
    DH_TRY(read_word(r, what, word, &where));
    if (dh_parse_i64(word, value) && *value >= 0 && *value <= max) return DH_OK;
    return fail_at(r, where, "%s is '%s'; it must be an integer from 0 to %lld", what, word,
                   (long long)max);
}

static dh_status read_f64(reader *r, const char *what, double *value)
{
    char word[MAX_WORD];
    place where;
    DH_TRY(read_word(r, what, word, &where));
    const bool is_share = strcmp(what, "dropout") == 0;
    if (dh_parse_f64(word, value) && isfinite(*value) && (!is_share || (*value >= 0 && *value < 1)))
        return DH_OK;
    return fail_at(r, where, "%s is '%s'; it must be %s", what, word,
                   is_share ? "from 0 to below 1" : "a finite number");
}

static dh_status read_dtype(reader *r, dh_dtype *dtype)
{
    const char *names[DH_N_DTYPE];
    for (int i = 0; i < DH_N_DTYPE; i++) names[i] = dh_dtype_name((dh_dtype)i);
    const dh_name_set set = {"element type", names, DH_N_DTYPE};
    uint32_t value = 0;
    DH_TRY(read_name(r, &set, &value));
    *dtype = (dh_dtype)value;
    return DH_OK;
}

/* ---- references --------------------------------------------------------------------------- */

/* "%12" or "%12:name"; the name is "" when not given. */
static dh_status read_label(reader *r, uint32_t *id, char name[MAX_NAME], place *where)
{
    skip_blanks(r);
    *where = place_of(r, r->at);
    if (!accept(r, '%')) return expected(r, "a tensor (%id:name)");
    uint32_t value = 0;
    const char *digits = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9' && value < MAX_OBJECTS; r->at++)
        value = value * 10 + (uint32_t)(*r->at - '0');
    if (r->at == digits) return expected(r, "the number of a tensor");
    if (value >= MAX_OBJECTS)
        return fail_at(r, *where, "tensor numbers must be below %d", MAX_OBJECTS);
    *id = value;
    memset(name, 0, MAX_NAME);
    if (r->at == r->end || *r->at != ':') return DH_OK;
    const char *text = ++r->at;
    while (r->at < r->end && dh_graph_name_char(*r->at)) r->at++;
    if (r->at - text >= MAX_NAME)
        return fail_at(r, *where, "the name of tensor %%%u is longer than %d bytes", value,
                       MAX_NAME - 1);
    memcpy(name, text, (size_t)(r->at - text));
    return r->at == text ? expected(r, "the name of a tensor") : DH_OK;
}

static dh_status check_ref(reader *r, const late_ref *ref)
{
    size_t n = r->graph->tensors.n;
    if (ref->id >= n)
        return fail_at(r, ref->place, "there is no tensor %%%u; the text has %zu", ref->id, n);
    const char *name = r->graph->tensors.at[ref->id].name;
    if (ref->name[0] && strcmp(name, ref->name) != 0)
        return fail_at(r, ref->place, "tensor %%%u is called '%s', not '%s'", ref->id, name,
                       ref->name);
    return DH_OK;
}

static dh_status read_ref(reader *r, uint32_t *id)
{
    late_ref ref = {0};
    DH_TRY(read_label(r, id, ref.name, &ref.place));
    ref.id = *id;
    if (ref.id < r->graph->tensors.n) return check_ref(r, &ref);
    return dh_vec_push(&r->late, ref) ? DH_OK : dh_no_memory(r->ctx);
}

static dh_status check_late_refs(reader *r)
{
    for (size_t i = 0; i < r->late.n; i++) DH_TRY(check_ref(r, &r->late.at[i]));
    return DH_OK;
}

/* ---- header and dims ---------------------------------------------------------------------- */

static dh_status read_header(reader *r)
{
    static const char want[] = DH_GRAPH_TEXT_MAGIC " " DH_GRAPH_TEXT_VERSION;
    char word[MAX_WORD];
    place where;
    const char *start = r->at;
    DH_TRY(read_word(r, want, word, &where));
    if (strcmp(word, DH_GRAPH_TEXT_MAGIC) != 0) {
        r->at = start;
        return expected(r, want);
    }
    DH_TRY(read_word(r, "a version", word, &where));
    if (strcmp(word, DH_GRAPH_TEXT_VERSION) != 0)
        return fail_at(r, where, "graph text version '%s' cannot be read; this program reads %s",
                       word, DH_GRAPH_TEXT_VERSION);
    uint32_t kind = 0, mode = 0;
    DH_TRY(read_name(r, &dh_block_kind_names, &kind));
    DH_TRY(read_name(r, &dh_mode_names, &mode));
    DH_TRY(read_dtype(r, &r->graph->dtype));
    r->graph->kind = (dh_block_kind)kind;
    r->graph->mode = (dh_mode)mode;
    return DH_OK;
}

/* "1,1.5,2" */
static dh_status read_factors(reader *r, const char *what, dh_rope_factors *out)
{
    out->n = 0;
    do {
        if (out->n == DH_ROPE_MAX_PAIRS)
            return fail_at(r, place_of(r, r->at), "%s has more than %d numbers", what,
                           DH_ROPE_MAX_PAIRS);
        DH_TRY(read_f64(r, what, &out->at[out->n++]));
    } while (accept(r, ','));
    return DH_OK;
}

static dh_status read_field(reader *r, const dh_dims_field *field)
{
    char *at = (char *)&r->graph->dims + field->offset;
    int64_t i = 0;
    double f = 0;
    uint32_t name = 0;
    switch (field->type) {
    case DH_FIELD_I64:
        DH_TRY(read_size(r, field->name, INT64_MAX, &i));
        memcpy(at, &i, sizeof i);
        break;
    case DH_FIELD_F64:
        DH_TRY(read_f64(r, field->name, &f));
        memcpy(at, &f, sizeof f);
        break;
    case DH_FIELD_NAME:
    case DH_FIELD_MAY_NAME:
        DH_TRY(read_name(r, field->names, &name));
        memcpy(at, &name, sizeof name);
        break;
    case DH_FIELD_FACTORS:
        DH_TRY(read_factors(r, field->name, (dh_rope_factors *)(void *)at));
        break;
    }
    return DH_OK;
}

static dh_status read_dims(reader *r)
{
    enum { N = DH_N_DIMS_FIELD };
    const char *names[N + N_FORMER_DIM] = {[N + EXPERT_CAPACITY] = "expert_capacity",
                                           [N + EXPERT_ROWS] = "expert_rows",
                                           [N + ROUTER_ROWS] = "router_rows"};
    for (size_t i = 0; i < N; i++) names[i] = dh_dims_fields[i].name;
    const dh_name_set set = {"dimension", names, N + N_FORMER_DIM};
    while (!at_line_end(r)) {
        place where = place_of(r, r->at);
        uint32_t field = 0;
        DH_TRY(read_name(r, &set, &field));
        if (r->dims_seen[field]) return fail_at(r, where, "%s is given twice", names[field]);
        r->dims_seen[field] = true;
        DH_TRY(expect(r, '='));
        if (field < N)
            DH_TRY(read_field(r, &dh_dims_fields[field]));
        else
            DH_TRY(read_size(r, names[field], MAX_ROWS, &r->former[field - N]));
    }
    return DH_OK;
}

static dh_status read_ends(reader *r)
{
    const char *names[DH_N_END_FIELD];
    for (size_t i = 0; i < DH_N_END_FIELD; i++) names[i] = dh_end_fields[i].name;
    const dh_name_set set = {"block end", names, DH_N_END_FIELD};
    while (!at_line_end(r)) {
        place where = place_of(r, r->at);
        uint32_t field = 0;
        DH_TRY(read_name(r, &set, &field));
        if (*dh_graph_end(r->graph, field) != DH_NONE)
            return fail_at(r, where, "%s is given twice", names[field]);
        DH_TRY(expect(r, '='));
        DH_TRY(read_ref(r, dh_graph_end(r->graph, field)));
    }
    return DH_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* "[1024 tokens, 768 width]" */
static dh_status read_shape(reader *r, dh_tensor *t)
{
    DH_TRY(expect(r, '['));
    do {
        skip_blanks(r);
        if (t->ndim == 3) return fail_at(r, place_of(r, r->at), "a tensor has at most 3 axes");
        int axis = t->ndim++;
        DH_TRY(read_size(r, "size of an axis", (int64_t)1 << 48, &t->shape[axis]));
        skip_blanks(r);
        if (r->at == r->end || !is_word_char(*r->at)) continue;
        uint32_t label = 0;
        DH_TRY(read_name(r, &dh_axis_names, &label));
        t->axis[axis] = (dh_axis)label;
    } while (accept(r, ','));
    return expect(r, ']');
}

static dh_status read_slot(reader *r, dh_tensor *t)
{
    if (t->kind == DH_TENSOR_INPUT) return read_name(r, &dh_input_names, &t->which);
    if (t->kind == DH_TENSOR_STATE) return read_name(r, &dh_state_names, &t->which);
    int64_t which = 0;
    DH_TRY(read_size(r, "slot", DH_NONE - 1, &which));
    t->which = (uint32_t)which;
    return DH_OK;
}

/* slot=.. and view=.. in any order, once each. */
static dh_status read_tensor_attributes(reader *r, dh_tensor *t)
{
    static const char *const names[] = {"slot", "view"};
    static const dh_name_set set = {"tensor attribute", names, DH_COUNTOF(names)};
    while (!at_line_end(r)) {
        place where = place_of(r, r->at);
        uint32_t attribute = 0;
        DH_TRY(read_name(r, &set, &attribute));
        if ((attribute ? t->base : t->which) != DH_NONE)
            return fail_at(r, where, "%s is given twice", names[attribute]);
        DH_TRY(expect(r, '='));
        if (attribute == 0) {
            DH_TRY(read_slot(r, t));
        } else {
            DH_TRY(read_ref(r, &t->base));
            DH_TRY(expect(r, '+'));
            DH_TRY(read_size(r, "first row of a view", (int64_t)1 << 48, &t->row0));
        }
    }
    return DH_OK;
}

static dh_status read_tensor(reader *r)
{
    dh_tensor t = {.base = DH_NONE, .which = DH_NONE};
    uint32_t id = 0, kind = 0;
    place where;
    DH_TRY(read_label(r, &id, t.name, &where));
    if (id != r->graph->tensors.n)
        return fail_at(r, where, "this is tensor %%%zu, not %%%u: they are numbered by line",
                       r->graph->tensors.n, id);
    DH_TRY(read_name(r, &dh_tensor_kind_names, &kind));
    t.kind = (dh_tensor_kind)kind;
    DH_TRY(read_dtype(r, &t.dtype));
    DH_TRY(read_shape(r, &t));
    DH_TRY(read_tensor_attributes(r, &t));
    bool kept =
        dh_vec_push(&r->lines->tensors, r->line) && dh_graph_add_tensor(r->graph, &t) != DH_NONE;
    return kept ? DH_OK : dh_no_memory(r->ctx);
}

/* ---- operators ------------------------------------------------------------------------------ */

typedef struct operand_list {
    uint32_t ids[DH_MAX_OPERANDS];
    int n;
    place last;
} operand_list;

static dh_status read_operands(reader *r, operand_list *list)
{
    do {
        skip_blanks(r);
        list->last = place_of(r, r->at);
        if (list->n == DH_MAX_OPERANDS)
            return fail_at(r, list->last, "no operator has more than %d operands on one side",
                           DH_MAX_OPERANDS);
        uint32_t id = DH_NONE;
        if (!accept(r, '-')) DH_TRY(read_ref(r, &id));
        list->ids[list->n++] = id;
    } while (accept(r, ','));
    return DH_OK;
}

/* Fit to the operator's row; optional operands at the end may be left out. */
static dh_status fit_operands(reader *r, place where, const char *op, const char *side,
                              const dh_operand_info *infos, int n, operand_list *list)
{
    if (list->n > n) return fail_at(r, list->last, "%s has %d %ss, not %d", op, n, side, list->n);
    while (list->n < DH_MAX_OPERANDS) list->ids[list->n++] = DH_NONE;
    for (int i = 0; i < n; i++)
        if (list->ids[i] == DH_NONE && !infos[i].optional)
            return fail_at(r, where, "%s lacks %s %d, %s", op, side, i + 1, infos[i].name);
    return DH_OK;
}

static dh_status read_op_attribute(reader *r, dh_op_attr attribute, int64_t *value)
{
    const char *groups[DH_N_GROUPS];
    for (int i = 0; i < DH_N_GROUPS; i++) groups[i] = dh_group_name((dh_group_kind)i);
    const dh_name_set group_set = {"group", groups, DH_N_GROUPS};
    const bool named = attribute == DH_ATTR_SITE || attribute == DH_ATTR_GROUP;
    uint32_t name = 0;
    if (!named)
        return read_size(r, dh_op_attr_name(attribute), dh_op_attr_end(attribute) - 1, value);
    DH_TRY(read_name(r, attribute == DH_ATTR_SITE ? &dh_site_names : &group_set, &name));
    *value = name;
    return DH_OK;
}

/* "{site=attn, group=tp, flat=3, step=1}": those that the type has. */
static dh_status read_op_attributes(reader *r, dh_op *op)
{
    const char *names[DH_N_OP_ATTR];
    for (int i = 0; i < DH_N_OP_ATTR; i++) names[i] = dh_op_attr_name((dh_op_attr)i);
    const dh_name_set set = {"operator attribute", names, DH_N_OP_ATTR};
    const dh_op_info *info = dh_op_info_of(op->type);
    uint32_t seen = 0;
    do {
        skip_blanks(r);
        place where = place_of(r, r->at);
        uint32_t attribute = 0;
        int64_t value = 0;
        DH_TRY(read_name(r, &set, &attribute));
        if (!(info->attrs >> attribute & 1))
            return fail_at(r, where, "%s has no %s", info->name, names[attribute]);
        if (seen >> attribute & 1) return fail_at(r, where, "%s is given twice", names[attribute]);
        seen |= 1u << attribute;
        DH_TRY(expect(r, '='));
        DH_TRY(read_op_attribute(r, (dh_op_attr)attribute, &value));
        dh_op_attr_set(op, (dh_op_attr)attribute, value);
    } while (accept(r, ','));
    return expect(r, '}');
}

static dh_status read_op_type(reader *r, dh_op_type *type, place *where)
{
    const char *names[DH_N_OP_TYPE];
    for (int i = 0; i < DH_N_OP_TYPE; i++) names[i] = dh_op_info_of((dh_op_type)i)->name;
    const dh_name_set set = {"operator", names, DH_N_OP_TYPE};
    skip_blanks(r);
    *where = place_of(r, r->at);
    uint32_t value = 0;
    DH_TRY(read_name(r, &set, &value));
    *type = (dh_op_type)value;
    return DH_OK;
}

static dh_status read_op(reader *r, dh_phase phase)
{
    operand_list in = {.n = 0}, out = {.n = 0};
    skip_blanks(r);
    if (r->at < r->end && (*r->at == '%' || *r->at == '-')) {
        DH_TRY(read_operands(r, &out));
        DH_TRY(expect(r, '='));
    }
    dh_op_type type = DH_N_OP_TYPE;
    place where;
    DH_TRY(read_op_type(r, &type, &where));
    DH_TRY(expect(r, '('));
    if (!accept(r, ')')) {
        DH_TRY(read_operands(r, &in));
        DH_TRY(expect(r, ')'));
    }
    const dh_op_info *info = dh_op_info_of(type);
    DH_TRY(fit_operands(r, where, info->name, "input", info->in, info->n_in, &in));
    DH_TRY(fit_operands(r, where, info->name, "output", info->out, info->n_out, &out));
    dh_op op = dh_op_make(type, phase, in.ids, out.ids);
    if (accept(r, '{')) DH_TRY(read_op_attributes(r, &op));

    if (r->graph->ops.n >= MAX_OBJECTS)
        return fail_at(r, where, "a graph has at most %d operators", MAX_OBJECTS);
    if (!dh_vec_push(&r->graph->ops, op) || !dh_vec_push(&r->lines->ops, r->line))
        return dh_no_memory(r->ctx);
    return DH_OK;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status read_statement(reader *r)
{
    /* Phases come first, in their order, so that the index is the phase. */
    static const char *const names[] = {"F", "B", "W", "O", "dims", "ends"};
    static const dh_name_set set = {"statement", names, DH_COUNTOF(names)};
    if (*r->at == '%') return read_tensor(r);
    if (!is_word_char(*r->at)) return expected(r, "a tensor, an operator, dims or ends");
    uint32_t statement = 0;
    DH_TRY(read_name(r, &set, &statement));
    if (statement < DH_N_PHASE) return read_op(r, (dh_phase)statement);
    return statement == DH_N_PHASE ? read_dims(r) : read_ends(r);
}

/* Of numbers that are not negative. */
static int64_t rows_of(int64_t a, int64_t b)
{
    return b > 0 && a > MAX_ROWS / b ? MAX_ROWS : a * b;
}

/* The text's statements about the whole graph become attributes of the operators that need them. */
static void place_former_dims(reader *r)
{
    const dh_dims *d = &r->graph->dims;
    for (size_t i = 0; i < r->graph->ops.n; i++) {
        dh_op *op = &r->graph->ops.at[i];
        const unsigned attrs = dh_op_info_of(op->type)->attrs;
        const bool routes = op->type == DH_OP_ROUTER || op->type == DH_OP_ROUTER_AUX ||
                            op->type == DH_OP_ROUTER_GRAD;
        if (attrs >> DH_ATTR_CAPACITY & 1 && !op->capacity)
            op->capacity = r->former[EXPERT_CAPACITY];
        if (attrs >> DH_ATTR_ROOM & 1 && !op->room) op->room = r->former[EXPERT_ROWS];
        if (!(attrs >> DH_ATTR_ROWS & 1) || op->rows) continue;
        if (routes)
            op->rows = r->former[ROUTER_ROWS];
        else if (r->former[EXPERT_ROWS])
            op->rows = rows_of(rows_of(d->batch, d->seq), d->top_k);
    }
}

static void next_line(reader *r)
{
    while (r->at < r->end && *r->at != '\n') r->at++;
    if (r->at == r->end) return;
    r->line_start = ++r->at;
    r->line++;
}

static dh_status read_text(reader *r)
{
    bool header = false;
    for (; r->at < r->end; next_line(r)) {
        if (at_line_end(r)) continue;
        DH_TRY(header ? read_statement(r) : read_header(r));
        header = true;
        if (!at_line_end(r)) return expected(r, "the end of the line");
    }
    if (!header) return expected(r, DH_GRAPH_TEXT_MAGIC " " DH_GRAPH_TEXT_VERSION);
    place_former_dims(r);
    return check_late_refs(r);
}

/* Run dh_graph_check, and add the line to its message. */
static dh_status check_graph(reader *r)
{
    dh_graph_fault fault;
    dh_status st = dh_graph_check_at(r->ctx, r->graph, &fault);
    if (st == DH_OK) return st;
    if (fault.tensor != DH_NONE)
        return dh_ctx_while(r->ctx, "reading line %u", r->lines->tensors.at[fault.tensor]);
    if (fault.op != DH_NONE)
        return dh_ctx_while(r->ctx, "reading line %u", r->lines->ops.at[fault.op]);
    return st;
}

void dh_graph_lines_fini(dh_graph_lines *lines)
{
    dh_vec_fini(&lines->tensors);
    dh_vec_fini(&lines->ops);
}

dh_status dh_graph_parse(dh_ctx *ctx, const char *text, size_t n_bytes, dh_graph **graph)
{
    dh_graph_lines lines;
    const dh_status st = dh_graph_parse_lines(ctx, text, n_bytes, graph, &lines);
    dh_graph_lines_fini(&lines);
    return st;
}

dh_status dh_graph_parse_lines(dh_ctx *ctx, const char *text, size_t n_bytes, dh_graph **graph,
                               dh_graph_lines *lines)
{
    *lines = (dh_graph_lines){{0}, {0}};
    dh_graph *g = calloc(1, sizeof *g);
    if (!g) return dh_no_memory(ctx);
    for (size_t i = 0; i < DH_N_END_FIELD; i++) *dh_graph_end(g, i) = DH_NONE;
    const char *start = n_bytes ? text : "";
    reader r = {.ctx = ctx,
                .at = start,
                .end = start + n_bytes,
                .line_start = start,
                .line = 1,
                .lines = lines,
                .graph = g};
    dh_status st = read_text(&r);
    if (st == DH_OK) st = check_graph(&r);
    dh_vec_fini(&r.late);
    if (st != DH_OK) {
        dh_graph_destroy(g);
        return st;
    }
    *graph = g;
    return DH_OK;
}
