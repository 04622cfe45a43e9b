/* Operators have names: strand, type and output, and a number where several have the same. A block
 * is issued by the order where the order has all of its operators. Others are issued alone. */
#include "strategy/written.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "config/model_names.h"
#include "strategy/slot.h"

enum { MAX_BYTES = 16 << 20 };

static const char strand_letters[] = "FB";

/* ---- names ----------------------------------------------------------------------------------- */

static const char *output_of(const dh_slot_op *op)
{
    const uint32_t out = op->at.op->out[0];
    return out == DH_NONE ? "-" : op->at.graph->tensors.at[out].name;
}

static bool same_name(const dh_slot_op *a, const dh_slot_op *b)
{
    return a->at.op->type == b->at.op->type && strcmp(output_of(a), output_of(b)) == 0;
}

/* Among the operators [first, op] of a strand. */
static uint32_t occurrence_of(const dh_slot_strand *strand, uint32_t first, uint32_t op)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < op; i++) n += same_name(&strand->ops[i], &strand->ops[op]);
    return n;
}

static bool is_named(const dh_slot_op *op, const dh_written_op *w)
{
    return op->at.op->type == w->type && strcmp(output_of(op), w->output) == 0;
}

/* The operator in [first, end) of the strand that a line means; DH_NONE: there is none. */
static uint32_t find_op(const dh_slot_strand *strand, uint32_t first, uint32_t end,
                        const dh_written_op *w)
{
    uint32_t left = w->occurrence;
    for (uint32_t i = first; i < end; i++)
        if (!strand->ops[i].reduces && is_named(&strand->ops[i], w) && left-- == 0) return i;
    return DH_NONE;
}

/* "B linear_dgrad dg", with #2 behind the second of that name. */
static void print_name(uint8_t strand, dh_op_type type, const char *output, uint32_t occurrence,
                       dh_str *out)
{
    dh_str_printf(out, "%c %s %s", strand_letters[strand], dh_op_info_of(type)->name, output);
    if (occurrence > 0) dh_str_printf(out, " #%u", occurrence + 1);
}

/* ---- text ------------------------------------------------------------------------------------ */

dh_status dh_written_order_print(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                                 const int64_t layer[2], const char *about, dh_str *out)
{
    const uint32_t n = slot_nodes(slot);
    dh_slot_timing t = {.start_ns = calloc((size_t)n + 1, sizeof *t.start_ns),
                        .end_ns = calloc((size_t)n + 1, sizeof *t.end_ns)};
    dh_status st = t.start_ns && t.end_ns ? dh_slot_time(ctx, slot, order, &t) : dh_no_memory(ctx);
    dh_str_printf(
        out,
        "# %s\n"
        "# F: an operator of the forward, B: of the backward, in the order of issue. Lines "
        "may be moved.\n"
        "# barrier: what follows waits for all before it. After #: when it runs, in us.\n"
        "layers %lld %lld\n",
        about, (long long)layer[0], (long long)layer[1]);
    for (uint32_t i = 0; st == DH_OK && i < n; i++) {
        const dh_slot_strand *strand = &slot->strand[order[i].strand];
        const dh_slot_op *op = &strand->ops[order[i].op];
        dh_str name = DH_STR_INIT;
        if (order[i].barrier) dh_str_printf(out, "barrier\n");
        print_name(order[i].strand, op->at.op->type, output_of(op),
                   occurrence_of(strand, 0, order[i].op), &name);
        dh_str_printf(out, "%-40s # %s, %.1f to %.1f\n", name.text ? name.text : "",
                      dh_stream_name(op->stream), t.start_ns[i] / 1e3, t.end_ns[i] / 1e3);
        out->failed |= name.failed;
        dh_str_fini(&name);
    }
    free(t.start_ns);
    free(t.end_ns);
    return st;
}

typedef struct reader {
    dh_ctx *ctx;
    dh_arena *arena;
    dh_written_order *order;
    DH_VEC(dh_written_op) ops;
    int32_t line;
    bool barrier; /* before the next operator */
} reader;

static dh_status fail_line(const reader *r, const char *word, const char *why)
{
    return dh_fail(r->ctx, DH_EFORMAT, "%s:%d: \"%.60s\": %s", r->order->path, r->line, word, why);
}

enum { MOST_WORDS = 5 };

/* Words of a line up to # and a blank; text is written to. */
static size_t split(char *text, char *words[MOST_WORDS])
{
    size_t n = 0;
    for (char *at = text; n < MOST_WORDS; n++) {
        at += strspn(at, " \t\r");
        if (!*at || (*at == '#' && (!at[1] || at[1] == ' '))) break;
        words[n] = at;
        at += strcspn(at, " \t\r");
        if (*at) *at++ = '\0';
    }
    return n;
}

static bool read_number(const char *text, int64_t most, int64_t *number)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    *number = value;
    return end != text && !*end && !errno && value >= 0 && value <= most;
}

static dh_status find_type(const reader *r, const char *name, dh_op_type *type)
{
    const char *names[DH_N_OP_TYPE];
    for (int i = 0; i < DH_N_OP_TYPE; i++) {
        names[i] = dh_op_info_of((dh_op_type)i)->name;
        *type = (dh_op_type)i;
        if (strcmp(names[i], name) == 0) return DH_OK;
    }
    const char *near = dh_nearest(name, names, DH_N_OP_TYPE);
    return dh_fail(r->ctx, DH_EFORMAT, "%s:%d: no operator is called %.60s%s%s", r->order->path,
                   r->line, name, near ? "; did you mean " : "", near ? near : "");
}

static dh_status read_op(reader *r, char **words, size_t n)
{
    dh_written_op op = {.line = r->line, .strand = *words[0] == 'B', .barrier = r->barrier};
    int64_t number = 1;
    if (n < 3) return fail_line(r, words[n - 1], "an operator and its output follow F and B");
    DH_TRY(find_type(r, words[1], &op.type));
    if (n > 4 || (n == 4 &&
                  (*words[3] != '#' || !read_number(words[3] + 1, 1 << 20, &number) || number < 1)))
        return fail_line(r, words[3],
                         "after the output there can be #2, for the second of that name, and # "
                         "with a comment");
    op.occurrence = (uint32_t)(number - 1);
    op.output = dh_arena_strdup(r->arena, words[2]);
    r->barrier = false;
    return op.output && dh_vec_push(&r->ops, op) ? DH_OK : dh_no_memory(r->ctx);
}

static dh_status read_line(reader *r, char *text)
{
    char *words[MOST_WORDS];
    const size_t n = split(text, words);
    if (n == 0) return DH_OK;
    if (strcmp(words[0], "F") == 0 || strcmp(words[0], "B") == 0) return read_op(r, words, n);
    if (strcmp(words[0], "barrier") == 0 && n == 1) {
        r->barrier = true;
        return DH_OK;
    }
    if (strcmp(words[0], "layers") == 0 && n == 3 &&
        read_number(words[1], DH_MODEL_MAX_LAYERS - 1, &r->order->layer[0]) &&
        read_number(words[2], DH_MODEL_MAX_LAYERS - 1, &r->order->layer[1]))
        return DH_OK;
    return fail_line(
        r, words[0],
        "a line is F or B with an operator and its output, barrier alone, or layers with "
        "two numbers");
}

static dh_status read_lines(reader *r, char *text)
{
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next) *next++ = '\0';
        r->line++;
        DH_TRY(read_line(r, at));
    }
    if (r->ops.n == 0)
        return dh_fail(r->ctx, DH_EFORMAT,
                       "%s has no operators: `dhelix plan JOB --write FILE` writes an order",
                       r->order->path);
    return DH_OK;
}

static dh_status parse(dh_ctx *ctx, dh_arena *arena, char *text, const char *path,
                       const dh_written_order **order)
{
    reader r = {.ctx = ctx, .arena = arena, .order = DH_NEW(arena, dh_written_order)};
    if (!r.order) return dh_no_memory(ctx);
    *r.order = (dh_written_order){.path = dh_arena_strdup(arena, path), .layer = {-1, -1}};
    dh_status st = r.order->path ? read_lines(&r, text) : dh_no_memory(ctx);
    dh_written_op *ops = st == DH_OK ? DH_NEW_N(arena, dh_written_op, r.ops.n) : NULL;
    if (ops) {
        memcpy(ops, r.ops.at, r.ops.n * sizeof *ops);
        r.order->ops = ops;
        r.order->n = (uint32_t)r.ops.n;
        *order = r.order;
    } else if (st == DH_OK) {
        st = dh_no_memory(ctx);
    }
    dh_vec_fini(&r.ops);
    return st;
}

dh_status dh_written_order_parse(dh_ctx *ctx, dh_arena *arena, const char *text, size_t n_bytes,
                                 const char *path, const dh_written_order **order)
{
    char *own = malloc(n_bytes + 1);
    if (!own) return dh_no_memory(ctx);
    memcpy(own, text, n_bytes);
    own[n_bytes] = '\0';
    const dh_status st = parse(ctx, arena, own, path, order);
    free(own);
    return st;
}

dh_status dh_written_order_read(dh_ctx *ctx, dh_arena *arena, const char *path,
                                const dh_written_order **order)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, MAX_BYTES, &text, &n_bytes));
    const dh_status st = parse(ctx, arena, text, path, order);
    free(text);
    return st;
}

/* ---- against the operators of two layers ---------------------------------------------------- */

typedef struct checked {
    dh_ctx *ctx;
    const dh_written_order *order;
    const dh_slot *slot;
    uint32_t *at; /* [nodes] the place in the order; DH_NONE: not yet */
} checked;

static void name_node(const checked *c, uint32_t node, dh_str *out)
{
    const dh_slot_pick pick = slot_pick_of(c->slot, node);
    const dh_slot_strand *strand = &c->slot->strand[pick.strand];
    const dh_slot_op *op = &strand->ops[pick.op];
    print_name(pick.strand, op->at.op->type, output_of(op), occurrence_of(strand, 0, pick.op), out);
}

/* Outputs of the strand's operators of that type. */
static void list_outputs(const checked *c, const dh_written_op *w, dh_str *out)
{
    const dh_slot_strand *strand = &c->slot->strand[w->strand];
    for (uint32_t i = 0; i < strand->n; i++)
        if (strand->ops[i].at.op->type == w->type)
            dh_str_printf(out, "%s%s", out->len ? ", " : "", output_of(&strand->ops[i]));
    if (!out->len) dh_str_printf(out, "none");
}

static dh_status no_such_op(const checked *c, const dh_written_op *w)
{
    dh_str name = DH_STR_INIT, outputs = DH_STR_INIT;
    print_name(w->strand, w->type, w->output, w->occurrence, &name);
    list_outputs(c, w, &outputs);
    const dh_status st = dh_fail(
        c->ctx, DH_EINVAL, "%s:%d: the job's layer has no \"%s\"; outputs of %s in its %s: %s",
        c->order->path, w->line, name.text ? name.text : "", dh_op_info_of(w->type)->name,
        w->strand ? "backward" : "forward", outputs.text ? outputs.text : "");
    dh_str_fini(&name);
    dh_str_fini(&outputs);
    return st;
}

static dh_status place_op(const checked *c, uint32_t i)
{
    const dh_written_op *w = &c->order->ops[i];
    const dh_slot_strand *strand = &c->slot->strand[w->strand];
    const uint32_t op = find_op(strand, 0, strand->n, w);
    if (op == DH_NONE) return no_such_op(c, w);
    const uint32_t node = op + (w->strand ? c->slot->strand[0].n : 0);
    if (c->at[node] != DH_NONE)
        return dh_fail(c->ctx, DH_EINVAL,
                       "%s:%d: line %d has this operator already: leave one of them out",
                       c->order->path, w->line, c->order->ops[c->at[node]].line);
    c->at[node] = i;
    return DH_OK;
}

static dh_status check_all_there(const checked *c)
{
    for (uint32_t node = 0; node < slot_nodes(c->slot); node++) {
        dh_str name = DH_STR_INIT;
        int32_t line = 0;
        if (c->at[node] != DH_NONE) continue;
        for (uint32_t i = 0; i < slot_n_needs(c->slot, node); i++) {
            const uint32_t at = c->at[slot_need(c->slot, node, i)];
            if (at != DH_NONE) line = DH_MAX(line, c->order->ops[at].line);
        }
        name_node(c, node, &name);
        const dh_status st =
            line ? dh_fail(c->ctx, DH_EINVAL,
                           "%s lacks an operator of the job's layer: \"%s\" has to stand after "
                           "line %d",
                           c->order->path, name.text ? name.text : "", line)
                 : dh_fail(c->ctx, DH_EINVAL,
                           "%s lacks an operator of the job's layer: \"%s\" can be its first line",
                           c->order->path, name.text ? name.text : "");
        dh_str_fini(&name);
        return st;
    }
    return DH_OK;
}

static dh_status check_needs(const checked *c, uint32_t node)
{
    const uint32_t own = c->at[node];
    for (uint32_t i = 0; i < slot_n_needs(c->slot, node); i++) {
        const uint32_t need = slot_need(c->slot, node, i), at = c->at[need];
        dh_str name = DH_STR_INIT;
        if (at < own) continue;
        name_node(c, need, &name);
        const dh_written_op *w = &c->order->ops[own];
        const dh_status st = dh_fail(
            c->ctx, DH_EINVAL, "%s:%d: it needs \"%s\", which is line %d: move it after that line",
            c->order->path, w->line, name.text ? name.text : "", c->order->ops[at].line);
        dh_str_fini(&name);
        return st;
    }
    return DH_OK;
}

static dh_status check(checked *c)
{
    for (uint32_t i = 0; i < c->order->n; i++) DH_TRY(place_op(c, i));
    DH_TRY(check_all_there(c));
    for (uint32_t node = 0; node < slot_nodes(c->slot); node++) DH_TRY(check_needs(c, node));
    return DH_OK;
}

dh_status dh_written_order_check(dh_ctx *ctx, const dh_written_order *order, const dh_slot *slot)
{
    const uint32_t n = slot_nodes(slot);
    checked c = {ctx, order, slot, malloc(((size_t)n + 1) * sizeof *c.at)};
    if (!c.at) return dh_no_memory(ctx);
    memset(c.at, 0xff, ((size_t)n + 1) * sizeof *c.at); /* DH_NONE */
    const dh_status st = check(&c);
    free(c.at);
    return st;
}

/* ---- the policy ------------------------------------------------------------------------------ */

/* The blocks of a strand. */
typedef struct part {
    uint32_t first, end;
    bool ordered; /* the order has all of its operators */
} part;

typedef struct parts {
    part *at; /* [n] */
    uint32_t n, next, n_ordered;
} parts;

static bool has_all(const dh_written_order *order, const dh_slot_strand *strand, uint8_t s,
                    const part *p)
{
    uint32_t n = 0, found = 0;
    for (uint32_t i = p->first; i < p->end; i++) n += !strand->ops[i].reduces;
    for (uint32_t i = 0; i < order->n; i++)
        found += order->ops[i].strand == s &&
                 find_op(strand, p->first, p->end, &order->ops[i]) != DH_NONE;
    return n > 0 && found == n;
}

static bool parts_init(parts *p, const dh_slot *slot, uint8_t s, const dh_written_order *order)
{
    const dh_slot_strand *strand = &slot->strand[s];
    *p = (parts){.at = calloc((size_t)strand->n + 1, sizeof *p->at)};
    if (!p->at) return false;
    for (uint32_t i = 0; i < strand->n; p->n++) {
        part *at = &p->at[p->n];
        *at = (part){.first = i};
        while (i < strand->n && strand->ops[i].block == strand->ops[at->first].block) i++;
        at->end = i;
        at->ordered = has_all(order, strand, s, at);
        p->n_ordered += at->ordered;
    }
    return true;
}

typedef struct issuing {
    const dh_slot *slot;
    const dh_written_order *order;
    bool *issued; /* [nodes] */
    dh_slot_pick *picks;
    uint32_t n;
} issuing;

static void issue(issuing *is, uint8_t strand, uint32_t op, bool barrier)
{
    const dh_slot_pick pick = {.op = op, .strand = strand, .barrier = barrier};
    bool *issued = &is->issued[slot_pick_node(is->slot, &pick)];
    if (*issued) return;
    *issued = true;
    is->picks[is->n++] = pick;
}

static void issue_part(issuing *is, uint8_t strand, const part *p)
{
    for (uint32_t i = p->first; i < p->end; i++) issue(is, strand, i, false);
}

/* Reductions, which no order has, come last: beside what follows, on streams of their own. */
static void issue_pair(issuing *is, const part *f, const part *b)
{
    const part *of[2] = {f, b};
    bool barrier = false;
    for (uint32_t i = 0; i < is->order->n; i++) {
        const dh_written_op *w = &is->order->ops[i];
        const part *p = of[w->strand];
        const uint32_t op = find_op(&is->slot->strand[w->strand], p->first, p->end, w);
        barrier |= w->barrier;
        if (op == DH_NONE) continue;
        issue(is, w->strand, op, barrier);
        barrier = false;
    }
    issue_part(is, 0, f);
    issue_part(is, 1, b);
}

/* Blocks that the order does not have, and layers of the forward that have no partner, alone. */
static void issue_all(issuing *is, parts p[2])
{
    uint32_t alone =
        p[1].n_ordered && p[0].n_ordered > p[1].n_ordered ? p[0].n_ordered - p[1].n_ordered : 0;
    while (p[0].next < p[0].n || p[1].next < p[1].n) {
        const bool has_f = p[0].next < p[0].n, has_b = p[1].next < p[1].n;
        const part *f = &p[0].at[p[0].next], *b = &p[1].at[p[1].next]; /* or one past the last */
        if (has_f && (!has_b || !f->ordered || alone > 0)) {
            alone -= f->ordered && alone > 0;
            issue_part(is, 0, f);
            p[0].next++;
        } else if (!has_f || !b->ordered) {
            issue_part(is, 1, b);
            p[1].next++;
        } else {
            issue_pair(is, f, b);
            p[0].next++;
            p[1].next++;
        }
    }
}

static dh_status order_written(dh_ctx *ctx, const dh_slot *slot, const dh_order_options *options,
                               dh_slot_pick *order)
{
    parts p[2] = {{0}, {0}};
    issuing is = {.slot = slot, .order = options->written, .picks = order};
    is.issued = calloc((size_t)slot_nodes(slot) + 1, sizeof *is.issued);
    const bool ok = is.issued && parts_init(&p[0], slot, 0, options->written) &&
                    parts_init(&p[1], slot, 1, options->written);
    if (ok) issue_all(&is, p);
    free(is.issued);
    free(p[0].at);
    free(p[1].at);
    return ok ? DH_OK : dh_no_memory(ctx);
}

const dh_order_policy *dh_written_policy(void)
{
    static const dh_order_policy policy = {
        .name = "written", .doc = "the order of a file", .order = order_written, .fixed = true};
    return &policy;
}
