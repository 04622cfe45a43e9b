/* nccl-tests with -J: one object. rccl-tests with json output: an object a row, in lines or as an
 * array. nccl.h says what is checked. */
#include <stdlib.h>
#include <string.h>

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
    const int64_t first = count_of(device, "rank", -1), at = count_of(device, "device", -1);
    if (!host) return measured_no_memory(f);
    if (first < 0 || at < 0 || !*host)
        return wanted(f, 1, "each of \"devices\" has \"rank\", \"hostname\" and \"device\"");
    for (int64_t i = 0; i < n_each; i++) {
        const nccl_rank rank = {.number = first + i,
                                .group = count_of(device, "group", 0),
                                .device = at + i,
                                .host = host};
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
    number_of(times, "alg_bw", &row.algbw);
    number_of(times, "bus_bw", &row.busbw);
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

/* It says how many devices, not on which nodes: those are filled one after the other. */
static dh_status read_object(const measured_file *f, int32_t line, const json_t *object)
{
    const char *name = text_of(object, "name");
    nccl_output o = {.file = f};
    nccl_row row = {.line = line};
    double wrong = 0;
    const int64_t ranks = count_of(object, "gpus", 0);
    if (count_of(object, "inPlace", 0) != 0) return DH_OK;
    if (!*name || ranks < 1 || ranks > 1 << 20 || !number_of(object, "size", &row.bytes) ||
        !number_of(object, "time", &row.us) || row.bytes < 0 || !measured_is_time(row.us * 1e3))
        return wanted(f, line,
                      "\"name\", \"gpus\", \"size\" in bytes and \"time\" in us are wanted, "
                      "as rccl-tests writes them");
    if (number_of(object, "#wrong", &wrong) && wrong != 0)
        return wanted(f, line,
                      "wrong values in the result: a measurement of a sound machine is wanted");
    if (row.bytes == 0) return DH_OK;
    number_of(object, "algBw", &row.algbw);
    number_of(object, "busBw", &row.busbw);
    nccl_name(&o, name, strlen(name));
    bool ok = true;
    for (int64_t i = 0; ok && i < ranks; i++)
        ok = dh_vec_push(&o.ranks, ((nccl_rank){.number = i, .device = i}));
    const dh_status st = ok ? nccl_add(&o, &row) : measured_no_memory(f);
    nccl_fini(&o);
    return st;
}

static dh_status read_line(const measured_file *f, int32_t line, const char *text, size_t n_bytes)
{
    json_t *object = NULL;
    json_error_t error;
    if (n_bytes == 0 || *text != '{') return DH_OK;
    DH_TRY(dh_json_read(f->ctx, text, n_bytes, 0, &error, &object));
    const dh_status st = object ? read_object(f, line, object)
                                : dh_fail(f->ctx, DH_EFORMAT, "%s:%d:%d: %s", f->path, line,
                                          error.column, error.text);
    json_decref(object);
    return st;
}

static dh_status read_lines(const measured_file *f)
{
    dh_status st = DH_OK;
    int32_t line = 0;
    for (const char *at = f->text; st == DH_OK && at < f->text + f->n_bytes;) {
        const size_t n = strcspn(at, "\n");
        st = read_line(f, ++line, at, n);
        at += n + 1;
    }
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
    size_t i;
    json_t *object;
    if (!strstr(f->text, "\"bus_bw\"") && f->text[strspn(f->text, " \t\r\n")] == '{')
        return read_lines(f);
    DH_TRY(dh_json_read(f->ctx, f->text, f->n_bytes, 0, &error, &root));
    dh_status st = DH_OK;
    if (!root)
        st = dh_fail(f->ctx, DH_EFORMAT, "%s:%d:%d: %s; the JSON of nccl-tests is one object",
                     f->path, error.line, error.column, error.text);
    else if (!json_is_array(root))
        st = read_report(f, root);
    else
        json_array_foreach(root, i, object) if (st == DH_OK) st = read_object(f, 1, object);
    json_decref(root);
    return st;
}
