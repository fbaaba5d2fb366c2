"""Snapshots of kept chats: the answer is the same with and without, and files never get in the way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions import snapshots as module
from edgeinfer.app.sessions.snapshots import Snapshots
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.session import Session
from tests.conftest import write_tiny_llama

LONG = [{"role": "user", "content": "the rain in the inn " * 25}]
OPTIONS = {"temperature": 1.0, "seed": 5, "max_tokens": 12}
ROOMY = 1 << 30


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference", n_sessions=3) as loaded:
        yield loaded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def read(llm: LLM) -> Iterator[Session]:
    """A session that has read a long chat."""
    with llm.session() as session:
        session.chat(LONG, **OPTIONS).read()
        assert len(session.tokens) >= module.TOKENS_MIN
        yield session


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_answer_after_restoring_is_the_one_without(llm: LLM, read: Session, folder: Path) -> None:
    kept, model = Snapshots(folder, ROOMY), llm.info.fingerprint
    assert kept.keep(read, 7, model) is None
    talk = [*LONG, {"role": "assistant", "content": "inn"}, {"role": "user", "content": "and then?"}]
    with llm.session() as plain, llm.session() as restored:
        expected = plain.chat(talk, **OPTIONS)
        expected.read()
        assert Snapshots(folder, ROOMY).restore(restored, 7, model) == len(read.tokens)
        stream = restored.chat(talk, **OPTIONS)
        stream.read()
        assert stream.tokens == expected.tokens
        assert stream.stats.n_cached >= module.TOKENS_MIN
        other = [{"role": "user", "content": "the rain in Spain"}]
        again = restored.chat(other, **OPTIONS).read()
    with llm.session() as fresh:
        assert fresh.chat(other, **OPTIONS).read() == again


def test_a_chat_has_one_snapshot_and_only_its_own(llm: LLM, read: Session, folder: Path) -> None:
    kept = Snapshots(folder, ROOMY)
    kept.keep(read, 1, llm.info.fingerprint)
    kept.keep(read, 11, llm.info.fingerprint)
    kept.keep(read, 1, llm.info.fingerprint)
    assert len(names(folder)) == 2
    with llm.session() as session:
        assert kept.restore(session, 2, llm.info.fingerprint) is None
        kept.forget(1)
        assert kept.restore(session, 1, llm.info.fingerprint) is None
        assert kept.restore(session, 11, llm.info.fingerprint)
    assert kept.clear() > 0
    assert names(folder) == []


def test_snapshots_of_a_model_that_needs_none_are_deleted(llm: LLM, read: Session, folder: Path) -> None:
    kept, model = Snapshots(folder, ROOMY), llm.info.fingerprint
    for chat in (1, 2):
        kept.keep(read, chat, model)
    (other,) = [(folder / names(folder)[0]).rename(folder / f"3-{'0' * 32}{module.ENDING}")]
    kept.forget_model(model)
    assert names(folder) == [other.name]


def test_what_is_on_disk_already_is_not_written_again(
    llm: LLM, read: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, model = Snapshots(folder, ROOMY), llm.info.fingerprint
    kept.keep(read, 1, model)
    with llm.session() as again, monkeypatch.context() as patched:
        assert kept.restore(again, 1, model)
        patched.setattr(Session, "save", None)
        assert kept.keep(read, 1, model) is None
        assert kept.keep(again, 1, model) is None
    kept.forget(1)
    kept.keep(read, 1, model)
    assert len(names(folder)) == 1
    read.chat([*LONG, {"role": "assistant", "content": "inn"}], **OPTIONS).read()
    before = (folder / names(folder)[0]).read_bytes()
    kept.keep(read, 1, model)
    assert (folder / names(folder)[0]).read_bytes() != before


def test_damaged_and_foreign_snapshots_are_deleted(llm: LLM, read: Session, folder: Path, tmp_path: Path) -> None:
    kept, model = Snapshots(folder, ROOMY), llm.info.fingerprint
    with llm.session() as session:
        for damage in (lambda data: data[:-9], lambda data: b"", lambda data: b"older" + data):
            kept.keep(read, 1, model)
            path = folder / names(folder)[0]
            path.write_bytes(damage(path.read_bytes()))
            assert kept.restore(session, 1, model) is None
            assert names(folder) == []
        assert session.tokens == ()
    kept.keep(read, 1, model)
    another = write_tiny_llama(tmp_path / "another.gguf", seed=1)
    with load(another, device="reference") as other, other.session() as session:
        (folder / names(folder)[0]).rename(folder / f"1-{other.info.fingerprint[:32]}{module.ENDING}")
        assert kept.restore(session, 1, other.info.fingerprint) is None
        assert names(folder) == []
        kept.keep(read, 1, model)
        assert kept.restore(session, 1, other.info.fingerprint) is None
        assert names(folder) == []


def test_short_and_very_large_sessions_are_not_kept(llm: LLM, read: Session, folder: Path) -> None:
    model = llm.info.fingerprint
    assert Snapshots(folder, 4000).keep(read, 1, model) is None
    with llm.session() as short:
        short.chat([{"role": "user", "content": "hi"}], **OPTIONS).read()
        assert Snapshots(folder, ROOMY).keep(short, 1, model) is None
    assert not folder.exists() or names(folder) == []
    read._kv_bytes = None  # as of a model that another program runs
    assert Snapshots(folder, 4000).keep(read, 1, model) is None
    assert names(folder) == []


def test_the_ones_used_longest_ago_go_first(llm: LLM, read: Session, folder: Path) -> None:
    model = llm.info.fingerprint
    Snapshots(folder, ROOMY).keep(read, 1, model)
    each = Snapshots(folder).n_bytes
    kept = Snapshots(folder, int(each * 4.5))
    for chat in range(1, 5):
        kept.keep(read, chat, model)
        os.utime(folder / f"{chat}-{model[:32]}{module.ENDING}", (chat, chat))
    with llm.session() as session:
        assert kept.restore(session, 1, model)
    kept.keep(read, 5, model)
    assert {int(name.split("-")[0]) for name in names(folder)} == {1, 3, 4, 5}
    assert kept.n_bytes <= kept.cap_bytes


def test_trouble_with_the_disk_is_a_notice(
    llm: LLM, read: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llm.info.fingerprint
    full = shutil._ntuple_diskusage(1000, 990, 10)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: full)
        assert "nearly full" in Snapshots(folder, ROOMY).keep(read, 1, model)
    assert names(folder) == []
    blocked = folder / "file"
    blocked.write_text("")
    notice = Snapshots(blocked, ROOMY).keep(read, 1, model)
    assert notice.startswith("the KV cache of this chat is not saved")
    assert Snapshots(blocked, ROOMY).restore(read, 1, model) is None
    assert Snapshots(blocked, ROOMY).clear() == 0


def test_what_a_killed_program_left_is_swept(llm: LLM, read: Session, folder: Path) -> None:
    folder.mkdir()
    for name, age in ((f".1-ab{module.ENDING}.x1", 1), (f".2-ab{module.ENDING}.x2", None)):
        (folder / name).write_bytes(b"half")
        if age is not None:
            os.utime(folder / name, (age, age))
    Snapshots(folder, ROOMY).keep(read, 3, llm.info.fingerprint)
    assert names(folder)[0] == f".2-ab{module.ENDING}.x2"
    assert len(names(folder)) == 2


def test_a_closed_session_is_left_alone(llm: LLM, folder: Path) -> None:
    session = llm.session()
    session.chat(LONG, **OPTIONS).read()
    session.close()
    assert Snapshots(folder, ROOMY).keep(session, 1, llm.info.fingerprint) is None


@pytest.mark.model
def test_the_starter_model_answers_the_same_after_restoring(starter_model: Path, folder: Path) -> None:
    talk = [{"role": "user", "content": "List rivers of Europe. " * 60}]
    options = {"temperature": 0.0, "max_tokens": 30}
    with load(starter_model, device="cpu", n_context=1024, n_sessions=2, spec="off") as llm:
        kept = Snapshots(folder)
        with llm.session() as session:
            answer = session.chat(talk, **options).read()
            assert kept.keep(session, 1, llm.info.fingerprint) is None
            talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Which is the longest?"}]
            expected = session.chat(talk, **options).read()
        with llm.session() as again:
            assert kept.restore(again, 1, llm.info.fingerprint)
            stream = again.chat(talk, **options)
            assert stream.read() == expected
            assert stream.stats.n_cached > 300
