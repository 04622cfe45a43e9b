/* Lengths of documents from a file (lengths.h).
 *
 * A histogram becomes a list: bin by bin, each with its share of the documents. The running sum is
 * rounded, so the first k bins together have the file's number of documents to within one. */
#include "data/lengths.h"
#include "base/c_locale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 26, MOST_COLUMNS = 3, WORD_BYTES = 32 };

typedef struct bin {
    int64_t low, high; /* low == high: that length alone */
    double count;
} bin;

typedef struct reader {
    dh_ctx *ctx;
    const char *path;
    size_t line;
    bool began; /* behind the heading, if there is one */
    dh_lengths *lengths;
    DH_VEC(bin) bins;
} reader;

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct columns {
    char word[MOST_COLUMNS][WORD_BYTES];
    int n; /* MOST_COLUMNS + 1: more */
} columns;

static bool is_blank(char c)
{
    return c == ' ' || c == '\r';
}

/* [at, end) without blanks around it. */
static void put_word(const char *at, const char *end, columns *c)
{
    while (at < end && is_blank(*at)) at++;
    while (at < end && is_blank(end[-1])) end--;
    if (c->n < MOST_COLUMNS)
        snprintf(c->word[c->n], WORD_BYTES, "%.*s", (int)DH_MIN(end - at, WORD_BYTES - 1), at);
    c->n = DH_MIN(c->n + 1, MOST_COLUMNS + 1);
}

/* By tabs or commas where the line has one, else by blanks. */
static void part(const char *at, const char *end, columns *c)
{
    const size_t n = (size_t)(end - at);
    const char by = memchr(at, '\t', n) ? '\t' : memchr(at, ',', n) ? ',' : ' ';
    *c = (columns){.n = 0};
    while (at < end && is_blank(*at)) at++;
    while (at < end && is_blank(end[-1])) end--;
    while (at < end) {
        const char *stop = memchr(at, by, (size_t)(end - at));
        if (!stop) stop = end;
        put_word(at, stop, c);
        at = stop + (stop < end);
        while (by == ' ' && at < end && is_blank(*at)) at++;
    }
}

static bool is_heading(const columns *c)
{
    double value;
    for (int i = 0; i < DH_MIN(c->n, MOST_COLUMNS); i++)
        if (dh_parse_f64(c->word[i], &value)) return false;
    return true;
}

static bool read_bin(const columns *c, bin *b)
{
    *b = (bin){.count = 1};
    if (!dh_parse_i64(c->word[0], &b->low) || b->low < 0) return false;
    b->high = b->low;
    if (c->n == DH_LENGTHS_RANGES && (!dh_parse_i64(c->word[1], &b->high) || b->high < b->low))
        return false;
    return c->n == DH_LENGTHS_LIST ||
           (dh_parse_f64(c->word[c->n - 1], &b->count) && isfinite(b->count) && b->count >= 0);
}

static dh_status bad_line(const reader *r, const char *at, const char *end)
{
    return dh_fail(r->ctx, DH_EFORMAT,
                   "%s:%zu: \"%.*s\": a document's number of tokens is wanted, one a line, or a "
                   "histogram's lines: length and count, or low, high and count",
                   r->path, r->line, (int)DH_MIN(end - at, 40), at);
}

static dh_status read_line(reader *r, const char *at, const char *end)
{
    static const char *const forms[] = {"", "a length", "length and count", "low, high and count"};
    columns c;
    bin b;
    part(at, end, &c);
    if (c.n == 0 || c.word[0][0] == '#') return DH_OK;
    if (!r->began && is_heading(&c)) {
        r->began = true;
        return DH_OK;
    }
    r->began = true;
    if (c.n > MOST_COLUMNS || !read_bin(&c, &b)) return bad_line(r, at, end);
    if (r->lengths->kind == 0) r->lengths->kind = (dh_lengths_kind)c.n;
    if (c.n != (int)r->lengths->kind)
        return dh_fail(r->ctx, DH_EFORMAT, "%s:%zu: lines before have %s, and this one has %s",
                       r->path, r->line, forms[r->lengths->kind], forms[c.n]);
    r->lengths->n_documents += b.count;
    r->lengths->shares |= b.count != floor(b.count);
    r->lengths->n_lines++;
    return dh_vec_push(&r->bins, b) ? DH_OK : dh_no_memory(r->ctx);
}

static dh_status read_lines(reader *r, const char *text, size_t n_bytes)
{
    const char *const end = text + n_bytes;
    for (const char *at = text; at < end; r->line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        DH_TRY(read_line(r, at, stop));
        at = stop + (stop < end);
    }
    return DH_OK;
}

/* ---- documents ------------------------------------------------------------------------------- */

/* The i-th of n documents in a bin. */
static int64_t length_in(const bin *b, int64_t i, int64_t n)
{
    const double at = ((double)i + 0.5) / (double)n;
    const double low = (double)b->low, high = (double)b->high;
    const double length = b->low > 0 ? low * pow(high / low, at) : high * at;
    if (b->low == b->high) return b->low;
    return DH_MAX(b->low + 1, DH_MIN(b->high, (int64_t)ceil(length)));
}

static dh_status make_documents(reader *r)
{
    dh_lengths *l = r->lengths;
    double scale = 1, sum = 0;
    int64_t n_made = 0;
    if (l->kind != DH_LENGTHS_LIST && (l->shares || l->n_documents > DH_LENGTHS_MOST))
        scale = DH_LENGTHS_MOST / l->n_documents;
    for (size_t k = 0; k < r->bins.n; k++) {
        const bin *b = &r->bins.at[k];
        sum += b->count * scale;
        const int64_t n = llround(sum) - n_made;
        for (int64_t i = 0; i < n; i++)
            if (!dh_vec_push(&l->of, length_in(b, i, n))) return dh_no_memory(r->ctx);
        n_made += n;
    }
    return DH_OK;
}

/* A step's rows are made of these documents: what they need is bounded by their tokens. */
static dh_status check_tokens(dh_ctx *ctx, const char *path, const dh_lengths *l)
{
    double sum = 0;
    for (size_t i = 0; i < l->of.n; i++) sum += (double)l->of.at[i];
    if (sum <= (double)DH_LENGTHS_MOST_TOKENS) return DH_OK;
    return dh_fail(ctx, DH_EFORMAT,
                   "%s: its documents have %.3g tokens together, more than the %.3g allowed: a "
                   "part of the list, or a histogram of fewer documents, would be right",
                   path, sum, (double)DH_LENGTHS_MOST_TOKENS);
}

/* ---- entry ----------------------------------------------------------------------------------- */

dh_status dh_lengths_read(dh_ctx *ctx, const char *path, dh_lengths *lengths)
{
    char *text;
    size_t n_bytes;
    reader r = {.ctx = ctx, .path = path, .line = 1, .lengths = lengths};
    *lengths = (dh_lengths){.n_lines = 0};
    DH_TRY(dh_file_read(ctx, path, MAX_BYTES, &text, &n_bytes));
    dh_status st = read_lines(&r, text, n_bytes);
    if (st == DH_OK && !isfinite(lengths->n_documents))
        st = dh_fail(ctx, DH_EFORMAT, "%s: the sum of its counts is no finite number", path);
    if (st == DH_OK && !(lengths->n_documents > 0))
        st = dh_fail(ctx, DH_EFORMAT,
                     "%s has no documents: a number of tokens is wanted, one a line, or a "
                     "histogram's lines with counts above 0",
                     path);
    if (st == DH_OK) st = make_documents(&r);
    if (st == DH_OK) st = check_tokens(ctx, path, lengths);
    dh_vec_fini(&r.bins);
    free(text);
    return st;
}

void dh_lengths_fini(dh_lengths *lengths)
{
    dh_vec_fini(&lengths->of);
    *lengths = (dh_lengths){.n_lines = 0};
}

const char *dh_lengths_describe(const dh_lengths *l, char *text, size_t cap)
{
    if (l->kind == DH_LENGTHS_LIST) {
        snprintf(text, cap, "a list of %zu lengths, one a line", l->n_lines);
        return text;
    }
    int n = dh_snprintf(text, cap, "a histogram of %zu %s, %s %.10g", l->n_lines,
                        l->kind == DH_LENGTHS_COUNTS ? "lengths (length, count)"
                                                     : "ranges (low, high, count)",
                        l->shares ? "shares of" : "documents:", l->n_documents);
    if (n > 0 && (size_t)n < cap && (double)l->of.n != l->n_documents)
        n += snprintf(text + n, cap - (size_t)n, ", counted as %zu", l->of.n);
    if (n > 0 && (size_t)n < cap && l->kind == DH_LENGTHS_RANGES)
        snprintf(text + n, cap - (size_t)n, ", spread evenly over the logarithm of length in each");
    return text;
}
