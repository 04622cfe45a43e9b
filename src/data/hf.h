/* Inside of the reader of tokenizer.json: what its parts share. */
#ifndef DH_DATA_HF_H
#define DH_DATA_HF_H

#include "data/tok_json.h"

typedef struct hf_file {
    dh_tokenizer *tok;
    json_t *root, *model, *vocab;
    dh_shown_steps decoder;
    dh_normalize_work *normalize; /* while added tokens are read */
} hf_file;

/* "" where there is no such text. */
const char *hf_string(const json_t *object, const char *key);
bool hf_is_set(const json_t *object, const char *key);

/* ---- sections: a node {"type": ...} or a Sequence of nodes, nested or not ---------------- */

typedef struct hf_row {
    const char *type;
    dh_status (*apply)(dh_ctx *ctx, hf_file *hf, json_t *node);
} hf_row;

typedef struct hf_section {
    const char *name, *list; /* key in the file; key of a Sequence's list */
    const hf_row *rows;
    size_t n_rows;
    bool any_text; /* its rows read texts by their length, also with a NUL in them */
} hf_section;

/* Every node in order by its row.
 * errors    DH_EUNSUPPORTED a type that has none, by name */
dh_status hf_apply_section(dh_ctx *ctx, hf_file *hf, const hf_section *section);
/* {"String": text} or {"Regex": text} of a node. */
dh_status hf_pattern(dh_ctx *ctx, const json_t *node, const char **text, size_t *n, bool *regex);

/* ---- the sections (hf_normalizer.c, hf_pre_tokenizer.c, hf_decoder.c, hf_model.c) -------- */

/* Kinds with a normalizer and a splitter of their own. */
dh_status hf_read_normalizer(dh_ctx *ctx, hf_file *hf);
dh_status hf_read_pre_tokenizer(dh_ctx *ctx, hf_file *hf);
/* After the vocabulary and added tokens. */
dh_status hf_read_decoder(dh_ctx *ctx, hf_file *hf);
/* Byte-level BPE and the Llama 2 kind, which leave out what they need not do. */
dh_status hf_read_byte_level(dh_ctx *ctx, hf_file *hf);
dh_status hf_read_metaspace(dh_ctx *ctx, hf_file *hf);

/* Vocabulary, merges or scores, unknown token; added tokens; what the kind derives from them. */
dh_status hf_read_model(dh_ctx *ctx, hf_file *hf);
/* The kind a file is read as.
 * errors    DH_EUNSUPPORTED the setting or type that is not read */
dh_status hf_choose_kind(dh_ctx *ctx, const hf_file *hf, const dh_tok_kind **kind);

#endif
