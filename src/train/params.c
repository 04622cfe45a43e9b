/* Parameters in the slab against Hugging Face tensors: initialise, load, read. */
#include "train/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/stop.h"

/* Where in the slab the part begins. */
void dh_param_part(const dh_program *p, uint32_t param, dh_buffer_kind kind, int64_t k,
                   int64_t *first, int64_t *n, uint64_t *at)
{
    const dh_operand part = dh_program_param_part(p, param, kind, k, first, n);
    *at = p->buffers.at[part.buffer].offset + part.byte0;
}

static dh_status slab_io(dh_ctx *ctx, const dh_session *s, bool write, uint64_t at, int64_t n,
                         float *data)
{
    const uint64_t n_bytes = (uint64_t)n * sizeof(float);
    if (n == 0) return DH_OK;
    return write ? s->spec.device->slab_write(ctx, s->slab, at, data, n_bytes)
                 : s->spec.device->slab_read(ctx, s->slab, at, data, n_bytes);
}

/* data holds elements [first, first + n) of the parameter; only those this rank has
 * are read or written. */
static dh_status param_io(dh_ctx *ctx, const dh_session *s, uint32_t param, dh_buffer_kind kind,
                          bool write, int64_t first, int64_t n, float *data)
{
    const dh_program *p = dh_session_layout(s);
    const dh_operand *home = &p->homes.at[param].at[kind];
    const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[param].block].flat];
    const bool matrix = dh_param_is_matrix(&p->params.at[param]);
    const bool shards = matrix && flat->matrix[kind].buffer != DH_NONE;
    if (flat->frozen && home->buffer == DH_NONE && !shards) return DH_OK; /* its copy alone */
    const bool summed_elsewhere = kind == DH_BUF_GRAD && matrix && flat->n_shard < flat->n_piece;
    uint64_t at;
    if (home->buffer != DH_NONE && !summed_elsewhere) {
        at = p->buffers.at[home->buffer].offset + home->byte0 + (uint64_t)first * sizeof(float);
        return slab_io(ctx, s, write, at, n, data);
    }
    for (int64_t k = 0; k < flat->n_pieces; k++) {
        int64_t begin = first, n_here = n;
        dh_param_part(p, param, kind, k, &begin, &n_here, &at);
        DH_TRY(slab_io(ctx, s, write, at, n_here, data + (begin - first)));
    }
    return DH_OK;
}

/* ---- HF view ----------------------------------------------------------------------------- */

dh_status dh_hf_tensors(dh_ctx *ctx, const dh_program *program, dh_hf_tensor **list, size_t *n)
{
    size_t total = 0;
    for (size_t i = 0; i < program->params.n; i++) total += program->params.at[i].n_pieces;
    dh_hf_tensor *tensors = calloc(total + 1, sizeof *tensors);
    if (!tensors) return dh_no_memory(ctx);
    size_t at = 0;
    for (uint32_t i = 0; i < program->params.n; i++) {
        const dh_param *p = &program->params.at[i];
        if (p->frozen || program->blocks.at[program->homes.at[i].block].again) continue;
        for (int k = 0; k < p->n_pieces; k++) {
            const dh_param_piece piece = dh_param_piece_at(p, k);
            /* Pieces of one HF tensor stand next to each other in one parameter. */
            if (k > 0 && strcmp(piece.hf_name, tensors[at - 1].name) == 0) continue;
            dh_hf_tensor *t = &tensors[at++];
            *t = (dh_hf_tensor){
                .ndim = piece.hf_ndim, .shape = {piece.hf_shape[0], piece.hf_shape[1]}, .param = i};
            snprintf(t->name, sizeof t->name, "%s", piece.hf_name);
        }
    }
    *list = tensors;
    *n = at;
    return DH_OK;
}

static int64_t hf_elements(const dh_hf_tensor *t)
{
    return t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1);
}

/* Moves a piece between its own row-major copy and its place in the HF tensor. */
static void place_piece(const dh_param_piece *p, bool into_hf, float *hf, float *own)
{
    enum { TILE = 32 };
    const int64_t hf_cols = p->hf_ndim == 2 ? p->hf_shape[1] : 1;
    for (int64_t r0 = 0; r0 < p->n_rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < p->n_cols; c0 += TILE)
            for (int64_t r = r0; r < DH_MIN(r0 + TILE, p->n_rows); r++)
                for (int64_t c = c0; c < DH_MIN(c0 + TILE, p->n_cols); c++) {
                    int64_t row = p->hf_row + r, col = p->hf_col + c;
                    float *there = &hf[p->transpose ? col * hf_cols + row : row * hf_cols + col];
                    float *here = &own[r * p->n_cols + c];
                    *(into_hf ? there : here) = *(into_hf ? here : there);
                }
}

dh_status dh_session_read_hf(dh_ctx *ctx, const dh_session *s, const dh_hf_tensor *tensor,
                             dh_buffer_kind kind, float *data)
{
    const dh_param *p = &dh_session_layout(s)->params.at[tensor->param];
    for (int k = 0; k < p->n_pieces; k++) {
        const dh_param_piece piece = dh_param_piece_at(p, k);
        if (strcmp(piece.hf_name, tensor->name) != 0) continue;
        int64_t n = piece.n_rows * piece.n_cols;
        float *own = malloc((size_t)n * sizeof *own);
        if (!own) return dh_no_memory(ctx);
        place_piece(&piece, false, data, own); /* elements of other ranks stay */
        dh_status st =
            param_io(ctx, s, tensor->param, kind, false, piece.row * piece.n_cols, n, own);
        if (st == DH_OK) place_piece(&piece, true, data, own);
        free(own);
        DH_TRY(st);
    }
    return DH_OK;
}

/* The compute copy of elements [0, n) of a parameter from float32 values. */
static dh_status write_copy(dh_ctx *ctx, dh_session *s, uint32_t param, int64_t first, int64_t n,
                            const float *data)
{
    const dh_program *p = dh_session_layout(s);
    const dh_operand *home = &p->homes.at[param].at[DH_BUF_COPY];
    const dh_flat *flat = &p->flats.at[p->blocks.at[p->homes.at[param].block].flat];
    const bool shards = home->buffer == DH_NONE && flat->matrix[DH_BUF_COPY].buffer != DH_NONE &&
                        dh_param_is_matrix(&p->params.at[param]);
    if (home->buffer == DH_NONE && !shards) return DH_OK;
    dh_bf16 *copy = malloc((size_t)n * sizeof *copy + 1);
    if (!copy) return dh_no_memory(ctx);
    for (int64_t i = 0; i < n; i++) copy[i] = dh_f32_to_bf16(data[i]);
    dh_status st = DH_OK;
    for (int64_t k = 0; st == DH_OK && k < (shards ? flat->n_pieces : 1); k++) {
        int64_t begin = first, n_here = n;
        uint64_t at = 0;
        if (shards)
            dh_param_part(p, param, DH_BUF_COPY, k, &begin, &n_here, &at);
        else
            at = p->buffers.at[home->buffer].offset + home->byte0 + (uint64_t)first * sizeof *copy;
        if (n_here > 0)
            st = s->spec.device->slab_write(ctx, s->slab, at, copy + (begin - first),
                                            (uint64_t)n_here * sizeof *copy);
    }
    free(copy);
    return st;
}

/* ---- initialisation ------------------------------------------------------------------------- */

/* Box-Muller on one Philox block: four uniforms, four normals, of element 4*block. */
static void normal4(dh_philox_key key, uint64_t block, double std, float out[4])
{
    uint32_t bits[4];
    dh_philox4x32(key, (uint32_t[4]){(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, bits);
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)bits[i] + 0.5) / 4294967296.0;
        double angle = 2.0 * 3.14159265358979323846 * ((double)bits[i + 1] / 4294967296.0);
        double radius = std * sqrt(-2.0 * log(u));
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

static void fill(const dh_param *p, const dh_hf_tensor *t, uint64_t seed, float *data, int64_t n)
{
    if (p->init_std == 0) {
        for (int64_t i = 0; i < n; i++) data[i] = (float)p->init_value;
        return;
    }
    uint64_t mixed = dh_mix64(seed ^ XXH3_64bits(t->name, strlen(t->name)));
    dh_philox_key key = {{(uint32_t)mixed, (uint32_t)(mixed >> 32)}};
    for (int64_t i = 0; i < n; i += 4) {
        float four[4];
        normal4(key, (uint64_t)i / 4, p->init_std, four);
        memcpy(data + i, four, (size_t)DH_MIN((int64_t)4, n - i) * sizeof *data);
    }
}

/* Makes the values of one piece of a parameter, row-major [n_rows, n_cols]. */
typedef dh_status (*piece_maker)(dh_ctx *, const dh_param *, const dh_param_piece *, void *arg,
                                 float *own);

static dh_status set_piece(dh_ctx *ctx, dh_session *session, uint32_t param, int piece_id,
                           dh_buffer_kind kind, piece_maker make, void *arg)
{
    const dh_param *p = &dh_session_layout(session)->params.at[param];
    const dh_param_piece piece = dh_param_piece_at(p, piece_id);
    const int64_t n = piece.n_rows * piece.n_cols, first = piece.row * piece.n_cols;
    float *own = malloc((size_t)n * sizeof *own + 1);
    if (!own) return dh_no_memory(ctx);
    dh_status st = make(ctx, p, &piece, arg, own);
    if (st == DH_OK) st = param_io(ctx, session, param, kind, true, first, n, own);
    if (st == DH_OK && kind == DH_BUF_MASTER) st = write_copy(ctx, session, param, first, n, own);
    free(own);
    return st;
}

typedef enum which_params { ALL_PARAMS, FROZEN_PARAMS, TRAINED_PARAMS } which_params;

static bool is_meant(const dh_param *p, which_params which)
{
    return which == ALL_PARAMS || p->frozen == (which == FROZEN_PARAMS);
}

static dh_status set_params(dh_ctx *ctx, dh_session *session, which_params which,
                            dh_buffer_kind kind, piece_maker make, void *arg)
{
    const dh_program *p = dh_session_layout(session);
    for (uint32_t i = 0; i < p->params.n; i++)
        for (int k = 0; is_meant(&p->params.at[i], which) && k < p->params.at[i].n_pieces; k++) {
            DH_TRY(dh_heed_stop(ctx, "parameters were set"));
            DH_TRY(set_piece(ctx, session, i, k, kind, make, arg));
        }
    return DH_OK;
}

/* The whole HF tensor is drawn and this rank's part taken: a value belongs to its
 * place in the tensor, not to a rank. */
static dh_status make_initial(dh_ctx *ctx, const dh_param *p, const dh_param_piece *piece,
                              void *seed, float *own)
{
    dh_hf_tensor t = {.ndim = piece->hf_ndim, .shape = {piece->hf_shape[0], piece->hf_shape[1]}};
    snprintf(t.name, sizeof t.name, "%s", piece->hf_name);
    float *whole = malloc((size_t)hf_elements(&t) * sizeof *whole);
    if (!whole) return dh_no_memory(ctx);
    fill(p, &t, *(const uint64_t *)seed, whole, hf_elements(&t));
    place_piece(piece, false, whole, own);
    free(whole);
    return DH_OK;
}

dh_status dh_session_init_params(dh_ctx *ctx, dh_session *session, uint64_t seed)
{
    return set_params(ctx, session, ALL_PARAMS, DH_BUF_MASTER, make_initial, &seed);
}

/* A is drawn, B zero: what adapters add is none at first. */
dh_status dh_session_init_adapters(dh_ctx *ctx, dh_session *session, uint64_t seed)
{
    return set_params(ctx, session, TRAINED_PARAMS, DH_BUF_MASTER, make_initial, &seed);
}

/* ---- loading -------------------------------------------------------------------------------- */

typedef struct loading {
    const dh_weights *weights;
    const char *prefix;
    bool finite; /* its values have to be */
} loading;

static dh_status read_piece(dh_ctx *ctx, const loading *from, const char *name,
                            const dh_param_piece *piece, float *own)
{
    DH_TRY(dh_weights_expect(ctx, from->weights, name, piece->hf_ndim, piece->hf_shape));
    if (piece->hf_ndim == 1) /* a vector is one row */
        return dh_weights_read(ctx, from->weights, name, 0, 1, piece->hf_row, piece->n_rows, false,
                               own, piece->n_rows);
    if (!piece->transpose)
        return dh_weights_read(ctx, from->weights, name, piece->hf_row, piece->n_rows,
                               piece->hf_col, piece->n_cols, false, own, piece->n_cols);
    return dh_weights_read(ctx, from->weights, name, piece->hf_col, piece->n_cols, piece->hf_row,
                           piece->n_rows, true, own, piece->n_cols);
}

static dh_status make_loaded(dh_ctx *ctx, const dh_param *p, const dh_param_piece *piece, void *arg,
                             float *own)
{
    const loading *from = arg;
    char name[128];
    snprintf(name, sizeof name, "%s%s", from->prefix, piece->hf_name);
    DH_TRY(read_piece(ctx, from, name, piece, own));
    return from->finite ? dh_weights_check_finite(ctx, name, own, piece->n_rows * piece->n_cols)
                        : DH_OK;
}

dh_status dh_session_load_kind(dh_ctx *ctx, dh_session *session, const dh_weights *weights,
                               const char *prefix, dh_buffer_kind kind)
{
    loading from = {weights, prefix, false};
    return set_params(ctx, session, TRAINED_PARAMS, kind, make_loaded, &from);
}

static dh_status load_masters(dh_ctx *ctx, dh_session *session, which_params which,
                              const dh_weights *weights)
{
    loading from = {weights, "", true};
    return set_params(ctx, session, which, DH_BUF_MASTER, make_loaded, &from);
}

/* Zero biases in exports of GPT-2 without biases: Transformers knows no such model. */
static bool is_zero_bias(const dh_weights *weights, const dh_model *model, const char *name)
{
    enum { MOST = 1 << 16 };
    const size_t n = strlen(name);
    dh_weight_info info = {.name = NULL};
    dh_ctx ctx = DH_CTX_INIT;
    if (model->bias || n < 5 || strcmp(name + n - 5, ".bias") != 0) return false;
    for (size_t i = 0; i < dh_weights_n(weights); i++) {
        dh_weights_at(weights, i, &info);
        if (strcmp(info.name, name) == 0) break;
    }
    if (info.ndim != 1 || info.shape[0] < 1 || info.shape[0] > MOST) return false;
    float *values = malloc((size_t)info.shape[0] * sizeof *values);
    bool zero = values && dh_weights_read(&ctx, weights, name, 0, 1, 0, info.shape[0], false,
                                          values, info.shape[0]) == DH_OK;
    for (int64_t i = 0; zero && i < info.shape[0]; i++) zero = values[i] == 0;
    free(values);
    return zero;
}

/* Of a model that reads images too. */
static bool is_of_images(const char *name)
{
    return strstr(name, "vision_tower.") || strstr(name, "multi_modal_projector.");
}

void dh_weights_tell_unread(const dh_weights *weights, const dh_model *model)
{
    size_t at = 0, n_of_images = 0;
    for (const char *name; (name = dh_weights_next_unread(weights, &at));)
        if (is_of_images(name))
            n_of_images++;
        else if (model->tied_head && strcmp(name, "lm_head.weight") == 0)
            dh_log(DH_LOG_WARN, "the stored head lm_head.weight differs from the embedding. The "
                                "embedding is used, as tie_word_embeddings says. Transformers from "
                                "version 5 on uses the stored head: set tie_word_embeddings to "
                                "false in config.json for that");
        else if (!is_zero_bias(weights, model, name))
            dh_log(DH_LOG_WARN, "tensor %s of the weights is not part of model %s: left out", name,
                   model->name);
    if (n_of_images > 0)
        dh_log(DH_LOG_WARN,
               "%zu tensors by which the model reads images are left out: its text "
               "model alone is computed",
               n_of_images);
}

static void tell_unread(const dh_session *session, const dh_weights *weights)
{
    if (session->spec.recipe.mesh.ranks <= 1)
        dh_weights_tell_unread(weights, &session->spec.recipe.model);
}

dh_status dh_session_load_params(dh_ctx *ctx, dh_session *session, dh_weights *weights)
{
    DH_TRY(load_masters(ctx, session, ALL_PARAMS, weights));
    tell_unread(session, weights);
    return DH_OK;
}

dh_status dh_session_load_adapters(dh_ctx *ctx, dh_session *session, const dh_weights *weights)
{
    return load_masters(ctx, session, TRAINED_PARAMS, weights);
}

dh_status dh_session_load_base(dh_ctx *ctx, dh_session *session, dh_weights *weights)
{
    DH_TRY(load_masters(ctx, session, FROZEN_PARAMS, weights));
    tell_unread(session, weights);
    return DH_OK;
}
