"""A tree of drafted tokens, and which of them the model agrees with.

In: tokens with parents, and the token the model chooses after each node. Out: the chosen tokens and the nodes that lead
there. Works for any tree, however it was drafted: a draft decides how many tokens a pass gives, never which. Knows no
models, caches or probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np

from edgeinfer.graph.step import Int32s

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
    """

    tokens: list[int]
    path: Int32s


def root_only(token: int) -> Draft:
    """An empty draft: only the next token."""
    return Draft(np.array([token], np.int32), np.array([ROOT], np.int32))


def walk(draft: Draft, choose: Callable[[int, list[int]], int], ends: Container[int]) -> Walk:
    """Follow the model's choices from the root for as long as they were drafted, or until one of `ends`.

    `choose(node, tokens chosen before in this walk)` is called once for each node of the path, in order, as plain steps
    would call it.
    """
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    chosen: list[int] = []
    path = [0]
    while True:
        token = choose(path[-1], chosen)
        chosen.append(token)
        child = None if token in ends else _child(tokens, parents, path[-1], token)
        if child is None:
            return Walk(chosen, np.array(path, np.int32))
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
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32))
