#include "kernel_test.h"

enum { N = 23, V = 517 };

/* Stats, losses and gradients of the whole row, in float64. */
static void reference(buf logits, const int32_t *targets, double scale, double *loss, double *grad)
{
    for (int64_t n = 0; n < N; n++) {
        double max = -INFINITY, sum = 0;
        for (int64_t v = 0; v < V; v++) max = fmax(max, get(logits, n * V + v));
        for (int64_t v = 0; v < V; v++) sum += exp(get(logits, n * V + v) - max);
        const bool counted = targets[n] >= 0;
        loss[n] = counted ? log(sum) + max - get(logits, n * V + targets[n]) : 0;
        for (int64_t v = 0; v < V; v++)
            grad[n * V + v] =
                counted ? (exp(get(logits, n * V + v) - max) / sum - (v == targets[n])) * scale : 0;
    }
}

static buf columns(buf logits, int64_t v0, int64_t v1)
{
    buf part = buf_new(logits.dtype, N * (v1 - v0));
    for (int64_t n = 0; n < N; n++)
        for (int64_t v = v0; v < v1; v++) set(part, n * (v1 - v0) + v - v0, get(logits, n * V + v));
    return part;
}

static void sharded_loss_matches_whole(void **state)
{
    uint64_t seed = test_seed("cross-entropy");
    EACH_DTYPE(T)
    for (int64_t tp = 1; tp <= 3; tp++) {
        buf logits = buf_random(T, N * V, 20, &seed), parts = buf_new(DH_F32, tp * N * 3);
        buf stats = buf_new(DH_F32, N * 3), loss = buf_new(DH_F32, N);
        int32_t targets[N];
        for (int n = 0; n < N; n++) targets[n] = n % 5 == 4 ? -1 : (int32_t)(test_rand(&seed) % V);
        const double scale = 0.37;
        double *want_loss = zeros(N), *want_grad = zeros(N * V);
        reference(logits, targets, scale, want_loss, want_grad);

        for (int64_t i = 0; i < tp; i++) {
            const int64_t v0 = i * V / tp, v1 = (i + 1) * V / tp;
            buf part = columns(logits, v0, v1);
            dh_k_ce_stats(T, N, v0, v1, part.raw, targets, f32(parts) + i * N * 3);
            buf_free(part);
        }
        dh_k_ce_merge(tp, N, f32(parts), f32(stats));
        dh_k_ce_loss(N, f32(stats), targets, f32(loss));
        check_close("loss", loss, want_loss, 2e-6);
        for (int64_t i = 0; i < tp; i++) {
            const int64_t v0 = i * V / tp, v1 = (i + 1) * V / tp;
            buf part = columns(logits, v0, v1);
            dh_k_ce_grad(T, N, v0, v1, part.raw, targets, f32(stats), (float)scale, part.raw);
            for (int64_t k = 0; k < part.n; k++)
                check_value("dlogits", get(part, k),
                            want_grad[k / (v1 - v0) * V + v0 + k % (v1 - v0)],
                            T == DH_BF16 ? 1e-3 : 1e-6);
            buf_free(part);
        }
        free(want_loss);
        free(want_grad);
        buf_free(loss);
        buf_free(stats);
        buf_free(parts);
        buf_free(logits);
    }
}

static void huge_logits_do_not_overflow(void **state)
{
    float logits[4] = {3e38f, -3e38f, 3e38f, 0}, stats[3], loss, grad[4];
    const int32_t target = 0;
    dh_k_ce_stats(DH_F32, 1, 0, 4, logits, &target, stats);
    dh_k_ce_loss(1, stats, &target, &loss);
    dh_k_ce_grad(DH_F32, 1, 0, 4, logits, &target, stats, 1, grad);
    check_value("loss", loss, log(2), 1e-6);
    check_value("gradient", grad[0], -0.5, 1e-6);
    check_value("gradient", grad[1], 0, 1e-6);
}

const struct CMUnitTest loss_tests[] = {
    cmocka_unit_test(sharded_loss_matches_whole),
    cmocka_unit_test(huge_logits_do_not_overflow),
};
const size_t n_loss_tests = DH_COUNTOF(loss_tests);
