"""The interface of speculation: proposes the tokens of a pass, and learns from what the model made of them.

In: the tokens so far. Out: a draft for the next pass. Afterwards it gets the logits and the walk. Nothing it does can
change the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.requests.tree import Draft, Walk
from edgeinfer.graph.step import Floats, Int32s


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Drafted tokens credited to a source, and how many of them the model accepted."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Drafting for one text: tokens by source, seconds spent on drafting, and the expected results of its passes.

    n_passes: passes of at least one token, of which n_single verified no draft; n_expected: tokens they should have
    given. single_s: seconds of a one-token pass, estimated from passes of all sizes; None before the first pass.
    """

    sources: Mapping[str, SourceCount]
    seconds: float
    n_passes: int
    n_single: int
    n_expected: float
    single_s: float | None = None


@dataclass(frozen=True, slots=True)
class OtherWork:
    """What other texts contribute to a pass: tokens, and how many tokens it should give for them."""

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
        """Start a text to continue. `sampled`: its tokens are drawn, rather than the likeliest ones."""
        ...

    def draft(self, history: Sequence[int], most: int, deepest: int, beside: OtherWork = ALONE) -> Draft:
        """Draft what may follow the last token of `history`, the root: up to `most` tokens, up to `deepest` after it.

        `history` is that of `begin` plus the tokens chosen since. Drafted tokens share the pass with those `beside`;
        the draft is as large as raises the tokens per second of all texts together.
        """
        ...

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        """Reduce the last draft to these nodes, which are in order, root first."""
        ...

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> Sequence[int]:
        """Take a pass's logits, float32[T, V] by draft token; they stay valid until the following `learn` returns.

        `peaks`: peaks of the logits, as described in `base.Peaked`, if the device provides them. Returns the token with
        the highest logit after each node, NO_TOKEN if that is not certain; the list may be empty.
        """
        ...

    def sources(self, path: Int32s) -> list[str | None]:
        """The draft sources of the nodes of a path through the last draft, without the root."""
        ...

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        """Learn what was chosen in the pass given to `look`, and how long it took if no other text took part in it."""
        ...

    def report(self) -> DraftReport | None:
        """The report on the text since `begin`, if one is kept."""
        ...

    def take_notices(self) -> tuple[str, ...]:
        """Notices for the user since the last call."""
        ...


class ClosingSpeculator(Speculator, Protocol):
    """A speculator that its owner closes."""

    def close(self) -> None: ...
