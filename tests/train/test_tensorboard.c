/* Event files, read by a parser of their own: framing, checksums, protocol buffers, values. */
#include "dh_test.h"

#include <dirent.h>
#include <time.h>

#include "train/metrics.h"

typedef struct event {
    double wall_time;
    int64_t step;
    bool starts, version;
    size_t n;
    char tags[16][32];
    float values[16];
} event;

typedef struct reader {
    const unsigned char *at, *end;
} reader;

/* ---- checksums ------------------------------------------------------------------------------ */

/* By a table, as it is not done where it is written. */
static uint32_t crc32c(const unsigned char *at, size_t n)
{
    uint32_t table[256], crc = 0xFFFFFFFF;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++) table[i] = (table[i] >> 1) ^ ((table[i] & 1) * 0x82F63B78u);
    }
    for (size_t i = 0; i < n; i++) crc = table[(crc ^ at[i]) & 0xFF] ^ (crc >> 8);
    return crc ^ 0xFFFFFFFF;
}

static uint64_t little(const unsigned char *at, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static void check_masked(const unsigned char *at, size_t n, const unsigned char *sum)
{
    const uint32_t masked = (uint32_t)little(sum, 4) - 0xA282EAD8u;
    assert_int_equal(masked << 15 | masked >> 17, crc32c(at, n));
}

/* ---- protocol buffers ----------------------------------------------------------------------- */

static uint64_t varint(reader *r)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(r->at < r->end && shift < 64);
        value |= (uint64_t)(*r->at & 0x7F) << shift;
        if (!(*r->at++ & 0x80)) return value;
    }
}

static reader part(reader *r, uint64_t n)
{
    assert_true(n <= (uint64_t)(r->end - r->at));
    const reader inner = {r->at, r->at + n};
    r->at += n;
    return inner;
}

static void read_value(reader r, event *e)
{
    assert_true(e->n < DH_COUNTOF(e->tags));
    while (r.at < r.end) {
        const uint64_t key = varint(&r);
        if (key == (1 << 3 | 2)) {
            const reader tag = part(&r, varint(&r));
            snprintf(e->tags[e->n], sizeof e->tags[0], "%.*s", (int)(tag.end - tag.at), tag.at);
        } else {
            assert_int_equal(key, 2 << 3 | 5);
            const uint32_t bits = (uint32_t)little(part(&r, 4).at, 4);
            memcpy(&e->values[e->n], &bits, sizeof bits);
        }
    }
    e->n++;
}

static void read_summary(reader r, event *e)
{
    while (r.at < r.end) {
        assert_int_equal(varint(&r), 1 << 3 | 2);
        read_value(part(&r, varint(&r)), e);
    }
}

static void read_version(reader r, event *e)
{
    e->version = r.end - r.at == 13 && memcmp(r.at, "brain.Event:2", 13) == 0;
}

static void read_log(reader r, event *e)
{
    assert_int_equal(varint(&r), 1 << 3);
    e->starts = varint(&r) == 1;
}

static event read_event(reader r)
{
    event e = {0};
    while (r.at < r.end) {
        const uint64_t key = varint(&r);
        if (key == (1 << 3 | 1)) {
            const uint64_t bits = little(part(&r, 8).at, 8);
            memcpy(&e.wall_time, &bits, sizeof bits);
        } else if (key == 2 << 3) {
            e.step = (int64_t)varint(&r);
        } else if (key == (3 << 3 | 2)) {
            read_version(part(&r, varint(&r)), &e);
        } else if (key == (5 << 3 | 2)) {
            read_summary(part(&r, varint(&r)), &e);
        } else {
            assert_int_equal(key, 7 << 3 | 2);
            read_log(part(&r, varint(&r)), &e);
        }
    }
    return e;
}

/* ---- files ---------------------------------------------------------------------------------- */

static size_t read_file(const char *path, event *events, size_t room)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text;
    size_t n_bytes, n = 0;
    assert_ok(&ctx, dh_file_read(&ctx, path, 1 << 20, &text, &n_bytes));
    const unsigned char *at = (const unsigned char *)text, *end = at + n_bytes;
    while (at < end) {
        assert_true(end - at >= 16 && n < room);
        const uint64_t length = little(at, 8);
        assert_true(length <= (uint64_t)(end - at) - 16);
        check_masked(at, 8, at + 8);
        check_masked(at + 12, length, at + 12 + length);
        events[n++] = read_event((reader){at + 12, at + 12 + length});
        at += 16 + length;
    }
    free(text);
    return n;
}

/* The files of a folder in the order of their names, which is that of their times. */
static size_t list(const char *dir, char paths[4][600])
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        assert_non_null(strstr(e->d_name, "events.out.tfevents."));
        assert_true(n < 4);
        snprintf(paths[n++], 600, "%s/%s", dir, e->d_name);
    }
    closedir(d);
    if (n == 2 && strcmp(paths[0], paths[1]) > 0) {
        char other[600];
        memcpy(other, paths[0], 600);
        memcpy(paths[0], paths[1], 600);
        memcpy(paths[1], other, 600);
    }
    return n;
}

static void write_lines(const char *dir, int64_t last_step, int n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_metrics m;
    assert_ok(&ctx, dh_metrics_open(&ctx, dir, last_step, &m));
    assert_ok(&ctx, dh_tensorboard_open(&ctx, dir, last_step, &m.events));
    for (int i = 1; i <= n; i++)
        assert_ok(&ctx, dh_metrics_write(&ctx, &m,
                                         json_pack("{sI sf si ss so}", "step",
                                                   (json_int_t)last_step + i * 200, "loss",
                                                   4.25 / i, "slab_bytes", 1000000 * i, "note",
                                                   "text", "times", json_array())));
    dh_metrics_close(&m);
}

static void events_are_those_of_the_metrics(void **state)
{
    static const char check[] = "123456789";
    char dir[256], folder[300], paths[4][600];
    event events[16];
    assert_int_equal(crc32c((const unsigned char *)check, 9), 0xE3069283);
    test_tmpdir(dir, sizeof dir);
    snprintf(folder, sizeof folder, "%s/tensorboard", dir);
    const double before = (double)time(NULL) - 2;
    write_lines(dir, 0, 3);
    assert_int_equal(list(folder, paths), 1);
    assert_int_equal(read_file(paths[0], events, 16), 4);
    assert_true(events[0].version && events[0].n == 0 && !events[0].starts);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(events[i].step, i * 200);
        assert_int_equal(events[i].n, 2); /* numbers only, and not the step */
        assert_string_equal(events[i].tags[0], "loss");
        assert_true(events[i].values[0] == (float)(4.25 / i));
        assert_string_equal(events[i].tags[1], "slab_bytes");
        assert_true(events[i].values[1] == (float)(1000000 * i));
        assert_true(events[i].wall_time >= before && events[i].wall_time < before + 1000);
    }
    write_lines(dir, 400, 1); /* continued after step 400: a file of its own that takes back 600 */
    assert_int_equal(list(folder, paths), 2);
    assert_int_equal(read_file(paths[1], events, 16), 3);
    assert_true(events[0].version && events[1].starts && events[1].step == 401);
    assert_int_equal(events[2].step, 600);
}

static void a_folder_that_cannot_be(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tensorboard t;
    assert_fails(&ctx, dh_tensorboard_open(&ctx, "/dev/null", 0, &t), DH_EIO, "/dev/null");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(events_are_those_of_the_metrics),
                                       cmocka_unit_test(a_folder_that_cannot_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
