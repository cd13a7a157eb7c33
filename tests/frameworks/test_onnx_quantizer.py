"""ONNX Runtime's quantizer behind the protocol: every setting does what it says, and its recipe does the same."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader

from inc_tb import OnnxRuntimeQuantizer
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.models import quantize_to_ranges
from inc_tb.records import Suggestion
from tests.digits import DATA, digits
from tests.example_run import batches, make_models

HARD = DATA / "hard.onnx"
KEPT = ("/conv1/Conv", "/conv2/Conv")


class Counted:
    """Batches that count how often they are read."""

    def __init__(self, images: np.ndarray, batches: int = 4) -> None:
        self.batches = [{"input": rows} for rows in np.array_split(images, batches)]
        self.read = 0

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for batch in self.batches:
            self.read += 1
            yield batch


class Reader(CalibrationDataReader):
    def __init__(self, batches: Iterable[Any]) -> None:
        self.left = iter(batches)

    def get_next(self) -> Any:
        return next(self.left, None)


def peaky(count: int = 256) -> np.ndarray:
    """Digits of which one is far too bright, so that the calibrators disagree."""
    images = digits(count)
    images[0, 0, 4, 4] = 40
    return images


def quantized(
    folder: Path, keep: Sequence[str] = (), model: Path = HARD, data: Iterable[Any] | None = None, **settings: Any
) -> onnx.ModelProto:
    tool = OnnxRuntimeQuantizer(**{k: v for k, v in settings.items() if k != "int16_tensors"})
    ready = tool.prepare(model, folder / "prepared")
    target = folder / "int8.onnx"
    tool.quantize(ready, target, data or Counted(peaky()), {**tool.settings, **settings}, keep)
    return onnx.load(target)


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def types(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def zeros_of_activations(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The zero point of each tensor that is quantized at run time."""
    known = arrays(model)
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: known[node.input[2]] for node in nodes}


def step_of(model: onnx.ModelProto, tensor: str) -> float:
    return float(arrays(model)[f"{tensor}_scale"])


def reads_rounded_values(model: onnx.ModelProto, op: str) -> bool:
    made_by = {name: node.op_type for node in model.graph.node for name in node.output}
    (node,) = (node for node in model.graph.node if node.name == op)
    return any(made_by.get(name) == "DequantizeLinear" for name in node.input)


def test_static_qdq_is_the_default_and_keeps_the_names_of_ops(tmp_path: Path) -> None:
    made = quantized(tmp_path)
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "Gemm"} <= types(made)
    names = {node.name for node in onnx.load(HARD).graph.node if node.op_type != "Relu"}  # folded into the ops before
    assert names <= {node.name for node in made.graph.node}
    assert {str(zero.dtype) for zero in zeros_of_activations(made).values()} == {"uint8"}
    assert arrays(made)["conv1.weight_scale"].size == 1


def test_qoperator_format(tmp_path: Path) -> None:
    made = quantized(tmp_path, format="QOperator")
    assert {"QLinearConv", "QLinearMatMul"} <= types(made)
    assert "Conv" not in types(made)


def test_the_dynamic_approach_reads_no_data(tmp_path: Path) -> None:
    data = Counted(digits(8))
    made = quantized(tmp_path, data=data, approach="dynamic")
    assert {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"} <= types(made)
    assert data.read == 0
    kept = quantized(tmp_path, keep=KEPT, approach="dynamic")
    assert {node.name for node in kept.graph.node if node.op_type == "Conv"} == set(KEPT)


def test_a_scale_for_each_channel(tmp_path: Path) -> None:
    channels = arrays(onnx.load(HARD))["conv1.weight"].shape[0]
    assert arrays(quantized(tmp_path, per_channel=True))["conv1.weight_scale"].size == channels


def test_reduce_range_leaves_a_bit_of_the_weights_unused(tmp_path: Path) -> None:
    largest = {}
    for reduce_range in (False, True):
        known = arrays(quantized(tmp_path, reduce_range=reduce_range))
        largest[reduce_range] = max(np.abs(known[n].astype(int)).max() for n in known if n.endswith("weight_quantized"))
    assert largest[False] > 64 >= largest[True] > 32


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_types_of_activations(tmp_path: Path, kind: str) -> None:
    made = quantized(tmp_path, activation_type=kind)
    assert {str(zero.dtype) for zero in zeros_of_activations(made).values()} == {kind}


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_types_of_weights(tmp_path: Path, kind: str) -> None:
    known = arrays(quantized(tmp_path, weight_type=kind, activation_type="uint8"))
    assert str(known["conv1.weight_quantized"].dtype) == kind


def test_symmetric_activations_have_zero_in_the_middle(tmp_path: Path) -> None:
    made = quantized(tmp_path, symmetric=True, activation_type="int8")
    assert {int(zero) for zero in zeros_of_activations(made).values()} == {0}
    assert {int(zero) for zero in zeros_of_activations(quantized(tmp_path)).values()} != {0}


def test_sixteen_bits_for_some_tensors_only(tmp_path: Path) -> None:
    made = zeros_of_activations(quantized(tmp_path, int16_tensors=["r1"]))
    assert {str(made["r1"].dtype), str(made["r2"].dtype)} == {"uint16", "uint8"}
    made = zeros_of_activations(quantized(tmp_path, int16_tensors=["r1"], activation_type="uint8"))
    assert {str(made["r1"].dtype), str(made["r2"].dtype)} == {"uint16", "uint8"}


def test_calibrators_choose_different_ranges(tmp_path: Path) -> None:
    """One value in 128,000 is 40 times the others: min-max believes it, the percentile leaves it out.

    ONNX Runtime's entropy has 128 bins for 128 levels, which leaves it no choice: it finds what min-max finds.
    """
    random = np.random.default_rng(0)
    images = random.uniform(0, 1, (2000, 1, 8, 8)).astype(np.float32)
    images[0, 0, 4, 4] = 40
    data = [{"input": rows} for rows in np.array_split(images, 4)]
    steps = {
        name: step_of(quantized(tmp_path, data=data, calibrator=name), "input")
        for name in ("minmax", "entropy", "percentile")
    }
    assert steps["minmax"] == pytest.approx(40 / 255, rel=0.01)
    assert steps["percentile"] < steps["minmax"] / 10
    assert steps["entropy"] == pytest.approx(steps["minmax"])


@pytest.mark.parametrize("calibrator", ["minmax", "entropy", "percentile"])
def test_batches_need_not_have_the_same_size(tmp_path: Path, calibrator: str) -> None:
    data = Counted(digits(20), batches=3)
    assert {len(batch["input"]) for batch in data} == {6, 7}
    assert "QuantizeLinear" in types(quantized(tmp_path, data=data, calibrator=calibrator))


def test_ops_that_are_kept_read_nothing_rounded_of_their_own(tmp_path: Path) -> None:
    made = quantized(tmp_path, keep=KEPT)
    rounded = {node.name for node in made.graph.node if node.name and reads_rounded_values(made, node.name)}
    assert {"/dw/Conv", "/pw/Conv", "/fc1/MatMul"} <= rounded
    assert not set(KEPT) & rounded
    assert {"conv1.weight", "conv2.weight"} <= set(arrays(made))


RECIPES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "per channel": {"per_channel": True, "reduce_range": True},
    "QOperator, unsigned": {"format": "QOperator", "activation_type": "uint8", "weight_type": "uint8"},
    "entropy, symmetric": {"calibrator": "entropy", "symmetric": True},
    "percentile": {"calibrator": "percentile", "int16_tensors": ["r1", "r2"]},
    "unsigned with 16 bits": {"activation_type": "uint8", "int16_tensors": ["r1"]},
    "16 bits": {"activation_type": "int16"},
    "ranges": {"ranges": {"r1": [0.0, 3.5], "r2": [0.0, 0.1]}, "int16_tensors": ["r2"]},
    "convolutions only": {"op_types": ["Conv"], "per_channel": True},
    "products only, dynamic": {"approach": "dynamic", "op_types": ["MatMul"]},
    "dynamic": {"approach": "dynamic", "weight_type": "uint8", "per_channel": True},
}


@pytest.mark.parametrize("settings", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("keep", [(), KEPT], ids=["nothing kept", "two kept"])
def test_running_the_recipe_gives_the_same_bytes(tmp_path: Path, settings: dict[str, Any], keep: Sequence[str]) -> None:
    tool = OnnxRuntimeQuantizer(**{k: v for k, v in settings.items() if k != "int16_tensors"})
    ready = tool.prepare(HARD, tmp_path / "prepared")
    data = Counted(peaky(64))
    full = {**tool.settings, **settings}
    tool.quantize(ready, tmp_path / "ours.onnx", data, full, keep)
    names: dict[str, Any] = {
        "model_input": ready, "model_output": tmp_path / "pasted.onnx", "calibration_data_reader": Reader(data),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnxruntime's own
        exec(tool.recipe(full, keep), names)
    assert (tmp_path / "pasted.onnx").read_bytes() == (tmp_path / "ours.onnx").read_bytes()


def test_a_recipe_quotes_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", lambda *_, **given: found.update(given))
    tool = OnnxRuntimeQuantizer()
    text = tool.recipe({**tool.settings, "int16_tensors": ['te"nsor', "Ü"]}, ['a"b\\c', "d\ne"])
    exec(text, dict.fromkeys(["model_input", "model_output", "calibration_data_reader"]))
    assert found["nodes_to_exclude"] == ['a"b\\c', "d\ne"]
    assert set(found["extra_options"]["TensorQuantOverrides"]) == {'te"nsor', "Ü"}


def test_ranges_are_found_once_for_all_trials(tmp_path: Path) -> None:
    tool = OnnxRuntimeQuantizer()
    ready = tool.prepare(HARD, tmp_path)
    data = Counted(digits(32))
    tool.quantize(ready, tmp_path / "1.onnx", data, tool.settings, ())
    assert data.read == 4
    for keep in (KEPT, ("/fc2/Gemm",)):
        for changed in ({}, {"per_channel": True}, {"symmetric": True}, {"int16_tensors": ["r1"]}):
            tool.quantize(ready, tmp_path / "2.onnx", data, {**tool.settings, **changed}, keep)
    assert data.read == 4
    tool.quantize(ready, tmp_path / "3.onnx", data, {**tool.settings, "calibrator": "percentile"}, ())
    read = data.read
    assert read > 4
    tool.quantize(ready, tmp_path / "4.onnx", data, {**tool.settings, "calibrator": "percentile"}, KEPT)
    assert data.read <= read + 4  # at most looked at, not run


def test_too_few_given_ranges_are_refused_with_what_the_tool_says() -> None:
    told = r"^the 1 given ranges are not enough \(Quantization parameters are not .*\)\. Give \(low, high\)"
    with pytest.raises(ModelError, match=told):
        quantize_to_ranges(HARD, {"input": (0.0, 1.0)})


def test_ranges_of_earlier_trials_do_not_change_later_models(tmp_path: Path) -> None:
    used, fresh = OnnxRuntimeQuantizer(), OnnxRuntimeQuantizer()
    ready = used.prepare(HARD, tmp_path)
    changed = {**used.settings, "symmetric": True, "activation_type": "uint8", "per_channel": True}
    used.quantize(ready, tmp_path / "1.onnx", Counted(digits(32)), used.settings, KEPT)
    used.quantize(ready, tmp_path / "2.onnx", Counted(digits(32)), changed, ())
    fresh.quantize(ready, tmp_path / "3.onnx", Counted(digits(32)), changed, ())
    assert (tmp_path / "2.onnx").read_bytes() == (tmp_path / "3.onnx").read_bytes()


def test_other_data_and_other_models_get_ranges_of_their_own(tmp_path: Path) -> None:
    """One quantizer object may serve several tunings."""
    tool = OnnxRuntimeQuantizer()
    ready = tool.prepare(HARD, tmp_path / "hard")
    dark, bright, other = tmp_path / "dark.onnx", tmp_path / "bright.onnx", tmp_path / "other.onnx"
    tool.quantize(ready, dark, Counted(digits(32)), tool.settings, ())
    ready = tool.prepare(HARD, tmp_path / "hard")
    tool.quantize(ready, bright, Counted(8 * digits(32)), tool.settings, ())
    assert step_of(onnx.load(bright), "input") == pytest.approx(8 * step_of(onnx.load(dark), "input"))
    clean = tool.prepare(DATA / "clean.onnx", tmp_path / "clean")
    tool.quantize(clean, other, Counted(digits(32)), tool.settings, ())
    fresh = quantized(tmp_path, model=DATA / "clean.onnx", data=Counted(digits(32)))
    assert step_of(onnx.load(other), "r1") == step_of(fresh, "r1")


def test_a_quantizer_that_is_dropped_leaves_no_warning_and_no_folder(tmp_path: Path, recwarn: Any) -> None:
    tool = OnnxRuntimeQuantizer()
    folders = [Path(v.name) for v in vars(tool).values() if hasattr(v, "cleanup")]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        del tool
        gc.collect()
    assert [str(w.message) for w in recwarn if w.category is ResourceWarning] == []
    assert not any(folder.exists() for folder in folders)


# Preparing


def save(path: Path, nodes: list[Any], weights: Mapping[str, Any], shape: list[Any], out: list[Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def with_batch_norm(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["c"], "/conv/Conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "b", "mean", "var"], ["n"], "/bn/BatchNormalization"),
        helper.make_node("Relu", ["n"], ["r"], "/relu/Relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], "/last/Conv"),
    ]
    weights = {
        "w": random.normal(size=(4, 1, 1, 1)), "scale": random.uniform(1, 2, 4), "b": random.normal(size=4),
        "mean": random.normal(size=4), "var": random.uniform(1, 2, 4), "w2": random.normal(size=(2, 4, 1, 1)),
    }  # fmt: skip
    return save(tmp_path / "bn.onnx", nodes, weights, ["N", 1, 8, 8], ["N", 2, 8, 8])


def test_preparing_folds_batch_norms_and_keeps_the_other_names(tmp_path: Path, with_batch_norm: Path) -> None:
    ready = onnx.load(OnnxRuntimeQuantizer().prepare(with_batch_norm, tmp_path / "p"))
    assert [(n.op_type, n.name) for n in ready.graph.node if n.op_type != "Relu"] == [
        ("Conv", "/conv/Conv"), ("Conv", "/last/Conv"),
    ]  # fmt: skip
    plain = onnx.load(OnnxRuntimeQuantizer(preprocess=False).prepare(with_batch_norm, tmp_path / "q"))
    assert [n.name for n in plain.graph.node] == [n.name for n in onnx.load(with_batch_norm).graph.node]


def test_preparing_changes_no_result(tmp_path: Path, with_batch_norm: Path) -> None:
    import onnxruntime as ort

    for model in (with_batch_norm, HARD):
        ready = OnnxRuntimeQuantizer().prepare(model, tmp_path / "p")
        before, after = (
            ort.InferenceSession(str(m), providers=["CPUExecutionProvider"]).run(None, {"input": digits(8)})[0]
            for m in (model, ready)
        )
        np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-4)


def test_preparing_a_model_without_anything_to_fold_keeps_every_op(tmp_path: Path) -> None:
    ready = onnx.load(OnnxRuntimeQuantizer().prepare(HARD, tmp_path))
    assert [(n.name, n.op_type) for n in ready.graph.node] == [(n.name, n.op_type) for n in onnx.load(HARD).graph.node]


def test_preparing_infers_shapes(tmp_path: Path) -> None:
    assert not onnx.load(HARD).graph.value_info
    ready = onnx.load(OnnxRuntimeQuantizer().prepare(HARD, tmp_path))
    assert {"c1", "r1", "c5"} <= {info.name for info in ready.graph.value_info}


@pytest.mark.parametrize("preprocess", [True, False])
def test_ops_without_a_name_or_with_the_same_get_one_each(tmp_path: Path, preprocess: bool) -> None:
    model = onnx.load(HARD)
    for node in model.graph.node[:4]:
        node.name = ""
    model.graph.node[6].name = model.graph.node[7].name = "twice"
    tool = OnnxRuntimeQuantizer(preprocess=preprocess)
    ready = tool.prepare(model, tmp_path)
    names = [node.name for node in onnx.load(ready).graph.node]
    assert all(names)
    assert len(set(names)) == len(names) == len(model.graph.node)
    assert [n for n in names if n.startswith("/")] == [n.name for n in model.graph.node if n.name.startswith("/")]
    tool.quantize(ready, tmp_path / "int8.onnx", Counted(digits(8)), tool.settings, names[:1])
    made = onnx.load(tmp_path / "int8.onnx")
    assert not reads_rounded_values(made, names[0])
    assert reads_rounded_values(made, names[2])


def test_preparing_does_not_touch_the_model_it_was_given(tmp_path: Path) -> None:
    model = onnx.load(HARD)
    model.graph.node[0].name = ""
    before = model.SerializeToString()
    OnnxRuntimeQuantizer().prepare(model, tmp_path)
    assert model.SerializeToString() == before


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path, with_batch_norm: Path) -> None:
    """By which a resumed tuning recognizes its model."""
    first, second = (OnnxRuntimeQuantizer().prepare(with_batch_norm, tmp_path / d).read_bytes() for d in "ab")
    assert first == second


def test_shape_inference_that_fails_leaves_no_file_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["m"], "fc"),
        helper.make_node("Normalizer", ["m"], ["z"], "norm", domain="ai.onnx.ml", norm="L2"),
        helper.make_node("Relu", ["z"], ["y"], "relu"),
    ]
    # Large enough for a file of their own.
    model = save(tmp_path / "odd.onnx", nodes, {"w": np.eye(32)}, ["N", 32], ["N", 32])
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    ready = OnnxRuntimeQuantizer().prepare(model, tmp_path / "prepared")
    assert [n.name for n in onnx.load(ready).graph.node] == ["fc", "norm", "relu"]
    assert list((tmp_path / "cwd").iterdir()) == []


# Settings


def test_unknown_settings_are_refused_by_name() -> None:
    for name, value in (
        ("approach", "magic"), ("format", "qdq"), ("calibrator", "kl"), ("activation_type", "int4"),
        ("weight_type", "int16"), ("per_channel", "yes"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"{name}='{value}' was given; expected one of"):
            OnnxRuntimeQuantizer(**{name: value})


def test_what_onnxruntime_refuses_is_a_model_error(tmp_path: Path) -> None:
    tool = OnnxRuntimeQuantizer()
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ModelError, match="cannot quantize"):
        tool.quantize(tmp_path / "text.onnx", tmp_path / "x.onnx", Counted(digits(8)), tool.settings, ())


def test_variants_differ_from_the_settings_in_one_thing_each() -> None:
    for given in ({}, {"per_channel": True, "calibrator": "entropy"}, {"approach": "dynamic"}):
        tool = OnnxRuntimeQuantizer(**given)
        changes = [{k: v for k, v in s.items() if v != tool.settings[k]} for s in tool.variants()]
        assert all(len(change) == 1 for change in changes)
        assert changes[0] == {"per_channel": not tool.settings["per_channel"]}
        if tool.settings["approach"] == "dynamic":
            assert len(changes) == 1
        else:
            assert {c["calibrator"] for c in changes if "calibrator" in c} == (
                {"minmax", "entropy", "percentile"} - {tool.settings["calibrator"]}
            )


def test_the_sign_of_activations_is_open_unless_it_was_chosen() -> None:
    """Kernels are made for one of them; which one, a tuning measures."""
    (other,) = OnnxRuntimeQuantizer().kernels()
    assert (OnnxRuntimeQuantizer().settings["activation_type"], other["activation_type"]) == ("uint8", "int8")
    chosen: list[dict[str, Any]] = [{"activation_type": "uint8"}, {"approach": "dynamic"}, {"weight_type": "uint8"}]
    assert [OnnxRuntimeQuantizer(**settings).kernels() for settings in chosen] == [[], [], []]


def test_only_ops_of_some_types(tmp_path: Path) -> None:
    tool = OnnxRuntimeQuantizer()
    tool.prepare(HARD, tmp_path / "prepared")
    without = tool.without_types(tool.settings, ["Conv"])
    assert "Gemm" in without["op_types"]
    assert tool.without_types(without, ["Gemm"])["op_types"] == [t for t in without["op_types"] if t != "Gemm"]
    made = quantized(tmp_path, op_types=["Gemm"])
    rounded = {node.op_type for node in made.graph.node if reads_rounded_values(made, node.name)}
    assert rounded == {"Gemm"}


def test_types_that_onnxruntime_refuses_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="weight_type='uint8' needs activation_type='uint8'; 'int8' was given"):
        OnnxRuntimeQuantizer(weight_type="uint8", activation_type="int8")
    with pytest.raises(UsageError, match="activation_type='int16' needs format='QDQ'"):
        OnnxRuntimeQuantizer(format="QOperator", activation_type="int16")
    OnnxRuntimeQuantizer(approach="dynamic", weight_type="uint8")


def test_an_old_opset_is_raised_to_one_with_scales_per_channel(tmp_path: Path) -> None:
    fp32, _ = make_models(tmp_path)
    model = onnx.load(fp32)
    model.opset_import[0].version = 11
    onnx.save(model, fp32)
    tool = OnnxRuntimeQuantizer(per_channel=True)
    prepared, target = tool.prepare(fp32, tmp_path / "prepared"), tmp_path / "int8.onnx"
    assert onnx.load(prepared).opset_import[0].version == 13
    tool.quantize(prepared, target, batches(), tool.settings, [])
    assert onnxruntime.InferenceSession(target).run(None, batches()[0])[0].shape == (8, 3)


def cures(rules: Mapping[str, Sequence[str]], **settings: Any) -> list[dict[str, Any]]:
    """What changes in the settings, for suggestions of these rules for these ops."""
    tool = OnnxRuntimeQuantizer(**settings)
    found = tool.cures(
        tool.settings, [Suggestion(list(ops), rule, "", {}) for rule, ops in rules.items()], {"a": "ta", "b": "tb"}
    )
    return [{k: v for k, v in s.items() if v != tool.settings[k]} for s in found.values()]


def test_a_scale_per_channel_is_always_worth_a_look_and_the_other_cures_follow_the_rules() -> None:
    each = {"per_channel": True}
    assert cures({}) == [each]
    assert cures({"weights_per_tensor": ["a"]}, per_channel=True) == []
    assert cures({"high_error": ["a"]}, per_channel=True) == []
    assert cures({"clipped_range": ["a"]}, calibrator="percentile") == [each, {"calibrator": "minmax"}]
    assert cures({"clipped_range": ["a"]}) == [each]
    assert cures({"outlier_channels": ["a", "b", "c"]}) == [each, {"int16_tensors": ["ta", "tb"]}]
    assert cures({"outlier_channels": ["a"]}, format="QOperator") == [each]
    assert cures({"dispersed_range": ["b"]}) == [each, {"calibrator": "percentile"}, {"int16_tensors": ["tb"]}]
    assert cures({"flushed_to_zero": ["a"]}, calibrator="entropy") == [each, {"int16_tensors": ["ta"]}]
    assert cures({"weights_per_tensor": ["a"], "dispersed_range": ["a"]}, approach="dynamic") == [each]
