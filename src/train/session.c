/* Sessions: programs over one slab. */
#include "train/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stop.h"
#include "program/ranks.h"
#include "train/room.h"
#include "train/switch.h"

/* ---- programs ----------------------------------------------------------------------------- */

dh_program_spec dh_session_program_spec(const dh_session_spec *s, dh_mode mode)
{
    dh_program_spec p = {.recipe = s->recipe,
                         .mode = mode,
                         .rank = s->rank,
                         .cache_len = s->cache_len,
                         .places = s->places,
                         .part = mode == DH_MODE_TRAIN && s->n_groups > 0 ? DH_PART_UPDATE
                                                                          : DH_PART_STEP,
                         .probes = s->probes && mode == DH_MODE_TRAIN};
    p.recipe.backend = &s->device->info;
    return p;
}

static dh_status build(dh_ctx *ctx, const dh_program_spec *spec, dh_program **program)
{
    dh_program *p;
    DH_TRY(dh_program_build(ctx, spec, &p));
    dh_status st = dh_program_verify(ctx, p);
    if (st != DH_OK) {
        dh_program_destroy(p);
        return st;
    }
    *program = p;
    return DH_OK;
}

dh_status dh_session_program(dh_ctx *ctx, const dh_session_spec *spec, dh_mode mode,
                             uint64_t keep_bytes, dh_program **program)
{
    dh_program_spec p = dh_session_program_spec(spec, mode);
    p.keep_bytes = keep_bytes;
    if (mode == DH_MODE_DECODE) p.recipe.micro_batch = p.recipe.seq = 1;
    return build(ctx, &p, program);
}

static dh_program_spec gather_spec(const dh_session_spec *spec, uint64_t keep_bytes)
{
    dh_program_spec p = dh_session_program_spec(spec, DH_MODE_EVAL);
    p.keep_bytes = keep_bytes;
    p.gathers = true;
    return p;
}

static dh_status build_gather(dh_ctx *ctx, const dh_session_spec *spec, uint64_t keep_bytes,
                              dh_program **program)
{
    const dh_program_spec p = gather_spec(spec, keep_bytes);
    return build(ctx, &p, program);
}

dh_status dh_session_verify_mesh(dh_ctx *ctx, const dh_session_spec *spec,
                                 dh_mesh_footprint *footprint)
{
    dh_program_spec train = dh_session_program_spec(spec, DH_MODE_TRAIN);
    DH_TRY(dh_mesh_verify(ctx, &train, footprint));
    DH_TRY(dh_switch_verify_mesh(ctx, spec));
    if (!spec->eval) return DH_OK;
    dh_program_spec eval = dh_session_program_spec(spec, DH_MODE_EVAL);
    DH_TRY(dh_mesh_verify(ctx, &eval, NULL));
    if (!spec->train || spec->recipe.sharing.gather == DH_GATHER_OPTIMIZER) return DH_OK;
    const dh_program_spec gather = gather_spec(spec, 0);
    return dh_mesh_verify(ctx, &gather, NULL);
}

static dh_status build_prefill(dh_ctx *ctx, const dh_session_spec *spec, dh_program **program)
{
    dh_program_spec p = dh_session_program_spec(spec, DH_MODE_DECODE);
    p.recipe.micro_batch = 1;
    p.recipe.seq = spec->prefill_chunk;
    return build(ctx, &p, program);
}

/* Programs that either all ranks of a run have or none, by number. */
enum { TRAIN, EVAL, GATHER, N_OWN };

static const dh_program *program_at(const dh_session *s, size_t k)
{
    const dh_program *const own[N_OWN] = {s->train, s->eval, s->gather};
    return k < N_OWN ? own[k] : dh_switch_program(s->switched, k - N_OWN);
}

/* A stage that shards no matrices gathers none; for the replay it needs a program all the same. */
static dh_status replay_at(dh_ctx *ctx, const dh_session *const *sessions, size_t n, size_t k,
                           const dh_program **programs)
{
    size_t n_there = 0;
    for (size_t r = 0; r < n; r++) {
        programs[r] = program_at(sessions[r], k);
        n_there += programs[r] != NULL;
    }
    if (n_there == 0) return DH_OK;
    if (n_there == n) return dh_programs_replay(ctx, programs, n);
    DH_CHECK(k == GATHER, "%zu of %zu ranks have program %zu", n_there, n, k);
    dh_program_spec gather = gather_spec(&sessions[0]->spec, 0);
    gather.places = NULL; /* gone by now */
    return dh_mesh_verify(ctx, &gather, NULL);
}

dh_status dh_sessions_verify(dh_ctx *ctx, const dh_session *const *sessions, size_t n,
                             dh_mesh_footprint *footprint)
{
    dh_mesh_footprint sum = {.n_ranks = n, .n_classes = n};
    const size_t n_programs = N_OWN + dh_switch_n_programs(sessions[0]->switched);
    const dh_program **programs = calloc(n, sizeof(const dh_program *));
    dh_status st = programs ? DH_OK : dh_no_memory(ctx);
    for (size_t k = 0; st == DH_OK && k < n_programs; k++)
        st = replay_at(ctx, sessions, n, k, programs);
    free(programs);
    for (size_t r = 0; r < n; r++) {
        const dh_session *s = sessions[r];
        dh_mesh_footprint_add(&sum, s->train, 1);
        sum.slab_bytes = DH_MAX(sum.slab_bytes, s->slab_bytes);
        sum.all_slabs_bytes += s->slab_bytes - s->train->slab_bytes;
    }
    if (st == DH_OK) *footprint = sum;
    return st;
}

/* Evaluation between two training steps leaves gradients and moments alone. */
static dh_status build_programs(dh_ctx *ctx, dh_session *session)
{
    const dh_session_spec *s = &session->spec;
    if (s->train && s->decode) /* key/value caches lie where training keeps gradients */
        return dh_fail(ctx, DH_EUNSUPPORTED, "a session either trains or decodes");
    if (s->train) DH_TRY(dh_session_program(ctx, s, DH_MODE_TRAIN, 0, &session->train));
    if (s->train && s->n_groups > 0)
        DH_TRY(dh_switch_create(ctx, s, session->train, &session->slab_bytes, &session->switched));
    uint64_t keep = session->train ? session->train->persistent_bytes : 0;
    if (s->eval) DH_TRY(dh_session_program(ctx, s, DH_MODE_EVAL, keep, &session->eval));
    if (s->eval && session->train && session->train->gathers_first)
        DH_TRY(build_gather(ctx, s, keep, &session->gather));
    if (s->decode) DH_TRY(dh_session_program(ctx, s, DH_MODE_DECODE, 0, &session->decode));
    if (s->decode && s->prefill_chunk > 1) DH_TRY(build_prefill(ctx, s, &session->prefill));
    const dh_program *programs[] = {session->train, session->eval, session->gather, session->decode,
                                    session->prefill};
    for (size_t i = 0; i < DH_COUNTOF(programs); i++)
        if (programs[i]) session->slab_bytes = DH_MAX(session->slab_bytes, programs[i]->slab_bytes);
    return DH_OK;
}

/* Room for a token's logits on the host. */
static dh_status make_logits(dh_ctx *ctx, dh_session *session)
{
    if (!session->decode) return DH_OK;
    session->logits = malloc(session->decode->result.n_bytes);
    if (!session->logits) return dh_no_memory(ctx);
    return DH_OK;
}

static dh_status prepare_programs(dh_ctx *ctx, dh_session *session)
{
    const struct {
        const dh_program *program;
        dh_exec **exec;
    } programs[] = {{session->train, &session->train_exec},
                    {session->eval, &session->eval_exec},
                    {session->gather, &session->gather_exec},
                    {session->decode, &session->decode_exec},
                    {session->prefill, &session->prefill_exec}};
    const dh_device *device = session->spec.device;
    const dh_room room = dh_room_of_rank(&session->spec, session->slab_bytes);
    DH_TRY(dh_room_check(ctx, &room));
    DH_TRY(device->slab_create(ctx, session->slab_bytes, &session->slab));
    for (size_t i = 0; i < DH_COUNTOF(programs); i++)
        if (programs[i].program)
            DH_TRY(dh_exec_create(ctx, device, programs[i].program, session->slab,
                                  session->spec.comm, programs[i].exec));
    if (!session->switched) return DH_OK;
    return dh_switch_prepare(ctx, session->switched, &session->spec, session->slab);
}

/* After the failure of another rank there is nothing to build; a rank tells of its own before the
 * next one begins. */
static dh_status build_in_turn(dh_ctx *ctx, dh_session *session)
{
    const dh_session_spec *s = &session->spec;
    dh_turns_take(s->turns);
    dh_status st = s->comm ? dh_comm_check(ctx, s->comm) : DH_OK;
    if (st == DH_OK) {
        st = build_programs(ctx, session);
        if (st != DH_OK && s->comm) dh_comm_abort(s->comm, ctx->message);
    }
    dh_turns_give(s->turns);
    return st;
}

dh_status dh_session_create(dh_ctx *ctx, const dh_session_spec *spec, dh_session **session)
{
    DH_TRY(dh_model_validate(ctx, &spec->recipe.model));
    DH_TRY(dh_model_check_computed(ctx, &spec->recipe.model));
    dh_session *s = calloc(1, sizeof *s);
    if (!s) return dh_no_memory(ctx);
    s->spec = *spec;
    dh_status st = build_in_turn(ctx, s);
    if (st == DH_OK && spec->built) st = spec->built(ctx, s, spec->built_user);
    s->spec.places = NULL; /* what programs are built with may go before the session */
    s->spec.built = NULL;
    s->spec.built_user = NULL;
    if (st == DH_OK) st = make_logits(ctx, s);
    if (st == DH_OK) st = prepare_programs(ctx, s);
    if (st != DH_OK) {
        dh_session_destroy(s);
        return st;
    }
    *session = s;
    return DH_OK;
}

void dh_session_end_programs(dh_session *session)
{
    dh_exec **execs[] = {&session->train_exec, &session->eval_exec, &session->gather_exec,
                         &session->decode_exec, &session->prefill_exec};
    for (size_t i = 0; i < DH_COUNTOF(execs); i++) {
        dh_exec_destroy(*execs[i]);
        *execs[i] = NULL;
    }
    dh_switch_destroy(session->switched);
    session->switched = NULL;
}

void dh_session_destroy(dh_session *session)
{
    if (!session) return;
    dh_session_end_programs(session);
    session->spec.device->slab_destroy(session->slab);
    dh_program_destroy(session->train);
    dh_program_destroy(session->eval);
    dh_program_destroy(session->gather);
    dh_program_destroy(session->decode);
    dh_program_destroy(session->prefill);
    free(session->logits);
    free(session);
}

const dh_program *dh_session_layout(const dh_session *session)
{
    if (session->train) return session->train;
    return session->eval ? session->eval : session->decode;
}

/* ---- running -------------------------------------------------------------------------------- */

static dh_status read_state(dh_ctx *ctx, const dh_session *session, dh_state state, double pair[2])
{
    const dh_program *p = dh_session_layout(session);
    uint32_t buffer = dh_program_state_buffer(p, state);
    return session->spec.device->slab_read(ctx, session->slab, p->buffers.at[buffer].offset, pair,
                                           2 * sizeof *pair);
}

dh_status dh_session_loss(dh_ctx *ctx, const dh_session *session, double *sum, double *rows)
{
    double pair[2];
    DH_TRY(read_state(ctx, session, DH_STATE_LOSS, pair));
    *sum = pair[0];
    *rows = pair[1];
    return DH_OK;
}

dh_status dh_session_grad_norm(dh_ctx *ctx, const dh_session *session, double *norm)
{
    double pair[2];
    DH_TRY(read_state(ctx, session, DH_STATE_NORM, pair));
    *norm = pair[0];
    return DH_OK;
}

dh_status dh_session_aux_loss(dh_ctx *ctx, const dh_session *session, double *loss)
{
    double pair[2];
    DH_TRY(read_state(ctx, session, DH_STATE_AUX, pair));
    *loss = pair[1] > 0 ? pair[0] / pair[1] : 0;
    return DH_OK;
}

dh_status dh_session_gather(dh_ctx *ctx, dh_session *session)
{
    const dh_step step = {.first_sample = 0};
    return session->gather ? dh_exec_run(ctx, session->gather_exec, &step) : DH_OK;
}

dh_status dh_session_eval_batch(dh_ctx *ctx, dh_session *session, const dh_batch_source *source,
                                int64_t first, double *sum, double *rows)
{
    dh_step step = {.first_sample = first, .source = *source};
    DH_TRY(dh_exec_run(ctx, session->eval_exec, &step));
    return dh_session_loss(ctx, session, sum, rows);
}

/* A batch whose loss is not finite again, every output checked: the first operator to produce such
 * a value is the one to name. */
static dh_status blame(dh_ctx *ctx, dh_session *session, const dh_batch_source *source,
                       int64_t first, double loss)
{
    dh_step step = {.first_sample = first, .source = *source, .check_finite = true};
    dh_status st = dh_exec_run(ctx, session->eval_exec, &step);
    if (st == DH_OK)
        st = dh_fail(ctx, DH_EDIVERGED, "the loss is %g, yet every operator's output is finite",
                     loss);
    dh_ctx_while(ctx, "evaluating sequence %lld", (long long)first);
    return st;
}

dh_status dh_session_eval(dh_ctx *ctx, dh_session *session, const dh_batch_source *source,
                          int64_t first, int64_t n_batches, dh_progress *progress, double *loss)
{
    double total = 0, total_rows = 0;
    for (int64_t i = 0; i < n_batches; i++) {
        double sum, rows;
        DH_TRY(dh_heed_stop(ctx, "a model was evaluated"));
        dh_progress_count(progress, i, "micro-batches evaluated");
        const int64_t sample = first + i * session->spec.recipe.micro_batch;
        DH_TRY(dh_session_eval_batch(ctx, session, source, sample, &sum, &rows));
        if (!isfinite(sum)) return blame(ctx, session, source, sample, sum);
        total += sum;
        total_rows += rows;
    }
    *loss = total_rows > 0 ? total / total_rows : 0.0;
    return DH_OK;
}

static dh_status decode_chunk(dh_ctx *ctx, dh_session *session, const dh_program *program,
                              dh_exec *exec, const int32_t *tokens, int64_t pos,
                              const float **logits)
{
    dh_step step = {.tokens = tokens, .pos0 = pos};
    DH_TRY(dh_exec_run(ctx, exec, &step));
    *logits = session->logits;
    return session->spec.device->slab_read(ctx, session->slab,
                                           program->buffers.at[program->result.buffer].offset +
                                               program->result.byte0,
                                           session->logits, program->result.n_bytes);
}

dh_status dh_session_decode(dh_ctx *ctx, dh_session *session, const int32_t *tokens, int64_t n,
                            int64_t pos, const float **logits)
{
    if (n <= 0 || pos < 0 || pos + n > session->spec.cache_len)
        return dh_fail(ctx, DH_EINVAL, "tokens %lld to %lld do not fit a context of %lld",
                       (long long)pos, (long long)(pos + n), (long long)session->spec.cache_len);
    const int64_t chunk = session->spec.prefill_chunk;
    int64_t done = 0;
    for (; session->prefill && n - done >= chunk; done += chunk)
        DH_TRY(decode_chunk(ctx, session, session->prefill, session->prefill_exec, tokens + done,
                            pos + done, logits));
    for (; done < n; done++)
        DH_TRY(decode_chunk(ctx, session, session->decode, session->decode_exec, tokens + done,
                            pos + done, logits));
    return DH_OK;
}
