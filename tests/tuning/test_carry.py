"""A tuned model in a folder: another process loads it and gets the same bits; nothing in it is executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.errors import IncTbError, MismatchError, UsageError
from tests.digits import DATA, digits
from tests.torch_defects import MARKS, one_thread
from tests.tuning.carried import IMAGES, STEPS, TOKENS, Images, Sequences, results

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*_register_pytree_node:UserWarning"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def tuned(model: Any, data: Mapping[str, np.ndarray], logdir: Path, keep: list[str], **told: Any) -> inc_tb.Tuned:
    """With a single trial."""

    def only(workbench: Any) -> Iterator[inc_tb.Attempt]:
        yield inc_tb.Attempt(workbench.quantizer.settings, tuple(keep))

    tool = told.pop("quantizer", None) or inc_tb.TorchQuantizer(**told)
    return inc_tb.tune(
        model, [data], lambda _: 1.0, strategy=only, quantizer=tool, objectives=(), diagnosis_samples=0, logdir=logdir
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    return BertForSequenceClassification(config).eval()


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    known = {"[UNK]": 0, "good": 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(known, unk_token="[UNK]")))


CASES: Mapping[str, tuple[Any, Mapping[str, np.ndarray], list[str], dict[str, Any]]] = {
    "images-fx": (Images, IMAGES, ["last"], {"approach": "static"}),
    "images-pt2e": (Images, IMAGES, ["last"], {"approach": "pt2e"}),
    "steps-dynamic": (Sequences, STEPS, ["fc2"], {"approach": "dynamic"}),
    "steps-dynamic-per-tensor": (Sequences, STEPS, [], {"approach": "dynamic", "per_channel": False}),
    "steps-torchao": (Sequences, STEPS, ["fc2"], {"approach": "torchao"}),
    "bert-dynamic": (bert, TOKENS, ["bert.encoder.layer.1.output.dense"], {"approach": "dynamic"}),
    "bert-pt2e": (bert, TOKENS, [], {"approach": "pt2e-dynamic"}),
    "bert-transformers-int8": (bert, TOKENS, ["bert.encoder.layer.1.output.dense"], {"approach": "torchao"}),
    "bert-transformers-dynamic": (bert, TOKENS, [], {"approach": "torchao-dynamic"}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case in a folder, what it gave when it was tuned, and what it gave in another process."""
    place = tmp_path_factory.mktemp("saved")
    folder = place / "loaded"
    folder.mkdir()
    for name, (make, data, keep, told) in CASES.items():
        torch.manual_seed(3)
        found = tuned(make().eval(), data, place / f"log-{name}", keep, **told)
        inc_tb.save(found, folder / name, tokenizer=tokenizer() if name.startswith("bert") else None)
        results(found.quantized, data).tofile(place / f"{name}.bits")
    own = inc_tb.OnnxRuntimeQuantizer(per_channel=True)
    found = tuned(DATA / "hard.onnx", {"input": digits(8)}, place / "log-onnx", ["/conv1/Conv"], quantizer=own)
    inc_tb.save(found, folder / "onnx-static")
    results(found.quantized, {"input": digits(8)}).tofile(place / "onnx-static.bits")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.tuning.carried", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "onnx-static"])
def test_another_process_gets_the_same_bits(saved: Path, name: str) -> None:
    then = np.fromfile(saved / f"{name}.bits", np.float32)
    assert np.ptp(then) > 0
    assert (saved / "loaded" / f"{name}.bits").read_bytes() == then.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if "transformers" in name])
def test_transformers_loads_it_itself(saved: Path, name: str) -> None:
    theirs = saved / "loaded" / f"{name}.theirs"
    assert theirs.read_bytes() == (saved / f"{name}.bits").read_bytes()


@pytest.mark.slow
def test_what_is_in_the_folders(saved: Path) -> None:
    folder = saved / "loaded"
    recipe = json.loads((folder / "bert-dynamic" / "recipe.json").read_bytes())
    assert recipe["settings"]["approach"] == "dynamic"
    assert recipe["keep"] == ["bert.encoder.layer.1.output.dense"]
    assert recipe["examples"] == [{"name": "input_ids", "dtype": "int64", "shape": [4, 7]}]
    assert {"torch", "transformers"} <= set(recipe["packages"])
    assert (recipe["accuracy"], recipe["baseline"], recipe["trial"]) == (1.0, 1.0, "trial-001")
    for name in ("bert-dynamic", "bert-pt2e"):
        files = {path.name for path in (folder / name).iterdir()}
        assert files == {"recipe.json", "weights.pt", "config.json", "tokenizer.json", "tokenizer_config.json"}
    for name in ("bert-transformers-int8", "bert-transformers-dynamic"):
        assert (folder / name / "model.safetensors").is_file()
        assert not (folder / name / "weights.pt").exists()
    for path in folder.rglob("weights.pt"):
        assert all(not t.is_quantized for t in torch.load(path, weights_only=True).values())
    fp32 = sum(p.numel() * 4 for p in bert().parameters())
    assert (folder / "bert-dynamic" / "weights.pt").stat().st_size < fp32


@pytest.mark.slow
def test_a_tokenizer_lies_beside_it(saved: Path) -> None:
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(saved / "loaded" / "bert-dynamic")("good")["input_ids"] == [1]


@pytest.mark.slow
def test_other_results_are_paths(saved: Path) -> None:
    found = inc_tb.load_model(saved / "loaded" / "onnx-static")
    assert found == saved / "loaded" / "onnx-static" / "model.onnx"
    with pytest.raises(UsageError, match="ONNX models need none"):
        inc_tb.load_model(saved / "loaded" / "onnx-static", Images)


# A small one, for what is done to folders


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Tuned:
    torch.manual_seed(0)
    data = {"input": np.ones((2, 4), np.float32)}
    return tuned(nn.Sequential(nn.Linear(4, 3)), data, tmp_path_factory.mktemp("log"), [], approach="dynamic")


@pytest.fixture
def folder(small: inc_tb.Tuned, tmp_path: Path) -> Path:
    return inc_tb.save(small, tmp_path / "model")


def blank() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


def refused(folder: Path, model: Any = blank) -> str:
    with pytest.raises(IncTbError) as caught:
        inc_tb.load_model(folder, model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(folder: Path, *path: str | int, value: Any) -> None:
    """The recipe with something else at this place."""
    recipe = json.loads((folder / "recipe.json").read_bytes())
    found: Any = recipe
    for name in path[:-1]:
        found = found[name]
    found[path[-1]] = value
    (folder / "recipe.json").write_text(json.dumps(recipe))


def test_the_model_or_a_function_or_its_name_will_do(folder: Path, small: inc_tb.Tuned, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("from torch import nn\n\n\ndef blank():\n    return nn.Sequential(nn.Linear(4, 3))\n")
    batch = {"input": np.arange(8, dtype=np.float32).reshape(2, 4)}
    given = blank()
    for model in (given, blank, f"{code}:blank"):
        found = inc_tb.load_model(folder, model)
        np.testing.assert_array_equal(results(found, batch), results(small.quantized, batch))
        assert not found.training
    assert type(given[0]) is nn.Linear, "what was given stays as it is"


def test_weights_that_were_shared_are_shared_again(tmp_path: Path) -> None:
    found = tuned(Sequences().eval(), STEPS, tmp_path / "log", ["fc2", "fc3"], approach="dynamic")
    again = inc_tb.load_model(inc_tb.save(found, tmp_path / "model"), Sequences)
    assert again.fc2.weight is again.fc3.weight


def test_code_is_asked_for(folder: Path) -> None:
    assert "whose code is yours; give the fp32 model" in refused(folder, None)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 3, bias=False)), nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Sequential(nn.Conv1d(4, 3, 1)),
    ],
)  # fmt: skip
def test_another_model_is_refused(folder: Path, model: nn.Module) -> None:
    with pytest.raises(MismatchError, match=r"do not fit the model: .*Give the fp32 model that was tuned"):
        inc_tb.load_model(folder, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images-fx", "images-pt2e"])
def test_another_graph_is_refused(saved: Path, name: str) -> None:
    class Other(Images):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return super().forward(image).relu()

    assert "its graph is another one" in refused(saved / "loaded" / name, Other)


def test_no_model_at_all_is_refused(folder: Path) -> None:
    assert "expected a torch.nn.Module" in refused(folder, lambda: "model")


SCALE = ("own", "values", "0.scale")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda f: (f / "weights.pt").unlink(), "weights.pt is missing"),
        (lambda f: (f / "weights.pt").write_bytes((f / "weights.pt").read_bytes()[:-9]), "weights.pt is damaged"),
        (lambda f: (f / "recipe.json").unlink(), "has no recipe.json; expected a folder that inc_tb.save has written"),
        (lambda f: (f / "recipe.json").write_bytes(b"{"), "recipe.json is damaged"),
        (lambda f: (f / "recipe.json").write_bytes(b"\xff"), "recipe.json is damaged"),
        (lambda f: (f / "recipe.json").write_bytes(b"[" * 100_000), "recipe.json is damaged"),
        (lambda f: (f / "recipe.json").write_bytes(b"{}"), "recipe.json is damaged"),
        (lambda f: changed(f, "version", value=2), "has version 2; expected 1"),
        (lambda f: changed(f, "framework", value="other"), "is of other, which is not known here"),
        (lambda f: changed(f, "settings", "approach", value="magic"), "approach='magic' was given"),
        (lambda f: changed(f, "settings", value={}), "cannot be loaded into a Sequential"),
        (lambda f: changed(f, "settings", "more", value=1), "cannot be loaded"),
        (lambda f: changed(f, "examples", 0, "shape", value=[1 << 40, 1 << 40]), "cannot be loaded"),
        (lambda f: changed(f, "examples", 0, "dtype", value="code"), "cannot be loaded"),
        (lambda f: changed(f, "files", value={"/dev/zero": ""}), "/dev/zero is missing"),
        (lambda f: changed(f, "files", value={"../recipe.json": ""}), "../recipe.json is missing"),
        (lambda f: changed(f, "own", value={}), "recipe.json is damaged"),
        (lambda f: changed(f, *SCALE, value={"type": "Stored", "name": "x"}), "no x among the saved"),
        (lambda f: changed(f, *SCALE, value={"type": "Code", "name": "x"}), "recipe.json is damaged"),
        (lambda f: changed(f, *SCALE, value={"type": "Constant", "value": "x"}), "0.scale is a float"),
        (lambda f: changed(f, "own", "values", value={}), "which the saved model has not"),
    ],
)  # fmt: skip
def test_damage_is_one_line(folder: Path, what: Any, said: str) -> None:
    what(folder)
    assert said in refused(folder)


def test_a_folder_of_others_is_no_model(tmp_path: Path) -> None:
    assert "has no recipe.json" in refused(tmp_path)
    assert "has no recipe.json" in refused(tmp_path / "nothing")


class _Marks:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def with_digest(folder: Path, name: str) -> None:
    import hashlib

    changed(folder, "files", name, value=hashlib.sha256((folder / name).read_bytes()).hexdigest())


def test_a_hostile_pickle_is_not_executed(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for write in (
        lambda: (folder / "weights.pt").write_bytes(pickle.dumps({"x": _Marks(mark)})),
        lambda: torch.save({"x": _Marks(mark)}, folder / "weights.pt"),
    ):
        write()
        with_digest(folder, "weights.pt")
        assert "weights.pt: cannot be read" in refused(folder)
    torch.save([torch.ones(1)], folder / "weights.pt")
    with_digest(folder, "weights.pt")
    assert "holds something else than tensors" in refused(folder)
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-dynamic", "bert-transformers-int8"])
def test_a_hostile_config_is_not_followed(saved: Path, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for key, value in (
        ("_attn_implementation", "evil/kernels"), ("attn_implementation", "evil/kernels:run"),
        ("vocab_size", "many"), ("quantization_config", {"quant_method": "other"}),
    ):  # fmt: skip
        place = tmp_path / key
        shutil.copytree(saved / "loaded" / name, place)
        config = json.loads((place / "config.json").read_bytes())
        if key == "quantization_config" and "quantization_config" not in config:
            continue
        (place / "config.json").write_text(json.dumps({**config, key: value}))
        assert "config" in refused(place, None) or "transformers cannot make the model" in refused(place, None)
    place = tmp_path / "code"
    shutil.copytree(saved / "loaded" / name, place)
    (place / "modeling.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config = json.loads((place / "config.json").read_bytes())
    config["auto_map"] = {"AutoConfig": "modeling.Config", "AutoModelForSequenceClassification": "modeling.Model"}
    (place / "config.json").write_text(json.dumps(config))
    inc_tb.load_model(place)
    assert not mark.exists()
    for other in ("os.system", "Trainer", "BertConfig", "NoSuchModel"):
        changed(place, "own", "pretrained", "name", value=other)
        assert f"{other} is no model of transformers" in refused(place, None)


def test_other_versions_are_told(folder: Path) -> None:
    changed(folder, "packages", "torch", value="1.0")
    with pytest.warns(UserWarning, match=r"was saved with torch 1\.0 \(here .*\); results may differ"):
        inc_tb.load_model(folder, blank)


def test_it_is_written_whole_or_not_at_all(
    small: inc_tb.Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = inc_tb.save(small, tmp_path / "a" / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fails(*_: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("torch.save", fails)
        with pytest.raises(UsageError, match=r"model: cannot write there \(no room\)"):
            inc_tb.save(small, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]
    inc_tb.save(small, folder)  # one that it has written is replaced
    inc_tb.load_model(folder, blank)


def test_nothing_else_is_overwritten(small: inc_tb.Tuned, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for name in ("file", "full"):
        with pytest.raises(UsageError, match="expected a new folder, or one that"):
            inc_tb.save(small, tmp_path / name)
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_what_cannot_be_saved_is_told(small: inc_tb.Tuned, tmp_path: Path) -> None:
    for given, said in ((small.quantized, "expected what inc_tb.tune returned"), (None, "a NoneType was given")):
        with pytest.raises(UsageError, match=said):
            inc_tb.save(given, tmp_path / "model")
    with pytest.raises(UsageError, match="was given as the tokenizer"):
        inc_tb.save(small, tmp_path / "model", tokenizer="words")
    assert not (tmp_path / "model").exists()


class Rounding:
    """A quantizer of somebody else's, which changes nothing but tensors, or does more than that."""

    settings: Mapping[str, Any] = {"bits": 8}

    def __init__(self, *, is_odd: bool = False) -> None:
        self.is_odd = is_odd

    def prepare(self, model: nn.Module, folder: Path) -> nn.Module:
        return model

    def quantize(self, model: nn.Module, target: Path, calibration: Any, settings: Any, keep: Any) -> nn.Module:
        import copy

        made = copy.deepcopy(model)
        if self.is_odd:
            return torch.ao.quantization.quantize_dynamic(made)
        from torchao.quantization import IntxWeightOnlyConfig, quantize_

        quantize_(made, IntxWeightOnlyConfig(weight_dtype=torch.int4))
        return made

    def recipe(self, settings: Any, keep: Any) -> str:
        return ""

    def variants(self) -> list[Any]:
        return []

    def cures(self, *_: Any) -> dict[str, Any]:
        return {}


def test_a_quantizer_of_somebody_elses(tmp_path: Path) -> None:
    model, data = nn.Sequential(nn.Linear(32, 32)).eval(), {"input": np.ones((2, 32), np.float32)}
    found = tuned(model, data, tmp_path / "log", [], quantizer=Rounding())
    again = inc_tb.load_model(inc_tb.save(found, tmp_path / "model"), lambda: nn.Sequential(nn.Linear(32, 32)))
    assert type(again[0].weight).__module__.startswith("torchao")
    np.testing.assert_array_equal(results(again, data), results(found.quantized, data))
    odd = tuned(model, data, tmp_path / "odd", [], quantizer=Rounding(is_odd=True))
    with pytest.raises(UsageError, match="was made by Rounding, a quantizer of yours"):
        inc_tb.save(odd, tmp_path / "other")


def test_importing_it_all_loads_no_framework() -> None:
    code = "import sys, inc_tb.tuning.carry; print([n for n in ('torch', 'onnx', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
