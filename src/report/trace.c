/* A step as Chrome trace events.
 *
 * Format: "Trace Event Format" (Google, 2016), JSON object form: metadata events name
 * process and threads, complete events ("X") have start and duration in microseconds.
 * Names come from tables and from our graph builder: letters, digits, '_', '.', nothing
 * that JSON would want escaped. */
#include <stdlib.h>

#include "dhelix/timeline.h"

static const char *const phase_names[DH_N_PHASE] = {[DH_PHASE_F] = "forward",
                                                    [DH_PHASE_B] = "input-gradient",
                                                    [DH_PHASE_W] = "weight-gradient",
                                                    [DH_PHASE_OPT] = "optimizer"};

static void print_header(const dh_program *p, dh_str *out)
{
    const long long rank = (long long)p->rank;
    dh_str_printf(out, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n");
    dh_str_printf(out,
                  "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %lld, "
                  "\"args\": {\"name\": \"rank %lld\"}},\n"
                  "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %lld, "
                  "\"args\": {\"sort_index\": %lld}}",
                  rank, rank, rank, rank);
    for (int s = 0; s < DH_N_STREAM; s++)
        dh_str_printf(out,
                      ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %lld, \"tid\": %d, "
                      "\"args\": {\"name\": \"%s\"}},\n"
                      "{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": %lld, "
                      "\"tid\": %d, \"args\": {\"sort_index\": %d}}",
                      rank, s, dh_stream_name((dh_stream)s), rank, s, s);
}

/* Nanoseconds as microseconds, exactly. */
static void print_us(const char *key, int64_t ns, dh_str *out)
{
    dh_str_printf(out, ", \"%s\": %lld.%03lld", key, (long long)(ns / 1000),
                  (long long)(ns % 1000));
}

static void print_args(const dh_program *p, uint32_t id, dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_graph *graph = dh_instr_graph(p, instr);
    const dh_op *op = dh_instr_op(p, instr);
    dh_str_printf(out, ", \"args\": {\"instr\": %u", id);
    if (op->out[0] != DH_NONE)
        dh_str_printf(out, ", \"out\": \"%s\"", graph->tensors.at[op->out[0]].name);
    if (instr->mb >= 0) dh_str_printf(out, ", \"micro_batch\": %d", instr->mb);
    if (graph->kind == DH_BLOCK_LAYER)
        dh_str_printf(out, ", \"layer\": %d", p->blocks.at[instr->block].layer);
    const double flops = dh_op_flops(graph, op);
    if (flops > 0) dh_str_printf(out, ", \"flops\": %.0f", flops);
    dh_str_printf(out, ", \"bytes\": %.0f}", dh_op_bytes(graph, op));
}

static void print_event(const dh_program *p, const dh_span *span, uint32_t id, dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, instr);
    dh_str_printf(out,
                  ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": %lld, "
                  "\"tid\": %d",
                  dh_op_info_of(op->type)->name, phase_names[op->phase], (long long)p->rank,
                  instr->stream);
    print_us("ts", span->start_ns, out);
    print_us("dur", span->end_ns - span->start_ns, out);
    print_args(p, id, out);
    dh_str_printf(out, "}");
}

dh_status dh_trace_write(dh_ctx *ctx, const char *path, const dh_program *program,
                         const dh_span *spans)
{
    dh_str text = DH_STR_INIT;
    print_header(program, &text);
    for (uint32_t id = 0; id < program->instrs.n; id++) print_event(program, &spans[id], id, &text);
    dh_str_printf(&text, "\n]}\n");
    dh_status st = text.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory writing %s", path)
                               : dh_file_write_atomic(ctx, path, text.text, text.len);
    dh_str_fini(&text);
    return st;
}
