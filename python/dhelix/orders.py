"""Orders of a layer's operators, as `dhelix plan` exports them: read, and checked against the layer.

An order pairs the forward of one micro-batch through a layer with the backward of another. `dhelix plan
--write FILE` writes it as lines, ``--export json`` and :meth:`dhelix.Job.order` as a document
(docs/reference/plan-export.md). This module needs no PyTorch; :mod:`dhelix.torch` executes what it read.
"""

import difflib
import json
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple, Union

from .errors import FileError, MalformedFile

# A dense layer of the llama family on tensor-parallel ranks that split the tokens between the linears
# (parallel.sequence), without recomputation. The lines are those of `dhelix check JOB --print graph`;
# only the two results named stats have numbers here. F: forward, B: input gradients, W: weight gradients.
LAYER = """
F n1, stats1 = norm(x, ln1.w)
F n1.all = all_gather(n1)
F qkv = linear(n1.all, qkv.w)
F qkv.rot = rope(qkv)
F o, lse = attention(qkv.rot)
F proj.part = linear(o, proj.w)
F proj = reduce_scatter(proj.part)
F x2 = residual(x, proj)
F n2, stats2 = norm(x2, ln2.w)
F n2.all = all_gather(n2)
F h = linear(n2.all, fc1.w)
F g = activation(h)
F f.part = linear(g, fc2.w)
F f = reduce_scatter(f.part)
F x3 = residual(x2, f)
B df.part = all_gather(dx3)
B dg = linear_dgrad(df.part, fc2.w)
W d.fc2.w = linear_wgrad(df.part, g)
B dh = activation_grad(dg, h)
B dn2.all = linear_dgrad(dh, fc1.w)
W n2.all = all_gather(n2)
W d.fc1.w = linear_wgrad(dh, n2.all)
B dn2 = reduce_scatter(dn2.all)
B dx2 = norm_dgrad(dn2, x2, ln2.w, stats2, dx3)
W d.ln2.w = norm_wgrad(dn2, x2, stats2)
B dproj.part = all_gather(dx2)
B do = linear_dgrad(dproj.part, proj.w)
W d.proj.w = linear_wgrad(dproj.part, o)
B dqkv.rot = attention_grad(do, qkv.rot, o, lse)
B dqkv = rope_grad(dqkv.rot)
B dn1.all = linear_dgrad(dqkv, qkv.w)
W n1.all = all_gather(n1)
W d.qkv.w = linear_wgrad(dqkv, n1.all)
B dn1 = reduce_scatter(dn1.all)
B dx = norm_dgrad(dn1, x, ln1.w, stats1, dx2)
W d.ln1.w = norm_wgrad(dn1, x, stats1)
"""
_MAX_CHARACTERS = 1 << 24
_JOBS = "what runs here: dense llama layers, parallel.tp of 2 or more, parallel.sequence=true, train.recompute=none"


class Operator(NamedTuple):
    """An operator of the layer."""

    strand: str
    """``F`` or ``B``: the micro-batch that goes forward, or the one that goes back."""
    kind: str
    """A row of ``dhelix list ops``, such as ``linear_dgrad``."""
    outputs: Tuple[str, ...]
    reads: Tuple[str, ...]

    @property
    def name(self) -> str:
        """As a line of an order has it: ``B linear_dgrad dg``."""
        return f"{self.strand} {self.kind} {self.outputs[0]}"

    @property
    def stream(self) -> str:
        return "communication" if self.kind in ("all_gather", "reduce_scatter") else "compute"


class Step(NamedTuple):
    """A place in an order."""

    operator: Operator
    barrier: bool
    """Whether the operator waits for all before it, and not only for what it reads."""


def _layer() -> Dict[str, Operator]:
    operators = {}
    for line in LAYER.strip().split("\n"):
        phase, outputs, kind, reads = re.fullmatch(r"(\w) (.*) = (\w+)\((.*)\)", line).groups()
        operator = Operator("F" if phase == "F" else "B", kind, tuple(outputs.split(", ")), tuple(reads.split(", ")))
        operators[operator.name] = operator
    return operators


OPERATORS = _layer()
_MAKER = {(op.strand, output): op for op in OPERATORS.values() for output in op.outputs}
SAVED = frozenset(
    name for op in OPERATORS.values() if op.strand == "B" for name in op.reads if ("B", name) not in _MAKER
) - {"dx3"}
"""What the backward reads of its own micro-batch's forward: activations, and parameters (``*.w``)."""


class _Line(NamedTuple):
    where: str
    name: str
    barrier: bool


def _fail(where: str, message: str) -> "MalformedFile":
    return MalformedFile("DH_EFORMAT", f"{where}: {message}")


def _lines_of_text(text: str, path: str) -> Iterable[_Line]:
    barrier = False
    for number, line in enumerate(text.split("\n"), 1):
        words = re.sub(r"#(?!\d).*", "", line).split()
        where = f"{path}:{number}"
        if not words or (words[0] == "layers" and len(words) == 3):
            continue
        if words == ["barrier"]:
            barrier = True
        elif words[0] in ("F", "B") and 3 <= len(words) <= 4:
            yield _Line(where, " ".join(words), barrier)
            barrier = False
        else:
            raise _fail(where, f'"{line.strip()}": a line is F or B, an operator and its output; or "barrier"')


def _lines_of_document(document: Any, path: str) -> Iterable[_Line]:
    if not isinstance(document, Mapping) or document.get("format") != "dhelix.order" or document.get("version") != 1:
        raise _fail(path, 'not an order of `dhelix plan --export json`: "format" has to be "dhelix.order", "version" 1')
    operators = document.get("operators")
    if not isinstance(operators, list):
        raise _fail(path, '"operators" has to be a list')
    for number, operator in enumerate(operators):
        where = f"{path}: operators[{number}]"
        try:
            strand = {"forward": "F", "backward": "B"}[operator["strand"]]
            yield _Line(where, f"{strand} {operator['operator']} {operator['output']}", bool(operator["barrier"]))
        except (TypeError, KeyError) as error:
            raise _fail(where, f"wrong or missing key: {error}") from None


class Order:
    """In which order the operators of a layer's forward and of another layer's backward are issued.

    ``steps`` has every operator of both once, each after all that it reads: anything else is refused with
    file and line (:class:`~dhelix.MalformedFile`).
    """

    steps: Tuple[Step, ...]

    def __init__(self, lines: Iterable[_Line], path: str) -> None:
        found: Dict[str, Tuple[int, str]] = {}
        steps: List[Step] = []
        for where, name, barrier in lines:
            if name not in OPERATORS:
                raise _fail(where, self._unknown(name))
            if name in found:
                raise _fail(where, f'"{name}" stands at {found[name][1]} already')
            found[name] = len(steps), where
            steps.append(Step(OPERATORS[name], barrier))
        missing = [name for name in OPERATORS if name not in found]
        if missing:
            raise _fail(path, f'"{missing[0]}" is missing ({len(missing)} of {len(OPERATORS)} operators are); {_JOBS}')
        for place, step in enumerate(steps):
            for read in step.operator.reads:
                maker = _MAKER.get((step.operator.strand, read))
                if maker and found[maker.name][0] > place:
                    where = found[step.operator.name][1]
                    later = found[maker.name][1]
                    raise _fail(where, f'"{step.operator.name}" needs "{maker.name}", which comes later, at {later}')
        self.steps = tuple(steps)

    @staticmethod
    def _unknown(name: str) -> str:
        near = difflib.get_close_matches(name, OPERATORS, 1)
        return f'the layer has no "{name}"' + (f'; did you mean "{near[0]}"?' if near else "") + f" ({_JOBS})"

    @classmethod
    def read(cls, path: Union[str, "os.PathLike[str]"]) -> "Order":
        """The order in a file of ``dhelix plan --write`` or ``--export json``."""
        path = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MAX_CHARACTERS + 1)
        except OSError as error:
            raise FileError("DH_EIO", f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise _fail(path, "not a text in UTF-8") from None
        if len(text) > _MAX_CHARACTERS:
            raise _fail(path, "more than 16 MiB: not an order")
        if not text.lstrip().startswith("{"):
            return cls(_lines_of_text(text, path), path)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _fail(path, f"not JSON: {error}") from None
        return cls.of(document, path)

    @classmethod
    def of(cls, document: Mapping[str, Any], path: str = "order") -> "Order":
        """The order of a document: the result of :meth:`dhelix.Job.order`."""
        return cls(_lines_of_document(document, path), path)

    @classmethod
    def sequential(cls) -> "Order":
        """The forward, then the backward; each operator waits for the one before it, so nothing is hidden."""
        return cls((_Line("sequential", name, True) for name in OPERATORS), "sequential")

    def strand(self, strand: str) -> Tuple[Step, ...]:
        """The steps of one strand: how a layer without a partner is issued."""
        return tuple(step for step in self.steps if step.operator.strand == strand)
