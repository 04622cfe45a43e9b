/* A sweep of GEMMs as CSV: a line of headings, then one for each measurement.
 *
 *   m,n,k,dtype,time_us
 *   4096,4096,4096,bf16,205.3
 *
 * m x k times k x n; `batch` of them where there is such a column. The result is a time (time_us,
 * time_ms, time_s; time alone is in us) or a rate (tflops, gflops). If both are given they must
 * agree. Columns of hipblaslt-bench and cutlass_profiler are read too. An unknown column is refused
 * unless it says nothing about the work. Rows of other types than bf16, fp16 and f32, and of other
 * kinds than plain products, are left out and counted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/csv.h"
#include "calibrate/measured.h"

enum { MAX_CELL = 128, MAX_CELLS = 96, N_OTHER_NAMES = 4, MAX_TYPES = 4 };

/* OPERATION: a name that may say the type ("s1688tf32gemm"). STATUS: whether it ran. GROUPED: not
 * 0: several products of other sizes. */
typedef enum column {
    M,
    N,
    K,
    BATCH,
    DTYPE,
    DTYPE_B, /* type of the other factor */
    COMPUTE, /* the type that it is multiplied in */
    OPERATION,
    STATUS,
    DISPOSITION, /* whether its result was right */
    KIND,        /* of the operation, "gemm" or another */
    GEMM_KIND,   /* "universal", "sparse" */
    GROUPED,
    TIME,
    RATE,
    N_COLUMNS
} column;

static const struct {
    const char *name;
    column is;
    double unit; /* of TIME in ns, of RATE in FLOP/ns */
} headings[] = {
    {"m", M, 0},
    {"n", N, 0},
    {"k", K, 0},
    {"batch", BATCH, 0},
    {"batch_count", BATCH, 0},
    {"batch_size", BATCH, 0},
    {"b", BATCH, 0}, /* a type where it holds one */
    {"dtype", DTYPE, 0},
    {"type", DTYPE, 0},
    {"a_type", DTYPE, 0}, /* hipblaslt-bench */
    {"b_type", DTYPE_B, 0},
    {"compute_type", COMPUTE, 0},
    {"A", DTYPE, 0}, /* cutlass_profiler: "f32:column" */
    {"operation", OPERATION, 0},
    {"status", STATUS, 0},
    {"disposition", DISPOSITION, 0},
    {"operationkind", KIND, 0},
    {"gemm_kind", GEMM_KIND, 0},
    {"grouped_gemm", GROUPED, 0},
    {"time", TIME, 1e3},
    {"time_ns", TIME, 1},
    {"latency_ns", TIME, 1},
    {"ns", TIME, 1},
    {"time_us", TIME, 1e3},
    {"latency_us", TIME, 1e3},
    {"us", TIME, 1e3},
    {"time_ms", TIME, 1e6},
    {"latency_ms", TIME, 1e6},
    {"ms", TIME, 1e6},
    {"runtime", TIME, 1e6}, /* cutlass_profiler */
    {"time_s", TIME, 1e9},
    {"tflops", RATE, 1e3},
    {"tflop/s", RATE, 1e3},
    {"tflop_per_s", RATE, 1e3},
    {"gflops", RATE, 1},
    {"gflop/s", RATE, 1},
    {"hipblaslt-gflops", RATE, 1},
    {"rocblas-gflops", RATE, 1},
};

/* Headings that say nothing about how much is multiplied, whole or up to a "*". */
static const char *const others[] = {"note*",
                                     "comment*",
                                     "name",
                                     "gpu",
                                     "gpu_name",
                                     "gpu_model",
                                     "gpu_id",
                                     "device",
                                     "device_name",
                                     "device_id",
                                     "date",
                                     "iter*",
                                     "warmup*",
                                     "gbps",
                                     "gb/s",
                                     "hipblaslt-gb/s",
                                     "rocblas-gb/s",
                                     "ai*",
                                     "bytes",
                                     "flops/byte",
                                     "flop*",
                                     "mfu",
                                     "util*",
                                     "efficiency*",
                                     "trans*",
                                     "lda",
                                     "ldb",
                                     "ldc",
                                     "ldd",
                                     "stride_*",
                                     "alpha",
                                     "beta",
                                     "c_type",
                                     "d_type",
                                     "scale*",
                                     "amaxd",
                                     "swizzle_*",
                                     "activation_type",
                                     "bias_vector",
                                     "bias_type",
                                     "aux_type",
                                     "rotating_buffer",
                                     "flush",
                                     "use_gpu_timer",
                                     "problem",
                                     "provider",
                                     "c",
                                     "d",
                                     "split_k_slices",
                                     "op_class",
                                     "accum",
                                     "cta_*",
                                     "stages",
                                     "warps_*",
                                     "inst_*",
                                     "min_cc",
                                     "max_cc",
                                     "cluster_*",
                                     "raster_order",
                                     "layout*",
                                     "solution*",
                                     "kernel*",
                                     "algo*",
                                     "workspace*",
                                     "min_*",
                                     "max_*",
                                     "std*",
                                     "p50",
                                     "p99"};

/* What rows are left out for, and how many rows of any. */
typedef struct left_out {
    char names[N_OTHER_NAMES][MAX_CELL];
    int n_names, n_rows;
} left_out;

typedef struct reader {
    const measured_file *file;
    dh_csv csv;
    char cells[MAX_CELLS][MAX_CELL];
    int n_cells;
    int at[N_COLUMNS]; /* cell of a column; -1: there is none */
    double unit[N_COLUMNS];
    int b; /* cell of a column "b" after one of types: a type or a number of products; -1: none */
    int n_headings;
    int more_types[MAX_TYPES]; /* cells that say DTYPE again */
    int n_more_types;
    left_out types, kinds;
    int n_failed;
} reader;

static void read_cells(reader *r)
{
    dh_csv_text cell;
    r->n_cells = 0;
    while (r->n_cells < MAX_CELLS && dh_csv_next_cell(&r->csv, &cell))
        snprintf(r->cells[r->n_cells++], MAX_CELL, "%.*s",
                 (int)DH_MIN(cell.n, (size_t)MAX_CELL - 1), cell.at);
}

/* ---- headings ------------------------------------------------------------------------------- */

/* hipblaslt-bench begins its headings with "[0]:". */
static const char *heading_at(const reader *r, int cell)
{
    const char *text = r->cells[cell], *colon = strchr(text, ':');
    return cell == 0 && *text == '[' && colon ? colon + 1 : text;
}

static bool says_nothing(const char *heading)
{
    char text[MAX_CELL];
    snprintf(text, sizeof text, "%s", heading);
    dh_to_lower(text);
    for (size_t i = 0; i < DH_COUNTOF(others); i++) {
        const size_t n = strcspn(others[i], "*");
        if (strncmp(text, others[i], n) == 0 && (others[i][n] == '*' || !text[n])) return true;
    }
    return !*heading;
}

/* "time (us)" as "time_us". */
static void plain_heading(const reader *r, int cell, char text[MAX_CELL])
{
    size_t n = 0;
    for (const char *at = heading_at(r, cell); *at && n + 1 < MAX_CELL; at++)
        if (*at == '(' || *at == '[') {
            while (n > 0 && text[n - 1] == ' ') n--;
            text[n++] = '_';
        } else if (*at != ')' && *at != ']') {
            text[n++] = *at;
        }
    text[n] = '\0';
}

static dh_status read_heading(reader *r, int cell)
{
    char plain[MAX_CELL];
    const char *text = heading_at(r, cell);
    plain_heading(r, cell, plain);
    for (size_t i = 0; i < DH_COUNTOF(headings); i++) {
        const column is = headings[i].is;
        if (!dh_is_same_word(plain, headings[i].name)) continue;
        if (r->at[is] >= 0 && (is != DTYPE || r->n_more_types == MAX_TYPES))
            return dh_fail(r->file->ctx, DH_EFORMAT,
                           "%s:%d: columns \"%s\" and \"%s\" say the same: take one out",
                           r->file->path, r->csv.line, heading_at(r, r->at[is]), text);
        if (r->at[is] >= 0) {
            r->more_types[r->n_more_types++] = cell;
            return DH_OK;
        }
        r->at[is] = cell;
        r->unit[is] = headings[i].unit;
        return DH_OK;
    }
    if (says_nothing(text)) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: column \"%s\" is not known, and might change what is multiplied: m, n, "
                   "k, batch, dtype, a time and a rate are read; take it out, or call it note",
                   r->file->path, r->csv.line, text);
}

/* cutlass_profiler has the types of its factors under A and B, and counts under batch_count. */
static dh_status read_b(reader *r, int cell)
{
    if (!dh_is_same_word(heading_at(r, cell), "b") || r->at[DTYPE] < 0)
        return read_heading(r, cell);
    r->b = cell;
    return DH_OK;
}

static dh_status read_headings(reader *r)
{
    static const char *const wanted[N_COLUMNS] = {
        [M] = "m", [N] = "n", [K] = "k", [DTYPE] = "dtype"};
    const char *missing = NULL;
    for (int c = 0; c < N_COLUMNS; c++) r->at[c] = -1;
    r->n_headings = r->n_cells;
    r->b = -1;
    r->n_more_types = 0;
    for (int i = 0; i < r->n_cells; i++) DH_TRY(read_b(r, i));
    for (int c = 0; c < N_COLUMNS && !missing; c++)
        if (r->at[c] < 0) missing = wanted[c];
    if (!missing && r->at[TIME] < 0 && r->at[RATE] < 0) missing = "time_us or tflops";
    if (!missing) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: no column %s; headings as m,n,k,dtype,time_us or m,n,k,dtype,tflops are "
                   "wanted (or output of nccl-tests, or a trace)",
                   r->file->path, r->csv.line, missing);
}

/* Some tools print the headings before each row. */
static bool is_heading(const reader *r)
{
    int n = 0;
    for (int i = 0; i < r->n_cells; i++)
        n += dh_is_same_word(heading_at(r, i), "m") || dh_is_same_word(heading_at(r, i), "n") ||
             dh_is_same_word(heading_at(r, i), "k");
    return n == 3;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static dh_status read_number(const reader *r, int cell, const char *name, int64_t *size)
{
    if (dh_parse_i64(r->cells[cell], size) && *size > 0 && *size <= INT32_MAX) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: %s \"%s\": a whole number from 1 to %d is wanted", r->file->path,
                   r->csv.line, name, r->cells[cell], INT32_MAX);
}

static dh_status read_size(const reader *r, column c, int64_t *size)
{
    static const char *const names[] = {[M] = "m", [N] = "n", [K] = "k", [BATCH] = "batch"};
    *size = 1;
    return r->at[c] < 0 ? DH_OK : read_number(r, r->at[c], names[c], size);
}

static const char *cell_of(const reader *r, column c)
{
    return r->at[c] >= 0 ? r->cells[r->at[c]] : "";
}

/* "torch.bfloat16", "bf16_r", "f32:column", "CUDA_R_16BF". */
static void type_name(const char *text, char name[MAX_CELL])
{
    static const char *const cuda[][2] = {
        {"CUDA_R_16BF", "bf16"}, {"CUDA_R_16F", "f16"}, {"CUDA_R_32F", "f32"}};
    const char *dot = strrchr(text, '.');
    snprintf(name, MAX_CELL, "%s", dot ? dot + 1 : text);
    char *colon = strchr(name, ':'), *end = name + strlen(name);
    if (colon && colon[1] != ':') *colon = '\0';
    if (end - name > 2 && strcmp(end - 2, "_r") == 0) end[-2] = '\0';
    for (size_t i = 0; i < DH_COUNTOF(cuda); i++)
        if (dh_is_same_word(name, cuda[i][0])) snprintf(name, MAX_CELL, "%s", cuda[i][1]);
}

static bool says(const reader *r, column c, const char *part)
{
    char text[MAX_CELL];
    snprintf(text, sizeof text, "%s", cell_of(r, c));
    dh_to_lower(text);
    return strstr(text, part) != NULL;
}

/* Several columns of a type must agree. */
static dh_status check_types(const reader *r)
{
    char first[MAX_CELL], other[MAX_CELL];
    dh_dtype x, y;
    type_name(cell_of(r, DTYPE), first);
    for (int i = 0; i < r->n_more_types; i++) {
        const int cell = r->more_types[i];
        type_name(r->cells[cell], other);
        if (dh_is_same_word(first, other) ||
            (measured_dtype(first, &x) && measured_dtype(other, &y) && x == y))
            continue;
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: two columns say the type, \"%s\" and \"%s\": one type is wanted",
                       r->file->path, r->csv.line, cell_of(r, DTYPE), r->cells[cell]);
    }
    return DH_OK;
}

/* Factors of float32 that are rounded to 16 bits: "CUBLAS_COMPUTE_32F_FAST_16BF". */
static bool is_rounded(const reader *r, dh_dtype dtype)
{
    return dtype == DH_F32 && (says(r, COMPUTE, "16") || says(r, OPERATION, "f16gemm"));
}

/* Of both factors, and what they are multiplied in. */
static bool type_of(const reader *r, char name[MAX_CELL], dh_dtype *dtype)
{
    char other[MAX_CELL];
    dh_dtype same;
    double number;
    const char *second = cell_of(r, DTYPE_B);
    if (!*second && r->b >= 0 && !dh_parse_f64(r->cells[r->b], &number)) second = r->cells[r->b];
    type_name(cell_of(r, DTYPE), name);
    if (says(r, OPERATION, "tf32") || says(r, COMPUTE, "xf32") || says(r, COMPUTE, "tf32"))
        snprintf(name, MAX_CELL, "tf32");
    if (measured_dtype(name, dtype) && is_rounded(r, *dtype)) {
        snprintf(name, MAX_CELL, "f32 in 16 bits");
        return false;
    }
    if (!measured_dtype(name, dtype) || !*second) return measured_dtype(name, dtype);
    type_name(second, other);
    if (measured_dtype(other, &same) && same == *dtype) return true;
    const size_t n = strlen(name);
    snprintf(name + n, MAX_CELL - n, " x %.*s", (int)(MAX_CELL / 4), other);
    return false;
}

/* batch, or a column "b" of numbers. */
static dh_status read_batch(const reader *r, int64_t *batch)
{
    double number;
    if (r->b < 0 || !dh_parse_f64(r->cells[r->b], &number)) return read_size(r, BATCH, batch);
    if (r->at[BATCH] >= 0)
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: column \"b\" has numbers, and another says the batch: take one out",
                       r->file->path, r->csv.line);
    return read_number(r, r->b, "b", batch);
}

static void leave_out(left_out *out, const char *name)
{
    int i = 0;
    out->n_rows++;
    while (i < out->n_names && !dh_is_same_word(out->names[i], name)) i++;
    if (i == out->n_names && i < N_OTHER_NAMES)
        snprintf(out->names[out->n_names++], MAX_CELL, "%s", *name ? name : "none");
}

/* Whether a column is absent or empty, or has one of some words. */
static bool is_one_of(const reader *r, column c, const char *const words[], size_t n)
{
    const char *text = cell_of(r, c);
    for (size_t i = 0; i < n; i++)
        if (dh_is_same_word(text, words[i])) return true;
    return !*text;
}

/* Whether it ran, and not with a wrong result. cutlass_profiler may be told not to verify. */
static bool succeeded(const reader *r)
{
    static const char *const statuses[] = {"success", "ok"};
    static const char *const results[] = {"passed", "not_verified", "not_run"};
    return is_one_of(r, STATUS, statuses, DH_COUNTOF(statuses)) &&
           is_one_of(r, DISPOSITION, results, DH_COUNTOF(results));
}

/* The kind of what is no plain product, as cutlass_profiler names it; NULL: a plain product. */
static const char *other_kind(const reader *r)
{
    static const char *const kinds[] = {"gemm"};
    static const char *const gemm_kinds[] = {"gemm", "universal", "batched", "array"};
    if (!is_one_of(r, KIND, kinds, DH_COUNTOF(kinds))) return cell_of(r, KIND);
    return is_one_of(r, GEMM_KIND, gemm_kinds, DH_COUNTOF(gemm_kinds)) ? NULL
                                                                       : cell_of(r, GEMM_KIND);
}

static dh_status not_a_number(const reader *r, column c)
{
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: \"%s\": a %s above 0 is wanted, and no product of decades",
                   r->file->path, r->csv.line, cell_of(r, c), c == RATE ? "rate" : "time");
}

/* A column's time, of so many FLOP; 0: there is no such column. */
static dh_status read_took(const reader *r, column c, double flops, double *ns)
{
    double value;
    *ns = 0;
    if (r->at[c] < 0) return DH_OK;
    if (!dh_parse_f64(cell_of(r, c), &value) || !measured_is_number(value))
        return not_a_number(r, c);
    *ns = c == RATE ? flops / (value * r->unit[c]) : value * r->unit[c];
    return measured_is_time(*ns) ? DH_OK : not_a_number(r, c);
}

/* TUNING: rates and times are printed with three digits or more. */
#define AGREES 0.03

static dh_status read_ns(const reader *r, double flops, double *ns)
{
    double rated;
    DH_TRY(read_took(r, TIME, flops, ns));
    DH_TRY(read_took(r, RATE, flops, &rated));
    if (*ns <= 0) *ns = rated;
    if (rated <= 0 || fabs(rated / *ns - 1) <= AGREES) return DH_OK;
    return dh_fail(r->file->ctx, DH_EFORMAT,
                   "%s:%d: the rate \"%s\" is %.3g times that of m, n, k and batch in the time "
                   "\"%s\": a column that changes the work is missing, or a unit is another",
                   r->file->path, r->csv.line, cell_of(r, RATE), *ns / rated, cell_of(r, TIME));
}

static dh_status read_row(reader *r)
{
    int64_t m, n, k, batch;
    double ns;
    dh_dtype dtype;
    char type[MAX_CELL];
    const char *grouped = cell_of(r, GROUPED);
    for (int c = 0; c < N_COLUMNS; c++)
        if (r->at[c] >= r->n_cells || r->b >= r->n_cells)
            return dh_fail(r->file->ctx, DH_EFORMAT,
                           "%s:%d: %d cells; as many as there are headings are wanted",
                           r->file->path, r->csv.line, r->n_cells);
    if (!succeeded(r)) {
        r->n_failed++;
        return DH_OK;
    }
    if (other_kind(r)) {
        leave_out(&r->kinds, other_kind(r));
        return DH_OK;
    }
    if (*grouped && strcmp(grouped, "0") != 0)
        return dh_fail(r->file->ctx, DH_EFORMAT,
                       "%s:%d: grouped_gemm \"%s\": products of one size are wanted", r->file->path,
                       r->csv.line, grouped);
    DH_TRY(read_size(r, M, &m));
    DH_TRY(read_size(r, N, &n));
    DH_TRY(read_size(r, K, &k));
    DH_TRY(read_batch(r, &batch));
    DH_TRY(check_types(r));
    if (!type_of(r, type, &dtype)) {
        leave_out(&r->types, type);
        return DH_OK;
    }
    DH_TRY(read_ns(r, 2 * (double)m * (double)n * (double)k * (double)batch, &ns));
    return measured_add_gemm(r->file, r->csv.line, dtype, m, n, k, batch, ns);
}

static dh_status note_names(const reader *r, const left_out *out, const char *of,
                            const char *are_read)
{
    dh_str names = DH_STR_INIT;
    for (int i = 0; i < out->n_names; i++)
        dh_str_printf(&names, "%s%s", i ? ", " : "", out->names[i]);
    dh_status st = names.failed ? measured_no_memory(r->file) : DH_OK;
    if (st == DH_OK && out->n_rows)
        st = measured_note(r->file, "%d row%s of other %s left out (%s); %s are read", out->n_rows,
                           out->n_rows == 1 ? "" : "s", of, names.text, are_read);
    dh_str_fini(&names);
    return st;
}

static dh_status note_left_out(const reader *r)
{
    DH_TRY(note_names(r, &r->types, "types", "bf16, fp16 and f32"));
    DH_TRY(note_names(r, &r->kinds, "kinds", "plain products"));
    if (r->n_failed == 0) return DH_OK;
    return measured_note(r->file, "%d rows left out that did not succeed", r->n_failed);
}

dh_status measured_read_gemms(const measured_file *file)
{
    reader r = {.file = file};
    dh_csv_text text;
    dh_csv_line line;
    bool headed = false;
    dh_csv_begin(&r.csv, file->text, file->n_bytes);
    while ((line = dh_csv_next_line(&r.csv, &text)) != DH_CSV_END) {
        if (line != DH_CSV_CELLS) continue;
        read_cells(&r);
        DH_TRY(headed && !is_heading(&r) ? read_row(&r) : read_headings(&r));
        headed = true;
    }
    return note_left_out(&r);
}
