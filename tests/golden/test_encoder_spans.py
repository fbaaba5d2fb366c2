"""Encoders some of whose layers see windows of their text and others all of it, as those of Qwen2.5-VL see images.

The models are golden ones for texts, changed; the judge is the reference device.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.step import Batch, join
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, distance

MODELS = ("bert-f32", "nomic-bert-f32")
SIZES = [16, 1, 30, 20]
N_TOKENS = sum(SIZES)
LIMITS = Limits(128, 8, max_tokens=160, max_outputs=160)
TOLERANCE = 2e-3
"""The cpu keeps keys and values as float16."""


def windowed(spec: ModelSpec) -> ModelSpec:
    """The first of its layers, and every second after it, heed spans."""
    number, stages = 0, []
    for stage in spec.stages:
        ops = []
        for op in stage.ops:
            if isinstance(op, Attention):
                op, number = replace(op, spans=number % 2 == 0), number + 1
            ops.append(op)
        stages.append(replace(stage, ops=tuple(ops)))
    assert number > 1
    return replace(spec, stages=tuple(stages))


def text(sequence: int, sizes: list[int]) -> Batch:
    """A text in windows of these sizes."""
    order, ends = np.arange(sum(sizes), dtype=np.int32), np.cumsum(sizes)
    own = np.searchsorted(ends, order, side="right")
    spans = np.stack([(ends - sizes)[own], ends[own] - 1], axis=1).astype(np.int32)
    tokens = (7 * order + 5) % 200
    return Batch(tokens, np.full(len(order), sequence, np.int32), order, order - 1, order, spans=spans)


def hidden(device: Device, path: Path, sizes: list[list[int]], *, has_spans: bool = True) -> NDArray[np.float32]:
    """Rows of texts that are read in one pass."""
    with open_model(path) as model:
        spec = windowed(model.spec)
        lane = device.compile(spec, model.file, LIMITS)
        with Executor(device, lane, LIMITS, "golden", is_guest=True, inputs=spec.inputs) as executor:
            batch = join([text(executor.create(), each) for each in sizes])
            return executor.evaluate(batch if has_spans else replace(batch, spans=None)).copy()


@pytest.mark.parametrize("name", MODELS)
def test_layers_with_windows_among_others(name: str) -> None:
    path, device = DATA / "embedding" / f"{name}.gguf", CpuDevice(DeviceOptions(n_workers=2))
    try:
        found = hidden(device, path, [SIZES])
        assert distance(found, hidden(ReferenceDevice(), path, [SIZES])) < TOLERANCE
        assert distance(found, hidden(device, path, [SIZES], has_spans=False)) > 10 * TOLERANCE
        one = hidden(device, path, [[N_TOKENS]])
        assert one.tobytes() == hidden(device, path, [SIZES], has_spans=False).tobytes()
        both = hidden(device, path, [SIZES, [40, 27]])
        assert both[:N_TOKENS].tobytes() == found.tobytes()
        assert both[N_TOKENS:].tobytes() == hidden(device, path, [[40, 27]]).tobytes()
    finally:
        device.close()
