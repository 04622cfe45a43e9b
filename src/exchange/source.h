/* Words of other projects' files and command lines, before their meaning is known. */
#ifndef DH_EXCHANGE_SOURCE_H
#define DH_EXCHANGE_SOURCE_H

#include "base/base.h"

static inline bool dh_is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static inline bool dh_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* A flag with its value, or a key of a file with its value. */
typedef struct dh_said {
    const char *name;  /* "--seq-length", "training.seq_len" */
    const char *value; /* NULL: none; of several: with a blank between */
    const char *place; /* "train.sh:12" */
} dh_said;

/* Strings lie in the arena. */
typedef struct dh_source {
    dh_arena *arena;
    DH_VEC(dh_said) said;
    DH_VEC(const char *) notes; /* parts that reading left out, a sentence each */
    int64_t per_node, nodes;    /* numbers in the launcher's command; 0: none */
} dh_source;

/* NAME=VALUE texts: variables that the caller gives. */
typedef struct dh_defines {
    const char *const *at;
    size_t n;
} dh_defines;

/* A command line of Megatron-LM, or a shell script that makes one. Of a script, assignments, arrays,
 * conditions on texts and numbers, and arithmetic are carried out, as far as the command with most
 * flags of Megatron-LM needs them. No program is run and no file is looked at: tests for files are
 * true, and of the environment only `defines` are there.
 * in        origin: for messages
 * out       source: more of `said`, with values that may hold "$NAME" where a variable has no value
 * errors    DH_EFORMAT with the line: loops, functions, here-documents, quotes that do not end;
 *           no flag of Megatron-LM; DH_ENOMEM */
dh_status dh_shell_read(dh_ctx *ctx, const char *origin, const char *text, dh_defines defines,
                        dh_source *source);
/* A TOML file, without dates and tables of arrays. Keys get the tables around them: "model.name".
 * errors    DH_EFORMAT with the line; DH_ENOMEM */
dh_status dh_toml_read(dh_ctx *ctx, const char *origin, const char *text, dh_source *source);
/* A YAML file of OmegaConf. Its ${...} that name another key of the file, and its multiply, are
 * carried out.
 * errors    DH_EFORMAT with the place; DH_ENOMEM */
dh_status dh_omega_read(dh_ctx *ctx, const char *origin, const char *text, size_t n_bytes,
                        dh_source *source);

#endif
