"""What answers took beside what was predicted, kept per machine: factors that later predictions are corrected by.

In: predicted and measured seconds of a phase. Out: the median of the last ratios, once there are some. One small JSON
file beside the machine's profile; a damaged one counts as empty, one that cannot be written is left alone.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Literal, get_args

from edgeinfer.engine.whole_file import write_whole

Phase = Literal["prefill", "decode", "streamed_prefill", "streamed_decode"]
PHASES: tuple[Phase, Phase] = ("prefill", "decode")
STREAMED_PHASES: tuple[Phase, Phase] = ("streamed_prefill", "streamed_decode")
"""Of models whose weights come from disk in part: other things hold them up."""
LAST = 9
"""Ratios that are kept of each phase;"""
LEAST = 3
"""fewer say nothing."""
MOST = 8.0
"""Times slower or faster than predicted that is believed."""


class Experience:
    """The ratios of one machine, in the file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ratios = self._read()

    def factor(self, phase: Phase) -> float:
        """Measured over predicted seconds; 1 where too little was seen."""
        ratios = self._ratios[phase]
        return statistics.median(ratios) if len(ratios) >= LEAST else 1.0

    def note(self, phase: Phase, predicted_s: float, measured_s: float) -> None:
        """Take in an answer. The prediction is the profile's, not corrected."""
        if predicted_s > 0 and measured_s > 0:
            ratio = min(MOST, max(1 / MOST, measured_s / predicted_s))
            self._ratios[phase] = [*self._ratios[phase], round(ratio, 4)][-LAST:]

    def save(self) -> None:
        """Write what there is: others see all of it or what was there before."""
        write_whole(self._path, json.dumps(self._ratios))

    def _read(self) -> dict[Phase, list[float]]:
        try:
            loaded = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            loaded = {}
        return {phase: _ratios(loaded.get(phase) if isinstance(loaded, dict) else None) for phase in get_args(Phase)}


def _ratios(values: object) -> list[float]:
    if not isinstance(values, list):
        return []
    return [float(value) for value in values if type(value) in (int, float) and 1 / MOST <= value <= MOST][-LAST:]
