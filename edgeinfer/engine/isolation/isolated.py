"""An evaluator in a separate process, as the engine uses it: a crash there costs time but loses no text.

In: batches of tokens. Out: logits. Knows the tokens of each sequence. If the process dies, it starts another one, which
reads them again, and retries the call once. A second death in a row raises DeviceFailed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteOpening, RemotePass, RemoteVocabulary, check_ids
from edgeinfer.engine.isolation.process import Child, KnownSequence
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.saved_state import ReadText, cut_whole
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities
from edgeinfer.errors import BadSetting, ContextOverflow, DeviceFailed, DoesNotFit, EngineClosed
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Inputs, Int32s
from edgeinfer.ipc.child import ChildDied
from edgeinfer.ipc.records import Plain, read_as
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.decoder_folder import DecoderFolder
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Vocabulary
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.steps import Progress, no_progress

T = TypeVar("T")


class Isolated:
    """One model on one device in a child process. Close it, or use `with`."""

    def __init__(self, opening: RemoteOpening, power_limiter: PowerLimiter, progress: Progress = no_progress) -> None:
        """Raises what opening the model raises, and DeviceFailed if the process dies of it."""
        self._opening = opening
        self.power_limiter = power_limiter
        self._lock = threading.RLock()
        self._sequences: dict[int, KnownSequence] = {}
        self._next = 0
        self._pending: Batch | None = None
        self._flag: StopFlag | None = None
        self._notices: list[str] = []
        self._pieces: tuple[bytes, ...] = ()
        self._reading, self._read_before = WeightReads(), WeightReads()  # by this process, and by those before it
        self._closed = False
        self.peaks: Floats | None = None
        self._child: Child | None = Child(opening, progress)
        facts = self._child.facts
        self.device, self.batch_invariant = facts.device, facts.batch_invariant
        self._inputs = Inputs(facts.row_width, facts.axes, facts.scales, spans=facts.spans)
        self.n_vocab, self.n_context_trained = facts.n_vocab, facts.n_context_trained
        self.limits = replace(
            opening.limits, max_tokens=facts.max_tokens, max_outputs=facts.max_outputs, branches=facts.branches
        )
        self.affinity, self.notices = facts.affinity, facts.notices
        self._n_workers, self._resident_bytes = facts.n_workers, facts.resident_bytes
        self.n_free_pages = self.limits.n_pages

    @classmethod
    def open(
        cls,
        file: GGUFFile | DecoderFolder,
        limits: Limits,
        options: DeviceOptions,
        load: LoadOptions,
        kinds: tuple[CoreKind, ...],
        power_limiter: PowerLimiter,
    ) -> Isolated:
        """A model file on the device of `load`; `kinds`: of the child's workers. Raises BadSetting for a budget."""
        if limits.budgets:  # a process that is started again would read answers without it
            raise BadSetting("--approx kv=N runs in this process alone: leave out --isolate, or the budget")
        sent = replace(load, n_context=limits.n_context, sharing=None, progress=no_progress)
        sent = replace(sent, chat_template=None, chat_template_file=None)  # texts are made here
        opening = RemoteOpening(file.path, limits, options, sent, kinds)
        return cls(opening, power_limiter, load.progress)

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> Isolated:
        """Another model on the same device, in another process. Close it too."""
        load = replace(self._opening.load, n_context=limits.n_context, approx=None, rows=False, lora=())
        opening = replace(self._opening, path=file.path, limits=limits, load=load)
        return Isolated(opening, self.power_limiter, progress)

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._closed, running = True, self._child
        if running is not None:
            running.leave()
        with self._lock:
            child, self._child = self._child, None
            self._sequences.clear()
            self.peaks = None
            if child is not None:
                child.close()

    @property
    def capabilities(self) -> EvaluatorCapabilities:
        own = self._inputs.scales
        return EvaluatorCapabilities(interruptible=self, program=self, eventful=self, scales=own)

    @property
    def pid(self) -> int | None:
        """The process id; None if none is running."""
        return None if self._child is None else self._child.pid

    @property
    def n_workers(self) -> int:
        """Workers that may currently share a step."""
        return self._n_workers

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory the process reported; 0 when closed."""
        return 0 if self._closed else self._resident_bytes

    @property
    def reading(self) -> WeightReads:
        """Weights read by all child processes so far because they do not stay in memory, up to the last pass."""
        return self._read_before + self._reading

    @property
    def text(self) -> Isolated:
        """The tokenizer of the program in the process, if it has its own."""
        return self

    def take_notices(self) -> tuple[str, ...]:
        """Notices about the process since the last call."""
        found, self._notices = tuple(self._notices), []
        return found

    def heed(self, stopped: StopFlag | None) -> None:
        """Interrupt later passes as soon as this flag is set, if the device can."""
        self._flag = stopped

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        return self._get(sequence).n_cached

    def create(self) -> int:
        """A new empty sequence."""
        name, self._next = self._next, self._next + 1
        self._sequences[name] = KnownSequence()
        return name

    def branch(self, sequence: int) -> int:
        """A new sequence with the same cached tokens, sharing their memory."""
        found = self._get(sequence)

        def ask(child: Child) -> int:
            return self._ask(child, "branch", sequence=self._there(child, found))

        there = self._with_child(ask)
        twin = self.create()
        self._sequences[twin] = replace(found, there=there, text=found.text.copied())
        return twin

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        found = self._get(sequence)
        del self._sequences[sequence]
        self._if_there(found, lambda child, there: self._ask(child, "free", sequence=there))

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop a sequence's tokens from position n_cached on, or from before it; returns how many are left."""
        found = self._get(sequence)
        if not 0 <= n_cached <= found.n_cached:
            raise ValueError(f"sequence {sequence} has {found.n_cached} cached tokens; cannot keep {n_cached}")

        def cut(n: int) -> int:
            left = [n]
            self._if_there(found, lambda child, at: left.append(self._ask(child, "truncate", sequence=at, n_cached=n)))
            return left[-1]

        return found.truncate(cut_whole(n_cached, found.whole_before, cut))

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call; the tokens stay pending.

        Raises as the device does, and DeviceFailed if the process dies twice on this batch.
        """
        if len(batch.tokens) > self.limits.max_tokens or len(batch.outputs) > self.limits.max_outputs:
            raise ValueError(f"a pass takes {self.limits.max_tokens} tokens and {self.limits.max_outputs} outputs")
        self._inputs.check(batch, self.limits.n_context)
        self._pending = None
        self.power_limiter.look()
        logits = self._with_child(lambda child: self._evaluate(child, batch), self._flag)
        self._pending = batch
        return logits

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these batch indices (a chain of parents) as the sequence's next positions.

        If the process dies here, the next pass notices and reads these tokens again.
        """
        found, batch = self._get(sequence), self._pending
        if batch is None:
            raise ValueError(f"sequence {sequence} has nothing pending")
        found.text.extend(batch, path)
        nodes: list[Plain] = path.tolist()

        def post(child: Child, there: int) -> None:
            child.call(RemoteCall("commit", {"sequence": there, "path": nodes}, answered=False))

        self._if_there(found, post)

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading any; for measurements."""
        found = self._get(sequence)
        self.truncate(sequence, 0)

        def ask(child: Child) -> None:
            self._ask(child, "pretend", sequence=self._there(child, found), n_tokens=n_tokens)

        self._with_child(ask)
        found.text = ReadText([0] * n_tokens)

    def save(self, sequence: int) -> bytes:
        """The saved state of a sequence; `restore` needs the same model, device and kv."""
        found = self._get(sequence)

        def ask(child: Child) -> bytes:
            return child.call(RemoteCall("save", {"sequence": self._there(child, found)})).body

        return self._with_child(ask)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence's cached tokens by a saved state. Raises as the device does.

        The state is kept as long as the sequence begins with it: a new process would need it.
        """
        found = self._get(sequence)

        def ask(child: Child) -> int:
            reply: Any = child.call(RemoteCall("restore", {"sequence": self._there(child, found)}, state)).value
            with child.understood():
                return int(reply[0])

        try:
            n_tokens = self._with_child(ask)
        except (ContextOverflow, DoesNotFit):
            found.state, found.n_state, found.text = b"", 0, ReadText()
            raise
        found.state, found.n_state, found.text = state, n_tokens, ReadText()

    def vocabulary(self) -> Vocabulary:
        """The vocabulary as the program in the process reads it. Raises DeviceFailed if the reply is invalid."""

        def ask(child: Child) -> RemoteVocabulary:
            reply = child.call(RemoteCall("vocabulary"))
            with child.understood():
                return RemoteVocabulary.of(reply.value, self.n_vocab)

        words = self._with_child(ask)
        self._pieces = words.pieces
        return words.fields

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text from the tokenizer of the program in the process. Raises as `vocabulary`."""
        call = RemoteCall("encode", {"text": text, "add_special": add_special, "parse_special": parse_special})

        def ask(child: Child) -> list[int]:
            reply = child.call(call)
            with child.understood():
                tokens: list[int] = read_as(list[int], reply.value)
                check_ids(tokens, self.n_vocab)
                return tokens

        return self._with_child(ask)

    def piece(self, token: int) -> bytes:
        """The bytes of a token. `vocabulary` must have been called before."""
        return self._pieces[token]

    def _evaluate(self, child: Child, batch: Batch) -> Floats:
        names = np.unique(batch.sequences).tolist()
        there = {name: self._there(child, self._get(name)) for name in names}
        sent = replace(batch, sequences=np.array([there[name] for name in batch.sequences.tolist()], np.int32))
        logits, self.peaks = self._pass(child, sent)
        return logits

    def _pass(self, child: Child, batch: Batch) -> tuple[Floats, Floats | None]:
        """Logits and peaks of a batch that uses the process's sequence numbers."""
        child.shared.flag[0] = 0
        reply = child.call(RemoteCall("evaluate", child.shared.put_batch(batch)), self._flag)
        with child.understood():
            result: RemotePass = read_as(RemotePass, reply.value)
            self.n_free_pages, self._n_workers = result.n_free_pages, result.n_workers
            self._reading = result.reading or self._reading
            if result.news is not None:
                notices, self.device, self.batch_invariant = result.news
                self._notices += notices
            return child.shared.results(result.shapes, len(batch.outputs))

    def _there(self, child: Child, found: KnownSequence) -> int:
        """A sequence's number in the process, after sending it all its tokens if necessary."""
        if found.there is not None:
            return found.there
        there = self._ask(child, "create")
        try:
            if found.state:
                child.call(RemoteCall("restore", {"sequence": there}, found.state))
                if self._ask(child, "truncate", sequence=there, n_cached=found.n_state) < found.n_state:
                    raise DeviceFailed("a saved state was cut where it has no checkpoint; start again from the text")
            for batch in found.text.batches(there, self.limits.max_tokens, found.n_state):
                self._pass(child, batch)
                child.call(RemoteCall("commit", {"sequence": there, "path": [*range(len(batch.tokens))]}))
        except ChildDied:
            raise
        except BaseException:
            self._ask(child, "free", sequence=there)
            raise
        found.there = there
        return there

    def _ask(self, child: Child, name: str, **arguments: Plain) -> int:
        """Call the process and update the number of free pages; returns the number in the reply, 0 for none."""
        value: Any = child.call(RemoteCall(name, arguments)).value
        with child.understood():
            result, n_free_pages = value
            self.n_free_pages = int(n_free_pages)
            return 0 if result is None else int(result)

    def _with_child(self, ask: Callable[[Child], T], stopped: StopFlag | None = None) -> T:
        """Call the process; if it dies, retry once in a new one, unless a stop was requested."""
        with self._lock:
            for is_last in (False, True):
                child = self._alive()
                try:
                    return ask(child)
                except ChildDied as reason:
                    self._bury(reason)
                    if stopped is not None and stopped.is_set():
                        raise Interrupted from None
                    if is_last:
                        raise DeviceFailed(
                            f"the process that runs {self._asked_for} {reason}, for the second time in a row; "
                            "the text so far is kept, and a new process starts with the next request"
                        ) from None
            raise AssertionError("unreachable")

    def _if_there(self, found: KnownSequence, ask: Callable[[Child, int], object]) -> None:
        """Call the process about a sequence if it has it. If the process dies, there is nothing left to do."""
        with self._lock:
            if found.there is None or self._child is None:
                return
            try:
                ask(self._child, found.there)
            except ChildDied as reason:
                self._bury(reason)

    @property
    def _asked_for(self) -> str:
        return self._opening.load.device

    def _bury(self, reason: ChildDied) -> None:
        """Drop a dead process; its sequences are read again when needed."""
        child, self._child = self._child, None
        self._read_before, self._reading = self.reading, WeightReads()
        if child is not None:
            child.close()
        for found in self._sequences.values():
            found.there = None
        n_pages = sum(pages_for(found.n_cached) for found in self._sequences.values())
        self.peaks, self.n_free_pages = None, self.limits.n_pages - n_pages
        self._notices.append(
            f"the process that runs {self._asked_for} {reason}; another one was started and the text read again"
        )

    def _alive(self) -> Child:
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        if self._child is None:
            self._child = Child(self._opening)
            self.device, self.batch_invariant = self._child.facts.device, self._child.facts.batch_invariant
        return self._child

    def _get(self, sequence: int) -> KnownSequence:
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        if sequence not in self._sequences:
            raise ValueError(f"there is no sequence {sequence}")
        return self._sequences[sequence]
