"""Measures an order of dhelix with PyTorch, and what dhelix predicts for it.

    torchrun --nproc-per-node 8 examples/torch/measure.py job.yaml --cluster h100

The job says sizes and number format; its parallel.tp is the number of ranks. Layers run one micro-batch after
the other with nothing hidden, and then by the order: losses and gradients are compared, and times are those
of a layer's forward with a layer's backward.
"""

import argparse
import os
import statistics
import sys

import torch
import torch.distributed as dist

import dhelix
from dhelix.torch import Llama, Order, Shape, Trace

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of a gradient's largest value


def operators(planned: dict, alone: Trace, ordered: Trace) -> None:
    """Times of each operator: its own as predicted and measured, and what it takes in the order."""

    def median(trace: Trace, name: str) -> float:
        return statistics.median(e["end_us"] - e["start_us"] for e in trace.entries if e["operator"] == name)

    print(f"\n{'operator':28}{'alone, predicted':>18}{'alone':>12}{'in the order':>14}")
    for p in planned["operators"]:
        name = f"{p['strand'][0].upper()} {p['operator']} {p['output']}"
        print(f"{name:28}{p['alone_us']:18.1f}{median(alone, name):12.1f}{median(ordered, name):14.1f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("job", help="a job file, as of `dhelix plan`")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")
    options.add_argument("--cluster", help="whose times the prediction and the order have; none: this machine's")
    options.add_argument("--policy", help="whose order; none: the job's")
    options.add_argument("--order", help="a file of `dhelix plan --write`, in place of a policy's order")
    options.add_argument("--layers", type=int, default=4, help="layers that are run, of those of the job")
    options.add_argument("--micro-batches", type=int, default=4)
    options.add_argument("--steps", type=int, default=5, help="measured steps; two more come first")
    options.add_argument("--operators", action="store_true", help="also the time of each operator")
    options.add_argument("--trace", help="timeline of rank 0's last step, for Perfetto")
    args = options.parse_args()
    if args.order and args.policy:
        options.error("--order has the order already: leave out --policy")
    if args.micro_batches < 2 or min(args.layers, args.steps) < 1:
        options.error("a pair needs --micro-batches of at least 2, --layers and --steps of at least 1")

    job = dhelix.Job(args.job, dict(pair.partition("=")[::2] for pair in args.set))
    if args.order:
        job = job.replace({"overlap.policy": os.path.abspath(args.order)})
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, tp = dist.get_rank(), dist.get_world_size()
    if job["parallel.tp"] != tp:
        sys.exit(f"the job has parallel.tp={job['parallel.tp']}: torchrun --nproc-per-node {job['parallel.tp']}")

    plans = [None, None]
    if rank == 0:  # others would measure other times where there is no cluster
        plans = [job.order("sequential", cluster=args.cluster), job.order(args.policy, cluster=args.cluster)]
    dist.broadcast_object_list(plans)
    planned = plans[1]
    order = Order.read(args.order) if args.order else Order.of(planned)
    predicted = {"sequential": plans[0]["slot_us"], "order": planned["slot_us"]}

    dtype = TYPES[job["train.dtype"]]
    model = Llama(Shape.of({**job, "model.n_layers": args.layers}), device=device, dtype=dtype)
    torch.manual_seed(0)  # the same tokens on all ranks
    size = (args.micro_batches, 2, job["train.micro_batch"], job["train.seq_len"])
    micro_batches = [(x, y) for x, y in torch.randint(model.shape.vocab, size).to(device)]

    measured, losses, gradients, traces = {}, {}, {}, {}
    for name, how in (("sequential", None), ("order", order)):
        times = []
        for number in range(-2, args.steps):
            model.zero_grad()
            trace = traces[name] = Trace()
            dist.barrier()
            losses[name] = float(model.step(micro_batches, how, trace))
            if number >= 0 and how:
                times += trace.pair_us(both=True)
            elif number >= 0:  # forwards and backwards take turns
                alone = trace.pair_us(both=False)
                times += [f + b for f, b in zip(alone[::2], alone[1::2])]
        measured[name] = statistics.median(times)
        gradients[name] = [p.grad for p in model.parameters()]
    paired = [e["operator"] for e in traces["order"].entries if 0 < e["slot"] < args.micro_batches]
    if paired != [step.operator.name for step in order.steps] * (args.layers * (args.micro_batches - 1)):
        sys.exit("the operators were not issued in the order's order")
    pairs = zip(gradients["order"], gradients["sequential"])
    far = float(torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max())
    said = [None] * tp
    dist.all_gather_object(said, far)
    dist.destroy_process_group()
    if rank == 0:
        print(f"a layer forward and a layer back, {planned['costs']} and here, us")
        print(f"{'':12}{'predicted':>12}{'measured':>12}")
        for name in measured:
            print(f"{name:12}{predicted[name]:12.1f}{measured[name]:12.1f}")
        ratios = [times["sequential"] / times["order"] for times in (predicted, measured)]
        print(f"{'speed-up':12}{ratios[0]:12.2f}{ratios[1]:12.2f}")
        print(f"loss {losses['sequential']:.6f} and {losses['order']:.6f}; gradients differ by at most {max(said):.1e}")
        if args.operators:
            operators(planned, traces["sequential"], traces["order"])
        if args.trace:
            traces["order"].write(args.trace)
    same = abs(losses["order"] - losses["sequential"]) <= TOLERANCE[dtype] * abs(losses["sequential"])
    if not (same and all(far <= TOLERANCE[dtype] for far in said)):
        sys.exit("the order's losses or gradients are not the sequential run's")


if __name__ == "__main__":
    main()
