/* The writers of checkpoints: the ranks, between two steps, or with checkpoint.async two threads of
 * each rank, while it trains.
 *
 * Beside training one copies the rank's share first. Forward and backward only read the copied
 * values, so the rank goes on meanwhile. It stops, if at all, where its optimizer would change them
 * (DataStates-LLM, Maurya et al. 2024, arXiv 2406.10707). On devices that do not tell of updates
 * the rank itself copies, between two steps. The other then does what the rank would: rank 0's
 * creates the files, all put their shares, rank 0's seals and renames. Threads wait for each other
 * on a board in memory, never in a communicator. Ranks in several processes have a board each, and
 * carry what is new on it from one to the other with the sums of every step. */
#include "train/saving.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/run.h"

/* ---- the board ------------------------------------------------------------------------------- */

void dh_save_board_init(dh_save_board *board)
{
    *board = (dh_save_board){.n_begun = 0};
    pthread_mutex_init(&board->lock, NULL);
    pthread_cond_init(&board->news, NULL);
}

void dh_save_board_fini(dh_save_board *board)
{
    pthread_cond_destroy(&board->news);
    pthread_mutex_destroy(&board->lock);
}

static void lock(const dh_saver *s)
{
    pthread_mutex_lock(&s->board->lock);
}

static void unlock(const dh_saver *s)
{
    pthread_mutex_unlock(&s->board->lock);
}

/* With the lock held: something on it has changed. */
static void tell_all(const dh_saver *s)
{
    pthread_cond_broadcast(&s->board->news);
}

static void wait_for_news(const dh_saver *s)
{
    pthread_cond_wait(&s->board->news, &s->board->lock);
}

/* ---- the threads ----------------------------------------------------------------------------- */

static bool await_files(const dh_saver *s)
{
    lock(s);
    while (!s->board->created && !s->board->failed) wait_for_news(s);
    const bool there = s->board->created && !s->board->failed;
    unlock(s);
    return there;
}

static bool await_shares(const dh_saver *s, int64_t n)
{
    lock(s);
    while (s->board->n_written < n && !s->board->failed) wait_for_news(s);
    const bool there = s->board->n_written >= n && !s->board->failed;
    unlock(s);
    return there;
}

static void tell_created(const dh_saver *s)
{
    lock(s);
    s->board->created = true;
    tell_all(s);
    unlock(s);
}

static void tell_written(dh_saver *s)
{
    lock(s);
    s->board->n_written++;
    s->written = true;
    tell_all(s);
    unlock(s);
}

/* One that another's failure leaves without files, or without the others' shares, gives up in
 * silence: that rank tells. */
static dh_status write_share(dh_ctx *ctx, const dh_run *run, dh_saver *s)
{
    const bool first = run->ranks.rank == 0;
    if (!first && !await_files(s)) return DH_OK;
    DH_TRY(dh_save_open(ctx, run, &s->save));
    if (first) tell_created(s);
    DH_TRY(dh_save_put(ctx, run, &s->save, &s->share, s->copy));
    tell_written(s);
    if (!first || !await_shares(s, run->ranks.n)) return DH_OK;
    return dh_save_seal(ctx, run, &s->save);
}

/* The first failure counts: another rank's takes away what the others write to. */
static bool keep_failure(dh_saver *s)
{
    lock(s);
    const bool first = !s->board->failed;
    s->board->failed = true;
    tell_all(s);
    unlock(s);
    return first;
}

static bool next_copy(dh_saver *s)
{
    lock(s);
    while (!s->copying && !s->quit) wait_for_news(s);
    const bool copying = s->copying;
    unlock(s);
    return copying;
}

static void *copier_main(void *arg)
{
    dh_run *run = arg;
    dh_saver *s = &run->saver;
    if (run->ranks.n > 1) dh_log_set_rank((int)run->ranks.rank);
    while (next_copy(s)) {
        (void)dh_share_copy(&s->ctx, run->session, &s->share, s->copy); /* the writer looks */
        lock(s);
        s->copying = false;
        tell_all(s);
        unlock(s);
    }
    return NULL;
}

static dh_status await_copy(dh_saver *s)
{
    lock(s);
    while (s->copying) wait_for_news(s);
    unlock(s);
    return s->ctx.status;
}

static void write_one(dh_run *run)
{
    dh_saver *s = &run->saver;
    dh_status st = await_copy(s);
    if (st == DH_OK) st = write_share(&s->ctx, run, s);
    if (st != DH_OK) {
        dh_ctx_while(&s->ctx, "saving the checkpoint of step %lld", (long long)s->save.step);
        if (!keep_failure(s)) dh_ctx_reset(&s->ctx);
    }
    lock(s);
    const bool given_up = s->board->failed;
    unlock(s);
    if (!given_up)
        dh_save_end(&s->save); /* else at the end of the run: others may be at work there */
    lock(s);
    s->busy = false;
    tell_all(s);
    unlock(s);
}

static bool next_task(dh_saver *s)
{
    lock(s);
    while (!s->busy && !s->quit) wait_for_news(s);
    const bool busy = s->busy;
    unlock(s);
    return busy;
}

/* TUNING: on a core that also trains, a step waits for the slowest of its threads, and so would for
 * this one's turns. Not measured: how much less is still enough to be through before the next
 * checkpoint; where the rank waits for this thread the core is idle, and it has it. Not so the
 * copy, for which updates wait: it has a thread of its own, since a thread without privileges can
 * have its priority lowered only. */
enum { WRITER_NICE = 10 };

static void *writer_main(void *arg)
{
    dh_run *run = arg;
    if (run->ranks.n > 1) dh_log_set_rank((int)run->ranks.rank);
    setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE);
    while (next_task(&run->saver)) write_one(run);
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

dh_status dh_saver_bytes(dh_ctx *ctx, const dh_program *program, uint64_t *n_bytes)
{
    dh_share share;
    DH_TRY(dh_share_find(ctx, program, NULL, &share));
    *n_bytes = dh_share_bytes(&share);
    dh_vec_fini(&share);
    return DH_OK;
}

static dh_status check_room(dh_ctx *ctx, const dh_run *run)
{
    const double needed = (double)run->saver.copy_bytes * run->n_local_ranks;
    const double available = dh_memory_available();
    char copies[32], free_bytes[32];
    if (run->local_rank != 0 || available == 0 || needed <= available) return DH_OK;
    return dh_fail(ctx, DH_ENOMEM,
                   "checkpoint.async keeps copies of weights and moments, %s for the ranks of this "
                   "machine, and %s are free: without it checkpoints are written between steps",
                   dh_format_bytes(copies, sizeof copies, needed),
                   dh_format_bytes(free_bytes, sizeof free_bytes, available));
}

/* Touched now: the first checkpoint is to stop the run no longer than the others. */
static dh_status make_copy(dh_ctx *ctx, dh_saver *s)
{
    char text[32];
    void *at =
        mmap(NULL, s->copy_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return dh_fail(ctx, DH_ENOMEM,
                       "out of memory for checkpoint.async, a copy of weights and moments of %s",
                       dh_format_bytes(text, sizeof text, (double)s->copy_bytes));
    s->copy = at;
    madvise(at, s->copy_bytes, MADV_HUGEPAGE);
    memset(at, 0, s->copy_bytes);
    return DH_OK;
}

static dh_status start_thread(dh_ctx *ctx, dh_run *run, int which, void *(*begin)(void *))
{
    const int code = pthread_create(&run->saver.threads[which], NULL, begin, run);
    if (code != 0)
        return dh_fail(ctx, DH_EINTERNAL, "cannot start the threads that write checkpoints: %s",
                       strerror(code));
    run->saver.n_threads = which + 1;
    return DH_OK;
}

static dh_status start(dh_ctx *ctx, dh_run *run)
{
    DH_TRY(make_copy(ctx, &run->saver));
    DH_TRY(start_thread(ctx, run, 0, writer_main));
    return start_thread(ctx, run, 1, copier_main);
}

dh_status dh_saver_open(dh_ctx *ctx, dh_run *run)
{
    dh_saver *s = &run->saver;
    if (!run->job->checkpoint_async) return DH_OK;
    DH_CHECK(s->board);
    s->ctx = (dh_ctx)DH_CTX_INIT;
    dh_status st = dh_share_find(ctx, dh_session_layout(run->session), NULL, &s->share);
    if (st == DH_OK) {
        s->copy_bytes = DH_MAX(dh_share_bytes(&s->share), sizeof(float));
        st = check_room(ctx, run);
    }
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    return dh_ranks_agree(ctx, &run->ranks, start(ctx, run));
}

/* ---- beside training ------------------------------------------------------------------------- */

/* The rank's own failure to write, once its thread is through. */
static dh_status outcome(dh_ctx *ctx, dh_saver *s)
{
    lock(s);
    const bool failed = !s->busy && s->ctx.status != DH_OK;
    unlock(s);
    s->told = failed;
    return failed ? dh_fail(ctx, s->ctx.status, "%s", s->ctx.message) : DH_OK;
}

dh_status dh_saver_check(dh_ctx *ctx, dh_run *run)
{
    return run->saver.under_way ? outcome(ctx, &run->saver) : DH_OK;
}

void dh_saver_tell(dh_run *run, double values[2])
{
    const dh_saver *s = &run->saver;
    values[0] = values[1] = 0;
    if (!s->under_way) return;
    lock(s);
    values[0] = run->ranks.rank == 0 && s->board->created;
    values[1] = s->written;
    unlock(s);
}

void dh_saver_hear(dh_run *run, const double values[2])
{
    const dh_saver *s = &run->saver;
    if (!s->under_way || !s->apart) return;
    lock(s);
    if (values[0] > 0) s->board->created = true;
    if (values[1] >= (double)run->ranks.n) s->board->n_written = run->ranks.n;
    tell_all(s);
    unlock(s);
}

/* Until this rank's thread is that far, or through. */
static dh_status wait_until(dh_ctx *ctx, dh_saver *s, const bool *done)
{
    lock(s);
    while (s->busy && !(done && *done)) wait_for_news(s);
    unlock(s);
    return outcome(ctx, s);
}

/* As with the sums of steps, for which nobody waits here. */
static dh_status finish(dh_ctx *ctx, dh_run *run)
{
    dh_saver *s = &run->saver;
    const double created[2] = {1, 0}, written[2] = {1, (double)run->ranks.n};
    dh_status st = run->ranks.rank == 0 ? wait_until(ctx, s, &s->board->created) : DH_OK;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, st));
    dh_saver_hear(run, created);
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, wait_until(ctx, s, &s->written)));
    dh_saver_hear(run, written);
    return dh_ranks_agree(ctx, &run->ranks, wait_until(ctx, s, NULL));
}

dh_status dh_run_finish_saving(dh_ctx *ctx, dh_run *run)
{
    if (!run->saver.under_way) return DH_OK;
    DH_TRY(finish(ctx, run));
    run->saver.under_way = false;
    return DH_OK;
}

/* The first rank of the process, while no thread of it has anything to do. */
static void clear_board(const dh_run *run)
{
    dh_save_board *b = run->saver.board;
    if (run->ranks.rank != 0 && !run->saver.apart) return;
    pthread_mutex_lock(&b->lock);
    b->n_begun++;
    b->created = b->failed = false;
    b->n_written = 0;
    pthread_mutex_unlock(&b->lock);
}

static void hand_over(dh_saver *s, bool to_copy)
{
    lock(s);
    s->copying = to_copy;
    s->n_taken = s->board->n_begun;
    s->written = false;
    s->busy = true;
    tell_all(s);
    unlock(s);
    s->under_way = true;
}

/* Where updates do not wait for the copy. */
static dh_status copy_now(dh_ctx *ctx, const dh_run *run)
{
    const dh_saver *s = &run->saver;
    return dh_ranks_agree(ctx, &run->ranks, dh_share_copy(ctx, run->session, &s->share, s->copy));
}

static dh_status save_beside(dh_ctx *ctx, dh_run *run)
{
    dh_saver *s = &run->saver;
    const bool held = run->session->spec.device->tells_updates;
    clear_board(run);
    dh_status st = dh_save_begin(ctx, run, &s->save);
    if (st == DH_OK && !held) st = copy_now(ctx, run);
    if (st == DH_OK)
        hand_over(s, held);
    else
        dh_save_end(&s->save);
    return st;
}

void dh_saver_hold(void *user)
{
    dh_saver *s = user;
    if (!atomic_load(&s->copying)) return;
    lock(s);
    if (s->n_held++ == 0) s->held_from_ns = dh_now_ns();
    while (s->copying) wait_for_news(s);
    if (--s->n_held == 0) s->held_ns += dh_now_ns() - s->held_from_ns;
    unlock(s);
}

double dh_saver_stall_ns(const dh_saver *s)
{
    return s->n_saves > 0 ? (double)(s->stall_ns + s->held_ns) / (double)s->n_saves : 0;
}

void dh_saver_close(dh_run *run)
{
    dh_saver *s = &run->saver;
    if (s->n_threads > 0) {
        lock(s);
        /* Nobody waits for an addition that this rank, or one of another process, did not make. */
        if (s->n_taken < s->board->n_begun || (s->apart && s->board->n_written < run->ranks.n))
            s->board->failed = true;
        s->quit = true;
        tell_all(s);
        unlock(s);
        for (int i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
        dh_save_end(&s->save);
        if (!s->told && s->ctx.status != DH_OK) dh_log(DH_LOG_WARN, "%s", s->ctx.message);
    }
    if (s->copy) munmap(s->copy, s->copy_bytes);
    dh_vec_fini(&s->share);
    s->copy = NULL;
    s->n_threads = 0;
}

/* ---- between steps --------------------------------------------------------------------------- */

static dh_status save_parts(dh_ctx *ctx, dh_run *run, dh_save *save, const dh_share *share)
{
    const bool first = run->ranks.rank == 0;
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, first ? dh_save_open(ctx, run, save) : DH_OK));
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, first ? DH_OK : dh_save_open(ctx, run, save)));
    DH_TRY(dh_ranks_agree(ctx, &run->ranks, dh_save_put(ctx, run, save, share, NULL)));
    return dh_ranks_agree(ctx, &run->ranks, first ? dh_save_seal(ctx, run, save) : DH_OK);
}

static dh_status save_between(dh_ctx *ctx, dh_run *run)
{
    dh_share share = {0};
    dh_save save = {.step = 0};
    dh_status st = dh_share_find(ctx, dh_session_layout(run->session), NULL, &share);
    st = dh_ranks_agree(ctx, &run->ranks, st);
    if (st == DH_OK) st = dh_save_begin(ctx, run, &save);
    if (st == DH_OK) st = save_parts(ctx, run, &save, &share);
    dh_save_end(&save);
    dh_vec_fini(&share);
    return st;
}

/* ---- entry ----------------------------------------------------------------------------------- */

dh_status dh_run_save(dh_ctx *ctx, dh_run *run)
{
    const int64_t start_ns = dh_now_ns();
    DH_TRY(dh_run_finish_saving(ctx, run));
    const dh_status st = run->saver.n_threads > 0 ? save_beside(ctx, run) : save_between(ctx, run);
    if (st != DH_OK)
        return dh_ctx_while(ctx, "saving the checkpoint of step %lld", (long long)run->step);
    run->saver.n_saves++;
    run->saver.stall_ns += dh_now_ns() - start_ns;
    snprintf(run->checkpoint, sizeof run->checkpoint, "%s/checkpoints/step-%06lld",
             run->job->out_dir, (long long)run->step);
    return DH_OK;
}
