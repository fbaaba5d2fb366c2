"""A trained head, inside a model's file or in one of its own, as a draft model: opening it, and running it.

In: the head, the open model, and hidden rows of each token that the model adds to a text. Out: a `DraftModel` whose
chains continue what the model knows: the head reads a token with the model's row of the token before it; where that row
is not known yet, since the model has not evaluated the token, with its own. Rows are kept until the head reads them, a
limited number; where rows are missing, the head's text has a gap, and guesses are a little worse. Source of the
computations: `models.trained_heads`, `models.eagle3`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, memory_for_model, memory_need
from edgeinfer.engine.requests.drafting import CachedText
from edgeinfer.engine.run.cached import CachedSequence, n_common
from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject
from edgeinfer.engine.speculation.assistant import AssistantFollower
from edgeinfer.engine.speculation.draft_model import (
    CPU,
    CachedFollower,
    DraftModel,
    Follower,
    TextPart,
    draft_bytes,
    known_tokens,
    split_sources,
)
from edgeinfer.engine.speculation.drafters import Drafter, trained_head
from edgeinfer.engine.speculation.records import TOKEN_BITS
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import OpenHead, head_in, open_head
from edgeinfer.models.text import Vocabulary, vocabulary_of
from edgeinfer.models.trained_heads import TrainedHead
from edgeinfer.scheduling.cost.memory import MemoryNeed, require_fit
from edgeinfer.steps import Progress, no_progress

MOST_WAITING = 1024
"""Rows that wait for the head to read them; of a longer prompt it reads the end."""
NO_TOKEN = -1
I64 = 27
"""GGUF's number for whole numbers of 64 bits."""
TOKENS = "tokenizer.ggml.tokens"
OWN_TOKEN = (1 << TOKEN_BITS) - 1
"""The bits of a token in packed logits."""

SHOWING = (CPU, "reference")
"""Devices that show the hidden rows that heads read."""


def chosen_head(subject: Subject, load: LoadOptions, n_context: int) -> OpenHead | None:
    """The trained head to draft with: that of a file to draft from, else that inside the model's file; None without.

    A draft model takes its place. Texts with rows of numbers have positions that drafts know nothing of. Raises as
    `open_head` and `split_sources`, and BadSetting for a head in a file of its own that the options leave no use for.
    """
    assert subject.spec is not None
    if load.spec == "off":
        return None
    changed = load.isolate or subject.rows or subject.approx is not None
    is_usable, path = load.device in SHOWING and not changed, split_sources(load.draft_from)[1]
    if path is None:
        return _head_inside(subject.gguf, n_context) if is_usable else None
    found = open_head(path, subject.gguf, subject.spec, n_context)
    if found is not None and not is_usable:
        found.file.close()
        raise BadSetting(
            f"{path.name} is a trained head, which reads what the model computes: it drafts with --device cpu, without "
            "--isolate, --approx and rows of numbers"
        )
    return found


def _head_inside(file: GGUFFile, n_context: int) -> OpenHead | None:
    """The head inside a model's file; one that edgeinfer cannot run does not keep the model from being opened."""
    try:
        head = head_in(file.metadata, file.tensors, n_context)
    except (BadGGUF, UnsupportedModel):
        return None
    return None if head is None else OpenHead(head, file)


def planned_drafter_bytes(file: GGUFFile, spec: ModelSpec, load: LoadOptions, n_context: int) -> int:
    """What a model's head, or a draft model, will take beside it; 0 if there is none, or no use for it."""
    load = replace(load, device=CPU if load.device == "auto" else load.device)
    subject = Subject(file, spec, "", approx=load.approx, rows=load.rows)
    head = HeadInFile.of(replace(subject, head=chosen_head(subject, load, n_context)))
    room = limits_for(n_context, load.n_sessions, load.kv, spec)
    if head is None:
        return 0 if load.spec == "off" else draft_bytes(load.draft_from, room)
    try:
        return head.need(load.device, room, all_stay=True).beside_bytes
    finally:
        head.close()


@dataclass(frozen=True, slots=True)
class HeadInFile:
    """A trained head, and the file that holds it. `shared`: weights that the model has in memory too.

    `is_own`: the file is not its model's.
    """

    head: TrainedHead
    file: GGUFFile
    shared: frozenset[Weight]
    is_own: bool

    @classmethod
    def of(cls, subject: Subject) -> HeadInFile | None:
        """The head of a model, if it is used."""
        if subject.head is None or subject.spec is None:
            return None
        is_own = subject.head.file is not subject.file
        shared = frozenset[Weight]() if is_own else frozenset(subject.spec.matrices())
        return cls(subject.head.head, subject.head.file, shared, is_own)

    def need(self, device: str, room: Limits, *, all_stay: bool) -> MemoryNeed:
        """Its memory beside its model, whose limits are `room`, from the header.

        `all_stay`: all weights of the model stay in memory, so that those of both are there once.
        """
        own = self.head.spec.without_products(self.shared) if all_stay else self.head.spec
        return memory_need(device, own, self.file.tensors, self.limits(room))

    def close(self) -> None:
        """Close the file, unless it is the model's."""
        if self.is_own:
            self.file.close()

    def limits(self, room: Limits) -> Limits:
        """Its limits beside its model, whose limits are `room`: the same context, for as many sessions."""
        n_sessions = max(1, room.n_pages // pages_for(room.n_context))
        return limits_for(room.n_context, n_sessions, room.kv, self.head.spec)

    def open(self, executor: SequenceEvaluator, vocabulary: Vocabulary, progress: Progress = no_progress) -> Head:
        """Open it beside its model, which has this vocabulary. A file of its own is closed with it, or if that fails.

        Raises DoesNotFit, BadSetting for a head with another vocabulary, and UnsupportedModel where the device shows no
        hidden rows.
        """
        try:
            if executor.capabilities.showing is None:
                raise UnsupportedModel(f"{executor.device} does not show the hidden rows that a head reads")
            if self.is_own and TOKENS in self.file.metadata:
                known_tokens(self.file.path, vocabulary_of(self.file.metadata), vocabulary)
            all_stay = executor.limits.stored is None
            require_fit(self.need(executor.device, executor.limits, all_stay=all_stay), memory_for_model())
            spec, limits, own = self.head.spec, self.limits(executor.limits), fingerprint(self.file)
            tokens = self._tokens(vocabulary.n_tokens)
            beside = executor.beside(spec, self.file, own, limits, progress)
        except BaseException:
            self.close()
            raise
        return Head(beside, own, self.head, tokens, self.close)

    def _tokens(self, n_tokens: int) -> Int32s:
        """The model's token for each of the head's. Raises BadGGUF if there are no such tokens."""
        if not self.head.vocabulary:
            return np.arange(min(self.head.spec.n_vocab, n_tokens), dtype=np.int32)
        info = self.file.tensors[self.head.vocabulary]
        if info.ggml_type != I64:
            raise BadGGUF(f"{self.head.vocabulary} is not of whole numbers of 64 bits, as converters write it")
        found = np.frombuffer(self.file.raw(self.head.vocabulary), np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < n_tokens:
            raise BadGGUF(f"{self.head.vocabulary} names tokens beyond the {n_tokens} of the model")
        return found.astype(np.int32)


class Head(DraftModel):
    """A trained head, for all sessions. Close it."""

    def __init__(
        self, executor: SequenceEvaluator, own: str, head: TrainedHead, tokens: Int32s, close: Callable[[], None]
    ) -> None:
        """`own`: fingerprint of its file. `tokens`: the model's token for each of its own."""
        super().__init__(executor, own, len(tokens), close)
        self._head, self._tokens, self._showing = head, tokens, executor.capabilities.showing

    @property
    def drafter(self) -> Drafter:
        """What proposes its guesses."""
        return trained_head.DRAFTER

    def session(self) -> Follower:
        """The head's state for one more session."""
        return AssistantFollower() if self._head.spec.reads_kv else HeadFollower(self._pool.open(), self._head)

    def _highest(self, logits: Floats) -> Int32s:
        """The same, with the model's tokens in place of its own."""
        packed = super()._highest(logits)
        own = packed & OWN_TOKEN
        named: Int32s = packed - own + self._tokens[own]
        return named

    def _own_rows(self) -> Floats:
        assert self._showing is not None
        return self._showing.show(self._head.next_rows)


class HeadFollower(CachedFollower):
    """What a head has read of one session's text, and the model's rows that it has not read yet."""

    def __init__(self, cached: CachedSequence, head: TrainedHead) -> None:
        super().__init__(cached)
        self._apart, self._width = head.apart, head.spec.inputs.hidden_width
        self._text: list[int] = []
        """The tokens that the model has evaluated; NO_TOKEN where they are unknown."""
        self._waiting: deque[tuple[int, Floats]] = deque()
        """Rows of the model from a position on."""
        self._places: list[int] = []
        """Positions in the text of the cached tokens that were read with the model's rows, increasing;"""
        self._tokens: list[int] = []
        """and these tokens."""
        self._next: Floats = np.zeros((0, 0), np.float32)
        """The head's own row of the last token that it read."""

    @property
    def row_reader(self) -> HeadFollower:
        """What is given the model's rows."""
        return self

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue; what was read of the last one stays as far as the two agree."""
        self._forget(n_common(self._text, list(text)))

    def note(self, first: int, tokens: Sequence[int], rows: Floats, text: CachedText | None = None) -> None:
        """Take the model's rows of tokens that continue the text from position `first` on."""
        if first > len(self._text):  # others read what lies between: nothing is known of it
            self._forget(0)
            self._text = [NO_TOKEN] * first
        elif first < len(self._text):
            is_same = self._text[first] == tokens[0]  # as where the model reads the last token of a known text again
            self._forget(first, first + is_same)
        self._text += tokens
        self._waiting.append((first, rows))
        n_waiting = sum(len(each) for _, each in self._waiting)
        while n_waiting > MOST_WAITING and len(self._waiting) > 1:
            n_waiting -= len(self._waiting.popleft()[1])

    def keep_row(self, row: Floats) -> None:
        """Take its own hidden row of the last token evaluated: float32[1, D]."""
        self._next = row

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The next part of a text that was not read yet, up to `most` tokens; None if the rows for it are unknown.

        What may be ahead is not evaluated with it, as the rows that it needs are not known before.
        """
        cached, end = self.cached, len(history) - 1
        if most < 1 or end >= cached.n_context:
            return None
        if NO_TOKEN in self._text[:1]:
            self._text = list(history[: len(self._text)])
        self._keep(min(len(self._places), cached.n_cached, bisect_left(self._places, end)))
        if cached.n_cached > len(self._places):  # what it guessed last time
            cached.keep_prefix([*self._tokens, NO_TOKEN])
        places, rows = self._unread(end)
        part = places[:most]
        if not part:
            return None
        tokens = [history[place] for place in part]
        chain = cached.chain(tokens, wants_logits=part[-1] == end)
        self._places += part
        self._tokens += tokens
        self._drop_read(part[-1])
        return TextPart(replace(chain, hidden=self._padded(rows[: len(part)])))

    def after(self, token: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, which the model has not evaluated; None if it does not fit."""
        if self.cached.is_full:
            return None
        chain = self.cached.chain((token,), wants_logits=True)
        return TextPart(replace(chain, hidden=self._padded(self._next, self._apart)))

    def _padded(self, rows: Floats, first: int = 0) -> Floats:
        """Rows in columns from `first` on, with zeros in the other columns."""
        if rows.shape[1] == self._width:
            return rows
        padded = np.zeros((len(rows), self._width), np.float32)
        padded[:, first : first + rows.shape[1]] = rows
        return padded

    def _unread(self, end: int) -> tuple[list[int], Floats]:
        """Positions of tokens up to `end` that can be read now, and the model's rows of the tokens before them."""
        known = self._places[-1] if self._places else 0
        places: list[int] = []
        parts: list[Floats] = []
        for first, rows in self._waiting:
            start, stop = max(first + 1, known + 1), min(first + len(rows), end)
            if start <= stop:
                places += range(start, stop + 1)
                parts.append(rows[start - 1 - first : stop - first])
        return (places, np.concatenate(parts)) if places and places[-1] == end else ([], self._next)

    def _keep(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` of what was read."""
        del self._places[n_tokens:], self._tokens[n_tokens:]

    def _forget(self, position: int, place: int | None = None) -> None:
        """Forget rows from a position on, and what was read there, or from another place on."""
        del self._text[position:]
        self._keep(bisect_left(self._places, position if place is None else place))
        left = ((first, rows[: max(0, position - first)]) for first, rows in self._waiting)
        self._waiting = deque((first, rows) for first, rows in left if len(rows))

    def _drop_read(self, place: int) -> None:
        """Drop rows that were read, except the one that the token at `place`, the last one read, came with."""
        while self._waiting[0][0] + len(self._waiting[0][1]) < place:
            self._waiting.popleft()
        first, rows = self._waiting[0]
        self._waiting[0] = place - 1, rows[place - 1 - first :]
