"""Finding a format by type id, and refusing what cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models import quants
from edgeinfer.models.quants import FORMATS, dequantise, format_of

LISTED = (
    "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, "
    "IQ3_S, IQ2_S, IQ4_XS, IQ1_M, BF16, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, Q2_0"
)
INTERNAL = {"nvfp4_scaled", "nvfp4_scaled64"}
"""Types that no file has."""


def test_the_formats_are_there() -> None:
    assert set(FORMATS.keys()) == set(LISTED.lower().split(", ")) | INTERNAL
    for name in LISTED.split(", "):
        if name in gguf.GGMLQuantizationType.__members__:  # the package does not know the newest
            assert format_of(gguf.GGMLQuantizationType[name].value).name == name


@pytest.mark.parametrize(("ggml_type", "name"), [(15, "Q8_K"), (31, "Q4_0_4_4"), (77, "type 77"), (-1, "type -1")])
def test_an_unreadable_type_is_named_and_the_readable_ones_listed(ggml_type: int, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{name} \(ggml type {ggml_type}\) .*: {LISTED}$"):
        format_of(ggml_type)


@pytest.mark.parametrize(("key", "ggml_type"), [("q8_k", 15), ("private", 77)])
def test_an_outside_package_can_add_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, ggml_type: int
) -> None:
    source = f"""
from edgeinfer.models.quants import FloatFormat
FORMAT = FloatFormat(name="{key.upper()}", ggml_type={ggml_type}, block_size=1, block_bytes=4, decode=lambda raw: raw)
"""
    (tmp_path / f"outside_{key}.py").write_text(source)
    package = tmp_path / f"outside_{key}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: outside_{key}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[edgeinfer.models.quants]\n{key} = outside_{key}:FORMAT\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert format_of(ggml_type).name == key.upper()


def test_importing_the_folder_imports_no_format() -> None:
    code = (
        "import sys, edgeinfer.models.quants as quants;"
        "loaded = [key for key in quants.FORMATS.keys() if quants.__name__ + '.' + key in sys.modules];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(quants.__file__).parents[3])


@pytest.mark.parametrize(
    ("nbytes", "shape"), [(17, (32,)), (19, (32,)), (18, (31,)), (18, (16, 2)), (0, (1, 32)), (18, ()), (18, (2, 32))]
)
def test_bytes_that_do_not_fit_the_shape_are_refused(nbytes: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadGGUF, match=rf"{nbytes} bytes do not hold a Q4_0 tensor .* 32 weights, 18 bytes"):
        dequantise(np.zeros(nbytes, np.uint8), shape, 2)


@pytest.mark.parametrize("chunk_weights", [1, 256, 257, 1000])
def test_rows_in_chunks_give_the_same_values(monkeypatch: pytest.MonkeyPatch, chunk_weights: int) -> None:
    raw = np.random.default_rng(0).integers(0, 120, (11, 144), dtype=np.uint8)
    whole = dequantise(raw, (11, 256), 12)
    monkeypatch.setattr(quants, "_CHUNK_WEIGHTS", chunk_weights)
    assert np.array_equal(dequantise(raw, (11, 256), 12), whole)
    assert whole.std() > 0
