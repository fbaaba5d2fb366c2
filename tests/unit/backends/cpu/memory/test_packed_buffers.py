"""Buffers that share memory: none is overwritten while it is needed, and the largest images fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.backends.cpu.layout.padding import BufferLayout
from edgeinfer.backends.cpu.memory.packed_buffers import PackedBuffers
from edgeinfer.engine.kv.limits import encoder_limits, memory_need
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Buffer, Rows
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.gguf.adapter import TRANSPOSED
from edgeinfer.models.projector_file import ProjectorFacts, facts_of, open_projector
from scripts.make_projector import ENDS, SHAPES, add_keys, layers
from tests.golden.goldens import DATA

FILES = sorted((DATA / "vision").glob("mmproj-*.gguf"))
MOST_BYTES = {"siglip-so400m": 140_000_000, "qwen3vl-2b": 250_000_000, "pixtral": 200_000_000, "smolvlm": 40_000_000}
"""Of the largest image: 4,096 patches, 5,120, 4,096 and 1,024."""
UNIT = 64
"""Bytes in a place of memory here."""


def whole_shape(name: str, folder: Path) -> ProjectorFacts:
    """A projector of a published model's shape, from a header alone."""
    shape, width = SHAPES[name], 2048
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    add_keys(writer, shape, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    names = ("v.patch_embd.weight", "v.patch_embd.weight.1")[: shape.frames]
    kernels = [(name, (shape.width, 3, shape.patch, shape.patch)) for name in names]
    vectors = [] if shape.gated else [("v.patch_embd.bias", (shape.width,))]
    drawn = (*layers(shape), *ENDS[shape.projector](shape, width))
    sizes = [*kernels, *vectors, *((each.name, (each.rows, each.columns)[not each.rows :]) for each in drawn)]
    sizes += [(f"{name}{TRANSPOSED}", size[::-1]) for name, size in sizes if name == "mm.input_projection.weight"]
    tensors = {}
    for tensor, size in sizes:
        kind = gguf.GGMLQuantizationType.F16 if len(size) > 1 else gguf.GGMLQuantizationType.F32
        nbytes = int(np.prod(size)) * (2 if len(size) > 1 else 4)
        tensors[tensor] = TensorInfo(tensor, size, kind, kind.name, 0, nbytes, 0)
    with GGUFFile.open(path) as file:
        return facts_of(file.metadata, tensors, path.name)


@pytest.mark.parametrize("name", MOST_BYTES)
def test_the_largest_image_takes_so_much(name: str, tmp_path: Path) -> None:
    facts = whole_shape(name, tmp_path)
    specs = facts.encoder.trunk, facts.encoder.projection
    needs = [memory_need("cpu", spec, facts.tensors, encoder_limits(spec)) for spec in specs]
    assert sum(need.buffer_bytes + need.kv_bytes for need in needs) <= MOST_BYTES[name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_an_op_reads_is_what_was_written_last(path: Path) -> None:
    with open_projector(path) as projector:
        for spec in (projector.encoder.trunk, projector.encoder.projection):
            layout = BufferLayout(spec, projector.file.tensors, encoder_limits(spec))
            packed = PackedBuffers.of(spec, layout)
            assert packed is not None
            assert packed.n_bytes <= sum(-(-size // 4096) * 4096 for size in layout.float_bytes.values())
            assert holds(spec, packed, layout)


def holds(spec: ModelSpec, packed: PackedBuffers, layout: BufferLayout) -> bool:
    """Whether each buffer is whole in memory whenever it is read, rows given before the pass included."""
    memory = np.full(-(-packed.n_bytes // UNIT), -1)
    numbers = {buffer.name: number for number, buffer in enumerate(spec.buffers)}

    def places(name: str) -> slice:
        n_rows, width = layout.shape(name)
        start = packed.ranges[name].start
        return slice(start // UNIT, (start + 4 * n_rows * width) // UNIT)

    for op in spec.ops():
        for name in () if op.reads else op.writes:
            memory[places(name)] = numbers[name]
    for op in spec.ops():
        if not all((memory[places(name)] == numbers[name]).all() for name in op.reads):
            return False
        for name in op.writes if op.reads else ():
            memory[places(name)] = numbers[name]
        if not all((memory[places(name)] == numbers[name]).all() for name in {*op.reads, *op.writes}):
            return False  # results lie where inputs are still read
    return bool((memory[places(spec.logits)] == numbers[spec.logits]).all())


def test_models_whose_buffers_are_read_later_keep_them_apart() -> None:
    with open_projector(FILES[0]) as projector:
        spec = projector.encoder.trunk
        kept = replace(spec, scratch=False)
        assert PackedBuffers.of(kept, BufferLayout(kept, projector.file.tensors, encoder_limits(kept))) is None
        more = replace(spec, buffers=(*spec.buffers, Buffer("alone", 64, Rows.TOKENS)))
        packed = PackedBuffers.of(more, BufferLayout(more, projector.file.tensors, encoder_limits(more)))
        assert packed is not None
        assert packed.ranges["alone"].start == 0  # nothing needs it, so it lies in memory that others use
