"""What an answer may be: tokens that a grammar or a schema leaves open, asked step by step.

In: tokens that were chosen. Out: which may follow, and which must. A constraint changes logits, never drafts: what is
drafted and forbidden is not evaluated, what is forced is not asked for. Knows no grammars; `guidance` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.tree import Draft


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language, as text: a JSON schema, a regular expression, or a grammar in Lark's or llama.cpp's form (GBNF)."""

    kind: Literal["json", "regex", "grammar"]
    text: str


class Constraint(Protocol):
    """One answer's. `accept` moves it on; `settled` may end that choice is left; nothing else changes it."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer is being closed because of `end_within`, and the model would have gone on."""
        ...

    def end_within(self, n_tokens: int) -> None:
        """Have the answer whole after so many tokens, where it can be told how. Before the first one."""
        ...

    def settled(self, token: int) -> int:
        """What follows where this token was chosen: another one where too few would be left after it to be whole."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must follow, as far as that is certain."""
        ...

    def allows(self, token: int) -> bool:
        """Whether a token may follow; of those that end an answer, whether it may end here."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these may follow, one after the other; none of them ends the answer."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may follow: bool[V] of the tokenizer's vocabulary."""
        ...

    def accept(self, token: int) -> None:
        """A token follows. Raises EdgeInferError where it may not."""
        ...


def allowed_nodes(draft: Draft, constraint: Constraint) -> list[int]:
    """The nodes of a draft that may follow, the root first: those whose whole path is allowed."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    paths: dict[int, list[int]] = {0: []}
    for node in range(1, len(tokens)):
        before = paths.get(parents[node])
        if before is None:
            continue
        path = [*before, tokens[node]]
        if constraint.n_allowed(path) == len(path):
            paths[node] = path
    return list(paths)
