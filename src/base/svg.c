/* SVG text. */
#include "base/svg.h"

#include <math.h>
#include <string.h>

static const char style[] =
    "<style>text{font:12px sans-serif;fill:#24292f}.dim{fill:#6e7781}"
    ".axis{stroke:#d0d7de;fill:none}.F{fill:#54aeff}.B{fill:#4ac26b}"
    ".point{fill:#0969da;fill-opacity:0.55}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.dim{fill:#8b949e}.axis{stroke:#30363d}"
    ".point{fill:#58a6ff}}";

void dh_svg_begin(dh_str *out, double width, double height, const char *rules)
{
    dh_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                  "width=\"%.0f\" height=\"%.0f\">%s%s</style>",
                  width, height, width, height, style, rules);
}

/* The character as XML has it; NULL: as it is. */
static const char *escaped(const char *at)
{
    switch (*at) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\t':
    case '\n':
        return NULL;
    case '\xef': /* U+FFFE and U+FFFF */
        return at[1] == '\xbf' && (at[2] == '\xbe' || at[2] == '\xbf') ? "?" : NULL;
    default:
        return (unsigned char)*at < ' ' ? "?" : NULL;
    }
}

void dh_svg_put(dh_str *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n && text[i]; i++) {
        const char *as = escaped(text + i);
        if (as)
            dh_str_append(out, as, strlen(as));
        else
            dh_str_append(out, text + i, 1);
        if (as && text[i] == '\xef') i += 2;
    }
}

void dh_svg_put_whole(dh_str *out, const char *text)
{
    dh_svg_put(out, text, strlen(text));
}

void dh_svg_put_label(dh_str *out, double x, double y, const char *anchor, const char *text,
                      size_t n)
{
    dh_str_printf(out, "<text class=\"dim\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y,
                  anchor);
    dh_svg_put(out, text, n);
    dh_str_printf(out, "</text>");
}

void dh_svg_put_swatch(dh_str *out, const char *class_name, double x, double y)
{
    dh_str_printf(out, "<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"10\" height=\"10\"/>",
                  class_name, x, y);
}

double dh_svg_step(double range)
{
    const double rough = range / 5, unit = pow(10, floor(log10(rough)));
    const double times = rough / unit;
    return unit * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

double dh_svg_y(const dh_svg_axis *axis, double value)
{
    return axis->top + axis->height * (axis->high - value) / (axis->high - axis->low);
}

void dh_svg_put_axis(dh_str *out, const dh_svg_axis *axis, double left, double right)
{
    char text[32];
    const int n = (int)((axis->high - axis->low) / axis->step + 1e-9);
    for (int i = 0; i <= n; i++) {
        const double at = axis->low + i * axis->step;
        const double y = dh_svg_y(axis, at), shown = fabs(at) < 1e-9 * axis->step ? 0 : at;
        dh_format_number(text, sizeof text, shown, 4);
        dh_str_printf(out, "<path class=\"axis\" d=\"M%.0f %.1fH%.0f\"/>", left, y, right);
        dh_svg_put_label(out, left - 4, y + 4, "end", text, strlen(text));
    }
}
