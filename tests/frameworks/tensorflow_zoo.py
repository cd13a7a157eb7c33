"""TensorFlow models of every kind, and what is in them by other means than the adapter's.

Values come from one tensor at a time: a graph's from Session.run, a TFLite file's from the file cut behind the op that
makes the tensor, which is then an ordinary output.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.compiler.mlir.quantization.tensorflow import quantization_options_pb2 as options
from tensorflow.compiler.mlir.quantization.tensorflow.python import quantize_model
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from tests.frameworks.contracts import tiny

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
DATA = Path(__file__).parent / "data"
_SESSIONS: dict[int, tuple[Any, Any]] = {}


def digits(count: int, start: int = 0) -> Array:
    """Handwritten digits with their channels last."""
    from sklearn.datasets import load_digits

    return load_digits().images[start : start + count, ..., None].astype(np.float32) / 16


# graphs


def load(name: str) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString((DATA / name).read_bytes())
    return graph_def


def hard() -> Any:
    """Convolutions, one of them depthwise, a residual sum, a pool and two products; two channels behind the first
    convolution are 200 times larger than the others, which int8 with one scale does not survive.
    """
    return load("hard_tf.pb")


def tiny_graph() -> Any:
    def product(name: str, x: Any) -> Any:
        return tf.matmul(x, tf.constant(tiny.WEIGHTS[name].T, name=f"{name}.w"), name=name)

    with tf.Graph().as_default() as graph:
        x = tf.nn.relu(product("first", tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")), name="relu")
        tf.nn.softmax(product("second", x), name="softmax")
        product("side", x)
    return graph.as_graph_def()


def fetch(graph_def: Any, tensor: str, feeds: Mapping[str, Array]) -> Array:
    """One tensor as the graph says, without rewrites; `feeds` may also replace any other tensor."""
    session = _session(graph_def)
    found = np.asarray(session.run(full(tensor), {full(name): array for name, array in feeds.items()}))
    return found.view(found.dtype[0]) if found.dtype.names else found


def _session(graph_def: Any) -> Any:
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    known = _SESSIONS.get(id(graph_def))
    if known is None or known[0] is not graph_def:
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
        _SESSIONS[id(graph_def)] = known = graph_def, tf.compat.v1.Session(graph=graph, config=config)
    return known[1]


def full(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def constant(graph_def: Any, name: str) -> Array:
    node = next(n for n in graph_def.node if n.name == name)
    found = np.asarray(tf.make_ndarray(node.attr["value"].tensor))
    return found.view(found.dtype[0]) if found.dtype.names else found


def frozen(path: Path) -> Any:
    """A SavedModel as one graph, with its calls put in their place."""
    with quiet():
        loaded = tf.saved_model.load(str(path))
        return convert_variables_to_constants_v2(loaded.signatures["serving_default"]).graph.as_graph_def()


def concrete(graph_def: Any, samples: int | None = None) -> Any:
    """The graph from `input` to `logits` as a function."""

    def restored(x: Any) -> Any:
        return tf.import_graph_def(graph_def, input_map={"input": x}, return_elements=["logits:0"], name="")[0]

    if samples is None:
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        return wrapped.prune(["input:0"], ["logits:0"])
    return tf.function(restored).get_concrete_function(tf.TensorSpec([samples, 8, 8, 1], tf.float32, name="input"))


def rewritten(graph_def: Any, roundings: Mapping[str, Callable[[Any, str], str]]) -> Any:
    """The graph where everything that reads one of these tensors reads it through what its function adds."""
    made = tf.compat.v1.GraphDef()
    made.CopyFrom(graph_def)
    old = list(made.node)
    renamed = {name: add(made, name) for name, add in roundings.items()}
    for node in old:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    return made


def add_constant(graph_def: Any, name: str, value: Any) -> str:
    node = graph_def.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.as_dtype(np.asarray(value).dtype).as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return name


def fake_quant(low: Any, high: Any, *, bits: int = 8, narrow: bool = False) -> Callable[[Any, str], str]:
    """Per channel of the last axis where there are several ranges."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)

    def add(graph_def: Any, name: str) -> str:
        ends = [add_constant(graph_def, f"{name}/fq/{end}", value) for end, value in (("min", low), ("max", high))]
        op = "FakeQuantWithMinMaxVarsPerChannel" if low.ndim else "FakeQuantWithMinMaxVars"
        node = graph_def.node.add(name=f"{name}/fq", op=op, input=[name, *ends])
        node.attr["num_bits"].i = bits
        node.attr["narrow_range"].b = narrow
        return str(node.name)

    return add


def round_trip(low: Any, high: Any, *, axis: int = -1) -> Callable[[Any, str], str]:
    """Only the third version of the op knows several ranges."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)

    def add(graph_def: Any, name: str) -> str:
        given = [add_constant(graph_def, f"{name}/qdq/{end}", value) for end, value in (("min", low), ("max", high))]
        if low.ndim:
            given.append(add_constant(graph_def, f"{name}/qdq/bits", np.int32(8)))
        op = "QuantizeAndDequantizeV3" if low.ndim else "QuantizeAndDequantizeV2"
        node = graph_def.node.add(name=f"{name}/qdq", op=op, input=[name, *given])
        node.attr["T"].type = tf.float32.as_datatype_enum
        node.attr["signed_input"].b = node.attr["range_given"].b = True
        node.attr["axis"].i = axis
        return str(node.name)

    return add


# Keras


@cache
def keras_net() -> Any:
    """Batch norms to fold, a depthwise convolution, a swish, a sum, a mean and a softmax."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    with quiet():
        x = given = keras.Input((8, 8, 1), name="img")
        x = layers.Conv2D(8, 3, padding="same", name="conv0", use_bias=False)(x)
        x = layers.ReLU(6.0, name="act0")(layers.BatchNormalization(name="bn0")(x))
        x = layers.DepthwiseConv2D(3, padding="same", name="dw", use_bias=False)(x)
        x = layers.Activation("hard_swish", name="hs")(layers.BatchNormalization(name="bn1")(x))
        x = layers.Add(name="add")([x, layers.Conv2D(8, 1, name="pw")(x)])
        x = layers.Dense(10, activation="softmax", name="fc")(layers.GlobalAveragePooling2D(name="gap")(x))
        model = keras.Model(given, x, name="net")
    draw = np.random.default_rng(1)
    for weight in model.weights:
        name = weight.path.rpartition("/")[2]
        if name == "moving_variance":
            weight.assign(draw.uniform(0.5, 2, weight.shape))
        elif name in ("gamma", "beta", "moving_mean", "bias"):
            weight.assign(draw.uniform(-1, 1, weight.shape) + (name == "gamma"))
    return model


def keras_images(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 8, 8, 1)).astype(np.float32)


def export(model: Any, folder: Path) -> Path:
    if not folder.exists():
        with quiet():
            model.export(folder, verbose=False)
    return folder


def save_graph(graph_def: Any, folder: Path) -> Path:
    """A frozen graph as a SavedModel."""
    function = concrete(graph_def)
    module = tf.Module()
    module.f = tf.function(
        lambda input: {"logits": function(input)[0]},  # noqa: A006 - the name of the signature's input
        input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32, name="input")],
    )
    with quiet():
        tf.saved_model.save(module, str(folder), signatures=module.f)
    return folder


def quantize_saved(path: Path, target: Path, op_set: str, data: Sequence[Mapping[str, Array]]) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    static = options.QuantizationMethod.PresetMethod.METHOD_STATIC_RANGE_INT8
    chosen = options.QuantizationOptions(
        quantization_method=options.QuantizationMethod(preset_method=static), op_set=getattr(options.OpSet, op_set),
        signature_keys=["serving_default"], tags=["serve"],
    )  # fmt: skip
    with quiet():
        quantize_model.quantize(str(path), str(target), chosen, representative_dataset=list(data))
    return target


# TFLite


def lite(model: Any, kind: str, samples: Array, *, fixed: int | None = None) -> bytes:
    with quiet():
        return bytes(converter(model, kind, samples, fixed=fixed).convert())


def converter(model: Any, kind: str, samples: Array, *, fixed: int | None = None) -> Any:
    """A graph or a Keras model; kinds: float, int8, tensor (one scale for all channels), full, 16x8, dynamic, half."""
    with quiet():
        if isinstance(model, tf.compat.v1.GraphDef):
            made = tf.lite.TFLiteConverter.from_concrete_functions([concrete(model, fixed)])
        else:
            made = tf.lite.TFLiteConverter.from_keras_model(model)
    if kind != "float":
        made.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind in ("int8", "tensor", "full", "16x8"):
        made.representative_dataset = lambda: ([x[None]] for x in samples)
    made._experimental_disable_per_channel = kind == "tensor"
    ops = tf.lite.OpsSet
    if kind == "16x8":
        made.target_spec.supported_ops = [ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
    elif kind == "full":
        made.target_spec.supported_ops = [ops.TFLITE_BUILTINS_INT8]
        made.inference_input_type = made.inference_output_type = tf.int8
    elif kind == "half":
        made.target_spec.supported_types = [tf.float16]
    return made


def tiny_lite() -> bytes:
    graph_def = tiny_graph()
    with quiet():
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        results = [f"{name}:0" for name in tiny.RESULTS]
        made = tf.lite.TFLiteConverter.from_concrete_functions([wrapped.prune(["x:0"], results)])
        made.optimizations = [tf.lite.Optimize.DEFAULT]
        made.representative_dataset = lambda: ([x[None]] for x in tiny.X)
        return bytes(made.convert())


def weight_only(content: bytes) -> bytes:
    """A float file with its weights as int8, each behind a DEQUANTIZE of its own."""
    file = LiteFile(content)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.DEQUANTIZE
    code.version = 2
    file.model.operatorCodes.append(code)
    before = []
    for op in file.main.operators:
        if file.kind(op) not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        place = int(op.inputs[1])
        tensor, values = file.main.tensors[place], file.raw(place)
        axis = 3 if file.kind(op) == "DEPTHWISE_CONV_2D" else 0
        others = tuple(i for i in range(values.ndim) if i != axis)
        scale = (abs(values).max(axis=others) / 127).astype(np.float32)
        whole = np.rint(values / aligned(scale, axis, values.ndim)).astype(np.int8)
        stored = schema.TensorT()
        stored.shape, stored.type, stored.name = tensor.shape, schema.TensorType.INT8, tensor.name + b"/int8"
        stored.buffer = len(file.model.buffers)
        stored.quantization = schema.QuantizationParametersT()
        stored.quantization.scale, stored.quantization.zeroPoint = scale, np.zeros(scale.size, np.int64)
        stored.quantization.quantizedDimension = axis
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(whole.tobytes(), np.uint8)
        file.model.buffers.append(buffer)
        file.main.tensors.append(stored)
        tensor.buffer = 0
        made = schema.OperatorT()
        made.opcodeIndex = len(file.model.operatorCodes) - 1
        made.inputs, made.outputs = np.array([len(file.main.tensors) - 1], np.int32), np.array([place], np.int32)
        before.append(made)
    file.main.operators = [*before, *file.main.operators]
    return file.written()


class LiteFile:
    """What a TFLite file holds, read for the tests alone."""

    def __init__(self, content: bytes) -> None:
        self.model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
        self.main = self.model.subgraphs[0]

    def written(self) -> bytes:
        return bytes(flatbuffer_utils.convert_object_to_bytearray(self.model))

    def kind(self, op: Any) -> str:
        return str(flatbuffer_utils.opcode_to_name(self.model, op.opcodeIndex))

    def is_constant(self, place: int) -> bool:
        buffer = self.model.buffers[self.main.tensors[place].buffer]
        return buffer.data is not None and len(buffer.data) > 0

    def raw(self, place: int) -> Array:
        types = {
            schema.TensorType.FLOAT32: np.float32, schema.TensorType.FLOAT16: np.float16, schema.TensorType.INT8:
            np.int8, schema.TensorType.INT16: np.int16, schema.TensorType.INT32: np.int32,
        }  # fmt: skip
        tensor = self.main.tensors[place]
        data = np.asarray(self.model.buffers[tensor.buffer].data, np.uint8).tobytes()
        return np.frombuffer(data, types[tensor.type]).reshape(tensor.shape)

    def grid(self, place: int) -> tuple[Array, Array, int] | None:
        """Scales, zero points, and their axis; None for a tensor that is not quantized."""
        told = self.main.tensors[place].quantization
        if told is None or told.scale is None or self.main.tensors[place].type not in (
            schema.TensorType.INT8, schema.TensorType.INT16,
        ):  # fmt: skip
            return None
        return np.asarray(told.scale, np.float32), np.asarray(told.zeroPoint, np.int64), int(told.quantizedDimension)

    def limits(self, place: int) -> tuple[int, int]:
        info = np.iinfo(np.int16 if self.main.tensors[place].type == schema.TensorType.INT16 else np.int8)
        return int(info.min), int(info.max)

    def steps(self) -> list[Any]:
        """The ops that compute: neither those that only round, nor those that make constants."""
        return [
            op for op in self.main.operators
            if self.kind(op) not in ("QUANTIZE", "DEQUANTIZE") and not all(self.is_constant(int(i)) for i in op.inputs)
        ]  # fmt: skip

    def weight(self, op: Any) -> tuple[Array, tuple[Array, Array, int] | None]:
        """As it is stored, and how it is quantized."""
        place = int(op.inputs[1])
        made = next((o for o in self.main.operators if place in o.outputs), None)
        place = int(made.inputs[0]) if made is not None else place
        return self.raw(place), self.grid(place)


def cut_behind(content: bytes, place: int) -> bytes:
    """The file up to the op that makes this tensor, which is its only output."""
    file = LiteFile(content)
    last = next(i for i, op in enumerate(file.main.operators) if place in op.outputs)
    file.main.operators = file.main.operators[: last + 1]
    file.main.outputs = np.array([place], np.int32)
    file.model.signatureDefs = None
    return file.written()


def single(content: bytes, place: int) -> tuple[bytes, list[int]]:
    """The one op that makes this tensor, with the makers of its constants; and the tensors that it reads."""
    file = LiteFile(content)
    constant_makers = [o for o in file.main.operators if all(file.is_constant(int(i)) for i in o.inputs)]
    made = {int(i) for o in constant_makers for i in o.outputs}
    op = next(o for o in file.main.operators if place in o.outputs)
    reads = [int(i) for i in op.inputs if i >= 0 and not file.is_constant(int(i)) and int(i) not in made]
    file.main.operators = [*constant_makers, op]
    file.main.inputs, file.main.outputs = np.array(reads, np.int32), np.array([place], np.int32)
    file.model.signatureDefs = None
    return file.written(), reads


def run_lite(content: bytes, given: Mapping[int, Array], *, is_plain: bool = False) -> Array:
    """The only output, by the kernels that ship or by TFLite's own, which round a few values the other way."""
    interpreter = _ran(content, given, is_plain)
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def kept(content: bytes, given: Mapping[int, Array]) -> dict[int, Array]:
    """What every op gives, by TFLite's own kernels and the interpreter that keeps it all."""
    interpreter = _ran(content, given, True, experimental_preserve_all_tensors=True)
    places = [int(i) for op in LiteFile(content).main.operators for i in op.outputs]
    return {place: np.array(interpreter.get_tensor(place)) for place in places}


def _ran(content: bytes, given: Mapping[int, Array], is_plain: bool, **options: Any) -> Any:
    types = tf.lite.experimental.OpResolverType
    kernels = types.BUILTIN_WITHOUT_DEFAULT_DELEGATES if is_plain else types.AUTO
    with quiet():
        interpreter = tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=kernels, **options)
    for place, array in given.items():
        interpreter.resize_tensor_input(place, array.shape)
    interpreter.allocate_tensors()
    for place, array in given.items():
        interpreter.set_tensor(place, array)
    interpreter.invoke()
    return interpreter


def aligned(parameters: Array, axis: int, ndim: int) -> Array:
    if parameters.size == 1:
        return parameters.reshape(())
    shape = [1] * ndim
    shape[axis] = -1
    return parameters.reshape(shape)


def dequantized(whole: Array, scale: Array, zero: Array, axis: int = -1) -> Array:
    scale, zero = (aligned(np.asarray(p), axis, whole.ndim) for p in (scale, zero))
    return ((whole.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale).astype(np.float32)


def quantized(values: Array, scale: Array, zero: Array, limits: tuple[int, int]) -> Array:
    return np.clip(np.rint(values / scale.reshape(())) + zero.reshape(()), *limits)
