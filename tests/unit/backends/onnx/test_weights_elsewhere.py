"""A graph that names weights outside of its folder is not opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime", minversion="1.23")


def graph(location: str) -> bytes:
    """A graph that adds weights which lie in another file."""
    weights = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    ends = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "y")]
    made = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    opset = [onnx.helper.make_opsetid("", 17)]
    return bytes(onnx.helper.make_model(made, opset_imports=opset, ir_version=9).SerializeToString())


@pytest.mark.parametrize("where", ["above", "absolute", "link"])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, where: str) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret.bin"
    folder.mkdir()
    np.arange(4, dtype=np.float32).tofile(secret)
    (folder / "inside.bin").write_bytes(secret.read_bytes())
    (folder / "link.bin").symlink_to(secret)
    location = {"above": "../secret.bin", "absolute": str(secret), "link": "link.bin"}[where]
    path = folder / "model.onnx"
    path.write_bytes(graph("inside.bin"))
    runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    path.write_bytes(graph(location))
    with pytest.raises(Exception, match="xternal data path"):
        runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
