/* A step as Chrome trace events.
 *
 * Format: "Trace Event Format" (Google, 2016), JSON object form. Metadata events name process and
 * threads. Complete events ("X") have start and duration in microseconds, instant events ("i") a
 * moment. Flow events ("s", "f") are the ends of an arrow. Counter events ("C") have values that
 * hold until the next. "otherData" is free.
 * Names come from tables and from our graph builder: letters, digits, '_', '.', nothing
 * that JSON would want escaped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/text_names.h"
#include "report/cargo.h"
#include "report/trace_keys.h"

static const char *const phase_names[DH_N_PHASE] = {[DH_PHASE_F] = "forward",
                                                    [DH_PHASE_B] = "input-gradient",
                                                    [DH_PHASE_W] = "weight-gradient",
                                                    [DH_PHASE_OPT] = "optimizer"};

/* Print the facts that do not change with time. */
static void print_footprint(const dh_program *p, dh_str *out)
{
    uint64_t n_bytes[DH_BUF_ACT] = {0};
    for (size_t b = 0; b < p->buffers.n; b++)
        if (dh_buffer_is_persistent(p->buffers.at[b].kind))
            n_bytes[p->buffers.at[b].kind] += p->buffers.at[b].n_bytes;
    dh_str_printf(out,
                  "\"otherData\": {\"rank\": %lld, \"planned_bytes\": %" PRIu64
                  ", \"lower_bound_bytes\": %" PRIu64 ", \"persistent_bytes\": {",
                  (long long)p->rank, p->slab_bytes, p->live_bytes);
    for (int k = 0; k < DH_BUF_ACT; k++)
        dh_str_printf(out, "%s\"%s\": %" PRIu64, k ? ", " : "",
                      dh_buffer_kind_name((dh_buffer_kind)k), n_bytes[k]);
    dh_str_printf(out, "}},\n");
}

static void print_header(const dh_program *p, dh_str *out)
{
    const long long rank = (long long)p->rank;
    dh_str_printf(out, "{\"displayTimeUnit\": \"ns\", ");
    print_footprint(p, out);
    trace_print_distributed(p, out);
    dh_str_printf(out, "\"traceEvents\": [\n");
    dh_str_printf(out,
                  "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %lld, "
                  "\"args\": {\"name\": \"rank %lld\"}},\n"
                  "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %lld, "
                  "\"args\": {\"sort_index\": %lld}}",
                  rank, rank, rank, rank);
    for (int s = 0; s <= TRACE_HOST; s++)
        dh_str_printf(out,
                      ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %lld, \"tid\": %d, "
                      "\"args\": {\"name\": \"%s\"}},\n"
                      "{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": %lld, "
                      "\"tid\": %d, \"args\": {\"sort_index\": %d}}",
                      rank, s, s == TRACE_HOST ? "host" : dh_stream_name((dh_stream)s), rank, s, s);
}

/* Nanoseconds as microseconds, exactly. */
static void print_us(const char *key, int64_t ns, dh_str *out)
{
    dh_str_printf(out, ", \"%s\": %lld.%03lld", key, (long long)(ns / 1000),
                  (long long)(ns % 1000));
}

static void print_link(const dh_block *link, dh_str *out)
{
    dh_str_printf(out, ", \"peer_stage\": %d, \"carries\": \"%s\"", link->peer,
                  link->tag ? "gradients" : "activations");
}

/* A transfer of gradients is part of the backward, whatever its graph calls it. */
static const char *phase_name(const dh_program *p, const dh_instr *instr)
{
    const bool gradients =
        dh_instr_graph(p, instr)->kind == DH_BLOCK_LINK && p->blocks.at[instr->block].tag != 0;
    return phase_names[gradients ? DH_PHASE_B : dh_instr_op(p, instr)->phase];
}

static void print_args(const dh_program *p, const dh_span *span, uint32_t id, trace_calls *calls,
                       dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_graph *graph = dh_instr_graph(p, instr);
    const dh_op *op = dh_instr_op(p, instr);
    dh_str_printf(out, ", \"args\": {\"instr\": %u", id);
    dh_str_printf(out, ", \"phase\": \"%s\"", phase_name(p, instr));
    dh_str_printf(out, ", \"block\": \"%s\"", dh_name_of(&dh_block_kind_names, graph->kind));
    if (op->out[0] != DH_NONE)
        dh_str_printf(out, ", \"out\": \"%s\"", graph->tensors.at[op->out[0]].name);
    if (dh_op_info_of(op->type)->resource == DH_RES_COMM)
        dh_str_printf(out, ", \"group\": \"%s\"", dh_group_name((dh_group_kind)op->group));
    if (span->met_ns > span->start_ns) print_us("waited_us", span->met_ns - span->start_ns, out);
    const dh_cargo cargo = dh_instr_cargo(p, id);
    if (cargo >= DH_CARGO_GRADIENTS && cargo < DH_N_CARGO)
        dh_str_printf(out, ", \"carries\": \"%s\"", dh_cargo_name(cargo));
    if (graph->kind == DH_BLOCK_LINK) print_link(&p->blocks.at[instr->block], out);
    if (instr->mb >= 0) dh_str_printf(out, ", \"micro_batch\": %d", instr->mb);
    if (graph->kind == DH_BLOCK_LAYER)
        dh_str_printf(out, ", \"layer\": %d", p->blocks.at[instr->block].layer);
    const double flops = dh_op_flops(graph, op);
    if (flops > 0) dh_str_printf(out, ", \"flops\": %.0f", flops);
    dh_str_printf(out, ", \"bytes\": %.0f", dh_op_bytes(graph, op));
    trace_print_keys(p, id, calls, out);
    dh_str_printf(out, "}");
}

static void print_event(const dh_program *p, const dh_span *span, uint32_t id, trace_calls *calls,
                        dh_str *out)
{
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, instr);
    dh_str_printf(out, ",\n{\"ph\": \"X\", \"name\": \"");
    trace_print_name(op, out);
    dh_str_printf(out, "\", \"cat\": \"kernel\", \"pid\": %lld, \"tid\": %d", (long long)p->rank,
                  instr->stream);
    print_us("ts", span->start_ns, out);
    print_us("dur", span->end_ns - span->start_ns, out);
    print_args(p, span, id, calls, out);
    dh_str_printf(out, "}");
}

static void print_mark(const dh_program *p, const char *ph, const char *more, int64_t at_ns,
                       uint8_t stream, dh_str *out)
{
    dh_str_printf(out, ",\n{\"ph\": \"%s\", \"cat\": \"part\", %s, \"pid\": %lld, \"tid\": %d", ph,
                  more, (long long)p->rank, stream);
    print_us("ts", at_ns, out);
    dh_str_printf(out, "}");
}

/* Where parts of an instruction's output are complete. */
static void print_parts(const dh_program *p, const dh_span *spans, uint32_t id, dh_str *out)
{
    const uint32_t n_parts = dh_instr_n_parts(p, id);
    char more[96];
    for (uint32_t k = 0; n_parts > 1 && k < n_parts; k++) {
        snprintf(more, sizeof more,
                 "\"name\": \"part %u of %u\", \"s\": \"t\", \"args\": {\"instr\": %u}", k + 1,
                 n_parts, id);
        print_mark(p, "i", more, spans[dh_program_part_span(p, id, k)].end_ns,
                   p->instrs.at[id].stream, out);
    }
}

/* An arrow from a part to the instruction that waits for it. */
static void print_arrows(const dh_program *p, const dh_span *spans, uint32_t id, dh_str *out)
{
    const dh_instr *i = &p->instrs.at[id];
    char more[96];
    for (uint32_t w = 0; w < i->n_waits; w++) {
        const dh_wait wait = p->waits.at[i->wait0 + w];
        if (dh_wait_parts_left(p, wait) == 0) continue;
        snprintf(more, sizeof more, "\"name\": \"part\", \"id\": \"%lld.%u\"", (long long)p->rank,
                 i->wait0 + w);
        print_mark(p, "s", more, dh_wait_end_ns(p, spans, wait), p->instrs.at[wait.instr].stream,
                   out);
        print_mark(p, "f", more, spans[id].start_ns, i->stream, out);
    }
}

static void print_memory(const dh_program *p, const dh_memory_point *point, dh_str *out)
{
    dh_str_printf(out, ",\n{\"ph\": \"C\", \"name\": \"memory\", \"pid\": %lld",
                  (long long)p->rank);
    print_us("ts", point->at_ns, out);
    dh_str_printf(out, ", \"args\": {\"activations\": %lld, \"scratch\": %lld}}",
                  (long long)point->activation_bytes, (long long)point->scratch_bytes);
}

static void print_trace(const dh_program *p, const dh_span *spans, trace_calls *calls, dh_str *out)
{
    print_header(p, out);
    for (uint32_t id = 0; id < p->instrs.n; id++) {
        print_event(p, &spans[id], id, calls, out);
        trace_print_host(p, &spans[id], id, out);
        trace_print_message(p, &spans[id], id, calls, out);
        print_parts(p, spans, id, out);
        print_arrows(p, spans, id, out);
    }
}

dh_status dh_trace_write(dh_ctx *ctx, const char *path, const dh_program *program,
                         const dh_span *spans)
{
    dh_memory_point *memory;
    size_t n_points;
    trace_calls calls;
    dh_str text = DH_STR_INIT;
    DH_TRY(dh_memory_over_time(ctx, program, spans, &memory, &n_points));
    text.failed = !trace_calls_init(&calls, program);
    if (!text.failed) print_trace(program, spans, &calls, &text);
    for (size_t i = 0; !text.failed && i < n_points; i++) print_memory(program, &memory[i], &text);
    free(memory);
    trace_calls_fini(&calls);
    dh_str_printf(&text, "\n]}\n");
    dh_status st = text.failed ? dh_no_memory_while(ctx, "writing %s", path)
                               : dh_file_write_atomic(ctx, path, text.text, text.len);
    dh_str_fini(&text);
    return st;
}
