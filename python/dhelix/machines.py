"""What there is to choose from, and clusters fitted to measurements."""

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _dhelix

Path = Union[str, "os.PathLike[str]"]


def clusters() -> List[str]:
    """Names of the clusters that come with the library, for ``cluster=``."""
    return _dhelix.clusters()


def lists() -> Dict[str, List[Dict[str, Any]]]:
    """What there is to choose from: the tables of ``dhelix list``, by their names.

    ``models``, ``clusters``, ``strategies``, ``schedules``, ``devices``, ``systems``, ``settings`` and more.
    Each is a list of flat dicts with the same keys, as ``pandas.DataFrame`` takes them.
    """
    return json.loads(_dhelix.lists())


def calibrate(files: Sequence[Path], like: Path, out: Optional[Path] = None, *, devices: int = 0) -> Dict[str, Any]:
    """Fit a cluster to measurements: what nccl-tests printed, a CSV of GEMMs, PyTorch profiler traces.

    ``like`` is a cluster of the same hardware, from which everything comes that the measurements do not
    tell; ``out`` gets the cluster as a file for ``cluster=``; ``devices`` are those of a node, where they
    are not those of ``like``. ``constants`` of the result says of each whether it was ``fitted``, its
    ``base`` and its ``value``, ``groups`` how far predictions are from rows of a kind: ``error`` of those that were
    fitted, ``held_error`` of the third that the fit did not see, ``base_error`` before.

    Raises :class:`~dhelix.MalformedFile` with file and line.
    """
    names = [os.fspath(name) for name in files]
    return json.loads(_dhelix.calibrate(names, os.fspath(like), None if out is None else os.fspath(out), devices))
