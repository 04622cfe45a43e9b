/* Machine-readable outputs; nccl.h says what is checked.
 *   nccl-tests -J                   one object
 *   rccl-tests -Z json -x FILE      an object per row, in lines or as an array
 *   rccl-tests -Z csv -x FILE       the same rows as lines of cells */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/csv.h"
#include "base/json_text.h"
#include "calibrate/nccl.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* A number, or one in quotes. */
static bool number_of(const json_t *object, const char *key, double *value)
{
    const json_t *at = json_object_get(object, key);
    if (json_is_string(at)) return dh_parse_f64(json_string_value(at), value);
    *value = json_number_value(at);
    return json_is_number(at);
}

/* A bandwidth, with the unit of its last digit: parsed numbers have lost zeros at their end, so one
 * digit after the point at least. */
static void bandwidth_of(const json_t *object, const char *key, double *value, double *unit)
{
    *unit = 0.1;
    if (!number_of(object, key, value)) return;
    while (*unit > 1e-9 && fabs(*value / *unit - nearbyint(*value / *unit)) > 1e-6) *unit /= 10;
}

static int64_t count_of(const json_t *object, const char *key, int64_t absent)
{
    double value;
    return number_of(object, key, &value) && value >= 0 && value < 1e9 ? (int64_t)value : absent;
}

static dh_status wanted(const measured_file *f, int32_t line, const char *what)
{
    return dh_fail(f->ctx, DH_EFORMAT, "%s:%d: %s", f->path, line, what);
}

/* ---- nccl-tests ----------------------------------------------------------------------------- */

/* A process says its first rank and device; those that follow are its other threads and devices. */
static dh_status add_process(nccl_output *o, const json_t *device, int64_t n_each)
{
    const measured_file *f = o->file;
    const char *host = dh_arena_strdup(f->m->arena, text_of(device, "hostname"));
    const char *id = dh_arena_strdup(f->m->arena, text_of(device, "device_hex"));
    const int64_t first = count_of(device, "rank", -1), at = count_of(device, "device", -1);
    if (!host || !id) return measured_no_memory(f);
    if (first < 0 || at < 0 || !*host)
        return wanted(f, 1, "each of \"devices\" has \"rank\", \"hostname\" and \"device\"");
    for (int64_t i = 0; i < n_each; i++) {
        const nccl_rank rank = {.number = first + i,
                                .group = count_of(device, "group", 0),
                                .device = at + i,
                                .pid = count_of(device, "pid", 0),
                                .host = host,
                                .id = id};
        if (!dh_vec_push(&o->ranks, rank)) return measured_no_memory(f);
    }
    return DH_OK;
}

static dh_status read_ranks(nccl_output *o, const json_t *root)
{
    enum { MOST = 1 << 20 };
    const json_t *config = json_object_get(root, "config");
    const json_t *devices = json_object_get(config, "devices");
    const int64_t threads = count_of(config, "nthreads", 1), each = count_of(config, "ngpus", 1);
    size_t i;
    json_t *device;
    if (!devices) devices = json_object_get(root, "devices");
    if (!json_is_array(devices)) return wanted(o->file, 1, "an array \"devices\" is wanted");
    if (threads < 1 || each < 1 || threads > MOST || each > MOST / threads ||
        (int64_t)json_array_size(devices) > MOST / (threads * each))
        return wanted(o->file, 1, "\"nthreads\" and \"ngpus\" of a process are wanted");
    json_array_foreach(devices, i, device) DH_TRY(add_process(o, device, threads * each));
    return DH_OK;
}

static dh_status read_row(nccl_output *o, const json_t *result)
{
    const measured_file *f = o->file;
    const json_t *times = json_object_get(result, "out_of_place");
    nccl_row row = {.line = 1};
    double wrong = 0;
    if (json_is_null(times)) times = json_object_get(result, "in_place");
    if (!number_of(result, "size", &row.bytes) || !number_of(times, "time", &row.us) ||
        row.bytes < 0 || !measured_is_time(row.us * 1e3))
        return wanted(f, 1,
                      "each of \"results\" has \"size\" in bytes, and \"time\" in us in "
                      "\"out_of_place\" (not \"cpu_time\", which option -C gives)");
    bandwidth_of(times, "alg_bw", &row.algbw, &row.algbw_unit);
    bandwidth_of(times, "bus_bw", &row.busbw, &row.busbw_unit);
    if (number_of(times, "nwrong", &wrong) && wrong != 0)
        return wanted(f, 1,
                      "wrong values in the result: a measurement of a sound machine is wanted");
    return row.bytes == 0 ? DH_OK : nccl_add(o, &row);
}

/* The command is the first of its arguments: "./all_reduce_perf". */
static void read_command(nccl_output *o, const json_t *root)
{
    const char *command = json_string_value(json_array_get(json_object_get(root, "args"), 0));
    const char *slash = command ? strrchr(command, '/') : NULL;
    const char *name = slash ? slash + 1 : command, *end = name ? strstr(name, "_perf") : NULL;
    if (end) nccl_name(o, name, (size_t)(end - name));
}

static dh_status read_report(const measured_file *f, const json_t *root)
{
    nccl_output o = {.file = f, .test = NCCL_UNNAMED};
    const json_t *results = json_object_get(root, "results");
    size_t i;
    json_t *result;
    read_command(&o, root);
    dh_status st = json_is_array(results) ? read_ranks(&o, root)
                                          : wanted(f, 1, "an array \"results\" is wanted");
    if (st == DH_OK) json_array_foreach(results, i, result)
        {
            st = read_row(&o, result);
            if (st != DH_OK) break;
        }
    nccl_fini(&o);
    return st;
}

/* ---- rccl-tests ----------------------------------------------------------------------------- */

/* Records follow each other. One that says the same ranks as the one before it has their checks. */
typedef struct records {
    nccl_output output;
    int64_t ranks, nodes; /* the last record's; nodes 0: it does not say */
} records;

/* Built with MPI it says processes, nodes, and devices of a process; else "gpus". Where it does not
 * say on which nodes they are, those are filled one after the other. */
static dh_status place_record(records *r, const json_t *object, int32_t line)
{
    enum { MOST = 1 << 20 };
    nccl_output *o = &r->output;
    const int64_t each = count_of(object, "gpusPerRank", 1), nodes = count_of(object, "nodes", 0);
    const int64_t ranks = count_of(object, "ranks", 0) * each + count_of(object, "gpus", 0);
    if (ranks < 1 || ranks > MOST || nodes > ranks || (nodes > 0 && ranks % nodes))
        return wanted(o->file, line,
                      "\"gpus\", or \"ranks\" and \"nodes\" that they fill evenly, are wanted");
    if (ranks == r->ranks && nodes == r->nodes) return DH_OK;
    nccl_begin(o);
    r->ranks = ranks;
    r->nodes = nodes;
    for (int64_t i = 0; i < ranks; i++) {
        const int64_t each_node = nodes ? ranks / nodes : ranks;
        nccl_rank rank = {.number = i, .device = i % each_node, .id = ""};
        if (nodes) {
            rank.host = dh_arena_printf(o->file->m->arena, "node%lld", (long long)(i / each_node));
            if (!rank.host) return measured_no_memory(o->file);
        }
        if (!dh_vec_push(&o->ranks, rank)) return measured_no_memory(o->file);
    }
    return DH_OK;
}

static dh_status check_record_right(const measured_file *f, int32_t line, const json_t *object)
{
    double wrong = 0;
    if (!number_of(object, "#wrong", &wrong) && !number_of(object, "wrong", &wrong)) return DH_OK;
    return wrong == 0
               ? DH_OK
               : wanted(f, line,
                        "wrong values in the result: a measurement of a sound machine is wanted");
}

static dh_status read_object(records *r, int32_t line, const json_t *object)
{
    const measured_file *f = r->output.file;
    const char *name = text_of(object, "name"), *perf = strstr(name, "_perf");
    const size_t n_name = perf ? (size_t)(perf - name) : strlen(name);
    nccl_row row = {.line = line};
    if (json_object_get(object, "results"))
        return wanted(f, line, "one report of nccl-tests (-J) is a whole file");
    if (count_of(object, "inPlace", 0) != 0) return DH_OK;
    if (!*name || !number_of(object, "size", &row.bytes) || !number_of(object, "time", &row.us) ||
        row.bytes < 0 || !measured_is_time(row.us * 1e3))
        return wanted(f, line,
                      "\"name\", \"size\" in bytes and \"time\" in us are wanted, as "
                      "rccl-tests writes them");
    DH_TRY(check_record_right(f, line, object));
    if (row.bytes == 0) return DH_OK;
    bandwidth_of(object, "algBw", &row.algbw, &row.algbw_unit);
    bandwidth_of(object, "busBw", &row.busbw, &row.busbw_unit);
    if (strncmp(r->output.test_name, name, n_name) != 0 || r->output.test_name[n_name] != '\0')
        r->ranks = 0; /* of another test */
    nccl_name(&r->output, name, n_name);
    DH_TRY(place_record(r, object, line));
    return nccl_add(&r->output, &row);
}

static dh_status read_line(records *r, int32_t line, const char *text, size_t n_bytes)
{
    const measured_file *f = r->output.file;
    json_t *object = NULL;
    json_error_t error;
    if (n_bytes == 0 || *text != '{') return DH_OK;
    DH_TRY(dh_json_read(f->ctx, text, n_bytes, 0, &error, &object));
    const dh_status st = object ? read_object(r, line, object)
                                : dh_fail(f->ctx, DH_EFORMAT, "%s:%d:%d: %s", f->path, line,
                                          error.column, error.text);
    json_decref(object);
    return st;
}

static dh_status read_lines(const measured_file *f)
{
    records r = {.output = {.file = f}};
    dh_status st = DH_OK;
    int32_t line = 0;
    for (const char *at = f->text; st == DH_OK && at < f->text + f->n_bytes;) {
        const size_t n = strcspn(at, "\n");
        st = read_line(&r, ++line, at, n);
        at += n + 1;
    }
    nccl_fini(&r.output);
    return st;
}

/* An array of records, or of reports of nccl-tests. */
static dh_status read_array(const measured_file *f, const json_t *array)
{
    records r = {.output = {.file = f}};
    dh_status st = DH_OK;
    size_t i;
    json_t *object;
    json_array_foreach(array, i, object)
    {
        st = json_object_get(object, "results") ? read_report(f, object)
                                                : read_object(&r, (int32_t)i + 1, object);
        if (st != DH_OK) break;
    }
    nccl_fini(&r.output);
    return st;
}

/* ---- rccl-tests as CSV ---------------------------------------------------------------------- */

/* Headings under the names that its JSON has. */
static const char *record_key(const char *heading)
{
    static const char *const names[][2] = {
        {"collective", "name"}, {"inplace", "inPlace"}, {"algbw", "algBw"}, {"busbw", "busBw"}};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (dh_is_same_word(heading, names[i][0])) return names[i][1];
    return heading;
}

static dh_status read_csv_row(records *r, dh_csv *csv, const json_t *headings)
{
    json_t *object = json_object();
    size_t n = 0;
    dh_csv_text cell;
    dh_status st = object ? DH_OK : measured_no_memory(r->output.file);
    while (st == DH_OK && dh_csv_next_cell(csv, &cell)) {
        const char *key = json_string_value(json_array_get(headings, n++));
        if (key && json_object_set_new(object, key, json_stringn(cell.at, cell.n)) != 0)
            st = wanted(r->output.file, csv->line, "cells of text are wanted");
    }
    if (st == DH_OK && n != json_array_size(headings))
        st = wanted(r->output.file, csv->line, "as many cells as there are headings are wanted");
    if (st == DH_OK) st = read_object(r, csv->line, object);
    json_decref(object);
    return st;
}

static dh_status read_csv_headings(const measured_file *f, dh_csv *csv, json_t *headings)
{
    char text[64];
    dh_csv_text cell;
    while (dh_csv_next_cell(csv, &cell)) {
        snprintf(text, sizeof text, "%.*s", (int)DH_MIN(cell.n, sizeof text - 1), cell.at);
        if (json_array_append_new(headings, json_string(record_key(text))) != 0)
            return wanted(f, csv->line, "headings of text are wanted");
    }
    return DH_OK;
}

bool nccl_is_csv(const char *text)
{
    const size_t n = strcspn(text, "\n");
    const char *name = strstr(text, "collective,"), *bandwidth = strstr(text, "busbw,");
    return name && bandwidth && name < text + n && bandwidth < text + n;
}

dh_status nccl_read_csv(const measured_file *f)
{
    records r = {.output = {.file = f}};
    dh_csv csv;
    dh_csv_text text;
    dh_csv_line line;
    json_t *headings = json_array();
    dh_status st = headings ? DH_OK : measured_no_memory(f);
    dh_csv_begin(&csv, f->text, f->n_bytes);
    while (st == DH_OK && (line = dh_csv_next_line(&csv, &text)) != DH_CSV_END) {
        if (line != DH_CSV_CELLS) continue;
        st = json_array_size(headings) == 0 ? read_csv_headings(f, &csv, headings)
                                            : read_csv_row(&r, &csv, headings);
    }
    json_decref(headings);
    nccl_fini(&r.output);
    return st;
}

/* ---- either --------------------------------------------------------------------------------- */

bool nccl_is_json(const char *text)
{
    return (strstr(text, "\"results\"") && strstr(text, "\"bus_bw\"")) || strstr(text, "\"busBw\"");
}

dh_status nccl_read_json(const measured_file *f)
{
    json_t *root = NULL;
    json_error_t error;
    if (!strstr(f->text, "\"bus_bw\"") && f->text[strspn(f->text, " \t\r\n")] != '[')
        return read_lines(f);
    DH_TRY(dh_json_read(f->ctx, f->text, f->n_bytes, 0, &error, &root));
    dh_status st = DH_OK;
    if (!root)
        st = dh_fail(f->ctx, DH_EFORMAT, "%s:%d:%d: %s; the JSON of nccl-tests is one object",
                     f->path, error.line, error.column, error.text);
    else if (!json_is_array(root))
        st = read_report(f, root);
    else
        st = read_array(f, root);
    json_decref(root);
    return st;
}
