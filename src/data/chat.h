/* Conversations as tokens: templates by name, and which tokens are learnt.
 *
 * A row of JSON is a conversation: "messages" of {"role", "content"}, "conversations" of
 * {"from", "value"} (human, gpt), "prompt" and "completion", or Alpaca's "instruction", "input" and
 * "output". A template puts its marks around each message; the answers and what ends them are
 * learnt but where "weight": 0 or "train": false says otherwise, all else is only read. */
#ifndef DH_DATA_CHAT_H
#define DH_DATA_CHAT_H

#include <jansson.h>

#include "base/base.h"
#include "dhelix/tokenizer.h"

/* In a stream of conversations an id carries what else is known of its token. */
enum {
    DH_TOKEN_UNLEARNT = 1 << 30, /* nobody is asked for it */
    DH_TOKEN_LAST = 1 << 29,     /* of its conversation */
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
        const char *before; /* NULL: there is no such message */
        const char *end;    /* learnt behind an answer; NULL: the tokenizer's EOS */
        const char *after;
    } role[DH_N_CHAT_ROLE];
    bool trims; /* white space at both ends of messages goes */
    bool
        system_in_user; /* a system message stands before the first user's, an empty line between */
    bool eos;           /* a whole conversation ends with EOS, which is not learnt */
    bool special;       /* its marks must be special tokens */
    bool open_end;      /* what comes after a message does not come after the last */
    const char *mark;   /* of the Jinja texts that it stands for */
} dh_chat;

/* NULL behind the last. */
const dh_chat *dh_chat_row(size_t i);
/* errors    DH_EMISSING: names those there are */
dh_status dh_chat_find(dh_ctx *ctx, const char *name, const dh_chat **chat);
/* The template whose marks the chat_template of a tokenizer's folder (or of the folder of its file)
 * has, in tokenizer_config.json, chat_template.jinja or chat_template.json. Only the marks are
 * taken from it: default system messages and tools are not. errors    DH_EMISSING there is none;
 * DH_EUNSUPPORTED none that is known */
dh_status dh_chat_of_tokenizer(dh_ctx *ctx, const char *spec, const dh_chat **chat);
/* Whether a tokenizer has the tokens that it needs. errors: DH_EINVAL, names the token */
dh_status dh_chat_check(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok);
/* The token that ends an answer; -1: none does. */
int32_t dh_chat_end(const dh_chat *chat, const dh_tokenizer *tok);

/* Messages of a row; they borrow from it, and what was joined for them is put there. Appended to
 * list.
 * errors    DH_EFORMAT what is missing, or not a text; DH_EUNSUPPORTED other roles, and what a
 * message has beside its text; DH_ENOMEM */
dh_status dh_chat_read(dh_ctx *ctx, json_t *row, dh_chat_messages *list);

/* Append a conversation's tokens with their marks, the last one DH_TOKEN_LAST. answer: it ends
 * where the next answer would begin. errors    DH_EUNSUPPORTED a role that the template has no
 * place for; DH_EINVAL a message that holds a special token's text; DH_ENOMEM */
dh_status dh_chat_encode(dh_ctx *ctx, const dh_chat *chat, const dh_tokenizer *tok, dh_encoder *enc,
                         const dh_chat_messages *list, bool answer, dh_ids *ids);

#endif
