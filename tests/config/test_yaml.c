/* YAML texts: places, keys that stand twice, other documents, nesting. What jobs and clusters
 * make of them is tested with these. */
#include "dh_test.h"

#include <stdlib.h>

#include "config/yaml.h"

typedef struct visits {
    const dh_yaml *yaml;
    dh_str seen; /* "place path=value;", mappings entered */
} visits;

static dh_status visit(void *self, const char *path, const yaml_node_t *key,
                       const yaml_node_t *value)
{
    visits *v = self;
    char at[64];
    const char *text;
    if (value->type == YAML_MAPPING_NODE) return dh_yaml_each(v->yaml, path, value, visit, v);
    DH_TRY(dh_yaml_scalar(v->yaml, value, &text));
    dh_str_printf(&v->seen, "%s %s=%s;", dh_yaml_place(v->yaml, key, at, sizeof at), path, text);
    return DH_OK;
}

static void keys_come_with_path_and_place(void **state)
{
    (void)state;
    static const char text[] = "a: 1\nb:\n  c: {d: x y}\n  e: 2\n";
    static const struct {
        bool is_file;
        const char *seen;
    } cases[] = {{true, "f:1:1 a=1;f:3:7 b.c.d=x y;f:4:3 b.e=2;"},
                 {false, "f a=1;f b.c.d=x y;f b.e=2;"}};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_yaml yaml;
        assert_ok(&ctx, dh_yaml_open(&ctx, "f", cases[i].is_file, text, sizeof text - 1, &yaml));
        visits v = {&yaml, DH_STR_INIT};
        assert_ok(&ctx, dh_yaml_each(&yaml, "", dh_yaml_root(&yaml), visit, &v));
        assert_string_equal(v.seen.text, cases[i].seen);
        dh_str_fini(&v.seen);
        dh_yaml_close(&yaml);
    }
}

static void an_empty_text_has_no_root(void **state)
{
    (void)state;
    dh_ctx ctx = DH_CTX_INIT;
    dh_yaml yaml;
    assert_ok(&ctx, dh_yaml_open(&ctx, "f", true, "# nothing\n", 10, &yaml));
    assert_null(dh_yaml_root(&yaml));
    dh_yaml_close(&yaml);
}

static dh_status read_all(dh_ctx *ctx, const char *text, size_t n)
{
    dh_yaml yaml;
    DH_TRY(dh_yaml_open(ctx, "f", true, text, n, &yaml));
    visits v = {&yaml, DH_STR_INIT};
    dh_status st = dh_yaml_each(&yaml, "", dh_yaml_root(&yaml), visit, &v);
    dh_str_fini(&v.seen);
    dh_yaml_close(&yaml);
    return st;
}

static void faults_are_refused_with_their_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a: 1\nb: {c: 1, c: 2}\n", "f:2:11: \"c\" is set twice; first at f:2:5"},
        {"a: 1\n---\nb: 1\n", "f: holds more than one YAML document"},
        {"a: [1, 2]\n", "f:1:4: a sequence stands where a plain value is expected"},
        {"? {a: 1}\n: 2\n", "f:1:3: a mapping stands where a plain value is expected"},
        {"a: \"x\\0y\"\n", "f:1:4: the text contains a NUL byte"},
        {"a: 'x\n", "f:2:1: found unexpected end of stream"},
        {"a: \xff\n", "f: byte 3: "},
    };
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        assert_fails(&ctx, read_all(&ctx, cases[i].text, strlen(cases[i].text)), DH_EFORMAT,
                     cases[i].message);
    }
}

/* 32 collections inside each other are composed, 33 are not, whether they close or not. */
static void deep_nesting_is_refused(void **state)
{
    (void)state;
    for (size_t depth = 31; depth <= 34; depth++)
        for (int closed = 0; closed < 2; closed++) {
            char text[80] = "";
            dh_ctx ctx = DH_CTX_INIT;
            dh_yaml yaml;
            memset(text, '[', depth);
            if (closed) memset(text + depth, ']', depth);
            const dh_status st = dh_yaml_open(&ctx, "f", true, text, strlen(text), &yaml);
            assert_int_equal(st == DH_OK, closed && depth <= 32);
            if (st == DH_OK) dh_yaml_close(&yaml);
            assert_int_equal(strstr(ctx.message, "inside each other") != NULL, depth > 32);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_come_with_path_and_place),
        cmocka_unit_test(an_empty_text_has_no_root),
        cmocka_unit_test(faults_are_refused_with_their_place),
        cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
