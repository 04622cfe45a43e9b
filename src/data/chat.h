/* Conversations as tokens: templates by name, and which tokens are learnt.
 *
 * A row of JSON is a conversation in one of four forms:
 *   "messages" of {"role", "content"}
 *   "conversations" of {"from", "value"} (human, gpt)
 *   "prompt" and "completion"
 *   Alpaca's "instruction", "input" and "output"
 * A template puts its marks around each message. Answers and their ends are learnt, except where
 * "weight": 0 or "train": false says otherwise. All other tokens are only read. */
#ifndef DH_DATA_CHAT_H
#define DH_DATA_CHAT_H

#include <jansson.h>

#include "base/base.h"
#include "dhelix/tokenizer.h"

/* Flags of an id in a stream of conversations. */
enum {
    DH_TOKEN_UNLEARNT = 1 << 30, /* not in the loss */
    DH_TOKEN_LAST = 1 << 29,     /* last token of its conversation */
    DH_TOKEN_ID = DH_TOKEN_LAST - 1
};

typedef enum dh_chat_role {
    DH_CHAT_SYSTEM,
    DH_CHAT_USER,
    DH_CHAT_ASSISTANT,
    DH_N_CHAT_ROLE
} dh_chat_role;

typedef struct dh_chat_message {
    dh_chat_role role;
    const char *text; /* borrowed */
    size_t n;
    bool unlearnt; /* an answer that is only read */
} dh_chat_message;
typedef DH_VEC(dh_chat_message) dh_chat_messages;

/* A template: marks around messages by role. */
typedef struct dh_chat {
    const char *name, *doc;
    bool bos; /* begins with the tokenizer's BOS */
    struct {
        const char *before; /* NULL: the template has no such message */
        const char *end;    /* learnt after an answer; NULL: the tokenizer's EOS */
        const char *after;
    } role[DH_N_CHAT_ROLE];
    bool trims; /* white space at both ends of messages is removed */
    /* A system message stands before the first user's, an empty line between. */
    bool system_in_user;
    bool eos;         /* a whole conversation ends with EOS, which is not learnt */
    bool special;     /* its marks must be special tokens */
    bool open_end;    /* `after` is left out after the last message */
    const char *mark; /* found in the Jinja texts of this template */
} dh_chat;

/* NULL after the last. */
const dh_chat *dh_chat_row(size_t i);
/* errors    DH_EMISSING no such template: names the known ones */
dh_status dh_chat_find(dh_ctx *ctx, const char *name, const dh_chat **chat);
/* The template of a tokenizer's folder (or of the folder of its file). It is recognised by the
 * marks in tokenizer_config.json, chat_template.jinja or chat_template.json. Only the marks are
 * used; default system messages and tools are not.
 * errors    DH_EMISSING the folder has no template; DH_EUNSUPPORTED it is none of the known ones */
dh_status dh_chat_of_tokenizer(dh_ctx *ctx, const char *spec, const dh_chat **chat);
/* Whether a tokenizer has the tokens that the template needs.
 * errors    DH_EINVAL: names the token */
dh_status dh_chat_check(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok);
/* The token that ends an answer; -1: none does. */
int32_t dh_chat_end(const dh_chat *chat, const dh_tokenizer *tok);

/* Appends the messages of a row to list.
 *
 * in        row: joined texts are added to it
 * out       list: borrows from the row
 * errors    DH_EFORMAT a part is missing, or is no text
 *           DH_EUNSUPPORTED other roles, or other parts of a message
 *           DH_ENOMEM */
dh_status dh_chat_read(dh_ctx *ctx, json_t *row, dh_chat_messages *list);

/* Appends a conversation's tokens with their marks, the last one with DH_TOKEN_LAST.
 * in        answer: end where the next answer would begin
 * errors    DH_EUNSUPPORTED a role for which the template has no place; DH_EINVAL a message that
 *           holds a special token's text; DH_ENOMEM */
dh_status dh_chat_encode(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok, dh_encoder *enc,
                         const dh_chat_messages *list, bool answer, dh_ids *ids);

#endif
