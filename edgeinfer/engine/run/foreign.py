"""An executor around a program that runs whole models by itself: accounts for its pages and seals its saved states.

In: batches of tokens. Out: logits. Applies the same limits and raises the same errors as the executor of our own
devices; the program only ever gets batches that fit. Knows nothing of which program it is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.evaluator import Evaluator, EvaluatorKind, ProgramText, StopFlag
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.saved_state import check_same, saved_number, seal, unseal
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities, Subject
from edgeinfer.errors import EngineClosed, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import IDS_ONLY, Batch, Floats, Int32s
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.weights import WeightReads
from edgeinfer.steps import Progress, no_progress

MAGIC = b"EDGEINFER PROGRAM KV 1\n"
PASS_TOKENS = 512
"""Tokens of a prompt per pass: programs read long passes faster, and can stop within them."""


class ForeignExecutor:
    """Runs one model with one program and owns it. Use it with `with` or call `close()`."""

    affinity: tuple[tuple[int, ...], ...] = ()
    peaks: Floats | None = None
    reading = WeightReads()

    def __init__(
        self,
        evaluator: Evaluator,
        kind: EvaluatorKind,
        options: DeviceOptions,
        fingerprint: str,
        power_limiter: PowerLimiter | None = None,
    ) -> None:
        self._evaluator: Evaluator | None = evaluator
        self._kind, self._options = kind, options
        self._fingerprint = fingerprint
        self.limits = evaluator.limits
        self.device, self._version = evaluator.name, evaluator.version
        self.batch_invariant = evaluator.batch_invariant
        self.n_vocab, self.n_context_trained = evaluator.n_vocab, evaluator.n_context_trained
        self.notices = evaluator.notices
        self.power_limiter = PowerLimiter.free(evaluator.n_workers) if power_limiter is None else power_limiter
        self._cache = KVCache(self.limits.n_pages, self.limits.n_context)

    @classmethod
    def open(
        cls,
        kind: EvaluatorKind,
        device: str,
        subject: Subject,
        limits: Limits,
        options: DeviceOptions,
        progress: Progress = no_progress,
        power_limiter: PowerLimiter | None = None,
    ) -> ForeignExecutor:
        """Open a model file with a program. Raises DeviceUnavailable, UnsupportedModel, DoesNotFit."""
        if subject.rows:
            raise UnsupportedModel(f"{device} takes token ids alone, no rows of numbers; --device cpu takes both")
        options = replace(options, target=device.partition(":")[2])
        return cls._of(kind, options, subject.file.path, subject.fingerprint, limits, progress, power_limiter)

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> ForeignExecutor:
        """Another model with the same program. Close it too. Raises as `open`."""
        return self._of(self._kind, self._options, file.path, fingerprint, limits, progress, self.power_limiter)

    @classmethod
    def _of(
        cls,
        kind: EvaluatorKind,
        options: DeviceOptions,
        path: Path,
        fingerprint: str,
        limits: Limits,
        progress: Progress,
        power_limiter: PowerLimiter | None,
    ) -> ForeignExecutor:
        limits = replace(limits, max_tokens=PASS_TOKENS)
        return cls(kind.open(path, limits, options, progress), kind, options, fingerprint, power_limiter)

    def __enter__(self) -> ForeignExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the program's memory. Safe to call twice."""
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()

    @property
    def capabilities(self) -> EvaluatorCapabilities:
        return EvaluatorCapabilities(interruptible=self, program=self)

    @property
    def n_workers(self) -> int:
        """Workers that currently run a one-token pass."""
        return min(self._open().n_workers, self.power_limiter.policy.most_workers)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory the program reports; 0 when closed."""
        return 0 if self._evaluator is None else self._evaluator.resident_bytes

    @property
    def n_free_pages(self) -> int:
        return self._cache.n_free_pages

    @property
    def text(self) -> ProgramText:
        """The program's own tokenizer."""
        return self._open().text

    def create(self) -> int:
        """A new empty sequence."""
        return self._cache.create()

    def branch(self, sequence: int) -> int:
        """A new sequence with the same cached tokens, sharing their memory."""
        twin = self._cache.branch(sequence)
        try:
            self._open().branch(sequence, twin)
        except BaseException:
            self._cache.free(twin)
            raise
        return twin

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        self._cache.free(sequence)
        self._open().truncate(sequence, 0)

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop a sequence's tokens from position n_cached on; returns how many are left."""
        n_left = self._cache.truncate(sequence, n_cached)
        self._open().truncate(sequence, n_left)
        return n_left

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        return self._cache.n_cached(sequence)

    def heed(self, stopped: StopFlag | None) -> None:
        """Interrupt later passes as soon as this flag is set."""
        self._open().heed(stopped)

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call; the tokens stay pending.

        Raises ContextOverflow or DoesNotFit (no free pages) before anything is computed; DeviceFailed, Interrupted.
        """
        evaluator = self._open()
        IDS_ONLY.check(batch, self.limits.n_context)
        if len(batch.tokens) > self.limits.max_tokens or len(batch.outputs) > self.limits.max_outputs:
            raise ValueError(f"a pass takes {self.limits.max_tokens} tokens and {self.limits.max_outputs} outputs")
        self._cache.place(batch)
        self.power_limiter.look()
        evaluator.use(self.power_limiter.policy.most_workers)
        return evaluator.evaluate(batch)

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        self._cache.commit(sequence, path)
        self._open().commit(sequence, path)

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading any; for measurements. Raises as `KVCache.refill`."""
        self._cache.refill(sequence, n_tokens)
        self._open().pretend(sequence, n_tokens)

    def save(self, sequence: int) -> bytes:
        """The saved state of a sequence; `restore` needs the same model, program and kv."""
        body = self._open().save(sequence)
        return seal(MAGIC, {**self._identity(), "n_tokens": self._cache.n_cached(sequence)}, body)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence's cached tokens by a saved state.

        Raises EdgeInferError if the state is damaged or from another model, program or kv; the sequence is unchanged.
        Raises ContextOverflow or DoesNotFit if it has no room; the sequence is then empty.
        """
        evaluator = self._open()
        header, body = unseal(MAGIC, state, "the saved state")
        check_same(header, self._identity())
        self._cache.truncate(sequence, 0)
        evaluator.truncate(sequence, 0)
        self._cache.refill(sequence, saved_number(header, "n_tokens"))
        try:
            evaluator.restore(sequence, body)
        except BaseException:
            self._cache.truncate(sequence, 0)
            raise

    def _identity(self) -> dict[str, str | int]:
        """What a saved state and this executor must agree on."""
        return {
            "model": self._fingerprint,
            "device": self.device,
            "version": self._version,
            "kv": self.limits.kv,
        }

    def _open(self) -> Evaluator:
        if self._evaluator is None:
            raise EngineClosed("the model is closed; load it again")
        return self._evaluator
