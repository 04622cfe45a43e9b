/* "decoder" of tokenizer.json: one row a type. Byte-level BPE and the Llama 2 kind need none: their
 * vocabulary is the text. */
#include <string.h>

#include "data/hf.h"

static dh_status add(dh_ctx *ctx, hf_file *hf, dh_shown_step step)
{
    return dh_vec_push(&hf->decoder, step) ? DH_OK : dh_no_memory(ctx);
}

static const char *string_or(const json_t *node, const char *key, const char *absent)
{
    const char *text = json_string_value(json_object_get(node, key));
    return text ? text : absent;
}

static dh_status step_byte_level(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_shown_step){.kind = DH_SHOWN_BYTES});
}

static dh_status step_byte_fallback(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_shown_step){.kind = DH_SHOWN_BYTE});
}

static dh_status step_fuse(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf, (dh_shown_step){.kind = DH_SHOWN_FUSE});
}

static dh_status step_replace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const char *from;
    size_t n;
    bool regex;
    DH_TRY(hf_pattern(ctx, node, &from, &n, &regex));
    if (regex)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "decoder Replace of a regular expression; a text is read");
    return add(
        ctx, hf,
        (dh_shown_step){.kind = DH_SHOWN_REPLACE, .from = from, .to = hf_string(node, "content")});
}

static dh_status step_strip(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const json_int_t left = json_integer_value(json_object_get(node, "start"));
    const json_int_t right = json_integer_value(json_object_get(node, "stop"));
    bool fused = false;
    for (size_t i = 0; i < hf->decoder.n; i++)
        fused = fused || hf->decoder.at[i].kind == DH_SHOWN_FUSE;
    if (left < 0 || right < 0 || left > 65535 || right > 65535)
        return dh_fail(ctx, DH_EFORMAT, "decoder Strip: start and stop are not in 0..65535");
    if (fused && (left > 1 || right > 0))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "decoder Strip after Fuse with start %lld and stop %lld; start 1 and stop "
                       "0 are read",
                       (long long)left, (long long)right);
    return add(ctx, hf,
               (dh_shown_step){.kind = DH_SHOWN_STRIP,
                               .from = string_or(node, "content", " "),
                               .n_left = (size_t)left,
                               .n_right = (size_t)right});
}

static dh_status step_metaspace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const char *scheme = string_or(node, "prepend_scheme", "");
    const bool never = *scheme ? strcmp(scheme, "never") == 0
                               : json_is_false(json_object_get(node, "add_prefix_space"));
    return add(ctx, hf,
               (dh_shown_step){.kind = DH_SHOWN_METASPACE,
                               .from = string_or(node, "replacement", DH_META_SPACE),
                               .strips = !never});
}

static dh_status step_wordpiece(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf,
               (dh_shown_step){.kind = DH_SHOWN_WORDPIECE,
                               .from = string_or(node, "prefix", "##"),
                               .cleanup = !json_is_false(json_object_get(node, "cleanup"))});
}

static dh_status step_suffix(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return add(ctx, hf,
               (dh_shown_step){.kind = DH_SHOWN_SUFFIX, .from = string_or(node, "suffix", "</w>")});
}

static const hf_row rows[] = {{"ByteLevel", step_byte_level},
                              {"ByteFallback", step_byte_fallback},
                              {"Fuse", step_fuse},
                              {"Replace", step_replace},
                              {"Strip", step_strip},
                              {"Metaspace", step_metaspace},
                              {"WordPiece", step_wordpiece},
                              {"BPEDecoder", step_suffix}};
static const hf_section section = {"decoder", "decoders", rows, DH_COUNTOF(rows), false};

/* As added tokens are written, or as the vocabulary spells them. */
static dh_status show_vocabulary(dh_ctx *ctx, hf_file *hf)
{
    dh_tokenizer *tok = hf->tok;
    for (uint32_t id = 0; id < tok->vocab.pieces.n; id++) {
        const dh_piece *p = &tok->vocab.pieces.at[id];
        DH_TRY(dh_shown_add(ctx, &tok->shown, &hf->decoder, id, dh_vocab_bytes(&tok->vocab, id),
                            p->len));
    }
    return DH_OK;
}

dh_status hf_read_decoder(dh_ctx *ctx, hf_file *hf)
{
    DH_TRY(hf_apply_section(ctx, hf, &section));
    if (hf->decoder.n == 0) DH_TRY(add(ctx, hf, (dh_shown_step){.kind = DH_SHOWN_SPACED}));
    return show_vocabulary(ctx, hf);
}
