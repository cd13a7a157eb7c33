"""`inc-tb diagnose --shard` and `inc-tb merge`: what several processes find is what one finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import yaml

import inc_tb
from inc_tb.cli import main
from inc_tb.measure.shardfiles import pack, read, store
from inc_tb.measure.shards import unpacked
from tests.documents.blocks import ROOT, blocks
from tests.example_run import make_models

SHARES = 4
EXACT = ("_min", "_max", "max_abs", "clipped", "params", "index", "scale", "zero_point", "worst_channel")


class Printed(NamedTuple):
    code: Any
    stdout: str
    stderr: str


Call = Callable[..., Printed]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Call:
    monkeypatch.chdir(folder)

    def called(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments)])
        return Printed(left.value.code, *capfd.readouterr())

    return called


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, 44 samples in 11 batches, and all shards of them."""
    place = tmp_path_factory.mktemp("shards")
    make_models(place)
    np.savez(place / "data.npz", input=np.random.default_rng(5).normal(size=(44, 2, 6, 6)).astype(np.float32))
    for share in (3, 1, 4, 2):  # in any order
        with pytest.raises(SystemExit) as left:
            main(diagnose(place, "--logdir", str(place / "logs"), "--shard", f"{share}/{SHARES}"))
        assert left.value.code == 0
    return place


def diagnose(place: Path, *more: str) -> list[str]:
    data = ["--data", str(place / "data.npz"), "--batch-size", "4"]
    return ["diagnose", str(place / "fp32.onnx"), str(place / "int8.onnx"), *data, *more]


def test_shards_make_the_run_of_one_process(call: Call, folder: Path, tmp_path: Path) -> None:
    assert not list((folder / "logs").rglob("*tfevents*"))
    done = call("merge", "logs/int8.shards", "--logdir", tmp_path, "--run", "merged", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 44
    assert call(*diagnose(folder, "--logdir", str(tmp_path), "--run", "whole", "--probe", "0")).code == 0
    merged, whole = (inc_tb.load(tmp_path / name).diagnosis for name in ("merged", "whole"))
    assert merged.histograms == whole.histograms
    assert merged.by_sample == whole.by_sample
    assert merged.graph == whole.graph
    told = [[(one.rule, one.ops, one.because) for one in found.suggestions] for found in (merged, whole)]
    assert told[0] == told[1] != []
    assert [c.name for c in merged.ops.columns] == [c.name for c in whole.ops.columns]
    for name in whole.ops:
        if whole.ops.column(name).type == "text" or name.endswith(EXACT):
            np.testing.assert_array_equal(merged.ops[name], whole.ops[name], err_msg=name)
    assert merged.origin is not None
    assert whole.origin is not None
    assert merged.origin.settings == {"batch_size": 4, "samples": 44, "shards": SHARES}
    assert msgspec.structs.replace(merged.origin, settings={}) == msgspec.structs.replace(whole.origin, settings={})
    same = call("compare", tmp_path / "whole", tmp_path / "merged", "--json")
    assert json.loads(same.stdout)["ok"] is True


def test_sums_are_those_of_one_process_to_nine_digits(call: Call, folder: Path, tmp_path: Path) -> None:
    """What the op table follows from; a table is stored with seven digits."""
    assert call(*diagnose(folder, "--logdir", str(tmp_path), "--shard", "1/1")).code == 0
    whole = unpacked(read(tmp_path / "int8.shards" / "1-of-1.shard").measured)
    from inc_tb.measure.shardfiles import files_of, merge

    merged = merge(files_of([folder / "logs" / "int8.shards"])).measured
    assert list(merged.stats) == list(whole.stats)
    for key, stats in whole.stats.items():
        other = merged.stats[key]
        np.testing.assert_array_equal(other.extremes, stats.extremes, err_msg=str(key))
        for mine, theirs in zip(other._histograms(), stats._histograms(), strict=True):
            assert mine.top == theirs.top
            np.testing.assert_array_equal(mine.counts, theirs.counts, err_msg=str(key))
        for name in ("count", "nonzero", "flushed", "clipped", "nonfinite_x", "nonfinite_y"):
            np.testing.assert_array_equal(other.channel_sums(name), stats.channel_sums(name), err_msg=name)
        size = np.abs(stats.sums).max(axis=0)  # sums of numbers of both signs may be next to nothing
        assert np.all(np.abs(other.sums - stats.sums) <= 1e-9 * size), key


def changed(path: Path, target: Path, **changes: Any) -> Path:
    store(target, msgspec.structs.replace(read(path), **changes))
    return target


def test_shards_that_do_not_belong_together_are_refused(call: Call, folder: Path, tmp_path: Path) -> None:
    shards = sorted((folder / "logs" / "int8.shards").iterdir())
    first = read(shards[0])

    def refused(*given: Path) -> str:
        done = call("merge", *given, "--logdir", tmp_path / "logs", "--run", "merged")
        assert (done.code, done.stdout) == (2, "")
        assert not (tmp_path / "logs").exists(), "nothing half written"
        (line,) = done.stderr.splitlines()
        return line

    assert "2 shards of 4 are missing: 2, 4. Measure the rest" in refused(shards[0], shards[2])
    assert "1 shard of 4 is missing: 4." in refused(*shards[:3])
    copy = Path(shutil.copy(shards[0], tmp_path / "copy.shard"))
    assert "are both shard 1/4; each counts once" in refused(*shards, copy)
    origin = first.origin
    for changes, words in (
        ({"origin": msgspec.structs.replace(origin, quantized="other")}, "are of two quantized models"),
        ({"origin": msgspec.structs.replace(origin, reference="other")}, "are of two fp32 models"),
        ({"count": 5}, "are one of "),
        ({"asked": {"batch-size": 8, "samples": None}}, "were measured with other options (--batch-size)"),
        ({"ops": first.ops[:-1]}, "have other ops"),
    ):
        assert words in refused(changed(shards[0], tmp_path / "other.shard", **changes), *shards[1:])
    assert "is no shard; expected a file that inc-tb diagnose --shard has written" in refused(folder / "data.npz")
    assert "no shards there" in refused(tmp_path / "nothing")
    cut = tmp_path / "cut.shard"
    cut.write_bytes(shards[0].read_bytes()[:-9])
    assert "is damaged or cut off; measure this shard again" in refused(cut)
    newer = changed(shards[0], tmp_path / "newer.shard", version=9)
    assert "has version 9, this inc-tb reads up to 1. Update inc-tb." in refused(newer)


def test_what_differs_between_machines_is_a_note(call: Call, folder: Path, tmp_path: Path) -> None:
    first, *others = sorted((folder / "logs" / "int8.shards").iterdir())
    origin = read(first).origin
    other = msgspec.structs.replace(origin, versions={**origin.versions, "onnxruntime": "1.0"}, cpu=["other"])
    one = changed(first, tmp_path / "one.shard", origin=other)
    assert call("merge", one, *others, "--logdir", tmp_path, "--run", "merged").code == 0
    notes = inc_tb.load(tmp_path / "merged").diagnosis.notes
    assert f"the shards were measured with onnxruntime 1.0 and {origin.versions['onnxruntime']}" in notes
    assert "the shards were measured on different kinds of processors" in notes
    again = call("merge", one, *others, "--logdir", tmp_path, "--run", "merged")
    assert again.code == 2
    assert again.stderr.endswith("choose another name.\n")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--shard", "0/4"], "--shard 0/4 was given; expected which one of how many"),
        (["--shard", "5/4"], "expected which one of how many"),
        (["--shard", "x"], "expected which one of how many"),
        (["--shard", "1/2", "--probe", "3"], "--shard was given with --probe"),
        (["--shard", "1/2", "--verify"], "--shard was given with --verify"),
        (["--shard", "1/2", "--csv", "out"], "--shard was given with --csv"),
        (["--shard", "12/12"], "--shard 12/12: the data has fewer than 12 batches"),
    ],
)
def test_wrong_use_is_one_line(more: list[str], words: str, call: Call, folder: Path, tmp_path: Path) -> None:
    done = call(*diagnose(folder, "--logdir", str(tmp_path / "logs"), *more))
    assert (done.code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line
    assert not (tmp_path / "logs").exists()


def test_a_shard_that_is_measured_again_takes_the_place_of_the_first(call: Call, folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = call(*diagnose(folder, "--logdir", str(tmp_path), "--run", "again", "--shard", "2/4", "--json"))
        assert json.loads(done.stdout) == {
            "shard": "2/4", "file": str(tmp_path / "again.shards" / "2-of-4.shard"), "samples": 12,
        }  # fmt: skip
    assert [path.name for path in (tmp_path / "again.shards").iterdir()] == ["2-of-4.shard"]


def test_the_kubernetes_job_of_the_page_measures_its_shard(folder: Path, tmp_path: Path) -> None:
    (job,) = (yaml.safe_load(block.code) for block in blocks("docs/scale.md") if block.language == "yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    for name in ("fp32.onnx", "int8.onnx"):
        shutil.copy(folder / name, tmp_path)
    shutil.copy(folder / "data.npz", tmp_path / "samples.npz")
    shares = job["spec"]["completions"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [part.replace("cd /data", "true") for part in container["command"]]
    there = {**os.environ, "PATH": path, "JOB_COMPLETION_INDEX": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "nc_workspace" / "int8.shards" / f"2-of-{shares}.shard").place == 2


def test_an_array_of_objects_is_refused(tmp_path: Path, folder: Path) -> None:
    """It would be a pickle, which can execute anything."""
    path = next((folder / "logs" / "int8.shards").iterdir())
    shard = read(path)
    scale = {"dtype": "|O", "shape": [1], "data": b"12345678"}
    plain = msgspec.to_builtins(shard, enc_hook=lambda value: value.tolist(), builtin_types=(bytes,))
    op = next(op for op in plain["ops"] if op["activation"])
    op["activation"].update(scale=scale, zero_point=None)
    for each in plain["ops"]:
        if each is not op:
            each.update(activation=None, weight=None)
        else:
            each.update(weight=None)
    hostile = msgspec.structs.replace(pack(unpacked(shard.measured), **{
        name: getattr(shard, name) for name in shard.__struct_fields__ if name not in ("measured", "version")
    }), ops=plain["ops"])  # fmt: skip
    store(tmp_path / "hostile.shard", hostile)
    with pytest.raises(inc_tb.IncTbError, match="cannot be read"):
        read(tmp_path / "hostile.shard")
