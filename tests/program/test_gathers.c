/* When parameters that ranks share out are gathered: at the beginning of a step, around what reads
 * them in slots that a strategy orders, once for a forward and its backward; and that the verifier
 * finds what is old, missing or comes too early. */
#include "zero.h"

/* ---- kept until the backward ------------------------------------------------------------------
 */

/* Without resharding after the forward whole parameters are there at once, over those that a rank
 * has with ZeRO-2, and no more whatever the number of micro-batches under way. */
static void kept_parameters_are_whole_once(void **state)
{
    for (int variant = 0; variant < 4; variant++) {
        setup s = base;
        s.dtype = variant & 1 ? DH_BF16 : DH_F32;
        s.pp = variant & 2 ? 2 : 1;
        s.dp = 2;
        s.n_micro = 4;
        s.bucket = 1000;
        dh_program *two = build_zero(&s, 2), *three = build_between(&s, DH_GATHERED_WHOLE, 1);
        const gradients g = gradients_of(three);
        const uint64_t item = dh_dtype_bytes(s.dtype), dp = (uint64_t)s.dp;
        const uint64_t whole = g.whole / sizeof(float) * item;
        assert_int_equal(two->persistent_bytes - three->persistent_bytes, whole * (dp - 1) / dp);
        assert_true(three->live_bytes <= two->live_bytes + whole / dp);
        dh_program_destroy(two);
        dh_program_destroy(three);
    }
}

/* All-gathers of parameters in a program, and of whole ones the bytes. */
static int count_gathers(const dh_program *p, uint64_t *n_bytes)
{
    int n = 0;
    *n_bytes = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_block_kind kind = dh_instr_graph(p, &p->instrs.at[i])->kind;
        if (!is(p, i, DH_OP_ALL_GATHER) || (kind != DH_BLOCK_OPT && kind != DH_BLOCK_GATHER))
            continue;
        *n_bytes += dh_instr_operand(p, &p->instrs.at[i], 1)->n_bytes;
        n++;
    }
    return n;
}

/* ---- by virtual stage --------------------------------------------------------------------------
 */

/* Buckets of the parameters of a layer or of the ends are whole at once, and ever. */
static int most_whole(const dh_program *p)
{
    int whole = 0, most = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (kind_of(p, i) != DH_BLOCK_GATHER) continue;
        if (is(p, i, DH_OP_RELEASE)) whole--;
        if (!is(p, i, DH_OP_RELEASE) && p->instrs.at[i].op == 0) whole++;
        most = DH_MAX(most, whole);
    }
    assert_int_equal(whole, 0);
    return most;
}

/* As breadth-first pipelines have it: what a virtual stage has gathered serves all micro-batches of
 * a step, forward and then backward, and the last one's both; no more is whole than of one
 * micro-batch. One micro-batch after another gathers as often as there are of them. */
static void a_stage_gathers_for_all_micro_batches(void **state)
{
    static const char *const schedules[] = {"looped-bfs", "gpipe"};
    for (int variant = 0; variant < 8; variant++) {
        setup s = base;
        uint64_t by_stage[2], by_micro[2];
        int most[2];
        s.schedule = schedules[variant / 4];
        s.pp = variant & 1 ? 2 : 1;
        s.dp = 2;
        s.bucket = 1000;
        dh_recipe micro = {.sharing = dh_sharing_of(3)};
        micro.sharing.prefetch = 1 + (variant >> 1 & 1);
        dh_recipe stage = micro;
        stage.sharing.regather = DH_REGATHER_STAGE;
        for (int many = 0; many < 2; many++) {
            s.n_micro = many ? 4 : 1;
            dh_program *one = build_how(&s, &micro), *all = build_how(&s, &stage);
            count_gathers(one, &by_micro[many]);
            count_gathers(all, &by_stage[many]);
            most[many] = most_whole(all);
            dh_program_destroy(one);
            dh_program_destroy(all);
        }
        assert_int_equal(by_micro[1], 4 * by_micro[0]);
        assert_int_equal(by_stage[1], by_stage[0]);
        assert_true(by_stage[0] < by_micro[0] || s.pp > 1);
        assert_true(by_stage[0] <= by_micro[0]);
        assert_int_equal(most[0], most[1]);
    }
}

/* The last operator of a layer's backward, and the first gather for it. */
static void find_backward(const dh_program *p, int layer, uint32_t *computes, uint32_t *gathered)
{
    *computes = *gathered = DH_NONE;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (p->blocks.at[p->instrs.at[i].block].layer != layer ||
            dh_instr_op(p, &p->instrs.at[i])->phase != DH_PHASE_B)
            continue;
        if (kind_of(p, i) == DH_BLOCK_LAYER) *computes = i;
        if (kind_of(p, i) == DH_BLOCK_GATHER && *gathered == DH_NONE) *gathered = i;
    }
}

/* Blocks that go ahead of the last ones of a virtual stage are the first ones of the next: their
 * gathers are not behind what a stage reduces when all micro-batches have been through it. */
static void the_next_stage_is_gathered_ahead(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        setup s = base;
        uint32_t computes, gathered, next;
        dh_program *p;
        s.zero = 3;
        s.schedule = "looped-bfs";
        s.n_micro = 4;
        s.bucket = 1000;
        mesh_programs *m = prepare(&s);
        m->spec.recipe.model.n_layers = 8;
        m->spec.recipe.sharing.prefetch = prefetch;
        m->spec.recipe.sharing.regather = DH_REGATHER_STAGE;
        assert_ok(&ctx, dh_program_build(&ctx, &m->spec, &p));
        for (int ahead = 1; ahead < 3; ahead++) { /* layers 3 and 2, behind layer 4 of the last */
            find_backward(p, 4, &computes, &gathered);
            find_backward(p, 4 - ahead, &next, &gathered);
            assert_int_equal(gathered < computes, ahead <= prefetch);
        }
        dh_program_destroy(p);
        destroy(m);
    }
}

/* What a rank has of its node's shares behind the first micro-batch's forward. */
static uint64_t share_bytes(const dh_program *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) == DH_BLOCK_GATHER && is(p, i, DH_OP_COPY) && instr->mb == 0)
            n += dh_instr_operand(p, instr, 1)->n_bytes;
    }
    return n;
}

/* Of all that a backward reads: the embedding is not. */
static uint64_t backward_bytes(const dh_program *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        if (kind_of(p, i) == DH_BLOCK_GATHER && is(p, i, DH_OP_ALL_GATHER) && instr->mb == 0 &&
            dh_instr_op(p, instr)->phase == DH_PHASE_B)
            n += dh_instr_operand(p, instr, 1)->n_bytes;
    }
    return n;
}

/* Resharded to a node the rank's share of it is there, one over its ranks of all parameters, and
 * whole are the blocks in use. */
static void a_node_keeps_its_shares(void **state)
{
    for (int variant = 0; variant < 8; variant++) {
        setup s = base;
        const int64_t prefetch = variant / 4;
        s.dtype = variant & 1 ? DH_BF16 : DH_F32;
        s.n_micro = variant & 2 ? 3 : 1;
        s.dp = 8;
        s.per_node = 4;
        s.bucket = 1000;
        dh_program *node = build_between(&s, DH_GATHERED_SHARE, prefetch);
        dh_program *shards = build_between(&s, DH_GATHERED_NOTHING, prefetch);
        const uint64_t share = share_bytes(node);
        assert_true(share > 0 && share_bytes(shards) == 0);
        assert_int_equal(4 * share, backward_bytes(shards));
        assert_int_equal(node->persistent_bytes, shards->persistent_bytes);
        assert_true(node->live_bytes <= shards->live_bytes + share);
        dh_program_destroy(node);
        dh_program_destroy(shards);
    }
}

/* Behind a forward backwards gather inside nodes, forwards among all. */
static void backwards_gather_inside_nodes(void **state)
{
    setup s = base;
    uint64_t bytes, all_bytes;
    int n_near = 0, n_far = 0;
    s.dp = 4;
    s.per_node = 2;
    dh_program *p = build_between(&s, DH_GATHERED_SHARE, 1), *all = build_ahead(&s, 3, 1);
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        const dh_op *op = dh_instr_op(p, &p->instrs.at[i]);
        if (kind_of(p, i) != DH_BLOCK_GATHER || op->type != DH_OP_ALL_GATHER) continue;
        assert_int_equal(op->group, op->phase == DH_PHASE_F ? DH_GROUP_DP_CP : DH_GROUP_DP_CP_NODE);
        n_near += op->group == DH_GROUP_DP_CP_NODE;
        n_far += op->group == DH_GROUP_DP_CP;
    }
    assert_true(n_near >= 4 && n_far >= 4);
    assert_int_equal(count_gathers(p, &bytes), count_gathers(all, &all_bytes));
    assert_int_equal(bytes, all_bytes);
    dh_program_destroy(p);
    dh_program_destroy(all);
}

static dh_program *build_shared(const setup *s, int64_t n_share, int64_t prefetch)
{
    dh_recipe how = {.sharing = dh_sharing_of(3), .mesh = {.share_ranks = n_share}};
    how.sharing.prefetch = prefetch;
    how.sharing.reshard = DH_GATHERED_SHARE;
    return build_how(s, &how);
}

/* Resharded to any number of neighbours, across nodes or inside them: the rank's share is one over
 * these, and backwards gather among them. As many as a node has are the node. */
static void neighbours_keep_their_shares(void **state)
{
    for (int64_t n = 2; n <= 4; n += 2)
        for (int variant = 0; variant < 4; variant++) {
            setup s = base;
            int n_near = 0;
            s.dtype = variant & 1 ? DH_BF16 : DH_F32;
            s.dp = 8;
            s.per_node = variant & 2 ? 4 : 2;
            s.bucket = 1000;
            dh_program *near = build_shared(&s, n, 1);
            dh_program *shards = build_between(&s, DH_GATHERED_NOTHING, 1);
            const uint64_t share = share_bytes(near);
            assert_int_equal((uint64_t)n * share, backward_bytes(shards));
            assert_int_equal(near->persistent_bytes, shards->persistent_bytes);
            assert_true(near->live_bytes <= shards->live_bytes + share);
            for (uint32_t i = 0; i < near->instrs.n; i++)
                n_near += kind_of(near, i) == DH_BLOCK_GATHER &&
                          dh_instr_op(near, &near->instrs.at[i])->group == DH_GROUP_DP_CP_SHARE;
            assert_true(n_near >= 4);
            if (n == s.per_node) {
                dh_program *node = build_between(&s, DH_GATHERED_SHARE, 1);
                assert_int_equal(node->live_bytes, near->live_bytes);
                assert_int_equal(node->instrs.n, near->instrs.n);
                dh_program_destroy(node);
            }
            dh_program_destroy(near);
            dh_program_destroy(shards);
        }
}

static void groups_that_do_not_divide_are_refused(void **state)
{
    static const int64_t wrong[] = {3, 4, 5, 8}; /* of four ranks: no divisor, or all of them */
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(wrong); i++) {
        setup s = base;
        dh_program *p;
        s.zero = 3;
        mesh_programs *m = prepare(&s);
        m->spec.recipe.sharing.reshard = DH_GATHERED_SHARE;
        m->spec.recipe.mesh.share_ranks = wrong[i];
        assert_fails(&ctx, dh_program_build(&ctx, &m->spec, &p), DH_EUNSUPPORTED, "a divisor");
        destroy(m);
    }
}

static void nodes_without_two_such_ranks_are_refused(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    setup s = base;
    dh_program *p;
    s.zero = 3;
    s.tp = 2;
    s.per_node = 2;
    mesh_programs *m = prepare(&s);
    m->spec.recipe.sharing.reshard = DH_GATHERED_SHARE;
    assert_fails(&ctx, dh_program_build(&ctx, &m->spec, &p), DH_EUNSUPPORTED, "no two");
    destroy(m);
}

/* One gather a micro-batch where resharding takes two. The embedding's is not read backward, the
 * head's not again between its forward and its backward. */
static void keeping_halves_gathers(void **state)
{
    setup s = base;
    uint64_t kept_bytes, bytes;
    s.n_micro = 3;
    dh_program *kept = build_between(&s, DH_GATHERED_WHOLE, 1), *twice = build_ahead(&s, 3, 1);
    const int n = count_gathers(kept, &kept_bytes), n_twice = count_gathers(twice, &bytes);
    int n_releases = 0;
    for (uint32_t i = 0; i < kept->instrs.n; i++)
        n_releases += dh_instr_graph(kept, &kept->instrs.at[i])->kind == DH_BLOCK_GATHER &&
                      is(kept, i, DH_OP_RELEASE);
    assert_true(n < n_twice && kept_bytes < bytes && n_releases > 0);
    assert_int_equal(n % 3, 0);
    const gradients g = gradients_of(kept);
    assert_int_equal(kept_bytes, 3 * g.whole);
    dh_program_destroy(kept);
    dh_program_destroy(twice);
}

/* ---- gathers at the beginning -----------------------------------------------------------------
 */

/* As many as behind the optimizer, in front of all else on their stream, by the blocks that read
 * them; what is kept, and where, is the same. */
static void gathers_stand_in_the_order_of_the_forward(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int variant = 0; variant < 4; variant++) {
        setup s = base;
        uint64_t bytes, bytes_before;
        s.dtype = variant & 1 ? DH_BF16 : DH_F32;
        dh_program *p = build_forward(&s, 1 + variant / 2),
                   *before = build_zero(&s, 1 + variant / 2);
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        const int n = count_gathers(p, &bytes);
        assert_int_equal(n, count_gathers(before, &bytes_before));
        assert_int_equal(bytes, bytes_before);
        assert_int_equal(p->persistent_bytes, before->persistent_bytes);
        assert_true(n >= 4);
        uint32_t block = 0;
        for (uint32_t i = 0; i < (uint32_t)n; i++) {
            assert_true(is(p, i, DH_OP_ALL_GATHER) && p->instrs.at[i].n_waits == 0);
            const dh_operand *o = dh_instr_operand(p, &p->instrs.at[i], 1);
            const uint32_t first = p->flats.at[p->buffers.at[o->buffer].owner].first_block;
            assert_true(first >= block);
            block = first;
        }
        dh_program_destroy(p);
        dh_program_destroy(before);
    }
}

/* Every gather is awaited by what reads it first, and by nothing that reads other buckets: the last
 * block's first operator does not wait for the first block's backward, nor the first for the last.
 */
static void readers_wait_for_their_own_bucket(void **state)
{
    dh_program *p = build_forward(&base, 1);
    uint64_t bytes;
    const uint32_t n = (uint32_t)count_gathers(p, &bytes);
    uint32_t latest = 0;
    int n_waiting = 0;
    for (uint32_t i = n; i < p->instrs.n; i++) {
        const dh_instr *instr = &p->instrs.at[i];
        for (uint32_t w = 0; w < instr->n_waits; w++) {
            const uint32_t on = p->waits.at[instr->wait0 + w].instr;
            if (on >= n) continue;
            assert_true(on >= latest); /* in the order of the gathers: none is waited for early */
            latest = on;
            n_waiting++;
        }
    }
    assert_true(n_waiting >= 4 && latest == n - 1);
    dh_program_destroy(p);
}

/* What other ranks have updated is old until it has been gathered. */
static void old_parameters_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int dtype = 0; dtype < 2; dtype++) {
        setup s = base;
        s.dtype = dtype ? DH_BF16 : DH_F32;
        dh_program *p = build_forward(&s, 1);
        uint64_t bytes;
        const uint32_t n = (uint32_t)count_gathers(p, &bytes);
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        for (uint32_t i = 0; i < n; i++) { /* the rank's own shard instead of all */
            dh_operand *whole = &p->operands.at[p->instrs.at[i].operand0 + 1];
            const dh_operand was = *whole;
            *whole = *dh_instr_operand(p, &p->instrs.at[i], 0);
            if (dh_program_verify(&ctx, p) != DH_EVERIFY) fail_msg("gather %u is not missed", i);
            dh_ctx_reset(&ctx);
            *whole = was;
        }
        for (uint32_t i = n; i < p->instrs.n; i++) { /* a reader that does not wait */
            dh_instr *instr = &p->instrs.at[i];
            const uint16_t n_waits = instr->n_waits;
            if (n_waits == 0 || p->waits.at[instr->wait0].instr >= n) continue;
            instr->n_waits = 0;
            expect_fault(p, "is missing");
            instr->n_waits = n_waits;
        }
        assert_ok(&ctx, dh_program_verify(&ctx, p));
        dh_program_destroy(p);
    }
}

/* Where the optimizer gathers, what it leaves out stays old on the other ranks, and no one waits
 * for it. */
static void missing_gathers_are_found(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    dh_program *p = build_zero(&base, 1);
    assert_ok(&ctx, dh_program_verify(&ctx, p));
    for (uint32_t i = 0; i < p->instrs.n; i++) {
        if (kind_of(p, i) != DH_BLOCK_OPT || !is(p, i, DH_OP_ALL_GATHER)) continue;
        dh_operand *whole = &p->operands.at[p->instrs.at[i].operand0 + 1];
        const dh_operand was = *whole;
        *whole = *dh_instr_operand(p, &p->instrs.at[i], 0);
        expect_fault(p, "does not gather");
        *whole = was;
        n++;
    }
    assert_true(n >= 4);
    dh_program_destroy(p);
}

/* ---- meshes and strategies ---------------------------------------------------------------------
 */

static void verify_setup(const setup *s, int variant)
{
    dh_ctx ctx = DH_CTX_INIT;
    mesh_programs *m = prepare(s);
    m->spec.recipe.sharing.prefetch = variant % 3;
    m->spec.recipe.sharing.reshard = (dh_gathered)((variant + 2) % 3);
    m->spec.recipe.sharing.regather =
        s->zero >= 3 && variant & 1 ? DH_REGATHER_STAGE : DH_REGATHER_MICRO;
    m->spec.recipe.sharing.gather =
        s->zero < 3 && variant & 1 ? DH_GATHER_FORWARD : DH_GATHER_OPTIMIZER;
    /* among two neighbours where there are four, else a node's */
    if (s->dp * DH_MAX(s->cp, 1) / DH_MAX(s->ep, 1) % 4 == 0 && variant & 4)
        m->spec.recipe.mesh.share_ranks = 2;
    build_all(m);
    if (verify(&ctx, m) != DH_OK) {
        print_setup(s);
        fail_msg("%s", ctx.message);
    }
    assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, NULL));
    if (m->spec.recipe.sharing.gather ==
        DH_GATHER_FORWARD) { /* and alone, for what evaluates between steps */
        m->spec.mode = DH_MODE_EVAL;
        m->spec.gathers = true;
        assert_ok(&ctx, dh_mesh_verify(&ctx, &m->spec, NULL));
    }
    destroy(m);
}

/* Programs of all ranks, on meshes with every other kind of parallelism. */
static void meshes_verify(void **state)
{
    const setup all[] = {
        {.tp = 2, .pp = 1, .dp = 2, .n_micro = 2},
        {.tp = 1, .pp = 2, .dp = 2, .n_micro = 3, .dtype = DH_BF16},
        {.tp = 2, .pp = 2, .dp = 2, .n_micro = 2, .recompute = DH_RECOMPUTE_KIND_FULL},
        {.tp = 1, .pp = 1, .dp = 2, .cp = 2, .n_micro = 2},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 1, .dp = 4, .ep = 2, .n_micro = 2},
        {.preset = "gpt2-tiny", .schedule = "zb-h1", .tp = 2, .pp = 2, .dp = 3, .n_micro = 4},
        {.tp = 2, .pp = 1, .dp = 4, .n_micro = 2, .per_node = 4},
        {.tp = 1, .pp = 2, .dp = 4, .n_micro = 3, .per_node = 2, .dtype = DH_BF16},
        {.tp = 1, .pp = 1, .dp = 2, .cp = 4, .n_micro = 1, .per_node = 2},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 1, .dp = 8, .ep = 2, .n_micro = 2, .per_node = 4},
        {.schedule = "looped-bfs", .tp = 1, .pp = 1, .dp = 4, .n_micro = 3, .per_node = 2},
        {.schedule = "looped-bfs", .tp = 2, .pp = 2, .dp = 2, .n_micro = 3},
        {.schedule = "interleaved-1f1b", .tp = 1, .pp = 2, .dp = 2, .n_micro = 4},
        {.preset = "gpt2-tiny", .schedule = "dualpipe", .tp = 1, .pp = 2, .dp = 2, .n_micro = 4},
    };
    for (size_t i = 0; i < DH_COUNTOF(all); i++)
        for (int variant = 0; variant < 6; variant++) {
            setup s = all[i];
            if (!s.preset) s.preset = "llama-tiny";
            if (!s.schedule) s.schedule = "1f1b";
            s.seq = 16;
            s.zero = 1 + variant / 2;
            s.bucket = 20000;
            if (s.zero == 3 && strcmp(s.schedule, "dualpipe") == 0) continue; /* refused */
            verify_setup(&s, variant + (int)i % 2 * 3);
        }
}

/* Strategies order the operators of a slot; gathers and releases follow what reads. */
static void ordered_slots_verify(void **state)
{
    static const struct {
        const char *strategy, *schedule;
    } ways[] = {{"dhelix", "dhelix-w"},
                {"dhelix-paper", "dhelix-w"},
                {"dualpipe", "dhelix-w"},
                {"dhelix", "1f1b"}};
    const setup meshes[] = {
        {.tp = 2, .pp = 1, .dp = 2, .n_micro = 4},
        {.tp = 1, .pp = 2, .dp = 2, .n_micro = 4, .dtype = DH_BF16},
        {.preset = "mixtral-tiny", .tp = 1, .pp = 1, .dp = 4, .ep = 2, .n_micro = 3}};
    dh_ctx ctx = DH_CTX_INIT;
    int n = 0;
    for (size_t w = 0; w < DH_COUNTOF(ways); w++)
        for (size_t i = 0; i < DH_COUNTOF(meshes); i++)
            for (int variant = 0; variant < 3; variant++) {
                setup s = meshes[i];
                if (!s.preset) s.preset = "llama-tiny";
                s.schedule = ways[w].schedule;
                s.seq = 16;
                s.zero = 3;
                s.bucket = 20000;
                assert_ok(&ctx, dh_strategy_find(&ctx, ways[w].strategy, &s.strategy));
                if (!is_applicable(&s)) continue;
                verify_setup(&s, variant + (int)w);
                n++;
            }
    assert_true(n >= 12);
}

/* No more than prefetch + 1 blocks of either strand are whole at once. */
static void strands_hold_their_window(void **state)
{
    dh_ctx ctx = DH_CTX_INIT;
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        setup s = base;
        dh_program *p;
        s.zero = 3;
        s.tp = 2;
        s.dp = 2;
        s.n_micro = 4;
        s.schedule = "dhelix-w";
        s.bucket = 1000;
        assert_ok(&ctx, dh_strategy_find(&ctx, "dhelix", &s.strategy));
        mesh_programs *m = prepare(&s);
        m->spec.recipe.model.n_layers = 8;
        m->spec.recipe.sharing.prefetch = prefetch;
        assert_ok(&ctx, dh_program_build(&ctx, &m->spec, &p));
        int whole = 0, most = 0, gathered = 0;
        for (uint32_t i = 0; i < p->instrs.n; i++) {
            if (kind_of(p, i) != DH_BLOCK_GATHER) continue;
            if (is(p, i, DH_OP_RELEASE)) whole--;
            if (!is(p, i, DH_OP_RELEASE) && p->instrs.at[i].op == 0) whole++, gathered++;
            most = DH_MAX(most, whole);
        }
        assert_true(gathered > 8 && whole == 0);
        assert_in_range(most, prefetch + 1, 2 * (prefetch + 1));
        dh_program_destroy(p);
        destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordered_slots_verify),
        cmocka_unit_test(strands_hold_their_window),
        cmocka_unit_test(kept_parameters_are_whole_once),
        cmocka_unit_test(a_stage_gathers_for_all_micro_batches),
        cmocka_unit_test(the_next_stage_is_gathered_ahead),
        cmocka_unit_test(a_node_keeps_its_shares),
        cmocka_unit_test(keeping_halves_gathers),
        cmocka_unit_test(backwards_gather_inside_nodes),
        cmocka_unit_test(neighbours_keep_their_shares),
        cmocka_unit_test(groups_that_do_not_divide_are_refused),
        cmocka_unit_test(nodes_without_two_such_ranks_are_refused),
        cmocka_unit_test(gathers_stand_in_the_order_of_the_forward),
        cmocka_unit_test(readers_wait_for_their_own_bucket),
        cmocka_unit_test(old_parameters_are_found),
        cmocka_unit_test(missing_gathers_are_found),
        cmocka_unit_test(meshes_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
