/* "pre_tokenizer" of tokenizer.json. One row a type serves the kinds whose words a splitter finds.
 * The same sections are also read for byte-level BPE and for SentencePiece. */
#include <string.h>

#include "data/hf.h"

/* ASCII's punctuation and symbols, and Unicode's punctuation. */
#define PUNCTUATION "[\\p{P}\\x21-\\x2F\\x3A-\\x40\\x5B-\\x60\\x7B-\\x7E]"

/* \w of Rust's regular expressions. */
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}" DH_PATTERN_ENCLOSED_LETTERS

static dh_status cut(dh_ctx *ctx, hf_file *hf, const char *pattern, dh_split_behavior behavior,
                     bool invert)
{
    return dh_splitter_add_pattern(ctx, &hf->tok->splitter, pattern, strlen(pattern), false,
                                   behavior, invert);
}

/* ---- by patterns ------------------------------------------------------------------------- */

static dh_status read_behavior(dh_ctx *ctx, const json_t *node, const char *absent,
                               dh_split_behavior *behavior)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    _Static_assert(DH_COUNTOF(names) == DH_N_SPLIT_BEHAVIOR, "in the order of dh_split_behavior");
    const char *name = hf_string(node, "behavior");
    if (!*name) name = absent;
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *behavior = (dh_split_behavior)i;
            return DH_OK;
        }
    const char *near = dh_nearest(name, names, DH_COUNTOF(names));
    return dh_fail(ctx, DH_EUNSUPPORTED, "pre_tokenizer %s with behavior \"%.40s\" is not read%s%s",
                   hf_string(node, "type"), name, near ? ": did you mean " : "", near ? near : "");
}

static dh_status step_split(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_split_behavior behavior;
    const char *text;
    size_t n;
    bool regex;
    DH_TRY(hf_pattern(ctx, node, &text, &n, &regex));
    DH_TRY(read_behavior(ctx, node, "", &behavior));
    return dh_splitter_add_pattern(ctx, &hf->tok->splitter, text, n, !regex, behavior,
                                   hf_is_set(node, "invert"));
}

static dh_status step_digits(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return cut(ctx, hf, hf_is_set(node, "individual_digits") ? "\\p{N}" : "\\p{N}+",
               DH_SPLIT_ISOLATED, false);
}

static dh_status step_punctuation(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_split_behavior behavior;
    DH_TRY(read_behavior(ctx, node, "Isolated", &behavior));
    return cut(ctx, hf, PUNCTUATION, behavior, false);
}

static dh_status step_whitespace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return cut(ctx, hf, "[" WORD "]+|[^" WORD "\\s]+", DH_SPLIT_REMOVED, true);
}

static dh_status step_whitespace_split(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return cut(ctx, hf, "\\s", DH_SPLIT_REMOVED, false);
}

static dh_status step_bert(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    DH_TRY(cut(ctx, hf, "\\s", DH_SPLIT_REMOVED, false));
    return cut(ctx, hf, PUNCTUATION, DH_SPLIT_ISOLATED, false);
}

static dh_status step_delimiter(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    const char *text = hf_string(node, "delimiter");
    const size_t n = json_string_length(json_object_get(node, "delimiter"));
    return dh_splitter_add_pattern(ctx, &hf->tok->splitter, text, n, true, DH_SPLIT_REMOVED, false);
}

static dh_status step_fixed_length(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    char pattern[32];
    const json_t *length = json_object_get(node, "length");
    const json_int_t n = json_integer_value(length);
    if (length && (n < 1 || n > 65535))
        return dh_fail(ctx, DH_EUNSUPPORTED,
                       "pre_tokenizer FixedLength of %lld characters; it must have 1 to 65535",
                       (long long)n);
    snprintf(pattern, sizeof pattern, "(?s:.{1,%lld})", length ? (long long)n : 5);
    return cut(ctx, hf, pattern, DH_SPLIT_ISOLATED, false);
}

/* ---- by rewriting -------------------------------------------------------------------------- */

static dh_status read_prepend_scheme(dh_ctx *ctx, const json_t *node, dh_mark_before *before)
{
    static const char *const names[] = {"never", "always", "first"};
    _Static_assert(DH_MARK_NEVER == 0 && DH_MARK_ALWAYS == 1 && DH_MARK_FIRST == 2, "their order");
    const char *name = hf_string(node, "prepend_scheme");
    if (!*name) /* older files */
        name = json_is_false(json_object_get(node, "add_prefix_space")) ? "never" : "always";
    for (size_t i = 0; i < DH_COUNTOF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *before = (dh_mark_before)i;
            return DH_OK;
        }
    return dh_fail(
        ctx, DH_EUNSUPPORTED,
        "pre_tokenizer Metaspace with prepend_scheme \"%.40s\"; always, first and never are read",
        name);
}

static dh_status step_metaspace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_split_step step = {.rewrite = DH_REWRITE_METASPACE};
    const char *mark = hf_string(node, "replacement");
    if (!*mark) mark = DH_META_SPACE;
    const size_t n_said = json_string_length(json_object_get(node, "replacement"));
    if (strlen(mark) >= sizeof step.mark || (n_said > 0 && n_said != strlen(mark)))
        return dh_fail(ctx, DH_EFORMAT,
                       "pre_tokenizer Metaspace: replacement \"%.40s\" is no "
                       "character",
                       mark);
    memcpy(step.mark, mark, strlen(mark) + 1);
    DH_TRY(read_prepend_scheme(ctx, node, &step.mark_before));
    DH_TRY(dh_splitter_add_rewrite(ctx, &hf->tok->splitter, step));
    if (json_is_false(json_object_get(node, "split"))) return DH_OK;
    return dh_splitter_add_pattern(ctx, &hf->tok->splitter, mark, strlen(mark), true,
                                   DH_SPLIT_MERGED_WITH_NEXT, false);
}

static dh_status step_byte_level(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_splitter *s = &hf->tok->splitter;
    if (!json_is_false(json_object_get(node, "add_prefix_space")))
        DH_TRY(
            dh_splitter_add_rewrite(ctx, s, (dh_split_step){.rewrite = DH_REWRITE_SPACE_BEFORE}));
    if (!json_is_false(json_object_get(node, "use_regex")))
        DH_TRY(cut(ctx, hf, DH_GPT2_PATTERN, DH_SPLIT_ISOLATED, false));
    return dh_splitter_add_rewrite(ctx, s, (dh_split_step){.rewrite = DH_REWRITE_BYTES});
}

#define CUTTING                                                                                    \
    {"Split", step_split}, {"Digits", step_digits}, {"Punctuation", step_punctuation},             \
        {"Whitespace", step_whitespace}, {"WhitespaceSplit", step_whitespace_split},               \
        {"BertPreTokenizer", step_bert}, {"CharDelimiterSplit", step_delimiter},                   \
    {                                                                                              \
        "FixedLength", step_fixed_length                                                           \
    }

static const hf_row rows[] = {
    CUTTING, {"Metaspace", step_metaspace}, {"ByteLevel", step_byte_level}};
static const hf_section section = {"pre_tokenizer", "pretokenizers", rows, DH_COUNTOF(rows), true};

dh_status hf_read_pre_tokenizer(dh_ctx *ctx, hf_file *hf)
{
    return hf_apply_section(ctx, hf, &section);
}

/* ---- byte-level BPE: bytes stay bytes, ByteLevel comes last ---------------------------------- */

static dh_status last_byte_level(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_splitter *s = &hf->tok->splitter;
    if (hf_is_set(node, "add_prefix_space")) {
        if (s->steps.n == 0 && hf->tok->normalizer.steps.n == 0)
            hf->tok->prefix = DH_PREFIX_MISSING;
        else
            DH_TRY(dh_splitter_add_rewrite(ctx, s,
                                           (dh_split_step){.rewrite = DH_REWRITE_SPACE_BEFORE}));
    }
    if (json_is_false(json_object_get(node, "use_regex"))) return DH_OK;
    return cut(ctx, hf, DH_GPT2_PATTERN, DH_SPLIT_ISOLATED, false);
}

static const hf_row byte_level_rows[] = {CUTTING, {"ByteLevel", last_byte_level}};
static const hf_section byte_level_steps = {"pre_tokenizer", "pretokenizers", byte_level_rows,
                                            DH_COUNTOF(byte_level_rows), true};

dh_status hf_read_byte_level(dh_ctx *ctx, hf_file *hf)
{
    DH_TRY(hf_read_normalizer(ctx, hf));
    return hf_apply_section(ctx, hf, &byte_level_steps);
}

/* ---- the Llama 2 kind: spaces stay spaces, whole texts are merged ---------------------------- */

static dh_status normalize_prepend(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    hf->tok->prefix = DH_PREFIX_ALWAYS;
    return DH_OK;
}

static dh_status normalize_replace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    return DH_OK;
}

static dh_status whole_metaspace(dh_ctx *ctx, hf_file *hf, json_t *node)
{
    dh_mark_before before;
    DH_TRY(read_prepend_scheme(ctx, node, &before));
    hf->tok->prefix = before == DH_MARK_NEVER ? DH_PREFIX_NONE : DH_PREFIX_MISSING;
    hf->tok->prefix_first_only = before == DH_MARK_FIRST;
    return DH_OK;
}

static const hf_row spm_normalizer_rows[] = {{"Prepend", normalize_prepend},
                                             {"Replace", normalize_replace}};
static const hf_row spm_step_rows[] = {{"Metaspace", whole_metaspace}};
static const hf_section spm_normalizers = {"normalizer", "normalizers", spm_normalizer_rows,
                                           DH_COUNTOF(spm_normalizer_rows), false};
static const hf_section spm_steps = {"pre_tokenizer", "pretokenizers", spm_step_rows,
                                     DH_COUNTOF(spm_step_rows), false};

dh_status hf_read_metaspace(dh_ctx *ctx, hf_file *hf)
{
    DH_TRY(hf_apply_section(ctx, hf, &spm_normalizers));
    return hf_apply_section(ctx, hf, &spm_steps);
}
