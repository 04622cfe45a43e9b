/* Writing JSON. */
#include "report/html/json.h"
#include "base/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void separate(json_out *out)
{
    if (out->comma) dh_str_append(&out->text, ",", 1);
    out->comma = true;
}

void out_open(json_out *out, char bracket)
{
    separate(out);
    dh_str_append(&out->text, &bracket, 1);
    out->comma = false;
}

void out_close(json_out *out, char bracket)
{
    dh_str_append(&out->text, &bracket, 1);
    out->comma = true;
}

void out_key(json_out *out, const char *key)
{
    out_text(out, key);
    dh_str_append(&out->text, ":", 1);
    out->comma = false;
}

void out_int(json_out *out, int64_t value)
{
    separate(out);
    dh_str_printf(&out->text, "%lld", (long long)value);
}

void out_num(json_out *out, double value)
{
    separate(out);
    if (isfinite(value))
        dh_str_printf(&out->text, "%.9g", value);
    else
        dh_str_append(&out->text, "null", 4);
}

void out_json(json_out *out, const json_t *value)
{
    char *text = dh_json_print(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    separate(out);
    if (text)
        dh_str_append(&out->text, text, strlen(text));
    else
        out->text.failed = true;
    free(text);
}

/* With question marks for all bytes beyond ASCII. */
static json_t *in_ascii(const char *text)
{
    char *copy = strdup(text);
    for (char *at = copy; at && *at; at++)
        if (*at & 0x80) *at = '?';
    json_t *value = copy ? json_string(copy) : NULL;
    free(copy);
    return value;
}

void out_text(json_out *out, const char *text)
{
    json_t *value = text ? json_string(text) : json_null();
    if (text && !value) value = in_ascii(text); /* not UTF-8 */
    if (value)
        out_json(out, value);
    else
        out->text.failed = true;
    json_decref(value);
}

/* False: it does not work, or saves nothing. */
static bool deflate_text(const dh_str *value, dh_str *packed)
{
    enum { LEAST_BYTES = 1 << 16 };
    z_stream z = {.next_in = (Bytef *)(uintptr_t)value->text};
    if (value->len < LEAST_BYTES || value->len > UINT32_MAX / 2) return false;
    if (deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    const uLong most = deflateBound(&z, (uLong)value->len);
    char *bytes = malloc(most);
    z.avail_in = (uInt)value->len;
    z.next_out = (Bytef *)bytes;
    z.avail_out = (uInt)most;
    const bool done = bytes && deflate(&z, Z_FINISH) == Z_STREAM_END;
    if (done) dh_append_base64(bytes, z.total_out, packed);
    deflateEnd(&z);
    free(bytes);
    return done && !packed->failed && packed->len < value->len;
}

void out_packed(json_out *out, const dh_str *value)
{
    dh_str packed = DH_STR_INIT;
    if (value->failed || !value->text) {
        out->text.failed = true;
    } else if (deflate_text(value, &packed)) {
        out_open(out, '{');
        out_key(out, "bytes");
        out_int(out, (int64_t)value->len);
        out_key(out, "packed");
        out_text(out, packed.text);
        out_close(out, '}');
    } else {
        separate(out);
        dh_str_append(&out->text, value->text, value->len);
    }
    dh_str_fini(&packed);
}
