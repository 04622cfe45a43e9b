#!/usr/bin/env python3
"""Training steps of a GPT-2 on one rank of several in PyTorch, by gloo: the peer of bench/zero/run.py.

Started once a rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A step is --micro backwards of
--batch sequences each and one AdamW. Rank 0 prints one JSON object: milliseconds of the timed steps,
loss, peak memory.

modes  alone  no other rank: what a rank computes
       ddp    DistributedDataParallel; --sync last: no_sync() for all micro-batches but the last
       fsdp   fully_shard of every block, the embedding and head with the root; --sync as
              set_requires_gradient_sync, --reshard as reshard_after_forward, --prefetch blocks ahead
              explicitly, --async: gathers as work handles (_set_unshard_async_op), without which they
              block on a CPU, where there are no streams
"""
import argparse
import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))
import torch_step  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=("alone", "ddp", "fsdp"), default="fsdp")
    p.add_argument("--sync", choices=("last", "every"), default="every")
    p.add_argument("--reshard", choices=("true", "false"), default="true")
    p.add_argument("--prefetch", type=int, default=1)
    p.add_argument("--async", dest="unshard_async", action="store_true")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--micro", type=int, default=4)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--vocab", type=int, default=256)
    p.add_argument("--max-seq", type=int, default=256)
    return p.parse_args()


def share_out(model, a):
    """The model as the mode has it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    if a.mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    blocks = list(model.blocks)
    for module in [*blocks, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=a.reshard == "true")
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + a.prefetch])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - a.prefetch) : i][::-1])
    if a.unshard_async:
        model._set_unshard_async_op(True)
    return model


def sync_of(model, a, last):
    """What a micro-batch's backward is in; sets what its gradients are for."""
    if a.mode == "fsdp":
        model.set_requires_gradient_sync(last or a.sync == "every")
    return model.no_sync() if a.mode == "ddp" and a.sync == "last" and not last else contextlib.nullcontext()


def step(model, optimizer, a):
    """One step; its mean loss."""
    import torch

    loss_sum = 0.0
    optimizer.zero_grad(set_to_none=True)
    for k in range(a.micro):
        tokens = torch.randint(a.vocab, (a.batch, a.seq_len + 1))
        with sync_of(model, a, k == a.micro - 1):
            loss = model(tokens[:, :-1], tokens[:, 1:].reshape(-1)) / a.micro
            loss.backward()
        loss_sum += loss.item()
    optimizer.step()
    return loss_sum


def main():
    a = arguments()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1337)
    model = torch_step.build_model(a)
    rank = int(os.environ.get("RANK", 0))
    if a.mode != "alone":
        dist.init_process_group("gloo")
        model = share_out(model, a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times, losses = [], []
    for _ in range(a.warmup + a.steps):
        begin = time.perf_counter()
        losses.append(step(model, optimizer, a))
        times.append((time.perf_counter() - begin) * 1e3)
    if a.mode != "alone":
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0 or a.mode == "alone":
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"program": f"PyTorch {torch.__version__}", "step_ms": [round(t, 2) for t in times[a.warmup :]],
                          "last_loss": losses[-1], "peak_rss_mb": round(rss, 1)}), flush=True)


if __name__ == "__main__":
    main()
