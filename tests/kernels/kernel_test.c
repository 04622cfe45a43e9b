#include "kernel_test.h"

#include "keep.h"
#include "launch.h"

#include <signal.h>
#include <sys/wait.h>

enum { RED_ZONE = 64, RED = 0x5A };

static size_t bytes_of(buf b)
{
    return (size_t)b.n * dh_dtype_bytes(b.dtype);
}

/* ---- arrays that are there: what is kept of a wrong result -------------------------------------
 */

enum { MOST_LIVE = 64 };
static buf live[MOST_LIVE];
static size_t n_live;

static void remember(buf b)
{
    if (n_live < MOST_LIVE) live[n_live++] = b;
}

static void forget(buf b)
{
    for (size_t i = n_live; i-- > 0;)
        if (live[i].raw == b.raw) {
            memmove(live + i, live + i + 1, (--n_live - i) * sizeof *live);
            return;
        }
}

static void keep_live(const char *message)
{
    char name[32];
    if (!keep_begin(message)) return;
    for (size_t i = 0; i < n_live; i++) {
        snprintf(name, sizeof name, "array %zu", i);
        keep_array(name, dh_dtype_name(live[i].dtype), live[i].n, live[i].raw, bytes_of(live[i]));
    }
    keep_end();
}

/* Relative to numbers above 1; NAN where one of them is. */
static double error_of(double got, double want)
{
    return fabs(got - want) / fmax(1, fabs(want));
}

/* ---- arrays ------------------------------------------------------------------------------------
 */

buf buf_new(dh_dtype dtype, int64_t n)
{
    buf b = {dtype, n, NULL};
    const size_t size = (bytes_of(b) + RED_ZONE + 63) / 64 * 64;
    b.raw = aligned_alloc(64, size);
    assert_non_null(b.raw);
    memset(b.raw, RED, size);
    memset(b.raw, 0, bytes_of(b));
    remember(b);
    return b;
}

buf buf_random(dh_dtype dtype, int64_t n, float amplitude, uint64_t *seed)
{
    buf b = buf_new(dtype, n);
    for (int64_t i = 0; i < n; i++) set(b, i, amplitude * test_randf(seed));
    return b;
}

buf buf_copy(buf source)
{
    buf b = buf_new(source.dtype, source.n);
    memcpy(b.raw, source.raw, bytes_of(b));
    return b;
}

void buf_free(buf b)
{
    for (size_t i = 0; i < RED_ZONE; i++)
        if (b.raw[bytes_of(b) + i] != RED)
            fail_msg("write behind an array of %lld", (long long)b.n);
    forget(b);
    free(b.raw);
}

void *at(buf b, int64_t i)
{
    return b.raw + (size_t)i * dh_dtype_bytes(b.dtype);
}

double get(buf b, int64_t i)
{
    if (b.dtype == DH_BF16) return dh_bf16_to_f32(((const dh_bf16 *)(const void *)b.raw)[i]);
    return f32(b)[i];
}

void set(buf b, int64_t i, double value)
{
    if (b.dtype == DH_BF16)
        ((dh_bf16 *)(void *)b.raw)[i] = dh_f32_to_bf16((float)value);
    else
        f32(b)[i] = (float)value;
}

bool buf_same(buf a, buf b)
{
    return bytes_of(a) == bytes_of(b) && memcmp(a.raw, b.raw, bytes_of(a)) == 0;
}

/* Fails the test, once what there is has been kept. */
static void fail_kept(const char *message)
{
    keep_live(message);
    fail_msg("%s", message);
}

void check_value(const char *what, double got, double want, double tolerance)
{
    char message[256];
    const double error = error_of(got, want);
    keep_error(what, "", error, tolerance);
    if (error <= tolerance) return;
    snprintf(message, sizeof message, "%s: got %.9g, want %.9g, tolerance %g", what, got, want,
             tolerance);
    fail_kept(message);
}

void check_close(const char *what, buf got, const double *want, double tolerance)
{
    char message[256];
    double most = 0;
    int64_t wrong = -1;
    for (int64_t i = 0; i < got.n; i++) {
        const double error = error_of(get(got, i), want[i]);
        if (!(error <= most)) most = error;
        if (!(error <= tolerance) && wrong < 0) wrong = i;
        if (isnan(most)) break;
    }
    keep_error(what, dh_dtype_name(got.dtype), most, tolerance);
    if (wrong < 0) return;
    snprintf(message, sizeof message, "%s [%lld of %lld] %s: got %.9g, want %.9g, tolerance %g",
             what, (long long)wrong, (long long)got.n, dh_dtype_name(got.dtype), get(got, wrong),
             want[wrong], tolerance);
    fail_kept(message);
}

double finite_difference(double (*f)(const double *x, const void *arg), double *x, int64_t i,
                         double h, const void *arg)
{
    const double keep = x[i];
    x[i] = keep + h;
    const double up = f(x, arg);
    x[i] = keep - h;
    const double down = f(x, arg);
    x[i] = keep;
    return (up - down) / (2 * h);
}

double *zeros(int64_t n)
{
    double *x = calloc((size_t)DH_MAX(n, 1), sizeof *x);
    assert_non_null(x);
    return x;
}

double *widen(buf b)
{
    double *x = zeros(b.n);
    for (int64_t i = 0; i < b.n; i++) x[i] = get(b, i);
    return x;
}

void *scratch_new(size_t n_bytes)
{
    if (!n_bytes) return NULL;
    const size_t size = (n_bytes + RED_ZONE + 63) / 64 * 64;
    unsigned char *ws = aligned_alloc(64, size);
    assert_non_null(ws);
    memset(ws, 0xFF, n_bytes);
    memset(ws + n_bytes, RED, size - n_bytes);
    return ws;
}

void scratch_free(void *ws, size_t n_bytes)
{
    if (!ws) return;
    for (size_t i = 0; i < RED_ZONE; i++)
        if (((unsigned char *)ws)[n_bytes + i] != RED) fail_msg("write behind the workspace");
    free(ws);
}

int signal_of(void (*f)(void))
{
    int status;
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        f();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
