/* YAML texts before they are read. */
#ifndef DHELIX_YAML_TEXT_H
#define DHELIX_YAML_TEXT_H

#include "dhelix/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses collections nested more deeply than any file of ours, in time linear in the text.
 * A text that is no YAML passes.
 * errors: DH_EFORMAT with the place, DH_ENOMEM */
dh_status dh_yaml_check_depth(dh_ctx *ctx, const char *origin, const void *text, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
