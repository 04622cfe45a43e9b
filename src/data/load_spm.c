/* SentencePiece .model: a protocol buffer (sentencepiece_model.proto), read by hand.
 *
 * ModelProto       1 pieces {1 text, 2 score, 3 type}, 2 trainer, 3 normalizer
 * TrainerSpec      3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback,
 *                  44 unk_surface, 46 bos_piece, 47 eos_piece
 * NormalizerSpec   1 name, 2 precompiled_charsmap, 3 add_dummy_prefix,
 *                  4 remove_extra_whitespaces, 5 escape_whitespaces
 * Absent fields have the defaults of the .proto. */
#include "base/needs.h"
#include "data/tok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- protocol buffer --------------------------------------------------------------- */

typedef struct span {
    const unsigned char *at;
    size_t n;
} span;

typedef struct proto_field {
    uint32_t number, wire;
    uint64_t value; /* varint and fixed */
    span bytes;     /* length-delimited */
} proto_field;

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool read_varint(span *s, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && s->n > 0; shift += 7) {
        unsigned char byte = *s->at++;
        s->n--;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool read_fixed(span *s, size_t n, uint64_t *value)
{
    if (s->n < n) return false;
    *value = 0;
    memcpy(value, s->at, n); /* little endian, as the file */
    s->at += n;
    s->n -= n;
    return true;
}

static bool read_bytes(span *s, span *bytes)
{
    uint64_t n;
    if (!read_varint(s, &n) || n > s->n) return false;
    *bytes = (span){s->at, (size_t)n};
    s->at += n;
    s->n -= (size_t)n;
    return true;
}

/* Next field of a message; false when it is cut off or of an unknown wire type. */
static bool next_field(span *s, proto_field *f)
{
    uint64_t tag;
    *f = (proto_field){0};
    if (!read_varint(s, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = tag & 7;
    switch (f->wire) {
    case WIRE_VARINT:
        return read_varint(s, &f->value);
    case WIRE_64:
        return read_fixed(s, 8, &f->value);
    case WIRE_32:
        return read_fixed(s, 4, &f->value);
    case WIRE_BYTES:
        return read_bytes(s, &f->bytes);
    default:
        return false;
    }
}

/* ---- the messages ---------------------------------------------------------------------- */

typedef enum field_type { F_UINT, F_BOOL, F_FLOAT, F_BYTES } field_type;

typedef struct field_row {
    uint32_t number;
    field_type type;
    size_t offset; /* in the struct filled */
} field_row;

typedef struct spm_piece {
    span text;
    float score;
    uint64_t type;
} spm_piece;

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

static const field_row piece_rows[] = {
    {1, F_BYTES, offsetof(spm_piece, text)},
    {2, F_FLOAT, offsetof(spm_piece, score)},
    {3, F_UINT, offsetof(spm_piece, type)},
};

typedef struct spm_trainer {
    uint64_t model_type;
    bool space_as_suffix, byte_fallback;
    span unk_surface, bos_piece, eos_piece;
} spm_trainer;

enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

static const field_row trainer_rows[] = {
    {3, F_UINT, offsetof(spm_trainer, model_type)},
    {24, F_BOOL, offsetof(spm_trainer, space_as_suffix)},
    {35, F_BOOL, offsetof(spm_trainer, byte_fallback)},
    {44, F_BYTES, offsetof(spm_trainer, unk_surface)},
    {46, F_BYTES, offsetof(spm_trainer, bos_piece)},
    {47, F_BYTES, offsetof(spm_trainer, eos_piece)},
};

typedef struct spm_normalizer {
    span name, charsmap;
    bool dummy_prefix, strip_spaces, escape_spaces;
} spm_normalizer;

static const field_row normalizer_rows[] = {
    {1, F_BYTES, offsetof(spm_normalizer, name)},
    {2, F_BYTES, offsetof(spm_normalizer, charsmap)},
    {3, F_BOOL, offsetof(spm_normalizer, dummy_prefix)},
    {4, F_BOOL, offsetof(spm_normalizer, strip_spaces)},
    {5, F_BOOL, offsetof(spm_normalizer, escape_spaces)},
};

static const uint32_t wire_of[] = {
    [F_UINT] = WIRE_VARINT, [F_BOOL] = WIRE_VARINT, [F_FLOAT] = WIRE_32, [F_BYTES] = WIRE_BYTES};

static void store(const field_row *row, const proto_field *f, void *target)
{
    char *at = (char *)target + row->offset;
    bool flag = f->value != 0;
    uint32_t bits = (uint32_t)f->value;
    switch (row->type) {
    case F_UINT:
        memcpy(at, &f->value, sizeof f->value);
        break;
    case F_BOOL:
        memcpy(at, &flag, sizeof flag);
        break;
    case F_FLOAT:
        memcpy(at, &bits, sizeof bits);
        break;
    case F_BYTES:
        memcpy(at, &f->bytes, sizeof f->bytes);
        break;
    }
}

/* Fill a struct from a message; fields without a row are skipped. */
static dh_status read_message(dh_ctx *ctx, span s, const char *what, const field_row *rows,
                              size_t n_rows, void *target)
{
    proto_field f;
    while (s.n > 0) {
        if (!next_field(&s, &f))
            return dh_fail(ctx, DH_EFORMAT, "%s: cut off or malformed, %zu bytes before its end",
                           what, s.n);
        for (size_t i = 0; i < n_rows; i++) {
            if (rows[i].number != f.number) continue;
            if (wire_of[rows[i].type] != f.wire)
                return dh_fail(ctx, DH_EFORMAT, "%s: field %u has wire type %u, want %u", what,
                               f.number, f.wire, wire_of[rows[i].type]);
            store(&rows[i], &f, target);
        }
    }
    return DH_OK;
}

/* ---- building ------------------------------------------------------------------------------ */

typedef struct spm_model {
    DH_VEC(spm_piece) pieces;
    DH_VEC(float) scores;
    spm_trainer trainer;
    spm_normalizer normalizer;
} spm_model;

static span literal(const char *text)
{
    return (span){(const unsigned char *)text, strlen(text)};
}

static bool same(span a, span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

static dh_status read_piece(dh_ctx *ctx, span s, spm_model *model)
{
    spm_piece piece = {.type = PIECE_NORMAL};
    size_t id = model->pieces.n;
    if (read_message(ctx, s, "piece", piece_rows, DH_COUNTOF(piece_rows), &piece) != DH_OK)
        return dh_ctx_while(ctx, "reading token %zu", id);
    if (piece.text.n == 0 || piece.text.n > 65535)
        return dh_fail(ctx, DH_EFORMAT,
                       "token %zu has a text of %zu bytes; it must have 1 to 65535", id,
                       piece.text.n);
    if (!isfinite(piece.score))
        return dh_fail(ctx, DH_EFORMAT, "token %zu: score is not a number", id);
    if (!dh_vec_push(&model->pieces, piece) || !dh_vec_push(&model->scores, piece.score))
        return dh_no_memory(ctx);
    return DH_OK;
}

static dh_status read_model(dh_ctx *ctx, span s, spm_model *model)
{
    model->trainer = (spm_trainer){.model_type = MODEL_UNIGRAM,
                                   .unk_surface = literal(" \xE2\x81\x87 "),
                                   .bos_piece = literal("<s>"),
                                   .eos_piece = literal("</s>")};
    model->normalizer =
        (spm_normalizer){.dummy_prefix = true, .strip_spaces = true, .escape_spaces = true};
    proto_field f;
    while (s.n > 0) {
        size_t left = s.n;
        if (!next_field(&s, &f))
            return dh_fail(ctx, DH_EFORMAT,
                           "not a SentencePiece model, or cut off: %zu bytes "
                           "before the end",
                           left);
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1)
            DH_TRY(read_piece(ctx, f.bytes, model));
        else if (f.number == 2)
            DH_TRY(read_message(ctx, f.bytes, "trainer", trainer_rows, DH_COUNTOF(trainer_rows),
                                &model->trainer));
        else if (f.number == 3)
            DH_TRY(read_message(ctx, f.bytes, "normalizer", normalizer_rows,
                                DH_COUNTOF(normalizer_rows), &model->normalizer));
    }
    if (model->pieces.n == 0)
        return dh_fail(ctx, DH_EFORMAT, "a SentencePiece model without tokens");
    return DH_OK;
}

static dh_status check_supported(dh_ctx *ctx, const spm_model *model)
{
    if (model->trainer.model_type != MODEL_BPE && model->trainer.model_type != MODEL_UNIGRAM)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "SentencePiece model type %llu; unigram (1) and BPE (2) are read",
                       (unsigned long long)model->trainer.model_type);
    if (model->trainer.space_as_suffix)
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "the SentencePiece setting treat_whitespace_as_suffix is not supported");
    return DH_OK;
}

static dh_status add_byte(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, span text, bool fallback)
{
    int byte = dh_spm_byte_piece((const char *)text.at, text.n);
    if (byte < 0)
        return dh_fail(ctx, DH_EFORMAT, "byte token %u is \"%.*s\", not <0xHH>", id,
                       (int)DH_MIN(text.n, 40), (const char *)text.at);
    unsigned char value = (unsigned char)byte;
    if (fallback) tok->byte_id[value] = id;
    return dh_vocab_set(ctx, &tok->vocab, id, &value, 1, DH_PIECE_BYTE);
}

/* A piece of text: spaces unescaped. */
static dh_status add_text(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, span text,
                          dh_piece_kind kind)
{
    char *copy = malloc(text.n);
    if (!copy) return dh_no_memory(ctx);
    memcpy(copy, text.at, text.n);
    size_t n = tok->escape_space ? dh_spm_unescape(copy, text.n) : text.n;
    dh_status st = dh_vocab_set(ctx, &tok->vocab, id, copy, n, kind);
    free(copy);
    if (st == DH_OK && kind == DH_PIECE_USER)
        st = dh_matcher_add(ctx, &tok->user, (dh_match_entry){.id = id, .always = true});
    return st;
}

static dh_status add_control(dh_ctx *ctx, dh_tokenizer *tok, uint32_t id, span text,
                             const spm_trainer *trainer)
{
    if (same(text, trainer->bos_piece)) tok->bos = (int32_t)id;
    if (same(text, trainer->eos_piece)) tok->eos = (int32_t)id;
    DH_TRY(dh_vocab_set(ctx, &tok->vocab, id, text.at, text.n, DH_PIECE_SPECIAL));
    return dh_tokenizer_add_special(ctx, tok, id, false);
}

static dh_status add_piece(dh_ctx *ctx, dh_tokenizer *tok, const spm_model *model, uint32_t id)
{
    const spm_piece *p = &model->pieces.at[id];
    span surface = model->trainer.unk_surface;
    switch (p->type) {
    case PIECE_NORMAL:
        return add_text(ctx, tok, id, p->text, DH_PIECE_NORMAL);
    case PIECE_USER:
        return add_text(ctx, tok, id, p->text, DH_PIECE_USER);
    case PIECE_CONTROL:
        return add_control(ctx, tok, id, p->text, &model->trainer);
    case PIECE_BYTE:
        return add_byte(ctx, tok, id, p->text, model->trainer.byte_fallback);
    case PIECE_UNKNOWN:
        tok->unk = id;
        return dh_vocab_set(ctx, &tok->vocab, id, surface.n ? (const void *)surface.at : "",
                            surface.n, DH_PIECE_UNKNOWN);
    case PIECE_UNUSED: /* BPE would make it and take it apart again */
        if (tok->kind == &dh_tok_spm_unigram)
            return add_text(ctx, tok, id, p->text, DH_PIECE_UNUSED);
        return dh_fail(
            ctx, DH_EUNSUPPORTED,
            "token %u is marked unused (type 5), which is supported in unigram models only", id);
    default:
        return dh_fail(ctx, DH_EFORMAT, "token %u has the unknown type %llu", id,
                       (unsigned long long)p->type);
    }
}

/* Scores and trie; a character without a token costs more than any other. */
static dh_status set_scores(dh_ctx *ctx, dh_tokenizer *tok, const spm_model *model)
{
    double lowest = HUGE_VAL;
    if (!dh_vec_reserve(&tok->scores, model->scores.n)) return dh_no_memory(ctx);
    for (size_t id = 0; id < model->scores.n; id++) {
        const double score = model->scores.at[id];
        tok->scores.at[tok->scores.n++] = score;
        if (tok->vocab.pieces.at[id].kind == DH_PIECE_NORMAL) lowest = DH_MIN(lowest, score);
    }
    tok->unk_score = (isfinite(lowest) ? lowest : 0) - DH_UNIGRAM_UNK_PENALTY;
    return dh_trie_build(ctx, &tok->vocab, &tok->trie);
}

static dh_status build(dh_ctx *ctx, dh_tokenizer *tok, span file, spm_model *model)
{
    DH_TRY(read_model(ctx, file, model));
    DH_TRY(check_supported(ctx, model));
    if (model->trainer.model_type == MODEL_UNIGRAM) tok->kind = &dh_tok_spm_unigram;
    if (model->normalizer.charsmap.n)
        DH_TRY(dh_charsmap_read(ctx, model->normalizer.charsmap.at, model->normalizer.charsmap.n,
                                &tok->charsmap));
    tok->prefix = model->normalizer.dummy_prefix ? DH_PREFIX_ALWAYS : DH_PREFIX_NONE;
    tok->strip_prefix = model->normalizer.dummy_prefix;
    tok->collapse_spaces = model->normalizer.strip_spaces;
    tok->escape_space = model->normalizer.escape_spaces;
    tok->fuse_unk = true;
    for (uint32_t id = 0; id < model->pieces.n; id++) DH_TRY(add_piece(ctx, tok, model, id));
    DH_TRY(dh_vocab_index(ctx, &tok->vocab));
    DH_TRY(tok->kind == &dh_tok_spm_unigram ? set_scores(ctx, tok, model)
                                            : dh_spm_pairs_from_scores(ctx, tok, model->scores.at));
    dh_spm_survey(tok);
    return DH_OK;
}

dh_status dh_tokenizer_from_spm(dh_ctx *ctx, const void *model, size_t n_bytes, dh_tokenizer **tok)
{
    DH_NEEDS(ctx, model);
    DH_NEEDS(ctx, tok);
    dh_tokenizer *made = dh_tokenizer_new(ctx, &dh_tok_spm);
    if (!made) return DH_ENOMEM;
    spm_model parsed = {0};
    dh_status st = build(ctx, made, (span){model, n_bytes}, &parsed);
    dh_vec_fini(&parsed.pieces);
    dh_vec_fini(&parsed.scores);
    return dh_tokenizer_finish(ctx, made, st, tok);
}
