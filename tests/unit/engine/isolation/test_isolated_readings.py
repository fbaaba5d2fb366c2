"""What isolated processes read of weights: told with every pass, and added up where one process follows another."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.isolation.child import Server
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteReply
from edgeinfer.engine.isolation.process import Child
from edgeinfer.engine.opening import open_evaluator
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
