/* Lengths of documents, one a line or counted in bins: what is read is as many as it says, in
 * order. */
#include "fuzz.h"
#include "fuzz_folder.h"

#include <stdio.h>

#include "data/lengths.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[160];
    dh_ctx ctx = DH_CTX_INIT;
    dh_lengths lengths = {0};
    fuzz_put(0, "lengths.tsv", data, size);
    snprintf(path, sizeof path, "%s/lengths.tsv", fuzz_folder());
    const dh_status st = dh_lengths_read(&ctx, path, &lengths);
    DH_CHECK(st == DH_OK || ctx.message[0], "a refusal says why");
    dh_lengths_fini(&lengths);
    return 0;
}
