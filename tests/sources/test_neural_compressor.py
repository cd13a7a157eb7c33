"""Workspaces that Neural Compressor really wrote, against what others decoded, and what it got wrong put right."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from rich.console import Console

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import DataError
from inc_tb.frameworks.ops import Op, Pair
from inc_tb.measure import metrics
from inc_tb.measure.stats import PairStats
from inc_tb.show.trials import show_trial
from inc_tb.sources.imported import Imported
from inc_tb.sources.imports import find_sources
from inc_tb.sources.logged import log_runs
from inc_tb.sources.neural_compressor import workspace
from inc_tb.sources.neural_compressor.added import estimate_added
from inc_tb.sources.neural_compressor.diagnosed import Files, as_diagnosis, read_files
from inc_tb.sources.neural_compressor.dump import Dump
from inc_tb.sources.neural_compressor.layout import grid_of, weight_axis
from inc_tb.sources.neural_compressor.snapshot import read_history, read_log
from inc_tb.sources.neural_compressor.source import NeuralCompressor
from inc_tb.sources.neural_compressor.trials import Goal, as_trial, fallback_of, settings_of
from inc_tb.sources.pickles import read_pickle
from tests.digits import DATA
from tests.sources.workspaces import DIAGNOSED, HISTORIES, NAMES, PACKED, decoded, files_in, snapshot, tried, unpack
from tests.waiting import PATIENCE_S, until

CULPRITS = {
    "onnx": {"/conv1/Conv", "/conv2/Conv"}, "tensorflow": {"v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"},
    "torch": {"conv1", "conv2"},
}  # fmt: skip
LOG = PACKED / "tuning_log.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("nc_workspace"))


@pytest.fixture(scope="module")
def imported(folder: Path) -> dict[str, Imported]:
    return {found.name: found for found in inc_tb.import_workspace(folder)}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(["import", *map(str, arguments)])
    assert isinstance(exited.value.code, int)
    return exited.value.code, *capsys.readouterr()


def dumped(folder: Path, side: str) -> dict[str, Any]:
    found: dict[str, Any] = read_pickle(folder / "inspect_saved" / side / "inspect_result.pkl")
    return found


def table_of(found: Imported) -> dict[str, dict[str, Any]]:
    (diagnosis,) = [run.diagnosis for run in found.runs if run.diagnosis is not None]
    return {row["name"]: row for row in diagnosis.ops.rows()}


# What was tried


def test_all_are_found(imported: dict[str, Imported]) -> None:
    assert sorted(imported) == NAMES


@pytest.mark.parametrize("name", HISTORIES)
def test_trials_are_those_of_the_history(imported: dict[str, Imported], name: str) -> None:
    found, theirs = imported[name], decoded(name)
    assert [run.name for run in found.runs] == [f"trial-{trial['trial_number']:03d}" for trial in theirs["trials"]]
    for trial, expected in zip(found.trials, theirs["trials"], strict=True):
        is_evaluated = expected["accuracy"] != -1
        assert trial.accuracy == (expected["accuracy"] if is_evaluated else None)
        assert trial.fallback == [op for op, _, _ in expected["fallback"]]
        assert trial.objectives == ({"evaluation_s": expected["objectives"][0]} if is_evaluated else {})
        assert trial.config["calibration_samples"] == expected["calib_sampling_size"]
        assert trial.config["strategy"] == theirs["config"]["tuning_criterion"]["strategy"]
        for recipe, value in expected["recipe_cfgs"].items():
            assert value == {} or trial.config[recipe] == value
    told = found.to_json()
    assert told["trials"] == len(theirs["trials"])
    assert told["ops"] == theirs["trials"][-1]["n_ops"]
    assert told["baseline"] == (theirs["baseline"] and theirs["baseline"][0])
    assert told["best"] == (theirs["best_tune_result"] and theirs["best_tune_result"][0])


@pytest.mark.parametrize("name", HISTORIES)
def test_every_trial_says_how_each_op_was_configured(imported: dict[str, Imported], name: str) -> None:
    for run, expected in zip(imported[name].runs, decoded(name)["trials"], strict=True):
        assert run.diagnosis is not None
        assert run.trial is not None
        types = dict(zip(run.diagnosis.ops["name"].tolist(), run.diagnosis.ops["act_dtype"].tolist(), strict=True))
        assert len(types) == expected["n_ops"]
        assert [op for op, dtype in types.items() if not dtype] == sorted(run.trial.fallback, key=list(types).index)


def test_targets() -> None:
    """0.9 with a loss of 1 %: 0.891 relative, 0.89 absolute; of an error 0.909 and 0.91."""
    targets = [Goal(0.9, 0.01, relative, higher).target for higher in (True, False) for relative in (True, False)]
    assert targets == pytest.approx([0.891, 0.89, 0.909, 0.91])
    assert Goal(None).target is None
    # A log-likelihood, say: -2 may become -2.02, and as an error to be made small -1.98.
    assert [Goal(-2.0, 0.01, True, higher).target for higher in (True, False)] == pytest.approx([-2.02, -1.98])


def test_what_the_user_asked_for(tmp_path: Path) -> None:
    history = tmp_path / "history.snapshot"
    history.write_bytes(
        snapshot([tried(1, 3.1)], 3.0, criterion="absolute", tolerable_loss=0.2, higher_is_better=False)
    )
    (found,) = inc_tb.import_workspace(tmp_path)
    (trial,) = found.trials
    assert (trial.baseline, trial.target, trial.lower_is_better) == (3.0, pytest.approx(3.2), True)
    assert trial.drop == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("config", "fallback", "settings"),
    [
        ({}, [], {"calibration_samples": ""}),
        ({"op": {("a", "Conv"): {"activation": {"dtype": "bf16"}}}}, ["a"], {"activation_dtype": ""}),
        ({"op": {("a", "Linear"): {"activation": {"dtype": "fp32"}, "weight": {"dtype": "int4", "bits": 4}}}}, [],
         {"weight_dtype": "int4", "weight_bits": "4"}),
        ({"op": {"a": {"activation": {"dtype": "int8"}}, "b": {"activation": {"dtype": "uint8"}},
                 "c": {"activation": {"dtype": "uint8"}}}}, [], {"activation_dtype": "uint8 / int8"}),
        ({"op": {("a", "b", "c"): {"activation": {"dtype": "fp32"}}, "d": None}}, ["('a', 'b', 'c')"], {}),
    ],
)  # fmt: skip
def test_configs(config: dict[str, Any], fallback: list[str], settings: dict[str, Any]) -> None:
    assert fallback_of(config) == fallback
    assert settings.items() <= settings_of(config).items()


def test_results() -> None:
    """(-1, [0]) is what it writes without an evaluation function; several metrics are a list."""
    assert as_trial("t", Goal(0.5), (-1, [0]), {}).accuracy is None
    assert as_trial("t", Goal(0.5), (-1, [0.2]), {}).accuracy == -1
    several = as_trial("t", Goal(0.5), ([0.4, 0.3], [0.2, 7]), {}, ["performance", "modelsize"])
    assert (several.accuracy, several.objectives) == (0.4, {"evaluation_s": 0.2, "size_mb": 7})
    assert "several metrics" in several.notes[0]
    only_size = as_trial("t", Goal(0.5), (0.4, [float("nan"), 7]), {}, ["performance", "modelsize"])
    assert only_size.objectives == {"size_mb": 7}
    assert as_trial("t", Goal(0.5), 0.25, {}).accuracy == 0.25
    assert as_trial("t", Goal(0.5), None, {}).accuracy is None


# What it got wrong

NOTES = {
    "MSE (INC)": {"v241_onnx_qop_hard_diag", "v26_onnx_qop_clean_diag_CRASHED", "v26_tf_hard_diag",
                  "v26_torch213_hard_static_diag"},
    "its range is that of the output": {"v241_onnx_qop_hard_diag", "v26_onnx_qop_clean_diag_CRASHED"},
    "of an op with two inputs": {"v241_onnx_qop_hard_diag", "v26_onnx_qop_clean_diag_CRASHED"},
    "it kept different ones": {"v241_onnx_qop_hard_diag"},
    "2.5 and later keep only": {"v26_onnx_qop_clean_diag_CRASHED"},
    "activations that Neural Compressor dumped of the optimized model are 2 times too large": {"v26_tf_hard_diag"},
    "weights that Neural Compressor kept of the optimized model are 2 times too large": {"v26_tf_hard_diag"},
    "scaled as channel 0": {"v26_tf_hard_diag"},
    "before the ReLU": {"v26_torch213_hard_static_diag"},
    "of its history": {"v26_onnx_qop_hard_msev2_tune", "v26_tf_hard_mse_tune"},
    "no evaluation function": {"v241_onnx_qop_hard_diag_noeval"},
    "taken as a chain": {"v26_tf_hard_diag", "v26_torch213_hard_static_diag"},
    "is an estimate": {"v241_onnx_qop_hard_diag", "v26_onnx_qop_clean_diag_CRASHED", "v26_tf_hard_diag",
                       "v26_torch213_hard_static_diag"},
}  # fmt: skip


@pytest.mark.parametrize("words", NOTES)
def test_notes_are_where_they_apply_and_nowhere_else(imported: dict[str, Imported], words: str) -> None:
    assert {name for name, found in imported.items() if any(words in note for note in found.notes)} == NOTES[words]
    in_runs = {
        name
        for name, found in imported.items()
        for run in found.runs
        for note in [*(run.diagnosis.notes if run.diagnosis else ()), *(run.trial.notes if run.trial else ())]
        if words in note
    }
    assert in_runs == NOTES[words]


def test_no_other_notes(imported: dict[str, Imported]) -> None:
    others = {note for found in imported.values() for note in found.notes if not any(words in note for words in NOTES)}
    assert others == {"the model has 27,082 parameters"}


def test_trials_whose_number_is_not_their_place(imported: dict[str, Imported]) -> None:
    for name in HISTORIES:
        for trial, theirs in zip(imported[name].trials, decoded(name)["trials"], strict=True):
            has_note = any("of its history" in note for note in trial.notes)
            assert has_note == (theirs["trial_number"] != theirs["index"] + 1), (name, trial.name)


def normalized_mse(fp32: npt.NDArray[Any], int8: npt.NDArray[Any]) -> float:
    """As Neural Compressor computes it."""
    a, b = ((x - x.min()) / (x.max() - x.min()) for x in (fp32, int8))
    return float(((a - b) ** 2).mean())


def test_their_mse_is_with_the_tensor_that_it_is_about(imported: dict[str, Imported], folder: Path) -> None:
    """ONNX: that of /conv2/Conv is of what /conv1/Conv writes, with its ReLU; and of the first sample only."""
    place = folder / DIAGNOSED["onnx"]
    fp32, quan = (dumped(place, side)["activation"][0]["/conv2/Conv"] for side in ("fp32", "quan"))
    (r1,), (c1,) = fp32.values(), quan.values()
    with (place / "activations_table.csv").open() as file:
        printed = {row["OP name"]: float(row["MSE"]) for row in csv.DictReader(file)}
    assert normalized_mse(r1[0], c1[0]) == pytest.approx(printed["/conv2/Conv"], rel=1e-4)
    rows = table_of(imported[DIAGNOSED["onnx"]])
    assert rows["/conv1/Conv"]["a_inc_mse"] == printed["/conv2/Conv"]
    assert rows["/conv5/Conv"]["a_inc_mse"] == printed["/GlobalAveragePool"]
    assert printed["/Add"] not in [row["a_inc_mse"] for row in rows.values()]  # of two different tensors
    assert printed["/conv1/Conv"] not in [row["a_inc_mse"] for row in rows.values()]  # of the model's input


def test_our_columns_are_of_the_dumped_tensors(imported: dict[str, Imported], folder: Path) -> None:
    fp32, quan = (dumped(folder / DIAGNOSED["onnx"], s)["activation"][0]["/conv2/Conv"] for s in ("fp32", "quan"))
    (x,), (y,) = fp32.values(), quan.values()
    row = table_of(imported[DIAGNOSED["onnx"]])["/conv1/Conv"]
    error = np.square(x.astype(float) - y)
    assert row["a_sqnr_db"] == pytest.approx(10 * np.log10(np.square(x, dtype=float).sum() / error.sum()))
    assert row["a_mse"] == pytest.approx(error.mean())
    signal = np.square(x, dtype=float).sum((0, 2, 3))
    channels = 10 * np.log10(signal[signal > 0] / error.sum((0, 2, 3))[signal > 0])
    assert row["a_worst_channel_sqnr_db"] == pytest.approx(channels.min())
    assert (row["a_min"], row["a_max"]) == (x.min(), x.max())
    assert row["act_scale"] == pytest.approx(0.979, abs=1e-3)
    weights = [dumped(folder / DIAGNOSED["onnx"], s)["weight"]["/conv1/Conv"]["conv1.weight"] for s in ("fp32", "quan")]
    noise = np.square(weights[0].astype(float) - weights[1]).sum()
    assert row["w_sqnr_db"] == pytest.approx(10 * np.log10(np.square(weights[0], dtype=float).sum() / noise))


@pytest.mark.parametrize("framework", CULPRITS)
def test_the_culprits_are_found(imported: dict[str, Imported], framework: str) -> None:
    found = imported[DIAGNOSED[framework]]
    diagnosis = found.runs[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.samples == 16
    first = diagnosis.suggestions[0]
    assert first.rule == "outlier_channels"
    weighted = {row["name"] for row in diagnosis.ops.rows() if row["w_mse"] is not None}
    assert set(first.ops) & weighted == CULPRITS[framework]
    assert all(op in first.recipes["inc"].replace("\\", "") for op in CULPRITS[framework])
    assert next(iter(first.recipes)) == "inc"
    assert diagnosis.histograms
    assert diagnosis.channels


def test_the_culprit_is_worst_by_what_ops_add(imported: dict[str, Imported]) -> None:
    """Its own MSE has it last but one of eleven. What it reads was rounded, so its input's error is part of it."""
    for framework, worst in (("onnx", "/conv2/Conv"), ("tensorflow", "v0/cg/conv1/Conv2D")):
        diagnosis = imported[DIAGNOSED[framework]].runs[0].diagnosis
        assert diagnosis is not None
        first, second = diagnosis.worst(2)
        assert diagnosis.ops["name"][first] == worst
        assert diagnosis.ops["added_sqnr_db"][first] < 10 < 30 < diagnosis.ops["added_sqnr_db"][second]


def test_estimates_agree_with_what_was_measured_where_nothing_arrives(imported: dict[str, Imported]) -> None:
    """At the first convolution, which reads the model's input."""
    for framework, op in (("onnx", "/conv1/Conv"), ("tensorflow", "v0/cg/conv0/Conv2D"), ("torch", "conv1")):
        row = table_of(imported[DIAGNOSED[framework]])[op]
        assert row["added_sqnr_db"] == pytest.approx(row["a_sqnr_db"], abs=2.5), framework


def rounded(values: npt.NDArray[Any], step: npt.ArrayLike) -> npt.NDArray[Any]:
    return np.round(values / step) * np.asarray(step)


@pytest.mark.parametrize("framework", ["torch", "onnx", "tensorflow"])
def test_estimates_of_a_layer_whose_input_has_outliers(framework: str) -> None:
    """Against the layer itself, with everything rounded that its int8 kernel rounds."""
    random = np.random.default_rng(0)
    x = (random.normal(size=(4000, 16)) * np.where(np.arange(16) == 3, 100, 1)).astype(np.float32)
    weights = (random.normal(size=(8, 16)) / np.where(np.arange(16) == 3, 100, 1)).astype(np.float32)
    steps = {"x": np.abs(x).max() / 127, "w": np.abs(weights).max(axis=1, keepdims=True) / 127}
    y = x @ weights.T
    steps["y"] = np.abs(y).max() / 127
    x_int8, weights_int8 = rounded(x, steps["x"]), rounded(weights, steps["w"])
    truth = rounded(x_int8 @ weights_int8.T, steps["y"])
    measured = 10 * np.log10(np.square(y).sum() / np.square(y - truth).sum())
    axis, turned = (0, weights) if framework == "torch" else (1, weights.T)
    turned_int8 = weights_int8 if framework == "torch" else weights_int8.T
    pairs = [
        Pair("layer", "w", "weight", turned, turned_int8, axis), Pair("before", "x", "output", x, x_int8, 1),
        Pair("layer", "y", "output", y, truth, 1),
    ]  # fmt: skip
    grids = {name: grid_of("int8", float(steps[tensor]), 0) for name, tensor in (("before", "x"), ("layer", "y"))}
    ops = [
        Op("before", "Linear", 0, activation=grids["before"], consumers=["layer"]),
        Op("layer", "MatMul", 1, inputs=["before"], activation=grids["layer"]),
    ]
    weight = PairStats(axis)
    weight.update(turned, turned_int8)
    found = estimate_added(ops, Dump(pairs), {("layer", "weight"): weight}, framework)
    assert metrics.sqnr_db(found["layer", "isolated"]) == pytest.approx(measured, abs=0.5)
    assert measured < 15 < 25 < metrics.sqnr_db(found["before", "isolated"])  # type: ignore[operator]


def test_a_healthy_model_gets_no_suggestions(imported: dict[str, Imported]) -> None:
    diagnosis = imported[DIAGNOSED["crashed"]].runs[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.suggestions == []
    assert imported[DIAGNOSED["crashed"]].runs[0].name == "diagnosis"


def corrected(folder: Path, framework: str) -> dict[str, dict[str, Any]]:
    """Op -> both arrays of its weight and output, as compared."""
    from inc_tb.sources.neural_compressor import diagnosed, layout, pairing

    files = diagnosed.read_files(folder, [])
    (session,) = read_history(folder / "history.snapshot")
    attempt = session.attempts[-1]
    placed = layout.layout_of(attempt.tune_cfg, attempt.q_config, (), framework, files.ranges)
    found: dict[str, dict[str, Any]] = {}
    for pair in pairing.pair_up(files.sides, placed, framework, attempt.tune_cfg, files.ranges).pairs:
        found.setdefault(pair.op, {})[pair.role] = pair.reference, pair.quantized
    return found


def test_tensorflow_weights_are_halved_and_depthwise_ones_scaled_by_channel(folder: Path) -> None:
    """Afterwards rounding is at most half a step, which is a channel's largest weight over 127."""
    found = corrected(folder / DIAGNOSED["tensorflow"], "tensorflow")
    assert len(found) == 8
    for op, sides in found.items():
        if "weight" in sides:
            fp32, int8 = sides["weight"]
            axis = 2 if "dw" in op else 3 if fp32.ndim == 4 else None
            others = tuple(i for i in range(fp32.ndim) if i != axis) if axis is not None else None
            step = np.abs(fp32).max(axis=others, keepdims=True) / 127
            assert (np.abs(fp32 - int8) <= 0.502 * step).all(), op


def test_tensorflow_activations_are_on_the_grid_that_the_calibration_gives(folder: Path) -> None:
    found = corrected(folder / DIAGNOSED["tensorflow"], "tensorflow")
    ranges = read_pickle(folder / DIAGNOSED["tensorflow"] / "inspect_saved" / "activation_min_max.pkl")
    for op in ranges:
        if op != "v0/fc2/MatMul":  # whose output is a float in int8, too
            steps = found[op]["output"][1] / (ranges[op]["max"] / 255)
            np.testing.assert_allclose(steps, np.round(steps), atol=0.02, err_msg=op)
            assert steps.max() <= 255.01
    raw = dumped(folder / DIAGNOSED["tensorflow"], "quan")["activation"][0]
    for op in ("v0/fc2/MatMul", "v0/avgpool"):  # these it did not scale wrongly
        np.testing.assert_array_equal(found[op]["output"][1], raw[op][op])


def test_torch_is_compared_behind_the_relu_on_both_sides(folder: Path) -> None:
    found = corrected(folder / DIAGNOSED["torch"], "torch")
    raw = dumped(folder / DIAGNOSED["torch"], "fp32")["activation"][0]
    for op in ("conv1", "dw", "fc1"):
        np.testing.assert_array_equal(found[op]["output"][0], np.maximum(raw[op][f"{op}.output0"], 0))
    np.testing.assert_array_equal(found["fc2"]["output"][0], raw["fc2"]["fc2.output0"])
    assert "output" not in found["conv2"]  # it was dumped for the quantized model only


def test_only_the_range_of_weights(imported: dict[str, Imported]) -> None:
    found = imported[DIAGNOSED["crashed"]]
    row = table_of(found)["/conv1/Conv"]
    assert (row["w_min"], row["w_max"]) == (pytest.approx(-0.6819, abs=1e-4), pytest.approx(0.6311, abs=1e-4))
    assert row["w_sqnr_db"] is None
    assert row["act_scale"] == pytest.approx(1.6771 / 255, abs=1e-5)  # read off the values


def test_a_model_says_who_reads_whom(folder: Path) -> None:
    (found,) = inc_tb.import_workspace(
        folder / DIAGNOSED["tensorflow"], model=DATA.parent / "frameworks" / "data" / "hard_tf.pb"
    )
    diagnosis = found.runs[0].diagnosis
    assert diagnosis is not None
    assert not any("chain" in note for note in diagnosis.notes)
    assert CULPRITS["tensorflow"] < set(diagnosis.suggestions[0].ops)
    reasons = dict(zip(diagnosis.ops["name"].tolist(), diagnosis.ops["reason"].tolist(), strict=True))
    assert reasons["v0/dw/BiasAdd"] == "part of v0/dw/depthwise in the quantized model; compared there"


def test_ops_say_which_module_of_the_model_they_came_from(folder: Path, tmp_path: Path) -> None:
    """As torch's exporter notes it in the fp32 model."""
    model = onnx.load(DATA / "hard.onnx")
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'body.{node.op_type}', '{node.name}']")
    onnx.save(model, tmp_path / "exported.onnx")
    (found,) = inc_tb.import_workspace(folder / DIAGNOSED["onnx"], model=tmp_path / "exported.onnx")
    diagnosis = next(run.diagnosis for run in found.runs if run.diagnosis is not None)
    modules = {node.name: node.module for node in diagnosis.graph}
    assert modules["/conv1/Conv"] == modules["/conv2/Conv"] == "body.Conv"
    assert [node.module for node in diagnosis.graph] == diagnosis.ops["module"].tolist()


# Whatever is missing or broken


MISSING = [(name, file) for name in DIAGNOSED.values() for file in files_in(name)]


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04nonsense"], ids=["missing", "empty", "broken"])
@pytest.mark.parametrize(("name", "file"), MISSING)
def test_any_file_may_be_missing_or_broken(tmp_path: Path, name: str, file: str, content: bytes | None) -> None:
    unpack(tmp_path, [name])
    path = tmp_path / name / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    (found,) = inc_tb.import_workspace(tmp_path, tmp_path / "logs")
    assert found.runs
    for run in found.runs:
        logged = inc_tb.load(tmp_path / "logs" / found.name / run.name)
        assert logged.ops.count >= (16 if "onnx" in name else 7)
    is_read = file.endswith((".pkl", ".snapshot", ".onnx"))
    has_history = (tmp_path / name / "history.snapshot").exists()
    is_needed = not (has_history and file.endswith((".onnx", "cfg.pkl")))
    if content is not None and is_read and is_needed:
        assert any(path.name in note for note in found.notes), found.notes


def test_only_tables(tmp_path: Path, folder: Path) -> None:
    """TensorFlow's optimized weights are halved there, too; depthwise ones cannot be put right."""
    for name in ("activations_table.csv", "weights_table.csv"):
        shutil.copy(folder / DIAGNOSED["tensorflow"] / name, tmp_path)
    found = as_diagnosis({}, {}, read_files(tmp_path, []), "tensorflow")
    assert found is not None
    rows = {row["name"]: row for row in found.ops.rows()}
    conv, depthwise = rows["v0/cg/conv0/Conv2D"], rows["v0/dw/depthwise"]
    assert (conv["w_q_max"], conv["w_q_var"]) == (pytest.approx(295.2896 / 2), pytest.approx(2567.6875 / 4))
    assert (conv["w_max"], conv["a_max"]) == (pytest.approx(147.6448), pytest.approx(249.6496, abs=1e-4))
    assert depthwise["w_q_max"] is None
    assert depthwise["w_max"] == pytest.approx(0.77686584)
    assert any("2 times too large" in note for note in found.notes)
    (unknown,) = inc_tb.import_workspace(tmp_path)  # nothing says of which framework they are
    assert unknown.runs[0].diagnosis is not None


def test_an_mse_of_nobody_knows_what_is_left_out(tmp_path: Path, folder: Path) -> None:
    shutil.copy(folder / DIAGNOSED["onnx"] / "activations_table.csv", tmp_path)
    found = as_diagnosis({}, {}, read_files(tmp_path, []), "onnx")
    assert found is not None
    assert np.isnan(found.ops["a_inc_mse"]).all()
    assert any("those of the op's input" in note for note in found.notes)


def test_a_hostile_history_is_named_and_the_rest_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(tmp_path, [DIAGNOSED["torch"]])
    history = tmp_path / DIAGNOSED["torch"] / "history.snapshot"
    history.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "mark").encode() + b"'\ntR.")
    code, text, _ = run(capsys, tmp_path, "--logdir", tmp_path / "logs", "--json")
    (found,) = json.loads(text)["runs"]
    assert code == 0
    assert found["trials"] == 0
    (named,) = [note for note in found["notes"] if "history.snapshot" in note]
    assert "refers to 'os.system'" in named
    assert not (tmp_path / "mark").exists()
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(history, alone)
    code, _, said = run(capsys, alone, "--logdir", tmp_path / "logs")
    assert code == 2
    assert said.startswith(f"inc-tb: {alone / 'history.snapshot'}: refers to 'os.system'")
    assert said.count("\n") == 1


def test_a_history_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "history.snapshot").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(DataError, match=r"holds no tuning history; expected a history\.snapshot"):
        inc_tb.import_workspace(tmp_path)


def test_several_configurations_in_one_history(tmp_path: Path) -> None:
    (tmp_path / "history.snapshot").write_bytes(snapshot([tried(1, 0.5)], sessions=2))
    (found,) = inc_tb.import_workspace(tmp_path, tmp_path / "logs")
    assert [run.name for run in found.runs] == ["trial-001", "session-2/trial-001"]
    assert inc_tb.load(tmp_path / "logs" / found.name / "session-2" / "trial-001").trial == found.trials[1]


def test_a_log_of_two_tunings(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG.read_text() * 2 + "Tune 9 result is: [Accuracy (int8|fp32): nan|0.9000, x")
    (found,) = inc_tb.import_workspace(tmp_path / "a.log", tmp_path / "logs")
    names = [f"trial-{n:03d}" for n in (1, 2, 4, 5, 6)]
    assert [run.name for run in found.runs] == [*names, *(f"session-2/{name}" for name in (*names, "trial-009"))]
    assert found.trials[-1].accuracy is None
    assert inc_tb.import_workspace(tmp_path / "a.log", tmp_path / "logs")[0].name == "a"


ODD: dict[str, Any] = {
    "accuracy": tried(1, 10**400), "number": tried(10**400, 0.5), "large number": tried(int(1e300), 0.5),
    "nan": tried(1, float("nan")), "array": tried(1, np.array([0.5])), "text": tried(1, "much"), "none": tried(1, None),
    "negative": tried(-3, 0.5), "no config": {"tune_cfg": {}, "tune_result": 0.5}, "op": {"tune_cfg": {"op": [1]}},
    "settings": {"tune_cfg": {"op": {("a", "b"): {"weight": {"dtype": {"x": [1]}}, "activation": 3}},
                              "recipe_cfgs": {1: 2, "a": None}, "calib_sampling_size": np.arange(3)}},
    "scales": {"tune_cfg": {}, "q_config": {"op": {("a", "b"): {"scale_info": {"x": [1, 2, 3], "y": ["z", None]}}}}},
}  # fmt: skip


@pytest.mark.parametrize("entry", ODD.values(), ids=ODD)
def test_odd_values_in_a_history(tmp_path: Path, entry: dict[str, Any]) -> None:
    (tmp_path / "history.snapshot").write_bytes(snapshot([tried(1, 0.25), entry]))
    for _ in range(2):
        (found,) = inc_tb.import_workspace(tmp_path, tmp_path / "logs")
        assert (found.name, len(found.runs)) == (tmp_path.name, 2)
    accuracy = found.trials[1].accuracy
    assert accuracy in (None, 0.5)
    assert accuracy is not None or "the evaluation gave no finite number" in found.trials[1].notes


def test_one_that_cannot_be_imported_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.snapshot").write_bytes(snapshot([tried(1, 0.25)]))
    (tmp_path / "bad" / "history.snapshot").write_bytes(b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.")
    code, text, said = run(capsys, tmp_path, "--logdir", tmp_path / "logs", "--json")
    assert code == 0
    assert [found["name"] for found in json.loads(text)["runs"]] == ["good"]
    assert "Left out:" in said
    found = {imported.name: imported for imported in inc_tb.import_workspace(tmp_path, tmp_path / "again")}
    assert [name for name, imported in found.items() if not imported.runs] == ["bad"]
    assert "nested too deeply" in found["bad"].notes[0]


def save(folder: Path, side: str, weights: Any, activations: Any) -> None:
    place = folder / "inspect_saved" / side
    place.mkdir(parents=True, exist_ok=True)
    (place / "inspect_result.pkl").write_bytes(pickle.dumps({"weight": weights, "activation": activations}))


def save_one(folder: Path, reference: npt.NDArray[Any], quantized: npt.NDArray[Any]) -> Path:
    """A workspace of torch with what one op writes."""
    for side, values in (("fp32", reference), ("quan", quantized)):
        save(folder, side, {}, [{"a": {"a.output0": values.astype(np.float32)}}])
    (folder / "model_summary.txt").touch()
    return folder


def test_sequences_have_their_channels_last(tmp_path: Path) -> None:
    """Samples, tokens, features: one feature is 200 times as large as the others."""
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 12, 32)).astype(np.float32)
    x[:, :, 5] *= 200
    step = np.abs(x).max() / 127
    for side, values in (("fp32", x), ("quan", rounded(x, step))):
        save(tmp_path, side, {}, [{"a": {"a.output0": values[:4]}}, {"a": {"a.output0": values[4:]}}])
    (tmp_path / "model_summary.txt").write_text("Total params: 1")
    (found,) = inc_tb.import_workspace(tmp_path)
    diagnosis = found.runs[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.samples == 8
    assert diagnosis.ops["a_channel_ratio"][0] > 100
    assert len(diagnosis.channels[0].min) == 32


@pytest.mark.parametrize(("kind", "axis"), [("Conv1d", 1), ("BatchNorm1d", 1), ("Linear", 2), ("LayerNorm", 2)])
def test_channels_of_what_slides_over_a_sequence_come_first(kind: str, axis: int) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 6, 50)).astype(np.float32)
    np.moveaxis(x, axis, 0)[3] *= 200
    sides = {"fp32": x, "quan": rounded(x, np.abs(x).max() / 127)}
    files = Files({side: {"activation": [{"a": {"a.output0": values}}]} for side, values in sides.items()}, {}, {}, {})
    found = as_diagnosis({"op": {("a", kind): {}}}, {}, files, "torch")
    assert found is not None
    assert len(found.channels[0].min) == x.shape[axis]
    assert found.ops["a_channel_ratio"][0] > 100


@pytest.mark.parametrize(
    ("kind", "framework", "axis"),
    [
        ("Conv", "onnx", 0), ("MatMul", "onnx", 1), ("ConvTranspose", "onnx", 1), ("Conv2d", "torch", 0),
        ("ConvTranspose2d", "torch", 1), ("Linear", "torch", 0), ("Conv2D", "tensorflow", 3),
        ("DepthwiseConv2dNative", "tensorflow", 2), ("Conv2DBackpropInput", "tensorflow", 2),
    ],
)  # fmt: skip
def test_where_the_written_channels_are_in_the_weights(kind: str, framework: str, axis: int) -> None:
    assert range(4)[weight_axis(kind, framework)] == axis


def test_small_negative_values_that_round_to_zero_are_no_relu(tmp_path: Path) -> None:
    """GELU with a large value: none of its negative ones is as large as half a step."""
    x = np.random.default_rng(0).normal(size=(16, 64)) * 3
    gelu = x / (1 + np.exp(-1.702 * x))
    gelu[0, 0] = 120
    assert gelu.min() < -0.1
    (found,) = inc_tb.import_workspace(save_one(tmp_path, gelu, rounded(gelu, 120 / 255)))
    diagnosis = found.runs[0].diagnosis
    assert diagnosis is not None
    assert not any("ReLU" in note for note in found.notes)
    error = rounded(gelu, 120 / 255) - gelu
    assert diagnosis.ops["a_sqnr_db"][0] == pytest.approx(10 * np.log10(np.sum(gelu**2) / np.sum(error**2)), abs=0.01)


def test_odd_tensors(tmp_path: Path) -> None:
    odd = {
        "nan": np.full((2, 3), np.nan, np.float32), "inf": np.full((2, 3), np.inf), "empty": np.zeros((0, 10**9)),
        "scalar": np.array(2.0), "int8": np.arange(6, dtype=np.int8).reshape(2, 3), "text": np.array(["a"]),
        "objects": np.array([None, "x"]), "five": np.ones((2, 3, 4, 2, 2)), "zero": np.zeros((2, 8, 4, 4)),
        "shape": np.ones((2, 3)), "list": [1, 2], "none": None,
    }  # fmt: skip
    for side in ("fp32", "quan"):
        values = {**odd, "shape": np.ones((3, 2))} if side == "quan" else odd
        save(tmp_path, side, {name: {"w": value} for name, value in values.items()},
             [{name: {"t": value} for name, value in values.items()}, None, 3])  # fmt: skip
    (tmp_path / "inspect_saved" / "activation_min_max.pkl").write_bytes(
        pickle.dumps({"nan": {"min": np.nan, "max": 1}, "inf": {"min": "x", "max": []}, "five": {"min": 0, "max": 4}})
    )
    (tmp_path / "model_summary.txt").touch()
    (tmp_path / "activations_table.csv").write_text("OP name,MSE\n" + "".join(f"{name},1\n" for name in odd))
    (found,) = inc_tb.import_workspace(tmp_path, tmp_path / "logs")
    assert inc_tb.load(tmp_path / "logs" / found.name / "diagnosis").ops.count >= 5


def test_what_appears_later_does_not_make_another_run(tmp_path: Path) -> None:
    source = tmp_path / "2024"
    source.mkdir()
    (source / "history.snapshot").write_bytes(snapshot([tried(1, 0.5)]))
    inc_tb.import_workspace(source, tmp_path / "logs")
    (source / "deploy.yaml").write_text("device: cpu\n")
    shutil.copy(DATA / "bench_int8" / "diagnosis.log", source)
    for _ in range(2):
        inc_tb.import_workspace(source, tmp_path / "logs")
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["2024"]
    assert inc_tb.load(tmp_path / "logs" / "2024" / "profile").profile is not None


def test_equal_numbers_do_not_hide_each_other(tmp_path: Path) -> None:
    (tmp_path / "history.snapshot").write_bytes(snapshot([tried(1, 0.5), tried(1, 0.6), tried(1, 0.7, ["a"])]))
    (found,) = inc_tb.import_workspace(tmp_path)
    assert [run.name for run in found.runs] == ["trial-001", "trial-001-2", "trial-001-3"]
    assert [trial.accuracy for trial in found.trials] == [0.5, 0.6, 0.7]


def test_a_diagnosis_that_is_another_one_is_not_taken_for_the_first(tmp_path: Path) -> None:
    """In a folder of the same name, and later in the same folder."""
    random, logs = np.random.default_rng(0), tmp_path / "logs"
    x = random.normal(size=(16, 8, 4, 4))
    seen = []
    for place, noise in (("one", 0.001), ("two", 1.0), ("one", 0.3), ("one", 0.3)):
        random = np.random.default_rng(1)
        folder = save_one(tmp_path / place / "nc_workspace", x, x + noise * random.normal(size=x.shape))
        (found,) = inc_tb.import_workspace(folder, logs)
        seen.append(found.name)
        (read,), (logged,) = (
            ops["a_sqnr_db"].tolist()
            for ops in (found.runs[0].diagnosis.ops, inc_tb.load(logs / found.name / "diagnosis").ops)  # type: ignore[union-attr]
        )
        assert logged == pytest.approx(read)
    assert seen == ["nc_workspace", "nc_workspace-2", "nc_workspace-3", "nc_workspace-3"]


def test_trials_of_other_ops_or_settings_are_others(tmp_path: Path) -> None:
    """Without an evaluation nothing else tells them apart."""
    entries = [tried(1, -1), tried(1, -1, ops=("x", "y")), tried(1, -1)]
    entries[2]["tune_cfg"]["calib_sampling_size"] = 7
    seen = []
    for number, entry in enumerate(entries):
        folder = tmp_path / str(number) / "ws"
        folder.mkdir(parents=True)
        (folder / "history.snapshot").write_bytes(snapshot([{**entry, "tune_result": (-1, [0])}]))
        seen += [inc_tb.import_workspace(folder, tmp_path / "logs")[0].name for _ in range(2)]
    assert seen == ["ws", "ws", "ws-2", "ws-2", "ws-3", "ws-3"]


def test_tables_that_are_written_after_the_trial(tmp_path: Path) -> None:
    unpack(tmp_path, [DIAGNOSED["tensorflow"]])
    source, logs = tmp_path / DIAGNOSED["tensorflow"], tmp_path / "logs"
    shutil.rmtree(source / "inspect_saved")
    (source / "weights_table.csv").rename(tmp_path / "weights_table.csv")
    inc_tb.import_workspace(source, logs)
    run = logs / source.name / "trial-001"
    assert np.isnan(inc_tb.load(run).ops["w_inc_mse"]).all()
    (tmp_path / "weights_table.csv").rename(source / "weights_table.csv")
    inc_tb.import_workspace(source, logs)
    assert np.isfinite(inc_tb.load(run).ops["w_inc_mse"]).sum() == 7  # one has no weights


@pytest.mark.parametrize("framework", ["onnx", "torch"])  # with and without a config beside the tensors
def test_tensors_of_another_config_are_no_trials(tmp_path: Path, folder: Path, framework: str) -> None:
    """A diagnosis, then a tuning in the same process: both write to one folder."""
    source = shutil.copytree(folder / DIAGNOSED[framework], tmp_path / "2024")
    trials = snapshot([tried(1, 0.5), tried(2, 0.6, ["a"])], framework=framework)
    (source / "history.snapshot").write_bytes(trials)
    (found,) = inc_tb.import_workspace(source, tmp_path / "logs")
    measured = [run.name for run in found.runs if run.diagnosis is not None and run.diagnosis.samples]
    assert measured == ["diagnosis"]
    assert inc_tb.load(tmp_path / "logs" / found.name / "diagnosis").trial is None
    assert any("are of none of the trials" in note for note in found.notes)


def test_a_model_of_another_workspace(tmp_path: Path, folder: Path) -> None:
    """Its culprit is not lost: the ops are a chain as without a model. A folder may hold workspaces of several."""
    (plain,) = inc_tb.import_workspace(folder / DIAGNOSED["tensorflow"])
    (found,) = inc_tb.import_workspace(folder / DIAGNOSED["tensorflow"], model=DATA / "hard.onnx")
    assert any("does not have any op of this workspace, so it was not used" in note for note in found.notes)
    suggestions = [run.diagnosis.suggestions for run in (*plain.runs, *found.runs) if run.diagnosis is not None]
    assert suggestions[0][0].ops == suggestions[1][0].ops


def test_a_model_that_lacks_an_op(tmp_path: Path) -> None:
    model = onnx.load(DATA / "hard.onnx")
    nodes = [node.name for node in model.graph.node]
    config = {"op": {(name, ""): {"activation": {"dtype": "uint8"}} for name in [*nodes, "/extra/Conv"]}}
    entry = {**tried(1, 0.5), "tune_cfg": {**config, "trial_number": 1}}
    (tmp_path / "history.snapshot").write_bytes(snapshot([entry]))
    (found,) = inc_tb.import_workspace(tmp_path, model=DATA / "hard.onnx")
    assert [note for note in found.notes if "does not have /extra/Conv of this workspace, which" in note]


def test_only_new_trials_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tuning with many trials, while it runs beside."""
    made: list[str] = []

    def counted(*arguments: Any, names: tuple[str, str], **named: Any) -> Any:
        made.append(names[1])
        return as_diagnosis(*arguments, names=names, **named)

    monkeypatch.setattr(workspace, "as_diagnosis", counted)
    trials = [tried(number, number / 10) for number in range(1, 6)]
    (tmp_path / "history.snapshot").write_bytes(snapshot(trials))
    (found,) = inc_tb.import_workspace(tmp_path)
    assert not made
    log_runs(found, tmp_path / "logs", "here", known=[f"trial-{number:03d}" for number in range(1, 5)])
    assert made == [f"{tmp_path.name}, trial-005"]


# As runs


def test_logged_and_read_back(tmp_path: Path, folder: Path, imported: dict[str, Imported]) -> None:
    inc_tb.import_workspace(folder, tmp_path)
    for name, found in imported.items():
        for run in found.runs:
            logged = inc_tb.load(tmp_path / name / run.name)
            assert logged.trial == run.trial
            assert run.diagnosis is not None
            assert logged.diagnosis.notes == run.diagnosis.notes
            assert [s.ops for s in logged.suggestions] == [s.ops for s in run.diagnosis.suggestions]
            assert logged.ops["name"].tolist() == run.diagnosis.ops["name"].tolist()


def events(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*tfevents*"))


def test_importing_again_adds_what_has_come_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, logs = tmp_path / "nc_workspace" / "2024-01-01", tmp_path / "logs"
    source.mkdir(parents=True)
    (source / "history.snapshot").write_bytes(snapshot([tried(1, 0.5), tried(3, 0.6, ["a"])]))
    code, text, _ = run(capsys, tmp_path / "nc_workspace", "--logdir", logs)
    assert code == 0
    assert "Logged 2 new of 2 runs, 2 ops to" in text
    before = events(logs)
    assert "Nothing new: " in run(capsys, tmp_path / "nc_workspace", "--logdir", logs)[1]
    assert events(logs) == before
    (source / "history.snapshot").write_bytes(snapshot([tried(1, 0.5), tried(3, 0.6, ["a"]), tried(4, 0.7)]))
    assert "Logged 1 new of 3 runs" in run(capsys, tmp_path / "nc_workspace", "--logdir", logs)[1]
    assert inc_tb.load(logs / "2024-01-01" / "trial-004").trial.accuracy == 0.7  # type: ignore[union-attr]
    (source / "history.snapshot").write_bytes(snapshot([tried(1, 0.1)]))
    assert "Logged 1 new of 1 run, 2 ops" in run(capsys, tmp_path / "nc_workspace", "--logdir", logs)[1]
    assert inc_tb.load(logs / "2024-01-01-2" / "trial-001").trial.accuracy == 0.1  # type: ignore[union-attr]


def test_into_the_workspace_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `inc-tb import nc_workspace` does unless told otherwise."""
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024" / "history.snapshot").write_bytes(snapshot([tried(1, 0.5)]))
    for _ in range(2):
        code, text, _ = run(capsys, tmp_path, "--logdir", tmp_path, "--json")
        assert code == 0
        assert [found["name"] for found in json.loads(text)["runs"]] == ["2024"]
    assert inc_tb.load(tmp_path / "2024" / "trial-001").trial is not None
    assert sorted(path.name for path in (tmp_path / "2024").iterdir()) == [
        "activations_table.csv", "fp32", "history.snapshot", "trial-001", "weights_table.csv",
    ]  # fmt: skip


def test_tensors_that_are_dumped_after_the_trial(tmp_path: Path) -> None:
    unpack(tmp_path, [DIAGNOSED["onnx"]])
    dumps, logs = tmp_path / DIAGNOSED["onnx"] / "inspect_saved", tmp_path / "logs"
    dumps.rename(tmp_path / "later")
    for table in (tmp_path / DIAGNOSED["onnx"]).glob("*.csv"):
        table.rename(tmp_path / table.name)
    inc_tb.import_workspace(tmp_path / DIAGNOSED["onnx"], logs)
    run = logs / DIAGNOSED["onnx"] / "trial-001"
    assert inc_tb.load(run).suggestions == []
    (tmp_path / "later").rename(dumps)
    inc_tb.import_workspace(tmp_path / DIAGNOSED["onnx"], logs)
    assert CULPRITS["onnx"] < set(inc_tb.load(run).suggestions[0].ops)
    assert len(inc_tb.load(run).trials) == 1


def test_the_terminal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, folder / "v26_onnx_qop_hard_basic_tune", "--logdir", tmp_path)
    assert (code, said) == (0, "")
    assert text.count("\ntrial-") == 12
    assert "The best 12 of 60; all of them are in the log." in text
    assert "Logged 60 new of 60 runs, 18 ops" in text
    code, text, _ = run(capsys, folder / DIAGNOSED["onnx"], "--logdir", tmp_path, "--run", "mine")
    assert code == 0
    assert "op_name_dict" in text
    assert "note: ONNX: the tensor and the MSE" in text.replace("\n", " ")
    assert (tmp_path / "mine" / "trial-001").is_dir()


def test_a_log_where_nothing_else_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "2024").mkdir()
    shutil.copy(LOG, tmp_path / "2024" / "tuning.log")
    for given, name in ((tmp_path / "2024", "2024"), (LOG, "tuning_log")):
        code, text, _ = run(capsys, given, "--logdir", tmp_path / "logs", "--json")
        (found,) = json.loads(text)["runs"]
        assert code == 0
        assert (found["name"], found["trials"], found["baseline"], found["best"]) == (name, 5, 0.9698, 0.9738)
        logged = inc_tb.load(tmp_path / "logs" / name / "trial-005").trial
        assert logged is not None
        assert (logged.accuracy, logged.baseline, logged.target) == (0.9738, 0.9698, None)
        assert any("read off a log" in note for note in logged.notes)


def test_the_registry_of_neural_insights(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    registry = tmp_path / ".neural_compressor" / "neural_insights" / "config.json"
    code, _, said = run(capsys, "--insights", "--logdir", tmp_path / "logs")
    assert (code, "expected the registry of Neural Insights" in said, said.count("\n")) == (2, True, 1)
    registry.parent.mkdir(parents=True)
    known = {
        str(folder / "v26_onnx_qop_hard_msev2_tune"): (0.9698, 0.9698), str(folder / DIAGNOSED["crashed"]): (0.9, 0.8),
        str(DATA / "bench_int8"): (None, None), str(tmp_path / "gone"): (0.1, 0.1),
    }  # fmt: skip
    workloads = [
        {"uuid": str(i), "workload_name": "quantization", "framework": "onnxrt", "workload_location": place,
         "mode": "quantization", "status": "success", "creation_time": i,
         "accuracy_data": {"baseline_accuracy": told[0], "optimized_accuracy": told[1], "ratio": None}}
        for i, (place, told) in enumerate(known.items())
    ]  # fmt: skip
    registry.write_text(json.dumps({"version": 1, "workloads": workloads}))
    code, text, _ = run(capsys, "--insights", "--logdir", tmp_path / "logs", "--json")
    assert code == 0
    runs = json.loads(text)["runs"]
    assert [(found["name"], found["trials"]) for found in runs] == [
        ("v26_onnx_qop_hard_msev2_tune", 5), (DIAGNOSED["crashed"], 1), ("bench_int8", 0),
    ]  # fmt: skip
    logged = inc_tb.load(tmp_path / "logs" / DIAGNOSED["crashed"] / "diagnosis")
    assert logged.trial is not None
    assert (logged.trial.accuracy, logged.trial.baseline) == (0.8, 0.9)
    for content, told in (("[1]", "is not the registry"), ('{"workloads": []}', "none of its 0 workspaces")):
        registry.write_text(content)
        code, _, said = run(capsys, "--insights")
        assert (code, told in said, said.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "neither PATH nor --insights was given"), (("x", "--insights"), "both PATH and --insights were given"),
        (("nowhere", "--watch"), "expected the folder in which a tuning runs"), ((".",), "holds nothing to import"),
        ((".", "--model", "no.onnx"), "no.onnx: no such file"),
        ((".", "--watch", "--run", "../x"), "expected a name below the logdir"),
    ],
)  # fmt: skip
def test_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: Any, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, said = run(capsys, *arguments)
    assert (code, text, said.count("\n")) == (2, "", 1)
    assert told in said


@pytest.mark.parametrize("part", ["history.snapshot", "weights_table.csv", "inspect_saved"])
def test_a_part_of_a_workspace_stands_for_all_of_it(folder: Path, part: str) -> None:
    name = DIAGNOSED["torch"]
    (found,) = find_sources(folder / name / part)
    assert found[:2] == (folder / name, name)
    assert isinstance(found.source, NeuralCompressor)


def test_a_file_that_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.txt").write_text("hello")
    code, _, said = run(capsys, tmp_path / "some.txt", "--logdir", tmp_path / "logs")
    assert (code, said.count("\n")) == (2, 1)
    assert "some.txt: is neither a trace nor a log of a tuning; expected a workspace of Neural Compressor" in said


def test_a_diagnosis_that_is_there_already(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = folder / DIAGNOSED["torch"] / "history.snapshot"
    source = shutil.copytree(history.parent, tmp_path / "2024", ignore=lambda *_: {history.name})
    texts = [run(capsys, source, "--logdir", tmp_path / "logs")[1] for _ in range(2)]
    (count,) = re.findall(r"Logged (\d+) ops to", texts[0])
    assert "Logged" not in texts[1]
    assert f"2024hasall{count}ops." in "".join(texts[1].split())  # wherever the terminal has broken it


def test_a_trial_without_an_evaluation_has_not_failed(tmp_path: Path) -> None:
    out = io.StringIO()
    show_trial(Console(file=out, width=200), as_trial("t", Goal(0.5), (-1, [0]), tried(1, -1)["tune_cfg"]), False)
    show_trial(Console(file=out, width=200), read_log(LOG)[0].attempts[0].trial, False)
    evaluated, logged = out.getvalue().splitlines()
    assert evaluated.startswith("t  no accuracy  no op in fp32  Neural Compressor had no evaluation function")
    assert "in fp32" not in logged


def test_names_of_nested_workspaces(tmp_path: Path) -> None:
    for place in ("a/2024", "b/2024"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "history.snapshot").write_bytes(snapshot([tried(1, 0.5)]))
    assert [source.name for source in find_sources(tmp_path)] == ["a/2024", "b/2024"]
    (source,) = find_sources(tmp_path / "a" / "2024" / "history.snapshot")
    assert (source.name, source.path) == ("2024", tmp_path / "a" / "2024")


# While a tuning runs


class Watching(NamedTuple):
    """`inc-tb import --watch`, and what it has printed so far."""

    process: subprocess.Popen[bytes]
    output: Path

    def trials(self) -> list[list[str]]:
        lines = self.output.read_text().splitlines()
        return [line.split()[:2] for line in lines if line.startswith("trial-")]

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.trials()) >= count, self.trials)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    (tmp_path / "nc_workspace").mkdir()
    command = [sys.executable, "-u", "-m", "inc_tb.cli", "import", "nc_workspace", "--watch", "--logdir", "logs"]
    with (tmp_path / "printed").open("wb") as output:
        watcher = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
        yield Watching(watcher, tmp_path / "printed")
        watcher.kill()
        watcher.wait()


def put(history: Path, content: bytes) -> None:
    """As Neural Compressor does not, but a file is never read half."""
    (history.parent / "new").write_bytes(content)
    (history.parent / "new").replace(history)


def test_watching_a_tuning(tmp_path: Path, watching: Watching) -> None:
    """The file is replaced after every trial; half of one is not the end."""
    history = tmp_path / "nc_workspace" / "2024" / "history.snapshot"
    history.parent.mkdir()
    trials = [tried(1, 0.5), tried(2, 0.6, ["a"]), tried(4, 0.7)]
    for count in range(1, len(trials) + 1):
        whole = snapshot(trials[:count])
        history.write_bytes(whole[: len(whole) // 2])
        time.sleep(0.2)
        put(history, whole)
        watching.wait_for(count)
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(PATIENCE_S) == 0
    assert watching.trials() == [["trial-001", "0.5000"], ["trial-002", "0.6000"], ["trial-004", "0.7000"]]
    text = watching.output.read_text()
    assert "best so far" in text
    assert "no op in fp32, " not in text
    assert [path.parent.name for path in events(tmp_path / "logs" / "2024") if "trial" in str(path)] == [
        "trial-001", "trial-002", "trial-004",
    ]  # fmt: skip


def test_watching_a_second_tuning_in_the_same_folder(tmp_path: Path, watching: Watching) -> None:
    history = tmp_path / "nc_workspace" / "2024" / "history.snapshot"
    history.parent.mkdir()
    printed = 0
    for tuning in ([tried(1, 0.5), tried(2, 0.6)], [tried(1, 0.1), tried(2, 0.2), tried(3, 0.3)]):
        for count in range(1, len(tuning) + 1):
            put(history, snapshot(tuning[:count]))
            printed += 1
            watching.wait_for(printed)
    assert [told for _, told in watching.trials()] == ["0.5000", "0.6000", "0.1000", "0.2000", "0.3000"]
    for name, accuracies in (("2024", [0.5, 0.6]), ("2024-2", [0.1, 0.2, 0.3])):
        runs = sorted((tmp_path / "logs" / name).glob("trial-*"))
        assert [inc_tb.load(run).trial.accuracy for run in runs] == accuracies  # type: ignore[union-attr]
