/* dhelix launch: ranks as MPI processes, started again over fewer when some are lost.
 *
 * MPI ends all processes of a job when one of them dies, and their memory is lost. The run therefore
 * continues as a new job over a mesh of fewer ranks (elastic.h), from the newest checkpoint. This
 * process starts the launcher (mpirun), waits, and judges by its exit code: a signal that ended a
 * rank, or the code of ranks that waited for others in vain. It counts one rank as lost at each
 * start, so that it ends after a bounded number of them whatever keeps failing. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "dhelix/train.h"
#include "run/comm/comm.h"
#include "train/elastic.h"

typedef struct launch_args {
    bool fresh;
    int64_t ranks;
    const char *launcher;
} launch_args;

static const launch_args defaults = {.launcher = "mpirun"};

static const dh_cli_option options[] = {
    {.name = "launcher",
     .kind = DH_CLI_TEXT,
     .offset = offsetof(launch_args, launcher),
     .value = "COMMAND",
     .doc = "the command that starts processes, with its options; -n N is put after them (default: "
            "mpirun). Examples: \"srun --mpi=pmix\", \"mpirun --hostfile hosts\""},
    {.name = "fresh",
     .kind = DH_CLI_FLAG,
     .offset = offsetof(launch_args, fresh),
     .doc = "start anew; an existing run folder is kept as OUT.1, OUT.2, ..."},
    {.name = "ranks",
     .kind = DH_CLI_INT,
     .offset = offsetof(launch_args, ranks),
     .value = "N",
     .min = 1,
     .max = 1 << 24,
     .doc = "ranks to begin with; the same as --set ranks=N"},
};

/* ---- the command ----------------------------------------------------------------------------- */

typedef DH_VEC(const char *) words;

/* Values common to all starts, and the job of the next one. */
typedef struct starts {
    const dh_cli *cli;
    const launch_args *args;
    dh_arena *arena;
    dh_job job; /* as it is started next */
    int n;      /* starts so far */
    char program[PATH_MAX];
} starts;

static bool add(words *w, const char *word)
{
    return word && dh_vec_push(w, word);
}

static bool add_setting(words *w, const char *setting)
{
    return add(w, "--set") && add(w, setting);
}

/* Blanks part the launcher's words. */
static bool add_launcher(const starts *s, words *w)
{
    char *at = NULL, *text = dh_arena_strdup(s->arena, s->args->launcher);
    bool ok = text != NULL;
    for (char *word = ok ? strtok_r(text, " ", &at) : NULL; ok && word;
         word = strtok_r(NULL, " ", &at))
        ok = add(w, word);
    return ok && add(w, "-n") && add(w, dh_arena_printf(s->arena, "%lld", (long long)s->job.ranks));
}

/* The mesh that is left overrides what was asked for; micro-batches keep their size. */
static bool add_mesh(const starts *s, words *w)
{
    if (s->n == 0) return true;
    const struct {
        const char *key;
        int64_t value;
    } of[] = {{"parallel.dp", s->job.dp}, {"parallel.tp", s->job.tp},
              {"parallel.cp", s->job.cp}, {"parallel.pp", s->job.pp},
              {"parallel.ep", s->job.ep}, {"train.micro_batch", s->job.micro_batch}};
    bool ok = true;
    for (size_t i = 0; ok && i < DH_COUNTOF(of); i++)
        ok =
            add_setting(w, dh_arena_printf(s->arena, "%s=%lld", of[i].key, (long long)of[i].value));
    if (s->job.nodes == 0) ok = ok && add_setting(w, "topology.nodes=auto");
    if (s->job.ranks_per_node == 0) ok = ok && add_setting(w, "topology.ranks_per_node=auto");
    return ok;
}

/* NULL-terminated; caller frees with dh_vec_fini. */
static dh_status make_command(dh_ctx *ctx, const starts *s, words *w)
{
    const dh_cli *cli = s->cli;
    bool ok =
        add_launcher(s, w) && add(w, s->program) && add(w, "train") && add(w, cli->args.at[0]);
    for (size_t i = 0; ok && i < cli->set.n; i++) ok = add_setting(w, cli->set.at[i]);
    ok = ok && add_mesh(s, w);
    if (s->args->fresh && s->n == 0) ok = ok && add(w, "--fresh");
    if (cli->quiet) ok = ok && add(w, "--quiet");
    if (cli->json) ok = ok && add(w, "--json");
    if (cli->log_level >= 0)
        ok = ok && add(w, "--log-level") && add(w, dh_cli_level_names[cli->log_level]);
    const char *end = NULL;
    return ok && dh_vec_push(w, end) ? DH_OK : dh_no_memory(ctx);
}

/* ---- one start ------------------------------------------------------------------------------- */

static volatile sig_atomic_t n_signals;

static void count_signal(int signal)
{
    (void)signal;
    n_signals++;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < DH_COUNTOF(signals); i++)
        sigaction(signals[i], &(struct sigaction){.sa_handler = count_signal}, NULL);
}

static dh_status spawn(dh_ctx *ctx, const words *w, pid_t *launcher)
{
    const int why = dh_cli_spawn(w->at, -1, launcher);
    return why ? dh_fail(ctx, DH_EINVAL, "cannot run %s: %s", w->at[0], strerror(why)) : DH_OK;
}

/* A launcher that waits although the ranks it has started here have ended. Open MPI 4.1.4 does so
 * where a host is cut off, because it waits for the daemon there. It also does so rarely where a
 * rank is killed while it connects (with PMIx 4.2.2). */
typedef struct watch {
    int64_t alone_since_ns; /* 0: it is not */
    bool had_ranks;
} watch;

static void count_ranks(void *n, long process, bool stopped)
{
    (void)stopped;
    if (dh_process_rank(process) >= 0)
        ++*(int *)n;
    else
        dh_process_each_child(process, count_ranks, n);
}

static bool hangs(watch *w, pid_t launcher)
{
    const int64_t patience_ns = INT64_C(10000000000);
    int n = 0;
    dh_process_each_child(launcher, count_ranks, &n);
    if (n > 0) w->had_ranks = true;
    if (n > 0 || !w->had_ranks) {
        w->alone_since_ns = 0;
        return false;
    }
    if (w->alone_since_ns == 0) w->alone_since_ns = dh_now_ns();
    return dh_now_ns() - w->alone_since_ns > patience_ns;
}

/* The first signal lets ranks finish their step and save, the next one ends them, all others end
 * a launcher that does not end. */
static void pass_on_signals(pid_t launcher, int *n_passed)
{
    static const int as[] = {SIGUSR1, SIGTERM, SIGKILL};
    for (; *n_passed < n_signals; ++*n_passed)
        kill(launcher, as[DH_MIN(*n_passed, (int)DH_COUNTOF(as) - 1)]);
}

/* Waits for the launcher and returns its status. *hung: it did not end by itself and was killed. */
static int await(pid_t launcher, bool *hung)
{
    int status = 0, n_passed = 0;
    watch w = {0};
    *hung = false;
    for (int64_t n = 0; waitpid(launcher, &status, WNOHANG) == 0; n++) {
        pass_on_signals(launcher, &n_passed);
        if (n % 20 == 0 && !*hung && hangs(&w, launcher)) *hung = kill(launcher, SIGKILL) == 0;
        dh_sleep_until_ns(dh_now_ns() + 50000000);
    }
    return status;
}

static void send(void *number, long process, bool stopped)
{
    kill((pid_t)process, *(const int *)number);
    if (stopped) kill((pid_t)process, SIGCONT); /* to heed it */
}

/* Ends the processes that a launcher leaves. This process inherits them (PR_SET_CHILD_SUBREAPER),
 * and they must not train on during the next start. */
static void end_rest(void)
{
    const int64_t grace_ns = INT64_C(10000000000), end_ns = dh_now_ns() + grace_ns;
    int number = SIGTERM;
    while (dh_process_each_child(getpid(), number ? send : NULL, &number) > 0) {
        number = dh_now_ns() < end_ns ? 0 : SIGKILL;
        dh_sleep_until_ns(dh_now_ns() + 20000000);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
}

static dh_status start(dh_ctx *ctx, starts *s, int *status, bool *hung)
{
    words w = {0};
    pid_t launcher = -1;
    dh_status st = make_command(ctx, s, &w);
    if (st == DH_OK) st = spawn(ctx, &w, &launcher);
    if (st == DH_OK) *status = await(launcher, hung);
    if (st == DH_OK) end_rest();
    dh_vec_fini(&w);
    return st;
}

/* ---- again ----------------------------------------------------------------------------------- */

/* Why the ranks ended, where some were lost; else false. Launchers end with 128 and the signal that
 * ended a process. */
static bool is_loss(int status, bool hung, char *why, size_t cap)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (hung)
        snprintf(why, cap, "the ranks of this host have ended, and their launcher has not");
    else if (code == DH_COMM_EXIT_LOST)
        snprintf(why, cap, "a rank was silent for too long, or gone");
    else if (code > 128 && code < 128 + 64 && code != DH_CLI_INTERRUPTED)
        snprintf(why, cap, "a rank was ended by signal %d (%s)", code - 128, strsignal(code - 128));
    else
        return false;
    return true;
}

static dh_status fail(dh_ctx *ctx, const starts *s, int status)
{
    if (WIFEXITED(status))
        return dh_fail(ctx, DH_ECOMM, "the run failed: %s ended with exit code %d",
                       s->args->launcher, WEXITSTATUS(status));
    return dh_fail(ctx, DH_ECOMM, "%s was ended by signal %d", s->args->launcher, WTERMSIG(status));
}

/* Of faults for tests each start has its own (fault.h). */
static void take_next_fault(void)
{
    const char *faults = getenv("DHELIX_FAULT");
    const char *next = faults ? strchr(faults, ',') : NULL;
    if (next)
        setenv("DHELIX_FAULT", next + 1, 1);
    else
        unsetenv("DHELIX_FAULT");
}

/* The mesh that is left, and in text what is gone on from. */
static dh_status find_next(dh_ctx *ctx, const dh_job *job, dh_shrunk *left, char *text, size_t cap)
{
    const dh_shrink_options unknown = {.memory_bytes = 0}; /* of hosts that are not this one */
    DH_TRY(dh_job_shrink(ctx, job, job->ranks - 1, &unknown, left));
    return dh_shrunk_state(ctx, left, text, cap);
}

static dh_status go_on(dh_ctx *ctx, starts *s, const char *lost)
{
    dh_shrunk left;
    char state[96];
    dh_ctx why = DH_CTX_INIT;
    if (s->job.elastic_action != DH_ELASTIC_CONTINUE)
        return dh_fail(ctx, DH_ECOMM, "%s, and elastic.action is stop", lost);
    if (find_next(&why, &s->job, &left, state, sizeof state) != DH_OK)
        return dh_fail(ctx, DH_ECOMM, "%s; the run does not go on: %s", lost, why.message);
    dh_log(DH_LOG_WARN, "%s; the run goes on over %s, from %s", lost, left.text, state);
    s->job = left.job;
    s->n++;
    take_next_fault();
    return DH_OK;
}

static dh_status run_starts(dh_ctx *ctx, starts *s)
{
    for (;;) {
        int status;
        bool hung;
        char why[160];
        DH_TRY(start(ctx, s, &status, &hung));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return DH_OK;
        if (n_signals > 0 || (WIFEXITED(status) && WEXITSTATUS(status) == DH_CLI_INTERRUPTED))
            return dh_fail(ctx, DH_EINTERRUPTED,
                           "stopped; the same command continues from the newest checkpoint");
        if (!is_loss(status, hung, why, sizeof why)) return fail(ctx, s, status);
        DH_TRY(go_on(ctx, s, why));
    }
}

/* Tells ranks which process ends them (launched.c). */
static void tell_ranks(void)
{
    char text[DH_PROCESS_TEXT_BYTES];
    const dh_process self = dh_process_here((long)getpid());
    dh_process_print(&self, text);
    setenv(DH_CLI_LAUNCHER, text, 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static dh_status launch(dh_ctx *ctx, dh_cli *cli, const launch_args *a, const dh_job *job)
{
    starts s = {.cli = cli, .args = a, .job = *job, .arena = job->arena};
    const ssize_t n = readlink("/proc/self/exe", s.program, sizeof s.program - 1);
    if (n < 0) return dh_fail(ctx, DH_EINTERNAL, "cannot find this program: %s", strerror(errno));
    s.program[n] = '\0';
    tell_ranks();
    catch_signals();
    return run_starts(ctx, &s);
}

static dh_status run(dh_ctx *ctx, dh_cli *cli, const void *args)
{
    const launch_args *a = args;
    dh_job *job;
    if (dh_launched_ranks() > 0)
        return dh_cli_misuse(ctx, cli, "dhelix launch starts the ranks itself: without %s",
                             a->launcher);
    if (!a->launcher[strspn(a->launcher, " ")])
        return dh_cli_misuse(ctx, cli, "--launcher is empty; mpirun would do");
    DH_TRY(dh_cli_load_job(ctx, cli, cli->args.at[0], a->ranks, &job));
    dh_status st = dh_cli_check_run_folder(ctx, cli, job);
    if (st == DH_OK) st = launch(ctx, cli, a, job);
    dh_job_destroy(job);
    return st;
}

const dh_command dh_command_launch = {
    .name = "launch",
    .doc = "train over MPI processes, and again over fewer when some are lost",
    .usage = "JOB",
    .notes = "Runs COMMAND -n RANKS dhelix train JOB. When a signal ends a rank, or a rank does\n"
             "not come before parallel.timeout_s, MPI ends the others. With\n"
             "elastic.action=continue the run then starts again from its newest checkpoint, with\n"
             "the same batch over at least one rank fewer. The new tp, cp, pp and ep divide the\n"
             "former ones. Of these meshes the run takes one with the most ranks, and among those\n"
             "the one with the fewest changes.\n"
             "\n"
             "The command ends when fewer than elastic.min_ranks would be left, and after any\n"
             "other failure. It also ends when the new mesh differs in more than parallel.dp and\n"
             "there is no checkpoint yet. All hosts need the program and the files at the same\n"
             "paths.\n"
             "\n"
             "The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 is passed on to the ranks as SIGUSR1:\n"
             "they finish their step and save (exit code 130). The second one ends them.\n",
    .job = true,
    .min_args = 1,
    .max_args = 1,
    .options = options,
    .n_options = DH_COUNTOF(options),
    .args_bytes = sizeof(launch_args),
    .defaults = &defaults,
    .run = run};
