/* Precedents: which rows are nearest, which count for the mean, what is said of them. */
#include "costs/precedents.h"
#include "dh_test.h"

#define FACTS                                                                                      \
    "cluster,system,family,strategy,schedule,recompute,parameters,experts,devices,tp,pp,cp,ep,"    \
    "zero,seq_len,fp8,"                                                                            \
    "processors,peak_tflops,memory_gb_per_s,local_gb_per_s,network_gb_per_s\n"
#define TITLE "# made by hand\ntable,row,predicted,published,rate,fitted," FACTS
#define H100 ",132,989.5,3350,450,400\n"
#define DENSE "llama,sequential,1f1b,none,7e10,0,"

static const dh_step_facts job = {.cluster = "h100",
                                  .system = "nemo",
                                  .family = "llama",
                                  .strategy = "sequential",
                                  .schedule = "1f1b",
                                  .recompute = "none",
                                  .parameters = 7e10,
                                  .devices = 64,
                                  .tp = 4,
                                  .pp = 4,
                                  .cp = 1,
                                  .ep = 1,
                                  .zero = 1,
                                  .seq_len = 8192,
                                  .processors = 132,
                                  .peak_tflops = 990,
                                  .memory_gb_per_s = 3350,
                                  .local_gb_per_s = 450,
                                  .network_gb_per_s = 400};

static dh_precedents find(const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_precedents found;
    assert_ok(&ctx, dh_precedents_find_in(&ctx, text, strlen(text), &job, &found));
    return found;
}

static void assert_said(const dh_precedents *found, const char *said)
{
    dh_str out = DH_STR_INIT;
    dh_precedents_print(found, &out);
    assert_string_equal(out.text, said);
    dh_str_fini(&out);
}

/* Twice the devices are nearer than another system, and that is nearer than experts. Another device
 * is no row at all, however alike the job. */
static void test_nearest(void **state)
{
    const dh_precedents found =
        find(TITLE
             "moe,a,10,8,0,0,h100,nemo,mixtral,sequential,1f1b,none,7e10,8,64,4,4,1,1,1,8192,0" H100
             "other,b,11,10,0,0,h100,torchtitan," DENSE "64,4,4,1,1,1,8192,0" H100
             "same,\"c, 1\",90,100,0,1,h100,nemo+eager," DENSE "128,4,4,1,1,1,8192,0" H100
             "far,d,10,10,0,0,h100,torchtitan," DENSE "64,1,1,1,1,3,8192,1" H100
             "a100,e,10,10,0,0,a100,nemo," DENSE "64,4,4,1,1,1,8192,0,108,312,2039,300,200\n");
    assert_int_equal(found.n_of_device, 4);
    assert_int_equal(found.n_shown, DH_PRECEDENT_SHOWN);
    assert_string_equal(found.shown[0].table, "same");
    assert_string_equal(found.shown[0].row, "c, 1");
    assert_true(found.shown[0].distance == 0.25 + 3 * 0.25);
    assert_string_equal(found.shown[1].table, "other");
    assert_string_equal(found.shown[2].table, "moe");
    /* 25, 10 and 0 %: the nearest was fitted. */
    assert_int_equal(found.n_mean, 3);
    assert_true(fabs(found.mean_error - 35.0 / 3) < 1e-9);
    assert_said(&found, "nearest measured: llama 70 B on 128 h100, nemo, tp 4 pp 4 (table same, "
                        "fitted): predicted 10.0 % too fast; 3 nearest rows: 11.7 % off on "
                        "average");
}

/* Of two rows that are alike otherwise the one with the job's recomputation and schedule. */
static void test_order(void **state)
{
    const dh_precedents found =
        find(TITLE "t,full,10,10,0,0,h100,nemo,llama,sequential,1f1b,full,7e10,0,64,4,4,1,1,1,"
                   "8192,0" H100 "t,folded,10,10,0,0,h100,nemo,llama,sequential,zb-v,none,7e10,0,"
                   "64,4,4,1,1,1,8192,0" H100 "t,own,10,10,0,0,h100,nemo," DENSE
                   "64,4,4,1,1,1,8192,0" H100);
    assert_string_equal(found.shown[0].row, "own");
    assert_true(found.shown[0].distance == 0 && found.shown[1].distance == 0.5);
    assert_string_equal(found.shown[1].row, "full");
}

/* A rate above the published one is a step too fast, a time above it one too slow. */
static void test_signs(void **state)
{
    dh_precedent row = {.predicted = 110, .published = 100};
    assert_true(fabs(dh_precedent_error(&row) + 10) < 1e-9);
    row.rate = true;
    assert_true(fabs(dh_precedent_error(&row) - 10) < 1e-9);
}

/* Six rows without a fit: the farthest is left out of the mean, wherever it stands. */
static void test_mean(void **state)
{
    char text[2048] = TITLE;
    static const int devices[] = {1024, 64, 128, 256, 64, 512}; /* 1024 is 40 % off, others 10 */
    for (size_t i = 0; i < DH_COUNTOF(devices); i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n,
                 "t,r%zu,%d,100,1,0,h100,nemo," DENSE "%d,4,4,1,1,1,8192,0" H100, i,
                 devices[i] == 1024 ? 140 : 110, devices[i]);
    }
    const dh_precedents found = find(text);
    assert_int_equal(found.n_mean, DH_PRECEDENT_MEAN_OF);
    assert_true(fabs(found.mean_error - 10) < 1e-9);
    assert_string_equal(found.shown[0].row, "r1"); /* at equal distance the earlier one */
    assert_string_equal(found.shown[1].row, "r4");
    assert_string_equal(found.shown[2].row, "r2");
}

static void test_words(void **state)
{
    dh_precedents found = find(TITLE "a100,e,10,10,0,0,a100,nemo," DENSE
                                     "64,4,4,1,1,1,8192,0,108,312,2039,300,200\n");
    assert_int_equal(found.n_of_device, 0);
    assert_said(&found, "nearest measured: no row of this device");
    json_t *json = dh_precedents_json(&found);
    assert_string_equal(json_string_value(json_object_get(json, "reason")),
                        "no row of this device");
    assert_null(json_object_get(json, "mean_error_percent"));
    json_decref(json);

    found = find(TITLE "far,d,12,10,0,1,h100,torchtitan," DENSE "64,1,1,1,1,3,8192,1" H100);
    assert_said(&found, "nearest measured: llama 70 B on 64 h100, torchtitan, zero 3 (table far, "
                        "fitted): predicted 20.0 % too slow, unlike this job in system, "
                        "precision, tp and more; every row of this device is fitted");
    json = dh_precedents_json(&found);
    const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
    assert_true(json_is_true(json_object_get(row, "fitted")));
    assert_true(json_real_value(json_object_get(row, "too_fast_percent")) == -20);
    assert_int_equal(json_array_size(json_object_get(row, "differs")), 5);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(row, "step"), "zero")), 3);
    json_decref(json);
}

static void test_refused(void **state)
{
    static const char *const rows[] = {
        "t,r,10,10,0,0,h100,nemo," DENSE "64,4,4,1,1,1,8192,0,132,989.5,3350,450\n", /* one short */
        "t,r,10,10,0,0,h100,nemo," DENSE "64,4,4,1,1,1,8192,0,132,989.5,3350,450,400,1\n",
        "t,r,10,none,0,0,h100,nemo," DENSE "64,4,4,1,1,1,8192,0" H100,
        "t,r,10,0,0,0,h100,nemo," DENSE "64,4,4,1,1,1,8192,0" H100};
    dh_ctx ctx = DH_CTX_INIT;
    dh_precedents found;
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        char text[1024];
        const int n = snprintf(text, sizeof text, "%s%s", TITLE, rows[i]);
        assert_fails(&ctx, dh_precedents_find_in(&ctx, text, (size_t)n, &job, &found), DH_EFORMAT,
                     "steps.csv:3");
    }
}

/* The shipped rows can be read, and every cluster that steps were published of has some. */
static void test_shipped(void **state)
{
    static const char *const clusters[] = {"a100", "selene", "h100", "h100-500w",
                                           "h200", "b200",   "a40",  "a800"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_precedents found;
    dh_cluster *cluster;
    dh_job *own;
    static const char text[] = "model: {family: llama, n_layers: 4, width: 4096, n_heads: 32, "
                               "ffn_width: 11008, vocab: 32000}\n";
    assert_ok(&ctx, dh_job_parse(&ctx, text, sizeof text - 1, "job", NULL, NULL, 0, &own));
    for (size_t i = 0; i < DH_COUNTOF(clusters); i++) {
        dh_step_facts facts;
        assert_ok(&ctx, dh_cluster_find(&ctx, clusters[i], &cluster));
        dh_step_facts_of(own, cluster, &facts);
        assert_string_equal(facts.family, "llama");
        assert_ok(&ctx, dh_precedents_find(&ctx, &facts, &found));
        if (found.n_shown < DH_PRECEDENT_SHOWN) fail_msg("%s: no rows", clusters[i]);
        for (size_t k = 0; k < found.n_shown; k++)
            assert_true(fabs(dh_precedent_error(&found.shown[k])) < 100);
        dh_cluster_destroy(cluster);
    }
    assert_ok(&ctx, dh_cluster_find(&ctx, "mi300x", &cluster));
    dh_step_facts facts;
    dh_step_facts_of(own, cluster, &facts);
    assert_ok(&ctx, dh_precedents_find(&ctx, &facts, &found));
    assert_int_equal(found.n_shown, 0);
    dh_cluster_destroy(cluster);
    dh_job_destroy(own);
}

/* Every term has a name and says what it is. */
static void test_terms(void **state)
{
    const char *doc;
    size_t n = 0;
    while (dh_step_term(n, &doc)) assert_true(strlen(dh_step_term(n++, &doc)) > 1 && *doc);
    assert_true(n > 10 && n <= 32); /* bits of dh_precedent.differs */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest), cmocka_unit_test(test_order),
        cmocka_unit_test(test_signs),   cmocka_unit_test(test_mean),
        cmocka_unit_test(test_words),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shipped), cmocka_unit_test(test_terms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
