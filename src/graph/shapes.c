/* Shapes of operands, one row an operator type. See shapes.h.
 *
 * A row lists inputs and outputs in the order of ops.def, each as a type and axes:
 *
 *   ?      whatever it is
 *   type   t  f32 or bf16, the same for all t of the operator      f f32   d f64   i i32   l i64
 *          p  t or f32                                             o f32 or bf16   * any, one
 *   axes   [N C]    one letter an axis; a letter is one size wherever it stands
 *          [N aF]   factors before it: a: 2 with swiglu or geglu, else 1; g: members of the group
 *          [N 3]    a number
 *          [~]      any axes, the same wherever it stands; [g~] with as many times the rows
 *
 * Other conditions are a function of the row's. */
#include "graph/shapes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct sizes {
    int64_t of['Z' + 1]; /* by letter; 0: not seen yet */
    int64_t group, act;
    dh_dtype t, any; /* DH_N_DTYPE: not seen yet */
    const dh_tensor *like;
    int64_t like_rows; /* of [~], without its factor */
} sizes;

typedef struct shape_row {
    const char *in, *out;
    dh_status (*check)(dh_ctx *ctx, const dh_graph *g, uint32_t op);
} shape_row;

/* ---- what letters cannot say --------------------------------------------------------------- */

static dh_status refuse(dh_ctx *ctx, const dh_graph *g, uint32_t op, const char *what)
{
    return dh_fail(ctx, DH_EINVAL, "op %u %s: %s", op, dh_op_info_of(g->ops.at[op].type)->name,
                   what);
}

/* A mask is drawn from the place of a row in its sample. */
static dh_status check_mask(dh_ctx *ctx, const dh_graph *g, uint32_t op)
{
    const dh_op *o = &g->ops.at[op];
    const int pos = dh_op_info_of(o->type)->n_in - 2;
    if (g->dims.dropout == 0) return DH_OK;
    if (o->type != DH_OP_EMBED && (o->in[pos] == DH_NONE || o->in[pos + 1] == DH_NONE))
        return refuse(ctx, g, op, "with dims dropout above 0 it needs the operands pos and sample");
    return o->site >= 0 ? DH_OK : refuse(ctx, g, op, "with dims dropout above 0 it needs a site");
}

static bool heads_are_known(const dh_dims *d)
{
    return d->head_dim > 0 && d->n_heads > 0 && d->n_kv_heads > 0 &&
           d->n_heads % d->n_kv_heads == 0;
}

static dh_status check_rope(dh_ctx *ctx, const dh_graph *g, uint32_t op)
{
    const dh_dims *d = &g->dims;
    const dh_longrope *l = &d->longrope;
    if (d->head_dim % 2 != 0 || d->max_seq <= 0)
        return refuse(ctx, g, op, "dims need an even head_dim and max_seq");
    if (d->rope.scaling == DH_ROPE_SCALING_LONGROPE &&
        (l->short_factors.n != d->head_dim / 2 || l->long_factors.n != d->head_dim / 2))
        return refuse(ctx, g, op,
                      "dims need a short and a long factor for each pair of head_dim channels");
    return DH_OK;
}

/* Packed rows are those of the dims' heads. */
static dh_status check_heads(dh_ctx *ctx, const dh_graph *g, uint32_t op)
{
    const dh_dims *d = &g->dims;
    const dh_op *o = &g->ops.at[op];
    const bool grad = o->type == DH_OP_ATTN_GRAD;
    const dh_tensor *packed = &g->tensors.at[o->in[grad ? 1 : 0]];
    if (!heads_are_known(d) || packed->shape[1] != (d->n_heads + 2 * d->n_kv_heads) * d->head_dim)
        return refuse(ctx, g, op,
                      "a packed row has (n_heads + 2 n_kv_heads) head_dim columns by dims");
    if (o->type == DH_OP_ROPE || o->type == DH_OP_ROPE_GRAD) return check_rope(ctx, g, op);
    if (o->in[grad ? 4 : 1] != DH_NONE)
        return refuse(ctx, g, op, "documents of a row (operand pos) come from a job's data alone");
    const dh_tensor *o_rows = &g->tensors.at[grad ? o->in[0] : o->out[0]];
    const dh_tensor *lse = &g->tensors.at[grad ? o->in[3] : o->out[1]];
    if (o_rows->shape[1] == d->n_heads * d->head_dim && lse->shape[1] == d->n_heads &&
        packed->dtype == g->dtype)
        return DH_OK;
    return refuse(ctx, g, op,
                  "o has n_heads head_dim columns, lse is [batch, n_heads, tokens of a sample], "
                  "and rows are of the graph's type");
}

/* Check that the overwritten values of an early step are of all elements. */
static dh_status check_kept(dh_ctx *ctx, const dh_graph *g, uint32_t op)
{
    const dh_op *o = &g->ops.at[op];
    const uint32_t old = o->type == DH_OP_AMEND ? o->in[3] : o->out[4];
    if (old == DH_NONE ||
        g->tensors.at[old].shape[1] == dh_tensor_elements(&g->tensors.at[o->out[0]]))
        return DH_OK;
    return refuse(ctx, g, op, "old has a column for each element of p");
}

/* ---- the table ----------------------------------------------------------------------------- */

static const shape_row rows[DH_N_OP_TYPE] = {
    [DH_OP_EMBED] = {"i[N] i[N] l[N] t[V C] t[M C]", "t[N C]", check_mask},
    [DH_OP_NORM] = {"t[N C] f[C] f[C]", "t[N C] f[N 2]", NULL},
    [DH_OP_LINEAR] = {"t[N I] p[O I] f[O]", "p[N O]", NULL},
    [DH_OP_LINEAR_GELU] = {"t[N I] t[O I] f[O]", "t[N O] t[N O]", NULL},
    [DH_OP_ROPE] = {"t[N P] i[N]", "t[N P]", check_heads},
    [DH_OP_ATTN] = {"t[N P] i[N]", "t[N H] f[B K T]", check_heads},
    [DH_OP_RESIDUAL] = {"t[N C] t[N C] f[C] i[N] l[N]", "t[N C]", check_mask},
    [DH_OP_ACT] = {"t[N aF]", "t[N F]", NULL},
    [DH_OP_SCALE] = {"t[N C]", "t[N C]", NULL},
    [DH_OP_ADAPT] = {"t[N A] t[N W]", "t[N W]", NULL},
    [DH_OP_ADAPT_GRAD] = {"t[N W]", "t[N A]", NULL},
    [DH_OP_SOFTCAP] = {"f[N V]", "f[N V]", NULL},
    [DH_OP_SOFTCAP_GRAD] = {"t[N V] f[N V]", "t[N V]", NULL},
    [DH_OP_LOSS_STATS] = {"o[N V] i[N]", "f[N 3]", NULL},
    [DH_OP_LOSS] = {"f[N 3] i[N]", "d[2]", NULL},
    [DH_OP_LOSS_GRAD] = {"t[N V] i[N] f[N 3]", "o[N V]", NULL},
    [DH_OP_LINEAR_DGRAD] = {"t[N O] t[O I]", "t[N I]", NULL},
    [DH_OP_LINEAR_DGRAD_GELU] = {"t[N O] t[O I] t[N I]", "t[N I]", NULL},
    [DH_OP_LINEAR_WGRAD] = {"t[N O] t[N I]", "f[O I]", NULL},
    [DH_OP_BIAS_GRAD] = {"t[N O]", "f[O]", NULL},
    [DH_OP_NORM_DGRAD] = {"t[N C] t[N C] f[C] f[N 2] t[N C]", "t[N C]", NULL},
    [DH_OP_NORM_WGRAD] = {"t[N C] t[N C] f[N 2]", "f[C] f[C]", NULL},
    [DH_OP_ROPE_GRAD] = {"t[N P] i[N]", "t[N P]", check_heads},
    [DH_OP_ATTN_GRAD] = {"t[N H] t[N P] t[N H] f[B K T] i[N]", "t[N P]", check_heads},
    [DH_OP_DROPOUT_GRAD] = {"t[N C] i[N] l[N]", "t[N C]", check_mask},
    [DH_OP_ACT_GRAD] = {"t[N F] t[N aF]", "t[N aF]", NULL},
    [DH_OP_EMBED_GRAD] = {"t[N C] i[N] i[N] l[N]", "f[V C] f[M C]", check_mask},
    [DH_OP_ADD] = {"t[~] t[~]", "t[~]", NULL},
    [DH_OP_COPY] = {"*[~]", "*[~]", NULL},
    [DH_OP_SQSUM] = {"f[~]", "d[1 20]", NULL},
    [DH_OP_SUM] = {"d[N 20]", "d[1 20]", NULL},
    [DH_OP_CLIP] = {"d[1 20]", "d[1 2]", NULL},
    [DH_OP_ADAMW] = {"f[~] d[1 2]", "f[~] f[~] f[~] o[~] f[3 K]", check_kept},
    [DH_OP_BALANCE] = {"f[~] d[1 2]", "f[~]", NULL},
    [DH_OP_AMEND] = {"f[~] d[1 2] d[1 2] f[3 K]", "f[~] f[~] f[~] o[~]", check_kept},
    [DH_OP_ALL_GATHER] = {"*[~]", "*[g~]", NULL},
    [DH_OP_REDUCE_SCATTER] = {"*[g~]", "*[~]", NULL},
    [DH_OP_ALL_REDUCE] = {"*[~]", "*[~]", NULL},
    [DH_OP_ALL_TO_ALL] = {"*[~]", "*[~]", NULL},
    [DH_OP_RING_EXCHANGE] = {"*[~] ?", "*[~]", NULL},
    [DH_OP_RING_EXCHANGE_BOTH] = {"*[~] *[~]", "*[~] *[~]", NULL},
    [DH_OP_SHIFT] = {"*[~]", "*[~]", NULL},
    [DH_OP_JOIN_COLUMNS] = {"*[N A] *[N D] *[N E] *[N H]", "*[N W]", NULL},
    [DH_OP_SPLIT_COLUMNS] = {"*[N W]", "*[N A] *[N D] *[N E] *[N H]", NULL},
    [DH_OP_TAKE_COLUMNS] = {"*[N W]", "*[A]", NULL},
    [DH_OP_PUT_COLUMNS] = {"*[A]", "*[N W]", NULL},
};

_Static_assert(DH_SQSUM_DIGITS == 20, "rows of sqsum, sum and clip");

bool dh_op_stands_alone(dh_op_type type)
{
    return (unsigned)type < DH_N_OP_TYPE && rows[type].in != NULL;
}

/* ---- matching ------------------------------------------------------------------------------ */

static bool is_float(dh_dtype t)
{
    return t == DH_F32 || t == DH_BF16;
}

static bool take(dh_dtype *seen, dh_dtype t)
{
    if (*seen == DH_N_DTYPE) *seen = t;
    return *seen == t;
}

static bool type_fits(sizes *s, char want, dh_dtype t)
{
    switch (want) {
    case 't':
        return is_float(t) && take(&s->t, t);
    case 'p':
        return t == DH_F32 || (is_float(t) && take(&s->t, t));
    case 'o':
        return is_float(t);
    case '*':
        return take(&s->any, t);
    case 'f':
        return t == DH_F32;
    case 'd':
        return t == DH_F64;
    case 'i':
        return t == DH_I32;
    default:
        return t == DH_I64;
    }
}

static bool like_fits(sizes *s, int64_t factor, const dh_tensor *t)
{
    if (t->shape[0] % factor != 0) return false;
    if (!s->like) {
        s->like = t;
        s->like_rows = t->shape[0] / factor;
        return true;
    }
    bool fits = t->ndim == s->like->ndim && t->shape[0] == s->like_rows * factor;
    for (int a = 1; fits && a < t->ndim; a++) fits = t->shape[a] == s->like->shape[a];
    return fits;
}

static int64_t factor_of(const sizes *s, const char **at)
{
    int64_t factor = 1;
    for (; **at == 'a' || **at == 'g'; ++*at) factor *= **at == 'a' ? s->act : s->group;
    return factor;
}

/* [N aF]: *at stands behind the bracket, and then behind the one that closes it. */
static bool axes_fit(sizes *s, const char **at, const dh_tensor *t)
{
    bool fits = true;
    int axis = 0;
    for (; **at && **at != ']'; axis++) {
        while (**at == ' ') ++*at;
        const int64_t factor = factor_of(s, at);
        if (**at == '~') {
            fits = like_fits(s, factor, t);
            axis = t->ndim - 1;
            ++*at;
        } else if (isdigit((unsigned char)**at)) {
            int64_t n = 0;
            for (; isdigit((unsigned char)**at); ++*at) n = n * 10 + (**at - '0');
            fits = fits && axis < t->ndim && t->shape[axis] == n;
        } else {
            int64_t *n = &s->of[(unsigned char)*(*at)++];
            fits = fits && axis < t->ndim && t->shape[axis] % factor == 0;
            if (fits && *n == 0) *n = t->shape[axis] / factor;
            fits = fits && t->shape[axis] == *n * factor;
        }
    }
    if (**at == ']') ++*at;
    return fits && axis == t->ndim;
}

/* ---- saying what would be right ------------------------------------------------------------ */

static void print_types(const sizes *s, char want, dh_str *out)
{
    static const char *const names[] = {['f'] = "f32", ['d'] = "f64", ['i'] = "i32", ['l'] = "i64"};
    if ((want == 't' && s->t != DH_N_DTYPE) || (want == '*' && s->any != DH_N_DTYPE))
        dh_str_printf(out, "%s", dh_dtype_name(want == 't' ? s->t : s->any));
    else if (want == 'p' && s->t == DH_F32)
        dh_str_printf(out, "f32");
    else if (want == 't' || want == 'p' || want == 'o')
        dh_str_printf(out, "f32 or bf16");
    else if (want == '*')
        dh_str_printf(out, "any type");
    else
        dh_str_printf(out, "%s", names[(unsigned char)want]);
}

static void print_like(const sizes *s, int64_t factor, dh_str *out)
{
    if (!s->like) {
        dh_str_printf(out, "rows that divide by %lld", (long long)factor);
        return;
    }
    dh_str_printf(out, "%lld", (long long)(s->like_rows * factor));
    for (int a = 1; a < s->like->ndim; a++)
        dh_str_printf(out, ", %lld", (long long)s->like->shape[a]);
}

static void print_axes(const sizes *s, const char *at, dh_str *out)
{
    for (const char *before = "["; *at && *at != ']'; before = ", ") {
        dh_str_printf(out, "%s", before);
        while (*at == ' ') at++;
        const int64_t factor = factor_of(s, &at);
        if (*at == '~') {
            print_like(s, factor, out);
            at++;
        } else if (isdigit((unsigned char)*at)) {
            for (; isdigit((unsigned char)*at); at++) dh_str_printf(out, "%c", *at);
        } else if (s->of[(unsigned char)*at]) {
            dh_str_printf(out, "%lld", (long long)(s->of[(unsigned char)*at++] * factor));
        } else if (factor > 1) {
            dh_str_printf(out, "%lld %c", (long long)factor, *at++);
        } else {
            dh_str_printf(out, "%c", *at++);
        }
    }
    dh_str_printf(out, "]");
}

static void print_tensor(const dh_tensor *t, dh_str *out)
{
    dh_str_printf(out, "%s %s[", t->name, dh_dtype_name(t->dtype));
    for (int a = 0; a < t->ndim; a++)
        dh_str_printf(out, "%s%lld", a ? ", " : "", (long long)t->shape[a]);
    dh_str_printf(out, "]");
}

/* before: the sizes that the operands in front of it set. */
static dh_status misfit(dh_ctx *ctx, const dh_graph *g, uint32_t op, const dh_operand_info *info,
                        const dh_tensor *t, const sizes *before, const char *want)
{
    dh_str text = DH_STR_INIT;
    dh_str_printf(&text, "op %u %s: operand %s is ", op, dh_op_info_of(g->ops.at[op].type)->name,
                  info->name);
    print_tensor(t, &text);
    dh_str_printf(&text, "; it must be ");
    print_types(before, *want, &text);
    dh_str_printf(&text, " ");
    print_axes(before, want + 2, &text);
    const dh_status st = dh_fail(ctx, DH_EINVAL, "%s", text.text ? text.text : "operands misfit");
    dh_str_fini(&text);
    return st;
}

/* ---- entry --------------------------------------------------------------------------------- */

static dh_status check_side(dh_ctx *ctx, const dh_graph *g, uint32_t op, bool outputs, sizes *s)
{
    const dh_op *o = &g->ops.at[op];
    const dh_op_info *info = dh_op_info_of(o->type);
    const char *at = outputs ? rows[o->type].out : rows[o->type].in;
    for (int k = 0; k < (outputs ? info->n_out : info->n_in); k++) {
        while (*at == ' ') at++;
        const char *want = at;
        const uint32_t id = outputs ? o->out[k] : o->in[k];
        if (id == DH_NONE) {
            while (*at && *at != ']') at++;
            at += *at == ']';
            continue;
        }
        if (*at == '?') {
            at++;
            continue;
        }
        const dh_tensor *t = &g->tensors.at[id];
        const sizes before = *s;
        bool fits = type_fits(s, *at, t->dtype);
        at += 2;
        fits = axes_fit(s, &at, t) && fits;
        if (!fits)
            return misfit(ctx, g, op, outputs ? &info->out[k] : &info->in[k], t, &before, want);
    }
    return DH_OK;
}

dh_status dh_op_check_shapes(dh_ctx *ctx, const dh_graph *graph, uint32_t op, int64_t n_members)
{
    const dh_op *o = &graph->ops.at[op];
    const dh_op_info *info = dh_op_info_of(o->type);
    if (!dh_op_stands_alone(o->type))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "op %u %s cannot stand in a program of its own: it needs what only a job's "
                       "step has",
                       op, info->name);
    sizes s = {.group = n_members,
               .act = graph->dims.act == DH_ACT_GELU_TANH ? 1 : 2,
               .t = DH_N_DTYPE,
               .any = DH_N_DTYPE};
    DH_TRY(check_side(ctx, graph, op, false, &s));
    DH_TRY(check_side(ctx, graph, op, true, &s));
    if (o->type == DH_OP_ALL_TO_ALL && graph->tensors.at[o->in[0]].shape[0] % n_members)
        return refuse(ctx, graph, op, "its rows do not divide by the members of the group");
    if (o->type == DH_OP_SHIFT && (o->by < 1 || o->by >= n_members))
        return refuse(ctx, graph, op,
                      "it goes so many places on in its group: {by=1}, or up to one less than its "
                      "members");
    return rows[o->type].check ? rows[o->type].check(ctx, graph, op) : DH_OK;
}

int64_t dh_op_index_bound(const dh_graph *graph, const dh_op *op, int input)
{
    const bool rotates = op->type == DH_OP_ROPE || op->type == DH_OP_ROPE_GRAD;
    if (rotates && input == 1) return graph->dims.max_seq;
    if (op->type == DH_OP_EMBED && input == 1 && op->in[4] != DH_NONE)
        return graph->tensors.at[op->in[4]].shape[0];
    if (op->type == DH_OP_EMBED_GRAD && input == 2 && op->out[1] != DH_NONE)
        return graph->tensors.at[op->out[1]].shape[0];
    return 0;
}
