"""Speeds measured in use: what `plan` knows about models that have run on this machine.

In: a generation's numbers. Out: medians of the last few, by model fingerprint, device and threads. One small JSON file
in the user's data folder; a damaged one counts as empty, one that cannot be written is left alone.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from edgeinfer.engine.whole_file import write_whole
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.plan import Speeds
from edgeinfer.settings import KVKind

N_KEPT = 7
TOKENS_MIN = 16
"""Fewer tokens than these measure nothing."""

Table = dict[str, dict[str, list[float]]]


class SpeedLog:
    """The file at `path` (default: in the user's data folder)."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            from edgeinfer.models.store import default_root

            path = default_root().parent / "speeds.json"
        self.path = path

    def find(self, fingerprint: str, device: str, threads: int | None, kv: KVKind = "f16") -> Speeds:
        """What was measured for a model on a device with so many threads (None: as many as the device chose)."""
        found = self._read().get(_key(fingerprint, device, threads, kv), {})
        return Speeds(prefill_tok_s=_median(found, "prefill_tok_s"), decode_tok_s=_median(found, "decode_tok_s"))

    def record(
        self,
        fingerprint: str,
        device: str,
        threads: int | None,
        *,
        kv: KVKind = "f16",
        decode_tok_s: float | None = None,
        prefill_tok_s: float | None = None,
    ) -> None:
        """Add one measurement."""
        table = self._read()
        entry = table.setdefault(_key(fingerprint, device, threads, kv), {})
        for name, value in (("decode_tok_s", decode_tok_s), ("prefill_tok_s", prefill_tok_s)):
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


def _median(entry: dict[str, list[float]], name: str) -> float | None:
    values = entry.get(name)
    return statistics.median(values) if values else None


def measured_speeds(file: GGUFFile, device: str, threads: int | None, kv: KVKind = "f16") -> Speeds:
    """What was measured for an open model; `device` is a registry key or "auto"."""
    from edgeinfer.engine.executor import AUTO_DEVICE
    from edgeinfer.engine.fingerprint import fingerprint

    return SpeedLog().find(fingerprint(file), AUTO_DEVICE if device == "auto" else device, threads, kv)
