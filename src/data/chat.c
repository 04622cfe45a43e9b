/* Conversations as tokens (chat.h). Templates are those of the models named, as Transformers
 * renders them from their tokenizers' Jinja, without default system messages and tools. */
#include "data/chat.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "data/tok.h"

/* In the order in which a tokenizer's own template is recognised: Phi-4's has ChatML's mark too. */
static const dh_chat rows[] = {
    {.name = "phi4",
     .doc = "Phi-4: <|im_start|>role<|im_sep|>, text, <|im_end|>",
     .role = {{"<|im_start|>system<|im_sep|>", "<|im_end|>", ""},
              {"<|im_start|>user<|im_sep|>", "<|im_end|>", ""},
              {"<|im_start|>assistant<|im_sep|>", "<|im_end|>", ""}},
     .special = true,
     .mark = "<|im_sep|>"},
    {.name = "chatml",
     .doc = "Qwen 2, 2.5 and 3, SmolLM: <|im_start|>role, text, <|im_end|>",
     .role = {{"<|im_start|>system\n", "<|im_end|>", "\n"},
              {"<|im_start|>user\n", "<|im_end|>", "\n"},
              {"<|im_start|>assistant\n", "<|im_end|>", "\n"}},
     .special = true,
     .mark = "<|im_start|>"},
    {.name = "llama3",
     .doc = "Llama 3: <|start_header_id|>role<|end_header_id|>, text, <|eot_id|>",
     .bos = true,
     .role = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", ""},
              {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", ""},
              {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", ""}},
     .trims = true,
     .special = true,
     .mark = "<|start_header_id|>"},
    {.name = "gemma",
     .doc = "Gemma 2 and 3: <start_of_turn>role, text, <end_of_turn>; a system message stands in "
            "the first "
            "user's",
     .bos = true,
     .role = {{NULL, NULL, NULL},
              {"<start_of_turn>user\n", "<end_of_turn>", "\n"},
              {"<start_of_turn>model\n", "<end_of_turn>", "\n"}},
     .trims = true,
     .system_in_user = true,
     .special = true,
     .mark = "<start_of_turn>"},
    {.name = "mistral-v7",
     .doc = "Mistral Small 3: [SYSTEM_PROMPT]text[/SYSTEM_PROMPT], [INST]text[/INST]answer, EOS",
     .bos = true,
     .role = {{"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", ""},
              {"[INST]", "[/INST]", ""},
              {"", NULL, ""}},
     .mark = "[SYSTEM_PROMPT]"},
    {.name = "mistral",
     .doc = "Mistral 7B Instruct: [INST] text[/INST] answer, EOS; no system message",
     .bos = true,
     .role = {{NULL, NULL, NULL}, {"[INST] ", "[/INST]", ""}, {" ", NULL, ""}},
     .mark = "[INST]"},
    {.name = "phi3",
     .doc = "Phi-3: <|role|>, text, <|end|>",
     .role = {{"<|system|>\n", "<|end|>", "\n"},
              {"<|user|>\n", "<|end|>", "\n"},
              {"<|assistant|>\n", "<|end|>", "\n"}},
     .eos = true,
     .special = true,
     .mark = "<|end|>"},
    {.name = "olmo2",
     .doc = "OLMo 2, Tulu 3: <|role|>, text, an end of line; answers end with EOS",
     .bos = true,
     .role = {{"<|system|>\n", "\n", ""},
              {"<|user|>\n", "\n", ""},
              {"<|assistant|>\n", NULL, "\n"}},
     .open_end = true,
     .mark = "'<|user|>\\n' + message['content'] + '\\n'"},
    {.name = "deepseek",
     .doc = "DeepSeek V2 and V3: the system's text, <\xEF\xBD\x9CUser\xEF\xBD\x9C>text, "
            "<\xEF\xBD\x9C"
            "Assistant\xEF\xBD\x9C>answer, EOS",
     .bos = true,
     .role = {{"", "", ""},
              {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "", ""},
              {"<\xEF\xBD\x9C"
               "Assistant\xEF\xBD\x9C>",
               NULL, ""}},
     .special = true,
     .mark = "<\xEF\xBD\x9CUser\xEF\xBD\x9C>"},
    {.name = "granite",
     .doc = "Granite 3: <|start_of_role|>role<|end_of_role|>, text, <|end_of_text|>",
     .role = {{"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>", "\n"},
              {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>", "\n"},
              {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>", "\n"}},
     .special = true,
     .mark = "<|start_of_role|>"},
    {.name = "command-r",
     .doc = "Command R: <|START_OF_TURN_TOKEN|><|USER_TOKEN|>, text, <|END_OF_TURN_TOKEN|>",
     .bos = true,
     .role = {{"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>", ""},
              {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>", ""},
              {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", ""}},
     .trims = true,
     .special = true,
     .mark = "<|START_OF_TURN_TOKEN|>"},
    {.name = "plain",
     .doc = "for tokenizers without marks: User: text, Assistant: answer, an empty line after each",
     .role = {{"System: ", "\n\n", ""}, {"User: ", "\n\n", ""}, {"Assistant: ", "\n\n", ""}}},
};

/* ---- by name --------------------------------------------------------------------------------- */

const dh_chat *dh_chat_row(size_t i)
{
    return i < DH_COUNTOF(rows) ? &rows[i] : NULL;
}

static void list_names(dh_str *out)
{
    for (size_t i = 0; i < DH_COUNTOF(rows); i++)
        dh_str_printf(out, "%s%s", i ? ", " : "", rows[i].name);
}

static dh_status refuse(dh_ctx *ctx, dh_status st, const char *what)
{
    dh_str names = DH_STR_INIT;
    list_names(&names);
    dh_fail(ctx, st, "%s; templates of conversations are %s (data.chat_template)", what,
            names.text ? names.text : "?");
    dh_str_fini(&names);
    return st;
}

dh_status dh_chat_find(dh_ctx *ctx, const char *name, const dh_chat **chat)
{
    char what[96];
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        *chat = &rows[i];
        return DH_OK;
    }
    snprintf(what, sizeof what, "there is no chat template \"%.40s\"", name);
    return refuse(ctx, DH_EMISSING, what);
}

/* ---- by a tokenizer's marks ------------------------------------------------------------------ */

enum { MOST_BYTES = 1 << 24 };

/* The Jinja text of a file: the file itself, or its "chat_template"; NULL: it has none. */
static dh_status read_jinja(dh_ctx *ctx, const char *folder, const char *name, char **text)
{
    size_t n;
    char *body = NULL;
    json_t *root = NULL;
    dh_str path = DH_STR_INIT;
    *text = NULL;
    dh_str_printf(&path, "%s/%s", folder, name);
    dh_status st = path.failed ? dh_no_memory(ctx) : DH_OK;
    if (st == DH_OK && dh_path_exists(path.text))
        st = dh_file_read(ctx, path.text, MOST_BYTES, &body, &n);
    dh_str_fini(&path);
    if (st != DH_OK || !body) return st;
    if (strstr(name, ".jinja")) {
        *text = body;
        return DH_OK;
    }
    st = dh_json_read(ctx, body, n, 0, NULL, &root);
    free(body);
    DH_TRY(st);
    const char *found = json_string_value(json_object_get(root, "chat_template"));
    if (found && !(*text = strdup(found))) st = dh_no_memory(ctx);
    json_decref(root);
    return st;
}

static dh_status recognise(dh_ctx *ctx, const char *folder, const char *jinja, const dh_chat **chat)
{
    char what[512];
    for (size_t i = 0; i < DH_COUNTOF(rows); i++) {
        if (!rows[i].mark || !strstr(jinja, rows[i].mark)) continue;
        *chat = &rows[i];
        return DH_OK;
    }
    snprintf(what, sizeof what, "the chat_template in %.300s has the marks of none that is known",
             folder);
    return refuse(ctx, DH_EUNSUPPORTED, what);
}

dh_status dh_chat_of_tokenizer(dh_ctx *ctx, const char *spec, const dh_chat **chat)
{
    static const char *const files[] = {"chat_template.jinja", "tokenizer_config.json",
                                        "chat_template.json"};
    char *copy = strdup(spec), *jinja = NULL, what[512];
    if (!copy) return dh_no_memory(ctx);
    const char *folder = dh_path_is_dir(spec) ? spec : dirname(copy);
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && !jinja && i < DH_COUNTOF(files); i++)
        st = read_jinja(ctx, folder, files[i], &jinja);
    if (st == DH_OK && jinja) st = recognise(ctx, folder, jinja, chat);
    if (st == DH_OK && !jinja) {
        snprintf(what, sizeof what, "tokenizer %.300s comes with no chat_template", spec);
        st = refuse(ctx, DH_EMISSING, what);
    }
    free(jinja);
    free(copy);
    return st;
}

/* ---- against a tokenizer --------------------------------------------------------------------- */

/* Every <mark> in the text is one of the tokenizer's special tokens. */
static dh_status check_marks(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok,
                             const char *text)
{
    for (const char *at = text; (at = strchr(at, '<')); at++) {
        const size_t n = strcspn(at, ">") + 1;
        char mark[64];
        snprintf(mark, sizeof mark, "%.*s", (int)n, at);
        if (dh_tokenizer_special(tok, mark) < 0)
            return dh_fail(
                ctx, DH_EINVAL,
                "chat template %s marks messages by %s, which is no special token of the "
                "tokenizer: take a tokenizer that has it, or data.chat_template=plain",
                chat->name, mark);
    }
    return DH_OK;
}

dh_status dh_chat_check(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok)
{
    if (chat->bos && dh_tokenizer_bos(tok) < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "chat template %s begins with a BOS token, and the tokenizer has none",
                       chat->name);
    for (int r = 0; r < DH_N_CHAT_ROLE; r++) {
        if (!chat->role[r].before) continue;
        if ((!chat->role[r].end || chat->eos) && dh_tokenizer_eos(tok) < 0)
            return dh_fail(ctx, DH_EINVAL,
                           "chat template %s ends answers with an EOS token, and the tokenizer has "
                           "none",
                           chat->name);
        if (!chat->special) continue;
        DH_TRY(check_marks(ctx, chat, tok, chat->role[r].before));
        if (chat->role[r].end) DH_TRY(check_marks(ctx, chat, tok, chat->role[r].end));
    }
    return DH_OK;
}

int32_t dh_chat_end(const dh_chat *chat, const dh_tokenizer *tok)
{
    const char *end = chat->role[DH_CHAT_ASSISTANT].end;
    return end ? dh_tokenizer_special(tok, end) : dh_tokenizer_eos(tok);
}

/* ---- rows of JSON ---------------------------------------------------------------------------- */

static dh_status find_role(dh_ctx *ctx, const char *name, dh_chat_role *role)
{
    static const struct {
        const char *name;
        dh_chat_role role;
    } names[] = {{"system", DH_CHAT_SYSTEM}, {"user", DH_CHAT_USER},
                 {"human", DH_CHAT_USER},    {"assistant", DH_CHAT_ASSISTANT},
                 {"gpt", DH_CHAT_ASSISTANT}, {"model", DH_CHAT_ASSISTANT}};
    if (!name) return dh_fail(ctx, DH_EFORMAT, "a message has no role");
    for (size_t i = 0; i < DH_COUNTOF(names); i++) {
        *role = names[i].role;
        if (strcmp(names[i].name, name) == 0) return DH_OK;
    }
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "a message has role \"%.40s\": system, user and assistant (human, gpt) are read",
                   name);
}

static dh_status add_message(dh_ctx *ctx, dh_chat_role role, const char *what, const json_t *text,
                             bool unlearnt, dh_chat_messages *list)
{
    if (!json_is_string(text))
        return dh_fail(ctx, DH_EFORMAT, "the content of a message of role \"%.40s\" must be text",
                       what);
    const dh_chat_message m = {role, json_string_value(text), json_string_length(text), unlearnt};
    return dh_vec_push(list, m) ? DH_OK : dh_no_memory(ctx);
}

/* Absent, null or empty: it says nothing that could be lost. */
static bool says_nothing(const json_t *value)
{
    return !value || json_is_null(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* 1, 0, or -1: it is neither. */
static int as_flag(const json_t *value)
{
    if (json_is_boolean(value)) return json_is_true(value);
    if (!json_is_number(value)) return -1;
    const double x = json_number_value(value);
    return x == 1 ? 1 : x == 0 ? 0 : -1;
}

/* Keys of a message in addition to its role and text. OpenAI's "weight" and Axolotl's "train" say
 * whether it is learnt. Any other key would have to stand in the tokens. */
static dh_status read_other(dh_ctx *ctx, const char *role, bool answer, const char *key,
                            const json_t *value, bool *unlearnt)
{
    if (says_nothing(value)) return DH_OK;
    if (strcmp(key, "weight") != 0 && strcmp(key, "train") != 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "a message of role \"%.40s\" has \"%.40s\", for which chat templates have "
                       "no place here: write it into the text, or take it out",
                       role, key);
    const int flag = as_flag(value);
    if (flag < 0)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "a message of role \"%.40s\" has a \"%s\" that is neither 1 (true: it is "
                       "learnt) nor 0 (false: it is only read)",
                       role, key);
    if (flag && !answer)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "a message of role \"%.40s\" has \"%s\": only answers of role assistant are "
                       "learnt, so take it out",
                       role, key);
    *unlearnt |= !flag;
    return DH_OK;
}

static dh_status read_message(dh_ctx *ctx, json_t *m, const char *role_key, const char *text_key,
                              dh_chat_messages *list)
{
    const char *name = json_string_value(json_object_get(m, role_key)), *key;
    dh_chat_role role = DH_N_CHAT_ROLE;
    json_t *value;
    bool unlearnt = false;
    DH_TRY(find_role(ctx, name, &role));
    json_object_foreach(m, key, value)
    {
        if (strcmp(key, role_key) == 0 || strcmp(key, text_key) == 0) continue;
        DH_TRY(read_other(ctx, name, role == DH_CHAT_ASSISTANT, key, value, &unlearnt));
    }
    return add_message(ctx, role, name, json_object_get(m, text_key), unlearnt, list);
}

/* "weight": 1, "train": true: as every conversation is learnt. "label": "sports": what it is about. */
static bool changes_nothing(const char *key, const json_t *value)
{
    if (strcmp(key, "label") == 0) return json_is_string(value);
    return (strstr(key, "weight") || strcmp(key, "train") == 0) && as_flag(value) == 1;
}

/* Whether a key is the word, or has it between underscores: "system" in "system_prompt". */
static bool has_word(const char *key, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = strstr(key, word); at; at = strstr(at + 1, word))
        if ((at == key || at[-1] == '_') && (at[n] == '\0' || at[n] == '_')) return true;
    return false;
}

/* In addition to messages a row may have any keys, with two exceptions: texts that the model would
 * have to read, and keys that change the learning. */
static dh_status check_row(dh_ctx *ctx, const json_t *row)
{
    static const struct {
        const char *key, *instead;
        bool word; /* also inside a longer key */
    } read[] = {{"tools", "take it out", false},
                {"functions", "take it out", false},
                {"system", "write it as a first message of role system", true},
                {"history", "write it as messages", false},
                {"chosen", "pairs of answers are not learnt: write one as a message", false},
                {"rejected", "pairs of answers are not learnt: take it out", false},
                {"label", "answers that are to be avoided are not learnt: take them out", false},
                {"documents", "write it into a message", false},
                {"context", "write it into a message", false},
                {"reasoning", "write it into a message", true},
                {"thinking", "write it into a message", true},
                {"thought", "write it into a message", true},
                {"thoughts", "write it into a message", true},
                {"cot", "write it into a message", true},
                {"rationale", "write it into a message", true},
                {"chat_template_kwargs", "take it out", false},
                {"weight", "repeat the conversation, or say it of its messages", true},
                {"weights", "repeat the conversation, or say it of its messages", true},
                {"train", "say it of the messages", false},
                {"loss", "say with \"train\" which messages are learnt", true},
                {"mask", "say with \"train\" which messages are learnt", true},
                {"masks", "say with \"train\" which messages are learnt", true},
                {"image", "images are not read", false},
                {"images", "images are not read", false},
                {"audio", "sounds are not read", false},
                {"audios", "sounds are not read", false},
                {"video", "videos are not read", false},
                {"videos", "videos are not read", false}};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value)
    {
        if (says_nothing(value) || changes_nothing(key, value)) continue;
        for (size_t i = 0; i < DH_COUNTOF(read); i++)
            if (strcmp(key, read[i].key) == 0 || (read[i].word && has_word(key, read[i].key)))
                return dh_fail(ctx, DH_EUNSUPPORTED,
                               "the conversation has \"%.40s\" in addition to its messages, and "
                               "that is not supported: %s",
                               key, read[i].instead);
    }
    return DH_OK;
}

/* The forms of a conversation are known by two keys, or a list. */
static dh_status check_form(dh_ctx *ctx, const json_t *row)
{
    static const char *const forms[][2] = {{"messages", NULL},
                                           {"conversations", NULL},
                                           {"prompt", "completion"},
                                           {"instruction", "output"}};
    const char *found = NULL;
    for (size_t i = 0; i < DH_COUNTOF(forms); i++) {
        if (!json_object_get(row, forms[i][0])) continue;
        if (forms[i][1] && !json_object_get(row, forms[i][1])) continue;
        if (found)
            return dh_fail(ctx, DH_EFORMAT,
                           "it is two conversations: \"%s\" and \"%s\" stand next to each other; "
                           "take one out",
                           found, forms[i][0]);
        found = forms[i][0];
    }
    return DH_OK;
}

static dh_status add_pair(dh_ctx *ctx, const json_t *user, const json_t *answer,
                          dh_chat_messages *list)
{
    DH_TRY(add_message(ctx, DH_CHAT_USER, "user", user, false, list));
    return add_message(ctx, DH_CHAT_ASSISTANT, "assistant", answer, false, list);
}

/* Alpaca's: the input stands behind the instruction, in the row that texts are borrowed from. */
static dh_status read_alpaca(dh_ctx *ctx, json_t *row, dh_chat_messages *list)
{
    const json_t *said = json_object_get(row, "instruction"),
                 *input = json_object_get(row, "input");
    if (!says_nothing(input)) {
        dh_str text = DH_STR_INIT;
        if (!json_is_string(said) || !json_is_string(input))
            return dh_fail(ctx, DH_EFORMAT, "\"instruction\" and \"input\" must be text");
        dh_str_append(&text, json_string_value(said), json_string_length(said));
        dh_str_printf(&text, "\n\n");
        dh_str_append(&text, json_string_value(input), json_string_length(input));
        json_t *both = text.failed ? NULL : json_stringn(text.text, text.len);
        dh_str_fini(&text);
        if (json_object_set_new(row, "instruction", both) != 0) return dh_no_memory(ctx);
    }
    return add_pair(ctx, json_object_get(row, "instruction"), json_object_get(row, "output"), list);
}

static dh_status read_row(dh_ctx *ctx, json_t *row, dh_chat_messages *list)
{
    const json_t *messages = json_object_get(row, "messages");
    const bool shared = !messages && json_object_get(row, "conversations");
    if (shared) messages = json_object_get(row, "conversations");
    const json_t *prompt = json_object_get(row, "prompt"),
                 *answer = json_object_get(row, "completion");
    if (!messages && prompt && answer) return add_pair(ctx, prompt, answer, list);
    if (!messages && json_object_get(row, "instruction") && json_object_get(row, "output"))
        return read_alpaca(ctx, row, list);
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return dh_fail(ctx, DH_EFORMAT,
                       "it is no conversation: there is neither a list \"messages\" or "
                       "\"conversations\", nor \"prompt\" and \"completion\", nor "
                       "\"instruction\" and \"output\"");
    for (size_t i = 0; i < json_array_size(messages); i++)
        DH_TRY(read_message(ctx, json_array_get(messages, i), shared ? "from" : "role",
                            shared ? "value" : "content", list));
    return DH_OK;
}

dh_status dh_chat_read(dh_ctx *ctx, json_t *row, dh_chat_messages *list)
{
    DH_TRY(check_form(ctx, row));
    DH_TRY(check_row(ctx, row));
    return read_row(ctx, row, list);
}

/* ---- encoding -------------------------------------------------------------------------------- */

typedef struct encoding {
    const dh_chat *chat;
    const dh_tokenizer *tok;
    dh_encoder *enc;
    dh_ids *ids;
    dh_ids part; /* ids of the present part */
} encoding;

static size_t n_specials(const dh_tokenizer *tok, const dh_ids *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += tok->vocab.pieces.at[ids->at[i]].kind == DH_PIECE_SPECIAL;
    return n;
}

static dh_status encode_text(dh_ctx *ctx, encoding *e, const dh_str *text)
{
    e->part.n = 0;
    if (text->failed) return dh_no_memory(ctx);
    return dh_encoder_encode(ctx, e->enc, text->text ? text->text : "", text->len,
                             DH_ENCODE_SPECIAL, &e->part);
}

/* Tokens [from, n) of the part are learnt, none before. */
static dh_status push_part(dh_ctx *ctx, encoding *e, size_t from)
{
    for (size_t i = 0; i < e->part.n; i++) {
        const int32_t id = e->part.at[i] | (i < from ? DH_TOKEN_UNLEARNT : 0);
        if (!dh_vec_push(e->ids, id)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

static dh_status push_id(dh_ctx *ctx, encoding *e, int32_t id, bool learnt)
{
    id |= learnt ? 0 : DH_TOKEN_UNLEARNT;
    return dh_vec_push(e->ids, id) ? DH_OK : dh_no_memory(ctx);
}

/* Where the tokens of a longer text begin to differ from those of its beginning. */
static size_t common(const dh_ids *a, const dh_ids *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->at[n] == b->at[n]) n++;
    return n;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void trim(const dh_chat *chat, const char **text, size_t *n)
{
    while (chat->trims && *n > 0 && is_space((*text)[*n - 1])) --*n;
    for (; chat->trims && *n > 0 && is_space(**text); ++*text) --*n;
}

/* The marks before the text are encoded together with it, as in a whole conversation. The answer's
 * tokens begin where those of the marks end. */
static dh_status push_message(dh_ctx *ctx, encoding *e, const dh_chat_message *m, bool last,
                              const dh_str *before, const char *text, size_t n)
{
    const dh_chat_role role = m->role;
    const bool learnt = role == DH_CHAT_ASSISTANT && !m->unlearnt;
    const char *end = e->chat->role[role].end;
    const char *after = last && e->chat->open_end ? "" : e->chat->role[role].after;
    dh_str whole = DH_STR_INIT, marks = DH_STR_INIT;
    dh_ids first = {0};
    dh_str_append(&whole, before->text ? before->text : "", before->len);
    dh_status st = encode_text(ctx, e, &whole);
    for (size_t i = 0; st == DH_OK && i < e->part.n; i++)
        if (!dh_vec_push(&first, e->part.at[i])) st = dh_no_memory(ctx);
    dh_str_printf(&marks, "%s", end ? end : "");
    if (st == DH_OK) st = encode_text(ctx, e, &marks);
    const size_t n_marks =
        st == DH_OK ? n_specials(e->tok, &first) + n_specials(e->tok, &e->part) : 0;
    dh_str_append(&whole, text, n);
    dh_str_append(&whole, marks.text ? marks.text : "", marks.len);
    if (st == DH_OK) st = encode_text(ctx, e, &whole);
    if (st == DH_OK && n_specials(e->tok, &e->part) != n_marks)
        st = dh_fail(
            ctx, DH_EINVAL,
            "a message holds the text of a special token, which would end it or begin another");
    if (st == DH_OK) st = push_part(ctx, e, learnt ? common(&first, &e->part) : e->part.n);
    if (st == DH_OK && !end) st = push_id(ctx, e, dh_tokenizer_eos(e->tok), learnt);
    dh_str_clear(&marks);
    dh_str_printf(&marks, "%s", after);
    if (st == DH_OK && *after) st = encode_text(ctx, e, &marks);
    if (st == DH_OK && *after) st = push_part(ctx, e, e->part.n);
    dh_vec_fini(&first);
    dh_str_fini(&whole);
    dh_str_fini(&marks);
    return st;
}

static dh_status encode_messages(dh_ctx *ctx, encoding *e, const dh_chat_messages *list)
{
    const dh_chat_message *system = NULL;
    for (size_t i = 0; i < list->n; i++) {
        const dh_chat_message *m = &list->at[i];
        const char *text = m->text, *before = e->chat->role[m->role].before;
        size_t n = m->n;
        if (m->role == DH_CHAT_SYSTEM && e->chat->system_in_user && i == 0) {
            system = m;
            continue;
        }
        if (!before)
            return dh_fail(ctx, DH_EUNSUPPORTED,
                           "chat template %s has no place for a system message%s", e->chat->name,
                           i > 0 ? " after other messages" : "");
        dh_str start = DH_STR_INIT;
        dh_str_printf(&start, "%s", before);
        if (system && m->role == DH_CHAT_USER) {
            dh_str_append(&start, system->text, system->n);
            dh_str_printf(&start, "\n\n");
            system = NULL;
        }
        trim(e->chat, &text, &n);
        dh_status st = start.failed ? dh_no_memory(ctx)
                                    : push_message(ctx, e, m, i + 1 == list->n, &start, text, n);
        dh_str_fini(&start);
        DH_TRY(st);
    }
    return DH_OK;
}

dh_status dh_chat_encode(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok, dh_encoder *enc,
                         const dh_chat_messages *list, bool answer, dh_ids *ids)
{
    encoding e = {.chat = chat, .tok = tok, .enc = enc, .ids = ids};
    dh_str start = DH_STR_INIT;
    const size_t n = ids->n;
    dh_status st = chat->bos ? push_id(ctx, &e, dh_tokenizer_bos(tok), false) : DH_OK;
    if (st == DH_OK) st = encode_messages(ctx, &e, list);
    if (st == DH_OK && answer) {
        /* A blank in front of an answer belongs to its first token. */
        const char *before = chat->role[DH_CHAT_ASSISTANT].before;
        size_t len = strlen(before);
        while (len > 0 && before[len - 1] == ' ') len--;
        dh_str_append(&start, before, len);
        st = encode_text(ctx, &e, &start);
        if (st == DH_OK) st = push_part(ctx, &e, e.part.n);
    }
    if (st == DH_OK && !answer && chat->eos) st = push_id(ctx, &e, dh_tokenizer_eos(tok), false);
    dh_str_fini(&start);
    dh_vec_fini(&e.part);
    if (st == DH_OK && ids->n > n)
        ids->at[ids->n - 1] |= DH_TOKEN_LAST;
    else
        ids->n = n;
    return st;
}
