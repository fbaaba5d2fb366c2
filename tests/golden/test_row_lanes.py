"""Rows on lanes of the cpu: what a pass without rows runs, and the same bits with weights from a bundle file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFValueType

from edgeinfer.backends.base import DeviceOptions, Lane
from edgeinfer.backends.cpu.bundles import contents
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane, PassKind
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import BadGGUF
from edgeinfer.graph.step import IDS_ONLY
from edgeinfer.models.load import open_model
from tests.golden.row_goldens import RowGolden, executor, feed, read
from tests.golden.streamed_devices import Streamer

DEEP = "qwen3vl-deep-f32"


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice(DeviceOptions(n_workers=2))
    yield device
    device.close()


def lane_of(opened: Executor) -> CpuLane:
    lane: Lane | None = opened._lane
    assert isinstance(lane, CpuLane)
    return lane


def test_passes_of_text_run_what_they_run_without_rows(cpu: CpuDevice) -> None:
    """Two of its layers add parts of rows, in passes with rows alone."""
    golden = RowGolden.read(DEEP)
    with executor(cpu, golden.model) as rows, executor(cpu, golden.model, rows=False) as texts:
        text = replace(golden.text.part(0, 10), axes=None)
        expected = feed(texts, texts.create(), text).tobytes()
        assert feed(rows, rows.create(), text).tobytes() == expected
        tapes = [lane_of(opened)._tapes for opened in (rows, texts)]
        for alone in (False, True):
            kernels = [[call.kernel.name for call in each[PassKind(alone)]._calls] for each in tapes]
            assert kernels[0] == kernels[1]
            assert len({each[PassKind(alone)].n_barriers for each in tapes}) == 1
        assert PassKind(alone=False, deep=True) not in tapes[0]
        read(rows, golden.text)
        with_parts, without = (tapes[0][PassKind(alone=False, deep=deep)] for deep in (True, False))
        assert len(with_parts.entries) == len(without.entries) + 2
        assert feed(rows, rows.create(), text).tobytes() == expected


@pytest.mark.parametrize("name", [DEEP, "gemma3-f32-whole", "qwen35-f32"])
def test_weights_from_a_file_give_the_same_bits(
    cpu: CpuDevice, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SMALLEST_BYTES", 6000)  # these models are tiny: cut them as if they were large
    golden, cuts = RowGolden.read(name), [9, 34, 44, 45, 58, 59]
    with executor(cpu, golden.model) as opened:
        expected = read(opened, golden.text, cuts)
    for share in (0.0, 0.5):
        with executor(Streamer(tmp_path / "bundles", share), golden.model) as opened:
            assert read(opened, golden.text, cuts).tobytes() == expected.tobytes()
            streaming = lane_of(opened).capabilities.streaming
            assert streaming is not None
            assert streaming.reading.n_bytes > 0


def test_rows_of_several_parts_are_as_wide_as_all_of_them() -> None:
    model = RowGolden.read(DEEP).model
    with open_model(model, rows=True) as rows, open_model(model) as texts:
        assert rows.spec.inputs.row_width == 3 * rows.spec.width == 96
        assert len(rows.spec.buffers) == len(texts.spec.buffers) + 2
        assert texts.spec.without_deep_rows() is texts.spec
        kinds = [[op.kind for op in spec.ops()] for spec in (rows.spec.without_deep_rows(), texts.spec)]
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize("n_parts", [4, 5])
def test_as_many_parts_as_layers_are_refused(n_parts: int, tmp_path: Path) -> None:
    key, path = b"qwen3vl.n_deepstack_layers" + struct.pack("<I", GGUFValueType.UINT32), tmp_path / "changed.gguf"
    before, after = RowGolden.read(DEEP).model.read_bytes().split(key)
    path.write_bytes(before + key + struct.pack("<I", n_parts) + after[4:])
    with pytest.raises(BadGGUF, match=rf"n_deepstack_layers is {n_parts}, of 4 layers"):
        open_model(path, rows=True)
    with open_model(path) as texts:
        assert texts.spec.inputs == IDS_ONLY
