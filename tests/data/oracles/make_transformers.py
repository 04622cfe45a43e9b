"""References of small seeded models, computed in float64 by Hugging Face's own classes.

    python make_transformers.py [NAME ...]

writes tests/data/weights/tiny-NAME (config.json, model.safetensors as Transformers names and stores
them) and tests/data/oracles/torch/NAME_tiny.safetensors: tokens, logits, loss, every gradient, ten
AdamW steps, weights after. Made with torch 2.15 and transformers 5.23 (CPU); phimoe with torch 2.6 and
transformers 4.51, which has a module an expert.
"""
import math
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

# Transformers computes norms, softmax and rotations in float32 whatever the model's type.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
F32 = "float32"  # of NumPy, which is none the wiser

DATA = Path(__file__).resolve().parent.parent
SIZES = dict(vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             attn_implementation="eager", pad_token_id=None, bos_token_id=None, eos_token_id=None)


def longrope(first_training):
    """Of heads of 8 channels."""
    return dict(type="longrope", short_factor=[1.0, 1.25, 2.5, 4.0], long_factor=[1.5, 3.0, 7.0, 20.0],
                short_mscale=1.125, long_mscale=1.375, original_max_position_embeddings=first_training)


MODELS = {
    "qwen2": dict(tie_word_embeddings=True),
    "phi3": dict(),
    "qwen3": dict(head_dim=16),
    "mistral": dict(sliding_window=None, head_dim=12),
    "olmo2": dict(),
    "smollm3": dict(no_rope_layer_interval=2),
    "qwen3_moe": dict(head_dim=16, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2,
                      norm_topk_prob=False, router_aux_loss_coef=0.02,
                      experts_implementation="eager"),
    "qwen3_moe_normed": dict(head_dim=12, moe_intermediate_size=24, num_experts=6,
                             num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.02,
                             experts_implementation="eager"),
    # With a window that hides most of a sequence; in Qwen 2 from the second layer on.
    "mistral-window": dict(sliding_window=7, head_dim=12),
    "qwen2-window": dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=7,
                         max_window_layers=1),
    "gemma2": dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=64,
                   attn_logit_softcapping=None, final_logit_softcapping=1.5),
    "gemma3": dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=64, tie_word_embeddings=False,
                   layer_types=["sliding_attention", "full_attention"]),
    # Capped scores, and a window that hides most of a sequence, in every layer but the second.
    "gemma2-capped": dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=7,
                          attn_logit_softcapping=0.15, final_logit_softcapping=1.5),
    "gemma3-window": dict(head_dim=12, query_pre_attn_scalar=20, sliding_window=7,
                          num_hidden_layers=3, tie_word_embeddings=False,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    # Eight experts in four groups; queries from few channels, or straight from width with yarn.
    "deepseek_v3": dict(num_key_value_heads=4, moe_intermediate_size=24, n_routed_experts=8,
                        num_experts_per_tok=3, n_group=4, topk_group=2, first_k_dense_replace=0,
                        q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4,
                        v_head_dim=10, num_nextn_predict_layers=0, experts_implementation="eager"),
    "deepseek_v3-yarn": dict(num_key_value_heads=4, moe_intermediate_size=24, n_routed_experts=6,
                             num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=2,
                             first_k_dense_replace=0, q_lora_rank=None, kv_lora_rank=16,
                             qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
                             norm_topk_prob=False, rope_interleave=False,
                             num_nextn_predict_layers=0, experts_implementation="eager",
                             rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0,
                                                  original_max_position_embeddings=8, beta_fast=4.0,
                                                  beta_slow=0.5, mscale=0.7, mscale_all_dim=1.0)),
    # Dense layers: in front, and every other one.
    "deepseek_v3-dense": dict(num_key_value_heads=4, moe_intermediate_size=24,
                              n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                              first_k_dense_replace=1, q_lora_rank=20, kv_lora_rank=16,
                              qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10,
                              num_nextn_predict_layers=0, experts_implementation="eager"),
    "qwen3_moe-dense": dict(num_hidden_layers=4, head_dim=16, moe_intermediate_size=24, num_experts=6,
                            num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.02,
                            decoder_sparse_step=2, mlp_only_layers=[0, 1],
                            experts_implementation="eager"),
    # Sequences of the first training's length, and longer ones; near scores of experts share weights.
    "phimoe": dict(num_local_experts=6, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.4,
                   router_aux_loss_coef=0.02, rope_scaling=longrope(64)),
    "phimoe-long": dict(num_local_experts=5, tie_word_embeddings=True, sliding_window=9,
                        router_jitter_noise=0.25, router_aux_loss_coef=0.02, rope_scaling=longrope(8)),
}
CLASSES = {"qwen3_moe_normed": "qwen3_moe", "gemma3": "gemma3_text", "gemma3-window": "gemma3_text"}
N_STEPS, BATCH, SEQ = 10, 2, 24


def build(name):
    """Weights are rounded to float32 first: these are what both sides begin with."""
    kind = CLASSES.get(name, name.split("-")[0])
    config = transformers.AutoConfig.for_model(kind, **(SIZES | MODELS[name]))
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    if kind == "phimoe":  # whose training draws experts at random
        model.eval()
    draw = torch.Generator().manual_seed(20261123)
    for key, p in weights_of(model).items():
        values = 0.08 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
        one = "norm" in key and not key.endswith("bias") and not name.startswith("gemma")
        p.data = torch.from_numpy((values + one).numpy().astype(F32)).double()
    return config, model


def weights_of(model):
    """What is saved: parameters, and routers' biases, which no gradient moves."""
    return dict(model.named_parameters()) | {
        k: b for k, b in model.named_buffers() if k.endswith("e_score_correction_bias")}


def stored(tensors):
    """As checkpoints have them: a matrix an expert, gate and up apart."""
    out = {}
    for key, t in tensors.items():
        base, _, last = key.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or not base.endswith(".experts"):
            out[key] = t
            continue
        for e in range(t.shape[0]):
            if last == "down_proj":
                out[f"{base}.{e}.down_proj.weight"] = t[e]
            else:
                half = t.shape[1] // 2
                out[f"{base}.{e}.gate_proj.weight"] = t[e, :half]
                out[f"{base}.{e}.up_proj.weight"] = t[e, half:]
    return out


def save(path, tensors, **metadata):
    """float64 becomes float32, except for single numbers and losses."""
    kept = {}
    for key, t in tensors.items():
        t = t.detach().contiguous().clone()
        wide = t.numel() == 1 or key == "adamw_losses" or t.dtype != torch.float64
        kept[key] = t if wide else torch.from_numpy(t.numpy().astype(F32))
    save_file(kept, path, metadata)
    path.chmod(0o644)


def reference(model, tokens, targets):
    names = dict(model.named_parameters())
    routed = hasattr(model.config, "router_aux_loss_coef")

    def loss():
        out = model(input_ids=tokens, **(dict(output_router_logits=True) if routed else {}))
        ce = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        return out, ce, ce + model.config.router_aux_loss_coef * out.aux_loss if routed else ce

    def differentiate(total):
        """An expert that no token chose has a gradient of zeros."""
        total.backward()
        for p in names.values():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad

    first, ce, total = loss()
    differentiate(total)
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": first.logits,
           "loss_ce": ce.reshape(1)}
    if routed:
        out["aux_loss"] = torch.from_numpy(first.aux_loss.detach().reshape(1).numpy().astype(F32))
        out |= {f"router_logits.{i}": t for i, t in enumerate(first.router_logits)}
    still = {k: b for k, b in weights_of(model).items() if k not in names}
    out |= stored({f"grad.{k}": p.grad for k, p in names.items()})
    out |= {f"grad.{k}": torch.zeros_like(b) for k, b in still.items()}
    out["grad_norm"] = torch.tensor([math.sqrt(sum((p.grad**2).sum().item() for p in names.values()))],
                                    dtype=torch.float64)
    groups = [{"params": [p for p in names.values() if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in names.values() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        _, ce, total = loss()
        differentiate(total)
        optimizer.step()
        losses.append([ce.item(), total.item()])
    losses.append([each.item() for each in loss()[1:]])
    out["adamw_losses"] = torch.tensor(losses, dtype=torch.float64)
    return out | stored({f"after.{k}": p for k, p in (names | still).items()})


def make(name):
    config, model = build(name)
    folder = DATA / "weights" / f"tiny-{name}"
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    save(folder / "model.safetensors", stored(weights_of(model)), format="pt")
    draw = torch.Generator().manual_seed(7)
    ids = torch.randint(SIZES["vocab_size"], (BATCH, SEQ + 1), generator=draw)
    out = reference(model, ids[:, :-1], ids[:, 1:])
    save(DATA / "oracles" / "torch" / f"{name}_tiny.safetensors", out,
         model=f"weights/tiny-{name}", dtype="computed in float64 from float32 weights",
         adamw="lr 1e-3 betas 0.9 0.95 eps 1e-8 weight decay 0.1 on tensors with ndim>=2; same batch "
               "every step; adamw_losses[i] = [ce, total] before step i, last row after the last")
    print(name, out["loss_ce"].item(), out["adamw_losses"][-1, 0].item())


for each in sys.argv[1:] or MODELS:
    make(each)
