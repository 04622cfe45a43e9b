/* config.json: what is accepted is valid, can be written, and reads back the same. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "dhelix/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    if (dh_model_from_config_json(&ctx, (const char *)data, size, &model) != DH_OK) {
        DH_CHECK(ctx.status != DH_OK && ctx.message[0], "a refusal says why");
        return 0;
    }
    DH_CHECK(dh_model_validate(&ctx, &model) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_model_n_params(&model) > 0, "no parameters");

    char *text;
    dh_model again;
    DH_CHECK(dh_model_to_config_json(&ctx, &model, &text) == DH_OK, "%s", ctx.message);
    DH_CHECK(dh_model_from_config_json(&ctx, text, strlen(text), &again) == DH_OK, "%s\n%s",
             ctx.message, text);
    DH_CHECK(dh_model_n_params(&again) == dh_model_n_params(&model), "%s", text);
    free(text);
    return 0;
}
