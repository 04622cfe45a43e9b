#include "describe/memory.h"

const dh_memory_row dh_memory_rows[DH_N_MEMORY_ROWS] = {
    {"parameters", "parameters", DH_BUF_MASTER, DH_BUF_COPY},
    {"gradients", "gradients", DH_BUF_GRAD, DH_BUF_GRAD},
    {"optimizer", "optimizer", DH_BUF_ADAM_M, DH_BUF_ADAM_V},
    {"key/value cache", "kv_cache", DH_BUF_KV, DH_BUF_KV},
    {"sums", "sums", DH_BUF_STATE, DH_BUF_STATE}};

uint64_t dh_memory_row_bytes(const uint64_t persistent[DH_BUF_ACT], size_t row)
{
    uint64_t sum = 0;
    for (int k = (int)dh_memory_rows[row].first; k <= (int)dh_memory_rows[row].last; k++)
        sum += persistent[k];
    return sum;
}
