"""The model as its own draft model: with a budget of cached positions it drafts what its whole cache verifies.

In: texts in the model's cache. Out: a `DraftModel` whose tokens each attend to a limited number of positions
(`Batch.budgets`), so that a round takes about as long after any number of tokens; passes over a long text do not. It
needs no weights and reads no text: a round goes on in a branch of the text's own sequence, which is freed before the
draft is verified. Texts that the budget covers are left to the other drafters, for it would gain nothing there. Call
with the lock of the model's sequences held, as whoever drafts for a pass does. Sources: TriForce (arXiv 2404.11912),
MagicDec (arXiv 2408.11049); of the choice of positions: Quest (arXiv 2406.10774).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.backends.base import DeviceKind, Limits, kind_of
from edgeinfer.engine.kv.limits import memory_for_model
from edgeinfer.engine.requests.drafting import CachedText
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.draft_followers import TextPart
from edgeinfer.engine.speculation.draft_model import DraftModel, FollowedText, split_sources
from edgeinfer.engine.speculation.drafters import Drafter, self_draft
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import PAGE, Batch, Floats, Int32s
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.cost.memory import missing_bytes

USUAL_BUDGET = 1024
"""Positions that a drafted token attends to, unless the user says how many."""
LEAST_DEPTH = 2
"""A text is drafted for if it is this many times as long as the budget: before that, passes take hardly longer."""
FEW_NEW = 2 * PAGE
"""A round after more tokens that no round has seen also sums up their pages: its time says nothing of others."""


def self_budget(load: LoadOptions) -> int:
    """The budget of tokens that a model drafts for itself under these options; 0: it does not.

    Passes of a given number of tokens are not weighed against each other, so it must be asked for then.
    """
    if load.spec == "off" or load.self_draft == "off":
        return 0
    if load.self_draft == "auto":
        return 0 if isinstance(load.spec, int) else USUAL_BUDGET
    return load.self_draft


def with_self_drafts(limits: Limits, subject: Subject, load: LoadOptions) -> Limits:
    """Limits of a model that may draft for itself, if it can: passes may state budgets, which needs some memory.

    Where memory is short it does not, unless the user has said how many tokens it should attend to. Raises BadSetting
    if they have and it cannot.
    """
    budget = self_budget(load)
    if not budget:
        return limits
    reason = _refusal(budget, limits, subject, load)
    if reason and load.self_draft != "auto":
        raise BadSetting(f"self-draft cannot be {load.self_draft}: {reason}")
    drafting = replace(limits, budgets=True)
    if reason or (load.self_draft == "auto" and _is_too_large(subject, load.device, drafting)):
        return limits
    return drafting


def _is_too_large(subject: Subject, device: str, limits: Limits) -> bool:
    return missing_bytes(subject.memory_need(device, limits), memory_for_model()) > 0


def _refusal(budget: int, limits: Limits, subject: Subject, load: LoadOptions) -> str:
    """Why a model cannot draft for itself, and what would work; "" if it can."""
    spec, kind = subject.spec, None if "," in load.device else kind_of(load.device)
    if not (isinstance(kind, DeviceKind) and kind.budgets) or load.isolate:
        return "it works on the cpu in the same process: use --device cpu, without --isolate"
    if spec is None or not spec.is_causal or all(layer.window is not None for layer in spec.kv):
        return "no layer of the model attends to its whole context; leave it out"
    if limits.kv_budget:
        return "--approx kv limits what all tokens attend to; leave one of the two out"
    if subject.head is not None or split_sources(load.draft_from)[1] is not None:
        return "a draft model or trained head takes its place; leave one of the two out"
    if limits.n_context <= LEAST_DEPTH * budget:
        return f"the context of {limits.n_context} tokens is not {LEAST_DEPTH} times as long; give a longer one (--ctx)"
    return ""


def self_draft_bytes(subject: Subject, load: LoadOptions, limits: Limits) -> int:
    """Bytes that a model takes for drafting for itself under these limits, from its header; 0 if it does not.

    Raises BadSetting as `with_self_drafts`.
    """
    drafting = with_self_drafts(limits, subject, load)
    if drafting.budgets == limits.budgets:
        return 0
    whole, plain = (subject.memory_need(load.device, each) for each in (drafting, limits))
    return whole.beside_bytes - plain.beside_bytes


def drafts_itself(executor: SequenceEvaluator, load: LoadOptions) -> bool:
    """Whether an open model drafts for itself. Weights that are read from disk in every pass make rounds slow."""
    limits = executor.limits
    can = limits.budgets and not limits.kv_budget and limits.stored is None and executor.batch_invariant
    return can and self_budget(load) > 0


class SelfDraft(DraftModel):
    """The model drafting for itself, for all sessions. What it runs on is the model's, and stays open."""

    first_chance = 0.85
    likely_acceptance = (0.6, 0.75, 0.9, 0.96, 0.98, 0.99)
    is_occasional = True

    def __init__(self, executor: SequenceEvaluator, fingerprint: str, n_vocab: int, budget: int) -> None:
        """`budget`: positions that a token attends to in layers without a window."""
        super().__init__(executor, fingerprint, n_vocab, _nothing)
        self.budget = budget
        self.n_new = 0
        """Tokens of the current round's texts that no round has seen before."""

    @property
    def drafter(self) -> Drafter:
        """What proposes its choices."""
        return self_draft.DRAFTER

    def session(self) -> SelfFollower:
        """Its state for one more session."""
        return SelfFollower(self, self._pool.executor)

    def assumed_s(self, costs: Costs) -> float:
        """Seconds of a pass over one token after as many tokens as the budget."""
        return costs.seconds_after(self.budget)

    def read(self, texts: Sequence[FollowedText], ahead: Sequence[Sequence[int]]) -> list[int | None]:
        """As `DraftModel.read`; nothing is read, as the texts are cached."""
        self.n_new = 0
        found = super().read(texts, ahead)
        if self.n_new > FEW_NEW:
            self.n_run = 0
        return found

    def close(self) -> None:
        """Do nothing: all that it uses is the model's."""


class SelfFollower:
    """One session's text in the model's cache, and during rounds a branch of it."""

    def __init__(self, model: SelfDraft, executor: SequenceEvaluator) -> None:
        self._model, self._executor = model, executor
        self._text: CachedText | None = None
        """The text as it was last told; None if it cannot be drafted for."""
        self._branch: int | None = None
        self._n_seen = 0
        """Its tokens when the last rounds began."""
        self._is_left_out = False

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """None: the branch is not used again."""
        return ()

    @property
    def row_reader(self) -> None:
        """Nothing: no hidden rows are used."""

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue; the next pass tells where it is cached."""
        self._text, self._n_seen, self._is_left_out = None, 0, False

    def reach(self, text: CachedText | None, most: int) -> int:
        """`most` for a text that is long enough, else 0."""
        self._text = text
        if text is None or self._is_left_out or text.n_cached < LEAST_DEPTH * self._model.budget:
            return 0
        return most

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The last token of a text; None unless exactly those before it are cached."""
        text = self._text
        if most < 1 or text is None or text.n_cached != len(history) - 1:
            return None
        self._model.n_new += text.n_cached - self._n_seen
        self._n_seen = text.n_cached
        self._branch = self._executor.branch(text.sequence)
        return self._part([history[-1]], ahead[: most - 1])

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, with what may be ahead."""
        return None if most < 1 or self._branch is None else self._part([token], ahead[: most - 1])

    def _part(self, known: list[int], ahead: Sequence[int]) -> TextPart:
        """Tokens that continue the branch, with logits from the last known one on."""
        text, branch, tokens = self._text, self._branch, [*known, *ahead]
        assert text is not None
        assert branch is not None
        order = np.arange(len(tokens), dtype=np.int32)
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.full(len(tokens), branch, np.int32),
            positions=order + np.int32(self._executor.n_cached(branch)),
            parents=order - 1,
            outputs=order[len(known) - 1 :],
            scales=np.array([text.scales] * len(tokens), np.float32) if text.scales else None,
        )
        return TextPart(batch.within(self._model.budget), ahead)

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Go on after these tokens."""
        assert self._branch is not None
        self._executor.commit(self._branch, path)

    def keep_row(self, row: Floats) -> None:
        """Do nothing: it goes on from tokens alone."""

    def leave_out(self) -> None:
        """There is no memory for a branch: draft no more for this text."""
        self.finish()
        self._is_left_out = True

    def finish(self) -> None:
        """Free the branch."""
        branch, self._branch = self._branch, None
        if branch is not None:
            self._executor.free(branch)

    def close(self) -> None:
        """Free the branch, and forget the text."""
        self.finish()
        self._text = None


def _nothing() -> None:
    """Close nothing."""
