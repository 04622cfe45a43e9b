/* Yarn (Peng et al. 2023, arXiv 2309.00071): what stretched rotary positions do beside turning, as
 * Transformers computes it (_compute_yarn_parameters, yarn_apply_mscale). 1 of other
 * stretchings. */
#ifndef DH_CONFIG_YARN_H
#define DH_CONFIG_YARN_H

#include <math.h>

#include "dhelix/model.h"

static inline double dh_yarn_mscale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

/* Factor of rotated channels. */
static inline double dh_rope_magnitude(const dh_rope *r)
{
    if (r->scaling != DH_ROPE_SCALING_YARN) return 1;
    if (r->magnitude > 0) return r->magnitude;
    if (r->mscale > 0 && r->mscale_all > 0)
        return dh_yarn_mscale(r->factor, r->mscale) / dh_yarn_mscale(r->factor, r->mscale_all);
    return dh_yarn_mscale(r->factor, 1);
}

/* Factor of DeepSeek's scores. */
static inline double dh_rope_score_scale(const dh_rope *r)
{
    if (r->scaling != DH_ROPE_SCALING_YARN || r->mscale_all == 0) return 1;
    const double scale = dh_yarn_mscale(r->factor, r->mscale_all);
    return scale * scale;
}

#endif
