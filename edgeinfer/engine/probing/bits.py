"""What a device computes, as a fingerprint: a hash of the logits of a small fixed model.

In: a device key, the format of the model's matrices, the kind of its KV cache. Out: a hash that is equal on machines
that compute the same bits, whatever their instruction sets and cores. The model has the passes of answers: a prompt, a
part of one, several drafts, single tokens. Knows nothing of the machines that are compared.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceOptions, open_device
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_header
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import Batch
from edgeinfer.models.gguf.header import parse_header
from edgeinfer.models.load import open_model
from edgeinfer.setting_values import KVKind
from edgeinfer.steps import Progress, no_progress
from edgeinfer.temporary import temporary_folder

SHAPE = ModelShape(512, 1024, 4, 2, 128, 2, 512, 256)
"""Sizes that every format's blocks divide."""
SEED = 7
PASSES = (70, 9, 3, 1, 1)
"""Tokens of the passes: a prompt beyond a page of the cache and a tile of tokens, its continuation, drafts, tokens."""
FORMS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16")
"""Formats of which the bytes drawn here are numbers of moderate size; others are compared by `USUAL_FORM`."""
USUAL_FORM = "Q8_0"


def logits_digest(device: str, form: str, kv: KVKind = "f16", progress: Progress = no_progress) -> str:
    """16 hex digits of a hash of all logits. Raises UnknownKey, DeviceUnavailable, and as `Device.compile`."""
    digest = hashlib.blake2b(digest_size=8)
    with ExitStack() as opened:
        path = Path(opened.enter_context(temporary_folder("edgeinfer-bits"))) / "model.gguf"
        _write_model(path, form if form in FORMS else USUAL_FORM)
        model = opened.enter_context(open_model(path, SHAPE.n_context))
        limits = limits_for(SHAPE.n_context, kv=kv)
        found = open_device(device, DeviceOptions())
        lane = found.compile(model.spec, model.file, limits, progress)
        executor = opened.enter_context(Executor(found, lane, limits, "synthetic"))
        sequence, first = executor.create(), 0
        for n_tokens in PASSES:
            order = np.arange(n_tokens, dtype=np.int32)
            positions = order + np.int32(first)
            tokens = ((positions * 37 + 11) % SHAPE.n_vocab).astype(np.int32)
            outputs = order[-min(n_tokens, limits.max_outputs) :]
            sequences = np.full(n_tokens, sequence, np.int32)
            digest.update(executor.evaluate(Batch(tokens, sequences, positions, order - 1, outputs)).tobytes())
            executor.commit(sequence, order)
            first += n_tokens
    return digest.hexdigest()


def _write_model(path: Path, form: str) -> None:
    """A file with weights of both signs, and norms near 1, as in trained models: else all that follows is near 0."""
    header, n_bytes = synthetic_header(SHAPE, form)
    data = np.zeros(n_bytes, np.uint8)
    data[: len(header)] = np.frombuffer(header, np.uint8)
    draw = np.random.Generator(np.random.SFC64(SEED))
    for number, (name, info) in enumerate(parse_header(data.data, n_bytes, path.name).tensors.items()):
        weights = data[info.offset : info.offset + info.nbytes]
        if "norm" in name:
            near = 1 + np.cos(np.arange(info.nbytes // 4) + number) / 4
            weights[:] = (np.round(near * 256) / 256).astype(np.float32).view(np.uint8)  # no library's last bit
        else:
            weights[:] = np.frombuffer(draw.bytes(info.nbytes), np.uint8) & 0x8F | 0x20
    path.write_bytes(data.tobytes())
