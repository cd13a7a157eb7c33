"""Diagnoses of any size that were not measured: for what only shows with many ops and many runs.

The numbers are random but of the shape and size that real ones have, so that they compress as badly.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import inc_tb
from inc_tb.advise.configs import fitted
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.patterns import pattern_of
from inc_tb.frameworks.templates import write
from inc_tb.measure.by_sample import BySample
from inc_tb.measure.op_table import COLUMNS
from inc_tb.profiling.profile import Profile
from inc_tb.records import (
    ChannelRow,
    Effect,
    GraphNode,
    HistogramRow,
    OpTable,
    ProfileRow,
    SampleRow,
    Span,
    Suggestion,
    Trial,
)

BLOCK = ("attention/qkv/MatMul", "attention/Softmax", "attention/out/MatMul", "Add", "norm/LayerNormalization",
         "mlp/up/MatMul", "mlp/Gelu", "mlp/down/MatMul", "Add_1", "norm_1/LayerNormalization")  # fmt: skip
SETTINGS = Settings(per_channel=True, activation="uint8", weight="int8")
MISSING = "needs a probe of the outputs, which has not run"


def make_graph(ops: int) -> list[GraphNode]:
    """A transformer: layers with two residual sums each, names as torch exports them."""
    nodes: list[GraphNode] = []
    for i in range(ops):
        layer, place = divmod(i, len(BLOCK))
        kind = BLOCK[place]
        reads = [nodes[-1].name] if nodes else []
        if kind.startswith("Add") and i >= 4:
            reads.append(nodes[-4].name)
        op_type = kind.rpartition("/")[2].partition("_")[0]
        name = f"/encoder/layer.{layer}/{kind}"
        nodes.append(GraphNode(name, op_type, reads, f"{name}_output_0"))
    return nodes


def make_diagnosis(
    ops: int, seed: int = 0, *, columns: int | None = None, detail: int | None = None
) -> inc_tb.Diagnosis:
    """`columns` limits the table, `detail` how many ops have histograms and channels (all unless told)."""
    random = np.random.default_rng(seed)
    graph = make_graph(ops)
    added = random.normal(38, 4, ops)
    culprits = random.choice(ops, max(1, ops // 500), replace=False)
    added[culprits] = random.uniform(2, 14, len(culprits))
    verdict = np.where(added < 15, "bad", np.where(added < 25, "watch", "ok"))
    known = {
        "name": [node.name for node in graph], "type": [node.type for node in graph],
        "block": [node.name.rpartition("/")[0] for node in graph],
        "unit": [graph[i - (i % 10 == 3)].name for i in range(ops)],
        "weight_dtype": ["int8" if node.type == "MatMul" else "" for node in graph],
        "weight_granularity": ["per channel" if node.type == "MatMul" else "" for node in graph],
        "act_dtype": ["uint8"] * ops, "act_scheme": ["asymmetric"] * ops, "verdict": verdict.tolist(),
        "sensitivity_rank": [""] * ops, "module": [""] * ops,
        "reason": [
            f"part of {graph[i - 1].name}: compared there" if i % 10 == 3
            else f"adds noise: {a:.1f} dB where over 25 is usual" if a < 25 else ""
            for i, a in enumerate(added)
        ],
        "index": np.arange(ops, dtype=float), "added_sqnr_db": added, "arrived_sqnr_db": random.normal(30, 5, ops),
        # the same reference in every run, by which its folder is told from those of other models
        **dict(zip(("w_min", "w_max"), np.random.default_rng(ops).lognormal(0, 1, (2, ops)), strict=True)),
        "total_sqnr_db": np.minimum(added, random.normal(29, 5, ops)), "params": random.integers(0, 1 << 20, ops) * 1.0,
    }  # fmt: skip
    chosen = [*COLUMNS] if columns is None else [c for c in COLUMNS if c.name in known][:columns]
    chosen += [c for c in COLUMNS if c not in chosen][: (columns or 0) - len(chosen)]
    arrays, reasons = [], {}
    for column in chosen:
        empty = column.type == "number" and column.name.startswith(("sensitivity", "recovery", "time_", "convert"))
        values = known.get(column.name, np.full(ops, np.nan) if empty else random.lognormal(0, 1, ops))
        arrays.append(np.array(values, dtype=object if column.type == "text" else np.float64))
        if empty:
            reasons[column.name] = [MISSING] * ops
        elif column.name.startswith(("a_", "w_")):  # every tenth op was folded into another
            arrays[-1][3::10] = np.nan
            reasons[column.name] = [
                f"part of {graph[i - 1].name}: compared there" if i % 10 == 3 else "" for i in range(ops)
            ]
    names = [node.name for node in graph]
    rows = range(ops if detail is None else min(ops, detail))
    worst = culprits[np.argsort(added[culprits])][:8]
    return inc_tb.Diagnosis(
        OpTable(chosen, arrays, reasons),
        [_suggestion(rank, names, int(at)) for rank, at in enumerate(worst, start=1)],
        [_histogram(names[i], random) for i in rows],
        [_channels(names[i], random) for i in rows],
        graph, "encoder.onnx", "encoder-int8.onnx", "onnx", 256,
    )  # fmt: skip


def _suggestion(rank: int, names: list[str], at: int) -> Suggestion:
    ops = names[at : at + 2]
    because = f"quantizing it leaves {names[at]} 8.0 dB signal to noise where over 25 is healthy"
    effects = [
        Effect("recovers", "less added noise", 0.5 / rank, "share", "estimated", "the share of these ops in all noise"),
        Effect("costs", "larger weights", 49152.0 * rank, "bytes", "counted", "4 bytes a weight instead of 1"),
    ]
    evidence = {"op": names[at], "added_sqnr_db": 8.0, "channel_ratio": 40.0, "channels": [3, 7]}
    texts = {f.recipe.tool: write(f.recipe, ops, {}) for f in fitted("onnx", SETTINGS)}
    return Suggestion(ops, "outlier_channels", because, evidence, texts, pattern_of(ops, names), rank, effects)


def _histogram(op: str, random: np.random.Generator) -> HistogramRow:
    bins = np.arange(700, 1000, 2)
    counts = (1e4 * np.exp(-(((bins - 900) / 60.0) ** 2))).astype(int) + 1
    counts = random.poisson(counts)
    pairs = np.stack([bins, counts], axis=1)
    flat, coarse = pairs.ravel().tolist(), pairs[::3].ravel().tolist()
    return HistogramRow(op, "output", 130, flat, coarse, 120, flat, (-4.0, 12.0), 16 / 255)


def _channels(op: str, random: np.random.Generator) -> ChannelRow:
    reach = random.lognormal(0, 0.5, 64)
    reach[7] *= 40
    columns = [(-reach).tolist(), reach.tolist(), (-reach).tolist(), (reach * 0.9).tolist()]
    return ChannelRow(op, "output", *columns, random.normal(25, 8, 64).tolist())


def probed(diagnosis: inc_tb.Diagnosis, samples: int = 64, seed: int = 5) -> inc_tb.Diagnosis:
    """With effects at the output that follow what ops add, and errors of samples."""
    random = np.random.default_rng(seed)
    ops, added = diagnosis.ops, diagnosis.ops["added_sqnr_db"]
    effect = 10 ** (-added / 10)
    table = ops.replaced({"sensitivity": effect.tolist()})
    worst = np.argsort(added)
    hard = random.lognormal(0, 1, samples)
    rows = []
    for row in {*worst[:40].tolist(), ops.count - 1}:
        power = random.lognormal(0, 0.2, samples)
        error = power * hard * 10 ** (-added[row] / 10) / hard.mean()
        parts = (np.asarray(part, np.float32).tobytes() for part in (power, error, error * 0.8))
        rows.append(SampleRow(str(ops["name"][row]), *parts, is_output=row == ops.count - 1))
    return replace(diagnosis, ops=table, by_sample=BySample(random.bytes(8 * samples), rows))


def make_profile(graph: list[GraphNode], seed: int = 0) -> Profile:
    """Every op once on one of two threads, Gelu as part of the MatMul before it; the last row is no op's."""
    random = np.random.default_rng(seed)
    rows: list[ProfileRow] = []
    clock = {"fp32": 0.0, "int8": 0.0}
    for i, node in enumerate(graph):
        if node.type == "Gelu":
            rows[-1].ops = [node.name]
            continue
        heavy = node.type == "MatMul"
        fp32 = float(random.uniform(200, 400) if heavy else random.uniform(5, 30))
        int8 = fp32 * float(random.uniform(0.3, 0.6) if heavy else random.uniform(0.8, 1.6))
        spans = []
        for model, duration in (("fp32", fp32), ("int8", int8)):
            spans.append(Span(model, i % 2, clock[model], duration))  # type: ignore[arg-type]
            clock[model] += duration
        difference, noise = 1.1 * int8 - fp32, fp32 / 5
        low, high = difference - noise, difference + noise
        rows.append(ProfileRow(
            node.name, node.type, fp32, int8, int8 / 10, fp32 * 1.2, int8 * 1.2, not low < 0 < high, spans,
            fp32 * 1.05, int8 * 1.05, difference_us=difference, low_us=low, high_us=high,
        ))  # fmt: skip
    total = ProfileRow(
        "", "", 30_000.0, 16_000.0, 0.0, 33_000.0, 17_500.0, differs=True,
        difference_us=-13_900.0, low_us=-14_250.0, high_us=-13_600.0,
    )  # fmt: skip
    return Profile(
        [*rows, ProfileRow("", "", 120.0, 140.0)], total, "encoder.onnx", "encoder-int8.onnx", "onnx", 50, 2, 8,
        {"fp32": 0.031, "int8": 0.052}, notes=["3 ops of fp32 have another name in int8"],
    )  # fmt: skip


def make_trials(logdir: Path, count: int, diagnosis_of: list[inc_tb.Diagnosis]) -> None:
    """A search whose accuracy rises while more ops stay in fp32 and the model gets slower."""
    random = np.random.default_rng(3)
    names = list(diagnosis_of[0].ops["name"])
    for i in range(count):
        accuracy = 0.76 - 0.1 * np.exp(-i / max(1, count / 4)) + random.normal(0, 0.004)
        objectives = {"latency_ms": 4 + 2.5 * i / count + float(random.normal(0, 0.3)), "size_mb": 25 + 60 * i / count}
        trial = Trial(
            f"trial-{i:03}", float(accuracy), 0.765, names[: 2 * i], {"calibration": "minmax" if i % 2 else "entropy"},
            objectives, 12.5, target=0.757,
        )  # fmt: skip
        with inc_tb.SummaryWriter(logdir / trial.name) as writer:
            writer.add_diagnosis(diagnosis_of[i % len(diagnosis_of)])
            writer.add_trial(trial)
            if i == 0:
                writer.add_profile(make_profile(diagnosis_of[0].graph))
