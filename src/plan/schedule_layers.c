/* Layers to virtual stages, from a short text. */
#include <stdlib.h>
#include <string.h>

#include "plan/schedule.h"

#define LL(x) ((long long)(x))

/* One stage's wish: a number of layers, or an even share less `fewer`. */
typedef struct share {
    bool fixed;
    int64_t layers, fewer;
} share;

static dh_status fail_entry(dh_ctx *ctx, const char *spec, int entry, const char *why)
{
    return dh_fail(ctx, DH_EFORMAT,
                   "layer split \"%.80s\", entry %d: %s; entries are layers of a stage (4), fewer "
                   "than an even share (-1), or once * for all stages not listed",
                   spec, entry, why);
}

/* Parse one entry [text, text + n). */
static dh_status read_entry(dh_ctx *ctx, const char *spec, int entry, const char *text, size_t n,
                            share *s)
{
    char buf[24];
    int64_t value;
    if (n >= sizeof buf) return fail_entry(ctx, spec, entry, "too long");
    while (n > 0 && *text == ' ') text++, n--;
    while (n > 0 && text[n - 1] == ' ') n--;
    memcpy(buf, text, n);
    buf[n] = '\0';
    if (!dh_parse_i64(buf, &value)) return fail_entry(ctx, spec, entry, "not a number");
    if (value > INT32_MAX || value < -INT32_MAX)
        return fail_entry(ctx, spec, entry, "out of range");
    if (*buf == '-')
        *s = (share){.fewer = -value};
    else
        *s = (share){.fixed = true, .layers = value};
    return DH_OK;
}

static int count_entries(const char *spec)
{
    int n = 1;
    for (const char *at = spec; *at; at++) n += *at == ',';
    return n;
}

/* shares[n_stages] from the text. */
static dh_status read_spec(dh_ctx *ctx, const char *spec, int32_t n_stages, share *shares)
{
    const int n_entries = count_entries(spec);
    int32_t v = 0;
    bool has_star = false;
    for (int entry = 1; entry <= n_entries; entry++) {
        size_t n = strcspn(spec, ","), blank = strspn(spec, " ");
        bool star = spec[blank] == '*' && blank + 1 + strspn(spec + blank + 1, " ") == n;
        if (star && has_star) return fail_entry(ctx, spec, entry, "a second *");
        int32_t repeat = star ? n_stages - (n_entries - 1) : 1;
        has_star |= star;
        for (int32_t k = 0; k < repeat && v < n_stages; k++, v++) {
            shares[v] = (share){0};
            if (!star) DH_TRY(read_entry(ctx, spec, entry, spec, n, &shares[v]));
        }
        spec += n + (spec[n] == ',');
    }
    if (has_star ? n_entries - 1 > n_stages : n_entries != n_stages)
        return dh_fail(
            ctx, DH_EINVAL,
            "layer split: %d entries for %d virtual stages; * stands for all that are not "
            "listed, as even as can be",
            n_entries - has_star, n_stages);
    return DH_OK;
}

/* The k-th stage to get one more layer: one of each pair of mirrored stages from the centre
 * outwards, then the other ones, and the two ends last. On a folded placement that is one
 * for each rank before a second for any, except the rank that holds both ends. */
static int32_t kth_extra(int32_t n_stages, int32_t k)
{
    const int32_t n_high = n_stages - 1 - n_stages / 2; /* stages n/2 .. n-2 */
    const int32_t n_low = DH_MAX(0, n_stages / 2 - 1);  /* stages n/2-1 .. 1 */
    if (k < n_high) return n_stages / 2 + k;
    if (k < n_high + n_low) return n_stages / 2 - 1 - (k - n_high);
    return k == n_high + n_low ? 0 : n_stages - 1;
}

static dh_status fill_counts(dh_ctx *ctx, int64_t n_layers, int32_t n_stages, const share *shares,
                             int64_t counts[])
{
    int64_t left = n_layers, n_even = 0;
    for (int32_t v = 0; v < n_stages; v++) {
        left -= shares[v].fixed ? shares[v].layers : -shares[v].fewer;
        n_even += !shares[v].fixed;
    }
    if (n_even == 0 ? left != 0 : left < 0)
        return dh_fail(ctx, DH_EINVAL,
                       "layer split: the entries make %lld layers; the model has "
                       "%lld",
                       LL(n_layers - left), LL(n_layers));
    const int64_t even = n_even ? left / n_even : 0;
    int64_t n_extra = n_even ? left % n_even : 0;
    for (int32_t v = 0; v < n_stages; v++)
        counts[v] = shares[v].fixed ? shares[v].layers : even - shares[v].fewer;
    for (int pass = 0; pass < 2; pass++) /* stages with fewer layers come last */
        for (int32_t k = 0; k < n_stages && n_extra > 0; k++) {
            int32_t v = kth_extra(n_stages, k);
            if (shares[v].fixed || (shares[v].fewer > 0) != pass) continue;
            counts[v]++;
            n_extra--;
        }
    return DH_OK;
}

/* A stage without layers makes sense only where the embedding or the head is. */
static dh_status check_counts(dh_ctx *ctx, int64_t n_layers, int32_t n_stages, const share *shares,
                              const int64_t counts[])
{
    for (int32_t v = 0; v < n_stages; v++) {
        bool end = v == 0 || v == n_stages - 1;
        bool wanted = shares[v].fixed || shares[v].fewer > 0;
        if (counts[v] < 0 || (counts[v] == 0 && !(end && wanted)))
            return dh_fail(ctx, DH_EINVAL,
                           "layer split: virtual stage %d of %d would have %lld of %lld layers; at "
                           "least 1 is needed%s",
                           v, n_stages, LL(counts[v]), LL(n_layers),
                           end ? "" : " between the first and the last stage");
    }
    return DH_OK;
}

dh_status dh_layer_split(dh_ctx *ctx, int64_t n_layers, int32_t n_stages, const char *spec,
                         int64_t counts[])
{
    if (n_layers < 1 || n_layers > INT32_MAX || n_stages < 1 || n_stages > DH_SCHEDULE_MAX_CELLS)
        return dh_fail(
            ctx, DH_EINVAL,
            "layer split: %lld layers over %d virtual stages: at least 1 of both, and at "
            "most %d layers and %d stages, would be right",
            LL(n_layers), n_stages, INT32_MAX, DH_SCHEDULE_MAX_CELLS);
    share *shares = calloc((size_t)n_stages, sizeof *shares);
    int64_t *made = calloc((size_t)n_stages, sizeof *made);
    dh_status st = shares && made ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) st = read_spec(ctx, *spec ? spec : "*", n_stages, shares);
    if (st == DH_OK) st = fill_counts(ctx, n_layers, n_stages, shares, made);
    if (st == DH_OK) st = check_counts(ctx, n_layers, n_stages, shares, made);
    if (st == DH_OK) memcpy(counts, made, (size_t)n_stages * sizeof *made);
    free(shares);
    free(made);
    return st;
}
