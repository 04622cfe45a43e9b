"""References of small seeded Llamas with linear attention, which Transformers has no class for: in
all layers, and in all but every second one, which has softmax attention.

    python make_linear.py [NAME ...]

writes tests/data/weights/tiny-NAME and tests/data/oracles/torch/NAME_tiny.safetensors of
linear_llama and linear_llama-hybrid, as make_transformers.py does for its models. The model is written down here token by token, in
float64: every query against every key, (Q K^T * M) V, with no chunks and no states; gradients are
autograd's. Made with torch 1.13 (CPU), the second with torch 2.15.
"""
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

DATA = Path(__file__).resolve().parent.parent
MODELS = {"linear_llama": {}, "linear_llama-hybrid": dict(softmax_every=2)}
CONFIG = dict(architectures=["LinearLlamaForCausalLM"], model_type="linear_llama", num_hidden_layers=2,
              hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
              intermediate_size=48, vocab_size=260, max_position_embeddings=160, hidden_act="silu",
              rms_norm_eps=1e-5, attention_bias=False, rope_theta=10000.0, tie_word_embeddings=False,
              initializer_range=0.02, feature_map="elu")
N_STEPS, BATCH, SEQ = 10, 2, 150
H, KV, D, EPS = 4, 2, CONFIG["head_dim"], CONFIG["rms_norm_eps"]


def build():
    """Weights are rounded to float32 first: these are what both sides begin with."""
    width, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, width)}
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (width,),
                   layer + "self_attn.q_proj.weight": (H * D, width),
                   layer + "self_attn.k_proj.weight": (KV * D, width),
                   layer + "self_attn.v_proj.weight": (KV * D, width),
                   layer + "self_attn.o_proj.weight": (width, H * D),
                   layer + "post_attention_layernorm.weight": (width,),
                   layer + "mlp.gate_proj.weight": (ffn, width),
                   layer + "mlp.up_proj.weight": (ffn, width),
                   layer + "mlp.down_proj.weight": (width, ffn)}
    shapes |= {"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}
    draw = torch.Generator().manual_seed(20261123)
    weights = {}
    for key, shape in shapes.items():
        value = 0.2 * torch.randn(shape, generator=draw, dtype=torch.float64) + ("norm" in key)
        weights[key] = value.float().double().requires_grad_()
    return weights


def rms_norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def rotate(x):
    """x [B, heads, T, D]: channels i and i + D/2 are a pair."""
    angle = torch.arange(SEQ, dtype=torch.float64)[:, None] * \
        CONFIG["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(w, layer, x, softmax):
    def heads(name, n):
        return (x @ w[f"{layer}self_attn.{name}_proj.weight"].T).view(BATCH, SEQ, n, D).transpose(1, 2)

    q, k, v = heads("q", H), heads("k", KV), heads("v", KV)
    q, k = (rotate(each) for each in (q, k))
    k, v = (each.repeat_interleave(H // KV, 1) for each in (k, v))
    if softmax:
        later = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(later, -math.inf)
        o = scores.softmax(-1) @ v
    else:
        q, k = (1 + torch.nn.functional.elu(each) for each in (q, k))
        o = rms_norm((q @ k.transpose(2, 3)).tril() @ v)
    return o.transpose(1, 2).reshape(BATCH, SEQ, H * D) @ w[layer + "self_attn.o_proj.weight"].T


def logits(w, tokens, every):
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        x = x + attention(w, layer, rms_norm(x) * w[layer + "input_layernorm.weight"],
                          every > 0 and (i + 1) % every == 0)
        n = rms_norm(x) * w[layer + "post_attention_layernorm.weight"]
        gate, up = (n @ w[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ w[layer + "mlp.down_proj.weight"].T
    return rms_norm(x) * w["model.norm.weight"] @ w["lm_head.weight"].T


def reference(w, tokens, targets, every):
    def loss():
        out = logits(w, tokens, every)
        return out, torch.nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())

    first, ce = loss()
    ce.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": first, "loss_ce": ce.reshape(1)}
    out |= {f"grad.{k}": p.grad.clone() for k, p in w.items()}
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in w.values()))
    out["grad_norm"] = torch.tensor([norm], dtype=torch.float64)
    groups = [{"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        ce = loss()[1]
        ce.backward()
        optimizer.step()
        losses.append([ce.item()] * 2)
    losses.append([loss()[1].item()] * 2)
    out["adamw_losses"] = torch.tensor(losses, dtype=torch.float64)
    return out | {f"after.{k}": p for k, p in w.items()}


def save(path, tensors, **metadata):
    """float64 becomes float32, except for single numbers and losses."""
    kept = {}
    for key, t in tensors.items():
        t = t.detach().contiguous().clone()
        wide = t.numel() == 1 or key == "adamw_losses" or t.dtype != torch.float64
        kept[key] = t if wide else t.float()
    save_file(kept, path, metadata)
    path.chmod(0o644)


def make(name):
    config = CONFIG | MODELS[name]
    weights = build()
    folder = DATA / "weights" / f"tiny-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save(folder / "model.safetensors", weights, format="pt")
    draw = torch.Generator().manual_seed(7)
    ids = torch.randint(CONFIG["vocab_size"], (BATCH, SEQ + 1), generator=draw)
    out = reference(weights, ids[:, :-1], ids[:, 1:], config.get("softmax_every", 0))
    save(DATA / "oracles" / "torch" / f"{name}_tiny.safetensors", out,
         model=f"weights/tiny-{name}", dtype="computed in float64 from float32 weights",
         adamw="lr 1e-3 betas 0.9 0.95 eps 1e-8 weight decay 0.1 on tensors with ndim>=2; same batch "
               "every step; adamw_losses[i] = [ce, total] before step i, last row after the last")
    print(name, out["loss_ce"].item(), out["adamw_losses"][-1, 0].item())


for each in sys.argv[1:] or MODELS:
    make(each)
