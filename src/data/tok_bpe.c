/* Byte-level BPE (GPT-2, Llama 3): words by regular expression, bytes as symbols.
 *
 * Files spell bytes as printable characters: the 188 printable bytes of Latin-1 are
 * themselves, the other 68 are U+0100 onward in ascending order (Radford et al. 2019,
 * encoder.py). */
#include "base/utf8.h"
#include "data/tok.h"

#include <string.h>

static bool is_printable(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte an alphabet character stands for, or -1. */
static int byte_of_char(uint32_t code)
{
    if (code < 0x100) return is_printable(code) ? (int)code : -1;
    uint32_t wanted = code - 0x100;
    for (unsigned byte = 0; byte < 256; byte++)
        if (!is_printable(byte) && wanted-- == 0) return (int)byte;
    return -1;
}

unsigned char dh_bytelevel_byte(unsigned place)
{
    for (unsigned byte = 0; byte < 256; byte++) /* the printable ones first */
        if (is_printable(byte) && place-- == 0) return (unsigned char)byte;
    const int rest = byte_of_char(0x100 + place);
    return (unsigned char)rest;
}

void dh_bytelevel_encode(const unsigned char *bytes, size_t n, dh_str *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t code = bytes[i];
        if (!is_printable(code)) {
            code = 0x100;
            for (unsigned byte = 0; byte < bytes[i]; byte++) code += !is_printable(byte);
        }
        unsigned char text[4];
        const size_t len = dh_utf8_encode(code, text);
        dh_str_append(out, (const char *)text, len);
    }
}

bool dh_bytelevel_decode(const char *text, size_t n, unsigned char *out, size_t *n_out)
{
    const unsigned char *p = (const unsigned char *)text;
    *n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        size_t len = dh_utf8_decode(p + at, n - at, &code);
        int byte = len ? byte_of_char(code) : -1;
        if (byte < 0) return false;
        out[(*n_out)++] = (unsigned char)byte;
        at += len;
    }
    return true;
}

void dh_bpe_set_bytes(dh_tokenizer *tok)
{
    for (unsigned i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        tok->byte_id[i] = dh_vocab_find(&tok->vocab, &byte, 1);
    }
}

/* TUNING: the longest tokens in use (runs of spaces, dashes) have under 600 bytes. */
#define MAX_MERGE_BYTES 4096

dh_status dh_bpe_add_merge(dh_ctx *ctx, dh_tokenizer *tok, const char *left, size_t n_left,
                           const char *right, size_t n_right, uint32_t rank)
{
    unsigned char joined[2 * MAX_MERGE_BYTES];
    size_t n_l = 0, n_r = 0;
    if (n_left > MAX_MERGE_BYTES || n_right > MAX_MERGE_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "a merge of more than %d bytes", MAX_MERGE_BYTES);
    bool spelled = dh_bytelevel_decode(left, n_left, joined, &n_l) &&
                   dh_bytelevel_decode(right, n_right, joined + n_l, &n_r);
    uint32_t l = spelled ? dh_vocab_find(&tok->vocab, joined, n_l) : DH_NO_ID;
    uint32_t r = spelled ? dh_vocab_find(&tok->vocab, joined + n_l, n_r) : DH_NO_ID;
    uint32_t id = spelled ? dh_vocab_find(&tok->vocab, joined, n_l + n_r) : DH_NO_ID;
    if (l == DH_NO_ID || r == DH_NO_ID || id == DH_NO_ID)
        return dh_fail(ctx, DH_EFORMAT, "merge \"%.*s %.*s\": %s is not in the vocabulary",
                       (int)n_left, left, (int)n_right, right,
                       l == DH_NO_ID   ? "the left part"
                       : r == DH_NO_ID ? "the right part"
                                       : "the result");
    return dh_pairs_add(ctx, &tok->pairs, l, r, rank, id);
}

/* ---- encoding --------------------------------------------------------------------------- */

static bool byte_symbols(dh_encoder *enc, const unsigned char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!dh_merger_add(&enc->merger, enc->tok->byte_id[word[i]], i)) return false;
    return true;
}

size_t dh_utf8_run(const unsigned char *text, size_t n, bool valid)
{
    size_t at = 0;
    for (uint32_t code; at < n;) {
        if (valid && n - at >= 8) { /* eight ASCII bytes at a time */
            uint64_t eight;
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        size_t len = dh_utf8_decode(text + at, n - at, &code);
        if ((len > 0) != valid) break;
        at += valid ? len : 1;
    }
    return at;
}

dh_status dh_bpe_each_word(dh_ctx *ctx, const dh_splitter *splitter, dh_split_scratch *scratch,
                           const unsigned char *text, size_t n, dh_word_fn fn, dh_word_fn broken,
                           void *arg)
{
    for (size_t at = 0; at < n;) {
        size_t valid = dh_utf8_run(text + at, n - at, true);
        DH_TRY(dh_split(ctx, splitter, scratch, text + at, valid, at == 0, fn, arg));
        at += valid;
        size_t invalid = dh_utf8_run(text + at, n - at, false);
        if (invalid > 0) DH_TRY(broken(ctx, arg, text + at, invalid));
        at += invalid;
    }
    return DH_OK;
}

static dh_status encode_bpe(dh_ctx *ctx, dh_encoder *enc, const unsigned char *text, size_t n,
                            bool first)
{
    if (enc->tok->prefix == DH_PREFIX_MISSING && text[0] != ' ') {
        dh_str_clear(&enc->norm);
        dh_str_append(&enc->norm, " ", 1);
        dh_str_append(&enc->norm, (const char *)text, n);
        if (enc->norm.failed) return dh_no_memory(ctx);
        text = (const unsigned char *)enc->norm.text;
        n++;
    }
    return dh_encode_words(ctx, enc, text, n, first);
}

const dh_tok_kind dh_tok_bpe = {"bpe", encode_bpe, byte_symbols, NULL};
