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
    const char *const runs[] = {dir};
    size_t whole = 0;
    int n_refused = 0;
    for (int64_t n = -1;; n++) { /* -1: with all the memory */
        dh_ctx ctx = DH_CTX_INIT;
        dh_figures figures;
        size_t bytes = 0;
        mallocs_left = n;
        const dh_status st = dh_figures_make(&ctx, runs, 1, 0, &figures);
        const bool struck = n < 0 || mallocs_left < 0;
        mallocs_left = -1;
        for (size_t i = 0; st == DH_OK && i < figures.n; i++)
            bytes += figures.at[i].svg.len + figures.at[i].csv.len;
        if (st == DH_OK) dh_figures_fini(&figures);
        if (n < 0) whole = bytes;
        n_refused += st != DH_OK;
        assert_int_equal(st == DH_OK ? bytes : whole, whole);
        if (st != DH_OK) assert_int_equal(st, DH_ENOMEM);
        if (!struck) break;
    }
    assert_true(whole > 1000);
    assert_true(n_refused > 20);
}

static void any_entry_may_fail(void **state)
{
    enum { N_ENTRIES = 5 }; /* metrics, trace, page, "." and ".." */
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
        cmocka_unit_test(any_entry_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
