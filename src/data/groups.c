/* Documents of a step by length (groups.h). */
#include "data/groups.h"

#include "data/dataset_parts.h"

#include <stdlib.h>

/* A row behind those that a group has. */
static bool add_row(dh_row_pieces row, dh_pack *rows)
{
    bool ok = rows->row.n > 0 || dh_vec_push(&rows->row, 0);
    for (int64_t i = 0; ok && i < row.n; i++) {
        ok = dh_vec_push(&rows->pieces, row.at[i]);
        rows->n_targets += row.at[i].n;
    }
    return ok && dh_vec_push(&rows->row, (int64_t)rows->pieces.n);
}

/* Whether a document of the row is too long for the next shorter group. */
static bool has_own(const dh_length_groups *g, size_t group, dh_row_pieces row)
{
    for (int64_t i = 0; i < row.n; i++)
        if (group == 0 || row.at[i].n > g->max_len[group - 1]) return true;
    return false;
}

/* To the group, or its documents to those that are left. */
static bool deal_row(dh_length_groups *g, size_t group, dh_row_pieces row, dh_docs *left)
{
    bool ok = true;
    if (has_own(g, group, row)) return add_row(row, &g->rows[group]);
    for (int64_t i = 0; ok && i < row.n; i++) ok = dh_vec_push(left, row.at[i]);
    return ok;
}

/* Packs the documents that are left for a group. docs: taken over. */
static dh_status deal_group(dh_ctx *ctx, dh_length_groups *g, size_t group, dh_docs *docs,
                            dh_docs *left)
{
    dh_pack packed;
    bool ok = true;
    DH_TRY(dh_pack_make(ctx, docs, g->max_len[group], NULL, &packed));
    for (int64_t r = 0; ok && r < dh_pack_rows(&packed); r++) {
        const int64_t begin = packed.row.at[r], n = packed.row.at[r + 1] - begin;
        ok = deal_row(g, group, (dh_row_pieces){packed.pieces.at + begin, n}, left);
    }
    dh_pack_fini(&packed);
    return ok ? DH_OK : dh_no_memory(ctx);
}

dh_status dh_length_groups_make(dh_ctx *ctx, const dh_dataset *ds, int64_t first, int64_t n_samples,
                                const int64_t *max_len, size_t n, dh_length_groups *groups)
{
    dh_docs docs = {0};
    bool ok = true;
    *groups = (dh_length_groups){.n = n};
    DH_CHECK(n > 0 && n <= DH_MAX_LENGTH_GROUPS && max_len[n - 1] == ds->row_len);
    for (size_t k = 0; k < n; k++) groups->max_len[k] = max_len[k];
    for (int64_t i = 0; ok && i < n_samples; i++)
        ok = deal_row(groups, n - 1, dh_dataset_pieces(ds, first + i), &docs);
    dh_status st = ok ? DH_OK : dh_no_memory(ctx);
    for (size_t k = n - 1; st == DH_OK && k-- > 0;) {
        dh_docs left = {0};
        st = deal_group(ctx, groups, k, &docs, &left);
        docs = left;
    }
    dh_vec_fini(&docs);
    return st;
}

void dh_length_groups_fini(dh_length_groups *groups)
{
    for (size_t k = 0; k < groups->n; k++) dh_pack_fini(&groups->rows[k]);
    *groups = (dh_length_groups){.n = 0};
}

/* ---- lengths alone --------------------------------------------------------------------------- */

static dh_status add_lengths(dh_ctx *ctx, const int64_t *lengths, size_t n, dh_dataset *ds)
{
    dh_docs docs = {0};
    dh_source source = {.share = 1, .seed = ds->seed};
    dh_status st = DH_OK;
    for (size_t i = 0; st == DH_OK && i < n; source.n_tokens += lengths[i++])
        st = dh_docs_add(ctx, &docs, source.n_tokens, lengths[i], ds->row_len);
    if (st != DH_OK) {
        dh_vec_fini(&docs);
        return st;
    }
    DH_TRY(dh_pack_make(ctx, &docs, ds->row_len, &ds->seed, &source.pack));
    ds->n_tokens = source.n_tokens;
    if (!dh_vec_push(&ds->sources, source)) {
        dh_pack_fini(&source.pack);
        return dh_no_memory(ctx);
    }
    if (dh_pack_rows(&ds->sources.at[0].pack) > 0) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "no document of two tokens or more among %zu lengths", n);
}

dh_status dh_dataset_of_lengths(dh_ctx *ctx, const int64_t *lengths, size_t n, int64_t row_len,
                                uint64_t seed, dh_dataset **ds)
{
    dh_dataset *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    made->order = DH_ORDER_SHUFFLE;
    made->seed = seed;
    made->row_len = row_len;
    const dh_status st = add_lengths(ctx, lengths, n, made);
    if (st == DH_OK)
        *ds = made;
    else
        dh_dataset_close(made);
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

dh_status dh_length_groups_row(dh_ctx *ctx, const dh_dataset *ds, const dh_length_groups *groups,
                               size_t group, int64_t row, const dh_dataset_row *to)
{
    const dh_pack *rows = &groups->rows[group];
    dh_row_pieces pieces = {.n = 0};
    if (row < dh_pack_rows(rows)) {
        const int64_t begin = rows->row.at[row];
        pieces = (dh_row_pieces){rows->pieces.at + begin, rows->row.at[row + 1] - begin};
    }
    return dh_dataset_put_pieces(ctx, ds, pieces, groups->max_len[group], to);
}
