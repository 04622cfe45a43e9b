/* safetensors: every tensor of an accepted file lies inside it and is found by name. */
#include "fuzz.h"

#include <string.h>

#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_safetensors *st;
    if (dh_st_parse(&ctx, data, size, "fuzz.safetensors", &st) != DH_OK) {
        DH_CHECK(ctx.message[0], "a refusal says why");
        return 0;
    }
    uint8_t sum = 0;
    for (size_t i = 0; i < dh_st_n_tensors(st); i++) {
        const dh_st_tensor *t = dh_st_at(st, i);
        DH_CHECK(dh_st_find(st, t->name) == t, "%s", t->name);
        DH_CHECK((size_t)t->n_items * dh_st_dtype_bytes(t->dtype) == t->n_bytes, "%s", t->name);
        if (t->n_bytes) {
            DH_CHECK(t->data >= data && t->data + t->n_bytes <= data + size, "%s", t->name);
            sum ^= t->data[0] ^ t->data[t->n_bytes - 1];
        }
    }
    const char *format = dh_st_metadata_get(st, "format");
    if (format) sum ^= (uint8_t)strlen(format);
    dh_st_close(st);
    (void)sum;
    return 0;
}
