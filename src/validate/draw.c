/* Published tables as SVG: grouped bars, stacked bars, or dots of predicted over published. */
#include "validate/draw.h"
#include "base/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Pixels. */
enum { LEFT = 46, TOP = 34, HIGH = 180, BAR = 9, GAP = 18, LINE = 14, LETTER = 7, MOST_SERIES = 8 };

/* ---- rows in items and series ---------------------------------------------------------------- */

/* The rows of one job stand together; each is of a series. Without series a row is an item. */
typedef struct chart {
    const dh_validation *v;
    dh_str *out;
    const char *series[MOST_SERIES];
    size_t n_series;
    dh_svg_axis axis;
} chart;

/* Bytes of the row's label without its series. */
static size_t item_length(const dh_validation_row *r)
{
    const size_t n = strlen(r->label), cut = r->series ? strlen(r->series) + 1 : 0;
    return n > cut ? n - cut : n;
}

static bool same_item(const dh_validation_row *a, const dh_validation_row *b)
{
    const size_t n = item_length(a);
    return a->series && b->series && n == item_length(b) && strncmp(a->label, b->label, n) == 0;
}

/* First row after the item that begins at row i. */
static size_t item_end(const dh_validation *v, size_t i)
{
    size_t end = i + 1;
    while (end < v->n_rows && same_item(&v->rows[i], &v->rows[end])) end++;
    return end;
}

static size_t series_of(const chart *c, const char *name)
{
    size_t i = 0;
    while (i < c->n_series && strcmp(c->series[i], name) != 0) i++;
    return i;
}

static double shade_of(const chart *c, const char *name)
{
    if (c->n_series < 2 || !name) return 0.8;
    return 0.35 + 0.65 * (double)series_of(c, name) / (double)(c->n_series - 1);
}

static void open_chart(const dh_validation *v, double most, dh_str *out, chart *c)
{
    dh_svg_axis *a = &c->axis;
    *c = (chart){.v = v, .out = out, .axis = {.high = most, .top = TOP, .height = HIGH}};
    for (size_t i = 0; i < v->n_rows; i++) {
        const dh_validation_row *r = &v->rows[i];
        a->low = DH_MIN(a->low, DH_MIN(r->predicted, r->published));
        if (most <= 0) a->high = DH_MAX(a->high, DH_MAX(r->predicted, r->published) * 1.05);
        if (r->series && c->n_series < MOST_SERIES && series_of(c, r->series) == c->n_series)
            c->series[c->n_series++] = r->series;
    }
    if (a->high <= a->low) a->high = a->low + 1;
    a->step = dh_svg_step(a->high - a->low);
    a->low = a->step * floor(a->low / a->step);
}

static void begin(const dh_validation *v, double width, double height, dh_str *out)
{
    dh_svg_begin(out, width, height, "");
    dh_str_printf(out, "<title>");
    dh_svg_put_whole(out, v->table->name);
    dh_str_printf(out, ": ");
    dh_svg_put_whole(out, v->table->doc);
    dh_str_printf(out, "</title>");
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A box with the row's figures as its title. */
static void put_box(const chart *c, double x, double y, double w, double h, bool predicted,
                    const dh_validation_row *r)
{
    char figures[2][32];
    dh_str_printf(c->out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                  "fill-opacity=\"%.2f\"><title>",
                  predicted ? "F" : "B", x, y, w, h, shade_of(c, r->series));
    dh_svg_put_whole(c->out, r->label);
    dh_str_printf(c->out, ": predicted %s, published %s</title></rect>",
                  dh_format_number(figures[0], sizeof figures[0], r->predicted, 4),
                  dh_format_number(figures[1], sizeof figures[1], r->published, 4));
}

static size_t legend_letters(const chart *c)
{
    size_t n = strlen("published: ") + strlen(c->v->table->unit) + 4;
    for (size_t i = 0; c->n_series > 1 && i < c->n_series; i++) n += strlen(c->series[i]) + 2;
    return n + (c->n_series > 1 ? strlen("from pale to dark ") : 0);
}

static void put_legend(const chart *c)
{
    dh_svg_put_swatch(c->out, "F", LEFT, 8);
    dh_str_printf(c->out, "<text x=\"%d\" y=\"17\">predicted</text>", LEFT + 14);
    dh_svg_put_swatch(c->out, "B", LEFT + 90, 8);
    dh_str_printf(c->out, "<text x=\"%d\" y=\"17\">published", LEFT + 104);
    if (*c->v->table->unit) dh_str_printf(c->out, ": ");
    dh_svg_put_whole(c->out, c->v->table->unit);
    if (c->n_series > 1) dh_str_printf(c->out, "; from pale to dark ");
    for (size_t i = 0; c->n_series > 1 && i < c->n_series; i++) {
        if (i) dh_str_printf(c->out, ", ");
        dh_svg_put_whole(c->out, c->series[i]);
    }
    dh_str_printf(c->out, "</text>");
}

/* ---- grouped bars ---------------------------------------------------------------------------- */

/* Width of the bars of rows [i, end), or of their item's longest word. */
static double item_width(const dh_validation *v, size_t i, size_t end)
{
    size_t longest = 0;
    const char *at = v->rows[i].label, *stop = at + item_length(&v->rows[i]);
    while (at < stop) {
        const size_t n = DH_MIN(strcspn(at, " "), (size_t)(stop - at));
        longest = DH_MAX(longest, n);
        at += n + 1;
    }
    return DH_MAX((double)(end - i) * (2 * BAR + 3), (double)(longest * (LETTER - 1)));
}

/* Words of a label in lines that fit. Returns the number of lines. */
static int put_words(const chart *c, double middle, double y, double width, const char *text,
                     size_t n)
{
    const size_t fits = (size_t)DH_MAX(width / (LETTER - 1), 1);
    int lines = 0;
    for (size_t at = 0; at < n;) {
        size_t end = at + DH_MIN(strcspn(text + at, " "), n - at);
        while (end < n) {
            const size_t next = end + 1 + DH_MIN(strcspn(text + end + 1, " "), n - end - 1);
            if (next - at > fits) break;
            end = next;
        }
        if (c) dh_svg_put_label(c->out, middle, y + LINE * lines, "middle", text + at, end - at);
        lines++;
        at = end + 1;
    }
    return lines;
}

static void put_bar(const chart *c, double x, double value, bool predicted,
                    const dh_validation_row *r)
{
    const double top = dh_svg_y(&c->axis, DH_MAX(value, 0)),
                 bottom = dh_svg_y(&c->axis, DH_MIN(value, 0));
    put_box(c, x, top, BAR - 1, bottom - top, predicted, r);
}

static void put_item(const chart *c, size_t i, size_t end, double x, double width)
{
    const dh_validation_row *rows = c->v->rows;
    double at = x + (width - (double)(end - i) * (2 * BAR + 3)) / 2;
    for (size_t k = i; k < end; k++, at += 2 * BAR + 3) {
        put_bar(c, at, rows[k].predicted, true, &rows[k]);
        put_bar(c, at + BAR, rows[k].published, false, &rows[k]);
    }
    put_words(c, x + width / 2, TOP + HIGH + 16, width + GAP, rows[i].label, item_length(&rows[i]));
}

static void draw_bars(const dh_validation *v, dh_str *out)
{
    chart c;
    double x = LEFT + GAP;
    int lines = 1;
    open_chart(v, 0, out, &c);
    for (size_t i = 0; i < v->n_rows; i = item_end(v, i)) {
        const double width = item_width(v, i, item_end(v, i));
        lines = DH_MAX(
            lines, put_words(NULL, 0, 0, width + GAP, v->rows[i].label, item_length(&v->rows[i])));
        x += width + GAP;
    }
    begin(v, DH_MAX(x, LEFT + 120 + LETTER * (double)legend_letters(&c)),
          TOP + HIGH + 10 + LINE * lines, out);
    dh_svg_put_axis(out, &c.axis, LEFT, x);
    double at = LEFT + GAP;
    for (size_t i = 0; i < v->n_rows; i = item_end(v, i)) {
        const double width = item_width(v, i, item_end(v, i));
        put_item(&c, i, item_end(v, i), at, width);
        at += width + GAP;
    }
    put_legend(&c);
    dh_str_printf(out, "</svg>\n");
}

/* ---- stacks ---------------------------------------------------------------------------------- */

/* An item's rows on top of each other, what is predicted to the left of what was published. */
static void put_stack(const chart *c, size_t i, size_t end, double x, double wide)
{
    double sums[2] = {0};
    for (size_t k = i; k < end; k++) {
        const dh_validation_row *r = &c->v->rows[k];
        const double values[] = {r->predicted, r->published};
        for (int s = 0; s < 2; s++) {
            const double top = dh_svg_y(&c->axis, sums[s] + DH_MAX(values[s], 0));
            const double bottom = dh_svg_y(&c->axis, sums[s] + DH_MIN(values[s], 0));
            put_box(c, x + s * (wide + 2), top, wide, bottom - top, s == 0, r);
            sums[s] += values[s];
        }
    }
}

static void draw_stacks(const dh_validation *v, dh_str *out)
{
    enum { WIDE = 22 };
    const double item = 2 * WIDE + 2 + GAP;
    chart c;
    double most = 0;
    size_t n = 0;
    for (size_t i = 0, end; i < v->n_rows; i = end, n++) {
        double sums[2] = {0};
        end = item_end(v, i);
        for (size_t k = i; k < end; k++) {
            sums[0] += v->rows[k].predicted;
            sums[1] += v->rows[k].published;
        }
        most = DH_MAX(most, DH_MAX(sums[0], sums[1]));
    }
    open_chart(v, most * 1.001, out, &c);
    const double width = LEFT + GAP + item * (double)n;
    begin(v, DH_MAX(width, LEFT + 120 + LETTER * (double)legend_letters(&c)),
          TOP + HIGH + 10 + 2 * LINE, out);
    dh_svg_put_axis(out, &c.axis, LEFT, width);
    double x = LEFT + GAP;
    for (size_t i = 0; i < v->n_rows; i = item_end(v, i), x += item) {
        put_stack(&c, i, item_end(v, i), x, WIDE);
        put_words(&c, x + item / 2 - GAP / 2.0, TOP + HIGH + 16, item, v->rows[i].label,
                  item_length(&v->rows[i]));
    }
    put_legend(&c);
    dh_str_printf(out, "</svg>\n");
}

/* ---- dots ------------------------------------------------------------------------------------ */

/* Both axes have one scale; a logarithmic one where the values are far apart. */
typedef struct scale {
    double low, high;
    bool logarithmic;
} scale;

static scale scale_of(const dh_validation *v)
{
    scale s = {INFINITY, -INFINITY, true};
    for (size_t i = 0; i < v->n_rows; i++) {
        s.low = DH_MIN(s.low, DH_MIN(v->rows[i].predicted, v->rows[i].published));
        s.high = DH_MAX(s.high, DH_MAX(v->rows[i].predicted, v->rows[i].published));
    }
    s.logarithmic = s.low > 0 && s.high > 20 * s.low;
    if (!s.logarithmic) s.low = DH_MIN(s.low, 0);
    if (!(s.high > s.low)) s.high = s.low + 1;
    return s;
}

static double part_of(const scale *s, double value)
{
    if (s->logarithmic) return log(value / s->low) / log(s->high / s->low);
    return (value - s->low) / (s->high - s->low);
}

static void put_dots(const dh_validation *v, const scale *s, double size, dh_str *out)
{
    for (size_t i = 0; i < v->n_rows; i++) {
        char figures[2][32];
        const dh_validation_row *r = &v->rows[i];
        dh_str_printf(out, "<circle class=\"point\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>",
                      LEFT + size * part_of(s, r->published),
                      TOP + size * (1 - part_of(s, r->predicted)));
        dh_svg_put_whole(out, r->label);
        dh_str_printf(out, ": predicted %s, published %s</title></circle>",
                      dh_format_number(figures[0], sizeof figures[0], r->predicted, 4),
                      dh_format_number(figures[1], sizeof figures[1], r->published, 4));
    }
}

static void draw_dots(const dh_validation *v, dh_str *out)
{
    const double size = 300;
    const scale s = scale_of(v);
    const double ends[] = {s.low, s.high};
    begin(v, LEFT + size + 40, TOP + size + 44, out);
    dh_str_printf(out, "<path class=\"axis\" d=\"M%d %dV%.0fH%.0fM%d %.0fL%.0f %d\"/>", LEFT, TOP,
                  TOP + size, LEFT + size, LEFT, TOP + size, LEFT + size, TOP);
    for (int k = 0; k < 2; k++) {
        char text[32];
        dh_format_number(text, sizeof text, ends[k], 3);
        dh_svg_put_label(out, LEFT - 4, TOP + size * (1 - k) + 4, "end", text, strlen(text));
        dh_svg_put_label(out, LEFT + size * k, TOP + size + 16, "middle", text, strlen(text));
    }
    dh_str_printf(out, "<text x=\"%d\" y=\"20\">predicted</text>", 4);
    dh_str_printf(out, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">published%s",
                  LEFT + size / 2, TOP + size + 34, *v->table->unit ? ", " : "");
    dh_svg_put_whole(out, v->table->unit);
    dh_str_printf(out, "%s</text>", s.logarithmic ? ", logarithmic" : "");
    put_dots(v, &s, size, out);
    dh_str_printf(out, "</svg>\n");
}

void dh_validation_draw(const dh_validation *v, dh_str *out)
{
    static void (*const draw[])(const dh_validation *,
                                dh_str *) = {[DH_VALIDATION_DOTS] = draw_dots,
                                             [DH_VALIDATION_BARS] = draw_bars,
                                             [DH_VALIDATION_STACKS] = draw_stacks};
    draw[v->table->form](v, out);
}

/* ---- the page -------------------------------------------------------------------------------- */

void dh_validation_page_begin(dh_str *out)
{
    dh_str_printf(
        out,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Predictions beside "
        "published measurements</title>\n<style>body{font:14px/1.5 sans-serif;max-width:1100px;"
        "margin:2em auto;padding:0 1em;color-scheme:light dark}table{border-collapse:collapse}"
        "td,th{padding:2px 10px;border-bottom:1px solid #8888;text-align:right}"
        "td:first-child,th:first-child{text-align:left}code{font-size:12px}"
        "svg{max-width:100%%;height:auto}</style>\n"
        "<h1>Predictions beside published measurements</h1>\n");
}

static void add_row(const dh_validation_row *r, dh_str *out)
{
    char text[32];
    const double figures[] = {r->predicted, r->published};
    dh_str_printf(out, "<tr><td>");
    if (r->command) dh_str_printf(out, "<details><summary>");
    dh_svg_put_whole(out, r->label);
    if (r->command) {
        dh_str_printf(out, "</summary><code>");
        dh_svg_put_whole(out, r->command);
        dh_str_printf(out, "</code></details>");
    }
    dh_str_printf(out, "</td>");
    for (size_t i = 0; i < DH_COUNTOF(figures); i++)
        dh_str_printf(out, "<td>%s</td>", dh_format_number(text, sizeof text, figures[i], 5));
    dh_str_printf(out, "<td>%.3g</td></tr>\n", r->error);
}

void dh_validation_page_add(const dh_validation *v, dh_str *out)
{
    const dh_validation_table *t = v->table;
    const char *unit =
        t->measure == DH_VALIDATION_ABSOLUTE ? t->unit : dh_validation_measure_name(t->measure);
    dh_str_printf(out, "<h2 id=\"%s\">%s</h2>\n<p>", t->name, t->name);
    dh_svg_put_whole(out, t->doc);
    dh_str_printf(out, ".<br>Published: ");
    dh_svg_put_whole(out, v->source);
    dh_str_printf(out, "<br>Predicted: ");
    dh_svg_put_whole(out, t->how);
    dh_str_printf(out, "</p>\n");
    dh_validation_draw(v, out);
    dh_str_printf(out, "<p>Mean error %.3g %s, largest %.3g.", v->mean_error, unit, v->max_error);
    if (v->n_orders > 0)
        dh_str_printf(out, " Order right for %d of %d.", v->n_orders_right, v->n_orders);
    if (v->remark) dh_str_printf(out, " ");
    if (v->remark) dh_svg_put_whole(out, v->remark);
    dh_str_printf(out, "</p>\n<details><summary>rows</summary><table><tr><th>");
    dh_svg_put_whole(out, *t->unit ? t->unit : "row");
    dh_str_printf(out, "</th><th>predicted</th><th>published</th><th>error</th></tr>\n");
    for (size_t i = 0; i < v->n_rows; i++) add_row(&v->rows[i], out);
    dh_str_printf(out, "</table></details>\n");
}

void dh_validation_page_end(dh_str *out)
{
    dh_str_printf(out, "</html>\n");
}
