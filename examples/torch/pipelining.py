"""A schedule of dhelix under torch.distributed.pipelining, compared with the whole model on one rank.

    dhelix check examples/pp2.yaml --set parallel.schedule=zb-h1 --print csv > zb-h1.csv
    torchrun --nproc-per-node 2 examples/torch/pipelining.py zb-h1.csv

Ranks, stages and micro-batches are those of the file. Every rank computes the whole model too, and says how
far losses and gradients of its stages are from that. On GPUs it is also timed.
"""

import argparse
import csv
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

TOLERANCE = 1e-5  # of a tensor's largest value: float32 sums in another order


class Block(torch.nn.Module):
    """A layer to be computed: attention and MLP, with residuals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, 16)).transpose(1, 2)
        o = torch.nn.functional.scaled_dot_product_attention(*heads.chunk(3, 1), is_causal=True)
        x = x + self.proj(o.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(output, target)


def stages_of(path: str):
    """Stages of each rank, and the number of micro-batches, of a schedule's file."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [[_Action.from_str(cell) for cell in row] for row in csv.reader(file)]
    parts = [[p for action in row if action for p in action.sub_actions or (action,)] for row in rows]
    stages = [sorted({p.stage_index for p in row}) for row in parts]
    if sorted(sum(stages, [])) != list(range(sum(map(len, stages)))):
        sys.exit(f"{path}: a stage is on two ranks: PyTorch runs schedules with one copy of the model")
    return stages, 1 + max(p.microbatch_index for row in parts for p in row)


def furthest(pairs) -> float:
    """The largest difference of two lists of tensors, relative to the largest value of each tensor."""
    return float(torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("schedule", help="a CSV file of `dhelix check JOB --print csv`")
    options.add_argument("--layers", type=int, default=1, help="layers of a stage")
    options.add_argument("--width", type=int, default=64, help="channels, a multiple of 16")
    options.add_argument("--seq", type=int, default=32, help="tokens of a micro-batch")
    options.add_argument("--steps", type=int, default=3)
    args = options.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()
    stages, n_micro_batches = stages_of(args.schedule)
    if len(stages) != dist.get_world_size():
        sys.exit(f"{args.schedule} has {len(stages)} ranks: torchrun --nproc-per-node {len(stages)}")

    def stage_module(stage: int) -> torch.nn.Sequential:
        torch.manual_seed(stage)
        return torch.nn.Sequential(*(Block(args.width) for _ in range(args.layers))).to(device)

    n_stages = sum(map(len, stages))
    own = {stage: stage_module(stage) for stage in stages[rank]}
    torch.manual_seed(1000)
    x, target = torch.randn(2, n_micro_batches, args.seq, args.width).to(device)
    schedule = _PipelineScheduleRuntime(
        [PipelineStage(module, stage, n_stages, device) for stage, module in own.items()], n_micro_batches, loss_of
    )
    schedule._load_csv(args.schedule)  # underscored, but the one way to bring a file

    losses, seconds = [], []
    for _ in range(args.steps):
        for module in own.values():
            module.zero_grad()
        losses.clear()
        dist.barrier()
        start = time.perf_counter()
        inputs = (x,) if 0 in own else ()
        schedule.step(*inputs, **({"target": target, "losses": losses} if n_stages - 1 in own else {}))
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)

    whole = [stage_module(stage) for stage in range(n_stages)]
    want = []
    for mb, mb_target in zip(x.split(1), target.split(1)):
        loss = loss_of(torch.nn.Sequential(*whole)(mb), mb_target)
        (loss / n_micro_batches).backward()
        want.append(loss.detach())
    gradients = [(p.grad, q.grad) for stage in own for p, q in zip(own[stage].parameters(), whole[stage].parameters())]
    far = furthest(list(zip([loss.detach() for loss in losses], want)) + gradients)
    assert n_stages - 1 not in own or len(losses) == n_micro_batches
    said = [None] * len(stages)
    dist.all_gather_object(said, far)
    if rank == 0:
        mean = float(sum(want)) / n_micro_batches
        print(f"{n_stages} stages on {len(stages)} ranks, {n_micro_batches} micro-batches, loss {mean:.4f}")
        print(f"losses and gradients differ from the whole model's by at most {max(said):.1e} of the largest value")
        if gpu:
            print(f"{1e3 * sorted(seconds)[len(seconds) // 2]:.2f} ms a step, median of {args.steps}")
    dist.destroy_process_group()
    if not all(far < TOLERANCE for far in said):
        sys.exit(f"that is more than {TOLERANCE}")


if __name__ == "__main__":
    main()
