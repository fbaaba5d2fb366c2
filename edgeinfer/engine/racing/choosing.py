"""Chooses what `auto` means for a model: the remembered device, or the winner of a comparison on first use.

In: an open model and the options devices are opened with. Out: a device's name, and notices for the user. The registry
lists the devices; no device's runtime is imported in this process. For large models only a few layers are run. A
comparison takes half a minute, so a small model may answer on the CPU first and be compared afterwards.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, device_kinds
from edgeinfer.engine.measure.idle import idle_share, is_busy
from edgeinfer.engine.measure.profiles import fingerprint_of
from edgeinfer.engine.racing.choices import Choices, DeviceChoice, now_s
from edgeinfer.engine.racing.contest import Contestant, compare
from edgeinfer.engine.racing.contestant import ChildContestant, RacedModel
from edgeinfer.engine.racing.finish import Finish, is_certain, notice_of, runner_up_of, winner_of
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.engine.run.staffing import shared_cores
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.topology import Topology, available_bytes
from edgeinfer.setting_values import KVKind, Race
from edgeinfer.steps import Progress, no_progress

LEAST_BYTES = 16 << 20
"""Bytes of weights below which a model is fast on any device."""
ANSWER_FIRST_BYTES = 2 << 30
"""Bytes of weights up to which the CPU answers about as fast as people read, so that the comparison can wait."""
OPENED_BYTES = 1 << 30
"""Memory of a device in a comparison: its runtime, and the layers in the file's form and in the device's own."""


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The device, and the results for all devices if they were just measured.

    `compares_later`: whether they should be compared after an answer.
    """

    device: str
    notice: str | None = None
    compares_later: bool = False


def chosen_device(
    subject: Subject,
    topology: Topology,
    options: DeviceOptions,
    *,
    kv: KVKind = "f16",
    race: Race,
    progress: Progress = no_progress,
    choices: Choices | None = None,
    idle: Callable[[], float] = idle_share,
) -> ChosenDevice:
    """The device for a model: the remembered one, else the winner of a comparison, else (`race` "never") the CPU.

    A provisional choice is compared again when the machine is quiet: see `DeviceChoice.is_due`.
    """
    if subject.spec is None or subject.spec.why_whole is not None:
        return ChosenDevice(AUTO_DEVICE)
    weight_bytes = work_of(subject.spec, subject.file.tensors).weight_bytes
    if weight_bytes < LEAST_BYTES:
        return ChosenDevice(AUTO_DEVICE)
    installed = _installed()
    if not installed:
        return ChosenDevice(AUTO_DEVICE)
    choices, cores = choices or Choices(), shared_cores(options, topology)
    key = choice_key(subject.fingerprint, topology, kv, cores, installed)
    known = choices.find(key)
    device = AUTO_DEVICE if known is None else known.device
    if race == "never" or (known is not None and not known.is_due(now_s())):
        return ChosenDevice(device)
    if race == "after" and weight_bytes <= ANSWER_FIRST_BYTES:
        return ChosenDevice(device, compares_later=True)
    if known is not None and is_busy(idle(), len(cores)):
        choices.keep(key, known.put_off(now_s()))
        return ChosenDevice(known.device)
    finishes = compared(subject, options, kv, len(cores), progress)
    tries = 1 if known is None else known.tries + 1
    if len(finishes) < 2 and known is not None:
        choices.keep(key, known.put_off(now_s()))
        return ChosenDevice(known.device)
    runner_up = runner_up_of(finishes)
    choice = DeviceChoice(
        winner_of(finishes),
        not is_certain(finishes),
        tries,
        now_s(),
        None if runner_up is None else round(runner_up.decode_tok_s, 1),
    )
    choices.keep(key, choice)
    return ChosenDevice(choice.device, notice_of(finishes) if len(finishes) > 1 else None)


def note_speed(
    fingerprint: str,
    device: str,
    topology: Topology,
    kv: KVKind,
    cores: tuple[int, ...],
    decode_tok_s: float,
    choices: Choices | None = None,
    idle: Callable[[], float] = idle_share,
) -> None:
    """Note the speed of a short answer from an empty cache, without the gain from drafts.

    Several answers in a row that are much slower than the runner-up, on a quiet machine, cast doubt on the choice: a
    later start compares again.
    """
    installed = _installed()
    choices = choices or Choices()
    key = choice_key(fingerprint, topology, kv, cores, installed)
    choice = choices.find(key)
    if choice is None or choice.device != device:
        return
    is_slow = choice.is_slow(decode_tok_s)
    if is_slow and is_busy(idle(), len(cores)):
        return
    noted = choice.answered(slowly=is_slow)
    if noted != choice:
        choices.keep(key, noted)


def choice_key(
    fingerprint: str, topology: Topology, kv: KVKind, cores: tuple[int, ...], installed: Sequence[str]
) -> str:
    """What the winner depends on: the machine, the model, the KV cache type, the cores, and the installed runtimes."""
    on = "" if cores == topology.workers() else f"on {','.join(map(str, cores))} "
    manner = f"{'' if kv == 'f16' else f'kv {kv} '}{on}"
    return f"{fingerprint_of(topology)} {fingerprint} {manner}{' '.join(installed)}"


def compared(
    subject: Subject, options: DeviceOptions, kv: KVKind, n_threads: int, progress: Progress
) -> tuple[Finish, ...]:
    """Time every device that can run the model, each in a separate process."""
    names = entrant_kinds()
    model = RacedModel(subject.file.path, options, kv, n_threads)
    contestants: list[Contestant] = [ChildContestant(name, model, is_kind=True) for name in names]
    return compare(contestants, progress, together=available_bytes() >= len(names) * OPENED_BYTES)


def entrant_kinds() -> tuple[str, ...]:
    """Kinds of devices that may run here, the CPU first; their packages are installed, but not imported."""
    return (AUTO_DEVICE, *(item.partition(":")[0] for item in _installed()))


def _installed() -> list[str]:
    """Installed packages that devices other than the CPU need, and when they were installed; imports nothing heavy."""
    found = []
    for kind in device_kinds().values():
        specs = [importlib.util.find_spec(module) for module in kind.modules]
        if specs and all(specs):
            origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
            found.append(f"{kind.key}:{max((int(path.stat().st_mtime) for path in origins), default=0)}")
    return sorted(found)
