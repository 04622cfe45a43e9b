/* A program outside the project: uses what was installed, nothing else. */
#include <stdio.h>
#include <string.h>

#include <dhelix/job.h>
#include <dhelix/model.h>

int main(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    if (dh_model_from_preset(&ctx, "gpt2", &model) != DH_OK) {
        fprintf(stderr, "%s\n", ctx.message);
        return 1;
    }
    printf("%lld\n", (long long)dh_model_n_params(&model));

    const char *text = "trian: {steps: 10}\n";
    dh_job *job;
    if (dh_job_parse(&ctx, text, strlen(text), "job.yaml", ".", NULL, 0, &job) != DH_EINVAL)
        return 1;
    printf("%s\n", ctx.message);
    return 0;
}
