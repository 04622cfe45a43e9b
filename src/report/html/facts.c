/* Facts of the run, from the job: lines for people, and the sizes that drawings need. */
#include "base/c_locale.h"
#include "report/html/run.h"

#include <stdarg.h>
#include <stdio.h>

static void fact(json_out *out, const char *label, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void fact(json_out *out, const char *label, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    dh_vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    out_open(out, '[');
    out_text(out, label);
    out_text(out, text);
    out_close(out, ']');
}

static void model_facts(const dh_job *job, json_out *out)
{
    const dh_model *m = &job->model;
    fact(out, "model", "%s", m->name);
    const double n = (double)dh_model_n_params(m);
    fact(out, "parameters", n < 1e9 ? "%.4g million" : "%.4g billion",
         n < 1e9 ? n * 1e-6 : n * 1e-9);
    fact(out, "layers", "%lld of width %lld", (long long)m->n_layers, (long long)m->width);
    if (m->n_experts)
        fact(out, "experts", "%lld, %lld of them a token", (long long)m->n_experts,
             (long long)m->top_k);
}

/* Kinds of parallelism that are in use. */
static void mesh_facts(const dh_job *job, json_out *out)
{
    const struct {
        const char *name;
        int64_t size;
    } axes[] = {{"data", job->dp},
                {"tensor", job->tp},
                {"pipeline", job->pp},
                {"context", job->cp},
                {"expert", job->ep}};
    fact(out, "ranks", "%lld on %lld %s", (long long)job->ranks, (long long)job->nodes,
         job->nodes == 1 ? "node" : "nodes");
    static const char *const zero[] = {"", ", ZeRO-1", ", ZeRO-2", ", ZeRO-3"};
    dh_str mesh = DH_STR_INIT;
    for (size_t i = 0; i < DH_COUNTOF(axes); i++)
        if (axes[i].size > 1)
            dh_str_printf(&mesh, "%s%s %lld", mesh.len ? " \xc3\x97 " : "", axes[i].name,
                          (long long)axes[i].size);
    if (mesh.len) fact(out, "mesh", "%s%s", mesh.text, zero[job->zero]);
    dh_str_fini(&mesh);
}

static void link_fact(const char *label, const dh_link *link, json_out *out)
{
    if (link->gbps > 0)
        fact(out, label, "paced: %.4g Gbit/s, %.4g us", link->gbps, link->latency_us);
}

static const char *const recompute_names[] = {[DH_RECOMPUTE_NONE] = "none",
                                              [DH_RECOMPUTE_SELECTIVE] = "selective",
                                              [DH_RECOMPUTE_FULL] = "full",
                                              [DH_RECOMPUTE_ATTENTION] = "attention"};

static void step_facts(const dh_job *job, json_out *out)
{
    fact(out, "strategy", "%s", job->strategy);
    if (job->pp > 1) fact(out, "schedule", "%s", job->schedule);
    fact(out, "batch", "%lld sequences of %lld tokens", (long long)job->global_batch,
         (long long)job->seq_len);
    fact(out, "micro-batches", "%lld of %lld sequences, on each data-parallel rank",
         (long long)dh_job_n_micro(job), (long long)job->micro_batch);
    fact(out, "precision", "%s", dh_precision_name(job->dtype, job->fp8));
    fact(out, "recomputation", "%s", recompute_names[job->recompute]);
    link_fact("local link", &job->link_local, out);
    link_fact("cross link", &job->link_cross, out);
}

static void write_sizes(const dh_job *job, json_out *out)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"ranks", job->ranks},
                 {"dp", job->dp},
                 {"tp", job->tp},
                 {"cp", job->cp},
                 {"pp", job->pp},
                 {"ep", job->ep},
                 {"tokens", job->global_batch * job->seq_len},
                 {"traced", DH_MIN(job->trace_step, job->steps)}};
    out_key(out, "sizes");
    out_open(out, '{');
    for (size_t i = 0; i < DH_COUNTOF(sizes); i++) {
        out_key(out, sizes[i].key);
        out_int(out, sizes[i].value);
    }
    out_close(out, '}');
}

void dh_html_facts(const dh_run_folder *run, json_out *out)
{
    const dh_job *job = run->job;
    out_key(out, "strategy");
    out_text(out, job->strategy);
    out_key(out, "facts");
    out_open(out, '[');
    model_facts(job, out);
    mesh_facts(job, out);
    step_facts(job, out);
    out_close(out, ']');
    write_sizes(job, out);
}
