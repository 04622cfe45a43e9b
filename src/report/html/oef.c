/* The overlap effectiveness of operator pairs, as a matrix. */
#include "report/html/run.h"

#include <stdlib.h>

#include "dhelix/pairing.h"

static void write_names(const char *key, const char *const *names, int32_t n, json_out *out)
{
    out_key(out, key);
    out_open(out, '[');
    for (int32_t i = 0; i < n; i++) out_text(out, names[i]);
    out_close(out, ']');
}

static void write_matrix(const dh_oef_matrix *m, json_out *out)
{
    out_key(out, "oef");
    out_open(out, '{');
    write_names("rows", m->row_names, m->n_rows, out);
    write_names("columns", m->column_names, m->n_columns, out);
    out_key(out, "at");
    out_open(out, '[');
    for (int32_t i = 0; i < m->n_rows * m->n_columns; i++) out_num(out, m->at[i]);
    out_close(out, ']');
    out_close(out, '}');
}

dh_status dh_html_oef(dh_ctx *ctx, dh_run_folder *run, json_out *out)
{
    char *path;
    dh_status st = DH_OK;
    DH_TRY(dh_run_folder_path(ctx, run, "oef.csv", &path));
    if (dh_path_exists(path)) {
        dh_oef_matrix *matrix;
        st = dh_oef_matrix_read(ctx, path, &matrix);
        if (st == DH_OK) {
            write_matrix(matrix, out);
            dh_oef_matrix_destroy(matrix);
            run->n_parts++;
        }
    }
    free(path);
    return st;
}
