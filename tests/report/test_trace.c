/* Trace files of a real program, read back as any viewer would. */
#include "../program/one_block.h"

#include <jansson.h>

#include "program/program_spec.h"
#include "report/timeline.h"

static size_t no_scratch(const dh_graph *graph, const dh_op *op)
{
    return 0;
}
static const dh_backend_info backend = {.name = "test", .workspace_bytes = no_scratch};

/* The second stage of two, split over two tensor-parallel ranks and copied once, a node for each
 * stage: all streams are used. */
static dh_program *build_rank(int64_t rank)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-tiny", &model));
    dh_program_spec spec = {
        .recipe = {.model = model, .micro_batch = 1, .seq = 16, .n_micro = 2, .backend = &backend},
        .mode = DH_MODE_TRAIN,
        .rank = rank};
    dh_program *p;
    assert_ok(&ctx, dh_mesh_init(&ctx, 2, 2, 2, 1, 1, 2, 0, &spec.recipe.mesh));
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

static dh_program *build(void)
{
    return build_rank(4);
}

/* One instruction after another, each a little longer than the one before. */
static dh_span span_of(uint32_t id)
{
    const int64_t start = 7000000000001 + (int64_t)id * 1000000;
    return (dh_span){start, start + id, start + 1000 + id};
}

static json_int_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no integer %s", key);
    return json_integer_value(value);
}

static int64_t ns_of(const json_t *event, const char *key)
{
    return llround(json_number_value(json_object_get(event, key)) * 1000);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* What Holistic Trace Analysis and PyTorch's estimator go by. */
static void check_keys(const dh_program *p, uint32_t id, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const dh_instr *instr = &p->instrs.at[id];
    const dh_op *op = dh_instr_op(p, instr);
    const bool talks = dh_op_info_of(op->type)->resource == DH_RES_COMM && op->group >= 0;
    assert_string_equal(text_of(event, "cat"), "kernel");
    assert_int_equal(number(args, "stream"), instr->stream);
    assert_int_equal(number(args, "External id"), id + 1);
    assert_int_equal(strncmp(text_of(event, "name"), "ncclDevKernel_", 14) == 0, talks);
    assert_int_equal(json_object_get(args, "Collective name") != NULL, talks);
    if (!talks) return;
    const dh_group_kind group = (dh_group_kind)op->group;
    char name[48], members[128] = "[";
    snprintf(name, sizeof name, "%s.%lld", dh_group_name(group),
             (long long)dh_mesh_group_id(&p->mesh, group, p->rank));
    assert_string_equal(text_of(args, "Process Group Name"), name);
    assert_int_equal(number(args, "Group size"), dh_mesh_group_size(&p->mesh, group));
    for (int64_t i = 0; i < dh_mesh_group_size(&p->mesh, group); i++)
        snprintf(members + strlen(members), sizeof members - strlen(members), "%s%lld",
                 i ? ", " : "", (long long)dh_mesh_group_member(&p->mesh, group, p->rank, i));
    snprintf(members + strlen(members), sizeof members - strlen(members), "]");
    assert_string_equal(text_of(args, "Process Group Ranks"), members);
    assert_true(number(args, "In msg nelems") > 0 && number(args, "Out msg nelems") > 0);
    if (op->type == DH_OP_ALL_GATHER)
        assert_int_equal(number(args, "Out msg nelems"),
                         number(args, "In msg nelems") * number(args, "Group size"));
    assert_true(*text_of(args, "dtype"));
}

static void check_event(const dh_program *p, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const uint32_t id = (uint32_t)number(args, "instr");
    assert_true(id < p->instrs.n);
    const dh_instr *instr = &p->instrs.at[id];
    const dh_graph *graph = dh_instr_graph(p, instr);
    const dh_op *op = dh_instr_op(p, instr);
    const dh_span span = span_of(id);
    assert_int_equal(number(event, "pid"), 4);
    assert_int_equal(number(event, "tid"), instr->stream);
    assert_string_equal(json_string_value(json_object_get(args, "operator")),
                        dh_op_info_of(op->type)->name);
    check_keys(p, id, event);
    assert_int_equal(ns_of(event, "ts"), span.start_ns);
    assert_int_equal(ns_of(event, "dur"), span.end_ns - span.start_ns);
    assert_int_equal(ns_of(args, "waited_us"), span.met_ns - span.start_ns);
    assert_true(json_number_value(json_object_get(args, "bytes")) == dh_op_bytes(graph, op));
    assert_true(json_number_value(json_object_get(args, "flops")) == dh_op_flops(graph, op));
    if (instr->mb >= 0) assert_int_equal(number(args, "micro_batch"), instr->mb);
    if (graph->kind == DH_BLOCK_LAYER)
        assert_int_equal(number(args, "layer"), p->blocks.at[instr->block].layer);
    assert_non_null(json_object_get(args, "block"));
    if (op->group >= 0)
        assert_string_equal(json_string_value(json_object_get(args, "group")),
                            dh_group_name((dh_group_kind)op->group));
    if (graph->kind == DH_BLOCK_GRADS && op->group >= 0)
        assert_string_equal(json_string_value(json_object_get(args, "carries")), "gradients");
    if (graph->kind == DH_BLOCK_LINK)
        assert_int_equal(number(args, "peer_stage"), p->blocks.at[instr->block].peer);
}

static bool touches(const dh_program *p, const dh_instr *instr, uint32_t root)
{
    const dh_op_info *info = dh_op_info_of(dh_instr_op(p, instr)->type);
    for (int k = -1; k < info->n_in + info->n_out; k++) {
        uint32_t b = k < 0 ? instr->work : dh_instr_operand(p, instr, k)->buffer;
        while (b != DH_NONE && p->buffers.at[b].alias != DH_NONE) b = p->buffers.at[b].alias;
        if (b == root) return true;
    }
    return false;
}

/* Bytes of one kind alive just after a moment, by looking at every instruction. */
static int64_t alive_after(const dh_program *p, dh_buffer_kind kind, int64_t at_ns)
{
    int64_t sum = 0;
    for (uint32_t b = 0; b < p->buffers.n; b++) {
        bool before = false, after = false;
        if (p->buffers.at[b].kind != kind || p->buffers.at[b].alias != DH_NONE) continue;
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            if (!touches(p, &p->instrs.at[i], b)) continue;
            before |= span_of(i).start_ns <= at_ns;
            after |= span_of(i).end_ns > at_ns;
        }
        if (before && after) sum += (int64_t)p->buffers.at[b].n_bytes;
    }
    return sum;
}

static void check_memory(const dh_program *p, const json_t *trace)
{
    const json_t *other = json_object_get(trace, "otherData");
    assert_int_equal(number(other, "rank"), 4);
    assert_int_equal(number(other, "planned_bytes"), p->slab_bytes);
    const json_t *kinds = json_object_get(other, "persistent_bytes");
    assert_true(number(kinds, "master") > 0 && number(kinds, "adam.m") == number(kinds, "adam.v"));

    size_t at, n = 0;
    int64_t last = -1, most = 0;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), at, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "C") != 0) continue;
        const json_t *args = json_object_get(event, "args");
        const int64_t ts = ns_of(event, "ts"), act = number(args, "activations");
        const int64_t scratch = number(args, "scratch");
        if (n++ % 7 == 0) { /* the slow way, now and then */
            assert_int_equal(act, alive_after(p, DH_BUF_ACT, ts));
            assert_int_equal(scratch, alive_after(p, DH_BUF_WORK, ts));
        }
        last = act + scratch;
        most = DH_MAX(most, last);
    }
    assert_true(n > 100);
    assert_int_equal(last, 0);
    assert_true(most > 0 && (uint64_t)most + p->persistent_bytes <= p->slab_bytes);
}

/* Events of the phases that the program has. */
static void check_phases(const json_t *events)
{
    static const char *const want[] = {"forward", "input-gradient", "weight-gradient", "optimizer"};
    for (size_t i = 0; i < DH_COUNTOF(want); i++) {
        size_t at, n = 0;
        json_t *event;
        json_array_foreach(events, at, event)
        {
            const char *phase =
                json_string_value(json_object_get(json_object_get(event, "args"), "phase"));
            n += phase && strcmp(phase, want[i]) == 0;
        }
        if (n == 0) fail_msg("no event of phase %s", want[i]);
    }
}

/* As many events on each stream as instructions. The job of this test computes, has tensor
 * parallelism inside nodes and stages on different ones (a stream for each direction), and data
 * parallelism on both links. */
static void assert_streams(const dh_program *p, const size_t *n_events)
{
    size_t n_instrs[DH_N_STREAM] = {0}, n_used = 0;
    for (size_t i = 0; i < p->instrs.n; i++) n_instrs[p->instrs.at[i].stream]++;
    for (int s = 0; s < DH_N_STREAM; s++) {
        assert_int_equal(n_events[s], n_instrs[s]);
        n_used += n_instrs[s] > 0;
    }
    assert_int_equal(n_used, 6);
}

static void a_trace_tells_instructions_and_memory(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/trace.json", dir);
    dh_program *p = build();
    dh_span *spans = malloc(p->instrs.n * sizeof *spans);
    for (uint32_t i = 0; i < p->instrs.n; i++) spans[i] = span_of(i);
    assert_ok(&ctx, dh_trace_write(&ctx, path, p, spans));

    json_error_t error;
    json_t *trace = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!trace) fail_msg("line %d: %s", error.line, error.text);
    const json_t *events = json_object_get(trace, "traceEvents");
    size_t at, n_events = 0, n_names = 0, n_stream[DH_N_STREAM] = {0};
    json_t *event;
    json_array_foreach(events, at, event)
    {
        const char *ph = json_string_value(json_object_get(event, "ph"));
        n_names += strcmp(ph, "M") == 0;
        if (strcmp(ph, "X") != 0 || strcmp(text_of(event, "cat"), "cpu_op") == 0) continue;
        check_event(p, event);
        n_stream[number(event, "tid")]++;
        n_events++;
    }
    assert_int_equal(n_events, p->instrs.n);
    assert_int_equal(n_names, 2 + 2 * (DH_N_STREAM + 1));
    assert_streams(p, n_stream);
    check_phases(events);
    check_memory(p, trace);

    json_decref(trace);
    free(spans);
    dh_program_destroy(p);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* A gather in 4 parts on rank 0 of 2, of which a reader waits for the third. */
static void parts_are_marks_and_arrows(void **state)
{
    static const char text[] = "dhelix.graph v2 data train f32\n"
                               "dims batch=1 seq=8 width=4\n"
                               "%0:x   act f32[4 tokens, 4 width]\n"
                               "%1:all act f32[8 tokens, 4 width]\n"
                               "%2:a2  act f32[2 tokens, 4 width] view=%1+4\n"
                               "%3:y   act f32[2 tokens, 4 width]\n"
                               "F %0 = sum()\n"
                               "F %1 = all_gather(%0) {group=tp, parts=4}\n"
                               "F %3 = copy(%2)\n";
    const dh_span spans[] = {{0, 0, 10},   {10, 12, 50}, {40, 40, 60}, /* instructions */
                             {12, 12, 12}, {12, 12, 13}, {13, 13, 38}, {38, 38, 50}};
    static const struct {
        const char *ph;
        int64_t ts, tid;
    } want[] = {{"i", 12, DH_STREAM_LOCAL}, {"i", 13, DH_STREAM_LOCAL}, {"i", 38, DH_STREAM_LOCAL},
                {"i", 50, DH_STREAM_LOCAL}, {"s", 38, DH_STREAM_LOCAL}, {"f", 40, 0}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_graph *g;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/trace.json", dir);
    assert_ok(&ctx, dh_graph_parse(&ctx, text, strlen(text), &g));
    dh_program *p = one_block(g, 2, 0);
    assert_int_equal(dh_program_n_spans(p), DH_COUNTOF(spans));
    assert_ok(&ctx, dh_trace_write(&ctx, path, p, spans));
    json_t *trace = json_load_file(path, JSON_REJECT_DUPLICATES, NULL), *event;
    assert_non_null(trace);
    size_t at, n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), at, event)
    {
        const char *cat = json_string_value(json_object_get(event, "cat"));
        if (!cat || strcmp(cat, "part") != 0) continue;
        assert_true(n < DH_COUNTOF(want));
        assert_string_equal(json_string_value(json_object_get(event, "ph")), want[n].ph);
        assert_int_equal(ns_of(event, "ts"), want[n].ts);
        assert_int_equal(number(event, "tid"), want[n++].tid);
    }
    assert_int_equal(n, DH_COUNTOF(want));
    json_decref(trace);
    dh_program_destroy(p);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static size_t count_ends(const json_t *events, const char *ph, const char *id)
{
    size_t i, n = 0;
    const json_t *event;
    json_array_foreach(events, i, event) n += strcmp(text_of(event, "cat"), "message") == 0 &&
                                              strcmp(text_of(event, "ph"), ph) == 0 &&
                                              (!id || strcmp(text_of(event, "id"), id) == 0);
    return n;
}

/* A kernel and the host's operator that has its number are of one rank, and no number is twice. */
static void kernels_find_their_own_operators(const json_t *events)
{
    const json_t *host, *kernel;
    size_t i, k, n_pairs = 0;
    json_array_foreach(events, i, host)
    {
        if (strcmp(text_of(host, "cat"), "cpu_op") != 0) continue;
        const json_int_t id = number(json_object_get(host, "args"), "External id");
        int n = 0;
        json_array_foreach(events, k, kernel)
        {
            const json_t *args = json_object_get(kernel, "args");
            if (strcmp(text_of(kernel, "cat"), "kernel") != 0 || number(args, "External id") != id)
                continue;
            assert_int_equal(number(args, "correlation"), id);
            assert_int_equal(number(kernel, "pid"), number(host, "pid"));
            n++;
        }
        assert_int_equal(n, 1);
        n_pairs++;
    }
    assert_true(n_pairs > 0);
}

/* Of both stages in one file: every message leaves once and arrives once. */
static void files_of_ranks_join(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    const int64_t ranks[] = {4, 0};
    size_t n_events = 0, i;
    for (size_t k = 0; k < DH_COUNTOF(ranks); k++) {
        dh_program *p = build_rank(ranks[k]);
        dh_span *spans = malloc(p->instrs.n * sizeof *spans);
        for (uint32_t id = 0; id < p->instrs.n; id++) spans[id] = span_of(id);
        snprintf(path, sizeof path, "%s/trace-rank%lld.json", dir, (long long)ranks[k]);
        assert_ok(&ctx, dh_trace_write(&ctx, path, p, spans));
        json_t *one = json_load_file(path, 0, NULL);
        n_events += json_array_size(json_object_get(one, "traceEvents"));
        json_decref(one);
        free(spans);
        dh_program_destroy(p);
    }
    snprintf(path, sizeof path, "%s/all.json", dir);
    assert_ok(&ctx, dh_trace_join(&ctx, dir, path));
    json_t *joined = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    const json_t *events = json_object_get(joined, "traceEvents"), *event;
    const json_t *info = json_object_get(joined, "distributedInfo");
    assert_int_equal(json_array_size(events), n_events);
    assert_int_equal(number(info, "rank"), 0); /* the first in order of ranks */
    assert_int_equal(number(info, "world_size"), 8);
    assert_int_equal(json_array_size(json_object_get(info, "pg_config")), number(info, "pg_count"));
    assert_int_equal(count_ends(events, "s", NULL), 4); /* 2 micro-batches there and back */
    assert_int_equal(count_ends(events, "f", NULL), 4);
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "cat"), "message") != 0) continue;
        assert_int_equal(count_ends(events, "s", text_of(event, "id")), 1);
        assert_int_equal(count_ends(events, "f", text_of(event, "id")), 1);
    }
    kernels_find_their_own_operators(events);
    json_decref(joined);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    assert_fails(&ctx, dh_trace_join(&ctx, dir, path), DH_EIO, "cannot open");
    assert_fails(&ctx, dh_trace_join(&ctx, "tests", path), DH_EMISSING, "trace.step=N");
}

static void a_folder_that_is_not_there(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_program empty = {0};
    assert_fails(&ctx, dh_trace_write(&ctx, "/nonexistent/dir/trace.json", &empty, NULL), DH_EIO,
                 "/nonexistent/dir/trace.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_tells_instructions_and_memory),
        cmocka_unit_test(parts_are_marks_and_arrows),
        cmocka_unit_test(files_of_ranks_join),
        cmocka_unit_test(a_folder_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
