/* Traces as columns of the page.
 *
 * The common facts of many instructions are a row of one table, "kinds": operator, phase, block,
 * tensor, group, FLOPs and bytes. An instruction is the row's number, micro-batch, layer and three
 * times, in nanoseconds from the first instruction of any rank. Starts of a stream are counted from
 * the one before. So an instruction takes about 15 bytes of the page. */
#include "base/json_text.h"
#include "report/html/trace.h"

#include <string.h>

/* ---- writing -------------------------------------------------------------------------------- */

typedef int64_t (*event_field)(const event *e, const event *previous);

static int64_t start_field(const event *e, const event *previous)
{
    return e->start_ns - (previous ? previous->start_ns : 0);
}
static int64_t dur_field(const event *e, const event *previous)
{
    return e->dur_ns;
}
static int64_t waited_field(const event *e, const event *previous)
{
    return e->waited_ns;
}
static int64_t kind_field(const event *e, const event *previous)
{
    return e->kind;
}
static int64_t mb_field(const event *e, const event *previous)
{
    return e->mb;
}
static int64_t layer_field(const event *e, const event *previous)
{
    return e->layer;
}

static const struct {
    const char *key;
    event_field of;
} fields[] = {{"start", start_field}, {"dur", dur_field}, {"waited", waited_field},
              {"kind", kind_field},   {"mb", mb_field},   {"layer", layer_field}};

static void write_stream(const event *events, size_t n, json_out *out)
{
    out_open(out, '{');
    for (size_t f = 0; f < DH_COUNTOF(fields); f++) {
        out_key(out, fields[f].key);
        out_open(out, '[');
        for (size_t i = 0; i < n; i++)
            out_int(out, fields[f].of(&events[i], i ? &events[i - 1] : NULL));
        out_close(out, ']');
    }
    out_close(out, '}');
}

static void write_streams(const traced_rank *r, json_out *out)
{
    out_key(out, "streams");
    out_open(out, '[');
    size_t at = 0;
    for (int s = 0; s < DH_N_STREAM; s++) {
        size_t n = 0;
        while (at + n < r->events.n && r->events.at[at + n].stream == s) n++;
        write_stream(r->events.at + at, n, out);
        at += n;
    }
    out_close(out, ']');
}

static void write_memory(const traced_rank *r, json_out *out)
{
    static const char *const keys[] = {"t", "activations", "scratch"};
    if (r->memory.n == 0) return;
    out_key(out, "memory");
    out_open(out, '{');
    for (int k = 0; k < 3; k++) {
        out_key(out, keys[k]);
        out_open(out, '[');
        for (size_t i = 0; i < r->memory.n; i++) {
            const memory_at *m = &r->memory.at[i];
            const int64_t before = i ? r->memory.at[i - 1].at_ns : 0;
            out_int(out, k == 0 ? m->at_ns - before : k == 1 ? m->activations : m->scratch);
        }
        out_close(out, ']');
    }
    out_close(out, '}');
}

static void write_rank(const dh_run_folder *run, const traced_rank *r, json_out *out)
{
    out_open(out, '{');
    out_key(out, "rank");
    out_int(out, r->rank);
    if (r->rank < run->mesh.ranks) {
        out_key(out, "stage");
        out_int(out, dh_mesh_coord(&run->mesh, r->rank).pp);
    }
    if (r->other) {
        out_key(out, "bytes");
        out_json(out, r->other);
    }
    write_streams(r, out);
    write_memory(r, out);
    out_close(out, '}');
}

static dh_status write_kinds(dh_ctx *ctx, const traces *t, json_out *out)
{
    const char *row;
    json_t *number;
    out_key(out, "kinds");
    out_open(out, '[');
    json_object_foreach(t->kinds, row, number) /* in the order of insertion */
    {
        json_t *values;
        DH_TRY(dh_json_read(ctx, row, strlen(row), 0, NULL, &values));
        out_json(out, values);
        json_decref(values);
    }
    out_close(out, ']');
    return DH_OK;
}

/* Names of a rank's streams, and the engines that do their work. */
static void write_stream_table(json_out *out)
{
    out_key(out, "streams");
    out_open(out, '[');
    for (int s = 0; s < DH_N_STREAM; s++) {
        out_open(out, '[');
        out_text(out, dh_stream_name((dh_stream)s));
        out_text(out, dh_engine_name(dh_stream_engine((dh_stream)s)));
        out_close(out, ']');
    }
    out_close(out, ']');
}

dh_status traces_write(dh_ctx *ctx, const dh_run_folder *run, const traces *t, json_out *out)
{
    out_key(out, "trace");
    out_open(out, '{');
    out_key(out, "files");
    out_int(out, (int64_t)t->files.n);
    out_key(out, "one_clock");
    out_int(out, t->one_clock);
    DH_TRY(write_kinds(ctx, t, out));
    write_stream_table(out);
    out_key(out, "ranks");
    out_open(out, '[');
    for (size_t i = 0; i < t->ranks.n; i++) write_rank(run, &t->ranks.at[i], out);
    out_close(out, ']');
    out_close(out, '}');
    return DH_OK;
}
