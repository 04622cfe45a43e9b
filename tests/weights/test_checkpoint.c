#include "dh_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "faults.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

enum { N_ITEMS = 600 };

/* ---- one checkpoint whose content follows from its step -------------------------------- */

static dh_ckpt_state state_of(int64_t step)
{
    dh_ckpt_state s = {.step = step, .next_sample = 8 * step, .seed = UINT64_MAX - 5};
    dh_ckpt_fingerprint("job", 3, s.job_fingerprint);
    dh_ckpt_fingerprint("tokenizer", 9, s.tokenizer_fingerprint);
    snprintf(s.version, sizeof s.version, "0.1.0");
    return s;
}

static dh_status write_tensors(dh_ctx *ctx, dh_st_writer *w, const char *folder, const char *name,
                               int64_t step)
{
    char path[512];
    float data[N_ITEMS];
    for (int i = 0; i < N_ITEMS; i++) data[i] = (float)(step * 1000 + i);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DH_TRY(dh_st_writer_declare(ctx, w, "w", DH_ST_F32, 1, (int64_t[]){N_ITEMS}));
    DH_TRY(dh_st_writer_start(ctx, w, path, DH_ST_CREATE));
    DH_TRY(dh_st_writer_put(ctx, w, "w", 0, data, sizeof data / 2));
    DH_TRY(dh_st_writer_put(ctx, w, "w", sizeof data / 2, data + N_ITEMS / 2, sizeof data / 2));
    return dh_st_writer_finish(ctx, w);
}

static dh_status write_part(dh_ctx *ctx, const char *folder, const char *name, int64_t step,
                            dh_ckpt_file *file)
{
    dh_st_writer *w;
    DH_TRY(dh_st_writer_create(ctx, &w));
    dh_status st = write_tensors(ctx, w, folder, name, step);
    dh_st_writer_destroy(w);
    return st == DH_OK ? dh_ckpt_seal_file(ctx, folder, name, file) : st;
}

static dh_status fill_and_commit(dh_ctx *ctx, dh_ckpt_writer *c, int64_t step, int64_t keep,
                                 dh_ckpt_steps *proved)
{
    dh_ckpt_file file;
    dh_ckpt_state state = state_of(step);
    DH_TRY(write_part(ctx, dh_ckpt_folder(c), "model.safetensors", step, &file));
    DH_TRY(dh_ckpt_add_file(ctx, c, &file));
    DH_TRY(dh_ckpt_put_file(ctx, c, "job.yaml", "steps: 10\n", 10));
    DH_TRY(dh_ckpt_put_state(ctx, c, &state));
    return dh_ckpt_commit(ctx, c, keep, proved);
}

static dh_status save(dh_ctx *ctx, const char *run, int64_t step, int64_t keep)
{
    dh_ckpt_writer *c;
    DH_TRY(dh_ckpt_begin(ctx, run, step, &c));
    dh_status st = fill_and_commit(ctx, c, step, keep, NULL);
    dh_ckpt_destroy(c);
    return st;
}

/* An opened checkpoint must have exactly what save() wrote. */
static void check_content(const dh_ckpt *c)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt_state want = state_of(dh_ckpt_get_state(c)->step);
    assert_memory_equal(dh_ckpt_get_state(c), &want, sizeof want);
    assert_int_equal(dh_ckpt_n_files(c), 3);
    assert_true(dh_ckpt_has_file(c, "job.yaml"));
    char path[512];
    dh_safetensors *st;
    snprintf(path, sizeof path, "%s/model.safetensors", dh_ckpt_path(c));
    assert_ok(&ctx, dh_st_open(&ctx, path, &st));
    const dh_st_tensor *t = dh_st_find(st, "w");
    for (int i = 0; i < N_ITEMS; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        assert_true(f == (float)(want.step * 1000 + i));
    }
    dh_st_close(st);
}

/* Step of the newest intact checkpoint, -1 for none. */
static int64_t latest(const char *run)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    if (dh_ckpt_find_latest(&ctx, run, true, &c) != DH_OK) return -1;
    check_content(c);
    int64_t step = dh_ckpt_get_state(c)->step;
    dh_ckpt_close(c);
    return step;
}

/* Entries of RUN/checkpoints that start with a prefix. */
static int count(const char *run, const char *prefix)
{
    char path[512];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", run);
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir));)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

static bool has_step(const char *run, int64_t step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/step-%06lld", run, (long long)step);
    return dh_path_exists(path);
}

/* ---- plain use ----------------------------------------------------------------------------- */

static void round_trip(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    dh_ckpt *c;
    test_tmpdir(run, sizeof run);
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EMISSING, "no checkpoint");
    assert_int_equal(latest(run), -1);
    assert_ok(&ctx, save(&ctx, run, 5, 0));
    assert_ok(&ctx, save(&ctx, run, 12, 0));
    assert_int_equal(latest(run), 12);
    snprintf(path, sizeof path, "%s/checkpoints/step-000005", run);
    assert_ok(&ctx, dh_ckpt_open(&ctx, NULL, path, true, &c));
    check_content(c);
    assert_int_equal(dh_ckpt_get_state(c)->step, 5);
    assert_string_equal(dh_ckpt_file_at(c, 0)->name, "model.safetensors");
    dh_ckpt_close(c);
    assert_ok(&ctx, dh_ckpt_open(&ctx, NULL, run, false, &c));
    assert_int_equal(dh_ckpt_get_state(c)->step, 12);
    dh_ckpt_close(c);
    assert_ok(&ctx, dh_ckpt_open(&ctx, run, "latest", true, &c));
    dh_ckpt_close(c);
    dh_ckpt_close(NULL);
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, "latest", true, &c), DH_EINVAL, "run folder");
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, "/no/where", true, &c), DH_EMISSING, "/no/where");
    snprintf(path, sizeof path, "%s/checkpoints", run);
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, path, true, &c), DH_EFORMAT, "manifest.json");
    assert_int_equal(count(run, ".tmp"), 0);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

static void fingerprint_known_answer(void **state)
{
    char text[DH_CKPT_HASH_TEXT];
    dh_ckpt_fingerprint("", 0, text); /* XXH3-128 of nothing, xxHash's own test vector */
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
}

static void misuse_is_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256];
    test_tmpdir(run, sizeof run);
    dh_ckpt_writer *c, *again;
    dh_ckpt_file file = {.name = "x", .n_bytes = 1};
    assert_fails(&ctx, dh_ckpt_begin(&ctx, run, -1, &c), DH_EINVAL, "-1");
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 3, &c));
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 3, &again)); /* a folder of its own */
    dh_ckpt_destroy(again);
    static const char *const bad[] = {"", "../x", "a/b", ".x", "manifest.json", "a b"};
    for (size_t i = 0; i < DH_COUNTOF(bad); i++)
        assert_fails(&ctx, dh_ckpt_put_file(&ctx, c, bad[i], "x", 1), DH_EINVAL, "cannot name");
    assert_fails(&ctx, dh_ckpt_seal_file(&ctx, dh_ckpt_folder(c), "none", &file), DH_EIO, "none");
    assert_fails(&ctx, dh_ckpt_add_file(&ctx, c, &file), DH_EINVAL, "not sealed");
    assert_ok(&ctx, dh_ckpt_put_file(&ctx, c, "x", "abc", 3));
    assert_fails(&ctx, dh_ckpt_put_file(&ctx, c, "x", "abc", 3), DH_EINVAL, "added");
    dh_ckpt_state other = state_of(4);
    assert_fails(&ctx, dh_ckpt_put_state(&ctx, c, &other), DH_EINVAL, "step 4");
    assert_fails(&ctx, dh_ckpt_commit(&ctx, c, 1, NULL), DH_EINVAL, "no state.json");
    dh_ckpt_state own = state_of(3);
    assert_ok(&ctx, dh_ckpt_put_state(&ctx, c, &own));
    char path[512]; /* a rank that goes on writing after sealing */
    snprintf(path, sizeof path, "%s/x", dh_ckpt_folder(c));
    assert_int_equal(truncate(path, 2), 0);
    assert_fails(&ctx, dh_ckpt_commit(&ctx, c, 1, NULL), DH_EFORMAT, "has 2 bytes, should have 3");
    dh_ckpt_destroy(c);
    dh_ckpt_destroy(NULL);
    assert_int_equal(count(run, "step-"), 0);
    assert_int_equal(count(run, ".tmp"), 0);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

static void prunes_the_oldest(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    test_tmpdir(run, sizeof run);
    for (int64_t step = 1; step <= 6; step++) {
        assert_ok(&ctx, save(&ctx, run, 10 * step, 3));
        assert_int_equal(count(run, "step-"), DH_MIN(step, 3));
    }
    assert_true(has_step(run, 40) && has_step(run, 50) && has_step(run, 60));
    snprintf(path, sizeof path, "%s/checkpoints/step-000050/job.yaml", run);
    unlink(path); /* a damaged one does not count among the complete ones */
    assert_ok(&ctx, save(&ctx, run, 70, 3));
    assert_true(has_step(run, 40) && has_step(run, 60) && has_step(run, 70));
    assert_int_equal(count(run, "damaged-000050"), 1);
    assert_ok(&ctx, save(&ctx, run, 5, 1)); /* of a run that went back; not itself removed */
    assert_true(has_step(run, 5));
    assert_int_equal(count(run, "step-"), 1);
    assert_ok(&ctx, save(&ctx, run, 5, 1)); /* the same step again replaces it */
    assert_int_equal(latest(run), 5);
    assert_int_equal(count(run, ""), 4); /* ., .., step-000005, damaged-000050 */
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

static void flip_a_byte(const char *run, int64_t step)
{
    char path[400], byte = 0;
    snprintf(path, sizeof path, "%s/checkpoints/step-%06lld/model.safetensors", run,
             (long long)step);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 500) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 500), 1);
    close(fd);
}

/* What has the right size may be damaged all the same. */
static void what_is_kept_is_intact(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256];
    dh_ckpt *c;
    dh_ckpt_writer *w;
    dh_ckpt_steps proved = {0};
    test_tmpdir(run, sizeof run);
    for (int64_t step = 1; step <= 3; step++) assert_ok(&ctx, save(&ctx, run, step, 0));
    flip_a_byte(run, 3);
    assert_ok(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c));
    assert_int_equal(dh_ckpt_get_state(c)->step, 2);
    dh_ckpt_close(c);
    assert_ok(&ctx, dh_ckpt_leave_damaged(&ctx, run, 2));
    assert_true(!has_step(run, 3) && count(run, "damaged-000003") == 1);
    assert_true(dh_vec_push(&proved, 2));
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 3, &w)); /* again */
    assert_ok(&ctx, fill_and_commit(&ctx, w, 3, 2, &proved));
    dh_ckpt_destroy(w);
    assert_true(has_step(run, 2) && has_step(run, 3) && !has_step(run, 1));
    assert_int_equal(proved.n, 2);
    dh_vec_fini(&proved);
    flip_a_byte(run, 3); /* of another process, and not looked at by this one */
    assert_ok(&ctx, save(&ctx, run, 4, 2));
    assert_true(has_step(run, 2) && has_step(run, 4) && !has_step(run, 3));
    assert_int_equal(count(run, "damaged-000003"), 2); /* .1 too */
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* ---- all of them gone ------------------------------------------------------------------------ */

static void put(const char *run, const char *name, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[400];
    snprintf(path, sizeof path, "%s/%s", run, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
}

static void gone_is_not_never(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt *c;
    char run[256], path[400], aside[400];
    test_tmpdir(run, sizeof run);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    snprintf(aside, sizeof aside, "%s/elsewhere", run);
    put(run, "job.yaml", "steps: 3\n"); /* says nothing of checkpoints */
    put(run, "summary.json", "{\"steps\": 0, \"checkpoint\": \"\"}");
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EMISSING, "no checkpoint");
    assert_ok(&ctx, save(&ctx, run, 7, 1));
    assert_int_equal(rename(path, aside), 0);
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EFORMAT,
                 "saved.json says that the one of step 7 was written");
    assert_int_equal(mkdir(path, 0755), 0);
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EFORMAT, "put them back");
    put(run, "saved.json", "{");
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EFORMAT, "there were some");
    put(run, "summary.json", "{\"checkpoint\": \"run/checkpoints/step-000007\"}");
    snprintf(aside, sizeof aside, "%s/saved.json", run);
    assert_int_equal(unlink(aside), 0);
    assert_fails(&ctx, dh_ckpt_check_none(&ctx, run), DH_EFORMAT, "summary.json says that");
    snprintf(aside, sizeof aside, "%s/summary.json", run);
    assert_int_equal(unlink(aside), 0);
    assert_ok(&ctx, dh_ckpt_check_none(&ctx, run));
    snprintf(aside, sizeof aside, "%s/suspect-000007", path);
    assert_int_equal(mkdir(aside, 0755), 0);
    assert_fails(&ctx, dh_ckpt_check_none(&ctx, run), DH_EFORMAT, "suspect-000007 was one");
    assert_ok(&ctx, dh_dir_remove(&ctx, path));
    assert_int_equal(symlink("nowhere", path), 0);
    assert_fails(&ctx, dh_ckpt_check_none(&ctx, run), DH_EFORMAT, "is a link to a place");
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* ---- settings -------------------------------------------------------------------------------- */

static bool same_values(const char *a, const char *b)
{
    bool cut;
    dh_ctx ctx = DH_CTX_INIT;
    dh_ckpt_setting x, y;
    assert_ok(&ctx, dh_ckpt_setting_make(&ctx, &x, "s", 1, a, strlen(a)));
    assert_ok(&ctx, dh_ckpt_setting_make(&ctx, &y, "s", 1, b, strlen(b)));
    const bool same = dh_ckpt_same_value(&x, &y, &cut);
    assert_false(cut);
    return same;
}

static void settings_are_compared_whole(void **state)
{
    uint64_t seed = test_seed("settings_are_compared_whole");
    dh_ctx ctx = DH_CTX_INIT;
    bool cut;
    for (int round = 0; round < 2000; round++) {
        char a[600], b[600];
        const size_t n = 1 + test_rand(&seed) % (sizeof a - 2);
        for (size_t i = 0; i < n; i++) a[i] = (char)('0' + test_rand(&seed) % 10);
        a[n] = '\0';
        memcpy(b, a, n + 1);
        assert_true(same_values(a, b));
        b[test_rand(&seed) % n] = '.';
        assert_false(same_values(a, b));
        memcpy(b, a, n);
        memcpy(b + n, "0", 2);
        assert_false(same_values(a, b));
    }
    /* Versions before kept the first 79 bytes. */
    char text[200];
    dh_ckpt_setting then = {.name = "s"}, now;
    memset(text, '1', sizeof text);
    snprintf(then.value, sizeof then.value, "%.79s", text);
    assert_ok(&ctx, dh_ckpt_setting_make(&ctx, &now, "s", 1, text, 150));
    assert_true(dh_ckpt_same_value(&then, &now, &cut) && cut);
    text[78] = '2';
    assert_ok(&ctx, dh_ckpt_setting_make(&ctx, &now, "s", 1, text, 150));
    assert_false(dh_ckpt_same_value(&then, &now, &cut));
    /* A character is not cut in two, or state.json could not hold it. */
    for (size_t i = 0; i + 2 < 150; i += 2) memcpy(text + i, "\u00e9", 2);
    for (size_t shift = 0; shift < 2; shift++) {
        assert_ok(&ctx, dh_ckpt_setting_make(&ctx, &now, "s", 1, text + shift, 120));
        assert_true(strncmp(strstr(now.value, "...") - 2, "\u00e9", 2) == 0);
    }
    memset(text, 'n', sizeof text);
    assert_fails(&ctx, dh_ckpt_setting_make(&ctx, &now, text, 100, "1", 1), DH_EUNSUPPORTED,
                 "a name of 100 bytes");
}

/* ---- damage ---------------------------------------------------------------------------------- */

static const char *const files[] = {"model.safetensors", "job.yaml", "state.json", "manifest.json"};

static void damage_is_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    uint64_t seed = test_seed("damage_is_found");
    char run[256], folder[400], path[500];
    test_tmpdir(run, sizeof run);
    assert_ok(&ctx, save(&ctx, run, 1, 0));
    assert_ok(&ctx, save(&ctx, run, 2, 0));
    snprintf(folder, sizeof folder, "%s/checkpoints/step-000002", run);
    dh_log_set_level(DH_LOG_ERROR);
    for (size_t k = 0; k < DH_COUNTOF(files); k++) {
        char *text;
        size_t n;
        dh_ckpt *c;
        snprintf(path, sizeof path, "%s/%s", folder, files[k]);
        assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n));
        size_t lengths[] = {0, 1, n / 2, n - 1};
        for (size_t i = 0; i < DH_COUNTOF(lengths); i++) {
            assert_int_equal(truncate(path, (off_t)lengths[i]), 0);
            assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, folder, false, &c), DH_EFORMAT, files[k]);
            assert_int_equal(latest(run), 1);
            assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
        }
        for (int round = 0; round < 25; round++) {
            size_t at = test_rand(&seed) % n;
            text[at] ^= 1;
            assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
            assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, folder, true, &c), DH_EFORMAT, files[k]);
            text[at] ^= 1;
        }
        assert_int_equal(latest(run), 1);
        unlink(path);
        assert_int_equal(latest(run), 1);
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, n));
        assert_int_equal(latest(run), 2);
        free(text);
    }
    for (int64_t step = 1; step <= 2; step++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-%06lld/job.yaml", run, (long long)step);
        assert_int_equal(truncate(path, 3), 0);
    }
    dh_ckpt *c;
    assert_fails(&ctx, dh_ckpt_find_latest(&ctx, run, true, &c), DH_EFORMAT,
                 "none of its 2 checkpoints is intact");
    dh_log_set_level(DH_LOG_INFO);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

static void damage_is_explained(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], folder[400], path[500];
    test_tmpdir(run, sizeof run);
    assert_ok(&ctx, save(&ctx, run, 2, 0));
    snprintf(folder, sizeof folder, "%s/checkpoints/step-000002", run);
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    dh_ckpt *c;
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, "steps: 11\n", 10));
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, folder, true, &c), DH_EFORMAT,
                 "job.yaml has XXH3-128");
    assert_ok(&ctx, dh_ckpt_open(&ctx, NULL, folder, false, &c)); /* sizes only */
    dh_ckpt_close(c);
    assert_int_equal(truncate(path, 4), 0);
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, folder, true, &c), DH_EFORMAT,
                 "job.yaml has 4 bytes, should have 10");
    unlink(path);
    assert_fails(&ctx, dh_ckpt_open(&ctx, NULL, folder, true, &c), DH_EFORMAT,
                 "the manifest lists it with 10 bytes");
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* ---- faults --------------------------------------------------------------------------------- */

/* End the process before every system call that changes anything, in turn: the
 * newest intact checkpoint is the old or the new one, and the next save cleans up. */
static void kill_anywhere(fault_kind kind, int64_t before, int64_t step)
{
    dh_ctx ctx = DH_CTX_INIT;
    bool done = false;
    int n = 1;
    for (; !done; n++) {
        char run[256];
        test_tmpdir(run, sizeof run);
        for (int64_t s = 1; s <= before; s++) assert_ok(&ctx, save(&ctx, run, s, 2));
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            dh_ctx own = DH_CTX_INIT;
            fault_arm(kind, n);
            dh_status st = save(&own, run, step, 2);
            fault_disarm();
            _exit(st == DH_OK ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        done = WEXITSTATUS(status) == 0;
        if (!done) assert_int_equal(WEXITSTATUS(status), FAULT_EXIT_CODE);
        int64_t newest = latest(run);
        if (newest != step && newest != (before ? before : -1))
            fail_msg("killed before call %d: newest intact step is %lld", n, (long long)newest);
        if (done) assert_int_equal(newest, step);
        dh_log_set_level(DH_LOG_WARN);
        assert_ok(&ctx, save(&ctx, run, step + 1, 2));
        dh_log_set_level(DH_LOG_INFO);
        assert_int_equal(latest(run), step + 1);
        assert_int_equal(count(run, ".tmp"), 0);
        assert_true(count(run, "step-") <= 2);
        assert_ok(&ctx, dh_dir_remove(&ctx, run));
    }
    assert_true(n > 20);
    printf("killed at %d points\n", n - 2);
}

static void killed_anywhere(void **state)
{
    kill_anywhere(FAULT_KILL, 0, 1);
    kill_anywhere(FAULT_KILL, 3, 4); /* with one to remove */
    kill_anywhere(FAULT_KILL, 2, 2); /* replacing the newest */
}

static void replaced_by_two_renames(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const int errors[] = {EINVAL, ENOSYS};
    for (size_t i = 0; i < DH_COUNTOF(errors); i++) {
        char run[256];
        fault_plain_renames(errors[i]);
        kill_anywhere(FAULT_KILL, 2, 2);
        test_tmpdir(run, sizeof run);
        for (int n = 0; n < 3; n++) assert_ok(&ctx, save(&ctx, run, 5, 2));
        assert_int_equal(latest(run), 5);
        assert_int_equal(count(run, ""), 3); /* ., .., step-000005 */
        assert_ok(&ctx, dh_dir_remove(&ctx, run));
    }
    fault_plain_renames(0);
}

/* What a crash between the two renames leaves: read as it is, and put back by whoever writes. */
static void former_ones_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], at[400], former[400];
    int64_t *steps;
    size_t n;
    test_tmpdir(run, sizeof run);
    assert_ok(&ctx, save(&ctx, run, 1, 2));
    assert_ok(&ctx, save(&ctx, run, 2, 2));
    snprintf(at, sizeof at, "%s/checkpoints/step-000002", run);
    snprintf(former, sizeof former, "%s/checkpoints/former-000002", run);
    assert_int_equal(rename(at, former), 0);
    assert_int_equal(latest(run), 2);
    assert_ok(&ctx, dh_ckpt_list(&ctx, run, &steps, &n));
    assert_true(n == 2 && steps[0] == 2 && steps[1] == 1);
    free(steps);
    dh_ckpt_clean(run);
    assert_true(has_step(run, 2) && !dh_path_exists(former));
    assert_ok(&ctx, dh_dir_create(&ctx, former)); /* removed in part, the new one being in place */
    assert_ok(&ctx, dh_ckpt_list(&ctx, run, &steps, &n));
    assert_int_equal(n, 2);
    free(steps);
    assert_int_equal(latest(run), 2);
    dh_ckpt_clean(run);
    assert_true(has_step(run, 2) && !dh_path_exists(former));
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

static void killed_within_writes(void **state)
{
    kill_anywhere(FAULT_SHORT, 2, 3);
}

/* The disk is full at the n-th call: an error that says so, no leftovers, the
 * earlier checkpoints intact. Trouble after the new one is there is only logged. */
static void full_disk_anywhere(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n_failed = 0;
    static const struct {
        int64_t step;
        int plain_error;
    } cases[] = {{4, 0}, {3, 0}, {3, EINVAL}}; /* 3: replacing the newest */
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const int64_t step = cases[i].step;
        bool came = true;
        fault_plain_renames(cases[i].plain_error);
        for (int n = 1; came; n++) {
            char run[256];
            test_tmpdir(run, sizeof run);
            for (int64_t s = 1; s <= 3; s++) assert_ok(&ctx, save(&ctx, run, s, 3));
            dh_log_set_level(DH_LOG_ERROR);
            fault_arm(FAULT_FAIL, n);
            dh_status st = save(&ctx, run, step, 3);
            came = fault_disarm();
            dh_log_set_level(DH_LOG_INFO);
            if (st != DH_OK) {
                n_failed++;
                assert_int_equal(st, DH_EIO);
                if (!strstr(ctx.message, "No space left on device"))
                    fail_msg("call %d: %s", n, ctx.message);
                dh_ctx_reset(&ctx);
                assert_true(has_step(run, 1) && has_step(run, 2) && has_step(run, 3));
            }
            int64_t newest = latest(run);
            assert_true(newest == step || (st != DH_OK && newest == 3));
            if (st != DH_OK) assert_int_equal(count(run, ".tmp"), 0);
            assert_ok(&ctx, dh_dir_remove(&ctx, run));
        }
    }
    fault_plain_renames(0);
    assert_true(n_failed > 30);
}

static void file_size_limit(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256];
    test_tmpdir(run, sizeof run);
    assert_ok(&ctx, save(&ctx, run, 1, 2));
    struct rlimit kept;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &kept), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, 1000};
    for (size_t i = 0; i < DH_COUNTOF(limits); i++) {
        struct rlimit low = {limits[i], kept.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        dh_status st = save(&ctx, run, 2, 2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &kept), 0);
        assert_int_equal(st, DH_EIO);
        assert_non_null(strstr(ctx.message, "model.safetensors: File too large"));
        dh_ctx_reset(&ctx);
        assert_int_equal(count(run, ".tmp"), 0);
        assert_int_equal(latest(run), 1);
    }
    signal(SIGXFSZ, handler);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* A real file system of seven pages: the first checkpoint fits, no later one does. */
static void small_file_system(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256];
    test_tmpdir(run, sizeof run);
    if (mount("dhelix-test", run, "tmpfs", 0, "size=28k") != 0) {
        printf("not run: a small tmpfs needs root (%s)\n", strerror(errno));
        assert_ok(&ctx, dh_dir_remove(&ctx, run));
        skip();
    }
    dh_status first = save(&ctx, run, 1, 2), second = save(&ctx, run, 2, 2);
    dh_ctx seen = ctx;
    int64_t newest = latest(run);
    int n_tmp = count(run, ".tmp");
    umount(run);
    dh_ctx_reset(&ctx);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
    assert_int_equal(first, DH_OK);
    assert_int_equal(second, DH_EIO);
    assert_non_null(strstr(seen.message, "No space left on device"));
    assert_int_equal(newest, 1);
    assert_int_equal(n_tmp, 0);
}

/* ---- several processes ---------------------------------------------------------------------- */

/* Two writers of one run at once: each cleans up only after the dead. */
static void living_writers_are_left_alone(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256];
    int ready[2], go[2];
    test_tmpdir(run, sizeof run);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dh_ctx own = DH_CTX_INIT;
        dh_ckpt_writer *c;
        char byte = 'x';
        if (dh_ckpt_begin(&own, run, 7, &c) != DH_OK) _exit(1);
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(2);
        if (fill_and_commit(&own, c, 7, 0, NULL) != DH_OK) _exit(3);
        dh_ckpt_destroy(c);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    dh_ckpt_writer *mine; /* and one of this process, unfinished */
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 9, &mine));
    assert_ok(&ctx, save(&ctx, run, 8, 0));
    assert_int_equal(count(run, ".step-"), 2);
    assert_int_equal(write(go[1], &byte, 1), 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(&ctx, fill_and_commit(&ctx, mine, 9, 0, NULL));
    dh_ckpt_destroy(mine);
    assert_true(has_step(run, 7) && has_step(run, 8) && has_step(run, 9));
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* A writer that was killed leaves a folder; one that lives, here in the same process, keeps its. */
static void leftovers_are_removed(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    dh_ckpt_writer *c;
    int end;
    test_tmpdir(run, sizeof run);
    fflush(stdout);
    const pid_t killed = fork();
    if (killed == 0) _exit(dh_ckpt_begin(&ctx, run, 3, &c) == DH_OK ? 0 : 1);
    assert_true(waitpid(killed, &end, 0) == killed && end == 0);
    assert_int_equal(count(run, ".step-000003.tmp-"), 1);
    snprintf(path, sizeof path, "%s/checkpoints/.tmp-notes", run);
    assert_ok(&ctx, dh_dir_create(&ctx, path));
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 4, &c));
    dh_ckpt_clean(run);
    assert_int_equal(count(run, ".step-000003.tmp-"), 0);
    assert_int_equal(count(run, ".step-000004.tmp-"), 1);
    assert_int_equal(count(run, ".tmp-notes"), 1);
    dh_ckpt_destroy(c);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

/* Ranks write their files in parallel and hand (name, size, checksum) to rank 0. */
static void ranks_write_together(void **state)
{
    enum { RANKS = 4 };
    dh_ctx ctx = DH_CTX_INIT;
    char run[256], path[400];
    int pipes[2];
    test_tmpdir(run, sizeof run);
    assert_int_equal(pipe(pipes), 0);
    dh_ckpt_writer *c;
    assert_ok(&ctx, dh_ckpt_begin(&ctx, run, 1, &c));
    fflush(stdout);
    pid_t pids[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        if (pids[rank] != 0) continue;
        dh_ctx own = DH_CTX_INIT;
        dh_ckpt_file file;
        char name[64];
        snprintf(name, sizeof name, "rank-%d.safetensors", rank);
        if (write_part(&own, dh_ckpt_folder(c), name, 100 + rank, &file) != DH_OK) _exit(1);
        _exit(write(pipes[1], &file, sizeof file) == sizeof file ? 0 : 1);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        dh_ckpt_file file;
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[0], &file, sizeof file), sizeof file);
        assert_ok(&ctx, dh_ckpt_add_file(&ctx, c, &file));
    }
    dh_ckpt_state state1 = state_of(1);
    assert_ok(&ctx, dh_ckpt_put_state(&ctx, c, &state1));
    assert_ok(&ctx, dh_ckpt_commit(&ctx, c, 1, NULL));
    dh_ckpt_destroy(c);
    dh_ckpt *opened;
    assert_ok(&ctx, dh_ckpt_open(&ctx, NULL, run, true, &opened));
    assert_int_equal(dh_ckpt_n_files(opened), RANKS + 1);
    assert_true(dh_ckpt_has_file(opened, "rank-3.safetensors"));
    dh_ckpt_close(opened);
    snprintf(path, sizeof path, "%s/checkpoints/step-000001/rank-2.safetensors", run);
    assert_int_equal(truncate(path, 50), 0);
    assert_fails(&ctx, dh_ckpt_open(&ctx, run, "latest", true, &opened), DH_EFORMAT, "intact");
    close(pipes[0]);
    close(pipes[1]);
    assert_ok(&ctx, dh_dir_remove(&ctx, run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(fingerprint_known_answer),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(prunes_the_oldest),
        cmocka_unit_test(what_is_kept_is_intact),
        cmocka_unit_test(gone_is_not_never),
        cmocka_unit_test(settings_are_compared_whole),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(damage_is_explained),
        cmocka_unit_test(killed_anywhere),
        cmocka_unit_test(replaced_by_two_renames),
        cmocka_unit_test(former_ones_are_found),
        cmocka_unit_test(killed_within_writes),
        cmocka_unit_test(full_disk_anywhere),
        cmocka_unit_test(file_size_limit),
        cmocka_unit_test(small_file_system),
        cmocka_unit_test(living_writers_are_left_alone),
        cmocka_unit_test(leftovers_are_removed),
        cmocka_unit_test(ranks_write_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
