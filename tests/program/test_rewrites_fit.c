/* The search for rewrites counts memory: of the sequences that fit the shortest is taken, and the
 * one that needs least where none does. */
#include "dh_test.h"

#include "program/rewrites.h"

static dh_recipe recipe_of(dh_ctx *ctx, const char *preset, int64_t pp)
{
    dh_recipe r = {.dtype = DH_BF16,
                   .micro_batch = 2,
                   .seq = 64,
                   .n_micro = 8,
                   .global_tokens = 1024,
                   .sharing.sequence = DH_SEQUENCE_WHOLE,
                   .costs = &dh_costs_default};
    assert_ok(ctx, dh_model_from_preset(ctx, preset, &r.model));
    assert_ok(ctx, dh_mesh_init(ctx, 1, 2, pp, 1, 1, 0, 0, &r.mesh));
    return r;
}

static dh_rewrites find(const dh_recipe *recipe, double memory_bytes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_rewrites r;
    assert_ok(&ctx, dh_recipe_rewrites(&ctx, recipe, memory_bytes, &r));
    assert_true(r.n > 12);
    return r;
}

/* By looking at all of them. */
static void check_best(const dh_rewrites *r, double memory_bytes)
{
    const dh_rewrites_tried *best = &r->at[r->best];
    bool any = false;
    for (size_t i = 0; i < r->n; i++) any |= r->at[i].step_bytes <= memory_bytes;
    assert_true(any == best->fits);
    for (size_t i = 0; i < r->n; i++) {
        const dh_rewrites_tried *one = &r->at[i];
        assert_true(one->fits == (one->step_bytes <= memory_bytes));
        assert_true(one->kept_bytes > 0 && one->peak_bytes >= one->kept_bytes);
        if (any && one->fits) assert_true(one->layer_ns >= best->layer_ns);
        if (!any) assert_true(one->step_bytes >= best->step_bytes);
    }
}

static void the_shortest_that_fits_is_taken(void **state)
{
    static const char *const presets[] = {"gpt2-tiny", "llama-tiny"};
    for (size_t p = 0; p < DH_COUNTOF(presets); p++)
        for (int64_t pp = 1; pp <= 2; pp++) {
            dh_ctx ctx = DH_CTX_INIT;
            const dh_recipe recipe = recipe_of(&ctx, presets[p], pp);
            const dh_rewrites all = find(&recipe, 0);
            double least = all.at[0].step_bytes, most = least;
            for (size_t i = 0; i < all.n; i++) {
                assert_true(all.at[i].fits);
                assert_true(all.at[i].layer_ns >= all.at[all.best].layer_ns);
                least = DH_MIN(least, all.at[i].step_bytes);
                most = DH_MAX(most, all.at[i].step_bytes);
            }
            assert_true(least < most); /* slices are less than whole tokens */
            const double limits[] = {most, (least + most) / 2, least, least - 1};
            for (size_t k = 0; k < DH_COUNTOF(limits); k++) {
                const dh_rewrites r = find(&recipe, limits[k]);
                check_best(&r, limits[k]);
                assert_true(r.n == all.n);
            }
        }
}

/* Gathering again takes longer, and keeps less. */
static void what_is_gathered_again_is_not_kept(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_recipe recipe = recipe_of(&ctx, "llama-tiny", 1);
    const dh_rewrites r = find(&recipe, 0);
    size_t kept = 0, again = 0;
    for (size_t i = 0; i < r.n; i++) {
        dh_str out = DH_STR_INIT;
        dh_rewrites_print(&r.at[i].passes, &out);
        if (strcmp(out.text, "split, reorder") == 0) again = i;
        if (strcmp(out.text, "split, reorder(regather=false)") == 0) kept = i;
        dh_str_fini(&out);
    }
    assert_true(again > 0 && kept > 0);
    assert_true(r.at[again].kept_bytes < r.at[kept].kept_bytes);
    assert_true(r.at[again].layer_ns > r.at[kept].layer_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shortest_that_fits_is_taken),
        cmocka_unit_test(what_is_gathered_again_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
