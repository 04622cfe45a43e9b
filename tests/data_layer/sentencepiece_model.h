/* SentencePiece models written piece by piece, as its protocol buffers have them. */
#ifndef DH_SENTENCEPIECE_MODEL_H
#define DH_SENTENCEPIECE_MODEL_H

#include "tokenizer_cases.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

static inline void put_varint(dh_str *s, uint64_t value)
{
    do {
        char byte = (char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        dh_str_append(s, &byte, 1);
    } while (value >>= 7);
}

static inline void put_number(dh_str *s, unsigned field, uint64_t value)
{
    put_varint(s, field << 3);
    put_varint(s, value);
}

static inline void put_bytes(dh_str *s, unsigned field, const char *data, size_t n)
{
    put_varint(s, field << 3 | 2);
    put_varint(s, n);
    dh_str_append(s, data, n);
}

static inline void put_piece(dh_str *s, const char *text, float score, int type)
{
    dh_str piece = DH_STR_INIT;
    put_bytes(&piece, 1, text, strlen(text));
    put_varint(&piece, 2 << 3 | 5);
    dh_str_append(&piece, (const char *)&score, 4);
    put_number(&piece, 3, (uint64_t)type);
    put_bytes(s, 1, piece.text, piece.len);
    dh_str_fini(&piece);
}

typedef struct spm_options {
    uint64_t model_type; /* 0: BPE */
    bool byte_fallback, no_prefix, strip_spaces, suffix, keep_spaces;
    const char *charsmap;
} spm_options;

/* The trainer and normalizer messages that end a model. */
static inline void put_settings(dh_str *s, spm_options o)
{
    dh_str m = DH_STR_INIT;
    put_number(&m, 3, o.model_type ? o.model_type : 2);
    put_number(&m, 24, o.suffix);
    put_number(&m, 35, o.byte_fallback);
    put_bytes(s, 2, m.text, m.len);
    dh_str_clear(&m);
    put_bytes(&m, 1, "custom", 6);
    put_bytes(&m, 2, o.charsmap ? o.charsmap : "", o.charsmap ? strlen(o.charsmap) : 0);
    put_number(&m, 3, !o.no_prefix);
    put_number(&m, 4, o.strip_spaces);
    put_number(&m, 5, !o.keep_spaces);
    put_bytes(s, 3, m.text, m.len);
    dh_str_fini(&m);
}

static inline dh_status from_spm(dh_ctx *ctx, dh_str *model, dh_tokenizer **tok)
{
    dh_status st = dh_tokenizer_from_spm(ctx, model->text, model->len, tok);
    dh_str_fini(model);
    return st;
}

#define META "\xE2\x96\x81"

static inline dh_str small_spm(spm_options options)
{
    static const struct {
        const char *text;
        float score;
        int type;
    } pieces[] = {{"<unk>", 0, UNKNOWN}, {"<s>", 0, CONTROL},    {"</s>", 0, CONTROL},
                  {META, -9, NORMAL},    {"a", -9, NORMAL},      {"b", -9, NORMAL},
                  {"ab", -1, NORMAL},    {META "a", -2, NORMAL}, {"a" META, -3, NORMAL},
                  {"<mask>", 0, USER},   {META META, 0, USER},   {"xy", -1, NORMAL}};
    dh_str s = DH_STR_INIT;
    for (size_t i = 0; i < DH_COUNTOF(pieces); i++)
        put_piece(&s, pieces[i].text, pieces[i].score, pieces[i].type);
    put_settings(&s, options);
    return s;
}

#endif
