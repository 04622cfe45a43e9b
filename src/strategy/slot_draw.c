/* An order of a slot as text: totals, the streams as bars over time, every operator, and why
 * what is exposed is. */
#include <stdlib.h>
#include <string.h>

#include "strategy/slot.h"

enum { WIDTH = 80, BAR_CHARS = WIDTH - 16 };

typedef struct drawing {
    const dh_slot *slot;
    const dh_slot_pick *order;
    uint32_t n;
    dh_slot_timing t;
    dh_str *out;
} drawing;

static double us(double ns)
{
    return ns / 1e3;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static const dh_slot_op *op_of(const drawing *d, uint32_t pick)
{
    return slot_node(d->slot, slot_pick_node(d->slot, &d->order[pick]));
}

/* "linear -> qkv" */
static void put_name(const drawing *d, uint32_t pick, dh_str *text)
{
    const dh_cost_op *at = &op_of(d, pick)->at;
    dh_str_printf(text, "%s", dh_op_info_of(at->op->type)->name);
    for (int k = 0; k < DH_MAX_OPERANDS; k++) {
        if (at->op->out[k] == DH_NONE) continue;
        dh_str_printf(text, " -> %s", at->graph->tensors.at[at->op->out[k]].name);
        return;
    }
}

/* Behind what stands on the line, in as many lines as it takes; releases the text. */
static void put_text(const drawing *d, dh_str *text, int indent)
{
    if (text->failed || !text->text)
        d->out->failed = true;
    else
        dh_str_wrap(d->out, text->text, indent, WIDTH);
    dh_str_fini(text);
}

static char strand_letter(const drawing *d, uint32_t pick)
{
    if (d->order[pick].strand == 0) return 'F';
    return op_of(d, pick)->reduces ? 'R' : op_of(d, pick)->wgrad ? 'W' : 'B';
}

static void draw_totals(const drawing *d, const char *title)
{
    const dh_slot_timing *t = &d->t;
    double busy[DH_N_ENGINE] = {0}, all = 0;
    for (uint32_t i = 0; i < d->n; i++)
        busy[dh_stream_engine(op_of(d, i)->stream)] += op_of(d, i)->ns;
    dh_str text = DH_STR_INIT;
    dh_str_printf(
        &text, "%s: %u forward and %u backward operators, %.1f us; one more slot adds %.1f us",
        title, d->slot->strand[0].n, d->slot->strand[1].n, us(t->makespan_ns), us(t->period_ns));
    put_text(d, &text, 2);
    dh_str_printf(&text, "bound %.1f us (", us(dh_slot_bound(d->slot)));
    for (int e = 0; e < DH_N_ENGINE; all += busy[e++])
        dh_str_printf(&text, "%s%s %.1f", e ? ", " : "", dh_engine_name((dh_engine)e), us(busy[e]));
    dh_str_printf(&text, "); one after the other %.1f us", us(all));
    dh_str_append(d->out, "  ", 2);
    put_text(d, &text, 2);
    dh_str_printf(&text, "communication takes %.1f us alone, exposed %.1f us",
                  us(t->communication_ns), us(t->exposed_ns));
    if (t->slowdown_ns > 0)
        dh_str_printf(&text, " (%.1f us of it slows computation down)", us(t->slowdown_ns));
    dh_str_printf(&text, ": %.1f %% hidden",
                  percent(t->communication_ns - t->exposed_ns, t->communication_ns));
    dh_str_append(d->out, "  ", 2);
    put_text(d, &text, 2);
}

static void draw_bars(const drawing *d)
{
    for (int s = 0; s < DH_N_STREAM; s++) {
        char bar[BAR_CHARS + 1];
        memset(bar, ' ', BAR_CHARS);
        bar[BAR_CHARS] = 0;
        for (uint32_t i = 0; i < d->n; i++) {
            if (op_of(d, i)->stream != (dh_stream)s) continue;
            const double scale = BAR_CHARS / d->t.makespan_ns;
            const int a = (int)(d->t.start_ns[i] * scale), b = (int)(d->t.end_ns[i] * scale);
            for (int x = a; x < DH_MIN(DH_MAX(b, a + 1), BAR_CHARS); x++)
                bar[x] = strand_letter(d, i);
        }
        if (d->t.busy_ns[s] > 0)
            dh_str_printf(d->out, "  %-10s |%s|\n", dh_stream_name((dh_stream)s), bar);
    }
}

static void draw_operators(const drawing *d)
{
    enum { NAME_AT = 48 };
    dh_str text = DH_STR_INIT;
    dh_str_printf(d->out, "  F forward, B input gradient, W weight gradient, R reduction\n");
    dh_str_printf(d->out, "  %10s %10s %10s  %-10s  operator\n", "start us", "end us", "alone us",
                  "stream");
    for (uint32_t i = 0; i < d->n; i++) {
        dh_str_printf(d->out, "  %10.1f %10.1f %10.1f  %-10s  ", us(d->t.start_ns[i]),
                      us(d->t.end_ns[i]), us(op_of(d, i)->ns), dh_stream_name(op_of(d, i)->stream));
        dh_str_printf(&text, "%c ", strand_letter(d, i));
        put_name(d, i, &text);
        put_text(d, &text, NAME_AT);
    }
}

static void put_why(const drawing *d, uint32_t pick, const dh_slot_exposure *e, dh_str *text)
{
    dh_str_printf(text, "of %c ", strand_letter(d, pick));
    put_name(d, pick, text);
    if (e->next == DH_NONE) {
        dh_str_printf(text, ": no computation is left in the slot");
        return;
    }
    dh_str_printf(text, ": %s %c ", e->needed ? "needed by" : "next is", strand_letter(d, e->next));
    put_name(d, e->next, text);
    if (!e->needed) dh_str_printf(text, ", which waits for other data");
}

static void draw_exposed(const drawing *d)
{
    const double least = 0.002 * d->t.makespan_ns;
    enum { TEXT_AT = 16 };
    dh_str text = DH_STR_INIT;
    dh_slot_exposure e;
    bool any = false;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!dh_slot_exposed(d->slot, d->order, &d->t, i, &e) || e.ns < least) continue;
        dh_str_printf(d->out, "%s  %10.1f us ", any ? "" : "  exposed:\n", us(e.ns));
        put_why(d, i, &e, &text);
        put_text(d, &text, TEXT_AT);
        any = true;
    }
    if (!any) dh_str_printf(d->out, "  exposed: nothing above 0.2 %% of the slot\n");
}

dh_status dh_slot_draw(dh_ctx *ctx, const dh_slot *slot, const dh_slot_pick *order,
                       const char *title, dh_str *out)
{
    drawing d = {.slot = slot, .order = order, .n = slot_nodes(slot), .out = out};
    d.t.start_ns = calloc((size_t)d.n + 1, sizeof *d.t.start_ns);
    d.t.end_ns = calloc((size_t)d.n + 1, sizeof *d.t.end_ns);
    dh_status st =
        d.t.start_ns && d.t.end_ns ? dh_slot_time(ctx, slot, order, &d.t) : dh_no_memory(ctx);
    if (st == DH_OK) {
        draw_totals(&d, title);
        draw_bars(&d);
        draw_operators(&d);
        draw_exposed(&d);
        if (out->failed) st = dh_no_memory(ctx);
    }
    free(d.t.start_ns);
    free(d.t.end_ns);
    return st;
}
