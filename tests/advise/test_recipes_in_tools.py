"""Every config, run by the tool that it is for: the named ops stay in fp32, the others do not, accuracy comes back.

Most of the tools want other versions of things than the tests, so each gets a venv of its own, which is gone
afterwards. What fits beside the tests' packages is put on top of them, which spares another torch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.advise.configs import fitted
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.onnx import cure_formats
from inc_tb.frameworks.templates import write
from tests.digits import DATA, digits

pytestmark = pytest.mark.slow
needs_numpy_1 = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="wants numpy 1, which has no wheel for this Python"
)

ROOT = Path(__file__).parents[2]
QUANTIZED = Settings(per_channel=False, activation="int8", weight="int8")
STATIC = {f.recipe.tool: f.recipe for f in fitted("onnx", QUANTIZED)}
DYNAMIC = {f.recipe.tool: f.recipe for f in fitted("onnx", QUANTIZED._replace(dynamic=True))}
CURES = {cure.tool for cure in cure_formats.FORMATS}
CASES = {"int8": ["/Flatten"], "convs": ["/conv1/Conv", "/conv2/Conv"], "head": ["/fc1/MatMul", "/fc2/Gemm"]}
"""Kept in fp32: nothing that has weights, what costs the accuracy, and what tools rename before they quantize."""

COMMON = """
import json, sys
import numpy as np, onnx, onnxruntime

folder, texts = sys.argv[1], json.loads(sys.argv[2])
images, labels = (np.load(folder + "/digits.npz")[name] for name in ("images", "labels"))
fp32_path = folder + "/hard.onnx"
batches = lambda: iter([{"input": rows} for rows in np.array_split(images[:200], 4)])

def accuracy(logits):
    return float((logits.argmax(axis=1) == labels).mean())

def judge(model):
    "The accuracy, and the ops whose weights are still float."
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    floats = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    weighted = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul") and n.input[1] in floats]
    logits = session.run(None, {"input": images})[0]
    rounded = [n for n in model.graph.node if n.op_type.startswith(("QuantizeLinear", "QLinear"))]
    return {"accuracy": accuracy(logits), "fp32": [n.name for n in weighted], "rounded": len(rounded)}

class Reader:
    def __init__(self):
        self.rewind()
    def rewind(self):
        self.batches = batches()
    def get_next(self):
        return next(self.batches, None)

def run(text, **names):
    exec(text, names)
    return names

def report(quantized):
    print("RESULT", json.dumps({case: quantized(case, text) for case, text in texts.items()}))
"""

ONNXRUNTIME = """
from onnxruntime.quantization import CalibrationDataReader

def quantized(case, text):
    target = f"{folder}/{case}.onnx"
    reader = type("OrtReader", (Reader, CalibrationDataReader), {})()
    run(text, model_input=fp32_path, model_output=target, calibration_data_reader=reader)
    return judge(onnx.load(target))

report(quantized)
"""

INC_ONNX = """
from onnx_neural_compressor import data_reader

def quantized(case, text):
    target = f"{folder}/{case}.onnx"
    reader = type("IncReader", (Reader, data_reader.CalibrationDataReader), {})()
    run(text, model_input=fp32_path, model_output=target, calibration_data_reader=reader)
    return judge(onnx.load(target))

report(quantized)
"""

INC_ONNX_LIVE = """
sys.path.insert(0, texts["repository"])
import inc_tb
from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import config, tuning

evaluated = []

def evaluate(path):
    evaluated.append(judge(onnx.load(path))["accuracy"])
    return evaluated[-1]

reader = type("IncReader", (Reader, data_reader.CalibrationDataReader), {})()
kept = ["/conv1/Conv"], ["/conv1/Conv", "/conv2/Conv"]
configs = [config.StaticQuantConfig(reader, nodes_to_exclude=names) for names in ([], *kept)]
with inc_tb.integrations.neural_compressor.log(folder + "/onnx-logs"):
    tuning.autotune(fp32_path, tuning.TuningConfig(configs), evaluate, calibration_data_reader=reader)
print("RESULT", json.dumps({"evaluated": evaluated}))
"""

INC = """
from neural_compressor import quantization

class Loader:
    batch_size = 50
    def __iter__(self):
        return ((batch["input"], None) for batch in batches())

def quantized(case, text):
    return judge(quantization.fit(fp32_path, run(text)["conf"], calib_dataloader=Loader()).model)

report(quantized)
"""

NNCF = """
import nncf

def quantized(case, text):
    dataset = nncf.Dataset(list(images[:200, None]), lambda image: {"input": image})
    return judge(run(text, model=onnx.load(fp32_path), calibration_dataset=dataset)["quantized_model"])

report(quantized)
"""

TORCH = """
import torch
from onnx import numpy_helper

weights = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in onnx.load(fp32_path).graph.initializer}
weights["fc1.weight"] = weights.pop("fc1.weight_T").T.contiguous()
weights = {name: value for name, value in weights.items() if name.endswith((".weight", ".bias"))}

class Network(torch.nn.Module):
    "What hard.onnx is."
    def __init__(self):
        super().__init__()
        for name in ("conv1", "conv2", "dw", "pw", "conv5"):
            outputs, inputs, size, _ = weights[name + ".weight"].shape
            groups, stride = outputs if name == "dw" else 1, 2 if name == "conv2" else 1
            conv = torch.nn.Conv2d(inputs * groups, outputs, size, stride, size // 2, groups=groups)
            self.add_module(name, conv)
        for name in ("fc1", "fc2"):
            self.add_module(name, torch.nn.Linear(*reversed(weights[name + ".weight"].shape)))
        self.load_state_dict(weights)
    def forward(self, x):
        r = torch.relu
        x = r(self.conv2(r(self.conv1(x))))
        x = r(self.pw(r(self.dw(x))) + x)
        return self.fc2(r(self.fc1(r(self.conv5(x)).mean((2, 3)))))

network = Network().eval()
example = (torch.tensor(images[:8]),)
shapes = {"x": {0: torch.export.Dim("batch", min=2)}}

def calibrate(model):
    for batch in batches():
        model(torch.tensor(batch["input"]))

def judge_exported(model):
    layers = [n for n in model.graph.nodes if any(word in str(n.target) for word in ("aten.conv2d", "aten.linear"))]
    kept = [n.args[1].target.removesuffix(".weight") for n in layers if n.args[1].op == "get_attr"]
    return {"accuracy": accuracy(model(torch.tensor(images)).detach().numpy()), "fp32": kept}
"""

TORCH_TOOLS = """
from neural_compressor.torch import quantization as inc
from neural_compressor.torch.export import export
from torch.ao.quantization import quantize_fx
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

def by_fx(text):
    model = quantize_fx.prepare_fx(network, run(text)["qconfig_mapping"], example)
    calibrate(model)
    model = quantize_fx.convert_fx(model)
    kept = [name for name, m in model.named_modules() if type(m) in (torch.nn.Conv2d, torch.nn.Linear)]
    return {"accuracy": accuracy(model(torch.tensor(images)).detach().numpy()), "fp32": kept}

def by_pt2e(text):
    model = prepare_pt2e(torch.export.export(network, example, dynamic_shapes=shapes).module(), run(text)["quantizer"])
    calibrate(model)
    return judge_exported(convert_pt2e(model))

def by_inc(text):
    model = inc.prepare(export(network, example, dynamic_shapes=shapes), run(text)["quant_config"])
    calibrate(model)
    return judge_exported(inc.convert(model))

tools = {"torch": by_fx, "torch-pt2e": by_pt2e, "inc-torch": by_inc}
report(lambda case, text: tools[case.partition(" ")[0]](text))
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Gone afterwards, unlike pytest's own: the venvs are large."""
    from sklearn.datasets import load_digits

    with tempfile.TemporaryDirectory() as name:
        data = digits(2000)
        np.savez(Path(name, "digits.npz"), images=data, labels=load_digits().target[: len(data)])
        Path(name, "hard.onnx").write_bytes((DATA / "hard.onnx").read_bytes())
        yield Path(name)


def install(place: Path, packages: Sequence[str], *, on_top: bool = False) -> str:
    """A venv with these packages; its Python. `on_top` of what the tests have."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = str(place / "bin" / "python")
    if on_top:
        ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        Path(own, "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "-q"]
    done = subprocess.run([*pip, "--no-compile", *packages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


def results(python: str, folder: Path, texts: dict[str, str], *scripts: str) -> dict[str, Any]:
    command = [python, "-W", "ignore", "-c", "".join([COMMON, *scripts]), folder, json.dumps(texts)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-1000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def texts_of(tool: str, *, dynamic: bool = False) -> dict[str, str]:
    recipe = (DYNAMIC if dynamic else STATIC)[tool]
    return {case: write(recipe, ops, {}) for case, ops in CASES.items()}


def cures(prefix: str) -> dict[str, str]:
    """Configs of a tool that name no op."""
    return {tool: write(recipe, []) for tool, recipe in STATIC.items() if tool in CURES and tool.startswith(prefix)}


def check_cures(found: dict[str, Any], tools: str) -> None:
    """All that multiplies is in int8, and where nothing else is to be, it is not the same that is rounded."""
    of_cures = {name: result for name, result in found.items() if name in CURES}
    assert " ".join(of_cures) == tools
    assert kept(of_cures) == {name: [] for name in of_cures}
    products = [result["rounded"] for name, result in of_cures.items() if name.endswith("-products")]
    assert products
    assert found["int8"]["rounded"] not in products


def with_dynamic(tool: str) -> dict[str, str]:
    return texts_of(tool) | {f"dynamic {case}": text for case, text in texts_of(tool, dynamic=True).items()}


def part(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): result for name, result in found.items() if name.startswith(prefix)}


def kept(found: dict[str, Any]) -> dict[str, list[str]]:
    """By the names that the ops have in the model."""
    renamed = re.compile(r"(/MatMulAddFusion)?(_MatMul)?$")
    return {case: [renamed.sub("", name) for name in result["fp32"]] for case, result in found.items()}


def check(found: dict[str, Any], expected: dict[str, list[str]]) -> None:
    assert kept(found) == expected
    accuracy = {case: found[case]["accuracy"] for case in CASES}
    assert accuracy["int8"] < 0.95  # of 0.992 in fp32
    assert accuracy["head"] < 0.95
    assert accuracy["convs"] > 0.985


OPS = {**CASES, "int8": []}
MODULES = {"int8": [], "convs": ["conv1", "conv2"], "head": ["fc1", "fc2"]}


def test_onnxruntime(folder: Path) -> None:
    found = results(sys.executable, folder, texts_of("onnxruntime") | cures("onnxruntime-"), ONNXRUNTIME)
    check({case: found[case] for case in CASES}, OPS)
    check_cures(found, "onnxruntime-products onnxruntime-percentile")


@needs_numpy_1
def test_neural_compressor_2(folder: Path) -> None:
    """In the environment of its own tests, where that is made; else with what it needs but does not ask for."""
    made = ROOT / ".venv-inc2" / "bin" / "python"
    needed = ["neural-compressor==2.6", "onnx<1.19", "onnxruntime", "six", "setuptools<81"]
    python = str(made) if made.exists() else install(folder / "inc", needed)
    found = results(python, folder, with_dynamic("inc") | cures("inc-"), INC)
    check({case: found[case] for case in CASES}, OPS)
    check_cures(found, "inc-products")
    check(part(found, "dynamic "), OPS)


@pytest.fixture(scope="module")
def inc_onnx(folder: Path) -> str:
    """With what it needs but does not ask for, and what we need."""
    ours = ["click", "google-crc32c", "msgspec", "rich", "tensorboard==2.21.0"]
    return install(folder / "inc-onnx", ["onnx-neural-compressor==1.0", "prettytable", "scipy", *ours])


@needs_numpy_1
def test_neural_compressor_3_for_onnx(folder: Path, inc_onnx: str) -> None:
    check(results(inc_onnx, folder, texts_of("inc-onnx"), INC_ONNX), OPS)


@needs_numpy_1
def test_autotune_of_neural_compressor_3_for_onnx(folder: Path, inc_onnx: str) -> None:
    """It counts its trials from 0, and quantizes an optimized copy of the model, where ops have other names."""
    told = results(inc_onnx, folder, {"repository": str(ROOT)}, INC_ONNX_LIVE)["evaluated"]
    runs = [inc_tb.load(path) for path in sorted((folder / "onnx-logs").glob("trial-*"))]
    trials = [run.trial for run in runs if run.trial is not None]
    assert [trial.name for trial in trials] == ["trial-001", "trial-002", "trial-003"]
    assert [trials[0].baseline, *(trial.accuracy for trial in trials)] == told
    assert [trial.fallback for trial in trials] == [[], CASES["convs"][:1], CASES["convs"]]
    assert [run.diagnosis.samples for run in runs] == [32, 32, 32]
    assert runs[0].diagnosis.reference == "hard.onnx"
    assert {"/fc1/MatMul", "/fc1/Add"} <= set(runs[0].ops["name"])
    assert set(CASES["convs"]) <= set(runs[0].suggestions[0].ops)
    assert runs[2].suggestions == []


def test_nncf(folder: Path) -> None:
    python = install(folder / "nncf", ["nncf==3.4.0"], on_top=True)
    found = results(python, folder, texts_of("nncf") | cures("nncf-"), NNCF)
    check({case: found[case] for case in CASES}, OPS)
    check_cures(found, "nncf-products")


@pytest.fixture(scope="module")
def with_torch(folder: Path) -> dict[str, Any]:
    """All tools for torch in one process, which takes longest to begin."""
    texts = {"torch": texts_of("torch"), **{tool: with_dynamic(tool) for tool in ("torch-pt2e", "inc-torch")}}
    flat = {f"{tool} {case}": text for tool, of_tool in texts.items() for case, text in of_tool.items()}
    return results(sys.executable, folder, flat, TORCH, TORCH_TOOLS)


def test_torch_fx(with_torch: dict[str, Any]) -> None:
    check(part(with_torch, "torch "), MODULES)


@pytest.mark.parametrize("tool", ["torch-pt2e", "inc-torch"])
def test_torch_exported(with_torch: dict[str, Any], tool: str) -> None:
    """PT2E by itself, and Neural Compressor 3, which is built on it."""
    found = part(with_torch, f"{tool} ")
    check({case: found[case] for case in CASES}, MODULES)
    check(part(found, "dynamic "), MODULES)
