/* JSON documents to text, whole or not at all.
 *
 * A document is put together by dozens of calls, each of which may lack memory. What is then left
 * out would be missing from the text without a word, so that failed allocations are remembered. */
#ifndef DH_BASE_JSON_TEXT_H
#define DH_BASE_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

#include "dhelix/status.h"

/* Once, before the first document: from now on jansson's failed allocations are remembered, by
 * thread. */
void dh_json_watch_memory(void);
/* False where memory was short in this thread since the last call: a document made since lacks
 * parts. */
bool dh_json_is_whole(void);
/* After a document was read: where memory was short, jansson leaves characters out of its strings.
 * Frees it then, and sets NULL. errors: DH_ENOMEM */
dh_status dh_json_check_read(dh_ctx *ctx, json_t **document);
/* Text of a document, which it takes; caller frees. NULL where the document is NULL or lacks
 * parts. */
char *dh_json_text(json_t *document, size_t flags);

#endif
