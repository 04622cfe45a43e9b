"""What runs leave: metrics, and models that continue a text."""

import json
import os
from typing import Any, Dict, List, Union

from . import _dhelix

Path = Union[str, "os.PathLike[str]"]


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
