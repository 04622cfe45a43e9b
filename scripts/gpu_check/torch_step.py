#!/usr/bin/env python3
"""One training step of a GPT-2 or a Llama in PyTorch on a GPU: what gpu_check.sh compares with.

  torch_step.py '{"kind": "llama", "layers": 16, ..., "batch": 4, "length": 2048, "warmup": 4, "steps": 12}'

Compiled, bf16 by autocast over float32 weights, scaled_dot_product_attention (flash), fused AdamW, random tokens:
what dhelix does for train.dtype=bf16. Prints one JSON line: milliseconds of each step behind the first ones.
"""
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-5)


def rotate(x, table):
    """x [B, H, T, D], pairs being halves."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = table
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.gpt2 = s, s["kind"] == "gpt2"
        width, self.head = s["width"], s["width"] // s["heads"]
        norm = nn.LayerNorm if self.gpt2 else RmsNorm
        self.n1, self.n2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, (s["heads"] + 2 * s["kv_heads"]) * self.head, bias=self.gpt2)
        self.proj = nn.Linear(width, width, bias=self.gpt2)
        self.up = nn.Linear(width, s["ffn"] * (1 if self.gpt2 else 2), bias=self.gpt2)
        self.down = nn.Linear(s["ffn"], width, bias=self.gpt2)

    def attention(self, x, table):
        s, (batch, length, width) = self.s, x.shape
        sizes = [n * self.head for n in (s["heads"], s["kv_heads"], s["kv_heads"])]
        q, k, v = (t.view(batch, length, -1, self.head).transpose(1, 2) for t in self.qkv(x).split(sizes, dim=2))
        if table is not None:
            q, k = rotate(q, table), rotate(k, table)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s["heads"] != s["kv_heads"])
        return self.proj(o.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x, table):
        x = x + self.attention(self.n1(x), table)
        h = self.up(self.n2(x))
        if self.gpt2:
            return x + self.down(F.gelu(h, approximate="tanh"))
        gate, up = h.chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """The head is tied, as in both models."""

    def __init__(self, s):
        super().__init__()
        self.s, self.gpt2 = s, s["kind"] == "gpt2"
        self.wte = nn.Embedding(s["vocab"], s["width"])
        self.wpe = nn.Embedding(s["length"], s["width"]) if self.gpt2 else None
        self.blocks = nn.ModuleList(Block(s) for _ in range(s["layers"]))
        self.norm = (nn.LayerNorm if self.gpt2 else RmsNorm)(s["width"])
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        if not self.gpt2:
            half = s["width"] // s["heads"] // 2
            angle = torch.outer(torch.arange(s["length"]), 500000.0 ** (-torch.arange(half) / half))
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        table = None
        if self.gpt2:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        else:
            table = (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, table)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, self.s["vocab"]).float(), targets.reshape(-1))


def main():
    s = json.loads(sys.argv[1])
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    model = Model(s).cuda()
    step_model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, loss = [], None
    for _ in range(s["warmup"] + s["steps"]):
        tokens = torch.randint(s["vocab"], (s["batch"], s["length"] + 1), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({"step_ms": [round(t, 3) for t in times[s["warmup"]:]], "loss": loss.item(), "torch": torch.__version__,
                      "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main()
