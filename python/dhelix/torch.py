"""Orders of operators executed by PyTorch: the forward of one micro-batch during the backward of another.

    order = Order.read("my.order")                  # of `dhelix plan job.yaml --write my.order`
    model = Llama(Shape.of(job), group, device)     # this rank's shards; torch.distributed is initialized
    loss = model.step(micro_batches, order, trace)  # loss, and .grad of all parameters

A layer is executed operator by operator, without a graph of autograd through it: input gradients and
weight gradients are operators of their own. On GPUs computation runs on the current stream and
collectives on another; each operator waits by events for what it reads, and for nothing else. On CPUs
collectives are asynchronous, and their first reader waits for them. docs/howto/measure-in-pytorch.md
shows how to measure with it. Importing it needs PyTorch; the package dhelix does not.
"""

import json
import os
import time
import zlib
from collections import ChainMap
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
except ImportError as error:
    raise ImportError(f"dhelix.torch needs PyTorch 2.6 or later (pip install torch): {error}") from error

from .orders import OPERATORS, SAVED, Order, Step

__all__ = ["Llama", "Order", "Shape", "Trace", "shards"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of the whole model."""

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "Shape":
        """The sizes of a :class:`dhelix.Job` of the llama family."""
        if job["model.family"] != "llama":
            raise ValueError(f"model.family is {job['model.family']}: only the layers of llama run here")
        return cls(**{name: job["model." + name] for name in cls.__dataclass_fields__})


def shards(full: Mapping[str, Tensor], shape: Shape, rank: int, tp: int) -> Dict[str, Tensor]:
    """A tensor-parallel rank's part of what has Hugging Face's names for Llama: parameters, or their gradients."""
    own = {"embed": full["model.embed_tokens.weight"], "lnf": full["model.norm.weight"], "head": full["lm_head.weight"]}
    for layer in range(shape.n_layers):

        def part(module: str, dim: int) -> Tensor:
            return full[f"model.layers.{layer}.{module}.weight"].chunk(tp, dim)[rank]

        own.update({
            f"layers.{layer}.ln1_w": full[f"model.layers.{layer}.input_layernorm.weight"],
            f"layers.{layer}.qkv_w": torch.cat([part(f"self_attn.{x}_proj", 0) for x in "qkv"]),
            f"layers.{layer}.proj_w": part("self_attn.o_proj", 1),
            f"layers.{layer}.ln2_w": full[f"model.layers.{layer}.post_attention_layernorm.weight"],
            f"layers.{layer}.fc1_w": torch.cat([part(f"mlp.{x}_proj", 0) for x in ("gate", "up")]),
            f"layers.{layer}.fc2_w": part("mlp.down_proj", 1),
        })
    return own


class Trace:
    """What was executed: ``entries`` has a dict for each operator of a layer, in the order of issue.

    ``slot`` numbers the passes through all layers of one forward, one backward, or both; ``pair`` is the
    place of the layer, or of the two layers, in it. ``operator`` is a name of an order (``B linear_dgrad dg``).
    ``start_us`` and ``end_us`` count from the step's start. On CPUs a collective ends when its first
    reader has waited for it.
    """

    def __init__(self) -> None:
        self.entries: List[Dict[str, Any]] = []

    def pair_us(self, both: bool) -> List[float]:
        """Time of each slot divided by its layers, for the slots with both strands, or for those with one."""
        slots: Dict[int, List[Dict[str, Any]]] = {}
        for entry in self.entries:
            slots.setdefault(entry["slot"], []).append(entry)
        return [
            (max(e["end_us"] for e in slot) - min(e["start_us"] for e in slot)) / (1 + max(e["pair"] for e in slot))
            for slot in slots.values()
            if (len({e["strand"] for e in slot}) == 2) == both
        ]

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """As a timeline for Perfetto or chrome://tracing."""
        events = [
            {"name": e["operator"], "ph": "X", "pid": 0, "tid": e["stream"], "ts": e["start_us"],
             "dur": e["end_us"] - e["start_us"], "args": e}
            for e in self.entries
        ]
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)


class _Run:
    """An operator that was issued: ``done`` is the event or the work to wait for, None once nothing is."""

    __slots__ = ("stream", "start", "done", "end")

    def __init__(self, stream: str, start: Any) -> None:
        self.stream, self.start, self.done, self.end = stream, start, None, None


_Reads = Sequence[Tuple[Any, _Run]]


class _HostStreams:
    """CPU: computation is over when its call returns; a collective when its first reader has waited."""

    def start(self, timed: bool) -> None:
        """A step begins."""
        self._zero = time.perf_counter()
        self._last: List[_Run] = []

    def issue(self, stream: str, call: Callable[[], Any], reads: _Reads, barrier: bool) -> Tuple[Any, _Run]:
        for _, run in reads:
            self._wait(run)
        if barrier:
            self.finish()
        run = _Run(stream, time.perf_counter())
        outputs, run.done = call()
        if run.done is None:
            run.end = time.perf_counter()
        else:
            self._last.append(run)
        return outputs, run

    @staticmethod
    def _wait(run: _Run) -> None:
        if run.done is not None:
            run.done.wait()
            run.done, run.end = None, time.perf_counter()

    def now(self) -> _Run:
        """What the caller has computed so far, as something to wait for."""
        return _Run("compute", None)

    def finish(self) -> None:
        """All that was issued is over, or comes before what is issued next."""
        for run in self._last:
            self._wait(run)
        self._last = []

    def times_us(self, run: _Run) -> Tuple[float, float]:
        return 1e6 * (run.start - self._zero), 1e6 * (run.end - self._zero)


class _CudaStreams:
    """GPU: computation on the current stream, collectives on one of their own; events between them."""

    def __init__(self) -> None:
        self._communication = torch.cuda.Stream(priority=-1)  # one for all steps: memory is kept by stream

    def start(self, timed: bool) -> None:
        self._streams = {"compute": torch.cuda.current_stream(), "communication": self._communication}
        self._timed = timed
        self._last: Dict[str, _Run] = {}
        self._zero = self._event("compute")
        self._streams["communication"].wait_event(self._zero)  # for what the caller computed before the step

    def _event(self, stream: str) -> "torch.cuda.Event":
        event = torch.cuda.Event(enable_timing=self._timed)
        event.record(self._streams[stream])
        return event

    def issue(self, stream: str, call: Callable[[], Any], reads: _Reads, barrier: bool) -> Tuple[Any, _Run]:
        own = self._streams[stream]
        for data, run in reads:
            if run.stream != stream:
                own.wait_event(run.done)
                data.record_stream(own)  # its memory is not used again before this operator has read it
        if barrier:
            self._join(stream)
        run = _Run(stream, self._event(stream) if self._timed else None)
        with torch.cuda.stream(own):
            outputs, work = call()
            if work is not None:
                work.wait()  # NCCL's own stream comes before what follows on this one; the host goes on
        run.done = run.end = self._event(stream)
        self._last[stream] = run
        return outputs, run

    def now(self) -> _Run:
        run = _Run("compute", None)
        run.done = self._event("compute")
        return run

    def _join(self, stream: str) -> None:
        for run in self._last.values():
            if run.stream != stream:
                self._streams[stream].wait_event(run.done)

    def finish(self) -> None:
        self._join("compute")

    def times_us(self, run: _Run) -> Tuple[float, float]:
        run.end.synchronize()
        return 1e3 * self._zero.elapsed_time(run.start), 1e3 * self._zero.elapsed_time(run.end)


class _Kinds:
    """The operators, one method for each kind of :data:`dhelix.orders.OPERATORS`.

    Shapes are (tokens, channels), with all tokens of a micro-batch, sequence after sequence, where a linear or
    attention works, and a rank's part of the tokens elsewhere. A method returns its outputs as a tuple; a
    collective also the work to wait for. ``stats`` and ``lse`` are what autograd keeps for one operator.
    """

    def __init__(self, shape: Shape, group: Any, tp: int, batch: int, seq: int, like: Tensor) -> None:
        self.shape, self.group, self.tp, self.batch, self.seq = shape, group, tp, batch, seq
        self.heads = (shape.n_heads // tp, shape.n_kv_heads // tp, shape.n_kv_heads // tp)
        half = torch.arange(shape.head_dim // 2, device=like.device, dtype=torch.float32)
        at = torch.arange(seq, device=like.device, dtype=torch.float32).repeat(batch)
        angle = torch.outer(at, shape.rope_theta ** (-2 * half / shape.head_dim))[:, None]
        self.cos, self.sin = angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def all_gather(self, x: Tensor):
        out = x.new_empty(x.shape[0] * self.tp, x.shape[1])
        return (out,), dist.all_gather_into_tensor(out, x, group=self.group, async_op=True)

    def reduce_scatter(self, x: Tensor):
        out = x.new_empty(x.shape[0] // self.tp, x.shape[1])
        return (out,), dist.reduce_scatter_tensor(out, x, group=self.group, async_op=True)

    def linear(self, x: Tensor, w: Tensor):
        return (x @ w.t(),)

    def linear_dgrad(self, dy: Tensor, w: Tensor):
        return (dy @ w,)

    def linear_wgrad(self, dy: Tensor, x: Tensor, grad: Tensor):
        return (grad.addmm_(dy.t(), x),)

    def norm(self, x: Tensor, w: Tensor):
        leaves = x.detach().requires_grad_(), w.detach().requires_grad_()
        with torch.enable_grad():
            n = F.rms_norm(leaves[0], w.shape, leaves[1], self.shape.norm_eps)
        return n.detach(), (n, *leaves)

    def norm_dgrad(self, dn: Tensor, x: Tensor, w: Tensor, stats: Tuple[Tensor, ...], dy: Tensor):
        n, x, _ = stats
        return (dy + torch.autograd.grad(n, x, dn, retain_graph=True)[0],)

    def norm_wgrad(self, dn: Tensor, x: Tensor, stats: Tuple[Tensor, ...], grad: Tensor):
        n, _, w = stats
        return (grad.add_(torch.autograd.grad(n, w, dn, retain_graph=True)[0]),)

    def _rotated(self, qkv: Tensor, sin: Tensor):
        n_rotated = self.heads[0] + self.heads[1]
        heads = qkv.view(qkv.shape[0], -1, self.shape.head_dim)
        a, b = heads[:, :n_rotated].chunk(2, -1)
        rotated = torch.cat((a * self.cos - b * sin, b * self.cos + a * sin), -1)
        return (torch.cat((rotated, heads[:, n_rotated:]), 1).view_as(qkv),)

    def rope(self, qkv: Tensor):
        return self._rotated(qkv, self.sin)

    def rope_grad(self, dqkv: Tensor):
        return self._rotated(dqkv, -self.sin)

    def attention(self, qkv: Tensor):
        leaf = qkv.detach().requires_grad_()
        with torch.enable_grad():
            heads = leaf.view(self.batch, self.seq, -1, self.shape.head_dim).transpose(1, 2)
            q, k, v = heads.split(self.heads, 1)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads[0] != self.heads[1])
            o = o.transpose(1, 2).reshape(qkv.shape[0], -1)
        return o.detach(), (o, leaf)

    def attention_grad(self, do: Tensor, qkv: Tensor, o: Tensor, lse: Tuple[Tensor, ...]):
        return torch.autograd.grad(lse[0], lse[1], do)

    def activation(self, h: Tensor):
        gate, up = h.chunk(2, 1)
        return (F.silu(gate) * up,)

    def activation_grad(self, dg: Tensor, h: Tensor):
        gate, up = h.chunk(2, 1)
        return (torch.cat((torch.ops.aten.silu_backward(dg * up, gate), dg * F.silu(gate)), 1),)

    def residual(self, x: Tensor, y: Tensor):
        return (x + y,)


_Values = Dict[str, Tuple[Any, _Run]]
_PARAMETER = _Run("compute", None)  # computation alone reads parameters, which are older than all of its stream


class _MicroBatch:
    """A micro-batch on its way: this rank's tokens, and what each layer keeps for the backward."""

    def __init__(self, number: int, tokens: Tensor, targets: Tensor) -> None:
        self.number, self.tokens, self.targets = number, tokens, targets
        self.saved: List[_Values] = []
        self.edge: Tuple[Tensor, _Run]  # between layers: x on the way forward, dx on the way back


class Llama(torch.nn.Module):
    """A rank's shards of a Llama: linears by tensor parallelism, tokens split between them (sequence parallelism).

    Embedding, last norm and head are whole on each rank, which has them work on its part of the tokens. They,
    as in DHelix, have no partner in the other strand.
    """

    def __init__(self, shape: Shape, group: Any = None, device: Any = None, dtype: Any = None, seed: int = 0) -> None:
        """Parameters are drawn by ``seed`` until :meth:`load`. The group's ranks are the tensor-parallel ones."""
        super().__init__()
        self.shape, self.group = shape, group
        self._streams: Union[None, _CudaStreams, _HostStreams] = None  # made where the first step finds the parameters
        self._agreed: Optional[Order] = None
        self.rank, self.tp = dist.get_rank(group), dist.get_world_size(group)
        for what in ("n_heads", "n_kv_heads", "ffn_width"):
            if getattr(shape, what) % self.tp:
                raise ValueError(f"{what}={getattr(shape, what)} does not divide by the group's {self.tp} ranks")
        if shape.head_dim % 2:
            raise ValueError(f"head_dim={shape.head_dim} is odd: positions rotate pairs of channels")
        options = {"device": torch.device(device or "cpu"), "dtype": dtype}

        def weight(rows: int, columns: int, seed: int) -> torch.nn.Parameter:
            generator = torch.Generator(options["device"]).manual_seed(seed)
            return torch.nn.Parameter(0.02 * torch.randn(rows, columns, generator=generator, **options))

        def ones() -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.ones(shape.width, **options))

        width, ffn, own = shape.width, shape.ffn_width // self.tp, seed + 1 + self.rank
        heads, qkv = (n * shape.head_dim // self.tp for n in (shape.n_heads, shape.n_heads + 2 * shape.n_kv_heads))
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({
                "ln1_w": ones(), "qkv_w": weight(qkv, width, own), "proj_w": weight(width, heads, own),
                "ln2_w": ones(), "fc1_w": weight(2 * ffn, width, own), "fc2_w": weight(width, ffn, own),
            })
            for _ in range(shape.n_layers)
        )
        self.embed, self.lnf, self.head = weight(shape.vocab, width, seed), ones(), weight(shape.vocab, width, seed)

    def load(self, full: Mapping[str, Tensor]) -> None:
        """Take the parameters of a whole model, such as ``state_dict()`` of Hugging Face's LlamaForCausalLM."""
        own = shards(full, self.shape, self.rank, self.tp)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(own[name])

    @torch.no_grad()
    def step(
        self,
        micro_batches: Sequence[Tuple[Tensor, Tensor]],
        order: Optional[Order] = None,
        trace: Optional[Trace] = None,
    ) -> Tensor:
        """Forward and backward of micro-batches (tokens and targets, each (sequences, tokens), the same on all ranks).

        With an order, the forward of each micro-batch runs during the backward of the one before it. Without one,
        each micro-batch goes forward and back alone, every operator waiting for the one before. Gradients are
        added to ``.grad``. Returns the mean loss of all tokens.
        """
        batch, seq = micro_batches[0][0].shape
        if any(x.shape != (batch, seq) for pair in micro_batches for x in pair):
            raise ValueError("all micro-batches have to have as many sequences and tokens, and as many targets")
        if batch * seq % self.tp:
            raise ValueError(f"{batch} sequences of {seq} tokens do not divide by the group's {self.tp} ranks")
        if order is not None and order is not self._agreed:
            self._agree(order)
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._kinds = _Kinds(self.shape, self.group, self.tp, batch, seq, self.embed)
        if self._streams is None:
            self._streams = _CudaStreams() if self.embed.is_cuda else _HostStreams()
        self._streams.start(trace is not None)
        self._trace, self._issued, self._slot = trace, [], 0
        self._share = 1 / (batch * seq * len(micro_batches))
        self._loss = torch.zeros((), device=self.embed.device)

        own = slice(self.rank * batch * seq // self.tp, (self.rank + 1) * batch * seq // self.tp)
        before = None
        for number, (tokens, targets) in enumerate(micro_batches):
            now = _MicroBatch(number, tokens.flatten()[own], targets.flatten()[own])
            if order is None:
                self._pass(Order.sequential(), now, None)
                self._pass(Order.sequential(), None, now)
            else:
                self._pass(order, now, before)
                before = now
        if before is not None:
            self._pass(order, None, before)
        self._streams.finish()
        self._reduce()
        for entry, run in self._issued:
            entry["start_us"], entry["end_us"] = self._streams.times_us(run)
        return self._loss

    def _agree(self, order: Order) -> None:
        """Ranks with different orders would wait for each other for ever: refuse them on all ranks."""
        mark = zlib.crc32(repr(order.steps).encode())
        marks = torch.tensor([mark, -mark], device=self.embed.device)
        dist.all_reduce(marks, dist.ReduceOp.MAX, group=self.group)
        if marks[0] != -marks[1]:
            raise ValueError("the ranks have different orders: plan on one rank, and send its order to the others")
        self._agreed = order

    def _pass(self, order: Order, forward: Optional[_MicroBatch], backward: Optional[_MicroBatch]) -> None:
        """One micro-batch through all layers, another one back through them; either may be None."""
        steps = order.steps if forward and backward else order.strand("F" if forward else "B")
        if forward:
            forward.edge = self.embed[forward.tokens], self._streams.now()
        for pair in range(self.shape.n_layers):
            values: Dict[str, ChainMap] = {}
            layers = {"F": pair, "B": self.shape.n_layers - 1 - pair}
            parameters = {
                strand: {name.replace("_", "."): (p, _PARAMETER) for name, p in self.layers[layer].items()}
                for strand, layer in layers.items()
            }
            if forward:
                values["F"] = ChainMap({"x": forward.edge}, parameters["F"])
            if backward:
                values["B"] = ChainMap({"dx3": backward.edge}, backward.saved.pop(), parameters["B"])
            for step in steps:
                self._issue(step, values[step.operator.strand], layers, pair, {"F": forward, "B": backward})
            if forward:
                forward.edge = values["F"]["x3"]
                forward.saved.append({name: v for name, v in values["F"].maps[0].items() if name in SAVED})
            if backward:
                backward.edge = values["B"]["dx"]
        if forward:
            self._head(forward)
        if backward:
            self.embed.grad.index_add_(0, backward.tokens, backward.edge[0])
        self._slot += 1

    def _issue(
        self,
        step: Step,
        values: ChainMap,
        layers: Mapping[str, int],
        pair: int,
        micro_batches: Mapping[str, Optional[_MicroBatch]],
    ) -> None:
        operator, barrier = step
        reads = [values[name] for name in operator.reads]
        arguments = [data for data, _ in reads]
        gradient = operator.outputs[0]
        if operator.kind.endswith("_wgrad"):  # d.qkv.w is added to the parameter's
            arguments.append(self.layers[layers["B"]][gradient[2:].replace(".", "_")].grad)

        def call() -> Tuple[Tuple[Any, ...], Any]:
            result = getattr(self._kinds, operator.kind)(*arguments)
            return result if operator.stream == "communication" else (result, None)

        outputs, run = self._streams.issue(operator.stream, call, reads, barrier)
        values.update({name: (data, run) for name, data in zip(operator.outputs, outputs)})
        if self._trace is not None:
            entry = {
                "slot": self._slot, "pair": pair, "operator": operator.name, "strand": operator.strand,
                "micro_batch": micro_batches[operator.strand].number, "layer": layers[operator.strand],
                "stream": operator.stream,
            }
            self._trace.entries.append(entry)
            self._issued.append((entry, run))

    def _head(self, forward: _MicroBatch) -> None:
        """The loss of this rank's tokens, and its gradients, by autograd."""
        leaves = [x.detach().requires_grad_() for x in (forward.edge[0], self.lnf, self.head)]
        with torch.enable_grad():
            logits = F.rms_norm(leaves[0], self.lnf.shape, leaves[1], self.shape.norm_eps) @ leaves[2].t()
            loss = F.cross_entropy(logits.float(), forward.targets, reduction="sum") * self._share
        dx, lnf, head = torch.autograd.grad(loss, leaves)
        forward.edge = dx, self._streams.now()
        self.lnf.grad += lnf
        self.head.grad += head
        self._loss += loss

    def _reduce(self) -> None:
        """Sum over the ranks what each has of its part of the tokens: the loss, and gradients of whole parameters."""
        norms = [layer[name].grad for layer in self.layers for name in ("ln1_w", "ln2_w")]
        small = [*norms, self.lnf.grad]
        flat = torch.cat(small)
        for whole in (self._loss, self.embed.grad, self.head.grad, flat):
            dist.all_reduce(whole, group=self.group)
        torch._foreach_copy_(small, list(flat.split([g.numel() for g in small])))


assert all(hasattr(_Kinds, operator.kind) for operator in OPERATORS.values())
