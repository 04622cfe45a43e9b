/* Conversations: their tokens are those of Transformers' templates, answers alone are learnt, and
 * rows hold each answer once. */
#include <jansson.h>

#include "data/chat.h"
#include "data/dataset.h"
#include "data/json_mend.h"
#include "dh_test.h"

static const char folder[] = "tests/data/chat";
enum { N_CHATS = 4 };

/* More templates, and their marks in the same tokenizer. */
static const char more[] = "tests/data/chat/more";

static dh_tokenizer *load_tokenizer_of(const char *dir)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok;
    assert_ok(&ctx, dh_tokenizer_load(&ctx, dir, &tok));
    return tok;
}

static dh_tokenizer *load_tokenizer(void)
{
    return load_tokenizer_of(folder);
}

static json_t *load_expected(const char *dir)
{
    char path[128];
    json_error_t error;
    snprintf(path, sizeof path, "%s/expected.json", dir);
    json_t *root = json_load_file(path, 0, &error);
    assert_non_null(root);
    return root;
}

/* The i-th line of the conversations; the caller's. */
static json_t *load_row(int i)
{
    char line[1024];
    FILE *f = fopen("tests/data/chat/chat.jsonl", "r");
    assert_non_null(f);
    for (int k = 0; k <= i; k++) assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    json_t *row = json_loads(line, 0, NULL);
    assert_non_null(row);
    return row;
}

static void assert_ids(const char *name, int i, const dh_ids *ids, const json_t *want)
{
    bool same = ids->n == json_array_size(want);
    for (size_t k = 0; same && k < ids->n; k++)
        same = (ids->at[k] & DH_TOKEN_ID) == json_integer_value(json_array_get(want, k));
    if (!same) fail_msg("%s, conversation %d: not the tokens of Transformers", name, i);
}

/* What is learnt, as text; a mark between runs of it. */
static void learnt_text(const dh_tokenizer *tok, const dh_ids *ids, dh_str *out)
{
    dh_ctx ctx = DH_CTX_INIT;
    bool before = false;
    for (size_t k = 0; k < ids->n; k++) {
        const bool learnt = !(ids->at[k] & DH_TOKEN_UNLEARNT);
        const int32_t id = ids->at[k] & DH_TOKEN_ID;
        if (learnt && !before && out->len > 0) dh_str_printf(out, "#");
        if (learnt) assert_ok(&ctx, dh_tokenizer_decode(&ctx, tok, &id, 1, 0, out));
        before = learnt;
    }
}

static void drop_system(const dh_chat *chat, dh_chat_messages *list)
{
    if (chat->role[DH_CHAT_SYSTEM].before || chat->system_in_user ||
        list->at[0].role != DH_CHAT_SYSTEM)
        return;
    list->n--;
    memmove(list->at, list->at + 1, list->n * sizeof *list->at);
}

/* Answers and what ends them. */
static void check_learnt(const dh_chat *chat, const dh_tokenizer *tok, const dh_chat_messages *list,
                         const dh_ids *ids)
{
    dh_str want = DH_STR_INIT, got = DH_STR_INIT;
    const char *end = chat->role[DH_CHAT_ASSISTANT].end;
    for (size_t k = 0; k < list->n; k++) {
        const char *text = list->at[k].text;
        size_t n = list->at[k].n;
        if (list->at[k].role != DH_CHAT_ASSISTANT) continue;
        while (chat->trims && n > 0 && (text[0] == '\n' || text[0] == ' ')) text++, n--;
        while (chat->trims && n > 0 && text[n - 1] == ' ') n--;
        dh_str_printf(&want, "%s", want.len ? "#" : "");
        dh_str_append(&want, text, n);
        dh_str_printf(&want, "%s", end ? end : "</s>");
    }
    learnt_text(tok, ids, &got);
    /* A blank before an answer is in its first token. */
    const char *first =
        strcmp(chat->name, "mistral") == 0 && got.len ? got.text + (got.text[0] == ' ') : got.text;
    if (strcmp(chat->name, "mistral") != 0) assert_string_equal(first, want.text);
    assert_true(got.len >= want.len);
    dh_str_fini(&want);
    dh_str_fini(&got);
}

static void check_templates(const char *dir)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load_tokenizer_of(dir);
    json_t *expected = load_expected(dir);
    const char *name;
    json_t *want;
    dh_encoder *enc;
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &enc));
    json_object_foreach(expected, name, want)
    {
        const dh_chat *chat;
        assert_ok(&ctx, dh_chat_find(&ctx, name, &chat));
        assert_ok(&ctx, dh_chat_check(&ctx, chat, tok));
        for (int i = 0; i < N_CHATS; i++) {
            json_t *row = load_row(i);
            dh_chat_messages list = {0};
            dh_ids ids = {0};
            assert_ok(&ctx, dh_chat_read(&ctx, row, &list));
            drop_system(chat, &list);
            assert_ok(&ctx, dh_chat_encode(&ctx, chat, tok, enc, &list, false, &ids));
            assert_true(ids.at[ids.n - 1] & DH_TOKEN_LAST);
            assert_ids(name, i, &ids, json_array_get(json_object_get(want, "ids"), (size_t)i));
            check_learnt(chat, tok, &list, &ids);
            if (i == 0) { /* up to where its answer begins */
                list.n = 1;
                ids.n = 0;
                assert_ok(&ctx, dh_chat_encode(&ctx, chat, tok, enc, &list, true, &ids));
                assert_ids(name, i, &ids, json_object_get(want, "start"));
            }
            dh_vec_fini(&ids);
            dh_vec_fini(&list);
            json_decref(row);
        }
    }
    dh_encoder_destroy(enc);
    json_decref(expected);
    dh_tokenizer_destroy(tok);
}

static void tokens_are_those_of_transformers(void **state)
{
    check_templates(folder);
    check_templates(more);
}

static void check_recognised(const char *of, const char *dir, const char *path)
{
    dh_ctx ctx = DH_CTX_INIT;
    json_t *expected = load_expected(of), *want;
    const char *name;
    const dh_chat *chat;
    json_object_foreach(expected, name, want)
    {
        const char *jinja = json_string_value(json_object_get(want, "jinja"));
        assert_ok(&ctx, dh_file_write_atomic(&ctx, path, jinja, strlen(jinja)));
        assert_ok(&ctx, dh_chat_of_tokenizer(&ctx, dir, &chat));
        assert_string_equal(chat->name, name);
    }
    json_decref(expected);
}

/* A tokenizer's own template is known by its marks; others are refused by what there is. */
static void templates_are_recognised(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    char dir[256], path[512];
    const dh_chat *chat;
    test_tmpdir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    check_recognised(folder, dir, path);
    check_recognised(more, dir, path);
    static const char other[] = "{{ '### Instruction' }}";
    assert_ok(&ctx, dh_file_write_atomic(&ctx, path, other, sizeof other - 1));
    assert_int_equal(dh_chat_of_tokenizer(&ctx, dir, &chat), DH_EUNSUPPORTED);
    assert_non_null(strstr(ctx.message, "chatml, llama3, gemma, "));
    assert_int_equal(dh_chat_of_tokenizer(&ctx, folder, &chat), DH_EMISSING);
    assert_int_equal(dh_chat_find(&ctx, "alpaca", &chat), DH_EMISSING);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
}

static void assert_refused(const char *json, const char *template, dh_status st, const char *part)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load_tokenizer();
    dh_encoder *enc;
    const dh_chat *chat;
    dh_chat_messages list = {0};
    dh_ids ids = {0};
    json_t *row = json_loads(json, 0, NULL);
    assert_non_null(row);
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &enc));
    assert_ok(&ctx, dh_chat_find(&ctx, template, &chat));
    dh_status got = dh_chat_read(&ctx, row, &list);
    if (got == DH_OK) got = dh_chat_encode(&ctx, chat, tok, enc, &list, false, &ids);
    assert_int_equal(got, st);
    if (!strstr(ctx.message, part)) fail_msg("\"%s\" lacks \"%s\"", ctx.message, part);
    assert_int_equal(ids.n, 0);
    dh_vec_fini(&ids);
    dh_vec_fini(&list);
    dh_encoder_destroy(enc);
    dh_tokenizer_destroy(tok);
    json_decref(row);
}

static void what_is_no_conversation_is_refused(void **state)
{
    assert_refused("{\"text\": \"a\"}", "chatml", DH_EFORMAT, "no conversation");
    assert_refused("{\"messages\": []}", "chatml", DH_EFORMAT, "no conversation");
    assert_refused("{\"messages\": [{\"content\": \"a\"}]}", "chatml", DH_EFORMAT, "no role");
    assert_refused("{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "chatml", DH_EFORMAT,
                   "must be text");
    assert_refused("{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", "chatml",
                   DH_EUNSUPPORTED, "role \"tool\"");
    assert_refused("{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}", "mistral",
                   DH_EUNSUPPORTED, "no place for a system message");
    assert_refused("{\"prompt\": \"a<|im_end|>\", \"completion\": \"b\"}", "chatml", DH_EINVAL,
                   "text of a special token");
    assert_refused("{\"prompt\": [\"a\"], \"completion\": \"b\"}", "chatml", DH_EFORMAT,
                   "must be text");
    assert_refused("{\"instruction\": \"a\", \"input\": 3, \"output\": \"b\"}", "chatml",
                   DH_EFORMAT, "must be text");
    assert_refused("{\"instruction\": \"a\", \"response\": \"b\"}", "chatml", DH_EFORMAT,
                   "\"instruction\" and \"output\"");
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *bytes;
    const dh_chat *chat;
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &bytes));
    assert_ok(&ctx, dh_chat_find(&ctx, "chatml", &chat));
    assert_int_equal(dh_chat_check(&ctx, chat, bytes), DH_EINVAL);
    assert_non_null(strstr(ctx.message, "<|im_start|>"));
    assert_ok(&ctx, dh_chat_find(&ctx, "plain", &chat));
    assert_ok(&ctx, dh_chat_check(&ctx, chat, bytes));
    dh_tokenizer_destroy(bytes);
}

/* A message says more than its text: what has no place in the tokens is refused by name. */
static void what_would_be_lost_is_refused(void **state)
{
    static const char *const lost[] = {"\"reasoning_content\": \"r\"",
                                       "\"thinking\": \"r\"",
                                       "\"name\": \"n\"",
                                       "\"mask\": true",
                                       "\"tool_calls\": [{}]",
                                       "\"x\": 0"};
    static const char *const beside[] = {"\"tools\": [{}]",         "\"functions\": \"f\"",
                                         "\"system\": \"s\"",       "\"history\": [[\"a\", \"b\"]]",
                                         "\"images\": [\"a.png\"]", "\"weight\": 0",
                                         "\"train\": false",        "\"loss_mask\": [0, 1]",
                                         "\"rejected\": \"r\"",     "\"documents\": [{}]",
                                         "\"reasoning\": \"r\"",    "\"enable_thinking\": false",
                                         "\"label\": false",        "\"system_prompt\": \"s\"",
                                         "\"sample_weight\": 0",    "\"loss\": false",
                                         "\"weights\": [0, 1]",     "\"loss_masks\": [0, 1]",
                                         "\"thought\": \"t\"",      "\"cot\": \"t\""};
    static const struct {
        const char *key, *role, *says;
    } flags[] = {{"\"weight\": 0.5", "assistant", "neither 1"},
                 {"\"train\": \"no\"", "assistant", "neither 1"},
                 {"\"weight\": 1", "user", "only answers"},
                 {"\"train\": true", "system", "only answers"}};
    char row[256], says[64];
    for (size_t i = 0; i < DH_COUNTOF(lost); i++) {
        snprintf(row, sizeof row, "{\"messages\": [{\"role\": \"user\", \"content\": \"c\", %s}]}",
                 lost[i]);
        snprintf(says, sizeof says, "has %.*s", (int)strcspn(lost[i], ":"), lost[i]);
        assert_refused(row, "chatml", DH_EUNSUPPORTED, says);
        snprintf(row, sizeof row, "{\"conversations\": [{\"from\": \"gpt\", %s, \"value\": null}]}",
                 lost[i]);
        assert_refused(row, "chatml", DH_EUNSUPPORTED, says);
    }
    for (size_t i = 0; i < DH_COUNTOF(beside); i++) {
        snprintf(row, sizeof row, "{%s, \"instruction\": \"a\", \"output\": \"b\"}", beside[i]);
        snprintf(says, sizeof says, "has %.*s", (int)strcspn(beside[i], ":"), beside[i]);
        assert_refused(row, "chatml", DH_EUNSUPPORTED, says);
    }
    for (size_t i = 0; i < DH_COUNTOF(flags); i++) {
        snprintf(row, sizeof row, "{\"messages\": [{\"role\": \"%s\", \"content\": \"c\", %s}]}",
                 flags[i].role, flags[i].key);
        assert_refused(row, "chatml", DH_EUNSUPPORTED, flags[i].says);
    }
}

/* What is read of a row is said by its form, so there is one. Other keys say what it is about. */
static void a_row_has_one_form(void **state)
{
    static const char *const others[] = {
        "\"prompt\": \"p\", \"completion\": \"c\"", "\"instruction\": \"i\", \"output\": \"o\"",
        "\"conversations\": [{\"from\": \"gpt\", \"value\": \"v\"}]"};
    static const char *const about[] = {"\"prompt\": \"c\"", "\"label\": \"sports\"",
                                        "\"id\": 1, \"ecosystem\": \"x\", \"masking\": 1",
                                        "\"weight\": 1", "\"output\": \"o\""};
    char row[256];
    for (size_t i = 0; i < DH_COUNTOF(others); i++) {
        snprintf(row, sizeof row, "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], %s}",
                 others[i]);
        assert_refused(row, "chatml", DH_EFORMAT, "two conversations");
    }
    for (size_t i = 0; i < DH_COUNTOF(about); i++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_chat_messages list = {0};
        snprintf(row, sizeof row, "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], %s}",
                 about[i]);
        json_t *read = json_loads(row, 0, NULL);
        assert_non_null(read);
        assert_ok(&ctx, dh_chat_read(&ctx, read, &list));
        assert_int_equal(list.n, 1);
        dh_vec_fini(&list);
        json_decref(read);
    }
}

static void encode_row(const char *json, const dh_tokenizer *tok, dh_ids *ids)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_encoder *enc;
    const dh_chat *chat;
    dh_chat_messages list = {0};
    json_t *row = json_loads(json, 0, NULL);
    assert_non_null(row);
    assert_ok(&ctx, dh_encoder_create(&ctx, tok, &enc));
    assert_ok(&ctx, dh_chat_find(&ctx, "chatml", &chat));
    assert_ok(&ctx, dh_chat_read(&ctx, row, &list));
    assert_ok(&ctx, dh_chat_encode(&ctx, chat, tok, enc, &list, false, ids));
    dh_vec_fini(&list);
    dh_encoder_destroy(enc);
    json_decref(row);
}

/* The same tokens, of which the answers that a row leaves out are only read. */
static void rows_say_which_answers_are_learnt(void **state)
{
    static const struct {
        const char *first, *second, *learnt;
    } cases[] = {{"", "", "One.<|im_end|>#Two.<|im_end|>"},
                 {"\"weight\": 0", "\"weight\": 1", "Two.<|im_end|>"},
                 {"\"train\": true", "\"train\": false, \"name\": null", "One.<|im_end|>"},
                 {"\"weight\": 1.0, \"tool_calls\": []", "\"weight\": 0.0, \"thinking\": \"\"",
                  "One.<|im_end|>"},
                 {"\"weight\": 1, \"train\": false", "\"weight\": false", ""}};
    dh_tokenizer *tok = load_tokenizer();
    dh_ids all = {0};
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const char *first = cases[i].first, *second = cases[i].second;
        char row[512];
        dh_ids ids = {0};
        dh_str got = DH_STR_INIT;
        snprintf(row, sizeof row,
                 "{\"id\": 7, \"source\": \"s\", \"messages\": ["
                 "{\"role\": \"user\", \"content\": \"a\", \"weight\": 0},"
                 "{\"role\": \"assistant\", \"content\": \"One.\"%s%s},"
                 "{\"role\": \"user\", \"content\": \"b\", \"train\": false},"
                 "{\"role\": \"assistant\"%s%s, \"content\": \"Two.\"}]}",
                 *first ? ", " : "", first, *second ? ", " : "", second);
        encode_row(row, tok, &ids);
        learnt_text(tok, &ids, &got);
        assert_string_equal(got.text ? got.text : "", cases[i].learnt);
        for (size_t k = 0; k < ids.n; k++)
            if (i > 0) assert_int_equal(ids.at[k] & DH_TOKEN_ID, all.at[k] & DH_TOKEN_ID);
        if (i == 0)
            all = ids;
        else
            dh_vec_fini(&ids);
        dh_str_fini(&got);
    }
    dh_vec_fini(&all);
    dh_tokenizer_destroy(tok);
}

/* A line that is mended for what is not read keeps the numbers that are. */
static void mended_lines_keep_short_numbers(void **state)
{
    static const char line[] =
        "{\"weight\": 1, \"a\": [1.0, -2.5, 1e9, 1E999, 12345678901234567], \"b\": NaN}";
    dh_str out = DH_STR_INIT;
    size_t n_halves;
    dh_json_mend(line, sizeof line - 1, &out, &n_halves);
    assert_string_equal(out.text, "{\"weight\": 1, \"a\": [1.0, -2.5, 0, 0, 0], \"b\": null}");
    dh_str_fini(&out);
}

/* Alpaca's rows are the conversations that they stand for. */
static void instructions_are_conversations(void **state)
{
    static const char *const rows[][2] = {
        {"{\"instruction\": \"Name a colour.\", \"input\": \"\", \"output\": \"Red.\", \"text\": "
         "\"t\"}",
         "{\"prompt\": \"Name a colour.\", \"completion\": \"Red.\"}"},
        {"{\"instruction\": \"Name it.\", \"output\": \"Red.\"}",
         "{\"prompt\": \"Name it.\", \"completion\": \"Red.\"}"},
        {"{\"instruction\": \"Name it.\", \"input\": \"#f00\", \"output\": \"Red.\"}",
         "{\"prompt\": \"Name it.\\n\\n#f00\", \"completion\": \"Red.\"}"},
        {"{\"instruction\": \"\", \"input\": \"\\u6771\", \"output\": \"\"}",
         "{\"prompt\": \"\\n\\n\\u6771\", \"completion\": \"\"}"}};
    dh_tokenizer *tok = load_tokenizer();
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        dh_ids got = {0}, want = {0};
        encode_row(rows[i][0], tok, &got);
        encode_row(rows[i][1], tok, &want);
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.at, want.at, got.n * sizeof *got.at);
        dh_vec_fini(&got);
        dh_vec_fini(&want);
    }
    dh_tokenizer_destroy(tok);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Sums over an epoch: targets, and their ids. */
typedef struct seen {
    int64_t n, ids, rows;
} seen;

static void add_length(void *user, int64_t n, int64_t n_targets)
{
    int64_t *sums = user;
    sums[0] += n;
    sums[1] += n_targets;
}

static seen walk(dh_dataset *ds, int row_len)
{
    dh_ctx ctx = DH_CTX_INIT;
    enum { MOST = 512 };
    int32_t tokens[MOST], targets[MOST], positions[MOST];
    int64_t documents[MOST];
    const dh_dataset_row row = {tokens, targets, positions, documents};
    seen s = {.rows = dh_dataset_windows(ds, row_len)};
    for (int64_t i = 0; i < s.rows; i++) {
        int64_t n = 0, sums[2] = {0, 0};
        assert_ok(&ctx, dh_dataset_packed_row(&ctx, ds, i, &row));
        for (int t = 0; t < row_len; t++) {
            assert_true(tokens[t] >= 0 && tokens[t] < 600 && targets[t] < 600);
            if (targets[t] < 0) continue;
            n++;
            s.ids += targets[t];
            if (t + 1 < row_len && positions[t + 1] == positions[t] + 1)
                assert_int_equal(targets[t], tokens[t + 1]);
        }
        assert_ok(&ctx, dh_dataset_lengths(&ctx, ds, i, add_length, sums));
        assert_true(n > 0 && sums[1] == n && sums[0] >= n && sums[0] <= row_len);
        s.n += n;
    }
    return s;
}

/* However they lie in rows, and through the cache, the same answers are learnt, each once. */
static void rows_hold_every_answer_once(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_tokenizer *tok = load_tokenizer();
    char dir[256];
    const char *file = "tests/data/chat/chat.jsonl";
    const dh_chat *chat;
    test_tmpdir(dir, sizeof dir);
    assert_ok(&ctx, dh_chat_find(&ctx, "llama3", &chat));
    seen first = {0};
    for (int k = 0; k < 6; k++) {
        const bool alone = k % 2, cached = k >= 2;
        const int row_len = k < 4 ? 256 : 24; /* shorter than some are */
        dh_dataset *ds;
        const dh_dataset_spec spec = {.files = &file,
                                      .n_files = 1,
                                      .tokenizer = tok,
                                      .chat = chat,
                                      .cache_dir = cached ? dir : NULL,
                                      .order = DH_ORDER_SHUFFLE,
                                      .seed = 3};
        assert_ok(&ctx, dh_dataset_open(&ctx, &spec, &ds));
        assert_ok(&ctx, dh_dataset_pack_chats(&ctx, ds, row_len, alone));
        const seen s = walk(ds, row_len);
        if (k == 0) first = s;
        assert_int_equal(s.n, first.n);
        assert_int_equal(s.ids, first.ids);
        if (k < 4) assert_int_equal(s.rows, alone ? N_CHATS : 1);
        dh_dataset_close(ds);
    }
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    dh_tokenizer_destroy(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_transformers),
        cmocka_unit_test(templates_are_recognised),
        cmocka_unit_test(what_is_no_conversation_is_refused),
        cmocka_unit_test(what_would_be_lost_is_refused),
        cmocka_unit_test(a_row_has_one_form),
        cmocka_unit_test(rows_say_which_answers_are_learnt),
        cmocka_unit_test(mended_lines_keep_short_numbers),
        cmocka_unit_test(instructions_are_conversations),
        cmocka_unit_test(rows_hold_every_answer_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
