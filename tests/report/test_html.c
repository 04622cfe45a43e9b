/* The page of a run: what its data say, what must not break it, what is refused. */
#include "dh_test.h"

#include <jansson.h>
#include <zlib.h>

#include "costs/profile.h"
#include "dhelix/report.h"

static char dir[256];

static const char job[] =
    "model: {family: gpt2, name: \"<b>&\", n_layers: 4, width: 32, n_heads: 4,"
    " vocab: 65, max_seq: 32}\n"
    "data: {train: nowhere.txt, tokenizer: chars}\n"
    "train: {steps: 9, batch: 4, micro_batch: 1, seq_len: 32}\n"
    "parallel: {pp: 2, tp: 1, schedule: 1f1b}\nranks: 2\ntrace: {step: 5}\n";

/* A trace of two instructions and one change of memory, ranks one after the other. */
static const char trace[] =
    "{\"otherData\": {\"rank\": %d, \"planned_bytes\": 4096, \"persistent_bytes\": {\"grad\": "
    "64}},\n"
    "\"traceEvents\": [\n"
    "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"args\": {}},\n"
    "{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"weight-gradient\", \"pid\": 0, \"tid\": %d, "
    "\"ts\": "
    "%d.250, \"dur\": 1.500, \"args\": {\"block\": \"layer\", \"micro_batch\": 1, \"layer\": 2, "
    "\"flops\": 12, \"bytes\": 34}},\n"
    "{\"ph\": \"X\", \"name\": \"norm\", \"cat\": \"forward\", \"pid\": 0, \"tid\": 0, \"ts\": %d, "
    "\"dur\": 0.125, \"args\": {\"block\": \"embed\"}},\n"
    "{\"ph\": \"C\", \"name\": \"memory\", \"pid\": 0, \"ts\": %d, \"args\": {\"activations\": 7, "
    "\"scratch\": 8}}]}\n";

/* ---- folders and pages ---------------------------------------------------------------------- */

static const char *in_dir(const char *name)
{
    static char paths[8][600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void put(const char *run, const char *name, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[700];
    assert_ok(&ctx, dh_dir_create(&ctx, in_dir(run)));
    snprintf(path, sizeof path, "%s/%s", in_dir(run), name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
}

static void put_trace(const char *run, int rank, const char *op, int stream, int at_us)
{
    char name[64], text[2048];
    snprintf(name, sizeof name, "trace-rank%d.json", rank);
    snprintf(text, sizeof text, trace, rank, op, stream, at_us, at_us + 2, at_us + 1);
    put(run, name, text);
}

static dh_status write_page(dh_ctx *ctx, const char *run, const dh_report_options *how)
{
    const char *const runs[] = {in_dir(run)};
    return dh_report_write(ctx, runs, 1, how, in_dir("page.html"));
}

static char *read_page(const char *name)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text;
    size_t n;
    assert_ok(&ctx, dh_file_read(&ctx, in_dir(name), 1 << 28, &text, &n));
    return text;
}

/* What the page's scripts will read. */
static json_t *data_of(const char *page)
{
    static const char mark[] = "<script type=\"application/json\" id=\"data\">";
    const char *begin = strstr(page, mark);
    assert_non_null(begin);
    begin += strlen(mark);
    const char *end = strstr(begin, "</script>");
    json_error_t error;
    json_t *data = json_loadb(begin, (size_t)(end - begin), JSON_REJECT_DUPLICATES, &error);
    if (!data) fail_msg("column %d: %s", error.column, error.text);
    return data;
}

/* A run's page, and its data: json_decref. */
static json_t *report(const char *run)
{
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, write_page(&ctx, run, NULL));
    char *page = read_page("page.html");
    json_t *data = data_of(page);
    free(page);
    return data;
}

/* A value inside: keys and indices, "runs.0.trace". */
static const json_t *at(const json_t *value, const char *path)
{
    char words[200], *rest = NULL;
    snprintf(words, sizeof words, "%s", path);
    for (char *word = strtok_r(words, ".", &rest); word; word = strtok_r(NULL, ".", &rest)) {
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(word))
                                     : json_object_get(value, word);
        if (!value) fail_msg("no %s of %s", word, path);
    }
    return value;
}

static int64_t integer(const json_t *value, const char *path)
{
    value = at(value, path);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* ---- what is said --------------------------------------------------------------------------- */

static void a_trace_becomes_columns(void **state)
{
    put("columns", "job.yaml", job);
    put_trace("columns", 0, "linear_wgrad", 2, 1000);
    put_trace("columns", 1, "linear_wgrad", 1, 1001);
    json_t *data = report("columns");
    const json_t *t = at(data, "runs.0.trace");
    assert_int_equal(integer(t, "one_clock"), 1);
    assert_int_equal(json_array_size(at(t, "kinds")), 2);
    assert_string_equal(json_string_value(at(t, "kinds.0.0")), "linear_wgrad");
    assert_string_equal(json_string_value(at(t, "kinds.0.1")), "weight-gradient");
    assert_true(json_number_value(at(t, "kinds.0.6")) == 12);

    /* Rank 1 began a microsecond after rank 0, whose instruction on the cross stream began the
     * step. */
    const json_t *cross = at(t, "ranks.0.streams.2"), *local = at(t, "ranks.1.streams.1");
    assert_int_equal(integer(cross, "start.0"), 0);
    assert_int_equal(integer(local, "start.0"), 1000);
    assert_int_equal(integer(local, "dur.0"), 1500);
    assert_int_equal(integer(local, "mb.0"), 1);
    assert_int_equal(integer(local, "layer.0"), 2);
    assert_int_equal(integer(t, "ranks.0.streams.0.start.0"), 1750);
    assert_int_equal(integer(t, "ranks.0.streams.0.mb.0"), -1);
    assert_int_equal(integer(t, "ranks.1.stage"), 1);
    assert_int_equal(integer(t, "ranks.1.memory.t.0"), 1750);
    assert_int_equal(integer(t, "ranks.1.memory.scratch.0"), 8);
    assert_int_equal(integer(t, "ranks.1.bytes.persistent_bytes.grad"), 64);
    json_decref(data);
}

/* ---- large ones are packed ------------------------------------------------------------------- */

static size_t read_base64(const char *text, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (; *text; text += 4) {
        uint32_t bits = 0;
        int pads = 0;
        for (int k = 0; k < 4; k++) {
            const char *digit = strchr(digits, text[k]);
            pads += text[k] == '=';
            assert_true(digit || text[k] == '=');
            bits = bits << 6 | (uint32_t)(text[k] == '=' ? 0 : digit - digits);
        }
        for (int k = 0; k < 3 - pads; k++) out[n++] = (unsigned char)(bits >> (16 - 8 * k));
    }
    return n;
}

static json_t *unpacked(const json_t *value)
{
    const char *text = json_string_value(at(value, "packed"));
    const size_t n_bytes = (size_t)integer(value, "bytes");
    unsigned char *packed = malloc(strlen(text));
    char *whole = malloc(n_bytes);
    z_stream z = {.next_out = (unsigned char *)whole, .avail_out = (uInt)n_bytes};
    z.next_in = packed;
    z.avail_in = (uInt)read_base64(text, packed);
    assert_int_equal(inflateInit2(&z, -15), Z_OK);
    assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(z.total_out, n_bytes);
    inflateEnd(&z);
    json_t *read = json_loadb(whole, n_bytes, 0, NULL);
    assert_non_null(read);
    free(packed);
    free(whole);
    return read;
}

static void put_long_trace(const char *run, int rank, int n)
{
    dh_str text = DH_STR_INIT;
    char name[64];
    dh_str_printf(&text, "{\"otherData\": {\"rank\": %d}, \"traceEvents\": [", rank);
    for (int i = 0; i < n; i++)
        dh_str_printf(&text,
                      "%s{\"ph\": \"X\", \"name\": \"linear\", \"cat\": \"forward\", \"pid\": 0, "
                      "\"tid\": 0, \"ts\": %d.%03d, \"dur\": 1.5, \"args\": {\"layer\": %d}}",
                      i ? "," : "", 10 * i, rank * (i * 7 % 99), i % 32);
    dh_str_printf(&text, "]}");
    snprintf(name, sizeof name, "trace-rank%d.json", rank);
    put(run, name, text.text);
    dh_str_fini(&text);
}

static void large_traces_are_packed(void **state)
{
    enum { N = 4000, RANKS = 3 };
    for (int r = 0; r < RANKS; r++) put_long_trace("large", r, N);
    json_t *data = report("large");
    json_t *t = unpacked(at(data, "runs.0.trace"));
    assert_int_equal(json_array_size(at(t, "ranks.0.streams.0.start")), N);
    assert_int_equal(json_array_size(at(t, "ranks.2.streams.0.start")), N);
    assert_int_equal(integer(t, "ranks.0.streams.0.start.1"), 10000);
    assert_int_equal(integer(t, "ranks.1.streams.0.start.1"), 10007);
    assert_int_equal(integer(t, "ranks.0.streams.0.layer.33"), 1);
    assert_int_equal(integer(t, "ranks.2.streams.0.layer"), 0); /* as rank 0's */
    assert_int_equal(json_array_size(at(t, "ranks.2.streams.1.layer")), 0);
    json_decref(t);
    json_decref(data);
}

/* The first sequential run, or the one that is named. */
static void runs_are_compared_with_one(void **state)
{
    static const char *const strategies[] = {"dhelix", "sequential", "flux"};
    dh_ctx ctx = DH_CTX_INIT;
    char runs[3][600];
    const char *names[] = {runs[0], runs[1], runs[2]};
    for (int i = 0; i < 3; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%sstrategy: %s\n", job, strategies[i]);
        put(strategies[i], "job.yaml", text);
        snprintf(runs[i], sizeof runs[i], "%s", in_dir(strategies[i]));
    }
    for (int i = -1; i < 3; i++) {
        const dh_report_options how = {.baseline = i < 0 ? NULL : strategies[i]};
        assert_ok(&ctx, dh_report_write(&ctx, names, 3, &how, in_dir("page.html")));
        char *page = read_page("page.html");
        json_t *data = data_of(page);
        assert_int_equal(integer(data, "baseline"), i < 0 ? 1 : i);
        json_decref(data);
        free(page);
    }
    const dh_report_options wrong = {.baseline = "list"};
    assert_fails(&ctx, dh_report_write(&ctx, names, 3, &wrong, in_dir("page.html")), DH_EINVAL,
                 "none of the runs");
}

/* 1F1B of two stages and four micro-batches, a forward of 1 and a backward of 2: figure 4 of
 * Narayanan et al. 2021, by hand. */
static void the_planned_schedule_is_timed(void **state)
{
    static const int want[][3] = {{0, 1, 0}, {1, 2, 1}, {4, 6, 0}, {6, 7, 2}, {7, 9, 1}};
    put("planned", "job.yaml", job);
    json_t *data = report("planned");
    const json_t *plan = at(data, "runs.0.plan");
    assert_int_equal(integer(plan, "stages"), 2);
    assert_int_equal(integer(plan, "layers.1"), 2);
    for (size_t i = 0; i < DH_COUNTOF(want); i++) {
        const json_t *slot = json_array_get(at(plan, "slots.0"), i);
        assert_int_equal(integer(slot, "0"), want[i][0]);
        assert_int_equal(integer(slot, "1"), want[i][1]);
        assert_int_equal(integer(slot, "4"), want[i][2]);
    }
    assert_string_equal(json_string_value(at(plan, "slots.0.2.2")), "B");
    json_decref(data);
}

/* Times that never meet come from several clocks. */
static void ranks_without_a_common_clock(void **state)
{
    put_trace("clocks", 0, "linear", 0, 1000);
    put_trace("clocks", 3, "linear", 0, 900000);
    json_t *data = report("clocks");
    const json_t *t = at(data, "runs.0.trace");
    assert_int_equal(integer(t, "one_clock"), 0);
    assert_int_equal(integer(t, "ranks.0.streams.0.start.0"), 0);
    assert_int_equal(integer(t, "ranks.1.streams.0.start.0"), 0);
    assert_int_equal(integer(t, "ranks.1.rank"), 3);
    json_decref(data);
}

static void ranks_are_picked_evenly(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_report_options how = {.max_ranks = 2};
    for (int r = 0; r < 12; r++) put_trace("ranks", r, "linear", 0, 1000);
    put("ranks", "trace-rank5.json.tmp", "not a trace");
    assert_ok(&ctx, write_page(&ctx, "ranks", &how));
    char *page = read_page("page.html");
    json_t *data = data_of(page);
    assert_int_equal(integer(data, "runs.0.trace.files"), 12);
    assert_int_equal(json_array_size(at(data, "runs.0.trace.ranks")), 2);
    assert_int_equal(integer(data, "runs.0.trace.ranks.1.rank"), 6);
    json_decref(data);
    free(page);
}

/* A row of a long run is the mean of several steps; none is left out. */
static void long_runs_are_thinned(void **state)
{
    enum { STEPS = 20000 };
    dh_str text = DH_STR_INIT;
    double sum = 0, mean = 0;
    for (int i = 1; i <= STEPS; i++) {
        sum += i % 7;
        dh_str_printf(&text, "{\"step\": %d, \"loss\": %d, \"lr\": 0.5}\n", i, i % 7);
        if (i % 100 == 0) dh_str_printf(&text, "{\"step\": %d, \"val_loss\": 2.5}\n", i);
    }
    put("long", "metrics.jsonl", text.text);
    dh_str_fini(&text);
    json_t *data = report("long");
    const json_t *m = at(data, "runs.0.metrics");
    const size_t n = json_array_size(at(m, "loss"));
    const int64_t stride = integer(m, "stride");
    assert_true(n <= 8192 && n >= 4096 && stride > 1);
    assert_int_equal(json_array_size(at(m, "step")), n);
    assert_int_equal(json_integer_value(json_array_get(at(m, "step"), n - 1)), STEPS);
    for (size_t i = 0; i < n; i++) {
        const int64_t steps = DH_MIN(stride, STEPS - (int64_t)i * stride);
        mean += json_number_value(json_array_get(at(m, "loss"), i)) * (double)steps;
    }
    assert_true(fabs(mean - sum) < 1e-6 * sum);
    assert_int_equal(json_array_size(at(m, "val")), STEPS / 100);
    assert_null(json_object_get(m, "grad_norm"));
    json_decref(data);
}

static void a_matrix_is_shown(void **state)
{
    put("oef", "oef.csv", "# where from\nop,b0,b1\nf0,0.5,-1.25\nf1,1,0\n");
    json_t *data = report("oef");
    assert_string_equal(json_string_value(at(data, "runs.0.oef.rows.1")), "f1");
    assert_true(json_number_value(at(data, "runs.0.oef.at.1")) == -1.25);
    json_decref(data);
}

static void a_table_is_shown(void **state)
{
    put("table", "table.json",
        "{\"model\": \"m\", \"settings\": [{\"key\": \"parallel.tp\", \"values\": [\"1\", "
        "\"3\"]}], "
        "\"cells\": [{\"values\": [\"1\"], \"step_ms\": 12.5, \"fits\": true}, "
        "{\"values\": [\"3\"], \"reason\": \"3 does not divide <8>\"}]}");
    json_t *data = report("table");
    assert_true(json_number_value(at(data, "runs.0.table.cells.0.step_ms")) == 12.5);
    assert_string_equal(json_string_value(at(data, "runs.0.table.cells.1.reason")),
                        "3 does not divide <8>");
    json_decref(data);
}

/* The published definition, (T_i + T_j - P) / min(T_i, T_j), with P when both have ended. */
static void a_profile_becomes_a_matrix(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_profile *p;
    const dh_profile_op ops[] = {
        {.key = "k0", .label = "linear qkv", .solo_ns = 100},
        {.key = "k1", .label = "all_gather n1", .solo_ns = 60, .stream = 1},
        {.key = "k2", .label = "linear_dgrad <h>", .solo_ns = 40}};
    const dh_profile_pair pairs[] = {{.a = 0, .b = 1, .a_ns = 110, .b_ns = 90},
                                     {.a = 2, .b = 1, .a_ns = 80, .b_ns = 105}};
    assert_ok(&ctx, dh_profile_create(&ctx, "test", &p));
    for (size_t i = 0; i < DH_COUNTOF(ops); i++)
        assert_ok(&ctx, dh_profile_add_op(&ctx, p, &ops[i], NULL));
    for (size_t i = 0; i < DH_COUNTOF(pairs); i++)
        assert_ok(&ctx, dh_profile_add_pair(&ctx, p, &pairs[i]));
    put("profile", "oef.csv", "not looked at");
    char path[700];
    snprintf(path, sizeof path, "%s/profile.json", in_dir("profile"));
    assert_ok(&ctx, dh_profile_write(&ctx, p, path));
    dh_profile_destroy(p);
    json_t *data = report("profile");
    const json_t *oef = at(data, "runs.0.oef");
    assert_int_equal(json_array_size(at(oef, "at")), 2);
    assert_string_equal(json_string_value(at(oef, "columns.0")), "all_gather n1");
    assert_string_equal(json_string_value(at(oef, "rows.1")), "linear_dgrad <h>");
    assert_true(fabs(json_number_value(at(oef, "at.0")) - 50.0 / 60) < 1e-8);
    assert_true(fabs(json_number_value(at(oef, "at.1")) + 5.0 / 40) < 1e-8);
    json_decref(data);
}

/* ---- what must not break it ----------------------------------------------------------------- */

/* Two script elements and no more, whatever names say; and the names arrive whole. */
static void names_cannot_end_the_data(void **state)
{
    static const char run[] = "r<!--<script>\"'&\\{{scripts}}";
    static const char op[] = "</script><script>alert(1)</script>";
    put(run, "job.yaml", job);
    put_trace(run, 0, op, 0, 1000);
    json_t *data = report(run);
    char *page = read_page("page.html");
    assert_int_equal(count(page, "<script"), 2);
    assert_int_equal(count(page, "</script"), 2);
    assert_int_equal(count(page, "<!--"), 0);
    assert_string_equal(json_string_value(at(data, "runs.0.name")), in_dir(run));
    assert_string_equal(json_string_value(at(data, "runs.0.trace.kinds.0.0")), op);
    assert_string_equal(json_string_value(at(data, "runs.0.facts.0.1")), "<b>&");
    free(page);
    json_decref(data);
}

static void a_name_that_is_not_utf8(void **state)
{
    put("bytes\xff\xfe", "summary.json", "{}");
    json_t *data = report("bytes\xff\xfe");
    assert_non_null(strstr(json_string_value(at(data, "runs.0.name")), "bytes??"));
    json_decref(data);
}

/* Nothing is asked of any network: the only addresses are of things inside. */
static void the_page_is_complete(void **state)
{
    put("alone", "summary.json", "{\"steps\": 3}");
    json_decref(report("alone"));
    char *page = read_page("page.html");
    assert_int_equal(count(page, "http:") + count(page, "https:") + count(page, " src="), 0);
    assert_int_equal(count(page, "@import") + count(page, "url("), 0);
    assert_int_equal(count(page, "default-src 'none'"), 1);
    free(page);
}

static void same_files_same_bytes(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    put("again", "job.yaml", job);
    put("again", "metrics.jsonl", "{\"step\":1,\"loss\":4.25}\n{\"step\":1,\"val_loss\":3}\n");
    for (int r = 0; r < 3; r++) put_trace("again", r, "linear", 1, 1000);
    const char *const runs[] = {in_dir("again"), in_dir("again")};
    assert_ok(&ctx, dh_report_write(&ctx, runs, 2, NULL, in_dir("a.html")));
    assert_ok(&ctx, dh_report_write(&ctx, runs, 2, NULL, in_dir("b.html")));
    char *a = read_page("a.html"), *b = read_page("b.html");
    assert_string_equal(a, b);
    json_t *data = data_of(a);
    assert_int_equal(json_array_size(at(data, "runs")), 2);
    assert_true(json_equal((json_t *)at(data, "runs.0"), (json_t *)at(data, "runs.1")));
    json_decref(data);
    free(a);
    free(b);
}

/* The last line of a run that is under way, or was killed, may be cut. */
static void a_cut_line_is_not_an_error(void **state)
{
    put("cut", "metrics.jsonl", "{\"step\":1,\"loss\":4.25}\n{\"step\":2,\"lo");
    json_t *data = report("cut");
    assert_int_equal(integer(data, "runs.0.metrics.cut"), 1);
    assert_int_equal(json_array_size(at(data, "runs.0.metrics.loss")), 1);
    json_decref(data);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static const struct {
    const char *file, *text, *says;
} broken[] = {
    {"metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\n{\"step\":3,\"loss\":2}\n",
     "metrics.jsonl:2:"},
    {"metrics.jsonl", "{\"step\":1}\n[1]\n", "metrics.jsonl:2: an object with an integer"},
    {"summary.json", "{\n\"steps\": 3,\n}\n", "summary.json:3:"},
    {"job.yaml", "train: {stepz: 3}\n", "job.yaml:1:"},
    {"trace-rank4.json", "{\"traceEvents\": [\n{]}\n", "trace-rank4.json:2:"},
    {"trace-rank0.json", "{}\n", "no array traceEvents"},
    {"trace-rank0.json", "{\"traceEvents\": []}\n", "no instruction"},
    {"trace-rank0.json", "{\"traceEvents\": [{\"ph\":\"X\",\"name\":\"a\",\"tid\":0,\"ts\":1}]}\n",
     "trace-rank0.json: event 0 lacks"},
    {"trace-rank0.json",
     "{\"traceEvents\": [{\"ph\":\"X\",\"name\":\"a\",\"tid\":13,\"ts\":1,\"dur\":1}]}\n",
     "tid is a stream, 0 to 12"},
    {"oef.csv", "op,b0\nf0,much\n", "oef.csv"},
    {"table.json", "{\"settings\": [{\"key\": \"a\", \"values\": [\"1\"]}], \"cells\": []}\n",
     "table.json: one or two settings"},
    {"table.json", "{\"settings\": [], \"cells\": []}\n", "table.json: one or two settings"},
    {"table.json", "{\"settings\": [{\"key\": \"a\", \"values\": [\"1\"]}], \"cells\": [{}]}\n",
     "table.json: one or two settings"},
};

static void broken_files_are_named(void **state)
{
    for (size_t i = 0; i < DH_COUNTOF(broken); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        char run[32];
        snprintf(run, sizeof run, "broken%zu", i);
        put(run, broken[i].file, broken[i].text);
        put(".", "page.html", "as it was");
        dh_status st = write_page(&ctx, run, NULL);
        if (st != DH_EFORMAT && st != DH_EINVAL)
            fail_msg("%s: %s", broken[i].says, dh_status_name(st));
        if (!strstr(ctx.message, broken[i].says))
            fail_msg("\"%s\" lacks \"%s\"", ctx.message, broken[i].says);
        char *page = read_page("page.html");
        assert_string_equal(page, "as it was");
        free(page);
    }
}

static void what_is_not_a_run(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const char *many[DH_REPORT_MAX_RUNS + 1];
    put("nothing", "notes.txt", "no run");
    assert_fails(&ctx, write_page(&ctx, "nothing", NULL), DH_EMISSING, "is not a run folder");
    assert_fails(&ctx, write_page(&ctx, "nowhere", NULL), DH_EMISSING, "is not a folder");
    put("alone", "summary.json", "{}");
    for (size_t i = 0; i < DH_COUNTOF(many); i++) many[i] = in_dir("alone");
    assert_fails(&ctx, dh_report_write(&ctx, many, DH_COUNTOF(many), NULL, in_dir("page.html")),
                 DH_EINVAL, "17 runs");
    assert_fails(&ctx, dh_report_write(&ctx, many, 1, NULL, in_dir("no/page.html")), DH_EIO,
                 "no/page.html");
}

static int set_up(void **state)
{
    test_tmpdir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_becomes_columns),
        cmocka_unit_test(large_traces_are_packed),
        cmocka_unit_test(runs_are_compared_with_one),
        cmocka_unit_test(the_planned_schedule_is_timed),
        cmocka_unit_test(ranks_without_a_common_clock),
        cmocka_unit_test(ranks_are_picked_evenly),
        cmocka_unit_test(long_runs_are_thinned),
        cmocka_unit_test(a_matrix_is_shown),
        cmocka_unit_test(a_table_is_shown),
        cmocka_unit_test(a_profile_becomes_a_matrix),
        cmocka_unit_test(names_cannot_end_the_data),
        cmocka_unit_test(a_name_that_is_not_utf8),
        cmocka_unit_test(the_page_is_complete),
        cmocka_unit_test(same_files_same_bytes),
        cmocka_unit_test(a_cut_line_is_not_an_error),
        cmocka_unit_test(broken_files_are_named),
        cmocka_unit_test(what_is_not_a_run),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
