#!/usr/bin/env python3
"""Nothing but src/base prints or parses real numbers with the C library's own functions.

These follow the locale that the host program has set; dh_snprintf, dh_strtod and their like do not
(src/base/c_locale.h). Nor is anything told by case with strcasecmp, tolower and isalpha.
"""

import re
import subprocess
import sys

CALL = re.compile(r"(?<![\w.>])(v?(?:f|s|sn|d|as)?printf|strto(?:d|f|ld)|atof|v?[fs]?scanf|"
                  r"strn?casecmp|to(?:lower|upper)|is(?:alpha|alnum|space|punct|lower|upper)|strcoll)\s*\(")
REAL = re.compile(r"%[-+ #0'\d.*lL]*[aAeEfFgG]")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
ALWAYS = re.compile(r"strto|atof|case|to[lu]|is|strcoll|v")
# The program's own requests, never in another program.
EXEMPT = {("src/cli/serve.c", "strncasecmp")}


def arguments(text, begin):
    """From the bracket at begin to its end."""
    depth, at = 0, begin
    while at < len(text):
        quoted = STRING.match(text, at)
        if quoted:
            at = quoted.end()
            continue
        if text[at] == "'":  # a character: on to its end
            at = text.index("'", at + (3 if text[at + 1] == "\\" else 2))
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
        if depth == 0:
            break
    return text[begin:at]


def main():
    found = 0
    names = subprocess.check_output(["git", "ls-files", "src/*.c", "src/*.h", "python/*.c"], text=True)
    for name in names.split():
        if name.startswith("src/base/"):
            continue
        with open(name, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), file.read(), flags=re.S)
        for call in CALL.finditer(text):
            said = "".join(STRING.findall(arguments(text, call.end() - 1))).replace("%%", "")
            if (name, call[1]) in EXEMPT or not (ALWAYS.match(call[1]) or REAL.search(said)):
                continue
            print(f"{name}:{text.count(chr(10), 0, call.start()) + 1}: {call[1]} follows the host's locale; "
                  f"use what src/base/c_locale.h has")
            found += 1
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
