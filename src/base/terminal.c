/* Text that fits where it is read. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/base.h"

int dh_terminal_columns(int fd)
{
    enum { USUAL = 80, MOST = 100000 };
    struct winsize size;
    int64_t columns;
    if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *env = getenv("COLUMNS");
    if (env && dh_parse_i64(env, &columns) && columns > 0 && columns < MOST) return (int)columns;
    return USUAL;
}

void dh_str_wrap(dh_str *out, const char *text, int indent, int width)
{
    int column = indent;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            dh_str_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            dh_str_append(out, " ", 1);
            column++;
        }
        dh_str_append(out, text, (size_t)n);
        column += n;
        text += n;
        while (*text == ' ') text++;
    }
    dh_str_append(out, "\n", 1);
}
