"""The devices chosen so far, in a file of the user's data folder.

In: a key of machine, model and settings. Out: a `DeviceChoice`. A damaged file counts as empty. A choice measured while
other programs were running is provisional: it is used, but compared again at a few later starts, then ever less often.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgeinfer.file_lock import FileLock
from edgeinfer.models.store import default_root
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


class Choices:
    """Earlier choices in a file (default: in the user's data folder)."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = default_root().parent / "devices.json" if path is None else path

    def alone(self) -> FileLock:
        """A lock for comparing devices, for use in `with`: two comparisons at once would distort each other.

        Raises EdgeInferError if another program holds it, OSError if nothing can be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
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
