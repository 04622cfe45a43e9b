/* What is kept of a wrong result: the arrays up to 8 MB together, where each lies, whether it is whole. */
#include <sys/stat.h>

#include "dh_test.h"
#include "keep.h"

enum { MOST = 8 << 20, ARRAY = 6 << 20 };

static void arrays_take_no_more_than_8_mb(void **state)
{
    char folder[] = "/tmp/dhelix-keep-XXXXXX", path[64], text[1024] = "";
    unsigned char *data = calloc(1, ARRAY);
    struct stat is;
    assert_non_null(data);
    assert_non_null(mkdtemp(folder));
    setenv("DHELIX_KEEP", folder, 1);
    assert_true(keep_begin("wrong"));
    keep_array("first", "f32", ARRAY / 4, data, ARRAY);
    keep_array("second", "f32", ARRAY / 4, data, ARRAY);
    keep_array("third", "f32", ARRAY / 4, data, ARRAY);
    keep_end();
    assert_false(keep_begin("the first one stays"));
    snprintf(path, sizeof path, "%s/wrong.bin", folder);
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_size, MOST);
    unlink(path);
    snprintf(path, sizeof path, "%s/wrong.json", folder);
    FILE *from = fopen(path, "r");
    assert_non_null(from);
    assert_true(fread(text, 1, sizeof text - 1, from) > 0);
    fclose(from);
    assert_non_null(strstr(text, "\"from\": 0, \"bytes\": 6291456, \"whole\": true"));
    assert_non_null(strstr(text, "\"from\": 6291456, \"bytes\": 2097152, \"whole\": false"));
    assert_non_null(strstr(text, "\"from\": 8388608, \"bytes\": 0, \"whole\": false"));
    unlink(path);
    rmdir(folder);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arrays_take_no_more_than_8_mb)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
