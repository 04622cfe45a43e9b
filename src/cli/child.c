#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a process group of its own: what a terminal sends reaches the caller alone. Where the program
 * cannot be run, tell gets why. */
static void become(const char *const *words, int out, const int tell[2])
{
    struct pollfd parent = {.fd = tell[1]};
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    close(tell[0]);
    if (poll(&parent, 1, 0) > 0) _exit(127); /* the reader of tell died before the line above */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    execvp(words[0], (char *const *)(uintptr_t)words);
    const int why = errno;
    (void)!write(tell[1], &why, sizeof why);
    _exit(127);
}

int dh_cli_spawn(const char *const *words, int out, pid_t *child)
{
    int told[2], why;
    if (pipe2(told, O_CLOEXEC) != 0) return errno;
    *child = fork();
    if (*child == 0) become(words, out, told);
    why = errno;
    close(told[1]);
    const bool failed = *child < 0 || read(told[0], &why, sizeof why) == (ssize_t)sizeof why;
    close(told[0]);
    if (failed && *child > 0) waitpid(*child, NULL, 0);
    return failed ? why : 0;
}
