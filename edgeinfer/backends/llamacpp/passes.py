"""A batch in llama.cpp's form: arrays that it reads in place, and the llama.cpp sequences of each token.

In: a `Batch`, the llama.cpp sequence of each of our sequences. Out: the `llama_batch` structure. A tree becomes one
llama.cpp sequence per leaf: a token belongs to the sequences of all leaves below it, so each path sees only itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.graph.step import Batch, Int32s


def is_chain(batch: Batch) -> bool:
    """Whether the tokens form a chain in a single sequence."""
    n_tokens = len(batch.tokens)
    return n_tokens == 1 or bool(
        (batch.parents == np.arange(-1, n_tokens - 1)).all() and (batch.sequences == batch.sequences[0]).all()
    )


def members_of(batch: Batch, own: Mapping[int, int], borrow: Callable[[int], int]) -> list[list[int]]:
    """The llama.cpp sequences of each token: those of all leaves below it.

    The first leaf of a sequence uses its `own` llama.cpp sequence; `borrow` supplies one for each further leaf.
    """
    parents, sequences = batch.parents.tolist(), batch.sequences.tolist()
    inner = set(parents)
    members: list[list[int]] = [[] for _ in parents]
    begun: set[int] = set()
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        sequence = sequences[leaf]
        member = borrow(sequence) if sequence in begun else own[sequence]
        begun.add(sequence)
        node = leaf
        while node >= 0:
            members[node].append(member)
            node = parents[node]
    return members


class Arrays:
    """The memory of a `llama_batch` with this many tokens, each in at most this many sequences."""

    def __init__(self, api: Any, max_tokens: int, max_sequences: int) -> None:
        self._tokens = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._counts = np.ones(max_tokens, np.int32)
        self._members = np.zeros((max_tokens, max_sequences), np.int32)
        self._wanted = np.zeros(max_tokens, np.int8)
        row_bytes = self._members.strides[0]
        self._rows = (self._members.ctypes.data + row_bytes * np.arange(max_tokens)).astype(np.uintp)
        kinds = dict(api.llama_batch._fields_)
        self.batch = api.llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._rows),
            ("logits", self._wanted),
        ):
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, kinds[name]))

    def fill(self, tokens: Int32s, positions: Int32s, outputs: Int32s) -> None:
        """Set the tokens of the next pass, all in one sequence until changed."""
        n_tokens = len(tokens)
        self._tokens[:n_tokens] = tokens
        self._positions[:n_tokens] = positions
        self._wanted[:n_tokens] = 0
        self._wanted[outputs] = 1
        self.batch.n_tokens = n_tokens

    def give_all(self, member: int) -> None:
        """Put every token of the pass in this one llama.cpp sequence."""
        n_tokens = self.batch.n_tokens
        self._counts[:n_tokens] = 1
        self._members[:n_tokens, 0] = member

    def give(self, members: list[list[int]]) -> None:
        """Put each token in these sequences."""
        for token, of_token in enumerate(members):
            self._counts[token] = len(of_token)
            self._members[token, : len(of_token)] = of_token
