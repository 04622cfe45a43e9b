/* SVG text: what all drawings of this project have in common.
 *
 * Everything is appended. Running out of memory shows in out->failed. Drawings are complete files
 * without scripts, in pixels of 1/96 inch. Their colours follow the reader's light or dark
 * setting. */
#ifndef DH_BASE_SVG_H
#define DH_BASE_SVG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The document up to its style, which has the classes dim, axis, point, F and B. It ends with
 * "</svg>\n".
 * in        rules: further CSS */
void dh_svg_begin(dh_str *out, double width, double height, const char *rules);
/* Up to n bytes of a terminated text, which is UTF-8, as text of an element or an attribute. XML has
 * no word for most control characters: they become question marks. */
void dh_svg_put(dh_str *out, const char *text, size_t n);
void dh_svg_put_whole(dh_str *out, const char *text);
/* anchor    "start", "middle" or "end" */
void dh_svg_put_label(dh_str *out, double x, double y, const char *anchor, const char *text,
                      size_t n);
/* A square of a legend, whose text begins 14 pixels right of x. */
void dh_svg_put_swatch(dh_str *out, const char *class_name, double x, double y);

/* A vertical axis from low, at the bottom, to high. */
typedef struct dh_svg_axis {
    double low, high, step; /* step: between its lines */
    double top, height;     /* pixels */
} dh_svg_axis;

/* 1, 2 or 5 times a power of ten, so that an axis over the range has about five lines. */
double dh_svg_step(double range);
double dh_svg_y(const dh_svg_axis *axis, double value);
/* Lines from x = left to right, and their values left of them. */
void dh_svg_put_axis(dh_str *out, const dh_svg_axis *axis, double left, double right);

#ifdef __cplusplus
}
#endif
#endif
