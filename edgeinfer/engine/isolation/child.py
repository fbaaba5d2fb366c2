"""The child process: opens a model on a device and answers calls until its parent ends it or it ends itself.

In: a `RemoteOpening`, then calls. Out: replies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.isolation.messages import (
    RemoteCall,
    RemoteFacts,
    RemoteOpening,
    RemotePass,
    RemoteReply,
    RemoteVocabulary,
    Shared,
)
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run.evaluators import ModelProgram, SequenceEvaluator, open_subject
from edgeinfer.graph.step import IDS_ONLY, Inputs
from edgeinfer.ipc.channel import Channel
from edgeinfer.ipc.child import connect
from edgeinfer.offload.weights import WeightReads


class SharedFlag(StopFlag):
    """A stop flag in shared memory, written by the parent."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    def is_set(self) -> bool:
        """Whether the parent requests a stop."""
        return bool(self._shared.flag[0])

    @property
    def address(self) -> int:
        """The text of the flag as the parent writes it."""
        return int(self._shared.flag.ctypes.data)


class Server:
    """Answers calls with one evaluator."""

    def __init__(self, evaluator: SequenceEvaluator, n_vocab: int, inputs: Inputs = IDS_ONLY) -> None:
        """`inputs`: what the model takes besides token ids."""
        self._evaluator, self._inputs = evaluator, inputs
        self._n_vocab = n_vocab
        self._shared: Shared | None = None
        self._known = (evaluator.device, evaluator.batch_invariant)
        self._calls: dict[str, Callable[[RemoteCall], RemoteReply]] = {
            "share": self._share,
            "create": lambda _: RemoteReply(evaluator.create()),
            "branch": lambda call: RemoteReply(evaluator.branch(_number(call, "sequence"))),
            "free": self._free,
            "truncate": self._truncate,
            "evaluate": self._evaluate,
            "commit": self._commit,
            "pretend": self._pretend,
            "save": lambda call: RemoteReply(body=evaluator.save(_number(call, "sequence"))),
            "restore": self._restore,
            "vocabulary": self._vocabulary,
            "encode": self._encode,
        }

    def facts(self) -> RemoteFacts:
        """What the parent needs to know about the open model."""
        evaluator = self._evaluator
        program = evaluator.capabilities.program
        return RemoteFacts(
            device=evaluator.device,
            batch_invariant=evaluator.batch_invariant,
            n_vocab=self._n_vocab,
            row_width=self._inputs.row_width,
            axes=self._inputs.axes,
            spans=self._inputs.spans,
            scales=self._evaluator.capabilities.scales,
            n_context_trained=0 if program is None else program.n_context_trained,
            max_tokens=evaluator.limits.max_tokens,
            max_outputs=evaluator.limits.max_outputs,
            branches=evaluator.limits.branches,
            n_workers=evaluator.n_workers,
            affinity=tuple(tuple(cores) for cores in evaluator.affinity),
            resident_bytes=evaluator.resident_bytes,
            notices=tuple(evaluator.notices),
        )

    def serve(self, channel: Channel) -> None:
        """Answer calls until there are no more. An error in a call that has no reply ends the process."""
        while True:
            try:
                call = channel.receive(RemoteCall)
            except (EOFError, OSError):
                return
            reply = self._answer(call)
            if call.answered:
                channel.send(replace(reply, number=call.number))
            elif reply.error:
                print(f"{reply.error}: {reply.message}", file=sys.stderr, flush=True)
                os._exit(1)  # the parent assumes that it succeeded; after this exit it reads the text again elsewhere

    def _answer(self, call: RemoteCall) -> RemoteReply:
        try:
            reply = self._calls[call.name](call)
        except Exception as reason:
            return failure(reason)
        if call.name == "evaluate" or reply.body or call.name in ("vocabulary", "encode"):
            return reply
        return RemoteReply([reply.value, self._evaluator.n_free_pages])

    def _share(self, call: RemoteCall) -> RemoteReply:
        limits = self._evaluator.limits
        sizes = limits.max_tokens, limits.max_outputs, self._n_vocab, self._inputs.row_width
        capabilities = self._evaluator.capabilities
        self._shared = Shared(Path(str(call.arguments["path"])), *sizes, len(capabilities.scales))
        interruptible = capabilities.interruptible
        if interruptible is not None:
            interruptible.heed(SharedFlag(self._shared))
        return RemoteReply()

    def _evaluate(self, call: RemoteCall) -> RemoteReply:
        assert self._shared is not None
        n_tokens, n_outputs, n_rows = (_number(call, name) for name in ("n_tokens", "n_outputs", "n_rows"))
        stated = {name: bool(call.arguments[name]) for name in ("axes", "scales", "spans")}
        listed = np.array(call.arguments["blocks"], np.int32)
        blocks = listed if len(listed) else None
        batch = self._shared.batch(n_tokens, n_outputs, n_rows, **stated, blocks=blocks)
        logits = self._evaluator.evaluate(batch)
        shapes = self._shared.put_results(logits, self._evaluator.peaks)
        n_free_pages, n_workers = self._evaluator.n_free_pages, self._evaluator.n_workers
        return RemoteReply(RemotePass(shapes, n_free_pages, n_workers, self._news(), self._reading()))

    def _reading(self) -> WeightReads | None:
        """Weights read so far; None if all are in memory and no activations are skipped."""
        reading = self._evaluator.reading
        return reading if reading.n_passes or reading.n_activations else None

    def _news(self) -> tuple[tuple[str, ...], str, bool] | None:
        """Notices, the device and whether batches change its results, if any of these is new to the parent."""
        evaluator = self._evaluator
        eventful = evaluator.capabilities.eventful
        notices = () if eventful is None else eventful.take_notices()
        before, self._known = self._known, (evaluator.device, evaluator.batch_invariant)
        return (notices, *self._known) if notices or before != self._known else None

    def _commit(self, call: RemoteCall) -> RemoteReply:
        path = call.arguments["path"]
        assert isinstance(path, list)
        self._evaluator.commit(_number(call, "sequence"), np.array(path, np.int32))
        return RemoteReply()

    def _free(self, call: RemoteCall) -> RemoteReply:
        self._evaluator.free(_number(call, "sequence"))
        return RemoteReply()

    def _truncate(self, call: RemoteCall) -> RemoteReply:
        return RemoteReply(self._evaluator.truncate(_number(call, "sequence"), _number(call, "n_cached")))

    def _pretend(self, call: RemoteCall) -> RemoteReply:
        self._evaluator.pretend(_number(call, "sequence"), _number(call, "n_tokens"))
        return RemoteReply()

    def _restore(self, call: RemoteCall) -> RemoteReply:
        sequence = _number(call, "sequence")
        self._evaluator.restore(sequence, call.body)
        return RemoteReply(self._evaluator.n_cached(sequence))

    def _vocabulary(self, _: RemoteCall) -> RemoteReply:
        text = self._program().text
        vocabulary = text.vocabulary()
        return RemoteReply(RemoteVocabulary(vocabulary, tuple(map(text.piece, range(vocabulary.n_tokens)))))

    def _encode(self, call: RemoteCall) -> RemoteReply:
        add_special, parse_special = (bool(call.arguments[key]) for key in ("add_special", "parse_special"))
        tokenizer, text = self._program().text, str(call.arguments["text"])
        return RemoteReply(list(tokenizer.encode(text, add_special=add_special, parse_special=parse_special)))

    def _program(self) -> ModelProgram:
        program = self._evaluator.capabilities.program
        assert program is not None
        return program


def failure(reason: Exception) -> RemoteReply:
    """A reply that raises the same error on the other side."""
    return RemoteReply(error=type(reason).__name__, message=str(reason))


def _number(call: RemoteCall, name: str) -> int:
    return int(str(call.arguments[name]))


def _open(opening: RemoteOpening, channel: Channel) -> Server:
    def report(what: str, done: int, total: int) -> None:
        channel.send(RemoteReply(progress=(what, done, total)))

    load = replace(opening.load, progress=report)
    subject = open_subject(opening.path, load)
    power_limiter = PowerLimiter.of_machine(load.mode, opening.kinds)
    evaluator = open_evaluator(subject, opening.limits, opening.options, load, power_limiter)
    subject.release()
    program = evaluator.capabilities.program
    if program is not None:
        return Server(evaluator, program.n_vocab)
    assert subject.spec is not None
    return Server(evaluator, subject.spec.n_vocab, subject.spec.inputs)


def main() -> None:
    with connect() as channel:
        opening = channel.receive(RemoteOpening)
        try:
            server = _open(opening, channel)
        except Exception as reason:
            channel.send(failure(reason))
            return
        channel.send(RemoteReply(server.facts()))
        server.serve(channel)


if __name__ == "__main__":
    main()
