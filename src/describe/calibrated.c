/* Measurements in, cluster file and errors out. */
#include "describe/calibrated.h"

#include <stdlib.h>
#include <string.h>

/* ---- making --------------------------------------------------------------------------------- */

/* The base as the file names it: clusters of the library by name, others by their whole path. */
static dh_status name_base(dh_ctx *ctx, const char *like, dh_arena *arena, const char **name)
{
    char *path = realpath(like, NULL);
    const bool is_file = path && (strchr(like, '/') || strstr(like, ".yaml"));
    *name = dh_arena_strdup(arena, is_file ? path : like);
    free(path);
    return *name ? DH_OK : dh_no_memory(ctx);
}

static dh_status write_file(dh_ctx *ctx, const dh_calibrated *c,
                            const dh_describe_calibrate_options *options)
{
    const char *like;
    dh_str text = DH_STR_INIT;
    DH_TRY(name_base(ctx, options->like, c->fit.arena, &like));
    dh_status st = dh_calibration_print(ctx, &c->fit, like, &text);
    if (st == DH_OK) st = dh_file_write_atomic(ctx, options->out, text.text, text.len);
    dh_str_fini(&text);
    return st;
}

dh_status dh_calibrated_make(dh_ctx *ctx, const char *const *files, size_t n_files,
                             const dh_describe_calibrate_options *options,
                             dh_calibrated *calibrated)
{
    dh_calibrated *c = calibrated;
    *c = (dh_calibrated){.base = NULL};
    DH_TRY(dh_cluster_find(ctx, options->like, &c->base));
    const int64_t devices =
        options->devices > 0 ? options->devices : (int64_t)c->base->node_devices;
    DH_TRY(dh_measured_init(ctx, devices, &c->measured));
    for (size_t i = 0; i < n_files; i++) DH_TRY(dh_measured_read(ctx, files[i], &c->measured));
    DH_TRY(dh_calibration_make(ctx, c->base, &c->measured, options->devices, &c->fit));
    return options->out ? write_file(ctx, c, options) : DH_OK;
}

void dh_calibrated_fini(dh_calibrated *c)
{
    dh_calibration_fini(&c->fit);
    dh_measured_fini(&c->measured);
    dh_cluster_destroy(c->base);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static void set_errors(json_t *object, const dh_calibration_error *used,
                       const dh_calibration_error *held)
{
    json_object_set_new(object, "rows", json_integer((json_int_t)used->n));
    json_object_set_new(object, "error", json_real(used->mean));
    json_object_set_new(object, "held_rows", json_integer((json_int_t)held->n));
    if (held->n > 0) json_object_set_new(object, "held_error", json_real(held->mean));
}

static json_t *constant_json(const dh_calibration_constant *c)
{
    json_t *object = json_pack("{ss ss sf sf sb sb sb ss}", "key", c->key, "unit", c->unit, "base",
                               c->base, "value", c->value, "fitted", (int)c->fitted, "follows",
                               (int)c->follows, "at_bound", (int)c->at_bound, "why", c->why);
    if (object) set_errors(object, &c->used, &c->held);
    return object;
}

static json_t *group_json(const dh_calibration_group *g)
{
    json_t *worst = json_pack("{ss sI sf}", "file", g->worst->file, "line",
                              (json_int_t)g->worst->line, "error", g->worst_error);
    json_t *object =
        json_pack("{ss sf so}", "group", g->name, "base_error", g->base.mean, "worst", worst);
    if (object) set_errors(object, &g->used, &g->held);
    return object;
}

static json_t *oef_json(const dh_calibration_oef *o)
{
    return json_pack("{ss ss sI sf sf sf sf}", "a", dh_cluster_class_name(o->classes[0]), "b",
                     dh_cluster_class_name(o->classes[1]), "pairs", (json_int_t)o->n, "base",
                     o->base, "value", o->value, "quarter", o->quarter, "three_quarters",
                     o->three_quarters);
}

json_t *dh_calibrated_json(const dh_calibrated *c, const dh_describe_calibrate_options *options)
{
    json_t *constants = json_array(), *groups = json_array(), *notes = json_array();
    json_t *oefs = json_array();
    for (size_t i = 0; i < c->fit.n_constants; i++)
        json_array_append_new(constants, constant_json(&c->fit.constants[i]));
    for (size_t i = 0; i < c->fit.n_groups; i++)
        json_array_append_new(groups, group_json(&c->fit.groups[i]));
    for (size_t i = 0; i < c->fit.n_oefs; i++)
        json_array_append_new(oefs, oef_json(&c->fit.oefs[i]));
    for (size_t i = 0; i < c->measured.notes.n; i++)
        json_array_append_new(notes, json_string(c->measured.notes.at[i]));
    json_t *document = json_pack("{ss sI sI so so so so}", "like", c->base->name, "node_devices",
                                 (json_int_t)c->fit.cluster.node_devices, "measurements",
                                 (json_int_t)dh_measured_count(&c->measured), "constants",
                                 constants, "groups", groups, "oef", oefs, "notes", notes);
    if (document && options->out) json_object_set_new(document, "out", json_string(options->out));
    return document;
}
