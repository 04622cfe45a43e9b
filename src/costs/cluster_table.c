/* The settings of a cluster file, a row each. */
#include "costs/cluster_table.h"

#include <string.h>

#include "costs/link_sms.h"

/* Units are factors from the file's number to that of the struct. */
#define GIGA 1e9
#define TERA 1e12
#define MICRO 1e3 /* microseconds to nanoseconds */

#define REAL(path, member, unit_, factor_, lo, hi, help)                                           \
    {                                                                                              \
        .key = path, .kind = DH_CLUSTER_REAL, .offset = offsetof(dh_cluster, member),              \
        .unit = unit_, .factor = factor_, .min = lo, .max = hi, .doc = help                        \
    }

#define OPTIONAL(path, member, unit_, factor_, lo, hi, absent_, help)                              \
    {                                                                                              \
        .key = path, .kind = DH_CLUSTER_REAL, .offset = offsetof(dh_cluster, member),              \
        .unit = unit_, .factor = factor_, .min = lo, .max = hi, .doc = help, .optional = true,     \
        .absent = absent_                                                                          \
    }

static const dh_cluster_setting settings[] = {
    {.key = "doc",
     .kind = DH_CLUSTER_TEXT,
     .offset = offsetof(dh_cluster, doc),
     .doc = "one line on what this is"},
    REAL("node.devices", node_devices, "", 1, 1, 1024, "devices of a node"),
    REAL("node.switches", node_switches, "", 1, 1, 1024,
         "switches or sockets on which a node's devices hang, evenly"),
    REAL("device.processors", processors, "", 1, 1, 1e6,
         "multiprocessors, each working on a tile of a GEMM"),
    REAL("device.tflops.f32", f32_flops_per_s, "TFLOP/s", TERA, 1e-6, 1e9,
         "peak arithmetic in float32, as GEMMs use it"),
    REAL("device.tflops.bf16", bf16_flops_per_s, "TFLOP/s", TERA, 1e-6, 1e9,
         "peak arithmetic in bf16 and fp16, dense"),
    OPTIONAL("device.tflops.fp8", fp8_flops_per_s, "TFLOP/s", TERA, 0, 1e9, 0,
             "the same in fp8, dense; 0: there is none, and train.fp8 is refused"),
    REAL("device.memory_gb", memory_bytes, "GB", GIGA, 1e-3, 1e9,
         "memory in 1e9 bytes, as the device reports it (total_memory of torch.cuda)"),
    OPTIONAL("device.memory_reserve", memory_reserve, "", 1, 0, 0.9, DH_MEMORY_RESERVE,
             "share of it that contexts, communicators and fragmentation take; absent: 0.035"),
    REAL("device.memory_gb_per_s", memory_bytes_per_s, "GB/s", GIGA, 1e-3, 1e9,
         "peak bandwidth of memory"),
    REAL("device.memory_efficiency", memory_efficiency, "", 1, 1e-3, 1,
         "share of it that operators bound by memory reach"),
    REAL("device.kernel_us", kernel_ns, "us", MICRO, 0, 1e6, "shortest time of an operator"),
    OPTIONAL("power.rated_w", rated_watts, "W", 1, 0, 1e5, 0,
             "power of a device at which its peak arithmetic is given; 0 or absent: no limit "
             "matters"),
    OPTIONAL("power.limit_w", limit_watts, "W", 1, 0, 1e5, 0,
             "its limit of power: below power.rated_w GEMMs and attention run at (limit / "
             "rated)^exponent; 0 or absent: no limit"),
    OPTIONAL("power.exponent", power_exponent, "", 1, 0, 1, 1. / 3,
             "of that share; absent: 1/3, as power goes with the cube of the clock"),
    REAL("gemm.efficiency", gemm_efficiency, "", 1, 1e-3, 1,
         "share of peak with full waves of the largest tile and a long shared axis"),
    REAL("gemm.tile_rows", gemm_tile_rows, "", 1, 1, 65536, "rows of the largest tile"),
    REAL("gemm.tile_columns", gemm_tile_columns, "", 1, 1, 65536, "columns of the largest tile"),
    REAL("gemm.tile_half", gemm_tile_half, "", 1, 0, 65536,
         "rows * columns / (rows + columns) of a tile at half of the rate of an endless one"),
    REAL("gemm.start_k", gemm_start_k, "", 1, 0, 1e6,
         "start and end of a tile, in elements of the shared axis"),
    OPTIONAL("gemm.fp8", gemm_fp8, "", 1, 1e-3, 2, 1,
             "share of gemm.efficiency that products in fp8 reach of their own peak; absent: 1"),
    {.key = "attention.kernel",
     .kind = DH_CLUSTER_KERNEL,
     .offset = offsetof(dh_cluster, attention),
     .doc = "blockwise (FlashAttention); scores (in memory, kept for the backward); "
            "scores-recompute (in memory, made again by the backward)"},
    REAL("attention.efficiency", attention_efficiency, "", 1, 1e-3, 1,
         "share of peak of the blockwise kernel, forward"),
    REAL("attention.grad_efficiency", attention_grad_efficiency, "", 1, 1e-3, 1,
         "share of peak of the blockwise kernel, backward"),
    OPTIONAL("attention.start_keys", attention_start_keys, "", 1, 0, 1e6, 0,
             "start and end of a row of queries, in keys; absent: 0, at any length the same rate"),
    OPTIONAL("attention.head_half", attention_head_half, "", 1, 0, 65536, 0,
             "head dimension at half of the rate of an endless one; the efficiencies are those of "
             "128; absent: 0, at any dimension the same rate"),
    OPTIONAL("attention.block", attention_block, "", 1, 0, 65536, 0,
             "queries of a block, each on one processor: blocks fill the device in waves; absent: "
             "0, all of it is always full"),
    REAL("local.gb_per_s", local.bytes_per_s, "GB/s", GIGA, 1e-6, 1e6,
         "link of a device to the others of its node, one direction"),
    REAL("local.efficiency", local.efficiency, "", 1, 1e-3, 1,
         "share of it, collectives with large messages"),
    REAL("local.between_gb_per_s", between_bytes_per_s, "GB/s", GIGA, 1e-6, 1e6,
         "between switches of a node, one direction, sustained; shared by groups that cross"),
    OPTIONAL("local.pair_gb_per_s", pair_bytes_per_s, "GB/s", GIGA, 0, 1e6, 0,
             "link between two devices of a node, one direction, where every two have one of their "
             "own: a group uses those between its members; 0 or absent: switches join them"),
    REAL("local.transfer_efficiency", local.transfer_efficiency, "", 1, 1e-3, 1,
         "share of it, messages from one device to one other"),
    OPTIONAL(
        "local.in_switch", local.in_switch, "", 1, 0, 1, 0,
        "share of it by all-reduces that the node's switches add up; 0 or absent: they do not"),
    REAL("local.step_us", local.step_ns, "us", MICRO, 0, 1e6, "a step of a collective"),
    OPTIONAL(
        "local.in_switch_us", local.in_switch_ns, "us", MICRO, 0, 1e6, 0,
        "time in which switches add up an all-reduce of no bytes; 0 or absent: a ring's steps"),
    OPTIONAL("local.direct_us", local.direct_ns, "us", MICRO, 0, 1e6, 0,
             "time of an all-to-all of no bytes; 0 or absent: one step"),
    OPTIONAL("local.processors", local.processors, "", 1, 1, 1024, DH_LINK_SMS_LOCAL,
             "processors of a device with which calls of a communicator fill it; absent: 16"),
    REAL("network.gb_per_s", network.bytes_per_s, "GB/s", GIGA, 1e-6, 1e6,
         "network of a node, one direction, shared by its devices"),
    REAL("network.efficiency", network.efficiency, "", 1, 1e-3, 1,
         "share of it, collectives with large messages"),
    OPTIONAL("network.most_gb_per_s", network.most_bytes_per_s, "GB/s", GIGA, 0, 1e6, 0,
             "highest rate of a node's collectives, whatever the number of adapters; 0 or absent: "
             "that of its adapters"),
    REAL("network.transfer_efficiency", network.transfer_efficiency, "", 1, 1e-3, 1,
         "share of it, messages from one device to one other"),
    OPTIONAL("network.tree", network.tree, "", 1, 1e-3, 1, 0.5,
             "rate of all-reduces in trees, as a share of that of other collectives; absent: 0.5"),
    OPTIONAL("network.in_switch", network.in_switch, "", 1, 0, 1, 0,
             "the same of trees between nodes whose switches add up; 0 or absent: none"),
    OPTIONAL("network.processors", network.processors, "", 1, 1, 1024, DH_LINK_SMS_CROSS,
             "the same between nodes; absent: 8"),
    REAL("network.step_us", network.step_ns, "us", MICRO, 0, 1e6,
         "a step of a collective between nodes"),
    OPTIONAL("trigger.step_us", trigger_ns, "us", MICRO, 0, 1e6, 1,
             "time until a transfer begins that a GEMM's writes trigger (strategy t3); absent: 1"),
    OPTIONAL("trigger.compute", trigger_compute, "", 1, 1e-3, 1, 0.95,
             "speed of computation during such a transfer, whose accesses memory serves after the "
             "computation's own; absent: 0.95"),
    OPTIONAL("trigger.transfer", trigger_transfer, "", 1, 1e-3, 1, 1,
             "speed of such a transfer during computation; absent: 1"),
    REAL("launch.segment_us", segment_ns, "us", MICRO, 0, 1e6,
         "from the end of an operator to the next of its stream"),
    REAL("launch.event_us", event_ns, "us", MICRO, 0, 1e6,
         "from the end of an operator to one of another stream that waits for it"),
    OPTIONAL("launch.host_us", host_ns, "us", MICRO, 0, 1e6, 0,
             "the host's time to issue an operator, one after the other over all streams; absent: "
             "0, as for compiled steps and captured graphs"),
};

const dh_cluster_setting *dh_cluster_settings(size_t *n)
{
    *n = DH_COUNTOF(settings);
    return settings;
}

static const dh_cluster_setting *number_of(const char *key)
{
    for (size_t i = 0; i < DH_COUNTOF(settings); i++)
        if (settings[i].kind == DH_CLUSTER_REAL && strcmp(settings[i].key, key) == 0)
            return &settings[i];
    return NULL;
}

static dh_status no_number(dh_ctx *ctx, const char *key)
{
    return dh_fail(ctx, DH_EMISSING, "no number of clusters is called %s", key);
}

dh_status dh_cluster_get(dh_ctx *ctx, const dh_cluster *cluster, const char *key,
                         dh_cluster_number *number)
{
    const dh_cluster_setting *s = number_of(key);
    if (!s) return no_number(ctx, key);
    const double value = *(const double *)((const char *)cluster + s->offset);
    *number = (dh_cluster_number){value / s->factor, s->min, s->max};
    return DH_OK;
}

dh_status dh_cluster_set(dh_ctx *ctx, dh_cluster *cluster, const char *key, double value)
{
    const dh_cluster_setting *s = number_of(key);
    if (!s) return no_number(ctx, key);
    if (!(value >= s->min && value <= s->max))
        return dh_fail(ctx, DH_EINVAL, "%s is %g; %g to %g is right", key, value, s->min, s->max);
    *(double *)((char *)cluster + s->offset) = value * s->factor;
    return DH_OK;
}

const char *const dh_attention_kernel_names[] = {"blockwise", "scores", "scores-recompute", NULL};

static const char *const class_names[DH_N_CLUSTER_CLASS] = {
#define X(id, name, doc) name,
    DH_CLUSTER_CLASS_LIST(X)
#undef X
};

dh_cluster_class dh_cluster_class_parse(const char *name)
{
    for (int i = 0; i < DH_N_CLUSTER_CLASS; i++)
        if (strcmp(class_names[i], name) == 0) return (dh_cluster_class)i;
    return DH_N_CLUSTER_CLASS;
}

const char *dh_cluster_class_name(dh_cluster_class cls)
{
    return class_names[cls];
}

bool dh_cluster_key_at(size_t i, dh_cluster_key *row)
{
    static const dh_cluster_key others[] = {
        {"like", "", "cluster that gives the numbers missing here"},
        {"oef.A.B", "",
         "overlap effectiveness of operators of two classes, of"
#define X(id, name, doc) " " name
         DH_CLUSTER_CLASS_LIST(X)
#undef X
        }};
    const size_t n = DH_COUNTOF(settings);
    if (i >= n + DH_COUNTOF(others)) return false;
    const dh_cluster_setting *s = i < n ? &settings[i] : NULL;
    *row = s ? (dh_cluster_key){s->key, s->unit ? s->unit : "", s->doc} : others[i - n];
    return true;
}
