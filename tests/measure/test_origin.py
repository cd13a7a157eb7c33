"""What a run is known by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inc_tb.frameworks.models import digest_model
from inc_tb.measure.origin import cpu


def test_a_processor_is_known_by_its_instructions(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: avx512f in a name\nflags\t\t: fpu avx2 avx512_vnni sse\nflags\t\t: fpu avx2\n")
    assert cpu(file)[1:] == ["avx2", "avx512_vnni"]
    file.write_text("Features\t: fp asimd asimddp i8mm\n")
    assert cpu(file)[1:] == ["asimd", "asimddp", "i8mm"]
    assert len(cpu(tmp_path / "none")) == 1


def test_weights_beside_an_onnx_file_are_part_of_it(tmp_path: Path) -> None:
    def save(folder: str, weight: float) -> Path:
        tensor = numpy_helper.from_array(np.full((64, 64), weight, np.float32), "w")
        value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy"]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
        model = helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:], [tensor]))
        path = tmp_path / folder / "model.onnx"
        path.parent.mkdir()
        onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
        return path

    one, same, other = save("one", 1.0), save("same", 1.0), save("other", 2.0)
    assert one.read_bytes() == other.read_bytes()
    assert digest_model(one) == digest_model(same) != digest_model(other)
