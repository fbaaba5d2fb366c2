"""What followed the longest suffix of the text elsewhere: in this program's sessions, in earlier ones, in files.

One suffix automaton for all sessions of a model (SuffixDecoding, arXiv 2411.04975). Its continuations are separated by
where they were seen last: a hierarchy by temporal locality (arXiv 2502.05609).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from edgeinfer.engine.speculation.drafters import Drafter, DraftSource, TokenLog, loop
from edgeinfer.engine.speculation.records import AUTOMATON, EDGE, NO_TOKEN, READER, STATE
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.library import KernelLibrary

BUCKETS = 6 * 3 * 3
READ = loop("automaton", "read")
REHASH = loop("automaton", "rehash", n_arguments=1)
FIRST_ROOM, MOST_ROOM = 1 << 13, 1 << 18
"""Room of an automaton in tokens, at first and at most."""
KEPT_TOKENS = 1 << 16
"""Most tokens of earlier texts to keep; the latest are kept."""
AHEAD = 2048
"""Tokens of room that are reserved for an answer in advance."""
READ_AGAIN = 1 << 13
"""Last tokens of each session, and of other texts, that are read again when an automaton is rebuilt."""


class AutomatonCursor:
    """One session's position in the automaton of its model."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._record = np.zeros(1, READER)
        self.fields = self._record[0]
        self.fields["automaton"] = automaton.address
        self.fields["first_text"], self.fields["first_own"] = automaton.first_text, automaton.first_own

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    def follow(self, log: TokenLog) -> None:
        """Continue in a log whose memory moved, or that began anew."""
        self.fields["log"] = log.address
        if log.n_tokens < self.fields["n_read"]:
            self.fields["n_read"], self.fields["text"] = 0, 0

    def reserve(self, n_tokens: int) -> None:
        """Make room for a log of `n_tokens` tokens, and for the answer to come."""
        self._automaton.reserve(self.n_unread(n_tokens))

    def n_unread(self, n_tokens: int) -> int:
        """Unread tokens of a log of `n_tokens` tokens, plus room for the answer to come."""
        return n_tokens - int(self.fields["n_read"]) + AHEAD

    def restart(self, n_tokens: int) -> None:
        """The automaton was rebuilt: read the last tokens of a log of `n_tokens` tokens again."""
        for name in ("text", "last", "at", "matched", "node"):
            self.fields[name] = 0
        self.fields["n_read"] = max(0, n_tokens - READ_AGAIN)
        self.fields["first_text"], self.fields["first_own"] = self._automaton.first_text, self._automaton.first_own


class Automaton:
    """The automaton of a model: initially empty, then filled with files, earlier texts and what sessions read."""

    def __init__(self, n_vocab: int, library: KernelLibrary) -> None:
        self._read, self._rehash = library.function(READ), library.function(REHASH)
        self._record = np.zeros(1, AUTOMATON)
        self._fields = self._record[0]
        self._room = 0
        self._states = np.zeros(0, STATE)
        self._edges = np.zeros(0, EDGE)
        self._places: Int32s = np.zeros(0, np.int32)
        self._grow(FIRST_ROOM)
        self._begin()

    def _begin(self) -> None:
        """Reset to the state of the empty string."""
        self._fields["n_states"], self._fields["n_edges"], self._fields["n_texts"] = 1, 0, 0
        self._places.fill(-1)
        self._states[0] = np.zeros((), STATE)
        self._states["link"][0], self._states["first_edge"][0] = -1, -1
        self.first_text, self.first_own = 1, 1

    def renew(self, texts: Sequence[Int32s], files: Sequence[Int32s]) -> None:
        """Rebuild from the latest of these texts and all files; readers must restart."""
        self._begin()
        self.read(files, files=True)
        self.read(latest_texts(texts, READ_AGAIN), files=False)

    def has_room(self, n_tokens: int) -> bool:
        """Whether `n_tokens` more tokens fit."""
        return self._n_used + n_tokens <= MOST_ROOM

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return int(self._states.nbytes + self._edges.nbytes + self._places.nbytes)

    def session(self) -> AutomatonCursor:
        """Create a session's cursor."""
        return AutomatonCursor(self)

    def arrays(self) -> Mapping[str, Int32s]:
        """Nothing to save here: the owners of the texts save them."""
        return {}

    def read(self, texts: Sequence[Int32s], *, files: bool) -> None:
        """Add texts of earlier programs, or files. Call before any session reads, with files first."""
        for text in texts:
            self.reserve(len(text))
            reader = np.zeros(1, READER)
            tokens = np.ascontiguousarray(text, np.int32)
            reader["automaton"], reader["log"] = self.address, tokens.ctypes.data
            self._read(reader.ctypes.data, len(tokens), 0)
        self.first_text = int(self._fields["n_texts"]) + 1
        if files:
            self.first_own = self.first_text

    def reserve(self, n_tokens: int) -> None:
        """Make room for `n_tokens` more tokens, within the limit."""
        wanted = min(self._n_used + max(n_tokens, 0), MOST_ROOM)
        if wanted > self._room:
            self._grow(min(max(wanted, 2 * self._room), MOST_ROOM))

    def reserve_ahead(self, n_texts: int) -> None:
        """Make room for what so many answers may gain; called before each pass, however long they become."""
        self.reserve(n_texts * AHEAD)

    @property
    def _n_used(self) -> int:
        """Approximate number of tokens whose room is used."""
        return max(int(self._fields["n_states"]) // 2, int(self._fields["n_edges"]) // 3)

    def _grow(self, room: int) -> None:
        states, edges = np.zeros(2 * room + 4, STATE), np.zeros(8 * room, EDGE)
        states[: len(self._states)], edges[: len(self._edges)] = self._states, self._edges
        bits = (6 * room).bit_length()
        self._places = np.full(1 << bits, -1, np.int32)
        self._states, self._edges, self._room = states, edges, room
        self._fields["states"], self._fields["most_states"] = states.ctypes.data, len(states)
        self._fields["edges"], self._fields["most_edges"] = edges.ctypes.data, len(edges)
        self._fields["places"], self._fields["bits"] = self._places.ctypes.data, bits
        self._rehash(self.address)


def split_texts(log: Int32s) -> list[Int32s]:
    """Split a log into its texts."""
    return [text[text >= 0] for text in np.split(log, np.flatnonzero(log == NO_TOKEN)) if (text >= 0).any()]


def latest_texts(texts: Sequence[Int32s], most: int = KEPT_TOKENS) -> list[Int32s]:
    """The latest texts that together have at most `most` tokens, counting one separator per text."""
    sizes = accumulate(len(text) + 1 for text in reversed(texts))
    n_kept = sum(size <= most for size in sizes)
    return list(texts[len(texts) - n_kept :])


def joined_texts(texts: Sequence[Int32s]) -> Int32s:
    """A log of the latest texts."""
    parting = np.array([NO_TOKEN], np.int32)
    parts = [part for text in latest_texts(texts) for part in (text, parting)]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)


DRAFTER = Drafter(
    draft_sources=(
        DraftSource("session", loop("automaton", "speak_session"), BUCKETS),
        DraftSource("history", loop("automaton", "speak_history"), BUCKETS),
        DraftSource("files", loop("automaton", "speak_files"), BUCKETS),
    ),
    open=Automaton,
    read=READ,
    helpers=(REHASH,),
)
