/* Names of tests in lines that people and programs write around an output.
 *
 *   mpirun -np 16 ./all_reduce_perf -b 8 -e 8G     it runs: options follow the program
 *   $ ./all_reduce_perf                            it runs: a command of its own
 *   make: built all_reduce_perf                    a word alone
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/nccl.h"

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_name_letter(char c)
{
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
}

/* The program of a path, "./build/all_reduce_perf": a word that ends so. n_bytes of its name
 * without "_perf"; 0: another word. */
static const char *program_of(const char *word, size_t n_word, size_t *n_bytes)
{
    enum { N_END = 5 };
    const char *end = word + n_word, *from = end;
    while (from > word && (is_name_letter(from[-1]) || from[-1] == '-')) from--;
    const size_t n = (size_t)(end - from);
    const bool whole = from == word || from[-1] == '/';
    *n_bytes = whole && n > N_END && strncmp(end - N_END, "_perf", N_END) == 0 ? n - N_END : 0;
    return from;
}

/* Programs that run the program after their own words. */
static bool is_launcher(const char *word, size_t n)
{
    static const char *const names[] = {"mpirun", "mpiexec", "srun", "orterun", "prterun", "flux",
                                        "env",    "time",    "sudo", "exec",    "numactl", "nohup"};
    const char *slash = memrchr(word, '/', n);
    if (slash) n -= (size_t)(slash + 1 - word);
    word = slash ? slash + 1 : word;
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (strlen(names[i]) == n && strncmp(names[i], word, n) == 0) return true;
    return false;
}

static const char blanks[] = " \t\r\"'[],*=#", ends[] = ";&|(){}`$";

/* After a program: an option, or nothing more of its command. */
static bool has_option(const char *at)
{
    at += strspn(at, " \t\r\"'");
    return *at == '-' && (at[1] == '-' ? is_letter(at[2]) : is_letter(at[1]));
}

static bool is_end(const char *at)
{
    at += strspn(at, " \t\r\"'\\");
    if (*at >= '0' && *at <= '9' && at[1] == '>') return true;
    if (*at == '\0' || strchr(";&|)`<>#}", *at)) return true;
    while (*at && !is_name_letter(*at)) at++; /* "=== all_reduce_perf ===" */
    return *at == '\0';
}

static bool is_sign(const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_name_letter(word[i])) return false;
    return true;
}

static void add_name(nccl_names *names, const char *name, size_t n, bool runs)
{
    n = DH_MIN(n, sizeof names->test - 1);
    const bool other = strncmp(names->test, name, n) != 0 || names->test[n] != '\0';
    if (names->one && names->runs && !runs) return; /* in an option of a command */
    names->several = names->one && names->runs == runs && (names->several || other);
    names->one = true;
    names->runs = runs;
    snprintf(names->test, sizeof names->test, "%.*s", (int)n, name);
}

/* Whether the word after it is a launcher's number of processes. "-n" of a test is another. */
static bool counts_processes(const char *word, size_t n, bool led)
{
    static const char *const names[] = {"-np", "--np", "--ntasks", "-n"};
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (strlen(names[i]) == n && strncmp(names[i], word, n) == 0)
            return led || strcmp(names[i], "-np") == 0;
    return false;
}

void nccl_find_names(const char *line, nccl_names *names)
{
    bool begins = true, led = false; /* a command; a launcher before */
    bool made = false;               /* "-o": a compiler writes what follows */
    bool counted = false;            /* the number of processes follows */
    *names = (nccl_names){.one = false};
    for (const char *at = line; *at;) {
        at += strspn(at, blanks);
        if (*at == '\0') break;
        if (strchr("<>", *at)) { /* into a file */
            at += strspn(at, "<>& \t");
            at += strcspn(at, " \t;|");
            continue;
        }
        if (strchr(ends, *at)) {
            begins = true;
            led = led && !strchr(";&|", *at);
            at++;
            continue;
        }
        const size_t n_word = strcspn(at, " \t\r\"',;&|(){}`$<>");
        const char *after = at + n_word;
        size_t n = n_word;
        while (n > 0 && strchr(".!?*", at[n - 1])) n--; /* of a sentence, or bold */
        const char *name = program_of(at, n, &n);
        const bool runs = has_option(after) || ((begins || led) && is_end(after));
        if (n > 0 && !made) add_name(names, name, n, runs);
        led |= begins && is_launcher(at, n_word);
        if (counted) names->n_processes = strtoll(at, NULL, 10);
        if (led && strncmp(at, "--ntasks=", 9) == 0) names->n_processes = strtoll(at + 9, NULL, 10);
        counted = !names->one && counts_processes(at, n_word, led);
        made = n_word == 2 && strncmp(at, "-o", 2) == 0;
        begins = (n_word == 2 && strncmp(at, "--", 2) == 0) ||
                 (begins && (is_sign(at, n_word) || memchr(at, '=', n_word) != NULL));
        at = after;
    }
    if (strstr(line, "Collective test")) names->runs = names->one;
}
