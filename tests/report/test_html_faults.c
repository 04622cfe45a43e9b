/* A page is whole or is not written. Every malloc of the program fails once, and through those
 * every allocation of jansson, which leaves out what it has no memory for; so does every entry of
 * the run's folder. */
#include "dh_test.h"

#include <dirent.h>
#include <errno.h>

#include "base/json_text.h"
#include "dhelix/report.h"
#include "report/html/figures.h"

static const char metrics[] = "{\"step\": 1, \"loss\": 2.5}\n";
/* Names that are too long for jansson's first buffer, and one beyond ASCII, which a page may have
 * in ASCII only where it is not UTF-8. */
static const char trace[] = "{\"otherData\": {\"rank\": 0}, \"traceEvents\": [\n"
                            "{\"ph\": \"X\", \"name\": \"an operator of a long name, \xc3\xa4\", "
                            "\"cat\": \"forward\", \"pid\": 0, \"tid\": 0, "
                            "\"ts\": 1, \"dur\": 1.5, \"args\": {\"block\": \"layer\", \"out\": "
                            "\"a tensor of a name of more than 32 bytes\", \"flops\": 12}}]}\n";

/* A run of which every figure is drawn: a forward and a backward at once, memory, and tables. */
static const char paired_trace[] =
    "{\"otherData\": {\"rank\": 0, \"persistent_bytes\": {\"grad\": 8}}, \"traceEvents\": [\n"
    "{\"ph\": \"X\", \"name\": \"f\", \"cat\": \"forward\", \"tid\": 0, \"ts\": 0, \"dur\": 9, "
    "\"args\": "
    "{\"block\": \"layer\", \"layer\": 0, \"micro_batch\": 1}},\n"
    "{\"ph\": \"X\", \"name\": \"b\", \"cat\": \"input-gradient\", \"tid\": 1, \"ts\": 1, \"dur\": "
    "9, "
    "\"args\": {\"block\": \"layer\", \"layer\": 0, \"micro_batch\": 0}},\n"
    "{\"ph\": \"C\", \"name\": \"memory\", \"ts\": 0, \"args\": {\"activations\": 5, \"scratch\": "
    "6}}]}\n";
static const char *const figured[][2] = {
    {"metrics.jsonl",
     "{\"step\": 1, \"loss\": 2.5, \"lr\": 1, \"grad_norm\": 1, \"tokens_per_s\": 9, "
     "\"aux_loss\": 1, \"val_loss\": 3}\n"},
    {"summary.json", "{\"steps\": 2, \"times\": {\"compute_ms\": 3, \"idle_ms\": 1}}"},
    {"table.json",
     "{\"settings\": [{\"key\": \"a\", \"values\": [\"1\"]}, {\"key\": \"b\", \"values\": "
     "[\"1\", \"2\"]}], \"cells\": [{\"step_ms\": 1}, {\"reason\": \"no\"}]}"},
    {"oef.csv", ",b,c\na,0.5,1\n"},
    {"job.yaml",
     "model: {family: gpt2, n_layers: 2, n_heads: 2, width: 32, max_seq: 32, vocab: 64}\n"
     "train: {batch: 4, micro_batch: 2, seq_len: 32}\nparallel: {pp: 2}\nranks: 2\n"},
    {"trace-rank0.json", paired_trace}};

static char dir[256], page_path[300];
static char *page; /* with all the memory */

static int64_t mallocs_left = -1; /* until one fails; -1: none will */

void *__real_malloc(size_t n_bytes);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_malloc(size_t n_bytes)
{
    if (mallocs_left >= 0 && mallocs_left-- == 0) return NULL;
    return __real_malloc(n_bytes);
}

static int entries_left = -1; /* until one cannot be read */

struct dirent *__real_readdir(DIR *at);
struct dirent *__wrap_readdir(DIR *at);
struct dirent *__wrap_readdir(DIR *at)
{
    if (entries_left < 0 || entries_left-- > 0) return __real_readdir(at);
    errno = EIO;
    return NULL;
}

static dh_status write_page(dh_ctx *ctx)
{
    const char *const runs[] = {dir};
    return dh_report_write(ctx, runs, 1, NULL, page_path);
}

static char *read_page(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    char *text;
    size_t n;
    assert_ok(&ctx, dh_file_read(&ctx, page_path, 1 << 28, &text, &n));
    return text;
}

static void put(const char *name, const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text, strlen(text)));
}

static void any_malloc_may_fail(void **state)
{
    int n_refused = 0;
    for (int64_t n = 0;; n++) {
        dh_ctx ctx = DH_CTX_INIT;
        mallocs_left = n;
        const dh_status st = write_page(&ctx);
        const bool struck = mallocs_left < 0;
        mallocs_left = -1;
        if (st == DH_OK) {
            char *now = read_page();
            if (strcmp(now, page) != 0) fail_msg("another page without malloc %lld", (long long)n);
            free(now);
        } else {
            assert_int_equal(st, DH_ENOMEM);
            n_refused++;
        }
        if (!struck) break;
    }
    printf("  %d calls were missed\n", n_refused);
    assert_true(n_refused > 50);
}

static void any_malloc_of_figures_may_fail(void **state)
{
    static const char steps[] = "{\"strategies\": [{\"strategy\": \"a\", \"schedule\": \"s\", "
                                "\"step_ms\": 2, \"compute_ms\": 1}, {\"strategy\": \"a\", "
                                "\"schedule\": \"t\", \"reason\": \"no\"}]}";
    static const char ranked[] = "{\"ranked\": [{\"settings\": {\"parallel.tp\": 1, \"strategy\": "
                                 "\"a\"}, \"estimated_ms\": 3, \"fits\": true}, {\"settings\": "
                                 "{\"parallel.tp\": 2}, \"simulated_ms\": 4}]}";
    char whole_dir[300], steps_file[320], ranked_file[320];
    const char *const runs[] = {dir, whole_dir, steps_file, ranked_file};
    size_t whole = 0;
    int n_refused = 0;
    snprintf(whole_dir, sizeof whole_dir, "%s/figured", dir);
    snprintf(steps_file, sizeof steps_file, "%s/steps.json", whole_dir);
    snprintf(ranked_file, sizeof ranked_file, "%s/ranked.json", whole_dir);
    for (size_t i = 0; i < DH_COUNTOF(figured); i++) {
        char name[64];
        dh_ctx ctx = DH_CTX_INIT;
        assert_ok(&ctx, dh_dir_create(&ctx, whole_dir));
        snprintf(name, sizeof name, "figured/%s", figured[i][0]);
        put(name, figured[i][1]);
    }
    put("figured/steps.json", steps);
    put("figured/ranked.json", ranked);
    for (int64_t n = -1;; n++) { /* -1: with all the memory */
        dh_ctx ctx = DH_CTX_INIT;
        dh_figures figures;
        size_t bytes = 0;
        mallocs_left = n;
        const dh_status st = dh_figures_make(&ctx, runs, DH_COUNTOF(runs), NULL, &figures);
        const bool struck = n < 0 || mallocs_left < 0;
        mallocs_left = -1;
        for (size_t i = 0; st == DH_OK && i < figures.n; i++) {
            const dh_figure *f = &figures.at[i];
            bytes += f->svg.len + f->csv.len;
            if (!strstr(f->name, "-1") && f->why[0]) fail_msg("no %s: %s", f->name, f->why);
        }
        if (st == DH_OK) dh_figures_fini(&figures);
        if (n < 0) whole = bytes;
        n_refused += st != DH_OK;
        assert_int_equal(st == DH_OK ? bytes : whole, whole);
        if (st != DH_OK) assert_int_equal(st, DH_ENOMEM);
        if (struck) continue;
        assert_int_equal(st, DH_OK);
        break;
    }
    assert_true(whole > 1000);
    printf("  %d calls were missed\n", n_refused);
    assert_true(n_refused > 400);
}

/* Short of memory, too, no figure replaces what it is drawn from. */
static void an_input_stays(void **state)
{
    static const char pairs[] = ",b,c\na,0.5,1\n";
    char folder[300], source[320];
    const char *const sources[] = {source};
    snprintf(folder, sizeof folder, "%s/kept", dir);
    snprintf(source, sizeof source, "%s/pairs.csv", folder);
    dh_ctx ctx = DH_CTX_INIT;
    assert_ok(&ctx, dh_dir_create(&ctx, folder));
    put("kept/pairs.csv", pairs);
    int n_short = 0;
    for (bool struck = true; struck; n_short += struck) {
        dh_str json = DH_STR_INIT;
        char *text;
        size_t n;
        dh_ctx_reset(&ctx);
        mallocs_left = n_short;
        const dh_status st = dh_report_figures(&ctx, sources, 1, NULL, folder, &json);
        struck = mallocs_left < 0;
        mallocs_left = -1;
        dh_str_fini(&json);
        assert_true(st == DH_EINVAL || (struck && st == DH_ENOMEM));
        dh_ctx_reset(&ctx);
        assert_ok(&ctx, dh_file_read(&ctx, source, 100, &text, &n));
        assert_string_equal(text, pairs);
        free(text);
    }
    printf("  %d calls were missed\n", n_short);
    assert_true(n_short > 20);
    assert_ok(&ctx, dh_dir_remove(&ctx, folder));
}

static void any_entry_may_fail(void **state)
{
    enum { N_ENTRIES = 6 }; /* metrics, trace, page, figured, "." and ".." */
    for (int n = 0; n <= N_ENTRIES; n++) {
        dh_ctx ctx = DH_CTX_INIT;
        entries_left = n;
        assert_fails(&ctx, write_page(&ctx), DH_EIO, "cannot list");
        assert_int_equal(entries_left, -1);
    }
}

static int set_up(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_json_watch_memory();
    test_tmpdir(dir, sizeof dir);
    snprintf(page_path, sizeof page_path, "%s/page.html", dir);
    put("metrics.jsonl", metrics);
    put("trace-rank0.json", trace);
    if (write_page(&ctx) != DH_OK) return -1;
    page = read_page();
    return strstr(page, "of a long name, \xc3\xa4") ? 0 : -1;
}

static int tear_down(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    free(page);
    return dh_dir_remove(&ctx, dir) == DH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_malloc_may_fail),
        cmocka_unit_test(any_malloc_of_figures_may_fail),
        cmocka_unit_test(an_input_stays),
        cmocka_unit_test(any_entry_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
