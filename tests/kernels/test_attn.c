#include "kernel_test.h"

typedef struct attn_case {
    int64_t B, T, H, KV, D;
    int64_t window, longest; /* longest: documents of 1 to so many tokens; 0: samples are whole */
    double cap;              /* of scores; 0: none */
} attn_case;

static const attn_case cases[] = {
    {1, 1, 1, 1, 8, 0, 0, 0},     {2, 3, 2, 1, 10, 0, 0, 0},    {1, 5, 4, 2, 64, 0, 0, 0},
    {2, 63, 2, 2, 16, 0, 0, 0},   {1, 64, 2, 1, 32, 0, 0, 0},   {1, 65, 4, 2, 80, 0, 0, 0},
    {1, 150, 3, 1, 128, 0, 0, 0}, {1, 200, 2, 2, 64, 0, 0, 0},  {1, 3, 1, 1, 1024, 0, 0, 0},
    {1, 70, 2, 1, 258, 0, 0, 0},  {1, 66, 1, 1, 1024, 0, 0, 0}, {1, 70, 2, 1, 192, 0, 0, 0},
    {1, 35, 2, 1, 250, 0, 0, 0},
};

/* Windows and documents that end inside, at the edges of, and behind blocks of 16 and 64 keys. */
static const attn_case masks[] = {
    {1, 3, 2, 1, 16, 1, 0, 0},     {1, 150, 2, 1, 16, 1, 0, 0},    {1, 150, 2, 1, 32, 16, 0, 0},
    {2, 200, 2, 2, 24, 64, 0, 0},  {1, 260, 2, 1, 16, 65, 0, 0},   {1, 330, 1, 1, 16, 150, 0, 0},
    {1, 70, 2, 1, 16, 70, 0, 0},   {1, 70, 2, 1, 16, 500, 0, 0},   {3, 4, 2, 1, 16, 0, 3, 0},
    {2, 150, 2, 1, 16, 0, 9, 0},   {3, 130, 2, 2, 24, 0, 40, 0},   {2, 300, 2, 1, 16, 0, 140, 0},
    {2, 200, 2, 1, 16, 20, 90, 0}, {1, 300, 1, 1, 32, 70, 300, 0}, {1, 70, 2, 1, 258, 30, 50, 0},
    {2, 70, 2, 1, 256, 30, 50, 0},
};

/* Caps far below, among and far above the scores, whole and with what hides keys. */
static const attn_case caps[] = {
    {1, 3, 2, 1, 16, 0, 0, 0.5},    {2, 65, 4, 2, 80, 0, 0, 2},      {1, 150, 3, 1, 128, 0, 0, 50},
    {1, 200, 2, 2, 24, 0, 0, 0.01}, {1, 150, 2, 1, 16, 1, 0, 1},     {2, 200, 2, 2, 24, 64, 0, 1},
    {3, 130, 2, 2, 24, 0, 40, 1.5}, {2, 200, 2, 1, 16, 20, 90, 0.7}, {1, 70, 2, 1, 258, 30, 50, 3},
    {1, 70, 1, 1, 144, 30, 50, 1},
};

/* Everything in float64, [B,Tq,H,D] and [B,Tk,KV,D] dense. */
typedef struct ref {
    int64_t B, Tq, Tk, H, KV, D;
    const int32_t *q_pos, *k_pos;
    int64_t window;
    const int32_t *doc; /* [B,T]: which document a position belongs to; NULL: one */
    double cap;
} ref;

static bool sees(const ref *r, int64_t b, int64_t t, int64_t u)
{
    const int64_t key = r->k_pos ? r->k_pos[u] : u, query = r->q_pos ? r->q_pos[t] : t;
    if (r->doc && r->doc[b * r->Tk + key] != r->doc[b * r->Tk + query]) return false;
    return key <= query && (r->window == 0 || query - key < r->window);
}

static double ref_score(const ref *r, const double *q, const double *k)
{
    double sum = 0;
    for (int64_t d = 0; d < r->D; d++) sum += q[d] * k[d];
    sum /= sqrt((double)r->D);
    return r->cap > 0 ? r->cap * tanh(sum / r->cap) : sum;
}

/* Probabilities of query (b,t,h) over keys; returns the log-sum-exp. */
static double ref_row(const ref *r, const double *q, const double *k, int64_t b, int64_t t,
                      int64_t h, double *p)
{
    const int64_t D = r->D, kv = h / (r->H / r->KV);
    const double *qr = q + ((b * r->Tq + t) * r->H + h) * D;
    double max = -INFINITY, sum = 0;
    for (int64_t u = 0; u < r->Tk; u++) {
        p[u] =
            sees(r, b, t, u) ? ref_score(r, qr, k + ((b * r->Tk + u) * r->KV + kv) * D) : -INFINITY;
        max = fmax(max, p[u]);
    }
    for (int64_t u = 0; u < r->Tk; u++) {
        p[u] = max == -INFINITY ? 0 : exp(p[u] - max);
        sum += p[u];
    }
    for (int64_t u = 0; u < r->Tk; u++) p[u] = sum > 0 ? p[u] / sum : 0;
    return max + log(sum);
}

/* Query (b,t,h)'s output [D], with scratch p [Tk]; returns the log-sum-exp. */
static double ref_output(const ref *r, const double *q, const double *k, const double *v, int64_t b,
                         int64_t t, int64_t h, double *p, double *o)
{
    const double lse = ref_row(r, q, k, b, t, h, p);
    for (int64_t d = 0; d < r->D; d++) {
        double sum = 0;
        for (int64_t u = 0; u < r->Tk; u++)
            sum += p[u] * v[((b * r->Tk + u) * r->KV + h / (r->H / r->KV)) * r->D + d];
        o[d] = sum;
    }
    return lse;
}

static void ref_forward(const ref *r, const double *q, const double *k, const double *v, double *o,
                        double *lse)
{
    double *p = zeros(r->Tk);
    for (int64_t b = 0; b < r->B; b++)
        for (int64_t t = 0; t < r->Tq; t++)
            for (int64_t h = 0; h < r->H; h++)
                lse[(b * r->H + h) * r->Tq + t] =
                    ref_output(r, q, k, v, b, t, h, p, o + ((b * r->Tq + t) * r->H + h) * r->D);
    free(p);
}

/* sum(do o) over the queries that one element of q, k or v reaches, which the finite differences
 * vary: those of its sample and heads, for q one. */
typedef struct grad_arg {
    const ref *r;
    const double *q, *k, *v, *dout;
    int64_t b, t, n_t, h, n_h;
} grad_arg;

static double weighted_output(const grad_arg *a)
{
    const ref *r = a->r;
    double *o = zeros(r->D), *p = zeros(r->Tk), sum = 0;
    for (int64_t t = a->t; t < a->t + a->n_t; t++)
        for (int64_t h = a->h; h < a->h + a->n_h; h++) {
            const double *dout = a->dout + ((a->b * r->Tq + t) * r->H + h) * r->D;
            ref_output(r, a->q, a->k, a->v, a->b, t, h, p, o);
            for (int64_t d = 0; d < r->D; d++) sum += o[d] * dout[d];
        }
    free(p);
    free(o);
    return sum;
}

static double vary(const double *x, const void *arg)
{
    (void)x; /* points into q, k or v of arg */
    return weighted_output(arg);
}

/* Rows of one part of packed qkv as dense doubles. */
static double *dense(buf packed, int64_t rows, int64_t stride, int64_t start, int64_t width)
{
    double *x = zeros(rows * width);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] = get(packed, i / width * stride + start + i % width);
    return x;
}

static void run_forward(const dh_attn_shape *s, buf qkv, buf o, buf lse)
{
    const size_t size = dh_k_attn_fwd_workspace(s);
    void *ws = scratch_new(size);
    dh_k_attn_fwd(s, qkv.raw, at(qkv, s->H * s->D), at(qkv, (s->H + s->KV) * s->D), o.raw, f32(lse),
                  ws);
    scratch_free(ws, size);
}

static void run_backward(const dh_attn_shape *s, buf dout, buf o, buf lse, buf qkv, buf dqkv)
{
    const int64_t k = s->H * s->D, v = k + s->KV * s->D;
    const size_t size = dh_k_attn_bwd_workspace(s);
    void *ws = scratch_new(size);
    dh_k_attn_bwd(s, dout.raw, o.raw, f32(lse), qkv.raw, at(qkv, k), at(qkv, v), dqkv.raw,
                  at(dqkv, k), at(dqkv, v), false, ws);
    scratch_free(ws, size);
}

/* Documents of drawn lengths in every sample: their numbers, and each token's place in its own. */
static void draw_documents(const attn_case *c, uint64_t *seed, int32_t *doc, int32_t *place)
{
    for (int64_t b = 0; b < c->B; b++) {
        int64_t begin = 0, end = 0;
        for (int64_t t = 0; t < c->T; t++) {
            if (t == end) {
                begin = t;
                end += 1 + (int64_t)(test_rand(seed) % (uint64_t)c->longest);
            }
            doc[b * c->T + t] = (int32_t)begin;
            place[b * c->T + t] = (int32_t)(t - begin);
        }
    }
}

static void check_case(const attn_case *c, dh_dtype T, uint64_t *seed)
{
    const int64_t rows = c->B * c->T, q_width = c->H * c->D, kv_width = c->KV * c->D;
    const int64_t stride = q_width + 2 * kv_width;
    dh_attn_shape s = dh_attn_packed(T, c->B, c->T, c->H, c->KV, c->D);
    int32_t *doc = malloc((size_t)rows * sizeof *doc),
            *place = malloc((size_t)rows * sizeof *place);
    s.window = c->window;
    s.softcap = (float)c->cap;
    if (c->longest) {
        draw_documents(c, seed, doc, place);
        s.q_doc = place;
        s.q_doc_batch = c->T;
    }
    buf qkv = buf_random(T, rows * stride, 1.5f, seed), o = buf_new(T, rows * q_width);
    buf lse = buf_new(DH_F32, c->B * c->H * c->T), dout = buf_random(T, rows * q_width, 1, seed);
    buf dqkv = buf_new(T, rows * stride);
    run_forward(&s, qkv, o, lse);
    run_backward(&s, dout, o, lse, qkv, dqkv);

    double *q = dense(qkv, rows, stride, 0, q_width);
    double *k = dense(qkv, rows, stride, q_width, kv_width);
    double *v = dense(qkv, rows, stride, q_width + kv_width, kv_width);
    double *do64 = widen(dout), *want_o = zeros(rows * q_width);
    double *want_lse = zeros(c->B * c->H * c->T);
    const ref r = {.B = c->B,
                   .Tq = c->T,
                   .Tk = c->T,
                   .H = c->H,
                   .KV = c->KV,
                   .D = c->D,
                   .window = c->window,
                   .doc = c->longest ? doc : NULL,
                   .cap = (double)s.softcap};
    ref_forward(&r, q, k, v, want_o, want_lse);
    check_close("o", o, want_o, tolerance_of(T));
    check_close("lse", lse, want_lse, 1e-5);

    /* bf16: o enters the gradient rounded, 2^-9 of sums of D products. */
    const int64_t group = c->H / c->KV;
    const double tolerance = T == DH_BF16 ? 2e-2 : 2e-5;
    for (int probe = 0; probe < 6; probe++) {
        const int64_t row = (int64_t)(test_rand(seed) % (uint64_t)rows);
        const int64_t qc = (int64_t)(test_rand(seed) % (uint64_t)q_width);
        const int64_t kc = (int64_t)(test_rand(seed) % (uint64_t)kv_width);
        const grad_arg of_q = {&r, q, k, v, do64, row / c->T, row % c->T, 1, qc / c->D, 1};
        const grad_arg of_kv = {&r, q, k, v, do64, row / c->T, 0, c->T, kc / c->D * group, group};
        check_value("dq", get(dqkv, row * stride + qc),
                    finite_difference(vary, q, row * q_width + qc, 1e-4, &of_q), tolerance);
        check_value("dk", get(dqkv, row * stride + q_width + kc),
                    finite_difference(vary, k, row * kv_width + kc, 1e-4, &of_kv), tolerance);
        check_value("dv", get(dqkv, row * stride + q_width + kv_width + kc),
                    finite_difference(vary, v, row * kv_width + kc, 1e-4, &of_kv), tolerance);
    }

    /* The same bits on another number of threads. */
    buf o2 = buf_new(T, o.n), lse2 = buf_new(DH_F32, lse.n), dqkv2 = buf_new(T, dqkv.n);
    omp_set_num_threads(3);
    run_forward(&s, qkv, o2, lse2);
    run_backward(&s, dout, o, lse, qkv, dqkv2);
    omp_set_num_threads(2);
    assert_true(buf_same(o, o2) && buf_same(lse, lse2) && buf_same(dqkv, dqkv2));
    double *doubles[] = {q, k, v, do64, want_o, want_lse};
    for (size_t i = 0; i < DH_COUNTOF(doubles); i++) free(doubles[i]);
    free(doc);
    free(place);
    buf all[] = {qkv, o, lse, dout, dqkv, o2, lse2, dqkv2};
    for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
}

/* Of the short form every case has one of both types; under sanitizers every third of them. */
static bool takes(size_t i, dh_dtype T)
{
    if (test_is_slow() && i / 2 % 3 != 0) return false;
    return !test_is_short() || i % 2 == (T == DH_BF16);
}

static void attention_matches_reference(void **state)
{
    uint64_t seed = test_seed("attention");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(cases); i++)
        if (takes(i, T)) check_case(&cases[i], T, &seed);
}

static void masks_match_reference(void **state)
{
    uint64_t seed = test_seed("attention masks");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(masks); i++)
        if (takes(i, T)) check_case(&masks[i], T, &seed);
}

static void capped_scores_match_reference(void **state)
{
    uint64_t seed = test_seed("attention caps");
    EACH_DTYPE(T)
    for (size_t i = 0; i < DH_COUNTOF(caps); i++)
        if (!test_is_slow() || takes(i, T)) check_case(&caps[i], T, &seed);
}

/* Context parallelism: every other stretch of 16 keys, q at its own positions;
 * partial results merge to the whole, partial gradients add up to it. */
static void check_merge(float cap)
{
    uint64_t seed = test_seed("attention merge");
    enum {
        B = 2,
        T = 96,
        H = 4,
        KV = 2,
        D = 24,
        ROW = (H + 2 * KV) * D,
        K = H * D,
        V = K + KV * D
    };
    EACH_DTYPE(dtype)
    {
        dh_attn_shape s = dh_attn_packed(dtype, B, T, H, KV, D);
        s.o_dtype = s.g_dtype = DH_F32;
        s.softcap = cap;
        buf qkv = buf_random(dtype, B * T * ROW, 1, &seed), o = buf_new(DH_F32, B * T * K);
        buf lse = buf_new(DH_F32, B * H * T), dout = buf_random(dtype, B * T * K, 1, &seed);
        buf dqkv = buf_new(DH_F32, B * T * ROW);
        run_forward(&s, qkv, o, lse);
        run_backward(&s, dout, o, lse, qkv, dqkv);

        /* Two sets of keys, gathered with their positions. */
        int32_t pos[2][T / 2];
        buf part[2], dpart[2];
        buf o_all = buf_new(DH_F32, o.n), lse_all = buf_new(DH_F32, lse.n);
        for (int set_id = 0; set_id < 2; set_id++) {
            part[set_id] = buf_new(dtype, B * T / 2 * 2 * KV * D);
            dpart[set_id] = buf_random(DH_F32, B * T / 2 * 2 * KV * D, 1, &seed);
            int n = 0;
            for (int32_t u = 0; u < T; u++)
                if (u / 16 % 2 == set_id) pos[set_id][n++] = u;
            for (int64_t b = 0; b < B; b++)
                for (int64_t u = 0; u < T / 2; u++)
                    memcpy(at(part[set_id], (b * T / 2 + u) * 2 * KV * D),
                           at(qkv, (b * T + pos[set_id][u]) * ROW + K),
                           2 * KV * D * dh_dtype_bytes(dtype));
        }
        dh_attn_shape p = s;
        p.Tk = T / 2;
        p.kv_row = p.dkv_row = 2 * KV * D;
        p.kv_batch = p.dkv_batch = T / 2 * 2 * KV * D;
        p.dq_row = K;
        p.dq_batch = T * K;
        buf o_part = buf_new(DH_F32, o.n), lse_part = buf_new(DH_F32, lse.n);
        const size_t size = dh_k_attn_fwd_workspace(&p);
        void *ws = scratch_new(size);
        for (int set_id = 1; set_id >= 0; set_id--) { /* set 1: early queries see nothing */
            p.k_pos = pos[set_id];
            const bool first = set_id == 1;
            dh_k_attn_fwd(&p, qkv.raw, part[set_id].raw, at(part[set_id], KV * D),
                          first ? o_all.raw : o_part.raw, f32(first ? lse_all : lse_part), ws);
            if (first) assert_true(get(lse_all, 3) == -INFINITY && get(o_all, 3 * K) == 0);
        }
        scratch_free(ws, size);
        dh_k_attn_merge(&p, o_all.raw, f32(lse_all), o_part.raw, f32(lse_part));
        double *want = widen(o), *want_lse = widen(lse);
        check_close("merged o", o_all, want, 2e-6);
        check_close("merged lse", lse_all, want_lse, 2e-6);

        /* Backward: dq accumulates over the sets; dk and dv of each overwrite. */
        buf dq = buf_new(DH_F32, B * T * K);
        const size_t bwd_size = dh_k_attn_bwd_workspace(&p);
        ws = scratch_new(bwd_size);
        for (int set_id = 0; set_id < 2; set_id++) {
            p.k_pos = pos[set_id];
            memset(dpart[set_id].raw, 0, (size_t)dpart[set_id].n * sizeof(float));
            dh_k_attn_bwd(&p, dout.raw, o.raw, f32(lse), qkv.raw, part[set_id].raw,
                          at(part[set_id], KV * D), dq.raw, dpart[set_id].raw,
                          at(dpart[set_id], KV * D), true, ws);
        }
        scratch_free(ws, bwd_size);
        for (int64_t i = 0; i < B * T * K; i++)
            check_value("dq of parts", get(dq, i), get(dqkv, i / K * ROW + i % K), 5e-6);
        for (int set_id = 0; set_id < 2; set_id++)
            for (int64_t i = 0; i < dpart[set_id].n; i++) {
                const int64_t row = i / (2 * KV * D), b = row / (T / 2);
                const int64_t whole = (b * T + pos[set_id][row % (T / 2)]) * ROW + K;
                check_value("dk, dv of parts", get(dpart[set_id], i),
                            get(dqkv, whole + i % (2 * KV * D)), 5e-6);
            }
        free(want);
        free(want_lse);
        buf all[] = {qkv,    o,        lse, dout,    dqkv,    o_all,    lse_all,
                     o_part, lse_part, dq,  part[0], part[1], dpart[0], dpart[1]};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

static void key_sets_merge_to_the_whole(void **state)
{
    check_merge(0);
    check_merge(0.5f);
}

/* A new query against a cache of earlier keys equals its row in one pass. */
static void check_decoding(float cap)
{
    uint64_t seed = test_seed("attention decode");
    enum { T = 140, H = 6, KV = 2, D = 40, ROW = (H + 2 * KV) * D, K = H * D };
    EACH_DTYPE(dtype)
    {
        dh_attn_shape s = dh_attn_packed(dtype, 1, T, H, KV, D);
        s.softcap = cap;
        buf qkv = buf_random(dtype, T * ROW, 1, &seed), o = buf_new(dtype, T * K);
        buf lse = buf_new(DH_F32, H * T), one = buf_new(dtype, 2 * K),
            lse1 = buf_new(DH_F32, 2 * H);
        run_forward(&s, qkv, o, lse);
        for (int32_t t = 1; t < T; t += 23) {
            const int32_t pos[2] = {t - 1, t};
            s.Tq = 2;
            s.q_pos = pos;
            assert_int_equal(dh_k_attn_fwd_workspace(&s), 0);
            dh_k_attn_fwd(&s, at(qkv, (t - 1) * ROW), at(qkv, K), at(qkv, K + KV * D), one.raw,
                          f32(lse1), NULL);
            for (int64_t i = 0; i < 2 * K; i++)
                check_value("decoded o", get(one, i), get(o, (t - 1) * K + i),
                            dtype == DH_BF16 ? 8e-3 : 2e-6);
            for (int64_t h = 0; h < H; h++)
                check_value("decoded lse", get(lse1, 2 * h + 1), get(lse, h * T + t), 2e-6);
        }
        buf all[] = {qkv, o, lse, one, lse1};
        for (size_t i = 0; i < DH_COUNTOF(all); i++) buf_free(all[i]);
    }
}

static void cached_decoding_equals_one_pass(void **state)
{
    check_decoding(0);
    check_decoding(0.5f);
}

const struct CMUnitTest attn_tests[] = {
    cmocka_unit_test(attention_matches_reference),
    cmocka_unit_test(masks_match_reference),
    cmocka_unit_test(capped_scores_match_reference),
    cmocka_unit_test(key_sets_merge_to_the_whole),
    cmocka_unit_test(cached_decoding_equals_one_pass),
};
const size_t n_attn_tests = DH_COUNTOF(attn_tests);
