"""Which device `auto` means for a model: a short measured race at its first use, remembered per model and machine.

In: an open model and what devices are opened with. Out: a device's name, and what the user should know. Of large models
a few layers race. Who runs here is asked of the registry; devices that cannot run the model do not take part.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import Batch, DeviceOptions, Progress, device_kinds, no_progress
from edgeinfer.engine.evaluators import Subject
from edgeinfer.engine.executor import AUTO_DEVICE, Executor
from edgeinfer.engine.limits import limits_for
from edgeinfer.engine.probing.machine import fingerprint_of
from edgeinfer.engine.staffing import shared_cores
from edgeinfer.engine.whole_file import write_whole
from edgeinfer.models.spec import ModelSpec
from edgeinfer.models.store import default_root
from edgeinfer.scheduling.topology import Topology
from edgeinfer.scheduling.work import work_of
from edgeinfer.settings import KVKind

RACED_BYTES = 256 << 20
"""Weights of the layers that race, about."""
LEAST_BYTES = 16 << 20
"""Of weights: smaller models are fast anywhere."""
N_PROMPT, N_DECODED, ROUNDS = 128, 12, 2
ANSWER = 200, 200
"""Tokens of the prompt and of the answer that a device is judged by."""
WORTH = 1.1
"""Times faster that another device must be than the cpu, whose output is bit-exact with drafts and without."""
MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Finish:
    """How fast a device was, in tokens per second of the whole model."""

    device: str
    prefill_tok_s: float
    decode_tok_s: float

    @property
    def answer_s(self) -> float:
        """Seconds of a usual answer."""
        return ANSWER[0] / self.prefill_tok_s + ANSWER[1] / self.decode_tok_s


@dataclass(frozen=True, slots=True)
class Chosen:
    """The device, and what was found out about all of them just now, if anything was."""

    device: str
    notice: str | None = None


class Choices:
    """What was chosen before, in a file (default: in the user's data folder); a damaged one counts as empty."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = default_root().parent / "devices.json" if path is None else path

    def find(self, key: str) -> str | None:
        """The device that was chosen."""
        found = self._read().get(key)
        return found if isinstance(found, str) else None

    def keep(self, key: str, device: str) -> None:
        """Remember a choice; the oldest of many are forgotten."""
        table = {name: value for name, value in self._read().items() if name != key}
        write_whole(self._path, json.dumps(dict([*table.items(), (key, device)][-MOST_KEPT:]), indent=1))

    def forget(self, device: str) -> None:
        """Forget all choices of a device, which has turned out not to run."""
        write_whole(self._path, json.dumps({key: value for key, value in self._read().items() if value != device}))

    def _read(self) -> dict[str, object]:
        try:
            loaded = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}


def chosen_device(
    subject: Subject,
    topology: Topology,
    options: DeviceOptions,
    *,
    kv: KVKind = "f16",
    may_race: bool,
    progress: Progress = no_progress,
    choices: Choices | None = None,
) -> Chosen:
    """The device for a model: the one remembered, else the winner of a race, else (`may_race` False) the cpu."""
    if (
        subject.spec is None
        or subject.spec.has_experts
        or work_of(subject.spec, subject.file.tensors).weight_bytes < LEAST_BYTES
    ):
        return Chosen(AUTO_DEVICE)
    installed = _installed()
    if not installed:
        return Chosen(AUTO_DEVICE)
    choices = choices or Choices()
    key = f"{fingerprint_of(topology)} {subject.fingerprint} {_manner(options, topology, kv)}{' '.join(installed)}"
    known = choices.find(key)
    if known is not None or not may_race:
        return Chosen(known or AUTO_DEVICE)
    finishes = race(entrants(), subject, options, kv, progress)
    winner = winner_of(finishes)
    choices.keep(key, winner)
    return Chosen(winner, _told(finishes, winner) if len(finishes) > 1 else None)


def _manner(options: DeviceOptions, topology: Topology, kv: KVKind) -> str:
    """What besides the model and the machine decides who is fastest: how keys and values are kept, and which cores."""
    cores = shared_cores(options, topology)
    on = "" if cores == topology.workers() else f"on {','.join(map(str, cores))} "
    return f"{'' if kv == 'f16' else f'kv {kv} '}{on}"


def entrants() -> tuple[str, ...]:
    """Devices that may run here, the cpu first."""
    found = [AUTO_DEVICE]
    for kind in device_kinds().values():
        if kind.modules and all(importlib.util.find_spec(module) for module in kind.modules):
            try:
                found += kind.entrants()
            except Exception:  # whatever a runtime raises: it does not take part
                continue  # its package is there and finds nothing to run on
    return tuple(dict.fromkeys(found))


def winner_of(finishes: Sequence[Finish]) -> str:
    """The device with the fastest answer; the cpu unless another is clearly faster."""
    cpu = [each for each in finishes if each.device == AUTO_DEVICE]
    best = min(finishes, key=lambda each: each.answer_s, default=None)
    if best is None or (cpu and cpu[0].answer_s <= best.answer_s * WORTH):
        return AUTO_DEVICE
    return best.device


def race(
    names: Sequence[str],
    subject: Subject,
    options: DeviceOptions,
    kv: KVKind = "f16",
    progress: Progress = no_progress,
) -> tuple[Finish, ...]:
    """Time every device that can run the model, one after the other."""
    finishes = []
    for place, name in enumerate(names):
        progress(f"trying {name}", place, len(names))
        try:
            finishes.append(_run(name, subject, options, kv))
        except Exception:  # as above
            continue
    progress("trying devices", len(names), len(names))
    return tuple(finishes)


def _run(name: str, subject: Subject, options: DeviceOptions, kv: KVKind) -> Finish:
    assert subject.spec is not None
    spec, share = first_layers(subject.spec, subject)
    limits = limits_for(2 * N_PROMPT, kv=kv)
    with Executor.open(spec, subject.gguf, "race", limits, name, replace(options, adapts=False)) as executor:
        prefill_s, decode_s = [], []
        for _ in range(1 + ROUNDS):
            sequence = executor.create()
            prefill_s.append(_pass_s(executor, sequence, N_PROMPT))
            decode_s.append(sum(_pass_s(executor, sequence, 1) for _ in range(N_DECODED)))
            executor.free(sequence)
    return Finish(name, share * N_PROMPT / min(prefill_s[1:]), share * N_DECODED / min(decode_s[1:]))


def _pass_s(executor: Executor, sequence: int, n_tokens: int) -> float:
    order, depth = np.arange(n_tokens, dtype=np.int32), executor.n_cached(sequence)
    sequences = np.full(n_tokens, sequence, np.int32)
    began = time.perf_counter()
    executor.evaluate(Batch(order, sequences, order + np.int32(depth), order - 1, order[-1:]))
    executor.commit(sequence, order)
    return time.perf_counter() - began


def first_layers(spec: ModelSpec, subject: Subject) -> tuple[ModelSpec, float]:
    """A model of the first layers and the head, and the share of the weights that it has."""
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


def _installed() -> list[str]:
    """What is installed of that devices other than the cpu need, and since when; imports nothing heavy."""
    found = []
    for kind in device_kinds().values():
        specs = [importlib.util.find_spec(module) for module in kind.modules]
        if specs and all(specs):
            origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
            found.append(f"{kind.key}:{max((int(path.stat().st_mtime) for path in origins), default=0)}")
    return sorted(found)


def _told(finishes: Sequence[Finish], winner: str) -> str:
    speeds = ", ".join(
        f"{each.device} {each.prefill_tok_s:.0f} and {each.decode_tok_s:.0f}"
        for each in sorted(finishes, key=lambda each: each.answer_s)
    )
    return (
        f"tried the devices of this machine with this model, tok/s of prompt and answer: {speeds}. "
        f"{winner} runs it from now on; --device takes another"
    )
