/* What suites share that compare the gradients of all ranks of a mesh with one rank's, tensor by
 * tensor. */
#ifndef TEST_TRAIN_GRADIENTS_H
#define TEST_TRAIN_GRADIENTS_H

#include "team.h"

static inline bool is_set(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits != UINT32_MAX;
}

/* A tensor from the parts of all ranks. What several ranks have must be the same
 * bits; every element is somewhere. Returns how many copies of elements were seen. */
static inline int64_t assemble_gradient(const team *t, const char *name, int64_t n, float *whole)
{
    dh_ctx ctx = DH_CTX_INIT;
    int64_t n_seen = 0;
    float *part = malloc((size_t)n * sizeof *part);
    memset(whole, 0xff, (size_t)n * sizeof *whole);
    for (int r = 0; r < t->n; r++) {
        dh_hf_tensor *list;
        size_t n_list;
        assert_ok(&ctx,
                  dh_hf_tensors(&ctx, dh_session_layout(t->members[r].session), &list, &n_list));
        for (size_t k = 0; k < n_list; k++) {
            if (strcmp(list[k].name, name) != 0) continue;
            memset(part, 0xff, (size_t)n * sizeof *part);
            assert_ok(&ctx,
                      dh_session_read_hf(&ctx, t->members[r].session, &list[k], DH_BUF_GRAD, part));
            for (int64_t i = 0; i < n; i++) {
                if (!is_set(part[i])) continue;
                if (is_set(whole[i]) && memcmp(&whole[i], &part[i], sizeof part[i]) != 0)
                    fail_msg("%s, element %lld: rank %d has %.9g, an earlier one %.9g", name,
                             (long long)i, r, (double)part[i], (double)whole[i]);
                whole[i] = part[i];
                n_seen++;
            }
        }
        free(list);
    }
    free(part);
    for (int64_t i = 0; i < n; i++)
        if (!is_set(whole[i])) fail_msg("%s: no rank has element %lld", name, (long long)i);
    return n_seen;
}

/* Worst error of any tensor of a mesh against one rank's, of the element plus its tensor's root
 * mean square. */
static inline double compare_gradients(const team *one, const team *many, double tolerance,
                                       const char *what)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_hf_tensor *list;
    size_t n_list;
    double worst = 0;
    assert_ok(&ctx,
              dh_hf_tensors(&ctx, dh_session_layout(one->members[0].session), &list, &n_list));
    assert_true(n_list > 20);
    for (size_t k = 0; k < n_list; k++) {
        const int64_t n = list[k].shape[0] * (list[k].ndim == 2 ? list[k].shape[1] : 1);
        float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        assert_int_equal(assemble_gradient(one, list[k].name, n, want) % n, 0);
        int64_t n_seen = assemble_gradient(many, list[k].name, n, got);
        assert_true(n_seen >= n && n_seen <= n * many->n);
        const double size = rms(want, n);
        /* A router's bias is moved by no gradient; everything else is. */
        assert_int_equal(size > 0, !strstr(list[k].name, "e_score_correction_bias"));
        double error = 0;
        for (int64_t i = 0; i < n; i++) {
            const double by = size > 0 ? size + fabs((double)want[i]) : 1;
            double e = fabs((double)got[i] - (double)want[i]) / by;
            if (!(e <= error)) error = e;
        }
        if (!(error <= tolerance))
            fail_msg("%s: gradient of %s is off by %g", what, list[k].name, error);
        worst = fmax(worst, error);
        free(want);
        free(got);
    }
    free(list);
    return worst;
}

#endif
