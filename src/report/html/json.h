/* JSON text, written as it goes: a page's data can be large, and is written once. */
#ifndef DH_REPORT_HTML_JSON_H
#define DH_REPORT_HTML_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Commas are put where they belong: before every value except the first of its array or object.
 * Running out of memory shows at the end, in text.failed or in dh_json_is_whole. A text may then
 * lack characters, or have question marks as one that is not UTF-8. */
typedef struct json_out {
    dh_str text;
    bool comma; /* before the next value or key */
} json_out;

void out_open(json_out *out, char bracket);  /* '[' or '{' */
void out_close(json_out *out, char bracket); /* ']' or '}' */
void out_key(json_out *out, const char *key);
void out_int(json_out *out, int64_t value);
void out_num(json_out *out, double value); /* nine digits; null unless finite */
/* Any bytes: what is not UTF-8 becomes question marks. NULL gives null. */
void out_text(json_out *out, const char *text);
void out_json(json_out *out, const json_t *value);
/* A value that is JSON text already. Where that saves much it is packed:
 * {"bytes": its length, "packed": it in deflate (RFC 1951), in base64}. */
void out_packed(json_out *out, const dh_str *value);

#endif
