"""Proposes the tokens of a pass, and learns from what the model made of them: the seam of speculation.

In: the tokens so far. Out: a draft for the next pass. Afterwards it gets the logits and the walk. Nothing it does
can change the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.requests.tree import Draft, Walk
from edgeinfer.graph.step import Floats, Int32s


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Drafted tokens that owe their place to a source, and how many of them the model chose too."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Drafting for one text: tokens by source, seconds spent on it, and what was expected of its passes.

    n_passes of at least one token, of which n_single checked no draft; n_expected: tokens they should have given.
    single_s: what a pass of one token takes, as passes of all sizes say; None before any.
    """

    sources: Mapping[str, SourceCount]
    seconds: float
    n_passes: int
    n_single: int
    n_expected: float
    single_s: float | None = None


@dataclass(frozen=True, slots=True)
class OtherWork:
    """What other texts have in a pass: tokens, and how many tokens of theirs it should give."""

    n_tokens: int = 0
    expected: float = 0.0


ALONE = OtherWork()


class Speculator(Protocol):
    """Drafts for one text after another; its calls never overlap."""

    @property
    def expected(self) -> float:
        """Tokens that a pass over the last draft should give."""
        ...

    def begin(self, history: Sequence[int], *, sampled: bool) -> None:
        """A text to continue. `sampled`: its tokens are drawn, not the likeliest ones."""
        ...

    def draft(self, history: Sequence[int], most: int, deepest: int, beside: OtherWork = ALONE) -> Draft:
        """What may follow the last token of `history`, its root: `most` tokens at most, `deepest` after the root.

        `history` is that of `begin` and what was chosen since. Drafted tokens share the pass with those `beside`: as
        many are drafted as raise the tokens per second of all texts together.
        """
        ...

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        """The last draft without all but these nodes, which are in order, the root first."""
        ...

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> Sequence[int]:
        """What a pass gave: logits float32[T, V] of the draft's tokens, valid until `learn` returns, which follows.

        `peaks`: theirs, as `base.Peaked` says, if the device tells. Returns the token with the highest logit after each
        node, NO_TOKEN where that is not certain; it may be empty.
        """
        ...

    def sources(self, path: Int32s) -> list[str | None]:
        """Who drafted the nodes of a path through the last draft, the root left out."""
        ...

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        """What was chosen of the pass that was looked at last, and what everything took, if it had the pass alone."""
        ...

    def report(self) -> DraftReport | None:
        """The numbers of the text since `begin`, if they were kept."""
        ...

    def take_notices(self) -> tuple[str, ...]:
        """What has happened since this was last asked that a user should know."""
        ...


class ClosingSpeculator(Speculator, Protocol):
    """One whose owner closes it."""

    def close(self) -> None: ...
