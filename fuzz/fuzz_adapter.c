/* adapter_config.json of PEFT: what is accepted and fits a model prints as what says the same. The
 * first byte chooses the model. */
#include "fuzz_folder.h"

#include <math.h>
#include <string.h>

#include "weights/weights.h"

static const char *const presets[] = {"gpt2", "llama3-8b", "mixtral-8x7b"};

static dh_status read_config(dh_ctx *ctx, const void *data, size_t size, dh_lora *lora,
                             dh_str *base)
{
    fuzz_put(0, DH_ADAPTER_CONFIG, data, size);
    return dh_adapter_read_config(ctx, fuzz_folder(), lora, base);
}

/* Of the model's linears both adapt the same, by the same factor. */
static void check_same(const dh_model *model, const dh_model *again)
{
    const char *name;
    DH_CHECK(model->lora.rank == again->lora.rank, "rank");
    DH_CHECK(dh_model_lora_scale(model) == dh_model_lora_scale(again), "factor %.17g, not %.17g",
             dh_model_lora_scale(again), dh_model_lora_scale(model));
    for (size_t i = 0; (name = dh_model_linear(model, i)); i++)
        DH_CHECK(dh_model_adapts(model, name) == dh_model_adapts(again, name), "%s", name);
}

static void print(const dh_model *model, const char *base)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model again = *model;
    dh_str its_base = DH_STR_INIT;
    char *text;
    DH_CHECK(dh_adapter_print_config(&ctx, model, base, &text) == DH_OK, "%s", ctx.message);
    DH_CHECK(read_config(&ctx, text, strlen(text), &again.lora, &its_base) == DH_OK, "%s\n%s",
             ctx.message, text);
    DH_CHECK(strcmp(its_base.text ? its_base.text : "", base) == 0, "base \"%s\"", base);
    check_same(model, &again);
    dh_str_fini(&its_base);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_model model;
    dh_str base = DH_STR_INIT;
    if (size == 0) return 0;
    const char *preset = presets[data[0] % DH_COUNTOF(presets)];
    DH_CHECK(dh_model_from_preset(&ctx, preset, &model) == DH_OK, "%s", ctx.message);
    if (read_config(&ctx, data + 1, size - 1, &model.lora, &base) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
    } else {
        DH_CHECK(model.lora.rank > 0 && model.lora.alpha > 0 && *model.lora.targets, "accepted");
        if (dh_model_validate(&ctx, &model) == DH_OK)
            print(&model, base.text ? base.text : "");
        else
            DH_CHECK(ctx.message[0], "a refusal says why");
    }
    dh_str_fini(&base);
    return 0;
}
