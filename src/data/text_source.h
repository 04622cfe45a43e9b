/* Text files and rows of JSON -> tokens, through the cache. The content of a file decides
 * its form. In files named .jsonl, .ndjson or .json, plain text is an error. */
#ifndef DH_DATA_TEXT_SOURCE_H
#define DH_DATA_TEXT_SOURCE_H

#include "base/stamp.h"
#include "data/token_file.h"

/* Tokens of a part of one text file. `tokens` is the cache file (cache_dir given) or
 * `memory` holds them; run points into whichever it is. */
typedef struct dh_text_tokens {
    dh_map tokens;
    char *cached; /* path of the cache file, NULL: none */
    dh_stamp stamp;
    dh_ids memory;
    dh_token_run run;
    bool is_lines; /* JSON lines, or an array */
} dh_text_tokens;

dh_status dh_text_tokenize(dh_ctx *ctx, const dh_dataset_spec *spec, const char *path,
                           dh_text_tokens *out);
/* Calls fn for each text of a file: all of it, or the field of each JSON object; `at` is where in
 * the file it lies. */
typedef dh_status (*dh_text_fn)(dh_ctx *ctx, void *arg, const char *text, size_t n, size_t at);
dh_status dh_text_each(dh_ctx *ctx, const char *path, const char *text_field, dh_text_fn fn,
                       void *arg);
/* Mark the characters of a file's texts in a code set (see dh_chars_mark). */
dh_status dh_text_mark_chars(dh_ctx *ctx, const char *path, const char *text_field, uint8_t *seen);

#endif
