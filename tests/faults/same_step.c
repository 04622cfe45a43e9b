/* Under test in cut.sh: a checkpoint of a step that has one already, as a run writes that is stopped in
 * the validation of a step that it saved.
 *   same_step write RUN   step 1, step 2, and step 2 again: samples 1, 2 and 3
 *   same_step read RUN    "STEP SAMPLES" of the newest intact one; then it is written on from there */
#include <stdio.h>
#include <string.h>

#include "weights/checkpoint.h"

static dh_status put(dh_ctx *ctx, dh_ckpt_writer *c, int64_t step, int64_t sample)
{
    static const char text[] = "a file of some bytes\n";
    dh_ckpt_state state = {.step = step, .next_sample = sample};
    dh_ckpt_fingerprint("job", 3, state.job_fingerprint);
    dh_ckpt_fingerprint("tokenizer", 9, state.tokenizer_fingerprint);
    DH_TRY(dh_ckpt_put_file(ctx, c, "model.safetensors", text, sizeof text));
    DH_TRY(dh_ckpt_put_state(ctx, c, &state));
    return dh_ckpt_commit(ctx, c, 2, NULL);
}

static dh_status save(dh_ctx *ctx, const char *run, int64_t step, int64_t sample)
{
    dh_ckpt_writer *c;
    DH_TRY(dh_ckpt_begin(ctx, run, step, &c));
    const dh_status st = put(ctx, c, step, sample);
    dh_ckpt_destroy(c);
    return st;
}

static dh_status write_all(dh_ctx *ctx, const char *run)
{
    DH_TRY(save(ctx, run, 1, 1));
    DH_TRY(save(ctx, run, 2, 2));
    return save(ctx, run, 2, 3);
}

static dh_status read_newest(dh_ctx *ctx, const char *run)
{
    dh_ckpt *c;
    const dh_status st = dh_ckpt_find_latest(ctx, run, true, &c);
    if (st != DH_OK && st != DH_EMISSING) return st;
    int64_t step = 0, sample = 0;
    if (st == DH_OK) {
        step = dh_ckpt_get_state(c)->step;
        sample = dh_ckpt_get_state(c)->next_sample;
        dh_ckpt_close(c);
    }
    dh_ctx_reset(ctx);
    printf("%lld %lld\n", (long long)step, (long long)sample);
    dh_dir_drop_leftovers(run); /* as a run does that claims the folder */
    dh_ckpt_clean(run);
    return save(ctx, run, step + 1, 10);
}

int main(int argc, char **argv)
{
    dh_ctx ctx = DH_CTX_INIT;
    if (argc != 3) return 2;
    const dh_status st =
        strcmp(argv[1], "write") == 0 ? write_all(&ctx, argv[2]) : read_newest(&ctx, argv[2]);
    if (st != DH_OK) fprintf(stderr, "dhelix: error: %s\n", ctx.message);
    return st != DH_OK;
}
