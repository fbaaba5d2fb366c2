"""A draft model, a second model with the same vocabulary: opening it, and running it for the texts of a pass.

In: the sources that the user wants to draft from, of which some name a model; the tokens of texts. Out: a `DraftModel`
on the device of the model that it drafts for, and its highest logits after each text. A source is a model if it is a
GGUF file, or if it is not a path but the name of a model on this machine. `draft_rounds` says when to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, limits_with_states, memory_for_model, memory_need
from edgeinfer.engine.requests.drafting import RowReader
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.drafters import Drafter, draft_model
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, TOKEN_BITS
from edgeinfer.errors import BadSetting, ContextOverflow, DeviceFailed, DoesNotFit, ModelNotFound
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s, join
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model, spec_of
from edgeinfer.models.store import ModelStore
from edgeinfer.models.text import Vocabulary, vocabulary_of
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.steps import Progress, no_progress

Failure: TypeAlias = DeviceFailed | MemoryError
CPU = "cpu"
MAGIC = b"GGUF"
MOST_SPARE = 128
"""Tokens at the end that one vocabulary may have beyond the other: models of a family are padded differently."""


class DraftModel:
    """The draft model, for all sessions: it reads and continues the texts of a pass together. Close it."""

    def __init__(self, executor: SequenceEvaluator, fingerprint: str, n_vocab: int, close: Callable[[], None]) -> None:
        """`n_vocab`: tokens that both models have. `close` is called at the end."""
        self.fingerprint = fingerprint
        self._pool = Pool(executor)
        self._n_vocab = n_vocab
        self._close = close
        self._failure: Failure | None = None
        self._told = False
        self._library: KernelLibrary | None = None
        self._pack: Callable[..., int] = _unprepared
        self.n_run = 0
        """Number of tokens of the last pass."""
        self.n_passes = 0

    @property
    def drafter(self) -> Drafter:
        """What proposes its choices."""
        return draft_model.DRAFTER

    def prepare(self, library: KernelLibrary) -> None:
        """Use the loops of a library."""
        self._library, self._pack = library, library.function(PACK)  # the library owns the code

    def session(self) -> Follower:
        """The draft model's state for one more session."""
        return CachedFollower(self._pool.open())

    def read(self, texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        """Read texts, and add the highest logits after each; returns the token to go on with.

        `ahead`: for each text, tokens that may follow, and whose logits are added too as long as they do. None for a
        text that does not fit, or was not read completely yet: a call is one pass, so nobody waits for more than that.
        """
        n_left, parts = self._pool.executor.limits.max_tokens, list[TextPart | None]()
        for text, tokens in zip(texts, ahead, strict=True):
            part = None if self._failure is not None else text.follower.unread(text.history, n_left, tokens)
            n_left -= 0 if part is None else len(part.batch.tokens)
            parts.append(part)
        return self._run(texts, parts)

    def go_on(
        self, texts: Sequence[FollowedText], tokens: Sequence[int], ahead: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """Go on with one more token of each text, as `read` does; None for a text that it does not fit in."""
        n_left, parts = self._pool.executor.limits.max_tokens, list[TextPart | None]()
        for text, token, more in zip(texts, tokens, ahead, strict=True):
            part = None if self._failure is not None else text.follower.after(token, n_left, more)
            n_left -= 0 if part is None else len(part.batch.tokens)
            parts.append(part)
        return self._run(texts, parts)

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call; a failure is reported once."""
        if self._told or self._failure is None:
            return ()
        self._told = True
        why = str(self._failure) or "it ran out of memory"
        return (f"the draft model failed and drafts no more ({why}); answers go on without it",)

    def close(self) -> None:
        """Free the memory; may be called twice."""
        self._pool.close()
        self._close()

    def _run(self, texts: Sequence[FollowedText], parts: Sequence[TextPart | None]) -> list[int | None]:
        """Evaluate a part of each text in one pass, and commit what is known to belong to the text."""
        found: list[int | None] = [None] * len(parts)
        taken = [(place, part) for place, part in enumerate(parts) if part is not None]
        self.n_run = sum(len(part.batch.tokens) for _, part in taken)
        if not taken:
            return found
        with self._pool.lock:
            joined = join([part.batch for _, part in taken])
            members = [member for place, _ in taken for member in texts[place].follower.members]
            try:
                self.n_passes += 1
                logits = self._pool.evaluate(members, joined)
            except (DoesNotFit, ContextOverflow):
                self._forget(members)
                return found
            except (DeviceFailed, MemoryError) as reason:
                self._failure = reason
                with suppress(DeviceFailed, MemoryError):
                    self._forget(members)
                return found
            packed, highest = self._highest(logits)
            own, first, row = self._own_rows(), 0, 0
            for place, part in taken:
                n_outputs = len(part.batch.outputs)
                if own is not None and n_outputs:
                    texts[place].follower.keep_row(own[row : row + 1])
                rows = packed[row : row + n_outputs], highest[row : row + n_outputs]
                found[place], n_known = _added(texts[place], *rows, part.ahead)
                n_kept = len(part.batch.tokens) - len(part.ahead) + n_known
                texts[place].follower.keep(joined, np.arange(first, first + n_kept, dtype=np.int32))
                first, row = first + len(part.batch.tokens), row + n_outputs
        return found

    def _highest(self, logits: Floats) -> tuple[Int32s, Floats]:
        """The highest of each row of logits, as `loops.best` packs them: int32[O, BEST]; and the first: float32[O]."""
        peaks, out = self._pool.executor.peaks, np.zeros((len(logits), BEST), np.int32)
        if len(logits):
            where = (0, 0) if peaks is None else (peaks.ctypes.data, peaks.strides[0])
            self._pack(logits.ctypes.data, logits.strides[0], *where, len(logits), self._n_vocab, out.ctypes.data)
        return out, logits[np.arange(len(logits)), out[:, 0] & ((1 << TOKEN_BITS) - 1)]

    def _own_rows(self) -> Floats | None:
        """Its hidden rows of the last pass's outputs, if it goes on from them: float32[O, D]."""
        return None

    def _forget(self, members: Sequence[CachedSequence]) -> None:
        for cached in members:
            cached.forget()


def _unprepared(*_: int) -> int:
    raise RuntimeError("a draft model is prepared before it runs")


class FollowedText(Protocol):
    """A text that the draft model continues."""

    @property
    def follower(self) -> Follower: ...

    @property
    def history(self) -> Sequence[int]:
        """Its tokens so far."""
        ...

    def add(self, row: Int32s, highest: float) -> int:
        """Take the highest logits after the text and what was added before; returns the token chosen from them.

        row: packed; highest: the first of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text to evaluate; `ahead`: its last tokens, which may turn out not to belong to the text."""

    batch: Batch
    ahead: Sequence[int] = ()


class Follower(Protocol):
    """What a draft model or head has of one session's text."""

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """Its own sequences that the draft model evaluates."""
        ...

    @property
    def row_reader(self) -> RowReader | None:
        """What is given the model's hidden rows; None if they are not used."""
        ...

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue."""
        ...

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The next part of a text that was not read yet, up to `most` tokens; None if it cannot be read.

        With logits, and with what may be ahead, if it is the last part.
        """
        ...

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, with what may be ahead, up to `most` tokens; None if it does not fit."""
        ...

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Keep these tokens of the batch just evaluated."""
        ...

    def keep_row(self, row: Floats) -> None:
        """Take its own hidden row of the last token evaluated, if it goes on from that: float32[1, D]."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class CachedFollower:
    """The draft model's cached tokens for one session: those of the text, and those it predicted."""

    def __init__(self, cached: CachedSequence) -> None:
        self.cached = cached

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """The only sequence."""
        return (self.cached,)

    @property
    def row_reader(self) -> RowReader | None:
        """Nothing: a model reads no hidden rows."""
        return None

    def begin(self, text: Sequence[int]) -> None:
        """Do nothing, as each call says the whole text."""

    def keep_row(self, row: Floats) -> None:
        """Do nothing: a model goes on from tokens alone."""

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Commit these tokens."""
        self.cached.commit(batch, path)

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """As `Follower.unread`; None if the text does not fit."""
        cached = self.cached
        if most < 1 or len(history) >= cached.n_context:
            return None
        position = cached.keep_prefix(history)
        part = history[position : position + most]
        if position + len(part) < len(history):
            return TextPart(cached.chain(part, wants_logits=False))
        return self._last_part(list(part), ahead[: most - len(part)])

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """As `Follower.after`; None if the context is full."""
        return None if most < 1 or self.cached.is_full else self._last_part([token], ahead[: most - 1])

    def _last_part(self, tokens: list[int], ahead: Sequence[int]) -> TextPart:
        """A part with logits after its last token, and after those ahead for which the context has room."""
        cached, n_tokens = self.cached, len(tokens)
        ahead = ahead[: max(0, cached.n_context - cached.n_cached - n_tokens)]
        batch = cached.chain([*tokens, *ahead], wants_logits=True)
        return TextPart(replace(batch, outputs=np.arange(n_tokens - 1, n_tokens + len(ahead), dtype=np.int32)), ahead)

    def close(self) -> None:
        """Free the memory."""
        self.cached.close()


def _added(text: FollowedText, rows: Int32s, highest: Floats, ahead: Sequence[int]) -> tuple[int | None, int]:
    """Add rows to a text as long as the tokens ahead are what it chooses; the last token, and how many these were."""
    token, n_known = None, 0
    for n_known, row in enumerate(rows):
        token = text.add(row, float(highest[n_known]))
        if n_known == len(ahead) or token != ahead[n_known]:
            break
    return token, n_known


def split_sources(sources: Sequence[str | Path]) -> tuple[tuple[Path, ...], Path | None]:
    """The files and folders of text, and the draft model if one is among them. Raises BadSetting for a second one."""
    texts: list[Path] = []
    models: list[Path] = []
    for source in map(Path, sources):
        path = source if source.exists() else _named(source)
        (models if _is_model(path) else texts).append(path)
    if len(models) > 1:
        raise BadSetting(
            f"draft-from names two models, {models[0]} and {models[1]}: give one, the smallest that is good"
        )
    return tuple(texts), models[0] if models else None


def draft_bytes(sources: Sequence[str | Path], room: Limits) -> int:
    """From its header, the memory of a draft model among `sources` beside one on the cpu with limits `room`; or 0.

    Raises BadSetting, and whatever opening a model raises.
    """
    path = split_sources(sources)[1]
    if path is None:
        return 0
    with open_model(path) as model:
        spec, limits = _cut(model, room)
        return memory_need(CPU, spec, model.file.tensors, limits).beside_bytes


def draft_work(sources: Sequence[str | Path]) -> ModelWork | None:
    """From its header, the work of a draft model among `sources`; None if there is none. Raises as `draft_bytes`."""
    path = split_sources(sources)[1]
    if path is None:
        return None
    with open_model(path) as model:
        return work_of(model.spec, model.file.tensors)


def _cut(model: Model, room: Limits) -> tuple[ModelSpec, Limits]:
    """Open a draft model with the other model's context, if it supports that length, for as many sessions."""
    n_sessions = max(1, room.n_pages // pages_for(room.n_context))
    n_context = min(model.spec.n_context_most, room.n_context)
    spec = spec_of(model.file.metadata, model.file.tensors, n_context)
    return spec, limits_for(n_context, n_sessions, room.kv, spec)


def open_draft_model(
    path: Path, vocabulary: Vocabulary, executor: SequenceEvaluator, progress: Progress = no_progress
) -> DraftModel:
    """Open a draft model beside the model of `executor`, which has this vocabulary.

    Raises BadSetting for a different vocabulary, DoesNotFit, and whatever opening a model raises.
    """
    model = open_model(path)
    try:
        own = vocabulary_of(model.file.metadata)
        n_known = known_tokens(path, own, vocabulary)
        spec, limits = _cut(model, executor.limits)
        available, tensors = memory_for_model(), model.file.tensors
        limits = limits_with_states(executor.device, spec, tensors, limits, available)
        require_fit(memory_need(executor.device, spec, tensors, limits), available)
        print_of_model = fingerprint(model.file)
        beside = executor.beside(spec, model.file, print_of_model, limits, progress)
        model.file.release()
    except BaseException:
        model.close()
        raise
    return DraftModel(beside, print_of_model, n_known, model.close)


def _named(source: Path) -> Path:
    """The file of the model with this name, else the path unchanged: reading it will report the error."""
    try:
        return ModelStore().find(str(source)).path
    except ModelNotFound:
        return source


def _is_model(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def known_tokens(path: Path, own: Vocabulary, other: Vocabulary) -> int:
    """The number of tokens that are the same in both vocabularies, with the same ids.

    Raises BadSetting if they differ.
    """
    n_known = min(own.n_tokens, other.n_tokens)
    differing = next((token for token in range(n_known) if own.tokens[token] != other.tokens[token]), None)
    if differing is not None:
        found = f"token {differing} is {own.tokens[differing]!r} there and {other.tokens[differing]!r} here"
    elif own.model != other.model or abs(own.n_tokens - other.n_tokens) > MOST_SPARE:
        found = f"{own.n_tokens} tokens of kind {own.model} there, {other.n_tokens} of kind {other.model} here"
    else:
        return n_known
    raise BadSetting(
        f"{path.name} cannot draft for this model, for its vocabulary is another one: {found}; give a smaller model of "
        "the same family"
    )
