"""How far an answer is while it is made: what a face shows beside the text.

In: counts and moments that the generator leaves behind. Out: frozen records, taken from any thread without a lock:
a number may be of the step before another one's. Knows no tokens and no screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """A running request in numbers, as `Stats` has them at its end.

    n_read of n_prompt tokens of the prompt are read, n_cached of which were so before; n_generated tokens came in
    `steps` passes. Rates are of all so far, None where nothing was measured.
    """

    n_prompt: int
    n_cached: int
    n_read: int
    n_generated: int
    steps: int
    ttft_s: float | None
    prefill_tok_s: float | None
    decode_tok_s: float | None
    accepted_per_step: float | None


@dataclass(frozen=True, slots=True)
class DraftSpan:
    """A run of an answer's text: so many characters, and who drafted them; None where nobody did."""

    n_characters: int
    source: str | None


def marks_of(pieces: Sequence[str], sources: Sequence[str | None]) -> tuple[DraftSpan, ...]:
    """Runs of pieces of one source; `sources` are those of the first pieces, the others have none."""
    sourced = zip_longest(pieces, sources[: len(pieces)])
    runs = groupby(((piece, source) for piece, source in sourced if piece), key=lambda pair: pair[1])
    return tuple(DraftSpan(sum(len(piece) for piece, _ in run), source) for source, run in runs)
