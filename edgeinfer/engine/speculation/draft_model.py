"""A draft model, a second model with the same vocabulary: opening it, and running it as far as it pays.

In: the sources that the user wants to draft from, of which some name a model; the tokens so far. Out: a `DraftModel` on
the device of the model that it drafts for, and a chain of its choices with their highest logits, written to the
drafter's tables. A source is a model if it is a GGUF file, or if it is not a path but the name of a model on this
machine. How far to go is decided token by token, from how often its tokens were right, what each costs, and what the
other drafters offer without it. Source of the rule: as `loops.growth`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import limits_for, limits_with_states, memory_for_model, memory_need
from edgeinfer.engine.requests.noise import Doubles, Noise
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafters.draft_model import Chain
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import (
    BEST,
    FIRST_BUCKET,
    GAP_EDGES,
    GAPS,
    MOST_CHAINED,
    STANDINGS,
    TOKEN_BITS,
)
from edgeinfer.errors import BadSetting, ContextOverflow, DeviceFailed, DoesNotFit, ModelNotFound
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model, open_model, spec_of
from edgeinfer.models.store import ModelStore
from edgeinfer.models.text import Vocabulary, vocabulary_of
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.steps import Progress, no_progress

Failure: TypeAlias = DeviceFailed | MemoryError
FIRST_CHANCE, FIRST_WEIGHT = 0.6, 4.0
"""Assumed probability that a draft model's likeliest token is right, and how many sightings that counts as."""
FEW = 4
"""A pass of up to this many tokens takes about as long as one of a single token."""
UNASKED = 128
"""Passes without the draft model after which it runs for one token, so that what is known of it stays current."""
RECENT = 1 / 16
"""Weight of a new time in the moving average."""
CPU = "cpu"
MAGIC = b"GGUF"
MOST_SPARE = 128
"""Tokens at the end that one vocabulary may have beyond the other: models of a family are padded differently."""


class DraftModel:
    """The draft model, for all sessions. Close it."""

    def __init__(self, executor: SequenceEvaluator, fingerprint: str, n_vocab: int, close: Callable[[], None]) -> None:
        """`n_vocab`: tokens that both models have. `close` is called at the end."""
        self.fingerprint = fingerprint
        self._pool = Pool(executor)
        self._n_vocab = n_vocab
        self._close = close
        self._failures: list[Failure] = []
        self._told = False

    def session(self, library: KernelLibrary) -> Follower:
        """The draft model's state for one more session; `library` has the loops."""
        return Follower(self._pool.open(), Highest(library, self._n_vocab), self._failures)

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call; a failure is reported once."""
        if self._told or not self._failures:
            return ()
        self._told = True
        why = str(self._failures[0]) or "it ran out of memory"
        return (f"the draft model failed and drafts no more ({why}); answers go on without it",)

    def close(self) -> None:
        """Free the memory; may be called twice."""
        self._pool.close()
        self._close()


class Highest:
    """The highest of one row of logits, as `loops.best` packs them: int32[BEST]."""

    def __init__(self, library: KernelLibrary, n_vocab: int) -> None:
        self._library = library  # owns the code
        self._pack: Callable[..., int] = library.function(PACK)
        self._n_vocab = n_vocab

    def __call__(self, logits: Floats, peaks: Floats | None) -> Int32s:
        out = np.zeros(BEST, np.int32)
        where = 0 if peaks is None else peaks.ctypes.data
        self._pack(logits.ctypes.data, 0, where, 0, 1, self._n_vocab, out.ctypes.data)
        return out


class Follower:
    """The draft model's cached tokens for one session: those of the text, and those it predicted."""

    def __init__(self, cached: CachedSequence, highest: Highest, failures: list[Failure]) -> None:
        """`failures`: the draft model's failures in all sessions; after one it is not run again."""
        self._cached = cached
        self._failures = failures
        self._highest = highest
        self.n_run = 0
        """Number of tokens of the last pass."""

    def read(self, history: Sequence[int]) -> Int32s | None:
        """The highest logits after a text, int32[BEST]; None if it does not fit, or has not been read completely yet.

        Each call reads at most one part of an unread text, so an answer never waits for more than that.
        """
        cached = self._cached
        if self._failures or len(history) >= cached.n_context:
            return None
        position = cached.keep_prefix(history)
        part = history[position : position + cached.max_tokens]
        is_last = position + len(part) == len(history)
        row = self._run(cached.chain(part, wants_logits=is_last))
        return row if is_last else None

    def go_on(self, token: int) -> Int32s | None:
        """The highest logits after one more token; None if it does not fit."""
        if self._failures or self._cached.is_full:
            return None
        return self._run(self._cached.chain((token,), wants_logits=True))

    def close(self) -> None:
        """Free the memory."""
        self._cached.close()

    def _run(self, batch: Batch) -> Int32s | None:
        """Evaluate and commit a chain. Returns the highest logits of its last token, if the batch asks for logits."""
        cached, self.n_run = self._cached, len(batch.tokens)
        with cached.lock:
            try:
                logits = cached.evaluate(batch)
            except (DoesNotFit, ContextOverflow):
                cached.forget()
                return None
            except (DeviceFailed, MemoryError) as reason:
                self._failures.append(reason)
                with suppress(DeviceFailed, MemoryError):
                    cached.forget()
                return None
            row = self._highest(logits, cached.peaks) if len(logits) else None
            cached.commit(batch, np.arange(len(batch.tokens), dtype=np.int32))
        return row


@dataclass(slots=True)
class Offer:
    """What a tree without the draft model's tokens gives: expected tokens and their cost; and the costs of passes.

    `most`: tokens that the draft model may add. `is_fixed`: add as many as allowed.
    """

    expected: float
    cost: float
    costs: Costs
    most: int
    is_fixed: bool

    def rate(self, expected: float, n_asked: int, token_s: float) -> float:
        """Expected tokens per cost after `n_asked` draft tokens, each of which takes `token_s` seconds."""
        asked = n_asked * token_s / self.costs.unit_s if self.costs.unit_s else 0.0
        return expected / (float(self.costs.curve[n_asked + 1]) + asked)


class DraftModelPolicy:
    """When to run a draft model, and for how many tokens, in one session."""

    def __init__(self, follower: Follower, chain: Chain, first_bucket: int) -> None:
        """`first_bucket`: index of the first bucket of its draft source in the counts."""
        self._follower = follower
        self._chain = chain
        self._buckets = slice(first_bucket + FIRST_BUCKET, first_bucket + FIRST_BUCKET + STANDINGS)
        self._noise: Noise | None = None
        self._n_drawn = 0
        self._usual_win = FIRST_CHANCE
        self._token_s = 0.0
        self._n_unasked = UNASKED
        self.seconds = 0.0
        """Seconds spent for the current pass."""

    def begin(self, noise: Noise | None = None, n_drawn: int = 0) -> None:
        """Called before each pass: nothing has been drafted. `n_drawn`: number of the next draw, with that noise."""
        self._noise, self._n_drawn = noise, n_drawn
        self._chain.clear()
        self.seconds = 0.0

    def ask(self, history: Sequence[int], acceptance: AcceptanceEstimator, offer: Offer) -> bool:
        """Run the draft model if that should pay. Returns whether it drafted anything."""
        usual, chances = self._acceptance(acceptance)
        is_due = self._n_unasked >= UNASKED
        most = min(offer.most, MOST_CHAINED)
        if most < 1:
            return False
        if not (offer.is_fixed or is_due) and not self._pays(offer, usual, most):
            self._n_unasked += 1
            return False
        started = time.perf_counter()
        self._n_unasked = 0
        row, reach, expected = self._follower.read(history), 1.0, 1.0
        while row is not None:
            asked_s = time.perf_counter() - started - self.seconds
            self.seconds += asked_s
            if self._follower.n_run <= FEW:
                self._token_s += (asked_s - self._token_s) * (RECENT if self._token_s else 1.0)
            rank, chance = self._best(row, chances, acceptance)
            token = self._chain.add(row, rank)
            reach *= chance
            expected += reach
            n_rows = self._chain.n_rows
            if n_rows >= most or not (offer.is_fixed or self._pays_more(offer, usual, reach, expected, n_rows)):
                break
            row = self._follower.go_on(token)
        self.seconds = time.perf_counter() - started
        return self._chain.n_rows > 0

    def close(self) -> None:
        """Called when the session is over."""
        self._follower.close()

    def _acceptance(self, acceptance: AcceptanceEstimator) -> tuple[float, Doubles]:
        """Probability that the draft model's best token is right; and that of each token by its rank and gap."""
        counts = acceptance.counts[self._buckets].reshape(BEST, GAPS)
        seen, accepted = counts["seen"].astype(float), counts["accepted"].astype(float)
        usual = (accepted[0].sum() + FIRST_WEIGHT * FIRST_CHANCE) / (seen[0].sum() + FIRST_WEIGHT)
        likeliest = (accepted[0] + FIRST_WEIGHT * usual) / (seen[0] + FIRST_WEIGHT)
        lower = np.exp(-np.array((0, *GAP_EDGES)) / 16) * (1 - usual) / 2
        first = np.vstack([likeliest, np.broadcast_to(lower, (BEST - 1, GAPS))])
        return float(usual if self._noise is None else self._usual_win), (accepted + FIRST_WEIGHT * first) / (
            seen + FIRST_WEIGHT
        )

    def _best(self, row: Int32s, chances: Doubles, acceptance: AcceptanceEstimator) -> tuple[int, float]:
        """Rank and probability of the token that most probably follows; the noise decides too where one is drawn."""
        if self._noise is None:
            return 0, float(chances[0, _gap_class(int(row[0]) >> TOKEN_BITS)])
        classes = np.searchsorted(GAP_EDGES, row >> TOKEN_BITS, side="right")
        tokens = (row & ((1 << TOKEN_BITS) - 1)).astype(np.int64)
        noise = self._noise.exponentials(self._n_drawn + self._chain.n_rows, tokens)
        wins = acceptance.win_chances(chances[np.arange(BEST), classes], -np.log(noise))
        rank = int(wins.argmax())
        self._usual_win += (float(wins[rank]) - self._usual_win) * RECENT
        return rank, float(wins[rank])

    def _pays(self, offer: Offer, chance: float, most: int) -> bool:
        """Whether some number of draft tokens, at the usual acceptance, would be better than none."""
        reach, expected, best = 1.0, 1.0, 0.0
        for count in range(1, most + 1):
            reach *= chance
            expected += reach
            best = max(best, offer.rate(expected, count, self._token_s))
        return best > offer.expected / offer.cost

    def _pays_more(self, offer: Offer, chance: float, reach: float, expected: float, count: int) -> bool:
        """Whether one more draft token, at the usual acceptance, would be better than verifying those there are."""
        now = offer.rate(expected, count, self._token_s)
        return offer.rate(expected + reach * chance, count + 1, self._token_s) > now


def _gap_class(gap: int) -> int:
    """The class of a gap, as in `loops.best.standing`."""
    return sum(gap >= edge for edge in GAP_EDGES)


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
        need = memory_need(CPU, spec, model.file.tensors, limits)
    return need.weight_bytes + need.kv_bytes + need.buffer_bytes


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
        n_known = _known_tokens(path, own, vocabulary)
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


def _known_tokens(path: Path, own: Vocabulary, other: Vocabulary) -> int:
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
