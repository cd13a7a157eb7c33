"""What a run folder holds, read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from inc_tb import records
from inc_tb.errors import DataError, RecordError, reading
from inc_tb.measure.by_sample import BySample
from inc_tb.measure.diagnosis import META, Diagnosis
from inc_tb.profiling.profile import Profile, stored_profile
from inc_tb.records import OpTable, Suggestion, Trial, brief, plural
from inc_tb.shown import Shown, above
from inc_tb.store.encoded import OF_DIAGNOSIS, tag_of
from inc_tb.store.eventfile import event_files, read_events
from inc_tb.store.remote import fetched, is_remote

Wanted = TypeVar("Wanted")
_AGAIN = "Log the run again."


@dataclass(repr=False)
class Run(Shown):
    """What a run folder holds, by step; the newest is at hand directly."""

    _card = "runs:run_card"

    name: str
    diagnoses: dict[int, Diagnosis] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)
    profiles: dict[int, Profile] = field(default_factory=dict)

    def __repr__(self) -> str:
        words = (self.diagnoses, "diagnosis", "diagnoses"), (self.trials, "trial", ""), (self.profiles, "profile", "")
        held = ", ".join(plural(len(found), one, many) for found, one, many in words if found) or "nothing"
        verdict = f"; {self.diagnosis.verdict}" if self.diagnoses else ""
        return f"<Run {brief(self.name)}: {held}{verdict}>"

    @property
    def diagnosis(self) -> Diagnosis:
        if not self.diagnoses:
            raise DataError(f"{self.name}: holds no diagnosis; expected a run that add_diagnosis has written.")
        return self.diagnoses[max(self.diagnoses)]

    @property
    def trial(self) -> Trial | None:
        return self.trials[max(self.trials)] if self.trials else None

    @property
    def profile(self) -> Profile | None:
        return self.profiles[max(self.profiles)] if self.profiles else None

    @property
    def ops(self) -> OpTable:
        return self.diagnosis.ops

    @property
    def suggestions(self) -> list[Suggestion]:
        return self.diagnosis.suggestions

    def plot(self, op: str) -> Any:
        return self.diagnosis.plot(op)

    def show(self, height: int = 800) -> Any:
        """The Quantization tab in the cell of a notebook, at this run."""
        return above("tab:show_tab")(Path(self.name), "", height)

    def to_pandas(self) -> Any:
        return self.diagnosis.to_pandas()

    def to_csv(self, folder: str | PathLike[str]) -> list[Path]:
        return self.diagnosis.to_csv(folder)


class StoredRecord(NamedTuple):
    tag: str
    step: int
    wall_time: float
    blobs: list[bytes]


def stored_records(folder: Path) -> Iterator[StoredRecord]:
    """Our records in the event files of a run as they are stored; of equal tag and step the last one holds."""
    for path in event_files(folder):
        for event in read_events(path):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    yield StoredRecord(value.tag, event.step, event.wall_time, list(value.tensor.string_val))


def logged_runs(logged: Path) -> dict[str, Path]:
    """The folders with records, by the names that TensorBoard gives them; of a run alone, that of its folder."""
    places = [logged, *sorted(path for path in logged.rglob("*") if path.is_dir())]
    folders = [folder for folder in places if event_files(folder) and any(True for _ in stored_records(folder))]
    if not folders:
        raise DataError(
            f"{logged}: no quantization records there or below; expected a folder that inc-tb has logged to, such as "
            "nc_workspace, or one run in it."
        )
    if folders == [logged]:
        return {logged.resolve().name: logged}
    return {folder.relative_to(logged).as_posix(): folder for folder in folders}


def load(run: str | PathLike[str]) -> Run:
    """Read a run back, also one at an address. A file that was cut off is read up to the last whole event."""
    if not isinstance(run, str) or not is_remote(run):
        return _load(Path(run), str(Path(run)))
    with fetched(run) as folder:
        found = _load(folder, run)
    for diagnosis in found.diagnoses.values():
        diagnosis.logged = None
    for profile in found.profiles.values():
        profile.logged = None
    return found


def _load(folder: Path, name: str) -> Run:
    if not event_files(folder):
        raise DataError(
            f"{name}: no event files there; expected the folder of one run, such as nc_workspace/trial-001."
        )
    found = Run(name)
    stored: dict[int, dict[str, list[bytes]]] = {}
    for record in stored_records(folder):
        stored.setdefault(record.step, {})[record.tag] = record.blobs
    standing: dict[str, list[bytes]] = {}
    for step, tags in sorted(stored.items()):
        standing.update(tags)
        with reading(RecordError, f"{folder}, step {step}", "something else than is stored there", _AGAIN):
            _decode(found, step, tags, standing)
    if not stored:
        raise RecordError(f"{name}: its event files hold no quantization records; expected a run written by inc-tb.")
    return found


def _decode(
    found: Run, step: int, tags: Mapping[str, Sequence[bytes]], standing: Mapping[str, Sequence[bytes]]
) -> None:
    """What a step has written; a diagnosis of it also has what stands from before."""
    if tag_of("ops") in tags:
        found.diagnoses[step] = _decode_diagnosis(standing)
        found.diagnoses[step].logged = Path(found.name)
    if tag_of("trial") in tags:
        found.trials.update((step, trial) for trial in records.decode_rows("trial", tags[tag_of("trial")]))
    if tag_of("profile") in tags:
        blobs = tags[tag_of("profile")]
        rows = records.decode_rows("profile", blobs)
        found.profiles[step] = stored_profile(rows, records.read_header("profile", blobs[0]).meta)
        found.profiles[step].logged = Path(found.name)


def _decode_diagnosis(tags: Mapping[str, Sequence[bytes]]) -> Diagnosis:
    table, meta = records.decode_table(tags[tag_of("ops")])
    parts: dict[str, Any] = {
        kind: records.decode_rows(kind, tags[tag_of(kind)])
        for kind in OF_DIAGNOSIS
        if kind != "ops" and kind != "samples" and kind != "previews" and tag_of(kind) in tags
    }
    parts["tokens"] = next(iter(parts.get("tokens", ())), None)
    if tag_of("samples") in tags:
        parts["by_sample"] = _decode_samples(tags[tag_of("samples")])
        if tag_of("previews") in tags:
            parts["by_sample"].previews = records.decode_rows("previews", tags[tag_of("previews")])
    if "name" not in table or table.column("name").type != "text":
        raise ValueError("the op table has no names")
    types = get_type_hints(Diagnosis)
    about = {name: _converted("ops", meta[name], types[name]) for name in (*META, "origin") if name in meta}
    return Diagnosis(table, **parts, **about)


def _decode_samples(blobs: Sequence[bytes]) -> BySample:
    ids = records.read_header("samples", blobs[0]).meta.get("ids")
    return BySample(_converted("samples", ids, bytes), records.decode_rows("samples", blobs))


def _converted(kind: str, value: Any, wanted: type[Wanted]) -> Wanted:
    """Of a header's meta, which has no types of its own."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise RecordError(f"the {kind} record: cannot be read ({error}). Log the run again.") from error
