"""Constraints: which tokens a grammar or a schema allows next in an answer, step by step.

In: chosen tokens. Out: which tokens may follow, and which must. A constraint changes logits, never drafts: forbidden
drafted tokens are not evaluated, and the model is not run for forced ones. Knows no grammars; `guidance` builds
constraints.
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
    """A language, as text: a JSON schema, a regular expression, or a grammar in Lark's or llama.cpp's syntax (GBNF)."""

    kind: Literal["json", "regex", "grammar"]
    text: str


class Constraint(Protocol):
    """The constraint of one answer. `accept` advances it; `settled` may end all choice; no other method changes it."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer is being closed because of `end_within`, although the model would have gone on."""
        ...

    def end_within(self, n_tokens: int) -> None:
        """Make the answer complete within `n_tokens` tokens, if it is possible to tell how.

        Call before the first token.
        """
        ...

    def settled(self, token: int) -> int:
        """The token to use where `token` was chosen: a different one if too few would remain to complete the answer."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must follow, as far as that is certain."""
        ...

    def allows(self, token: int) -> bool:
        """Whether a token may follow; for an end-of-generation token, whether the answer may end here."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, one after the other; none of them ends the answer."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may follow: bool[V] of the tokenizer's vocabulary."""
        ...

    def accept(self, token: int) -> None:
        """Append a token. Raises EdgeInferError if it may not follow."""
        ...


def allowed_nodes(draft: Draft, constraint: Constraint) -> list[int]:
    """The nodes of a draft that may follow, root first: those whose whole path is allowed."""
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
