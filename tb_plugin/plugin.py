"""The Quantization tab: serves what is stored, and computes nothing.

http_api.md describes the routes and the container in which records are sent. What cannot be read of one run is an
"error" in its part, and the other parts are there all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tensorboard import plugin_util
from tensorboard.plugins.base_plugin import FrontendMetadata, TBPlugin
from werkzeug.datastructures import Headers
from werkzeug.wrappers import Request, Response

from inc_tb import records
from tb_plugin.kinds import KINDS
from tb_plugin.page import Files
from tb_plugin.source import Element, Place, ProviderError, Record, RecordSource, Trouble

CONTAINER = 1
"""To be raised with every change of what the routes answer: it makes the answers that browsers keep invalid."""
STATIC = Path(__file__).parent / "static"
NOT_BUILT = "The page of the Quantization tab was not built. Install inc-tb again: pip install . in its source folder."

Part = dict[str, Any]


class _RequestError(ValueError):
    """What is asked for cannot be meant; says what was given and what was expected."""


class QuantizationPlugin(TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    plugin_name = records.PLUGIN

    def __init__(self, context: Any, static: Path = STATIC) -> None:
        self._source = RecordSource(context.data_provider)
        self._files = Files(static)

    def is_active(self) -> bool:
        """TensorBoard itself looks whether there is data under the plugin's name."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        return FrontendMetadata(es_module_path="/static/index.js", tab_name="Quantization")

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        return {
            "/runs": _route(self._runs),
            "/columns": _route(self._columns),
            "/record": _route(self._record),
            "/histogram": _route(lambda request: self._of_one_op(request, "histograms")),
            "/channels": _route(lambda request: self._of_one_op(request, "channels")),
            "/static/*": _route(self._static),
        }

    def _runs(self, request: Request) -> Response:
        try:
            found = self._source.listing(request.environ)
        except ProviderError as error:
            return _text(503, f"TensorBoard's data cannot be read ({error}). Reload, or start TensorBoard again.")
        runs = [{"name": run, "kinds": kinds} for run, kinds in found.items()]
        body = msgspec.json.encode({"version": records.VERSION, "runs": runs})
        etag = hashlib.sha256(body).hexdigest()[:32]
        if _has(request, etag):
            return _Unchanged(etag, "application/json")
        return _response(body, "application/json", etag)

    def _columns(self, request: Request) -> Response:
        runs, names, step = _several(request, "run"), _distinct(request, "name"), _step(request)
        header = _one(request, "header", "0")
        if header not in ("0", "1"):
            raise _RequestError(f"header={header} was given; expected 0 or 1.")
        if not names and header == "0":
            raise _RequestError("no name was given; expected the name of a column, such as name=added_sqnr_db.")
        places = self._find(request, "ops", runs, step)

        def fill(container: _Container) -> dict[str, list[Part]]:
            opened = self._source.open(request.environ, places)
            wanted = {(run, name): _column(run, opened[run], name) for run in runs for name in names}
            parts: list[Part] = []
            for (run, name), found in self._source.elements(request.environ, wanted).items():
                if isinstance(found, Trouble):
                    parts.append({"run": run, "name": name, "error": found.text})
                    continue
                ((place, head), position), blob = found
                parts.append({
                    "run": run, "step": place.step, "name": name, "rows": head.rows,
                    "column": head.columns[position - 1], "blob": container.add(blob),
                })  # fmt: skip
            heads = {"headers": [_head(run, opened[run]) for run in runs]} if header == "1" else {}
            return {"parts": parts, **heads}

        return _contain(request, places, fill)

    def _record(self, request: Request) -> Response:
        runs, kind, step = _several(request, "run"), _one(request, "kind"), _step(request)
        if kind not in KINDS:
            raise _RequestError(f"kind={kind} was given; expected one of {', '.join(KINDS)}.")
        places = self._find(request, kind, runs, step)

        def fill(container: _Container) -> dict[str, list[Part]]:
            opened = self._source.open(request.environ, places)
            parts: list[Part] = []
            for run, found in self._source.whole(request.environ, opened).items():
                if isinstance(found, Trouble):
                    parts.append({"run": run, "kind": kind, "error": found.text})
                    continue
                (place, head), blobs = found
                parts.append({
                    "run": run, "step": place.step, "kind": kind, "version": head.version, "rows": head.rows,
                    "meta": head.meta, "blobs": [container.add(blob) for blob in blobs],
                })  # fmt: skip
            return {"parts": parts}

        return _contain(request, places, fill)

    def _of_one_op(self, request: Request, kind: records.RowKind) -> Response:
        """The chunk with the rows of an op, which holds those of a few other ops too."""
        run, op, step = _one(request, "run"), _one(request, "op"), _step(request)
        places = self._find(request, kind, [run], step)

        def fill(container: _Container) -> dict[str, list[Part]]:
            record = self._source.open(request.environ, places)[run]
            wanted: Element | Trouble
            if isinstance(record, Trouble):
                wanted = record
            elif op not in record.header.index:
                wanted = Trouble(f"run {run} has no {kind} of op {op}; it was not compared, or is not in the model.")
            else:
                wanted = Element(record, record.header.index[op])
            found = self._source.elements(request.environ, {run: wanted})[run]
            if isinstance(found, Trouble):
                return {"parts": [{"run": run, "op": op, "error": found.text}]}
            element, blob = found
            step_found = element.record.place.step
            return {"parts": [{"run": run, "step": step_found, "op": op, "blob": container.add(blob)}]}

        return _contain(request, places, fill)

    def _find(
        self, request: Request, kind: records.Kind, runs: Sequence[str], step: int | None
    ) -> Mapping[str, Place | Trouble]:
        if len(runs) == 1:
            return self._source.find_one(request.environ, kind, runs[0], step, _one(request, "stamp", ""))
        return self._source.find(request.environ, kind, runs, step)

    def _static(self, request: Request) -> Response:
        name = request.path.partition("/static/")[2]
        file = self._files.get(name)
        if file is None and name == "index.js":  # TensorBoard shows nothing of an answer that is no module
            script = f"export const render = () => document.body.append({msgspec.json.encode(NOT_BUILT).decode()});"
            return _response(script.encode(), "text/javascript; charset=utf-8", None)
        if file is None:
            return _text(404, f"There is no file {name} in the page of the Quantization tab.")
        if _has(request, file.etag):
            return _Unchanged(file.etag, file.content_type)
        if len(file.gzipped) < len(file.body) and request.accept_encodings.quality("gzip") > 0:
            response = _response(file.gzipped, file.content_type, file.etag)
            response.headers["Content-Encoding"] = "gzip"
        else:
            response = _response(file.body, file.content_type, file.etag)
        response.headers["Vary"] = "Accept-Encoding"
        return response


class _Container:
    def __init__(self) -> None:
        self._blobs: dict[bytes, int] = {}

    def add(self, blob: bytes) -> int:
        return self._blobs.setdefault(blob, len(self._blobs))

    def dump(self, contents: Mapping[str, Any]) -> bytes:
        text = msgspec.json.encode({**contents, "blobs": [len(blob) for blob in self._blobs]})
        return b"".join([len(text).to_bytes(4, "little"), text, *self._blobs])


def _contain(
    request: Request,
    places: Mapping[str, Place | Trouble],
    fill: Callable[[_Container], Mapping[str, list[Part]]],
) -> Response:
    """Without reading any element if the browser has it already; an answer with an error is not kept."""
    known = [(p.run, p.step, p.wall_time, len(p.keys)) for p in places.values() if isinstance(p, Place)]
    experiment = plugin_util.experiment_id(request.environ)
    asked = CONTAINER, records.VERSION, experiment, request.path, request.query_string, known
    etag = hashlib.sha256(repr(asked).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if len(known) == len(places) and _has(request, etag):
        return _Unchanged(etag, "application/octet-stream")
    container = _Container()
    contents = fill(container)
    failed = any("error" in part for parts in contents.values() for part in parts)
    return _response(container.dump(contents), "application/octet-stream", None if failed else etag)


def _column(run: str, record: Record | Trouble, name: str) -> Element | Trouble:
    if isinstance(record, Trouble):
        return record
    names = [column.name for column in record.header.columns]
    if name not in names:
        return Trouble(f"run {run} has no column {name}. Log it again with this inc-tb, or choose another column.")
    return Element(record, 1 + names.index(name))


def _head(run: str, record: Record | Trouble) -> Part:
    if isinstance(record, Trouble):
        return {"run": run, "error": record.text}
    place, head = record
    columns = [msgspec.structs.replace(column, nulls={}) for column in head.columns]  # each part has its own
    return {
        "run": run, "step": place.step, "version": head.version, "rows": head.rows,
        "columns": columns, "meta": head.meta,
    }  # fmt: skip


def _route(answer: Callable[[Request], Response]) -> Callable[..., Any]:
    @Request.application
    def app(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            response = _text(405, f"{request.method} was given; expected GET.")
            response.headers["Allow"] = "GET, HEAD"
            return response
        try:
            return answer(request)
        except _RequestError as error:
            return _text(400, str(error))

    return app


def _several(request: Request, name: str) -> list[str]:
    given = _distinct(request, name)
    if not given:
        raise _RequestError(f"no {name} was given; expected at least one {name}=….")
    return given


def _distinct(request: Request, name: str) -> list[str]:
    return list(dict.fromkeys(request.args.getlist(name)))


def _one(request: Request, name: str, default: str | None = None) -> str:
    given = request.args.getlist(name)
    if not given and default is not None:
        return default
    if len(given) != 1:
        raise _RequestError(f"{len(given) or 'no'} {name} parameters were given; expected one {name}=….")
    return given[0]


def _step(request: Request) -> int | None:
    if "step" not in request.args:
        return None
    given = _one(request, "step")
    if not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise _RequestError(f"step={given} was given; expected a whole number from 0 on, or no step for the newest.")
    return int(given)


def _has(request: Request, etag: str) -> bool:
    return request.if_none_match.contains_weak(etag)


def _response(body: bytes, content_type: str, etag: str | None) -> Response:
    response = Response(body, content_type=content_type)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-cache" if etag else "no-store"
    if etag:
        response.set_etag(etag, weak=True)
    return response


def _text(code: int, text: str) -> Response:
    response = _response(f"{text}\n".encode(), "text/plain; charset=utf-8", None)
    response.status_code = code
    return response


class _Unchanged(Response):
    """304. TensorBoard warns about every answer without a content type, which werkzeug takes away here."""

    def __init__(self, etag: str, content_type: str) -> None:
        super().__init__(status=304)
        self.set_etag(etag, weak=True)
        self._content_type = content_type

    def get_wsgi_headers(self, environ: Any) -> Headers:
        headers = super().get_wsgi_headers(environ)
        headers["Content-Type"] = self._content_type
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Cache-Control"] = "no-cache"
        return headers
