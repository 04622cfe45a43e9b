/* JSON documents read and written whole or not at all.
 *
 * A document is put together by dozens of calls, each of which may run out of memory. Its text
 * would then silently lack a part, so failed allocations are remembered. While jansson reads, it
 * does not check whether a string's buffer could grow. Reading therefore ends with the first
 * failed allocation. */
#ifndef DH_BASE_JSON_TEXT_H
#define DH_BASE_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/base.h"

/* Once, before the first document: from now on jansson's failed allocations are remembered, by
 * thread, and what it allocates is freed by it alone. */
void dh_json_watch_memory(void);
/* False where memory was short in this thread since the last call: a document made since lacks
 * parts. */
bool dh_json_is_whole(void);
/* json_loadb. An integer too large for a long long is read as a real: Transformers writes
 * "model_max_length": 1000000000000000019884624838656. With JSON_ALLOW_NUL keys may contain NUL, so
 * readers of keys must use their lengths.
 * out       *document: NULL where the text is no JSON; error says why, and may be NULL
 * errors    DH_ENOMEM; DH_EUNSUPPORTED after dh_json_watch_memory: the text needs more memory than
 *           its size allows */
dh_status dh_json_read(dh_ctx *ctx, const char *text, size_t n_bytes, size_t flags,
                       json_error_t *error, json_t **document);
/* Whether a text is UTF-8, so that a document can hold it. *at: if not, its first wrong byte. */
bool dh_json_can_hold(const char *text, size_t *at);
/* The text as a string, which it takes; NULL where either lacks memory, which is remembered. */
json_t *dh_json_of_text(dh_str *text);
/* json_dumps, in memory that free takes; NULL where there is too little, which is remembered. */
char *dh_json_print(const json_t *value, size_t flags);
/* Text of a document, which it takes; caller frees. NULL where the document is NULL or lacks
 * parts. */
char *dh_json_text(json_t *document, size_t flags);
/* The same with short numbers (0.1) where they read back exactly, else with all their digits.
 * out       *text: caller frees.
 * errors    DH_ENOMEM */
dh_status dh_json_text_exact(dh_ctx *ctx, json_t *document, size_t flags, char **text);
/* Append a document, which it takes, as results are printed; NULL counts as out of memory.
 * errors    DH_ENOMEM */
dh_status dh_json_append(dh_ctx *ctx, json_t *document, dh_str *out);

#endif
