"""Scripts written for a workspace of Neural Compressor go on working in it, whatever we have written there last."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from glob import glob
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import inc_tb
from inc_tb.cli import main
from inc_tb.integrations.neural_compressor.trial_log import TrialLog, Tuning
from inc_tb.measure.tables import ACTIVATIONS, TABLES, WEIGHTS
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.tables import has_tables
from inc_tb.store.workspace import put_tables
from inc_tb.store.writer import SummaryWriter
from tests.digits import DATA, digits
from tests.example_run import batches, make_diagnosis, make_models
from tests.sources.workspaces import DIAGNOSED, NAMES, unpack

TITLES = {table.file: list(table.theirs) for table in TABLES}


def newest() -> tuple[pd.DataFrame, pd.DataFrame]:
    """As "Step by step example how to debug accuracy with Neural Insights" has it."""
    subfolders = glob("./nc_workspace" + "/*/")
    subfolders.sort(key=os.path.getmtime, reverse=True)
    activations_table = pd.read_csv(os.path.join(subfolders[0], "activations_table.csv"))
    weights_table = pd.read_csv(os.path.join(subfolders[0], "weights_table.csv"))
    activations_table["Min-Max data range"] = activations_table["Activation max"] - activations_table["Activation min"]
    sorted_data = activations_table.sort_values(by="Min-Max data range", ascending=False)
    return sorted_data, weights_table


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as exited:
        main(list(map(str, arguments)))
    assert not exited.value.code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", input=digits(16))
    return tmp_path


def everywhere() -> None:
    """In each folder, so that it does not matter when a copy was made of which."""
    for folder in glob("./nc_workspace/*/"):
        for name, titles in TITLES.items():
            with Path(folder, name).open() as file:
                assert next(csv.reader(file))[: len(titles)] == titles


@pytest.mark.parametrize("name", NAMES)
def test_after_an_import_into_the_same_folder(here: Path, name: str) -> None:
    theirs = unpack(here / "nc_workspace", [name]) / name
    before = {file: (theirs / file).read_bytes() for file in TITLES if (theirs / file).exists()}
    for _ in range(2):
        run("import", "nc_workspace")
        activations, weights = newest()
        everywhere()
        # There is nothing to tell of trials of which Neural Compressor kept no tensors.
        has_numbers = activations["Min-Max data range"].notna().any(), len(weights) > 0
        assert has_numbers == (name in DIAGNOSED.values(), name in DIAGNOSED.values())
    assert before == {file: (theirs / file).read_bytes() for file in before}
    # Ours are no workspace of Neural Compressor's: nothing is imported twice.
    assert {path.name for path in (here / "nc_workspace").iterdir()} == {name}


def test_after_an_import_of_many(here: Path) -> None:
    unpack(here / "nc_workspace")
    run("import", "nc_workspace")
    newest()
    everywhere()
    unpack(here / "elsewhere", [DIAGNOSED["onnx"]])
    run("import", "elsewhere", "--run", "far/below")
    activations, weights = newest()
    everywhere()
    assert len(activations) > 5
    assert len(weights) > 5


def test_after_diagnose_profile_and_tune(here: Path, quantized: Callable[..., Path]) -> None:
    hard, int8 = DATA / "hard.onnx", quantized("hard")
    run("diagnose", hard, int8, "--data", "data.npz")
    first, weights = newest()
    # The first document finds its culprits by the range; here conv2's has outlier channels in front of it.
    assert first["OP name"].iloc[0] in ("/conv1/Conv", "/Relu")
    assert len(weights) == 8
    run("profile", hard, "--data", "data.npz", "--runs", 1)
    assert len(newest()[0]) == 0  # nothing was compared, which is no reason to fail
    run("diagnose", hard, int8, "--data", "data.npz", "--run", "deep/er")
    assert newest()[0]["OP name"].tolist() == first["OP name"].tolist()
    everywhere()
    tuned = inc_tb.tune(
        hard, "data.npz", lambda model: 0.5 + 0.5 * (model == hard), max_trials=2, strategy="basic", objectives=()
    )
    everywhere()
    activations, _ = newest()
    with open(f"nc_workspace/{tuned.best.name}/activations_table.csv") as file:
        assert [row["OP name"] for row in csv.DictReader(file)] == pd.read_csv(file.name)["OP name"].tolist()
    assert Path("nc_workspace", tuned.best.name).stat().st_mtime_ns == max(
        Path(folder).stat().st_mtime_ns for folder in glob("./nc_workspace/*/")
    )
    assert len(activations) == 11


def test_a_live_log_of_a_second_tuning(here: Path) -> None:
    fp32, int8 = make_models(here)
    for _ in range(2):
        log = TrialLog(here / "nc_workspace", data=None, samples=4, diagnose=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("inc_tb.integrations.neural_compressor.trial_log.warn", lambda *_: None)
            Tuning(log, str(fp32), batches).add(1, lambda name: Trial(name, 0.9), str(int8))
    assert {path.name for path in (here / "nc_workspace").iterdir()} == {"trial-001", "tuning-2", "fp32"}
    everywhere()
    assert len(newest()[0]) == 5  # each Relu is part of its Conv


def test_the_tables_of_a_run_are_those_of_its_newest_diagnosis(here: Path) -> None:
    folder = here / "nc_workspace" / "mine"
    with SummaryWriter(folder) as writer:
        assert newest()[0].empty
        writer.add_diagnosis(make_diagnosis(here))
        assert newest()[0]["type"].value_counts()["Conv"] == 2
        writer.add_diagnosis(make_diagnosis(here, outlier=1.0))
        healthy = newest()[0]
        writer.add_trial(Trial("mine", 0.5))
    assert newest()[0].equals(healthy)
    logged = inc_tb.load(folder).diagnosis
    for _, row in healthy.iterrows():
        at = logged.ops["name"].tolist().index(row["OP name"])
        for title, column in ACTIVATIONS.theirs.items():
            assert row[title] == (pytest.approx(logged.ops[column][at], rel=1e-6) if title != "OP name" else row[title])
        assert row["a_mse"] == pytest.approx(logged.ops["a_mse"][at], rel=1e-6)
        assert row["a_range"] == pytest.approx(row["Min-Max data range"], rel=1e-5)
    reference = pd.read_csv("nc_workspace/fp32/activations_table.csv")
    assert reference["Activation max"].notna().all()
    assert reference["MSE"].isna().all()  # it is compared with nothing


def test_a_run_that_is_written_whole_or_not_at_all(here: Path) -> None:
    folder = here / "nc_workspace" / "whole"
    with suppress(KeyboardInterrupt), SummaryWriter(folder, whole=True) as writer:
        writer.add_diagnosis(make_diagnosis(here))
        raise KeyboardInterrupt
    assert not folder.exists()
    with SummaryWriter(folder, whole=True) as writer:
        writer.add_diagnosis(make_diagnosis(here))
        assert not list(folder.glob("*.csv"))
    assert len(newest()[0]) == 5  # each Relu is part of its Conv


def test_threads_that_share_a_run(here: Path) -> None:
    diagnosis = make_diagnosis(here)
    folder = here / "nc_workspace" / "shared"
    folder.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: put_tables(folder, diagnosis), range(40)))
    assert sorted(path.name for path in folder.iterdir()) == sorted(TITLES)
    assert len(newest()[0]) == 5


def test_neural_compressors_own_tables_stay(here: Path) -> None:
    theirs = unpack(here, [DIAGNOSED["onnx"]]) / DIAGNOSED["onnx"]
    before = {file: (theirs / file).read_bytes() for file in TITLES}
    with SummaryWriter(theirs) as writer:
        writer.add_diagnosis(make_diagnosis(here))
    assert before == {file: (theirs / file).read_bytes() for file in TITLES}
    assert has_tables(theirs, [WEIGHTS.file])
    assert not has_tables(theirs.parent / "fp32", list(TITLES))
