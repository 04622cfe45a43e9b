#include "describe/trained.h"

#include <math.h>

bool dh_trained_any(const dh_train_result *result)
{
    return result->steps > result->resumed_at;
}

json_t *dh_trained_json(const dh_job *job, const dh_train_result *r)
{
    json_t *object =
        json_pack("{ss sI sI sf sI sI ss}", "out", job->out_dir, "steps", (json_int_t)r->steps,
                  "resumed_at", (json_int_t)r->resumed_at, "tokens_per_s", r->tokens_per_s,
                  "slab_planned_bytes", (json_int_t)r->slab_planned, "slab_peak_bytes",
                  (json_int_t)r->slab_peak, "checkpoint", r->checkpoint);
    if (object && dh_trained_any(r)) json_object_set_new(object, "loss", json_real(r->loss));
    if (object && isfinite(r->val_loss))
        json_object_set_new(object, "val_loss", json_real(r->val_loss));
    if (object && isfinite(r->hidden_share))
        json_object_set_new(object, "hidden_share", json_real(r->hidden_share));
    return object;
}
