"""Answers that are written side by side, as numbers, and what a pick makes of them.

In: how far each answer is. Out: which of them are still needed, and in the end the one that is kept, with the reason.
Knows no text and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Need = Literal["answers", "logprobs", "checks", "likeness"]
"""What a pick must know of a sample besides its length: what it says, its log probability, whether it passed a check,
how like the others it is."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """One of several answers, so far.

    number    its place among them, from 0 on
    n_tokens  tokens so far
    is_over   nothing more comes
    is_whole  it ended by itself, neither cut nor stopped
    answer    what it says, as votes count it; None if that is unknown so far, or it says nothing
    path      what tells its tokens from those of others; None if that is unknown
    logprob   natural logarithm of the probability of its tokens; nan if unknown
    passed    whether it passed the check; None if it was not checked (yet)
    likeness  how like the other whole answers it is, on average; nan if unknown
    weight    how many answers it stands for
    """

    number: int
    n_tokens: int = 0
    is_over: bool = False
    is_whole: bool = False
    answer: Hashable = None
    path: Hashable = None
    logprob: float = float("nan")
    passed: bool | None = None
    likeness: float = float("nan")
    weight: float = 1.0

    @property
    def votes(self) -> bool:
        """Whether it counts: it ended by itself and says something."""
        return self.is_whole and self.answer is not None


LEAST_VOTES = 3
"""Votes of which the entropy says something."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When to stop. `enough`: whole answers after which the others are not needed; 0: as many as the pick wants.

    `confidence`: stop once the leading answer is that likely to stay ahead; 1: only once it must. `most_entropy`: stop
    once the entropy of what LEAST_VOTES answers or more say is no higher, in nats; None: whatever it is.
    """

    enough: int = 0
    confidence: float = 1.0
    most_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pick says of samples: `chosen`, None while it is open, and why; `leave`: samples that are not needed."""

    chosen: int | None = None
    reason: str = ""
    leave: frozenset[int] = frozenset()


OPEN = Verdict()


@dataclass(frozen=True, slots=True)
class Pick:
    """A way to keep one of several answers.

    verdict  says which, from all samples in order; if all are over it has to choose one
    needs    what it must know of samples
    help     one line for people
    """

    verdict: Callable[[Sequence[SampledAnswer], Rules], Verdict]
    needs: frozenset[Need]
    help: str


def still_open(samples: Sequence[SampledAnswer]) -> list[SampledAnswer]:
    """Samples that go on."""
    return [sample for sample in samples if not sample.is_over]


def numbers(samples: Sequence[SampledAnswer]) -> frozenset[int]:
    """The places of samples."""
    return frozenset(sample.number for sample in samples)


def decided(chosen: SampledAnswer, reason: str, samples: Sequence[SampledAnswer]) -> Verdict:
    """The choice of a sample, with which all that go on are not needed."""
    return Verdict(chosen.number, reason, numbers(still_open(samples)))


def fallback(samples: Sequence[SampledAnswer]) -> Verdict:
    """What is left to choose where no answer is whole: the longest, of equals the first."""
    longest = max(samples, key=lambda sample: (sample.weight > 0, sample.n_tokens, -sample.number))
    return decided(longest, "no answer came to an end; the longest is kept", samples)
