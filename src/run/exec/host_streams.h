/* Streams whose commands are work of the host's threads: the members of a device's table. */
#ifndef DH_RUN_EXEC_HOST_STREAMS_H
#define DH_RUN_EXEC_HOST_STREAMS_H

#include "run/exec/device.h"

/* Does a command's work, and returns when it is done; on any thread. */
typedef dh_status (*dh_host_work)(dh_ctx *ctx, const dh_streams *streams,
                                  const dh_stream_command *command);

dh_status dh_host_streams_create(dh_ctx *ctx, dh_slab *slab, dh_slab *values,
                                 const dh_streams_spec *spec, dh_host_work work,
                                 dh_streams **streams);
void dh_host_streams_destroy(dh_streams *streams);
dh_status dh_host_streams_issue(dh_ctx *ctx, dh_streams *streams, const dh_stream_command *command);
dh_status dh_host_streams_run(dh_ctx *ctx, dh_streams *streams, bool single_steps);
int64_t dh_host_streams_began_ns(const dh_streams *streams, uint32_t id);
int64_t dh_host_streams_event_ns(const dh_streams *streams, uint32_t event);

#endif
