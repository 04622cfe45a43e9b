"""References of small models with low-rank adapters, computed in float64 by Hugging Face's PEFT.

    python make_lora.py [NAME ...]

takes the models of tests/data/weights (make_transformers.py) and writes tests/data/weights/lora-NAME, a
folder as PEFT saves it, and tests/data/oracles/torch/lora-NAME.safetensors: tokens, logits, loss, every
adapter's gradient, ten AdamW steps, adapters after. Made with torch 2.15, transformers 5.23 and peft
0.21 (CPU).
"""
import json
import math
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import save_file

# Transformers computes norms, softmax and rotations in float32 whatever the model's type.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
F32 = "float32"  # of NumPy, which is none the wiser

DATA = Path(__file__).resolve().parent.parent
ADAPTERS = {
    # One product of three linears here, and one of two; all have adapters.
    "qwen2": ("tiny-qwen2", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    # Of three linears of a product the first and the last.
    "mistral": ("tiny-mistral", dict(r=3, lora_alpha=12, target_modules=["q_proj", "v_proj"])),
    # Products that are one linear there too; stored by columns; a name that two linears have.
    "phi3": ("tiny-phi3", dict(r=2, lora_alpha=3, target_modules=["qkv_proj", "gate_up_proj", "o_proj"])),
    "gpt2": ("tiny-random-gpt2", dict(r=4, lora_alpha=4, target_modules=["c_attn", "c_proj", "c_fc"],
                                      fan_in_fan_out=True)),
}
N_STEPS, BATCH, SEQ = 10, 2, 24


def build(base, settings):
    """Adapters are rounded to float32 first; B is not zero, so that A has gradients."""
    config = transformers.AutoConfig.from_pretrained(DATA / "weights" / base)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    weights = load_file(DATA / "weights" / base / "model.safetensors")
    for key, p in model.named_parameters():
        values = weights[key if key in weights else key.removeprefix("transformer.")]
        p.data = torch.from_numpy(values.astype("float64"))
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings),
                                autocast_adapter_dtype=False)
    draw = torch.Generator().manual_seed(20261123)
    for key, p in model.named_parameters():
        assert p.requires_grad == (".lora_" in key), key
        if p.requires_grad:
            values = 0.1 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
            p.data = torch.from_numpy(values.numpy().astype(F32)).double()
    return model.eval()  # nothing is dropped


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
    names = {k.replace(".default", ""): p for k, p in model.named_parameters() if p.requires_grad}

    def loss():
        logits = model(input_ids=tokens).logits
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    logits, ce = loss()
    ce.backward()
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits,
           "loss_ce": ce.reshape(1)}
    out |= {f"grad.{k}": p.grad for k, p in names.items()}
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in names.values()))
    out["grad_norm"] = torch.tensor([norm], dtype=torch.float64)
    optimizer = torch.optim.AdamW(names.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1)
    losses = []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        ce = loss()[1]
        ce.backward()
        optimizer.step()
        losses.append([ce.item(), ce.item()])
    losses.append([loss()[1].item()] * 2)
    out["adamw_losses"] = torch.tensor(losses, dtype=torch.float64)
    return out | {f"after.{k}": p for k, p in names.items()}


def make(name):
    base, settings = ADAPTERS[name]
    model = build(base, settings)
    folder = DATA / "weights" / f"lora-{name}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    file = folder / "adapter_model.safetensors"
    save(file, {k: torch.from_numpy(t.astype("float64")) for k, t in load_file(file).items()},
         format="pt")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tests/data/weights/{base}"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    draw = torch.Generator().manual_seed(7)
    vocab = model.config.vocab_size
    ids = torch.randint(vocab, (BATCH, SEQ + 1), generator=draw)
    out = reference(model, ids[:, :-1], ids[:, 1:])
    save(DATA / "oracles" / "torch" / f"lora-{name}.safetensors", out,
         model=f"weights/lora-{name}", dtype="computed in float64 from float32 weights",
         adamw="lr 1e-3 betas 0.9 0.95 eps 1e-8 weight decay 0.1; same batch every step; "
               "adamw_losses[i] = the loss before step i twice, last row after the last")
    print(name, out["loss_ce"].item(), out["adamw_losses"][-1, 0].item())


for each in sys.argv[1:] or ADAPTERS:
    make(each)
