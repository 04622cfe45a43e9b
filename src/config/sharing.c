/* A job's settings to what ranks share. */
#include "config/sharing.h"

static dh_gathered stays_of(int64_t reshard)
{
    if (reshard == DH_RESHARD_TRUE) return DH_GATHERED_NOTHING;
    return reshard == DH_RESHARD_FALSE ? DH_GATHERED_WHOLE : DH_GATHERED_SHARE;
}

dh_sharing dh_sharing_of_job(const dh_job *job)
{
    dh_sharing s = dh_sharing_of(job->zero);
    s.gradient_sync = job->gradient_sync;
    if (dh_sharing_steps_shards(&s)) s.gather = job->gather;
    s.regather = job->regather;
    s.reshard = stays_of(job->reshard);
    s.prefetch = job->prefetch;
    s.sequence = job->sequence_parallel ? DH_SEQUENCE_SPLIT : DH_SEQUENCE_WHOLE;
    return s;
}
