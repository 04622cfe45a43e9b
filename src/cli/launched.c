/* Ranks end when their launcher is gone.
 *
 * A launcher that is killed ends nobody: its ranks would train on, hold the run folder, and write
 * into it beside the run that is started next. MPI notices some of this, some time after MPI_Init.
 * So each rank watches two processes of its own machine: its parent, and `dhelix launch`, which
 * identifies itself in the environment. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/cli.h"
#include "train/launch.h"

enum { N_WATCHED = 2 };

typedef struct watched {
    dh_process of[N_WATCHED];
    int n;
} watched;

static void sleep_ns(int64_t ns)
{
    dh_sleep_until_ns(dh_now_ns() + ns);
}

/* The first that is gone; NULL: none is. */
static const dh_process *find_gone(const watched *w)
{
    for (int i = 0; i < w->n; i++)
        if (dh_process_ask(&w->of[i]) == DH_PROCESS_GONE) return &w->of[i];
    return NULL;
}

static void *watch(void *arg)
{
    const int64_t period_ns = 300000000, grace_ns = INT64_C(10000000000);
    const watched *w = arg;
    const dh_process *gone;
    while (!(gone = find_gone(w))) sleep_ns(period_ns);
    dh_cli_ask_to_stop();
    dh_log(DH_LOG_WARN, "the launcher (process %ld) is gone: this rank stops", gone->pid);
    sleep_ns(grace_ns); /* it may wait for ranks that are gone */
    kill(getpid(), SIGKILL);
    return NULL;
}

void dh_cli_end_with_launcher(void)
{
    static watched w; /* of the process */
    const char *launcher = getenv(DH_CLI_LAUNCHER);
    pthread_t thread;
    if (dh_launched_ranks() == 0) return;
    if (launcher && dh_process_parse(launcher, &w.of[w.n])) w.n++;
    w.of[w.n++] = dh_process_here((long)getppid());
    if (pthread_create(&thread, NULL, watch, &w) == 0) pthread_detach(thread);
}
