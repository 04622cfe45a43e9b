/* PyTorch's pipeline-schedule CSV (torch.distributed.pipelining.schedules), in and out.
 *
 * Reading goes in three steps: cells to slots, with the place of each; who executes what to
 * a placement; then validation as for any schedule. The text may come from anywhere: sizes
 * are bounded by the number of cells before anything is allocated by them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "schedule_build.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)
#define MAX_COPIES 64
#define MAX_CELL_CHARS 63

/* ---- cells ---------------------------------------------------------------------------------- */

enum { SKIP = DH_N_PIPE_KINDS };

/* Words between the stage and the micro-batch. */
static const struct {
    const char *word;
    int kind; /* dh_pipe_kind, or SKIP */
    bool has_micro;
} words[] = {
#define X(name, letter, meaning) {#name, DH_PIPE_##name, true},
    DH_PIPE_KIND_LIST(X)
#undef X
        {"SEND_F", SKIP, true},
    {"RECV_F", SKIP, true},
    {"SEND_B", SKIP, true},
    {"RECV_B", SKIP, true},
    {"WAIT_SEND_F", SKIP, true},
    {"WAIT_SEND_B", SKIP, true},
    {"UNSHARD", SKIP, false},
    {"RESHARD", SKIP, false},
    {"REDUCE_GRAD", SKIP, false},
    {"WAIT_REDUCE_GRAD", SKIP, false},
};

typedef struct read_slot {
    dh_pipe_slot slot;
    int32_t rank, row, column; /* row and column from 1, as messages say them */
} read_slot;

typedef struct reader {
    dh_ctx *ctx;
    const char *source;
    dh_csv csv;
    DH_VEC(read_slot) slots;
    int32_t n_ranks, n_stages, n_micro;
    int64_t n_actions;
    bool old_letters; /* B for I, and BW for B, as PyTorch wrote before 2.6 */
} reader;

static dh_status fail_cell(const reader *r, const char *cell, const char *why)
{
    return dh_fail(r->ctx, DH_EFORMAT, "%s: row %d, column %d: \"%s\": %s", r->source, r->csv.line,
                   r->csv.column, cell, why);
}

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"

/* Earlier PyTorch writes BW for a whole backward and B for the gradient of the input alone. A file
 * of its has a BW, or a W where there is no I: with today's letters a W without its I is no
 * schedule. */
static bool has_old_letters(const char *text, size_t n_bytes, bool *mixed)
{
    bool has_w = false, has_i = false, has_bw = false;
    char word[3] = "", before = ',';
    size_t n = 0; /* letters of the word that the text is in */
    for (size_t i = 0; i < n_bytes; i++) {
        const char c = text[i];
        if (c == ' ' || c == '\t') continue;
        const bool is_letter = c && strchr(LETTERS, c);
        if (is_letter && (n > 0 || (before >= '0' && before <= '9'))) {
            if (n < 2) word[n] = c;
            n++;
        } else if (n > 0) {
            has_bw |= n == 2 && memcmp(word, "BW", 2) == 0;
            has_w |= n == 1 && word[0] == 'W';
            has_i |= n == 1 && word[0] == 'I';
            n = 0;
        }
        before = c;
    }
    *mixed = has_bw && has_i;
    return has_bw || (has_w && !has_i);
}

/* A number of at most DH_SCHEDULE_MAX_CELLS; moves *at behind it. */
static bool read_number(const char **at, int32_t *value)
{
    if (**at < '0' || **at > '9') return false;
    int32_t sum = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        sum = sum * 10 + (**at - '0');
        if (sum >= DH_SCHEDULE_MAX_CELLS) return false;
    }
    *value = sum;
    return true;
}

/* One action; *skip when it is communication. NULL on success, else what is wrong. */
static const char *read_action(const reader *r, const char **at, dh_pipe_action *action, bool *skip)
{
    int32_t stage, micro = -1;
    if (!read_number(at, &stage)) return "an action begins with the number of its stage";
    size_t length = strspn(*at, LETTERS), i = 0;
    char word[20];
    snprintf(word, sizeof word, "%.*s", (int)length, *at);
    if (r->old_letters && strcmp(word, "B") == 0) strcpy(word, "I");
    if (r->old_letters && strcmp(word, "BW") == 0) strcpy(word, "B");
    while (i < DH_COUNTOF(words) && strcmp(words[i].word, word) != 0) i++;
    if (i == DH_COUNTOF(words))
        return "unknown action; known are F, B, I, W, (F;B)OVERLAP_F_B, and, skipped, SEND_F, "
               "RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD, "
               "WAIT_REDUCE_GRAD";
    *at += length;
    if (!read_number(at, &micro) && words[i].has_micro)
        return "an action ends with the number of its micro-batch";
    *skip = words[i].kind == SKIP;
    if (!*skip) *action = (dh_pipe_action){(dh_pipe_kind)words[i].kind, stage, micro};
    return NULL;
}

/* "(0F7;7B3)OVERLAP_F_B" */
static const char *read_pair(const reader *r, const char *at, dh_pipe_slot *slot)
{
    bool skip = false;
    for (int k = 0; k < 2; k++) {
        if (*at++ != (k ? ';' : '(')) return "a co-executed pair is (F;B)OVERLAP_F_B";
        const char *wrong = read_action(r, &at, &slot->action[k], &skip);
        if (wrong || skip) return wrong ? wrong : "communication inside a co-executed pair";
    }
    if (strcmp(at, ")OVERLAP_F_B") != 0) return "a co-executed pair ends with )OVERLAP_F_B";
    if (!dh_pipe_may_pair(slot->action[0].kind, slot->action[1].kind)) {
        dh_pipe_action f = slot->action[1]; /* either order means the same */
        slot->action[1] = slot->action[0];
        slot->action[0] = f;
    }
    if (!dh_pipe_may_pair(slot->action[0].kind, slot->action[1].kind))
        return "a co-executed pair is a forward and any other, or an I and a W";
    slot->n_actions = 2;
    return NULL;
}

static dh_status keep_slot(reader *r, const dh_pipe_slot *slot)
{
    for (int32_t i = 0; i < slot->n_actions; i++) {
        r->n_stages = DH_MAX(r->n_stages, slot->action[i].stage + 1);
        r->n_micro = DH_MAX(r->n_micro, slot->action[i].micro + 1);
    }
    r->n_actions += slot->n_actions;
    read_slot item = {*slot, r->n_ranks, r->csv.line, r->csv.column};
    if (dh_vec_push(&r->slots, item)) return DH_OK;
    return dh_no_memory_while(r->ctx, "reading %s", r->source);
}

/* Blanks and quotes inside a cell do not count. */
static dh_status read_cell(reader *r, dh_csv_text text)
{
    char cell[MAX_CELL_CHARS + 1];
    size_t length = 0;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.at[i];
        if (c == ' ' || c == '\t' || c == '\r' || c == '"') continue;
        if (c < ' ' || c > '~' || length == MAX_CELL_CHARS) {
            cell[length] = '\0';
            return fail_cell(r, cell,
                             length == MAX_CELL_CHARS ? "the cell goes on for more than an action"
                                                      : "a byte that is no printable character "
                                                        "follows");
        }
        cell[length++] = c;
    }
    cell[length] = '\0';
    if (length == 0) return DH_OK; /* idle */
    dh_pipe_slot slot = {.n_actions = 1};
    const char *at = cell, *wrong;
    bool skip = false;
    if (*cell == '(') {
        wrong = read_pair(r, cell, &slot);
    } else {
        wrong = read_action(r, &at, &slot.action[0], &skip);
        if (!wrong && *at) wrong = "text after the action";
    }
    if (wrong) return fail_cell(r, cell, wrong);
    return skip ? DH_OK : keep_slot(r, &slot);
}

static dh_status read_rank(reader *r)
{
    dh_csv_text cell;
    const size_t n_before = r->slots.n;
    if (r->n_ranks == DH_SCHEDULE_MAX_RANKS)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: row %d: more than %d ranks", r->source, r->csv.line,
                       DH_SCHEDULE_MAX_RANKS);
    while (dh_csv_next_cell(&r->csv, &cell)) DH_TRY(read_cell(r, cell));
    if (r->slots.n == n_before)
        return dh_fail(r->ctx, DH_EFORMAT, "%s: row %d: no action, so rank %d would do nothing",
                       r->source, r->csv.line, r->n_ranks);
    r->n_ranks++;
    return DH_OK;
}

/* Every line is a rank, except comments and empty lines at the end. */
static dh_status read_lines(reader *r, const char *text, size_t n_bytes)
{
    dh_csv_text line;
    dh_csv_begin(&r->csv, text, n_bytes);
    for (;;) {
        const dh_csv_line kind = dh_csv_next_line(&r->csv, &line);
        if (kind == DH_CSV_END) break;
        if (kind != DH_CSV_COMMENT) DH_TRY(read_rank(r));
    }
    if (r->n_actions == 0)
        return dh_fail(r->ctx, DH_EFORMAT,
                       "%s: no action; expected a line per rank with cells such as 0F0,0B0",
                       r->source);
    if (2 * (int64_t)r->n_stages * r->n_micro > r->n_actions ||
        (int64_t)r->n_stages * r->n_micro > DH_SCHEDULE_MAX_CELLS)
        return dh_fail(r->ctx, DH_EINVAL,
                       "%s: %d stages and %d micro-batches need a forward and a backward for each, "
                       "but there are only %lld actions",
                       r->source, r->n_stages, r->n_micro, (long long)r->n_actions);
    return DH_OK;
}

/* ---- placement ------------------------------------------------------------------------------ */

/* owner[stage][micro] = rank, from the slots. */
static dh_status find_owners(const reader *r, int32_t *owner)
{
    for (int64_t i = 0; i < (int64_t)r->n_stages * r->n_micro; i++) owner[i] = -1;
    for (size_t n = 0; n < r->slots.n; n++) {
        const read_slot *s = &r->slots.at[n];
        for (int32_t i = 0; i < s->slot.n_actions; i++) {
            dh_pipe_action a = s->slot.action[i];
            int32_t *at = &owner[(int64_t)a.stage * r->n_micro + a.micro];
            char text[96];
            if (*at >= 0 && *at != s->rank)
                return dh_fail(r->ctx, DH_EINVAL,
                               "%s: row %d, column %d: %s, but rank %d does other work on that "
                               "stage and micro-batch",
                               r->source, s->row, s->column, dh_action_text(text, sizeof text, a),
                               *at);
            *at = s->rank;
        }
    }
    for (int64_t i = 0; i < (int64_t)r->n_stages * r->n_micro; i++)
        if (owner[i] < 0)
            return dh_fail(r->ctx, DH_EINVAL, "%s: no rank does micro-batch %d on stage %d",
                           r->source, (int)(i % r->n_micro), (int)(i / r->n_micro));
    return DH_OK;
}

static bool has_route(const reader *r, const int32_t *owner, int32_t j, const int32_t *route)
{
    for (int32_t v = 0; v < r->n_stages; v++)
        if (owner[(int64_t)v * r->n_micro + j] != route[v]) return false;
    return true;
}

/* Different routes of micro-batches over the ranks are different copies of the model. */
static dh_status find_copies(const reader *r, const int32_t *owner, int32_t *routes,
                             int32_t *copy_of, int32_t *n_copies)
{
    *n_copies = 0;
    for (int32_t j = 0; j < r->n_micro; j++) {
        int32_t copy = 0;
        while (copy < *n_copies && !has_route(r, owner, j, routes + (int64_t)copy * r->n_stages))
            copy++;
        copy_of[j] = copy;
        if (copy < *n_copies) continue;
        if (*n_copies == MAX_COPIES)
            return dh_fail(r->ctx, DH_EINVAL,
                           "%s: micro-batch %d takes yet another route over the ranks; at most %d "
                           "copies of the model are possible",
                           r->source, j, MAX_COPIES);
        for (int32_t v = 0; v < r->n_stages; v++)
            routes[(int64_t)copy * r->n_stages + v] = owner[(int64_t)v * r->n_micro + j];
        ++*n_copies;
    }
    return DH_OK;
}

static dh_status fill_schedule(const reader *r, dh_schedule *s)
{
    s->slots = DH_NEW_N(s->arena, dh_pipe_slot, r->slots.n);
    if (!s->slots) return dh_no_memory_while(r->ctx, "reading %s", r->source);
    for (size_t n = 0; n < r->slots.n; n++) { /* in order of ranks already */
        s->slots[n] = r->slots.at[n].slot;
        s->first_slot[r->slots.at[n].rank + 1]++;
    }
    for (int32_t g = 0; g < s->n_ranks; g++) s->first_slot[g + 1] += s->first_slot[g];
    return dh_schedule_validate(r->ctx, s, NULL);
}

static dh_status make_schedule(const reader *r, dh_schedule **schedule)
{
    const size_t n_cells = (size_t)r->n_stages * (size_t)r->n_micro;
    const size_t n_routes = (size_t)DH_MIN(r->n_micro, MAX_COPIES) * (size_t)r->n_stages;
    int32_t *owner = calloc(n_cells, sizeof *owner), *routes = calloc(n_routes, sizeof *routes),
            *copy_of = calloc((size_t)r->n_micro, sizeof *copy_of), n_copies = 0;
    dh_schedule *s = NULL;
    dh_status st = DH_OK;
    if (!owner || !routes || !copy_of) st = dh_no_memory_while(r->ctx, "reading %s", r->source);
    if (st == DH_OK) st = find_owners(r, owner);
    if (st == DH_OK) st = find_copies(r, owner, routes, copy_of, &n_copies);
    if (st == DH_OK)
        st =
            dh_schedule_alloc(r->ctx, r->source, r->n_ranks, r->n_stages, r->n_micro, n_copies, &s);
    if (st == DH_OK) {
        memcpy(s->rank_of, routes, (size_t)n_copies * (size_t)r->n_stages * sizeof *s->rank_of);
        memcpy(s->copy_of, copy_of, (size_t)r->n_micro * sizeof *s->copy_of);
        st = fill_schedule(r, s);
    }
    free(owner);
    free(routes);
    free(copy_of);
    if (st == DH_OK)
        *schedule = s;
    else
        dh_schedule_destroy(s);
    return st;
}

dh_status dh_schedule_parse_csv(dh_ctx *ctx, const char *text, size_t n_bytes, const char *source,
                                dh_schedule **schedule)
{
    bool mixed;
    reader r = {
        .ctx = ctx, .source = source, .old_letters = has_old_letters(text, n_bytes, &mixed)};
    if (mixed)
        return dh_fail(ctx, DH_EFORMAT,
                       "%s has both BW, a whole backward in PyTorch before 2.6, and I, which is of "
                       "later versions: write all of it in one of both",
                       source);
    dh_status st = read_lines(&r, text, n_bytes);
    if (st == DH_OK) st = make_schedule(&r, schedule);
    dh_vec_fini(&r.slots);
    return st;
}

dh_status dh_schedule_read_csv(dh_ctx *ctx, const char *path, dh_schedule **schedule)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &text, &n_bytes));
    dh_status st = dh_schedule_parse_csv(ctx, text, n_bytes, path, schedule);
    free(text);
    return st;
}

/* ---- out ------------------------------------------------------------------------------------ */

static void print_action(dh_str *out, dh_pipe_action a)
{
    dh_str_printf(out, "%d%c%d", a.stage, dh_pipe_kind_letter(a.kind), a.micro);
}

static void print_slot(dh_str *out, const dh_pipe_slot *slot)
{
    if (slot->n_actions == 1) {
        print_action(out, slot->action[0]);
        return;
    }
    dh_str_printf(out, "(");
    print_action(out, slot->action[0]);
    dh_str_printf(out, ";");
    print_action(out, slot->action[1]);
    dh_str_printf(out, ")OVERLAP_F_B");
}

dh_status dh_schedule_print_csv(dh_ctx *ctx, const dh_schedule *s, dh_str *out)
{
    dh_schedule_timing steps;
    DH_TRY(dh_schedule_time(ctx, s, &dh_one_step_each, &steps));
    for (int32_t g = 0; g < s->n_ranks; g++) {
        int64_t column = 0;
        for (int32_t n = s->first_slot[g]; n < s->first_slot[g + 1]; n++) {
            for (; column < steps.start_ns[n]; column++) dh_str_printf(out, ",");
            print_slot(out, &s->slots[n]);
        }
        dh_str_printf(out, "\n");
    }
    dh_schedule_timing_fini(&steps);
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}
