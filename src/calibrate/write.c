/* The fitted cluster as a file: `like` the base, then what differs, each with what it rests on. */
#include <math.h>
#include <string.h>

#include "calibrate/calibration.h"
#include "costs/cluster_table.h"

/* Bytes of the section's name: "local" of "local.step_us". */
static size_t section_of(const char *key)
{
    return strcspn(key, ".");
}

static bool same_section(const char *a, const char *b)
{
    return section_of(a) == section_of(b) && strncmp(a, b, section_of(a)) == 0;
}

static void print_source(const dh_calibration_constant *c, dh_str *out)
{
    if (c->follows) {
        dh_str_printf(out, "  # %s\n", c->why);
        return;
    }
    dh_str_printf(out, "  # %zu rows, %.1f %% off", c->used.n, 100 * c->used.mean);
    if (c->held.n > 0)
        dh_str_printf(out, "; %zu rows left out, %.1f %% off", c->held.n, 100 * c->held.mean);
    if (c->at_bound) dh_str_printf(out, "; at the end of its range");
    dh_str_append(out, "\n", 1);
}

static bool is_new(const dh_calibration_constant *c)
{
    return c->fitted || c->follows;
}

/* All new constants of the i-th one's section, where it is the first of them. */
static void print_section(const dh_calibration *f, size_t i, dh_str *out)
{
    const char *key = f->constants[i].key;
    for (size_t k = 0; k < i; k++)
        if (is_new(&f->constants[k]) && same_section(f->constants[k].key, key)) return;
    dh_str_printf(out, "\n%.*s:\n", (int)section_of(key), key);
    if (same_section(key, "attention.") && f->cluster.attention != f->base->attention)
        dh_str_printf(out, "  kernel: %s  # as in traces\n",
                      dh_attention_kernel_names[f->cluster.attention]);
    for (size_t k = i; k < f->n_constants; k++) {
        const dh_calibration_constant *c = &f->constants[k];
        if (!is_new(c) || !same_section(c->key, key)) continue;
        dh_str_printf(out, "  %s: %.6g", c->key + section_of(key) + 1, c->value);
        print_source(c, out);
    }
}

static void print_oefs(const dh_calibration *f, dh_str *out)
{
    int last = -1;
    if (f->n_oefs > 0) dh_str_printf(out, "\noef:\n");
    for (size_t i = 0; i < f->n_oefs; i++) {
        const dh_calibration_oef *o = &f->oefs[i];
        if ((int)o->classes[0] != last)
            dh_str_printf(out, "  %s:\n", dh_cluster_class_name(o->classes[0]));
        last = (int)o->classes[0];
        dh_str_printf(out, "    %s: %.3f  # median of %zu pairs, half of them %.2f to %.2f\n",
                      dh_cluster_class_name(o->classes[1]), o->value, o->n, o->quarter,
                      o->three_quarters);
    }
}

/* Files in the order in which they were given are not kept: rows are sorted. By name, then. */
static void print_files(const dh_calibration *f, dh_str *out)
{
    const dh_measured_row *rows = f->measured->rows.at;
    for (size_t i = 0; i < f->measured->rows.n; i++) {
        size_t n = 0, before = 0;
        for (size_t k = 0; k < f->measured->rows.n; k++) {
            const bool same = strcmp(rows[k].file, rows[i].file) == 0;
            n += same;
            before += same && k < i;
        }
        if (before == 0) dh_str_printf(out, "#   %s: %zu rows\n", rows[i].file, n);
    }
    const dh_measured_pair *pairs = f->measured->pairs.at; /* pairs of a file are neighbours */
    for (size_t i = 0, n = 1; i < f->measured->pairs.n; i++, n++) {
        const bool last = i + 1 == f->measured->pairs.n || pairs[i + 1].file != pairs[i].file;
        if (last) dh_str_printf(out, "#   %s: %zu pairs\n", pairs[i].file, n);
        if (last) n = 0;
    }
}

dh_status dh_calibration_print(dh_ctx *ctx, const dh_calibration *f, const char *like, dh_str *out)
{
    dh_str_printf(out,
                  "# Fitted by dhelix calibrate; what is not here is as in %s. Every third row of "
                  "a group was left\n# out of the fit; errors are means of |predicted / measured - "
                  "1|.\n",
                  like);
    print_files(f, out);
    dh_str_printf(out, "doc: like %s, fitted to %zu measurements\nlike: %s\n", f->base->name,
                  dh_measured_count(f->measured), like);
    if (f->cluster.node_devices != f->base->node_devices)
        dh_str_printf(out, "\nnode: {devices: %.0f}\n", f->cluster.node_devices);
    for (size_t i = 0; i < f->n_constants; i++)
        if (is_new(&f->constants[i])) print_section(f, i, out);
    print_oefs(f, out);
    return out->failed ? dh_no_memory(ctx) : DH_OK;
}
