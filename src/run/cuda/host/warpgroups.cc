/* Each warp of a warpgroup makes its own 16 rows: what it reads of shared memory it reads when its
 * products are carried out. The lane that comes last does it for all. */
#include "run/cuda/host/warpgroups.h"

#include <atomic>
#include <cstdlib>

#include "base/base.h"
#include "run/cuda/host/fibres.h"
#include "run/cuda/host/scheduler.h"

namespace
{

enum { LANES = 32, WARP_ROWS = 16, DEPTH = 16, MOST_N = 256, MOST_WARPS = 32, MOST_PENDING = 128 };
enum { ROW_BYTES = 128, PANEL = 64, ALIGNMENT = 1024, MOST_COPIES = 64 };

std::atomic<int64_t> n_products;
std::atomic<dh_host_twist> twisted;

/* A chunk of 16 bytes lies at its place in eight, turned by its row's. */
unsigned swizzle(unsigned address)
{
    return address ^ (address >> 7 & 7) << 4;
}

float widen(uint16_t bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

/* ---- barriers ---------------------------------------------------------------------------------
 */

/* A phase's bytes may arrive before they are told of. */
struct barrier {
    uint16_t n, left;
    int32_t twice; /* the bytes that are still to arrive; and 1 in odd phases */
};
static_assert(sizeof(barrier) == 8, "a barrier has eight bytes");

enum { NO_BARRIER = 0xffff }; /* what shared memory holds when a block begins */

barrier barrier_at(const uint64_t *at)
{
    barrier b;
    memcpy(&b, at, sizeof b);
    DH_CHECK(b.n != NO_BARRIER && b.n > 0, "a barrier of shared memory is used before it is made");
    return b;
}

void put_barrier(uint64_t *at, barrier b)
{
    if (b.left == 0 && b.twice >> 1 == 0) {
        b.twice ^= 1;
        b.left = b.n;
    }
    memcpy(at, &b, sizeof b);
}

bool has_ended(const void *at, unsigned parity)
{
    return (barrier_at(static_cast<const uint64_t *>(at)).twice & 1) != (int32_t)parity;
}

/* ---- tensor copies ----------------------------------------------------------------------------
 */

struct box_copy {
    unsigned char *to;
    dh_host_tensor_map map;
    int first[4];
    uint64_t *barrier;
};

/* ---- products ---------------------------------------------------------------------------------
 */

struct product {
    dh_host_wgmma_call lanes[LANES];
    unsigned group;
};

struct warp_products {
    product pending[MOST_PENDING];
    unsigned n_pending, n_groups;
    bool is_fenced;
};

struct state {
    warp_products warps[MOST_WARPS];
    box_copy copies[MOST_COPIES];
    unsigned n_copies;
    bool is_used; /* by the running block */
};

/* Of a thread of the host that runs blocks, made at its first use. */
struct own_state {
    state *at = nullptr;
    ~own_state()
    {
        free(at);
    }
};
thread_local own_state own;

state &mine()
{
    if (!own.at) own.at = static_cast<state *>(calloc(1, sizeof(state)));
    DH_CHECK(own.at, "no memory for products under way");
    own.at->is_used = true;
    return *own.at;
}

warp_products &my_warp()
{
    return mine().warps[threadIdx.x / LANES];
}

unsigned char *shared_at(unsigned address)
{
    return static_cast<unsigned char *>(dh_host_launched_at(address, 2));
}

/* Descriptors: the bits of the PTX ISA's "Matrix Descriptor Format". */
struct matrix {
    unsigned start, leading, stride;
};

matrix matrix_of(uint64_t bits)
{
    const matrix m = {(unsigned)(bits & 0x3fff) << 4, (unsigned)(bits >> 16 & 0x3fff) << 4,
                      (unsigned)(bits >> 32 & 0x3fff) << 4};
    DH_CHECK(bits >> 62 == 1 && (bits >> 49 & 7) == 0,
             "a descriptor (%llx) without swizzle of 128 bytes, or with an offset",
             (unsigned long long)bits);
    return m;
}

float element(unsigned address, bool swizzled)
{
    uint16_t bits;
    memcpy(&bits, shared_at(swizzled ? swizzle(address) : address), sizeof bits);
    return widen(bits);
}

/* Row r (m or n), column k of depth. */
float by_rows(const matrix &m, unsigned r, unsigned k, bool swizzled)
{
    return element(m.start + r / 8 * m.stride + r % 8 * ROW_BYTES + k * 2, swizzled);
}

float by_channels(const matrix &m, unsigned n, unsigned k, bool swizzled)
{
    return element(m.start + n / PANEL * m.leading + n % PANEL * 2 + k / 8 * m.stride +
                       k % 8 * ROW_BYTES,
                   swizzled);
}

void gather_a(const product &p, unsigned row0, dh_host_twist twist, float (&a)[WARP_ROWS][DEPTH])
{
    if (!p.lanes[0].a_registers) {
        const matrix m = matrix_of(p.lanes[0].a);
        for (unsigned r = 0; r < WARP_ROWS; r++)
            for (unsigned k = 0; k < DEPTH; k++) a[r][k] = by_rows(m, row0 + r, k, true);
        return;
    }
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned from = twist == DH_TWIST_A && i % 3 ? 3 - i : i;
            const unsigned pair = p.lanes[lane].a_registers[from];
            const unsigned r = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
            a[r][k] = widen((uint16_t)pair);
            a[r][k + 1] = widen((uint16_t)(pair >> 16));
        }
}

void carry_out(const product &p)
{
    static thread_local float b[DEPTH][MOST_N];
    float a[WARP_ROWS][DEPTH], sums[MOST_N];
    const dh_host_twist twist = twisted.load(std::memory_order_relaxed);
    const unsigned row0 = threadIdx.x / LANES % 4 * WARP_ROWS, n = (unsigned)p.lanes[0].n;
    const bool swizzled = twist != DH_TWIST_B;
    const matrix m = matrix_of(p.lanes[0].b);
    gather_a(p, row0, twist, a);
    for (unsigned k = 0; k < DEPTH; k++)
        for (unsigned c = 0; c < n; c++)
            b[k][c] = p.lanes[0].a_registers ? by_channels(m, c, k, swizzled)
                                             : by_rows(m, c, k, swizzled);
    for (unsigned r = 0; r < WARP_ROWS; r++) {
        memset(sums, 0, sizeof sums);
        for (unsigned k = 0; k < DEPTH; k++)
            for (unsigned c = 0; c < n; c++) sums[c] += a[r][k] * b[k][c];
        for (unsigned lane = r % 8 * 4; lane < r % 8 * 4 + 4; lane++)
            for (unsigned c = lane % 4 * 2; c < n; c += 8)
                for (unsigned e = 0; e < 2; e++) {
                    unsigned i = r / 8 * 2 + e;
                    if (twist == DH_TWIST_C && i % 3) i = 3 - i;
                    float *to = &p.lanes[lane].c[c / 8 * 4 + i];
                    *to = p.lanes[lane].adds ? *to + sums[c + e] : sums[c + e];
                }
    }
    n_products.fetch_add(1, std::memory_order_relaxed);
}

/* The first of a warp's groups until at most n are under way. */
void carry_out_groups(unsigned n)
{
    warp_products &w = my_warp();
    unsigned done = 0;
    while (done < w.n_pending && w.pending[done].group + n < w.n_groups)
        carry_out(w.pending[done++]);
    memmove(&w.pending[0], &w.pending[done], (w.n_pending - done) * sizeof w.pending[0]);
    w.n_pending -= done;
}

struct alignas(DH_HOST_LANE_BYTES) lane_call {
    dh_host_wgmma_call at;
};

void issue(void *of_lanes)
{
    const lane_call *lanes = static_cast<const lane_call *>(of_lanes);
    warp_products &w = my_warp();
    DH_CHECK(w.is_fenced, "wgmma without wgmma.fence before it");
    DH_CHECK(w.n_pending < MOST_PENDING, "%u products of a warpgroup under way", w.n_pending);
    product &p = w.pending[w.n_pending];
    p.group = w.n_groups;
    for (unsigned i = 0; i < LANES; i++) {
        p.lanes[i] = lanes[i].at;
        DH_CHECK(p.lanes[i].a == p.lanes[0].a && p.lanes[i].b == p.lanes[0].b,
                 "lanes of a warp have different descriptors");
    }
    if (w.n_pending == 0 && dh_host_draw() & 1)
        carry_out(p);
    else
        w.n_pending++;
}

void fence(void *)
{
    my_warp().is_fenced = true;
}

void commit(void *)
{
    my_warp().n_groups++;
}

void wait(void *of_lanes)
{
    unsigned n;
    memcpy(&n, of_lanes, sizeof n);
    carry_out_groups(n);
    my_warp().is_fenced = false;
}

} // namespace

/* ---- barriers -------------------------------------------------------------------------------- */

unsigned dh_host_shared_address(const void *at)
{
    const char *base = static_cast<const char *>(dh_host_launched_at(0, 0));
    return (unsigned)(static_cast<const char *>(at) - base);
}

void dh_host_barrier_init(uint64_t *at, unsigned n)
{
    const barrier b = {(uint16_t)n, (uint16_t)n, 0};
    const bool fits = n > 0 && n < NO_BARRIER && (dh_host_shared_address(at) & 7) == 0;
    DH_CHECK(fits, "a barrier of %u arrivals", n);
    memcpy(at, &b, sizeof b);
}

void dh_host_barrier_arrive(uint64_t *at, unsigned n_bytes)
{
    barrier b = barrier_at(at);
    DH_CHECK(b.left > 0, "more threads arrive at a barrier than it was made for: %u", b.n);
    b.left--;
    b.twice += 2 * (int32_t)n_bytes;
    put_barrier(at, b);
}

void dh_host_barrier_wait(uint64_t *at, unsigned parity)
{
    (void)barrier_at(at);
    dh_host_await(has_ended, at, parity);
}

/* ---- tensor copies ---------------------------------------------------------------------------- */

bool dh_host_map_is_good(const dh_host_tensor_map &map)
{
    bool good = reinterpret_cast<uintptr_t>(map.at) % 16 == 0 && map.box[0] * 2 == ROW_BYTES;
    for (int64_t step : map.step) good = good && step > 0 && step % 16 == 0;
    for (int64_t n : map.n) good = good && n > 0;
    for (int n : map.box) good = good && n > 0 && n <= 256;
    return good;
}

void dh_host_copy_box(void *to, const dh_host_tensor_map &map, const int (&first)[4], uint64_t *at)
{
    state &s = mine();
    const unsigned address = dh_host_shared_address(to);
    const size_t n_bytes = (size_t)(map.box[1] * map.box[2] * map.box[3]) * ROW_BYTES;
    const bool aligned = address % ALIGNMENT == 0;
    DH_CHECK(aligned, "a tensor copy to byte %u of shared memory", address);
    DH_CHECK(s.n_copies < MOST_COPIES, "%u tensor copies under way", s.n_copies);
    memset(dh_host_launched_at(address, n_bytes), 0xff, n_bytes); /* not yet what it will be */
    box_copy *c = &s.copies[s.n_copies++];
    *c = {static_cast<unsigned char *>(to), map, {first[0], first[1], first[2], first[3]}, at};
}

/* A row of a box: 64 elements, of which those outside of the tensor are 0. */
static void copy_row(const box_copy &c, const int (&at)[4], unsigned row)
{
    const dh_host_tensor_map &m = c.map;
    bool there = true;
    const char *from = static_cast<const char *>(m.at);
    for (int i = 1; i < 4; i++) {
        there = there && at[i] >= 0 && at[i] < m.n[i];
        from += at[i] * m.step[i - 1];
    }
    for (int x = 0; x < m.box[0]; x++) {
        uint16_t bits = 0;
        const int64_t column = c.first[0] + x;
        if (there && column >= 0 && column < m.n[0]) memcpy(&bits, from + column * 2, sizeof bits);
        memcpy(c.to + swizzle(row * ROW_BYTES + (unsigned)x * 2), &bits, sizeof bits);
    }
}

bool dh_host_end_a_copy(uint64_t drawn)
{
    if (!own.at || own.at->n_copies == 0) return false;
    state &s = *own.at;
    const unsigned i = (unsigned)(drawn % s.n_copies);
    const box_copy c = s.copies[i];
    s.copies[i] = s.copies[--s.n_copies];
    unsigned row = 0;
    for (int d = 0; d < c.map.box[3]; d++)
        for (int t = 0; t < c.map.box[2]; t++)
            for (int h = 0; h < c.map.box[1]; h++, row++) {
                const int at[4] = {0, c.first[1] + h, c.first[2] + t, c.first[3] + d};
                copy_row(c, at, row);
            }
    barrier b = barrier_at(c.barrier);
    b.twice -= 2 * (int32_t)(row * ROW_BYTES);
    put_barrier(c.barrier, b);
    return true;
}

/* A block has ended: nothing of it may be under way. */
void dh_host_check_block_end()
{
    if (!own.at || !own.at->is_used) return;
    own.at->is_used = false;
    DH_CHECK(own.at->n_copies == 0, "a block ends with %u tensor copies under way",
             own.at->n_copies);
    for (warp_products &w : own.at->warps) {
        DH_CHECK(w.n_pending == 0, "a block ends with %u products under way", w.n_pending);
        w.is_fenced = false;
    }
}

/* ---- products ---------------------------------------------------------------------------------- */

void dh_host_wgmma(const dh_host_wgmma_call &call)
{
    const bool fits = call.n > 0 && call.n % 8 == 0 && call.n <= MOST_N;
    DH_CHECK(fits, "wgmma of %d columns", call.n);
    (void)dh_host_meet(&call, sizeof call, issue);
}

void dh_host_wgmma_fence()
{
    const unsigned nothing = 0;
    (void)dh_host_meet(&nothing, sizeof nothing, fence);
}

void dh_host_wgmma_commit()
{
    const unsigned nothing = 0;
    (void)dh_host_meet(&nothing, sizeof nothing, commit);
}

void dh_host_wgmma_wait(unsigned n)
{
    (void)dh_host_meet(&n, sizeof n, wait);
}

int64_t dh_host_n_wgmma()
{
    return n_products.load();
}

void dh_host_twist_wgmma(dh_host_twist twist)
{
    twisted.store(twist);
}
