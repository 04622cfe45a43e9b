"""Reference of a small seeded OLMo 3, computed in float64 by a model of our own.

    python make_olmo3.py

writes tests/data/weights/tiny-olmo3 and tests/data/oracles/torch/olmo3_tiny.safetensors, with what
make_transformers.py writes of other families. The model computes what Olmo3ForCausalLM of Transformers 4.57
does: OLMo 2's layers, a window in all of them except every n-th, and rotary positions that yarn stretches in
these n-th alone. Needs torch (1.13 or later), numpy and safetensors.
"""
import json
import math
from pathlib import Path

import torch
from safetensors.numpy import save_file

DATA = Path(__file__).resolve().parent.parent
V, C, F, L, H, KV, D, WINDOW, EPS, THETA = 260, 32, 48, 3, 4, 2, 8, 7, 1e-5, 10000.0
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=0.5,
            attention_factor=1.3)
N_STEPS, BATCH, SEQ = 10, 2, 24
torch.set_default_dtype(torch.float64)


def draw_weights():
    draw = torch.Generator().manual_seed(20261130)
    shapes = {"model.embed_tokens.weight": (V, C)}
    for i in range(L):
        at = f"model.layers.{i}."
        shapes |= {at + "self_attn.q_proj.weight": (H * D, C), at + "self_attn.k_proj.weight": (KV * D, C),
                   at + "self_attn.v_proj.weight": (KV * D, C), at + "self_attn.o_proj.weight": (C, H * D),
                   at + "self_attn.q_norm.weight": (H * D,), at + "self_attn.k_norm.weight": (KV * D,),
                   at + "mlp.gate_proj.weight": (F, C), at + "mlp.up_proj.weight": (F, C),
                   at + "mlp.down_proj.weight": (C, F), at + "post_attention_layernorm.weight": (C,),
                   at + "post_feedforward_layernorm.weight": (C,)}
    shapes |= {"model.norm.weight": (C,), "lm_head.weight": (V, C)}
    return {name: (0.08 * torch.randn(shape, generator=draw) + ("norm" in name)).float().double().requires_grad_()
            for name, shape in shapes.items()}


def norm(x, w):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


def frequencies(yarn):
    """One a pair of channels, and the factor of what they turn."""
    powers = THETA ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
    if not yarn:
        return 1 / powers, 1.0

    def pair(turns):
        return D * math.log(YARN["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = max(math.floor(pair(YARN["beta_fast"])), 0), min(math.ceil(pair(YARN["beta_slow"])), D - 1)
    ramp = ((torch.arange(D // 2, dtype=torch.float64) - low) / (high - low or 0.001)).clamp(0, 1)
    return ramp / (YARN["factor"] * powers) + (1 - ramp) / powers, YARN["attention_factor"]


def rotate(x, yarn):
    f, magnitude = frequencies(yarn)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * f
    angles = torch.cat((angles, angles), -1)
    a, b = x[..., : D // 2], x[..., D // 2:]
    return magnitude * (x * angles.cos() + torch.cat((-b, a), -1) * angles.sin())


def attention(w, at, x, full):
    n, t, _ = x.shape
    q = norm(x @ w[at + "q_proj.weight"].T, w[at + "q_norm.weight"]).view(n, t, H, D).transpose(1, 2)
    k = norm(x @ w[at + "k_proj.weight"].T, w[at + "k_norm.weight"]).view(n, t, KV, D).transpose(1, 2)
    v = (x @ w[at + "v_proj.weight"].T).view(n, t, KV, D).transpose(1, 2)
    q, k = rotate(q, full), rotate(k, full)
    k, v = k.repeat_interleave(H // KV, 1), v.repeat_interleave(H // KV, 1)
    i, j = torch.arange(t)[:, None], torch.arange(t)
    seen = (j <= i) if full else (j <= i) & (j > i - WINDOW)
    scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, H * D) @ w[at + "o_proj.weight"].T


def logits_of(w, tokens):
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(L):
        at = f"model.layers.{i}."
        x = x + norm(attention(w, at + "self_attn.", x, TYPES[i] == "full_attention"),
                     w[at + "post_attention_layernorm.weight"])
        gate, up = x @ w[at + "mlp.gate_proj.weight"].T, x @ w[at + "mlp.up_proj.weight"].T
        x = x + norm((torch.nn.functional.silu(gate) * up) @ w[at + "mlp.down_proj.weight"].T,
                     w[at + "post_feedforward_layernorm.weight"])
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def save(path, tensors, **metadata):
    """float64 becomes float32, except for single numbers and losses."""
    kept = {}
    for key, t in tensors.items():
        a = t.detach().contiguous().numpy()
        wide = a.size == 1 or key == "adamw_losses" or a.dtype != "float64"
        kept[key] = a if wide else a.astype("float32")
    save_file(kept, path, metadata)
    path.chmod(0o644)


def main():
    folder = DATA / "weights" / "tiny-olmo3"
    folder.mkdir(exist_ok=True)
    w = draw_weights()
    config = dict(architectures=["Olmo3ForCausalLM"], model_type="olmo3", vocab_size=V, hidden_size=C,
                  intermediate_size=F, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV,
                  max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=THETA, rope_scaling=YARN,
                  sliding_window=WINDOW, layer_types=TYPES, tie_word_embeddings=False, hidden_act="silu",
                  attention_bias=False, initializer_range=0.02)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save(folder / "model.safetensors", w, format="pt")
    ids = torch.randint(V, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(7))
    tokens, targets = ids[:, :-1], ids[:, 1:]

    def loss():
        logits = logits_of(w, tokens)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    logits, ce = loss()
    ce.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits, "loss_ce": ce.reshape(1)}
    out |= {f"grad.{name}": p.grad.clone() for name, p in w.items()}
    out["grad_norm"] = torch.tensor([math.sqrt(sum((p.grad ** 2).sum().item() for p in w.values()))])
    optimizer = torch.optim.AdamW([{"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        _, ce = loss()
        ce.backward()
        optimizer.step()
        losses.append([ce.item(), ce.item()])
    losses.append([loss()[1].item()] * 2)
    out["adamw_losses"] = torch.tensor(losses)
    out |= {f"after.{name}": p for name, p in w.items()}
    save(DATA / "oracles" / "torch" / "olmo3_tiny.safetensors", out, model="weights/tiny-olmo3",
         dtype="computed in float64 from float32 weights",
         adamw="lr 1e-3 betas 0.9 0.95 eps 1e-8 weight decay 0.1 on tensors with ndim>=2; same batch every step; "
               "adamw_losses[i] = [ce, total] before step i, last row after the last")
    print(losses[0], losses[-1])


main()
