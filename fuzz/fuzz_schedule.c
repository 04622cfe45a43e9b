/* Schedule CSV: what is accepted is valid, and prints as what reads back the same. */
#include "fuzz.h"

#include <string.h>

#include "plan/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule *schedule, *again;
    if (dh_schedule_parse_csv(&ctx, (const char *)data, size, "fuzz.csv", &schedule) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    dh_str first = DH_STR_INIT, second = DH_STR_INIT;
    DH_CHECK(dh_schedule_validate(&ctx, schedule, NULL) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_schedule_print_csv(&ctx, schedule, &first) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_schedule_parse_csv(&ctx, first.text, first.len, "printed.csv", &again) == DH_OK,
             "%s\n%s", ctx.message, first.text);
    DH_CHECK(dh_schedule_print_csv(&ctx, again, &second) == DH_OK, "%s", ctx.message);
    DH_CHECK(strcmp(first.text, second.text) == 0, "%s\nand again\n%s", first.text, second.text);
    dh_str_fini(&first);
    dh_str_fini(&second);
    dh_schedule_destroy(again);
    dh_schedule_destroy(schedule);
    return 0;
}
