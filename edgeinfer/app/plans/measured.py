"""What was measured on this machine: its profile, saved or measured now, and the speeds of models that ran on it.

In: what to measure; an answer's numbers. Out: a `Profile`, from `engine.probing`; medians of the last few speeds, by
model fingerprint, device and threads; for prompts only those closest in length to the one that plans assume. The speeds
are one small JSON file in the user's data folder; a damaged one counts as empty, and failures to write it are ignored.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.prediction import MeasuredSpeeds
from edgeinfer.settings import KVKind
from edgeinfer.temporary import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeinfer.load_options import LoadOptions
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.steps import Progress


def kept_profile() -> Profile | None:
    """The saved profile of this machine, if there is one."""
    from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
    from edgeinfer.scheduling.machine.topology import read_topology

    return ProfileStore().find(fingerprint_of(read_topology()))


def kept_or_quick_profile() -> Profile:
    """The saved profile of this machine, else guesses from a look at its memory that takes a moment."""
    from edgeinfer.engine.probing.quick import quick_profile
    from edgeinfer.scheduling.machine.topology import read_topology

    return kept_profile() or quick_profile(read_topology())


def measured_profile(
    *,
    short: bool,
    formats: tuple[str, ...] = (),
    threads: int | None = None,
    cores: tuple[int, ...] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure this machine now. `formats`: weight formats, instead of (if `short`) or in addition to the usual ones."""
    from edgeinfer.engine.probing.probe import ProbeRequest, probe
    from edgeinfer.models.store import default_root
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    chosen = cores if cores is not None else topology.workers()
    wanted = ProbeRequest(short, formats, chosen[:threads] if threads else chosen)
    return probe(topology, wanted, default_root(), progress or no_progress)


def devices_profile(
    names: tuple[str, ...],
    formats: tuple[str, ...],
    cores: tuple[int, ...] | None,
    progress: Progress | None = None,
    *,
    again: bool = False,
) -> Profile:
    """This machine with these devices working together; measured if it was not yet, or `again`."""
    from edgeinfer.engine.probing.combination import combined_profile
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    chosen = cores or topology.workers()
    return combined_profile(names, topology, chosen, formats, progress or no_progress, again=again)


def devices_alone(
    names: tuple[str, ...], formats: tuple[str, ...], cores: tuple[int, ...] | None, progress: Progress | None = None
) -> Mapping[str, Profile]:
    """This machine with each of these devices working alone, the cpu included; measured now if it was not yet."""
    from edgeinfer.engine.probing.combination import alone_profiles
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    return alone_profiles(names, topology, cores or topology.workers(), formats, progress or no_progress)


def kept_devices(names: tuple[str, ...], cores: tuple[int, ...] | None) -> Path | None:
    """Path of the saved profile of these devices on these cores, if there is one."""
    from edgeinfer.engine.measure.profiles import ProfileStore
    from edgeinfer.engine.probing.combination import kept_combination
    from edgeinfer.scheduling.machine.topology import read_topology

    topology = read_topology()
    found = kept_combination(names, topology, cores or topology.workers())
    return None if found is None else ProfileStore().path(found.fingerprint)


def are_measurable(devices: Sequence[str]) -> bool:
    """Whether these devices can run parts of models, so that their times can be measured separately."""
    from edgeinfer.backends.base import DeviceKind, kind_of

    return all(isinstance(kind := kind_of(name), DeviceKind) and kind.modules for name in devices if name != "cpu")


def profile_or_short_probe(formats: tuple[str, ...], progress: Progress | None = None) -> Profile:
    """The saved profile; otherwise the result of a short probe, saved if the machine was otherwise idle."""
    from edgeinfer.engine.measure.profiles import ProfileStore
    from edgeinfer.scheduling.machine.profile import QUIET_SHARE

    found = kept_profile()
    if found is None:
        found = measured_profile(short=True, formats=formats, progress=progress)
        if found.idle_share is None or found.idle_share >= QUIET_SHARE:
            ProfileStore().save(found)
    return found


def device_found(file: GGUFFile, load: LoadOptions) -> str:
    """The device that "auto" means for this model, as far as that was found out."""
    from edgeinfer.backends.base import DeviceOptions
    from edgeinfer.engine.opening.device_choice import chosen_device
    from edgeinfer.engine.run.evaluators import Subject
    from edgeinfer.models.file_facts import fingerprint
    from edgeinfer.models.load import spec_of
    from edgeinfer.scheduling.machine.topology import read_topology

    spec = spec_of(file.metadata, file.tensors, load.n_context, adapters=file.adapters)
    subject = Subject(file, spec, fingerprint(file))
    options = DeviceOptions(n_workers=load.threads, cores=load.core_numbers)
    return chosen_device(subject, read_topology(), options, kv=load.kv, race="never").device


N_KEPT = 7
TOKENS_MIN = 16
"""Answers with fewer tokens than this are not measurements."""
ALIKE = 2.0
"""Prompts whose lengths differ by at most this factor are grouped."""

PROMPT_RATES, PROMPT_TOKENS = "prompt_tok_s", "prompt_tokens"
"""Parallel lists: the prefill rate of each prompt, and its token count."""

Table = dict[str, dict[str, list[float]]]


class SpeedLog:
    """The file at `path` (default: in the user's data folder)."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            from edgeinfer.models.store import default_root

            path = default_root().parent / "speeds.json"
        self.path = path

    def find(self, fingerprint: str, device: str, threads: int | None, kv: KVKind = "f16") -> MeasuredSpeeds:
        """Measured speeds of a model on a device with `threads` threads (None: as many as the device chose)."""
        found = self._read().get(_key(fingerprint, device, threads, kv), {})
        prefill_tok_s, n_prompt = _prompts(found)
        return MeasuredSpeeds(
            prefill_tok_s,
            _median(found.get("decode_tok_s")),
            n_prompt=n_prompt,
            plain_tok_s=_median(found.get("plain_tok_s")),
        )

    def record(
        self,
        fingerprint: str,
        device: str,
        threads: int | None,
        *,
        kv: KVKind = "f16",
        measured: MeasuredSpeeds,
    ) -> None:
        """Add one measurement."""
        table = self._read()
        entry = table.setdefault(_key(fingerprint, device, threads, kv), {})
        values = {"decode_tok_s": measured.decode_tok_s, "plain_tok_s": measured.plain_tok_s}
        if measured.prefill_tok_s is not None and measured.n_prompt is not None:
            values |= {PROMPT_RATES: measured.prefill_tok_s, PROMPT_TOKENS: float(measured.n_prompt)}
        for name, value in values.items():
            if value is not None:
                entry[name] = [*entry.get(name, []), round(value, 3)][-N_KEPT:]
        if entry:
            self._write(table)

    def _read(self) -> Table:
        try:
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(loaded, dict):
            return {}
        return {str(key): _numbers(entry) for key, entry in loaded.items() if isinstance(entry, dict)}

    def _write(self, table: Table) -> None:
        write_whole(self.path, json.dumps(table, indent=1))


def _key(fingerprint: str, device: str, threads: int | None, kv: KVKind) -> str:
    return f"{fingerprint} {device} {'auto' if threads is None else threads}{'' if kv == 'f16' else f' {kv}'}"


def _numbers(entry: dict[str, object]) -> dict[str, list[float]]:
    """The lists of positive numbers of an entry."""
    kept = {}
    for name, values in entry.items():
        if isinstance(values, list):
            kept[name] = [float(value) for value in values if type(value) in (int, float) and 0 < value < 1e9]
    return kept


def _prompts(entry: dict[str, list[float]]) -> tuple[float | None, int | None]:
    """Median prefill rate of the prompts closest in length to N_PROMPT, and their median length."""
    from edgeinfer.engine.opening.plan_choice import N_PROMPT

    rates, lengths = entry.get(PROMPT_RATES, []), entry.get(PROMPT_TOKENS, [])
    if not rates or len(rates) != len(lengths):
        return None, None
    nearest = min(lengths, key=lambda n: abs(math.log(n / N_PROMPT)))
    alike = [(rate, n) for rate, n in zip(rates, lengths, strict=True) if nearest / ALIKE <= n <= nearest * ALIKE]
    return statistics.median(rate for rate, _ in alike), round(statistics.median(n for _, n in alike))


def _median(values: list[float] | None) -> float | None:
    return statistics.median(values) if values else None


def measured_speeds(file: GGUFFile, device: str, threads: int | None, kv: KVKind = "f16") -> MeasuredSpeeds:
    """Measured speeds of an open model; `device` is a registry key or "auto"."""
    from edgeinfer.engine.run.executor import AUTO_DEVICE
    from edgeinfer.models.file_facts import fingerprint

    return SpeedLog().find(fingerprint(file), AUTO_DEVICE if device == "auto" else device, threads, kv)
