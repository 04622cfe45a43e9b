/* Lines and cells of CSV texts, with their places; damaged texts stay inside their bytes. */
#include "dh_test.h"

#include <stdlib.h>

#include "base/csv.h"

static void expect_line(dh_csv *csv, dh_csv_line kind, const char *text, int line)
{
    dh_csv_text got = {0};
    assert_int_equal(dh_csv_next_line(csv, &got), kind);
    assert_int_equal(csv->line, line);
    assert_int_equal(got.n, strlen(text));
    assert_memory_equal(got.at, text, got.n);
}

/* cells: with | between them; one that was quoted begins with " here. */
static void expect_cells(dh_csv *csv, const char *cells)
{
    dh_csv_text got;
    int column = 0;
    while (dh_csv_next_cell(csv, &got)) {
        assert_int_equal(csv->column, ++column);
        const bool quoted = *cells == '"';
        cells += quoted;
        const size_t n = strcspn(cells, "|");
        assert_int_equal(got.quoted, quoted);
        assert_int_equal(got.n, n);
        assert_memory_equal(got.at, cells, n);
        cells += n;
        if (*cells == '|') cells++;
    }
    assert_string_equal(cells, "");
}

static void lines_and_cells_come_with_their_places(void **state)
{
    (void)state;
    static const char text[] =
        "# a note \n\na, b ,c\r\n \t\n  #two\n\"x, y\",,\"z\n,\n\"p\"q,r\n \n\n";
    dh_csv csv;
    dh_csv_begin(&csv, text, sizeof text - 1);
    expect_line(&csv, DH_CSV_COMMENT, "a note", 1);
    expect_cells(&csv, "");
    expect_line(&csv, DH_CSV_BLANK, "", 2);
    expect_line(&csv, DH_CSV_CELLS, "a, b ,c", 3);
    expect_cells(&csv, "a|b|c");
    expect_line(&csv, DH_CSV_BLANK, "", 4);
    expect_line(&csv, DH_CSV_COMMENT, "two", 5);
    expect_line(&csv, DH_CSV_CELLS, "\"x, y\",,\"z", 6);
    dh_csv_text cell;
    assert_true(dh_csv_next_cell(&csv, &cell) && cell.quoted && cell.n == 4);
    assert_true(dh_csv_next_cell(&csv, &cell) && !cell.quoted && cell.n == 0);
    assert_true(dh_csv_next_cell(&csv, &cell) && !cell.quoted && cell.n == 2); /* "z as it stands */
    assert_false(dh_csv_next_cell(&csv, &cell));
    expect_line(&csv, DH_CSV_CELLS, ",", 7);
    expect_cells(&csv, "|");
    expect_line(&csv, DH_CSV_CELLS, "\"p\"q,r", 8);
    assert_true(dh_csv_next_cell(&csv, &cell) && !cell.quoted && cell.n == 4); /* "p"q */
    assert_true(dh_csv_next_cell(&csv, &cell) && cell.n == 1);
    expect_line(&csv, DH_CSV_END, "", 8);
    expect_line(&csv, DH_CSV_END, "", 8);
}

static void a_line_may_be_left_half_read(void **state)
{
    (void)state;
    dh_csv csv;
    dh_csv_text cell;
    dh_csv_begin(&csv, "a,b\nc", 5);
    expect_line(&csv, DH_CSV_CELLS, "a,b", 1);
    assert_true(dh_csv_next_cell(&csv, &cell));
    expect_line(&csv, DH_CSV_CELLS, "c", 2);
    expect_cells(&csv, "c");
}

/* Any bytes: every cell lies in the text, cells of a line follow each other, reading ends. */
static void any_bytes_are_read_to_their_end(void **state)
{
    (void)state;
    static const char some[] = "a,\"\n #\r\t\0,\"";
    uint64_t rng = test_seed("any_bytes_are_read_to_their_end");
    for (int round = 0; round < 2000; round++) {
        const size_t n = (size_t)(test_rand(&rng) % 24);
        char *text = malloc(n + 1); /* exact, for the address sanitizer */
        assert_non_null(text);
        for (size_t i = 0; i < n; i++) text[i] = some[test_rand(&rng) % (sizeof some - 1)];
        dh_csv csv;
        dh_csv_text line, cell;
        size_t n_lines = 0, n_cells = 0;
        dh_csv_begin(&csv, text, n);
        while (dh_csv_next_line(&csv, &line) != DH_CSV_END) {
            n_lines++;
            for (const char *before = text; dh_csv_next_cell(&csv, &cell); n_cells++) {
                assert_true(before <= cell.at && cell.at + cell.n <= text + n);
                before = cell.at + cell.n;
            }
        }
        assert_true(n_lines <= n && n_cells <= n + n_lines);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_and_cells_come_with_their_places),
        cmocka_unit_test(a_line_may_be_left_half_read),
        cmocka_unit_test(any_bytes_are_read_to_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
