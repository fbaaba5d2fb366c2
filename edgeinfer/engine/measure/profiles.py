"""What was measured on this machine, stored per machine: its profile, and how far predictions were off.

In: a topology or a profile; predicted and measured seconds of prompts and tokens. Out: the profile of the machine with
that fingerprint, if it was measured, as a readable TOML file; an `Adjustment` of predictions from the medians of the
last answers, in a small JSON file beside it. An unreadable profile is ignored and measured again, a damaged calibration
counts as empty, and a failed write is ignored.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import Topology
from edgeinfer.temporary import write_whole

GIB = 1 << 30
Kind = Literal["first_short", "first_long", "later_short", "later_long", "token", "step", "together"]
"""Prompts of a model that was just loaded, and later ones; single tokens; the overhead of a step besides its pass;
several answers side by side."""
KINDS: tuple[Kind, ...] = get_args(Kind)
READ_MIN = 128
"""Tokens of a long prompt; for shorter ones most of the time is spent around the passes."""
MOST_ANSWERS = 9
"""Answers stored of each kind;"""
LEAST_ANSWERS = 3
"""with fewer there is no factor."""
MOST_FACTOR = 8.0
"""Limit on how many times slower or faster than predicted is believed."""
LONGEST_S = 1e5
ROUNDS = 3
"""Iterations to settle the overhead around passes and the factor on passes, each of which depends on the other."""
Pairs = list[tuple[float, float]]


class ProfileStore:
    """The folder of profiles (default: in the user's data folder)."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            from edgeinfer.models.store import default_root

            folder = default_root().parent / "profiles"
        self.folder = folder

    def path(self, fingerprint: str) -> Path:
        """The file of a machine's profile."""
        return self.folder / f"{fingerprint}.toml"

    def calibration(self, fingerprint: str, *, streams: bool = False) -> PredictionCalibration:
        """The prediction calibration of a machine; models that stream have their own."""
        return PredictionCalibration(self.folder / f"{fingerprint}.experience.json", streams=streams)

    def forget_calibration(self, fingerprint: str) -> None:
        """Clear the calibration: a new profile starts without corrections of an old one."""
        with suppress(OSError):
            (self.folder / f"{fingerprint}.experience.json").unlink()

    def find(self, fingerprint: str) -> Profile | None:
        """The profile of a machine; None if there is no usable one."""
        from edgeinfer.scheduling.machine.profile_file import read_profile

        path = self.path(fingerprint)
        if not path.is_file():
            return None
        try:
            found = read_profile(path)
        except EdgeInferError:
            return None
        return found if found.fingerprint == fingerprint else None

    def save(self, profile: Profile) -> Path | None:
        """Store a profile atomically; None if it cannot be written."""
        from edgeinfer.scheduling.machine.profile_file import profile_text

        if not write_whole(self.path(profile.fingerprint), profile_text(profile)):
            return None
        self.forget_calibration(profile.fingerprint)
        return self.path(profile.fingerprint)


def machine_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def fingerprint_of(topology: Topology) -> str:
    """16 hex digits of: processor, usable cores, caches, memory to the gigabyte, container quota."""
    cores = [(core.number, core.kind, core.node) for core in topology.cores]
    facts = (
        platform.system(),
        machine_name(),
        cores,
        topology.quota,
        topology.l3_bytes,
        round(topology.total_bytes / GIB),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """From predicted seconds of passes to the seconds of answers.

    prompt, token  measured over predicted seconds of passes
    begin_s        overhead until the first token, besides passes over the prompt; None while unknown
    step_s         overhead of each token besides its pass: choosing it, drafting, text; None while unknown
    together       measured over predicted seconds of answers side by side, overhead included; None while unknown
    """

    prompt: float = 1.0
    token: float = 1.0
    begin_s: float | None = None
    step_s: float | None = None
    together: float | None = None

    def prompt_s(self, passes_s: float) -> float:
        """Seconds until the first token."""
        return self.prompt * passes_s + (self.begin_s or 0.0)

    def tokens_s(self, passes_s: float, n_tokens: int = 1) -> float:
        """Seconds of this many tokens, whose passes are predicted to take `passes_s`."""
        return self.token * passes_s + n_tokens * (self.step_s or 0.0)

    def together_s(self, passes_s: float, n_tokens: int) -> float:
        """Seconds of this many tokens of answers side by side, whose passes are predicted to take `passes_s`."""
        if self.together is None:
            return self.tokens_s(passes_s, n_tokens)
        return self.together * (passes_s + n_tokens * (self.step_s or 0.0))

    def knows_prompt(self, n_tokens: int) -> bool:
        """Whether a prompt of this many tokens can be predicted: for a short one the passes alone say nothing."""
        return n_tokens >= READ_MIN or self.begin_s is not None


class PredictionCalibration:
    """Times of answers on one machine, in the file at `path`; `streams`: for models whose weights come from disk.

    Those depend on other things too, so they are stored separately.
    """

    def __init__(self, path: Path, *, streams: bool = False) -> None:
        self._path, self._group = path, "streamed" if streams else "resident"
        self._groups = _read_groups(path)
        self._pairs = self._groups.setdefault(self._group, {kind: [] for kind in KINDS})

    def note_prompt(self, n_tokens: int, predicted_s: float, measured_s: float, *, is_first: bool) -> None:
        """Note the time of a prompt. Predictions are the unadjusted profile's; `is_first`: by a model just loaded."""
        self._note(_kind_of(n_tokens, is_first=is_first), predicted_s, measured_s)

    def note_tokens(self, predicted_s: float, measured_s: float, step_s: float | None) -> None:
        """Note the mean time of a token, `step_s` of it besides its pass (None: unknown)."""
        self._note("token", predicted_s, measured_s - (step_s or 0.0))
        if step_s is not None:
            self._note("step", 0.0, step_s)

    def note_together(self, predicted_s: float, measured_s: float) -> None:
        """Note the time of several answers side by side; `predicted_s`: of passes, and `Adjustment.step_s` a token."""
        self._note("together", predicted_s, measured_s)

    def adjustment(self, *, is_first: bool = True) -> Adjustment:
        """The adjustment for predictions; `is_first`: for the first answer of a model that was just loaded."""
        begins, prompt = self._prompts()
        steps, together = self._pairs["step"], self._pairs["together"]
        return Adjustment(
            prompt,
            _factor(self._pairs["token"]),
            begins[_kind_of(1, is_first=is_first)],
            statistics.median(measured_s for _, measured_s in steps) if steps else None,
            _factor(together) if len(together) >= LEAST_ANSWERS else None,
        )

    def save(self) -> None:
        """Write the file atomically."""
        write_whole(self._path, json.dumps(self._groups))

    def _prompts(self) -> tuple[dict[Kind, float | None], float]:
        """Seconds around the passes of prompts, and the factor on passes."""
        kinds: tuple[tuple[Kind, Kind], ...] = (("first_short", "first_long"), ("later_short", "later_long"))
        begins, factor = dict[Kind, float | None](), 1.0
        for _ in range(ROUNDS):
            long = Pairs()
            for short_kind, long_kind in kinds:
                left = [max(0.0, measured_s - factor * passes_s) for passes_s, measured_s in self._pairs[short_kind]]
                begin_s = begins[short_kind] = statistics.median(left) if left else None
                long += [(passes_s, measured_s - (begin_s or 0.0)) for passes_s, measured_s in self._pairs[long_kind]]
            factor = _factor(long)
        return begins, factor

    def _note(self, kind: Kind, predicted_s: float, measured_s: float) -> None:
        if _is_pair(predicted_s, measured_s):
            pair = float(f"{predicted_s:.4g}"), float(f"{measured_s:.4g}")
            self._pairs[kind] = [*self._pairs[kind], pair][-MOST_ANSWERS:]


def _kind_of(n_tokens: int, *, is_first: bool) -> Kind:
    if n_tokens < READ_MIN:
        return "first_short" if is_first else "later_short"
    return "first_long" if is_first else "later_long"


def _factor(pairs: Sequence[tuple[float, float]]) -> float:
    """Measured over predicted seconds; 1 with too few measurements."""
    ratios = [
        min(MOST_FACTOR, max(1 / MOST_FACTOR, measured_s / predicted_s))
        for predicted_s, measured_s in pairs
        if predicted_s
    ]
    return statistics.median(ratios) if len(ratios) >= LEAST_ANSWERS else 1.0


def _is_pair(predicted_s: float, measured_s: float) -> bool:
    return 0 <= predicted_s < LONGEST_S and 0 < measured_s < LONGEST_S


def _read_groups(path: Path) -> dict[str, dict[Kind, Pairs]]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        loaded = {}
    groups = loaded if isinstance(loaded, dict) else {}
    return {
        group: {kind: _pairs(found.get(kind)) for kind in KINDS}
        for group, found in groups.items()
        if isinstance(found, dict)
    }


def _pairs(values: object) -> Pairs:
    if not isinstance(values, list):
        return []
    pairs = [value for value in values if isinstance(value, list) and len(value) == 2]
    numbers = [pair for pair in pairs if all(type(each) in (int, float) for each in pair)]
    return [(float(first), float(second)) for first, second in numbers if _is_pair(first, second)][-MOST_ANSWERS:]
