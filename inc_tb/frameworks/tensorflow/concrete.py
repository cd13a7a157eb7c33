"""A concrete function as a frozen graph: variables made constants, calls inlined, composites of its quantizer kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from inc_tb.errors import ModelError
from inc_tb.frameworks.tensorflow.forms import COMPOSITE, Frozen, first_line, source_of
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet

_CALL = re.compile(r"^(?:(?:tf\.)?(?:Stateful)?PartitionedCall(?:_\d+)?/)+")
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


def plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\\-]", "_", name)


def from_function(concrete: Any, name: str, names: Sequence[str] | None = None) -> Frozen:
    library = concrete.graph.as_graph_def().library.function
    if any(COMPOSITE.match(f.signature.name) for f in library):
        return _with_composites(concrete, name)
    try:
        with quiet():
            frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    except AssertionError as error:
        raise ModelError(
            f"{name}: the variables that it uses are gone; expected the model that owns them to be there. Keep what "
            "tf.saved_model.load returned, or the module, in a variable."
        ) from error
    except Exception as error:  # TensorFlow raises many unrelated classes
        raise ModelError(f"{name}: its variables cannot be made constants: {first_line(error)}.") from error
    graph_def = _inlined(frozen.graph.as_graph_def())
    given = list(names or getattr(concrete, "_arg_keywords", None) or ())
    tensors = [t.name for t in frozen.inputs]
    if len(given) != len(tensors):
        given = [source_of(t)[0] for t in tensors]
    inputs = list(zip(given, tensors, strict=True))
    outputs = list(zip(_result_names(concrete), [t.name for t in frozen.outputs], strict=False))
    return _without_call_names(Frozen(name, graph_def, inputs, outputs))


def _inlined(graph_def: Any) -> Any:
    """With the bodies of the functions that freezing leaves alone, which are those to be compiled: Keras's grouped
    convolutions. What was the call hands on the results.
    """
    bodies = {f.signature.name: f for f in graph_def.library.function if not COMPOSITE.match(f.signature.name)}
    if not any(n.op in _CALLS and n.attr["f"].func.name in bodies for n in graph_def.node):
        return graph_def
    made = tf.compat.v1.GraphDef()
    made.library.CopyFrom(graph_def.library)
    for node in graph_def.node:
        if node.op not in _CALLS or node.attr["f"].func.name not in bodies:
            made.node.add().CopyFrom(node)
            continue
        body = bodies[node.attr["f"].func.name]
        inner, flat = function_def_to_graph_def(body)
        given = {a.name: i for a, i in zip(body.signature.input_arg, node.input, strict=False)}
        for part in inner.node:
            if part.name not in given:
                part.input[:] = [_within(node.name, i, given) for i in part.input]
                part.name = f"{node.name}/{part.name}"
                made.node.add().CopyFrom(part)
        results = [flat[body.ret[result.name]] for result in body.signature.output_arg]
        end = made.node.add(name=node.name, op="IdentityN", input=[_within(node.name, r, given) for r in results])
        end.attr["T"].CopyFrom(node.attr["Tout"])
    return _inlined(made)


def _within(call: str, reference: str, given: Mapping[str, str]) -> str:
    mark, name = ("^", reference[1:]) if reference.startswith("^") else ("", reference)
    source = given.get(source_of(name)[0])
    return f"{mark}{source_of(source)[0] if mark else source}" if source else f"{mark}{call}/{name}"


def _result_names(concrete: Any) -> list[str]:
    structured = concrete.structured_outputs
    if isinstance(structured, dict):
        return [str(key) for key in sorted(structured)]
    return [f"output_{i}" for i in range(len(concrete.outputs))]


def _with_composites(concrete: Any, name: str) -> Frozen:
    """The body of the one function that the graph calls; the quantized ops are calls in it, which stay whole."""
    outer = concrete.graph.as_graph_def()
    functions = {f.signature.name: f for f in outer.library.function}
    calls = [node for node in outer.node if node.op in ("PartitionedCall", "StatefulPartitionedCall")]
    if len(calls) != 1:
        raise ModelError(f"{name}: {len(calls)} calls in its signature; expected one, as quantize_saved_model writes.")
    body = functions[calls[0].attr["f"].func.name]
    graph_def, flat = function_def_to_graph_def(body)
    graph_def.library.CopyFrom(outer.library)
    arguments = [arg.name for arg in body.signature.input_arg]
    known = list(getattr(concrete, "_arg_keywords", None) or ())
    if len(known) != len(arguments):
        known = [a.removeprefix("serving_default_") for a in arguments]
    keys = _result_names(concrete)
    outputs = [flat[body.ret[arg.name]] for arg in body.signature.output_arg]
    inputs = [(key, f"{argument}:0") for key, argument in zip(known, arguments, strict=True)]
    return Frozen(name, graph_def, inputs, list(zip(keys, outputs, strict=False)))


def _without_call_names(frozen: Frozen) -> Frozen:
    """Inlining puts the name of the call before each name in the function, which the user never wrote."""
    short = {node.name: _CALL.sub("", node.name) for node in frozen.graph_def.node}
    times = Counter(short.values())
    renamed = {old: new for old, new in short.items() if old != new and times[new] == 1}
    for node in frozen.graph_def.node:
        node.name = renamed.get(node.name, node.name)
        node.input[:] = [_renamed(i, renamed) for i in node.input]
    frozen.inputs = [(name, _renamed(tensor, renamed)) for name, tensor in frozen.inputs]
    frozen.outputs = [(name, _renamed(tensor, renamed)) for name, tensor in frozen.outputs]
    return frozen


def _renamed(reference: str, renamed: dict[str, str]) -> str:
    mark = "^" if reference.startswith("^") else ""
    name, colon, at = reference.removeprefix("^").partition(":")
    return f"{mark}{renamed.get(name, name)}{colon}{at}"
