/* Shared inside src/config: what classes of config.json with layers of their own read into a model,
 * and write of one, on top of the keys that they share with Llama. The table of classes is
 * model_json.c's. */
#ifndef DH_CONFIG_MODEL_CLASSES_H
#define DH_CONFIG_MODEL_CLASSES_H

#include "config_values.h"

/* Of transformers' class, for keys that are absent or null. */
typedef struct llama_defaults {
    int64_t layers, width, heads, kv_heads /* 0: heads */, ffn, vocab, max_seq;
    double eps, theta;
    int64_t head_dim; /* 0: width / heads */
} llama_defaults;

/* The keys that relatives of Llama share; a window is refused if use_sliding_window says so. */
dh_status dh_config_read_relative(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                                  dh_model *m);
void dh_config_write_relative(json_t *config, const dh_model *m);
/* The keys that they share, and a window of all layers, which is none where the key is absent. */
dh_status dh_config_read_windowed(dh_ctx *ctx, const json_t *config, const llama_defaults *d,
                                  dh_model *m);
/* Rotary positions in any of transformers' spellings, of an object that holds them. */
dh_status dh_config_read_rope(dh_ctx *ctx, const json_t *config, double default_theta,
                              dh_rope *out);
void dh_config_write_rope(json_t *config, const dh_rope *r);
/* The newest spelling: an object with the theta in it, as "rope_parameters" holds. */
json_t *dh_config_rope_object(const dh_rope *r);

/* The configuration is of a causal language model. Encoders and classifiers are refused.
 * errors    DH_EUNSUPPORTED: names the key and its value; DH_ENOMEM */
dh_status dh_config_check_causal(dh_ctx *ctx, const json_t *config);
/* layer_types: full_attention or sliding_attention for every layer.
 *
 * out       *types: NULL where the key is absent
 * errors    DH_EFORMAT the key is not a name for every layer
 *           DH_EUNSUPPORTED another type, with the number of the layer */
dh_status dh_config_layer_types(dh_ctx *ctx, const json_t *config, int64_t n_layers,
                                const json_t **types);
/* Checks that the model has the windows of layer_types, also for classes that do not read it.
 * errors    those above; DH_EUNSUPPORTED */
dh_status dh_config_check_layer_types(dh_ctx *ctx, const json_t *config, const dh_model *m);

/* Reads layer_types of a model with windows, where every n-th layer sees all tokens. *every becomes
 * n. Without the key, *every stays as it was.
 * errors    DH_EUNSUPPORTED other types than these; those of dh_config_layer_types */
dh_status dh_config_read_nth_types(dh_ctx *ctx, const json_t *config, const dh_model *m,
                                   int64_t *every);
void dh_config_write_nth_types(json_t *config, const dh_model *m, int64_t every);
/* Rotary positions of both types, where "rope_parameters" has an object for one or for both; the
 * thetas are those of an object without one. */
dh_status dh_config_read_typed_ropes(dh_ctx *ctx, const json_t *config, double theta,
                                     double theta_nth, dh_model *m, bool *found);
void dh_config_write_typed_ropes(json_t *config, const dh_model *m);

/* Reads and writes yarn's values other than its factor in the object that holds it. */
dh_status dh_config_read_yarn(dh_ctx *ctx, const json_t *rope, dh_rope *out);
void dh_config_write_yarn(json_t *rope, const dh_rope *r);

/* Of layers without experts, where there are such. */
void dh_config_write_dense_width(json_t *config, const dh_model *m);

dh_status dh_config_read_olmo2(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_smollm3(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_qwen3_moe(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_gemma2(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_gemma3(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_gemma3_images(dh_ctx *ctx, const json_t *config, dh_model *m);
dh_status dh_config_read_olmo3(dh_ctx *ctx, const json_t *config, dh_model *m);
void dh_config_write_olmo3(json_t *config, const dh_model *m);
void dh_config_write_gemma2(json_t *config, const dh_model *m);
void dh_config_write_gemma3(json_t *config, const dh_model *m);
void dh_config_write_smollm3(json_t *config, const dh_model *m);
void dh_config_write_qwen3_moe(json_t *config, const dh_model *m);
dh_status dh_config_read_deepseek3(dh_ctx *ctx, const json_t *config, dh_model *m);
void dh_config_write_deepseek3(json_t *config, const dh_model *m);
dh_status dh_config_read_phimoe(dh_ctx *ctx, const json_t *config, dh_model *m);
void dh_config_write_phimoe(json_t *config, const dh_model *m);

#endif
