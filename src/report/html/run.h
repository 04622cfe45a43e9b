/* Shared by the parts of a page: a run folder, and one function a part.
 *
 * A part writes its keys into the run's open JSON object, and nothing where its file is
 * absent. The page's scripts (assets/) use the keys. */
#ifndef DH_REPORT_HTML_RUN_H
#define DH_REPORT_HTML_RUN_H

#include "config/mesh.h"
#include "dhelix/report.h"
#include "report/html/json.h"

struct traces;

typedef struct dh_run_folder {
    const char *path;
    const char *name; /* for people; NULL: the path */
    /* path is one file, and `only` the name that it has in a run folder, such as "table.json".
     * NULL: path is a folder. */
    const char *only;
    json_t *document; /* with `only`: the file's JSON document; NULL: it is read, or is none */
    /* Where they are to stay (trace.h), instead of being written; NULL: none. */
    struct traces *traces;
    json_t *data; /* an object where documents are to stay likewise; NULL: they are written */
    dh_job *job;  /* NULL: no job.yaml */
    dh_mesh mesh; /* the job's; ranks 0 without one */
    int64_t max_ranks;
    size_t n_parts; /* files found */
} dh_run_folder;

/* FOLDER/NAME, or the file that stands for it; "" where there is another file. Caller frees. */
dh_status dh_run_folder_path(dh_ctx *ctx, const dh_run_folder *run, const char *name, char **path);
/* The JSON document in a file; caller releases.
 * errors    DH_EFORMAT with line and column */
dh_status dh_html_json(dh_ctx *ctx, const char *path, json_t **value);
/* A JSON document of the folder; *value NULL where the file is absent. Caller releases.
 * errors    those of dh_html_json */
dh_status dh_run_folder_json(dh_ctx *ctx, const dh_run_folder *run, const char *name,
                             json_t **value);

/* A document of the folder, which it takes, as the run's part `key`. */
void dh_run_folder_put(dh_run_folder *run, const char *key, json_t *document, json_out *out);

/* run.c: all parts, and the run's name, as one JSON object. The caller destroys run->job.
 * errors    DH_EMISSING it is no folder, or has none of the files */
dh_status dh_html_run_read(dh_ctx *ctx, dh_run_folder *run, json_out *out);

/* facts.c: what ran: "facts" [[label, text]], and "sizes". */
void dh_html_facts(const dh_run_folder *run, json_out *out);
/* plan.c: "plan": the job's pipeline schedule with unit times, and where its layers are. */
dh_status dh_html_plan(dh_ctx *ctx, dh_run_folder *run, json_out *out);
/* metrics.c: "metrics": a column for each quantity. */
dh_status dh_html_metrics(dh_ctx *ctx, dh_run_folder *run, json_out *out);
/* trace.c: "trace": instructions of all ranks, memory over time. */
dh_status dh_html_trace(dh_ctx *ctx, dh_run_folder *run, json_out *out);
/* table.c: "table": steps simulated with every value of one or two settings. */
dh_status dh_html_table(dh_ctx *ctx, dh_run_folder *run, json_out *out);
/* oef.c: "oef": overlap effectiveness of operator pairs. */
dh_status dh_html_oef(dh_ctx *ctx, dh_run_folder *run, json_out *out);

#endif
