/* The result of training. */
#ifndef DH_DESCRIBE_TRAINED_H
#define DH_DESCRIBE_TRAINED_H

#include <jansson.h>

#include "dhelix/train.h"

/* A run that was complete already does no step, and has no loss of its own. */
bool dh_trained_any(const dh_train_result *result);
/* NULL: out of memory */
json_t *dh_trained_json(const dh_job *job, const dh_train_result *result);

#endif
