/* Text to token ids, in a file or to whoever takes them; a tokenizer from texts. */
#ifndef DH_DESCRIBE_TOKENIZED_H
#define DH_DESCRIBE_TOKENIZED_H

#include <jansson.h>

#include "dhelix/describe.h"

typedef struct dh_tokenize_input {
    const char *const *files; /* none where the options have a text */
    size_t n_files;
    const dh_describe_tokenize_options *how;
    /* Takes the ids a part at a time; with a chat template with the marks of data/chat.h. NULL:
     * they are counted, or written to the output. */
    dh_status (*sink)(dh_ctx *ctx, void *self, const int32_t *ids, size_t n);
    void *self;
} dh_tokenize_input;

typedef struct dh_tokenized {
    int64_t tokens;
    int32_t vocab;
    double seconds;
} dh_tokenized;

/* Encode the text or the files.
 * errors    those of the texts and of the tokenizer; DH_EINVAL the output is one of the files */
dh_status dh_tokenized_make(dh_ctx *ctx, const dh_tokenize_input *in, dh_tokenized *tokenized);
/* The ids of token files, to the sink. */
dh_status dh_tokens_each(dh_ctx *ctx, const dh_tokenize_input *in);
double dh_tokenized_per_s(const dh_tokenized *tokenized);
/* NULL: out of memory */
json_t *dh_tokenized_json(const dh_tokenize_input *in, const dh_tokenized *tokenized);

typedef struct dh_learned {
    size_t vocab, merges, words;
    double seconds;
} dh_learned;

/* A tokenizer learnt from the files, in the folder `output`. */
dh_status dh_tokenizer_learn(dh_ctx *ctx, const dh_tokenize_input *in, dh_learned *learned);
/* NULL: out of memory */
json_t *dh_learned_json(const dh_tokenize_input *in, const dh_learned *learned);

/* Either, by the options. *document NULL: out of memory */
dh_status dh_tokenized_describe(dh_ctx *ctx, const char *const *files, size_t n_files,
                                const dh_describe_tokenize_options *options, json_t **document);

#endif
