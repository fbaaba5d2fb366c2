"""The conversation of a session: a text goes on with it, and it is saved, branched and shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.engine.kv.saved_state import seal, unseal
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.session import MAGIC
from edgeinfer.engine.session_messages import SessionMessages
from edgeinfer.errors import BadSetting, ContextOverflow, EdgeInferError
from edgeinfer.models.text import Message

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with edgeinfer.load(tiny_model, device="reference", n_sessions=3) as loaded:
        yield loaded


def test_a_text_goes_on_with_the_conversation(llm: LLM) -> None:
    with llm.session() as session:
        first = session.chat("the hen", system="the rain", **GREEDY).read()
        second = session.chat("and the inn", **GREEDY)
        told = [
            Message("system", "the rain"),
            Message("user", "the hen"),
            Message("assistant", first),
            Message("user", "and the inn"),
        ]
        assert list(session.messages) == told
        assert second.read() == llm.chat(told, **GREEDY).read()
        assert second.stats is not None
        assert second.stats.n_cached > 0
        assert session.messages[-1] == Message("assistant", second.text)


def test_a_whole_conversation_takes_its_place(llm: LLM) -> None:
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        session.chat([{"role": "user", "content": "the inn"}], **GREEDY).read()
        assert [message.role for message in session.messages] == ["user", "assistant"]
        assert session.messages[0].content == "the inn"
        session.complete("the rain", **GREEDY).read()
        assert session.messages == ()
        with pytest.raises(BadSetting, match="pass the whole conversation, as a list"):
            session.chat("the hen")


def test_as_much_of_an_answer_as_was_taken_is_remembered(llm: LLM) -> None:
    with llm.session() as session:
        stream = session.chat("the hen", temperature=0)
        assert len(session.messages) == 1
        piece = next(iter(stream))
        assert session.messages[-1] == Message("assistant", piece)
        stream.stop()
        session.chat([*session.messages], **GREEDY).read()  # continues it
        assert len(session.messages) == 2
        assert session.messages[-1].text.startswith(piece)
        assert len(session.messages[-1].text) > len(piece)


def test_what_is_refused_is_not_remembered(llm: LLM) -> None:
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        before = session.messages
        with pytest.raises(ContextOverflow):
            session.chat("hen " * 600)
        with pytest.raises(BadSetting):
            session.chat("the inn", temperature=-1)
        assert session.messages == before


def test_a_branch_has_the_conversation_and_goes_its_own_way(llm: LLM) -> None:
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        with session.branch() as twin:
            before = session.messages
            assert twin.messages == before
            twin.chat("the inn", **GREEDY).read()
            assert len(twin.messages) == 4
            assert session.messages == before


def test_it_is_saved_and_restored(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "session"
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        session.save(path)
        told, expected = session.messages, session.chat("the inn", **GREEDY).read()
    with llm.session() as session:
        session.restore(path)
        assert session.messages == told
        stream = session.chat("the inn", **GREEDY)
        assert stream.read() == expected
        assert stream.stats is not None
        assert stream.stats.n_cached > 20


def test_a_file_without_messages_cannot_go_on_from_a_text(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "session"
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        session.save(path)
    header, state = unseal(MAGIC, path.read_bytes(), "it")
    del header["messages"]
    path.write_bytes(seal(MAGIC, header, state))
    with llm.session() as session:
        session.restore(path)
        assert session.messages == ()
        with pytest.raises(BadSetting, match="pass the whole conversation, as a list"):
            session.chat("the inn")
        session.chat([{"role": "user", "content": "the hen"}], **GREEDY).read()
        session.chat("the inn", **GREEDY).read()


@pytest.mark.parametrize("text", ["{", "3", "[3]", '[{"content": "no role"}]', "[" * 5000])
def test_damaged_messages_are_refused(llm: LLM, tmp_path: Path, text: str) -> None:
    path = tmp_path / "session"
    with llm.session() as session:
        session.chat("the hen", **GREEDY).read()
        session.save(path)
        header, state = unseal(MAGIC, path.read_bytes(), "it")
        path.write_bytes(seal(MAGIC, {**header, "messages": text}, state))
        with pytest.raises(EdgeInferError, match="damaged"):
            session.restore(path)


def test_images_are_not_saved() -> None:
    parts = [{"type": "image", "image": np.zeros((2, 2, 3), np.uint8)}, {"type": "text", "text": "What is it?"}]
    assert SessionMessages([Message("user", parts)]).saved is None
    assert SessionMessages([Message("user", [{"type": "audio", "audio": "talk.wav"}])]).saved is None
    assert SessionMessages([Message("user", "Hi", {"name": object()})]).saved is None
    assert SessionMessages([Message("user", "Hi")]).saved is not None
