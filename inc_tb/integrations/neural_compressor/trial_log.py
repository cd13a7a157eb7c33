"""Where the trials of a tuning go, and that the tuning never suffers from it."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inc_tb.advise.diagnose import compare
from inc_tb.advise.effects import with_kept
from inc_tb.frameworks.ops import Batch
from inc_tb.integrations.neural_compressor.models import name_of, unwrapped
from inc_tb.integrations.training import reason_of, undisturbed
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.trials import gap_notes
from inc_tb.store.workspace import put_tables_above
from inc_tb.store.writer import SummaryWriter

SAMPLES = 32
_RENAMED = re.compile(r"(/MatMulAddFusion)?(_MatMul|_Add)?$")
_DEPENDENCIES = ("neural-compressor", "onnx-neural-compressor", "onnx", "onnxruntime", "numpy", "setuptools")
WANTED_BY_2 = "Version 2.6 wants numpy<2, onnx<1.19 and setuptools<82."


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Into Python's log where warnings are errors, which would end the tuning."""
    try:
        warnings.warn(message, category, stacklevel=3)
    except Warning:
        logging.getLogger(__name__).warning(message)


@contextmanager
def spared(logs: Iterable[TrialLog], what: str) -> Iterator[None]:
    """Nothing that fails inside reaches the tuning but what the user does (Ctrl-C); random numbers stay as well."""
    try:
        with undisturbed():
            yield
    except Exception as error:  # noqa: BLE001  hours of tuning are worth more than their log
        for log in logs:
            log.report(what, error)


class TrialLog:
    """The trials of all tunings in one `with log(…)`; `runs` are their folders, in the order in which they ended."""

    def __init__(self, logdir: Path, *, data: Any, samples: int, diagnose: bool) -> None:
        self.logdir = logdir
        self.data, self.samples, self.diagnose = data, samples, diagnose
        self.runs: list[Path] = []
        self.began: float | None = None
        """When Neural Compressor started last."""
        self.ended = 0
        """How many trials have, logged or not."""
        self._lock = threading.Lock()
        self._folders: set[Path] = set()
        self._tunings: dict[int, tuple[Any, Tuning]] = {}
        """The last one of each thread, so that no more models than that are kept."""
        self._reported: set[str] = set()

    def begin(self) -> None:
        """Neural Compressor has started; it may end without a trial."""
        self.began = time.monotonic()

    def failed(self, error: Exception, trial: int) -> None:
        """Neural Compressor 2.x did, and not the log; 0 is before the first trial. `fit` raises nothing."""
        when = f"in trial {trial}" if trial else "before its first trial"
        message = f"{self.logdir}: Neural Compressor ended {when}: {reason_of(error).rstrip('.')}."
        if isinstance(error, ImportError | AttributeError):
            message += f" Installed: {', '.join(_installed())}. {WANTED_BY_2}"
        if message not in self._reported:  # its strategies call each other, and each of them raises it
            self._reported.add(message)
            warn(message)

    def tuning(self, key: Any, make: Callable[[], Tuning]) -> Tuning:
        """The one that an object of Neural Compressor belongs to."""
        thread = threading.get_ident()
        if thread not in self._tunings or self._tunings[thread][0] is not key:
            self._tunings[thread] = key, make()
        return self._tunings[thread][1]

    def drop(self) -> None:
        """The tuning of this thread: another one begins."""
        self._tunings.pop(threading.get_ident(), None)

    def close(self) -> None:
        self._tunings.clear()

    def new_folder(self) -> Path:
        """For the trials of one tuning, which are never joined with others."""
        with self._lock:
            folder, count = self.logdir, 1
            while folder in self._folders or any(folder.glob("trial-*")):
                count += 1
                folder = self.logdir / f"tuning-{count}"
            if count > 1 and not self._folders:
                warn(f"{self.logdir} has trials of an earlier tuning; those of this one are in {folder}", UserWarning)
            self._folders.add(folder)
            return folder

    def report(self, what: str, error: Exception) -> str:
        """As a warning, the first time that this goes wrong; the reason."""
        reason = reason_of(error)
        if what not in self._reported:
            self._reported.add(what)
            warn(f"{what}, the tuning goes on: {reason}")
        return reason

    def check(self) -> None:
        """Say so where there was nothing to log, and nothing was said."""
        if self.ended or self._reported:
            return
        problem = "Neural Compressor ended before its first trial. Its own log may say why."
        if self.began is None:
            problem = "no tuning of Neural Compressor ran. Call quantization.fit or autotune inside of `with log(…)`."
        warn(f"{self.logdir}: nothing was logged, {problem}")


class Tuning:
    """One call of `fit` or `autotune`: an fp32 model, and the trials to quantize it."""

    def __init__(self, log: TrialLog, reference: Any, batches: Callable[[], list[Batch]]) -> None:
        self._log = log
        self._reference = reference if log.diagnose else None
        self._batches = batches if log.diagnose else list
        self._folder: Path | None = None
        self._samples: list[Batch] | None = None
        self.trials = 0
        self._since = log.began or time.monotonic()

    def restart(self) -> None:
        """The next trial begins now."""
        self._since = time.monotonic()

    def add(self, number: int, describe: Callable[[str], Trial], quantized: Any) -> None:
        """The trial of this number, as `describe` has it when it is told the name of the run.

        Without a model to compare it is not diagnosed, and `describe` says why.
        """
        took = time.monotonic() - self._since
        self.trials += 1
        self._log.ended += 1
        try:
            self._write(number, describe, quantized, took)
        finally:
            self.restart()

    def _write(self, number: int, describe: Callable[[str], Trial], quantized: Any, took: float) -> None:
        if self._folder is None:
            self._folder = self._log.new_folder()
        run = _free(self._folder, f"trial-{number:03d}")  # taken where a tuning that was resumed counts anew
        trial = describe(run.name)
        trial.wall_s = took
        trial.notes += gap_notes(number, self.trials)
        found = self._diagnosed(trial, quantized) if self._log.diagnose and quantized is not None else None
        try:
            with SummaryWriter(run, whole=True) as writer:
                if found is not None:
                    writer.add_diagnosis(found)
                writer.add_trial(trial)
            put_tables_above(run, self._log.logdir, found)
        except BaseException:
            with suppress(OSError):
                run.rmdir()  # an empty folder would be taken for a trial
            raise
        self._log.runs.append(run)

    def _diagnosed(self, trial: Trial, quantized: Any) -> Diagnosis | None:
        try:
            if self._samples is None:
                self._samples = self._batches()
            found = compare(unwrapped(self._reference), unwrapped(quantized), self._samples)
        except Exception as error:  # noqa: BLE001  a trial without a diagnosis is better than none
            trial.notes.append(f"not diagnosed: {self._log.report('a trial was not diagnosed', error)}")
            return None
        name = name_of(self._reference)
        found.reference, found.quantized = name, f"{name}, {trial.name}"
        return with_kept(found, _as_in_table(trial.fallback, found.ops["name"]))


def _free(folder: Path, name: str) -> Path:
    """A name in the folder that nobody has: name, name-2, name-3, …"""
    names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def _as_in_table(fallback: Sequence[str], names: Iterable[str]) -> list[str]:
    """Ops by the names of the fp32 model: what becomes of a Gemm or a MatMul in ONNX is called after it."""
    known = {str(name) for name in names}
    shortened = {op: _RENAMED.sub("", op) for op in fallback}
    return list(dict.fromkeys(op if op in known or short not in known else short for op, short in shortened.items()))


def _installed() -> list[str]:
    found = []
    for package in _DEPENDENCIES:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return found
