/* Checkpoints that cannot be read: what keeps a run from going on is told apart, and an older
 * one is taken for damage only. Checkpoints that are read while a run removes them. */
#include "dh_test.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weights/checkpoint.h"

/* Linked with --wrap=read: a disk that fails. */
static bool reads_fail;
ssize_t __real_read(int fd, void *data, size_t n);
ssize_t __wrap_read(int fd, void *data, size_t n);
ssize_t __wrap_read(int fd, void *data, size_t n)
{
    if (!reads_fail) return __real_read(fd, data, n);
    errno = EIO;
    return -1;
}

static dh_status fill(dh_ctx *ctx, dh_ckpt_writer *c, int64_t step, int64_t keep)
{
    dh_ckpt_state state = {.step = step};
    DH_TRY(dh_ckpt_put_file(ctx, c, "data", &step, sizeof step));
    DH_TRY(dh_ckpt_put_state(ctx, c, &state));
    return dh_ckpt_commit(ctx, c, keep, NULL);
}

static dh_status save(dh_ctx *ctx, const char *run, int64_t step, int64_t keep)
{
    dh_ckpt_writer *c;
    DH_TRY(dh_ckpt_begin(ctx, run, step, &c));
    dh_status st = fill(ctx, c, step, keep);
    dh_ckpt_destroy(c);
    return st;
}

/* A run with checkpoints of steps 1 and 2; PATH: NAME in the newest. */
static void start(char *run, size_t cap, const char *name, char path[400])
{
    dh_ctx ctx = DH_CTX_INIT;
    test_tmpdir(run, cap);
    assert_int_equal(chmod(run, 0755), 0); /* for the user that may not do everything */
    for (int64_t step = 1; step <= 2; step++) assert_ok(&ctx, save(&ctx, run, step, 0));
    snprintf(path, 400, "%s/checkpoints/step-000002/%s", run, name);
}

static void expect_refusal(const char *run, dh_status status, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), status, part);
}

static void expect_step(const char *run, int64_t step)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    assert_ok(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c));
    assert_int_equal(dh_ckpt_get_state(c)->step, step);
    dh_ckpt_close(c);
}

static void finish(const char *run)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_log_set_level(DH_LOG_INFO);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* ---- conditions ---------------------------------------------------------------------------- */

static void without_permission_is_no_reason_to_go_back(void **state)
{
    char run[256], path[400];
    start(run, sizeof run, "data", path);
    static const char *const names[] = {"data", "manifest.json", "state.json", ""};
    const bool is_root = geteuid() == 0; /* who is refused nothing */
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-000002/%s", run, names[i]);
        assert_int_equal(chmod(path, 0), 0);
        if (is_root) assert_int_equal(seteuid(65534), 0);
        expect_refusal(run, DH_EPERM, "the checkpoint of step 2 is not permitted to be read");
        expect_refusal(run, DH_EPERM, "Permission denied");
        if (is_root) assert_int_equal(seteuid(0), 0);
        assert_int_equal(chmod(path, 0755), 0);
        expect_step(run, 2);
    }
    finish(run);
}

static void a_failing_disk_is_no_reason_to_go_back(void **state)
{
    char run[256], path[400];
    start(run, sizeof run, "data", path);
    reads_fail = true;
    expect_refusal(run, DH_EIO, "the checkpoint of step 2 is unreadable");
    expect_refusal(run, DH_EIO, "data: Input/output error");
    reads_fail = false;
    expect_step(run, 2);
    finish(run);
}

/* Whatever else a later version may keep in its manifest. */
static void a_newer_version_is_no_reason_to_go_back(void **state)
{
    static const char content[] = "{\"format\":\"dhelix-checkpoint\",\"version\":2}";
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400], text[256], hash[DH_CKPT_HASH_TEXT];
    start(run, sizeof run, "manifest.json", path);
    dh_ckpt_fingerprint(content, strlen(content), hash);
    snprintf(text, sizeof text, "{\"manifest\":%s,\"xxh3_128\":\"%s\"}", content, hash);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
    expect_refusal(run, DH_EUNSUPPORTED, "the checkpoint of step 2 is of a newer program");
    expect_refusal(run, DH_EUNSUPPORTED, "its version is 2; this program reads 1");
    finish(run);
}

static void damage_is_passed_over(void **state)
{
    static const char *const names[] = {"data", "manifest.json", "state.json"};
    dh_log_set_level(DH_LOG_ERROR);
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        char run[256], path[400];
        start(run, sizeof run, names[i], path);
        assert_int_equal(truncate(path, 3), 0);
        expect_step(run, 1);
        assert_int_equal(unlink(path), 0);
        expect_step(run, 1);
        assert_int_equal(mkfifo(path, 0644), 0); /* opening it would wait for a writer */
        alarm(20);
        expect_step(run, 1);
        alarm(0);
        snprintf(path, sizeof path, "%s/checkpoints/step-000001/%s", run, names[i]);
        assert_int_equal(truncate(path, 0), 0);
        expect_refusal(run, DH_EFORMAT, "none of its 2 checkpoints is intact; the newest: ");
        finish(run);
        dh_log_set_level(DH_LOG_ERROR);
    }
    dh_log_set_level(DH_LOG_INFO);
}

static void a_folder_that_cannot_be_listed_is_not_empty(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    test_tmpdir(run, sizeof run);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "x", 1));
    expect_refusal(run, DH_EIO, "checkpoints: Not a directory");
    finish(run);
}

/* ---- beside a run -------------------------------------------------------------------------- */

static void what_is_open_is_not_removed(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    char run[256], path[400];
    struct stat info;
    start(run, sizeof run, "data", path);
    assert_ok(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c));
    assert_ok(&ctx, save(&ctx, run, 3, 1));
    assert_int_equal(stat(path, &info), 0);
    dh_ckpt_close(c);
    assert_ok(&ctx, save(&ctx, run, 4, 1));
    assert_int_equal(stat(path, &info), -1);
    expect_step(run, 4);
    finish(run);
}

/* A child keeps one checkpoint and writes the next as fast as it can. */
static void readers_beside_a_run_that_prunes(void **state)
{
    enum { TRIES = 300 };
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    start(run, sizeof run, "data", path);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dh_status st = DH_OK;
        for (int64_t step = 3; st == DH_OK; step++) st = save(&ctx, run, step, 1);
        _exit(1);
    }
    int64_t first = 0, last = 0;
    for (int i = 0; i < TRIES; i++) {
        dh_ckpt *c;
        char *data;
        size_t n;
        assert_ok(&ctx, dh_ckpt_open(&ctx, NULL, run, true, &c));
        last = dh_ckpt_get_state(c)->step;
        if (i == 0) first = last;
        snprintf(path, sizeof path, "%s/data", dh_ckpt_path(c));
        usleep(500); /* as long as it is open, it stays */
        assert_ok(&ctx, dh_file_read(&ctx, path, 100, &data, &n));
        assert_memory_equal(data, &last, sizeof last);
        free(data);
        dh_ckpt_close(c);
    }
    int status;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status)); /* it had not failed */
    printf("read %d times while steps %lld to %lld were written\n", TRIES, (long long)first,
           (long long)last);
    assert_true(last > first);
    finish(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_permission_is_no_reason_to_go_back),
        cmocka_unit_test(a_failing_disk_is_no_reason_to_go_back),
        cmocka_unit_test(a_newer_version_is_no_reason_to_go_back),
        cmocka_unit_test(damage_is_passed_over),
        cmocka_unit_test(a_folder_that_cannot_be_listed_is_not_empty),
        cmocka_unit_test(what_is_open_is_not_removed),
        cmocka_unit_test(readers_beside_a_run_that_prunes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
