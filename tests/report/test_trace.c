/* Trace files of a real program, read back as any viewer would. */
#include "dh_test.h"

#include <jansson.h>

#include "dhelix/timeline.h"

static size_t no_scratch(const dh_graph *graph, const dh_op *op)
{
    return 0;
}
static const dh_backend_info backend = {"test", no_scratch};

/* The second stage of two, split over two tensor-parallel ranks: all streams are used. */
static dh_program *build(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    static dh_model model;
    assert_ok(&ctx, dh_model_from_preset(&ctx, "gpt2-tiny", &model));
    dh_program_spec spec = {.model = &model,
                            .mode = DH_MODE_TRAIN,
                            .rank = 2,
                            .micro_batch = 1,
                            .seq = 16,
                            .n_micro = 2,
                            .loss_scale = 1,
                            .backend = &backend};
    dh_program *p;
    assert_ok(&ctx, dh_mesh_init(&ctx, 1, 2, 2, 1, 1, 2, 0, &spec.mesh));
    assert_ok(&ctx, dh_program_build(&ctx, &spec, &p));
    return p;
}

/* One instruction after another, each a little longer than the one before. */
static dh_span span_of(uint32_t id)
{
    const int64_t start = 7000000000001 + (int64_t)id * 1000000;
    return (dh_span){start, start + 1000 + id};
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

static void check_event(const dh_program *p, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const uint32_t id = (uint32_t)number(args, "instr");
    assert_true(id < p->instrs.n);
    const dh_instr *instr = &p->instrs.at[id];
    const dh_graph *graph = dh_instr_graph(p, instr);
    const dh_op *op = dh_instr_op(p, instr);
    const dh_span span = span_of(id);
    assert_int_equal(number(event, "pid"), 2);
    assert_int_equal(number(event, "tid"), instr->stream);
    assert_string_equal(json_string_value(json_object_get(event, "name")),
                        dh_op_info_of(op->type)->name);
    assert_int_equal(ns_of(event, "ts"), span.start_ns);
    assert_int_equal(ns_of(event, "dur"), span.end_ns - span.start_ns);
    assert_true(json_number_value(json_object_get(args, "bytes")) == dh_op_bytes(graph, op));
    assert_true(json_number_value(json_object_get(args, "flops")) == dh_op_flops(graph, op));
    if (instr->mb >= 0) assert_int_equal(number(args, "micro_batch"), instr->mb);
    if (graph->kind == DH_BLOCK_LAYER)
        assert_int_equal(number(args, "layer"), p->blocks.at[instr->block].layer);
}

/* Categories of the phases that the program has. */
static void check_categories(const json_t *events)
{
    static const char *const want[] = {"forward", "input-gradient", "weight-gradient", "optimizer"};
    for (size_t i = 0; i < DH_COUNTOF(want); i++) {
        size_t at, n = 0;
        json_t *event;
        json_array_foreach(events, at, event)
        {
            const char *cat = json_string_value(json_object_get(event, "cat"));
            n += cat && strcmp(cat, want[i]) == 0;
        }
        if (n == 0) fail_msg("no event of category %s", want[i]);
    }
}

static void every_instruction_is_an_event(void **state)
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
        if (strcmp(ph, "X") != 0) continue;
        check_event(p, event);
        n_stream[number(event, "tid")]++;
        n_events++;
    }
    assert_int_equal(n_events, p->instrs.n);
    assert_int_equal(n_names, 2 + 2 * DH_N_STREAM);
    for (int s = 0; s < DH_N_STREAM; s++) assert_true(n_stream[s] > 0);
    check_categories(events);

    json_decref(trace);
    free(spans);
    dh_program_destroy(p);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
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
        cmocka_unit_test(every_instruction_is_an_event),
        cmocka_unit_test(a_folder_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
