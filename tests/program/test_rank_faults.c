/* Faults seeded into one rank's program of a mesh are found and named with rank and instruction;
 * reduced and full verification agree. */
#include "meshes.h"
#include "strategy/strategy.h"

/* ---- faults --------------------------------------------------------------------------------- */

static bool communicates(const dh_program *p, uint32_t i)
{
    return dh_op_info_of(dh_instr_op(p, &p->instrs.at[i])->type)->resource == DH_RES_COMM;
}

static bool is_transfer(const dh_program *p, uint32_t i)
{
    const dh_op_type type = dh_instr_op(p, &p->instrs.at[i])->type;
    return type == DH_OP_SEND || type == DH_OP_RECV;
}

/* The next communication with the same partners, in the same direction; DH_NONE. Calls
 * with different partners may sometimes change places without harm. */
static uint32_t next_call(const dh_program *p, uint32_t i)
{
    const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
    const int32_t peer = p->blocks.at[p->instrs.at[i].block].peer;
    for (uint32_t k = i + 1; k < p->instrs.n; k++) {
        const dh_op *other = dh_instr_op(p, &p->instrs.at[k]);
        if (!communicates(p, k) || other->group != op->group) continue;
        if (is_transfer(p, i) &&
            (other->type != op->type || p->blocks.at[p->instrs.at[k].block].peer != peer))
            continue;
        return k;
    }
    return DH_NONE;
}

/* Each returns false where it does not apply to the instruction. */
static bool swap_calls(dh_program *p, uint32_t i)
{
    const uint32_t next = next_call(p, i);
    if (next == DH_NONE) return false;
    const dh_instr moved = p->instrs.at[i];
    p->instrs.at[i] = p->instrs.at[next];
    p->instrs.at[next] = moved;
    return true;
}

static void halve_tensor(dh_program *p, uint32_t graph, uint32_t tensor)
{
    if (tensor == DH_NONE) return;
    dh_graph *g = p->graphs.at[graph];
    dh_tensor *t = &g->tensors.at[tensor];
    t->shape[t->ndim == 2 && t->shape[0] == 1 ? 1 : 0] /= 2;
    for (size_t k = 0; k < p->instrs.n; k++) {
        const dh_instr *i = &p->instrs.at[k];
        if (p->blocks.at[i->block].graph != graph) continue;
        const dh_op *op = &g->ops.at[i->op];
        const dh_op_info *info = dh_op_info_of(op->type);
        for (int n = 0; n < info->n_in + info->n_out; n++)
            if ((n < info->n_in ? op->in[n] : op->out[n - info->n_in]) == tensor)
                p->operands.at[i->operand0 + (uint32_t)n].n_bytes = (uint64_t)dh_tensor_bytes(t);
    }
}

static bool halve_size(dh_program *p, uint32_t i)
{
    const dh_op op = *dh_instr_op(p, &p->instrs.at[i]);
    const uint32_t graph = p->blocks.at[p->instrs.at[i].block].graph;
    const uint32_t in = op.in[0], out = op.type == DH_OP_SEND ? DH_NONE : op.out[0];
    const dh_tensor *t = &p->graphs.at[graph]->tensors.at[in == DH_NONE ? out : in];
    if (dh_tensor_elements(t) % 2) return false;
    if (in != out) halve_tensor(p, graph, in);
    halve_tensor(p, graph, out);
    return true;
}

static bool change_peer(dh_program *p, uint32_t i)
{
    if (!is_transfer(p, i)) return false;
    dh_block *b = &p->blocks.at[p->instrs.at[i].block];
    b->peer = (int32_t)((b->peer + 1) % p->mesh.pp);
    return true;
}

static bool change_tag(dh_program *p, uint32_t i)
{
    if (is_transfer(p, i)) p->blocks.at[p->instrs.at[i].block].tag ^= 1;
    return is_transfer(p, i);
}

static bool drop_call(dh_program *p, uint32_t i)
{
    uint32_t before = i;
    while (before-- > 0)
        if (p->instrs.at[before].stream == p->instrs.at[i].stream) break;
    if (before == UINT32_MAX) return false; /* waits for it would have no substitute */
    p->instrs.n--;
    memmove(&p->instrs.at[i], &p->instrs.at[i + 1], (p->instrs.n - i) * sizeof *p->instrs.at);
    for (size_t w = 0; w < p->waits.n; w++) {
        uint32_t *wait = &p->waits.at[w].instr;
        *wait = *wait == i ? before : *wait > i ? *wait - 1 : *wait;
    }
    return true;
}

static bool drop_waits(dh_program *p, uint32_t i)
{
    const bool had = p->instrs.at[i].n_waits > 0;
    p->instrs.at[i].n_waits = 0;
    return had;
}

static bool move_stream(dh_program *p, uint32_t i)
{
    dh_instr *instr = &p->instrs.at[i];
    instr->stream = instr->stream == DH_STREAM_LOCAL ? DH_STREAM_CROSS : DH_STREAM_LOCAL;
    return true;
}

static const struct {
    const char *name;
    bool (*apply)(dh_program *p, uint32_t i);
} faults[] = {{"swap", swap_calls},   {"size", halve_size}, {"peer", change_peer},
              {"tag", change_tag},    {"drop", drop_call},  {"wait", drop_waits},
              {"stream", move_stream}};

static uint32_t random_call(const dh_program *p, uint64_t *seed)
{
    for (;;) {
        const uint32_t i = (uint32_t)(test_rand(seed) % p->instrs.n);
        if (communicates(p, i)) return i;
    }
}

static const setup fault_setups[] = {
    {"gpt2-tiny", "1f1b", 1, 4, 1, 0, 8, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0, false},
    {"llama-tiny", "1f1b", 2, 2, 2, 0, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0, false},
    {"gpt2-tiny", "zb-h1", 2, 4, 1, 2, 8, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0, false},
    {"llama-tiny", "interleaved-1f1b", 1, 2, 4, 1, 4, 16, DH_F32, true, 1, 0, NULL, 0, 0, 0, false},
    {"gpt2-tiny", "dhelix-w", 2, 2, 2, 4, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0, false},
    {"mixtral-tiny", "1f1b", 1, 1, 4, 0, 2, 16, DH_F32, true, 1, 0, NULL, 0, 2, DH_MOE_DROPLESS,
     false},
    {"mixtral-tiny", "dhelix-w", 2, 2, 2, 4, 4, 16, DH_F32, false, 1, 0, NULL, 50000, 2,
     DH_MOE_CAPACITY, false},
};

/* Operators by rows on the chunks of a reduce-scatter; and gathered by the same chunks. */
enum { N_FUSED = 3 };
static setup fused_setup(size_t n)
{
    static const dh_pass_list passes[N_FUSED] = {DH_PASSES(1, DH_PASS_USE(fuse, 2, false)),
                                                 DH_PASSES(1, DH_PASS_USE(fuse, 4, false)),
                                                 DH_PASSES(1, DH_PASS_USE(fuse, 2, true))};
    static dh_strategy strategies[N_FUSED];
    size_t n_rows;
    setup s = {"llama-tiny",    "1f1b", 2, 1, 1, 0, 2, 32, DH_F32, false, 1, 0, NULL, 0, 1,
               DH_MOE_DROPLESS, false};
    if (n == 0) s.tp = 4;
    strategies[n] = dh_strategies(&n_rows)[0];
    strategies[n].passes = passes[n];
    s.strategy = &strategies[n];
    return s;
}

/* Rings; groups of two nodes in stages, layers' and, of four ranks of data, gradients'. */
enum { N_MORE = 3 };
static setup more_setup(size_t n)
{
    static const char *const strategies[N_MORE] = {"intra-batch-bidirectional", "centauri",
                                                   "centauri"};
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {"llama-tiny",    "1f1b", 4, 1, 1, 0, 2, 32, DH_F32, false, 1, 0, NULL, 0, 1,
               DH_MOE_DROPLESS, false};
    if (n > 0) s.per_node = 2;
    if (n == 2) s.tp = 1, s.dp = 4, s.n_micro = 4;
    assert_ok(&ctx, dh_strategy_find(&ctx, strategies[n], &s.strategy));
    return s;
}

/* Linear attention over three ranks that share sequences: states gathered, or handed on; or in one
 * of two layers alone. */
static mesh_programs *build_linear(bool ring, bool hybrid)
{
    const setup s = {"llama-tiny", "1f1b", 1, 1,    1, 0, 2, 24,   DH_F32,
                     false,        3,      0, NULL, 0, 0, 0, false};
    mesh_programs *m = prepare(&s);
    m->spec.recipe.model.attention = DH_ATTENTION_LINEAR;
    m->spec.recipe.model.softmax_every = hybrid ? 2 : 0;
    m->spec.recipe.linear_ring = ring;
    return build_all(m);
}

enum {
    MORE = DH_COUNTOF(fault_setups),
    LASP2 = MORE + N_MORE,
    LASP1,
    LASP2H,
    FUSED,
    N_FAULT_SETUPS = FUSED + N_FUSED
};

static mesh_programs *build_faultless(size_t n)
{
    if (n >= FUSED) {
        const setup fused = fused_setup(n - FUSED);
        return build(&fused);
    }
    if (n >= LASP2) return build_linear(n == LASP1, n == LASP2H);
    const setup s = n < MORE ? fault_setups[n] : more_setup(n - MORE);
    return build(&s);
}

/* The faulty rank is one of those named, unless a long cycle was cut short. */
static void assert_names_rank(const dh_ctx *ctx, size_t rank, const char *fault)
{
    char want[32];
    snprintf(want, sizeof want, "rank %zu", rank);
    if (!strstr(ctx->message, want) && !strstr(ctx->message, "a cycle of"))
        fail_msg("%s on rank %zu: %s", fault, rank, ctx->message);
    assert_non_null(strstr(ctx->message, "instruction "));
}

static void faults_are_found_and_named(void **state)
{
    uint64_t seed = test_seed("faults_are_found_and_named");
    for (size_t n = 0; n < N_FAULT_SETUPS; n++)
        for (int turn = 0; turn < 6; turn++)
            for (size_t k = 0; k < DH_COUNTOF(faults); k++) {
                mesh_programs *m = build_faultless(n);
                const size_t rank = test_rand(&seed) % m->n;
                dh_program *p = m->at[rank];
                const uint32_t i = random_call(p, &seed);
                char text[256];
                dh_instr_describe(p, i, text, sizeof text);
                if (faults[k].apply(p, i)) {
                    dh_ctx ctx = DH_CTX_INIT;
                    if (verify(&ctx, m) != DH_EVERIFY)
                        fail_msg("setup %zu: %s of %s is not found: %s", n, faults[k].name, text,
                                 ctx.message);
                    assert_names_rank(&ctx, rank, faults[k].name);
                }
                destroy(m);
            }
}

/* ---- waits of fused programs ----------------------------------------------------------------- */

/* The instruction before one on its stream; DH_NONE. */
static uint32_t before_on_stream(const dh_program *p, uint32_t i)
{
    uint32_t k = i;
    while (k-- > 0)
        if (p->instrs.at[k].stream == p->instrs.at[i].stream) return k;
    return DH_NONE;
}

/* A part less than it is, or all of the instruction before; false: there is none. */
static bool wait_for_less(const dh_program *p, dh_wait *wait)
{
    const uint32_t last = dh_instr_n_parts(p, wait->instr) - 1;
    const uint32_t part = wait->part == DH_NONE ? last : wait->part;
    if (part > 0) {
        wait->part = part - 1;
        return true;
    }
    wait->instr = before_on_stream(p, wait->instr);
    wait->part = DH_NONE;
    return wait->instr != DH_NONE;
}

static void drop_wait(dh_program *p, uint32_t i, uint32_t w)
{
    dh_instr *instr = &p->instrs.at[i];
    dh_wait *at = &p->waits.at[instr->wait0];
    memmove(at + w, at + w + 1, (instr->n_waits - w - 1u) * sizeof *at);
    instr->n_waits--;
}

static void assert_found(const dh_program *p, uint32_t i, uint32_t w, const char *what)
{
    dh_ctx ctx = DH_CTX_INIT;
    char text[256];
    dh_instr_describe(p, i, text, sizeof text);
    if (dh_program_verify(&ctx, p) != DH_EVERIFY)
        fail_msg("wait %u of %s, %s, is not found", w, text, what);
    if (!strstr(ctx.message, "instruction ")) fail_msg("%s", ctx.message);
}

/* *in_parts: waits for a part of what a chunk passes on. */
static void spoil_wait(dh_program *p, uint32_t i, uint32_t w, size_t *in_parts)
{
    const dh_instr was = p->instrs.at[i];
    dh_wait waits[16];
    assert_true(was.n_waits <= DH_COUNTOF(waits));
    memcpy(waits, &p->waits.at[was.wait0], was.n_waits * sizeof *waits);
    *in_parts += waits[w].part != DH_NONE;
    drop_wait(p, i, w);
    assert_found(p, i, w, "left out");
    p->instrs.at[i] = was;
    memcpy(&p->waits.at[was.wait0], waits, was.n_waits * sizeof *waits);
    if (wait_for_less(p, &p->waits.at[was.wait0 + w])) assert_found(p, i, w, "for less");
    memcpy(&p->waits.at[was.wait0], waits, was.n_waits * sizeof *waits);
}

/* No wait of a fused program is to spare: one left out, or for a chunk less, is found. */
static void every_wait_of_fused_programs_is_needed(void **state)
{
    for (size_t n = 0; n < N_FUSED; n++) {
        dh_ctx ctx = DH_CTX_INIT;
        mesh_programs *m = build_faultless(FUSED + n);
        dh_program *p = m->at[m->n - 1];
        size_t in_parts = 0;
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        for (uint32_t i = 0; i < p->instrs.n; i++)
            for (uint32_t w = 0; w < p->instrs.at[i].n_waits; w++) spoil_wait(p, i, w, &in_parts);
        assert_true(in_parts >= 8);
        destroy(m);
    }
}

/* ---- reduced and full ----------------------------------------------------------------------- */

static dh_status verify_reduced(dh_ctx *ctx, const mesh_programs *m, const dh_rank_classes *c)
{
    const dh_program **programs = calloc(c->n, sizeof(dh_program *));
    assert_non_null(programs);
    dh_status st = DH_OK;
    for (size_t k = 0; k < c->n; k++) programs[k] = m->at[c->first[k]];
    for (size_t k = 0; st == DH_OK && k < c->n; k++) st = dh_class_verify(ctx, programs[k]);
    if (st == DH_OK) st = dh_ranks_replay(ctx, programs, c->n, c->of);
    free(programs);
    return st;
}

/* The same fault in all ranks of one class, at random calls: swaps of any two calls that
 * follow each other, which may be harmless, among them. */
static bool swap_any(dh_program *p, uint32_t i)
{
    for (uint32_t k = i + 1; k < p->instrs.n; k++) {
        if (!communicates(p, k) || p->instrs.at[k].stream != p->instrs.at[i].stream) continue;
        const dh_instr moved = p->instrs.at[i];
        p->instrs.at[i] = p->instrs.at[k];
        p->instrs.at[k] = moved;
        return true;
    }
    return false;
}

/* Experts over nodes of two, copies of them and tensor parallelism inside: whom a stage joins
 * follows from the place on the axis that nodes cut. */
static setup staged_setup(void)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = {"mixtral-tiny",  "1f1b", 1, 2, 8, 2, 2, 16, DH_F32, false, 1, 0, NULL, 50000, 4,
               DH_MOE_CAPACITY, false};
    assert_ok(&ctx, dh_strategy_find(&ctx, "centauri", &s.strategy));
    return s;
}

static void reduced_agrees_with_full(void **state)
{
    uint64_t seed = test_seed("reduced_agrees_with_full");
    const setup setups[] = {
        {"llama-tiny", "1f1b", 4, 2, 2, 0, 4, 16, DH_BF16, true, 1, 0, NULL, 50000, 0, 0, false},
        {"gpt2-tiny", "zb-h1", 1, 2, 3, 0, 4, 16, DH_F32, true, 1, 0, NULL, 0, 0, 0, false},
        {"gpt2-tiny", "interleaved-1f1b", 2, 2, 3, 2, 4, 16, DH_F32, false, 1, 0, NULL, 0, 0, 0,
         false},
        {"mixtral-tiny", "1f1b", 1, 1, 8, 0, 2, 16, DH_F32, true, 1, 0, NULL, 50000, 4, 0, false},
    };
    size_t n_failed = 0, n_passed = 0;
    for (size_t n = 0; n <= DH_COUNTOF(setups); n++)
        for (int turn = 0; turn < 40; turn++) {
            const setup s = n < DH_COUNTOF(setups) ? setups[n] : staged_setup();
            mesh_programs *m = build(&s);
            dh_ctx ctx = DH_CTX_INIT, reduced = DH_CTX_INIT;
            dh_rank_classes c;
            assert_ok(&ctx, dh_rank_classes_find(&ctx, &m->spec, &c));
            assert_true(c.n < m->n);
            const uint32_t class = (uint32_t)(test_rand(&seed) % c.n);
            const size_t kind = test_rand(&seed) % (DH_COUNTOF(faults) + 1);
            const uint32_t i = random_call(m->at[c.first[class]], &seed);
            for (size_t r = 0; r < m->n; r++)
                if (c.of[r] == class)
                    (kind < DH_COUNTOF(faults) ? faults[kind].apply : swap_any)(m->at[r], i);
            const dh_status st = verify(&ctx, m);
            if (verify_reduced(&reduced, m, &c) != st) {
                print_setup(&s);
                fail_msg("full: %s; reduced: %s", ctx.message, reduced.message);
            }
            n_failed += st != DH_OK;
            n_passed += st == DH_OK;
            dh_rank_classes_fini(&c);
            destroy(m);
        }
    print_message("%zu faulty, %zu harmless\n", n_failed, n_passed);
    assert_true(n_failed > 40);
}

/* ---- messages ------------------------------------------------------------------------------- */

static uint32_t next(const dh_program *p, dh_op_type type, uint32_t after)
{
    for (uint32_t i = after + 1; i < p->instrs.n; i++)
        if (dh_instr_op(p, &p->instrs.at[i])->type == type) return i;
    fail_msg("no instruction of type %d", (int)type);
    return 0;
}

static uint32_t find(const dh_program *p, dh_op_type type)
{
    return next(p, type, UINT32_MAX);
}

/* Seeds one fault on one rank, at the first operator of the type that can have it, and compares what is said. Only a missing wait is left to
 * the rank's own verification, which finds most others first. */
static void expect(const setup *s, size_t rank, dh_op_type type,
                   bool (*fault)(dh_program *, uint32_t), const char *const *parts, size_t n)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = build(s);
    uint32_t at = find(m->at[rank], type);
    while (!fault(m->at[rank], at)) at = next(m->at[rank], type, at);
    const dh_program *const *programs = (const dh_program *const *)m->at;
    assert_int_equal(fault == drop_waits ? dh_programs_verify(&ctx, programs, m->n)
                                         : dh_ranks_replay(&ctx, programs, m->n, NULL),
                     DH_EVERIFY);
    for (size_t i = 0; i < n; i++)
        if (!strstr(ctx.message, parts[i])) fail_msg("\"%s\" lacks \"%s\"", ctx.message, parts[i]);
    destroy(m);
}
#define EXPECT(s, rank, type, fault, ...)                                                          \
    expect(s, rank, type, fault, (const char *const[]){__VA_ARGS__},                               \
           DH_COUNTOF(((const char *const[]){__VA_ARGS__})))

/* The first send waits for a receive that follows it. Each has a stream of its own. */
static bool receive_first(dh_program *p)
{
    uint32_t send = find(p, DH_OP_SEND), recv = send;
    for (uint32_t k = 0; k < p->instrs.n; k++) p->instrs.at[k].n_waits = 0;
    while (dh_instr_op(p, &p->instrs.at[recv])->type != DH_OP_RECV) recv++;
    const dh_instr moved = p->instrs.at[recv];
    memmove(&p->instrs.at[send + 1], &p->instrs.at[send], (recv - send) * sizeof moved);
    p->instrs.at[send] = moved;
    p->instrs.at[send + 1].wait0 = (uint32_t)p->waits.n;
    p->instrs.at[send + 1].n_waits = 1;
    return dh_vec_push(&p->waits, ((dh_wait){send, DH_NONE}));
}

static bool take_part_in(dh_program *p, uint32_t i)
{
    p->graphs.at[p->blocks.at[p->instrs.at[i].block].graph]->ops.at[p->instrs.at[i].op].group =
        DH_GROUP_EMBED;
    return true;
}

static uint32_t tensor_of(dh_program *p, uint32_t i, int operand, uint32_t *graph)
{
    *graph = p->blocks.at[p->instrs.at[i].block].graph;
    return dh_instr_op(p, &p->instrs.at[i])->in[operand];
}

/* Room for half of what may come back, as if this rank's moe.capacity were another. */
static bool halve_input(dh_program *p, uint32_t i)
{
    uint32_t graph, tensor = tensor_of(p, i, 0, &graph);
    halve_tensor(p, graph, tensor);
    return true;
}

static bool halve_offsets(dh_program *p, uint32_t i)
{
    uint32_t graph, tensor = tensor_of(p, i, 1, &graph);
    halve_tensor(p, graph, tensor);
    return true;
}

static bool forget_blocks(dh_program *p, uint32_t i)
{
    dh_graph *g = p->graphs.at[p->blocks.at[p->instrs.at[i].block].graph];
    while (g->ops.at[p->instrs.at[i].op].blocks == 0) i++;
    g->ops.at[p->instrs.at[i].op].blocks = 0;
    return true;
}

/* Rows that go through a rank of their sender's place on the experts' node. */
static void rows_in_stages_fit_together(void **state)
{
    static const dh_strategy staged = {
        .name = "staged",
        .passes = DH_PASSES(1, DH_PASS_USE(two_stage, DH_STAGES_NARROW, 1)),
        .policy = "sequential"};
    const setup s = {.preset = "mixtral-tiny",
                     .schedule = "1f1b",
                     .tp = 1,
                     .pp = 1,
                     .dp = 4,
                     .per_node = 2,
                     .n_micro = 4,
                     .seq = 16,
                     .strategy = &staged,
                     .ep = 4,
                     .moe = DH_MOE_DROPLESS};
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, halve_size, "on group ep-cross", "rank 3", "rank 1",
           "do not fit together");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, forget_blocks, "on group ep-node", "rank 1", "rank 0",
           "1 blocks", "2 blocks", "do not fit together");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, halve_offsets, "its operands do not fit", "rank 0");
    EXPECT(&s, 2, DH_OP_ALL_TO_ALL_ROWS, drop_waits, "rank 2", "a wait for instruction");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, drop_call, "on group ep-cross", "rank 0", "rank 2");
}

static void experts_exchange_alike(void **state)
{
    /* 32 tokens, 2 of 8 experts each; rows of 64 */
    const setup s = {.preset = "mixtral-tiny",
                     .schedule = "1f1b",
                     .tp = 1,
                     .pp = 1,
                     .dp = 2,
                     .n_micro = 2,
                     .seq = 16,
                     .ep = 2,
                     .moe = DH_MOE_DROPLESS};
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, halve_size, "on group ep", "rank 0) is all_to_all_rows of",
           "rank 1) is all_to_all_rows of", "runs", "do not fit together");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, halve_input, "on group ep", "rank 1) is all_to_all_rows",
           "do not fit together");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, halve_offsets, "its operands do not fit", "rank 0");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL, halve_size, "all_to_all of", "rank 1", "rank 0");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, swap_calls, "deadlock", "all_to_all_rows", "rank 1");
    EXPECT(&s, 1, DH_OP_ALL_TO_ALL_ROWS, drop_waits, "rank 1", "a wait for instruction");
    EXPECT(&s, 0, DH_OP_ALL_TO_ALL_ROWS, drop_call, "on group ep", "rank 0", "rank 1");
}

static void messages_name_both_ends(void **state)
{
    const setup pipe = {"llama-tiny", "1f1b", 1, 3,    1, 0, 3, 16,   DH_F32,
                        false,        1,      0, NULL, 0, 0, 0, false};
    const setup tensor = {"llama-tiny", "1f1b", 2, 1,    2,      0, 1, 16,   DH_F32,
                          false,        1,      0, NULL, 150000, 0, 0, false};
    EXPECT(&pipe, 1, DH_OP_SEND, change_tag, "two ends of a transfer", "rank 1) is send",
           "with tag 1", "rank 2) is recv", "with tag 0", "micro-batch 0");
    EXPECT(&pipe, 0, DH_OP_SEND, halve_size, "rank 0) is send of 1024 f32",
           "rank 1) is recv of 2048 f32");
    EXPECT(&pipe, 0, DH_OP_SEND, change_peer, "deadlock", "rank 0", "waits for rank 2", "rank 1");
    EXPECT(&pipe, 2, DH_OP_SEND, drop_call, "two ends of a transfer",
           "recv -> x (link, micro-batch 1", "rank 1) is recv", "send (link, micro-batch 2",
           "rank 2) is send");
    EXPECT(&tensor, 3, DH_OP_ALL_GATHER, move_stream, "group tp", "rank 3", "stream");
    EXPECT(&tensor, 2, DH_OP_ALL_REDUCE, drop_call, "do not fit", "on group", "rank 2");
    EXPECT(&tensor, 1, DH_OP_ALL_GATHER, drop_waits, "rank 1", "a wait for instruction");
    EXPECT(&pipe, 1, DH_OP_RECV, take_part_in, "rank 1", "no part in group embed");
}

/* A stage that receives before it sends what its neighbour needs first. */
static void deadlock_shows_the_cycle(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny", "1f1b", 1, 2,    1, 0, 2, 16,   DH_F32,
                     false,        1,      0, NULL, 0, 0, 0, false};
    mesh_programs *m = build(&s);
    assert_true(receive_first(m->at[0]));
    const dh_program *const *programs = (const dh_program *const *)m->at;
    assert_int_equal(dh_ranks_replay(&ctx, programs, m->n, NULL), DH_EVERIFY);
    static const char *const parts[] = {
        "deadlock: instruction ", "recv -> x (link, micro-batch 0, ",
        "waits for rank 1, which is at instruction", "waits for rank 0", "the first named here"};
    for (size_t i = 0; i < DH_COUNTOF(parts); i++)
        if (!strstr(ctx.message, parts[i])) fail_msg("\"%s\" lacks \"%s\"", ctx.message, parts[i]);
    destroy(m);
}

static void other_meshes_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    const setup s = {"llama-tiny", "1f1b", 1, 2,    1, 0, 2, 16,   DH_F32,
                     false,        1,      0, NULL, 0, 0, 0, false};
    mesh_programs *m = build(&s);
    const dh_program *programs[] = {m->at[1], m->at[0]};
    assert_fails(&ctx, dh_programs_verify(&ctx, programs, 2), DH_EINVAL, "in order");
    assert_fails(&ctx, dh_programs_verify(&ctx, programs + 1, 1), DH_EINVAL, "rank 0 of 2");
    assert_ok(&ctx, dh_programs_verify(&ctx, programs, 0));
    destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wait_of_fused_programs_is_needed),
        cmocka_unit_test(faults_are_found_and_named),
        cmocka_unit_test(reduced_agrees_with_full),
        cmocka_unit_test(experts_exchange_alike),
        cmocka_unit_test(rows_in_stages_fit_together),
        cmocka_unit_test(messages_name_both_ends),
        cmocka_unit_test(deadlock_shows_the_cycle),
        cmocka_unit_test(other_meshes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
