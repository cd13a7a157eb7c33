"""Configs of tools that take a cause away for the whole model, without naming an op."""

from __future__ import annotations

from inc_tb.frameworks.formats import INC_START, Format, Settings
from inc_tb.frameworks.templates import quoted
from inc_tb.records import Recipe

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
OTHERS = (
    "Add", "ArgMax", "AveragePool", "Concat", "Gather", "GlobalAveragePool", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "MaxPool", "Mul", "Pad", "Resize", "Sigmoid", "Softmax", "Where",
)  # fmt: skip
"""What tools quantize, too, and gains little by it."""
_ONLY_PRODUCTS = "Convolutions and matrix products stay in int8, everything else is in fp32: which often costs no time."


def _listed(types: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, types))


def _static_only(recipe: Recipe) -> Format:
    def make(settings: Settings) -> Recipe | None:
        return None if settings.is_weight_only or settings.dynamic else recipe

    return Format(recipe.tool, make, rounds=True)  # of no use for single ops that are slow


FORMATS = tuple(map(_static_only, (
    Recipe(
        "onnxruntime-products", "ONNX Runtime: op_types_to_quantize, only what multiplies",
        "from onnxruntime.quantization import quantize_static\n\n"
        "quantize_static(\n    model_input, model_output, calibration_data_reader, per_channel=True,\n"
        f"    op_types_to_quantize=[{_listed(PRODUCTS)}],\n)",
        "", "", "", _ONLY_PRODUCTS,
    ),
    Recipe(
        "onnxruntime-percentile", "ONNX Runtime: calibration by percentiles",
        "from onnxruntime.quantization import CalibrationMethod, quantize_static\n\n"
        "quantize_static(\n    model_input, model_output, calibration_data_reader,\n"
        "    calibrate_method=CalibrationMethod.Percentile,\n)",
        "", "", "", "Keeps no op in fp32: what lies far out is cut off. Entropy is the other method.",
    ),
    Recipe(
        "inc-products", "Neural Compressor 2.x: op_type_dict, only what multiplies",
        f"{INC_START}op_type_dict = dict.fromkeys([{_listed(OTHERS)}], fp32)\n"
        "conf = PostTrainingQuantConfig(op_type_dict=op_type_dict)",
        "", "", "", _ONLY_PRODUCTS,
    ),
    Recipe(
        "nncf-products", "NNCF: ignored types, only what multiplies",
        f"import nncf\n\nignored_scope = nncf.IgnoredScope(types=[{_listed(OTHERS)}], validate=False)\n"
        "quantized_model = nncf.quantize(model, calibration_dataset, ignored_scope=ignored_scope)",
        "", "", "", _ONLY_PRODUCTS,
    ),
)))  # fmt: skip
