"""What an op adds by itself, estimated: nobody has run the quantized ops with correct inputs.

Three roundings make it: that of the output, done here to the correct values; that of the weights, in proportion to the
signal; and that of the input, through the weights. Their errors are taken as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Op, Pair
from inc_tb.frameworks.rounding import rounded
from inc_tb.measure.shards import Key
from inc_tb.measure.stats import SUMS, PairStats
from inc_tb.sources.neural_compressor.dump import Dump

Floats = npt.NDArray[np.float64]
_COUNT, _SIGNAL, _NOISE = (SUMS.index(name) for name in ("count", "x2", "e2"))


def estimate_added(
    ops: Sequence[Op], dump: Dump, collected: Mapping[Key, PairStats], framework: str
) -> dict[Key, PairStats]:
    """Of each op whose output has a grid."""
    by_name = {op.name: op for op in ops}
    found: dict[Key, PairStats] = {}
    for pair in dump.pairs:
        grid = by_name[pair.op].activation if pair.role == "output" and pair.op in by_name else None
        if grid is not None and grid.limits is not None:
            key: Key = pair.op, "isolated"
            found.setdefault(key, PairStats(pair.channel_axis, grid.limits, histograms=False))
            found[key].update(pair.reference, rounded(pair.reference, grid))
    rounding = {name: _variance(stats) for (name, _), stats in found.items()}
    weights = {pair.op: pair for pair in dump.pairs if pair.role == "weight"}
    for (name, _), stats in found.items():
        if name in weights:
            _add_noise_of_weights(stats, collected[name, "weight"])
            heads = [dump.joined.get(source, source) for source in by_name[name].inputs]
            noise = rounding.get(heads[0]) if len(heads) == 1 else None
            if not heads and (name, "input") in collected:
                noise = _variance(collected[name, "input"])
            if noise is not None:
                _add_noise_of_input(stats, noise, _energy(weights[name], framework))
    return found


def _variance(stats: PairStats) -> Floats:
    """Of the error of one value, by channel."""
    return stats.sums[:, _NOISE] / np.maximum(stats.sums[:, _COUNT], 1)


def _add_noise_of_weights(output: PairStats, weight: PairStats) -> None:
    """As much of each channel's signal as its weights have noise."""
    signal = weight.sums[:, _SIGNAL]
    ratio = np.divide(weight.sums[:, _NOISE], signal, where=signal > 0, out=np.zeros(len(signal)))
    output.sums[:, _NOISE] += _fitting(ratio, len(output.sums)) * output.sums[:, _SIGNAL]


def _add_noise_of_input(output: PairStats, noise: Floats, energy: Floats) -> None:
    """`energy` has the sum of squared weights from each channel that is read (columns) to each that is written."""
    arriving = energy @ _fitting(noise, energy.shape[1])
    output.sums[:, _NOISE] += _fitting(arriving, len(output.sums)) * output.sums[:, _COUNT]


def _energy(weight: Pair, framework: str) -> Floats:
    if weight.channel_axis is None:  # of an addition
        return np.ones((1, 1))
    squares = np.moveaxis(np.square(weight.reference, dtype=np.float64), weight.channel_axis, 0)
    if framework == "tensorflow" and squares.ndim == 4:  # height, width, channels that are read
        squares = np.moveaxis(squares, 3, 1)
    summed: Floats = squares.reshape(*squares.shape[:2], -1).sum(axis=2)
    is_depthwise = summed.shape[1] == 1 and len(summed) > 1
    return np.diag(summed[:, 0]) if is_depthwise else summed


def _fitting(values: Floats, length: int) -> Floats:
    """One value for each of so many channels; their average where they are others, as behind a reshape."""
    return values if len(values) == length else np.full(length, values.mean())
