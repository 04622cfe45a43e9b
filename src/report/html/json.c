/* Writing JSON. */
#include "report/html/json.h"
#include "base/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
