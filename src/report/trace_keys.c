/* Keys as PyTorch 2.x writes them (torch/csrc/distributed/c10d/ParamCommsUtils.hpp, Kineto's
 * output_json.cpp). Where they differ from ours both are there. */
#include "report/trace_keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 32 }; /* of a group that an event lists; the rest as "..." */

bool trace_calls_init(trace_calls *calls, const dh_program *p)
{
    const size_t n = 2 * (size_t)p->mesh.pp;
    *calls = (trace_calls){.sent = calloc(n, sizeof *calls->sent),
                           .received = calloc(n, sizeof *calls->received)};
    return calls->sent && calls->received;
}

void trace_calls_fini(trace_calls *calls)
{
    free(calls->sent);
    free(calls->received);
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool talks(const dh_op *op)
{
    return dh_op_info_of(op->type)->resource == DH_RES_COMM;
}

void trace_print_name(const dh_op *op, dh_str *out)
{
    dh_str_printf(out, "%s%s", talks(op) ? "ncclDevKernel_" : "", dh_op_info_of(op->type)->name);
}

static const char *collective_name(dh_op_type type)
{
    static const char *const names[DH_N_OP_TYPE] = {
        [DH_OP_ALL_GATHER] = "_allgather_base",
        [DH_OP_REDUCE_SCATTER] = "_reduce_scatter_base",
        [DH_OP_ALL_REDUCE] = "allreduce",
        [DH_OP_ALL_TO_ALL] = "all_to_all",
        [DH_OP_ALL_TO_ALL_ROWS] = "all_to_allv",
        [DH_OP_RING_EXCHANGE] = "send",
        [DH_OP_RING_EXCHANGE_BOTH] = "send",
        [DH_OP_SEND] = "send",
        [DH_OP_RECV] = "recv",
    };
    return names[type] ? names[type] : dh_op_info_of(type)->name;
}

/* As collectives have it, and as operands do. */
static const struct {
    const char *comm, *tensor;
} types[DH_N_DTYPE] = {[DH_F32] = {"Float", "float"},
                       [DH_BF16] = {"BFloat16", "c10::BFloat16"},
                       [DH_I32] = {"Int", "int"},
                       [DH_I64] = {"Long", "long int"},
                       [DH_F64] = {"Double", "double"}};

static const dh_tensor *first_of(const dh_graph *g, const uint32_t *operands)
{
    return operands[0] == DH_NONE ? NULL : &g->tensors.at[operands[0]];
}

/* ---- groups --------------------------------------------------------------------------------- */

/* "tp.3": every group of a kind has a name of its own. */
static void print_group(const dh_program *p, dh_group_kind group, dh_str *out)
{
    dh_str_printf(out, "%s.%lld", dh_group_name(group),
                  (long long)dh_mesh_group_id(&p->mesh, group, p->rank));
}

static void print_members(const dh_program *p, dh_group_kind group, int64_t most, dh_str *out)
{
    const int64_t n = dh_mesh_group_size(&p->mesh, group);
    dh_str_printf(out, "[");
    for (int64_t i = 0; i < DH_MIN(n, most); i++)
        dh_str_printf(out, "%s%lld", i ? ", " : "",
                      (long long)dh_mesh_group_member(&p->mesh, group, p->rank, i));
    dh_str_printf(out, n > most ? ", ...]" : "]");
}

void trace_print_distributed(const dh_program *p, dh_str *out)
{
    bool used[DH_N_GROUPS] = {false}, any = false;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (talks(op) && op->group >= 0) used[op->group] = true;
    }
    dh_str_printf(out,
                  "\"schemaVersion\": 1, \"baseTimeNanoseconds\": 0,\n"
                  "\"distributedInfo\": {\"backend\": \"nccl\", \"rank\": %lld, \"world_size\": "
                  "%lld, \"pg_count\": ",
                  (long long)p->rank, (long long)dh_mesh_group_size(&p->mesh, DH_GROUP_WORLD));
    int n = 0;
    for (int g = 0; g < DH_N_GROUPS; g++) n += used[g];
    dh_str_printf(out, "%d, \"pg_config\": [", n);
    for (int g = 0; g < DH_N_GROUPS; g++) {
        if (!used[g]) continue;
        dh_str_printf(out, "%s{\"pg_name\": \"", any ? ", " : "");
        print_group(p, (dh_group_kind)g, out);
        dh_str_printf(out, "\", \"pg_desc\": \"%s\", \"pg_size\": %lld, \"ranks\": ",
                      dh_group_name((dh_group_kind)g),
                      (long long)dh_mesh_group_size(&p->mesh, (dh_group_kind)g));
        print_members(p, (dh_group_kind)g, INT64_MAX, out);
        dh_str_printf(out, "}");
        any = true;
    }
    dh_str_printf(out, "]},\n");
}

/* ---- kernels -------------------------------------------------------------------------------- */

static void print_collective(const dh_program *p, const dh_graph *g, const dh_op *op,
                             trace_calls *calls, dh_str *out)
{
    const dh_group_kind group = (dh_group_kind)op->group;
    const dh_tensor *in = first_of(g, op->in), *made = first_of(g, op->out);
    const dh_tensor *any = in ? in : made;
    dh_str_printf(out,
                  ", \"Collective name\": \"%s\", \"dtype\": \"%s\", \"In msg nelems\": %lld, "
                  "\"Out msg nelems\": %lld, \"Group size\": %lld, \"Process Group Name\": \"",
                  collective_name(op->type), any ? types[any->dtype].comm : "",
                  any ? (long long)dh_tensor_elements(any) : 0LL,
                  any ? (long long)dh_tensor_elements(made ? made : any) : 0LL,
                  (long long)dh_mesh_group_size(&p->mesh, group));
    print_group(p, group, out);
    dh_str_printf(out, "\", \"Process Group Description\": \"%s\", \"Process Group Ranks\": \"",
                  dh_group_name(group));
    print_members(p, group, MEMBERS, out);
    dh_str_printf(out, "\", \"Seq\": %u", calls->of_group[group]++);
}

void trace_print_keys(const dh_program *p, uint32_t id, trace_calls *calls, dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, instr);
    dh_str_printf(out,
                  ", \"operator\": \"%s\", \"stream\": %d, \"device\": %lld, \"External id\": %u, "
                  "\"correlation\": %u",
                  dh_op_info_of(op->type)->name, instr->stream, (long long)p->rank, id + 1, id + 1);
    if (talks(op) && op->group >= 0) print_collective(p, dh_instr_graph(p, instr), op, calls, out);
}

/* ---- the host's operators ------------------------------------------------------------------- */

typedef struct shape {
    int64_t at[4];
    int n;
} shape;

typedef int list_shapes(const dh_graph *g, const dh_op *op, shape *shapes);

static int64_t size_of(const dh_graph *g, const dh_op *op, int operand, int axis)
{
    return g->tensors.at[op->in[operand]].shape[axis];
}

static int list_linear(const dh_graph *g, const dh_op *op, shape *s)
{
    s[0] = (shape){{size_of(g, op, 0, 0), size_of(g, op, 1, 1)}, 2};
    s[1] = (shape){{size_of(g, op, 1, 1), size_of(g, op, 1, 0)}, 2};
    return 2;
}

static int list_dgrad(const dh_graph *g, const dh_op *op, shape *s)
{
    s[0] = (shape){{size_of(g, op, 0, 0), size_of(g, op, 1, 0)}, 2};
    s[1] = (shape){{size_of(g, op, 1, 0), size_of(g, op, 1, 1)}, 2};
    return 2;
}

static int list_wgrad(const dh_graph *g, const dh_op *op, shape *s)
{
    s[0] = (shape){{size_of(g, op, 0, 1), size_of(g, op, 0, 0)}, 2};
    s[1] = (shape){{size_of(g, op, 1, 0), size_of(g, op, 1, 1)}, 2};
    return 2;
}

/* [batch, tokens, heads, channels] of queries, keys, values; before them a gradient. */
static int list_attention(const dh_graph *g, const dh_op *op, shape *s)
{
    const dh_attn_sizes a = dh_op_attn_sizes(g, op);
    const int first = op->type == DH_OP_ATTN_GRAD;
    for (int i = 0; i < 3 + first; i++)
        s[i] =
            (shape){{a.batch, a.seq, i <= first ? a.n_heads : a.n_kv_heads, g->dims.head_dim}, 4};
    return 3 + first;
}

static int list_norm(const dh_graph *g, const dh_op *op, shape *s)
{
    s[0] = (shape){{size_of(g, op, 0, 0), size_of(g, op, 0, 1)}, 2};
    return 1;
}

static const struct {
    dh_op_type type;
    const char *name;
    list_shapes *shapes;
} hosts[] = {{DH_OP_LINEAR, "aten::mm", list_linear},
             {DH_OP_LINEAR_DGRAD, "aten::mm", list_dgrad},
             {DH_OP_LINEAR_GELU, "aten::mm", list_linear},
             {DH_OP_LINEAR_DGRAD_GELU, "aten::mm", list_dgrad},
             {DH_OP_LINEAR_WGRAD, "aten::mm", list_wgrad},
             {DH_OP_ATTN, "aten::_flash_attention_forward", list_attention},
             {DH_OP_ATTN_GRAD, "aten::_flash_attention_backward", list_attention},
             {DH_OP_NORM, "aten::native_layer_norm", list_norm}};

static void print_shapes(const shape *shapes, int n, dh_str *out)
{
    for (int i = 0; i < n; i++) {
        dh_str_printf(out, "%s[", i ? ", " : "");
        for (int k = 0; k < shapes[i].n; k++)
            dh_str_printf(out, "%s%lld", k ? ", " : "", (long long)shapes[i].at[k]);
        dh_str_printf(out, "]");
    }
}

void trace_print_host(const dh_program *p, const dh_span *span, uint32_t id, dh_str *out)
{
    const dh_graph *g = dh_instr_graph(p, &p->instrs.at[id]);
    const dh_op *op = dh_instr_op(p, &p->instrs.at[id]);
    shape shapes[4];
    size_t row = 0;
    while (row < DH_COUNTOF(hosts) && hosts[row].type != op->type) row++;
    if (row == DH_COUNTOF(hosts)) return;
    const bool rms = op->type == DH_OP_NORM && g->dims.norm != DH_NORM_LAYER;
    const int n = hosts[row].shapes(g, op, shapes);
    dh_str_printf(out,
                  ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"cpu_op\", \"pid\": %lld, "
                  "\"tid\": %d, \"ts\": %lld.%03lld, \"dur\": 0, \"args\": {\"External id\": %u, "
                  "\"Input Dims\": [",
                  rms ? "aten::_fused_rms_norm" : hosts[row].name, (long long)p->rank, TRACE_HOST,
                  (long long)(span->start_ns / 1000), (long long)(span->start_ns % 1000), id + 1);
    print_shapes(shapes, n, out);
    dh_str_printf(out, "], \"Input type\": [");
    for (int i = 0; i < n; i++)
        dh_str_printf(out, "%s\"%s\"", i ? ", " : "", types[g->tensors.at[op->in[0]].dtype].tensor);
    dh_str_printf(out, "]}}");
}

/* ---- messages ------------------------------------------------------------------------------- */

static int64_t rank_of_stage(const dh_program *p, int32_t stage)
{
    dh_coord coord = dh_mesh_coord(&p->mesh, p->rank);
    coord.pp = stage;
    return dh_mesh_rank(&p->mesh, coord);
}

/* Messages of one tag between two ranks arrive in the order in which they are sent (comm.h), so
 * counting them on both sides names them alike. */
void trace_print_message(const dh_program *p, const dh_span *span, uint32_t id, trace_calls *calls,
                         dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op_type type = dh_instr_op(p, instr)->type;
    const dh_block *link = &p->blocks.at[instr->block];
    const bool sends = type == DH_OP_SEND;
    if (!sends && type != DH_OP_RECV) return;
    const int64_t peer = rank_of_stage(p, link->peer);
    const int64_t at_ns = sends ? span->start_ns : span->end_ns;
    uint32_t *count = &(sends ? calls->sent : calls->received)[2 * link->peer + (link->tag != 0)];
    dh_str_printf(out,
                  ",\n{\"ph\": \"%s\", \"name\": \"message\", \"cat\": \"message\", \"id\": "
                  "\"%lld.%lld.%d.%u\", \"pid\": %lld, \"tid\": %d, \"ts\": %lld.%03lld}",
                  sends ? "s" : "f\", \"bp\": \"e", (long long)(sends ? p->rank : peer),
                  (long long)(sends ? peer : p->rank), link->tag != 0, (*count)++,
                  (long long)p->rank, instr->stream, (long long)(at_ns / 1000),
                  (long long)(at_ns % 1000));
}
