/* One run, one folder: who holds it, whom the lock is taken over from, on what file systems; and
 * what of a run's metrics a cut of power leaves. */
#include "ranks.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "base/process.h"
#include "train/lock.h"
#include "train/metrics.h"

/* ---- the system: linked with --wrap=<call> --------------------------------------------------- */

static bool no_locks, on_network;
static off_t metrics_synced; /* bytes of metrics.jsonl that outlive a cut of power */

int __real_flock(int fd, int operation);
int __real_fstatfs(int fd, struct statfs *info);
int __real_fsync(int fd);
int __wrap_flock(int fd, int operation);
int __wrap_fstatfs(int fd, struct statfs *info);
int __wrap_fsync(int fd);

int __wrap_flock(int fd, int operation)
{
    if (!no_locks) return __real_flock(fd, operation);
    errno = ENOLCK;
    return -1;
}

int __wrap_fstatfs(int fd, struct statfs *info)
{
    const int failed = __real_fstatfs(fd, info);
    if (on_network) info->f_type = NFS_SUPER_MAGIC;
    return failed;
}

int __wrap_fsync(int fd)
{
    char link[64], path[512];
    struct stat info;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *name = strrchr(path, '/');
    if (name && strcmp(name, "/metrics.jsonl") == 0 && fstat(fd, &info) == 0)
        metrics_synced = info.st_size;
    return __real_fsync(fd);
}

/* ---- the lock -------------------------------------------------------------------------------- */

static char *in_run(char *path, size_t cap, const char *name)
{
    snprintf(path, cap, "%s/%s", run_dir, name);
    return path;
}

static void write_record(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[300];
    assert_ok(&ctx,
              dh_file_write_atomic(&ctx, in_run(path, sizeof path, "lock"), text, strlen(text)));
}

/* The record that a run of this process writes. */
static void own_record(char *text, size_t cap)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    char path[300], *record;
    size_t n;
    assert_ok(&ctx, dh_folder_claim(&ctx, run_dir, &lock));
    assert_ok(&ctx, dh_file_read(&ctx, in_run(path, sizeof path, "lock"), 1000, &record, &n));
    snprintf(text, cap, "%s", record);
    free(record);
    dh_folder_release(&lock);
}

static void expect_taken(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    char path[300];
    assert_ok(&ctx, dh_folder_claim(&ctx, run_dir, &lock));
    assert_true(dh_folder_is_held(&lock));
    dh_folder_release(&lock);
    assert_false(dh_path_exists(in_run(path, sizeof path, "lock")));
}

static void expect_refused(const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    char path[300];
    assert_fails(&ctx, dh_folder_claim(&ctx, run_dir, &lock), DH_EINVAL, part);
    assert_int_equal(unlink(in_run(path, sizeof path, "lock")), 0);
}

static void a_folder_is_held_once(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock first, second;
    char part[64], path[300], moved[300];
    snprintf(part, sizeof part, "in use by process %ld on host ", (long)getpid());
    assert_ok(&ctx, dh_folder_claim(&ctx, run_dir, &first));
    assert_fails(&ctx, dh_folder_claim(&ctx, run_dir, &second), DH_EINVAL, part);
    in_run(path, sizeof path, "lock");
    assert_int_equal(rename(path, in_run(moved, sizeof moved, "moved")), 0);
    assert_false(dh_folder_is_held(&first)); /* as where the folder itself is gone */
    assert_ok(&ctx, dh_folder_claim(&ctx, run_dir, &second));
    dh_folder_release(&first); /* not the second's file */
    assert_true(dh_folder_is_held(&second));
    dh_folder_release(&second);
    dh_folder_release(&second);
    assert_int_equal(unlink(moved), 0);
    expect_taken();
}

static void the_dead_hold_nothing(void **state)
{
    char mine[300];
    own_record(mine, sizeof mine);
    write_record(mine); /* left by a process that is gone: flock would know */
    expect_taken();
    write_record("host elsewhere boot 1 pid 17 started 5\n"); /* on a disk that only we see */
    expect_taken();
    write_record("not a record");
    expect_taken();
    write_record("");
    expect_taken();
}

/* Whether a lock reaches other hosts is not known there. */
static void another_hosts_word_counts_on_a_network(void **state)
{
    char mine[300];
    own_record(mine, sizeof mine);
    on_network = true;
    write_record("host elsewhere boot 1 pid 17 started 5\n");
    expect_refused("in use by process 17 on host elsewhere");
    write_record("host elsewhere boot 1 pid 17 started 5\n");
    expect_refused("if that process is gone, remove ");
    write_record(mine); /* of this host, flock is believed */
    expect_taken();
    on_network = false;
}

static void without_locks_the_record_decides(void **state)
{
    char mine[300], other[400];
    own_record(mine, sizeof mine);
    no_locks = true;
    write_record(mine);
    expect_refused("in use by process ");
    snprintf(other, sizeof other, "%.*s started 1\n", (int)(strstr(mine, " started") - mine), mine);
    write_record(other); /* a later process of the same number */
    expect_taken();
    fflush(stdout);
    const pid_t gone = fork();
    if (gone == 0) _exit(0);
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    snprintf(other, sizeof other, "%.*s pid %ld started 1\n", (int)(strstr(mine, " pid") - mine),
             mine, (long)gone);
    write_record(other);
    expect_taken();
    snprintf(other, sizeof other, "%.*s ids pid:[17]\n", (int)(strstr(mine, " ids") - mine), mine);
    write_record(other); /* of another container, where the number is another process's */
    expect_refused("if that process is gone, remove ");
    no_locks = false;
}

/* Both have found no owner; the one whose record was written over has it no longer. */
static void without_locks_two_that_start_together_find_out(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    char path[300];
    no_locks = true;
    assert_ok(&ctx, dh_folder_claim(&ctx, run_dir, &lock));
    assert_true(dh_folder_is_held(&lock));
    FILE *other = fopen(in_run(path, sizeof path, "lock"), "w");
    assert_true(fputs("host elsewhere boot 1 pid 17 started 5\n", other) > 0);
    assert_int_equal(fclose(other), 0);
    assert_false(dh_folder_is_held(&lock));
    dh_folder_release(&lock); /* not the other's file */
    expect_refused("in use by process 17 on host elsewhere");
    no_locks = false;
}

static void count(void *n, long child, bool stopped)
{
    ++((int *)n)[stopped];
}

static void processes_are_known_again(void **state)
{
    char text[DH_PROCESS_TEXT_BYTES];
    int n[2] = {0}, status;
    dh_process self = dh_process_here((long)getpid()), read;
    dh_process_print(&self, text);
    assert_true(dh_process_parse(text, &read));
    assert_int_equal(dh_process_ask(&read), DH_PROCESS_RUNS);
    read.started++; /* a later process of the same number */
    assert_int_equal(dh_process_ask(&read), DH_PROCESS_GONE);
    read = self;
    snprintf(read.space, sizeof read.space, "pid:[17]");
    assert_int_equal(dh_process_ask(&read), DH_PROCESS_ELSEWHERE);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) raise(SIGSTOP);
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    read = dh_process_here((long)child);
    assert_int_equal(dh_process_ask(&read), DH_PROCESS_RUNS);
    const int known = dh_process_each_child((long)getpid(), count, n);
    assert_true(known == -1 || (known == 1 && n[0] == 0 && n[1] == 1));
    assert_int_equal(kill(child, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(dh_process_ask(&read), DH_PROCESS_GONE); /* though nobody has waited for it */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(dh_process_parse("host a boot b pid x started 5", &read));
    assert_false(dh_process_parse("", &read));
}

static void what_is_no_file_does_not_block(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    char path[300];
    assert_int_equal(mkfifo(in_run(path, sizeof path, "lock"), 0600), 0);
    alarm(20);
    assert_fails(&ctx, dh_folder_claim(&ctx, run_dir, &lock), DH_EINVAL, "not a regular file");
    alarm(0);
    assert_int_equal(unlink(path), 0);
}

/* Several processes take and leave the folder; while one has it, nobody else has. */
static void claimed_by_many(void **state)
{
    enum { PROCESSES = 4, ROUNDS = 300 };
    char inside[300];
    in_run(inside, sizeof inside, "inside");
    fflush(stdout);
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        for (int round = 0; round < ROUNDS;) {
            dh_ctx ctx = DH_CTX_INIT;
            dh_folder_lock lock;
            if (dh_folder_claim(&ctx, run_dir, &lock) != DH_OK) continue;
            if (mkdir(inside, 0700) != 0 || rmdir(inside) != 0) _exit(1);
            dh_folder_release(&lock);
            round++;
        }
        _exit(0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void a_checkpoint_has_its_metrics(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char out[300], path[400];
    struct stat info;
    run_folder(out, sizeof out, "synced");
    metrics_synced = 0;
    assert_ok(&ctx, run_job(&ctx, RUN_GPT2, "train.steps=4 checkpoint.every=4", out, NULL));
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > 0);
    assert_int_equal(metrics_synced, info.st_size);
    run_remove(out);
}

static void write_file(const char *name, const char *text, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[300];
    assert_ok(&ctx, dh_file_write_atomic(&ctx, in_run(path, sizeof path, name), text, n));
}

/* The file of a name as a text, "" where there is none; caller frees. */
static char *read_file(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[300], *text;
    size_t n;
    in_run(path, sizeof path, name);
    if (!dh_path_exists(path)) return calloc(1, 1);
    assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 28, &text, &n));
    return text;
}

static void expect_file(const char *name, const char *wanted)
{
    char *text = read_file(name);
    if (strcmp(text, wanted) != 0)
        fail_msg("%s has %zu bytes, wanted are %zu", name, strlen(text), strlen(wanted));
    free(text);
}

static void open_metrics(int64_t last_step)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics m;
    assert_ok(&ctx, dh_metrics_open(&ctx, run_dir, last_step, &m));
    dh_metrics_close(&m);
}

static void remove_file(const char *name)
{
    char path[300];
    assert_int_equal(unlink(in_run(path, sizeof path, name)), 0);
}

/* Lines of all kinds at drawn places, through a buffer that is shorter than the file; some lines
 * are longer than the buffer. What is to be there is put together beside it. */
static void metrics_are_parted_line_by_line(void **state)
{
    uint64_t seed = test_seed("metrics_are_parted_line_by_line");
    char *junk = malloc(3 << 20);
    assert_non_null(junk);
    memset(junk, 'j', 3 << 20);
    dh_log_set_level(DH_LOG_ERROR);
    for (int round = 0; round < 40; round++) {
        dh_str file = DH_STR_INIT, kept = DH_STR_INIT;
        const int n_lines = (int)(test_rand(&seed) % 60);
        const int64_t last_step = 1 + (int64_t)(test_rand(&seed) % 50);
        const bool in_order = round % 2;
        for (int i = 1; i <= n_lines; i++) {
            char line[100];
            const int64_t step = in_order ? i : 1 + (int64_t)(test_rand(&seed) % 60);
            const int n =
                snprintf(line, sizeof line, "{\"step\":%lld,\"loss\":%d.5}", (long long)step, i);
            const bool cut = i == n_lines && test_rand(&seed) % 2;
            if (!in_order && test_rand(&seed) % 8 == 0)
                dh_str_append(&file, junk,
                              test_rand(&seed) % 4 ? 20 : (size_t)test_rand(&seed) % (3 << 20));
            else
                dh_str_printf(&file, "%s", line);
            const bool whole =
                file.len >= (size_t)n && memcmp(file.text + file.len - n, line, (size_t)n) == 0;
            if (whole && step <= last_step) dh_str_printf(&kept, "%s\n", line);
            if (!cut) dh_str_append(&file, "\n", 1);
        }
        assert_false(file.failed || kept.failed);
        write_file("metrics.jsonl", file.text ? file.text : "", file.len);
        open_metrics(last_step);
        expect_file("metrics.jsonl", kept.text ? kept.text : "");
        remove_file("metrics.jsonl");
        dh_str_fini(&file);
        dh_str_fini(&kept);
    }
    dh_log_set_level(DH_LOG_INFO);
    remove_file("metrics.unreadable");
    free(junk);
}

/* Nothing that was measured is erased. */
static void a_new_beginning_keeps_old_metrics(void **state)
{
    static const char first[] = "{\"step\":1,\"loss\":3}\n", second[] = "{\"step\":1,\"loss\":4}\n";
    write_file("metrics.jsonl", first, sizeof first - 1);
    open_metrics(0);
    expect_file("metrics.jsonl", "");
    expect_file("metrics.1.jsonl", first);
    open_metrics(0); /* nothing to keep */
    write_file("metrics.jsonl", second, sizeof second - 1);
    open_metrics(0);
    expect_file("metrics.1.jsonl", first);
    expect_file("metrics.2.jsonl", second);
    remove_file("metrics.1.jsonl");
    remove_file("metrics.2.jsonl");
    remove_file("metrics.jsonl");
}

static void metrics_do_not_follow_links(void **state)
{
    static const char precious[] = "{\"step\":1,\"loss\":3}\n{\"step\":9,\"loss\":3}\n";
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics m;
    char link[300], to[300];
    write_file("precious", precious, sizeof precious - 1);
    assert_int_equal(
        symlink(in_run(to, sizeof to, "precious"), in_run(link, sizeof link, "metrics.jsonl")), 0);
    for (int64_t last_step = 0; last_step <= 9; last_step++) {
        assert_fails(&ctx, dh_metrics_open(&ctx, run_dir, last_step, &m), DH_EIO, "cannot open ");
        dh_ctx_reset(&ctx);
        expect_file("precious", precious);
    }
    remove_file("metrics.jsonl");
    remove_file("precious");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_held_once),
        cmocka_unit_test(the_dead_hold_nothing),
        cmocka_unit_test(another_hosts_word_counts_on_a_network),
        cmocka_unit_test(without_locks_the_record_decides),
        cmocka_unit_test(without_locks_two_that_start_together_find_out),
        cmocka_unit_test(processes_are_known_again),
        cmocka_unit_test(what_is_no_file_does_not_block),
        cmocka_unit_test(claimed_by_many),
        cmocka_unit_test(a_checkpoint_has_its_metrics),
        cmocka_unit_test(metrics_are_parted_line_by_line),
        cmocka_unit_test(a_new_beginning_keeps_old_metrics),
        cmocka_unit_test(metrics_do_not_follow_links),
    };
    return cmocka_run_group_tests(tests, run_make_dir, run_drop_dir);
}
