"""Neural Compressor as a source: the workspaces that it tunes and diagnoses in, and the logs of its tunings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from inc_tb.measure.tables import ACTIVATIONS, WEIGHTS
from inc_tb.records import GraphNode, Trial
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.sources.neural_compressor.dump import FOLDER
from inc_tb.sources.neural_compressor.snapshot import place_of, read_log
from inc_tb.sources.neural_compressor.workspace import HISTORY, find_workspaces, read_workspace, tells_trials
from inc_tb.sources.source import Found, name_of, storable

_AS_INSIGHTS = "accuracy as Neural Insights has it; the config is not known"


class NeuralCompressor:
    expected: Sequence[str] = (f"a workspace of Neural Compressor ({HISTORY}, {ACTIVATIONS.file}, …)",)

    def __init__(self, baseline: float | None = None, accuracy: float | None = None) -> None:
        """The accuracies of fp32 and of the quantized model, for a workspace that does not say them."""
        self._baseline, self._accuracy = baseline, accuracy

    def find(self, path: Path) -> Iterator[Found]:
        if path.is_dir():
            top = path.parent if path.name == FOLDER else path
            for space in find_workspaces(top):
                name = name_of(top) if space == top else storable(str(space.relative_to(top)))
                yield Found(space, name, self)
        elif path.name in (HISTORY, ACTIVATIONS.file, WEIGHTS.file):
            yield Found(path.parent, name_of(path.parent), self)
        elif tells_trials(path):
            yield Found(path, name_of(path), self)

    def read(self, found: Found, graph: Sequence[GraphNode]) -> Imported:
        if found.path.is_file():
            return _read_log(found)
        imported = read_workspace(found.path, found.name, graph)
        if not imported.trials and self._accuracy is not None:
            trial = Trial("trial", self._accuracy, self._baseline, notes=[_AS_INSIGHTS])
            run = next((run for run in imported.runs if run.has_tensors), None)
            if run is None:
                imported.runs.append(ImportedRun("trial", trial))
            else:
                run.trial = trial
            imported.baseline = self._baseline
        return imported

    def watched(self, path: Path) -> list[Path]:
        """What changes with every trial and every dump."""
        return [path, *path.glob("*"), *path.glob(f"{FOLDER}/**/*.pkl")]


def _read_log(found: Found) -> Imported:
    imported = Imported(found.name, found.path)
    for number, session in enumerate(read_log(found.path), start=1):
        imported.runs += [ImportedRun(place_of(number) + attempt.name, attempt.trial) for attempt in session.attempts]
        imported.baseline, imported.best = session.goal.baseline, session.best
    imported.notes = list(dict.fromkeys(note for trial in imported.trials for note in trial.notes))
    return imported
