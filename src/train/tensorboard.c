/* A file is a sequence of records (TensorFlow's TFRecord): length, its checksum, data, their
 * checksum. Integers are little endian. Checksums are CRC-32C (Castagnoli), rotated and moved by a
 * constant, as the format asks. Data are protocol buffers of type Event
 * (tensorboard/compat/proto/event.proto). These fields are written:
 *   Event    1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log.
 *   Summary  1 value, repeated: 1 tag string, 2 simple_value float.
 *   SessionLog  1 status: START, at which readers drop what they have from its step on. */
#include "train/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- protocol buffers ----------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(dh_str *out, uint64_t value)
{
    char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) bytes[n++] = (char)(value | 0x80);
    bytes[n++] = (char)value;
    dh_str_append(out, bytes, n);
}

static void put_tag(dh_str *out, unsigned field, unsigned wire)
{
    put_varint(out, field << 3 | wire);
}

static void put_little(dh_str *out, uint64_t value, size_t n)
{
    char bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(value >> 8 * i);
    dh_str_append(out, bytes, n);
}

static void put_double(dh_str *out, unsigned field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(out, field, FIXED64);
    put_little(out, bits, 8);
}

static void put_float(dh_str *out, unsigned field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(out, field, FIXED32);
    put_little(out, bits, 4);
}

static void put_bytes(dh_str *out, unsigned field, const char *at, size_t n)
{
    put_tag(out, field, BYTES);
    put_varint(out, n);
    dh_str_append(out, at, n);
}

/* Takes the message. */
static void put_message(dh_str *out, unsigned field, dh_str *message)
{
    put_bytes(out, field, message->text ? message->text : "", message->len);
    out->failed |= message->failed;
    dh_str_fini(message);
}

/* ---- records -------------------------------------------------------------------------------- */

/* Bit by bit: a line of metrics is some hundred bytes. */
static uint32_t crc32c(const char *at, size_t n)
{
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)at[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* In one call of the system, so that readers seldom see half a record. Takes the event. */
static dh_status write_record(dh_ctx *ctx, dh_tensorboard *t, dh_str *event)
{
    dh_str *r = &t->record;
    dh_str_clear(r);
    const char *data = event->text ? event->text : "";
    put_little(r, event->len, 8);
    put_little(r, masked(r->text ? crc32c(r->text, 8) : 0), 4);
    dh_str_append(r, data, event->len);
    put_little(r, masked(crc32c(data, event->len)), 4);
    const bool failed = r->failed || event->failed;
    dh_str_fini(event);
    return failed ? dh_no_memory(ctx) : dh_fd_write_all(ctx, t->fd, t->path, r->text, r->len);
}

/* ---- events --------------------------------------------------------------------------------- */

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static dh_str begin_event(int64_t step)
{
    dh_str event = DH_STR_INIT;
    put_double(&event, 1, wall_time());
    if (step != 0) {
        put_tag(&event, 2, VARINT);
        put_varint(&event, (uint64_t)step);
    }
    return event;
}

static dh_status write_head(dh_ctx *ctx, dh_tensorboard *t, int64_t last_step)
{
    static const char version[] = "brain.Event:2";
    dh_str head = begin_event(0), start = begin_event(last_step + 1), log = DH_STR_INIT;
    put_bytes(&head, 3, version, sizeof version - 1);
    put_tag(&log, 1, VARINT);
    put_varint(&log, 1); /* START */
    put_message(&start, 7, &log);
    const dh_status st = write_record(ctx, t, &head);
    if (st == DH_OK && last_step > 0) return write_record(ctx, t, &start);
    dh_str_fini(&start);
    return st;
}

static void put_scalar(dh_str *summary, const char *tag, double value)
{
    dh_str one = DH_STR_INIT;
    put_bytes(&one, 1, tag, strlen(tag));
    put_float(&one, 2, (float)value);
    put_message(summary, 1, &one);
}

dh_status dh_tensorboard_write(dh_ctx *ctx, dh_tensorboard *t, const json_t *line)
{
    const char *key;
    json_t *value;
    dh_str summary = DH_STR_INIT;
    dh_str event = begin_event(json_integer_value(json_object_get(line, "step")));
    json_object_foreach((json_t *)line, key,
                        value) if (json_is_number(value) && strcmp(key, "step") != 0)
        put_scalar(&summary, key, json_number_value(value));
    put_message(&event, 5, &summary);
    return write_record(ctx, t, &event);
}

/* ---- the file ------------------------------------------------------------------------------- */

/* n: of files opened at the same time by processes of the same number, from 0. */
static char *path_in(const char *dir, int n)
{
    char host[128] = "host";
    dh_str path = DH_STR_INIT;
    if (gethostname(host, sizeof host - 1) != 0) memcpy(host, "host", 5);
    dh_str_printf(&path, "%s/events.out.tfevents.%.6f.%s.%ld", dir, wall_time(), host,
                  (long)getpid());
    if (n > 0) dh_str_printf(&path, ".%d", n);
    if (!path.failed) return path.text;
    dh_str_fini(&path);
    return NULL;
}

static dh_status open_in(dh_ctx *ctx, const char *dir, int64_t last_step, dh_tensorboard *t)
{
    DH_TRY(dh_dir_create(ctx, dir));
    enum { MOST_TRIES = 100 };
    char *path = NULL;
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < MOST_TRIES && fd < 0 && errno == EEXIST; i++) {
        free(path);
        path = path_in(dir, i);
        if (!path) return dh_no_memory(ctx);
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    }
    if (fd < 0) {
        const dh_status st =
            dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", path, strerror(errno));
        free(path);
        return st;
    }
    *t = (dh_tensorboard){.fd = fd, .path = path};
    const dh_status st = write_head(ctx, t, last_step);
    if (st != DH_OK) dh_tensorboard_close(t);
    return st;
}

dh_status dh_tensorboard_open(dh_ctx *ctx, const char *dir, int64_t last_step, dh_tensorboard *t)
{
    dh_str folder = DH_STR_INIT;
    dh_str_printf(&folder, "%s/tensorboard", dir);
    const dh_status st =
        folder.failed ? dh_no_memory(ctx) : open_in(ctx, folder.text, last_step, t);
    dh_str_fini(&folder);
    return st;
}

void dh_tensorboard_close(dh_tensorboard *t)
{
    if (t->path) close(t->fd);
    free(t->path);
    dh_str_fini(&t->record);
    *t = (dh_tensorboard){.fd = -1};
}
