#include "comm_cases.h"

#include <pthread.h>

bool case_fail(case_env *env, int line, const char *cond, const char *fmt, ...)
{
    if (env->failure[0]) return false;
    int n = snprintf(env->failure, sizeof env->failure, "rank %d, line %d: %s: ", env->rank, line,
                     cond);
    va_list args;
    va_start(args, fmt);
    vsnprintf(env->failure + n, sizeof env->failure - (size_t)n, fmt, args);
    va_end(args);
    return false;
}

dh_comm_group *case_group(case_env *env, const char *name, const int *members, int n, int stream,
                          dh_engine wire)
{
    int all[64];
    for (int i = 0; i < env->n_ranks; i++) all[i] = i;
    dh_comm_group_spec spec = {name, members ? members : all, members ? n : env->n_ranks, stream,
                               wire};
    dh_comm_group *group = NULL;
    if (dh_comm_group_create(&env->ctx, env->comm, &spec, &group) != DH_OK)
        case_fail(env, __LINE__, "group", "%s", env->ctx.message);
    return group;
}

/* ---- inputs and references -------------------------------------------------------------- */

/* Element i of what group member j holds in call `salt`: any rank can compute it.
 * Magnitudes differ so widely that another summation order shows in the bits. */
static void put_input(void *buf, dh_dtype dtype, int64_t i, uint64_t salt, int j, int64_t index)
{
    uint64_t bits = dh_mix64(salt * 1000003u + (uint64_t)j * 7919u + (uint64_t)index * 65537u);
    double f = ((double)(bits & 0xffffff) / 0x1000000 - 0.5) * (double)(1u << (bits >> 59));
    switch (dtype) {
    case DH_F32:
        ((float *)buf)[i] = (float)f;
        break;
    case DH_BF16:
        ((dh_bf16 *)buf)[i] = dh_f32_to_bf16((float)f);
        break;
    case DH_I32:
        ((int32_t *)buf)[i] = (int32_t)(uint32_t)bits;
        break;
    case DH_U8:
        ((uint8_t *)buf)[i] = (uint8_t)bits;
        break;
    case DH_F64:
        ((double *)buf)[i] = f;
        break;
    default:
        ((int64_t *)buf)[i] = (int64_t)bits;
        break;
    }
}

static void fill(void *buf, dh_dtype dtype, int64_t at, int64_t n, uint64_t salt, int j,
                 int64_t first)
{
    for (int64_t i = 0; i < n; i++) put_input(buf, dtype, at + i, salt, j, first + i);
}

typedef union element {
    float f32;
    dh_bf16 bf16;
    int32_t i32;
    uint8_t u8;
    double f64;
    int64_t i64;
} element;

static double float_value(const element *x, dh_dtype dtype)
{
    return dtype == DH_F32 ? x->f32 : dtype == DH_BF16 ? dh_bf16_to_f32(x->bf16) : x->f64;
}

static int64_t int_value(const element *x, dh_dtype dtype)
{
    return dtype == DH_I32 ? x->i32 : dtype == DH_U8 ? x->u8 : x->i64;
}

/* Sums of all but f64 round to float32 after every step. */
static double float_step(dh_dtype dtype, bool max, double sum, double x)
{
    if (max) return fmax(sum, x);
    return dtype == DH_F64 ? sum + x : (double)((float)sum + (float)x);
}

static int64_t int_step(bool max, int64_t sum, int64_t x)
{
    return max ? DH_MAX(sum, x) : (int64_t)((uint64_t)sum + (uint64_t)x);
}

/* want[i] = combination over members 0..n-1 in this order of their element first + i. */
static void reference(void *want, dh_dtype dtype, dh_comm_reduce reduce, int n, int64_t first,
                      int64_t count, uint64_t salt)
{
    bool max = reduce == DH_REDUCE_MAX;
    for (int64_t i = 0; i < count; i++) {
        double f = 0;
        int64_t k = 0;
        for (int j = 0; j < n; j++) {
            element x = {0};
            put_input(&x, dtype, 0, salt, j, first + i);
            f = j == 0 ? float_value(&x, dtype) : float_step(dtype, max, f, float_value(&x, dtype));
            k = j == 0 ? int_value(&x, dtype) : int_step(max, k, int_value(&x, dtype));
        }
        switch (dtype) {
        case DH_F32:
            ((float *)want)[i] = (float)f;
            break;
        case DH_BF16:
            ((dh_bf16 *)want)[i] = dh_f32_to_bf16((float)f);
            break;
        case DH_I32:
            ((int32_t *)want)[i] = (int32_t)(uint32_t)k;
            break;
        case DH_U8:
            ((uint8_t *)want)[i] = (uint8_t)k;
            break;
        case DH_F64:
            ((double *)want)[i] = f;
            break;
        default:
            ((int64_t *)want)[i] = k;
            break;
        }
    }
}

/* ---- one call of each kind, checked ----------------------------------------------------- */

enum { MAX_RANKS = 8, MAX_COUNT = 20011, CAP = MAX_COUNT * MAX_RANKS };

typedef struct buffers {
    double *send, *recv, *want; /* CAP elements of any type */
} buffers;

typedef struct round_of {
    case_env *env;
    dh_comm_group *group;
    int n, me;
    dh_dtype dtype;
    size_t item;
    int64_t count;
    uint64_t salt;
    buffers *b;
} round_of;

#define SAME_BYTES(r, got, elements)                                                               \
    CASE_CHECK((r)->env, memcmp((got), (r)->b->want, (size_t)(elements) * (r)->item) == 0,         \
               "group of %d, %lld x %s", (r)->n, (long long)(r)->count, dh_dtype_name((r)->dtype))

static char *at(void *base, const round_of *r, int64_t index)
{
    return (char *)base + (size_t)index * r->item;
}

/* Uneven slices, some empty; returns their sum. */
static int64_t uneven(const round_of *r, int64_t *counts)
{
    int64_t sum = 0;
    for (int j = 0; j < r->n; j++) {
        counts[j] = (int64_t)(dh_mix64(r->salt + (uint64_t)j) % (uint64_t)(r->count + 1));
        if (dh_mix64(r->salt ^ (uint64_t)j) % 4 == 0) counts[j] = 0;
        sum += counts[j];
    }
    return sum;
}

static bool check_all_gather(round_of *r, bool in_place)
{
    for (int j = 0; j < r->n; j++)
        fill(r->b->want, r->dtype, j * r->count, r->count, r->salt, j, 0);
    memset(r->b->recv, 0xA5, CAP * sizeof(double));
    void *send = in_place ? (void *)at(r->b->recv, r, r->me * r->count) : r->b->send;
    fill(send, r->dtype, 0, r->count, r->salt, r->me, 0);
    CASE_OK(r->env,
            dh_comm_all_gather(&r->env->ctx, r->group, send, r->b->recv, r->count, r->dtype));
    SAME_BYTES(r, r->b->recv, r->n * r->count);
    CASE_CHECK(r->env, *(unsigned char *)at(r->b->recv, r, r->n * r->count) == 0xA5,
               "past the end");
    return true;
}

/* ---- in parts: what is told of is there */

typedef struct telling {
    round_of *r;
    uint32_t n, n_told, first; /* parts; told of; chunk that comes first */
    int64_t n_part;            /* elements of one */
    bool wrong;
} telling;

static void is_there(void *user, uint32_t part)
{
    telling *t = user;
    const int64_t at_part = (t->first + part) % t->n * t->n_part;
    t->wrong |= part != t->n_told++ ||
                memcmp(at(t->r->b->recv, t->r, at_part), at(t->r->b->want, t->r, at_part),
                       (size_t)t->n_part * t->r->item) != 0;
}

static bool check_told(round_of *r, const telling *t)
{
    CASE_CHECK(r->env, !t->wrong && t->n_told + 1 == t->n, "%u parts of %u told of, group of %d",
               t->n_told, t->n, r->n);
    return true;
}

/* Of each member 1 to 4 parts; the elements that are left over stay out. */
static bool check_all_gather_parts(round_of *r)
{
    const uint32_t each = 1 + (uint32_t)(r->salt % 4);
    const int64_t count = r->count / each * each;
    telling t = {.r = r,
                 .n = each * (uint32_t)r->n,
                 .first = each * (uint32_t)r->me,
                 .n_part = count / each};
    const dh_part_hook hook = {t.n, is_there, &t};
    if (t.n < 2) return true;
    for (int j = 0; j < r->n; j++) fill(r->b->want, r->dtype, j * count, count, r->salt, j, 0);
    memset(r->b->recv, 0xA5, CAP * sizeof(double));
    fill(r->b->send, r->dtype, 0, count, r->salt, r->me, 0);
    CASE_OK(r->env, dh_comm_all_gather_parts(&r->env->ctx, r->group, r->b->send, r->b->recv, count,
                                             r->dtype, &hook));
    SAME_BYTES(r, r->b->recv, r->n * count);
    return check_told(r, &t);
}

static bool check_all_gatherv(round_of *r)
{
    int64_t counts[MAX_RANKS], sum = uneven(r, counts), first = 0;
    for (int j = 0; j < r->n; first += counts[j++])
        fill(r->b->want, r->dtype, first, counts[j], r->salt, j, 0);
    fill(r->b->send, r->dtype, 0, counts[r->me], r->salt, r->me, 0);
    CASE_OK(r->env,
            dh_comm_all_gatherv(&r->env->ctx, r->group, r->b->send, r->b->recv, counts, r->dtype));
    SAME_BYTES(r, r->b->recv, sum);
    return true;
}

static bool check_reduce_scatter(round_of *r, dh_comm_reduce reduce, bool in_place)
{
    fill(r->b->send, r->dtype, 0, r->n * r->count, r->salt, r->me, 0);
    void *recv = in_place ? (void *)at(r->b->send, r, r->me * r->count) : r->b->recv;
    CASE_OK(r->env, dh_comm_reduce_scatter(&r->env->ctx, r->group, r->b->send, recv, r->count,
                                           r->dtype, reduce));
    reference(r->b->want, r->dtype, reduce, r->n, r->me * r->count, r->count, r->salt);
    SAME_BYTES(r, recv, r->count);
    if (in_place && r->me > 0) { /* the slices before it are untouched */
        fill(r->b->want, r->dtype, 0, r->me * r->count, r->salt, r->me, 0);
        SAME_BYTES(r, r->b->send, r->me * r->count);
    }
    return true;
}

static bool check_reduce_scatter_parts(round_of *r)
{
    const uint32_t n = 2 + (uint32_t)(r->salt % 3);
    const int64_t count = r->count / n * n;
    telling t = {.r = r, .n = n, .n_part = count / n};
    const dh_part_hook hook = {t.n, is_there, &t};
    fill(r->b->send, r->dtype, 0, r->n * count, r->salt, r->me, 0);
    reference(r->b->want, r->dtype, DH_REDUCE_SUM, r->n, r->me * count, count, r->salt);
    memset(r->b->recv, 0xA5, CAP * sizeof(double));
    CASE_OK(r->env, dh_comm_reduce_scatter_parts(&r->env->ctx, r->group, r->b->send, r->b->recv,
                                                 count, r->dtype, DH_REDUCE_SUM, &hook));
    SAME_BYTES(r, r->b->recv, count);
    return check_told(r, &t);
}

static bool check_all_reduce(round_of *r, dh_comm_reduce reduce, bool in_place)
{
    fill(r->b->send, r->dtype, 0, r->count, r->salt, r->me, 0);
    void *recv = in_place ? r->b->send : r->b->recv;
    CASE_OK(r->env, dh_comm_all_reduce(&r->env->ctx, r->group, r->b->send, recv, r->count, r->dtype,
                                       reduce));
    reference(r->b->want, r->dtype, reduce, r->n, 0, r->count, r->salt);
    SAME_BYTES(r, recv, r->count);
    return true;
}

static bool check_all_to_all(round_of *r)
{
    for (int j = 0; j < r->n; j++)
        fill(r->b->want, r->dtype, j * r->count, r->count, r->salt, j, r->me * r->count);
    fill(r->b->send, r->dtype, 0, r->n * r->count, r->salt, r->me, 0);
    CASE_OK(r->env,
            dh_comm_all_to_all(&r->env->ctx, r->group, r->b->send, r->b->recv, r->count, r->dtype));
    SAME_BYTES(r, r->b->recv, r->n * r->count);
    return true;
}

enum { RUNS = 3 };

/* Rows of run s that go from `from` to `to`. */
static int64_t run_rows(const round_of *r, int from, int to, int s)
{
    return (int64_t)(dh_mix64(r->salt * 31 + (uint64_t)((from * MAX_RANKS + to) * RUNS + s)) % 4);
}

/* Every member has RUNS runs of rows, some of them empty, by destination and by source. */
static bool check_all_to_all_rows(round_of *r)
{
    int64_t from[MAX_RANKS * RUNS + 1] = {0}, to[MAX_RANKS * RUNS + 1] = {0};
    const int64_t width = r->count % 997 + 1, first = (int64_t)(r->salt % 3);
    from[0] = to[0] = first; /* rows before the first offset are left alone */
    memset(r->b->recv, 0, CAP * sizeof(double));
    memset(r->b->want, 0, CAP * sizeof(double));
    for (int j = 0; j < r->n; j++) {
        for (int s = 0; s < RUNS; s++) {
            const int i = j * RUNS + s;
            from[i + 1] = from[i] + run_rows(r, r->me, j, s);
            to[i + 1] = to[i] + run_rows(r, j, r->me, s);
        }
        const int64_t out = from[j * RUNS], in = to[j * RUNS];
        fill(r->b->send, r->dtype, out * width, (from[(j + 1) * RUNS] - out) * width, r->salt,
             r->me, 100000 * j);
        fill(r->b->want, r->dtype, in * width, (to[(j + 1) * RUNS] - in) * width, r->salt, j,
             100000 * r->me);
    }
    CASE_OK(r->env, dh_comm_all_to_all_rows(&r->env->ctx, r->group, r->b->send, from, r->b->recv,
                                            to, RUNS, width, r->dtype));
    SAME_BYTES(r, r->b->recv, (to[r->n * RUNS] + 1) * width);
    return true;
}

static bool check_broadcast(round_of *r, int root)
{
    fill(r->b->recv, r->dtype, 0, r->count, r->salt, r->me, 0);
    fill(r->b->want, r->dtype, 0, r->count, r->salt, root, 0);
    CASE_OK(r->env,
            dh_comm_broadcast(&r->env->ctx, r->group, r->b->recv, r->count, r->dtype, root));
    SAME_BYTES(r, r->b->recv, r->count);
    return true;
}

enum { N_CHECKS = 14 };

static bool check_one(round_of *r, int which)
{
    switch (which) {
    case 0:
        return check_all_gather(r, false);
    case 1:
        return check_all_gather(r, true);
    case 2:
        return check_all_gatherv(r);
    case 3:
        return check_reduce_scatter(r, DH_REDUCE_SUM, false);
    case 4:
        return check_reduce_scatter(r, DH_REDUCE_SUM, true);
    case 5:
        return check_all_reduce(r, DH_REDUCE_SUM, false);
    case 6:
        return check_all_reduce(r, DH_REDUCE_MAX, true);
    case 7:
        return check_all_reduce(r, DH_REDUCE_SUM, true);
    case 8:
        return check_all_to_all(r);
    case 9:
        return check_all_to_all_rows(r);
    case 10:
        return check_broadcast(r, (int)(r->salt % (uint64_t)r->n));
    case 11:
        return check_all_gather_parts(r);
    case 12:
        return check_reduce_scatter_parts(r);
    default:
        return check_reduce_scatter(r, DH_REDUCE_MAX, false);
    }
}

static bool buffers_init(case_env *env, buffers *b)
{
    b->send = calloc(CAP + 1, sizeof(double));
    b->recv = calloc(CAP + 1, sizeof(double));
    b->want = calloc(CAP + 1, sizeof(double));
    CASE_CHECK(env, b->send && b->recv && b->want, "no memory");
    return true;
}

static void buffers_fini(buffers *b)
{
    free(b->send);
    free(b->recv);
    free(b->want);
}

/* ---- every collective ------------------------------------------------------------------- */

/* The first n ranks, the order turned by one, so that group and world order differ. */
static bool collectives_of_group(case_env *env, int n, buffers *b)
{
    static const int64_t counts[] = {0, 1, 3, 17, 130, 1031};
    int members[MAX_RANKS];
    for (int i = 0; i < n; i++) members[i] = (i + 1) % n;
    if (env->rank >= n) return true;
    dh_comm_group *group = case_group(env, "part", members, n, 0, DH_ENGINE_LOCAL);
    if (!group) return false;
    CASE_CHECK(env, dh_comm_group_size(group) == n, "size");
    CASE_CHECK(env, members[dh_comm_group_index(group)] == env->rank, "index");
    uint64_t salt = env->seed;
    for (int dtype = 0; dtype < DH_N_DTYPE; dtype++)
        for (size_t c = 0; c < DH_COUNTOF(counts); c++)
            for (int which = 0; which < N_CHECKS; which++) {
                round_of r = {env, group, n, dh_comm_group_index(group), dtype, 0, 0, ++salt, b};
                r.item = dh_dtype_bytes(r.dtype);
                r.count = counts[c];
                if (!check_one(&r, which)) return false;
            }
    round_of big = {env, group, n, dh_comm_group_index(group), DH_BF16, 2, 20011, ++salt, b};
    for (int which = 0; which < N_CHECKS; which++)
        if (!check_one(&big, which)) return false;
    CASE_OK(env, dh_comm_barrier(&env->ctx, group));
    return true;
}

bool case_collectives(case_env *env)
{
    buffers b = {0};
    bool ok = buffers_init(env, &b);
    for (int n = 1; ok && n <= env->n_ranks; n++) ok = collectives_of_group(env, n, &b);
    buffers_fini(&b);
    return ok;
}

/* ---- point to point --------------------------------------------------------------------- */

/* Messages of growing size, two tags interleaved, received tag by tag. */
static bool ordered_messages(case_env *env, dh_comm_group *group, int from, int to)
{
    enum { N = 12 };
    int32_t word[N][64];
    int me = dh_comm_group_index(group);
    dh_comm_xfer sends[N];
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 64; k++) word[i][k] = 1000 * i + k;
        sends[i] = (dh_comm_xfer){DH_XFER_SEND, to, i % 2, DH_I32, 64 - i, word[i]};
    }
    /* One batch: single sends may wait for receives that come in another order. */
    if (me == from) CASE_OK(env, dh_comm_batch(&env->ctx, group, sends, N));
    for (int i = 0; i < N && me == to; i++) {
        int expected = 2 * (i % (N / 2)) + i / (N / 2); /* 0 2 4 .. 1 3 5 .. */
        CASE_OK(env,
                dh_comm_recv(&env->ctx, group, word[i], 64 - expected, DH_I32, from, expected % 2));
        for (int k = 0; k < 64 - expected; k++)
            CASE_CHECK(env, word[i][k] == 1000 * expected + k, "message %d holds %d", expected,
                       word[i][k]);
    }
    return true;
}

/* Values travel once around, each rank handing on what it got. */
static bool ring(case_env *env, dh_comm_group *group, int64_t count)
{
    int n = dh_comm_group_size(group), me = dh_comm_group_index(group);
    float *x = calloc((size_t)count + 1, 2 * sizeof *x), *y = x + count;
    for (int64_t i = 0; i < count; i++) x[i] = (float)(me * 100 + i % 97);
    for (int step = 0; step < n; step++) {
        dh_status st = dh_comm_exchange(&env->ctx, group, x, (me + 1) % n, y, (me + n - 1) % n,
                                        count, DH_F32, 3);
        if (st != DH_OK) break;
        memcpy(x, y, (size_t)count * sizeof *x);
        float want = (float)((me + n - 1 - step) % n * 100);
        if (count && x[0] != want) case_fail(env, __LINE__, "ring", "step %d got %g", step, x[0]);
    }
    free(x < y ? x : y);
    CASE_CHECK(env, env->ctx.status == DH_OK, "%s", env->ctx.message);
    return !env->failure[0];
}

/* All pairs at once, itself included, receives listed after or before sends. */
static bool batch(case_env *env, dh_comm_group *group, int64_t count)
{
    int n = dh_comm_group_size(group), me = dh_comm_group_index(group);
    int32_t *out = calloc((size_t)(count * n) + 1, sizeof *out);
    int32_t *in = calloc((size_t)(count * n) + 1, sizeof *in);
    dh_comm_xfer x[2 * MAX_RANKS];
    for (int j = 0; j < n; j++) {
        for (int64_t i = 0; i < count; i++) out[j * count + i] = me * 1000 + j;
        int first = me % 2 ? j : n + j, second = me % 2 ? n + j : j;
        x[first] = (dh_comm_xfer){DH_XFER_SEND, j, 9, DH_I32, count, out + j * count};
        x[second] = (dh_comm_xfer){DH_XFER_RECV, j, 9, DH_I32, count, in + j * count};
    }
    dh_status st = dh_comm_batch(&env->ctx, group, x, (size_t)(2 * n));
    for (int64_t i = 0; st == DH_OK && i < count * n; i++)
        if (in[i] != (int32_t)(i / count) * 1000 + me)
            case_fail(env, __LINE__, "batch", "element %lld is %d", (long long)i, in[i]);
    free(out);
    free(in);
    CASE_CHECK(env, st == DH_OK, "%s", env->ctx.message);
    return !env->failure[0];
}

bool case_point_to_point(case_env *env)
{
    dh_comm_group *group = case_group(env, "pp", NULL, 0, 1, DH_ENGINE_CROSS);
    if (!group) return false;
    for (int from = 0; from < env->n_ranks; from++)
        for (int to = 0; to < env->n_ranks; to++)
            if (from != to && !ordered_messages(env, group, from, to)) return false;
    static const int64_t counts[] = {0, 1, 1000, 100003}; /* small and large messages */
    for (size_t c = 0; c < DH_COUNTOF(counts); c++)
        if (!ring(env, group, counts[c]) || !batch(env, group, counts[c])) return false;
    CASE_OK(env, dh_comm_barrier(&env->ctx, group));
    return true;
}

/* ---- two streams ------------------------------------------------------------------------ */

enum { N_RANDOM_GROUPS = 6, N_RANDOM_CALLS = 60 };

typedef struct stream_work {
    case_env env; /* own context: one per thread */
    int stream;
    dh_comm_group *groups[N_RANDOM_GROUPS]; /* NULL: not a member */
} stream_work;

static bool run_stream(stream_work *w)
{
    uint64_t draw = dh_mix64(w->env.seed + (uint64_t)w->stream);
    buffers b = {0};
    bool ok = buffers_init(&w->env, &b);
    for (int i = 0; ok && i < N_RANDOM_CALLS; i++) {
        /* Drawn by all ranks alike, so every stream's calls have one global order. */
        dh_comm_group *group = w->groups[test_rand(&draw) % N_RANDOM_GROUPS];
        int which = (int)(test_rand(&draw) % N_CHECKS);
        dh_dtype dtype = (dh_dtype)(test_rand(&draw) % DH_N_DTYPE);
        int64_t count = (int64_t)(test_rand(&draw) % 3000);
        uint64_t salt = test_rand(&draw);
        if (!group) continue;
        round_of r = {
            &w->env, group, dh_comm_group_size(group), dh_comm_group_index(group), dtype, 0, count,
            salt,    &b};
        r.item = dh_dtype_bytes(dtype);
        ok = check_one(&r, which);
    }
    buffers_fini(&b);
    return ok;
}

static void *stream_thread(void *arg)
{
    run_stream(arg);
    return NULL;
}

/* A random subset of at least one rank, shuffled; the same on all ranks. */
static int random_members(uint64_t *draw, int n_ranks, int *members)
{
    int n = 0;
    for (int r = 0; r < n_ranks; r++)
        if (test_rand(draw) % 2) members[n++] = r;
    if (n == 0) members[n++] = (int)(test_rand(draw) % (uint64_t)n_ranks);
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(test_rand(draw) % (uint64_t)(i + 1)), swap = members[i];
        members[i] = members[j];
        members[j] = swap;
    }
    return n;
}

bool case_two_streams(case_env *env)
{
    stream_work work[2];
    uint64_t draw = env->seed;
    for (int s = 0; s < 2; s++) {
        work[s] = (stream_work){.env = *env, .stream = s};
        for (int g = 0; g < N_RANDOM_GROUPS; g++) {
            int members[MAX_RANKS], n = random_members(&draw, env->n_ranks, members);
            bool mine = false;
            for (int i = 0; i < n; i++) mine |= members[i] == env->rank;
            if (!mine) continue;
            work[s].groups[g] =
                case_group(env, "random", members, n, s, s ? DH_ENGINE_CROSS : DH_ENGINE_LOCAL);
            if (!work[s].groups[g]) return false;
        }
    }
    pthread_t second;
    CASE_CHECK(env, pthread_create(&second, NULL, stream_thread, &work[1]) == 0, "thread");
    run_stream(&work[0]);
    pthread_join(second, NULL);
    for (int s = 0; s < 2; s++)
        CASE_CHECK(env, !work[s].env.failure[0], "stream %d: %s", s, work[s].env.failure);
    return true;
}

/* Members come to the end of a group at different times, and go on to the next one of the same
 * name, which is not the one before. */
bool case_groups_that_go(case_env *env)
{
    enum { N_GROUPS = 60 };
    dh_comm_group *all = case_group(env, "all", NULL, 0, 2, DH_ENGINE_LOCAL);
    if (!all) return false;
    for (int k = 0; k < N_GROUPS; k++) {
        dh_comm_group *g = case_group(env, "passing", NULL, 0, 0, DH_ENGINE_LOCAL);
        const float mine = (float)(env->rank + k);
        float sum = 0, want = 0;
        if (!g) return false;
        for (int r = 0; r < env->n_ranks; r++) want += (float)(r + k);
        CASE_OK(env, dh_comm_all_reduce(&env->ctx, g, &mine, &sum, 1, DH_F32, DH_REDUCE_SUM));
        CASE_CHECK(env, sum == want, "group %d: %g, want %g", k, (double)sum, (double)want);
        if (k % 7 == env->rank) dh_sleep_until_ns(dh_now_ns() + 200 * 1000);
        dh_comm_group_destroy(g);
    }
    CASE_OK(env, dh_comm_barrier(&env->ctx, all)); /* others stay as they are */
    dh_comm_group_destroy(all);
    dh_comm_group_destroy(NULL);
    return true;
}
