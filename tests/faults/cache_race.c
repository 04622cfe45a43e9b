/* Many readers of one data.cache at once: every byte that each of them got is compared.
 *
 *   cache_race [--full] [--seed N] [--rounds N]
 *
 * A round starts processes at drawn delays, each with some threads, which open one source through
 * one cache folder. Processes have a number in common (each is the first of its own PID namespace,
 * as in containers) where that is allowed. Some are killed; the source is exchanged meanwhile by a
 * rename, or written to in place, by another text of the same length and time. A text is right that
 * was at the source's name during the round, whole. Afterwards a reader by itself must get what is
 * there then, and the folder must have no temporary file left. --full: many rounds, a fresh seed.
 */
#include "dh_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>

#include "data/dataset.h"

enum { N_TEXT = 1 << 18, N_KINDS = 3, MOST_PROCESSES = 5, MOST_THREADS = 3 };
enum { PENDING, RIGHT_FIRST, RIGHT_SECOND, WRONG, FAILED };
enum { STAYS, RENAMED, WRITTEN_TO, N_EXCHANGES };

typedef struct reader {
    const char *source, *cache;
    long delay_us;
    int result;
    char message[200];
} reader;

static const char *const names[N_KINDS] = {"text.txt", "text.txt.gz", "text.txt.zst"};
static char texts[2][N_TEXT], *packed[N_KINDS][2];
static size_t n_packed[N_KINDS];
static dh_tokenizer *bytes;
static uint64_t state;
static struct {
    int64_t rounds, runs, wrong, failed, refused, killed, signals, later, later_wrong, left;
} n;

static long drawn(long most) /* 0..most */
{
    state = dh_mix64(state + 1);
    return (long)(state % (uint64_t)(most + 1));
}

static void pause_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* ---- sources -------------------------------------------------------------------------------- */

static void check(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "cache_race: cannot %s\n", what);
    exit(2);
}

/* Not compressed, so that both texts have the same length. */
static size_t pack_gzip(const char *text, char *out, size_t room)
{
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = N_TEXT};
    check(deflateInit2(&z, 0, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "pack");
    z.next_out = (unsigned char *)out;
    z.avail_out = (uInt)room;
    check(deflate(&z, Z_FINISH) == Z_STREAM_END, "pack");
    deflateEnd(&z);
    return room - z.avail_out;
}

/* Filled up by a frame that is passed over. */
static size_t pack_zstd(const char *text, char *out, size_t room)
{
    const size_t made = ZSTD_compress(out, room - 8, text, N_TEXT, 1);
    check(!ZSTD_isError(made), "pack");
    const uint32_t head[2] = {0x184D2A50, (uint32_t)(room - 8 - made)};
    memcpy(out + made, head, sizeof head);
    memset(out + made + 8, 0, room - 8 - made);
    return room;
}

static void make_sources(void)
{
    const size_t room = N_TEXT + 1024;
    for (int v = 0; v < 2; v++) {
        for (size_t i = 0; i < N_TEXT; i++) texts[v][i] = (char)((v ? 'A' : 'a') + drawn(25));
        for (int k = 0; k < N_KINDS; k++) check((packed[k][v] = calloc(1, room)), "allocate");
        memcpy(packed[0][v], texts[v], N_TEXT);
        n_packed[0] = N_TEXT;
        n_packed[1] = pack_gzip(texts[v], packed[1][v], room);
        n_packed[2] = pack_zstd(texts[v], packed[2][v], room);
    }
}

static void set_time(const char *path)
{
    const struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    check(utimensat(AT_FDCWD, path, times, 0) == 0, "set a time");
}

static void put_source(const char *dir, const char *path, int kind, int version, bool in_place)
{
    char other[400];
    snprintf(other, sizeof other, "%s/other", dir);
    const int fd =
        in_place ? open(path, O_WRONLY) : open(other, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    check(fd >= 0, "open a source");
    check(write(fd, packed[kind][version], n_packed[kind]) == (ssize_t)n_packed[kind], "write");
    close(fd);
    set_time(in_place ? path : other);
    if (!in_place) check(rename(other, path) == 0, "rename");
}

/* ---- readers -------------------------------------------------------------------------------- */

static int judge(const int32_t *ids)
{
    for (int v = 0; v < 2; v++) {
        int i = 0;
        while (i < N_TEXT && ids[i] == (unsigned char)texts[v][i]) i++;
        if (i == N_TEXT) return v ? RIGHT_SECOND : RIGHT_FIRST;
    }
    return WRONG;
}

static void *read_source(void *arg)
{
    reader *r = arg;
    dh_ctx ctx = DH_CTX_INIT;
    dh_dataset *ds = NULL;
    const dh_dataset_spec spec = {.files = &r->source,
                                  .n_files = 1,
                                  .tokenizer = bytes,
                                  .cache_dir = r->cache,
                                  .order = DH_ORDER_SEQUENTIAL};
    int32_t *ids = malloc(N_TEXT * sizeof *ids);
    pause_us(r->delay_us);
    int result = FAILED;
    if (ids && dh_dataset_open(&ctx, &spec, &ds) == DH_OK) {
        if (dh_dataset_tokens(ds) != N_TEXT)
            result = WRONG;
        else if (dh_dataset_read(&ctx, ds, 0, N_TEXT, ids) == DH_OK)
            result = judge(ids);
    }
    snprintf(r->message, sizeof r->message, "%s", ctx.message);
    dh_dataset_close(ds);
    free(ids);
    __atomic_store_n(&r->result, result, __ATOMIC_RELEASE);
    return NULL;
}

static void read_by_threads(reader *readers, int n_threads)
{
    pthread_t threads[MOST_THREADS];
    for (int i = 1; i < n_threads; i++)
        if (pthread_create(&threads[i], NULL, read_source, &readers[i]) != 0) _exit(3);
    read_source(&readers[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    _exit(0);
}

/* A process that is number 1, where that may be had. */
static bool namespaces = !TEST_SANITIZED;
static pid_t start(reader *readers, int n_threads, bool own_namespace)
{
    pid_t pid = -1;
    if (own_namespace && namespaces) {
        pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, 0);
        if (pid < 0) namespaces = false;
    }
    if (pid < 0) pid = fork();
    check(pid >= 0, "start a process");
    if (pid == 0) read_by_threads(readers, n_threads);
    return pid;
}

/* ---- a round -------------------------------------------------------------------------------- */

static int n_temporaries(const char *dir)
{
    int found = 0;
    DIR *entries = opendir(dir);
    for (struct dirent *e; entries && (e = readdir(entries));)
        found += strstr(e->d_name, ".tmp-") != NULL;
    if (entries) closedir(entries);
    return found;
}

static void count(const reader *r, bool was_killed, int first, int exchange)
{
    const int right = first ? RIGHT_SECOND : RIGHT_FIRST;
    if (r->result == PENDING && was_killed) return;
    n.runs++;
    if (r->result == FAILED && exchange == WRITTEN_TO)
        n.refused++;
    else if (r->result == FAILED)
        n.failed++;
    else if (r->result == WRONG || (exchange == STAYS && r->result != right))
        n.wrong++;
    if (r->result == FAILED && exchange != WRITTEN_TO && n.failed <= 3)
        fprintf(stderr, "failed: %s\n", r->message);
}

static void wait_for(pid_t pid, bool was_killed)
{
    int status;
    check(waitpid(pid, &status, 0) == pid, "wait");
    if (!WIFSIGNALED(status)) return;
    if (was_killed && WTERMSIG(status) == SIGKILL)
        n.killed++;
    else
        n.signals++;
}

/* By itself, when all is over. */
static void read_alone(reader *r, const char *source, const char *cache, int version)
{
    *r = (reader){.source = source, .cache = cache};
    wait_for(start(r, 1, true), false);
    n.later++;
    n.later_wrong += r->result != (version ? RIGHT_SECOND : RIGHT_FIRST);
    n.left += n_temporaries(cache);
}

static void play(const char *dir, reader *readers)
{
    char source[300], cache[300];
    dh_ctx ctx = DH_CTX_INIT;
    pid_t pids[MOST_PROCESSES];
    bool killed[MOST_PROCESSES] = {false};
    int n_threads[MOST_PROCESSES];
    const int kind = (int)drawn(N_KINDS - 1), first = (int)drawn(1);
    const int exchange = drawn(1) ? (int)drawn(N_EXCHANGES - 1) : STAYS;
    const int n_processes = 2 + (int)drawn(MOST_PROCESSES - 2);
    snprintf(source, sizeof source, "%s/%s", dir, names[kind]);
    snprintf(cache, sizeof cache, "%s/cache", dir);
    if (drawn(2)) assert_ok(&ctx, dh_dir_remove(&ctx, cache));
    put_source(dir, source, kind, first, false);
    for (int p = 0; p < n_processes; p++) {
        n_threads[p] = 1 + (int)drawn(MOST_THREADS - 1);
        for (int t = 0; t < n_threads[p]; t++)
            readers[p * MOST_THREADS + t] =
                (reader){.source = source, .cache = cache, .delay_us = drawn(4000)};
        pids[p] = start(&readers[p * MOST_THREADS], n_threads[p], drawn(3) > 0);
    }
    pause_us(drawn(5000));
    if (exchange != STAYS) put_source(dir, source, kind, !first, exchange == WRITTEN_TO);
    if (drawn(2) == 0) {
        const int victim = (int)drawn(n_processes - 1);
        pause_us(drawn(3000));
        killed[victim] = true;
        kill(pids[victim], SIGKILL);
    }
    for (int p = 0; p < n_processes; p++) {
        wait_for(pids[p], killed[p]);
        for (int t = 0; t < n_threads[p]; t++)
            count(&readers[p * MOST_THREADS + t], killed[p], first, exchange);
    }
    read_alone(&readers[0], source, cache, exchange == STAYS ? first : !first);
    n.rounds++;
}

int main(int argc, char **argv)
{
    char dir[256];
    dh_ctx ctx = DH_CTX_INIT;
    long rounds = TEST_SANITIZED ? 20 : 80;
    uint64_t seed = 36;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0) {
            rounds = 5000;
            seed = (uint64_t)time(NULL);
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = strtol(argv[++i], NULL, 10);
        }
    }
    state = seed;
    setenv("DHELIX_LOG", "error", 0);
    test_tmpdir(dir, sizeof dir);
    make_sources();
    assert_ok(&ctx, dh_tokenizer_bytes(&ctx, &bytes));
    reader *readers = mmap(NULL, MOST_PROCESSES * MOST_THREADS * sizeof *readers,
                           PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(readers != MAP_FAILED, "map");
    for (long i = 0; i < rounds; i++) play(dir, readers);
    printf("seed %llu, %lld rounds, process numbers %s: %lld runs, %lld wrong, %lld failed, "
           "%lld ended by signals; %lld killed, %lld refused a source that was written to; "
           "later %lld runs alone, %lld not right; %lld temporary files left\n",
           (unsigned long long)seed, (long long)n.rounds, namespaces ? "in common" : "apart",
           (long long)n.runs, (long long)n.wrong, (long long)n.failed, (long long)n.signals,
           (long long)n.killed, (long long)n.refused, (long long)n.later, (long long)n.later_wrong,
           (long long)n.left);
    assert_ok(&ctx, dh_dir_remove(&ctx, dir));
    dh_tokenizer_destroy(bytes);
    for (int k = 0; k < N_KINDS; k++)
        for (int v = 0; v < 2; v++) free(packed[k][v]);
    return n.wrong || n.failed || n.signals || n.later_wrong || n.left;
}
