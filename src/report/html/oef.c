/* The overlap effectiveness of operator pairs, as a matrix: from a profile's pairs, or from
 * a CSV file. */
#include "report/html/run.h"

#include <math.h>
#include <stdlib.h>

#include "costs/profile.h"

static void write_names(const char *key, const char *const *names, int32_t n, json_out *out)
{
    out_key(out, key);
    out_open(out, '[');
    for (int32_t i = 0; i < n; i++) out_text(out, names[i]);
    out_close(out, ']');
}

/* at [n_rows][n_columns], NAN where nothing is known. */
static void write_matrix(const char *const *rows, int32_t n_rows, const char *const *columns,
                         int32_t n_columns, const double *at, json_out *out)
{
    out_key(out, "oef");
    out_open(out, '{');
    write_names("rows", rows, n_rows, out);
    write_names("columns", columns, n_columns, out);
    out_key(out, "at");
    out_open(out, '[');
    for (int64_t i = 0; i < (int64_t)n_rows * n_columns; i++) out_num(out, at[i]);
    out_close(out, ']');
    out_close(out, '}');
}

/* ---- a CSV file ----------------------------------------------------------------------------- */

static dh_status write_csv(dh_ctx *ctx, const char *path, json_out *out)
{
    dh_oef_matrix *m;
    DH_TRY(dh_oef_matrix_read(ctx, path, &m));
    write_matrix(m->row_names, m->n_rows, m->column_names, m->n_columns, m->at, out);
    dh_oef_matrix_destroy(m);
    return DH_OK;
}

/* ---- a profile ------------------------------------------------------------------------------ */

/* Operators of one side of the pairs, by their place among the matrix's rows or columns. */
typedef struct side {
    int32_t *place;     /* by operator; -1: not there */
    const char **names; /* by place */
    int32_t n;
} side;

static bool side_create(const dh_profile *p, side *s)
{
    s->n = 0;
    s->place = malloc((p->ops.n + 1) * sizeof *s->place);
    s->names = malloc((p->ops.n + 1) * sizeof *s->names);
    for (size_t i = 0; s->place && i < p->ops.n; i++) s->place[i] = -1;
    return s->place && s->names;
}

static void side_add(const dh_profile *p, uint32_t op, side *s)
{
    if (s->place[op] >= 0) return;
    s->place[op] = s->n;
    s->names[s->n++] = p->ops.at[op].label;
}

static double oef_of(const dh_profile *p, const dh_profile_pair *pair)
{
    return dh_oef(p->ops.at[pair->a].solo_ns, p->ops.at[pair->b].solo_ns,
                  DH_MAX(pair->a_ns, pair->b_ns));
}

static dh_status write_pairs(dh_ctx *ctx, const dh_profile *p, side *f, side *b, json_out *out)
{
    for (size_t i = 0; i < p->pairs.n; i++) {
        side_add(p, p->pairs.at[i].a, f);
        side_add(p, p->pairs.at[i].b, b);
    }
    const size_t n = (size_t)f->n * (size_t)b->n;
    double *at = calloc(n + 1, sizeof *at);
    if (!at) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) at[i] = (double)NAN;
    for (size_t i = 0; i < p->pairs.n; i++) {
        const dh_profile_pair *pair = &p->pairs.at[i];
        at[(size_t)f->place[pair->a] * (size_t)b->n + (size_t)b->place[pair->b]] = oef_of(p, pair);
    }
    write_matrix(f->names, f->n, b->names, b->n, at, out);
    free(at);
    return DH_OK;
}

static dh_status write_profile(dh_ctx *ctx, const char *path, json_out *out)
{
    dh_profile *p;
    side f = {0}, b = {0};
    DH_TRY(dh_profile_read(ctx, path, &p));
    const bool ok = side_create(p, &f) && side_create(p, &b);
    dh_status st = DH_OK;
    if (ok && p->pairs.n > 0) st = write_pairs(ctx, p, &f, &b, out);
    if (!ok) st = dh_no_memory_while(ctx, "reading %s", path);
    free(f.place);
    free(f.names);
    free(b.place);
    free(b.names);
    dh_profile_destroy(p);
    return st;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static const struct {
    const char *file;
    dh_status (*write)(dh_ctx *ctx, const char *path, json_out *out);
} sources[] = {{"profile.json", write_profile}, {"oef.csv", write_csv}};

dh_status dh_html_oef(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    for (size_t i = 0; i < DH_COUNTOF(sources); i++) {
        char *path;
        DH_TRY(dh_run_folder_path(ctx, run, sources[i].file, &path));
        const bool there = dh_path_exists(path);
        dh_status st = there ? sources[i].write(ctx, path, out) : DH_OK;
        free(path);
        run->n_parts += there;
        if (there) return st;
    }
    return DH_OK;
}
