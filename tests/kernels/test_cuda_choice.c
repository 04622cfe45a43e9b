/* Which attention a GPU uses: by wgmma only where its results are those of the portable kernels. On
 * devices that the host plays, a fresh one each time: what came of a check is remembered. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "kernel_test.h"

#include "cuda_matrices.h"
#include "run/cuda/attn_check.h"
#include "run/cuda/host/host.h"
#include "run/cuda/kernels.h"

enum { N_DEVICES = 8 };

static dh_status choose(dh_ctx *ctx, int device)
{
    assert_int_equal(cudaSetDevice(device), cudaSuccess);
    return dh_cuda_choose_attention(ctx);
}

static void one_that_is_close_is_used(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const int64_t objects = dh_host_n_objects();
    assert_false(dh_cuda_allows_wgmma(0));
    assert_ok(&ctx, choose(&ctx, 0));
    assert_true(dh_cuda_allows_wgmma(0));
    assert_false(dh_cuda_allows_wgmma(1));
    assert_int_equal(dh_host_n_objects(), objects);
    /* Known: nothing runs again, so that nothing of it can fail. */
    dh_host_fail_allocation(1);
    assert_ok(&ctx, choose(&ctx, 0));
    dh_host_fail_allocation(0);
}

/* Any wrong layout, of either kernel's. */
static void one_that_differs_is_not_used(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int twist = 1; twist <= 3; twist++) {
        cuda_wgmma_twist(twist);
        const dh_status st = choose(&ctx, twist);
        cuda_wgmma_twist(0);
        assert_ok(&ctx, st);
        assert_false(dh_cuda_allows_wgmma(twist));
        assert_ok(&ctx, choose(&ctx, twist)); /* and stays so */
        assert_false(dh_cuda_allows_wgmma(twist));
    }
    cuda_mma_twist(1);
    const dh_status st = choose(&ctx, 4);
    cuda_mma_twist(0);
    assert_ok(&ctx, st);
    assert_false(dh_cuda_allows_wgmma(4));
}

static void one_that_is_not_wanted_is_not_tried(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    setenv("DHELIX_WGMMA", "off", 1);
    dh_host_fail_allocation(1);
    assert_ok(&ctx, choose(&ctx, 5));
    dh_host_fail_allocation(0);
    unsetenv("DHELIX_WGMMA");
    assert_false(dh_cuda_allows_wgmma(5));
}

/* A check that cannot be made is an error, and made again. */
static void one_that_fails_is_an_error(void **state)
{
    dh_ctx ctx = DH_CTX_INIT, more = DH_CTX_INIT;
    const int64_t objects = dh_host_n_objects();
    dh_host_fail_kernel(3);
    assert_int_equal(choose(&ctx, 6), DH_EINTERNAL);
    assert_non_null(strstr(ctx.message, "cudaErrorLaunchFailure"));
    assert_non_null(strstr(ctx.message, "DHELIX_WGMMA=off"));
    assert_false(dh_cuda_allows_wgmma(6));
    dh_host_fail_allocation(2);
    assert_int_equal(choose(&more, 6), DH_ENOMEM);
    assert_int_equal(dh_host_n_objects(), objects);
    dh_ctx last = DH_CTX_INIT;
    assert_ok(&last, choose(&last, 6));
    assert_true(dh_cuda_allows_wgmma(6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_is_close_is_used),
        cmocka_unit_test(one_that_differs_is_not_used),
        cmocka_unit_test(one_that_is_not_wanted_is_not_tried),
        cmocka_unit_test(one_that_fails_is_an_error),
    };
    dh_host_set_devices(N_DEVICES);
    dh_log_set_level(DH_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
