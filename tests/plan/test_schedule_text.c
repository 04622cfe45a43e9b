/* Pipeline schedules as text: CSV out and in, rows by name, layers shared by stages. */
#include "schedules.h"

/* ---- CSV ------------------------------------------------------------------------------------ */

static void assert_same_slots(const dh_schedule *a, const dh_schedule *b)
{
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_int_equal(a->n_stages, b->n_stages);
    assert_int_equal(a->n_micro, b->n_micro);
    assert_memory_equal(a->first_slot, b->first_slot,
                        (size_t)(a->n_ranks + 1) * sizeof *a->first_slot);
    for (int32_t n = 0; n < a->first_slot[a->n_ranks]; n++) {
        assert_int_equal(a->slots[n].n_actions, b->slots[n].n_actions);
        for (int32_t i = 0; i < a->slots[n].n_actions; i++) {
            dh_pipe_action x = a->slots[n].action[i], y = b->slots[n].action[i];
            assert_true(x.kind == y.kind && x.stage == y.stage && x.micro == y.micro);
            assert_int_equal(dh_schedule_rank(a, x.stage, x.micro),
                             dh_schedule_rank(b, y.stage, y.micro));
        }
    }
}

static void csv_round_trip(void **state)
{
    uint64_t rng = test_seed("csv_round_trip");
    dh_ctx ctx = DH_CTX_INIT;
    for (int round = 0; round < 300; round++) {
        dh_schedule *s = random_schedule(&rng), *back;
        dh_str text = DH_STR_INIT, again = DH_STR_INIT;
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
        assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "round trip", &back));
        assert_same_slots(s, back);
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, back, &again));
        assert_string_equal(text.text, again.text);
        dh_str_fini(&text);
        dh_str_fini(&again);
        dh_schedule_destroy(s);
        dh_schedule_destroy(back);
    }
}

static void csv_as_pytorch_writes_it(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule *s = generate("1f1b", 2, 2, 0);
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_string_equal(text.text, "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
    dh_str_fini(&text);

    /* The same with transfers, sharding, blanks, carriage returns and a comment. */
    static const char busy[] =
        "# compute and communication\r\n"
        "0UNSHARD, 0F0 ,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F0,,0RECV_B0,0B0,0RECV_B1,0B1,"
        "0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\r\n"
        " 1RECV_F0 ,\t1F0,\"1B0\",1SEND_B0,1 F 1,1B1,1SEND_B1,1WAIT_SEND_B0\r\n\r\n";
    dh_schedule *read;
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, busy, strlen(busy), "busy.csv", &read));
    assert_same_slots(s, read);
    dh_schedule_destroy(read);
    dh_schedule_destroy(s);

    /* Without a line break at the end, and a pair in either order. */
    static const char pair[] = "0F0,(0B0;0F1)OVERLAP_F_B,0I1,0W1";
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, pair, strlen(pair), "pair.csv", &read));
    assert_int_equal(read->slots[1].n_actions, 2);
    assert_int_equal(read->slots[1].action[0].kind, DH_PIPE_F);
    assert_int_equal(read->slots[1].action[1].kind, DH_PIPE_B);
    dh_schedule_destroy(read);

    /* Placement from who does what: round-robin, and two copies. */
    s = generate("interleaved-1f1b", 2, 4, 3);
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "i.csv", &read));
    assert_int_equal(read->n_copies, 1);
    for (int32_t v = 0; v < 6; v++) assert_int_equal(read->rank_of[v], v % 2);
    dh_str_fini(&text);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
    s = generate("dualpipe", 4, 8, 0);
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, text.text, text.len, "d.csv", &read));
    assert_int_equal(read->n_copies, 2);
    assert_memory_equal(read->rank_of, s->rank_of, 8 * sizeof(int32_t));
    assert_memory_equal(read->copy_of, s->copy_of, 8 * sizeof(int32_t));
    dh_str_fini(&text);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
}

static void csv_refuses_with_place(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    static const struct {
        const char *text;
        dh_status status;
        const char *part;
    } cases[] = {
        {"", DH_EFORMAT, "no action"},
        {",,\n,,\n", DH_EFORMAT, "no action"},
        {"0F0,0B0\n\n1F0,1B0\n", DH_EFORMAT, "row 2: no action, so rank 1"},
        {"0F0,0B0\n0UNSHARD,\n", DH_EFORMAT, "row 2: no action"},
        {"0F0,0B0\n1F0,1X0\n", DH_EFORMAT, "row 2, column 2: \"1X0\": unknown action"},
        {"0F0,F1\n", DH_EFORMAT, "row 1, column 2: \"F1\""},
        {"0F\n", DH_EFORMAT, "number of its micro-batch"},
        {"0F0x\n", DH_EFORMAT, "text after"},
        {"0f0\n", DH_EFORMAT, "unknown action"},
        {"0FF0\n", DH_EFORMAT, "unknown action"},
        {"0SEND_Q0\n", DH_EFORMAT, "unknown action"},
        {"0F99999999999999999999\n", DH_EFORMAT, "row 1, column 1"},
        {"0F0,(0F1;0B0)\n", DH_EFORMAT, "OVERLAP_F_B"},
        {"0F0,(0F1,0B0)OVERLAP_F_B\n", DH_EFORMAT, "column 2"},
        {"0F0,(0B0;0B1)OVERLAP_F_B\n", DH_EFORMAT, "a forward and any other"},
        {"0F0,(0F1;0SEND_B0)OVERLAP_F_B\n", DH_EFORMAT, "communication inside"},
        {"0F0,0B0\n0F1,0B1\n1F0\n", DH_EINVAL, "only 5 actions"},
        {"0F0\n0B0\n", DH_EINVAL,
         "row 2, column 1: backward of micro-batch 0 on stage 0, but rank 0"},
        {"0F0,0F0,0B0,0B0\n", DH_EINVAL, "second time"},
        {"60000000F0\n", DH_EINVAL, "only 1 actions"},
        {"0F0,0F2,0B0,0B2,0F0,0F0\n", DH_EINVAL, "no rank does micro-batch 1 on stage 0"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_schedule *s;
        dh_status st =
            dh_schedule_parse_csv(&ctx, cases[i].text, strlen(cases[i].text), "t.csv", &s);
        if (st != cases[i].status || !strstr(ctx.message, cases[i].part) ||
            !strstr(ctx.message, "t.csv"))
            fail_msg("case %zu: %s: %s", i, dh_status_name(st), ctx.message);
        dh_ctx_reset(&ctx);
    }
    dh_schedule *s;
    assert_fails(&ctx, dh_schedule_read_csv(&ctx, "/nonexistent/x.csv", &s), DH_EIO, "x.csv");
}

/* Damaged text is refused with a message or gives a valid schedule; never anything else. */
static void csv_survives_damage(void **state)
{
    uint64_t rng = test_seed("csv_survives_damage");
    static const char bytes[] = "0123456789FBIW,;()\n _OVERLAP#\"\x80";
    for (int round = 0; round < 300; round++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_schedule *s = random_schedule(&rng);
        dh_str text = DH_STR_INIT;
        assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
        dh_schedule_destroy(s);
        for (int change = 0; change < 8; change++) {
            size_t at = test_rand(&rng) % text.len;
            text.text[at] = bytes[test_rand(&rng) % (sizeof bytes)]; /* the last one is 0 */
            size_t n = change == 7 ? at : text.len;
            char *exact = malloc(n + !n); /* of exact size, for address sanitizer */
            memcpy(exact, text.text, n);
            if (dh_schedule_parse_csv(&ctx, exact, n, "damaged", &s) == DH_OK) {
                assert_ok(&ctx, dh_schedule_validate(&ctx, s, NULL));
                dh_schedule_destroy(s);
            } else {
                assert_true(ctx.message[0] != '\0');
                dh_ctx_reset(&ctx);
            }
            free(exact);
        }
        dh_str_fini(&text);
    }
}

/* What PyTorch's tests ship in the letters before 2.6: BW whole backwards, B those of inputs. */
static void csv_in_older_letters(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_schedule *old, *now;
    int64_t n[DH_N_PIPE_KINDS] = {0};
    static const char older[] = "0F0,0F1,,0BW0,,0BW1\n,1F0,1B0,1F1,1B1,1 W 0,1W1\n";
    static const char today[] = "0F0,0F1,,0B0,,0B1\n,1F0,1I0,1F1,1I1,1W0,1W1\n";
    static const char no_bw[] = "0F0,0F1,,0B0,0W0,0B1,0W1\n,1F0,1B0,1F1,1B1,1W0,1W1\n";
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, older, strlen(older), "older", &old));
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, today, strlen(today), "today", &now));
    assert_same_slots(old, now);
    dh_schedule_destroy(old);
    dh_schedule_destroy(now);
    static const char both[] = "0F0,0F1,,0BW0,,0BW1\n,1F0,1I0,1F1,1B1,1W0,1W1\n";
    assert_fails(&ctx, dh_schedule_parse_csv(&ctx, both, strlen(both), "both", &old), DH_EFORMAT,
                 "both has both BW");
    assert_ok(&ctx, dh_schedule_parse_csv(&ctx, no_bw, strlen(no_bw), "no_bw", &old));
    dh_schedule_destroy(old);
    assert_ok(&ctx, dh_schedule_read_csv(&ctx, "tests/data/zb1p_2rank_2stagep_comms.csv", &old));
    for (int32_t i = 0; i < old->first_slot[old->n_ranks]; i++) n[old->slots[i].action[0].kind]++;
    assert_true(old->n_ranks == 2 && old->n_stages == 4);
    assert_int_equal(n[DH_PIPE_F], old->n_stages * old->n_micro);
    assert_int_equal(n[DH_PIPE_B] + n[DH_PIPE_I], n[DH_PIPE_F]);
    assert_true(n[DH_PIPE_I] > 0 && n[DH_PIPE_I] == n[DH_PIPE_W]);
    dh_schedule_destroy(old);
}

static void csv_files(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[300];
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/w.csv", dir);
    dh_schedule *s = generate("dhelix-w", 3, 7, 0), *read;
    dh_str text = DH_STR_INIT;
    assert_ok(&ctx, dh_schedule_print_csv(&ctx, s, &text));
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, text.text, text.len));
    dh_str_fini(&text);
    assert_ok(&ctx, dh_schedule_read_csv(&ctx, path, &read));
    assert_same_slots(s, read);
    assert_string_equal(read->name, path);
    dh_schedule_destroy(s);
    dh_schedule_destroy(read);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

/* ---- rows by name, sizes -------------------------------------------------------------------- */

static void rows_say_why_not(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const dh_schedule_row *row;
    dh_schedule *s;
    assert_fails(&ctx, dh_schedule_find(&ctx, "zb-h3", &row), DH_EMISSING, "did you mean \"zb-h");
    assert_fails(&ctx, dh_schedule_find(&ctx, "nothing-like-it", &row), DH_EMISSING,
                 "list schedules");

    static const struct {
        const char *row;
        dh_schedule_spec spec;
        dh_status status;
        const char *part;
    } cases[] = {
        {"interleaved-1f1b", {.n_ranks = 4, .n_micro = 9}, DH_EUNSUPPORTED, "12 would be"},
        {"looped-bfs", {.n_ranks = 4, .n_micro = 8, .n_chunks = 1}, DH_EUNSUPPORTED, "gpipe is"},
        {"interleaved-1f1b",
         {.n_ranks = 4, .n_micro = 8, .n_chunks = 1},
         DH_EUNSUPPORTED,
         "1f1b is"},
        {"dualpipe", {.n_ranks = 3, .n_micro = 6}, DH_EUNSUPPORTED, "even"},
        {"dhelix-w",
         {.n_ranks = 3, .n_micro = 6, .n_chunks = 4},
         DH_EUNSUPPORTED,
         "by construction"},
        {"1f1b", {.n_ranks = 0, .n_micro = 6}, DH_EINVAL, "0 pipeline stages"},
        {"1f1b", {.n_ranks = 2, .n_micro = 0}, DH_EINVAL, "0 micro-batches"},
        {"1f1b", {.n_ranks = 4096, .n_micro = 1 << 20}, DH_EINVAL, "exceed"},
        {"zb-auto", {.n_ranks = 300, .n_micro = 6}, DH_EUNSUPPORTED, "use zb-h1"},
        {"zb-auto", {.n_ranks = 3, .n_micro = 6, .wgrad_permille = 1001}, DH_EINVAL, "1001"},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        assert_ok(&ctx, dh_schedule_find(&ctx, cases[i].row, &row));
        assert_fails(&ctx, dh_schedule_applicable(&ctx, row, &cases[i].spec), cases[i].status,
                     cases[i].part);
        assert_fails(&ctx, dh_schedule_generate(&ctx, row, &cases[i].spec, &s), cases[i].status,
                     cases[i].part);
    }
    /* "Not given" and the row's own number are the same. */
    for (int32_t v = 0; v <= 2; v++) {
        s = generate("dhelix-w", 2, 3, v);
        assert_int_equal(s->n_stages, 4);
        dh_schedule_destroy(s);
    }
    assert_string_equal(dh_placement_name(DH_PLACE_FOLDED), "folded");
    assert_non_null(strstr(dh_placement_doc(DH_PLACE_FOLDED), "2p-1-g"));
}

/* ---- layers -------------------------------------------------------------------------------- */

static void layers_are_split(void **state)
{
    static const struct {
        int64_t n_layers;
        int32_t n_stages;
        const char *spec;
        int64_t counts[8];
    } cases[] = {
        {32, 8, "", {4, 4, 4, 4, 4, 4, 4, 4}},
        {14, 4, "3,4,4,3", {3, 4, 4, 3}},
        {22, 8, "-1,*,-1", {2, 3, 3, 3, 3, 3, 3, 2}},
        {30, 8, "-1,*,-1", {3, 4, 4, 4, 4, 4, 4, 3}},
        {34, 8, "", {4, 4, 4, 4, 5, 5, 4, 4}}, /* ranks 3 and 2 of a folded model, one each */
        {38, 8, "", {4, 5, 5, 5, 5, 5, 5, 4}},
        {7, 3, "", {2, 3, 2}},
        {8, 3, "", {3, 3, 2}},
        {5, 1, "", {5}},
        {3, 2, "", {2, 1}},
        {6, 4, "0, * ,0", {0, 3, 3, 0}},
        {12, 4, "2,*", {2, 3, 4, 3}},
        {8, 2, "*,3,5", {3, 5}},
        {23, 8, "-1,*,-1", {2, 3, 3, 3, 4, 3, 3, 2}},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        int64_t counts[8];
        assert_ok(&ctx, dh_layer_split(&ctx, cases[i].n_layers, cases[i].n_stages, cases[i].spec,
                                       counts));
        for (int32_t v = 0; v < cases[i].n_stages; v++)
            if (counts[v] != cases[i].counts[v])
                fail_msg("%lld layers, \"%s\": stage %d of %d has %lld",
                         (long long)cases[i].n_layers, cases[i].spec, v, cases[i].n_stages,
                         (long long)counts[v]);
    }
    /* Any even split: sums, differs by at most one, and so do the sums of folded ranks but
     * for the rank with both ends. */
    for (int32_t p = 1; p <= 4; p++)
        for (int64_t n = 2 * p; n <= 40; n++) {
            int64_t counts[8], sum = 0, low = n, high = 0;
            assert_ok(&ctx, dh_layer_split(&ctx, n, 2 * p, "", counts));
            for (int32_t v = 0; v < 2 * p; v++) {
                assert_true(counts[v] == n / (2 * p) || counts[v] == n / (2 * p) + 1);
                sum += counts[v];
            }
            assert_int_equal(sum, n);
            for (int32_t g = 1; g < p; g++) {
                int64_t rank = counts[g] + counts[2 * p - 1 - g];
                low = DH_MIN(low, rank);
                high = DH_MAX(high, rank);
            }
            assert_true(p == 1 || high - low <= 1);
        }
}

static void layer_split_refuses(void **state)
{
    static const struct {
        int64_t n_layers;
        int32_t n_stages;
        const char *spec;
        dh_status status;
        const char *part;
    } cases[] = {
        {3, 4, "", DH_EINVAL, "would have 0 of 3"},
        {14, 4, "3,4,4", DH_EINVAL, "3 entries for 4"},
        {14, 4, "3,4,4,4", DH_EINVAL, "make 15 layers; the model has 14"},
        {14, 4, "3,x,4,4", DH_EFORMAT, "entry 2: not a number"},
        {14, 4, "3,,4,4", DH_EFORMAT, "entry 2"},
        {14, 4, "*,4,*", DH_EFORMAT, "entry 3: a second *"},
        {14, 4, "1,2,3,4,*,4", DH_EINVAL, "5 entries for 4"},
        {14, 4, "4,0,*", DH_EINVAL, "stage 1 of 4"},
        {14, 4, "15,*", DH_EINVAL, "make 15"},
        {14, 4, "-9,*", DH_EINVAL, "stage 0"},
        {14, 4, "99999999999999999999,*", DH_EFORMAT, "entry 1"},
        {14, 4, "9999999999999999999999999999999999,*", DH_EFORMAT, "too long"},
        {0, 4, "", DH_EINVAL, "0 layers"},
        {4, 0, "", DH_EINVAL, "0 virtual stages"},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        int64_t counts[8] = {-7};
        dh_status st =
            dh_layer_split(&ctx, cases[i].n_layers, cases[i].n_stages, cases[i].spec, counts);
        if (st != cases[i].status || !strstr(ctx.message, cases[i].part))
            fail_msg("\"%s\": %s: %s", cases[i].spec, dh_status_name(st), ctx.message);
        assert_int_equal(counts[0], -7);
        dh_ctx_reset(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_round_trip),
        cmocka_unit_test(csv_as_pytorch_writes_it),
        cmocka_unit_test(csv_refuses_with_place),
        cmocka_unit_test(csv_survives_damage),
        cmocka_unit_test(csv_files),
        cmocka_unit_test(csv_in_older_letters),
        cmocka_unit_test(rows_say_why_not),
        cmocka_unit_test(layers_are_split),
        cmocka_unit_test(layer_split_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
