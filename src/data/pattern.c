#include "data/pattern.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Bounds against patterns that explode; those in use need a small part of each. */
#define MAX_PATTERN_BYTES 65536
#define MAX_GROUPS 64
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

struct dh_pattern {
    pcre2_code *code;
    bool matches_empty;
};

struct dh_pattern_work {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *match;
    size_t n_bytes;         /* of the text */
    int64_t n_matches;      /* asked for so far */
    int64_t look_at, every; /* how many it will be at the next look at the clock; since the last */
    int64_t looked_ns, end_ns; /* by the thread's clock: the last look; when it is enough */
};

/* ---- spelling --------------------------------------------------------------------------- */

/* Oniguruma's \w without its brackets: letters, marks, digits, connectors; fractions and raised
 * digits of Latin-1; letters in circles and squares. PCRE2's has no marks. */
#define WORD                                                                                       \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE" DH_PATTERN_ENCLOSED_LETTERS
#define HEX "0-9a-fA-F"

/* An escape and what it is spelled as, outside of a class and inside (NULL: cannot be). */
static const struct {
    char name;
    const char *outside, *inside;
} escapes[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'h', "[" HEX "]", HEX},
    {'H', "[^" HEX "]", NULL},
    {'w', "[" WORD "]", WORD},
    {'W', "[^" WORD "]", NULL},
    {'b', "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))", "\\b"},
    {'B', "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))", "\\B"},
};

typedef struct spelling {
    const char *from;
    size_t at, n;
    dh_str out;
    size_t atom;               /* where in out the last repeatable part begins */
    size_t groups[MAX_GROUPS]; /* where those open begin */
    size_t n_groups;
    char refused; /* an escape that cannot be spelled in a class */
} spelling;

/* \x and what belongs to it. */
static void spell_escape(spelling *s, bool inside)
{
    const char c = s->from[s->at + 1];
    for (size_t i = 0; i < DH_COUNTOF(escapes); i++) {
        if (escapes[i].name != c) continue;
        const char *text = inside ? escapes[i].inside : escapes[i].outside;
        if (!text) s->refused = c;
        if (text) dh_str_append(&s->out, text, strlen(text));
        s->at += 2;
        return;
    }
    size_t len = 2;
    const bool braces = strchr("pPxuokg", c) && s->at + 2 < s->n && s->from[s->at + 2] == '{';
    const char *end = braces ? memchr(s->from + s->at, '}', s->n - s->at) : NULL;
    if (end) len = (size_t)(end - (s->from + s->at)) + 1;
    dh_str_append(&s->out, s->from + s->at, len);
    s->at += len;
}

/* [:name:] in a class: its length; 0: it is none. Symbols are punctuation there. */
static size_t posix_class(spelling *s)
{
    static const char punct[] = "[:punct:]";
    const size_t left = s->n - s->at;
    if (left < 2 || s->from[s->at + 1] != ':') return 0;
    const char *end = memmem(s->from + s->at, left, ":]", 2);
    const size_t len = end ? (size_t)(end - (s->from + s->at)) + 2 : 0;
    if (len == sizeof punct - 1 && memcmp(s->from + s->at, punct, len) == 0)
        dh_str_append(&s->out, "\\p{P}\\p{S}", 10);
    else
        dh_str_append(&s->out, s->from + s->at, len);
    return len;
}

/* [...] */
static void spell_class(spelling *s)
{
    const size_t begin = s->at;
    size_t len;
    for (bool open = true; open && s->at < s->n;) {
        const char c = s->from[s->at];
        if (c == '\\' && s->at + 1 < s->n) {
            spell_escape(s, true);
            continue;
        }
        if (c == '[' && s->at > begin && (len = posix_class(s)) > 0) {
            s->at += len;
            continue;
        }
        /* A bracket that closes where nothing is in the class yet stands for itself. */
        const bool first = s->at == begin + 1 || (s->at == begin + 2 && s->from[begin + 1] == '^');
        open = c != ']' || first;
        dh_str_append(&s->out, &c, 1);
        s->at++;
    }
}

/* {m,n} at s->at: its length; 0: it is none. */
static size_t interval(const spelling *s)
{
    size_t at = s->at + 1, digits = 0, commas = 0;
    for (; at < s->n && s->from[at] != '}'; at++) {
        if (s->from[at] >= '0' && s->from[at] <= '9')
            digits++;
        else if (s->from[at] == ',' && commas == 0)
            commas++;
        else
            return 0;
    }
    return at < s->n && digits > 0 ? at + 1 - s->at : 0;
}

/* X{m,n}+ is a group (?:X{m,n})+ there, and possessive here. */
static void spell_interval(spelling *s, size_t len)
{
    dh_str_append(&s->out, s->from + s->at, len);
    s->at += len;
    if (s->at == s->n || s->from[s->at] != '+' || s->out.failed) return;
    dh_str atom = DH_STR_INIT;
    dh_str_append(&atom, s->out.text + s->atom, s->out.len - s->atom);
    s->out.len = s->atom;
    dh_str_append(&s->out, "(?:", 3);
    dh_str_append(&s->out, atom.text ? atom.text : "", atom.len);
    dh_str_append(&s->out, ")+", 2);
    s->out.failed = s->out.failed || atom.failed;
    s->at++;
    dh_str_fini(&atom);
}

static void spell_next(spelling *s)
{
    const char c = s->from[s->at];
    const size_t here = s->out.len, repeats = c == '{' ? interval(s) : 0;
    if (repeats > 0) {
        spell_interval(s, repeats);
        return;
    }
    if (c == '(' && s->n_groups < MAX_GROUPS) s->groups[s->n_groups++] = here;
    if (c == ')') s->atom = s->n_groups > 0 ? s->groups[--s->n_groups] : here;
    const bool quantifier = strchr("*+?|", c) != NULL;
    if (c != ')' && !quantifier && ((unsigned char)c & 0xC0) != 0x80) s->atom = here;
    if (c == '\\' && s->at + 1 < s->n)
        spell_escape(s, false);
    else if (c == '[')
        spell_class(s);
    else {
        dh_str_append(&s->out, &c, 1);
        s->at++;
    }
}

/* ---- compiling ------------------------------------------------------------------------------ */

static dh_status compile(dh_ctx *ctx, const char *pattern, size_t n, bool literal,
                         pcre2_code **code)
{
    const uint32_t options =
        PCRE2_UTF |
        (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE);
    int error;
    PCRE2_SIZE at;
    *code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &error, &at, NULL);
    if (!*code) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(error, why, sizeof why);
        return dh_fail(ctx, DH_EFORMAT, "split pattern, offset %zu: %s: %.200s", at,
                       (const char *)why, pattern);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    return DH_OK;
}

dh_status dh_pattern_compile(dh_ctx *ctx, const char *pattern, size_t n, bool literal,
                             dh_pattern **compiled)
{
    if (n > MAX_PATTERN_BYTES)
        return dh_fail(ctx, DH_EFORMAT, "a pattern of %zu bytes (at most %d)", n,
                       MAX_PATTERN_BYTES);
    spelling s = {.from = pattern, .n = n};
    if (literal) dh_str_append(&s.out, pattern, n);
    while (!literal && s.at < n && !s.out.failed) spell_next(&s);
    if (s.refused) {
        dh_str_fini(&s.out);
        return dh_fail(ctx, DH_EUNSUPPORTED, "split pattern: \\%c inside of [...]: %.200s",
                       s.refused, pattern);
    }
    dh_pattern *made = s.out.failed ? NULL : calloc(1, sizeof *made);
    dh_status st = made
                       ? compile(ctx, s.out.text ? s.out.text : "", s.out.len, literal, &made->code)
                       : dh_fail(ctx, DH_ENOMEM, "out of memory for a pattern");
    dh_str_fini(&s.out);
    if (st != DH_OK) {
        free(made);
        return st;
    }
    uint32_t empty = 0;
    pcre2_pattern_info(made->code, PCRE2_INFO_MATCHEMPTY, &empty);
    made->matches_empty = n == 0 || empty != 0;
    *compiled = made;
    return DH_OK;
}

void dh_pattern_free(dh_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

bool dh_pattern_matches_empty(const dh_pattern *pattern)
{
    return pattern->matches_empty;
}

/* ---- matching ------------------------------------------------------------------------------- */

dh_status dh_pattern_work_create(dh_ctx *ctx, dh_pattern_work **work)
{
    dh_pattern_work *made = calloc(1, sizeof *made);
    if (!made) return dh_fail(ctx, DH_ENOMEM, "out of memory for splitting text");
    made->context = pcre2_match_context_create(NULL);
    made->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES, NULL);
    made->match = pcre2_match_data_create(1, NULL);
    if (!made->context || !made->stack || !made->match) {
        dh_pattern_work_destroy(made);
        return dh_fail(ctx, DH_ENOMEM, "out of memory for splitting text");
    }
    pcre2_set_heap_limit(made->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(made->context, NULL, made->stack);
    *work = made;
    return DH_OK;
}

void dh_pattern_work_destroy(dh_pattern_work *work)
{
    if (!work) return;
    pcre2_match_data_free(work->match);
    pcre2_jit_stack_free(work->stack);
    pcre2_match_context_free(work->context);
    free(work);
}

static int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void dh_pattern_begin(dh_pattern_work *work, size_t n_bytes)
{
    work->n_bytes = n_bytes;
    work->n_matches = 0;
    work->look_at = work->every = FEWEST_MATCHES;
    work->looked_ns = thread_cpu_ns();
    work->end_ns = work->looked_ns + CPU_NS_BASE + CPU_NS_PER_BYTE * (int64_t)n_bytes;
    /* a run of n spaces makes the Llama 3 pattern step back n times */
    const uint64_t limit = MATCH_LIMIT_BASE + (uint64_t)MATCH_LIMIT_PER_BYTE * n_bytes;
    pcre2_set_match_limit(work->context, (uint32_t)DH_MIN(limit, UINT32_MAX));
}

/* Each match has its own limit; together they must not take for ever either. */
static dh_status check_time(dh_ctx *ctx, dh_pattern_work *work)
{
    if (++work->n_matches < work->look_at) return DH_OK;
    const int64_t now_ns = thread_cpu_ns();
    const bool quick = now_ns - work->looked_ns < QUICK_NS;
    work->every = quick ? DH_MIN(2 * work->every, MOST_MATCHES) : FEWEST_MATCHES;
    work->look_at = work->n_matches + work->every;
    work->looked_ns = now_ns;
    if (now_ns <= work->end_ns) return DH_OK;
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "the split pattern gave up on a text of %zu bytes: %lld matches took more than "
                   "%.3g s",
                   work->n_bytes, (long long)work->n_matches,
                   (CPU_NS_BASE + CPU_NS_PER_BYTE * (double)work->n_bytes) * 1e-9);
}

dh_status dh_pattern_next(dh_ctx *ctx, const dh_pattern *pattern, dh_pattern_work *work,
                          const unsigned char *text, size_t n, size_t from, bool *found,
                          size_t *begin, size_t *end)
{
    DH_TRY(check_time(ctx, work));
    int rc =
        pcre2_match(pattern->code, text, n, from, PCRE2_NO_UTF_CHECK, work->match, work->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return DH_OK;
    if (rc < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(rc, why, sizeof why);
        return dh_fail(ctx, DH_EUNSUPPORTED, "the split pattern gave up at byte %zu of a text: %s",
                       from, (const char *)why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(work->match);
    *begin = range[0];
    *end = range[1];
    /* \K in a lookbehind can put the start after the end, or before where we are. */
    if (*begin < from || *end < *begin)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the split pattern moves its match start backwards");
    return DH_OK;
}
