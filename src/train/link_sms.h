/* How many processors each stream of communication holds (parallel.gpu_comm_sms). */
#ifndef DH_TRAIN_LINK_SMS_H
#define DH_TRAIN_LINK_SMS_H

#include "costs/link_sms.h"
#include "train/resolve.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DH_MOST_LINK_SMS_TRIED = 2 * DH_N_STREAM * 12 };

typedef struct dh_link_sms_tried {
    dh_stream stream; /* the others hold what they then had */
    int sms;
    int64_t step_ns;
} dh_link_sms_tried;

struct dh_link_choice {
    bool known;      /* false: there are no communicators of a device's own, or no costs that say
                 * what its processors make */
    bool given;      /* by the job */
    bool held;       /* the job's communicators hold `sms`; else they hold none */
    dh_link_sms sms; /* given, or with the shortest step of those that were tried */
    uint64_t groups[DH_N_STREAM]; /* bit dh_group_kind: whose calls a stream carries */
    int64_t step_ns;              /* time of the job's step: held_ns or none_ns */
    int64_t held_ns, none_ns;     /* with `sms` held, and with none */
    int64_t full_ns;              /* with as many held as fill all links */
    dh_link_sms_tried tried[DH_MOST_LINK_SMS_TRIED]; /* in the order in which they were */
    size_t n_tried;
};

/* The processors that the communicators of a resolved job hold, and the other numbers that were
 * tried. By default they hold none. A job may name a number (parallel.gpu_comm_sms), or have it
 * searched (parallel.gpu_comm_search): for each stream the number with which a simulated step is
 * shortest, or none where that is shorter. Streams are taken in turn, each from the number that
 * fills its link downwards, once more if several. Where none are held the numbers are searched too,
 * to show what they would make. Processors and links are the cluster's, or those of the job's
 * device, by a profile of it.
 * errors    those of simulations; DH_ENOMEM */
dh_status dh_resolved_link_sms(dh_ctx *ctx, const dh_resolved *job, dh_link_choice *choice);

/* "local 8 (tp, cp), cross-data 4 (dp)" */
void dh_link_choice_print(const dh_link_choice *choice, dh_str *out);
/* "tp, cp" */
void dh_link_groups_print(uint64_t groups, dh_str *out);

#ifdef __cplusplus
}
#endif
#endif
