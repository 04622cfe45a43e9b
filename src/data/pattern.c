#include "data/pattern.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Bounds against patterns that explode. They count over all texts that one work memory
 * sees, so many short texts do not evade them. Patterns in use on real text need less than a
 * hundredth of each: docs/limits.md. */
#define MAX_PATTERN_BYTES 65536
#define MAX_GROUPS 64
#define STEPS_BASE ((int64_t)1 << 22)
#define STEPS_PER_BYTE 64
/* Processor time of this thread inside matches. It limits work that steps do not show, such as 65,535
 * repeats that fail. */
#define CPU_NS_BASE 2000000000
#define CPU_NS_PER_BYTE 200
#define MATCH_LIMIT 2000000000u /* the steps are fewer */
#define HEAP_LIMIT_KIB (64 * 1024)
#define JIT_STACK_BYTES ((size_t)8 << 20)

/* Limits of a quick search: bytes, places where a match may begin, and ways tried from each. Places
 * are more when nothing is there. The search finds nearly every match of patterns in use. It cannot
 * take many steps, so it counts none. A match beyond its limits is searched again with every step
 * counted. */
enum { QUICK_BYTES = 1024, FEWEST_STARTS = 16, MOST_STARTS = 1024, QUICK_WAYS = 1024 };
/* Quick looks from one whose time is taken to the next: more and more while they are quick, each
 * one as soon as they are slow. */
enum { MOST_UNTIMED = 256, SLOW_NS = 20000 };
/* Steps between two looks at the clock, which is a system call. */
enum { STEPS_PER_LOOK = 1024 };

struct dh_pattern {
    pcre2_code *quick, *counted; /* the same; this one calls count_step at each of its parts */
    bool matches_empty, refers_back;
    bool jit;       /* quick is machine code */
    char shown[64]; /* its beginning, for messages */
};

struct dh_pattern_work {
    pcre2_match_context *quick, *counted;
    pcre2_jit_stack *stack;
    pcre2_match_data *match;
    size_t n_bytes;              /* of all texts */
    int64_t steps_left;          /* for the texts so far */
    int64_t cpu_left_ns;         /* the same */
    int64_t untimed, time_every; /* quick looks since the last whose time was taken */
    size_t position;             /* where the last step stood */
    int64_t began_ns;            /* the match, by the thread's clock */
    bool refers_back, spent;
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

static pcre2_code *compile_one(const dh_str *text, uint32_t options, uint32_t jit, int *error,
                               PCRE2_SIZE *at)
{
    const PCRE2_SPTR units = (PCRE2_SPTR)(text->text ? text->text : "");
    pcre2_code *code = pcre2_compile(units, text->len, options, error, at, NULL);
    if (code) pcre2_jit_compile(code, jit); /* without it matching is only slower */
    return code;
}

static dh_status compile(dh_ctx *ctx, const dh_str *text, bool literal, dh_pattern *made)
{
    const uint32_t options =
        PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT |
        (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE);
    int error;
    PCRE2_SIZE at;
    made->quick =
        compile_one(text, options, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD, &error, &at);
    if (made->quick)
        made->counted =
            compile_one(text, options | PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE, &error, &at);
    if (!made->counted) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(error, why, sizeof why);
        return dh_fail(ctx, DH_EFORMAT, "split pattern, offset %zu: %s: %.200s", at,
                       (const char *)why, text->text);
    }
    uint32_t empty = 0, references = 0;
    size_t code_bytes = 0;
    pcre2_pattern_info(made->quick, PCRE2_INFO_JITSIZE, &code_bytes);
    made->jit = code_bytes > 0;
    pcre2_pattern_info(made->quick, PCRE2_INFO_MATCHEMPTY, &empty);
    pcre2_pattern_info(made->quick, PCRE2_INFO_BACKREFMAX, &references);
    made->matches_empty = text->len == 0 || empty != 0;
    made->refers_back = references > 0;
    return DH_OK;
}

/* The beginning of a pattern, with control characters as '?'. */
static void show(const char *pattern, size_t n, char shown[64])
{
    const bool all = n < 64;
    size_t len = all ? n : 60;
    while (!all && len > 0 && ((unsigned char)pattern[len] & 0xC0) == 0x80) len--;
    for (size_t i = 0; i < len; i++) shown[i] = (unsigned char)pattern[i] < ' ' ? '?' : pattern[i];
    memcpy(shown + len, all ? "" : "...", all ? 1 : 4);
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
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "split pattern: \\%c inside of [...] is not supported: %.200s", s.refused,
                       pattern);
    }
    dh_pattern *made = s.out.failed ? NULL : calloc(1, sizeof *made);
    dh_status st = made ? compile(ctx, &s.out, literal, made) : dh_no_memory(ctx);
    dh_str_fini(&s.out);
    if (st != DH_OK) {
        dh_pattern_free(made);
        return st;
    }
    show(pattern, n, made->shown);
    *compiled = made;
    return DH_OK;
}

void dh_pattern_free(dh_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->quick);
    pcre2_code_free(pattern->counted);
    free(pattern);
}

bool dh_pattern_matches_empty(const dh_pattern *pattern)
{
    return pattern->matches_empty;
}

/* ---- limits -------------------------------------------------------------------------------- */

static int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Bytes of all that was captured: a reference to it may compare as many. */
static int64_t captured(const pcre2_callout_block *at)
{
    int64_t sum = 0;
    for (uint32_t i = 1; i < at->capture_top; i++) {
        const PCRE2_SIZE begin = at->offset_vector[2 * (size_t)i],
                         end = at->offset_vector[2 * (size_t)i + 1];
        if (begin != PCRE2_UNSET && end > begin) sum += (int64_t)(end - begin);
    }
    return sum;
}

/* Called wherever a match goes on with a part of the pattern: one step, and one for each byte that
 * was passed since the last. */
static int count_step(pcre2_callout_block *at, void *arg)
{
    dh_pattern_work *work = arg;
    int64_t steps = 1;
    if (at->current_position > work->position)
        steps += (int64_t)(at->current_position - work->position);
    if (work->refers_back) steps += captured(at);
    work->position = at->current_position;
    const int64_t before = work->steps_left;
    work->steps_left -= steps;
    const bool look = before / STEPS_PER_LOOK != work->steps_left / STEPS_PER_LOOK;
    work->spent =
        work->steps_left < 0 || (look && thread_cpu_ns() - work->began_ns > work->cpu_left_ns);
    return work->spent ? PCRE2_ERROR_CALLOUT : 0;
}

static pcre2_match_context *create_context(pcre2_jit_stack *stack, uint32_t ways)
{
    pcre2_match_context *made = pcre2_match_context_create(NULL);
    if (!made) return NULL;
    pcre2_set_heap_limit(made, HEAP_LIMIT_KIB);
    pcre2_set_match_limit(made, ways);
    pcre2_jit_stack_assign(made, NULL, stack);
    return made;
}

dh_status dh_pattern_work_create(dh_ctx *ctx, dh_pattern_work **work)
{
    dh_pattern_work *made = calloc(1, sizeof *made);
    if (!made) return dh_no_memory(ctx);
    made->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES, NULL);
    made->quick = create_context(made->stack, QUICK_WAYS);
    made->counted = create_context(made->stack, MATCH_LIMIT);
    made->match = pcre2_match_data_create(1, NULL);
    if (!made->quick || !made->counted || !made->stack || !made->match) {
        dh_pattern_work_destroy(made);
        return dh_no_memory(ctx);
    }
    pcre2_set_callout(made->counted, count_step, made);
    made->steps_left = STEPS_BASE;
    made->cpu_left_ns = CPU_NS_BASE;
    made->time_every = 1;
    *work = made;
    return DH_OK;
}

void dh_pattern_work_destroy(dh_pattern_work *work)
{
    if (!work) return;
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->quick);
    pcre2_match_context_free(work->counted);
    pcre2_jit_stack_free(work->stack);
    free(work);
}

void dh_pattern_begin(dh_pattern_work *work, size_t n_bytes, size_t n_patterns)
{
    const int64_t n = (int64_t)(n_bytes * n_patterns);
    work->n_bytes += n_bytes;
    work->steps_left += STEPS_PER_BYTE * n;
    work->cpu_left_ns += CPU_NS_PER_BYTE * n;
}

static dh_status give_up(dh_ctx *ctx, const dh_pattern *pattern, const dh_pattern_work *work,
                         const char *why)
{
    return dh_fail(ctx, DH_EUNSUPPORTED,
                   "the pattern \"%s\" gave up after %zu bytes of text: %s (at most %lld steps and "
                   "%.3g s, and %d steps and %d ns more per byte)",
                   pattern->shown, work->n_bytes, why, (long long)STEPS_BASE, CPU_NS_BASE * 1e-9,
                   STEPS_PER_BYTE, CPU_NS_PER_BYTE);
}

/* ---- matching ------------------------------------------------------------------------------- */

/* Where a quick look from `from` ends: between characters, and not behind a line break, where ^
 * would have to know whether there is more. */
static size_t quick_end(const unsigned char *text, size_t n, size_t from)
{
    if (n - from <= QUICK_BYTES) return n;
    size_t end = from + QUICK_BYTES;
    while (end < n && ((text[end] & 0xC0) == 0x80 || text[end - 1] == '\n')) end++;
    return end;
}

/* One look among the places from `from` to `last`. *rc: PCRE2's; PARTIAL: what lies behind `end`
 * decides, from match[0] on. */
static void look_quickly(const dh_pattern *pattern, dh_pattern_work *work,
                         const unsigned char *text, size_t n, size_t from, size_t last, size_t end,
                         int *rc)
{
    const uint32_t partial = end < n ? PCRE2_PARTIAL_HARD : 0;
    const bool timed = ++work->untimed >= work->time_every;
    const int64_t began_ns = timed ? thread_cpu_ns() : 0;
    pcre2_set_offset_limit(work->quick, last);
    *rc = pattern->jit
              ? pcre2_jit_match(pattern->quick, text, end, from, partial, work->match, work->quick)
              : pcre2_match(pattern->quick, text, end, from, PCRE2_NO_UTF_CHECK | partial,
                            work->match, work->quick);
    if (!timed) return;
    const int64_t ns = thread_cpu_ns() - began_ns;
    work->cpu_left_ns -= ns;
    work->untimed = 0;
    work->time_every = ns > SLOW_NS ? 1 : DH_MIN(2 * work->time_every, MOST_UNTIMED);
}

/* The same with all of the text to be seen, and every step counted. */
static void look_counted(const dh_pattern *pattern, dh_pattern_work *work,
                         const unsigned char *text, size_t n, size_t from, size_t last, int *rc)
{
    work->position = from;
    work->refers_back = pattern->refers_back;
    work->began_ns = thread_cpu_ns();
    pcre2_set_offset_limit(work->counted, last);
    *rc = pcre2_match(pattern->counted, text, n, from, PCRE2_NO_UTF_CHECK, work->match,
                      work->counted);
    const size_t reached = *rc >= 0 ? pcre2_get_ovector_pointer(work->match)[1] : work->position;
    if (reached > work->position) work->steps_left -= (int64_t)(reached - work->position);
    work->cpu_left_ns -= thread_cpu_ns() - work->began_ns;
}

static dh_status failed_match(dh_ctx *ctx, const dh_pattern *pattern, const dh_pattern_work *work,
                              int rc)
{
    PCRE2_UCHAR why[128] = "";
    if (rc == PCRE2_ERROR_CALLOUT)
        return give_up(ctx, pattern, work,
                       work->steps_left < 0 ? "too many steps" : "too much time");
    pcre2_get_error_message(rc, why, sizeof why);
    return give_up(ctx, pattern, work, (const char *)why);
}

/* The first match that begins at *from .. *last; *from: where to look next if there is none. */
static dh_status look(dh_ctx *ctx, const dh_pattern *pattern, dh_pattern_work *work,
                      const unsigned char *text, size_t n, size_t *from, size_t last, bool *found)
{
    const size_t end = quick_end(text, n, *from);
    if (end < n) last = DH_MIN(last, end - 1);
    int rc;
    look_quickly(pattern, work, text, n, *from, last, end, &rc);
    if (rc == PCRE2_ERROR_PARTIAL) {
        const size_t begin = pcre2_get_ovector_pointer(work->match)[0];
        if (begin >= *from && begin <= last) *from = last = begin; /* none before */
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) look_counted(pattern, work, text, n, *from, last, &rc);
    if (work->cpu_left_ns < 0) return give_up(ctx, pattern, work, "too much time");
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return failed_match(ctx, pattern, work, rc);
    *found = rc >= 0;
    *from = last + 1;
    while (*from < n && (text[*from] & 0xC0) == 0x80) ++*from;
    return DH_OK;
}

dh_status dh_pattern_next(dh_ctx *ctx, const dh_pattern *pattern, dh_pattern_work *work,
                          const unsigned char *text, size_t n, size_t from, bool *found,
                          size_t *begin, size_t *end)
{
    size_t next = from;
    *found = false;
    for (size_t starts = FEWEST_STARTS; next <= n && !*found;
         starts = DH_MIN(4 * starts, MOST_STARTS))
        DH_TRY(look(ctx, pattern, work, text, n, &next, DH_MIN(next + starts - 1, n), found));
    if (!*found) return DH_OK;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(work->match);
    *begin = range[0];
    *end = range[1];
    /* \K in a lookbehind can put the start after the end, or before where we are. */
    if (*begin < from || *end < *begin)
        return dh_fail(ctx, DH_EUNSUPPORTED, "the split pattern moves its match start backwards");
    return DH_OK;
}
