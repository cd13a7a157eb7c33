"""The Quantization tab as one file: the page, and the records that it shows, without a server or a network.

The file holds what the routes would serve, as it is stored, and the page answers itself (frontend/src/embedded.ts).
Everything in it is inline, because browsers let a file that is opened from disk load nothing from beside it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inc_tb import records
from inc_tb.records import RecordError
from tb_plugin.kinds import KINDS, STANDING, WITH_STEPS

STATIC = Path(__file__).parent / "static"
FILE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
</head>
<body>
<script type="application/json" id="records">{held}</script>
<script type="text/plain" id="elk-worker">{worker}</script>
<script type="module">{code}</script>
</body>
</html>
"""
POLICY = (
    "default-src 'none'", "script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", "img-src data: blob:",
    "worker-src blob:", "base-uri 'none'", "form-action 'none'",
)  # fmt: skip


class Logged(NamedTuple):
    """A record of a run as it is stored."""

    run: str
    kind: str
    step: int
    wall_time: float
    blobs: list[bytes]


def write_report(logged: Iterable[Logged], title: str, static: Path = STATIC) -> bytes:
    """The whole file. FileNotFoundError says that the page was not built."""
    code, worker = (_built(static, name) for name in ("report.js", "elk-worker.js"))
    digest = base64.b64encode(hashlib.sha256(code).digest()).decode()
    text = FILE.format(
        policy="; ".join(POLICY).format(digest=digest), title=escape(title), held=_held(logged), worker=_packed(worker),
        code=code.decode(),
    )  # fmt: skip
    return text.encode()


def _built(static: Path, name: str) -> bytes:
    try:
        return (static / name).read_bytes()
    except OSError as error:
        raise FileNotFoundError(
            f"{static / name} is not there: the page was not built. Install inc-tb again: pip install . in its source."
        ) from error


def _held(logged: Iterable[Logged]) -> str:
    """JSON without a "<": texts in it are packed."""
    newest = {(one.run, one.kind, one.step): one for one in logged if one.kind in KINDS}
    places: dict[bytes, int] = {}
    stored = [_stored(one, places) for one in newest.values()]
    book = {"runs": _listing(newest.values()), "records": stored}
    blobs = [base64.b64encode(blob).decode() for blob in places]
    return msgspec.json.encode({"book": _packed(msgspec.json.encode(book)), "blobs": blobs}).decode()


def _listing(newest: Iterable[Logged]) -> list[dict[str, Any]]:
    """As /runs tells it."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in sorted(newest, key=lambda one: (one.run, one.kind, one.step)):
        about = found.setdefault(one.run, {}).setdefault(one.kind, {"steps": []} if one.kind in WITH_STEPS else {})
        about.update(version=records.VERSION, wall_time=one.wall_time)
        if "steps" in about:
            about["steps"].append(one.step)
    return [{"name": run, "kinds": kinds} for run, kinds in found.items()]


def _stored(one: Logged, places: dict[bytes, int]) -> Mapping[str, Any]:
    """What the page finds a record by, and what it has to know to read it; or why it cannot be read."""
    at = {"run": one.run, "kind": one.kind, "step": one.step, "stands": one.kind in STANDING}
    try:
        header, elements = _checked(one)
    except RecordError as error:
        return {**at, "error": str(error)}
    blobs = [places.setdefault(blob, len(places)) for blob in elements]
    about = {name: getattr(header, name) for name in ("version", "rows", "columns", "index", "meta")}
    return {**at, **about, "blobs": blobs}


def _checked(one: Logged) -> tuple[records.Header, list[bytes]]:
    kind = next(kind for kind in KINDS if kind == one.kind)
    if not one.blobs:
        raise RecordError(f"the {kind} record is empty; expected a header. Log the run again.")
    header, elements = records.read_header(kind, one.blobs[0]), one.blobs[1:]
    if len(header.checksums) != len(elements):
        raise RecordError(f"the {kind} record is damaged: elements are missing. Log the run again.")
    for position, element in enumerate(elements, start=1):
        records.check_element(header, position, element)
    return header, elements


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()
