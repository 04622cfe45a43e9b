/* Profiles: what is accepted prints as what reads back the same, and finds what it lists. */
#include "fuzz.h"

#include <string.h>

#include "costs/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *profile, *again;
    if (dh_profile_parse(&ctx, (const char *)data, size, "fuzz.json", &profile) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    dh_str first = DH_STR_INIT, second = DH_STR_INIT;
    for (uint32_t i = 0; i < profile->ops.n; i++)
        DH_CHECK(dh_profile_find_op(profile, profile->ops.at[i].key) == i, "operator %u", i);
    DH_CHECK(dh_profile_print(&ctx, profile, &first) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_profile_parse(&ctx, first.text, first.len, "printed.json", &again) == DH_OK,
             "%s\n%s", ctx.message, first.text);
    DH_CHECK(dh_profile_print(&ctx, again, &second) == DH_OK, "%s", ctx.message);
    DH_CHECK(strcmp(first.text, second.text) == 0, "%s\nand again\n%s", first.text, second.text);
    dh_str_fini(&first);
    dh_str_fini(&second);
    dh_profile_destroy(again);
    dh_profile_destroy(profile);
    return 0;
}
