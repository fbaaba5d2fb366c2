"""What isolated processes report: reads of weights, added up over processes, and vocabularies and tokens, validated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.isolation.child import Server
from edgeinfer.engine.isolation.isolated import Isolated
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteReply
from edgeinfer.engine.isolation.process import Child
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run.evaluators import open_subject
from edgeinfer.errors import DeviceFailed
from edgeinfer.ipc.records import Plain, from_json, to_json
from edgeinfer.load_options import LoadOptions
from edgeinfer.offload.weights import WeightReads
from tests.unit.engine.isolation.test_isolation import LIMITS, OPTIONS, crash, feed, isolated

READ = WeightReads(700, 0.25, 2, {100: 5, 200: 1}, 8, 4, 3, 1, 0.5, 4, 900, 300, 200, 150)


def telling(monkeypatch: pytest.MonkeyPatch, value: Plain) -> None:
    """Let every process say that it has read this after a pass."""
    call = Child.call

    def told(child: Child, asked: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        reply = call(child, asked, stopped)
        if asked.name == "evaluate":
            assert isinstance(reply.value, dict)
            reply.value["reading"] = value
        return reply

    monkeypatch.setattr(Child, "call", told)


def test_a_reading_stays_what_it_was() -> None:
    assert from_json(WeightReads, to_json(READ)) == READ


def test_the_process_tells_what_it_read(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = open_subject(tiny_model, LoadOptions(device="reference", n_context=LIMITS.n_context))
    with subject.file, closing(open_evaluator(subject, LIMITS, OPTIONS, LoadOptions(device="reference"))) as evaluator:
        server = Server(evaluator, 8)
        assert server._reading() is None  # weights are in memory
        monkeypatch.setattr(type(evaluator), "reading", READ, raising=False)
        assert server._reading() == READ


def test_readings_of_processes_add_up(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated(tiny_model) as apart:
        sequence = apart.create()
        feed(apart, sequence, [1, 2])
        assert apart.reading == WeightReads()
        telling(monkeypatch, json.loads(to_json(READ)))
        feed(apart, sequence, [3])
        assert apart.reading == READ
        crash(apart)
        feed(apart, sequence, [4])
        assert apart.reading == READ + READ


@pytest.mark.parametrize("nonsense", ["much", [1, 2], {"n_bytes": "1"}, {"sizes": {"a": 1}}, {"n_lost": 1}])
def test_nonsense_is_a_failure_of_the_device(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, nonsense: Plain
) -> None:
    with isolated(tiny_model) as apart:
        telling(monkeypatch, nonsense)
        with pytest.raises(DeviceFailed):
            feed(apart, apart.create(), [1])


@pytest.fixture(scope="module")
def apart(tiny_model: Path) -> Iterator[Isolated]:
    """One for all tests: each failure ends its process, and it must go on with a new one."""
    with isolated(tiny_model) as found:
        yield found


NO_TOKENS = dict.fromkeys(("bos_id", "eos_id", "eot_id", "pad_id", "unk_id"))
SWITCHES = dict.fromkeys(("add_bos", "add_eos", "add_space_prefix"), False)
LISTS = {"tokens": ["a", "b"], "scores": [], "types": [1, 1], "end_of_generation": [1], "strips_right": []}
WORDS: dict[str, Plain] = {"model": "gpt2", "pre": "default", **NO_TOKENS, **SWITCHES, **LISTS}
GOOD: dict[str, Plain] = {"pieces": ["YQ==", "Yg=="], "fields": WORDS}


def answering(monkeypatch: pytest.MonkeyPatch, name: str, value: Plain) -> None:
    """Let every process give this answer to one kind of call."""
    call = Child.call

    def hostile(child: Child, asked: RemoteCall, stopped: StopFlag | None = None) -> RemoteReply:
        return RemoteReply(value) if asked.name == name else call(child, asked, stopped)

    monkeypatch.setattr(Child, "call", hostile)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "words",
        {**GOOD, "fields": None},
        {**GOOD, "pieces": [1, 2]},
        {**GOOD, "pieces": ["YQ=="]},
        {**GOOD, "fields": {**WORDS, "tokens": [1, 2]}},
        {**GOOD, "fields": {**WORDS, "more": 1}},
        {**GOOD, "fields": {**WORDS, "end_of_generation": [-1]}},
    ],
)
def test_a_vocabulary_that_cannot_be_is_a_failure(
    apart: Isolated, monkeypatch: pytest.MonkeyPatch, reply: Plain
) -> None:
    with monkeypatch.context() as patch:
        answering(patch, "vocabulary", reply)
        with pytest.raises(DeviceFailed, match=r"makes no sense.*second time in a row"):
            apart.vocabulary()
    with monkeypatch.context() as patch:
        answering(patch, "vocabulary", GOOD)
        assert apart.vocabulary().tokens == ("a", "b")
        assert apart.piece(1) == b"b"


@pytest.mark.parametrize("reply", [None, {"a": 1}, ["b"], [-1], [1 << 40]])
def test_tokens_that_cannot_be_are_a_failure(apart: Isolated, monkeypatch: pytest.MonkeyPatch, reply: Plain) -> None:
    with monkeypatch.context() as patch:
        answering(patch, "encode", reply)
        with pytest.raises(DeviceFailed, match=r"makes no sense.*second time in a row"):
            apart.encode("a", add_special=True, parse_special=False)
    with monkeypatch.context() as patch:
        answering(patch, "encode", [3, 4])
        assert apart.encode("a", add_special=True, parse_special=False) == [3, 4]
