/* Memory that is left, by files of a machine that the tests make up. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "dh_test.h"

static char root[256];

static void put(const char *path, const char *text)
{
    char full[512], dir[512];
    dh_ctx ctx = DH_CTX_INIT;
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(full, '/') - full), full);
    assert_int_equal(dh_dir_create(&ctx, dir), DH_OK);
    assert_int_equal(dh_file_write_atomic(&ctx, full, text, strlen(text)), DH_OK);
}

static void put_group(const char *dir, const char *const files[3], const char *limit,
                      const char *used, const char *stat)
{
    const char *texts[] = {limit, used, stat};
    char path[512];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        put(path, texts[i]);
    }
}

static const char *const version_1[] = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "memory.stat"};
static const char *const version_2[] = {"memory.max", "memory.current", "memory.stat"};

static int machine(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (*root) assert_int_equal(dh_dir_remove(&ctx, root), DH_OK);
    test_tmpdir(root, sizeof root);
    put("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n");
    return 0;
}

static int no_machine(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, root) == DH_OK ? 0 : -1;
}

static void total(double bytes)
{
    assert_true(dh_memory_total_under(root) == bytes);
}

static void left(double bytes)
{
    assert_true(dh_memory_available_under(root) == bytes);
}

static void what_the_machine_has(void **state)
{
    left(8000 * 1024);
    total(9000 * 1024);
    put("/proc/meminfo", "MemTotal: 9000 kB\n");
    left(0);
    total(9000 * 1024);
}

static void groups_of_version_1(void **state)
{
    put("/proc/self/cgroup", "8:pids:/\n4:cpu,memory:/a/b\n0::/\n");
    put("/proc/self/mountinfo", "34 31 0:31 / /sys/cpu rw - cgroup cgroup rw,cpuset\n"
                                "35 31 0:32 / /sys/memory rw,x shared:1 - cgroup c rw,memory\n");
    put_group("/sys/memory/a/b", version_1, "9223372036854771712\n", "5000\n", "cache 9\n");
    left(8000 * 1024);
    put_group("/sys/memory/a", version_1, "700000\n", "500000\n",
              "inactive_file 1\nactive_file 1\ntotal_inactive_file 100000\n"
              "total_active_file 20000\n");
    left(320000);
    total(700000); /* whatever of it is used */
    put_group("/sys/memory", version_1, "100000\n", "500000\n", "");
    left(1); /* nothing is left, which is not the same as nothing known */
}

static void groups_of_version_2(void **state)
{
    put("/proc/self/cgroup", "0::/job\n");
    put("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put_group("/sys/fs/cgroup/job", version_2, "max\n", "500000\n", "inactive_file 7\n");
    left(8000 * 1024);
    put_group("/sys/fs/cgroup/job", version_2, "600000\n", "500000\n", "inactive_file 50000\n");
    left(150000);
    total(600000);
}

/* What groups above may still have counts too: their own limit, and all that is used below them. */
static void groups_above_of_version_2(void **state)
{
    put("/proc/self/cgroup", "0::/user.slice/user-1.slice/session.scope\n");
    put("/proc/self/mountinfo", "30 1 0:3 / / rw - ext4 /dev/sda rw\n"
                                "35 31 0:32 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 "
                                "rw,nsdelegate\n");
    put_group("/sys/fs/cgroup/user.slice/user-1.slice/session.scope", version_2, "max\n", "1000\n",
              "inactive_file 7\n");
    left(8000 * 1024);
    put_group("/sys/fs/cgroup/user.slice/user-1.slice", version_2, "900000\n", "500000\n",
              "inactive_file 50000\nactive_file 10000\n"); /* of others, too */
    left(460000);
    put_group("/sys/fs/cgroup/user.slice", version_2, "max\n", "7000000\n", "");
    left(460000);
    put_group("/sys/fs/cgroup/user.slice", version_2, "7100000\n", "7000000\n", "");
    left(100000);
    put_group("/sys/fs/cgroup/user.slice/user-1.slice/session.scope", version_2, "50000\n",
              "1000\n", "inactive_file 0\n");
    left(49000);
    put_group("/sys/fs/cgroup/user.slice", version_2, "6000000\n", "7000000\n", "");
    left(1);
}

/* A group without the controller has none of its files; those above it still have. */
static void groups_without_the_controller(void **state)
{
    put("/proc/self/cgroup", "0::/job/step\n");
    put("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/job/step/cgroup.procs", "1\n");
    put_group("/sys/fs/cgroup/job", version_2, "600000\n", "500000\n", "");
    left(100000);
    put("/sys/fs/cgroup/memory.max", "5\n"); /* where the hierarchy is mounted, as in a container */
    put("/sys/fs/cgroup/memory.current", "1\n");
    left(4);
    put("/sys/fs/memory.max", "1\n"); /* above it: no group */
    left(4);
}

/* Of both versions at once the memory's own counts, and limits of the other where it has some. */
static void groups_of_both_versions(void **state)
{
    put("/proc/self/cgroup", "4:cpu,memory:/a\n0::/b/c\n");
    put("/proc/self/mountinfo", "35 31 0:32 / /sys/memory rw - cgroup c rw,memory\n"
                                "36 31 0:33 / /sys/unified rw - cgroup2 c rw\n");
    put_group("/sys/memory/a", version_1, "700000\n", "500000\n", "");
    left(200000);
    put_group("/sys/unified/b", version_2, "600000\n", "500000\n", "");
    left(100000);
}

/* A part of the hierarchy is mounted: groups from there on, and of processes outside of it those of
 * the place. */
static void part_of_version_2(void **state)
{
    put("/proc/self/cgroup", "0::/docker/1f/job\n");
    put("/proc/self/mountinfo", "35 31 0:32 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    put_group("/sys/fs/cgroup", version_2, "600000\n", "500000\n", "");
    left(100000);
    put_group("/sys/fs/cgroup/job", version_2, "90000\n", "50000\n", "");
    left(40000);
    put("/proc/self/cgroup", "0::/../elsewhere\n");
    left(100000);
}

/* A container sees its own group at the place where the hierarchy is mounted. */
static void group_of_a_container(void **state)
{
    put("/proc/self/cgroup", "4:memory:/docker/1f\n");
    put("/proc/self/mountinfo", "35 31 0:32 /docker/1f /sys/memory ro - cgroup c rw,memory\n");
    put_group("/sys/memory", version_1, "600000\n", "500000\n", "");
    left(100000);
    put("/proc/self/cgroup", "4:memory:/\n");
    left(100000);
    put("/proc/self/cgroup", "4:memory\nnonsense\n\n::\n");
    left(8000 * 1024);
}

static void limits_of_the_process(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    struct rlimit was, less;
    if (TEST_SANITIZED) skip(); /* what a sanitizer maps counts too */
    assert_int_equal(getrlimit(RLIMIT_DATA, &was), 0);
    less = was;
    less.rlim_cur = (rlim_t)1 << 30;
    assert_int_equal(setrlimit(RLIMIT_DATA, &less), 0);
    const double now = dh_memory_available();
    assert_int_equal(dh_memory_check(&ctx, 1 << 20, "a little"), DH_OK);
    assert_int_equal(dh_memory_check(&ctx, 2e9, "a text"), DH_ENOMEM);
    assert_int_equal(setrlimit(RLIMIT_DATA, &was), 0);
    assert_true(now >= 1 && now <= 1 << 30);
    assert_non_null(strstr(ctx.message, "a text needs"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_the_machine_has, machine),
        cmocka_unit_test_setup(groups_of_version_1, machine),
        cmocka_unit_test_setup(groups_of_version_2, machine),
        cmocka_unit_test_setup(groups_above_of_version_2, machine),
        cmocka_unit_test_setup(groups_without_the_controller, machine),
        cmocka_unit_test_setup(groups_of_both_versions, machine),
        cmocka_unit_test_setup(part_of_version_2, machine),
        cmocka_unit_test_setup_teardown(group_of_a_container, machine, no_machine),
        cmocka_unit_test(limits_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
