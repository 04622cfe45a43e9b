/* Lists of models, operators, strategies, clusters, settings and more. */
#ifndef DH_DESCRIBE_LISTS_H
#define DH_DESCRIBE_LISTS_H

#include <jansson.h>

#include "base/base.h"

typedef struct dh_list {
    const char *name, *doc;
    json_t *(*make)(void); /* an array of flat objects with the same keys; NULL: out of memory */
} dh_list;

const dh_list *dh_lists(size_t *n);
/* NULL: there is none of that name. */
const dh_list *dh_list_find(const char *name);
/* Names and docs of all lists, as a list. NULL: out of memory */
json_t *dh_list_names(void);
/* All lists by their names. NULL: out of memory */
json_t *dh_lists_json(void);

#endif
