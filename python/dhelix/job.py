"""A job: what to train, and on which ranks."""

import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from . import _dhelix
from ._settings import overrides_of, read_settings

Path = Union[str, "os.PathLike[str]"]
Names = Union[str, Sequence[str]]


def _joined(names: Optional[Names]) -> Optional[str]:
    return names if names is None or isinstance(names, str) else ",".join(names)


def _words(values: Optional[Sequence[int]], zero: str = "0") -> Optional[str]:
    """Values of a setting to search, by commas; ``zero`` is the word for 0."""
    return _joined([str(value) if value else zero for value in values]) if values else None


def _switches(values: Optional[Sequence[bool]]) -> Optional[str]:
    return _joined(["true" if value else "false" for value in values]) if values else None


def _path(path: Optional[Path]) -> Optional[str]:
    return None if path is None else os.fspath(path)


# Of jobs that are mappings: it holds no setting.
_NO_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mapping.yaml")


def _sections(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """``{"train.steps": 20}`` as ``{"train": {"steps": 20}}``."""
    sections: Dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        at = sections
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return sections


class Job(Mapping[str, Any]):
    """A job file with changes, or a job as a mapping, read and checked.

    Sections are keyword arguments, or dotted names in ``overrides``:

        Job("job.yaml", train={"steps": 20}, out="run")
        Job("job.yaml", {"train.steps": 20, "out": "run"})
        Job({"model": "gpt2", "data": {"train": "text.txt"}, "train": {"steps": 20}})

    Paths of a mapping are relative to the working directory.

    As a mapping it has every setting with its value, what the file leaves open included:
    ``job["train.steps"]``, ``job["train"]["steps"]``, ``dict(job)``. It does not change; :meth:`replace` makes another.
    """

    def __init__(
        self,
        path: Union[Path, Mapping[str, Any]],
        overrides: Optional[Mapping[str, Any]] = None,
        **settings: Any,
    ) -> None:
        """Read and check a job file or a mapping.

        Raises :class:`~dhelix.InvalidInput`, :class:`~dhelix.MalformedFile`, :class:`~dhelix.NotFound`
        and :class:`~dhelix.FileError`, with file, line and the nearest name that there is.
        """
        if isinstance(path, Mapping):
            self._load(_NO_FILE, overrides_of({"out": os.path.abspath("run")}) + overrides_of(path), overrides, settings)
        else:
            self._load(os.path.abspath(os.fspath(path)), [], overrides, settings)

    def replace(self, overrides: Optional[Mapping[str, Any]] = None, **settings: Any) -> "Job":
        """The same file with these changes behind those that this job has."""
        job = type(self).__new__(type(self))
        job._load(self._path, self._overrides, overrides, settings)
        return job

    def _load(
        self,
        path: str,
        before: List[str],
        overrides: Optional[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> None:
        self._path = path
        self._overrides = before + overrides_of(overrides or {}) + overrides_of(settings)
        self._job = _dhelix.load(self._path, self._overrides)
        self._settings = read_settings(_dhelix.print(self._job))

    def __getitem__(self, setting: str) -> Any:
        return self._settings[setting] if setting in self._settings else _sections(self._settings)[setting]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __repr__(self) -> str:
        return f"Job({', '.join([repr(self._path)][self._path == _NO_FILE:] + self._overrides)})"

    def yaml(self) -> str:
        """The job as a complete job file."""
        return _dhelix.print(self._job)

    def check(self, rank: int = 0) -> Dict[str, Any]:
        """Build and verify the programs, those of all ranks together, without running them.

        The result has ``parameters``, ``tokens_per_step``, ``planned_bytes`` of the rank's memory,
        ``programs`` with what each needs memory for, and ``derived``: what the job leaves open, what that
        came to, and why.
        """
        return json.loads(_dhelix.check(self._job, rank))

    def plan(
        self, policy: Optional[str] = None, *, cluster: Optional[Path] = None, explain: bool = False
    ) -> Dict[str, Any]:
        """One layer's forward beside another's backward, by every order policy, in a cluster's times or this machine's.

        ``policies`` has a row each: ``slot_us``, ``speed_up`` over one after the other, ``exposed_us`` of
        communication and the share ``hidden``; ``bound_us`` is the busiest stream's time. With ``explain``,
        ``operators`` has the order of the policy (the job's where none is given) with times and streams, and
        ``traffic`` in which slots of a simulated step gradients and parameters travel.
        """
        return json.loads(_dhelix.plan(self._job, _path(cluster), policy, explain))

    def order(self, policy: Optional[str] = None, *, cluster: Optional[Path] = None) -> Dict[str, Any]:
        """The order of one policy (the job's where none is given) for other programs to follow.

        ``operators`` in order, each with the ``modules`` it belongs to, the ``targets`` that graphs of PyTorch
        have for it, its ``occurrence`` and times; ``pairs`` that run side by side; ``exposed`` communication and
        why. What ``dhelix plan --export json`` prints; docs/reference/plan-export.md describes it.
        """
        return json.loads(_dhelix.order(self._job, _path(cluster), policy))

    def simulate(
        self,
        cluster: Optional[Path] = None,
        strategy: Optional[Names] = None,
        schedule: Optional[Names] = None,
        *,
        strategies: Optional[Names] = None,
        schedules: Optional[Names] = None,
        out: Optional[Path] = None,
        peak_tflops: float = 0,
    ) -> Dict[str, Any]:
        """One training step on a cluster, a name of :func:`dhelix.clusters` or a file; without, on this machine.

        ``strategies`` and ``schedules`` are a name, several, or ``"all"``; without, the job's. ``strategy`` and
        ``schedule`` are other names of the two. ``strategies`` of the
        result has one entry for each of them with each: ``schedule``, ``step_ms``, ``tokens_per_s``, ``hidden_share``,
        ``exposed_ms``, ``peak_bytes`` and more, or the ``reason`` why it cannot run this job. Of several, the first
        is the job as given, and ``speed_up`` is over it; ``same_as`` names an earlier one with the same programs.
        ``out`` is a folder for what a run would leave.
        """
        text = _dhelix.simulate(
            self._job,
            _path(cluster),
            _joined(strategies if strategies is not None else strategy),
            _joined(schedules if schedules is not None else schedule),
            _path(out),
            peak_tflops * 1e12,
        )
        return json.loads(text)

    def table(
        self,
        settings: Mapping[str, Sequence[Any]],
        cluster: Optional[Path] = None,
        *,
        out: Optional[Path] = None,
        peak_tflops: float = 0,
    ) -> Dict[str, Any]:
        """One training step with every value of one or two settings, on a cluster or on this machine.

        ``settings`` are names with the values to try: ``{"parallel.tp": [1, 2, 4], "strategy": ["dhelix"]}``.
        ``cells`` of the result has one entry for each of them with each, in their order: its ``values``, then
        ``step_ms``, ``tokens_per_s``, ``hidden_share``, ``peak_bytes``, ``fits`` and more, or the ``reason``
        why the job cannot have them. ``out`` is a folder for ``table.json`` and ``table.csv``.
        """
        lists = []
        for key, values in settings.items():
            texts = [text.partition("=")[2] for value in values for text in overrides_of({key: value})]
            lists.append(f"{key}={','.join(texts)}")
        text = _dhelix.table(
            self._path, self._overrides, lists, _path(cluster), _path(out), peak_tflops * 1e12
        )
        return json.loads(text)

    def tune(
        self,
        cluster: Optional[Path] = None,
        devices: int = 0,
        *,
        fixed: Optional[Mapping[str, Any]] = None,
        memory_bytes: float = 0,
        strategies: Optional[Names] = None,
        schedules: Optional[Names] = None,
        zero: Optional[Sequence[int]] = None,
        buckets: Optional[Sequence[int]] = None,
        sequence: Optional[Sequence[bool]] = None,
        fuse: Optional[Sequence[int]] = None,
        post_validation: Optional[Sequence[bool]] = None,
        top: int = 10,
        simulated: int = 8,
        within: float = 0,
    ) -> Dict[str, Any]:
        """Search the fastest mesh, micro-batch, recomputation, schedule and strategy on these devices.

        What the job file says of these is searched over; what the job's changes and ``fixed``
        (``{"parallel.tp": 8}``) say stays. ``zero`` and ``buckets`` are degrees of ``parallel.zero`` and sizes of
        ``parallel.bucket_mb`` (0: auto) to search as well, ``sequence`` and ``post_validation`` values of
        ``parallel.sequence`` and ``optimizer.post_validation``, ``fuse`` numbers of pieces of
        ``optimizer.fuse`` (0: off). ``devices`` and ``memory_bytes`` of one are the job's ranks and
        the cluster's where they are not given. ``ranked`` of the result has the best ``top``: ``settings``
        to give to :meth:`replace`, ``estimated_ms``, and ``simulated_ms`` of those that were simulated, the
        best ``simulated`` by estimate; ``by_value`` the best with each value, and why it loses. What takes over
        ``within`` times the step of the best with the first strategy, by products, attention and rings
        alone, is only counted (``behind``, ``least_ms``): 0 means 1.5 in searches of more than 20,000
        configurations and none in smaller ones, ``math.inf`` none.
        """
        if top < 1 or simulated < 0:
            raise ValueError(f"top={top}, simulated={simulated}: at least one row, and none or more simulated")
        text = _dhelix.tune(
            self._path,
            self._overrides + overrides_of(fixed or {}),
            _path(cluster),
            devices or self["ranks"],
            memory_bytes,
            _joined(strategies),
            _joined(schedules),
            _words(zero),
            _words(buckets),
            _switches(sequence),
            _words(fuse, "off"),
            _switches(post_validation),
            top,
            simulated,
            within,
        )
        return json.loads(text)

    def profile(
        self,
        out: Optional[Path] = None,
        *,
        samples: int = 0,
        seconds: float = 0,
        import_: Optional[Path] = None,
        from_trace: Union[Path, Sequence[Path]] = (),
        progress: bool = False,
    ) -> Dict[str, Any]:
        """Measure the operators of the job, alone and in pairs, for the order of later runs.

        ``out`` is the profile to write, for the setting ``profile``; without it the profile lies where runs of
        such a job find it. Every operator and pair runs ``samples`` times (0: 11), fewer where ``seconds`` (0: 60)
        are over. ``import_``, a CSV of overlap effectiveness, and ``from_trace``, traces of PyTorch's profiler or
        dhelix, are read instead of measuring. ``progress`` writes lines to standard error.

        The result has ``file``, ``seconds`` and ``content``: in its ``profile``, ``operators`` and ``pairs`` are rows.
        Of traces it also has ``unmatched``. Under ``mpirun`` only rank 0's process has one, the others an empty dict.
        """
        one = isinstance(from_trace, (str, os.PathLike))
        traces = [os.fspath(name) for name in ([from_trace] if one else from_trace)]
        text = _dhelix.profile(self._job, _path(out), samples, seconds, _path(import_), traces, progress)
        return json.loads(text or "{}")

    def train(
        self,
        on_step: Optional[Callable[[Dict[str, Any]], Any]] = None,
        *,
        progress: bool = False,
        fresh: bool = False,
    ) -> Dict[str, Any]:
        """Train from the first step to the last, or on from the run folder's newest checkpoint.

        ``on_step`` gets each step's line of ``metrics.jsonl`` as a dict, in the thread that trains rank 0.
        What it raises ends the training with a checkpoint and is raised here, as Ctrl-C is. ``progress``
        writes lines to standard error; ``fresh`` sets an existing run folder aside.

        The result has ``steps``, ``loss``, ``val_loss`` where there was a validation, ``tokens_per_s``,
        ``checkpoint``, ``out`` and more. Under ``mpirun`` only rank 0's process has one, the others an
        empty dict. Raises :class:`~dhelix.Diverged` and what job, data and disk give; the last checkpoint
        is intact in every case.
        """
        tell = None if on_step is None else lambda line: on_step(json.loads(line))
        return json.loads(_dhelix.train(self._job, progress, fresh, tell) or "{}")
