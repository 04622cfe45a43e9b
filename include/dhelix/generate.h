/* Text from a trained model, token by token. */
#ifndef DHELIX_GENERATE_H
#define DHELIX_GENERATE_H

#include "dhelix/export.h"
#include "dhelix/sampler.h"
#include "dhelix/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a prompt begins with the tokenizer's BOS. */
typedef enum dh_generate_bos {
    DH_BOS_AS_TRAINED, /* if the tokenizer has its own, except for runs, whose data had none */
    DH_BOS_ALWAYS,
    DH_BOS_NEVER
} dh_generate_bos;

typedef struct dh_generate_spec {
    const char *prompt; /* bytes, not terminated; NULL with n_prompt 0 */
    size_t n_prompt;
    dh_generate_bos bos;
    bool special_tokens; /* texts of special tokens in the prompt become those tokens */
    /* The prompt is a message that the text answers, by this template of conversations ("auto": the
     * run's, else the tokenizer's); the text is then the answer alone. NULL: it is text to go on
     * with. */
    const char *chat;
    const char *system;  /* of a conversation: a message in front of it; NULL: none */
    int64_t max_tokens;  /* new tokens, without those of the prompt */
    bool slide;          /* a full context forgets its older half instead of ending the text */
    dh_sampler *sampler; /* over the model's vocabulary; its state moves on */
    const volatile sig_atomic_t *stop; /* ends the text when non-zero; NULL: ctx's */
    /* The text as it grows, the prompt first. A piece may end inside a character.
     * A failure ends generation and is returned. */
    dh_status (*emit)(dh_ctx *ctx, void *self, const char *bytes, size_t n_bytes);
    void *self;
} dh_generate_spec;

typedef enum dh_generate_end {
    DH_GENERATE_LENGTH,  /* max_tokens reached */
    DH_GENERATE_EOS,     /* the model ended the text: EOS, or the BOS of a next one */
    DH_GENERATE_CONTEXT, /* the session's cache_len is full, and slide is off */
    DH_GENERATE_STOPPED
} dh_generate_end;

typedef struct dh_generate_result {
    int64_t n_prompt; /* tokens read before the first new one, BOS included */
    int64_t n_new;
    double prompt_s, new_s; /* time spent on each */
    dh_generate_end end;
} dh_generate_result;

/* Continues a prompt. A tokenizer with a BOS token of its own (SentencePiece, Llama 3) starts the
 * text with it, as those models were trained. Runs of ours are an exception, since their documents
 * begin with none. An empty prompt starts with BOS, else EOS, else a newline, which is not part of
 * the text.
 *
 * The model sees at most cache_len tokens. A longer prompt is refused. When prompt and text have
 * filled the cache, the text ends. With slide the newer half is read again from position 0 and the
 * text continues (a token costs about twice as much).
 * in        trained: opened with decode, tokenizer not NULL
 * errors    DH_EINVAL no tokenizer, prompt too long or not encodable; DH_EMISSING, DH_EUNSUPPORTED
 *           those of the template */
DH_API dh_status dh_generate(dh_ctx *ctx, const dh_trained *trained, const dh_generate_spec *spec,
                             dh_generate_result *result);

#ifdef __cplusplus
}
#endif
#endif
