/* Fibres of a block, and who runs next: warps in any order, each a step or as far as it can, a
 * warp's lanes in any order between two points where they meet. */
#include "run/cuda/host/fibres.h"

#include <cstdlib>
#include <sys/mman.h>

#include "base/base.h"
#include "run/cuda/host/host.h"

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

enum fibre_state { READY, AT_WARP, AT_BLOCK, DONE };

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
    unsigned parity;  /* which of the warp's two rows of values is next */
    size_t shared;    /* taken so far */
    void *fake_stack; /* address sanitizer's */
};

struct scheduler {
    char *stacks;
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
    size_t shared_used;
    alignas(64) unsigned char shared[SHARED];
};

__thread scheduler s;

/* Stacks go with their thread. Apart from s, which has nothing to construct or destroy, so that its
 * uses do not ask whether it has been made. */
struct thread_stacks {
    char *at = nullptr;
    ~thread_stacks()
    {
        if (at) munmap(at, static_cast<size_t>(MAX_THREADS) * STACK);
    }
};
thread_local thread_stacks own_stacks;

/* From the scheduler to a fibre, and back. */

void enter(unsigned i)
{
    s.running = i;
    threadIdx.x = i;
#if ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&s.home_fake, s.stacks + static_cast<size_t>(i) * STACK, STACK);
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
        if (s.fibres[i].state != READY) continue;
        any = true;
        enter(i);
    }
    if (count(first, LANES, AT_WARP) == LANES) release(first, LANES);
    return any;
}

/* Each warp in turn; at random one goes as far as it can before the next begins, as warps of a GPU
 * may. */
bool run_once()
{
    const uint64_t bits = draw();
    const unsigned n_warps = s.n / LANES;
    bool any = false;
    for (unsigned k = 0; k < n_warps; k++) {
        const unsigned first = kth(bits, 0, n_warps, k) * LANES;
        bool runs = run_warp(first);
        any = any || runs;
        while (runs && bits & 2) runs = run_warp(first);
    }
    if (count(0, s.n, AT_BLOCK) == s.n) release(0, s.n);
    return any;
}

void run_block()
{
    memset(s.shared, 0xFF, s.shared_used);
    for (unsigned i = 0; i < s.n; i++) {
        fibre *f = &s.fibres[i];
        f->state = READY;
        f->parity = 0;
        f->shared = 0;
        f->fake_stack = nullptr;
        context_make(&f->at, s.stacks + static_cast<size_t>(i) * STACK, fibre_main);
    }
    while (run_once()) {}
    DH_CHECK(count(0, s.n, DONE) == s.n,
             "block %u of %u threads: %u wait for their block, %u for their warp, %u have ended",
             blockIdx.x, s.n, count(0, s.n, AT_BLOCK), count(0, s.n, AT_WARP), count(0, s.n, DONE));
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

void dh_host_run_blocks(unsigned n_blocks, unsigned n_threads, void (*body)(const void *),
                        const void *user)
{
    const bool whole_warps = n_threads > 0 && n_threads % LANES == 0;
    DH_CHECK(whole_warps && n_threads <= MAX_THREADS, "blocks of %u threads", n_threads);
    if (!s.stacks) {
        void *at = mmap(nullptr, static_cast<size_t>(MAX_THREADS) * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        DH_CHECK(at != MAP_FAILED, "no memory for the stacks of fibres");
        own_stacks.at = s.stacks = static_cast<char *>(at);
    }
    s.body = body;
    s.user = user;
    s.n = n_threads;
    gridDim = {n_blocks, 1, 1};
    blockDim = {n_threads, 1, 1};
    for (unsigned i = 0; i < n_blocks; i++) {
        blockIdx = {i, 0, 0};
        run_block();
    }
}

/* ---- launches --------------------------------------------------------------------------------- */

namespace {

enum { MOST_CLOSURE = 2048 };

struct grid {
    unsigned n_blocks, n_threads;
    void (*body)(const void *);
    alignas(16) unsigned char user[MOST_CLOSURE];
};

void run_grid(const void *user)
{
    const grid *g = static_cast<const grid *>(user);
    dh_host_run_blocks(g->n_blocks, g->n_threads, g->body, g->user);
}

} // namespace

void dh_host_launch(struct CUstream_st *stream, unsigned n_blocks, unsigned n_threads,
                    void (*body)(const void *), const void *user, size_t n_bytes)
{
    grid g; /* copied as far as it is used */
    g.n_blocks = n_blocks;
    g.n_threads = n_threads;
    g.body = body;
    if (!stream) {
        dh_host_run_blocks(n_blocks, n_threads, body, user);
        return;
    }
    DH_CHECK(n_bytes <= sizeof g.user, "a kernel's arguments take %zu bytes", n_bytes);
    memcpy(g.user, user, n_bytes);
    if (n_blocks > 0) (void)dh_host_enqueue(stream, run_grid, &g, offsetof(grid, user) + n_bytes);
}
