/* Cluster files: YAML to numbers, every fault with file, line and column.
 *
 * `like: NAME` takes all of another cluster first; what the file itself says counts more. A value
 * that neither gives is missing: there are no defaults, as every number needs a source. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"
#include "base/needs.h"
#include "config/yaml.h"
#include "costs/cluster_table.h"

enum { MAX_LIKE = 4, MAX_FILE_BYTES = 1 << 20 };

extern const dh_embedded dh_cluster_files[];
extern const size_t dh_cluster_files_n;

typedef struct reader {
    dh_ctx *ctx;
    dh_cluster *cluster;
    dh_yaml yaml;
    int depth;  /* of `like` */
    bool *seen; /* by setting: in this file */
} reader;

static dh_status find_at_depth(dh_ctx *ctx, const char *name, int depth, dh_cluster *cluster);

static const char *place(const reader *r, const yaml_node_t *node, char *buf, size_t cap)
{
    return dh_yaml_place(&r->yaml, node, buf, cap);
}

/* ---- values ------------------------------------------------------------------------------ */

static dh_status read_real(reader *r, const dh_cluster_setting *s, const yaml_node_t *node,
                           const char *text)
{
    char at[256];
    double value;
    if (!dh_parse_f64(text, &value) || !(value >= s->min && value <= s->max))
        return dh_fail(r->ctx, DH_EINVAL,
                       "%s: %s is \"%.40s\"; a number from %g to %g%s%s is right",
                       place(r, node, at, sizeof at), s->key, text, s->min, s->max,
                       *s->unit ? " " : "", s->unit);
    *(double *)((char *)r->cluster + s->offset) = value * s->factor;
    return DH_OK;
}

static dh_status read_kernel(reader *r, const dh_cluster_setting *s, const yaml_node_t *node,
                             const char *text)
{
    char at[256];
    for (int i = 0; dh_attention_kernel_names[i]; i++) {
        if (strcmp(dh_attention_kernel_names[i], text) != 0) continue;
        r->cluster->attention = (dh_attention_kernel)i;
        return DH_OK;
    }
    return dh_fail(r->ctx, DH_EINVAL, "%s: %s is \"%.40s\"; blockwise, scores or scores-recompute",
                   place(r, node, at, sizeof at), s->key, text);
}

static dh_status read_text(reader *r, const dh_cluster_setting *s, const char *text)
{
    const char *copy = dh_arena_strdup(r->cluster->arena, text);
    if (!copy) return dh_no_memory(r->ctx);
    memcpy((char *)r->cluster + s->offset, &copy, sizeof copy);
    return DH_OK;
}

static dh_status read_setting(reader *r, size_t row, const yaml_node_t *node)
{
    size_t n;
    char at[256];
    const char *text;
    const dh_cluster_setting *s = &dh_cluster_settings(&n)[row];
    if (r->seen[row])
        return dh_fail(r->ctx, DH_EFORMAT, "%s: %s stands twice", place(r, node, at, sizeof at),
                       s->key);
    r->seen[row] = true;
    DH_TRY(dh_yaml_scalar(&r->yaml, node, &text));
    if (s->kind == DH_CLUSTER_TEXT) return read_text(r, s, text);
    return s->kind == DH_CLUSTER_KERNEL ? read_kernel(r, s, node, text)
                                        : read_real(r, s, node, text);
}

/* oef.A.B, both ways round */
static dh_status read_oef(reader *r, const char *path, const yaml_node_t *node)
{
    char at[256], first[32] = "";
    const char *text, *dot = strchr(path, '.');
    double value;
    const size_t len = dot ? (size_t)(dot - path) : sizeof first;
    if (len < sizeof first) memcpy(first, path, len);
    const dh_cluster_class a = dh_cluster_class_parse(first);
    const dh_cluster_class b = dot ? dh_cluster_class_parse(dot + 1) : DH_N_CLUSTER_CLASS;
    if (a == DH_N_CLUSTER_CLASS || b == DH_N_CLUSTER_CLASS)
        return dh_fail(r->ctx, DH_EINVAL,
                       "%s: oef.%.60s is not oef.A.B with classes gemm, attention, "
                       "attention_grad, memory, local, cross",
                       place(r, node, at, sizeof at), path);
    DH_TRY(dh_yaml_scalar(&r->yaml, node, &text));
    if (!dh_parse_f64(text, &value) || !(value >= -10 && value < 2))
        return dh_fail(r->ctx, DH_EINVAL, "%s: oef is \"%.40s\"; a number from -10 to below 2",
                       place(r, node, at, sizeof at), text);
    r->cluster->oef[a][b] = r->cluster->oef[b][a] = value;
    return DH_OK;
}

/* ---- mappings ---------------------------------------------------------------------------- */

static dh_status unknown_key(reader *r, const yaml_node_t *node, const char *path)
{
    size_t n;
    char at[256];
    const char *names[64];
    const dh_cluster_setting *settings = dh_cluster_settings(&n);
    n = DH_MIN(n, DH_COUNTOF(names));
    for (size_t i = 0; i < n; i++) names[i] = settings[i].key;
    const char *near = dh_nearest(path, names, n);
    return dh_fail(r->ctx, DH_EINVAL, "%s: unknown setting \"%.80s\"%s%s",
                   place(r, node, at, sizeof at), path, near ? "; did you mean " : "",
                   near ? near : "");
}

static bool is_section(const char *path)
{
    size_t n, len = strlen(path);
    const dh_cluster_setting *s = dh_cluster_settings(&n);
    for (size_t i = 0; i < n; i++)
        if (strncmp(s[i].key, path, len) == 0 && s[i].key[len] == '.') return true;
    return strcmp(path, "oef") == 0 || (strncmp(path, "oef.", 4) == 0 && !strchr(path + 4, '.'));
}

static dh_status read_value(void *self, const char *path, const yaml_node_t *key,
                            const yaml_node_t *node)
{
    reader *r = self;
    size_t n;
    const dh_cluster_setting *s = dh_cluster_settings(&n);
    if (strcmp(path, "like") == 0) return DH_OK; /* done before */
    if (node->type == YAML_MAPPING_NODE && is_section(path))
        return dh_yaml_each(&r->yaml, path, node, read_value, r);
    if (strncmp(path, "oef.", 4) == 0) return read_oef(r, path + 4, node);
    for (size_t i = 0; i < n; i++)
        if (strcmp(s[i].key, path) == 0) return read_setting(r, i, node);
    return unknown_key(r, key, path);
}

static dh_status read_like(void *self, const char *path, const yaml_node_t *key,
                           const yaml_node_t *node)
{
    reader *r = self;
    char at[256];
    const char *name;
    if (strcmp(path, "like") != 0) return DH_OK;
    DH_TRY(dh_yaml_scalar(&r->yaml, node, &name));
    if (r->depth >= MAX_LIKE)
        return dh_fail(r->ctx, DH_EINVAL, "%s: more than %d clusters that are like each other",
                       place(r, node, at, sizeof at), MAX_LIKE);
    dh_status st = find_at_depth(r->ctx, name, r->depth + 1, r->cluster);
    return st == DH_OK ? DH_OK : dh_ctx_while(r->ctx, "reading %s", place(r, node, at, sizeof at));
}

/* ---- links of another cluster ---------------------------------------------------------------- */

static bool is_seen(const reader *r, const char *key)
{
    size_t n, i = 0;
    const dh_cluster_setting *s = dh_cluster_settings(&n);
    while (i < n && strcmp(s[i].key, key) != 0) i++;
    return i < n && r->seen[i];
}

static void warn_of(const char *path, const char *section, double from, double to)
{
    dh_log(DH_LOG_WARN,
           "%.200s: %s.gb_per_s is %g, and %s.efficiency is that of a link of %g (by like): "
           "collectives on this one may reach another share of it; give %s.efficiency, from "
           "nccl-tests for example (dhelix calibrate)",
           path, section, to * 1e-9, section, from * 1e-9, section);
}

/* A share of a link was measured on that link. With network.most_gb_per_s the share is an
 * adapter's, and nodes with fewer adapters have it too. A file with its own share has measured the
 * whole node. */
static void check_links(reader *r, const char *path, double local, double network)
{
    dh_cluster *c = r->cluster;
    const bool own = is_seen(r, "network.efficiency");
    if (own && !is_seen(r, "network.most_gb_per_s")) c->network.most_bytes_per_s = 0;
    if (!isnan(local) && local != c->local.bytes_per_s && !is_seen(r, "local.efficiency"))
        warn_of(path, "local", local, c->local.bytes_per_s);
    const bool by_adapter = c->network.most_bytes_per_s > 0;
    if (!isnan(network) && network != c->network.bytes_per_s && !own && !by_adapter)
        warn_of(path, "network", network, c->network.bytes_per_s);
}

/* ---- documents --------------------------------------------------------------------------- */

static dh_status read_root(reader *r, const char *path)
{
    const yaml_node_t *root = dh_yaml_root(&r->yaml);
    if (!root || root->type != YAML_MAPPING_NODE)
        return dh_fail(r->ctx, DH_EFORMAT, "%.200s: a cluster file is a mapping of settings",
                       r->yaml.origin);
    DH_TRY(dh_yaml_each(&r->yaml, "", root, read_like, r));
    const double local = r->cluster->local.bytes_per_s, network = r->cluster->network.bytes_per_s;
    DH_TRY(dh_yaml_each(&r->yaml, "", root, read_value, r));
    check_links(r, path, local, network);
    return DH_OK;
}

static dh_status parse_into(dh_ctx *ctx, const char *text, size_t n_bytes, const char *path,
                            int depth, dh_cluster *cluster)
{
    size_t n_settings;
    dh_cluster_settings(&n_settings);
    reader r = {.ctx = ctx, .cluster = cluster, .depth = depth};
    DH_TRY(dh_yaml_open(ctx, path, true, text, n_bytes, &r.yaml));
    r.seen = calloc(n_settings, sizeof *r.seen);
    dh_status st = r.seen ? read_root(&r, path) : dh_no_memory(ctx);
    free(r.seen);
    dh_yaml_close(&r.yaml);
    return st;
}

/* Fills in optional settings that no file gives; any other missing setting is a fault. */
static dh_status complete(dh_ctx *ctx, dh_cluster *cluster, const char *path)
{
    size_t n;
    const dh_cluster_setting *s = dh_cluster_settings(&n);
    for (size_t i = 0; i < n; i++) {
        char *at = (char *)cluster + s[i].offset;
        if (s[i].optional && isnan(*(double *)at)) *(double *)at = s[i].absent * s[i].factor;
        if (s[i].kind == DH_CLUSTER_REAL && isnan(*(const double *)at))
            return dh_fail(ctx, DH_EINVAL, "%.200s: %s is missing: %s", path, s[i].key, s[i].doc);
    }
    if (cluster->node_devices != floor(cluster->node_devices))
        return dh_fail(ctx, DH_EINVAL, "%.200s: node.devices is %g; a whole number is right", path,
                       cluster->node_devices);
    return DH_OK;
}

/* ---- finding ------------------------------------------------------------------------------ */

static bool is_path(const char *name)
{
    const char *dot = strrchr(name, '.');
    return strchr(name, '/') || (dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0));
}

static dh_status find_file(dh_ctx *ctx, const char *path, int depth, dh_cluster *cluster)
{
    char *text;
    size_t n_bytes;
    DH_TRY(dh_file_read(ctx, path, MAX_FILE_BYTES, &text, &n_bytes));
    dh_status st = parse_into(ctx, text, n_bytes, path, depth, cluster);
    free(text);
    return st;
}

const char *dh_cluster_name(size_t i)
{
    return i < dh_cluster_files_n ? dh_cluster_files[i].name : NULL;
}

static dh_status no_such_cluster(dh_ctx *ctx, const char *name)
{
    const char *names[64];
    const size_t n = DH_MIN(dh_cluster_files_n, DH_COUNTOF(names));
    for (size_t i = 0; i < n; i++) names[i] = dh_cluster_files[i].name;
    const char *near = dh_nearest(name, names, n);
    return dh_fail(ctx, DH_EMISSING,
                   "no cluster is called %.80s%s%s; dhelix list clusters has all, and a path with "
                   "a slash names a file",
                   name, near ? "; did you mean " : "", near ? near : "");
}

static dh_status find_at_depth(dh_ctx *ctx, const char *name, int depth, dh_cluster *cluster)
{
    if (is_path(name)) return find_file(ctx, name, depth, cluster);
    for (size_t i = 0; i < dh_cluster_files_n; i++) {
        const dh_embedded *file = &dh_cluster_files[i];
        char path[128];
        if (strcmp(file->name, name) != 0) continue;
        snprintf(path, sizeof path, "clusters/%s.yaml", name);
        return parse_into(ctx, (const char *)file->text, file->n_bytes, path, depth, cluster);
    }
    return no_such_cluster(ctx, name);
}

static dh_status create(dh_ctx *ctx, const char *path, dh_cluster **cluster)
{
    size_t n;
    const dh_cluster_setting *s = dh_cluster_settings(&n);
    dh_arena *arena = dh_arena_create();
    dh_cluster *c = arena ? DH_NEW(arena, dh_cluster) : NULL;
    if (!c || !(c->path = dh_arena_strdup(arena, path))) {
        dh_arena_destroy(arena);
        return dh_no_memory(ctx);
    }
    c->arena = arena;
    c->name = c->path;
    c->doc = "";
    for (size_t i = 0; i < n; i++)
        if (s[i].kind == DH_CLUSTER_REAL) *(double *)((char *)c + s[i].offset) = NAN;
    for (int a = 0; a < DH_N_CLUSTER_CLASS; a++)
        for (int b = 0; b < DH_N_CLUSTER_CLASS; b++) c->oef[a][b] = NAN;
    *cluster = c;
    return DH_OK;
}

static dh_status finish(dh_ctx *ctx, dh_status st, dh_cluster *c, dh_cluster **cluster)
{
    if (st == DH_OK) st = complete(ctx, c, c->path);
    if (st != DH_OK) {
        dh_cluster_destroy(c);
        return st;
    }
    *cluster = c;
    return DH_OK;
}

dh_status dh_cluster_parse(dh_ctx *ctx, const char *text, size_t n_bytes, const char *path,
                           dh_cluster **cluster)
{
    dh_cluster *c;
    DH_TRY(create(ctx, path, &c));
    return finish(ctx, parse_into(ctx, text, n_bytes, path, 0, c), c, cluster);
}

dh_status dh_cluster_find(dh_ctx *ctx, const char *name_or_path, dh_cluster **cluster)
{
    DH_NEEDS(ctx, name_or_path);
    DH_NEEDS(ctx, cluster);
    dh_cluster *c;
    DH_TRY(create(ctx, name_or_path, &c));
    return finish(ctx, find_at_depth(ctx, name_or_path, 0, c), c, cluster);
}

void dh_cluster_destroy(dh_cluster *cluster)
{
    if (cluster) dh_arena_destroy(cluster->arena);
}
