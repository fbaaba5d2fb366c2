"""Drafts as the scheduler sees them: a tree of tokens, which of them the model agrees with, and what proposes them.

In: tokens with parents, and the token the model chooses after each node. Out: the chosen tokens and the nodes that lead
there. Works for any tree, however it was drafted: a draft decides how many tokens a pass gives, never which. A
`PassDrafter` drafts for all texts of the next pass; each text has a `Speculator`, which afterwards gets its logits and
its walk. Nothing they do can change a text, unless it has a `Writer`. Knows no models or caches.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import Distribution, SamplingSettings
from edgeinfer.graph.step import Floats, Int32s

ROOT = -1
"""Parent of the root."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a text.

    tokens   int32[T]  the first is the last token of the text: the root
    parents  int32[T]  index of the token before each; ROOT for the root alone, and always below the token's own
    """

    tokens: Int32s
    parents: Int32s

    @property
    def depths(self) -> Int32s:
        """Depth of each node, 0 for the root: int32[T]."""
        depths = [0] * len(self.tokens)
        for node, parent in enumerate(self.parents.tolist()):
            if node:
                depths[node] = depths[parent] + 1
        return np.array(depths, np.int32)


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a pass over a draft.

    tokens  the chosen tokens in order: the accepted drafted ones and one more
    path    int32[len(tokens)]  the nodes at which the tokens were chosen, root first
    draws   what each token was drawn from; None if it was not drawn. Empty if no token was
    """

    tokens: list[int]
    path: Int32s
    draws: Sequence[Distribution | None] = ()


def root_only(token: int) -> Draft:
    """An empty draft: only the next token."""
    return Draft(np.array([token], np.int32), np.array([ROOT], np.int32))


def walk(
    draft: Draft,
    choose: Callable[[int, list[int]], int],
    ends: Container[int],
    draws: Sequence[Distribution | None] = (),
) -> Walk:
    """Follow the model's choices from the root for as long as they were drafted, or until one of `ends`.

    `choose(node, tokens chosen before in this walk)` is called once for each node of the path, in order, as plain steps
    would call it. `draws`: what each token was drawn from, which it adds to.
    """
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    chosen: list[int] = []
    path = [0]
    while True:
        token = choose(path[-1], chosen)
        chosen.append(token)
        child = None if token in ends else _child(tokens, parents, path[-1], token)
        if child is None:
            return Walk(chosen, np.array(path, np.int32), draws)
        path.append(child)


def _child(tokens: list[int], parents: list[int], node: int, token: int) -> int | None:
    """The first child of a node that has a token."""
    for child in range(node + 1, len(tokens)):
        if parents[child] == node and tokens[child] == token:
            return child
    return None


def trimmed(draft: Draft, root: int, n_vocab: int, most: int, deepest: int) -> Draft:
    """The part of a draft that can be verified: at most `most` tokens, at most `deepest` after the root.

    Leaves out tokens without a place in the tree, tokens outside the vocabulary, and everything below them, and merges
    repeated siblings; so a drafter may propose anything.
    """
    tokens, parents, depths = [root], [ROOT], [0]
    places = {0: 0}  # index in the result of each node of the draft
    children: dict[tuple[int, int], int] = {}
    wanted_tokens, wanted_parents = draft.tokens.tolist(), draft.parents.tolist()
    for node in range(1, min(len(wanted_tokens), len(wanted_parents))):
        token, parent = wanted_tokens[node], places.get(wanted_parents[node])
        if parent is None or not 0 <= token < n_vocab or wanted_parents[node] >= node:
            continue
        twin = children.get((parent, token))
        if twin is not None:
            places[node] = twin
        elif len(tokens) < most and depths[parent] < deepest:
            children[parent, token] = places[node] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
    if tokens == wanted_tokens and parents == wanted_parents:  # nothing was left out
        return draft
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Drafted tokens credited to a source, and how many of them the model accepted."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class SharedWriting:
    """What two models wrote of an answer, which is then not the large model's own.

    small         the small model's name
    hand_over     when the large one writes, as the setting spells it
    n_small       tokens of the answer by the small model, n_large by the large one
    n_handed_over how often the large one took over
    n_dropped     tokens of the small model that were not kept
    """

    small: str
    hand_over: str
    n_small: int
    n_large: int
    n_handed_over: int
    n_dropped: int


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Drafting for one text: tokens by source, seconds spent on drafting, and the expected results of its passes.

    n_passes: passes of at least one token, of which n_single verified no draft; n_expected: tokens they should have
    given. single_s: seconds of a one-token pass, estimated from passes of all sizes; None before the first pass. Where
    texts share passes, each counts its own drafts, and the same part of the seconds as every other one.
    shared_writing: what each of two models wrote, where a small one writes instead of drafting.
    """

    sources: Mapping[str, SourceCount]
    seconds: float
    n_passes: int
    n_single: int
    n_expected: float
    single_s: float | None = None
    shared_writing: SharedWriting | None = None

    @property
    def n_proposed(self) -> int:
        """Drafted tokens of all sources."""
        return sum(source.proposed for source in self.sources.values())

    @property
    def n_accepted(self) -> int:
        """Those of them that became tokens of the text."""
        return sum(source.accepted for source in self.sources.values())


@dataclass(frozen=True, slots=True)
class DraftRoom:
    """The room of a pass for drafts, and what else it contains.

    n_tokens: most tokens of all drafts together, roots included. n_pages: pages of the KV cache for drafts. n_others:
    tokens of other texts; expected: how many tokens the pass should give for these. n_prompt: tokens of prompts that it
    reads beside all these.
    """

    n_tokens: int
    n_pages: int
    n_others: int = 0
    expected: float = 0.0
    n_prompt: int = 0


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A text to draft for: up to `most` tokens, root included, up to `deepest` after the root.

    `history` is that of the speculator's `begin` plus the tokens chosen since; its last token is the root. `n_pages`:
    pages of the KV cache that its draft takes if there is more of it than a root. `text`: the tokens before the root in
    the cache; None if rows are among them. `stopped`: whether the answer was asked to end.
    """

    speculator: Speculator
    history: Sequence[int]
    most: int
    deepest: int
    n_pages: int = 0
    text: CachedText | None = None
    stopped: StopFlag | None = None


@dataclass(frozen=True, slots=True)
class Drafted:
    """A request and the draft that answers it."""

    request: DraftRequest
    draft: Draft


class PassDrafter(Protocol):
    """Drafts for all texts of a pass that draft from the same; its calls never overlap."""

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        """Draft for each text, as much as raises the tokens per second of all texts of the pass together."""
        ...

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn how long the pass over the last drafts took, if it had several texts and no others than those."""
        ...


class CachedText(Protocol):
    """A text in the model's cache."""

    @property
    def sequence(self) -> int:
        """Its number there."""
        ...

    @property
    def n_cached(self) -> int:
        """The number of its tokens that are cached."""
        ...

    @property
    def scales(self) -> tuple[float, ...]:
        """Scales of the LoRA adapters that it is read with; () if passes state none."""
        ...


class RowReader(Protocol):
    """What drafts from the model's hidden rows."""

    def note(self, first: int, tokens: Sequence[int], rows: Floats, text: CachedText | None = None) -> None:
        """Take the rows of tokens that were added to the text from position `first` on: float32[len(tokens), D].

        `text`: the text itself, for those who read its keys and values.
        """
        ...


class Writer(Protocol):
    """Another model whose tokens may stay although the model itself would choose others."""

    def kept(self, draft: Draft, logits: Floats) -> Sequence[int]:
        """The token that stays after each node of the last draft, a chain; NO_TOKEN where the model itself chooses."""
        ...


class Speculator(Protocol):
    """Drafts for one text after another; its calls never overlap."""

    @property
    def writer(self) -> Writer | None:
        """What decides which drafted tokens stay; None: those that the model chooses itself, as in all exact drafts.

        With one, there is a draft for every token of an answer, the first too.
        """
        ...

    @property
    def row_reader(self) -> RowReader | None:
        """What is given the hidden rows of all tokens; None if nothing reads them."""
        ...

    @property
    def drafter(self) -> PassDrafter:
        """What drafts for this text, along with others of a pass."""
        ...

    @property
    def expected(self) -> float:
        """Tokens that a pass over the last draft should give."""
        ...

    @property
    def rests(self) -> bool:
        """Whether the next pass should have no draft if this text is alone in it, as drafts do not pay at present."""
        ...

    def timed(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        """A pass of this text alone gave so many tokens and took so long, drafting and learning included."""
        ...

    def begin(
        self, history: Sequence[int], noise: Noise | None = None, settings: SamplingSettings | None = None
    ) -> None:
        """Start a text to continue. `noise`: that of draws 0, 1, … of its tokens; None: they are the likeliest ones.

        `settings`: how they are chosen, if that is known.
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
        """The draft sources of the nodes of a path through the last draft, without the root.

        With a writer also that of the token after the path.
        """
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
