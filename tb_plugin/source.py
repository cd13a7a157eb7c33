"""Records from TensorBoard's data provider: found, read and checked, and otherwise left as they are stored.

What fails for one run is a value, Trouble, that goes through the steps in place of the data, so that the other
runs of a request come out whole.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import grpc  # type: ignore[import-untyped]
import msgspec
from tensorboard import plugin_util
from tensorboard.data.provider import RunTagFilter
from tensorboard.errors import NotFoundError, PublicError

from inc_tb import records
from inc_tb.records import RecordError
from tb_plugin.kinds import STANDING, WITH_STEPS

ALL = 100_000
KEPT_HEADER_BYTES = 32 << 20
"""As stored. Parsed, a header takes up to nine times that; one with the index of 20,000 ops is over 1 MB."""
KEPT_BLOB_KEYS = 100_000
"""About 10 MB. Every question to TensorBoard's fast loader may take 40 ms, and opening an op asks for two records."""
THREADS = 4

Environ = Mapping[str, Any]
Key = TypeVar("Key")
Given = TypeVar("Given")
Result = TypeVar("Result")


class Trouble(NamedTuple):
    """Why something of a run cannot be shown, in words for its user."""

    text: str


@dataclass(frozen=True)
class Place:
    """Where a record's elements are."""

    run: str
    kind: records.Kind
    step: int
    wall_time: float
    keys: tuple[str, ...]


class Record(NamedTuple):
    place: Place
    header: records.Header


class Element(NamedTuple):
    """One element of a record; element 0 is the header."""

    record: Record
    position: int


class ProviderError(Exception):
    """The data provider does not answer."""


class DamagedError(ProviderError):
    """The Python loader makes arrays of all runs that are asked for; one that is damaged fails the whole question."""


class RecordSource:
    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._pool = ThreadPoolExecutor(THREADS, "quantization")  # a read waits for gRPC, however small it is
        self._headers: _Kept[tuple[str, float], records.Header] = _Kept(KEPT_HEADER_BYTES)
        self._places: _Kept[tuple[object, ...], Place] = _Kept(KEPT_BLOB_KEYS)

    def listing(self, environ: Environ) -> dict[str, dict[str, dict[str, Any]]]:
        """Run -> kind -> what there is of it."""
        listed = self._ask(environ, "list_blob_sequences", plugin_name=records.PLUGIN)
        data = self._steps(environ, listed)
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for run, tags in sorted(listed.items()):
            for tag, series in sorted(tags.items()):
                plugin, _, kind = tag.partition("/")
                if plugin != records.PLUGIN:
                    continue
                about = {"version": _version(series.plugin_content), "wall_time": series.max_wall_time}
                if kind in WITH_STEPS:
                    about["steps"] = [datum.step for datum in data.get(run, {}).get(tag, ())]
                found.setdefault(run, {})[kind] = about
        return found

    def _steps(self, environ: Environ, listed: Iterable[str]) -> Mapping[str, Any]:
        """A damaged run has none, so that the others are listed with theirs."""
        try:
            return self._sequences(environ, WITH_STEPS, None, ALL)  # type: ignore[no-any-return]
        except DamagedError:
            found: dict[str, Any] = {}
            for run in listed:
                with suppress(DamagedError):
                    found.update(self._sequences(environ, WITH_STEPS, [run], ALL))
            return found

    def find_one(
        self, environ: Environ, kind: records.Kind, run: str, step: int | None, stamp: str
    ) -> dict[str, Place | Trouble]:
        """The same for one run. What was found for a stamp holds: the page has a new one when the run changed."""
        key = plugin_util.experiment_id(environ), kind, run, step, stamp
        kept = self._places.get(key) if stamp else None
        if kept is not None:
            return {run: kept}
        found = self.find(environ, kind, [run], step)
        place = found[run]
        if stamp and isinstance(place, Place):
            self._places.keep(key, place, len(place.keys))
        return found

    def find(
        self, environ: Environ, kind: records.Kind, runs: Iterable[str], step: int | None
    ) -> dict[str, Place | Trouble]:
        """The record of each run at a step, or its newest one."""
        runs = list(runs)
        points = 1 if step is None else ALL  # however few are asked for, the last one is among them
        try:
            data = self._sequences(environ, [kind], runs, points)
            there = set(runs)
            if any(not data.get(run, {}).get(_tag(kind)) for run in runs):
                there = {run.run_name for run in self._ask(environ, "list_runs")}
        except DamagedError as error:
            if len(runs) == 1:
                return {runs[0]: Trouble(_damaged(runs[0], error))}
            return {run: self.find(environ, kind, [run], step)[run] for run in runs}
        except ProviderError as error:
            return {run: Trouble(_unreadable(run, error)) for run in runs}

        def place(run: str) -> Place | Trouble:
            if run not in there:
                return Trouble(_gone(run))
            steps = {datum.step: datum for datum in data.get(run, {}).get(_tag(kind), ())}
            if not steps:
                return Trouble(f"run {run} has no {kind} record. Log one, or choose another run.")
            standing = [at for at in steps if step is None or at == step or (kind in STANDING and at < step)]
            if not standing:
                has = ", ".join(map(str, list(steps)[-10:]))
                return Trouble(f"run {run} has no {kind} record at step {step}; its last steps are {has}.")
            datum = steps[max(standing)]
            return Place(run, kind, datum.step, datum.wall_time, tuple(ref.blob_key for ref in datum.values))

        return {run: place(run) for run in runs}

    def open(self, environ: Environ, places: Mapping[str, Place | Trouble]) -> dict[str, Record | Trouble]:
        context = plugin_util.context(environ)

        def opened(place: Place) -> Record:
            kept = self._headers.get(_header_key(place))
            if kept is None:
                if not place.keys:
                    raise RecordError(f"the {place.kind} record is empty; expected a header. Log the run again.")
                blob = self._read(context, place, 0)
                kept = records.read_header(place.kind, blob)
                if len(kept.checksums) != len(place.keys) - 1:
                    raise _incomplete(place)
                self._headers.keep(_header_key(place), kept, len(blob))
            return Record(place, kept)

        return self._each(places, opened, lambda place: place.run)

    def elements(
        self, environ: Environ, wanted: Mapping[Key, Element | Trouble]
    ) -> dict[Key, tuple[Element, bytes] | Trouble]:
        context = plugin_util.context(environ)

        def read(element: Element) -> tuple[Element, bytes]:
            (place, header), position = element
            if not 0 < position < len(place.keys):
                raise _incomplete(place)
            blob = self._read(context, place, position)
            records.check_element(header, position, blob)
            records.check_claim(blob)
            return element, blob

        return self._each(wanted, read, lambda element: element.record.place.run)

    def whole(
        self, environ: Environ, opened: Mapping[str, Record | Trouble]
    ) -> dict[str, tuple[Record, list[bytes]] | Trouble]:
        """All elements of each record."""
        wanted = {
            (run, position): Element(record, position)
            for run, record in opened.items()
            if isinstance(record, Record)
            for position in range(1, len(record.place.keys))
        }
        found: dict[str, tuple[Record, list[bytes]] | Trouble] = {
            run: record if isinstance(record, Trouble) else (record, []) for run, record in opened.items()
        }
        for (run, _), read in self.elements(environ, wanted).items():
            so_far = found[run]
            if isinstance(read, Trouble):
                found[run] = read
            elif not isinstance(so_far, Trouble):
                so_far[1].append(read[1])
        return found

    def _each(
        self, given: Mapping[Key, Given | Trouble], work: Callable[[Given], Result], run_of: Callable[[Given], str]
    ) -> dict[Key, Result | Trouble]:
        def attempt(item: Given | Trouble) -> Result | Trouble:
            if isinstance(item, Trouble):
                return item
            try:
                return work(item)
            except RecordError as error:
                return Trouble(str(error))
            except (NotFoundError, KeyError, IndexError):
                # The Python loader has the last two for a run that it dropped, or that has other elements now.
                return Trouble(_gone(run_of(item)))
            except (PublicError, grpc.RpcError) as error:
                return Trouble(_unreadable(run_of(item), error))
            except (ValueError, TypeError, MemoryError) as error:
                return Trouble(_damaged(run_of(item), error))

        return dict(zip(given, self._pool.map(attempt, given.values()), strict=True))

    def _read(self, context: Any, place: Place, position: int) -> bytes:
        return bytes(self._provider.read_blob(context, blob_key=place.keys[position]))

    def _sequences(self, environ: Environ, kinds: Iterable[str], runs: Iterable[str] | None, points: int) -> Any:
        wanted = RunTagFilter(runs=runs, tags=[_tag(kind) for kind in kinds])
        asked = {"plugin_name": records.PLUGIN, "downsample": points, "run_tag_filter": wanted}
        return self._ask(environ, "read_blob_sequences", **asked)

    def _ask(self, environ: Environ, method: str, **asked: Any) -> Any:
        context, experiment = plugin_util.context(environ), plugin_util.experiment_id(environ)
        tries = 5
        while True:
            try:
                return getattr(self._provider, method)(context, experiment_id=experiment, **asked)
            except KeyError as error:
                # The Python loader knows a tag a moment before it has its data, and drops runs while it is asked.
                tries -= 1
                if not tries:
                    raise ProviderError(f"KeyError: {error}") from error
                time.sleep(0.05)
            except (PublicError, grpc.RpcError) as error:
                raise ProviderError(_said(error)) from error
            except (ValueError, TypeError, MemoryError) as error:
                raise DamagedError(_said(error)) from error


class _Kept(Generic[Key, Result]):
    """The values used last, as long as their sizes add up to no more than allowed."""

    def __init__(self, allowed: int) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, tuple[Result, int]] = OrderedDict()
        self._allowed = allowed
        self._size = 0

    def get(self, key: Key) -> Result | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def keep(self, key: Key, value: Result, size: int) -> None:
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size
                self._size += size
            while self._size > self._allowed:
                self._size -= self._values.popitem(last=False)[1][1]


def _header_key(place: Place) -> tuple[str, float]:
    """A run that was deleted and logged again has the same blob keys."""
    return place.keys[0] if place.keys else "", place.wall_time


def _tag(kind: str) -> str:
    return f"{records.PLUGIN}/{kind}"


class _Content(msgspec.Struct):
    version: int


def _version(content: bytes) -> int | None:
    try:
        return msgspec.json.decode(content, type=_Content).version
    except ValueError:
        return None


def _gone(run: str) -> str:
    return f"run {run} is no longer there; its folder was deleted or renamed. Reload the page."


def _unreadable(run: str, error: Exception) -> str:
    return f"run {run} could not be read ({_said(error)}). Reload the page, or start TensorBoard again."


def _damaged(run: str, error: Exception) -> str:
    return f"run {run} is damaged ({' '.join(_said(error).split())}). Log it again."


def _said(error: Exception) -> str:
    """The text of a gRPC error is a page of it."""
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)


def _incomplete(place: Place) -> RecordError:
    return RecordError(f"the {place.kind} record is damaged: elements are missing. Log the run again.")
