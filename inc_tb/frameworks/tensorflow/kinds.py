"""What the operations of TensorFlow and of TFLite are called, in one language."""

from __future__ import annotations

from collections.abc import Mapping

_GRAPH: Mapping[str, str] = {
    "DepthwiseConv2dNative": "Conv", "Conv2D": "Conv", "Conv3D": "Conv", "XlaConvV2": "Conv", "XlaConv": "Conv",
    "UniformQuantizedConvolution": "Conv", "UniformQuantizedConvolutionHybrid": "Conv", "_FusedConv2D": "Conv",
    "_FusedDepthwiseConv2dNative": "Conv", "Conv2DBackpropInput": "ConvTranspose",
    "MatMul": "MatMul", "BatchMatMul": "MatMul", "BatchMatMulV2": "MatMul", "BatchMatMulV3": "MatMul",
    "_FusedMatMul": "MatMul", "XlaDot": "MatMul", "XlaDotV2": "MatMul", "UniformQuantizedDot": "MatMul",
    "UniformQuantizedDotHybrid": "MatMul", "Einsum": "MatMul",
    "BiasAdd": "Add", "BiasAddV1": "Add", "AddV2": "Add", "AddN": "Add", "UniformQuantizedAdd": "Add",
    "FusedBatchNorm": "BatchNorm", "FusedBatchNormV2": "BatchNorm", "FusedBatchNormV3": "BatchNorm",
    "RealDiv": "Div", "PadV2": "Pad", "MirrorPad": "Pad", "AvgPool": "AveragePool", "ConcatV2": "Concat",
    "ExpandDims": "Reshape", "Squeeze": "Reshape", "GatherV2": "Gather", "ResourceGather": "Gather",
    "SelectV2": "Select", "BroadcastTo": "Broadcast", "SplitV": "Split", "LogSoftmax": "LogSoftmax",
    "HardSwish": "HardSwish", "QuantizedConcatV2": "Concat", "QuantizedAvgPool": "AveragePool",
    "QuantizedMaxPool": "MaxPool", "QuantizedReshape": "Reshape", "QuantizedAdd": "Add", "QuantizedMul": "Mul",
    "QuantizedRelu": "Relu", "QuantizedRelu6": "Relu6", "QuantizedConcat": "Concat", "QuantizedBiasAdd": "Add",
    "UniformRequantize": "Requantize", "Requantize": "Requantize", "RequantizePerChannel": "Requantize",
    "QuantizedConv2DPerChannel": "Conv", "QuantizedConv2D": "Conv", "QuantizedDepthwiseConv2D": "Conv",
    "StatelessWhile": "While", "StatelessIf": "If",
    "QuantizedMatMul": "MatMul", "QuantizedBatchMatMul": "MatMul", "QuantizedFusedBatchNorm": "BatchNorm",
    "_QuantizedFusedBatchNorm": "BatchNorm", "_QuantizedTranspose": "Transpose", "QuantizedResizeBilinear":
    "ResizeBilinear", "_FusedBatchNormEx": "BatchNorm", "_MklLayerNorm": "LayerNorm",
}  # fmt: skip
_LITE: Mapping[str, str] = {
    "CONV_2D": "Conv", "DEPTHWISE_CONV_2D": "Conv", "CONV_3D": "Conv", "TRANSPOSE_CONV": "ConvTranspose",
    "FULLY_CONNECTED": "MatMul", "BATCH_MATMUL": "MatMul", "ADD": "Add", "ADD_N": "Add", "SUB": "Sub", "MUL": "Mul",
    "DIV": "Div", "MEAN": "Mean", "SUM": "Sum", "REDUCE_MAX": "Max", "REDUCE_MIN": "Min", "REDUCE_PROD": "Prod",
    "MAX_POOL_2D": "MaxPool", "AVERAGE_POOL_2D": "AveragePool", "SOFTMAX": "Softmax", "LOG_SOFTMAX": "LogSoftmax",
    "RESHAPE": "Reshape", "SQUEEZE": "Reshape", "EXPAND_DIMS": "Reshape", "CONCATENATION": "Concat", "PAD": "Pad",
    "PADV2": "Pad", "MIRROR_PAD": "Pad", "LOGISTIC": "Sigmoid", "TANH": "Tanh", "HARD_SWISH": "HardSwish",
    "LEAKY_RELU": "LeakyRelu", "ELU": "Elu", "RELU": "Relu", "RELU6": "Relu6", "RELU_N1_TO_1": "ReluN1To1",
    "PRELU": "Prelu", "GELU": "Gelu", "RESIZE_BILINEAR": "ResizeBilinear",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor", "SPLIT": "Split", "SPLIT_V": "Split", "PACK": "Pack",
    "STRIDED_SLICE": "StridedSlice", "SLICE": "Slice", "TRANSPOSE": "Transpose", "GATHER": "Gather",
    "EMBEDDING_LOOKUP": "Gather", "RSQRT": "Rsqrt", "SQRT": "Sqrt", "SQUARED_DIFFERENCE": "SquaredDifference",
    "SQUARE": "Square", "POW": "Pow", "EXP": "Exp", "LOG": "Log", "NEG": "Neg", "ABS": "Abs", "MINIMUM": "Minimum",
    "MAXIMUM": "Maximum", "UNPACK": "Unpack", "TILE": "Tile", "SELECT": "Select", "SELECT_V2": "Select",
    "BROADCAST_TO": "Broadcast", "DEPTH_TO_SPACE": "DepthToSpace", "SPACE_TO_DEPTH": "SpaceToDepth",
    "L2_NORMALIZATION": "L2Normalize", "LOCAL_RESPONSE_NORMALIZATION": "LRN", "QUANTIZE": "Requantize",
    "BATCH_TO_SPACE_ND": "BatchToSpaceND", "SPACE_TO_BATCH_ND": "SpaceToBatchND", "CUMSUM": "Cumsum",
    "REVERSE_V2": "ReverseV2", "SIN": "Sin", "COS": "Cos", "FLOOR": "Floor", "ROUND": "Round",
    "WHILE": "While", "IF": "If", "CAST": "Cast", "CEIL": "Ceil", "SIGN": "Sign", "ONE_HOT": "OneHot",
    "GATHER_ND": "GatherNd", "SCATTER_ND": "ScatterNd", "TOPK_V2": "TopKV2",
}  # fmt: skip
WEIGHTED = {"Conv", "ConvTranspose", "MatMul"}
RESHAPES = {"Reshape"}
"""They change nothing but the shape."""
ACTIVATIONS = {
    "Relu", "Relu6", "ReluN1To1", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "HardSwish", "Softplus", "Minimum",
    "Maximum",
}  # fmt: skip
LOOPS = {"While", "If"}
CLIPS = {"Relu", "Relu6", "ReluN1To1", "Minimum", "Maximum"}
"""Activations that only cut values off."""
AFFINE = {"Add", "Sub", "Mul", "Div", "BatchNorm"}
"""What converters work into the weights of the op before, where the other operand is constant."""
FOLLOWERS = {
    "Relu", "Relu6", "ReluN1To1", "MaxPool", "Reshape", "Transpose", "Pad", "Concat", "Slice", "StridedSlice", "Split",
    "Pack", "Unpack", "Gather", "ResizeBilinear", "ResizeNearestNeighbor", "Tile", "DepthToSpace", "SpaceToDepth",
    "AveragePool", "Broadcast", "Select", "ReverseV2", "BatchToSpaceND", "SpaceToBatchND",
}  # fmt: skip
"""They pass a rounding on and start none."""


def graph_type(op: str) -> str:
    """Of a node of a graph; kernels with fused parts by their main part."""
    if op in _GRAPH:
        return _GRAPH[op]
    for prefix, meaning in (
        ("QuantizedDepthwiseConv2D", "Conv"), ("QuantizedConv2D", "Conv"), ("_QuantizedConv2D", "Conv"),
        ("_FusedQuantizedConv2D", "Conv"), ("_QuantizedConv3D", "Conv"), ("QuantizedMatMul", "MatMul"),
        ("_QuantizedMatMul", "MatMul"), ("_FusedQuantizedDepthwiseConv2D", "Conv"),
        ("_QuantizedDepthwiseConv2D", "Conv"), ("_QuantizedBatchMatMul", "MatMul"),
        ("_FusedQuantizedDeconv2D", "ConvTranspose"), ("_QuantizedConv2DBackpropInput", "ConvTranspose"),
    ):  # fmt: skip
        if op.startswith(prefix):
            return meaning
    return op


def composite_type(function: str) -> str:
    """Of a call to one of the functions that `quantize_saved_model` makes, such as quantized_conv2d_with_bias_fn."""
    if "conv" in function:
        return "Conv"
    if "matmul" in function or "einsum" in function or "dot" in function:
        return "MatMul"
    if "gather" in function:
        return "Gather"
    return "Call"


def lite_type(op: str) -> str:
    return _LITE.get(op, op)
