/* Traces as columns of the page.
 *
 * The common facts of many instructions are a row of one table, "kinds": operator and phase; block,
 * tensor and group; FLOPs and bytes. An instruction is the row's number, micro-batch, layer and
 * three times, in nanoseconds from the first instruction of any rank. Starts of a stream are
 * counted from the one before. A column that an earlier rank has too is the number of that rank.
 * All of it is packed, so an instruction takes 2 to 6 bytes of the page. */
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

/* Ranks of a stage run the same instructions, so most of their columns are the same. */
enum { LEAST_SHARED = 16 }; /* entries; a shorter column is written again */

typedef struct column {
    const traced_rank *rank;
    size_t first, n; /* its entries among the rank's */
    int field;
    bool of_memory;
} column;

static int64_t entry(const column *c, size_t i)
{
    if (!c->of_memory) {
        const event *e = &c->rank->events.at[c->first + i];
        return fields[c->field].of(e, i ? e - 1 : NULL);
    }
    const memory_at *m = &c->rank->memory.at[i];
    if (c->field == 0) return m->at_ns - (i ? m[-1].at_ns : 0);
    return c->field == 1 ? m->activations : m->scratch;
}

static bool same_column(const column *a, const column *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (entry(a, i) != entry(b, i)) return false;
    return true;
}

static column column_of(const traced_rank *r, int stream, int field, bool of_memory)
{
    column c = {
        .rank = r, .n = of_memory ? r->memory.n : 0, .field = field, .of_memory = of_memory};
    if (of_memory) return c;
    c.first = r->stream0[stream];
    c.n = r->stream0[stream + 1] - c.first;
    return c;
}

/* The column, or the number of the first rank that has the same. */
static void write_column(const traces *t, size_t rank, int stream, int field, bool of_memory,
                         json_out *out)
{
    const column own = column_of(&t->ranks.at[rank], stream, field, of_memory);
    for (size_t k = 0; k < rank && own.n >= LEAST_SHARED; k++) {
        const column other = column_of(&t->ranks.at[k], stream, field, of_memory);
        if (!same_column(&own, &other)) continue;
        out_int(out, (int64_t)k);
        return;
    }
    out_open(out, '[');
    for (size_t i = 0; i < own.n; i++) out_int(out, entry(&own, i));
    out_close(out, ']');
}

static void write_streams(const traces *t, size_t rank, json_out *out)
{
    out_key(out, "streams");
    out_open(out, '[');
    for (int s = 0; s < DH_N_STREAM; s++) {
        out_open(out, '{');
        for (int f = 0; f < (int)DH_COUNTOF(fields); f++) {
            out_key(out, fields[f].key);
            write_column(t, rank, s, f, false, out);
        }
        out_close(out, '}');
    }
    out_close(out, ']');
}

static void write_memory(const traces *t, size_t rank, json_out *out)
{
    static const char *const keys[] = {"t", "activations", "scratch"};
    if (t->ranks.at[rank].memory.n == 0) return;
    out_key(out, "memory");
    out_open(out, '{');
    for (int k = 0; k < 3; k++) {
        out_key(out, keys[k]);
        write_column(t, rank, 0, k, true, out);
    }
    out_close(out, '}');
}

static void write_rank(const dh_run_folder *run, const traces *t, size_t rank, json_out *out)
{
    const traced_rank *r = &t->ranks.at[rank];
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
    write_streams(t, rank, out);
    write_memory(t, rank, out);
    out_close(out, '}');
}

dh_status traces_kinds(dh_ctx *ctx, const traces *t, json_t **kinds)
{
    const char *row;
    json_t *number, *all = json_array();
    dh_status st = all ? DH_OK : dh_no_memory(ctx);
    json_object_foreach(t->kinds, row, number) /* in the order of insertion */
    {
        json_t *values = NULL;
        if (st == DH_OK) st = dh_json_read(ctx, row, strlen(row), 0, NULL, &values);
        if (st == DH_OK && json_array_append_new(all, values) != 0) st = dh_no_memory(ctx);
    }
    if (st != DH_OK) json_decref(all);
    *kinds = st == DH_OK ? all : NULL;
    return st;
}

static dh_status write_kinds(dh_ctx *ctx, const traces *t, json_out *out)
{
    json_t *kinds;
    DH_TRY(traces_kinds(ctx, t, &kinds));
    out_key(out, "kinds");
    out_json(out, kinds);
    json_decref(kinds);
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

/* Where each stream's events begin. */
static void find_streams(traced_rank *r)
{
    size_t at = 0;
    for (int s = 0; s < DH_N_STREAM; s++) {
        r->stream0[s] = at;
        while (at < r->events.n && r->events.at[at].stream == s) at++;
    }
    r->stream0[DH_N_STREAM] = at;
}

static dh_status write_all(dh_ctx *ctx, const dh_run_folder *run, const traces *t, json_out *out)
{
    out_open(out, '{');
    out_key(out, "files");
    out_int(out, (int64_t)t->files.n);
    out_key(out, "one_clock");
    out_int(out, t->one_clock);
    DH_TRY(write_kinds(ctx, t, out));
    write_stream_table(out);
    out_key(out, "ranks");
    out_open(out, '[');
    for (size_t i = 0; i < t->ranks.n; i++) write_rank(run, t, i, out);
    out_close(out, ']');
    out_close(out, '}');
    return DH_OK;
}

dh_status traces_write(dh_ctx *ctx, const dh_run_folder *run, traces *t, json_out *out)
{
    json_out own = {.comma = false};
    for (size_t i = 0; i < t->ranks.n; i++) find_streams(&t->ranks.at[i]);
    const dh_status st = write_all(ctx, run, t, &own);
    if (st == DH_OK) {
        out_key(out, "trace");
        out_packed(out, &own.text);
    }
    dh_str_fini(&own.text);
    return st;
}
