/* Large texts are read through maps; one that another program cuts short meanwhile cannot be read
 * behind its new end, and the kernel answers with SIGBUS. That ends the process either way, but not
 * without the file's name. Only what is safe in a signal handler is called. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/cli.h"

enum { LINE_BYTES = 4352 }; /* the longest path, and the numbers before it */

static uintptr_t parse_hex(const char **text)
{
    uintptr_t value = 0;
    for (;; ++*text) {
        const char c = **text;
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return value;
        value = value << 4 | (uintptr_t)digit;
    }
}

/* The path in a line "from-to mode offset device inode path" of /proc/self/maps, NULL where the
 * address is not in [from, to) or there is no path. */
static const char *path_of(const char *line, uintptr_t address)
{
    const char *at = line;
    const uintptr_t from = parse_hex(&at);
    if (*at++ != '-') return NULL;
    const uintptr_t to = parse_hex(&at);
    return address >= from && address < to ? strchr(at, '/') : NULL;
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* nobody is left to tell */
}

static void end_process(const char *path)
{
    say("dhelix: error: ");
    say(path);
    say(" was cut short by another program while it was being read\n");
    _exit(EXIT_FAILURE);
}

/* Reads lines of unknown number without memory of its own but the one line. */
static void find_and_end(int fd, uintptr_t address)
{
    char line[LINE_BYTES], c;
    size_t n = 0;
    while (read(fd, &c, 1) == 1) {
        if (c != '\n' && n + 1 < sizeof line) {
            line[n++] = c;
            continue;
        }
        line[n] = '\0';
        n = 0;
        const char *path = path_of(line, address);
        if (!path) continue;
        dh_printable(line, sizeof line);
        end_process(path);
    }
}

/* A mapping without a path is no file. The default action then follows when the instruction is
 * tried again. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) find_and_end(fd, (uintptr_t)info->si_addr);
    signal(number, SIG_DFL);
}

void dh_cli_name_cut_files(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
