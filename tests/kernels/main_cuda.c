#include "kernel_test.h"

#ifdef DH_TEST_ON_GPU
#include <cuda_runtime_api.h>

#include "gpu_memory.h"
#endif

extern const struct CMUnitTest cuda_tests[], cuda_mma_tests[], wgmma_tests[];
extern const size_t n_cuda_tests, n_cuda_mma_tests, n_wgmma_tests;

/* Products of matrices are cuBLASLt's: test_cuda_gemm, and operators (test_cuda_glue). */
#define GROUP(name)                                                                                \
    {                                                                                              \
#name, name##_tests, &n_##name##_tests                                                     \
    }
static const struct group {
    const char *name;
    const struct CMUnitTest *tests;
    const size_t *n;
} groups[] = {GROUP(norm),     GROUP(pointwise), GROUP(loss),   GROUP(optim),
              GROUP(moe),      GROUP(latent),    GROUP(linear), GROUP(cuda),
              GROUP(cuda_mma), GROUP(wgmma),     GROUP(attn)};

static char **wanted;

static bool is_wanted(const struct group *g)
{
    for (char **name = wanted; *name; name++)
        if (strcmp(*name, g->name) == 0) return true;
    return false;
}

static int run_groups(void)
{
    int failed = 0;
    cmocka_set_skip_filter("binding_respects_the_cpuset"); /* of the cpu alone */
    for (size_t i = 0; i < DH_COUNTOF(groups); i++)
        if (is_wanted(&groups[i]))
            failed += _cmocka_run_group_tests(groups[i].name, groups[i].tests, *groups[i].n, NULL,
                                              NULL) != 0;
    return failed > 0;
}

/* main_cuda GROUP...; on a GPU without arguments all of them, else all but attention, which takes
 * as long as the others. */
int main(int argc, char **argv)
{
    static char *most[] = {"norm",   "pointwise", "loss",     "optim", "moe", "latent",
                           "linear", "cuda",      "cuda_mma", "wgmma", NULL,  NULL};
    wanted = argc > 1 ? argv + 1 : most;
#ifdef DH_TEST_ON_GPU
    enum { SKIPPED = 77 }; /* to CTest */
    int n_devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&n_devices);
    if (found != cudaSuccess || n_devices == 0) {
        printf("not run: there is no GPU (%s)\n", cudaGetErrorString(found));
        return SKIPPED;
    }
    most[DH_COUNTOF(most) - 2] = "attn";
    return gpu_run_pinned(run_groups);
#else
    return run_groups();
#endif
}
