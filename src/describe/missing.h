/* Files of a job that training would not find. */
#ifndef DH_DESCRIBE_MISSING_H
#define DH_DESCRIBE_MISSING_H

#include <jansson.h>

#include "dhelix/job.h"

/* What training would refuse, with its status and its message. */
typedef struct dh_missing_file {
    const char *setting;
    dh_status status;
    char message[DH_CTX_MESSAGE_BYTES];
} dh_missing_file;

/* Of each setting the first. */
typedef struct dh_missing {
    dh_missing_file at[3];
    size_t n;
} dh_missing;

/* Looks at data.tokenizer, data.train and data.val. Files of data are opened and not read; a tokenizer
 * is loaded.
 * errors    DH_ENOMEM, DH_EINTERRUPTED */
dh_status dh_missing_find(dh_ctx *ctx, const dh_job *job, dh_missing *missing);
/* NULL: out of memory */
json_t *dh_missing_json(const dh_missing *missing);

#endif
