"""References of small seeded models, computed in float64 by Hugging Face's own classes.

    python make_transformers.py [NAME ...]

writes tests/data/weights/tiny-NAME (config.json, model.safetensors as Transformers names and stores
them) and tests/data/oracles/torch/NAME_tiny.safetensors: tokens, logits, loss, every gradient, ten
AdamW steps, weights after. Made with torch 2.15 and transformers 5.23 (CPU).
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
MODELS = {
    "qwen2": dict(tie_word_embeddings=True),
    "phi3": dict(),
    "qwen3": dict(head_dim=16),
    "mistral": dict(sliding_window=None, head_dim=12),
}
N_STEPS, BATCH, SEQ = 10, 2, 24


def build(name):
    """Weights are rounded to float32 first: these are what both sides begin with."""
    config = transformers.AutoConfig.for_model(name, **(SIZES | MODELS[name]))
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    draw = torch.Generator().manual_seed(20261123)
    for key, p in model.named_parameters():
        values = 0.08 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
        p.data = torch.from_numpy((values + ("norm" in key)).numpy().astype(F32)).double()
    return config, model


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

    def loss():
        logits = model(input_ids=tokens).logits
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    logits, ce = loss()
    ce.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits,
           "loss_ce": ce.reshape(1)}
    out |= {f"grad.{k}": p.grad for k, p in names.items()}
    out["grad_norm"] = torch.tensor([math.sqrt(sum((p.grad**2).sum().item() for p in names.values()))],
                                    dtype=torch.float64)
    groups = [{"params": [p for p in names.values() if p.ndim >= 2], "weight_decay": 0.1},
              {"params": [p for p in names.values() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        _, ce = loss()
        ce.backward()
        optimizer.step()
        losses.append([ce.item()] * 2)
    losses.append([loss()[1].item()] * 2)
    out["adamw_losses"] = torch.tensor(losses, dtype=torch.float64)
    return out | {f"after.{k}": p for k, p in names.items()}


def make(name):
    config, model = build(name)
    folder = DATA / "weights" / f"tiny-{name}"
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    save(folder / "model.safetensors", dict(model.named_parameters()), format="pt")
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
