"""What commands draw on a terminal of 80 columns: run on one, what it shows as pages of text.

The terminal is a pseudo-terminal, and its screen is played here: of what a command may send, line
ends, \\r and two sequences (up a line; erase from here on) mean something. Anything else is a
failure, as is a line that would wrap, unless it is the user's own words that are long."""
import fcntl
import html
import os
import pty
import struct
import subprocess
import termios

COLUMNS, ROWS = 80, 40


def sent(words):
    """All that a command sends to its terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    child = subprocess.Popen(words, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    data = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the child has ended
            part = b""
        if not part:
            break
        data += part
    os.close(ours)
    if child.wait():
        raise SystemExit(f"{' '.join(words)}\n{data.decode()}")
    return data.decode()


def shown(text):
    """The lines that stand there in the end. Raises ValueError at what is none of a terminal's."""
    lines, row, column, at = [[]], 0, 0, 0
    while at < len(text):
        if text.startswith("\x1b[A", at):
            row, at = max(0, row - 1), at + 3
        elif text.startswith("\x1b[J", at):
            del lines[row + 1:], lines[row][column:]
            at += 3
        elif text[at] == "\n":
            row, at = row + 1, at + 1
            lines += [[] for _ in range(row + 1 - len(lines))]
        elif text[at] == "\r":
            column, at = 0, at + 1
        elif text[at] < " ":
            raise ValueError(f"{text[at:at + 8]!r}")
        else:
            lines[row] += [" "] * (column - len(lines[row]))
            lines[row][column:column + 1] = [text[at]]
            column, at = column + 1, at + 1
    return ["".join(line).rstrip() for line in lines]


def page(commands, path):
    """Runs commands, (what is typed, words), and draws the screens below each other. Lines that are
    longer than the terminal."""
    parts, long = [], []
    for typed, words in commands:
        lines = shown(sent(words))
        long += [line for line in lines if len(line) > COLUMNS]
        parts.append(f"<b>$ {html.escape(typed)}</b>\n" + html.escape("\n".join(lines)))
    with open(path, "w", encoding="utf-8") as f:
        f.write("<!doctype html><meta charset=utf-8><title>terminal</title><style>body { margin: 8px; background: #111; color: #ddd }"
                f" pre {{ margin: 0; width: {COLUMNS}ch; font: 14px/1.3 monospace; white-space: pre-wrap; word-break: break-all }}"
                "</style><pre>" + "\n".join(parts) + "</pre>")
    return long
