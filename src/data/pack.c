/* Packing of documents into rows (pack.h).
 *
 * Pieces are packed in groups of neighbours. Packed pieces therefore lie close together in the
 * data, and only small groups are sorted. In a group, rows are in lists by their free room. A set
 * of bits says which lists have rows, so finding the tightest row is a search over words. */
#include "data/pack.h"
#include "data/permute.h"

#include <stdlib.h>
#include <string.h>

/* TUNING: padding, in percent, of the 2316 stories of tests/data/corpora/tinystories (512-token
 * vocabulary). A row that is open when a group ends stays as it is.
 *
 *   tokens a row     256    1024    4096
 *   groups of 4096   0.1     4.1     0.8
 *   groups of 512    0.5     4.4     2.0
 *   groups of 64     2.4     7.1     9.1 */
enum { GROUP = 4096 };

dh_status dh_docs_add(dh_ctx *ctx, dh_docs *pieces, int64_t first, int64_t n_tokens,
                      int64_t row_len)
{
    for (int64_t at = 0; at < n_tokens - 1; at += row_len) {
        const dh_doc p = {first + at, (int32_t)DH_MIN(row_len, n_tokens - 1 - at)};
        if (!dh_vec_push(pieces, p)) return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* ---- rows by the room they have -------------------------------------------------------------- */

enum { WORD = 64 };

/* Rows of a group; lists of those with the same room, the latest in front. */
typedef struct open_rows {
    int64_t row_len;
    int32_t *head;       /* [row_len + 1]: by room; -1: none */
    uint64_t *has;       /* bit by room */
    int32_t next[GROUP]; /* by row */
    int32_t n;
} open_rows;

static void list_row(open_rows *o, int32_t row, int64_t room)
{
    o->next[row] = o->head[room];
    o->head[room] = row;
    o->has[room / WORD] |= (uint64_t)1 << room % WORD;
}

/* The least room of any row that is at least n; -1: no row has it. */
static int64_t tightest(const open_rows *o, int64_t n)
{
    uint64_t bits = o->has[n / WORD] >> n % WORD << n % WORD;
    for (int64_t word = n / WORD; word <= o->row_len / WORD; bits = o->has[++word])
        if (bits) return word * WORD + __builtin_ctzll(bits);
    return -1;
}

/* The row that a piece of n goes to. */
static int32_t place(open_rows *o, int64_t n)
{
    const int64_t room = tightest(o, n);
    int32_t row = o->n;
    if (room < 0) {
        list_row(o, o->n++, o->row_len - n);
        return row;
    }
    row = o->head[room];
    o->head[room] = o->next[row];
    if (o->head[room] < 0) o->has[room / WORD] &= ~((uint64_t)1 << room % WORD);
    list_row(o, row, room - n);
    return row;
}

static void clear_rows(open_rows *o)
{
    memset(o->head, 0xff, (size_t)(o->row_len + 1) * sizeof *o->head);
    memset(o->has, 0, (size_t)(o->row_len / WORD + 2) * sizeof *o->has);
    o->n = 0;
}

static open_rows *open_rows_create(int64_t row_len)
{
    open_rows *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->row_len = row_len;
    o->head = malloc((size_t)(row_len + 1) * sizeof *o->head);
    o->has = malloc((size_t)(row_len / WORD + 2) * sizeof *o->has); /* one word more than is read */
    if (o->head && o->has) return o;
    free(o->head);
    free(o->has);
    free(o);
    return NULL;
}

static void open_rows_destroy(open_rows *o)
{
    if (!o) return;
    free(o->head);
    free(o->has);
    free(o);
}

/* ---- groups ---------------------------------------------------------------------------------- */

typedef struct candidate {
    dh_doc piece;
    int32_t order; /* in its group */
    int32_t row;
} candidate;

static int longest_first(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->piece.n != b->piece.n) return a->piece.n > b->piece.n ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static int by_row(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    return longest_first(x, y);
}

static bool add_rows(const candidate *c, int32_t n, dh_pack *pack)
{
    bool ok = true;
    for (int32_t i = 0; ok && i < n; i++) {
        const int64_t at = (int64_t)pack->pieces.n;
        if (i == 0 || c[i].row != c[i - 1].row) ok = dh_vec_push(&pack->row, at);
        ok = ok && dh_vec_push(&pack->pieces, c[i].piece);
        pack->n_targets += c[i].piece.n;
    }
    return ok;
}

static bool pack_group(open_rows *rows, candidate *c, int32_t n, dh_pack *pack)
{
    clear_rows(rows);
    qsort(c, (size_t)n, sizeof *c, longest_first);
    for (int32_t i = 0; i < n; i++) c[i].row = place(rows, c[i].piece.n);
    qsort(c, (size_t)n, sizeof *c, by_row);
    return add_rows(c, n, pack);
}

static bool pack_all(const dh_docs *pieces, const uint64_t *seed, open_rows *rows, candidate *c,
                     dh_pack *pack)
{
    const uint64_t n = pieces->n;
    bool ok = true;
    for (uint64_t first = 0; ok && first < n; first += GROUP) {
        const int32_t size = (int32_t)DH_MIN(n - first, (uint64_t)GROUP);
        for (int32_t i = 0; i < size; i++) {
            const uint64_t at = first + (uint64_t)i;
            c[i] = (candidate){pieces->at[seed ? dh_permute(*seed, n, at) : at], i, 0};
        }
        ok = pack_group(rows, c, size, pack);
    }
    const int64_t end = (int64_t)pack->pieces.n;
    return ok && dh_vec_push(&pack->row, end);
}

dh_status dh_pack_make(dh_ctx *ctx, dh_docs *pieces, int64_t row_len, const uint64_t *seed,
                       dh_pack *pack)
{
    dh_pack made = {.n_targets = 0};
    open_rows *rows = open_rows_create(row_len);
    candidate *c = malloc(GROUP * sizeof *c);
    const bool ok = rows && c && pack_all(pieces, seed, rows, c, &made);
    open_rows_destroy(rows);
    free(c);
    dh_vec_fini(pieces);
    if (ok) {
        *pack = made;
        return DH_OK;
    }
    dh_pack_fini(&made);
    return dh_no_memory(ctx);
}

dh_status dh_pack_alone(dh_ctx *ctx, dh_docs *pieces, dh_pack *pack)
{
    dh_pack made = {.n_targets = 0};
    bool ok = true;
    for (size_t i = 0; ok && i <= pieces->n; i++) {
        const int64_t at = (int64_t)i;
        ok = dh_vec_push(&made.row, at) &&
             (i == pieces->n || dh_vec_push(&made.pieces, pieces->at[i]));
        made.n_targets += i < pieces->n ? pieces->at[i].n : 0;
    }
    dh_vec_fini(pieces);
    if (ok) {
        *pack = made;
        return DH_OK;
    }
    dh_pack_fini(&made);
    return dh_no_memory(ctx);
}

void dh_pack_fini(dh_pack *pack)
{
    dh_vec_fini(&pack->pieces);
    dh_vec_fini(&pack->row);
}

int64_t dh_pack_rows(const dh_pack *pack)
{
    return pack->row.n > 0 ? (int64_t)pack->row.n - 1 : 0;
}
