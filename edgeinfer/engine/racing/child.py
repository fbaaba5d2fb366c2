"""The process of one device in a comparison: opens the model there and runs one turn for each request of its parent.

In: a `RaceOpening`, then a `RaceTurn` for each turn. Out: `RaceReply`s. Device runtimes are imported here and not in
the parent, whose memory they would stay in.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import DeviceKind, DeviceOptions, kind_of
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.device_choice import N_COMPARED
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE, Executor
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch
from edgeinfer.ipc.channel import Channel
from edgeinfer.ipc.child import connect
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.settings import KVKind

RACED_BYTES = 256 << 20
"""Approximate bytes of the weights of the layers that are run."""
N_PROMPT, N_DECODED = 128, 24
TURN_S, MOST_PASSES = 0.5, 8
"""A turn repeats its prompt and its decoding until it has taken this long, at most this many times."""


@dataclass(frozen=True, slots=True)
class RaceOpening:
    """What to open: a model on a device, or on the first device of a kind."""

    path: Path
    device: str
    is_kind: bool
    options: DeviceOptions
    kv: KVKind


@dataclass(frozen=True, slots=True)
class RaceTurn:
    """A request for one turn."""


@dataclass(frozen=True, slots=True)
class RaceReply:
    """News of the kind's devices, of compiling, of the open model or of a turn; or an error.

    `devices`: the first is opened here. `speeds`: tokens per second of prefill and of decoding.
    """

    devices: tuple[str, ...] = ()
    progress: tuple[str, int, int] | None = None
    is_open: bool = False
    speeds: tuple[float, float] | None = None
    error: str = ""


def first_layers(spec: ModelSpec, subject: Subject) -> tuple[ModelSpec, float]:
    """A model of the first layers and the head, and its share of the weights."""
    work = work_of(spec, subject.file.tensors)
    layers = [stage for stage in work.stages if stage.shape.attention is not None]
    others = work.weight_bytes - sum(stage.shape.weight_bytes for stage in layers)
    n_layers, n_bytes = 0, others
    for stage in layers:
        if n_layers and n_bytes + stage.shape.weight_bytes > RACED_BYTES:
            break
        n_layers, n_bytes = n_layers + 1, n_bytes + stage.shape.weight_bytes
    if n_layers == len(layers):
        return spec, 1.0
    left_out = {stage.name for stage in layers[n_layers:]}
    stages = tuple(stage for stage in spec.stages if stage.name not in left_out)
    return replace(spec, stages=stages, kv=spec.kv[:n_layers], n_layers=n_layers), n_bytes / work.weight_bytes


def devices_of_kind(key: str) -> tuple[str, ...]:
    """Names of the devices of a kind that may run here. Raises what the runtime raises."""
    kind = kind_of(key)
    if key == AUTO_DEVICE or not isinstance(kind, DeviceKind):
        return (key,)
    return kind.entrants() or (key,)


def turn_speeds(executor: Executor, share: float) -> tuple[float, float]:
    """Tokens per second of prefill and of decoding for the whole model, from the best passes of a turn."""
    prefill_s, decode_s, began = list[float](), list[float](), time.perf_counter()
    while not prefill_s or (time.perf_counter() - began < TURN_S and len(prefill_s) < MOST_PASSES):
        sequence = executor.create()
        prefill_s.append(pass_s(executor, sequence, N_PROMPT))
        decode_s.append(sum(pass_s(executor, sequence, 1) for _ in range(N_DECODED)))
        executor.free(sequence)
    return share * N_PROMPT / min(prefill_s), share * N_DECODED / min(decode_s)


def pass_s(executor: Executor, sequence: int, n_tokens: int) -> float:
    """Seconds of a pass over this many tokens."""
    order, depth = np.arange(n_tokens, dtype=np.int32), executor.n_cached(sequence)
    sequences = np.full(n_tokens, sequence, np.int32)
    began = time.perf_counter()
    executor.evaluate(Batch(order, sequences, order + np.int32(depth), order - 1, order[-1:]))
    executor.commit(sequence, order)
    return time.perf_counter() - began


def _opened(asked: RaceOpening, channel: Channel) -> tuple[Executor, float]:
    """The model on the requested device, and its share of the whole model's weights."""

    def progress(what: str, done: int, total: int) -> None:
        if device == AUTO_DEVICE:  # whose kernels are compiled for this machine at first use, and then cached
            channel.send(RaceReply(progress=(what, done, total)))

    device = asked.device
    if asked.is_kind:
        devices = devices_of_kind(device)
        device = devices[0]
        channel.send(RaceReply(devices))
    subject = open_subject(asked.path, LoadOptions(device=device, n_context=N_COMPARED))
    if subject.spec is None:
        raise DeviceUnavailable(f"{device} runs models by itself")
    spec, share = first_layers(subject.spec, subject)
    limits, options = limits_for(N_COMPARED, kv=asked.kv), replace(asked.options, adapts=False)
    request = OpeningRequest(spec, subject.gguf, limits, options, progress)
    return open_executor(device, request, "race"), share


def main() -> None:
    channel = connect()
    try:
        executor, share = _opened(channel.receive(RaceOpening), channel)
        turn_speeds(executor, share)  # warm up: compile and lay out what is done on first use
        channel.send(RaceReply(is_open=True))
        while True:
            channel.receive(RaceTurn)
            channel.send(RaceReply(speeds=turn_speeds(executor, share)))
    except Exception as reason:  # whatever a runtime raises: its device takes no part
        with suppress(OSError):  # the parent has closed the channel
            channel.send(RaceReply(error=f"{type(reason).__name__}: {reason}"))
    os._exit(0)  # a runtime must not hang at exit


if __name__ == "__main__":
    main()
