"""Which ops each kernel of a runtime computes, and on whose account its conversions are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from inc_tb.frameworks.protocols import Kernel
from inc_tb.frameworks.traces import TraceEvent


def covered(ends: Sequence[Collection[str]], sources: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The nodes of a file that each kernel computes, of kernels in the order in which they run.

    `ends` has the nodes by which each kernel is known, `sources` those that each node reads from. What lies before them
    and belongs to no kernel yet was made part of this one.
    """
    owner = {node: kernel for kernel, nodes in enumerate(ends) for node in nodes}
    found: list[list[str]] = []
    for kernel, nodes in enumerate(ends):
        mine = dict.fromkeys(node for node in nodes if owner[node] == kernel)
        waiting = list(mine)
        while waiting:
            for node in sources.get(waiting.pop(), ()):
                if node not in owner:
                    owner[node] = kernel
                    mine[node] = None
                    waiting.append(node)
        found.append(list(mine))
    return found


def outermost(events: Sequence[TraceEvent]) -> list[tuple[TraceEvent, int]]:
    """Without those inside of another of the same thread, such as a loop's body; with the number of those inside."""
    found: list[tuple[TraceEvent, int]] = []
    last: dict[str, int] = {}
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        around, count = found[last[event.thread]] if event.thread in last else (None, 0)
        if around is not None and event.start_us + event.duration_us <= around.start_us + around.duration_us:
            found[last[event.thread]] = around, count + 1
        else:
            last[event.thread] = len(found)
            found.append((event, 0))
    return found


def on_account(
    kernels: Sequence[Kernel], before: Sequence[Sequence[int]], for_reader: Collection[int]
) -> Iterator[Kernel]:
    """Conversions with the op on whose account they are there; `before` has the kernels that each reads from.

    Those in `for_reader` are there for the op that reads them, the others because of the one before them.
    """
    after: list[list[int]] = [[] for _ in kernels]
    for at, found in enumerate(before):
        for source in found:
            after[source].append(at)
    for at, kernel in enumerate(kernels):
        if kernel.ops or not kernel.is_conversion:
            yield kernel
            continue
        ways = (after, before) if at in for_reader else (before, after)
        near = (kernels[k].ops for way in ways for k in _nearest(at, way, kernels))
        yield kernel._replace(ops=next(near, ())[:1])


def _nearest(start: int, near: Sequence[Sequence[int]], kernels: Sequence[Kernel]) -> Iterator[int]:
    """In one direction, the kernels that compute ops."""
    waiting, seen = [start], {start}
    while waiting:
        for k in near[waiting.pop(0)]:
            if k not in seen:
                seen.add(k)
                if kernels[k].ops and not kernels[k].is_conversion:
                    yield k
                else:
                    waiting.append(k)


def twins(matched: Iterable[tuple[str, Iterable[str]]], sources: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Op of the quantized model -> ops of the reference that it stands for.

    `sources` has all ops of the quantized model in order, each with those that it reads from.
    """
    found: dict[str, list[str]] = {}
    for name, ops in matched:
        found.setdefault(name, []).extend(ops)
    return with_unmatched(found, sources)


def with_unmatched(twins: dict[str, list[str]], sources: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Ops that stand for none count to the one that they read from, or else to one that reads them.

    `sources` has all ops in order, each with those that it reads from.
    """
    found = dict(twins)
    for name, before in sources.items():
        near = next((found[source] for source in before if source in found), None)
        if name not in found and near:
            found[name] = near[-1:]
    for name, before in reversed(list(sources.items())):
        for source in before:
            if source not in found and name in found:
                found[source] = found[name][:1]
    return found
