"""Chooses what `auto` means for a model: the remembered device, or the winner of a comparison.

In: an open model, the options devices are opened with, and a function that compares devices. Out: a device's name, and
notices for the user. The registry lists the devices; no device's runtime is imported in this process. Choices are
remembered in a file of the user's data folder, by machine, model and settings; a damaged file counts as empty. A choice
measured while other programs were running is provisional: it is used, but compared again at a few later starts, then
ever less often. A comparison takes half a minute, so a small model may answer on the CPU first. Does not know how
devices are compared.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, device_kinds
from edgeinfer.engine.measure.idle import idle_share, is_busy
from edgeinfer.engine.measure.profiles import fingerprint_of
from edgeinfer.engine.run.evaluators import Subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.engine.run.workers import shared_cores
from edgeinfer.file_lock import FileLock
from edgeinfer.models.store import default_root
from edgeinfer.private_files import readable_folder
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.topology import Topology
from edgeinfer.setting_values import KVKind, Race
from edgeinfer.temporary import write_whole

MOST_KEPT = 256
EAGER_TRIES = 3
"""Times a provisional choice is compared again at the next start;"""
PAUSE_S, LONGEST_PAUSE_S = 24 * 3600.0, 32 * 24 * 3600.0
"""then after a day, with the interval doubling each time up to this one."""
SLOWER = 1.3
"""An answer this many times slower than the runner-up casts doubt on a choice;"""
SLOW_ANSWERS = 3
"""after this many in a row."""
LEAST_BYTES = 16 << 20
"""Bytes of weights below which a model is fast on any device."""
ANSWER_FIRST_BYTES = 2 << 30
"""Bytes of weights up to which the CPU answers about as fast as people read, so that the comparison can wait."""
N_COMPARED = 256
"""Tokens of context that devices are compared with; at large depths every device is slower."""
CANNOT_COMPARE = "devices cannot be compared here, as edgeinfer/engine/racing is missing; --device chooses one"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device and how certain the choice is.

    tries               comparisons made, or put off because the machine was busy
    tried_at            time of the last one, in seconds since 1970
    runner_up_tok_s     decoding speed of the second device; None if there was none or it was not recorded
    n_slow              answers in a row that were much slower than that
    """

    device: str
    is_provisional: bool = False
    tries: int = 1
    tried_at: float = 0.0
    runner_up_tok_s: float | None = None
    n_slow: int = 0

    def is_due(self, now: float) -> bool:
        """Whether the comparison should be repeated."""
        if not self.is_provisional:
            return False
        if self.tries < EAGER_TRIES:
            return True
        pause = min(PAUSE_S * 2.0 ** min(self.tries - EAGER_TRIES, 16), LONGEST_PAUSE_S)
        return not self.tried_at <= now < self.tried_at + pause  # the clock was set back: do not wait

    def is_slow(self, decode_tok_s: float) -> bool:
        """Whether an answer was so slow that the runner-up is probably faster."""
        return self.runner_up_tok_s is not None and decode_tok_s * SLOWER < self.runner_up_tok_s

    def answered(self, *, slowly: bool) -> DeviceChoice:
        """The choice after an answer on the device."""
        n_slow = self.n_slow + 1 if slowly else 0
        return replace(self, n_slow=n_slow, is_provisional=self.is_provisional or n_slow >= SLOW_ANSWERS)

    def put_off(self, now: float) -> DeviceChoice:
        """The choice after a start on a machine too busy to compare again."""
        return replace(self, tries=self.tries + 1, tried_at=now)


CompareDevices = Callable[[], tuple[DeviceChoice, str | None]]
"""Compares devices: the choice, and a line that says so; None if only one device could run the model."""


class Choices:
    """Earlier choices in a file (default: in the user's data folder)."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = default_root().parent / "devices.json" if path is None else path

    def alone(self) -> FileLock:
        """A lock for comparing devices, for use in `with`: two comparisons at once would distort each other.

        Raises EdgeInferError if another program holds it, OSError if nothing can be written.
        """
        readable_folder(self._path.parent)
        return FileLock(self._path.with_suffix(".lock"), "devices", "comparing")

    def find(self, key: str) -> DeviceChoice | None:
        """The choice made before."""
        return _read_choice(self._read().get(key))

    def keep(self, key: str, choice: DeviceChoice) -> None:
        """Remember a choice; the oldest ones are dropped when there are many."""
        table = {name: value for name, value in self._read().items() if name != key}
        write_whole(self._path, json.dumps(dict([*table.items(), (key, asdict(choice))][-MOST_KEPT:]), indent=1))

    def forget(self, device: str) -> None:
        """Forget all choices of a device that turned out not to run."""
        read = {key: (value, _read_choice(value)) for key, value in self._read().items()}
        kept = {key: value for key, (value, choice) in read.items() if choice is None or choice.device != device}
        write_whole(self._path, json.dumps(kept, indent=1))

    def _read(self) -> dict[str, object]:
        try:
            loaded = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}


def _read_choice(value: object) -> DeviceChoice | None:
    """A stored choice; None if the entry is invalid."""
    if isinstance(value, str):
        return DeviceChoice(value)  # file format before choices could be provisional
    if not isinstance(value, dict) or not isinstance(value.get("device"), str):
        return None
    runner_up = _number(value, "runner_up_tok_s")
    return DeviceChoice(
        value["device"],
        value.get("is_provisional") is True,
        int(_number(value, "tries") or 1),
        _number(value, "tried_at") or 0.0,
        runner_up or None,
        int(_number(value, "n_slow") or 0),
    )


def _number(value: dict[str, object], name: str) -> float | None:
    found = value.get(name)
    return float(found) if type(found) in (int, float) and 0 <= found < 1e12 else None  # type: ignore[operator,arg-type]


def now_s() -> float:
    """Seconds since 1970."""
    return time.time()


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
    compare: CompareDevices | None = None,
    choices: Choices | None = None,
    idle: Callable[[], float] = idle_share,
) -> ChosenDevice:
    """The device for a model: the remembered one, else the winner of a comparison, else (`race` "never") the CPU.

    A provisional choice is compared again when the machine is quiet: see `DeviceChoice.is_due`. Without `compare` no
    devices are compared, and a notice says so.
    """
    if subject.spec is None or subject.spec.why_whole is not None:
        return ChosenDevice(AUTO_DEVICE)
    weight_bytes = work_of(subject.spec, subject.file.tensors).weight_bytes
    if weight_bytes < LEAST_BYTES:
        return ChosenDevice(AUTO_DEVICE)
    installed = _able(kv)
    if not installed:
        return ChosenDevice(AUTO_DEVICE)
    choices, cores = choices or Choices(), shared_cores(options, topology)
    key = choice_key(subject.fingerprint, topology, kv, cores, installed)
    known = choices.find(key)
    device = AUTO_DEVICE if known is None else known.device
    if race == "never" or (known is not None and not known.is_due(now_s())):
        return ChosenDevice(device)
    if compare is None:
        return ChosenDevice(device, CANNOT_COMPARE)
    if race == "after" and weight_bytes <= ANSWER_FIRST_BYTES:
        return ChosenDevice(device, compares_later=True)
    if known is not None and is_busy(idle(), len(cores)):
        choices.keep(key, known.put_off(now_s()))
        return ChosenDevice(known.device)
    choice, notice = compare()
    if notice is None and known is not None:
        choices.keep(key, known.put_off(now_s()))
        return ChosenDevice(known.device)
    tries = 1 if known is None else known.tries + 1
    choices.keep(key, replace(choice, tries=tries, tried_at=now_s()))
    return ChosenDevice(choice.device, notice)


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
    installed = _able(kv)
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


def entrant_kinds(kv: KVKind = "f16") -> tuple[str, ...]:
    """Kinds of devices that may run here with such a KV cache, the CPU first; their packages are not imported."""
    return (AUTO_DEVICE, *(item.partition(":")[0] for item in _able(kv)))


def _able(kv: KVKind) -> list[str]:
    """Those of `_installed` whose devices can have such a KV cache."""
    kinds = device_kinds()
    return [item for item in _installed() if kv in kinds[item.partition(":")[0]].kv_kinds]


def _installed() -> list[str]:
    """Installed packages that devices other than the CPU need, and when they were installed; imports nothing heavy."""
    found = []
    for kind in device_kinds().values():
        specs = [importlib.util.find_spec(module) for module in kind.modules]
        if specs and all(specs):
            origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
            found.append(f"{kind.key}:{max((int(path.stat().st_mtime) for path in origins), default=0)}")
    return sorted(found)
