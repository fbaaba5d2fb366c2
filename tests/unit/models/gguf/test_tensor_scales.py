"""Matrices with a scale in a tensor beside them, against the gguf package's values times the scale."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf.file import GGUFFile
from edgeinfer.models.quants import dequantise

NVFP4 = gguf.GGMLQuantizationType.NVFP4
ROUNDINGS = 2.0**-22
"""Two roundings of float32 in one order, one in the other."""


def nvfp4(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    """Random blocks of a tensor: uint8[..., row_bytes]; all scale bytes are those of numbers."""
    blocks = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] // 64, 36), np.uint8)
    blocks[..., :4] %= 127
    return blocks.reshape(*shape[:-1], -1)


def written(path: Path, tensors: dict[str, NDArray[np.uint8] | NDArray[np.float32]]) -> GGUFFile:
    """A file with these tensors, opened; bytes are NVFP4."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=NVFP4 if values.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile.open(path)


def values_of(file: GGUFFile, name: str) -> NDArray[np.float32]:
    info = file.tensors[name]
    assert file.raw(name).size == info.nbytes
    return dequantise(file.raw(name), info.shape, info.ggml_type)


@pytest.mark.parametrize("shape", [(3, 256), (5, 64), (2, 2880), (3, 4, 512), (3, 4, 320)])
@pytest.mark.parametrize("by_expert", [False, True])
def test_weights_are_multiplied_by_their_scale(tmp_path: Path, shape: tuple[int, ...], by_expert: bool) -> None:
    raw = nvfp4(shape)
    n_scales = shape[0] if by_expert and len(shape) == 3 else 1
    scale = np.random.default_rng(1).uniform(1e-5, 3.0, n_scales).astype(np.float32)
    with written(tmp_path / "m.gguf", {"a.weight": raw, "a.scale": scale, "a.input_scale": scale}) as file:
        values = values_of(file, "a.weight")
        assert list(file.tensors) == ["a.weight"]
    expected = gguf.quants.dequantize(raw, NVFP4) * scale.reshape(-1, *[1] * (len(shape) - 1))
    assert np.allclose(values, expected, rtol=ROUNDINGS, atol=0)
    assert len(np.unique(np.sign(values))) == 3


def test_a_matrix_without_a_scale_is_a_view_of_the_file(tmp_path: Path) -> None:
    raw = nvfp4((4, 128))
    with written(tmp_path / "m.gguf", {"a.weight": raw, "b.scale": np.ones(1, np.float32)}) as file:
        assert file.tensors["a.weight"].ggml_type == NVFP4.value
        assert not file.raw("a.weight").flags.owndata
        assert np.array_equal(values_of(file, "a.weight"), gguf.quants.dequantize(raw, NVFP4))


def test_a_scale_beside_another_type_is_not_read_here(tmp_path: Path) -> None:
    tensors = {"a.weight": np.ones((2, 64), np.float32), "a.scale": np.ones(1, np.float32)}
    with written(tmp_path / "m.gguf", tensors) as file:
        assert file.tensors["a.weight"].ggml_type == 0


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.ones(2, np.float32), r"'a\.scale' is F32 of shape \[2\]; the scale of 'a\.weight' has to be 1 F32"),
        (np.ones(1, np.float16), r"'a\.scale' is F16"),
    ],
)
def test_a_scale_of_another_shape_or_type_is_refused(tmp_path: Path, scale: NDArray[np.float32], message: str) -> None:
    with pytest.raises(BadGGUF, match=message):
        written(tmp_path / "m.gguf", {"a.weight": nvfp4((4, 128)), "a.scale": scale})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scale_that_is_no_number_is_refused_when_it_is_read(tmp_path: Path, value: float) -> None:
    tensors = {"a.weight": nvfp4((4, 128)), "a.scale": np.full(1, value, np.float32)}
    with written(tmp_path / "m.gguf", tensors) as file, pytest.raises(BadGGUF, match="is not finite"):
        file.raw("a.weight")
