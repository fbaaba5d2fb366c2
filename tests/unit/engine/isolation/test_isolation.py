"""Devices in processes of their own: the same results, and what happens when the process crashes or is left."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import edgeinfer
from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.engine.isolation import process
from edgeinfer.engine.isolation.child import Server
from edgeinfer.engine.isolation.isolated import Isolated
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteReply
from edgeinfer.engine.isolation.process import Child
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities, SequenceEvaluator, open_subject
from edgeinfer.errors import ContextOverflow, DeviceFailed, DoesNotFit, EdgeInferError, EngineClosed
from edgeinfer.graph.step import Batch
from edgeinfer.ipc import child as child_process
from edgeinfer.ipc.child import ChildProcess
from edgeinfer.load_options import LoadOptions
from tests.unit.engine.run.test_executor import chain
from tests.waiting import is_over, until

LIMITS = Limits(n_context=256, n_pages=8, max_tokens=64, max_outputs=16)
OPTIONS = DeviceOptions(n_workers=1)
QUESTION = [{"role": "user", "content": "the theatre in an inn"}]
CRASHES = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT] if sys.platform != "win32" else [signal.SIGTERM]


def isolated(path: Path, device: str = "reference", limits: Limits = LIMITS) -> Isolated:
    load = LoadOptions(device=device, n_context=limits.n_context, mode="max")
    with open_subject(path, load).file as file:
        return Isolated.open(file, limits, OPTIONS, load, ("performance",), PowerLimiter.free(1))


@pytest.fixture
def apart(tiny_model: Path) -> Iterator[Isolated]:
    with isolated(tiny_model) as found:
        yield found


@pytest.fixture
def direct(tiny_model: Path) -> Iterator[SequenceEvaluator]:
    subject = open_subject(tiny_model, LoadOptions(device="reference", n_context=LIMITS.n_context))
    with subject.file, closing(open_evaluator(subject, LIMITS, OPTIONS, LoadOptions(device="reference"))) as evaluator:
        yield evaluator


def feed(evaluator: SequenceEvaluator, sequence: int, tokens: list[int]) -> list[float]:
    """The logits of the last of these tokens, which are kept; rounded, for text may be read again in other parts."""
    logits = evaluator.evaluate(chain(sequence, evaluator.n_cached(sequence), tokens))
    evaluator.commit(sequence, np.arange(len(tokens), dtype=np.int32))
    return np.round(logits[0].astype(float), 3).tolist()  # type: ignore[no-any-return]


def crash(apart: Isolated, number: int = signal.SIGTERM) -> int:
    """End the process from outside; its number."""
    pid = apart.pid
    os.kill(pid, number)
    until(lambda: is_over(pid))
    return pid


def test_results_are_those_of_the_device_itself(apart: Isolated, direct: SequenceEvaluator) -> None:
    both: tuple[SequenceEvaluator, SequenceEvaluator] = apart, direct
    found: list[list[object]] = []
    for each in both:
        one, two = each.create(), each.create()
        results: list[object] = [feed(each, one, list(range(40))), feed(each, two, [5, 6])]
        twin = each.branch(one)
        each.truncate(one, 30)
        results += [feed(each, one, [7]), feed(each, twin, [8, 9]), each.n_cached(twin)]
        values = ([1, 2, 3, 4], [two] * 4, [2, 3, 3, 4], [-1, 0, 0, 2], [1, 3])
        results.append(each.evaluate(Batch(*(np.array(value, np.int32) for value in values))).tobytes())
        each.commit(two, np.array([0, 2], np.int32))
        results += [each.n_cached(two), feed(each, two, [11]), each.n_free_pages]
        state = each.save(one)
        each.restore(two, state)
        results += [each.n_cached(two), feed(each, two, [12]), each.n_free_pages]
        each.free(twin)
        each.pretend(two, 100)
        results += [each.n_cached(two), each.n_free_pages, each.batch_invariant, each.device, each.limits]
        found.append(results)
    assert found[0] == found[1]
    assert apart.take_notices() == ()


def test_errors_come_back_as_what_they_are(apart: Isolated) -> None:
    sequence, *others = (apart.create() for _ in range(6))
    for _ in range(4):
        feed(apart, sequence, [1] * 64)
    with pytest.raises(ContextOverflow):
        feed(apart, sequence, [1])
    for other in others[:4]:
        feed(apart, other, [1])
    with pytest.raises(DoesNotFit):
        feed(apart, others[4], [1])
    with pytest.raises(EdgeInferError, match=r"version|damaged"):
        apart.restore(sequence, b"nothing of ours")
    with pytest.raises(ValueError, match="a pass takes"):
        apart.evaluate(chain(sequence, 0, [1] * 65))
    assert apart.take_notices() == ()


@pytest.mark.parametrize("number", CRASHES)
def test_after_a_crash_sequences_go_on_as_if_nothing_had_been(
    apart: Isolated, direct: SequenceEvaluator, number: int
) -> None:
    both: tuple[SequenceEvaluator, SequenceEvaluator] = apart, direct
    found = []
    for each in both:
        one, two, three = each.create(), each.create(), each.create()
        feed(each, one, list(range(64)))
        feed(each, one, list(range(9)))
        feed(each, two, [1, 2, 3])
        each.restore(three, each.save(two))
        feed(each, three, [4])
        if each is apart:
            first = crash(apart, number)
        results = [feed(each, one, [7])]
        twin = each.branch(two)
        each.truncate(three, 2)
        if each is apart:
            crash(apart, number)
        results += [feed(each, sequence, [8]) for sequence in (twin, three, two, one)]
        found.append(results)
    for results, expected in zip(*found, strict=True):
        assert results == pytest.approx(expected, abs=2e-3)
    notices = apart.take_notices()
    assert len(notices) == 2
    assert signal.Signals(number).name in notices[0]
    assert apart.pid != first


def test_a_process_that_dies_of_a_batch_every_time_is_a_failure_and_the_next_batch_goes_on(
    apart: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = apart.create()
    expected = feed(apart, sequence, [1, 2])
    ask = apart._evaluate

    def deadly(child: object, batch: Batch) -> object:
        crash(apart)
        return ask(child, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(apart, "_evaluate", deadly)
        with pytest.raises(DeviceFailed, match="second time in a row"):
            apart.evaluate(chain(sequence, 2, [3]))
    assert apart.n_cached(sequence) == 2
    apart.truncate(sequence, 0)
    assert feed(apart, sequence, [1, 2]) == pytest.approx(expected, abs=2e-3)


def test_who_is_interrupted_while_waiting_finds_no_old_reply(apart: Isolated, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = apart.create()
    expected = feed(apart, sequence, [1, 2])
    apart.truncate(sequence, 0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            apart.evaluate(chain(sequence, 0, [3, 4, 5]))
    assert feed(apart, sequence, [1, 2]) == pytest.approx(expected, abs=2e-3)
    assert apart.take_notices() == ()


def test_what_cannot_be_opened_there_is_said_here(tiny_model: Path) -> None:
    options, load = replace(OPTIONS, cores=(4096,)), LoadOptions(device="cpu", n_context=64, mode="max")
    with open_subject(tiny_model, load).file as file, pytest.raises(EdgeInferError, match="cannot be used here"):
        Isolated.open(file, LIMITS, options, load, ("performance",), PowerLimiter.free(1))


def test_a_process_that_dies_at_once_is_a_failure_in_words(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MODULE", "edgeinfer.engine.isolation.nothing")
    with pytest.raises(DeviceFailed, match=r"its process ended with exit code 1: .*No module named"):
        isolated(tiny_model)


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be stalled there")
@pytest.mark.parametrize("is_asked_to_stop", [True, False])
def test_a_stalled_process_is_ended(
    apart: Isolated, monkeypatch: pytest.MonkeyPatch, *, is_asked_to_stop: bool
) -> None:
    sequence, flag = apart.create(), StopFlag()
    expected = feed(apart, sequence, [1, 2])
    limit, end = "STOP_S" if is_asked_to_stop else "ANSWER_S", ChildProcess.end
    patient = getattr(process, limit)

    def ended(stalled: ChildProcess, reason: Exception | None) -> str:
        monkeypatch.setattr(process, limit, patient)  # the process that takes its place may be slow
        return end(stalled, reason)

    monkeypatch.setattr(ChildProcess, "end", ended)
    monkeypatch.setattr(process, limit, 0.3)
    assert apart.pid is not None
    os.kill(apart.pid, signal.SIGSTOP)
    if is_asked_to_stop:
        flag.set()
        apart.heed(flag)
        with pytest.raises(Interrupted):
            apart.evaluate(chain(sequence, 2, [3]))
        apart.heed(None)
    else:
        apart.evaluate(chain(sequence, 2, [3]))
    assert ["stalled" in notice for notice in apart.take_notices()] == [True]
    apart.truncate(sequence, 0)
    assert feed(apart, sequence, [1, 2]) == pytest.approx(expected, abs=2e-3)


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be stalled there")
def test_closing_ends_a_stalled_process(apart: Isolated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.3)
    monkeypatch.setattr(child_process, "END_S", 0.3)
    sequence, pid, failures = apart.create(), apart.pid, []
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    def read() -> None:
        try:
            apart.evaluate(chain(sequence, 0, [3]))
        except EngineClosed as reason:
            failures.append(reason)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    apart.close()
    thread.join(30)
    assert failures
    assert not psutil.pid_exists(pid)


def test_what_happens_to_the_device_in_the_process_is_told(apart: Isolated, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence, call = apart.create(), Child.call

    def rescued(child: Child, asked: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        reply = call(child, asked, stopped)
        if asked.name == "evaluate":
            assert isinstance(reply.value, dict)
            return replace(reply, value={**reply.value, "news": [["it failed"], "cpu", False]})
        return reply

    monkeypatch.setattr(Child, "call", rescued)
    apart.evaluate(chain(sequence, 0, [3]))
    assert (apart.device, apart.batch_invariant, apart.take_notices()) == ("cpu", False, ("it failed",))


def test_the_process_tells_what_is_new(direct: SequenceEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "notices", ("from the start",))
    server = Server(direct, 8)
    assert server.facts().notices == ("from the start",)
    assert server._news() is None
    changed = EvaluatorCapabilities(eventful=SimpleNamespace(take_notices=lambda: ("changed",)))
    monkeypatch.setattr(direct, "capabilities", changed)
    monkeypatch.setattr(type(direct), "device", "second")
    assert server._news() == (("changed",), "second", direct.batch_invariant)


def test_a_commit_that_fails_is_made_up_for(
    apart: Isolated, direct: SequenceEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: tuple[SequenceEvaluator, SequenceEvaluator] = apart, direct
    call, found = Child.call, []

    def damaged(child: Child, asked: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        if not asked.answered:
            asked = replace(asked, arguments={**asked.arguments, "path": [99]})
        return call(child, asked, stopped)

    for each in both:
        sequence = each.create()
        with monkeypatch.context() as patch:
            patch.setattr(Child, "call", damaged)
            feed(each, sequence, [1, 2, 3])
        twin = each.branch(sequence)
        found.append([each.n_cached(sequence), each.n_cached(twin), feed(each, sequence, [4]), feed(each, twin, [5])])
    assert found[0][:2] == found[1][:2]
    for results, expected in zip(found[0][2:], found[1][2:], strict=True):
        assert results == pytest.approx(expected, abs=2e-3)
    assert "exit code 1" in apart.take_notices()[0]


@pytest.mark.parametrize("shapes", [[[1, -1], None], [[7, 4], None], [[1, 3], None], 5, [None, None], [[1], [2]]])
def test_results_that_cannot_be_are_a_failure(apart: Isolated, monkeypatch: pytest.MonkeyPatch, shapes: object) -> None:
    sequence, call = apart.create(), Child.call

    def hostile(child: Child, asked: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        reply = call(child, asked, stopped)
        if asked.name != "evaluate":
            return reply
        assert isinstance(reply.value, dict)
        return replace(reply, value={**reply.value, "shapes": shapes})

    with monkeypatch.context() as patch:
        patch.setattr(Child, "call", hostile)
        with pytest.raises(DeviceFailed, match="second time in a row"):
            apart.evaluate(chain(sequence, 0, [3]))
    assert feed(apart, sequence, [1, 2])


@pytest.fixture
def llm(tiny_model: Path, home: Path) -> Iterator[LLM]:
    with edgeinfer.load(tiny_model, device="reference", isolate=True, spec="off", n_context=256) as found:
        yield found


def test_a_crash_in_the_middle_of_an_answer_costs_no_text(llm: LLM, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off", n_context=256) as plain:
        expected = plain.chat(QUESTION, temperature=0, max_tokens=24).read()
    apart = llm._pool.executor
    assert isinstance(apart, Isolated)
    stream = llm.chat(QUESTION, temperature=0, max_tokens=24)
    for n_pieces, _ in enumerate(stream):
        if n_pieces == 9:
            crash(apart, CRASHES[0])
    assert stream.text == expected
    assert stream.stats is not None
    assert not stream.stats.truncated
    assert "crashed" in stream.stats.notices[0] or "ended" in stream.stats.notices[0]
    again = llm.chat(QUESTION, temperature=0, max_tokens=24)
    assert again.read() == expected
    assert again.stats is not None
    assert again.stats.notices == ()


@pytest.mark.peer
def test_a_stop_reaches_a_pass_in_the_process(tiny_model: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python, which is not installed")
    with isolated(tiny_model, "llamacpp") as apart:
        sequence = apart.create()
        feed(apart, sequence, [1, 2, 3])
        flag = StopFlag()
        apart.heed(flag)
        began, done = threading.Event(), []

        def read_on() -> None:
            began.set()
            try:
                while True:
                    apart.evaluate(chain(sequence, 3, [1] * 200))
            except Interrupted:
                done.append(True)

        thread = threading.Thread(target=read_on)
        thread.start()
        began.wait()
        flag.set()
        thread.join(30)
        assert done
        apart.heed(None)
        assert apart.n_cached(sequence) == 3
        feed(apart, sequence, [4])
