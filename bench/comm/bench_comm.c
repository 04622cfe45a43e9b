/* What communication costs: time and wire bandwidth of every collective, the CPU
 * time its thread takes, and how much a computing thread on the same core slows
 * down meanwhile. Rank 0 prints; --csv also writes a file. README.md has examples. */
#include "run/comm/impl.h"

#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MIN_BYTES = 64 << 10, MAX_BYTES = 16 << 20, MAX_SAMPLES = 200, MAX_RANKS = 64 };

typedef struct options {
    const char *comm, *csv;
    const char *only; /* a row of calls and no overlap; NULL: everything */
    dh_comm_config config;
} options;

typedef struct bench {
    const options *opt;
    dh_comm_world *world;
    dh_comm *comm;
    dh_comm_group *group;
    dh_ctx ctx;
    int rank, n;
    char *send, *recv; /* MAX_BYTES each */
    FILE *csv;         /* rank 0, or NULL */
} bench;

/* ---- what is measured ------------------------------------------------------------------- */

typedef dh_status (*call_fn)(bench *b, int64_t bytes);

static dh_status do_all_gather(bench *b, int64_t bytes)
{
    return dh_comm_all_gather(&b->ctx, b->group, b->send, b->recv, bytes / 4 / b->n, DH_F32);
}

static dh_status do_reduce_scatter(bench *b, int64_t bytes)
{
    return dh_comm_reduce_scatter(&b->ctx, b->group, b->send, b->recv, bytes / 4 / b->n, DH_F32,
                                  DH_REDUCE_SUM);
}

static dh_status do_all_reduce(bench *b, int64_t bytes)
{
    return dh_comm_all_reduce(&b->ctx, b->group, b->send, b->recv, bytes / 4, DH_F32,
                              DH_REDUCE_SUM);
}

static dh_status do_all_reduce_bf16(bench *b, int64_t bytes)
{
    return dh_comm_all_reduce(&b->ctx, b->group, b->send, b->recv, bytes / 2, DH_BF16,
                              DH_REDUCE_SUM);
}

static dh_status do_all_to_all(bench *b, int64_t bytes)
{
    return dh_comm_all_to_all(&b->ctx, b->group, b->send, b->recv, bytes / 4 / b->n, DH_F32);
}

static dh_status do_broadcast(bench *b, int64_t bytes)
{
    return dh_comm_broadcast(&b->ctx, b->group, b->send, bytes, DH_U8, 0);
}

static dh_status do_exchange(bench *b, int64_t bytes)
{
    int next = (b->rank + 1) % b->n, before = (b->rank + b->n - 1) % b->n;
    return dh_comm_exchange(&b->ctx, b->group, b->send, next, b->recv, before, bytes, DH_U8, 0);
}

static dh_status do_memcpy(bench *b, int64_t bytes)
{
    memcpy(b->recv, b->send, (size_t)bytes);
    __asm__ volatile("" : : "r"(b->recv) : "memory");
    return DH_OK;
}

static const struct {
    const char *name;
    dh_comm_kind kind; /* for the bytes on the wire */
    call_fn call;
} calls[] = {
    {"memcpy", DH_COMM_SEND, do_memcpy},
    {"exchange", DH_COMM_EXCHANGE, do_exchange},
    {"all_gather", DH_COMM_ALL_GATHER, do_all_gather},
    {"reduce_scatter", DH_COMM_REDUCE_SCATTER, do_reduce_scatter},
    {"all_reduce", DH_COMM_ALL_REDUCE, do_all_reduce},
    {"all_reduce bf16", DH_COMM_ALL_REDUCE, do_all_reduce_bf16},
    {"all_to_all", DH_COMM_ALL_TO_ALL, do_all_to_all},
    {"broadcast", DH_COMM_BROADCAST, do_broadcast},
};

/* ---- bandwidth -------------------------------------------------------------------------- */

static int64_t thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int n_samples(int64_t bytes)
{
    int64_t n = (256 << 20) / bytes;
    return (int)DH_MAX(10, DH_MIN((int64_t)MAX_SAMPLES, n));
}

static void print_row(const bench *b, const char *name, int64_t bytes, const int64_t *sorted, int n,
                      double wire_bytes, double cpu_ns)
{
    double gbs = wire_bytes / (double)sorted[n / 2];
    printf("%-16s %9lld B %10.1f us min %10.1f us median %8.2f GB/s %9.1f us cpu\n", name,
           (long long)bytes, (double)sorted[0] * 1e-3, (double)sorted[n / 2] * 1e-3, gbs,
           cpu_ns * 1e-3);
    if (b->csv)
        fprintf(b->csv, "%s,%d,%s,%lld,%d,%lld,%lld,%.3f,%.0f\n", b->opt->comm, b->n, name,
                (long long)bytes, n, (long long)sorted[0], (long long)sorted[n / 2], gbs, cpu_ns);
}

static dh_status measure(bench *b, size_t which, int64_t bytes)
{
    int64_t ns[MAX_SAMPLES];
    int n = n_samples(bytes);
    for (int i = 0; i < 2; i++) DH_TRY(calls[which].call(b, bytes));
    int64_t cpu = thread_cpu_ns();
    for (int i = 0; i < n; i++) {
        int64_t begin = dh_now_ns();
        DH_TRY(calls[which].call(b, bytes));
        ns[i] = dh_now_ns() - begin;
    }
    cpu = thread_cpu_ns() - cpu;
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    /* Over a wire of one byte a nanosecond the paced time is the number of bytes. */
    int64_t wire = dh_comm_paced_ns(calls[which].kind, b->n, bytes, (dh_comm_pace){.gbps = 8});
    if (b->rank == 0) print_row(b, calls[which].name, bytes, ns, n, (double)wire, (double)cpu / n);
    return DH_OK;
}

static dh_status bandwidth(bench *b)
{
    for (size_t which = 0; which < DH_COUNTOF(calls); which++) {
        if (b->opt->only && strcmp(b->opt->only, calls[which].name) != 0) continue;
        for (int64_t bytes = MIN_BYTES; bytes <= MAX_BYTES; bytes *= 4)
            DH_TRY(measure(b, which, bytes));
    }
    return DH_OK;
}

/* ---- overlap: a computing thread and a communicating one on one core -------------------- */

typedef struct worker {
    pthread_t thread;
    int core;
    atomic_bool stop;
    int64_t n_rounds, ns; /* read after join */
} worker;

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *compute(void *arg)
{
    worker *w = arg;
    volatile float sink = 0;
    float x[256];
    for (int i = 0; i < 256; i++) x[i] = (float)i;
    pin(w->core);
    int64_t begin = dh_now_ns();
    while (!atomic_load_explicit(&w->stop, memory_order_relaxed)) {
        for (int k = 0; k < 100; k++)
            for (int i = 0; i < 256; i++) x[i] = x[i] * 0.999f + 1.0f;
        w->n_rounds++;
    }
    w->ns = dh_now_ns() - begin;
    sink += x[7];
    (void)sink;
    return NULL;
}

/* Rounds a second, while this thread runs n all-gathers (0: sleeps a while) on the same core. */
static dh_status compute_rate(bench *b, int core, int n, double *rate, int64_t *comm_ns)
{
    worker w = {.core = core};
    if (pthread_create(&w.thread, NULL, compute, &w) != 0)
        return dh_fail(&b->ctx, DH_ENOMEM, "no thread to compute with");
    usleep(10000);
    int64_t begin = dh_now_ns();
    dh_status st = DH_OK;
    for (int i = 0; i < n && st == DH_OK; i++) st = do_all_gather(b, MAX_BYTES);
    *comm_ns = n ? (dh_now_ns() - begin) / n : 0;
    if (n == 0) usleep(100000);
    atomic_store(&w.stop, true);
    pthread_join(w.thread, NULL);
    *rate = (double)w.n_rounds * 1e9 / (double)w.ns;
    return st;
}

/* Best of all turns: other programs on the machine only ever slow things down. */
typedef struct overlap_best {
    double alone_rate, beside_rate;
    int64_t alone_ns, beside_ns;
} overlap_best;

/* Computing alone, communicating alone, both. */
static dh_status overlap_turn(bench *b, int core, overlap_best *best)
{
    enum { N = 8 };
    double rate;
    int64_t ns, begin;
    DH_TRY(dh_comm_barrier(&b->ctx, b->group));
    DH_TRY(compute_rate(b, core, 0, &rate, &ns));
    best->alone_rate = DH_MAX(best->alone_rate, rate);
    DH_TRY(dh_comm_barrier(&b->ctx, b->group));
    begin = dh_now_ns();
    for (int i = 0; i < N; i++) DH_TRY(do_all_gather(b, MAX_BYTES));
    best->alone_ns = DH_MIN(best->alone_ns, (dh_now_ns() - begin) / N);
    DH_TRY(dh_comm_barrier(&b->ctx, b->group));
    DH_TRY(compute_rate(b, core, N, &rate, &ns));
    best->beside_rate = DH_MAX(best->beside_rate, rate);
    best->beside_ns = DH_MIN(best->beside_ns, ns);
    return DH_OK;
}

static dh_status overlap(bench *b)
{
    enum { TURNS = 8 };
    int core = b->rank % (int)sysconf(_SC_NPROCESSORS_ONLN);
    overlap_best best = {.alone_ns = INT64_MAX, .beside_ns = INT64_MAX};
    pin(core);
    for (int i = 0; i < TURNS; i++) DH_TRY(overlap_turn(b, core, &best));
    double speed = best.beside_rate / best.alone_rate;
    if (b->rank == 0)
        printf("overlap on one core: all_gather of 16 MiB %.2f ms alone, %.2f ms beside computing; "
               "computing at %.1f %% of its speed\n",
               (double)best.alone_ns * 1e-6, (double)best.beside_ns * 1e-6, 100 * speed);
    if (b->csv)
        fprintf(b->csv, "%s,%d,overlap,%d,%d,%lld,%lld,%.3f,\n", b->opt->comm, b->n, MAX_BYTES,
                TURNS, (long long)best.alone_ns, (long long)best.beside_ns, speed);
    return DH_OK;
}

/* ---- ranks ------------------------------------------------------------------------------ */

static dh_status run(bench *b)
{
    int members[MAX_RANKS];
    for (int r = 0; r < b->n; r++) members[r] = r;
    dh_comm_group_spec spec = {"bench", members, b->n, 0, DH_ENGINE_CROSS};
    DH_TRY(dh_comm_attach(&b->ctx, b->world, b->rank, &b->comm));
    DH_TRY(dh_comm_group_create(&b->ctx, b->comm, &spec, &b->group));
    DH_TRY(dh_comm_group_reserve(&b->ctx, b->group, MAX_BYTES));
    if (!dh_comm_pace_on(b->world->config.pace[DH_ENGINE_CROSS])) DH_TRY(bandwidth(b));
    return b->opt->only ? DH_OK : overlap(b);
}

static void *rank_main(void *arg)
{
    bench *b = arg;
    b->send = aligned_alloc(64, MAX_BYTES);
    b->recv = aligned_alloc(64, MAX_BYTES);
    if (!b->send || !b->recv) {
        dh_fail(&b->ctx, DH_ENOMEM, "no memory for buffers");
    } else {
        memset(b->send, 0, MAX_BYTES);
        memset(b->recv, 0, MAX_BYTES);
        run(b);
    }
    if (b->ctx.status != DH_OK && b->comm) dh_comm_abort(b->comm, b->ctx.message);
    free(b->send);
    free(b->recv);
    return NULL;
}

static int run_ranks(const options *opt, dh_comm_world *world, FILE *csv)
{
    static bench ranks[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    int first, n, failed = 0;
    dh_comm_world_here(world, &first, &n);
    for (int i = 0; i < n; i++) {
        ranks[i] = (bench){.opt = opt, .world = world, .rank = first + i};
        dh_ctx_reset(&ranks[i].ctx);
        ranks[i].n = dh_comm_world_size(world);
        ranks[i].csv = first + i == 0 ? csv : NULL;
        if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0) exit(1);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        if (ranks[i].ctx.status == DH_OK) continue;
        fprintf(stderr, "bench_comm: rank %d: %s\n", first + i, ranks[i].ctx.message);
        failed = 1;
    }
    return failed;
}

/* ---- command line ----------------------------------------------------------------------- */

static const char usage[] =
    "bench_comm [--comm local|mpi] [--ranks N] [--progress yield|sleep|block]\n"
    "           [--gbps G --latency-us L] [--call NAME] [--csv FILE]\n"
    "--gbps paces the link (local) and leaves only the overlap measurement.\n"
    "--call measures one call, without overlap: exchange, all_reduce, ...\n";

static bool is_call(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(calls); i++)
        if (strcmp(calls[i].name, name) == 0) return true;
    return false;
}

static bool parse(int argc, char **argv, options *opt)
{
    static const struct option longs[] = {{"comm", 1, NULL, 'c'},       {"ranks", 1, NULL, 'n'},
                                          {"progress", 1, NULL, 'p'},   {"gbps", 1, NULL, 'g'},
                                          {"latency-us", 1, NULL, 'l'}, {"csv", 1, NULL, 'o'},
                                          {"call", 1, NULL, 'a'},       {NULL, 0, NULL, 0}};
    static const char *const policies[] = {"yield", "sleep", "block"};
    int64_t ranks = 2;
    bool ok = true;
    for (int o; ok && (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        dh_comm_pace *pace = &opt->config.pace[DH_ENGINE_CROSS];
        if (o == 'c')
            opt->comm = optarg;
        else if (o == 'n')
            ok = dh_parse_i64(optarg, &ranks) && ranks >= 2 && ranks <= MAX_RANKS;
        else if (o == 'g')
            ok = dh_parse_f64(optarg, &pace->gbps);
        else if (o == 'l')
            ok = dh_parse_f64(optarg, &pace->latency_us);
        else if (o == 'o')
            opt->csv = optarg;
        else if (o == 'a')
            ok = is_call(opt->only = optarg);
        else if (o == 'p') {
            size_t i = 0;
            while (i < DH_COUNTOF(policies) && strcmp(policies[i], optarg) != 0) i++;
            opt->config.progress = (dh_comm_progress)i;
            ok = i < DH_COUNTOF(policies);
        } else {
            ok = false;
        }
    }
    opt->config.ranks = strcmp(opt->comm, "mpi") == 0 ? 0 : (int)ranks;
    return ok && optind == argc;
}

int main(int argc, char **argv)
{
    options opt = {.comm = "local"};
    dh_ctx ctx = DH_CTX_INIT;
    dh_comm_world *world;
    char text[256];
    if (!parse(argc, argv, &opt)) {
        fputs(usage, stderr);
        return 2;
    }
    if (dh_comm_world_create(&ctx, opt.comm, &opt.config, &world) != DH_OK) {
        fprintf(stderr, "bench_comm: %s\n", ctx.message);
        return 1;
    }
    int first, n;
    dh_comm_world_here(world, &first, &n);
    FILE *csv = NULL;
    if (first == 0) {
        printf("%s\n", dh_comm_world_describe(world, text, sizeof text));
        csv = opt.csv ? fopen(opt.csv, "w") : NULL;
        if (opt.csv && !csv) fprintf(stderr, "bench_comm: cannot write %s\n", opt.csv);
        if (csv)
            fprintf(csv,
                    "# %s\ncomm,ranks,call,bytes,samples,min_ns,median_ns,wire_gb_per_s,"
                    "cpu_ns_per_call\n",
                    text);
    }
    int rc = dh_comm_world_size(world) > MAX_RANKS ? 2 : run_ranks(&opt, world, csv);
    if (csv && fclose(csv) != 0) rc = 1;
    dh_comm_world_destroy(world);
    return rc;
}
