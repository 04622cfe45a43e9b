/* Samples as rows of whole documents: where documents end, and a row's tokens. */
#include "data/chat.h"
#include "data/dataset_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- where documents end --------------------------------------------------------------------- */

/* A file of plain text is a document, an index marks them; of others only a token can tell. */
static dh_status check_ends(dh_ctx *ctx, const dh_dataset *ds)
{
    for (size_t i = 0; i < ds->files.n; i++) {
        const dh_data_file *f = &ds->files.at[i];
        if ((f->text.run.at && !f->text.is_lines) || f->ends.n > 0) continue;
        return dh_fail(ctx, DH_EINVAL,
                       "where documents end in %s is not known: data.packing=pack takes a "
                       "data.tokenizer that has an end-of-text token, or files of plain text, each "
                       "of which is a document",
                       f->name);
    }
    return DH_OK;
}

/* Ready tokens have an end-of-text token among their first ones, or were made with another. */
enum { STRETCH = 1 << 16, FIRST_TOKENS = 1 << 22 };

/* A stretch of the stream; *begin: where the document begins that is not at its end yet. */
static dh_status add_ended(dh_ctx *ctx, const dh_dataset *ds, int64_t first, int64_t n, int32_t eos,
                           int32_t *ids, int64_t *begin, dh_docs *pieces)
{
    DH_TRY(dh_dataset_read(ctx, ds, first, n, ids));
    for (int64_t i = 0; i < n; i++) {
        const int64_t end = first + i + 1;
        if (ids[i] != eos) continue;
        DH_TRY(dh_docs_add(ctx, pieces, *begin, end - *begin, ds->row_len));
        *begin = end;
    }
    return DH_OK;
}

static dh_status add_marked(dh_ctx *ctx, const dh_dataset *ds, const dh_segment *s,
                            const dh_token_ends *ends, dh_docs *pieces)
{
    const int64_t last = s->in_file + s->run.n, to_stream = s->first - s->in_file;
    int64_t begin = s->in_file;
    for (size_t i = 0; i < ends->n && ends->at[i] < last; i++) {
        if (ends->at[i] <= begin) continue; /* the part before this one has it */
        DH_TRY(dh_docs_add(ctx, pieces, begin + to_stream, ends->at[i] - begin, ds->row_len));
        begin = ends->at[i];
    }
    return dh_docs_add(ctx, pieces, begin + to_stream, last - begin, ds->row_len);
}

static dh_status add_documents(dh_ctx *ctx, const dh_dataset *ds, const dh_segment *s, int32_t eos,
                               int32_t *ids, dh_docs *pieces)
{
    const dh_data_file *f = &ds->files.at[s->file];
    const int64_t end = s->first + s->run.n;
    int64_t begin = s->first;
    /* An index that marks one document may say nothing; where there are several it has all. */
    if (f->ends.n > 1) return add_marked(ctx, ds, s, &f->ends, pieces);
    const int64_t looked_at = DH_MIN(f->text.run.at ? 0 : end - begin, FIRST_TOKENS);
    for (int64_t at = begin; eos >= 0 && at < end; at += STRETCH) {
        DH_TRY(dh_dataset_heed_stop(ctx, ds));
        DH_TRY(add_ended(ctx, ds, at, DH_MIN(end - at, STRETCH), eos, ids, &begin, pieces));
        if (begin > s->first || looked_at <= ds->row_len || at + STRETCH - s->first < looked_at)
            continue;
        return dh_fail(
            ctx, DH_EINVAL,
            "%s has no end-of-text token (id %d) among its first %" PRId64
            " tokens, so that its documents cannot be told apart: it was made by another "
            "tokenizer than data.tokenizer, or is one document; data.packing=none takes "
            "it as a stream",
            f->name, eos, looked_at);
    }
    return dh_docs_add(ctx, pieces, begin, end - begin, ds->row_len);
}

static dh_status find_documents(dh_ctx *ctx, const dh_dataset *ds, const dh_source *of, int32_t eos,
                                dh_docs *pieces)
{
    int32_t *ids = malloc(STRETCH * sizeof *ids);
    dh_status st = ids ? DH_OK : dh_no_memory(ctx);
    for (size_t i = 0; st == DH_OK && i < ds->segments.n; i++) {
        dh_segment file = ds->segments.at[i]; /* with all its runs: documents go on over them */
        for (; i + 1 < ds->segments.n && ds->segments.at[i + 1].file == file.file; i++)
            file.run.n += ds->segments.at[i + 1].run.n;
        if (file.first >= of->first && file.first < of->first + of->n_tokens)
            st = add_documents(ctx, ds, &file, eos, ids, pieces);
    }
    free(ids);
    return st;
}

/* ---- conversations --------------------------------------------------------------------------- */

/* How many of n tokens are learnt. */
static int64_t count_learnt(const int32_t *ids, int64_t n)
{
    int64_t n_learnt = 0;
    for (int64_t i = 0; i < n; i++) n_learnt += !(ids[i] & DH_TOKEN_UNLEARNT);
    return n_learnt;
}

/* A conversation in parts that fit a row, those of which something is learnt. */
static dh_status add_chat(dh_ctx *ctx, const dh_dataset *ds, int64_t first, const int32_t *ids,
                          int64_t n, dh_docs *pieces)
{
    for (int64_t at = 0; at < n - 1; at += ds->row_len) {
        const dh_doc p = {first + at, (int32_t)DH_MIN(ds->row_len, n - 1 - at)};
        if (count_learnt(ids + at + 1, p.n) > 0 && !dh_vec_push(pieces, p))
            return dh_no_memory(ctx);
    }
    return DH_OK;
}

/* The stream is read in stretches; a conversation that one ends in is kept until its last token. */
static dh_status find_chats(dh_ctx *ctx, const dh_dataset *ds, const dh_source *of, dh_docs *pieces)
{
    dh_ids open = {0};
    int32_t *ids = malloc(STRETCH * sizeof *ids);
    dh_status st = ids ? DH_OK : dh_no_memory(ctx);
    const int64_t end = of->first + of->n_tokens;
    for (int64_t at = of->first; st == DH_OK && at < end; at += STRETCH) {
        const int64_t n = DH_MIN(end - at, STRETCH);
        st = dh_dataset_heed_stop(ctx, ds);
        if (st == DH_OK) st = dh_dataset_read(ctx, ds, at, n, ids);
        for (int64_t i = 0; st == DH_OK && i < n; i++) {
            if (!dh_vec_push(&open, ids[i])) st = dh_no_memory(ctx);
            if (st != DH_OK || !(ids[i] & DH_TOKEN_LAST)) continue;
            st = add_chat(ctx, ds, at + i + 1 - (int64_t)open.n, open.at, (int64_t)open.n, pieces);
            open.n = 0;
        }
    }
    free(ids);
    dh_vec_fini(&open);
    return st;
}

dh_status dh_dataset_pack_chats(dh_ctx *ctx, dh_dataset *ds, int64_t row_len, bool alone)
{
    DH_CHECK(ds->row_len == 0 && row_len > 0 && ds->chats);
    ds->row_len = row_len;
    for (size_t i = 0; i < ds->sources.n; i++) {
        dh_source *s = &ds->sources.at[i];
        dh_docs pieces = {0};
        const uint64_t seed = dh_mix64(~s->seed);
        dh_status st = find_chats(ctx, ds, s, &pieces);
        if (st != DH_OK) {
            dh_vec_fini(&pieces);
            return st;
        }
        DH_TRY(alone ? dh_pack_alone(ctx, &pieces, &s->pack)
                     : dh_pack_make(ctx, &pieces, row_len,
                                    ds->order == DH_ORDER_SEQUENTIAL ? NULL : &seed, &s->pack));
        if (dh_pack_rows(&s->pack) == 0)
            return dh_fail(ctx, DH_EINVAL, "%s has no conversation with an answer that is learnt",
                           s->name);
    }
    return DH_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

static dh_status pack_source(dh_ctx *ctx, const dh_dataset *ds, int32_t eos, dh_source *s)
{
    dh_docs pieces = {0};
    const uint64_t seed = dh_mix64(~s->seed); /* apart from those of epochs */
    const dh_status st = find_documents(ctx, ds, s, eos, &pieces);
    if (st == DH_OK)
        return dh_pack_make(ctx, &pieces, ds->row_len,
                            ds->order == DH_ORDER_SEQUENTIAL ? NULL : &seed, &s->pack);
    dh_vec_fini(&pieces);
    return st;
}

dh_status dh_dataset_pack(dh_ctx *ctx, dh_dataset *ds, int64_t row_len, int32_t eos)
{
    DH_CHECK(ds->row_len == 0 && row_len > 0);
    if (eos < 0) DH_TRY(check_ends(ctx, ds));
    ds->row_len = row_len;
    for (size_t i = 0; i < ds->sources.n; i++) {
        dh_source *s = &ds->sources.at[i];
        DH_TRY(pack_source(ctx, ds, eos, s));
        if (dh_pack_rows(&s->pack) == 0)
            return dh_fail(ctx, DH_EINVAL, "%s has no document of two tokens or more", s->name);
    }
    return DH_OK;
}

bool dh_dataset_is_packed(const dh_dataset *ds)
{
    return ds->row_len > 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

dh_row_pieces dh_dataset_pieces(const dh_dataset *ds, int64_t sample_index)
{
    int64_t row;
    DH_CHECK(ds->row_len > 0, "dh_dataset_pack comes first");
    const dh_pack *pack = &dh_dataset_place(ds, sample_index, ds->row_len, &row)->pack;
    const int64_t first = pack->row.at[row];
    return (dh_row_pieces){pack->pieces.at + first, pack->row.at[row + 1] - first};
}

static dh_status put_piece(dh_ctx *ctx, const dh_dataset *ds, dh_doc p, int64_t at,
                           const dh_dataset_row *row)
{
    DH_TRY(dh_dataset_read(ctx, ds, p.first, p.n, row->tokens + at));
    DH_TRY(dh_dataset_read(ctx, ds, p.first + 1, p.n, row->targets + at));
    for (int32_t i = 0; i < p.n; i++) {
        row->positions[at + i] = i;
        row->documents[at + i] = p.first;
    }
    for (int32_t i = 0; ds->chats && i < p.n; i++) {
        int32_t *target = &row->targets[at + i];
        row->tokens[at + i] &= DH_TOKEN_ID;
        *target = *target & DH_TOKEN_UNLEARNT ? -1 : *target & DH_TOKEN_ID;
    }
    return DH_OK;
}

/* Each a document of its own, which nothing sees and nobody is told the next token of. */
static void put_padding(int64_t at, const dh_dataset_row *row)
{
    row->tokens[at] = row->positions[at] = 0;
    row->targets[at] = -1;
    row->documents[at] = 0;
}

dh_status dh_dataset_put_pieces(dh_ctx *ctx, const dh_dataset *ds, dh_row_pieces pieces,
                                int64_t row_len, const dh_dataset_row *row)
{
    int64_t at = 0;
    for (int64_t i = 0; i < pieces.n; at += pieces.at[i++].n)
        DH_TRY(put_piece(ctx, ds, pieces.at[i], at, row));
    for (; at < row_len; at++) put_padding(at, row);
    return DH_OK;
}

dh_status dh_dataset_packed_row(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                                const dh_dataset_row *row)
{
    if (sample_index < 0)
        return dh_fail(ctx, DH_EINVAL, "sample index %lld is negative", (long long)sample_index);
    return dh_dataset_put_pieces(ctx, ds, dh_dataset_pieces(ds, sample_index), ds->row_len, row);
}

/* Of a conversation's part those that are learnt. */
static dh_status count_targets(dh_ctx *ctx, const dh_dataset *ds, dh_doc p, int64_t *n)
{
    int32_t ids[1024];
    *n = ds->chats ? 0 : p.n;
    for (int64_t at = 0; ds->chats && at < p.n; at += (int64_t)DH_COUNTOF(ids)) {
        const int64_t here = DH_MIN(p.n - at, (int64_t)DH_COUNTOF(ids));
        DH_TRY(dh_dataset_read(ctx, ds, p.first + 1 + at, here, ids));
        *n += count_learnt(ids, here);
    }
    return DH_OK;
}

dh_status dh_dataset_lengths(dh_ctx *ctx, const dh_dataset *ds, int64_t sample_index,
                             dh_take_length take, void *user)
{
    const dh_row_pieces pieces = dh_dataset_pieces(ds, sample_index);
    for (int64_t i = 0; i < pieces.n; i++) {
        int64_t n_targets;
        DH_TRY(count_targets(ctx, ds, pieces.at[i], &n_targets));
        take(user, pieces.at[i].n, n_targets);
    }
    return DH_OK;
}
