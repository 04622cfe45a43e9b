/* Figures from traces of a step, and from the schedule as planned. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/index.h"
#include "report/html/chart.h"
#include "report/html/figure.h"

/* ---- instructions ---------------------------------------------------------------------------- */

/* The row of "kinds" of an instruction: operator, phase, block, ... (trace.c). */
static const char *kind_text(const figured_run *run, const event *e, size_t column)
{
    const json_t *row = json_array_get(run->kinds, (size_t)e->kind);
    const char *text = json_string_value(json_array_get(row, column));
    return text ? text : "";
}

static int look_of_phase(const figured_run *run, const event *e)
{
    static const char *const phases[] = {"forward", "input-gradient", "weight-gradient"};
    const char *phase = kind_text(run, e, 1);
    for (int i = 0; i < (int)DH_COUNTOF(phases); i++)
        if (strcmp(phase, phases[i]) == 0) return LOOK_FORWARD + i;
    return LOOK_OTHER;
}

static int look_of_event(const figured_run *run, const event *e)
{
    if (e->stream == DH_STREAM_COMPUTE) return look_of_phase(run, e);
    return dh_stream_engine((dh_stream)e->stream) == DH_ENGINE_CROSS ? LOOK_CROSS : LOOK_LOCAL;
}

/* Nanoseconds of the largest unit that the time has one of, and an axis's name in it. */
static double time_unit(double ns, const char **axis)
{
    const bool s = ns >= 1e9, ms = ns >= 1e6;
    *axis = s ? "time (s)" : ms ? "time (ms)" : "time (\xc2\xb5s)";
    return s ? 1e9 : ms ? 1e6 : 1e3;
}

static double end_of(const traces *t)
{
    int64_t end = 0;
    for (size_t i = 0; i < t->ranks.n; i++)
        for (size_t k = 0; k < t->ranks.at[i].events.n; k++) {
            const event *e = &t->ranks.at[i].events.at[k];
            end = DH_MAX(end, e->start_ns + e->dur_ns);
        }
    return (double)end;
}

static const chart_entry stream_entries[] = {{"forward", LOOK_FORWARD},
                                             {"backward: input gradient", LOOK_BACKWARD},
                                             {"backward: weight gradient", LOOK_WEIGHTS},
                                             {"other", LOOK_OTHER},
                                             {"communication inside a node", LOOK_LOCAL},
                                             {"communication between nodes", LOOK_CROSS}};
static const chart_legend stream_legend = {stream_entries, DH_COUNTOF(stream_entries)};

/* The instructions of a drawing, in rows. */
typedef struct drawn {
    const figured_run *run;
    DH_VEC(const event *) events;
    chart_spans spans;
    double unit;
    int64_t zero_ns;
} drawn;

static void say_event(const void *user, size_t item, dh_str *title)
{
    const drawn *d = user;
    const event *e = d->events.at[item];
    char time[32];
    dh_str_printf(title, "%s", kind_text(d->run, e, 0));
    if (*kind_text(d->run, e, 3)) dh_str_printf(title, " -> %s", kind_text(d->run, e, 3));
    if (e->layer >= 0) dh_str_printf(title, ", layer %d", e->layer);
    if (e->mb >= 0) dh_str_printf(title, ", micro-batch %d", e->mb);
    dh_str_printf(title, ": %s", dh_format_ns(time, sizeof time, (double)e->dur_ns));
}

static void csv_event(const drawn *d, int64_t rank, const event *e, dh_str *csv)
{
    dh_str_printf(csv, "%lld,%s,", (long long)rank, dh_stream_name((dh_stream)e->stream));
    for (size_t column = 0; column < 2; column++) {
        dh_csv_put(kind_text(d->run, e, column), csv);
        dh_str_append(csv, ",", 1);
    }
    if (e->layer >= 0) dh_str_printf(csv, "%d", e->layer);
    dh_str_append(csv, ",", 1);
    if (e->mb >= 0) dh_str_printf(csv, "%d", e->mb);
    dh_str_printf(csv, ",%lld,%lld,%lld\n", (long long)(e->start_ns - d->zero_ns),
                  (long long)e->dur_ns, (long long)e->waited_ns);
}

static const char csv_events_head[] =
    "rank,stream,operator,phase,layer,micro_batch,start_ns,duration_ns,waited_ns\n";

static void add_row(drawn *d, const char *label, bool apart, dh_figure *f)
{
    chart_row row = {.apart = apart};
    snprintf(row.label, sizeof row.label, "%s", label);
    f->svg.failed |= !dh_vec_push(&d->spans.rows, row);
}

/* An instruction in the last row. */
static void add_event(drawn *d, int64_t rank, const event *e, bool named, dh_figure *f)
{
    const double begin = (double)(e->start_ns - d->zero_ns) / d->unit;
    const chart_span span = {.row = d->spans.rows.n - 1,
                             .begin = begin,
                             .end = begin + (double)e->dur_ns / d->unit,
                             .look = look_of_event(d->run, e),
                             .text = named ? kind_text(d->run, e, 0) : NULL,
                             .item = d->events.n};
    csv_event(d, rank, e, &f->csv);
    f->svg.failed |= !dh_vec_push(&d->events, e) || !dh_vec_push(&d->spans.spans, span);
}

static void draw(drawn *d, const chart_text *text, dh_figure *f)
{
    d->spans.title_of = say_event;
    d->spans.user = d;
    d->spans.wide = true;
    if (!f->svg.failed) chart_spans_draw(text, &d->spans, stream_legend, &f->svg);
    dh_vec_fini(&d->events);
    dh_vec_fini(&d->spans.rows);
    dh_vec_fini(&d->spans.spans);
}

bool figure_timeline(const figured_run *runs, size_t n, dh_figure *f)
{
    const traces *t = &runs[0].traces;
    drawn d = {.run = &runs[0], .spans = {.merge = true}};
    chart_text text = {.title = "Timeline of a step, by rank and stream"};
    if (n != 1 || !t->ranks.n) return false;
    d.unit = time_unit(end_of(t), &text.x);
    dh_str_printf(&f->csv, "%s", csv_events_head);
    for (size_t i = 0; i < t->ranks.n; i++) {
        const traced_rank *r = &t->ranks.at[i];
        int32_t stream = -1;
        for (size_t k = 0; k < r->events.n; k++) {
            const event *e = &r->events.at[k];
            char label[64];
            snprintf(label, sizeof label, "%s", dh_stream_name((dh_stream)e->stream));
            if (stream < 0) snprintf(label, sizeof label, "rank %lld", (long long)r->rank);
            if (stream < 0 && e->stream) /* its label stands before its streams */
                snprintf(label, sizeof label, "rank %lld, %s", (long long)r->rank,
                         dh_stream_name((dh_stream)e->stream));
            if (e->stream != stream) add_row(&d, label, stream < 0, f);
            stream = e->stream;
            add_event(&d, r->rank, e, false, f);
        }
    }
    draw(&d, &text, f);
    return true;
}

/* ---- two strands of a layer ------------------------------------------------------------------ */

/* A forward and a backward of layers of a rank; ns: how long instructions of both ran at once. A
 * double, because the sum of what a file says may be beyond any integer. */
typedef struct strands {
    const traced_rank *rank;
    const event *side[2]; /* any instruction of each */
    double ns;
} strands;

typedef struct of_layer {
    const event *e;
    bool back;
} of_layer;

/* Strands that ran at once on a rank. n_looks counts the looks at two instructions on all ranks so
 * far. */
typedef struct at_once {
    DH_VEC(of_layer) events; /* by start */
    DH_VEC(strands) sums;
    dh_index index; /* of sums, by their sides */
    size_t n_looks;
} at_once;

/* Limits of the looks, which bound the time, and of the sums, which bound the memory. A rank has few
 * streams, so that traces of runs take a few looks an instruction, and few sums. */
enum { MOST_LOOKS = 1 << 22, LOOKS_A_SUM = 16 };

static int by_start(const void *x, const void *y)
{
    const event *a = ((const of_layer *)x)->e, *b = ((const of_layer *)y)->e;
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool same_side(const event *a, const event *b)
{
    return a->layer == b->layer && a->mb == b->mb;
}

/* False: out of memory. */
static bool add_sum(at_once *o, const strands *s)
{
    uint64_t hash = 0;
    size_t at = 0;
    for (int i = 0; i < 2; i++)
        hash = dh_mix64(hash ^ ((uint64_t)s->side[i]->layer << 32 | (uint32_t)s->side[i]->mb));
    for (uint32_t i = dh_index_first(&o->index, hash, &at); i != DH_NONE;
         i = dh_index_next(&o->index, hash, &at)) {
        strands *known = &o->sums.at[i];
        if (!same_side(known->side[0], s->side[0]) || !same_side(known->side[1], s->side[1]))
            continue;
        known->ns += s->ns;
        return true;
    }
    o->n_looks += LOOKS_A_SUM;
    return dh_vec_push(&o->sums, *s) && dh_index_add(&o->index, hash, (uint32_t)o->sums.n - 1);
}

/* False: out of memory. Stops at MOST_LOOKS. */
static bool add_strands(const figured_run *run, const traced_rank *r, at_once *o)
{
    bool ok = true;
    o->events.n = 0;
    o->sums.n = 0;
    dh_index_clear(&o->index);
    for (size_t i = 0; ok && i < r->events.n; i++) {
        const event *e = &r->events.at[i];
        const of_layer own = {e, look_of_phase(run, e) != LOOK_FORWARD};
        if (e->layer >= 0 && e->mb >= 0) ok = dh_vec_push(&o->events, own);
    }
    if (o->events.n) qsort(o->events.at, o->events.n, sizeof *o->events.at, by_start);
    for (size_t i = 0; ok && i < o->events.n; i++) {
        const of_layer a = o->events.at[i];
        const int64_t end = a.e->start_ns + a.e->dur_ns;
        for (size_t k = i + 1; ok && k < o->events.n; k++) {
            const of_layer b = o->events.at[k];
            if (b.e->start_ns >= end || o->n_looks >= MOST_LOOKS) break;
            o->n_looks++;
            if (a.e->stream == b.e->stream || a.back == b.back) continue;
            const int64_t stop = DH_MIN(end, b.e->start_ns + b.e->dur_ns);
            const strands s = {
                r, {a.back ? b.e : a.e, a.back ? a.e : b.e}, (double)(stop - b.e->start_ns)};
            ok = add_sum(o, &s);
        }
    }
    return ok;
}

/* The two that ran together longest. False: none did, or f->why says why it is not known. */
static bool find_strands(const figured_run *run, strands *best, dh_figure *f)
{
    at_once o = {.n_looks = 0};
    *best = (strands){.ns = 0};
    for (size_t i = 0; !f->svg.failed && i < run->traces.ranks.n; i++) {
        f->svg.failed |= !add_strands(run, &run->traces.ranks.at[i], &o);
        for (size_t k = 0; k < o.sums.n; k++)
            if (o.sums.at[k].ns > best->ns) *best = o.sums.at[k];
    }
    dh_vec_fini(&o.events);
    dh_vec_fini(&o.sums);
    dh_index_fini(&o.index);
    if (o.n_looks >= MOST_LOOKS)
        snprintf(f->why, sizeof f->why,
                 "too many instructions ran at once in the traces: --ranks N reads fewer of them");
    return best->rank && !f->why[0];
}

/* Instructions of one of the two, which is that of event `one`. */
static void add_strand(drawn *d, const traced_rank *r, const event *one, bool back, dh_figure *f)
{
    int32_t stream = -1;
    for (size_t k = 0; k < r->events.n; k++) {
        const event *e = &r->events.at[k];
        char label[64];
        if (e->layer != one->layer || e->mb != one->mb ||
            back != (look_of_phase(d->run, e) != LOOK_FORWARD))
            continue;
        snprintf(label, sizeof label, "%c%d %s", back ? 'B' : 'F', e->mb,
                 dh_stream_name((dh_stream)e->stream));
        if (e->stream != stream) add_row(d, label, stream < 0, f);
        stream = e->stream;
        add_event(d, r->rank, e, true, f);
    }
}

bool figure_layer(const figured_run *runs, size_t n, dh_figure *f)
{
    strands s;
    char title[160];
    chart_text text = {.title = title};
    drawn d = {.run = &runs[0]};
    if (n != 1 || !find_strands(&runs[0], &s, f)) return false;
    const event *fw = s.side[0], *bw = s.side[1];
    int64_t begin = INT64_MAX, end = INT64_MIN;
    for (size_t k = 0; k < s.rank->events.n; k++) {
        const event *e = &s.rank->events.at[k];
        const event *one = look_of_phase(&runs[0], e) == LOOK_FORWARD ? fw : bw;
        if (e->layer != one->layer || e->mb != one->mb) continue;
        begin = DH_MIN(begin, e->start_ns);
        end = DH_MAX(end, e->start_ns + e->dur_ns);
    }
    d.zero_ns = begin;
    d.unit = time_unit((double)(end - begin), &text.x);
    snprintf(title, sizeof title,
             "Forward of layer %d, micro-batch %d, and backward of layer %d, micro-batch %d, on "
             "rank %lld",
             fw->layer, fw->mb, bw->layer, bw->mb, (long long)s.rank->rank);
    dh_str_printf(&f->csv, "%s", csv_events_head);
    for (int k = 0; k < 2; k++) add_strand(&d, s.rank, s.side[k], k, f);
    draw(&d, &text, f);
    return true;
}

/* ---- passes of micro-batches through stages -------------------------------------------------- */

/* All that a pipeline rank does of one micro-batch in a virtual stage, in one direction. */
typedef struct pass {
    int64_t rank;
    int32_t part, mb, kind; /* part: the virtual stage; kind: a place in kinds */
    double begin, end;
} pass;

typedef DH_VEC(pass) passes;

static int by_key(const void *x, const void *y)
{
    const pass *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    if (a->mb != b->mb) return a->mb < b->mb ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static int by_rank_and_begin(const void *x, const void *y)
{
    const pass *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return by_key(x, y);
}

/* Instructions of the same become one pass; then by rank and time. */
static void join(passes *p)
{
    size_t n = 0;
    if (p->n) qsort(p->at, p->n, sizeof *p->at, by_key);
    for (size_t i = 0; i < p->n; i++) {
        const pass *x = &p->at[i], *last = n ? &p->at[n - 1] : NULL;
        if (last && last->rank == x->rank && last->kind == x->kind && last->part == x->part &&
            last->mb == x->mb)
            p->at[n - 1].end = DH_MAX(last->end, x->end);
        else
            p->at[n++] = *x;
    }
    p->n = n;
    if (p->n) qsort(p->at, p->n, sizeof *p->at, by_rank_and_begin);
}

static double together(const pass *a, const pass *b)
{
    return DH_MAX(0, DH_MIN(a->end, b->end) - DH_MAX(a->begin, b->begin));
}

/* ---- schedules ------------------------------------------------------------------------------- */

static const char kinds[] = "FBIW";

static const chart_entry schedule_entries[] = {{"forward", LOOK_FORWARD},
                                               {"backward, or its input gradient", LOOK_BACKWARD},
                                               {"weight gradient", LOOK_WEIGHTS}};

static int kind_number(const char *letter)
{
    const char *at = letter && *letter ? strchr(kinds, *letter) : NULL;
    return at ? (int)(at - kinds) : 0;
}

static const char *kind_name(int kind)
{
    static const char *const names[] = {"forward", "backward", "input gradient", "weight gradient"};
    return names[kind];
}

static void say_pass(const void *user, size_t item, dh_str *title)
{
    const pass *p = (const pass *)user + item;
    dh_str_printf(title, "%s of micro-batch %d, virtual stage %d", kind_name(p->kind), p->mb,
                  p->part);
}

/* Whether forwards of rank p->at[i].rank run at the same time as others: they need two rows. */
static bool is_paired(const passes *p, size_t i, size_t end)
{
    for (size_t k = i + 1; k < end; k++) {
        const pass *a = &p->at[k - 1], *b = &p->at[k];
        const double least = DH_MIN(a->end - a->begin, b->end - b->begin);
        if ((a->kind == 0) != (b->kind == 0) && together(a, b) > 0.3 * least) return true;
    }
    return false;
}

/* Passes of a rank in a row, which are forwards, or not; -1: all of them. */
static void add_passes(const passes *p, size_t i, size_t end, int forwards, double unit,
                       char (*numbers)[12], chart_spans *s, dh_figure *f)
{
    chart_row row = {.apart = forwards != 0};
    double until = 0;
    int32_t first = INT32_MAX; /* virtual stage of the rank: later ones are paler */
    for (size_t k = i; k < end; k++) first = DH_MIN(first, p->at[k].part);
    if (forwards) snprintf(row.label, sizeof row.label, "stage %lld", (long long)p->at[i].rank);
    f->svg.failed |= !dh_vec_push(&s->rows, row);
    for (; i < end; i++) {
        const pass *x = &p->at[i];
        if (forwards >= 0 && forwards != (x->kind == 0)) continue;
        snprintf(numbers[i], sizeof numbers[i], "%d", x->mb);
        const chart_span span = {.row = s->rows.n - 1,
                                 .begin = DH_MAX(x->begin, until) / unit,
                                 .end = DH_MAX(x->end, until) / unit,
                                 .look = x->kind == 3 ? LOOK_WEIGHTS
                                         : x->kind    ? LOOK_BACKWARD
                                                      : LOOK_FORWARD,
                                 .pale = x->part > first,
                                 .text = numbers[i],
                                 .item = i};
        until = DH_MAX(until, x->end);
        f->svg.failed |= !dh_vec_push(&s->spans, span);
    }
}

/* unit: of begin and end; in the CSV file they are as they are */
static bool draw_schedule(const passes *p, const chart_text *text, double unit, const char *in,
                          dh_figure *f)
{
    chart_spans s = {.wide = true, .title_of = say_pass, .user = p->at};
    char axis[96];
    chart_text own = *text;
    bool pale = false;
    char(*numbers)[12] = malloc((p->n + 1) * sizeof *numbers);
    f->svg.failed |= !numbers;
    dh_str_printf(&f->csv, "stage,kind,virtual_stage,micro_batch,start%s,end%s\n", in, in);
    for (size_t i = 0, end; numbers && i < p->n; i = end) {
        for (end = i; end < p->n && p->at[end].rank == p->at[i].rank; end++) {
            const pass *x = &p->at[end];
            dh_str_printf(&f->csv, "%lld,%c,%d,%d,%.0f,%.0f\n", (long long)x->rank, kinds[x->kind],
                          x->part, x->mb, x->begin, x->end);
        }
        const bool paired = is_paired(p, i, end);
        add_passes(p, i, end, paired ? 1 : -1, unit, numbers, &s, f);
        if (paired) add_passes(p, i, end, 0, unit, numbers, &s, f);
    }
    const chart_legend legend = {schedule_entries, DH_COUNTOF(schedule_entries)};
    for (size_t i = 0; i < s.spans.n; i++) pale |= s.spans.at[i].pale;
    snprintf(axis, sizeof axis, "%s%s", text->x,
             pale ? "; paler: later virtual stages of a rank" : "");
    own.x = axis;
    if (!f->svg.failed) chart_spans_draw(&own, &s, legend, &f->svg);
    dh_vec_fini(&s.rows);
    dh_vec_fini(&s.spans);
    free(numbers);
    return true;
}

/* Actions of the plan; whether it splits backwards is returned. */
static bool planned(const figured_run *run, passes *p, dh_figure *f)
{
    const json_t *slots = json_object_get(json_object_get(run->data, "plan"), "slots");
    bool split = false;
    for (size_t g = 0; g < json_array_size(slots); g++) {
        const json_t *rank = json_array_get(slots, g);
        for (size_t i = 0; i < json_array_size(rank); i++) {
            const json_t *slot = json_array_get(rank, i);
            for (size_t k = 2; k + 2 < json_array_size(slot); k += 3) {
                const pass x = {(int64_t)g,
                                (int32_t)json_integer_value(json_array_get(slot, k + 1)),
                                (int32_t)json_integer_value(json_array_get(slot, k + 2)),
                                kind_number(json_string_value(json_array_get(slot, k))),
                                json_number_value(json_array_get(slot, 0)),
                                json_number_value(json_array_get(slot, 1))};
                split |= x.kind == 2;
                f->svg.failed |= !dh_vec_push(p, x);
            }
        }
    }
    if (p->n) qsort(p->at, p->n, sizeof *p->at, by_rank_and_begin);
    return split;
}

bool figure_plan(const figured_run *runs, size_t n, dh_figure *f)
{
    static const chart_text text = {"Pipeline schedule as planned",
                                    "time, a forward taking 1 and a backward 2", ""};
    passes p = {0};
    planned(&runs[0], &p, f);
    const bool any = n == 1 && p.n && draw_schedule(&p, &text, 1, "", f);
    dh_vec_fini(&p);
    return any;
}

/* The virtual stage of each layer, where the plan says; stages: their number. */
static int32_t stage_of(const json_t *plan, const char *block, int32_t layer)
{
    const json_t *layers = json_object_get(plan, "layers");
    const size_t n = json_array_size(layers);
    if (strcmp(block, "head") == 0) return n ? (int32_t)n - 1 : 0;
    json_int_t before = 0;
    for (size_t v = 0; v < n && strcmp(block, "embed") != 0; v++) {
        before += json_integer_value(json_array_get(layers, v));
        if (layer < before) return (int32_t)v;
    }
    return 0;
}

/* Computation of each micro-batch on the first traced rank of every pipeline stage. */
static void ran(const figured_run *run, bool split, passes *p, dh_figure *f)
{
    const json_t *plan = json_object_get(run->data, "plan");
    const traces *t = &run->traces;
    DH_VEC(bool) seen = {0};
    for (size_t i = 0; i < t->ranks.n; i++) {
        const traced_rank *r = &t->ranks.at[i];
        const bool known = r->rank < run->folder.mesh.ranks;
        const int64_t stage = known ? dh_mesh_coord(&run->folder.mesh, r->rank).pp : 0;
        while (!f->svg.failed && seen.n <= (size_t)stage)
            f->svg.failed |= !dh_vec_push(&seen, false);
        if (f->svg.failed || seen.at[stage]) continue;
        seen.at[stage] = true;
        for (size_t k = 0; k < r->events.n; k++) {
            const event *e = &r->events.at[k];
            const char *block = kind_text(run, e, 2);
            const int look = look_of_phase(run, e);
            if (e->stream != DH_STREAM_COMPUTE || e->mb < 0 ||
                (strcmp(block, "layer") != 0 && strcmp(block, "embed") != 0 &&
                 strcmp(block, "head") != 0))
                continue;
            const int kind = look == LOOK_FORWARD ? 0 : !split ? 1 : look == LOOK_BACKWARD ? 2 : 3;
            const pass x = {stage,
                            stage_of(plan, block, e->layer),
                            e->mb,
                            kind,
                            (double)e->start_ns,
                            (double)(e->start_ns + e->dur_ns)};
            f->svg.failed |= !dh_vec_push(p, x);
        }
    }
    dh_vec_fini(&seen);
    join(p);
}

bool figure_schedule(const figured_run *runs, size_t n, dh_figure *f)
{
    chart_text text = {.title = "Pipeline schedule as it ran"};
    passes plan = {0}, p = {0};
    ran(&runs[0], planned(&runs[0], &plan, f), &p, f);
    double end = 0;
    for (size_t i = 0; i < p.n; i++) end = DH_MAX(end, p.at[i].end);
    const double unit = time_unit(end, &text.x);
    const bool any = n == 1 && p.n && draw_schedule(&p, &text, unit, "_ns", f);
    dh_vec_fini(&plan);
    dh_vec_fini(&p);
    return any;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static double persistent_of(const traced_rank *r)
{
    static const char *const keys[] = {"master", "copy", "grad", "adam.m", "adam.v", "state", "kv"};
    const json_t *bytes = json_object_get(r->other, "persistent_bytes");
    double sum = 0;
    for (size_t i = 0; i < DH_COUNTOF(keys); i++)
        sum += json_number_value(json_object_get(bytes, keys[i]));
    return sum;
}

/* The rank that needs most, like the page. */
static const traced_rank *fullest(const traces *t)
{
    const traced_rank *best = NULL;
    double most = -1;
    for (size_t i = 0; i < t->ranks.n; i++) {
        const traced_rank *r = &t->ranks.at[i];
        for (size_t k = 0; k < r->memory.n; k++) {
            const memory_at *m = &r->memory.at[k];
            const double all = persistent_of(r) + (double)m->activations + (double)m->scratch;
            if (all <= most) continue;
            most = all;
            best = r;
        }
    }
    return best;
}

/* The curves are sums from below: what persists, activations, scratch. The highest is drawn first,
 * so that the lower ones cover it. */
bool figure_memory(const figured_run *runs, size_t n, dh_figure *f)
{
    chart_curve curves[] = {{"scratch", LOOK_WEIGHTS, CHART_STAIRS, {0}},
                            {"activations", LOOK_FORWARD, CHART_STAIRS, {0}},
                            {"parameters, gradients, optimizer", LOOK_OTHER, CHART_STAIRS, {0}}};
    const traced_rank *r = fullest(&runs[0].traces);
    char title[80];
    chart_text text = {.title = title, .y = "memory (MiB)"};
    if (n != 1 || !r) return false;
    const double unit = time_unit(end_of(&runs[0].traces), &text.x), base = persistent_of(r);
    snprintf(title, sizeof title, "Memory of rank %lld over a step", (long long)r->rank);
    dh_str_printf(&f->csv, "rank,time_ns,persistent_bytes,activations_bytes,scratch_bytes\n");
    for (size_t i = 0; i < r->memory.n; i++) {
        const memory_at *m = &r->memory.at[i];
        const double lower = base + (double)m->activations;
        const double heights[] = {lower + (double)m->scratch, lower, base};
        dh_str_printf(&f->csv, "%lld,%lld,%.0f,%lld,%lld\n", (long long)r->rank,
                      (long long)m->at_ns, base, (long long)m->activations, (long long)m->scratch);
        for (size_t k = 0; k < DH_COUNTOF(curves); k++)
            f->svg.failed |= !dh_vec_push(
                &curves[k].points, (chart_point){(double)m->at_ns / unit, heights[k] / 1048576});
    }
    if (!f->svg.failed) chart_curves(&text, curves, DH_COUNTOF(curves), true, &f->svg);
    for (size_t k = 0; k < DH_COUNTOF(curves); k++) dh_vec_fini(&curves[k].points);
    return true;
}
