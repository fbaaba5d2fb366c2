"""Files that releases wrote are opened by this one: chats, exported chats, settings, profiles of machines."""

from __future__ import annotations

import shutil
import sqlite3
import tomllib
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.records import KeptMessage
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.scheduling.machine.profile_file import read_profile
from edgeinfer.settings import declared_options, read_config
from tests.promises.files import ANSWERS, FIGURES, NOTES, QUESTION, WRITTEN, write
from tests.promises.listing import WHEN_RELEASED

RELEASES = sorted(path.name for path in WRITTEN.iterdir())
EACH = pytest.mark.parametrize("release", RELEASES)
RENAMED = {"int8": "q8"}
"""Values that settings have under another name."""


def check_branches(messages: tuple[KeptMessage, ...]) -> None:
    question, *answers = messages
    assert (question.text, question.attachments) == (QUESTION, (NOTES,))
    assert [(each.text, each.state) for each in answers] == [(text, "whole") for text in ANSWERS]
    assert all((each.parent, each.figures, each.model) == (question.number, FIGURES, "tiny") for each in answers)


def test_this_release_and_the_first_one_are_among_them() -> None:
    assert {"0.1.0", edgeinfer.__version__} <= set(RELEASES)


@EACH
def test_chats_are_opened(tmp_path: Path, release: str) -> None:
    path = Path(shutil.copy(WRITTEN / release / "chats.db", tmp_path))
    with SessionStore(path) as store:
        (chat,) = store.sessions()
        assert (chat.title, chat.system, chat.model, chat.n_messages) == ("Monads", "be brief", "tiny", 3)
        messages = store.messages(chat.number)
        check_branches(messages)
        assert chat.leaf == messages[-1].number
        (hit,) = store.search("endofunctors")
        assert hit.session == chat.number
        store.undelete(chat.number + 1)
        assert {each.title for each in store.sessions()} == {"Monads", "to be deleted"}
        question = store.add(chat.number, chat.leaf, "user", "And a functor?")
    with SessionStore(path) as store:
        assert store.messages(chat.number)[-1] == question


@EACH
@pytest.mark.parametrize("name", ["chat.json", "chat.md"])
def test_exported_chats_are_read(tmp_path: Path, release: str, name: str) -> None:
    with SessionStore(tmp_path / "chats.db") as store:
        chat = store.session(import_chat(store, WRITTEN / release / name))
        assert (chat.title, chat.system) == ("Monads", "be brief")
        messages = store.messages(chat.number)
        if name == "chat.json":
            check_branches(messages)
        else:  # the branch that was shown
            assert [each.text for each in messages] == [QUESTION, ANSWERS[-1]]
            assert messages[0].attachments == (NOTES,)


@EACH
def test_settings_are_read_and_mean_what_they_did(release: str) -> None:
    path = WRITTEN / release / "config.toml"
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    read = read_config(path)
    assert set(read) == set(written)
    for name, value in written.items():
        if type(read[name]) is type(value):
            assert read[name] == RENAMED.get(str(value), value), name


@WHEN_RELEASED
def test_every_setting_of_this_release_was_written() -> None:
    written = tomllib.loads((WRITTEN / edgeinfer.__version__ / "config.toml").read_text(encoding="utf-8"))
    assert set(written) == set(declared_options())


@EACH
def test_profiles_are_read(release: str) -> None:
    profile = read_profile(WRITTEN / release / "machine.toml")
    assert profile.name == "cloud-2core"
    assert [len(device.cores) for device in profile.devices] == [2]


@WHEN_RELEASED
def test_what_this_release_writes_is_what_is_kept(tmp_path: Path) -> None:
    """Where it is not, `python -m tests.promises.files` has to be run again."""
    write(tmp_path / "now")
    kept = WRITTEN / edgeinfer.__version__
    for name in ("chat.json", "chat.md", "machine.toml"):
        assert (tmp_path / "now" / name).read_bytes() == (kept / name).read_bytes()
    assert dump(tmp_path / "now/chats.db") == dump(kept / "chats.db")


def dump(path: Path) -> list[str]:
    """A database as SQL."""
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()
