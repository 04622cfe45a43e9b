/* Meanings that flags of Megatron-LM have together: model, mesh, schedule and memory; overlap,
 * precision and optimizer. NeMo's files come here too, with Megatron-LM's names. */
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "config/sharing.h"
#include "exchange/import.h"

/* ---- model ----------------------------------------------------------------------------------------- */

static bool has_rope(importer *im)
{
    return im_is(im, "--position-embedding-type", "rope") ||
           im_is(im, "--position-embedding-type", "yarn") ||
           im_has(im, "--use-rotary-position-embeddings");
}

static const char *family(importer *im)
{
    const bool gated = im_has(im, "--swiglu"), rms = im_is(im, "--normalization", "RMSNorm");
    const bool experts = im_has(im, "--num-experts"), rope = has_rope(im);
    if (im_has(im, "--multi-latent-attention")) return "deepseek_v3";
    if (experts) return im_has(im, "--qk-layernorm") ? "qwen3_moe" : "mixtral";
    if (im_has(im, "--qk-layernorm")) return "qwen3";
    if (im_has(im, "--add-qkv-bias")) return "qwen2";
    return gated || rms || rope || im_has(im, "--squared-relu") || im_has(im, "--quick-geglu")
               ? "llama"
               : "gpt2";
}

/* Where a family stands for a model that differs from it. */
static void say_differences(importer *im, const char *name)
{
    const bool gpt2 = strcmp(name, "gpt2") == 0;
    const bool gated = im_has(im, "--swiglu") || im_has(im, "--quick-geglu");
    if (!gpt2 && !gated) {
        const char *flag = im_has(im, "--squared-relu") ? "--squared-relu" : "--swiglu";
        const char *note = "two matrices of width F: three of two thirds of it stand for them, the "
                           "same parameters and GEMMs";
        if (im_has(im, flag))
            im_fate(im, flag, DH_FATE_LOST, NULL, note);
        else
            im_default(im, flag, "(not given)", DH_FATE_LOST, NULL, note);
    }
    if (!gpt2 && !im_is(im, "--normalization", "RMSNorm")) {
        const char *note = "family llama has RMSNorm, which takes as long";
        if (im_has(im, "--normalization"))
            im_fate(im, "--normalization", DH_FATE_LOST, NULL, note);
        else
            im_default(im, "--normalization", "LayerNorm", DH_FATE_LOST, NULL, note);
    }
    if (!gpt2 && !has_rope(im))
        im_default(im, "--position-embedding-type",
                   im_text(im, "--position-embedding-type", "learned_absolute"), DH_FATE_LOST, NULL,
                   "other families than gpt2 have rotary positions");
    if (!gpt2 && !im_has(im, "--disable-bias-linear"))
        im_default(im, "--disable-bias-linear", "(not given)", DH_FATE_LOST, NULL,
                   "only gpt2 has biases");
}

enum { MOST_LAYERS = 4096 };

static bool list_sum(const char **at, dh_str *out, int depth);

/* [0,1] or (...), and * behind it. */
static bool list_term(const char **at, dh_str *out, int depth)
{
    const size_t from = out->len;
    *at += strspn(*at, " ");
    if (**at == '(') {
        ++*at;
        if (depth > 8 || !list_sum(at, out, depth + 1) || *(*at)++ != ')') return false;
    } else if (**at == '[') {
        for (++*at; **at && **at != ']'; ++*at)
            if (**at == '0' || **at == '1')
                dh_str_append(out, *at, 1);
            else if (!strchr(", ", **at))
                return false;
        if (*(*at)++ != ']') return false;
    } else {
        return false;
    }
    *at += strspn(*at, " ");
    if (**at != '*') return true;
    int64_t times = 0;
    const size_t n = out->len - from;
    for (*at += 1 + strspn(*at + 1, " "); dh_is_digit(**at); ++*at)
        times = DH_MIN(times * 10 + (**at - '0'), (int64_t)MOST_LAYERS);
    if (times < 1 || from + n * (size_t)times > MOST_LAYERS) return false;
    dh_str part = DH_STR_INIT;
    dh_str_append(&part, n ? out->text + from : "", n);
    for (int64_t i = 1; i < times; i++) dh_str_append(out, part.text, part.len);
    dh_str_fini(&part);
    return true;
}

static bool list_sum(const char **at, dh_str *out, int depth)
{
    for (;;) {
        if (!list_term(at, out, depth)) return false;
        *at += strspn(*at, " ");
        if (**at != '+') return true;
        ++*at;
    }
}

/* "([0]*3+[1]*58)" as "000111...": a text for each layer; false: not read. */
static bool expand_layers(const char *text, dh_str *out)
{
    int64_t period;
    if (dh_parse_i64(text, &period)) {
        for (int64_t i = 0; i < period && period <= MOST_LAYERS; i++)
            dh_str_printf(out, "%d", i == 0);
        return period > 0 && period <= MOST_LAYERS;
    }
    const char *end = text + strspn(text, "'\" ");
    return list_sum(&end, out, 0) && !end[strspn(end, "'\" ")] && !out->failed;
}

/* Layers before the first with experts, where all after it have experts; -1: another pattern */
static int64_t dense_layers(const char *text)
{
    dh_str layers = DH_STR_INIT;
    int64_t n = -1;
    if (expand_layers(text, &layers)) {
        const size_t zeros = strspn(layers.text, "0");
        if (strspn(layers.text + zeros, "1") == layers.len - zeros && layers.len > zeros)
            n = (int64_t)zeros;
    }
    dh_str_fini(&layers);
    return n;
}

static void ffn(importer *im, const char *name, int64_t width)
{
    const bool gated = im_has(im, "--swiglu") || im_has(im, "--quick-geglu");
    const bool dense = strcmp(name, "gpt2") == 0 || gated;
    int64_t f = im_int(im, "--ffn-hidden-size", gated ? width * 4 * 2 / 3 / 64 * 64 : width * 4);
    const bool experts = im_has(im, "--num-experts");
    if (experts && im_has(im, "--moe-ffn-hidden-size")) {
        if (strcmp(name, "mixtral") != 0 && dense_layers(im_text(im, "--moe-layer-freq", "1")) > 0)
            im_set(im, "model.dense_width", "%lld", (long long)f);
        f = im_int(im, "--moe-ffn-hidden-size", f);
    }
    im_set(im, "model.ffn_width", "%lld", (long long)(dense ? f : f * 2 / 3));
}

/* Vocabulary of a tokenizer that is fixed by its kind; 0: not known. */
static int64_t tokenizer_vocab(importer *im)
{
    static const struct {
        const char *type;
        int64_t vocab;
    } known[] = {{"GPT2BPETokenizer", 50257},
                 {"Llama2Tokenizer", 32000},
                 {"meta-llama/Meta-Llama-3-8B", 128256},
                 {"meta-llama/Meta-Llama-3-70B", 128256},
                 {"meta-llama/Meta-Llama-3.1-8B", 128256},
                 {"meta-llama/Meta-Llama-3.1-70B", 128256},
                 {"meta-llama/Llama-3.1-405B", 128256},
                 {"meta-llama/Meta-Llama-3.1-405B", 128256}};
    const char *type = im_text(im, "--tokenizer-type", im_text(im, "tokenizer.type", ""));
    for (size_t i = 0; i < DH_COUNTOF(known); i++)
        if (strcmp(type, known[i].type) == 0) return known[i].vocab;
    if (!*type && (im_has(im, "--vocab-file") || im_has(im, "--merge-file"))) return 50257;
    return 0;
}

static void vocabulary(importer *im)
{
    const int64_t tp = im_int(im, "--tensor-model-parallel-size", 1);
    const int64_t by = DH_MAX(im_int(im, "--make-vocab-size-divisible-by", 128) * tp, (int64_t)1);
    const int64_t padded = im_int(im, "--padded-vocab-size", 0);
    int64_t vocab = im_int(im, "--vocab-size", 0);
    if (!vocab) {
        vocab = tokenizer_vocab(im);
        if (vocab && !padded)
            im_default(im, "--vocab-size", dh_arena_printf(im->arena, "%lld", (long long)vocab),
                       DH_FATE_EXPRESSED, "model.vocab", "of the tokenizer");
    }
    if (padded)
        vocab = padded;
    else if (vocab && !im_has(im, "--no-pad-vocab-size") && !im_has(im, "--disable-pad-vocab-size"))
        vocab = (vocab + by - 1) / by * by;
    if (vocab) {
        im_set(im, "model.vocab", "%lld", (long long)vocab);
        return;
    }
    for (size_t i = 0; i < im->how->n_set; i++)
        if (strncmp(im->how->set[i], "model", 5) == 0) return;
    im_fail(im, DH_EINVAL,
            "the size of the vocabulary is not said (it is the tokenizer's): --set model.vocab=N");
}

static void attention(importer *im, const char *name)
{
    const int64_t heads = im_int(im, "--num-attention-heads", 0);
    if (strcmp(name, "deepseek_v3") == 0) {
        const int64_t rope = im_int(im, "--qk-pos-emb-head-dim", 64);
        im_set(im, "model.rope_dim", "%lld", (long long)rope);
        im_set(im, "model.head_dim", "%lld", (long long)(im_int(im, "--qk-head-dim", 128) + rope));
        im_set(im, "model.v_dim", "%lld", (long long)im_int(im, "--v-head-dim", 128));
        im_set(im, "model.kv_lora", "%lld", (long long)im_int(im, "--kv-lora-rank", 32));
        im_set(im, "model.q_lora", "%lld", (long long)im_int(im, "--q-lora-rank", 0));
        return;
    }
    const bool grouped = im_has(im, "--group-query-attention");
    const int64_t groups = im_int(im, "--num-query-groups", heads);
    if (im_has(im, "--num-query-groups") && !grouped) {
        im_fate(im, "--num-query-groups", DH_FATE_IDLE, NULL, "without --group-query-attention");
    } else if (groups != heads) {
        if (strcmp(name, "gpt2") == 0)
            im_fate(im, "--num-query-groups", DH_FATE_LOST, NULL, "family gpt2 has no groups");
        else
            im_set(im, "model.n_kv_heads", "%lld", (long long)groups);
    }
    if (im_has(im, "--kv-channels")) {
        const int64_t dim = im_int(im, "--kv-channels", 0);
        if (strcmp(name, "gpt2") != 0)
            im_set(im, "model.head_dim", "%lld", (long long)dim);
        else if (dim * heads != im_int(im, "--hidden-size", 0))
            im_fate(im, "--kv-channels", DH_FATE_LOST, NULL,
                    "heads of family gpt2 make up the width");
    }
}

static void positions(importer *im, const char *name)
{
    if (strcmp(name, "gpt2") == 0) return;
    im_set(im, "model.rope_theta", "%.10g", im_real(im, "--rotary-base", 10000));
    if (im_has(im, "--use-rope-scaling")) {
        im_set(im, "model.rope_scaling", "llama3");
        im_set(im, "model.rope_factor", "%.10g", im_real(im, "--rope-scaling-factor", 8));
        im_set(im, "model.rope_low_freq_factor", "1");
        im_set(im, "model.rope_high_freq_factor", "4");
        im_set(im, "model.rope_original_max_seq", "8192");
    }
}

static void experts(importer *im, const char *name)
{
    const bool deepseek = strcmp(name, "deepseek_v3") == 0;
    if (!im_has(im, "--num-experts")) return;
    if (!im_has(im, "--moe-router-topk")) im_set(im, "model.top_k", "2");
    if (im_has(im, "--moe-layer-freq")) {
        const int64_t dense = dense_layers(im_text(im, "--moe-layer-freq", "1"));
        if (dense > 0 && strcmp(name, "mixtral") != 0)
            im_set(im, "model.dense_first", "%lld", (long long)dense);
        else if (dense != 0)
            im_fate(im, "--moe-layer-freq", DH_FATE_LOST, NULL,
                    "layers without experts are the first ones, of qwen3_moe and deepseek_v3");
    }
    if (im_has(im, "--moe-shared-expert-intermediate-size")) {
        const int64_t shared = im_int(im, "--moe-shared-expert-intermediate-size", 0);
        const int64_t width = DH_MAX(im_int(im, "--moe-ffn-hidden-size", 0), (int64_t)1);
        if (deepseek && shared % width == 0)
            im_set(im, "model.n_shared", "%lld", (long long)(shared / width));
        else
            im_fate(im, "--moe-shared-expert-intermediate-size", DH_FATE_LOST, NULL,
                    "shared experts are those of deepseek_v3, each as wide as the others");
    }
    static const char *const routing[][2] = {
        {"--moe-router-num-groups", "model.n_groups"},
        {"--moe-router-group-topk", "model.top_groups"},
        {"--moe-router-topk-scaling-factor", "model.router_scale"}};
    for (size_t i = 0; i < DH_COUNTOF(routing); i++) {
        if (!im_has(im, routing[i][0])) continue;
        if (deepseek)
            im_set(im, routing[i][1], "%.10g", im_real(im, routing[i][0], 1));
        else
            im_fate(im, routing[i][0], DH_FATE_LOST, NULL, "of family deepseek_v3");
    }
    if (!deepseek)
        im_set(im, "model.router_aux_coef", "%.10g", im_real(im, "--moe-aux-loss-coeff", 0));
    if (im_has(im, "--moe-expert-capacity-factor")) {
        im_set(im, "moe.mode", "capacity");
        im_set(im, "moe.capacity", "%.10g", im_real(im, "--moe-expert-capacity-factor", 1));
    }
    if (im_is(im, "--moe-token-dispatcher-type", "allgather") ||
        !im_has(im, "--moe-token-dispatcher-type")) {
        const char *note = "rows of tokens travel by all-to-all";
        if (im_has(im, "--moe-token-dispatcher-type"))
            im_fate(im, "--moe-token-dispatcher-type", DH_FATE_LOST, NULL, note);
        else if (im_int(im, "--expert-model-parallel-size", 1) > 1)
            im_default(im, "--moe-token-dispatcher-type", "allgather", DH_FATE_LOST, NULL, note);
    } else if (im_is(im, "--moe-token-dispatcher-type", "flex")) {
        im_fate(im, "--moe-token-dispatcher-type", DH_FATE_LOST, NULL,
                "rows of tokens travel by all-to-all, not by DeepEP");
    }
}

static void dropout(importer *im, bool has_default)
{
    const double p = im_real(im, "--hidden-dropout", has_default ? 0.1 : 0);
    if (p > 0) im_set(im, "model.dropout", "%.10g", p);
    if (p > 0 && !im_has(im, "--hidden-dropout"))
        im_default(im, "--hidden-dropout", "0.1", DH_FATE_EXPRESSED, "model.dropout: 0.1",
                   "Megatron-LM's default");
    if (has_default && !im_has(im, "--attention-dropout"))
        im_default(im, "--attention-dropout", "0.1", DH_FATE_LOST, NULL,
                   "Megatron-LM's default: probabilities of attention are not dropped here");
}

static void model(importer *im, bool has_default)
{
    const char *name = family(im);
    im_set(im, "model.family", "%s", name);
    const int64_t width = im_int(im, "--hidden-size", 0), seq = im_int(im, "--seq-length", 1);
    if (!im_has(im, "--num-layers") || !im_has(im, "--hidden-size") ||
        !im_has(im, "--num-attention-heads"))
        im_fail(
            im, DH_EINVAL,
            "a model needs --num-layers, --hidden-size and --num-attention-heads; --set model=... "
            "gives a preset or a config.json");
    say_differences(im, name);
    ffn(im, name, width);
    attention(im, name);
    vocabulary(im);
    positions(im, name);
    experts(im, name);
    dropout(im, has_default);
    im_set(im, "model.max_seq", "%lld",
           (long long)DH_MAX(im_int(im, "--max-position-embeddings", seq), seq));
    im_set(im, "model.tied_head",
           im_has(im, "--untie-embeddings-and-output-weights") ? "false" : "true");
    if (strcmp(name, "gpt2") == 0 && im_has(im, "--disable-bias-linear"))
        im_set(im, "model.bias", "false");
    if (strcmp(name, "qwen2") == 0 && !im_has(im, "--untie-embeddings-and-output-weights"))
        im_set(im, "model.tied_head", "true");
}

/* ---- mesh ------------------------------------------------------------------------------------------- */

static int64_t expert_parallel(importer *im)
{
    const int64_t tp = im_int(im, "--tensor-model-parallel-size", 1);
    const int64_t etp = im_int(im, "--expert-tensor-parallel-size", tp);
    int64_t ep = im_int(im, "--expert-model-parallel-size", 1);
    if (!im_has(im, "--num-experts") && !im->preset) {
        im_unset(im, "parallel.ep");
        im_fate(im, "--expert-model-parallel-size", DH_FATE_IDLE, NULL, "the model has no experts");
        im_fate(im, "--expert-tensor-parallel-size", DH_FATE_IDLE, NULL,
                "the model has no experts");
        return 1;
    }
    if (etp == tp) return ep;
    if (etp != 1) {
        im_fate(im, "--expert-tensor-parallel-size", DH_FATE_LOST, NULL,
                "an expert lies on all tensor-parallel ranks, or on one");
        return ep;
    }
    /* Here ep lies inside of dp, and experts are spread over tp as well. */
    if (ep % tp != 0) {
        im_fate(im, "--expert-tensor-parallel-size", DH_FATE_LOST, NULL,
                "with 1, experts are spread over all tensor-parallel ranks");
        return ep;
    }
    ep /= tp;
    im_set(im, "parallel.ep", "%lld", (long long)ep);
    im_set(im, "parallel.expert_tp", "1");
    im_fate(im, "--expert-model-parallel-size", DH_FATE_EXPRESSED, "parallel.ep",
            "over tp, for experts lie on tensor-parallel ranks too");
    return ep;
}

/* Layers of every stage of "Et*3|(tt|)*29,m|L": a text for parallel.layer_split; false: not read. */
static bool expand_layout(const char *at, size_t n, dh_str *out, int depth)
{
    for (size_t i = 0; i < n;) {
        size_t from = i, to;
        if (at[i] == '(') {
            int open = 1;
            for (to = i + 1; to < n && open; to++) open += (at[to] == '(') - (at[to] == ')');
            if (open) return false;
            from = i + 1;
            i = to;
            to--;
        } else {
            to = ++i;
        }
        int64_t times = 1;
        if (i < n && at[i] == '*') {
            times = 0;
            for (i++; i < n && dh_is_digit(at[i]); i++)
                if (times < 4096) times = times * 10 + (at[i] - '0');
        }
        for (int64_t k = 0; k < times; k++) {
            if (depth > 8 || out->len > 65536) return false;
            if (to - from == 1)
                dh_str_append(out, at + from, 1);
            else if (!expand_layout(at + from, to - from, out, depth + 1))
                return false;
        }
    }
    return !out->failed;
}

static void layout(importer *im, int64_t pp)
{
    const char *text = im_text(im, "--pipeline-model-parallel-layout", "");
    dh_str stages = DH_STR_INIT, split = DH_STR_INIT;
    int64_t layers = 0, n_stages = 0;
    bool ok = expand_layout(text, strlen(text), &stages, 0);
    for (const char *p = stages.text; ok && p; p++) {
        if (*p == 't' || *p == 'D') layers++;
        if (*p == 'm')
            im_fate(im, "--pipeline-model-parallel-layout", DH_FATE_LOST, "parallel.layer_split",
                    "layers are expressed; modules for further tokens (m) are not trained");
        if (*p && *p != '|') continue;
        dh_str_printf(&split, "%s%lld", n_stages ? "," : "", (long long)layers);
        layers = 0;
        n_stages++;
        if (!*p) break;
    }
    ok = ok && n_stages > 0 && n_stages % pp == 0 && !split.failed;
    if (ok) {
        im_set(im, "parallel.layer_split", "%s", split.text);
        if (n_stages > pp)
            im_set(im, "parallel.virtual_stages", "%lld", (long long)(n_stages / pp));
    } else {
        im_fail(im, DH_EINVAL,
                "--pipeline-model-parallel-layout %s: %lld stages do not go with pp %lld", text,
                (long long)n_stages, (long long)pp);
    }
    dh_str_fini(&stages);
    dh_str_fini(&split);
}

static void virtual_stages(importer *im, int64_t pp)
{
    const int64_t layers = im_int(im, "--num-layers", 1);
    int64_t vpp = im_int(im, "--num-virtual-stages-per-pipeline-rank", 1);
    if (im_has(im, "--num-layers-per-virtual-pipeline-stage")) {
        const int64_t each = im_int(im, "--num-layers-per-virtual-pipeline-stage", 1);
        if (each < 1 || layers % (each * pp) != 0)
            im_fail(
                im, DH_EINVAL,
                "--num-layers-per-virtual-pipeline-stage %lld and %lld stages do not divide %lld "
                "layers",
                (long long)each, (long long)pp, (long long)layers);
        else
            vpp = layers / (each * pp);
    }
    if (vpp > 1) im_set(im, "parallel.virtual_stages", "%lld", (long long)vpp);
}

static void layer_split(importer *im, int64_t pp)
{
    static const char first[] = "--decoder-first-pipeline-num-layers",
                      last[] = "--decoder-last-pipeline-num-layers",
                      embedding[] = "--account-for-embedding-in-pipeline-split",
                      loss[] = "--account-for-loss-in-pipeline-split";
    const bool edges = im_has(im, first) || im_has(im, last);
    const bool shorter = im_has(im, embedding) || im_has(im, loss);
    if (im_has(im, "--pipeline-model-parallel-layout")) {
        layout(im, pp);
    } else if (edges && im_get_int(im, "parallel.virtual_stages", 1) > 1) {
        im_fate(im, first, DH_FATE_LOST, NULL,
                "with virtual stages: parallel.layer_split has chunks");
        im_fate(im, last, DH_FATE_LOST, NULL,
                "with virtual stages: parallel.layer_split has chunks");
    } else if (edges) {
        char a[32] = "*", b[32] = "*", text[96];
        if (im_has(im, first)) snprintf(a, sizeof a, "%lld", (long long)im_int(im, first, 0));
        if (im_has(im, last)) snprintf(b, sizeof b, "%lld", (long long)im_int(im, last, 0));
        snprintf(text, sizeof text, "%s%s%s%s%s", a, strcmp(a, "*") == 0 ? "" : ",",
                 strcmp(a, "*") == 0 ? "" : "*", strcmp(b, "*") == 0 ? "" : ",",
                 strcmp(b, "*") == 0 ? "" : b);
        im_set(im, "parallel.layer_split", "%s", text);
    } else if (shorter) {
        im_set(im, "parallel.layer_split", "%s*%s", im_has(im, embedding) ? "-1," : "",
               im_has(im, loss) ? ",-1" : "");
    }
}

/* Returns the number of ranks that the mesh takes at least. */
static int64_t mesh(importer *im)
{
    const int64_t tp = im_int(im, "--tensor-model-parallel-size", 1);
    const int64_t pp = im_int(im, "--pipeline-model-parallel-size", 1);
    const int64_t cp = im_int(im, "--context-parallel-size", 1);
    if (tp < 1 || pp < 1 || cp < 1) im_fail(im, DH_EINVAL, "degrees of parallelism are at least 1");
    if (im->st != DH_OK) return 0;
    const int64_t ep = expert_parallel(im);
    if (tp == 1)
        im_fate(im, "--sequence-parallel", DH_FATE_IDLE, NULL, "tp is 1");
    else
        im_set(im, "parallel.sequence", im_has(im, "--sequence-parallel") ? "true" : "false");
    if (pp > 1) virtual_stages(im, pp);
    if (pp > 1) layer_split(im, pp);
    if (im_has(im, "--cp-comm-type") && cp > 1) {
        if (im_is(im, "--cp-comm-type", "p2p"))
            im_fate(im, "--cp-comm-type", DH_FATE_EXPRESSED, "parallel.cp",
                    "keys and values go from rank to rank");
        else
            im_fate(im, "--cp-comm-type", DH_FATE_LOST, NULL,
                    "keys and values go from rank to rank: nothing is gathered at once, no heads "
                    "are exchanged");
    } else if (im_has(im, "--cp-comm-type")) {
        im_fate(im, "--cp-comm-type", DH_FATE_IDLE, NULL, "cp is 1");
    }
    return tp > 4096 || pp > 4096 || cp > 4096 || ep > 4096 ? 0
                                                            : tp * pp * cp * DH_MAX(ep, (int64_t)1);
}

static void sharding(importer *im)
{
    static const struct {
        const char *strategy;
        int zero;
    } strategies[] = {{"no_shard", 0}, {"optim", 1}, {"optim_grads", 2}, {"optim_grads_params", 3}};
    static const char flag[] = "--data-parallel-sharding-strategy";
    const bool fsdp = im_has(im, "--use-megatron-fsdp") || im_has(im, "--use-custom-fsdp");
    if (!fsdp) {
        im_fate(im, flag, DH_FATE_IDLE, NULL, "without --use-megatron-fsdp");
        if (!im_has(im, "--use-torch-fsdp2"))
            im_fate(im, "--torch-fsdp2-no-reshard-after-forward", DH_FATE_IDLE, NULL,
                    "without --use-torch-fsdp2");
        if (!im_has(im, "--use-torch-fsdp2")) im_unset(im, "parallel.reshard_after_forward");
    } else {
        const char *strategy = im_text(im, flag, "optim_grads_params");
        for (size_t i = 0; i < DH_COUNTOF(strategies); i++)
            if (strcmp(strategy, strategies[i].strategy) == 0)
                im_set(im, "parallel.zero", "%d", strategies[i].zero);
    }
    if (im_has(im, "--use-torch-fsdp2")) im_set(im, "parallel.zero", "3");
    const dh_sharing sharing = dh_sharing_of(im_get_int(im, "parallel.zero", 0));
    if (!sharing.moments && im_has(im, "--overlap-param-gather")) {
        im_unset(im, "parallel.gather");
        im_fate(im, "--overlap-param-gather", DH_FATE_LOST, NULL,
                "without --use-distributed-optimizer there is nothing to gather; Megatron-LM "
                "refuses it");
    }
    if (sharing.parameters && im_has(im, "--overlap-param-gather")) {
        im_unset(im, "parallel.gather");
        im_fate(im, "--overlap-param-gather", DH_FATE_EXPRESSED, "parallel.prefetch",
                "zero: 3 gathers each block ahead");
    }
}

/* ---- schedule and overlap ------------------------------------------------------------------------------ */

static void schedule(importer *im)
{
    const int64_t pp = im_int(im, "--pipeline-model-parallel-size", 1);
    const int64_t vpp = im_get_int(im, "parallel.virtual_stages", 1);
    const bool combined = im_has(im, "--overlap-moe-expert-parallel-comm");
    if (combined) im_set(im, "strategy", "combined-1f1b");
    if (pp > 1 && !combined) im_set(im, "parallel.schedule", vpp > 1 ? "interleaved-1f1b" : "1f1b");
    if (combined) im_set(im, "parallel.schedule", "combined-1f1b");
    if (pp == 1) {
        for (size_t i = 0; i < 2; i++)
            im_fate(im,
                    i ? "--num-virtual-stages-per-pipeline-rank"
                      : "--num-layers-per-virtual-pipeline-stage",
                    DH_FATE_IDLE, NULL, "pp is 1");
        im_fate(im, "--no-overlap-p2p-communication", DH_FATE_IDLE, NULL, "pp is 1");
        return;
    }
    /* arguments.py: transfers overlap with virtual stages alone. */
    if (vpp > 1 && !im_has(im, "--no-overlap-p2p-communication")) return;
    im_trait(im, "waiting-transfers");
    if (im_has(im, "--no-overlap-p2p-communication"))
        im_fate(im, "--no-overlap-p2p-communication", DH_FATE_EXPRESSED,
                "system: +waiting-transfers", NULL);
    else
        im_default(im, "--no-overlap-p2p-communication", NULL, DH_FATE_EXPRESSED,
                   "system: +waiting-transfers",
                   "Megatron-LM overlaps transfers with virtual stages alone");
}

static void overlap(importer *im, int64_t dp)
{
    if (im_has(im, "--tp-comm-overlap") && im_int(im, "--tensor-model-parallel-size", 1) == 1) {
        im_unset(im, "strategy");
        im_fate(im, "--tp-comm-overlap", DH_FATE_IDLE, NULL, "tp is 1");
    } else if (im_has(im, "--tp-comm-overlap") &&
               im_has(im, "--overlap-moe-expert-parallel-comm")) {
        im_fate(im, "--tp-comm-overlap", DH_FATE_LOST, NULL,
                "a job has one strategy: combined-1f1b");
    }
    if (dp > 1 && !im_has(im, "--overlap-grad-reduce") && im_get_int(im, "parallel.zero", 0) < 3) {
        im_trait(im, "reduced-last");
        im_default(im, "--overlap-grad-reduce", "(not given)", DH_FATE_EXPRESSED,
                   "system: +reduced-last", NULL);
    } else if (dp == 1) {
        im_fate(im, "--overlap-grad-reduce", DH_FATE_IDLE, NULL, "dp is 1");
    } else {
        im_fate(im, "--overlap-grad-reduce", DH_FATE_EXPRESSED, "system",
                "gradients are reduced "
                "during the backward");
    }
    if (im_has(im, "--ddp-bucket-size"))
        im_set(im, "parallel.bucket_mb", "%.6g",
               im_real(im, "--ddp-bucket-size", 0) *
                   (im_has(im, "--grad-reduce-in-bf16") ? 2e-6 : 4e-6));
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static void recompute_selective(importer *im)
{
    const char *modules = im_text(im, "--recompute-modules", "core_attn");
    if (strcmp(modules, "core_attn") == 0) {
        im_set(im, "train.recompute", "attention");
        im_fate(im, "--recompute-granularity", DH_FATE_EXPRESSED, "train.recompute: attention",
                NULL);
        return;
    }
    im_set(im, "train.recompute", "selective");
    im_fate(im, "--recompute-granularity", DH_FATE_EXPRESSED, "train.recompute: selective", NULL);
    im_fate(im, "--recompute-modules", DH_FATE_LOST, "train.recompute: selective",
            "selective makes norms, activations and scores again, not modules one by one");
}

static void recompute(importer *im)
{
    if (im_is(im, "--recompute-granularity", "full")) {
        im_set(im, "train.recompute", "full");
        im_fate(im, "--recompute-granularity", DH_FATE_EXPRESSED, "train.recompute: full", NULL);
        if (im_is(im, "--recompute-method", "block"))
            im_fate(im, "--recompute-method", DH_FATE_LOST, NULL,
                    "some layers of a stage alone: all layers recompute");
        if (im_int(im, "--recompute-num-layers", 1) != 1)
            im_fate(im, "--recompute-num-layers", DH_FATE_LOST, NULL,
                    "each layer keeps its input, whatever their number");
    } else if (im_is(im, "--recompute-granularity", "selective")) {
        recompute_selective(im);
        im_fate(im, "--recompute-method", DH_FATE_IDLE, NULL, "of granularity full");
        im_fate(im, "--recompute-num-layers", DH_FATE_IDLE, NULL, "of granularity full");
    } else if (!im_has(im, "--recompute-activations") && !im_has(im, "--checkpoint-activations")) {
        im_fate(im, "--recompute-method", DH_FATE_IDLE, NULL, "without --recompute-granularity");
        im_fate(im, "--recompute-num-layers", DH_FATE_IDLE, NULL,
                "without --recompute-granularity");
        im_fate(im, "--recompute-modules", DH_FATE_IDLE, NULL, "without --recompute-granularity");
    }
}

/* ---- precision ------------------------------------------------------------------------------------------------ */

static void precision(importer *im)
{
    if (im_has(im, "--fp8-format")) {
        const bool e4m3 = im_is(im, "--fp8-format", "e4m3");
        im_set(im, "train.fp8", e4m3 ? "e4m3" : "hybrid");
        im_fate(im, "--fp8-format", DH_FATE_EXPRESSED,
                e4m3 ? "train.fp8: e4m3" : "train.fp8: hybrid", NULL);
        if (im_is(im, "--fp8-recipe", "mxfp8") || im_is(im, "--fp8-recipe", "blockwise"))
            im_fate(im, "--fp8-recipe", DH_FATE_LOST, NULL,
                    "scales are those of rows and columns, not of blocks");
    } else {
        im_fate(im, "--fp8-recipe", DH_FATE_IDLE, NULL, "without --fp8-format");
        if (im_has(im, "--fp8-param-gather") && !im_get(im, "train.fp8"))
            im_fate(im, "--fp8-param-gather", DH_FATE_IDLE, NULL, "without --fp8-format");
    }
    if (im_get(im, "train.fp8") && strcmp(im_get(im, "train.fp8"), "off") != 0 &&
        !im_get(im, "train.dtype"))
        im_set(im, "train.dtype", "bf16");
    if (!im_get(im, "train.dtype")) {
        im_set(im, "train.dtype", "f32");
        im_default(im, "--bf16", "(not given)", DH_FATE_EXPRESSED, "train.dtype: f32", NULL);
    }
    if (im_has(im, "--grad-reduce-in-bf16")) {
        im_trait(im, "half-gradients");
        im_fate(im, "--grad-reduce-in-bf16", DH_FATE_EXPRESSED, "system: +half-gradients", NULL);
    }
}

static void kernels(importer *im)
{
    if (im_is(im, "--attention-backend", "unfused") || im_is(im, "--attention-backend", "local")) {
        im_trait(im, "scores");
        im_fate(im, "--attention-backend", DH_FATE_EXPRESSED, "system: +scores", NULL);
    } else {
        im_fate(im, "--attention-backend", DH_FATE_EXPRESSED, "system", "fused, as the system's");
    }
    if (im_is(im, "--transformer-impl", "local")) im->system = "megatron-core-2024";
    im_fate(im, "--transformer-impl", DH_FATE_EXPRESSED, "system", NULL);
    im_fate(im, "--cross-entropy-loss-fusion", DH_FATE_EXPRESSED, "system", "the loss is fused");
    const bool captured =
        im_has(im, "--enable-cuda-graph") || im_has(im, "--external-cuda-graph") ||
        (im_has(im, "--cuda-graph-impl") && !im_is(im, "--cuda-graph-impl", "none"));
    if (captured)
        im_trait(im, "captured");
    else
        im_fate(im, "--cuda-graph-impl", DH_FATE_IDLE, NULL, "it is so here");
}

/* ---- batch and optimizer ---------------------------------------------------------------------------------------- */

static int64_t data_parallel(importer *im)
{
    const int64_t n = im_get_int(im, "ranks", 1);
    const int64_t share = im_int(im, "--tensor-model-parallel-size", 1) *
                          im_int(im, "--pipeline-model-parallel-size", 1) *
                          im_int(im, "--context-parallel-size", 1);
    return DH_MAX(n / DH_MAX(share, (int64_t)1), (int64_t)1);
}

static void steps_of(importer *im, const char *samples, const char *key, int64_t batch)
{
    if (!im_has(im, samples)) return;
    im_set(im, key, "%lld", (long long)DH_MAX(im_int(im, samples, 1) / batch, (int64_t)1));
}

static void batch(importer *im, int64_t dp)
{
    const int64_t micro = im_int(im, "--micro-batch-size", 1);
    const int64_t global = im_int(im, "--global-batch-size", micro * dp);
    im_set(im, "train.micro_batch", "%lld", (long long)micro);
    im_set(im, "train.batch", "%lld", (long long)global);
    im_fate(im, "--global-batch-size", DH_FATE_EXPRESSED,
            dh_arena_printf(im->arena, "train.batch: %lld", (long long)global), NULL);
    if (!im_has(im, "--seq-length"))
        im_fail(im, DH_EINVAL, "--seq-length is not given: how long are sequences?");
    const int64_t by = DH_MAX(global, (int64_t)1);
    steps_of(im, "--train-samples", "train.steps", by);
    steps_of(im, "--lr-warmup-samples", "optimizer.warmup_steps", by);
    steps_of(im, "--lr-decay-samples", "optimizer.decay_steps", by);
    if (im_has(im, "--lr-warmup-fraction"))
        im_set(
            im, "optimizer.warmup_steps", "%.0f",
            im_real(im, "--lr-warmup-fraction", 0) *
                (double)im_get_int(im, "optimizer.decay_steps", im_get_int(im, "train.steps", 0)));
    if (im_has(im, "--lr-decay-style")) {
        const char *style = im_text(im, "--lr-decay-style", "");
        if (strcmp(style, "constant") == 0 || strcmp(style, "linear") == 0 ||
            strcmp(style, "cosine") == 0)
            im_set(im, "optimizer.schedule", "%s", style);
        else
            im_fate(im, "--lr-decay-style", DH_FATE_IDLE, NULL,
                    "of other kinds than constant, linear, cosine; a step takes as long");
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

void im_megatron(importer *im)
{
    const bool nemo = im->system != NULL;
    if (!nemo) im->system = "megatron-core-2026";
    if (!im->preset && !im_has(im, "--num-layers")) im->preset = im_given_model(im);
    if (im->preset)
        im_set(im, "model.preset", "%s", im->preset);
    else
        model(im, !nemo);
    const int64_t unit = mesh(im);
    im_ranks(im, unit);
    if (im->st != DH_OK) return;
    const int64_t dp = data_parallel(im);
    sharding(im);
    schedule(im);
    overlap(im, dp);
    recompute(im);
    precision(im);
    kernels(im);
    batch(im, dp);
}
