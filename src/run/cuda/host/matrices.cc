/* The lane that comes last does it for its warp; the others find their registers changed. */
#include "run/cuda/host/matrices.h"

#include <atomic>

#include "base/base.h"
#include "run/cuda/host/fibres.h"

namespace
{

enum { LANES = 32, ROWS = 16, COLUMNS = 8, DEPTH = 16 };

std::atomic<int64_t> n_products;
std::atomic<dh_host_twist> twisted;

template <class T> struct alignas(DH_HOST_LANE_BYTES) board_row {
    T at;
};

/* ---- mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 --------------------------------- */

struct product_lane {
    unsigned a[4], b[2];
    float c[4];
};

float low(unsigned pair)
{
    return __uint_as_float(pair << 16);
}

float high(unsigned pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* Where a lane's registers belong: group lane / 4, two neighbours from 2 (lane % 4) on. */
unsigned group_of(unsigned lane)
{
    return lane / 4;
}

unsigned pair_of(unsigned lane)
{
    return lane % 4 * 2;
}

void spread(const board_row<product_lane> *lanes, float (&a)[ROWS][DEPTH],
            float (&b)[DEPTH][COLUMNS], float (&c)[ROWS][COLUMNS])
{
    for (unsigned lane = 0; lane < LANES; lane++) {
        const product_lane &l = lanes[lane].at;
        const unsigned g = group_of(lane), p = pair_of(lane);
        for (unsigned i = 0; i < 4; i++) {
            a[g + i % 2 * 8][p + i / 2 * 8] = low(l.a[i]);
            a[g + i % 2 * 8][p + i / 2 * 8 + 1] = high(l.a[i]);
            c[g + i / 2 * 8][p + i % 2] = l.c[i];
        }
        for (unsigned i = 0; i < 2; i++) {
            b[p + i * 8][g] = low(l.b[i]);
            b[p + i * 8 + 1][g] = high(l.b[i]);
        }
    }
}

/* Indices here are constants: sanitizers would only check them, two thousand times a product. */
__attribute__((no_sanitize("address", "undefined"))) void
accumulate(const float (&a)[ROWS][DEPTH], const float (&b)[DEPTH][COLUMNS],
           float (&c)[ROWS][COLUMNS])
{
    for (unsigned r = 0; r < ROWS; r++)
        for (unsigned k = 0; k < DEPTH; k++)
            for (unsigned n = 0; n < COLUMNS; n++) c[r][n] += a[r][k] * b[k][n];
}

void multiply(void *of_lanes)
{
    board_row<product_lane> *lanes = static_cast<board_row<product_lane> *>(of_lanes);
    float a[ROWS][DEPTH], b[DEPTH][COLUMNS], c[ROWS][COLUMNS];
    spread(lanes, a, b, c);
    accumulate(a, b, c);
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < 4; i++)
            lanes[lane].at.c[i] = c[group_of(lane) + i / 2 * 8][pair_of(lane) + i % 2];
    n_products.fetch_add(1, std::memory_order_relaxed);
}

template <class T> void exchange(T &a, T &b)
{
    const T was = a;
    a = b;
    b = was;
}

/* ---- ldmatrix.sync.aligned.m8n8.x4.shared.b16 -------------------------------------------- */

/* The 32 banks are four bytes wide: rows of 16 bytes take one of eight places each. */
void check_banks(void *of_lanes)
{
    const board_row<const unsigned char *> *rows =
        static_cast<const board_row<const unsigned char *> *>(of_lanes);
    for (unsigned first = 0; first < LANES; first += 8) {
        unsigned places = 0;
        for (unsigned r = first; r < first + 8; r++) {
            const uintptr_t at = reinterpret_cast<uintptr_t>(rows[r].at);
            DH_CHECK((at & 15) == 0, "ldmatrix of a row that begins at %p", rows[r].at);
            places |= 1u << at / 16 % 8;
        }
        DH_CHECK(places == 0xff, "rows that ldmatrix loads lie in the same banks (%02x)", places);
    }
}

unsigned element(const void *row, unsigned i)
{
    uint16_t x;
    memcpy(&x, static_cast<const unsigned char *>(row) + 2 * static_cast<size_t>(i), sizeof x);
    return x;
}

} // namespace

void dh_host_mma(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&c)[4])
{
    product_lane mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
    const dh_host_twist twist = twisted.load(std::memory_order_relaxed);
    if (twist == DH_TWIST_A) exchange(mine.a[1], mine.a[2]);
    if (twist == DH_TWIST_B) exchange(mine.b[0], mine.b[1]);
    if (twist == DH_TWIST_C) exchange(mine.c[1], mine.c[2]);
    const board_row<product_lane> *lanes =
        static_cast<const board_row<product_lane> *>(dh_host_meet(&mine, sizeof mine, multiply));
    memcpy(c, lanes[threadIdx.x % LANES].at.c, sizeof c);
}

void dh_host_ldmatrix(const void *row, bool transposed, unsigned (&r)[4])
{
    const unsigned lane = threadIdx.x % LANES, g = group_of(lane), p = pair_of(lane);
    const board_row<const unsigned char *> *rows =
        static_cast<const board_row<const unsigned char *> *>(
            dh_host_meet(&row, sizeof row, check_banks));
    for (unsigned i = 0; i < 4; i++) {
        const board_row<const unsigned char *> *m = rows + i * 8;
        r[i] = transposed ? element(m[p].at, g) | element(m[p + 1].at, g) << 16
                          : element(m[g].at, p) | element(m[g].at, p + 1) << 16;
    }
}

int64_t dh_host_n_mma()
{
    return n_products.load();
}

void dh_host_twist_mma(dh_host_twist twist)
{
    twisted.store(twist);
}
