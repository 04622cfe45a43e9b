/* Figures of four forms as SVG: curves, bars over time, grouped bars, and a matrix.
 *
 * They are as wide as a column of a paper, or as its page. Every mark has a title with its numbers.
 * Texts are UTF-8 from anywhere. Running out of memory shows in out->failed. */
#ifndef DH_REPORT_HTML_CHART_H
#define DH_REPORT_HTML_CHART_H

#include "base/svg.h"

/* Colours of marks, as the page has them. */
typedef enum chart_look {
    LOOK_FORWARD,
    LOOK_BACKWARD,
    LOOK_WEIGHTS,
    LOOK_OTHER,
    LOOK_LOCAL,
    LOOK_CROSS,
    LOOK_COMPUTE,
    LOOK_EXPOSED, /* and four paler ones */
    LOOK_BUBBLE = LOOK_EXPOSED + 5,
    LOOK_PARTNERS,
    LOOK_IDLE,
    N_LOOK
} chart_look;

/* x, y: of the axes, with units */
typedef struct chart_text {
    const char *title, *x, *y;
} chart_text;

typedef struct chart_entry {
    const char *text;
    int look;
} chart_entry;

typedef struct chart_legend {
    const chart_entry *at;
    size_t n;
} chart_legend;

/* Whether a number is drawn. A number beyond is in the CSV file only, because no axis could show it
 * beside others. */
static inline bool chart_is_drawn(double value)
{
    return value > -1e100 && value < 1e100;
}

/* ---- curves ---------------------------------------------------------------------------------- */

typedef struct chart_point {
    double x, y; /* y: NAN: none */
} chart_point;

typedef enum chart_form { CHART_LINE, CHART_DOTS, CHART_STAIRS } chart_form;

/* Stairs hold a value until the next, and are filled down to 0. */
typedef struct chart_curve {
    const char *label;
    int look;
    chart_form form;
    DH_VEC(chart_point) points; /* by x */
} chart_curve;

/* from_zero: the vertical axis begins at 0, else near the least value */
void chart_curves(const chart_text *text, const chart_curve *curves, size_t n, bool from_zero,
                  dh_str *out);

/* ---- bars over time -------------------------------------------------------------------------- */

typedef struct chart_span {
    size_t row;
    double begin, end;
    int look;
    bool pale;
    const char *text; /* shown inside where there is room; NULL: nothing */
    size_t item;      /* argument of title_of */
} chart_span;

typedef struct chart_row {
    const char *name; /* a text of the caller's; NULL: the label */
    char label[64];   /* ASCII */
    bool apart;       /* more space above it */
} chart_row;

typedef struct chart_spans {
    DH_VEC(chart_row) rows;
    DH_VEC(chart_span) spans; /* row by row, in a row by begin */
    bool merge;               /* spans that are too narrow to see are one bar */
    bool wide;                /* as the page of a paper, else as a column */
    void (*title_of)(const void *user, size_t item, dh_str *title);
    const void *user;
} chart_spans;

/* The drawing has the entries of the legend whose looks occur. */
void chart_spans_draw(const chart_text *text, const chart_spans *s, chart_legend legend,
                      dh_str *out);

/* ---- grouped bars, and a matrix -------------------------------------------------------------- */

/* at[n_rows][n_columns]; NAN: none. Names are JSON strings' or others' texts. */
typedef struct chart_grid {
    const char *const *rows, *const *columns;
    size_t n_rows, n_columns;
    const double *at;
} chart_grid;

/* A group for each row, a bar in it for each column. */
void chart_bars(const chart_text *text, const chart_grid *grid, dh_str *out);
/* A square for each value, from -1 to 1. */
void chart_matrix(const chart_text *text, const chart_grid *grid, dh_str *out);

#endif
