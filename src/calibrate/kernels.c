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

/* Whether "..." is followed by nothing, or by the last member. */
static bool ends_with(const char *cut, int64_t last)
{
    const char *at = cut + strcspn(cut, "0123456789");
    return !*at || strtoll(at, NULL, 10) == last;
}

enum { MOST_RANKS = 1 << 20 };

typedef struct rank_list {
    int64_t *at; /* [ranks] */
    int64_t n;
} rank_list;

/* The members of "[0, 8, 16]". Kineto writes thirty at most and "..." then: those that are missing
 * go on at the stride of the others.
 * returns   false: the list is cut short and has no one stride, or is of another length than the
 *           group */
static bool read_members(const char *text, int64_t ranks, rank_list *list)
{
    const char *cut = strstr(text, "...");
    int64_t n = 0;
    bool even = true;
    for (const char *at = text + strcspn(text, "0123456789"); *at && !(cut && at > cut);
         at += strcspn(at, "0123456789"), n++) {
        char *end;
        const int64_t member = strtoll(at, &end, 10);
        if (n == ranks || member > INT32_MAX) return false;
        list->at[n] = member;
        even &= n < 2 || member - list->at[n - 1] == list->at[n - 1] - list->at[n - 2];
        at = end;
    }
    const int64_t stride = n > 1 ? list->at[1] - list->at[0] : 0;
    if (n < ranks && (!cut || !even || stride <= 0)) return false;
    for (; n < ranks; n++) list->at[n] = list->at[n - 1] + stride;
    list->n = n;
    return n > 0 && (!cut || ends_with(cut, list->at[n - 1]));
}

static int by_value(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

/* Nodes between which a rank sends to the next one of its group: 1, 2, or 0: some do one, some the
 * other. */
static int64_t nodes_of_send(const rank_list *list, int64_t node_devices)
{
    int64_t n_between = 0;
    for (int64_t i = 1; i < list->n; i++)
        n_between += list->at[i] / node_devices != list->at[i - 1] / node_devices;
    return n_between == 0 ? 1 : n_between == list->n - 1 ? 2 : 0;
}

/* 0: a rank is there twice */
static int64_t nodes_of_group(rank_list *list, int64_t node_devices)
{
    int64_t nodes = 1;
    qsort(list->at, (size_t)list->n, sizeof *list->at, by_value);
    for (int64_t i = 1; i < list->n; i++) {
        if (list->at[i] == list->at[i - 1]) return 0;
        nodes += list->at[i] / node_devices != list->at[i - 1] / node_devices;
    }
    return nodes;
}

/* Where there is no list, a collective has as few nodes as there can be; of a send nothing is known.
 * returns   0: the nodes cannot be told; -1: out of memory */
static int64_t count_nodes(const char *members, int64_t ranks, bool sends, int64_t node_devices)
{
    if (!members || !strpbrk(members, "0123456789"))
        return sends ? 0 : (ranks + node_devices - 1) / node_devices;
    if (ranks > MOST_RANKS) return 0;
    rank_list list = {.at = malloc((size_t)ranks * sizeof *list.at)};
    if (!list.at) return -1;
    int64_t nodes = 0;
    if (read_members(members, ranks, &list)) {
        const int64_t between = sends ? nodes_of_send(&list, node_devices) : 0;
        nodes = nodes_of_group(&list, node_devices);
        if (sends && nodes > 0) nodes = between;
    }
    free(list.at);
    return nodes;
}

static const char *text_of(const json_t *args, const char *key)
{
    return json_string_value(json_object_get(args, key));
}

static double number_of(const json_t *args, const char *key)
{
    return json_number_value(json_object_get(args, key));
}

/* 0: none that could be. */
static int64_t ranks_of(const json_t *args)
{
    const double ranks = number_of(args, "Group size");
    return ranks > 0 && ranks <= INT32_MAX ? (int64_t)ranks : 0;
}

/* The shortest occurrence counts: in longer ones a rank waited for another. */
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
    kernel_call call = {.ranks = ranks_of(args), .ns = ns};
    size_t i = 0;
    while (i < DH_COUNTOF(names) && !(collective && strstr(collective, names[i].part))) i++;
    if (i < DH_COUNTOF(names)) {
        call.type = names[i].type;
        call.bytes = number_of(args, names[i].by_output ? "Out msg nelems" : "In msg nelems") *
                     bytes_of_type(text_of(args, "dtype"));
    }
    const bool sends = call.type == DH_OP_SEND;
    if (measured_is_number(call.bytes) && call.ranks > 1) {
        call.nodes =
            count_nodes(text_of(args, "Process Group Ranks"), call.ranks, sends, node_devices);
        if (call.nodes < 0) return false;
        if (sends) call.ranks = 2;
        if (call.nodes > 0 && call.ranks % call.nodes == 0) return keep_shortest(k, &call);
        k->n_unplaced++;
        return true;
    }
    /* broadcasts, barriers and groups of one tell nothing that the model has */
    k->n_unnamed += collective == NULL && strstr(name, "Broadcast") == NULL;
    return true;
}

/* ---- operators ------------------------------------------------------------------------------ */

static int64_t size_at(const json_t *dims, size_t operand, size_t axis)
{
    return json_integer_value(json_array_get(json_array_get(dims, operand), axis));
}

struct names_row;
typedef bool read_sizes(const struct names_row *row, const json_t *dims, int64_t *size);

/* `first` is the index of the first operand whose sizes are read. In addmm an addend comes before
 * it, in a gradient the gradient of the result. */
typedef struct names_row {
    const char *name;
    dh_kernel_kind kind;
    read_sizes *read;
    size_t first;
    bool batched;    /* GEMM: the first axis is a batch */
    bool heads_last; /* attention: [batch, tokens, heads, channels], else heads before tokens */
    size_t mask;     /* attention: the argument that says whether it is causal */
} names_row;

static bool read_gemm(const names_row *row, const json_t *dims, int64_t *size)
{
    size[0] = size_at(dims, row->first, row->batched);
    size[1] = size_at(dims, row->first + 1, row->batched + 1u);
    size[2] = size_at(dims, row->first, row->batched + 1u);
    size[3] = row->batched ? size_at(dims, row->first, 0) : 1;
    return size[0] > 0 && size[1] > 0 && size[2] > 0 && size[3] > 0;
}

static bool read_attention(const names_row *row, const json_t *dims, int64_t *size)
{
    const size_t heads = row->heads_last ? 2 : 1, tokens = row->heads_last ? 1 : 2;
    size[0] = size_at(dims, row->first, 0);
    size[1] = size_at(dims, row->first, heads);
    size[2] = size_at(dims, row->first + 1, heads);
    size[3] = size_at(dims, row->first, tokens);
    size[4] = size_at(dims, row->first, 3);
    if (size_at(dims, row->first + 1, tokens) != size[3]) return false; /* to another sequence */
    return size[0] > 0 && size[1] > 0 && size[2] > 0 && size[3] > 0 && size[4] > 0;
}

static bool read_norm(const names_row *row, const json_t *dims, int64_t *size)
{
    const size_t n = json_array_size(json_array_get(dims, row->first));
    size[0] = n > 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (__builtin_mul_overflow(size[0], size_at(dims, row->first, i), &size[0])) return false;
    size[1] = n > 0 ? size_at(dims, row->first, n - 1) : 0;
    return size[0] > 0 && size[1] > 0;
}

/* Two operands, which must have the same sizes. */
static bool read_alike(const names_row *row, const json_t *dims, int64_t *size)
{
    return json_equal(json_array_get(dims, 0), json_array_get(dims, 1)) &&
           read_norm(row, dims, size);
}

static const names_row operators[] = {
    {"aten::mm", DH_KERNEL_GEMM, read_gemm, 0, false, false, 0},
    {"aten::addmm", DH_KERNEL_GEMM, read_gemm, 1, false, false, 0},
    {"aten::bmm", DH_KERNEL_GEMM, read_gemm, 0, true, false, 0},
    {"aten::baddbmm", DH_KERNEL_GEMM, read_gemm, 1, true, false, 0},
    {"aten::_flash_attention_forward", DH_KERNEL_ATTN, read_attention, 0, false, true, 8},
    {"aten::_efficient_attention_forward", DH_KERNEL_ATTN, read_attention, 0, false, true, 9},
    {"aten::_scaled_dot_product_cudnn_attention", DH_KERNEL_ATTN, read_attention, 0, false, false,
     6},
    {"aten::_flash_attention_backward", DH_KERNEL_ATTN_GRAD, read_attention, 1, false, true, 11},
    {"aten::_efficient_attention_backward", DH_KERNEL_ATTN_GRAD, read_attention, 1, false, true,
     14},
    {"aten::_scaled_dot_product_cudnn_attention_backward", DH_KERNEL_ATTN_GRAD, read_attention, 1,
     false, false, 14},
    {"aten::native_layer_norm", DH_KERNEL_NORM, read_norm, 0, false, false, 0},
    {"aten::_fused_rms_norm", DH_KERNEL_NORM, read_norm, 0, false, false, 0},
    {"aten::_softmax", DH_KERNEL_SOFTMAX, read_norm, 0, false, false, 0},
    {"aten::_softmax_backward_data", DH_KERNEL_SOFTMAX_GRAD, read_norm, 0, false, false, 0},
    {"aten::silu", DH_KERNEL_SILU, read_norm, 0, false, false, 0},
    {"aten::silu_backward", DH_KERNEL_SILU_GRAD, read_norm, 0, false, false, 0},
    {"aten::gelu", DH_KERNEL_GELU, read_norm, 0, false, false, 0},
    {"aten::gelu_backward", DH_KERNEL_GELU_GRAD, read_norm, 0, false, false, 0},
    {"aten::mul", DH_KERNEL_MUL, read_alike, 0, false, false, 0},
    {"aten::add", DH_KERNEL_ADD, read_alike, 0, false, false, 0},
};

static const names_row *row_of(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(operators); i++)
        if (strcmp(name, operators[i].name) == 0) return &operators[i];
    return NULL;
}

/* Language models are causal: without a word on it, as by profilers that write no "Concrete
 * Inputs", a kernel is taken for that. */
static bool is_unmasked(const names_row *row, const json_t *args)
{
    const json_t *arguments = json_object_get(args, "Concrete Inputs");
    const char *mask = json_string_value(json_array_get(arguments, row->mask));
    return row->mask > 0 && mask && (strcmp(mask, "False") == 0 || strcmp(mask, "0") == 0);
}

bool kernels_can_run(dh_kernel_kind kind, const char *kernel)
{
#define KIND(id) (1U << DH_KERNEL_##id)
    static const struct {
        const char *part;
        unsigned kinds;
    } families[] = {{"flash_", KIND(ATTN) | KIND(ATTN_GRAD)},
                    {"fmha", KIND(ATTN) | KIND(ATTN_GRAD)},
                    {"softmax", KIND(SOFTMAX) | KIND(SOFTMAX_GRAD)},
                    {"SoftMax", KIND(SOFTMAX) | KIND(SOFTMAX_GRAD)},
                    {"layer_norm", KIND(NORM)},
                    {"LayerNorm", KIND(NORM)},
                    {"rms_norm", KIND(NORM)},
                    {"RMSNorm", KIND(NORM)},
                    {"gemm", KIND(GEMM)},
                    {"gemv", KIND(GEMM)},
                    {"nvjet", KIND(GEMM)},
                    {"Cijk_", KIND(GEMM)},
                    {"elementwise", ~(KIND(GEMM) | KIND(NORM))}};
#undef KIND
    for (size_t i = 0; i < DH_COUNTOF(families); i++)
        if (strstr(kernel, families[i].part)) return (families[i].kinds >> kind & 1U) != 0;
    return true;
}

/* "tid" is a number, or a text such as "autograd 7". */
uint64_t kernels_thread_of(const json_t *event)
{
    const char *text = text_of(event, "tid");
    uint64_t hash = dh_mix64((uint64_t)json_integer_value(json_object_get(event, "pid")) ^
                             (uint64_t)json_integer_value(json_object_get(event, "tid")) << 20);
    for (; text && *text; text++) hash = dh_mix64(hash ^ (unsigned char)*text);
    return hash;
}

bool kernels_add_op(kernels *k, const json_t *event, const char *name)
{
    const json_t *args = json_object_get(event, "args");
    const names_row *row = row_of(name);
    const json_t *id = json_object_get(args, "External id");
    const json_t *dims = json_object_get(args, "Input Dims"); /* once "Input dims" */
    if (!row) return true;
    kernel_op op = {.id = json_integer_value(id),
                    .thread = kernels_thread_of(event),
                    .begin_us = number_of(event, "ts"),
                    .end_us = number_of(event, "ts") + number_of(event, "dur"),
                    .is = {.kind = row->kind, .unmasked = is_unmasked(row, args)}};
    const char *type =
        json_string_value(json_array_get(json_object_get(args, "Input type"), row->first));
    if (json_is_integer(id) && type && measured_dtype(type, &op.is.dtype) &&
        row->read(row, dims ? dims : json_object_get(args, "Input dims"), op.is.size))
        return dh_vec_push(&k->ops, op);
    k->n_unsized += row->kind == DH_KERNEL_GEMM;
    return true;
}
