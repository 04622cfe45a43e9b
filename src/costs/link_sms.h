/* Processors of a device that communicators hold, and their cost for both sides.
 *
 * Calls of a communicator run on some of a device's processors (NCCL's maxCTAs). GEMMs are planned
 * for the processors that no communicator holds (cuBLASLt's SM_COUNT_TARGET). Neither then waits
 * for the other's processors. Both sides pay: with fewer processors a call moves less at a time.
 * With more of them every GEMM takes longer, also where nothing runs at the same time.
 *
 *   calls    min(1, s / full) of the full rate: each of s processors moves the same amount, until
 *            the links are full
 *   GEMMs    on the remaining processors: in waves of fewer tiles on a cluster, else in proportion
 *   others   unchanged when alone; during a call on the processors that its stream leaves
 *
 * One number holds for all calls of a stream. They run one after another, so a call with fewer
 * processors than the others would not give any to GEMMs. */
#ifndef DH_COSTS_LINK_SMS_H
#define DH_COSTS_LINK_SMS_H

#include "costs/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* TUNING: assumed for NVIDIA's devices from Ampere on, until one has been measured. A call fills
 * NVLink with about as many processors as NCCL opens channels there, and a device's share of the
 * network with half of them. In DeepSeek-V3 (arXiv 2412.19437, 3.2.2) 20 of an H800's 132 fill both
 * at once. */
enum { DH_LINK_SMS_LOCAL = 16, DH_LINK_SMS_CROSS = 8 };

/* Most processors of one call. */
enum { DH_LINK_SMS_MOST = 64 };

/* Processors with which a call fills a link, where no cluster says so. */
static inline int dh_link_sms_full(dh_engine link)
{
    return link == DH_ENGINE_CROSS ? DH_LINK_SMS_CROSS : DH_LINK_SMS_LOCAL;
}

typedef struct dh_link_sms {
    int processors;        /* of a device */
    int full[DH_N_ENGINE]; /* links: processors with which calls fill them */
    int of[DH_N_STREAM];   /* processors of a stream's calls; 0: the stream has none */
} dh_link_sms;

/* Processors that all streams hold together. GEMMs always keep half of all. */
int dh_link_sms_held(const dh_link_sms *sms);
/* A device of a cluster, nothing held. */
dh_link_sms dh_link_sms_of_cluster(const dh_cluster *cluster);

/* Costs with processors held.
 * in        plain: the known costs; borrowed, the others are copied
 *           measured: processors that were held when plain was measured; NULL: none by plan. Calls
 *           then had as many as they wanted (`full`), and GEMMs alone had all
 *           cluster: how times of plain's operators change with processors; NULL: in proportion,
 *           latencies too
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
