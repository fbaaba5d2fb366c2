"""Whole tiny models: opened, and if that goes well, one pass on the cpu over weights that may be anything."""

from __future__ import annotations

import atexit
import random
from collections.abc import Sequence
from functools import cache

import numpy as np
from mutation import mutated as mutated_bytes
from scratch import scratch
from tiny import DATA

from edgeinfer.backends.base import DEVICES, Device, DeviceOptions, Limits, open_device
from edgeinfer.engine.run.executor import Executor, compiled
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.text import Tokenizer
from edgeinfer.steps import no_progress

NAMES = (
    *("llama-implicit-q8_0", "command-r-q8_0", "gemma3-q4_0", "lfm2-q4_0", "llama-relu-sparse-q4_1", "qwen3-q8_0"),
    *("opt-q8_0", "starcoder2-q8_0", "granite-q8_0", "deepseek2-q4_0"),
)
LONGEST_BYTES = 1 << 16
MOST_BYTES = 100 << 20
"""What weights and buffers of such small files may take."""
N_CONTEXT = 64
_FILE = scratch() / "model.gguf"


@cache
def device() -> Device:
    """The cpu with one worker."""
    found = open_device("cpu", DeviceOptions(n_workers=1))
    atexit.register(found.close)
    return found


def seeds() -> list[bytes]:
    """Whole files."""
    return [path.read_bytes() for name in NAMES if (path := DATA / f"{name}.gguf").is_file()]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A file with changes anywhere, or with a few bytes of other values, so that it is still opened."""
    if rng.random() < 0.4:
        return mutated_bytes(seeds, rng, limit)
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 2, 4, 16))):
        at = rng.randrange(len(data))
        data[at] = rng.choice((0, 0xFF, 0x7F, 0x7C, data[at] ^ 1 << rng.randrange(8)))
    return bytes(data)


def run(data: bytes) -> None:
    """Open it, and run a pass of four tokens and one of one."""
    _FILE.write_bytes(data)
    with open_model(_FILE, N_CONTEXT) as model:
        Tokenizer.from_metadata(model.file.metadata)
        limits = Limits(N_CONTEXT, 2, max_tokens=8, max_outputs=8)
        need = DEVICES.get("cpu").footprint(model.spec, model.file.tensors, limits)
        if need.weight_bytes + need.kv_bytes + need.buffer_bytes + need.state_bytes < MOST_BYTES:
            _pass(model, limits)


def _pass(model: Model, limits: Limits) -> None:
    lane = compiled(device(), model.spec, model.file, limits, no_progress)
    with Executor(device(), lane, limits, "fuzz", is_guest=True) as executor:
        sequence, position = executor.create(), 0
        for n_tokens in (4, 1):
            order = np.arange(n_tokens, dtype=np.int32)
            tokens = order % np.int32(max(1, model.spec.n_vocab))
            rows = np.full(n_tokens, sequence, np.int32)
            executor.evaluate(Batch(tokens, rows, order + np.int32(position), order - 1, order))
            executor.commit(sequence, order)
            position += n_tokens
