#include "data/split.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <xxhash.h>

/* Bounds against patterns that explode; those in use need a small part of each. */
#define MAX_PATTERNS 16
#define MAX_PATTERN_BYTES 65536
#define MATCH_LIMIT_BASE 10000000u
#define MATCH_LIMIT_PER_BYTE 16u
#define HEAP_LIMIT_KIB (64 * 1024)
#define JIT_STACK_BYTES ((size_t)8 << 20)
/* Of this thread's processor for all matches of one text; those in use take a three-hundredth. */
#define CPU_NS_BASE 2000000000
#define CPU_NS_PER_BYTE 10
/* Matches between two looks at the clock, which is a system call: more and more of them while
 * they are quick. */
enum { FEWEST_MATCHES = 16, MOST_MATCHES = 128, QUICK_NS = 100000 };

struct dh_split_scratch {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t n;
    pcre2_match_data *match[MAX_PATTERNS];
};

void dh_splitter_fini(dh_splitter *s)
{
    for (size_t i = 0; i < s->codes.n; i++) pcre2_code_free(s->codes.at[i]);
    dh_vec_fini(&s->codes);
}

/* \s and \S spelled as the White_Space property: PCRE2's own \s has U+180E besides. */
static void spell_white_space(dh_str *out, const char *pattern, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool escape = pattern[i] == '\\' && i + 1 < n;
        if (escape && (pattern[i + 1] == 's' || pattern[i + 1] == 'S'))
            dh_str_printf(out, "\\%c{White_Space}", pattern[i + 1] == 's' ? 'p' : 'P');
        else
            dh_str_append(out, pattern + i, escape ? 2 : 1);
        if (escape) i++;
    }
}

static dh_status compile(dh_ctx *ctx, const char *pattern, size_t n, bool literal, void **code)
{
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    int error;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, n, options, &error, &at, NULL);
    if (!compiled) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(error, why, sizeof why);
        return dh_fail(ctx, DH_EFORMAT, "split pattern, offset %zu: %s: %.200s", at,
                       (const char *)why, pattern);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    *code = compiled;
    return DH_OK;
}

dh_status dh_splitter_add(dh_ctx *ctx, dh_splitter *s, const char *pattern, size_t n, bool literal)
{
    if (s->codes.n == MAX_PATTERNS)
        return dh_fail(ctx, DH_EUNSUPPORTED, "more than %d split patterns", MAX_PATTERNS);
    if (n == 0 || n > MAX_PATTERN_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "a split pattern of %zu bytes (1 to %d allowed)", n,
                       MAX_PATTERN_BYTES);
    dh_str spelled = DH_STR_INIT;
    if (literal)
        dh_str_append(&spelled, pattern, n);
    else
        spell_white_space(&spelled, pattern, n);
    void *code = NULL;
    dh_status st = spelled.failed ? dh_fail(ctx, DH_ENOMEM, "out of memory for a split pattern")
                                  : compile(ctx, spelled.text, spelled.len, literal, &code);
    dh_str_fini(&spelled);
    if (st == DH_OK && !dh_vec_push(&s->codes, code)) {
        pcre2_code_free(code);
        st = dh_fail(ctx, DH_ENOMEM, "out of memory for a split pattern");
    }
    s->hash = XXH3_64bits_withSeed(pattern, n, 2 * s->hash + literal);
    return st;
}

dh_status dh_split_scratch_create(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch **scratch)
{
    dh_split_scratch *made = calloc(1, sizeof *made);
    if (!made) return dh_fail(ctx, DH_ENOMEM, "out of memory for splitting text");
    made->context = pcre2_match_context_create(NULL);
    made->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES, NULL);
    bool failed = !made->context || !made->stack;
    for (; !failed && made->n < s->codes.n; made->n++)
        failed = !(made->match[made->n] = pcre2_match_data_create(1, NULL));
    if (failed) {
        dh_split_scratch_destroy(made);
        return dh_fail(ctx, DH_ENOMEM, "out of memory for splitting text");
    }
    pcre2_set_heap_limit(made->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(made->context, NULL, made->stack);
    *scratch = made;
    return DH_OK;
}

void dh_split_scratch_destroy(dh_split_scratch *scratch)
{
    if (!scratch) return;
    for (size_t i = 0; i < scratch->n; i++) pcre2_match_data_free(scratch->match[i]);
    pcre2_jit_stack_free(scratch->stack);
    pcre2_match_context_free(scratch->context);
    free(scratch);
}

typedef struct split_job {
    const dh_splitter *splitter;
    dh_split_scratch *scratch;
    dh_word_fn fn;
    void *arg;
    size_t n_bytes;         /* of the text */
    int64_t n_matches;      /* asked for so far */
    int64_t look_at, every; /* how many it will be at the next look at the clock; since the last */
    int64_t looked_ns, end_ns; /* by the thread's clock: the last look; when it is enough */
} split_job;

static int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Each match has its own limit; together they must not take for ever either. */
static dh_status check_time(dh_ctx *ctx, split_job *job)
{
    if (++job->n_matches < job->look_at) return DH_OK;
    const int64_t now_ns = thread_cpu_ns();
    const bool quick = now_ns - job->looked_ns < QUICK_NS;
    job->every = quick ? DH_MIN(2 * job->every, MOST_MATCHES) : FEWEST_MATCHES;
    job->look_at = job->n_matches + job->every;
    job->looked_ns = now_ns;
    if (now_ns <= job->end_ns) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "the split pattern gave up on a text of %zu bytes: %lld matches took more than "
                   "%.3g s",
                   job->n_bytes, (long long)job->n_matches,
                   (CPU_NS_BASE + CPU_NS_PER_BYTE * (double)job->n_bytes) * 1e-9);
}

/* Next non-empty match at or after *at; found is false at the end of the text. */
static dh_status next_match(dh_ctx *ctx, split_job *job, size_t level, const unsigned char *text,
                            size_t n, size_t from, bool *found, size_t *begin, size_t *end)
{
    DH_TRY(check_time(ctx, job));
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): patterns come with a scratch
    pcre2_match_data *match = job->scratch->match[level];
    int rc = pcre2_match(job->splitter->codes.at[level], text, n, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, job->scratch->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return DH_OK;
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return dh_fail(ctx, DH_EUNSUPPORTED, "the split pattern gave up at byte %zu of a text: %s",
                       from, (const char *)why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    *begin = range[0];
    *end = range[1];
    /* \K in a lookbehind can put the start after the end, or before where we are. */
    if (*begin < from || *end <= *begin)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the split pattern moves its match start backwards");
    return DH_OK;
}

static dh_status split_level(dh_ctx *ctx, split_job *job, size_t level, const unsigned char *text,
                             size_t n)
{
    if (n == 0) return DH_OK;
    if (level == job->splitter->codes.n) return job->fn(ctx, job->arg, text, n);
    for (size_t at = 0; at < n;) {
        size_t begin = n, end = n;
        bool found;
        DH_TRY(next_match(ctx, job, level, text, n, at, &found, &begin, &end));
        if (!found) begin = end = n;
        DH_TRY(split_level(ctx, job, level + 1, text + at, begin - at));
        DH_TRY(split_level(ctx, job, level + 1, text + begin, end - begin));
        at = end;
    }
    return DH_OK;
}

dh_status dh_split(dh_ctx *ctx, const dh_splitter *s, dh_split_scratch *scratch,
                   const unsigned char *text, size_t n, dh_word_fn fn, void *arg)
{
    split_job job = {.splitter = s,
                     .scratch = scratch,
                     .fn = fn,
                     .arg = arg,
                     .n_bytes = n,
                     .look_at = FEWEST_MATCHES,
                     .every = FEWEST_MATCHES,
                     .looked_ns = thread_cpu_ns()};
    job.end_ns = job.looked_ns + CPU_NS_BASE + CPU_NS_PER_BYTE * (int64_t)n;
    if (scratch) { /* a run of n spaces makes the Llama 3 pattern step back n times */
        uint64_t limit = MATCH_LIMIT_BASE + (uint64_t)MATCH_LIMIT_PER_BYTE * n;
        pcre2_set_match_limit(scratch->context, (uint32_t)DH_MIN(limit, UINT32_MAX));
    }
    return split_level(ctx, &job, 0, text, n);
}
