/* Profiles as JSON, with a checksum over the content in canonical form: a profile that was
 * changed by hand or cut short is refused, not believed. */
#include "costs/profile.h"

#include "base/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VERSION = 1, HASH_TEXT = 33, MAX_FILE_BYTES = 256 << 20 };
static const char format_name[] = "dhelix-profile";

/* X(in JSON, member, its type, most): whole numbers of an operator and of a pair. */
#define OP_NUMBERS(X)                                                                              \
    X("stream", stream, dh_stream, DH_N_STREAM - 1)                                                \
    X("solo", solo_ns, int64_t, INT64_MAX)                                                         \
    X("spread", spread_ns, int64_t, INT64_MAX)                                                     \
    X("estimate", estimate_ns, int64_t, INT64_MAX)                                                 \
    X("samples", n_samples, int32_t, INT32_MAX)
#define PAIR_NUMBERS(X)                                                                            \
    X("a", a, uint32_t, INT32_MAX)                                                                 \
    X("b", b, uint32_t, INT32_MAX)                                                                 \
    X("a_end", a_ns, int64_t, INT64_MAX)                                                           \
    X("b_end", b_ns, int64_t, INT64_MAX)                                                           \
    X("a_spread", a_spread_ns, int64_t, INT64_MAX)                                                 \
    X("b_spread", b_spread_ns, int64_t, INT64_MAX)                                                 \
    X("samples", n_samples, int32_t, INT32_MAX)

/* By dh_profile_op.forward and backward. */
static const char *const strand_names[2][2] = {{"none", "backward"}, {"forward", "both"}};

/* ---- checksum --------------------------------------------------------------------------- */

/* False when out of memory. */
static bool hash_json(const json_t *value, char text[HASH_TEXT])
{
    char *canonical = dh_json_print(value, JSON_COMPACT | JSON_SORT_KEYS);
    if (!canonical) return false;
    const XXH128_hash_t hash = XXH3_128bits(canonical, strlen(canonical));
    snprintf(text, HASH_TEXT, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    free(canonical);
    return true;
}

/* ---- writing ---------------------------------------------------------------------------- */

static json_t *op_json(const dh_profile_op *op)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "key", op->key, "label", op->label, "strands",
                          strand_names[op->forward][op->backward], "source",
                          dh_pair_source_name(op->source));
#define X(name, member, type, most)                                                                \
    json_object_set_new(o, name, json_integer((json_int_t)op->member));
    OP_NUMBERS(X)
#undef X
    return o;
}

static json_t *pair_json(const dh_profile_pair *pair)
{
    json_t *o = json_pack("{s:s}", "source", dh_pair_source_name(pair->source));
#define X(name, member, type, most)                                                                \
    json_object_set_new(o, name, json_integer((json_int_t)pair->member));
    PAIR_NUMBERS(X)
#undef X
    return o;
}

static json_t *content_json(const dh_profile *p)
{
    json_t *facts = json_object(), *ops = json_array(), *pairs = json_array();
    for (size_t i = 0; i < p->facts.n; i++)
        json_object_set_new(facts, p->facts.at[i].name, json_string(p->facts.at[i].value));
    for (size_t i = 0; i < p->ops.n; i++) json_array_append_new(ops, op_json(&p->ops.at[i]));
    for (size_t i = 0; i < p->pairs.n; i++)
        json_array_append_new(pairs, pair_json(&p->pairs.at[i]));
    const bool whole = json_object_size(facts) == p->facts.n && json_array_size(ops) == p->ops.n &&
                       json_array_size(pairs) == p->pairs.n;
    json_t *content =
        json_pack("{s:s, s:i, s:s, s:o, s:I, s:I, s:o, s:o}", "format", format_name, "version",
                  VERSION, "unit", "ns", "signature", facts, "launch", (json_int_t)p->launch_ns,
                  "event", (json_int_t)p->event_ns, "operators", ops, "pairs", pairs);
    if (whole) return content;
    json_decref(content); /* out of memory on the way, or a text that is not UTF-8 */
    return NULL;
}

dh_status dh_profile_print(dh_ctx *ctx, const dh_profile *p, dh_str *out)
{
    char hash[HASH_TEXT];
    json_t *content = content_json(p), *root = NULL;
    if (content && hash_json(content, hash))
        root = json_pack("{s:O, s:s}", "profile", content, "xxh3_128", hash);
    char *text = dh_json_text(root, JSON_INDENT(1));
    json_decref(content);
    if (text) dh_str_printf(out, "%s\n", text);
    const bool ok = text && !out->failed;
    free(text);
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_profile_write(dh_ctx *ctx, const dh_profile *p, const char *path)
{
    dh_str text = DH_STR_INIT;
    dh_status st = dh_profile_print(ctx, p, &text);
    if (st == DH_OK) st = dh_file_write_atomic(ctx, path, text.text, text.len);
    dh_str_fini(&text);
    return st;
}

/* ---- reading ---------------------------------------------------------------------------- */

static bool read_text(json_t *object, const char *name, const char **text)
{
    *text = json_string_value(json_object_get(object, name));
    return *text != NULL;
}

/* From 0 to most. */
static bool read_number(json_t *object, const char *name, int64_t most, int64_t *number)
{
    const json_t *value = json_object_get(object, name);
    *number = json_integer_value(value);
    return json_is_integer(value) && *number >= 0 && *number <= most;
}

static bool read_source(json_t *object, dh_pair_source *source)
{
    const char *name;
    if (!read_text(object, "source", &name)) return false;
    for (int i = 0; i < DH_N_PAIR_SOURCES; i++) {
        *source = (dh_pair_source)i;
        if (strcmp(dh_pair_source_name(*source), name) == 0) return true;
    }
    return false;
}

static bool read_strands(json_t *object, bool *forward, bool *backward)
{
    const char *name;
    if (!read_text(object, "strands", &name)) return false;
    for (int i = 0; i < 4; i++) {
        *forward = i / 2;
        *backward = i % 2;
        if (strcmp(strand_names[*forward][*backward], name) == 0) return true;
    }
    return false;
}

static dh_status malformed(dh_ctx *ctx, const dh_profile *p, const char *what, size_t i)
{
    return dh_fail(ctx, DH_EFORMAT, "%s: entry %zu of \"%s\" is malformed", p->name, i, what);
}

/* Keys once had the capacity of experts with every operator of their model. It matters where rows
 * are put in order; of the others it is left out, and the first of those that are then alike
 * counts. False: the key has none. */
static bool leave_capacity_out(char *key)
{
    static const char word[] = " capacity=", order[] = "moe_order ";
    char *at = strstr(key, word);
    if (!at || strncmp(key, order, sizeof order - 1) == 0) return false;
    const char *rest = at + sizeof word - 1;
    rest += strspn(rest, "0123456789");
    memmove(at, rest, strlen(rest) + 1);
    return true;
}

/* *id: its place in the profile. */
static dh_status add_op(dh_ctx *ctx, dh_profile *p, dh_profile_op *op, uint32_t *id)
{
    char *key = dh_arena_strdup(p->arena, op->key);
    if (!key) return dh_no_memory(ctx);
    const bool former = leave_capacity_out(key);
    op->key = key;
    *id = dh_profile_find_op(p, key);
    if (*id == DH_NONE) return dh_profile_add_op(ctx, p, op, id);
    if (former) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT, "%s: operator \"%.200s\" twice", p->name, key);
}

static dh_status read_op(dh_ctx *ctx, dh_profile *p, json_t *entry, size_t i, uint32_t *id)
{
    dh_profile_op op = {0};
    int64_t number;
    bool ok = read_text(entry, "key", &op.key) && read_text(entry, "label", &op.label) &&
              read_source(entry, &op.source) && read_strands(entry, &op.forward, &op.backward);
#define X(name, member, type, most)                                                                \
    ok = ok && read_number(entry, name, most, &number);                                            \
    if (ok) op.member = (type)number;
    OP_NUMBERS(X)
#undef X
    return ok ? add_op(ctx, p, &op, id) : malformed(ctx, p, "operators", i);
}

/* ids [n]: places in the profile of the file's operators. */
static dh_status read_pair(dh_ctx *ctx, dh_profile *p, json_t *entry, size_t i, const uint32_t *ids,
                           size_t n)
{
    dh_profile_pair pair = {0};
    int64_t number;
    bool ok = read_source(entry, &pair.source);
#define X(name, member, type, most)                                                                \
    ok = ok && read_number(entry, name, most, &number);                                            \
    if (ok) pair.member = (type)number;
    PAIR_NUMBERS(X)
#undef X
    if (!ok) return malformed(ctx, p, "pairs", i);
    if (pair.a < n && pair.b < n) {
        pair.a = ids[pair.a];
        pair.b = ids[pair.b];
    }
    const bool known = dh_profile_find_pair(p, pair.a, pair.b) != DH_NONE;
    if (known && p->ops.n < n) return DH_OK; /* of operators that are alike by now */
    if (known)
        return dh_fail(ctx, DH_EFORMAT, "%s: pair of operators %u and %u twice", p->name, pair.a,
                       pair.b);
    return dh_profile_add_pair(ctx, p, &pair);
}

static dh_status read_facts(dh_ctx *ctx, dh_profile *p, json_t *facts)
{
    const char *name;
    json_t *value;
    json_object_foreach(facts, name, value)
    {
        if (!json_is_string(value))
            return dh_fail(ctx, DH_EFORMAT, "%s: \"%.80s\" of the signature is not a text", p->name,
                           name);
        DH_TRY(dh_profile_add_fact(ctx, p, name, json_string_value(value)));
    }
    return DH_OK;
}

static dh_status read_entries(dh_ctx *ctx, dh_profile *p, json_t *content)
{
    json_t *ops = json_object_get(content, "operators"), *pairs = json_object_get(content, "pairs");
    json_t *facts = json_object_get(content, "signature");
    if (!json_is_array(ops) || !json_is_array(pairs) || !json_is_object(facts) ||
        !read_number(content, "launch", DH_PAIR_MAX_NS, &p->launch_ns) ||
        !read_number(content, "event", DH_PAIR_MAX_NS, &p->event_ns))
        return dh_fail(ctx, DH_EFORMAT,
                       "%s lacks \"signature\", \"operators\", \"pairs\", \"launch\" or \"event\"",
                       p->name);
    DH_TRY(read_facts(ctx, p, facts));
    const size_t n = json_array_size(ops);
    uint32_t *ids = DH_NEW_N(p->arena, uint32_t, n + 1);
    if (!ids) return dh_no_memory(ctx);
    for (size_t i = 0; i < n; i++) DH_TRY(read_op(ctx, p, json_array_get(ops, i), i, &ids[i]));
    for (size_t i = 0; i < json_array_size(pairs); i++)
        DH_TRY(read_pair(ctx, p, json_array_get(pairs, i), i, ids, n));
    return DH_OK;
}

static dh_status read_content(dh_ctx *ctx, dh_profile *p, json_t *root)
{
    json_t *content = json_object_get(root, "profile");
    const char *claimed, *format;
    char hash[HASH_TEXT];
    int64_t version;
    if (!json_is_object(content) || !read_text(root, "xxh3_128", &claimed) ||
        !read_text(content, "format", &format) || strcmp(format, format_name) != 0 ||
        !read_number(content, "version", INT32_MAX, &version))
        return dh_fail(ctx, DH_EFORMAT, "%s is not a profile that dhelix wrote", p->name);
    if (version != VERSION)
        return dh_fail(ctx, DH_EUNSUPPORTED, "%s is version %lld; this program reads %d", p->name,
                       (long long)version, VERSION);
    if (!hash_json(content, hash)) return dh_no_memory(ctx);
    if (strcmp(hash, claimed) != 0)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s was changed after it was written: its content has XXH3-128 %s, should "
                       "have %.40s",
                       p->name, hash, claimed);
    return read_entries(ctx, p, content);
}

dh_status dh_profile_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *name,
                           dh_profile **profile)
{
    json_error_t fault;
    json_t *root;
    DH_TRY(dh_json_read(ctx, text, n_bytes, JSON_REJECT_DUPLICATES, &fault, &root));
    if (!root)
        return dh_fail(ctx, DH_EFORMAT, "%s: line %d, column %d: %s", name, fault.line,
                       fault.column, fault.text);
    dh_profile *p = NULL;
    dh_status st = dh_profile_create(ctx, name, &p);
    if (st == DH_OK) st = read_content(ctx, p, root);
    json_decref(root);
    if (st == DH_OK)
        *profile = p;
    else
        dh_profile_destroy(p);
    return st;
}

dh_status dh_profile_read(dh_ctx *ctx, const char *path, dh_profile **profile)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &text, &n_bytes));
    dh_status st = dh_profile_parse(ctx, text, n_bytes, path, profile);
    free(text);
    return st;
}
