/* Run folders: their files by the page's readers, the lock by who claims it. The first byte says
 * which file the rest is. */
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "report/html/page.h"
#include "train/lock.h"

static char folder[] = "/tmp/dhelix-fuzz-XXXXXX";
static const char *const names[] = {"summary.json", "metrics.jsonl", "trace-rank0.json",
                                    "profile.json", "oef.csv",       "lock"};

static void remove_folder(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_dir_remove(&ctx, folder);
}

static void read_page(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    json_out out = {0};
    if (dh_html_run(&ctx, folder, 4, &out) == DH_OK) {
        json_t *value = json_loadb(out.text.text, out.text.len, 0, NULL);
        DH_CHECK(value, "the page's data are JSON: %s", out.text.text);
        json_decref(value);
    } else {
        DH_CHECK(ctx.message[0], "a refusal says why");
    }
    dh_str_fini(&out.text);
}

static void claim(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_folder_lock lock;
    if (dh_folder_claim(&ctx, folder, &lock) == DH_OK)
        dh_folder_release(&lock);
    else
        DH_CHECK(ctx.message[0], "a refusal says why");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    dh_ctx ctx = DH_CTX_INIT;
    char path[128];
    if (!made) {
        DH_CHECK(mkdtemp(folder), "cannot create %s", folder);
        atexit(remove_folder);
        made = true;
    }
    if (size == 0) return 0;
    const char *name = names[data[0] % DH_COUNTOF(names)];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    DH_CHECK(fd >= 0 && dh_fd_write_all(&ctx, fd, path, data + 1, size - 1) == DH_OK, "%s", path);
    close(fd);
    read_page();
    claim();
    unlink(path);
    return 0;
}
