"""Norms and activations as exporters write them out, and as one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tests.frameworks.onnx_zoo import Net

Part = Callable[[Net, str], str]
"""Appends to a net that has made the given tensor; its result."""
WIDTH = 16
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Form:
    """One function in small ops and as one op; `scale` is the constant that multiplies and `last` the last small op."""

    apart: Part
    one: Part
    last: str
    scale: str = ""
    is_image: bool = False


def number(net: Net, value: float) -> str:
    name = f"number{len(net.initializers)}"
    return net.constant(name, value, np.float32)


def whole(net: Net, *values: int) -> str:
    return net.constant(f"whole{len(net.initializers)}", list(values), np.int64)


def scale(net: Net, *shape: int) -> str:
    return net.constant("gamma", np.random.default_rng(1).uniform(0.5, 1.5, WIDTH).reshape(shape or WIDTH), np.float32)


def bias(net: Net, *shape: int) -> str:
    return net.constant("beta", np.random.default_rng(2).normal(size=WIDTH).reshape(shape or WIDTH), np.float32)


def mean(net: Net, name: str, x: str, *axes: int) -> str:
    if net.opset >= 18:
        return net.op("ReduceMean", name, x, whole(net, *axes))
    return net.op("ReduceMean", name, x, axes=list(axes))


def affine(net: Net, x: str) -> str:
    return net.op("Add", "norm/shift", net.op("Mul", "norm/scale", x, scale(net)), bias(net))


def layer_norm(net: Net, x: str) -> str:
    """As torch's exporter writes it."""
    middle = net.op("Sub", "norm/sub", x, mean(net, "norm/mean", x, -1))
    square = net.op("Pow", "norm/pow", middle, number(net, 2))
    spread = net.op(
        "Sqrt", "norm/sqrt", net.op("Add", "norm/eps", mean(net, "norm/var", square, -1), number(net, 1e-5))
    )
    return affine(net, net.op("Div", "norm/div", middle, spread))


def layer_norm_of_squares(net: Net, x: str) -> str:
    """E[x²] - E[x]², as JAX has it; the scale is multiplied to the inverse spread."""
    middle = mean(net, "norm/mean", x, -1)
    squares = mean(net, "norm/squares", net.op("Mul", "norm/square", x, x), -1)
    var = net.op("Sub", "norm/var", squares, net.op("Mul", "norm/mean²", middle, middle))
    inverse = net.op(
        "Reciprocal", "norm/inverse", net.op("Sqrt", "norm/sqrt", net.op("Add", "norm/eps", var, number(net, 1e-5)))
    )
    scaled = net.op("Mul", "norm/by", inverse, scale(net))
    return net.op(
        "Add", "norm/shift", net.op("Mul", "norm/scale", net.op("Sub", "norm/sub", x, middle), scaled), bias(net)
    )


def layer_norm_as_line(net: Net, x: str) -> str:
    """x * a + b with both from the statistics, as TensorFlow has it; the bias is the first operand."""
    middle = mean(net, "norm/mean", x, -1)
    apart = net.op("Sub", "norm/sub", x, middle)
    var = mean(net, "norm/var", net.op("Mul", "norm/square", apart, apart), -1)
    inverse = net.op(
        "Reciprocal", "norm/inverse", net.op("Sqrt", "norm/sqrt", net.op("Add", "norm/eps", var, number(net, 1e-5)))
    )
    a = net.op("Mul", "norm/scale", inverse, scale(net))
    b = net.op("Sub", "norm/shift", bias(net), net.op("Mul", "norm/moved", middle, a))
    return net.op("Add", "norm/sum", net.op("Mul", "norm/line", x, a), b)


def bias_first(net: Net, x: str) -> str:
    """The constants of the last two ops stand before what is computed, and the bias is stored before the scale."""
    beta = bias(net)
    middle = net.op("Sub", "norm/sub", x, mean(net, "norm/mean", x, -1))
    square = net.op("Pow", "norm/pow", middle, number(net, 2))
    spread = net.op(
        "Sqrt", "norm/sqrt", net.op("Add", "norm/eps", number(net, 1e-5), mean(net, "norm/var", square, -1))
    )
    scaled = net.op("Mul", "norm/scale", scale(net), net.op("Div", "norm/div", middle, spread))
    return net.op("Add", "norm/shift", beta, scaled)


def one_layer_norm(net: Net, x: str) -> str:
    return net.op("LayerNormalization", "norm", x, scale(net), bias(net), axis=-1)


def rms_norm(net: Net, x: str) -> str:
    square = mean(net, "norm/mean", net.op("Pow", "norm/pow", x, number(net, 2)), -1)
    spread = net.op("Sqrt", "norm/sqrt", net.op("Add", "norm/eps", square, number(net, 1e-5)))
    return net.op(
        "Mul", "norm/scale", net.op("Mul", "norm/by", x, net.op("Reciprocal", "norm/inverse", spread)), scale(net)
    )


def one_rms_norm(net: Net, x: str) -> str:
    return net.op("SimplifiedLayerNormalization", "norm", x, scale(net), axis=-1)


def instance_norm(net: Net, x: str) -> str:
    middle = net.op("Sub", "norm/sub", x, mean(net, "norm/mean", x, 2, 3))
    var = mean(net, "norm/var", net.op("Mul", "norm/square", middle, middle), 2, 3)
    spread = net.op("Sqrt", "norm/sqrt", net.op("Add", "norm/eps", var, number(net, 1e-5)))
    scaled = net.op("Mul", "norm/scale", net.op("Div", "norm/div", middle, spread), scale(net, WIDTH, 1, 1))
    return net.op("Add", "norm/shift", scaled, bias(net, WIDTH, 1, 1))


def one_instance_norm(net: Net, x: str) -> str:
    return net.op("InstanceNormalization", "norm", x, scale(net), bias(net))


def group_norm(net: Net, x: str) -> str:
    """As torch's exporter writes it."""
    ones, zeros = net.constant("ones", np.ones(4), np.float32), net.constant("zeros", np.zeros(4), np.float32)
    grouped = net.op("Reshape", "norm/groups", x, whole(net, 0, 4, -1))
    normed = net.op("InstanceNormalization", "norm/norm", grouped, ones, zeros)
    back = net.op("Reshape", "norm/back", normed, net.op("Shape", "norm/shape", x))
    scaled = net.op("Mul", "norm/scale", back, scale(net, WIDTH, 1, 1))
    return net.op("Add", "norm/shift", scaled, bias(net, WIDTH, 1, 1))


def one_group_norm(net: Net, x: str) -> str:
    return net.op("GroupNormalization", "norm", x, scale(net), bias(net), num_groups=4)


def gelu(net: Net, x: str) -> str:
    erf = net.op("Erf", "act/erf", net.op("Div", "act/div", x, number(net, 2**0.5)))
    gate = net.op("Mul", "act/gate", x, net.op("Add", "act/plus", erf, number(net, 1)))
    return net.op("Mul", "act/half", gate, number(net, 0.5))


def gelu_of_half(net: Net, x: str) -> str:
    erf = net.op("Erf", "act/erf", net.op("Mul", "act/times", x, number(net, 0.5**0.5)))
    more = net.op("Add", "act/plus", number(net, 1), erf)
    return net.op("Mul", "act/gate", net.op("Mul", "act/half", x, number(net, 0.5)), more)


def gelu_by_tanh(net: Net, x: str) -> str:
    cube = net.op("Mul", "act/small", net.op("Pow", "act/cube", x, number(net, 3)), number(net, 0.044715))
    inner = net.op("Mul", "act/by", net.op("Add", "act/sum", x, cube), number(net, (2 / np.pi) ** 0.5))
    more = net.op("Add", "act/plus", net.op("Tanh", "act/tanh", inner), number(net, 1))
    return net.op("Mul", "act/gate", net.op("Mul", "act/half", x, number(net, 0.5)), more)


def one(kind: str, domain: str = "", **settings: float) -> Part:
    return lambda net, x: net.op(kind, "act", x, domain=domain, **settings)


def sigmoid_gate(slope: float = 1) -> Part:
    def apart(net: Net, x: str) -> str:
        inner = net.op("Mul", "act/by", x, number(net, slope)) if slope != 1 else x
        return net.op("Mul", "act/gate", x, net.op("Sigmoid", "act/sigmoid", inner))

    return apart


def hard_sigmoid(net: Net, x: str) -> str:
    sum_ = net.op("Add", "act/plus", x, number(net, 3))
    return net.op("Div", "act/sixth", net.op("Clip", "act/clip", sum_, number(net, 0), number(net, 6)), number(net, 6))


def hard_swish(net: Net, x: str) -> str:
    sum_ = net.op("Add", "act/plus", x, number(net, 3))
    gate = net.op("Mul", "act/gate", x, net.op("Clip", "act/clip", sum_, number(net, 0), number(net, 6)))
    return net.op("Div", "act/sixth", gate, number(net, 6))


def hard_swish_by_sigmoid(net: Net, x: str) -> str:
    return net.op("Mul", "act/gate", x, net.op("HardSigmoid", "act/sigmoid", x, alpha=1 / 6, beta=0.5))


def softmax(net: Net, x: str) -> str:
    axes = (whole(net, -1),) if net.opset >= 18 else ()
    named = {} if axes else {"axes": [-1]}
    shifted = net.op("Sub", "act/sub", x, net.op("ReduceMax", "act/max", x, *axes, **named))
    powers = net.op("Exp", "act/exp", shifted)
    return net.op("Div", "act/div", powers, net.op("ReduceSum", "act/sum", powers, whole(net, -1)))


FORMS: Mapping[str, Form] = {
    "layer norm": Form(layer_norm, one_layer_norm, "norm/shift", "norm/scale"),
    "layer norm of squares": Form(layer_norm_of_squares, one_layer_norm, "norm/shift", "norm/by"),
    "layer norm as a line": Form(layer_norm_as_line, one_layer_norm, "norm/sum", "norm/scale"),
    "layer norm, bias first": Form(bias_first, one_layer_norm, "norm/shift", "norm/scale"),
    "rms norm": Form(rms_norm, one_rms_norm, "norm/scale", "norm/scale"),
    "instance norm": Form(instance_norm, one_instance_norm, "norm/shift", "norm/scale", is_image=True),
    "group norm": Form(group_norm, one_group_norm, "norm/shift", "norm/scale", is_image=True),
    "gelu": Form(gelu, one("Gelu"), "act/half"),
    "gelu of half": Form(gelu_of_half, one("Gelu", MICROSOFT), "act/gate"),
    "gelu by tanh": Form(gelu_by_tanh, one("FastGelu", MICROSOFT), "act/gate"),
    "gelu by tanh, onnx": Form(gelu_by_tanh, one("Gelu", approximate="tanh"), "act/gate"),
    "silu": Form(sigmoid_gate(), one("QuickGelu", MICROSOFT, alpha=1.0), "act/gate"),
    "quick gelu": Form(sigmoid_gate(1.702), one("QuickGelu", MICROSOFT, alpha=1.702), "act/gate"),
    "hard-sigmoid": Form(hard_sigmoid, one("HardSigmoid", alpha=1 / 6, beta=0.5), "act/sixth"),
    "hard-swish": Form(hard_swish, one("HardSwish"), "act/sixth"),
    "hard-swish by hard-sigmoid": Form(hard_swish_by_sigmoid, one("HardSwish"), "act/gate"),
    "softmax": Form(softmax, one("Softmax", axis=-1), "act/div"),
}  # fmt: skip


def built(form: Form, part: Part, opset: int = 21) -> Net:
    """The form between two layers with weights."""
    net = Net(seed=3, opset=opset, ir=10)
    if form.is_image:
        x = net.conv("up", net.input("x", "n", 3, 5, 5), 3, WIDTH)
        net.output(net.conv("down", part(net, x), WIDTH, 4, bias=False))
    else:
        x = net.linear("up", net.input("x", "n", 6, 8), 8, WIDTH)
        net.output(net.linear("down", part(net, x), WIDTH, 4))
    return net


def encoder(*, opset: int = 13) -> Net:
    """Two blocks with norms and GELUs written out."""
    net = Net(seed=12, opset=opset)
    x = net.input("x", "n", 6, WIDTH)
    for block in ("a", "b"):
        part = Net(seed=len(block), opset=opset)
        q, k, v = (net.linear(f"{block}/{name}", x, WIDTH, WIDTH) for name in "qkv")
        turned = net.op("Transpose", f"{block}/kt", k, perm=[0, 2, 1])
        scores = net.op(
            "Mul",
            f"{block}/scaled",
            net.op("MatMul", f"{block}/scores", q, turned),
            net.constant(f"{block}.r", 0.25, np.float32),
        )
        context = net.op("MatMul", f"{block}/context", net.op("Softmax", f"{block}/softmax", scores, axis=-1), v)
        x = net.op("Add", f"{block}/skip1", x, net.linear(f"{block}/proj", context, WIDTH, WIDTH))
        x = placed(net, f"{block}/1", layer_norm, part, x)
        h = placed(net, f"{block}/2", gelu, part, net.linear(f"{block}/up", x, WIDTH, WIDTH))
        x = net.op("Add", f"{block}/skip2", x, net.linear(f"{block}/down", h, WIDTH, WIDTH))
        x = placed(net, f"{block}/3", layer_norm, part, x)
    net.output(net.linear("head", x, WIDTH, 4))
    return net


def placed(net: Net, prefix: str, form: Callable[[Net, str], str], part: Net, x: str) -> str:
    """A form under names of its own."""
    part.nodes, part.initializers = [], []
    result = form(part, x)
    names = {out: f"{prefix}/{out}" for node in part.nodes for out in node.output}
    names |= {tensor.name: f"{prefix}/{tensor.name}" for tensor in part.initializers}
    for tensor in part.initializers:
        tensor.name = names[tensor.name]
    for node in part.nodes:
        node.name = f"{prefix}/{node.name}"
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    net.nodes += part.nodes
    net.initializers += part.initializers
    return names[result]
