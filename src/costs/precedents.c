/* Precedents: read, measured against a job, the nearest kept.
 *
 * The distance is a sum of terms, a row each below. A term is as large as its weight where texts or
 * kinds differ, and of sizes its weight for every factor of two. */
#include "costs/precedents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/csv.h"
#include "base/embedded.h"
#include "config/model_names.h"

extern const dh_embedded dh_precedent_files[];
extern const size_t dh_precedent_files_n;

/* ---- facts ---------------------------------------------------------------------------------- */

#define TEXT(name)                                                                                 \
    {                                                                                              \
#name, offsetof(dh_step_facts, name), true                                                 \
    }
#define NUMBER(name)                                                                               \
    {                                                                                              \
#name, offsetof(dh_step_facts, name), false                                                \
    }
static const struct fact {
    const char *name;
    size_t offset;
    bool text;
} facts_of_step[] = {TEXT(cluster),
                     TEXT(system),
                     TEXT(family),
                     TEXT(strategy),
                     TEXT(schedule),
                     TEXT(recompute),
                     NUMBER(parameters),
                     NUMBER(experts),
                     NUMBER(devices),
                     NUMBER(tp),
                     NUMBER(pp),
                     NUMBER(cp),
                     NUMBER(ep),
                     NUMBER(zero),
                     NUMBER(seq_len),
                     NUMBER(fp8),
                     NUMBER(processors),
                     NUMBER(peak_tflops),
                     NUMBER(memory_gb_per_s),
                     NUMBER(local_gb_per_s),
                     NUMBER(network_gb_per_s)};

static const char *text_at(const dh_step_facts *f, size_t offset)
{
    return (const char *)f + offset;
}

static double number_at(const dh_step_facts *f, size_t offset)
{
    return *(const double *)(const void *)((const char *)f + offset);
}

static const char *const recompute_names[] = {[DH_RECOMPUTE_NONE] = "none",
                                              [DH_RECOMPUTE_SELECTIVE] = "selective",
                                              [DH_RECOMPUTE_FULL] = "full",
                                              [DH_RECOMPUTE_ATTENTION] = "attention"};

void dh_step_facts_take(char out[DH_PRECEDENT_TEXT], const char *text)
{
    snprintf(out, DH_PRECEDENT_TEXT, "%s", text ? text : "");
}

void dh_step_facts_of(const dh_job *job, const dh_cluster *cluster, dh_step_facts *f)
{
    *f = (dh_step_facts){.parameters = (double)dh_model_n_params(&job->model),
                         .experts = (double)job->model.n_experts,
                         .devices = (double)job->ranks,
                         .tp = (double)job->tp,
                         .pp = (double)job->pp,
                         .cp = (double)job->cp,
                         .ep = (double)job->ep,
                         .zero = (double)job->zero,
                         .seq_len = (double)job->seq_len,
                         .fp8 = job->fp8 != DH_FP8_OFF,
                         .processors = cluster->processors,
                         .peak_tflops = cluster->bf16_flops_per_s * 1e-12,
                         .memory_gb_per_s = cluster->memory_bytes_per_s * 1e-9,
                         .local_gb_per_s = cluster->local.bytes_per_s * 1e-9,
                         .network_gb_per_s = cluster->network.bytes_per_s * 1e-9};
    dh_step_facts_take(f->cluster, cluster->name);
    dh_step_facts_take(f->system, job->system);
    dh_step_facts_take(f->family, dh_family_names[job->model.family]);
    dh_step_facts_take(f->strategy, job->strategy);
    dh_step_facts_take(f->schedule, job->pp > 1 ? job->schedule : "");
    dh_step_facts_take(f->recompute, recompute_names[job->recompute]);
}

json_t *dh_step_facts_json(const dh_step_facts *f)
{
    json_t *object = json_object();
    for (size_t i = 0; object && i < DH_COUNTOF(facts_of_step); i++) {
        const struct fact *fact = &facts_of_step[i];
        const double number = fact->text ? 0 : number_at(f, fact->offset);
        json_t *value = fact->text                ? json_string(text_at(f, fact->offset))
                        : number == floor(number) ? json_integer((json_int_t)number)
                                                  : json_real(number);
        json_object_set_new(object, fact->name, value);
    }
    return object;
}

/* ---- distance ------------------------------------------------------------------------------- */

typedef enum term_kind {
    SOFTWARE, /* weight: another system; a quarter of it: the same with other traits */
    NAME,     /* weight: another text */
    PRESENT,  /* weight: there in one of them alone (over `least`) */
    SIZE      /* weight for every factor of two */
} term_kind;

/* X(name, fact, kind, least, weight, doc). TUNING: weights are judgement: what decides an error
 * first (software, experts, what is parallel), then sizes. */
#define DH_STEP_TERM_LIST(X)                                                                       \
    X("system", system, SOFTWARE, 0, 3, "the software that was measured")                          \
    X("experts", experts, PRESENT, 0, 3, "experts or dense layers")                                \
    X("strategy", strategy, NAME, 0, 1, "how communication is hidden")                             \
    X("family", family, NAME, 0, 0.5, "family of the model")                                       \
    X("schedule", schedule, NAME, 0, 0.5, "order of the stages' work")                             \
    X("recomputation", recompute, NAME, 0, 0.5, "activations computed again in backward")          \
    X("precision", fp8, PRESENT, 0, 1, "products of 8 or 16 bits")                                 \
    X("tp", tp, PRESENT, 1, 1, "tensor parallelism or none")                                       \
    X("pp", pp, PRESENT, 1, 1, "pipeline stages or none")                                          \
    X("cp", cp, PRESENT, 1, 1, "context parallelism or none")                                      \
    X("ep", ep, PRESENT, 1, 1, "expert parallelism or none")                                       \
    X("zero", zero, PRESENT, 2, 1, "parameters shared out by data-parallel ranks or not")          \
    X("tp", tp, SIZE, 0, 0.25, "ranks of tensor parallelism")                                      \
    X("pp", pp, SIZE, 0, 0.25, "stages")                                                           \
    X("cp", cp, SIZE, 0, 0.25, "ranks of context parallelism")                                     \
    X("ep", ep, SIZE, 0, 0.25, "ranks of expert parallelism")                                      \
    X("devices", devices, SIZE, 0, 0.25, "number of devices")                                      \
    X("model size", parameters, SIZE, 0, 0.5, "number of parameters")                              \
    X("sequence length", seq_len, SIZE, 0, 0.25, "tokens of a sequence")                           \
    X("memory bandwidth", memory_gb_per_s, SIZE, 0, 1, "of a device")                              \
    X("links in a node", local_gb_per_s, SIZE, 0, 1, "of a device")                                \
    X("network", network_gb_per_s, SIZE, 0, 0.5, "of a node")

static const struct term {
    const char *name;
    size_t offset;
    term_kind kind;
    double least, weight;
    const char *doc;
} terms[] = {
#define X(name, fact, kind, least, weight, doc)                                                    \
    {name, offsetof(dh_step_facts, fact), kind, least, weight, doc},
    DH_STEP_TERM_LIST(X)
#undef X
};

const char *dh_step_term(size_t i, const char **doc)
{
    if (i >= DH_COUNTOF(terms)) return NULL;
    *doc = terms[i].doc;
    return terms[i].name;
}

static double system_distance(const char *a, const char *b)
{
    const size_t n = strcspn(a, "+"), m = strcspn(b, "+");
    if (strcmp(a, b) == 0) return 0;
    return n == m && memcmp(a, b, n) == 0 ? 0.25 : 1;
}

static double size_distance(double a, double b)
{
    const double d = a > 0 && b > 0 ? fabs(log2(a / b)) : 0;
    return d > 1e-9 ? d : 0; /* the file's figures are decimal */
}

static double term_of(const struct term *t, const dh_step_facts *a, const dh_step_facts *b)
{
    const char *x = text_at(a, t->offset), *y = text_at(b, t->offset);
    switch (t->kind) {
    case SOFTWARE:
        return t->weight * system_distance(x, y);
    case NAME:
        return t->weight * (strcmp(x, y) != 0);
    case PRESENT:
        return t->weight *
               ((number_at(a, t->offset) > t->least) != (number_at(b, t->offset) > t->least));
    case SIZE:
    default:
        return t->weight * size_distance(number_at(a, t->offset), number_at(b, t->offset));
    }
}

/* The least distance of a term that is named as a difference. */
#define NAMED 0.5

static void measure(const dh_step_facts *facts, dh_precedent *row)
{
    row->distance = 0;
    row->differs = 0;
    for (size_t i = 0; i < DH_COUNTOF(terms); i++) {
        const double d = term_of(&terms[i], facts, &row->facts);
        row->distance += d;
        if (d >= NAMED) row->differs |= 1u << i;
    }
}

/* Figures of one device in two files may be rounded. */
static bool are_near(double a, double b)
{
    return fabs(a - b) <= 0.01 * fabs(b);
}

static bool is_of_device(const dh_step_facts *a, const dh_step_facts *b)
{
    return are_near(a->processors, b->processors) && are_near(a->peak_tflops, b->peak_tflops);
}

double dh_precedent_error(const dh_precedent *row)
{
    const double over = 100 * (row->predicted - row->published) / row->published;
    return row->rate ? over : -over;
}

/* ---- the nearest ------------------------------------------------------------------------------ */

/* Keeps rows by distance. Returns how many are kept then. */
static size_t keep(dh_precedent *rows, size_t n, size_t most, const dh_precedent *row)
{
    size_t at = n;
    while (at > 0 && row->distance < rows[at - 1].distance) at--;
    if (at == most) return n;
    n = DH_MIN(n + 1, most);
    memmove(&rows[at + 1], &rows[at], (n - 1 - at) * sizeof *rows);
    rows[at] = *row;
    return n;
}

typedef struct nearest {
    dh_precedents *found;
    dh_precedent unfitted[DH_PRECEDENT_MEAN_OF];
    size_t n_unfitted;
} nearest;

static void take(nearest *n, const dh_step_facts *facts, dh_precedent *row)
{
    dh_precedents *found = n->found;
    if (!is_of_device(facts, &row->facts)) return;
    measure(facts, row);
    found->n_of_device++;
    found->n_shown = keep(found->shown, found->n_shown, DH_PRECEDENT_SHOWN, row);
    if (!row->fitted) n->n_unfitted = keep(n->unfitted, n->n_unfitted, DH_PRECEDENT_MEAN_OF, row);
}

/* ---- the file --------------------------------------------------------------------------------- */

/* Columns: table, row, predicted, published, rate, fitted; then facts. */
static bool read_number(const dh_csv_text *cell, double *number)
{
    char text[DH_PRECEDENT_TEXT];
    if (cell->n == 0 || cell->n >= sizeof text) return false;
    snprintf(text, sizeof text, "%.*s", (int)cell->n, cell->at);
    return dh_parse_f64(text, number);
}

static bool next_text(dh_csv *csv, char out[DH_PRECEDENT_TEXT])
{
    dh_csv_text cell;
    if (!dh_csv_next_cell(csv, &cell) || cell.n >= DH_PRECEDENT_TEXT) return false;
    snprintf(out, DH_PRECEDENT_TEXT, "%.*s", (int)cell.n, cell.at);
    return true;
}

static bool next_number(dh_csv *csv, double *out)
{
    dh_csv_text cell;
    return dh_csv_next_cell(csv, &cell) && read_number(&cell, out);
}

static bool read_facts(dh_csv *csv, dh_step_facts *f)
{
    for (size_t i = 0; i < DH_COUNTOF(facts_of_step); i++) {
        char *at = (char *)f + facts_of_step[i].offset;
        if (facts_of_step[i].text ? !next_text(csv, at) : !next_number(csv, (double *)(void *)at))
            return false;
    }
    return true;
}

static bool read_row(dh_csv *csv, dh_precedent *row)
{
    double rate, fitted;
    dh_csv_text more;
    *row = (dh_precedent){.distance = 0};
    if (!next_text(csv, row->table) || !next_text(csv, row->row) ||
        !next_number(csv, &row->predicted) || !next_number(csv, &row->published) ||
        !next_number(csv, &rate) || !next_number(csv, &fitted) || !read_facts(csv, &row->facts))
        return false;
    row->rate = rate > 0;
    row->fitted = fitted > 0;
    return row->published > 0 && !dh_csv_next_cell(csv, &more);
}

dh_status dh_precedents_find_in(dh_ctx *ctx, const char *text, size_t n_bytes,
                                const dh_step_facts *facts, dh_precedents *found)
{
    dh_csv csv;
    dh_csv_text line;
    dh_csv_line kind;
    dh_precedent row;
    *found = (dh_precedents){.n_shown = 0};
    nearest n = {.found = found};
    bool named = false;
    dh_csv_begin(&csv, text, n_bytes);
    while ((kind = dh_csv_next_line(&csv, &line)) != DH_CSV_END) {
        if (kind != DH_CSV_CELLS) continue;
        if (named && !read_row(&csv, &row))
            return dh_fail(ctx, DH_EFORMAT,
                           "validation/predicted/steps.csv:%d: a row has a table, a row's name, "
                           "predicted and published, rate and fitted, and the facts of the first "
                           "line",
                           (int)csv.line);
        if (named) take(&n, facts, &row);
        named = true;
    }
    for (size_t i = 0; i < n.n_unfitted; i++)
        found->mean_error += fabs(dh_precedent_error(&n.unfitted[i])) / (double)n.n_unfitted;
    found->n_mean = n.n_unfitted;
    return DH_OK;
}

dh_status dh_precedents_find(dh_ctx *ctx, const dh_step_facts *facts, dh_precedents *found)
{
    const dh_embedded *f = &dh_precedent_files[0];
    DH_CHECK(dh_precedent_files_n == 1);
    return dh_precedents_find_in(ctx, (const char *)f->text, f->n_bytes, facts, found);
}

/* ---- results ---------------------------------------------------------------------------------- */

/* "llama 70.6 B" */
static void print_model(const dh_step_facts *f, dh_str *out)
{
    char number[32];
    dh_str_printf(out, "%s %s", f->family, dh_format_count(number, sizeof number, f->parameters));
}

static void print_mesh(const dh_step_facts *f, dh_str *out)
{
    const struct {
        const char *name;
        double n;
    } degrees[] = {{"tp", f->tp}, {"pp", f->pp}, {"cp", f->cp}, {"ep", f->ep}};
    const char *before = ", ";
    for (size_t i = 0; i < DH_COUNTOF(degrees); i++) {
        if (degrees[i].n <= 1) continue;
        dh_str_printf(out, "%s%s %.0f", before, degrees[i].name, degrees[i].n);
        before = " ";
    }
    if (f->zero > 2) dh_str_printf(out, "%szero 3", before);
}

/* A name that several terms have stands once. */
static bool is_first(unsigned differs, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (differs >> k & 1 && strcmp(terms[k].name, terms[i].name) == 0) return false;
    return differs >> i & 1;
}

/* Rows farther than this are said to be unlike the job, in so many words at most. */
#define FAR 1.0
enum { SAID = 3 };

static void print_differences(const dh_precedent *row, dh_str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < DH_COUNTOF(terms) && row->distance > FAR; i++) {
        if (!is_first(row->differs, i) || n++ >= SAID) continue;
        dh_str_printf(out, "%s%s", n == 1 ? ", unlike this job in " : ", ", terms[i].name);
    }
    if (n > SAID) dh_str_printf(out, " and more");
}

void dh_precedents_print(const dh_precedents *found, dh_str *out)
{
    const dh_precedent *row = &found->shown[0];
    if (found->n_shown == 0) {
        dh_str_printf(out, "nearest measured: no row of this device");
        return;
    }
    const dh_step_facts *f = &row->facts;
    const double error = dh_precedent_error(row);
    dh_str_printf(out, "nearest measured: ");
    print_model(f, out);
    dh_str_printf(out, " on %.0f %s, %.*s", f->devices, f->cluster, (int)strcspn(f->system, "+"),
                  f->system);
    print_mesh(f, out);
    dh_str_printf(out, " (table %s%s): predicted %.1f %% too %s", row->table,
                  row->fitted ? ", fitted" : "", fabs(error), error < 0 ? "slow" : "fast");
    print_differences(row, out);
    if (found->n_mean == 0)
        dh_str_printf(out, "; every row of this device is fitted");
    else
        dh_str_printf(out, "; %zu nearest row%s: %.1f %% off on average", found->n_mean,
                      found->n_mean == 1 ? "" : "s", found->mean_error);
}

static json_t *differences_json(const dh_precedent *row)
{
    json_t *names = json_array();
    for (size_t i = 0; names && i < DH_COUNTOF(terms); i++)
        if (is_first(row->differs, i)) json_array_append_new(names, json_string(terms[i].name));
    return names;
}

static json_t *row_json(const dh_precedent *row)
{
    return json_pack("{ss ss sf sf sf sb sf so so}", "table", row->table, "row", row->row,
                     "predicted", row->predicted, "published", row->published, "too_fast_percent",
                     dh_precedent_error(row), "fitted", row->fitted, "distance", row->distance,
                     "differs", differences_json(row), "step", dh_step_facts_json(&row->facts));
}

json_t *dh_precedents_json(const dh_precedents *found)
{
    json_t *rows = json_array();
    for (size_t i = 0; rows && i < found->n_shown; i++)
        json_array_append_new(rows, row_json(&found->shown[i]));
    json_t *object = json_pack("{so sI}", "rows", rows, "mean_of", (json_int_t)found->n_mean);
    if (object && found->n_mean > 0)
        json_object_set_new(object, "mean_error_percent", json_real(found->mean_error));
    if (object && found->n_shown == 0)
        json_object_set_new(object, "reason", json_string("no row of this device"));
    return object;
}
