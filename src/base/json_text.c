#include "base/json_text.h"

#include <stdlib.h>

static _Thread_local bool was_short;

static void *watched_malloc(size_t n_bytes)
{
    void *at = malloc(n_bytes);
    if (!at) was_short = true;
    return at;
}

void dh_json_watch_memory(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

bool dh_json_is_whole(void)
{
    const bool whole = !was_short;
    was_short = false;
    return whole;
}

dh_status dh_json_check_read(dh_ctx *ctx, json_t **document)
{
    if (dh_json_is_whole()) return DH_OK;
    json_decref(*document);
    *document = NULL;
    return dh_fail(ctx, DH_ENOMEM, "out of memory reading JSON");
}

char *dh_json_text(json_t *document, size_t flags)
{
    char *text = document ? json_dumps(document, flags) : NULL;
    json_decref(document);
    if (dh_json_is_whole()) return text;
    free(text);
    return NULL;
}
