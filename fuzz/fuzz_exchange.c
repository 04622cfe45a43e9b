/* Scripts, TOML and YAML of other projects: whatever the text, there is a job or a message. The first
 * byte chooses the project; all rules work, for unknown flags are listed. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exchange/exchange.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    static const char *const set[] = {"model.vocab=512"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_imported imported;
    if (size < 1) return 0;
    const dh_project project = (dh_project)(data[0] % DH_N_PROJECTS);
    const dh_import_options how = {.ranks = data[0] & 0x80 ? 0 : 64,
                                   .lenient = true,
                                   .set = set,
                                   .n_set = project == DH_PROJECT_TORCHTITAN ? 0 : 1};
    if (!path[0]) snprintf(path, sizeof path, "/tmp/dhelix-fuzz-exchange-%ld", (long)getpid());
    FILE *file = fopen(path, "wb");
    DH_CHECK(file, "%s cannot be written", path);
    fwrite(data + 1, 1, size - 1, file);
    fclose(file);
    if (dh_import(&ctx, project, path, &how, &imported) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
    } else {
        dh_job *job;
        DH_CHECK(dh_job_parse(&ctx, imported.job, strlen(imported.job), "imported.yaml", "/", NULL,
                              0, &job) == DH_OK,
                 "%s\n%s", ctx.message, imported.job);
        dh_exported exported;
        for (int p = 0; p < DH_PROJECT_NEMO; p++)
            if (dh_export(&ctx, (dh_project)p, job, &exported) == DH_OK)
                dh_exported_free(&exported);
        dh_job_destroy(job);
        dh_imported_free(&imported);
    }
    remove(path);
    return 0;
}
