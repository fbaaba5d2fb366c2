"""Vocabularies and tokens that another process gives: those that cannot be are a failure of its device, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.isolation.isolated import Isolated
from edgeinfer.engine.isolation.messages import RemoteCall, RemoteReply
from edgeinfer.engine.isolation.process import Child
from edgeinfer.errors import DeviceFailed
from edgeinfer.ipc.records import Plain
from tests.unit.engine.isolation.test_isolation import isolated


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
