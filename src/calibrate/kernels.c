/* Names and sizes as PyTorch's profiler writes them: "Collective name", "In msg nelems" and the
 * like beside NCCL's kernels, "Input Dims" beside operators of the host (record_shapes=True). */
#include "calibrate/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- collectives ---------------------------------------------------------------------------- */

/* By a part of "Collective name"; the longer names first, since some are parts of others. */
static const struct {
    const char *part;
    dh_op_type type;
    bool by_output; /* the whole vector is what comes out */
} names[] = {
    {"reduce_scatter", DH_OP_REDUCE_SCATTER, false},
    {"allreduce", DH_OP_ALL_REDUCE, false},
    {"all_reduce", DH_OP_ALL_REDUCE, false},
    {"allgather", DH_OP_ALL_GATHER, true},
    {"all_gather", DH_OP_ALL_GATHER, true},
    {"all_to_all", DH_OP_ALL_TO_ALL, false},
    {"alltoall", DH_OP_ALL_TO_ALL, false},
    {"send", DH_OP_SEND, false},
    {"recv", DH_OP_SEND, true},
};

static double bytes_of_type(const char *dtype)
{
    static const struct {
        const char *name;
        double bytes;
    } types[] = {{"BFloat16", 2}, {"Half", 2}, {"Float", 4}, {"Double", 8}, {"Byte", 1},
                 {"Char", 1},     {"Bool", 1}, {"Int", 4},   {"Long", 8},   {"Short", 2}};
    for (size_t i = 0; dtype && i < DH_COUNTOF(types); i++)
        if (strcmp(dtype, types[i].name) == 0) return types[i].bytes;
    return dtype && strncmp(dtype, "Float8", 6) == 0 ? 1 : 0;
}

/* Nodes of the members "[0, 8, 16]"; where the list is absent or cut short, as few as there can be.
 */
static int64_t count_nodes(const char *members, int64_t ranks, int64_t node_devices)
{
    int64_t nodes = 0, n = 0, last = -1;
    for (const char *at = members; at && *at; n++) {
        char *end;
        at += strcspn(at, "0123456789");
        if (!*at) break;
        const int64_t node = strtoll(at, &end, 10) / node_devices;
        nodes += node != last; /* members stand in rank order */
        last = node;
        at = end;
    }
    if (n != ranks) nodes = (ranks + node_devices - 1) / node_devices;
    return DH_MAX(nodes, (int64_t)1);
}

static const char *text_of(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

static double number_of(const json_t *args, const char *key)
{
    return json_number_value(json_object_get(args, key));
}

/* Of several occurrences the shortest: in the others somebody waited for somebody. */
static bool keep_shortest(kernels *k, const kernel_call *call)
{
    for (size_t i = 0; i < k->calls.n; i++) {
        kernel_call *c = &k->calls.at[i];
        if (c->type != call->type || c->ranks != call->ranks || c->nodes != call->nodes ||
            c->bytes != call->bytes)
            continue;
        c->ns = DH_MIN(c->ns, call->ns);
        return true;
    }
    return dh_vec_push(&k->calls, *call);
}

bool kernels_add_call(kernels *k, const json_t *args, const char *name, double ns,
                      int64_t node_devices)
{
    const char *collective = text_of(args, "Collective name");
    kernel_call call = {.ranks = (int64_t)number_of(args, "Group size"), .ns = ns};
    size_t i = 0;
    while (i < DH_COUNTOF(names) && !(collective && strstr(collective, names[i].part))) i++;
    if (i < DH_COUNTOF(names)) {
        call.type = names[i].type;
        call.bytes = number_of(args, names[i].by_output ? "Out msg nelems" : "In msg nelems") *
                     bytes_of_type(text_of(args, "dtype"));
    }
    if (call.type == DH_OP_SEND) call.ranks = DH_MIN(call.ranks, (int64_t)2);
    if (call.bytes > 0 && call.ranks > 1) {
        call.nodes = count_nodes(text_of(args, "Process Group Ranks"), call.ranks, node_devices);
        if (call.ranks % call.nodes == 0) return keep_shortest(k, &call);
    }
    /* broadcasts, barriers and groups of one tell nothing that the model has */
    k->n_unnamed += collective == NULL && strstr(name, "Broadcast") == NULL;
    return true;
}

/* ---- GEMMs ---------------------------------------------------------------------------------- */

static int64_t size_at(const json_t *dims, size_t matrix, size_t axis)
{
    return json_integer_value(json_array_get(json_array_get(dims, matrix), axis));
}

/* Operands of the product among the operator's inputs: addmm has what is added before them. */
static const struct {
    const char *name;
    size_t first;
    bool batched;
} products[] = {{"aten::mm", 0, false},
                {"aten::addmm", 1, false},
                {"aten::bmm", 0, true},
                {"aten::baddbmm", 1, true}};

static bool read_shape(const json_t *args, size_t first, size_t batched, dh_gemm_shape *s)
{
    const json_t *dims = json_object_get(args, "Input Dims");
    const json_t *types = json_object_get(args, "Input type");
    const char *type = json_string_value(json_array_get(types, first));
    s->rows = size_at(dims, first, batched);
    s->shared = size_at(dims, first, batched + 1);
    s->columns = size_at(dims, first + 1, batched + 1);
    s->batch = batched ? size_at(dims, first, 0) : 1;
    return type && measured_dtype(type, &s->dtype) && s->rows > 0 && s->columns > 0 &&
           s->shared > 0 && s->batch > 0;
}

bool kernels_add_gemm(kernels *k, const json_t *args, const char *name)
{
    const json_t *id = json_object_get(args, "External id");
    kernel_gemm gemm = {.id = json_integer_value(id)};
    for (size_t i = 0; i < DH_COUNTOF(products); i++) {
        if (strcmp(name, products[i].name) != 0) continue;
        if (json_is_integer(id) &&
            read_shape(args, products[i].first, products[i].batched, &gemm.shape))
            return dh_vec_push(&k->gemms, gemm);
        k->n_unsized++;
    }
    return true;
}
