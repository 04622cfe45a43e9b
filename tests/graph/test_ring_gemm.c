/* Collectives of tensor parallelism as rings: the form by hand, what is left alone, and
 * that all ranks together compute what they did before. */
#include "graph_cases.h"

#include "graph/pass.h"

#define FORTH "ring-gemm"
#define BOTH "ring-gemm(both)"
static const char *const kinds[] = {"", FORTH, BOTH};

/* The passes named, on a rank's graph. */
static void rewrite(dh_graph *g, int64_t tp, int64_t rank, const char *passes)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_pass_list list;
    const dh_graph_spec spec = {.mesh = {.tp = tp}};
    assert_ok(&ctx, dh_pass_list_parse(&ctx, passes, &list));
    for (int64_t i = 0; i < list.n; i++) {
        const dh_pass_work work = {.graph = g,
                                   .spec = &spec,
                                   .rank = {.shard = {.tp = tp, .tp_rank = rank}},
                                   .args = list.at[i].args};
        assert_ok(&ctx, list.at[i].pass->apply(&ctx, &work));
    }
    assert_ok(&ctx, dh_graph_check(&ctx, g));
}

/* ---- by hand -------------------------------------------------------------------------------- */

/* A column-parallel linear and a row-parallel one, and their backward; N: all rows. */
#define HEAD                                                                                       \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=%d width=4\n"                                                                \
    "ends x_in=%%0:x x_out=%%6:y dx_out=%%7:dy dx_in=%%14:dx\n"                                    \
    "%%0:x      act f32[%d tokens, 4 width]\n"                                                     \
    "%%1:w1     param f32[6 ffn, 4 width] slot=2\n"                                                \
    "%%2:w2     param f32[4 width, 6 ffn] slot=4\n"
#define MIDDLE                                                                                     \
    "%%6:y      act f32[%d tokens, 4 width]\n"                                                     \
    "%%7:dy     act f32[%d tokens, 4 width]\n"                                                     \
    "%%8:dp     act f32[%d tokens, 4 width]\n"                                                     \
    "%%9:dh     act f32[%d tokens, 6 ffn]\n"                                                       \
    "%%10:d.w2  grad f32[4 width, 6 ffn] slot=4\n"                                                 \
    "%%11:again act f32[%d tokens, 4 width]\n"

static const char whole[] = HEAD "%%3:x.all  act f32[%d tokens, 4 width]\n"
                                 "%%4:h      act f32[%d tokens, 6 ffn]\n"
                                 "%%5:p      act f32[%d tokens, 4 width]\n" MIDDLE
                                 "%%12:dxall act f32[%d tokens, 4 width]\n"
                                 "%%13:d.w1  grad f32[6 ffn, 4 width] slot=2\n"
                                 "%%14:dx    act f32[%d tokens, 4 width]\n"
                                 "F %%3 = all_gather(%%0) {group=tp}\n"
                                 "F %%4 = linear(%%3, %%1)\n"
                                 "F %%5 = linear(%%4, %%2)\n"
                                 "F %%6 = reduce_scatter(%%5) {group=tp}\n"
                                 "B %%8 = all_gather(%%7) {group=tp}\n"
                                 "B %%9 = linear_dgrad(%%8, %%2)\n"
                                 "W %%10 = linear_wgrad(%%8, %%4)\n"
                                 "B %%12 = linear_dgrad(%%9, %%1)\n"
                                 "W %%11 = all_gather(%%0) {group=tp}\n"
                                 "W %%13 = linear_wgrad(%%9, %%11)\n"
                                 "B %%14 = reduce_scatter(%%12) {group=tp}\n";

/* Rank 1 of 2: own rows are the last 8. */
static const char of_two[] = HEAD
    "%%3:x.all.0 act f32[8 tokens, 4 width]\n"
    "%%4:h      act f32[%d tokens, 6 ffn]\n"
    "%%5:p.0    act f32[8 tokens, 4 width]\n" MIDDLE "%%12:dxall.0 act f32[8 tokens, 4 width]\n"
    "%%13:d.w1  grad f32[6 ffn, 4 width] slot=2\n"
    "%%14:dx    act f32[8 tokens, 4 width]\n"
    "%%15:h.1   act f32[8 tokens, 6 ffn] view=%%4+8\n"
    "%%16:h.0   act f32[8 tokens, 6 ffn] view=%%4+0\n"
    "%%17:h.0   act f32[8 tokens, 6 ffn] view=%%4+0\n"
    "%%18:p.in1 act f32[8 tokens, 4 width]\n"
    "%%19:h.1   act f32[8 tokens, 6 ffn] view=%%4+8\n"
    "%%20:p.1   act f32[8 tokens, 4 width]\n"
    "%%21:dp.1  act f32[8 tokens, 4 width] view=%%8+8\n"
    "%%22:dp.0  act f32[8 tokens, 4 width] view=%%8+0\n"
    "%%23:dh.1  act f32[8 tokens, 6 ffn] view=%%9+8\n"
    "%%24:dh.0  act f32[8 tokens, 6 ffn] view=%%9+0\n"
    "%%25:dh.0  act f32[8 tokens, 6 ffn] view=%%9+0\n"
    "%%26:dxall.in1 act f32[8 tokens, 4 width]\n"
    "%%27:dh.1  act f32[8 tokens, 6 ffn] view=%%9+8\n"
    "%%28:dxall.1 act f32[8 tokens, 4 width]\n"
    "F %%3 = ring_exchange(%%0) {group=tp}   # before the GEMM it hides behind\n"
    "F %%15 = linear(%%0, %%1)\n"
    "F %%16 = linear(%%3, %%1)\n"
    "F %%5 = linear(%%17, %%2)               # the other rank's rows first\n"
    "F %%18 = ring_exchange(%%5) {group=tp}\n"
    "F %%20 = linear(%%19, %%2)\n"
    "F %%6 = add(%%20, %%18)\n"
    "B %%21 = copy(%%7)                      # w2's gradient reads all rows\n"
    "B %%22 = ring_exchange(%%21) {group=tp}\n"
    "B %%23 = linear_dgrad(%%21, %%2)\n"
    "B %%24 = linear_dgrad(%%22, %%2)\n"
    "W %%10 = linear_wgrad(%%8, %%4)\n"
    "W %%11 = all_gather(%%0) {group=tp}     # ahead of the ring\n"
    "B %%12 = linear_dgrad(%%25, %%1)\n"
    "B %%26 = ring_exchange(%%12) {group=tp}\n"
    "B %%28 = linear_dgrad(%%27, %%1)\n"
    "W %%13 = linear_wgrad(%%9, %%11)        # hides the ring's last transfer\n"
    "B %%14 = add(%%28, %%26)\n";

static dh_graph *whole_layer(int n)
{
    char text[4096];
    const int a = 8 * n;
    snprintf(text, sizeof text, whole, a, 8, a, a, a, 8, 8, a, a, a, a, 8);
    return parse_graph(text);
}

static void a_layer_becomes_this_by_hand(void **state)
{
    char text[4096];
    snprintf(text, sizeof text, of_two, 16, 8, 16, 8, 8, 16, 16, 16);
    dh_graph *want = parse_graph(text);
    for (int kind = 1; kind <= 2; kind++) {
        dh_graph *got = whole_layer(2);
        rewrite(got, 2, 1, kinds[kind]);
        assert_same_graph(got, want); /* two ranks are neighbours either way */
        dh_graph_destroy(got);
    }
    dh_graph_destroy(want);
}

/* Where what travels goes, and what is multiplied meanwhile: rank 1 of 4, both ways. */
static void both_ways_take_half_the_steps(void **state)
{
    static const struct {
        dh_op_type type;
        const char *in, *out;
    } want[] = {
        {DH_OP_RING_EXCHANGE_BOTH, "x", "x.all.0"}, /* and x.all.2 from the next */
        {DH_OP_LINEAR, "x", "h.1"},
        {DH_OP_RING_EXCHANGE, "x.all.0", "x.all.3"},
        {DH_OP_LINEAR, "x.all.0", "h.0"},
        {DH_OP_LINEAR, "x.all.2", "h.2"},
        {DH_OP_LINEAR, "x.all.3", "h.3"},
        {DH_OP_LINEAR, "h.3", "p.3"}, /* two steps ahead */
        {DH_OP_RING_EXCHANGE, "p.3", "p.in2"},
        {DH_OP_LINEAR, "h.2", "p.2"},
        {DH_OP_LINEAR, "h.0", "p.0"},
        {DH_OP_ADD, "p.2", "p.sum2"},
        {DH_OP_RING_EXCHANGE_BOTH, "p.sum2", "p.in1"}, /* p.0 goes back */
        {DH_OP_LINEAR, "h.1", "p.1"},
        {DH_OP_ADD, "p.1", "p.sum1"},
        {DH_OP_ADD, "p.sum1", "y"},
    };
    dh_graph *g = whole_layer(4);
    rewrite(g, 4, 1, BOTH);
    for (size_t i = 0; i < DH_COUNTOF(want); i++) {
        const dh_op *op = &g->ops.at[i];
        assert_int_equal(op->type, want[i].type);
        assert_string_equal(g->tensors.at[op->in[0]].name, want[i].in);
        assert_string_equal(g->tensors.at[op->out[0]].name, want[i].out);
    }
    assert_string_equal(g->tensors.at[g->ops.at[0].out[1]].name, "x.all.2");
    assert_string_equal(g->tensors.at[g->ops.at[11].in[1]].name, "p.0");
    assert_string_equal(g->tensors.at[g->ops.at[11].out[1]].name, "p.back1");
    dh_graph_destroy(g);
}

/* ---- what is computed ------------------------------------------------------------------------ */

enum { MOST_RANKS = 9, MOST_TENSORS = 256 };

/* The graphs of all ranks, run operator by operator in small whole numbers: sums are
 * exact in any order. */
typedef struct machine {
    int n;
    dh_graph *graphs[MOST_RANKS];
    double *data[MOST_RANKS][MOST_TENSORS];
} machine;

static double *rows_at(const machine *m, int rank, uint32_t id)
{
    const dh_tensor *t = &m->graphs[rank]->tensors.at[id];
    return t->base == DH_NONE ? m->data[rank][id] : m->data[rank][t->base] + t->row0 * t->shape[1];
}

/* Weights differ by rank and tensor, as their shards do. */
static void fill(machine *m, int rank, uint32_t id)
{
    const dh_tensor *t = &m->graphs[rank]->tensors.at[id];
    assert_in_range(id, 0, MOST_TENSORS - 1);
    m->data[rank][id] = calloc((size_t)dh_tensor_elements(t), sizeof(double));
    const bool given =
        t->kind == DH_TENSOR_PARAM || id == m->graphs[rank]->x_in || id == m->graphs[rank]->dx_out;
    for (int64_t i = 0; given && i < dh_tensor_elements(t); i++)
        m->data[rank][id][i] = (double)(dh_mix64((uint64_t)(1000 * rank + id) * 4096 + i) % 7) - 3;
}

/* C[rows, n] (+)= A B: a and b by strides of what is summed over and what is not. */
static void product(double *c, int64_t rows, int64_t cols, int64_t sum, const double *a,
                    int64_t a_row, int64_t a_sum, const double *b, int64_t b_sum, int64_t b_col)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            for (int64_t k = 0; k < sum; k++)
                c[i * cols + j] += a[i * a_row + k * a_sum] * b[k * b_sum + j * b_col];
}

static void multiply(const machine *m, int rank, const dh_op *op)
{
    const dh_tensor *t = m->graphs[rank]->tensors.at;
    const int64_t *a = t[op->in[0]].shape, *b = t[op->in[1]].shape;
    const double *x = rows_at(m, rank, op->in[0]), *w = rows_at(m, rank, op->in[1]);
    double *y = rows_at(m, rank, op->out[0]);
    if (op->type == DH_OP_LINEAR)
        product(y, a[0], b[0], a[1], x, a[1], 1, w, 1, b[1]);
    else if (op->type == DH_OP_LINEAR_DGRAD)
        product(y, a[0], b[1], a[1], x, a[1], 1, w, b[1], 1);
    else
        product(y, a[1], b[1], a[0], x, 1, a[1], w, b[1], 1);
}

static void move(const machine *m, int from, uint32_t source, int to, uint32_t target)
{
    const size_t n = (size_t)dh_tensor_elements(&m->graphs[from]->tensors.at[source]);
    assert_int_equal(n, dh_tensor_elements(&m->graphs[to]->tensors.at[target]));
    memcpy(rows_at(m, to, target), rows_at(m, from, source), n * sizeof(double));
}

static void gather(const machine *m, int to, size_t i)
{
    for (int r = 0; r < m->n; r++) {
        const uint32_t in = m->graphs[r]->ops.at[i].in[0], out = m->graphs[to]->ops.at[i].out[0];
        const int64_t n = dh_tensor_elements(&m->graphs[r]->tensors.at[in]);
        memcpy(rows_at(m, to, out) + r * n, rows_at(m, r, in), (size_t)n * sizeof(double));
    }
}

static void reduce(const machine *m, int to, size_t i)
{
    const uint32_t out = m->graphs[to]->ops.at[i].out[0];
    const int64_t n = dh_tensor_elements(&m->graphs[to]->tensors.at[out]);
    for (int r = 0; r < m->n; r++)
        for (int64_t k = 0; k < n; k++)
            rows_at(m, to, out)[k] += rows_at(m, r, m->graphs[r]->ops.at[i].in[0])[to * n + k];
}

static void run_op(const machine *m, int rank, size_t i)
{
    const int next = (rank + 1) % m->n, previous = (rank + m->n - 1) % m->n;
    const dh_op *op = &m->graphs[rank]->ops.at[i], *before = &m->graphs[previous]->ops.at[i];
    switch (op->type) {
    case DH_OP_ALL_GATHER:
        gather(m, rank, i);
        break;
    case DH_OP_REDUCE_SCATTER:
        reduce(m, rank, i);
        break;
    case DH_OP_RING_EXCHANGE_BOTH:
        move(m, next, m->graphs[next]->ops.at[i].in[1], rank, op->out[1]);
        move(m, previous, before->in[0], rank, op->out[0]);
        break;
    case DH_OP_RING_EXCHANGE:
        move(m, previous, before->in[0], rank, op->out[0]);
        break;
    case DH_OP_COPY:
        move(m, rank, op->in[0], rank, op->out[0]);
        break;
    case DH_OP_ADD:
        for (int64_t k = 0; k < dh_tensor_elements(&m->graphs[rank]->tensors.at[op->out[0]]); k++)
            rows_at(m, rank, op->out[0])[k] =
                rows_at(m, rank, op->in[0])[k] + rows_at(m, rank, op->in[1])[k];
        break;
    default:
        multiply(m, rank, op);
    }
}

static machine *run_ranks(int n, const char *kind)
{
    machine *m = calloc(1, sizeof *m);
    m->n = n;
    for (int r = 0; r < n; r++) {
        m->graphs[r] = whole_layer(n);
        rewrite(m->graphs[r], n, r, kind);
        assert_int_equal(m->graphs[r]->ops.n, m->graphs[0]->ops.n);
        for (uint32_t t = 0; t < m->graphs[r]->tensors.n; t++) fill(m, r, t);
    }
    for (size_t i = 0; i < m->graphs[0]->ops.n; i++)
        for (int r = 0; r < n; r++) run_op(m, r, i);
    return m;
}

static void end_ranks(machine *m)
{
    for (int r = 0; r < m->n; r++) {
        for (uint32_t t = 0; t < m->graphs[r]->tensors.n; t++) free(m->data[r][t]);
        dh_graph_destroy(m->graphs[r]);
    }
    free(m);
}

static void all_ranks_compute_the_same(void **state)
{
    static const uint32_t results[] = {6, 10, 13, 14}; /* y, d.w2, d.w1, dx */
    for (int n = 2; n <= MOST_RANKS; n++) {
        machine *want = run_ranks(n, "");
        for (int kind = 1; kind <= 2; kind++) {
            machine *got = run_ranks(n, kinds[kind]);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < DH_COUNTOF(results); i++) {
                    const uint32_t t = results[i];
                    const int64_t size = dh_tensor_elements(&want->graphs[r]->tensors.at[t]);
                    double most = 0;
                    for (int64_t k = 0; k < size; k++) most = fmax(most, want->data[r][t][k]);
                    assert_true(most > 0);
                    assert_memory_equal(got->data[r][t], want->data[r][t],
                                        (size_t)size * sizeof(double));
                }
            end_ranks(got);
        }
        end_ranks(want);
    }
}

/* ---- real layers ---------------------------------------------------------------------------- */

typedef struct totals {
    double flops;
    int64_t wire_bytes; /* that this rank sends */
    int n_gemms, n_collectives;
} totals;

static int64_t bytes_of(const dh_graph *g, uint32_t id)
{
    return dh_tensor_bytes(&g->tensors.at[id]);
}

static totals add_up(const dh_graph *g)
{
    totals sum = {0};
    for (size_t i = 0; i < g->ops.n; i++) {
        const dh_op *op = &g->ops.at[i];
        if (op->type == DH_OP_ALL_GATHER)
            sum.wire_bytes += bytes_of(g, op->out[0]) - bytes_of(g, op->in[0]);
        if (op->type == DH_OP_REDUCE_SCATTER)
            sum.wire_bytes += bytes_of(g, op->in[0]) - bytes_of(g, op->out[0]);
        if (op->type == DH_OP_RING_EXCHANGE) sum.wire_bytes += bytes_of(g, op->in[0]);
        if (op->type == DH_OP_RING_EXCHANGE_BOTH)
            sum.wire_bytes += bytes_of(g, op->in[0]) + bytes_of(g, op->in[1]);
        sum.n_collectives += op->type == DH_OP_ALL_GATHER || op->type == DH_OP_REDUCE_SCATTER;
        if (op->type != DH_OP_LINEAR && op->type != DH_OP_LINEAR_DGRAD) continue;
        sum.flops += dh_op_flops(g, op);
        sum.n_gemms++;
    }
    return sum;
}

static dh_graph *copy_of(const dh_graph *g)
{
    dh_ctx ctx = DH_CTX_INIT;
    dh_str text = DH_STR_INIT;
    dh_graph *copy;
    assert_ok(&ctx, dh_graph_print(&ctx, g, &text));
    assert_ok(&ctx, dh_graph_parse(&ctx, text.text, text.len, &copy));
    assert_true(dh_graph_equal(g, copy));
    dh_str_fini(&text);
    return copy;
}

/* n_rings collectives have become rings; work and traffic are the same; the result reads
 * back, and another application changes nothing. */
static void check_rings(dh_graph *g, int64_t tp, int64_t rank, const char *kind, int n_rings)
{
    const totals before = add_up(g);
    rewrite(g, tp, rank, kind);
    const totals after = add_up(g);
    assert_int_equal(before.n_collectives - after.n_collectives, n_rings);
    assert_int_equal(after.n_gemms - before.n_gemms, n_rings * (tp - 1));
    assert_int_equal(before.wire_bytes, after.wire_bytes);
    assert_true(before.flops == after.flops);
    dh_graph *again = copy_of(g);
    rewrite(again, tp, rank, kind);
    assert_same_graph(again, g);
    dh_graph_destroy(again);
}

/* Of a dense layer all but the two gathers for weight gradients; of one with experts those
 * of attention; heads and embeddings stay as they are. */
static void layers_become_rings(void **state)
{
    static const struct {
        const char *preset;
        dh_block_kind kind;
        int forward, backward, again; /* rings; again: in what a full recomputation repeats */
    } blocks[] = {
        {"gpt2-char", DH_BLOCK_LAYER, 4, 4, 3},    {"llama-tiny", DH_BLOCK_LAYER, 4, 4, 3},
        {"mixtral-tiny", DH_BLOCK_LAYER, 2, 2, 2}, {"gpt2-char", DH_BLOCK_HEAD, 0, 0, 0},
        {"gpt2-char", DH_BLOCK_EMBED, 0, 0, 0},
    };
    dh_ctx ctx = DH_CTX_INIT;
    for (size_t i = 0; i < DH_COUNTOF(blocks); i++)
        for (int variant = 0; variant < 48; variant++) {
            const int64_t tp = variant & 1 ? 4 : 2;
            const char *kind = variant & 2 ? BOTH : FORTH;
            graph_case c = {blocks[i].preset,
                            blocks[i].kind,
                            variant & 4 ? DH_MODE_TRAIN : DH_MODE_EVAL,
                            DH_BF16,
                            variant & 8 ? 0.1 : 0,
                            1,
                            false,
                            variant & 1 ? 2 : 1,
                            1,
                            false};
            const dh_recompute_kind recompute = (dh_recompute_kind)(variant / 16);
            const bool train = c.mode == DH_MODE_TRAIN;
            dh_model model = preset(c.preset);
            model.n_kv_heads = DH_MAX(model.n_kv_heads, tp);
            model.n_heads = DH_MAX(model.n_heads, tp);
            dh_build build = build_of(&c, &model);
            dh_graph *g;
            assert_ok(&ctx, dh_graph_build(&ctx, &build, c.kind, &g));
            assert_ok(&ctx, dh_pass_context_parallel(&ctx, g, c.cp, c.cp - 1));
            assert_ok(&ctx, dh_pass_tensor_parallel(&ctx, g,
                                                    (dh_shard){.tp = tp, .tp_rank = 1, .ep = 1}));
            if (train) assert_ok(&ctx, dh_graph_differentiate(&ctx, g));
            if (train) assert_ok(&ctx, dh_pass_recompute(&ctx, g, recompute));
            const bool full = recompute == DH_RECOMPUTE_KIND_FULL;
            const int n_rings =
                blocks[i].forward + (train ? blocks[i].backward + (full ? blocks[i].again : 0) : 0);
            check_rings(g, tp, 1, kind, n_rings);
            dh_graph_destroy(g);
        }
}

/* ---- what stays whole ----------------------------------------------------------------------- */

static void stays_whole(const char *text)
{
    for (int kind = 0; kind <= 2; kind++) {
        dh_graph *g = parse_graph(text), *before = parse_graph(text);
        rewrite(g, 2, 0, kinds[kind]);
        assert_same_graph(g, before);
        dh_graph_destroy(g);
        dh_graph_destroy(before);
    }
}

#define TENSORS(n, all)                                                                            \
    "dhelix.graph v2 layer train f32\n"                                                            \
    "dims batch=1 seq=" all "\n"                                                                   \
    "%0:x act f32[" n " tokens, 4 width]\n%1:all act f32[" all " tokens, 4 width]\n"               \
    "%2:w param f32[4 width, 4 width] slot=2\n%3:y act f32[" all " tokens, 4 width]\n"             \
    "%4:z act f32[" all " tokens, 4 width]\n%5:own act f32[" n " tokens, 4 width]\n"
#define SMALL TENSORS("8", "16") "ends x_in=%0\n"

static void what_cannot_be_cut_stays_whole(void **state)
{
    dh_graph *g = parse_graph(SMALL "F %1 = all_gather(%0) {group=tp}\nF %3 = linear(%1, %2)\n");
    check_rings(g, 2, 0, FORTH, 1); /* as it stands it can be cut */
    dh_graph_destroy(g);
    g = parse_graph(SMALL "F %1 = all_gather(%0) {group=cp}\nF %3 = linear(%1, %2)\n"
                          "F %5 = reduce_scatter(%3) {group=tp}\n");
    check_rings(g, 2, 0, FORTH, 1);
    dh_graph_destroy(g);
    /* another group; too few rows; rows of half the ranks */
    stays_whole(SMALL "F %1 = all_gather(%0) {group=cp}\nF %3 = linear(%1, %2)\n");
    stays_whole(TENSORS("7", "14") "ends x_in=%0\nF %1 = all_gather(%0) {group=tp}\n"
                                   "F %3 = linear(%1, %2)\n");
    stays_whole(TENSORS("8", "32") "ends x_in=%0\nF %1 = all_gather(%0) {group=tp}\n"
                                   "F %3 = linear(%1, %2)\n");
    /* gathered rows: read by something else first; by nothing; in another phase; in parts;
     * known outside */
    stays_whole(SMALL "F %1 = all_gather(%0) {group=tp}\nF %4 = activation(%1)\n"
                      "F %3 = linear(%1, %2)\n");
    stays_whole(SMALL "F %1 = all_gather(%0) {group=tp}\n");
    stays_whole(SMALL "F %1 = all_gather(%0) {group=tp}\nB %3 = linear(%1, %2)\n");
    stays_whole(SMALL "%6:half act f32[8 tokens, 4 width] view=%1+8\n"
                      "F %1 = all_gather(%0) {group=tp}\nF %3 = linear(%1, %2)\n"
                      "F %5 = activation(%6)\n");
    stays_whole(TENSORS("8", "16") "ends x_in=%0 x_out=%1\nF %1 = all_gather(%0) {group=tp}\n"
                                   "F %3 = linear(%1, %2)\n");
    /* shares: made by something else; read by something else; made in another phase */
    stays_whole(TENSORS("8", "16") "ends x_in=%1\nF %3 = activation(%1)\n"
                                   "F %5 = reduce_scatter(%3) {group=tp}\n");
    stays_whole(TENSORS("8", "16") "ends x_in=%1\nF %3 = linear(%1, %2)\n"
                                   "F %5 = reduce_scatter(%3) {group=tp}\nF %4 = activation(%3)\n");
    stays_whole(TENSORS("8", "16") "ends x_in=%1\nF %3 = linear(%1, %2)\n"
                                   "B %5 = reduce_scatter(%3) {group=tp}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_becomes_this_by_hand),
        cmocka_unit_test(both_ways_take_half_the_steps),
        cmocka_unit_test(all_ranks_compute_the_same),
        cmocka_unit_test(layers_become_rings),
        cmocka_unit_test(what_cannot_be_cut_stays_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
