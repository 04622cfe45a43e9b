#include "kernel_test.h"

#define RUN(group) _cmocka_run_group_tests(#group, group##_tests, n_##group##_tests, NULL, NULL)

int main(void)
{
    omp_set_num_threads(2);
    printf("inner loops: %s\n", dh_simd_get()->name);
    return RUN(gemm) + RUN(norm) + RUN(pointwise) + RUN(attn) + RUN(linear) + RUN(loss) +
               RUN(optim) + RUN(moe) + RUN(latent) >
           0;
}
