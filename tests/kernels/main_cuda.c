#include "kernel_test.h"

#define RUN(group) _cmocka_run_group_tests(#group, group##_tests, n_##group##_tests, NULL, NULL)

extern const struct CMUnitTest cuda_tests[], cuda_mma_tests[];
extern const size_t n_cuda_tests, n_cuda_mma_tests;

/* Attention alone with any argument, all the others without: two tests of a few seconds. Products
 * of matrices are cuBLASLt's, which the host has not. */
int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) return RUN(attn) > 0;
    cmocka_set_skip_filter("binding_respects_the_cpuset"); /* of the cpu alone */
    return RUN(norm) + RUN(pointwise) + RUN(loss) + RUN(optim) + RUN(moe) + RUN(latent) +
               RUN(linear) + RUN(cuda) + RUN(cuda_mma) >
           0;
}
