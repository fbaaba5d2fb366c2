"""A draft model, a second model with the same vocabulary: opening it, and running it for the texts of a pass.

In: the sources that the user wants to draft from, of which some name a model; the tokens of texts. Out: a `DraftModel`
on the device of the model that it drafts for, and its highest logits after each text. A source is a model if it is a
GGUF file, or if it is not a path but the name of a model on this machine. `draft_rounds` says when to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, limits_with_states, memory_for_model, memory_need
from edgeinfer.engine.requests.texts import check_vocabulary
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_followers import CachedFollower, Follower, KnownTokens, TextPart
from edgeinfer.engine.speculation.drafters import Drafter, draft_model
from edgeinfer.engine.speculation.drafters.draft_model import LIKELIEST_ACCEPTANCE
from edgeinfer.engine.speculation.priming import PACK, packed
from edgeinfer.engine.speculation.records import TOKEN_MASK
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

    first_chance = 0.6
    """Assumed probability that its choice is right, before anything is known of it;"""
    likely_acceptance = LIKELIEST_ACCEPTANCE
    """and by the lead of its likeliest token."""
    is_occasional = False
    """Whether most passes do without it, and then draft as if there were none."""

    def __init__(
        self,
        executor: SequenceEvaluator,
        fingerprint: str,
        n_vocab: int,
        close: Callable[[], None],
        known: KnownTokens | None = None,
    ) -> None:
        """`n_vocab`: tokens that both models have. `close` is called at the end. `known`: None if it knows all."""
        self.fingerprint = fingerprint
        self._pool = Pool(executor)
        self._n_vocab, self._known = n_vocab, known
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
        return CachedFollower(self._pool.open(), self._known)

    def read(self, texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        """Read texts, and add the highest logits after each; returns the token to go on with.

        `ahead`: for each text, tokens that may follow, and whose logits are added too as long as they do. None for a
        text that does not fit, or was not read completely yet: a call is one pass, so nobody waits for more than that.
        """

        def next_part(number: int, most: int) -> TextPart | None:
            return texts[number].follower.unread(texts[number].history, most, ahead[number])

        return self._run(texts, next_part)

    def go_on(
        self, texts: Sequence[FollowedText], tokens: Sequence[int], ahead: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """Go on with one more token of each text, as `read` does; None for a text that it does not fit in."""

        def next_part(number: int, most: int) -> TextPart | None:
            return texts[number].follower.after(tokens[number], most, ahead[number])

        return self._run(texts, next_part)

    def assumed_s(self, costs: Costs) -> float:
        """Seconds that a round should take before any was measured; 0 if that is unknown."""
        return 0.0

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

    def _run(self, texts: Sequence[FollowedText], next_part: Callable[[int, int], TextPart | None]) -> list[int | None]:
        """Evaluate a part of each text in one pass, and commit what is known to belong to the text.

        `next_part(number, most)`: the part of a text, by its number, of up to `most` tokens.
        """
        found: list[int | None] = [None] * len(texts)
        taken, n_left, self.n_run = list[tuple[int, TextPart]](), self._pool.executor.limits.max_tokens, 0
        for number in range(len(texts)) if self._failure is None else ():
            if (part := next_part(number, n_left)) is not None:
                taken.append((number, part))
                n_left -= len(part.batch.tokens)
        with self._pool.lock:
            evaluated = self._evaluated(texts, taken)
            if evaluated is None:
                return found
            joined, logits = evaluated
            packed, highest = self._highest(logits)
            own, first, row = self._own_rows(), 0, 0
            for number, part in taken:
                n_outputs = len(part.batch.outputs)
                if own is not None and n_outputs:
                    texts[number].follower.keep_row(own[row : row + 1])
                rows = packed[row : row + n_outputs], highest[row : row + n_outputs]
                found[number], n_known = _added(texts[number], *rows, part.ahead)
                n_kept = len(part.batch.tokens) - len(part.ahead) + n_known
                texts[number].follower.keep(joined, np.arange(first, first + n_kept, dtype=np.int32))
                first, row = first + len(part.batch.tokens), row + n_outputs
        return found

    def _evaluated(
        self, texts: Sequence[FollowedText], taken: list[tuple[int, TextPart]]
    ) -> tuple[Batch, Floats] | None:
        """The parts as one batch, and its logits. Texts for which memory is short are left out, and dropped of `taken`.

        Those that have most to read go first: the others were there before. None if nothing is left.
        """
        while taken:
            joined = join([part.batch for _, part in taken])
            members = [member for number, _ in taken for member in texts[number].follower.members]
            try:
                logits = self._pool.evaluate(members, joined)
            except (DoesNotFit, ContextOverflow):
                largest = max(taken, key=lambda each: len(each[1].batch.tokens))
                texts[largest[0]].follower.leave_out()
                taken.remove(largest)
            except (DeviceFailed, MemoryError) as reason:
                self._failure = reason
                with suppress(DeviceFailed, MemoryError):
                    for cached in members:
                        cached.forget()
                return None
            else:
                self.n_run, self.n_passes = len(joined.tokens), self.n_passes + 1
                return joined, logits
        return None

    def _highest(self, logits: Floats) -> tuple[Int32s, Floats]:
        """The highest of each row of logits, as `loops.best` packs them: int32[O, BEST]; and the first: float32[O]."""
        out = packed(self._pack, logits, self._pool.executor.peaks, self._n_vocab)
        return out, logits[np.arange(len(logits)), out[:, 0] & TOKEN_MASK]

    def _own_rows(self) -> Floats | None:
        """Its hidden rows of the last pass's outputs, if it goes on from them: float32[O, D]."""
        return None


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


@dataclass(frozen=True, slots=True)
class ModelBeside:
    """A second model on the device of the first. Close both its executor and, with `close`, its file.

    n_known: tokens that both vocabularies have; known: what it reads of texts, None if it knows all tokens.
    """

    executor: SequenceEvaluator
    fingerprint: str
    n_known: int
    known: KnownTokens | None
    close: Callable[[], None]


def open_beside(
    path: Path, vocabulary: Vocabulary, executor: SequenceEvaluator, progress: Progress, task: str
) -> ModelBeside:
    """Open a second model beside the model of `executor`, which has this vocabulary. `task`: what it is for, a verb.

    Raises BadSetting for a different vocabulary and a model that writes no text, DoesNotFit, and whatever opening a
    model raises.
    """
    model = open_model(path)
    try:
        if not model.spec.is_causal:
            raise BadSetting(f"{path.name} cannot {task}: it reads whole texts for embeddings and writes none")
        own = vocabulary_of(model.file.metadata)
        n_known = known_tokens(path, own, vocabulary, task)
        check_vocabulary(path, own.n_tokens, model.spec.n_vocab)
        known = KnownTokens(n_known, own.eos_id or 0) if n_known < vocabulary.n_tokens else None
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
    return ModelBeside(beside, print_of_model, n_known, known, model.close)


def open_draft_model(
    path: Path, vocabulary: Vocabulary, executor: SequenceEvaluator, progress: Progress = no_progress
) -> DraftModel:
    """Open a draft model beside the model of `executor`, which has this vocabulary. Raises as `open_beside`."""
    found = open_beside(path, vocabulary, executor, progress, "draft")
    return DraftModel(found.executor, found.fingerprint, found.n_known, found.close, found.known)


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


def known_tokens(path: Path, own: Vocabulary, other: Vocabulary, task: str = "draft") -> int:
    """The number of tokens that are the same in both vocabularies, with the same ids. `task`: what for, a verb.

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
        f"{path.name} cannot {task} for this model, for its vocabulary is another one: {found}; give a smaller model "
        "of the same family"
    )
