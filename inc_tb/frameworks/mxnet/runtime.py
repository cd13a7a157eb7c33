"""Runs symbols: with their own fusions only, and without MXNet's greetings."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from inc_tb.errors import IncTbError, MismatchError, OutOfMemoryError
from inc_tb.frameworks.mxnet.graph import Entry, Graph
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.mxnet.network import Network, first_line
from inc_tb.frameworks.ops import Array, Batch

_AS_GIVEN = {"MXNET_SUBGRAPH_BACKEND": "default", "MXNET_SUBGRAPH_VERBOSE": "0"}
"""A backend that joins nothing. NONE does not either, but says so each time."""
_ONE_BY_ONE = {"MXNET_EXEC_BULK_EXEC_INFERENCE": "0"}
_EXECUTORS_KEPT = 4
_SHORTAGES = ("bad_alloc", "Failed to allocate CPU Memory")
"""MXNet has one class for all that it raises: a lack of memory shows in the text alone."""
FUSED = "MKLDNN"
"""What oneDNN joins for inference, unless told otherwise; Module does it, too."""


def fused(network: Network, backend: str = FUSED) -> Network:
    """As it ships: convolutions with what is behind them are one."""
    with _environment(_AS_GIVEN):
        return network._replace(symbol=network.symbol.get_backend_symbol(backend))


class Executor:
    """A symbol and its arrays, opened for arrays of certain shapes and types."""

    def __init__(self, network: Network, feeds: Batch, *, is_bulk: bool = True) -> None:
        """With `is_bulk` several nodes are handed to the engine at once, as MXNet does; they are one to a profiler."""
        self._fed = {name: mx.nd.empty(array.shape, dtype=array.dtype) for name, array in feeds.items()}
        arguments = {**network.args, **self._fed}
        names = network.symbol.list_arguments()
        missing = [name for name in names if name not in arguments]
        try:
            if missing:  # labels: any will do
                shapes, _, _ = network.symbol.infer_shape(**{n: arguments[n].shape for n in names if n in arguments})
                arguments |= {n: mx.nd.zeros(s) for n, s in zip(names, shapes, strict=True) if n in missing}
            with _environment(_AS_GIVEN if is_bulk else _AS_GIVEN | _ONE_BY_ONE):
                self._executor = network.symbol.bind(
                    mx.cpu(), {n: arguments[n] for n in names}, grad_req="null",
                    aux_states={n: network.aux[n] for n in network.symbol.list_auxiliary_states()},
                )  # fmt: skip
        except (mx.MXNetError, ValueError) as error:
            raise _cannot_run(network, error) from error
        self._network = network
        self.feed(feeds)

    def feed(self, feeds: Batch) -> None:
        for name, array in feeds.items():
            if name in self._fed:
                self._fed[name][:] = array
                self._fed[name].wait_to_read()

    def watch(self, callback: Callable[[Any, Any], None]) -> None:
        """Tell everything that each node reads and gives."""
        self._executor.set_monitor_callback(callback, monitor_all=True)

    def run(self) -> list[Any]:
        try:
            results = self._executor.forward(is_train=False)
            for result in results:
                result.wait_to_read()
        except mx.MXNetError as error:
            raise _cannot_run(self._network, error) from error
        return list(results)


class Runner:
    """One network, run for any of its values; the executors of the last few questions are kept."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._opened: OrderedDict[Any, Executor] = OrderedDict()

    def run(self, feeds: Batch, entries: Sequence[Entry]) -> dict[Entry, Array]:
        network = self._graph.network
        key = tuple(entries), shapes_of(feeds)
        if key not in self._opened:
            made = Executor(network._replace(symbol=self._graph.symbol(entries)), feeds)
            keep(self._opened, key, made)
        executor = self._opened[key]
        executor.feed(feeds)
        return {e: np.asarray(a.asnumpy()) for e, a in zip(entries, executor.run(), strict=True)}


def keep(opened: OrderedDict[Any, Executor], key: Any, made: Executor) -> None:
    while len(opened) >= _EXECUTORS_KEPT:
        opened.popitem(last=False)
    opened[key] = made


def shapes_of(feeds: Batch) -> tuple[Any, ...]:
    return tuple((name, array.shape, str(array.dtype)) for name, array in sorted(feeds.items()))


def _cannot_run(network: Network, error: Exception) -> IncTbError:
    if any(text in str(error) for text in _SHORTAGES):
        return OutOfMemoryError(f"{network.name}: MXNet could not get the memory that it needs")
    return MismatchError(
        f"{network.name}: MXNet cannot run this batch ({first_line(error)}). Check that the data is what the model was "
        "made for."
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """MXNet reads these each time that a symbol is opened."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
