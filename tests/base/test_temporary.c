/* Temporary files and folders of a process that ends: none is left, however far it is with them. */
#include "dh_test.h"

#include <pthread.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/temporary.h"

/* Linked with --wrap=flock: what is made is there for a while before it is locked. */
static int64_t pause_ns;
int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
    if (how == LOCK_EX) dh_sleep_until_ns(dh_now_ns() + pause_ns);
    return __real_flock(fd, how);
}

static char dir[256];

typedef struct maker {
    bool is_dir;
    const char *name;
} maker;

static void *make(void *arg)
{
    const maker *m = arg;
    dh_ctx ctx = DH_CTX_INIT;
    dh_temporary t;
    char stem[300];
    snprintf(stem, sizeof stem, "%s/%s", dir, m->name);
    (m->is_dir ? dh_temporary_dir : dh_temporary_file)(&ctx, stem, &t);
    return NULL;
}

enum { NOTHING = 0 };

static void start(maker *m)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make, m), 0);
    pthread_detach(thread);
}

/* Ends as a command does at a signal, while a thread makes the first; the second comes too late. */
static int end_while_made(bool is_dir)
{
    maker first = {is_dir, "first"}, second = {is_dir, "second"};
    pause_ns = 200000000;
    start(&first);
    while (test_n_entries(dir) == NOTHING) {}
    dh_temporary_drop_own();
    const size_t left = test_n_entries(dir);
    pause_ns = 0;
    start(&second);
    dh_sleep_until_ns(dh_now_ns() + 20000000);
    return left == NOTHING && test_n_entries(dir) == NOTHING ? 0 : 1;
}

static void nothing_is_left_of_what_is_being_made(void **state)
{
    for (int is_dir = 0; is_dir < 2; is_dir++) {
        int status;
        const pid_t pid = fork();
        if (pid == 0) _exit(end_while_made(is_dir));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(test_n_entries(dir), NOTHING);
    }
}

static int prepare(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int clean(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_left_of_what_is_being_made),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
