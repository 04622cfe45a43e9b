/* Jobs read from text, for the suites over them. */
#ifndef DH_JOB_CASES_H
#define DH_JOB_CASES_H

#include "dh_test.h"

#include "dhelix/job.h"

static inline dh_status parse(dh_ctx *ctx, const char *text, const char *const *sets, size_t n,
                              dh_job **job)
{
    return dh_job_parse(ctx, text, strlen(text), "job.yaml", "/base", sets, n, job);
}

static inline dh_job *job_of(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job = NULL;
    assert_ok(&ctx, parse(&ctx, text, NULL, 0, &job));
    return job;
}

static inline dh_job *job_with(const char *text, const char *const *sets, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_job *job = NULL;
    assert_ok(&ctx, parse(&ctx, text, sets, n, &job));
    return job;
}

#endif
