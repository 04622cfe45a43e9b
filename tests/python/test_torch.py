"""Orders executed by PyTorch on two gloo ranks: test_torch.py, with DHELIX the program and PyTorch installed."""

import contextlib
import dataclasses
import datetime
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import unittest
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import dhelix.torch
from dhelix.orders import OPERATORS
from dhelix.torch import Llama, Order, Shape, Trace, shards

TP = 2
SHAPE = Shape(width=32, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=6, ffn_width=48, vocab=40)
BATCH, SEQ, MICRO_BATCHES = 2, 8, 3
JOB = """
model: {family: llama, n_layers: 3, width: 32, n_heads: 4, n_kv_heads: 2, head_dim: 6, ffn_width: 48, vocab: 40, max_seq: 8}
train: {batch: 6, micro_batch: 2, seq_len: 8}
parallel: {dp: 1, tp: 2}
strategy: dhelix
"""


class Whole(torch.nn.Module):
    """The whole model with Hugging Face's names, as one writes it, differentiated by autograd."""

    def __init__(self, shape):
        super().__init__()
        d, q, kv = shape.width, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        sizes = {"model.embed_tokens": (shape.vocab, d), "model.norm": (d,), "lm_head": (shape.vocab, d)}
        for i in range(shape.n_layers):
            at = f"model.layers.{i}."
            sizes.update({at + "input_layernorm": (d,), at + "post_attention_layernorm": (d,)})
            sizes.update({f"{at}self_attn.{x}_proj": size for x, size in zip("qkvo", ((q, d), (kv, d), (kv, d), (d, q)))})
            sizes.update({f"{at}mlp.{x}_proj": (shape.ffn_width, d) for x in ("gate", "up")})
            sizes[at + "mlp.down_proj"] = (d, shape.ffn_width)
        self.shape = shape
        self.w = {f"{name}.weight": torch.randn(size) * 0.2 + (len(size) == 1) for name, size in sizes.items()}
        for w in self.w.values():
            w.requires_grad_()

    def loss(self, tokens, targets):
        s, w = self.shape, self.w
        batch, seq = tokens.shape
        x = w["model.embed_tokens.weight"][tokens]
        angle = torch.arange(seq)[:, None] * s.rope_theta ** (-torch.arange(0, s.head_dim, 2) / s.head_dim)
        cos, sin = (torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))

        def heads(x, n):
            return x.view(batch, seq, n, s.head_dim).transpose(1, 2)

        def rotated(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        for i in range(s.n_layers):
            p = {name.split(f"layers.{i}.")[1][:-7]: v for name, v in w.items() if f"layers.{i}." in name}
            n = F.rms_norm(x, (s.width,), p["input_layernorm"], s.norm_eps)
            q, k, v = (n @ p[f"self_attn.{x}_proj"].t() for x in "qkv")
            q, k, v = rotated(heads(q, s.n_heads)), rotated(heads(k, s.n_kv_heads)), heads(v, s.n_kv_heads)
            k, v = (t.repeat_interleave(s.n_heads // s.n_kv_heads, 1) for t in (k, v))
            score = (q @ k.transpose(2, 3) / s.head_dim**0.5).masked_fill(torch.ones(seq, seq).triu(1).bool(), -1e30)
            o = (score.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, -1)
            x = x + o @ p["self_attn.o_proj"].t()
            n = F.rms_norm(x, (s.width,), p["post_attention_layernorm"], s.norm_eps)
            x = x + (F.silu(n @ p["mlp.gate_proj"].t()) * (n @ p["mlp.up_proj"].t())) @ p["mlp.down_proj"].t()
        logits = F.rms_norm(x, (s.width,), w["model.norm.weight"], s.norm_eps) @ w["lm_head.weight"].t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches():
    torch.manual_seed(2)
    return [(tokens, targets) for tokens, targets in torch.randint(SHAPE.vocab, (MICRO_BATCHES, 2, BATCH, SEQ))]


def stepped(whole, order, trace=None, steps=1):
    """Loss and added gradients of steps by an order, or of sequential ones, on this rank."""
    model = Llama(SHAPE)
    model.load(whole.w)
    for _ in range(steps):
        loss = model.step(batches(), order, trace)
    return {"loss": loss, **{name: p.grad for name, p in model.named_parameters()}}


def on_ranks(work):
    """Run a function on TP ranks, processes of gloo; the first failure is raised."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def rank(number, folder):
        said = None
        try:
            torch.set_num_threads(1)
            store, long = f"file://{folder}/store", datetime.timedelta(minutes=2)  # for ranks that wait for each other
            dist.init_process_group("gloo", init_method=store, rank=number, world_size=TP, timeout=long)
            work()
            dist.barrier()
        except BaseException:  # pylint: disable=broad-except
            said = f"rank {number}: {traceback.format_exc()}"
        results.put(said)
        sys.stdout.flush()
        os._exit(0)  # a rank that failed does not wait for the others to end their group

    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank, args=(number, folder), daemon=True) for number in range(TP)]
        for process in processes:
            process.start()
        try:
            for _ in processes:
                said = results.get()
                if said:
                    raise AssertionError(said)
        finally:
            for process in processes:
                process.kill()
                process.join()


def equal(have, want):
    for name, value in want.items():
        if not torch.equal(have[name], value):
            raise AssertionError(f"{name}: other bits: {(have[name] - value).abs().max()}")


class Exported(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(1)
        cls.whole = Whole(SHAPE)
        cls.folder = tempfile.TemporaryDirectory()
        cls.job = os.path.join(cls.folder.name, "job.yaml")
        with open(cls.job, "w", encoding="utf-8") as file:
            file.write(JOB)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def exported(self, *settings):
        """The same order as lines, read, and as a document."""
        path = os.path.join(self.folder.name, "my.order")
        plan = (os.environ["DHELIX"], "plan", self.job, "--cluster", "a40", *settings)
        plan += ("--write", path, "--export", "json")
        text = subprocess.run(plan, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
        order, document = Order.read(path), json.loads(text)
        self.assertEqual(order.steps, Order.of(document).steps)
        return order, document

    def test_equal(self):
        """Orders give the bits of the sequential run, and to rounding the gradients of autograd."""
        policies = ("auto", "round-robin", "stp")
        orders = [self.exported("--policy", policy)[0] for policy in policies]
        orders.append(self.exported("--set", "strategy=dhelix-paper")[0])
        self.assertTrue(any(step.barrier for step in orders[-1].steps))
        self.assertEqual(len({order.steps for order in orders}), len(orders))

        def work():
            want = stepped(self.whole, None)
            for order in orders:
                equal(stepped(self.whole, order), want)
            loss = sum(self.whole.loss(*pair) for pair in batches()) / MICRO_BATCHES
            loss.backward()
            full = {name: w.grad for name, w in self.whole.w.items()}
            for name, whole in [("loss", loss), *shards(full, SHAPE, dist.get_rank(), TP).items()]:
                # float32 sums of some 100 terms in another order; 1.2e-6 was seen
                far = (want[name] - whole).abs().max() / whole.abs().max()
                assert far < 1e-5, f"{name}: {far} of the largest value"

        on_ranks(work)

    def test_other_orders(self):
        """Ranks with different orders end with an error, and do not wait for each other."""
        orders = [self.exported("--policy", policy)[0] for policy in ("auto", "round-robin")]

        def work():
            try:
                stepped(self.whole, orders[dist.get_rank()])
            except ValueError as error:
                assert "the ranks have different orders" in str(error)
            else:
                raise AssertionError("not refused")

        on_ranks(work)

    def test_trace(self):
        """What ran is the plan's order: on the plan's streams, after all that the plan has it wait for."""
        order, document = self.exported("--policy", "exact")
        planned = document["operators"]
        names = [f"{p['strand'][0].upper()} {p['operator']} {p['output']}" for p in planned]
        streams = ["compute" if p["stream"] == "compute" else "communication" for p in planned]

        def work():
            trace = Trace()
            stepped(self.whole, order, trace)
            n_slots = 0
            for slot in range(MICRO_BATCHES + 1):
                for pair in range(SHAPE.n_layers):
                    ran = [e for e in trace.entries if (e["slot"], e["pair"]) == (slot, pair)]
                    strands = {"F"} if slot == 0 else {"B"} if slot == MICRO_BATCHES else {"F", "B"}
                    have = [(e["operator"], e["stream"]) for e in ran]
                    assert have == [at for at in zip(names, streams) if at[0][0] in strands], f"slot {slot}: {have}"
                    for e in ran:
                        back = e["strand"] == "B"
                        assert e["micro_batch"] == slot - back
                        assert e["layer"] == (SHAPE.n_layers - 1 - pair if back else pair)
                        assert e["start_us"] <= e["end_us"]
                    if len(strands) == 2:
                        n_slots += 1
                        for e, p in zip(ran, planned):
                            assert all(ran[before]["end_us"] <= e["start_us"] for before in p["after"]), e
            assert n_slots == (MICRO_BATCHES - 1) * SHAPE.n_layers
            assert len(trace.pair_us(True)) == MICRO_BATCHES - 1 and len(trace.pair_us(False)) == 2

        on_ranks(work)

    def test_background(self):
        """On CPUs the first reader of a collective waits for it, and no operator before that."""
        order = self.exported("--policy", "auto")[0]

        def work():
            trace, waits = Trace(), {}

            class Work:
                """Of the operator that the trace has next; waited for by the one it then has next."""

                def __init__(self, work):
                    self.work, self.index = work, len(trace.entries)

                def wait(self):
                    waits[self.index] = len(trace.entries)
                    self.work.wait()

            def watched(collective):
                def call(*args, **named):
                    return Work(collective(*args, **named))

                return mock.patch.object(dist, collective.__name__, call)

            with watched(dist.all_gather_into_tensor), watched(dist.reduce_scatter_tensor):
                stepped(self.whole, order, trace)
            ran = [(e["slot"], e["pair"], OPERATORS[e["operator"]]) for e in trace.entries]
            want = {}
            for index, (slot, pair, op) in enumerate(ran):
                if op.stream == "communication":
                    place = (slot, pair, op.strand)
                    want[index] = next(
                        later
                        for later, (s, p, reader) in enumerate(ran)
                        if later > index and (s, p, reader.strand) == place and op.outputs[0] in reader.reads
                    )
            assert waits == want, f"{waits}, and not {want}"
            during = [ran[i][2].strand for first, last in want.items() for i in range(first + 1, last)]
            assert {"F", "B"} == set(during), "nothing is issued between a collective and its first reader"

        on_ranks(work)

    def test_gpu_waits(self):
        """On GPUs every operator comes after all that it reads: streams and events that remember what came before."""
        orders = self.exported("--policy", "auto")[0], self.exported("--set", "strategy=dhelix-paper")[0]

        def work():
            want = stepped(self.whole, None, steps=2)
            for order in orders:
                streams = []

                def watched():
                    streams.append(Watched())
                    return streams[-1]

                def keep(tensor, stream):
                    stream.kept.add(tensor.data_ptr())

                main = Stream()
                cuda = {"Stream": Stream, "Event": Event, "stream": current, "current_stream": lambda main=main: main}
                with contextlib.ExitStack() as patches:
                    patches.enter_context(mock.patch.multiple(torch.cuda, **cuda))
                    patches.enter_context(mock.patch.object(Tensor, "record_stream", keep))
                    patches.enter_context(mock.patch.object(dhelix.torch, "_HostStreams", watched))
                    equal(stepped(self.whole, order, steps=2), want)
                per_pair, ends = len(OPERATORS), 2 * SHAPE.n_layers
                a_step = (MICRO_BATCHES - 1) * SHAPE.n_layers * per_pair + ends * per_pair // 2
                assert len(streams) == 1 and streams[0].n_issued == 2 * a_step
                assert streams[0].n_crossed > 0

        on_ranks(work)


class Stream:
    """A stream that knows which operators come before what is put on it next."""

    now = None

    def __init__(self, priority=0):
        self.before, self.kept = set(), set()

    def wait_event(self, event):
        self.before |= event.before


class Event:
    def __init__(self, enable_timing):
        self.before = None

    def record(self, stream):
        self.before = set(stream.before)


@contextlib.contextmanager
def current(stream):
    outer, Stream.now = Stream.now, stream
    yield
    Stream.now = outer


class Watched(dhelix.torch._CudaStreams):
    """The streams of a GPU, with a check of each operator at the moment it is issued."""

    n_issued = n_crossed = 0

    def issue(self, stream, call, reads, barrier):
        self.n_issued += 1
        number = self.n_issued

        def checked():
            own = Stream.now
            assert own is self._streams[stream]
            for data, run in reads:
                if run.done is None:  # a parameter
                    assert stream == "compute"
                    continue
                assert run.done.before <= own.before, f"operator {number} does not wait for one that it reads"
                if run.stream != stream:
                    self.n_crossed += 1
                    assert data.data_ptr() in own.kept, "memory may be used again while it is read"
            if barrier:
                assert set(range(1, number)) <= own.before, f"operator {number} does not wait for all before it"
            result = call()
            own.before.add(number)
            return result

        return super().issue(stream, checked, reads, barrier)


class Refused(unittest.TestCase):
    def test_sizes(self):
        def refused(message, shape, tokens=(2, 8)):
            try:
                x = torch.zeros(tokens, dtype=torch.long)
                Llama(shape).step([(x, x)])
            except ValueError as error:
                assert message in str(error), error
            else:
                raise AssertionError(f"not refused: {message}")

        def work():
            refused("n_kv_heads=1 does not divide", dataclasses.replace(SHAPE, n_kv_heads=1))
            refused("ffn_width=47 does not divide", dataclasses.replace(SHAPE, ffn_width=47))
            refused("head_dim=5 is odd", dataclasses.replace(SHAPE, head_dim=5))
            refused("1 sequences of 7 tokens do not divide", SHAPE, (1, 7))

        on_ranks(work)

    def test_family(self):
        with self.assertRaisesRegex(ValueError, "model.family is gpt2"):
            Shape.of({"model.family": "gpt2"})


if __name__ == "__main__":
    unittest.main()
