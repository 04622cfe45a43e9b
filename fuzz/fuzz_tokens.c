/* Token files: the runs found in an llm.c file, and those a Megatron index points to,
 * lie inside the bytes given. */
#include "fuzz.h"

#include <stdlib.h>

#include "data/dataset.h"

static const size_t type_bytes[DH_N_TOKEN_TYPES] = {
    [DH_TOKEN_U8] = 1,  [DH_TOKEN_U16] = 2, [DH_TOKEN_I16] = 2,
    [DH_TOKEN_I32] = 4, [DH_TOKEN_U32] = 4, [DH_TOKEN_I64] = 8,
};

static void check_run(const dh_token_run *run, const uint8_t *data, size_t size)
{
    DH_CHECK(run->n >= 0 && (unsigned)run->type < DH_N_TOKEN_TYPES, "run of %lld",
             (long long)run->n);
    if (run->n == 0) return;
    DH_CHECK(run->at >= data && run->at <= data + size, "run begins outside");
    size_t rest = (size_t)(data + size - run->at);
    DH_CHECK((size_t)run->n <= rest / type_bytes[run->type], "run of %lld ends outside",
             (long long)run->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t bin[4096];
    dh_ctx ctx = DH_CTX_INIT;
    dh_token_run run;
    if (dh_tokens_parse_llmc(&ctx, data, size, &run) == DH_OK) check_run(&run, data, size);
    dh_ctx_reset(&ctx);

    dh_token_runs runs = {0};
    dh_token_ends ends = {0};
    if (dh_tokens_parse_megatron(&ctx, data, size, bin, sizeof bin, &runs, &ends) == DH_OK)
        for (size_t i = 0; i < runs.n; i++) check_run(&runs.at[i], bin, sizeof bin);
    for (size_t i = 1; i < ends.n; i++) DH_CHECK(ends.at[i] > ends.at[i - 1], "ends descend");
    dh_vec_fini(&runs);
    dh_vec_fini(&ends);
    return 0;
}
