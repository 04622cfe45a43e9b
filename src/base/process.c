/* Processes by host, boot and time of start: an id alone is given to another process later. */
#include "base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The start of a file of /proc, "" where there is none. */
static void read_proc(const char *path, char *text, size_t cap)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, cap - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = '\0';
}

/* Fields 3 and 22 of /proc/PID/stat. The second is a name in parentheses that may hold anything. */
static unsigned long long start_of(long pid, char *state)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_proc(path, text, sizeof text);
    const char *at = strrchr(text, ')');
    *state = at && at[1] ? at[2] : '?';
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static void or_unknown(char *text)
{
    if (!*text) memcpy(text, "unknown", sizeof "unknown");
}

/* "pid:[4026531836]" */
static void read_space(char *space, size_t cap)
{
    const ssize_t n = readlink("/proc/self/ns/pid", space, cap - 1);
    snprintf(space + DH_MAX(n, 0), cap - (size_t)DH_MAX(n, 0), "%s", n > 0 ? "" : "?");
}

dh_process dh_process_here(long pid)
{
    char state;
    dh_process p = {.pid = pid, .started = start_of(pid, &state)};
    if (gethostname(p.host, sizeof p.host - 1) != 0) *p.host = '\0';
    read_proc("/proc/sys/kernel/random/boot_id", p.boot, sizeof p.boot);
    p.boot[strcspn(p.boot, "\n")] = '\0';
    or_unknown(p.host);
    or_unknown(p.boot);
    read_space(p.space, sizeof p.space);
    return p;
}

bool dh_process_same_boot(const dh_process *a, const dh_process *b)
{
    return strcmp(a->boot, b->boot) == 0;
}

dh_process_state dh_process_ask(const dh_process *p)
{
    char state;
    const dh_process self = dh_process_here((long)getpid());
    const bool same_boot = dh_process_same_boot(p, &self);
    if (!same_boot && strcmp(p->host, self.host) != 0) return DH_PROCESS_ELSEWHERE;
    if (same_boot && strcmp(p->space, "?") != 0 && strcmp(p->space, self.space) != 0)
        return DH_PROCESS_ELSEWHERE;
    if (kill((pid_t)p->pid, 0) != 0 && errno == ESRCH) return DH_PROCESS_GONE;
    const unsigned long long started = start_of(p->pid, &state);
    if (state == 'Z' || state == 'X') return DH_PROCESS_GONE;
    return started == 0 || p->started == 0 || started == p->started ? DH_PROCESS_RUNS
                                                                    : DH_PROCESS_GONE;
}

/* The children that one of its threads has started. */
static int each_of_thread(long pid, const char *thread, void (*visit)(void *, long, bool),
                          void *user)
{
    char path[80], child[16], state;
    int n = 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/children", pid, thread);
    FILE *children = fopen(path, "re");
    if (!children) return -1;
    while (fscanf(children, "%15s", child) == 1) {
        const long number = strtol(child, NULL, 10);
        (void)start_of(number, &state);
        if (strchr("?ZX", state)) continue;
        if (visit) visit(user, number, state == 'T' || state == 't');
        n++;
    }
    fclose(children);
    return n;
}

int dh_process_each_child(long pid, void (*visit)(void *user, long child, bool stopped), void *user)
{
    char path[40];
    int n = -1;
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *threads = opendir(path);
    for (struct dirent *e; threads && (e = readdir(threads));) {
        const int own = *e->d_name == '.' ? -1 : each_of_thread(pid, e->d_name, visit, user);
        if (own >= 0) n = DH_MAX(n, 0) + own;
    }
    if (threads) closedir(threads);
    return n;
}

long dh_process_rank(long pid)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "PMIX_RANK="};
    char path[64], text[1 << 15];
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    FILE *file = fopen(path, "re");
    const size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = '\0';
    for (const char *word = text; word < text + n; word += strlen(word) + 1)
        for (size_t i = 0; i < DH_COUNTOF(names); i++)
            if (strncmp(word, names[i], strlen(names[i])) == 0)
                return strtol(word + strlen(names[i]), NULL, 10);
    return -1;
}

void dh_process_print(const dh_process *p, char text[DH_PROCESS_TEXT_BYTES])
{
    snprintf(text, DH_PROCESS_TEXT_BYTES, "host %s boot %s pid %ld started %llu ids %s", p->host,
             p->boot, p->pid, p->started, p->space);
}

bool dh_process_parse(const char *text, dh_process *p)
{
    char pid[32], started[32], *pid_end, *started_end;
    const int n = sscanf(text, "host %64s boot %64s pid %31s started %31s ids %64s", p->host,
                         p->boot, pid, started, p->space);
    if (n < 4) return false;
    if (n == 4) strcpy(p->space, "?"); /* of a version that did not write it */
    p->pid = strtol(pid, &pid_end, 10);
    p->started = strtoull(started, &started_end, 10);
    return !*pid_end && !*started_end && p->pid > 0 && p->pid <= INT_MAX;
}
