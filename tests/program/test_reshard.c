/* Parameters on their way to another layout: every element arrives from a rank that has it, no byte
 * travels that need not, the published rule and the exact plan choose as they say, programs verify,
 * and faults in them are found. */
#include "layouts.h"

/* ---- element by element --------------------------------------------------------------------- */

/* Rows and columns of a tensor that any rank has. */
static dh_box extent_of(const dh_reshard *r, uint32_t tensor)
{
    dh_box all = {0};
    for (int side = 0; side < 2; side++)
        for (int64_t rank = 0; rank < r->n_ranks; rank++)
            for (size_t i = 0; i < r->holdings[side][rank].held.n; i++) {
                const dh_held *h = &r->holdings[side][rank].held.at[i];
                if (h->tensor != tensor) continue;
                all.n_rows = DH_MAX(all.n_rows, h->box.row + h->box.n_rows);
                all.n_cols = DH_MAX(all.n_cols, h->box.col + h->box.n_cols);
            }
    return all;
}

static void mark(const dh_box *all, const dh_box *b, unsigned char *at)
{
    for (int64_t r = b->row; r < b->row + b->n_rows; r++)
        for (int64_t c = b->col; c < b->col + b->n_cols; c++) at[r * all->n_cols + c]++;
}

static unsigned char *marks_of(const dh_reshard *r, int side, int64_t rank, uint32_t tensor,
                               const dh_box *all)
{
    unsigned char *at = calloc((size_t)dh_box_elements(all) + 1, 1);
    assert_non_null(at);
    for (size_t i = 0; i < r->holdings[side][rank].held.n; i++) {
        const dh_held *h = &r->holdings[side][rank].held.at[i];
        if (h->tensor == tensor) mark(all, &h->box, at);
    }
    return at;
}

/* What a rank holds of the second layout is covered once by its slices; what it lacks of the first
 * is what travels. Adds the bytes of that. */
static void check_tensor(const dh_reshard *r, uint32_t tensor, int64_t rank, int64_t *lacking,
                         int64_t *kept)
{
    const dh_box all = extent_of(r, tensor);
    const int64_t item = (int64_t)dh_dtype_bytes(r->tensors.at[tensor].dtype);
    unsigned char *had = marks_of(r, 0, rank, tensor, &all),
                  *has = marks_of(r, 1, rank, tensor, &all);
    unsigned char *came = calloc((size_t)dh_box_elements(&all) + 1, 1);
    assert_non_null(came);
    for (size_t i = 0; i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        if (s->to != rank || s->tensor != tensor) continue;
        mark(&all, &s->box, came);
        for (uint32_t o = s->owner0; o < s->owner0 + s->n_owners; o++) {
            const dh_owner *owner = &r->owners.at[o];
            const dh_held *h = &r->holdings[0][owner->rank].held.at[owner->held];
            dh_box both;
            assert_int_equal(h->tensor, tensor);
            assert_true(dh_box_meet(&h->box, &s->box, &both));
            assert_memory_equal(&both, &s->box, sizeof both);
        }
    }
    assert_memory_equal(came, has, (size_t)dh_box_elements(&all));
    for (int64_t i = 0; i < dh_box_elements(&all); i++) {
        assert_true(has[i] <= 1 && had[i] <= 1);
        if (has[i]) *(had[i] ? kept : lacking) += item;
    }
    free(had);
    free(has);
    free(came);
}

static void every_element_arrives(void **state)
{
    uint64_t seed = test_seed("every_element_arrives");
    for (int turn = 0; turn < (TEST_SANITIZED ? 10 : 40); turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        pair p;
        dh_reshard_sum sum;
        int64_t lacking = 0, kept = 0;
        draw_pair(&p, &seed, some_what(&seed));
        for (dh_reshard_rule rule = 0; rule <= DH_RESHARD_FIRST; rule++) {
            assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, rule, DH_RESHARD_EVEN_WIRES, 0, NULL));
            assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, DH_RESHARD_EVEN_WIRES, &sum));
            lacking = kept = 0;
            for (uint32_t t = 0; t < p.r.tensors.n; t++)
                for (int64_t rank = 0; rank < p.r.n_ranks; rank++)
                    check_tensor(&p.r, t, rank, &lacking, &kept);
            assert_int_equal(sum.local_bytes + sum.cross_bytes, lacking);
            assert_int_equal(sum.kept_bytes, kept);
            assert_true(sum.busiest_ns >= sum.bound_ns);
        }
        close_pair(&p);
    }
}

/* From 2 tensor-parallel ranks to 2 data-parallel ones each lacks the other's half of what is
 * split, and position embeddings, which lie on the first. */
static void bytes_are_the_closed_count(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_reshard_sum sum;
    pair p = {.setups = {{.preset = "gpt2-tiny",
                          .schedule = "1f1b",
                          .tp = 2,
                          .pp = 1,
                          .dp = 1,
                          .n_micro = 2,
                          .seq = 16},
                         {.preset = "gpt2-tiny",
                          .schedule = "1f1b",
                          .tp = 1,
                          .pp = 1,
                          .dp = 2,
                          .n_micro = 2,
                          .seq = 16}}};
    open_pair(&p, DH_RESHARD_PARAMS);
    const dh_model *m = &p.sides[0]->spec.recipe.model;
    const int64_t C = m->width, F = m->ffn_width, bias = m->bias ? 1 : 0;
    const int64_t split = m->n_layers * (4 * C * C + 2 * C * F + bias * (3 * C + F)) + m->vocab * C;
    assert_true(m->tied_head && m->vocab % 2 == 0);
    assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES, 0, NULL));
    assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, DH_RESHARD_EVEN_WIRES, &sum));
    assert_int_equal(sum.local_bytes, 4 * (split + m->max_seq * C));
    assert_int_equal(sum.cross_bytes, 0);
    assert_int_equal(sum.n_messages, 2);
    close_pair(&p);
}

/* ---- who sends ------------------------------------------------------------------------------- */

static bool same_node(const dh_reshard *r, uint32_t a, uint32_t b)
{
    return a / (uint32_t)r->ranks_per_node == b / (uint32_t)r->ranks_per_node;
}

static int64_t bytes_of(const dh_reshard *r, const dh_slice *s)
{
    return dh_box_elements(&s->box) * (int64_t)dh_dtype_bytes(r->tensors.at[s->tensor].dtype);
}

static bool same_slice(const dh_slice *a, const dh_slice *b)
{
    return a->tensor == b->tensor && memcmp(&a->box, &b->box, sizeof a->box) == 0;
}

static bool slice_before(const dh_slice *a, const dh_slice *b)
{
    const int64_t x[] = {a->tensor, a->box.row, a->box.col, a->box.n_rows, a->box.n_cols};
    const int64_t y[] = {b->tensor, b->box.row, b->box.col, b->box.n_rows, b->box.n_cols};
    for (int i = 0; i < 5; i++)
        if (x[i] != y[i]) return x[i] < y[i];
    return false;
}

/* The slice after `last` in the order of slices, NULL for the first; NULL: there is none. */
static const dh_slice *slice_after(const dh_reshard *r, const dh_slice *last)
{
    const dh_slice *next = NULL;
    for (size_t i = 0; i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        if ((!last || slice_before(last, s)) && (!next || slice_before(s, next))) next = s;
    }
    return next;
}

/* Of the owners on that side of the destination's node the one with the smallest counter; -1: no
 * owner is there. */
static int64_t smallest(const dh_reshard *r, const dh_slice *s, bool inside, const int64_t *counter)
{
    int64_t best = -1;
    for (uint32_t o = s->owner0; o < s->owner0 + s->n_owners; o++) {
        const int64_t rank = r->owners.at[o].rank;
        if (same_node(r, (uint32_t)rank, s->to) != inside) continue;
        if (best < 0 || counter[rank] < counter[best]) best = rank;
    }
    return best;
}

/* Algorithm 1 of HotSPa as its authors print it, line by line: for every slice, for every
 * destination that does not own it, the owners inside the node first, by the inside counter. */
static void the_published_algorithm_is_kept(void **state)
{
    uint64_t seed = test_seed("the_published_algorithm_is_kept");
    int n_inside = 0, n_outside = 0;
    for (int turn = 0; turn < 12; turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        pair p;
        int64_t inside[16] = {0}, outside[16] = {0};
        draw_pair(&p, &seed, DH_RESHARD_PARAMS);
        const dh_reshard *r = &p.r;
        assert_ok(&ctx,
                  dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES, 0, NULL));
        for (const dh_slice *at = slice_after(r, NULL); at; at = slice_after(r, at))
            for (int64_t to = 0; to < r->n_ranks; to++)
                for (size_t i = 0; i < r->slices.n; i++) {
                    const dh_slice *s = &r->slices.at[i];
                    if (s->to != to || !same_slice(s, at)) continue;
                    const uint32_t from = r->owners.at[s->from].rank;
                    if (s->n_owners == 1 && from == s->to) continue; /* the destination owns it */
                    int64_t source = smallest(r, s, true, inside);
                    if (source >= 0) {
                        inside[source] += bytes_of(r, s);
                        n_inside++;
                    } else {
                        source = smallest(r, s, false, outside);
                        outside[source] += bytes_of(r, s);
                        n_outside++;
                    }
                    assert_int_equal(from, source);
                }
        close_pair(&p);
    }
    assert_true(n_inside > 0 && n_outside > 0);
}

/* By hand, on two nodes of two ranks. What rank 0 sends to rank 1 does not count when rank 2 lacks
 * what ranks 0 and 1 have: a planner with one counter would take rank 1 there. The next slice for
 * rank 2 comes from rank 1. Rank 0 is the only owner of the last. */
static void each_rank_has_two_counters(void **state)
{
    static const struct {
        uint32_t owners[2], to, from;
        int64_t n_bytes;
    } cases[] = {{{0, 0}, 1, 0, 10}, {{0, 1}, 2, 0, 5}, {{0, 1}, 2, 1, 5}, {{0, 0}, 1, 0, 3}};
    dh_ctx ctx = DH_CTX_INIT;
    dh_reshard r = {.n_ranks = 4, .ranks_per_node = 2};
    const dh_moved bytes = {.name = "bytes", .dtype = DH_U8};
    assert_true(dh_vec_push(&r.tensors, bytes));
    for (size_t i = 0; i < DH_COUNTOF(cases); i++) {
        const uint32_t n = cases[i].owners[0] == cases[i].owners[1] ? 1 : 2;
        const dh_slice s = {.box = {10 * (int64_t)i, cases[i].n_bytes, 0, 1},
                            .to = cases[i].to,
                            .owner0 = (uint32_t)r.owners.n,
                            .n_owners = n};
        for (uint32_t o = 0; o < n; o++)
            assert_true(dh_vec_push(&r.owners, ((dh_owner){.rank = cases[i].owners[o]})));
        assert_true(dh_vec_push(&r.slices, s));
    }
    assert_ok(&ctx, dh_reshard_plan(&ctx, &r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES, 0, NULL));
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        assert_int_equal(r.owners.at[r.slices.at[i].from].rank, cases[i].from);
    dh_reshard_fini(&r);
}

/* Slices of bytes, each with some of the ranks for owners. */
static void make_case(dh_reshard *r, uint64_t *seed, int n_slices)
{
    *r = (dh_reshard){.n_ranks = 4, .ranks_per_node = 2};
    const dh_moved bytes = {.name = "bytes", .dtype = DH_U8};
    assert_true(dh_vec_push(&r->tensors, bytes));
    for (int i = 0; i < n_slices; i++) {
        dh_slice s = {.box = {0, 1 + (int64_t)(test_rand(seed) % 20), 0, 1},
                      .to = (uint32_t)(test_rand(seed) % 4),
                      .owner0 = (uint32_t)r->owners.n};
        do
            for (uint32_t k = 0; k < 4; k++)
                if (k != s.to && test_rand(seed) % 2 && dh_vec_push(&r->owners, ((dh_owner){k, 0})))
                    s.n_owners++;
        while (s.n_owners == 0);
        s.from = s.owner0;
        assert_true(dh_vec_push(&r->slices, s));
    }
}

static double busiest(const dh_reshard *r, dh_reshard_wires wires)
{
    double out[2][4] = {{0}}, in[2][4] = {{0}}, most = 0;
    for (size_t i = 0; i < r->slices.n; i++) {
        const dh_slice *s = &r->slices.at[i];
        const uint32_t from = r->owners.at[s->from].rank;
        const int cross = !same_node(r, from, s->to);
        const double ns = (double)bytes_of(r, s) * (cross ? wires.cross_ns : wires.local_ns);
        out[cross][from] += ns;
        in[cross][s->to] += ns;
        most = DH_MAX(most, DH_MAX(out[cross][from], in[cross][s->to]));
    }
    return most;
}

/* Every choice of owners. */
static double best_of_all(dh_reshard *r, dh_reshard_wires wires, size_t slice)
{
    double best = INFINITY;
    if (slice == r->slices.n) return busiest(r, wires);
    dh_slice *s = &r->slices.at[slice];
    for (s->from = s->owner0; s->from < s->owner0 + s->n_owners; s->from++)
        best = DH_MIN(best, best_of_all(r, wires, slice + 1));
    s->from = s->owner0;
    return best;
}

static void the_exact_plan_is_the_best_of_all(void **state)
{
    uint64_t seed = test_seed("the_exact_plan_is_the_best_of_all");
    double greedy_over_exact = 0;
    for (int turn = 0; turn < 200; turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_reshard_wires wires = {1, 1 + (double)(test_rand(&seed) % 4)};
        dh_reshard r;
        dh_reshard_sum sum;
        bool proved;
        make_case(&r, &seed, 2 + (int)(test_rand(&seed) % 7));
        const double best = best_of_all(&r, wires, 0);
        assert_ok(&ctx, dh_reshard_plan(&ctx, &r, DH_RESHARD_HOTSPA, wires, 0, NULL));
        const double greedy = busiest(&r, wires);
        assert_ok(&ctx, dh_reshard_plan(&ctx, &r, DH_RESHARD_EXACT, wires, 0, &proved));
        assert_ok(&ctx, dh_reshard_sum_up(&ctx, &r, wires, &sum));
        assert_true(proved);
        assert_true(sum.busiest_ns == best && busiest(&r, wires) == best);
        assert_true(sum.bound_ns <= best);
        assert_true(greedy >= best);
        greedy_over_exact = DH_MAX(greedy_over_exact, greedy / best);
        dh_reshard_fini(&r);
    }
    assert_true(greedy_over_exact > 1); /* the cases tell the two apart */
}

static void exact_is_never_worse(void **state)
{
    uint64_t seed = test_seed("exact_is_never_worse");
    for (int turn = 0; turn < (TEST_SANITIZED ? 1 : 4); turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        const dh_reshard_wires wires = {1, 4};
        dh_reshard_sum least, exact;
        pair p;
        draw_pair(&p, &seed, DH_RESHARD_PARAMS);
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, wires, 0, NULL));
        assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, wires, &least));
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_EXACT, wires, 0, NULL));
        assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, wires, &exact));
        assert_true(exact.busiest_ns <= least.busiest_ns && exact.bound_ns == least.bound_ns);
        assert_int_equal(exact.local_bytes + exact.cross_bytes,
                         least.local_bytes + least.cross_bytes);
        close_pair(&p);
    }
}

/* ---- programs -------------------------------------------------------------------------------- */

/* The bytes that a rank's messages carry. */
static int64_t sent_by(const dh_program *p)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (op->type == DH_OP_MESSAGES && op->in[0] != DH_NONE)
            n += (int64_t)dh_instr_operand(p, &p->instrs.at[i], 0)->n_bytes;
    }
    return n;
}

/* What a rank has under way at once is that of two chunks, both ways. */
static void check_staged(const pair *p, const dh_program *program, int64_t chunk_bytes)
{
    int64_t largest = 0;
    for (size_t i = 0; i < p->r.slices.n; i++)
        largest = DH_MAX(largest, bytes_of(&p->r, &p->r.slices.at[i]));
    const int64_t most = 4 * (DH_MAX(chunk_bytes, largest) + 4 * DH_BUFFER_ALIGN) + 4096;
    const int64_t staged = (int64_t)(program->live_bytes - program->persistent_bytes);
    if (staged > most) fail_msg("%lld bytes, %lld at most", (long long)staged, (long long)most);
}

static void programs_verify(void **state)
{
    uint64_t seed = test_seed("programs_verify");
    for (int turn = 0; turn < (TEST_SANITIZED ? 6 : 24); turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        pair p;
        dh_program *programs[16] = {NULL};
        dh_reshard_sum sum;
        int64_t sent = 0;
        draw_pair(&p, &seed, some_what(&seed));
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES,
                                        turn % 3 ? 0 : 20000, NULL));
        assert_ok(&ctx, dh_reshard_sum_up(&ctx, &p.r, DH_RESHARD_EVEN_WIRES, &sum));
        assert_true(turn % 3 || sum.local_bytes + sum.cross_bytes < 400000 || p.r.n_chunks > 1);
        make_programs(&p, programs);
        if (verify_all(&ctx, &p, programs) != DH_OK) fail_msg("%s", ctx.message);
        for (int64_t r = 0; r < p.r.n_ranks; r++) {
            sent += sent_by(programs[r]);
            if (turn % 3 == 0) check_staged(&p, programs[r], 20000);
        }
        assert_int_equal(sent, sum.local_bytes + sum.cross_bytes);
        free_programs(&p, programs);
        close_pair(&p);
    }
}

/* ---- faults -----------------------------------------------------------------------------------
 */

static uint32_t find_messages(const dh_program *p)
{
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (op->type == DH_OP_MESSAGES && op->in[0] != DH_NONE && op->out[0] != DH_NONE) return i;
    }
    return DH_NONE;
}

static int64_t *lengths(dh_program *p, uint32_t i)
{
    return &p->lengths.at[p->blocks.at[p->instrs.at[i].block].lengths0];
}

/* One element more to somebody, one fewer to somebody else: the rank's own sums still hold. */
static void shift_lengths(dh_program *p, uint32_t i)
{
    int64_t *at = lengths(p, i), n = p->mesh.tp;
    int first = 0, last = (int)n - 1;
    while (at[first] == 0) first++;
    while (last == first || last == p->rank % n) last--;
    at[first]--;
    at[last]++;
}

static void lengthen(dh_program *p, uint32_t i)
{
    lengths(p, i)[(p->rank + 1) % p->mesh.tp]++;
}

static void send_to_itself(dh_program *p, uint32_t i)
{
    lengths(p, i)[p->rank % p->mesh.tp] = 1;
}

static void forget_lengths(dh_program *p, uint32_t i)
{
    p->blocks.at[p->instrs.at[i].block].lengths0 = (uint32_t)p->lengths.n;
}

static void drop_waits(dh_program *p, uint32_t i)
{
    p->instrs.at[i].n_waits = 0;
}

static void other_stream(dh_program *p, uint32_t i)
{
    p->instrs.at[i].stream = DH_STREAM_CROSS_STAGES;
}

/* What reads the messages does not wait for them. */
static void read_early(dh_program *p, uint32_t i)
{
    for (uint32_t k = i + 1; k < p->instrs.n; k++)
        for (uint32_t w = 0; w < p->instrs.at[k].n_waits; w++)
            if (p->waits.at[p->instrs.at[k].wait0 + w].instr == i) p->instrs.at[k].n_waits = 0;
}

static void leave_out(dh_program *p, uint32_t i)
{
    p->instrs.n = i;
}

static void faults_are_found(void **state)
{
    static const struct {
        void (*apply)(dh_program *, uint32_t);
        const char *text;
    } faults[] = {{shift_lengths, "do not fit together"}, {lengthen, "its operands are not"},
                  {send_to_itself, "or one to itself"},   {forget_lengths, "has no lengths"},
                  {drop_waits, "a wait for instruction"}, {other_stream, "stream"},
                  {read_early, "a wait for instruction"}, {leave_out, "deadlock"}};
    pair p = {.setups = {{.preset = "gpt2-tiny",
                          .schedule = "1f1b",
                          .tp = 2,
                          .pp = 1,
                          .dp = 2,
                          .n_micro = 2,
                          .seq = 16},
                         {.preset = "gpt2-tiny",
                          .schedule = "1f1b",
                          .tp = 1,
                          .pp = 2,
                          .dp = 2,
                          .n_micro = 2,
                          .seq = 16}}};
    dh_ctx ctx = DH_CTX_INIT;
    open_pair(&p, DH_RESHARD_PARAMS);
    assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_HOTSPA, DH_RESHARD_EVEN_WIRES, 0, NULL));
    for (size_t f = 0; f < DH_COUNTOF(faults); f++) {
        dh_program *programs[4];
        int found = 0;
        for (int rank = 0; rank < 4; rank++) {
            ctx = (dh_ctx)DH_CTX_INIT;
            make_programs(&p, programs);
            const uint32_t at = find_messages(programs[rank]);
            if (at != DH_NONE) {
                faults[f].apply(programs[rank], at);
                const dh_status st = verify_all(&ctx, &p, programs);
                if (st != DH_EVERIFY || !strstr(ctx.message, faults[f].text))
                    fail_msg("fault %zu on rank %d: %d, %s", f, rank, st, ctx.message);
                found++;
            }
            free_programs(&p, programs);
        }
        assert_true(found > 0);
    }
    close_pair(&p);
}

/* ---- what frees a chunk's sends ---------------------------------------------------------------
 */

/* Whether something in front of an instruction of the compute stream, or it, waits for the
 * messages. */
static bool comes_after(const dh_program *p, uint32_t i, uint32_t messages)
{
    for (uint32_t k = 0; k <= i; k++) {
        const dh_instr *instr = &p->instrs.at[k];
        for (uint32_t w = 0; instr->stream == DH_STREAM_COMPUTE && w < instr->n_waits; w++) {
            const uint32_t on = p->waits.at[instr->wait0 + w].instr;
            if (on >= messages && p->instrs.at[on].stream == p->instrs.at[messages].stream)
                return true;
        }
    }
    return false;
}

/* What is taken for a chunk comes when the sends of the one before the last have left. All messages
 * are of one type and wire here, so the n-th are those of chunk n. Returns the first that comes
 * too early. */
static uint32_t taken_early(const dh_program *p)
{
    uint32_t messages[64], n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (op->type == DH_OP_MESSAGES) {
            assert_true(n < DH_COUNTOF(messages));
            messages[n++] = i;
        }
        if (op->type != DH_OP_TAKE_COLUMNS || n < 2) continue;
        const uint32_t before = messages[n - 2];
        if (dh_instr_op(p, &p->instrs.at[before])->in[0] != DH_NONE && !comes_after(p, i, before))
            return i;
    }
    return DH_NONE;
}

/* The waits of what is taken for messages that were sent before, one after another: nothing else
 * frees these where the rank gets nothing in the chunk. */
static void drop_wait(dh_program *p, uint32_t i, uint32_t w)
{
    dh_instr *instr = &p->instrs.at[i];
    dh_wait *at = &p->waits.at[instr->wait0];
    memmove(at + w, at + w + 1, (instr->n_waits - w - 1) * sizeof *at);
    instr->n_waits--;
}

static void put_back(dh_program *p, uint32_t i, uint32_t w, dh_wait wait)
{
    dh_instr *instr = &p->instrs.at[i];
    dh_wait *at = &p->waits.at[instr->wait0];
    memmove(at + w + 1, at + w, (instr->n_waits - w) * sizeof *at);
    at[w] = wait;
    instr->n_waits++;
}

static void drop_each(dh_program *p, int *n_dropped, int *n_races)
{
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (dh_instr_op(p, &p->instrs.at[i])->type != DH_OP_TAKE_COLUMNS) continue;
        for (uint32_t w = 0; w < p->instrs.at[i].n_waits; w++) {
            dh_ctx ctx = DH_CTX_INIT;
            const dh_wait wait = p->waits.at[p->instrs.at[i].wait0 + w];
            if (dh_instr_op(p, &p->instrs.at[wait.instr])->type != DH_OP_MESSAGES) continue;
            drop_wait(p, i, w);
            const bool sends = taken_early(p) == i; /* else the rank only gets something there */
            *n_races += sends && dh_program_verify(&ctx, p) == DH_EVERIFY;
            *n_dropped += sends;
            put_back(p, i, w, wait);
        }
    }
    assert_int_equal(taken_early(p), DH_NONE);
}

static void sends_are_freed_two_chunks_later(void **state)
{
    uint64_t seed = test_seed("sends_are_freed_two_chunks_later");
    int n_chunks = 0, n_dropped = 0, n_races = 0;
    for (int turn = 0; turn < 12; turn++) {
        dh_ctx ctx = DH_CTX_INIT;
        dh_program *programs[16] = {NULL};
        pair p;
        for (int k = 0; k < 2; k++) p.setups[k] = draw(&seed, 0, DH_F32, 1);
        open_pair(&p, DH_RESHARD_PARAMS);
        assert_ok(&ctx, dh_reshard_plan(&ctx, &p.r, DH_RESHARD_FIRST, DH_RESHARD_EVEN_WIRES, 20000,
                                        NULL));
        make_programs(&p, programs);
        n_chunks += (int)p.r.n_chunks;
        for (int64_t r = 0; r < p.r.n_ranks; r++) {
            assert_int_equal(taken_early(programs[r]), DH_NONE);
            drop_each(programs[r], &n_dropped, &n_races);
        }
        free_programs(&p, programs);
        close_pair(&p);
    }
    printf("  %d chunks, %d waits, %d of which keep others out of the sends' memory\n", n_chunks,
           n_dropped, n_races);
    assert_true(n_dropped > 0 && n_races > 0);
}

/* ---- refusals ---------------------------------------------------------------------------------
 */

static void refuse(const setup *a, const setup *b, unsigned what, dh_status status,
                   const char *text)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_reshard r;
    mesh_programs *sides[] = {prepare(a), prepare(b)};
    const dh_layout from = {.recipe = &sides[0]->spec.recipe};
    const dh_layout to = {.recipe = &sides[1]->spec.recipe, .base = DH_LAYOUT_BEHIND};
    assert_int_equal(dh_reshard_open(&ctx, &from, &to, what, &r), status);
    if (!strstr(ctx.message, text)) fail_msg("%s", ctx.message);
    dh_reshard_fini(&r);
    destroy(sides[0]);
    destroy(sides[1]);
}

static void what_cannot_move_is_refused(void **state)
{
    const setup a = {.preset = "gpt2-tiny",
                     .schedule = "1f1b",
                     .tp = 2,
                     .pp = 1,
                     .dp = 2,
                     .n_micro = 2,
                     .seq = 16};
    setup b = a;
    b.dp = 1;
    refuse(&a, &b, DH_RESHARD_PARAMS, DH_EINVAL, "4 ranks and one of 2");
    b = a;
    b.per_node = 2;
    refuse(&a, &b, DH_RESHARD_PARAMS, DH_EINVAL, "nodes stay as they are");
    b = a;
    b.dtype = DH_BF16;
    refuse(&a, &b, DH_RESHARD_PARAMS, DH_EINVAL, "the type stays as it is");
    b = a;
    b.zero = 2;
    refuse(&a, &b, DH_RESHARD_GRADS, DH_EUNSUPPORTED, "parallel.zero=2");
    b = a;
    b.preset = "llama-tiny";
    refuse(&a, &b, DH_RESHARD_PARAMS, DH_EINVAL, "which rank 0 of the second one needs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives),
        cmocka_unit_test(bytes_are_the_closed_count),
        cmocka_unit_test(the_published_algorithm_is_kept),
        cmocka_unit_test(each_rank_has_two_counters),
        cmocka_unit_test(the_exact_plan_is_the_best_of_all),
        cmocka_unit_test(exact_is_never_worse),
        cmocka_unit_test(programs_verify),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(sends_are_freed_two_chunks_later),
        cmocka_unit_test(what_cannot_move_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
