"""The process of one device in a comparison: opens the model there and runs one turn for each request of its parent.

In: standard input: a line of JSON that says what to open, then a line for each turn. Out: lines of JSON. At the end of
standard input the process ends at once, even in the middle of a computation. Device runtimes are imported here and not
in the parent, whose memory they would stay in.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import DeviceKind, DeviceOptions, kind_of
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE, Executor
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.settings import KVKind

RACED_BYTES = 256 << 20
"""Approximate bytes of the weights of the layers that are run."""
N_PROMPT, N_DECODED = 128, 24
N_CONTEXT = 2 * N_PROMPT
TURN_S, MOST_PASSES = 0.5, 8
"""A turn repeats its prompt and its decoding until it has taken this long, at most this many times."""

Send = Callable[[dict[str, object]], None]


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


def _opened(asked: dict[str, object], send: Send) -> tuple[Executor, float]:
    """The model on the requested device, and its share of the whole model's weights."""

    def progress(what: str, done: int, total: int) -> None:
        if device == AUTO_DEVICE:  # whose kernels are compiled for this machine at first use, and then cached
            send({"progress": [what, done, total]})

    device = str(asked["device"])
    if asked["is_kind"]:
        device, *others = devices_of_kind(device)
        send({"device": device, "others": others})
    given: Any = asked["options"]
    plain: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    options = DeviceOptions(**plain)
    subject = open_subject(Path(str(asked["path"])), LoadOptions(device=device, n_context=N_CONTEXT))
    if subject.spec is None:
        raise DeviceUnavailable(f"{device} runs models by itself")
    spec, share = first_layers(subject.spec, subject)
    kv: KVKind = "int8" if asked["kv"] == "int8" else "f16"
    limits = limits_for(N_CONTEXT, kv=kv)
    return open_executor(spec, subject.gguf, "race", limits, device, replace(options, adapts=False), progress), share


def _lines(source: queue.SimpleQueue[bytes]) -> None:
    """Forward the lines of standard input; its end ends this process."""
    for line in sys.stdin.buffer:
        source.put(line)
    os._exit(0)


def _own_output() -> Send:
    """Reserve standard output for messages and redirect other writes, because runtimes print there."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, object]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    return send


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends this process
    send, source = _own_output(), queue.SimpleQueue[bytes]()
    threading.Thread(target=_lines, args=(source,), daemon=True).start()
    try:
        executor, share = _opened(json.loads(source.get()), send)
        turn_speeds(executor, share)  # warm up: compile and lay out what is done on first use
        send({"opened": True})
        while True:
            source.get()
            send({"speeds": turn_speeds(executor, share)})
    except Exception as reason:  # whatever a runtime raises: its device takes no part
        send({"error": f"{type(reason).__name__}: {reason}"})
    os._exit(0)  # a runtime must not hang at exit


if __name__ == "__main__":
    main()
