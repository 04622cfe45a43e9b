/* Figures as SVG. */
#include "report/html/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Pixels: widths of a column and of a page, which are 3.5 and 7.16 inches. */
enum { COLUMN = 336, PAGE = 687, LETTER = 6, LINE = 14, EDGE = 6, TALL = 150, FOOT = 34 };

/* ---- style ----------------------------------------------------------------------------------- */

/* Light, dark: as assets/style.css has them. */
static const struct {
    const char *light, *dark;
    double opacity;
} looks[N_LOOK] = {[LOOK_FORWARD] = {"#0072b2", "#3f9fe0", 1},
                   [LOOK_BACKWARD] = {"#d55e00", "#f0813a", 1},
                   [LOOK_WEIGHTS] = {"#f0b429", "#f5c451", 1},
                   [LOOK_OTHER] = {"#8d9196", "#83888d", 1},
                   [LOOK_LOCAL] = {"#009e86", "#25c2a5", 1},
                   [LOOK_CROSS] = {"#8a5cc4", "#b08be6", 1},
                   [LOOK_COMPUTE] = {"#bcc4cc", "#4d565f", 1},
                   [LOOK_EXPOSED] = {"#c8246b", "#f0609c", 1},
                   [LOOK_EXPOSED + 1] = {"#c8246b", "#f0609c", .8},
                   [LOOK_EXPOSED + 2] = {"#c8246b", "#f0609c", .6},
                   [LOOK_EXPOSED + 3] = {"#c8246b", "#f0609c", .4},
                   [LOOK_EXPOSED + 4] = {"#c8246b", "#f0609c", .2},
                   [LOOK_BUBBLE] = {"#63676b", "#9da1a6", .8},
                   [LOOK_PARTNERS] = {"#63676b", "#9da1a6", .5},
                   [LOOK_IDLE] = {"#63676b", "#9da1a6", .2}};

/* Where curves coincide, the lower ones show between. */
static const char *const dashes[LOOK_CROSS + 1] = {[LOOK_BACKWARD] = "7 5",
                                                   [LOOK_LOCAL] = "2 4",
                                                   [LOOK_CROSS] = "9 3 2 3",
                                                   [LOOK_WEIGHTS] = "4 3"};

/* k: filled; s: a line. */
static void begin(const chart_text *text, double width, double height, dh_str *out)
{
    dh_str rules = DH_STR_INIT;
    dh_str_printf(&rules, "text{font-size:10px}.in{fill:#fff}.line{fill:none;stroke-width:1.3}");
    for (int dark = 0; dark < 2; dark++) {
        if (dark) dh_str_printf(&rules, "@media(prefers-color-scheme:dark){");
        for (int i = 0; i < N_LOOK; i++) {
            const char *colour = dark ? looks[i].dark : looks[i].light;
            dh_str_printf(&rules, ".k%d{fill:%s}", i, colour);
            if (i <= LOOK_CROSS) dh_str_printf(&rules, ".s%d{stroke:%s}", i, colour);
            if (!dark && i <= LOOK_CROSS && dashes[i])
                dh_str_printf(&rules, ".s%d{stroke-dasharray:%s}", i, dashes[i]);
            if (!dark && looks[i].opacity < 1)
                dh_str_printf(&rules, ".k%d{fill-opacity:%.1f}", i, looks[i].opacity);
        }
    }
    dh_str_printf(&rules, "}");
    out->failed |= rules.failed;
    dh_svg_begin(out, width, height, rules.failed ? "" : rules.text);
    dh_str_fini(&rules);
    dh_str_printf(out, "<title>");
    dh_svg_put_whole(out, text->title);
    dh_str_printf(out, "</title>\n");
}

static void finish(dh_str *out)
{
    dh_str_printf(out, "</svg>\n");
}

/* ---- text that fits -------------------------------------------------------------------------- */

static size_t letters(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

/* Bytes of the text's first letters. */
static size_t bytes_of(const char *text, size_t most)
{
    size_t n = 0;
    for (size_t i = 0; text[n] && (i < most || (text[n] & 0xc0) == 0x80); n++)
        i += (text[n + 1] & 0xc0) != 0x80;
    return n;
}

/* A text in `room` pixels: else cut, with an ellipsis. */
static void put_fitting(dh_str *out, double x, double y, const char *anchor, const char *text,
                        double room)
{
    enum { MOST = 100 };
    char cut[4 * MOST];
    const size_t fits = (size_t)DH_MAX(room / LETTER, 2);
    if (letters(text) > fits) {
        const size_t n = bytes_of(text, DH_MIN(fits, MOST) - 1);
        snprintf(cut, sizeof cut, "%.*s\xe2\x80\xa6", (int)n, text);
        text = cut;
    }
    dh_svg_put_label(out, x, y, anchor, text, strlen(text));
}

/* Height of the legend; with out it is drawn. */
static double put_legend(chart_legend l, double width, dh_str *out)
{
    double x = EDGE, y = 4;
    for (size_t i = 0; i < l.n; i++) {
        char name[8];
        const double wide = DH_MIN(24 + LETTER * (double)letters(l.at[i].text), width - 2 * EDGE);
        if (x + wide > width && x > EDGE) x = EDGE, y += LINE;
        snprintf(name, sizeof name, "k%d", l.at[i].look);
        if (out) {
            dh_svg_put_swatch(out, name, x, y);
            put_fitting(out, x + 14, y + 9, "start", l.at[i].text, wide - 20);
        }
        x += wide;
    }
    return l.n ? y + LINE + 4 : 8;
}

/* The title of an axis at the left, upright. */
static void put_y_name(dh_str *out, const char *text, double middle)
{
    dh_str_printf(out, "<g transform=\"translate(10 %.1f)rotate(-90)\">", middle);
    put_fitting(out, 0, 0, "middle", text, TALL);
    dh_str_printf(out, "</g>\n");
}

typedef struct across {
    double low, high, left, right;
} across;

static double x_of(const across *a, double value)
{
    return a->left + (a->right - a->left) * (value - a->low) / (a->high - a->low);
}

/* Marks, their values and the axis's name below y. */
static void put_x_axis(dh_str *out, const across *a, double y, const char *name)
{
    const double step = dh_svg_step(a->high - a->low), first = ceil(a->low / step - 1e-9);
    dh_str_printf(out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", a->left, y, a->right);
    for (int i = 0; (first + i) * step <= a->high + 1e-9 * step && i < 12; i++) {
        char text[32];
        const double at = (first + i) * step, x = x_of(a, at);
        dh_format_number(text, sizeof text, at, 4);
        dh_str_printf(out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>", x, y);
        dh_svg_put_label(out, x, y + 14, "middle", text, strlen(text));
    }
    dh_svg_put_label(out, (a->left + a->right) / 2, y + 28, "middle", name, strlen(name));
    dh_str_printf(out, "\n");
}

/* An axis that has somewhere to go, even where all values are alike. */
static void widen(double *low, double *high)
{
    if (!(*low <= *high)) *low = 0, *high = 1;
    const double least = DH_MAX(fabs(*high), fabs(*low)) * 1e-6;
    if (*high - *low <= least) *high = *low + (least > 0 ? 1e3 * least : 1);
}

/* ---- curves ---------------------------------------------------------------------------------- */

static bool is_drawn(const chart_point *p)
{
    return chart_is_drawn(p->y) && chart_is_drawn(p->x);
}

static void put_dots(const chart_curve *c, const across *x, const dh_svg_axis *y, dh_str *out)
{
    for (size_t i = 0; i < c->points.n; i++) {
        const chart_point *p = &c->points.at[i];
        if (!is_drawn(p)) continue;
        dh_str_printf(out, "<circle class=\"k%d\" cx=\"%.2f\" cy=\"%.2f\" r=\"2.5\"><title>",
                      c->look, x_of(x, p->x), dh_svg_y(y, p->y));
        dh_svg_put_whole(out, c->label);
        dh_str_printf(out, ": %.6g at %.9g</title></circle>\n", p->y, p->x);
    }
}

/* A gap begins a new line. Of stairs narrower than a quarter of a pixel, the highest is drawn, and
 * the last, which lasts until the next. */
static void put_path(const chart_curve *c, const across *x, const dh_svg_axis *y, dh_str *out)
{
    const bool stairs = c->form == CHART_STAIRS;
    const double zero = dh_svg_y(y, 0);
    bool down = false, any = false;
    for (size_t i = 0; i < c->points.n; i++) any |= is_drawn(&c->points.at[i]);
    if (!any) return;
    dh_str_printf(out, "<path class=\"%s%d\" d=\"", stairs ? "k" : "line s", c->look);
    for (size_t i = 0; i < c->points.n; i++) {
        const chart_point *p = &c->points.at[i];
        const double from = x_of(x, p->x);
        double most = p->y;
        if (!is_drawn(p)) {
            if (stairs && down) dh_str_printf(out, "H%.2fV%.2fZ", fmin(from, x->right), zero);
            down = false;
            continue;
        }
        while (stairs && i + 1 < c->points.n && is_drawn(p + 1) && x_of(x, p[1].x) < from + 0.25)
            most = fmax(most, (p = &c->points.at[++i])->y);
        if (stairs && !down) dh_str_printf(out, "M%.2f %.2f", from, zero);
        if (stairs) dh_str_printf(out, "H%.2fV%.2f", from, dh_svg_y(y, most));
        if (stairs && p->y < most)
            dh_str_printf(out, "H%.2fV%.2f", x_of(x, p->x), dh_svg_y(y, p->y));
        if (!stairs) dh_str_printf(out, "%s%.2f %.2f", down ? "L" : "M", from, dh_svg_y(y, p->y));
        down = true;
    }
    if (stairs && down) dh_str_printf(out, "H%.2fV%.2fZ", x->right, zero);
    dh_str_printf(out, "\"><title>");
    dh_svg_put_whole(out, c->label);
    dh_str_printf(out, "</title></path>\n");
}

static void bounds(const chart_curve *curves, size_t n, across *x, dh_svg_axis *y)
{
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < curves[k].points.n; i++) {
            const chart_point *p = &curves[k].points.at[i];
            if (!is_drawn(p)) continue;
            x->low = fmin(x->low, p->x);
            x->high = fmax(x->high, p->x);
            y->low = fmin(y->low, p->y);
            y->high = fmax(y->high, p->y);
        }
    widen(&x->low, &x->high);
    widen(&y->low, &y->high);
    y->step = dh_svg_step(y->high - y->low);
    y->low = y->step * floor(y->low / y->step);
}

void chart_curves(const chart_text *text, const chart_curve *curves, size_t n, bool from_zero,
                  dh_str *out)
{
    chart_entry entries[64];
    const chart_legend legend = {entries, DH_MIN(n, DH_COUNTOF(entries))};
    for (size_t i = 0; i < legend.n; i++)
        entries[i] = (chart_entry){curves[i].label, curves[i].look};
    const double top = put_legend(legend, COLUMN, NULL) + 4;
    across x = {INFINITY, -INFINITY, 54, COLUMN - 14};
    dh_svg_axis y = {from_zero ? 0 : INFINITY, -INFINITY, 1, top, TALL};
    bounds(curves, n, &x, &y);
    begin(text, COLUMN, top + TALL + FOOT, out);
    put_legend(legend, COLUMN, out);
    dh_svg_put_axis(out, &y, x.left, x.right);
    put_y_name(out, text->y, top + TALL / 2.0);
    for (size_t i = 0; i < n; i++) {
        if (curves[i].form == CHART_DOTS)
            put_dots(&curves[i], &x, &y, out);
        else
            put_path(&curves[i], &x, &y, out);
    }
    put_x_axis(out, &x, top + TALL, text->x);
    finish(out);
}

/* ---- bars over time -------------------------------------------------------------------------- */

enum { ROW = 14, APART = 6 };

/* Spans [i, end) as one bar, in the colour of the longest. */
static void put_span(const chart_spans *s, size_t i, size_t end, const across *x, double y,
                     dh_str *title, dh_str *out)
{
    const chart_span *first = &s->spans.at[i], *longest = first;
    double stop = first->end;
    for (size_t k = i; k < end; k++) {
        const chart_span *p = &s->spans.at[k];
        stop = DH_MAX(stop, p->end);
        if (p->end - p->begin > longest->end - longest->begin) longest = p;
    }
    const bool dark = first->look <= LOOK_BACKWARD && !first->pale;
    const double from = x_of(x, first->begin), wide = DH_MAX(x_of(x, stop) - from, 0);
    dh_str_printf(
        out, "<rect class=\"k%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"%s><title>",
        longest->look, from, y, wide > 4 ? wide - 0.6 : wide, ROW - 2,
        first->pale ? " fill-opacity=\"0.5\"" : "");
    dh_str_clear(title);
    if (end - i == 1)
        s->title_of(s->user, first->item, title);
    else
        dh_str_printf(title, "%zu instructions", end - i);
    if (title->text) dh_svg_put_whole(out, title->text);
    out->failed |= title->failed;
    dh_str_printf(out, "</title></rect>\n");
    if (end - i > 1 || !first->text || LETTER * (double)letters(first->text) + 2 > wide) return;
    dh_str_printf(out, "<text%s x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">",
                  dark ? " class=\"in\"" : "", from + wide / 2, y + 9.5);
    dh_svg_put_whole(out, first->text);
    dh_str_printf(out, "</text>\n");
}

/* First span that is not drawn with span i: those of half a pixel together are one bar. */
static size_t merged_end(const chart_spans *s, size_t i, const across *x)
{
    size_t end = i + 1;
    const double until = x_of(x, s->spans.at[i].begin) + 0.5;
    while (s->merge && end < s->spans.n && s->spans.at[end].row == s->spans.at[i].row &&
           x_of(x, s->spans.at[i].end) < until && x_of(x, s->spans.at[end].end) < until)
        end++;
    return end;
}

static const char *name_of_row(const chart_row *r)
{
    return r->name ? r->name : r->label;
}

static void put_rows(const chart_spans *s, const across *x, double top, dh_str *out)
{
    dh_str title = DH_STR_INIT;
    double y = top;
    size_t i = 0;
    for (size_t row = 0; row < s->rows.n; row++, y += ROW) {
        const chart_row *r = &s->rows.at[row];
        if (r->apart && row) y += APART;
        put_fitting(out, x->left - 4, y + 9.5, "end", name_of_row(r), x->left - EDGE);
        while (i < s->spans.n && s->spans.at[i].row == row) {
            const size_t end = merged_end(s, i, x);
            put_span(s, i, end, x, y, &title, out);
            i = end;
        }
    }
    dh_str_fini(&title);
}

void chart_spans_draw(const chart_text *text, const chart_spans *s, chart_legend legend,
                      dh_str *out)
{
    chart_entry used[N_LOOK];
    const chart_legend all = legend;
    bool seen[N_LOOK] = {false};
    for (size_t i = 0; i < s->spans.n; i++) seen[s->spans.at[i].look] = true;
    legend = (chart_legend){.at = used};
    for (size_t i = 0; i < all.n; i++)
        if (seen[all.at[i].look]) used[legend.n++] = all.at[i];
    const double width = s->wide ? PAGE : COLUMN, top = put_legend(legend, width, NULL);
    across x = {0, 0, EDGE, width - 18};
    double height = ROW * (double)s->rows.n;
    size_t longest = 0;
    for (size_t i = 0; i < s->spans.n; i++) x.high = DH_MAX(x.high, s->spans.at[i].end);
    for (size_t i = 0; i < s->rows.n; i++) {
        longest = DH_MAX(longest, letters(name_of_row(&s->rows.at[i])));
        if (s->rows.at[i].apart && i) height += APART;
    }
    x.left += DH_MIN(LETTER * (double)longest + 6, width / 3);
    widen(&x.low, &x.high);
    begin(text, width, top + height + FOOT, out);
    put_legend(legend, width, out);
    put_rows(s, &x, top, out);
    put_x_axis(out, &x, top + height, text->x);
    finish(out);
}

/* ---- grouped bars ---------------------------------------------------------------------------- */

static void put_title(const chart_grid *g, size_t row, size_t column, dh_str *out)
{
    dh_str_printf(out, "<title>");
    dh_svg_put_whole(out, g->rows[row]);
    dh_str_printf(out, "%s", *g->columns[column] ? ", " : "");
    dh_svg_put_whole(out, g->columns[column]);
    dh_str_printf(out, ": %.6g</title>", g->at[row * g->n_columns + column]);
}

static const int bar_looks[] = {LOOK_FORWARD, LOOK_BACKWARD, LOOK_LOCAL,
                                LOOK_WEIGHTS, LOOK_CROSS,    LOOK_OTHER};

void chart_bars(const chart_text *text, const chart_grid *g, dh_str *out)
{
    chart_entry entries[DH_COUNTOF(bar_looks)];
    const chart_legend legend = {entries, DH_MIN(g->n_columns, DH_COUNTOF(entries))};
    for (size_t i = 0; i < legend.n; i++) entries[i] = (chart_entry){g->columns[i], bar_looks[i]};
    const bool named = g->n_columns > 1;
    const double top = (named ? put_legend(legend, COLUMN, NULL) : EDGE) + 4, left = 54;
    const double group =
        DH_MAX((COLUMN - left - EDGE) / (double)g->n_rows, 6 * (double)(g->n_columns + 1));
    const double width = left + group * (double)g->n_rows + EDGE;
    dh_svg_axis y = {0, -INFINITY, 1, top, TALL};
    for (size_t i = 0; i < g->n_rows * g->n_columns; i++)
        if (chart_is_drawn(g->at[i])) y.high = DH_MAX(y.high, g->at[i]);
    widen(&y.low, &y.high);
    y.step = dh_svg_step(y.high);
    begin(text, width, top + TALL + FOOT, out);
    if (named) put_legend(legend, COLUMN, out);
    dh_svg_put_axis(out, &y, left, width - EDGE);
    put_y_name(out, text->y, top + TALL / 2.0);
    const double bar = DH_MIN(0.8 * group / (double)g->n_columns, 24);
    for (size_t i = 0; i < g->n_rows; i++) {
        const double middle = left + group * ((double)i + 0.5);
        for (size_t k = 0; k < g->n_columns; k++) {
            const double value = g->at[i * g->n_columns + k];
            if (!chart_is_drawn(value)) continue;
            const double at = dh_svg_y(&y, DH_MAX(value, 0));
            dh_str_printf(out,
                          "<rect class=\"k%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" "
                          "height=\"%.2f\">",
                          bar_looks[k % DH_COUNTOF(bar_looks)],
                          middle + bar * ((double)k - (double)g->n_columns / 2), at, 0.92 * bar,
                          dh_svg_y(&y, 0) - at);
            put_title(g, i, k, out);
            dh_str_printf(out, "</rect>\n");
        }
        put_fitting(out, middle, top + TALL + 14, "middle", g->rows[i], group);
    }
    put_fitting(out, (left + width) / 2, top + TALL + 28, "middle", text->x, width - left);
    finish(out);
}

/* ---- a matrix -------------------------------------------------------------------------------- */

static size_t longest_of(const char *const *names, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++) most = DH_MAX(most, letters(names[i]));
    return most;
}

void chart_matrix(const chart_text *text, const chart_grid *g, dh_str *out)
{
    enum { SIDE = 26, MOST_NAME = 140 };
    const double left = DH_MIN(LETTER * (double)longest_of(g->rows, g->n_rows), MOST_NAME) + 26;
    const double top =
        DH_MIN(LETTER * (double)longest_of(g->columns, g->n_columns), MOST_NAME) + 26;
    const double right = left + SIDE * (double)g->n_columns,
                 bottom = top + SIDE * (double)g->n_rows;
    begin(text, DH_MAX(right + EDGE, COLUMN), bottom + EDGE, out);
    dh_svg_put_label(out, left, 12, "start", text->x, strlen(text->x));
    put_y_name(out, text->y, (top + bottom) / 2);
    for (size_t k = 0; k < g->n_columns; k++) {
        dh_str_printf(out, "<g transform=\"translate(%.0f %.0f)rotate(-90)\">",
                      left + SIDE * ((double)k + 0.6), top - 4);
        put_fitting(out, 0, 0, "start", g->columns[k], MOST_NAME);
        dh_str_printf(out, "</g>\n");
    }
    for (size_t i = 0; i < g->n_rows; i++) {
        const double y = top + SIDE * (double)i;
        put_fitting(out, left - 4, y + 16, "end", g->rows[i], MOST_NAME);
        for (size_t k = 0; k < g->n_columns; k++) {
            const double value = g->at[i * g->n_columns + k], x = left + SIDE * (double)k;
            if (!chart_is_drawn(value)) continue;
            const double strong = DH_MIN(fabs(value), 1);
            dh_str_printf(out,
                          "<rect class=\"k%d\" fill-opacity=\"%.3f\" x=\"%.0f\" y=\"%.0f\" "
                          "width=\"%d\" height=\"%d\">",
                          value < 0 ? LOOK_BACKWARD : LOOK_FORWARD, strong, x, y, SIDE - 1,
                          SIDE - 1);
            put_title(g, i, k, out);
            dh_str_printf(
                out, "</rect><text%s x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.2f</text>\n",
                strong > 0.55 ? " class=\"in\"" : "", x + SIDE / 2.0, y + 16, value);
        }
    }
    finish(out);
}
