/* Run folders: their files by the page's readers, the lock by who claims it. The first byte says
 * which file the rest is. */
#include "fuzz_folder.h"

#include "report/html/figures.h"
#include "report/html/page.h"
#include "train/lock.h"

static const char *const names[] = {"summary.json", "metrics.jsonl", "trace-rank0.json",
                                    "profile.json", "oef.csv",       "lock"};

static void read_page(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    json_out out = {0};
    bool sequential;
    if (dh_html_run(&ctx, fuzz_folder(), 4, &out, &sequential) == DH_OK) {
        json_t *value = json_loadb(out.text.text, out.text.len, 0, NULL);
        DH_CHECK(value, "the page's data are JSON: %s", out.text.text);
        json_decref(value);
    } else {
        DH_CHECK(ctx.message[0], "a refusal says why");
    }
    dh_str_fini(&out.text);
}

/* What gives a page gives figures, unless there is nothing to draw. */
static void draw_figures(void)
{
    dh_ctx ctx = DH_CTX_INIT, page = DH_CTX_INIT;
    const char *const runs[] = {fuzz_folder()};
    json_out out = {0};
    bool sequential;
    dh_figures figures;
    const dh_figures_options four = {.max_ranks = 4};
    const dh_status st = dh_figures_make(&ctx, runs, 1, &four, &figures);
    const dh_status of_page = dh_html_run(&page, runs[0], 4, &out, &sequential);
    DH_CHECK(st == of_page || (of_page == DH_OK && st == DH_EMISSING), "refused alike: %s",
             ctx.message);
    for (size_t i = 0; st == DH_OK && i < figures.n; i++)
        DH_CHECK((figures.at[i].why[0] == 0) == (figures.at[i].svg.len > 0), "%s",
                 figures.at[i].name);
    if (st == DH_OK) dh_figures_fini(&figures);
    dh_str_fini(&out.text);
}

static void claim(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    if (dh_folder_claim(&ctx, fuzz_folder(), &lock) == DH_OK)
        dh_folder_release(&lock);
    else
        DH_CHECK(ctx.message[0], "a refusal says why");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const char *path = fuzz_put(0, names[data[0] % DH_COUNTOF(names)], data + 1, size - 1);
    read_page();
    draw_figures();
    claim();
    unlink(path);
    return 0;
}
