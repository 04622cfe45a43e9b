/* Job files: what is accepted prints as a job that is accepted and prints the same.
 * Paths are relative to the root folder, so that printed ones are absolute. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "dhelix/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    const char *out = "out=/run"; /* its default is relative to the working folder */
    dh_job *job;
    if (dh_job_parse(&ctx, (const char *)data, size, "fuzz.yaml", "/", &out, 1, &job) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    char *first, *second;
    dh_job *again;
    DH_CHECK(dh_job_print(&ctx, job, &first) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_job_parse(&ctx, first, strlen(first), "printed.yaml", "/", NULL, 0, &again) ==
                 DH_OK,
             "%s\n%s", ctx.message, first);
    DH_CHECK(dh_job_print(&ctx, again, &second) == DH_OK, "%s", ctx.message);
    DH_CHECK(strcmp(first, second) == 0, "printed:\n%s\nand again:\n%s", first, second);
    free(first);
    free(second);
    dh_job_destroy(again);
    dh_job_destroy(job);
    return 0;
}
