/* Fibres of a block, and who runs next: warps in any order, each a step or as far as it can, a
 * warp's lanes in any order between two points where they meet. */
#include "run/cuda/host/fibres.h"

#include <cstdlib>
#include <sys/mman.h>

#include "base/base.h"
#include "run/cuda/host/host.h"
#include "run/cuda/host/scheduler.h"

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif
#if ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

__thread dh_host_index threadIdx, blockIdx, blockDim, gridDim;

namespace
{

enum { MAX_THREADS = 1024, LANES = 32, STACK = 256 << 10, SHARED = 48 << 10 };
enum { LAUNCHED = 227 << 10, COPIES = 256 };

enum fibre_state { READY, AT_WARP, AT_BLOCK, AT_BARRIER, DONE };

/* ---- switching: registers that a call keeps, and the stack ------------------------------ */

#if defined(__x86_64__)
typedef void *context;

extern "C" void dh_fibre_switch(context *save, context *to);
asm(".text\n"
    ".globl dh_fibre_switch\n"
    ".hidden dh_fibre_switch\n"
    ".type dh_fibre_switch, @function\n"
    "dh_fibre_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size dh_fibre_switch, . - dh_fibre_switch\n");

/* The first switch to it pops six registers and returns to entry, whose stack is then aligned as
 * behind a call. */
void context_make(context *c, char *stack, void (*entry)())
{
    void **top = reinterpret_cast<void **>(stack + STACK);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void *>(entry);
    for (int i = 3; i <= 8; i++) top[-i] = nullptr;
    *c = top - 8;
}

void context_switch(context *save, context *to)
{
    dh_fibre_switch(save, to);
}
#else
typedef ucontext_t context;

void context_make(context *c, char *stack, void (*entry)())
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = STACK;
    c->uc_link = nullptr;
    makecontext(c, entry, 0);
}

void context_switch(context *save, context *to)
{
    swapcontext(save, to);
}
#endif

/* ---- a host thread's fibres ------------------------------------------------------------------ */

struct fibre {
    context at;
    fibre_state state;
    unsigned parity;                           /* which of the warp's two rows of values is next */
    unsigned board;                            /* and of its two boards */
    unsigned n_groups, first_copy, end_copies; /* of copies under way, places modulo COPIES */
    size_t shared;                             /* taken so far */
    void *fake_stack;                          /* address sanitizer's */
    bool (*ready)(const void *at, unsigned value); /* AT_BARRIER: what it waits for */
    const void *barrier;
    unsigned value;
};

/* What lanes bring to where they meet. */
struct board {
    alignas(64) unsigned char lanes[LANES][DH_HOST_LANE_BYTES];
    unsigned n_here;
    void (*last)(void *lanes);
};

struct copy {
    void *to;
    const void *from;
    unsigned group;
};

/* What is too large for a thread's static storage, which threads of small stacks have too. */
struct large_room {
    alignas(1024) unsigned char launched[LAUNCHED];
    board boards[MAX_THREADS / LANES][2];
    copy copies[MAX_THREADS][COPIES];
    char stacks[MAX_THREADS][STACK];
};

struct scheduler {
    large_room *room;
    fibre fibres[MAX_THREADS];
    uint64_t values[MAX_THREADS / LANES][2][LANES];
    context home;
    const void *home_stack;
    size_t home_bytes;
    void *home_fake;
    void (*body)(const void *);
    const void *user;
    unsigned n, running;
    uint64_t seed;
    size_t shared_used, n_launched;
    alignas(64) unsigned char shared[SHARED];
};

__thread scheduler s;

/* The room goes with its thread. Apart from s, which has nothing to construct or destroy, so that its
 * uses do not ask whether it has been made. */
struct thread_room {
    large_room *at = nullptr;
    ~thread_room()
    {
        if (at) munmap(at, sizeof *at);
    }
};
thread_local thread_room own_room;

/* From the scheduler to a fibre, and back. */

void enter(unsigned i)
{
    s.running = i;
    threadIdx.x = i;
#if ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&s.home_fake, s.room->stacks[i], STACK);
#endif
    context_switch(&s.home, &s.fibres[i].at);
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(s.home_fake, nullptr, nullptr);
#endif
}

void leave(fibre_state state)
{
    fibre *f = &s.fibres[s.running];
    f->state = state;
#if ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(state == DONE ? nullptr : &f->fake_stack, s.home_stack,
                                   s.home_bytes);
#endif
    context_switch(&f->at, &s.home);
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(f->fake_stack, &s.home_stack, &s.home_bytes);
#endif
}

void fibre_main()
{
#if ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, &s.home_stack, &s.home_bytes);
#endif
    s.body(s.user);
    leave(DONE);
    abort(); /* nobody comes back here */
}

/* ---- order and barriers ------------------------------------------------------------------------
 */

uint64_t seed_of_environment()
{
    const char *text = getenv("DHELIX_FIBRE_SEED");
    return text ? strtoull(text, nullptr, 10) : 1;
}

uint64_t draw()
{
    if (s.seed == 0) s.seed = seed_of_environment();
    s.seed = dh_mix64(s.seed);
    return s.seed;
}

unsigned count(unsigned first, unsigned n, fibre_state state)
{
    unsigned found = 0;
    for (unsigned i = first; i < first + n; i++) found += s.fibres[i].state == state;
    return found;
}

void release(unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) s.fibres[i].state = READY;
}

/* The n from first on, turned and maybe the other way round: the k-th of them. */
unsigned kth(uint64_t bits, unsigned first, unsigned n, unsigned k)
{
    const unsigned start = static_cast<unsigned>(bits >> 8) % n;
    return first + (bits & 1 ? start + k : start + n - k) % n;
}

/* Runs those of a warp that can, up to where they wait next; whether there was any. */
bool run_warp(unsigned first)
{
    const uint64_t bits = draw();
    bool any = false;
    for (unsigned k = 0; k < LANES; k++) {
        const unsigned i = kth(bits, first, LANES, k);
        fibre *f = &s.fibres[i];
        if (f->state == AT_BARRIER && f->ready(f->barrier, f->value)) f->state = READY;
        if (f->state != READY) continue;
        any = true;
        enter(i);
    }
    if (count(first, LANES, AT_WARP) == LANES) release(first, LANES);
    return any;
}

/* Each warp in turn; at random one goes as far as it can before the next begins, as warps of a GPU
 * may. Tensor copies arrive at random, and where nobody can go on without one. */
bool run_once()
{
    const uint64_t bits = draw();
    if (bits & 4) (void)dh_host_end_a_copy(bits >> 32);
    const unsigned n_warps = s.n / LANES;
    bool any = false;
    for (unsigned k = 0; k < n_warps; k++) {
        const unsigned first = kth(bits, 0, n_warps, k) * LANES;
        bool runs = run_warp(first);
        any = any || runs;
        while (runs && bits & 2) runs = run_warp(first);
    }
    if (count(0, s.n, AT_BLOCK) == s.n) release(0, s.n);
    return any || (count(0, s.n, AT_BARRIER) > 0 && dh_host_end_a_copy(bits >> 32));
}

void run_block()
{
    memset(s.shared, 0xFF, s.shared_used);
    memset(s.room->launched, 0xFF, s.n_launched);
    for (unsigned i = 0; i < s.n; i++) {
        fibre *f = &s.fibres[i];
        f->state = READY;
        f->parity = f->board = 0;
        f->n_groups = f->first_copy = f->end_copies = 0;
        f->shared = 0;
        f->fake_stack = nullptr;
        context_make(&f->at, s.room->stacks[i], fibre_main);
    }
    while (run_once()) {}
    DH_CHECK(count(0, s.n, DONE) == s.n,
             "block %u of %u threads: %u wait for their block, %u for their warp, %u at a barrier "
             "of shared memory, %u have ended",
             blockIdx.x, s.n, count(0, s.n, AT_BLOCK), count(0, s.n, AT_WARP),
             count(0, s.n, AT_BARRIER), count(0, s.n, DONE));
    dh_host_check_block_end();
}

} // namespace

int64_t dh_host_clock_ns()
{
    return dh_now_ns();
}

void dh_host_nap()
{
    dh_sleep_until_ns(dh_now_ns() + 10 * 1000);
}

void dh_host_set_seed(uint64_t seed)
{
    s.seed = seed;
}

void *dh_host_shared(size_t n_bytes)
{
    fibre *f = &s.fibres[s.running];
    void *at = s.shared + f->shared;
    f->shared += (n_bytes + 15) / 16 * 16;
    DH_CHECK(f->shared <= SHARED, "a block declares more than 48 KiB of shared memory: %zu",
             f->shared);
    if (f->shared > s.shared_used) {
        memset(s.shared + s.shared_used, 0xFF, f->shared - s.shared_used);
        s.shared_used = f->shared;
    }
    return at;
}

void *dh_host_launched_shared(size_t n_bytes)
{
    DH_CHECK(n_bytes <= s.n_launched, "%zu bytes of shared memory, and the launch has %zu", n_bytes,
             s.n_launched);
    return s.room->launched;
}

void *dh_host_launched_at(size_t byte, size_t n_bytes)
{
    DH_CHECK(byte + n_bytes <= s.n_launched,
             "byte %zu of shared memory and %zu more, and the launch has %zu", byte, n_bytes,
             s.n_launched);
    return s.room->launched + byte;
}

void dh_host_await(bool (*ready)(const void *at, unsigned value), const void *at, unsigned value)
{
    fibre *f = &s.fibres[s.running];
    if (ready(at, value)) return;
    f->ready = ready;
    f->barrier = at;
    f->value = value;
    leave(AT_BARRIER);
}

uint64_t dh_host_draw()
{
    return draw();
}

void dh_host_sync_block()
{
    leave(AT_BLOCK);
}

void dh_host_sync_warp()
{
    leave(AT_WARP);
}

/* Two rows take turns: who writes one anew has passed the other's barrier, before which all have
 * read it. */
uint64_t dh_host_exchange(uint64_t mine, unsigned from_lane)
{
    fibre *f = &s.fibres[s.running];
    uint64_t *row = s.values[s.running / LANES][f->parity];
    f->parity ^= 1;
    row[s.running % LANES] = mine;
    leave(AT_WARP);
    return row[from_lane];
}

/* As of dh_host_exchange, a warp has two boards. */
void *dh_host_meet(const void *mine, size_t n_bytes, void (*last)(void *lanes))
{
    fibre *f = &s.fibres[s.running];
    board *b = &s.room->boards[s.running / LANES][f->board];
    f->board ^= 1;
    memcpy(b->lanes[s.running % LANES], mine, n_bytes);
    if (b->n_here++ == 0) b->last = last;
    DH_CHECK(b->last == last, "lanes of a warp meet at different instructions");
    if (b->n_here == LANES) {
        if (last) last(b->lanes);
        b->n_here = 0;
    }
    leave(AT_WARP);
    DH_CHECK(b->n_here == 0, "%u lanes of a warp met at an instruction", b->n_here);
    return b->lanes;
}

/* ---- copies -----------------------------------------------------------------------------------
 */

namespace
{

void arrive(const copy &c)
{
    if (c.from)
        memcpy(c.to, c.from, 16);
    else
        memset(c.to, 0, 16);
}

} // namespace

void dh_host_copy_later(void *to, const void *from)
{
    fibre *f = &s.fibres[s.running];
    const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
    DH_CHECK((both & 15) == 0, "copies of 16 bytes from %p to %p", from, to);
    const copy c = {to, from, f->n_groups};
    if (dh_mix64(s.seed + s.running + f->n_groups) & 1) {
        arrive(c);
        return;
    }
    DH_CHECK(f->end_copies - f->first_copy < COPIES, "a thread has %d copies under way", COPIES);
    s.room->copies[s.running][f->end_copies++ % COPIES] = c;
}

void dh_host_close_group()
{
    s.fibres[s.running].n_groups++;
}

void dh_host_wait_groups(unsigned n)
{
    fibre *f = &s.fibres[s.running];
    for (; f->first_copy < f->end_copies; f->first_copy++) {
        const copy &c = s.room->copies[s.running][f->first_copy % COPIES];
        if (c.group + n >= f->n_groups) return;
        arrive(c);
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

void dh_host_run_blocks(const dh_host_grid &grid, void (*body)(const void *), const void *user)
{
    const unsigned n_threads = grid.n_threads;
    const bool whole_warps = n_threads > 0 && n_threads % LANES == 0;
    DH_CHECK(whole_warps && n_threads <= MAX_THREADS, "blocks of %u threads", n_threads);
    DH_CHECK(grid.n_shared <= LAUNCHED, "blocks ask for %zu bytes of shared memory", grid.n_shared);
    if (!s.room) {
        void *at = mmap(nullptr, sizeof(large_room), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        DH_CHECK(at != MAP_FAILED, "no memory for the stacks of fibres");
        own_room.at = s.room = static_cast<large_room *>(at);
    }
    s.body = body;
    s.user = user;
    s.n = n_threads;
    s.n_launched = grid.n_shared;
    gridDim = {grid.n_blocks, 1, 1};
    blockDim = {n_threads, 1, 1};
    for (unsigned i = 0; i < grid.n_blocks; i++) {
        blockIdx = {i, 0, 0};
        run_block();
    }
}

namespace
{

enum { MOST_CLOSURE = 2048 };

struct queued_grid {
    dh_host_grid grid;
    void (*body)(const void *);
    alignas(16) unsigned char user[MOST_CLOSURE];
};

void run_grid(const void *user)
{
    const queued_grid *g = static_cast<const queued_grid *>(user);
    dh_host_run_blocks(g->grid, g->body, g->user);
}

} // namespace

void dh_host_launch(struct CUstream_st *stream, const dh_host_grid &grid,
                    void (*body)(const void *), const void *user, size_t n_bytes)
{
    queued_grid g; /* copied as far as it is used */
    g.grid = grid;
    g.body = body;
    if (!stream) {
        dh_host_run_blocks(grid, body, user);
        return;
    }
    DH_CHECK(n_bytes <= sizeof g.user, "a kernel's arguments take %zu bytes", n_bytes);
    memcpy(g.user, user, n_bytes);
    if (grid.n_blocks > 0)
        (void)dh_host_enqueue(stream, run_grid, &g, offsetof(queued_grid, user) + n_bytes);
}
