"""What the tests of the PyTorch adapter work out for themselves, and how they hold the adapter to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from inc_tb.advise.diagnose import compare
from inc_tb.frameworks.ops import Pair
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.measure.diagnosis import Diagnosis
from tests.frameworks.test_onnx_values import expected, sqnr
from tests.frameworks.torch_zoo import Array, Feeds, engine, given, plain

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}
Values = Mapping[str, Array]


class Grid(NamedTuple):
    """Numbers that a tensor is rounded to: (integer - zero) * scale."""

    scale: Any
    zero: Any
    low: int
    high: int
    dtype: str = "uint8"

    def round(self, x: Array, axis: int | None = None) -> Array:
        scale, zero = np.asarray(self.scale, np.float32), np.asarray(self.zero, np.float32)
        if scale.size > 1:
            shape = [1] * x.ndim
            shape[axis or 0] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        inverse = (1 / scale.astype(np.float64)).astype(np.float32)  # torch multiplies by it
        integers = np.clip(np.rint(x * inverse) + zero, self.low, self.high)
        rounded: Array = ((integers - zero) * scale).astype(np.float32)
        return rounded

    @property
    def limits(self) -> tuple[Array, Array]:
        scale, zero = np.float32(self.scale), np.int64(self.zero)
        return (self.low - zero) * scale, (self.high - zero) * scale


DYNAMIC = Grid(None, None, 0, 255)


class Weight(NamedTuple):
    reference: Array
    quantized: Array
    axis: int | None = 0
    step: Array | None = None
    dtype: str = "int8"
    granularity: str = "per channel"
    tolerance: float = 1e-5
    """A folded batch norm has rounding errors of its own, which are seen in the largest difference."""


class Truth(NamedTuple):
    """Of one batch, by op."""

    reference: Values
    quantized: Values
    isolated: Values
    inputs: Mapping[str, tuple[Array, Array]] = {}
    """At the first op that reads them."""


@dataclass
class Case:
    """Two models, and what must be found out about them."""

    reference: Any
    quantized: Any
    batches: list[Feeds]
    truth: Callable[[Feeds], Truth]
    weights: Mapping[str, Weight] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    """Of what ops make."""
    folded: Mapping[str, str] = field(default_factory=dict)
    """Op -> the op that it is part of in the quantized model."""
    axes: Mapping[str, int] = field(default_factory=dict)
    kernels: str = "x86"

    @cached_property
    def truths(self) -> list[Truth]:
        with engine(self.kernels):
            return [self.truth(batch) for batch in self.batches]

    @cached_property
    def adapter(self) -> TorchAdapter:
        with engine(self.kernels):
            adapter = TorchAdapter(self.reference, self.quantized)
            adapter.trace(self.batches[0])
            return adapter

    @cached_property
    def pairs(self) -> list[dict[tuple[str, str], Pair]]:
        with engine(self.kernels):
            return [{(p.op, p.role): p for p in self.adapter.run(batch)} for batch in self.batches]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        with engine(self.kernels):
            return compare(self.reference, self.quantized, self.batches)  # which may be alike

    def column(self, name: str) -> dict[str, Any]:
        return dict(zip(self.diagnosis.ops["name"], self.diagnosis.ops[name], strict=True))

    def axis(self, op: str, values: Array) -> int:
        return self.axes.get(op, 1 if values.ndim == 4 else -1)


def compared(reference: Any, quantized: Any, batch: Feeds) -> tuple[TorchAdapter, dict[tuple[str, str], Pair]]:
    adapter = TorchAdapter(reference, quantized)
    adapter.trace(batch)
    return adapter, {(pair.op, pair.role): pair for pair in (*adapter.weights(), *adapter.run(batch))}


def expect(pairs: Mapping[tuple[str, str], Pair], role: str, wanted: Mapping[str, tuple[Array, Array]]) -> None:
    """`wanted` has the reference and the quantized values of ops."""
    problems: list[str] = []
    for op, (x, y) in wanted.items():
        problems += differences(pairs[op, role].reference, x, f"{op} {role}, reference")
        problems += differences(pairs[op, role].quantized, y, f"{op} {role}, quantized")
    assert not problems


def check_ops(case: Case) -> None:
    """Every op is there, with numbers of its own, or at the op that it was made part of."""
    ops = {op.name: op for op in case.adapter.ops()}
    compared = set(case.truths[0].reference)
    assert {name for name, op in ops.items() if op.compared_at == name} == compared
    assert {name: op.compared_at for name, op in ops.items() if name not in compared} == dict(case.folded)
    assert all(op.note for name, op in ops.items() if name not in compared)
    assert {op for op, value in case.column("a_mse").items() if np.isfinite(value)} == compared


def check_pairs(case: Case, role: str) -> None:
    problems: list[str] = []
    for truth, pairs in zip(case.truths, case.pairs, strict=True):
        if role == "input":
            wanted = dict(truth.inputs)
        else:
            values = truth.quantized if role == "output" else truth.isolated
            wanted = {op: (truth.reference[op], values[op]) for op in values}
        found = {op for op, kind in pairs if kind == role}
        assert set(wanted) == found
        for op, (x, y) in wanted.items():
            pair = pairs[op, role]
            problems += differences(pair.reference, x, f"{op}, reference")
            problems += differences(pair.quantized, y, f"{op}, quantized")
            if role != "input" and (pair.channel_axis is None or (pair.channel_axis - case.axis(op, x)) % x.ndim):
                problems.append(f"{op}: channels at {pair.channel_axis}, expected at {case.axis(op, x)}")
    assert not problems


def check_weights(case: Case) -> None:
    pairs = {pair.op: pair for pair in case.adapter.weights()}
    assert set(pairs) == set(case.weights)
    problems: list[str] = []
    for op, weight in case.weights.items():
        problems += differences(pairs[op].reference, weight.reference, f"{op}, reference")
        problems += differences(pairs[op].quantized, weight.quantized, f"{op}, quantized")
    assert not problems


def differences(found: Array, wanted: Array, what: str) -> list[str]:
    """None but in the last digits: kernels may add up in another order where a batch is cut differently."""
    if found.shape != wanted.shape:
        return [f"{what}: shape {found.shape}, expected {wanted.shape}"]
    largest = float(np.abs(wanted).max()) or 1.0
    far = ~np.isclose(found, wanted, rtol=1e-5, atol=1e-6 * largest)
    if not far.any():
        return []
    return [f"{what}: {far.mean():.1%} differ, by up to {np.abs(found - wanted).max():.3g} of {largest:.3g}"]


def check_columns(case: Case) -> None:
    """Every number that diagnose gives, from all batches together."""
    problems: list[str] = []
    joined = [{op: np.concatenate([t[i][op] for t in case.truths]) for op in case.truths[0][i]} for i in range(3)]
    for op, x in joined[0].items():
        grid = case.grids.get(op)
        step = limits = None
        if grid is not None and grid.scale is not None:
            step, limits = np.float32(grid.scale), grid.limits
        y, alone = joined[1][op], joined[2][op]
        wanted = expected(x, y, case.axis(op, x), step, limits, grid is not None)  # type: ignore[arg-type]
        wanted = {f"a_{name}": value for name, value in wanted.items()}
        wanted |= {"added_sqnr_db": sqnr(x, alone), "total_sqnr_db": sqnr(x, y)}
        problems += wrong_columns(case, op, "a_", wanted)
    for op, weight in case.weights.items():
        wanted = expected(weight.reference, weight.quantized, weight.axis, weight.step)
        wanted = {f"w_{name}": value for name, value in wanted.items()}
        problems += wrong_columns(case, op, "w_", wanted, weight.tolerance)
    with_weights = {op for op, value in case.column("w_mse").items() if np.isfinite(value)}
    assert with_weights == set(case.weights)
    assert not problems


def wrong_columns(case: Case, op: str, side: str, wanted: Mapping[str, float], tolerance: float = 1e-5) -> list[str]:
    columns = [name for name in case.diagnosis.ops if name.startswith(side) or name in wanted]
    assert set(columns) <= set(wanted)
    found = {name: case.column(name)[op] for name in columns}
    return [
        f"{op} {name}: {found[name]}, expected {wanted[name]}"
        for name in columns
        # Worked out from sums, of which little is left.
        if not np.isclose(
            found[name], wanted[name], rtol=tolerance, atol=1e-9 * name.endswith("inc_mse"), equal_nan=True
        )
    ]


def check_quantization(case: Case) -> None:
    """How outputs and weights are quantized, as the table says it."""
    names = ("act_dtype", "act_scheme", "act_scale", "act_zero_point", "weight_dtype", "weight_granularity")
    table = {name: case.column(name) for name in names}
    for op in case.truths[0].reference:
        grid, weight = case.grids.get(op), case.weights.get(op)
        assert table["act_dtype"][op] == (grid.dtype if grid else ""), op
        is_fixed = grid is not None and grid.scale is not None
        if grid is not None and not is_fixed:
            assert table["act_scheme"][op] == "dynamic", op
        for column, value in (("act_scale", grid and grid.scale), ("act_zero_point", grid and grid.zero)):
            np.testing.assert_allclose(table[column][op], value if is_fixed else np.nan, rtol=1e-6, err_msg=op)
        is_quantized = weight is not None and bool(weight.dtype)
        assert table["weight_dtype"][op] == (weight.dtype if weight and is_quantized else ""), op
        assert table["weight_granularity"][op] == (weight.granularity if weight and is_quantized else ""), op
        if weight is not None:
            assert case.column("params")[op] == weight.reference.size


def per_tensor(tensor: Tensor) -> Grid:
    """The grid of one of torch's quantized tensors."""
    name = str(tensor.dtype).removeprefix("torch.q")
    return Grid(tensor.q_scale(), tensor.q_zero_point(), *LIMITS[name], name)


def to_grid(x: Array, grid: Grid) -> Tensor:
    """As torch's quantized tensor."""
    dtype = {"uint8": torch.quint8, "int8": torch.qint8}[grid.dtype]
    return torch.quantize_per_tensor(torch.from_numpy(x), float(grid.scale), int(grid.zero), dtype)


def folded(weight: Tensor, norm: nn.Module) -> Array:
    factor = plain(norm.weight) / np.sqrt(plain(norm.running_var) + np.float32(norm.eps))
    return plain(weight) * factor.reshape(-1, *[1] * (weight.ndim - 1))


def packed_weight(reference: Array, weight: Tensor, tolerance: float = 1e-5) -> Weight:
    """Of one of torch's quantized modules, worked out from its integers."""
    integers = weight.int_repr().numpy().astype(np.float32)
    if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale = np.float32(weight.q_scale())
        assert weight.q_zero_point() == 0
        return Weight(reference, integers * scale, 0, np.array([scale]), "int8", "per tensor", tolerance)
    scales = weight.q_per_channel_scales().numpy().astype(np.float32)
    assert not weight.q_per_channel_zero_points().any()
    return Weight(reference, integers * scales.reshape(-1, *[1] * (weight.ndim - 1)), 0, scales, tolerance=tolerance)


def node_values(
    model: fx.GraphModule, batch: Feeds, instead: Mapping[str, Array] | None = None, keep: Collection[str] | None = None
) -> dict[str, Any]:
    """What the nodes of a graph make, by their names; `instead` is what the model goes on with behind some of them."""
    found: dict[str, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if keep is None or n.name in keep:
                found[n.name] = value.clone() if isinstance(value, Tensor) else value
            if instead is None or n.name not in instead:
                return value
            other = instead[n.name].reshape(value.shape)
            return to_grid(other, per_tensor(value)) if value.is_quantized else torch.from_numpy(other.copy())

    with torch.no_grad():
        Recorder(model).run(*given(batch).values())
    return found


def graph_case(
    model: nn.Module,
    quantized: fx.GraphModule,
    batches: list[Feeds],
    traced: Mapping[str, str],
    nodes: Mapping[str, str],
    folded: Mapping[str, str] | None = None,
    dynamic: Collection[str] = (),
) -> Case:
    """From the values of nodes: `traced` has those of fx.symbolic_trace, `nodes` those of the quantized graph, by op.

    The last of the ops folded into another is where that is compared.
    """
    graph = fx.symbolic_trace(model)
    ends = {**{op: op for op in nodes}, **{into: op for op, into in (folded or {}).items()}}
    grids = {op: grid for op, node in nodes.items() if (grid := rounding(quantized, node)) is not None}
    results = node_values(quantized, batches[0])
    grids |= {op: per_tensor(results[node]) for op, node in nodes.items() if results[node].is_quantized}
    (name,) = batches[0]
    image = rounding(quantized, name)

    def read(op: str, value: Tensor) -> Array:
        """As those behind it read it."""
        found = plain(value)
        return found if op not in grids or grids[op] is DYNAMIC or value.is_quantized else grids[op].round(found)

    def find(batch: Feeds) -> Truth:
        mine = node_values(graph, batch)
        reference = {op: plain(mine[traced[ends[op]]]) for op in nodes}
        theirs = node_values(quantized, batch)
        alone = node_values(quantized, batch, {nodes[op]: value for op, value in reference.items()})
        outputs, isolated = ({op: read(op, values[node]) for op, node in nodes.items()} for values in (theirs, alone))
        inputs = {next(iter(traced)): (batch[name], image.round(batch[name]))} if image is not None else {}
        return Truth(reference, outputs, isolated, inputs)

    grids |= dict.fromkeys(dynamic, DYNAMIC)
    return Case(model, quantized, batches, find, {}, grids, folded or {})


def rounding(model: fx.GraphModule, name: str) -> Grid | None:
    """The fixed grid that the result of a node is rounded to by a node of its own, perhaps in another shape."""
    waiting = [n for node in model.graph.nodes if node.name == name for n in node.users]
    while waiting:
        node = waiting.pop(0)
        if node.name.startswith(("flatten", "transpose")):
            waiting.extend(node.users)
        if "quantized_decomposed.quantize_per_tensor.default" in str(node.target):
            return Grid(*node.args[1:5], str(node.args[5]).removeprefix("torch."))
        if node.target is torch.quantize_per_tensor:
            scale, zero = (getattr(model, str(argument.target)) for argument in node.args[1:3])
            return Grid(float(scale), int(zero), 0, 255)
    return None
