/* Processors of a device that communicators hold, and what both sides make of it.
 *
 * Calls of a communicator run on some of a device's processors (NCCL's maxCTAs), and products are
 * planned for those that no communicator holds (cuBLASLt's SM_COUNT_TARGET), so that neither waits
 * for the other's to come free. That has a price on both sides: with fewer processors a call moves
 * less at a time, with more of them every product takes longer, also where nothing runs beside it.
 *
 *   calls        at min(1, s / full) of the rates of what they pass: each processor moves as much,
 *                until the links are full
 *   products     on the processors that are left: in waves of fewer tiles on a cluster, else in
 *                proportion
 *   others       as ever alone; beside a call on those that its stream leaves
 *
 * One number counts for all calls of a stream: they come one behind the other, so that one with
 * fewer than its stream's other calls would leave nothing for products. */
#ifndef DH_COSTS_LINK_SMS_H
#define DH_COSTS_LINK_SMS_H

#include "costs/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* TUNING: assumed of NVIDIA's since Ampere, until one has been measured: a call fills the wires of
 * NVLink with about as many as NCCL opens channels there, and a device's share of the network with
 * half of them (DeepSeek-V3, arXiv 2412.19437, 3.2.2: 20 of an H800's 132 fill both at once). */
enum { DH_LINK_SMS_LOCAL = 16, DH_LINK_SMS_CROSS = 8 };

/* That one call is ever given. */
enum { DH_LINK_SMS_MOST = 64 };

/* Those with which a call fills a link, where no cluster says. */
static inline int dh_link_sms_full(dh_engine link)
{
    return link == DH_ENGINE_CROSS ? DH_LINK_SMS_CROSS : DH_LINK_SMS_LOCAL;
}

typedef struct dh_link_sms {
    int processors;        /* of a device */
    int full[DH_N_ENGINE]; /* with which calls fill a link; of links */
    int of[DH_N_STREAM];   /* that calls of a stream take; 0: it has none */
} dh_link_sms;

/* That all streams hold together. Products keep half of all, whatever is held. */
int dh_link_sms_held(const dh_link_sms *sms);
/* A device of a cluster, nothing held. */
dh_link_sms dh_link_sms_of_cluster(const dh_cluster *cluster);

/* Costs with processors held.
 * in        plain: what is known. measured: processors that were held when it was; NULL: none by
 *           plan: calls had what they liked, which is full, and products all when they ran alone.
 *           cluster: what plain's operators take on it goes with processors as there; NULL: in
 *           proportion, latencies too
 *           all copied, but for plain
 * out       in the arena
 * errors    DH_ENOMEM */
typedef struct dh_link_sms_basis {
    const dh_costs *plain;
    const dh_cluster *cluster;
    const dh_link_sms *measured;
} dh_link_sms_basis;
dh_status dh_link_sms_costs(dh_ctx *ctx, dh_arena *arena, const dh_link_sms_basis *basis,
                            const dh_link_sms *sms, const dh_costs **costs);

#ifdef __cplusplus
}
#endif
#endif
