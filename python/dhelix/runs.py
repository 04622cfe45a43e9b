"""What runs leave: metrics, and models that continue a text or are evaluated."""

import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from . import _dhelix
from ._settings import overrides_of

Path = Union[str, "os.PathLike[str]"]


def _path(path: Optional[Path]) -> Optional[str]:
    return None if path is None else os.fspath(path)


def _paths(paths: Union[Path, Sequence[Path]]) -> List[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def metrics(run: Path) -> List[Dict[str, Any]]:
    """The lines of a run folder's ``metrics.jsonl``, also of a run that goes on.

    A step's line has ``step``, ``loss``, ``lr``, ``grad_norm``, ``step_ms``, ``tokens_per_s`` and more;
    a validation's has ``step`` and ``val_loss``.
    """
    with open(os.path.join(os.fspath(run), "metrics.jsonl"), encoding="utf-8") as file:
        # A line without its end is being written.
        return [json.loads(line) for line in file if line.endswith("\n")]


def sample(
    path: Path,
    prompt: str = "",
    tokens: int = 256,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 0.9,
    seed: int = 1337,
) -> str:
    """Continue a text with a trained model; the prompt is part of the result.

    ``path`` is a run folder (its newest checkpoint), a checkpoint, or a model of Hugging Face. The same
    seed gives the same text; ``temperature=0`` always takes the likeliest token.
    """
    return _dhelix.sample(os.fspath(path), prompt, tokens, temperature, top_k, top_p, seed)


def evaluate(
    path: Path,
    data: Union[Path, Sequence[Path]],
    *,
    tokenizer: Optional[Path] = None,
    text_field: Optional[str] = None,
    special_tokens: bool = False,
    chat_template: Optional[str] = None,
    seq: int = 0,
    batches: int = 0,
    micro_batch: int = 1,
    base: Optional[Path] = None,
    dtype: str = "f32",
    threads: int = 0,
) -> Dict[str, Any]:
    """The loss of a trained model on ``data``: one or more texts, files of JSON lines or token files.

    ``path`` is what :func:`sample` takes. The data are cut into sequences of ``seq`` tokens in file order (0:
    the model's longest, at most 1024), of which ``micro_batch`` are computed together; ``batches`` of these
    are evaluated (0: all). ``tokenizer`` is needed where there is none beside the weights. ``base`` are the
    weights that adapters belong to (None: those that they name). With ``chat_template``, a name or ``auto``,
    JSON lines are conversations, and the loss is that of their answers.

    The result has ``loss``, ``perplexity`` (None where it is too large for a number), ``sequences``, ``tokens``,
    and of texts ``bytes`` and ``bits_per_byte``.
    """
    words = (_path(tokenizer), text_field, special_tokens, chat_template)
    sizes = (seq, batches, micro_batch)
    return json.loads(_dhelix.evaluate(os.fspath(path), _paths(data), *words, *sizes, _path(base), dtype, threads))


def convert(
    path: Path, out: Path, *, dtype: str = "f32", base: Optional[Path] = None, replace: bool = False
) -> Dict[str, Any]:
    """Write the weights of a run, or others, as a Hugging Face folder ``out``, with tokenizer where there is one.

    ``path`` is what :func:`sample` takes; adapters are merged into the weights they belong to, ``base`` where
    they do not name them. ``dtype`` of the written weights is ``f32`` or ``bf16``. ``replace`` replaces a model
    folder; its other files stay. ``out`` appears complete or not at all.

    The result has ``out``, ``tensors``, ``parameters``, ``tokenizer_files`` and ``tokenizer_for_transformers``.
    """
    return json.loads(_dhelix.convert(os.fspath(path), os.fspath(out), dtype, _path(base), replace))


def tokenize(
    inputs: Union[Path, Sequence[Path]] = (),
    tokenizer: Optional[Path] = None,
    *,
    text: Optional[str] = None,
    output: Optional[Path] = None,
    ids: bool = False,
    text_field: Optional[str] = None,
    special_tokens: bool = False,
    chat_template: Optional[str] = None,
    train_bpe: int = 0,
) -> Dict[str, Any]:
    """Turn ``text``, or the files ``inputs``, into tokens: counted, as ``ids``, or in the token file ``output``.

    ``tokenizer`` is ``bytes``, ``chars`` (of these texts) or a path. With ``special_tokens`` texts of special
    tokens become those tokens. With ``chat_template``, a name or ``auto``, JSON lines are conversations.
    ``train_bpe`` learns a byte-level BPE tokenizer of so many tokens from files instead, in the folder ``output``.

    The result has ``tokens``, ``vocab``, ``seconds``, ``tokens_per_s``, ``output`` and with ``ids=True`` the list
    ``ids``; of conversations also ``learnt`` and ``last``, a value for each id. Of a learned tokenizer it has
    ``vocab``, ``merges``, ``words``, ``seconds`` and ``output``.
    """
    how = (_path(output), text_field, special_tokens, chat_template, ids, train_bpe)
    return json.loads(_dhelix.tokenize(_paths(inputs), _path(tokenizer), text, *how))


def detokenize(ids: Iterable[int], tokenizer: Path, *, skip_special: bool = False) -> str:
    """The text of token ids: the other direction of :func:`tokenize`.

    ``tokenizer`` is ``bytes`` or a path. Bytes that are no UTF-8, as where ids end inside a character, become
    U+FFFD. With ``skip_special`` special tokens leave no text.
    """
    return _dhelix.detokenize([int(i) for i in ids], _path(tokenizer), skip_special)


def _folder(run: Path) -> str:
    """A run folder's name without the slashes at its end."""
    name = os.fspath(run)
    return name.rstrip("/") or name[:1]


def report(
    runs: Union[Path, Sequence[Path]],
    out: Optional[Path] = None,
    *,
    baseline: Optional[Path] = None,
    ranks: int = 0,
    traces: Optional[Path] = None,
) -> Dict[str, Any]:
    """Draw a run folder, or several side by side, as one HTML file that needs neither network nor server.

    ``out`` is ``report.html`` in the run folder, or in the working directory for several, unless given.
    ``baseline`` is the one of ``runs`` with which the others are compared (None: the first whose strategy is
    sequential, else the first). Traces of at most ``ranks`` ranks of a run are drawn (0: 64). ``traces`` is a file for
    the traces of one run's ranks instead of a page, for Perfetto.

    The result has ``out``, the written file, and the number of ``runs``.
    """
    names = [_folder(run) for run in _paths(runs)]
    if traces is not None and (len(names) != 1 or out is not None or baseline is not None or ranks):
        raise ValueError("traces joins the traces of one run: leave out, baseline, ranks and other runs away")
    if traces is not None:
        written = os.fspath(traces)
    elif out is not None:
        written = os.fspath(out)
    else:
        written = os.path.join(names[0] if len(names) == 1 else ".", "report.html")
    _dhelix.report(names, written, None if baseline is None else _folder(baseline), ranks, traces is not None)
    return {"out": written, "runs": len(names)}


def figures(
    sources: Union[Path, Sequence[Path]],
    out: Path = "figures",
    *,
    only: Union[str, Sequence[str], None] = None,
    cluster: Optional[Path] = None,
    overrides: Optional[Mapping[str, Any]] = None,
    ranks: int = 0,
) -> Dict[str, Any]:
    """Draw figures for papers as SVG files, with their numbers as CSV files, in the folder ``out``.

    A source is a run folder, one of its files, a JSON document that ``simulate``, ``table`` or ``tune`` gave, a job
    file, or the name of a published job or table. A job is simulated on ``cluster`` with ``overrides``
    (``{"strategy": "dhelix"}``). A published table may be predicted for another ``cluster``. ``only`` are names of
    figures (none: all). Where there is one, ``out`` may be a file ``NAME.svg``. Traces of at most ``ranks`` ranks are drawn (0: 64, and of a job the first of each pipeline stage).

    The result has ``out``, ``figures``, the names that were drawn, and ``missing``: why others are not. Where none is
    drawn, or one of ``only`` from no source, it is ``NotFound``.
    """
    names = only if only is None or isinstance(only, str) else ",".join(only) or None
    how = (names, _path(cluster), overrides_of(overrides or {}), ranks)
    return json.loads(_dhelix.figures([_folder(source) for source in _paths(sources)], os.fspath(out), *how))
