/* The module _dhelix: the public C API as functions of Python, results as JSON text that the
 * package dhelix turns into dicts. By the limited API alone, so that one file serves Python 3.9 and
 * later. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

/* ---- jobs ----------------------------------------------------------------------------------- */

static const char job_name[] = "dhelix.job";

static void destroy_job(PyObject *capsule)
{
    dh_job_destroy(PyCapsule_GetPointer(capsule, job_name));
}

/* For PyArg_ParseTuple's O&. */
static int to_job(PyObject *capsule, void *job)
{
    void *at = PyCapsule_GetPointer(capsule, job_name);
    if (at) *(dh_job **)job = at;
    return at != NULL;
}

/* Texts of a list of str, borrowed from it. */
typedef struct texts {
    const char **at;
    size_t n;
} texts;

static void drop_texts(texts *t)
{
    PyMem_Free(t->at);
}

static bool take_texts(PyObject *list, texts *t)
{
    const Py_ssize_t length = PyList_Size(list);
    if (length < 0) return false;
    t->at = PyMem_Calloc((size_t)length + 1, sizeof *t->at);
    if (!t->at) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        if (PyArg_Parse(PyList_GetItem(list, i), "s", &t->at[t->n++])) continue;
        drop_texts(t);
        return false;
    }
    return true;
}

typedef struct load_args {
    const char *path;
    texts overrides;
    dh_job *job;
} load_args;

static dh_status load_work(dh_ctx *ctx, call *c)
{
    load_args *a = c->args;
    return dh_job_load(ctx, a->path, a->overrides.at, a->overrides.n, &a->job);
}

static PyObject *load(PyObject *module, PyObject *args)
{
    PyObject *list;
    load_args a = {.job = NULL};
    call c = {.work = load_work, .args = &a};
    if (!PyArg_ParseTuple(args, "sO", &a.path, &list)) return NULL;
    if (!take_texts(list, &a.overrides)) return NULL;
    PyObject *done = run(module, &c);
    PyObject *capsule = done ? PyCapsule_New(a.job, job_name, destroy_job) : NULL;
    if (!capsule) dh_job_destroy(a.job); /* also of a call that was interrupted behind it */
    Py_XDECREF(done);
    drop_texts(&a.overrides);
    return capsule;
}

static dh_status print_work(dh_ctx *ctx, call *c)
{
    char *text;
    DH_TRY(dh_job_print(ctx, c->args, &text));
    dh_str_append(&c->out, text, strlen(text));
    free(text);
    return c->out.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory printing the job") : DH_OK;
}

static PyObject *print(PyObject *module, PyObject *args)
{
    dh_job *job;
    if (!PyArg_ParseTuple(args, "O&", to_job, &job)) return NULL;
    call c = {.work = print_work, .args = job};
    return run(module, &c);
}

/* ---- planning ------------------------------------------------------------------------------- */

typedef struct check_args {
    dh_job *job;
    long long rank;
} check_args;

static dh_status check_work(dh_ctx *ctx, call *c)
{
    const check_args *a = c->args;
    return dh_describe_check(ctx, a->job, a->rank, &c->out);
}

static PyObject *check(PyObject *module, PyObject *args)
{
    check_args a;
    call c = {.work = check_work, .args = &a};
    if (!PyArg_ParseTuple(args, "O&L", to_job, &a.job, &a.rank)) return NULL;
    return run(module, &c);
}

typedef struct plan_args {
    dh_job *job;
    const char *cluster;
    dh_describe_plan_options how;
} plan_args;

static dh_status plan_work(dh_ctx *ctx, call *c)
{
    plan_args *a = c->args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    a->how.cluster = cluster;
    const dh_status st = dh_describe_plan(ctx, a->job, &a->how, &c->out);
    dh_cluster_destroy(cluster);
    return st;
}

static PyObject *plan(PyObject *module, PyObject *args)
{
    plan_args a = {.job = NULL};
    call c = {.work = plan_work, .args = &a};
    int explain;
    if (!PyArg_ParseTuple(args, "O&zzp", to_job, &a.job, &a.cluster, &a.how.policy, &explain))
        return NULL;
    a.how.explain = explain != 0;
    return run(module, &c);
}

static dh_status order_work(dh_ctx *ctx, call *c)
{
    plan_args *a = c->args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    a->how.cluster = cluster;
    const dh_status st = dh_describe_order(ctx, a->job, &a->how, &c->out);
    dh_cluster_destroy(cluster);
    return st;
}

static PyObject *order(PyObject *module, PyObject *args)
{
    plan_args a = {.job = NULL};
    call c = {.work = order_work, .args = &a};
    if (!PyArg_ParseTuple(args, "O&zz", to_job, &a.job, &a.cluster, &a.how.policy)) return NULL;
    return run(module, &c);
}

typedef struct simulate_args {
    dh_job *job;
    const char *cluster;
    dh_describe_simulate_options how;
} simulate_args;

static dh_status simulate_work(dh_ctx *ctx, call *c)
{
    simulate_args *a = c->args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    a->how.cluster = cluster;
    dh_status st = dh_describe_simulate(ctx, a->job, &a->how, &c->out);
    dh_cluster_destroy(cluster);
    return st;
}

static PyObject *simulate(PyObject *module, PyObject *args)
{
    simulate_args a = {.job = NULL};
    call c = {.work = simulate_work, .args = &a};
    if (!PyArg_ParseTuple(args, "O&zzzzd", to_job, &a.job, &a.cluster, &a.how.strategies,
                          &a.how.schedules, &a.how.dir, &a.how.peak_flops_per_s))
        return NULL;
    return run(module, &c);
}

typedef struct table_args {
    const char *path, *cluster;
    texts overrides, settings;
    dh_describe_table_options how;
} table_args;

static dh_status table_work(dh_ctx *ctx, call *c)
{
    table_args *a = c->args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    a->how.cluster = cluster;
    a->how.settings = a->settings.at;
    a->how.n_settings = a->settings.n;
    dh_status st =
        dh_describe_table(ctx, a->path, a->overrides.at, a->overrides.n, &a->how, &c->out);
    dh_cluster_destroy(cluster);
    return st;
}

static PyObject *table(PyObject *module, PyObject *args)
{
    PyObject *overrides, *settings, *text = NULL;
    table_args a = {.path = NULL};
    call c = {.work = table_work, .args = &a};
    if (!PyArg_ParseTuple(args, "sOOzzd", &a.path, &overrides, &settings, &a.cluster, &a.how.dir,
                          &a.how.peak_flops_per_s))
        return NULL;
    if (!take_texts(overrides, &a.overrides)) return NULL;
    if (take_texts(settings, &a.settings)) {
        text = run(module, &c);
        drop_texts(&a.settings);
    }
    drop_texts(&a.overrides);
    return text;
}

typedef struct calibrate_args {
    texts files;
    dh_describe_calibrate_options how;
} calibrate_args;

static dh_status calibrate_work(dh_ctx *ctx, call *c)
{
    const calibrate_args *a = c->args;
    return dh_describe_calibrate(ctx, a->files.at, a->files.n, &a->how, &c->out);
}

static PyObject *calibrate(PyObject *module, PyObject *args)
{
    PyObject *list;
    calibrate_args a = {.how = {.like = NULL}};
    call c = {.work = calibrate_work, .args = &a};
    long long devices;
    if (!PyArg_ParseTuple(args, "OszL", &list, &a.how.like, &a.how.out, &devices)) return NULL;
    a.how.devices = devices;
    if (!take_texts(list, &a.files)) return NULL;
    PyObject *text = run(module, &c);
    drop_texts(&a.files);
    return text;
}

typedef struct tune_args {
    const char *path, *cluster;
    texts overrides;
    dh_tune_options how;
} tune_args;

static dh_status tune_work(dh_ctx *ctx, call *c)
{
    tune_args *a = c->args;
    dh_cluster *cluster = NULL;
    dh_job *job = NULL, *given;
    char refused[sizeof ctx->message];
    DH_TRY(dh_tune_load_given(ctx, a->path, a->overrides.at, a->overrides.n, a->how.devices, &given,
                              refused, sizeof refused));
    dh_status st = dh_tune_load(ctx, a->path, a->overrides.at, a->overrides.n, &job, &a->how.fixed);
    if (st == DH_OK && a->cluster) st = dh_cluster_find(ctx, a->cluster, &cluster);
    a->how.cluster = cluster;
    a->how.given = given;
    a->how.given_refused = *refused ? refused : NULL;
    if (st == DH_OK) st = dh_describe_tune(ctx, job, &a->how, &c->out);
    dh_cluster_destroy(cluster);
    dh_job_destroy(given);
    dh_job_destroy(job);
    return st;
}

static PyObject *tune(PyObject *module, PyObject *args)
{
    PyObject *list;
    tune_args a = {.how = {.quiet = true}};
    call c = {.work = tune_work, .args = &a};
    long long devices;
    Py_ssize_t n_rows, n_simulated;
    a.how.stop = &c.stop;
    if (!PyArg_ParseTuple(args, "sOzLdzzzzzzznnd", &a.path, &list, &a.cluster, &devices,
                          &a.how.memory_bytes, &a.how.strategies, &a.how.schedules, &a.how.zeros,
                          &a.how.buckets, &a.how.sequences, &a.how.fusions, &a.how.posts, &n_rows,
                          &n_simulated, &a.how.within))
        return NULL;
    a.how.devices = devices;
    a.how.n_rows = (size_t)n_rows;
    a.how.n_simulated = (size_t)n_simulated;
    if (!take_texts(list, &a.overrides)) return NULL;
    PyObject *text = run(module, &c);
    drop_texts(&a.overrides);
    return text;
}

/* ---- training and sampling ------------------------------------------------------------------ */

typedef struct train_args {
    dh_job *job;
    dh_train_options how;
    PyObject *on_step; /* borrowed */
} train_args;

/* In the thread that trains rank 0. After an exception no more steps are told of. */
static void tell_step(void *self, const char *line, size_t n_bytes)
{
    call *c = self;
    const train_args *a = c->args;
    const PyGILState_STATE state = PyGILState_Ensure();
    if (!c->raised.type) {
        PyObject *answer = PyObject_CallFunction(a->on_step, "s#", line, (Py_ssize_t)n_bytes);
        if (!answer) set_aside(c);
        Py_XDECREF(answer);
    }
    PyGILState_Release(state);
}

static dh_status train_work(dh_ctx *ctx, call *c)
{
    const train_args *a = c->args;
    dh_train_result result;
    DH_TRY(dh_train(ctx, a->job, &a->how, &result));
    return result.primary ? dh_describe_train(ctx, a->job, &result, &c->out) : DH_OK;
}

static PyObject *train(PyObject *module, PyObject *args)
{
    int progress, fresh;
    train_args a = {.job = NULL};
    call c = {.work = train_work, .args = &a};
    if (!PyArg_ParseTuple(args, "O&ppO", to_job, &a.job, &progress, &fresh, &a.on_step))
        return NULL;
    a.how = (dh_train_options){.quiet = !progress,
                               .fresh = fresh != 0,
                               .stop = &c.stop,
                               .on_step = a.on_step == Py_None ? NULL : tell_step,
                               .self = &c};
    return run(module, &c);
}

typedef struct sample_args {
    const char *path;
    Py_ssize_t n_prompt;
    long long tokens, top_k, seed;
    double temperature, top_p;
    dh_generate_spec how;
} sample_args;

static dh_status collect(dh_ctx *ctx, void *self, const char *bytes, size_t n_bytes)
{
    dh_str *out = self;
    dh_str_append(out, bytes, n_bytes);
    return out->failed ? dh_fail(ctx, DH_ENOMEM, "out of memory collecting the text") : DH_OK;
}

static dh_status sample_from(dh_ctx *ctx, sample_args *a, const dh_trained *trained)
{
    dh_sampler sampler;
    dh_generate_result result;
    DH_TRY(dh_sampler_init(ctx, &sampler, dh_trained_vocab(trained), a->temperature, a->top_k,
                           a->top_p, (uint64_t)a->seed));
    a->how.sampler = &sampler;
    const dh_status st = dh_generate(ctx, trained, &a->how, &result);
    dh_sampler_fini(&sampler);
    return st;
}

static dh_status sample_work(dh_ctx *ctx, call *c)
{
    sample_args *a = c->args;
    const dh_trained_spec spec = {.path = a->path, .dtype = DH_F32, .decode = true};
    dh_trained trained;
    DH_TRY(dh_trained_open(ctx, &spec, &trained));
    const dh_status st = sample_from(ctx, a, &trained);
    dh_trained_close(&trained);
    return st;
}

static PyObject *sample(PyObject *module, PyObject *args)
{
    sample_args a = {.how = {.slide = true, .emit = collect}};
    call c = {.work = sample_work, .args = &a};
    if (!PyArg_ParseTuple(args, "ss#LdLdL", &a.path, &a.how.prompt, &a.n_prompt, &a.tokens,
                          &a.temperature, &a.top_k, &a.top_p, &a.seed))
        return NULL;
    a.how.n_prompt = (size_t)a.n_prompt;
    a.how.max_tokens = a.tokens;
    a.how.stop = &c.stop;
    a.how.self = &c.out;
    return run(module, &c);
}

typedef struct profile_args {
    dh_job *job;
    texts traces;
    dh_describe_profile_options how;
} profile_args;

static dh_status profile_work(dh_ctx *ctx, call *c)
{
    const profile_args *a = c->args;
    return dh_describe_profile(ctx, a->job, &a->how, &c->out);
}

static PyObject *profile(PyObject *module, PyObject *args)
{
    PyObject *list;
    long long samples;
    int progress;
    profile_args a = {.job = NULL};
    call c = {.work = profile_work, .args = &a};
    if (!PyArg_ParseTuple(args, "O&zLdzOp", to_job, &a.job, &a.how.out, &samples, &a.how.seconds,
                          &a.how.matrix, &list, &progress))
        return NULL;
    if (!take_texts(list, &a.traces)) return NULL;
    a.how.samples = samples;
    a.how.traces = a.traces.at;
    a.how.n_traces = a.traces.n;
    a.how.progress = progress != 0;
    a.how.stop = &c.stop;
    PyObject *text = run(module, &c);
    drop_texts(&a.traces);
    return text;
}

typedef struct eval_args {
    const char *path;
    texts data;
    dh_describe_eval_options how;
} eval_args;

static dh_status eval_work(dh_ctx *ctx, call *c)
{
    const eval_args *a = c->args;
    return dh_describe_eval(ctx, a->path, &a->how, &c->out);
}

static PyObject *evaluate(PyObject *module, PyObject *args)
{
    PyObject *list;
    const char *dtype;
    long long seq, batches, micro_batch, threads;
    int special;
    eval_args a = {.path = NULL};
    call c = {.work = eval_work, .args = &a};
    if (!PyArg_ParseTuple(args, "sOzzpzLLLzsL", &a.path, &list, &a.how.tokenizer, &a.how.text_field,
                          &special, &a.how.chat_template, &seq, &batches, &micro_batch, &a.how.base,
                          &dtype, &threads))
        return NULL;
    a.how.special_tokens = special != 0;
    a.how.seq = seq;
    a.how.batches = batches;
    a.how.micro_batch = micro_batch;
    a.how.threads = threads;
    a.how.dtype = dh_dtype_parse(dtype);
    if (!take_texts(list, &a.data)) return NULL;
    a.how.data = a.data.at;
    a.how.n_data = a.data.n;
    PyObject *text = run(module, &c);
    drop_texts(&a.data);
    return text;
}

typedef struct convert_args {
    const char *path, *out;
    dh_describe_convert_options how;
} convert_args;

static dh_status convert_work(dh_ctx *ctx, call *c)
{
    const convert_args *a = c->args;
    return dh_describe_convert(ctx, a->path, a->out, &a->how, &c->out);
}

static PyObject *convert(PyObject *module, PyObject *args)
{
    const char *dtype;
    int replace;
    convert_args a = {.path = NULL};
    call c = {.work = convert_work, .args = &a};
    if (!PyArg_ParseTuple(args, "ssszp", &a.path, &a.out, &dtype, &a.how.base, &replace))
        return NULL;
    a.how.dtype = dh_dtype_parse(dtype);
    a.how.replace = replace != 0;
    return run(module, &c);
}

typedef struct tokenize_args {
    texts files;
    dh_describe_tokenize_options how;
} tokenize_args;

static dh_status tokenize_work(dh_ctx *ctx, call *c)
{
    const tokenize_args *a = c->args;
    return dh_describe_tokenize(ctx, a->files.at, a->files.n, &a->how, &c->out);
}

static PyObject *tokenize(PyObject *module, PyObject *args)
{
    PyObject *list;
    Py_ssize_t n_text = 0;
    long long train_bpe;
    int special, ids;
    tokenize_args a = {.how = {.text = NULL}};
    call c = {.work = tokenize_work, .args = &a};
    if (!PyArg_ParseTuple(args, "Ozz#zzpzpL", &list, &a.how.tokenizer, &a.how.text, &n_text,
                          &a.how.output, &a.how.text_field, &special, &a.how.chat_template, &ids,
                          &train_bpe))
        return NULL;
    a.how.n_text = (size_t)n_text;
    a.how.special_tokens = special != 0;
    a.how.ids = ids != 0;
    a.how.train_bpe = train_bpe;
    if (!take_texts(list, &a.files)) return NULL;
    PyObject *text = run(module, &c);
    drop_texts(&a.files);
    return text;
}

typedef struct detokenize_args {
    const char *tokenizer;
    int32_t *ids;
    size_t n;
    unsigned flags;
} detokenize_args;

static dh_status detokenize_work(dh_ctx *ctx, call *c)
{
    const detokenize_args *a = c->args;
    dh_tokenizer *tok;
    DH_TRY(dh_tokenizer_load(ctx, a->tokenizer, &tok));
    const dh_status st = dh_tokenizer_decode(ctx, tok, a->ids, a->n, a->flags, &c->out);
    dh_tokenizer_destroy(tok);
    return st;
}

static PyObject *detokenize(PyObject *module, PyObject *args)
{
    PyObject *list, *text = NULL;
    int skip;
    detokenize_args a = {.n = 0};
    call c = {.work = detokenize_work, .args = &a};
    if (!PyArg_ParseTuple(args, "Osp", &list, &a.tokenizer, &skip)) return NULL;
    const Py_ssize_t length = PyList_Size(list);
    if (length < 0) return NULL;
    a.flags = skip ? DH_DECODE_SKIP_SPECIAL : 0;
    a.ids = PyMem_Calloc((size_t)length + 1, sizeof *a.ids);
    if (!a.ids) return PyErr_NoMemory();
    while (a.n < (size_t)length &&
           PyArg_Parse(PyList_GetItem(list, (Py_ssize_t)a.n), "i", &a.ids[a.n]))
        a.n++;
    if (a.n == (size_t)length) text = run(module, &c);
    PyMem_Free(a.ids);
    return text;
}

typedef struct report_args {
    texts runs;
    const char *out;
    dh_report_options how;
    bool traces; /* out gets those of the only run */
} report_args;

static dh_status report_work(dh_ctx *ctx, call *c)
{
    const report_args *a = c->args;
    return a->traces ? dh_report_traces(ctx, a->runs.at[0], a->out)
                     : dh_report_write(ctx, a->runs.at, a->runs.n, &a->how, a->out);
}

static PyObject *report(PyObject *module, PyObject *args)
{
    PyObject *list;
    long long ranks;
    int traces;
    report_args a = {.out = NULL};
    call c = {.work = report_work, .args = &a};
    if (!PyArg_ParseTuple(args, "OszLp", &list, &a.out, &a.how.baseline, &ranks, &traces))
        return NULL;
    a.how.max_ranks = ranks;
    if (!take_texts(list, &a.runs)) return NULL;
    a.traces = traces && a.runs.n == 1;
    PyObject *nothing = run(module, &c);
    drop_texts(&a.runs);
    return nothing;
}

typedef struct figures_args {
    texts sources, overrides;
    const char *out, *cluster;
    dh_figures_options how;
} figures_args;

static dh_status figures_work(dh_ctx *ctx, call *c)
{
    figures_args *a = c->args;
    dh_cluster *cluster = NULL;
    if (a->cluster) DH_TRY(dh_cluster_find(ctx, a->cluster, &cluster));
    a->how.cluster = cluster;
    a->how.overrides = a->overrides.at;
    a->how.n_overrides = a->overrides.n;
    const dh_status st =
        dh_report_figures(ctx, a->sources.at, a->sources.n, &a->how, a->out, &c->out);
    dh_cluster_destroy(cluster);
    return st;
}

static PyObject *figures(PyObject *module, PyObject *args)
{
    PyObject *sources, *overrides, *text = NULL;
    long long ranks;
    figures_args a = {.out = NULL};
    call c = {.work = figures_work, .args = &a};
    if (!PyArg_ParseTuple(args, "OszzOL", &sources, &a.out, &a.how.figures, &a.cluster, &overrides,
                          &ranks))
        return NULL;
    a.how.max_ranks = ranks;
    if (!take_texts(sources, &a.sources)) return NULL;
    if (take_texts(overrides, &a.overrides)) {
        text = run(module, &c);
        drop_texts(&a.overrides);
    }
    drop_texts(&a.sources);
    return text;
}

/* ---- the module ----------------------------------------------------------------------------- */

static PyObject *clusters(PyObject *module, PyObject *args)
{
    PyObject *names = PyList_New(0);
    for (size_t i = 0; names && dh_cluster_name(i); i++) {
        PyObject *name = PyUnicode_FromString(dh_cluster_name(i));
        if (!name || PyList_Append(names, name) != 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static dh_status lists_work(dh_ctx *ctx, call *c)
{
    return dh_describe_lists(ctx, &c->out);
}

static PyObject *lists(PyObject *module, PyObject *args)
{
    call c = {.work = lists_work};
    return run(module, &c);
}

static PyObject *version(PyObject *module, PyObject *args)
{
    return PyUnicode_FromString(dh_version());
}

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, "load(path, overrides) -> job"},
    {"print", print, METH_VARARGS, "print(job) -> YAML"},
    {"check", check, METH_VARARGS, "check(job, rank) -> JSON"},
    {"order", order, METH_VARARGS, "order(job, cluster, policy) -> JSON"},
    {"plan", plan, METH_VARARGS, "plan(job, cluster, policy, explain) -> JSON"},
    {"simulate", simulate, METH_VARARGS,
     "simulate(job, cluster, strategies, schedules, dir, peak_flops_per_s) -> JSON"},
    {"table", table, METH_VARARGS,
     "table(path, overrides, settings, cluster, dir, peak_flops_per_s) -> JSON"},
    {"tune", tune, METH_VARARGS,
     "tune(path, overrides, cluster, devices, memory_bytes, strategies, schedules, zeros, "
     "buckets, sequences, fusions, posts, rows, simulated, within) -> JSON"},
    {"calibrate", calibrate, METH_VARARGS, "calibrate(files, like, out, devices) -> JSON"},
    {"train", train, METH_VARARGS, "train(job, progress, fresh, on_step) -> JSON"},
    {"sample", sample, METH_VARARGS,
     "sample(path, prompt, tokens, temperature, top_k, top_p, seed) -> text"},
    {"evaluate", evaluate, METH_VARARGS,
     "evaluate(path, data, tokenizer, text_field, special_tokens, chat_template, seq, batches, "
     "micro_batch, base, dtype, threads) -> JSON"},
    {"convert", convert, METH_VARARGS, "convert(path, out, dtype, base, replace) -> JSON"},
    {"detokenize", detokenize, METH_VARARGS, "detokenize(ids, tokenizer, skip_special)"},
    {"tokenize", tokenize, METH_VARARGS,
     "tokenize(files, tokenizer, text, output, text_field, special_tokens, chat_template, ids, "
     "train_bpe) -> JSON"},
    {"report", report, METH_VARARGS, "report(runs, out, baseline, ranks, traces)"},
    {"figures", figures, METH_VARARGS,
     "figures(sources, out, figures, cluster, overrides, ranks) -> JSON"},
    {"profile", profile, METH_VARARGS,
     "profile(job, out, samples, seconds, import, from_trace, progress) -> JSON"},
    {"end_calls", end_calls, METH_NOARGS, "end_calls(): stop what is under way; atexit"},
    {"clusters", clusters, METH_NOARGS, "clusters() -> names"},
    {"lists", lists, METH_NOARGS, "lists() -> JSON"},
    {"version", version, METH_NOARGS, "version() -> text"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_dhelix",
                                        .m_doc = "The C library; use the package dhelix.",
                                        .m_size = sizeof(calls), .m_methods = methods};

PyMODINIT_FUNC PyInit__dhelix(void); /* of no header: the interpreter looks it up by name */

PyMODINIT_FUNC PyInit__dhelix(void)
{
    return PyModuleDef_Init(&definition);
}
