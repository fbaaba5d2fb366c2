"""Folders with ONNX decoders whose settings name what no file is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeinfer.errors import EdgeInferError, ModelNotFound
from edgeinfer.models.decoder_folder import GENAI, open_folder


@pytest.mark.parametrize("name", ["a" * 300, "é" * 200, "../model.onnx", "/model.onnx", "a\0b", "\ud800.onnx", ""])
def test_a_graph_of_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    (tmp_path / GENAI).write_text(json.dumps({"model": {"decoder": {"filename": name}}}))
    with pytest.raises(EdgeInferError, match=r"no file of this folder|is missing"):
        open_folder(tmp_path)


def test_a_graph_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / GENAI).write_text(json.dumps({"model": {"decoder": {"filename": "other.onnx"}}}))
    (tmp_path / "model.onnx").write_bytes(b"graph")
    with pytest.raises(ModelNotFound, match=r"other\.onnx is missing"):
        open_folder(tmp_path)
