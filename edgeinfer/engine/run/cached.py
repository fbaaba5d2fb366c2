"""One sequence's cached tokens: which of them the KV cache holds, and the batches that continue it.

In: prompts and batches. Out: how much of a prompt is already cached, logits, and a sequence that grows with each
commit. Belongs to one session or answer; several share a `Pool`, whose lock allows one evaluation at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import n_together
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.requests.drafting import Draft, RowReader
from edgeinfer.engine.requests.prompt_rows import ROW, MixedPrompt, n_common
from edgeinfer.errors import ContextOverflow, DoesNotFit, EdgeInferError, EngineClosed, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats, Int32s, whole_blocks
from edgeinfer.models.trained_heads import HIDDEN
from edgeinfer.offload.weights import WeightReads

if TYPE_CHECKING:
    from edgeinfer.engine.run.pool import FairLock, Pool


class CachedSequence:
    """The tokens of one sequence and their KV cache. At most one generation continues it at a time."""

    def __init__(self, pool: Pool, n_tokens: int | None = None) -> None:
        """`n_tokens`: the length it may grow to; None: the context."""
        self.pool = pool
        self._n_tokens = n_tokens
        self._sequence: int | None = None  # not created in the executor yet
        self._scales = pool.scales
        self._tokens: list[int] = []
        self._n_before_shifted: int | None = None  # all tokens are exact
        self.was_taken = False
        """Whether its KV cache was given up, so that its text must be evaluated again."""
        self.turn_start = 0
        """Where the turn of the chat begins that is being answered; 0 if that is unknown."""
        self.is_held = False
        """Whether nobody may take its memory, though it is not running."""
        self._stop_current: Callable[[], None] | None = None
        self.stopped: StopFlag | None = None
        """The stop flag of the running generation."""
        self._closed = False

    def settle(self) -> int:
        """Its number in the executor, where it is created if necessary. Call with the lock held."""
        if self._sequence is None:
            self._sequence = self.pool.create(self, self._n_tokens)
        return self._sequence

    @property
    def sequence(self) -> int:
        """Its number in the executor; only valid once it has been created there."""
        assert self._sequence is not None
        return self._sequence

    @property
    def tokens(self) -> tuple[int, ...]:
        """The cached tokens. Rows appear under their names, which are negative."""
        return tuple(self._tokens)

    @property
    def scales(self) -> tuple[float, ...]:
        """Scales of the LoRA adapters that the cached tokens were read with; () if passes state none."""
        return self._scales

    def n_common(self, prompt: Sequence[int], scales: tuple[float, ...], *, exact: bool = True) -> int:
        """The length of the common prefix of the cached tokens and a prompt to be read with these scales.

        `exact`: only as far as the cached tokens are exact.
        """
        if scales != self._scales:
            return 0
        n_same = n_common(self._tokens, prompt if isinstance(prompt, list) else list(prompt))
        return min(n_same, self.n_exact) if exact else n_same

    @property
    def n_cached(self) -> int:
        """The number of cached tokens."""
        return len(self._tokens)

    @property
    def n_exact(self) -> int:
        """How many of them are what reading them gives: all before the first that was taken from another position."""
        n_tokens, n_before = len(self._tokens), self._n_before_shifted
        return n_tokens if n_before is None else min(n_tokens, n_before)

    @property
    def runs(self) -> bool:
        """Whether a request is running."""
        return self._stop_current is not None

    @property
    def rests(self) -> bool:
        """Whether it holds memory that others may have, as no generation is running."""
        return self._stop_current is None and bool(self._tokens) and not self.is_held

    @property
    def n_context(self) -> int:
        return self.pool.executor.limits.n_context

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens in one batch."""
        return self.pool.executor.limits.max_tokens

    @property
    def max_outputs(self) -> int:
        """The largest number of rows of logits of one batch."""
        return self.pool.executor.limits.max_outputs

    def n_together(self, n_tokens: int, n_missing: int, n_prompt: int) -> int:
        """As `limits.n_together`, after its cached tokens."""
        return n_together(self.pool.executor.limits, len(self._tokens), n_tokens, n_missing, n_prompt)

    @property
    def is_full(self) -> bool:
        """Whether the context is full."""
        return len(self._tokens) >= self.n_context

    def begin(self, stop: Callable[[], None], stopped: StopFlag) -> None:
        """Start a generation that `stop` ends by setting `stopped`; one still running evaluates nothing more."""
        with self.pool.lock:
            self.check_open()
            self.settle()
            self.stop()
            self._stop_current, self.stopped = stop, stopped

    def end(self, stop: Callable[[], None]) -> None:
        """End the generation that `stop` belongs to."""
        with self.pool.lock:
            if self._stop_current == stop:
                self._stop_current = self.stopped = None
                self.pool.note_rest()

    def stop(self) -> None:
        """End the running generation within one step; may be called from any thread."""
        current = self._stop_current
        if current is not None:
            current()

    def keep_prefix(self, prompt: Sequence[int], scales: tuple[float, ...] | None = None, *, exact: bool = True) -> int:
        """Keep the cached prefix of a prompt, except its last token, and drop the rest; returns the tokens kept.

        Keeps fewer where the model's state cannot be restored at that position, and none that were read with other
        scales of LoRA adapters. `scales`: those to read with from now on; None: as before. `exact`: as in `n_common`.
        """
        with self.pool.lock:
            self.check_open()
            scales = self._scales if scales is None else scales
            self._truncate(min(self.n_common(prompt, scales, exact=exact), len(prompt) - 1))
            self._scales = scales
            return self.n_cached

    def share(self, donor: CachedSequence, n_tokens: int) -> None:
        """Share the first tokens of another sequence and their memory. Call with the lock held, while empty."""
        self.close_sequence()
        self._sequence = self.pool.branch(self, donor.sequence)
        self._tokens, self._scales = list(donor._tokens), donor._scales
        self._n_before_shifted = donor._n_before_shifted
        self._truncate(n_tokens)

    def take_over(self, donor: CachedSequence) -> None:
        """Take over another sequence, which is then closed. Call with the lock held, while empty."""
        self.close_sequence()
        self._sequence, donor._sequence = donor.settle(), None
        self._tokens, donor._tokens, donor._closed = donor._tokens, [], True
        self._scales, self._n_before_shifted = donor._scales, donor._n_before_shifted
        self.pool.replace(donor, self)

    def chain(
        self,
        tokens: Sequence[int],
        *,
        wants_logits: bool,
        n_outputs: int = 1,
        mixed: MixedPrompt | None = None,
        n_prompt: int | None = None,
    ) -> Batch:
        """The batch of consecutive tokens, with logits for the last `n_outputs` of them or for none.

        `mixed`: the prompt of the text if it has rows; negative tokens are then names of rows. `n_prompt`: length of
        the prompt, whose tokens attend to everything whatever the budget; None: these tokens are all of a prompt.
        Raises Interrupted if the running generation is stopped while rows are computed.
        """
        n_tokens, n_cached = len(tokens), len(self._tokens)
        ids = tokens if mixed is None else [max(token, ROW) for token in tokens]
        batch = Batch(
            tokens=np.array(ids, np.int32),
            sequences=np.full(n_tokens, self.sequence, np.int32),
            positions=np.arange(n_cached, n_cached + n_tokens, dtype=np.int32),
            parents=np.arange(-1, n_tokens - 1, dtype=np.int32),
            outputs=np.arange(n_tokens - n_outputs if wants_logits else n_tokens, n_tokens, dtype=np.int32),
            scales=self._row_scales(n_tokens),
        )
        batch = batch if mixed is None else mixed.completed(batch, tokens, self.stopped)
        n_full, limits = n_tokens if n_prompt is None else max(0, n_prompt - n_cached), self.pool.executor.limits
        if limits.whole_blocks:
            batch = replace(batch, blocks=whole_blocks(n_cached, min(n_full, n_tokens)))
        return batch.within(limits.kv_budget, n_full, self.turn_start)

    def tree(self, draft: Draft, mixed: MixedPrompt | None = None) -> Batch:
        """The batch of a draft whose root follows the cached tokens, with logits for every token."""
        n_tokens = len(draft.tokens)
        if n_tokens == 1:
            return self.chain(draft.tokens.tolist(), wants_logits=True, mixed=mixed, n_prompt=0)
        batch = Batch(
            tokens=draft.tokens,
            sequences=np.full(n_tokens, self.sequence, np.int32),
            positions=len(self._tokens) + draft.depths,
            parents=draft.parents,
            outputs=np.arange(n_tokens, dtype=np.int32),
            scales=self._row_scales(n_tokens),
        )
        batch = batch if mixed is None else mixed.completed(batch, ())
        return batch.within(self.pool.executor.limits.kv_budget, 0, self.turn_start)

    def _row_scales(self, n_tokens: int) -> Floats | None:
        """The scales of LoRA adapters for each token of a batch."""
        return np.array([self._scales] * n_tokens, np.float32) if self._scales else None

    @property
    def most_drafted(self) -> tuple[int, int]:
        """The most tokens in a draft, root included, and the most that may follow one another after the root.

        None larger than a pass or than the power limiter allows; whether there is memory for it is another question.
        """
        return self._most_in_a_draft, max(0, self.n_context - len(self._tokens) - 1)

    def n_pages_for(self, n_tokens: int) -> int:
        """Pages that so many more tokens take."""
        return pages_for(len(self._tokens) + n_tokens) - pages_for(len(self._tokens))

    def n_pages_for_draft(self, most: int, deepest: int) -> int:
        """Most pages that a draft of up to `most` tokens, `deepest` after the root, takes beyond those of the root."""
        n_siblings = max(0, most - 2) if self.pool.executor.limits.branches else 0
        return self.n_pages_for(1 + min(deepest, most - 1)) - self.n_pages_for(1) + pages_for(n_siblings)

    @property
    def _most_in_a_draft(self) -> int:
        limits = self.pool.executor.limits
        return min(limits.max_tokens, limits.max_outputs, self.power_limiter.policy.most_drafted)

    @property
    def power_limiter(self) -> PowerLimiter:
        """The limits on workers, rests and drafts."""
        return self.pool.executor.power_limiter

    @property
    def lock(self) -> FairLock:
        """Hold it from `evaluate` until the logits are used and `commit` has returned."""
        return self.pool.lock

    @property
    def reading(self) -> WeightReads:
        """Weights read so far, over all sequences."""
        return self.pool.reading

    def take_notices(self) -> tuple[str, ...]:
        """Notices of the executor since the last call."""
        return self.pool.take_notices()

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of a batch: float32[O, V], valid while the lock is held. Raises Interrupted if stopped meanwhile."""
        self.check_open()
        return self.pool.evaluate((self,), batch)

    @property
    def peaks(self) -> Floats | None:
        """`Executor.peaks` of these logits, valid as long as they are."""
        return self.pool.executor.peaks

    def commit(self, batch: Batch, path: Int32s, reader: RowReader | None = None) -> None:
        """Keep these tokens of the batch just evaluated. Call with the lock still held; keeps none if interrupted.

        `reader`: what the model's hidden rows are for, if it was opened with them.
        """
        tokens = batch.named_tokens()
        kept = [tokens[node] for node in path.tolist()]
        showing = self.pool.executor.capabilities.showing
        if reader is not None and showing is not None:
            reader.note(len(self._tokens), kept, showing.show(HIDDEN)[path], self)
        try:
            self.pool.executor.commit(self.sequence, path)
            self._tokens.extend(kept)
        except KeyboardInterrupt:  # the executor may count tokens whose keys or states are not in place
            self._truncate(len(self._tokens))
            raise
        self.was_taken = False

    def branch(self) -> CachedSequence:
        """A new sequence with the same cached tokens, sharing their memory."""
        with self.pool.lock:
            self.check_open()
            self.settle()
            twin = CachedSequence(self.pool)
            twin.share(self, self.n_cached)
            twin.was_taken = self.was_taken
            return twin

    def save(self) -> tuple[tuple[int, ...], bytes]:
        """The cached tokens and the executor's saved state of them."""
        with self.pool.lock:
            self.check_open()
            return self.tokens, self.pool.executor.save(self.settle())

    def restore(
        self, tokens: Sequence[int], state: bytes, scales: tuple[float, ...] = (), n_exact: int | None = None
    ) -> None:
        """Replace the cached tokens by a saved state and end a running request. Raises as `Executor.restore`.

        `scales`: of LoRA adapters, with which they were read. `n_exact`: as it was when they were saved; None: all.
        """
        with self.pool.lock:
            self.check_open()
            self.stop()
            self.put_back(tokens, state, n_exact)
            if self.pool.executor.n_cached(self.settle()) != len(tokens):
                self._truncate(0)
                raise EdgeInferError("the saved state belongs to another text; start again from the text")
            self._scales = scales

    def put_back(self, tokens: Sequence[int], state: bytes, n_exact: int | None = None) -> None:
        """As `restore`, with the lock held."""
        try:
            self.pool.executor.restore(self.settle(), state)
            self._tokens, self.was_taken = list(tokens), False
            self._n_before_shifted = n_exact if n_exact is not None and n_exact < len(tokens) else None
        except (DoesNotFit, ContextOverflow):
            self._tokens = []
            raise

    def forget(self) -> None:
        """Free the memory; the next prompt is read from its start."""
        self.was_taken = self.was_taken or bool(self._tokens)
        self._truncate(0)

    def close(self) -> None:
        """Stop the running generation and free the memory. Safe to call twice."""
        with self.pool.lock:
            if not self._closed:
                self.stop()
                self._closed = True
                self.close_sequence()

    def close_sequence(self) -> None:
        """Free the sequence in the executor. Call with the lock held."""
        if self._sequence is not None:
            self.pool.leave(self, self._sequence)
            self._sequence = None

    def cut(self, n_tokens: int) -> int:
        """Drop cached tokens from a position on, or from before it; returns how many are left. Needs the lock."""
        self._truncate(n_tokens)
        return self.n_cached

    def count(self, tokens: Sequence[int]) -> None:
        """Count tokens that follow the cached ones as cached: their keys and values were put into the executor."""
        self._tokens.extend(tokens)
        self.was_taken = False

    def append_shifted(self, donor: CachedSequence, first: int, n_tokens: int) -> bool:
        """Continue with tokens that another sequence has cached from position `first` on. Call with the lock held.

        They, and all that follow them, are not exact. As `ShiftedTokens.append`; raises UnsupportedModel too.
        """
        shifted, n_before = self.pool.executor.capabilities.shifted, self.n_exact
        if shifted is None:
            device = self.pool.executor.device
            raise UnsupportedModel(f"{device} moves no cached tokens of this model: use --reuse exact")
        is_done = False
        try:
            is_done = shifted.append(self.settle(), donor.sequence, first, n_tokens)
        finally:
            if not is_done:
                self._truncate(len(self._tokens))
        if is_done:
            self._tokens += donor._tokens[first : first + n_tokens]
            self._n_before_shifted, self.was_taken = n_before, False
        return is_done

    def _truncate(self, n_tokens: int) -> None:
        if self._sequence is not None:
            n_tokens = self.pool.executor.truncate(self._sequence, n_tokens)
        del self._tokens[n_tokens:]
        if self._n_before_shifted is not None and n_tokens <= self._n_before_shifted:
            self._n_before_shifted = None

    def check_open(self) -> None:
        """Raises EngineClosed if this sequence or its model is closed."""
        self.pool.check_open()
        if self._closed:
            raise EngineClosed("the session is closed; open another one on the model")
