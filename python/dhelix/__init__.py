"""dhelix trains language models on many ranks, hides communication, and says beforehand what it takes.

    job = dhelix.Job("job.yaml", train={"steps": 20}, out="run")
    job.simulate(cluster="a100", strategy="dhelix")
    job.train(on_step=lambda m: print(m["step"], m["loss"]))

Results are dicts with the keys of the command line's ``--json``. What the library refuses or fails at
is an :class:`Error`. Other threads of Python run while the library works. Ctrl-C ends training after
its step with a checkpoint, a search at once, and is then raised as ``KeyboardInterrupt``. The end of
the interpreter does the same to what daemon threads still run, and waits for it.
"""

import atexit as _atexit

from ._dhelix import end_calls as _end_calls
from ._dhelix import version as _version
from .errors import (
    CommunicationFailed,
    Diverged,
    Error,
    FileError,
    InternalError,
    Interrupted,
    InvalidInput,
    MalformedFile,
    NotFound,
    OutOfMemory,
    Unsupported,
    VerificationFailed,
)
from .job import Job
from .machines import calibrate, clusters, lists
from .runs import convert, detokenize, evaluate, figures, metrics, report, sample, tokenize

__version__: str = _version()

_atexit.register(_end_calls)  # daemon threads that train end with a checkpoint

__all__ = [
    "CommunicationFailed",
    "Diverged",
    "Error",
    "FileError",
    "InternalError",
    "Interrupted",
    "InvalidInput",
    "Job",
    "MalformedFile",
    "NotFound",
    "OutOfMemory",
    "Unsupported",
    "VerificationFailed",
    "calibrate",
    "clusters",
    "evaluate",
    "convert",
    "detokenize",
    "figures",
    "lists",
    "metrics",
    "report",
    "sample",
    "tokenize",
]
