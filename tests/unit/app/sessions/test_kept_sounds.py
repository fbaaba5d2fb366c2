"""Sounds of saved chats: kept once by their content, resumed without the file, removed with the last chat."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import content_of, told_text
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.kept_sounds import kept_sound
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import BadSound, SessionsFailed
from edgeinfer.models.images.image import Image
from edgeinfer.models.sounds.sound import Sound
from tests.pictures import picture
from tests.sounds import SOUNDS, tone, wav
from tests.unit.app.sessions.earlier_versions import WITHOUT_TURNS

pytest.importorskip("miniaudio")
TALK, SONG = wav(tone()), (SOUNDS / "chirp.mp3").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


def attached(name: str = "talk.wav", data: bytes = TALK) -> Attachment:
    return Attachment.of_medium(name, kept_sound(data, name))


def n_sounds(store: SessionStore) -> int:
    with sqlite3.connect(store.path) as connection:
        return int(connection.execute("SELECT count(*) FROM sounds").fetchone()[0])


def asked(store: SessionStore, *attachments: Attachment) -> Chat:
    chat = Chat(store)
    _, answer = chat.ask("What is said?", attachments, "tiny")
    chat.finish(answer.number, "Hello.", "whole", None)
    return chat


def resumed(store: SessionStore, chat: Chat) -> Chat:
    assert chat.number is not None
    return Chat(store, store.session(chat.number))


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.5, "0.5 s"), (59.0, "59.0 s"), (60.0, "1:00 min"), (725.4, "12:05 min")]
)
def test_a_length_is_told(seconds: float, told: str) -> None:
    assert kept_sound(wav(tone(seconds, 4_000), 4_000, 8), "a").length_text == told


def test_a_damaged_sound_is_refused_when_it_is_attached() -> None:
    with pytest.raises(BadSound, match=r"a\.flac ends after .* it is damaged"):
        kept_sound((SOUNDS / "chirp.flac").read_bytes()[:6_000], "a.flac")


def test_a_chat_is_resumed_with_its_sounds_and_images(store: SessionStore) -> None:
    sea = Attachment("sea.png", "", kept_image(picture(), "sea.png"))
    chat = resumed(store, asked(store, attached(), Attachment("b.txt", "text"), sea, attached("song.mp3", SONG)))
    first, text, image, second = chat.branch[0].attachments
    assert (first, text, image) == (attached(), Attachment("b.txt", "text"), sea)
    assert first.sound is not None
    assert second.sound is not None
    assert (first.sound.data, first.sound.seconds, first.n_bytes) == (TALK, 0.5, len(TALK))
    assert (second.name, second.sound.data) == ("song.mp3", SONG)
    assert chat.prompt()[0].content == [
        {"type": "audio", "audio": Sound.of(TALK)},
        {"type": "image", "image": Image.of(picture())},
        {"type": "audio", "audio": Sound.of(SONG)},
        {"type": "text", "text": "File: b.txt\n```\ntext\n```\n\nWhat is said?"},
    ]


def test_a_sound_alone_is_a_message_and_names_the_chat(store: SessionStore) -> None:
    chat = Chat(store)
    chat.ask("", [attached()], None)
    assert chat.title == "talk.wav"
    assert content_of("", chat.branch[0].attachments) == [{"type": "audio", "audio": Sound.of(TALK)}]
    assert told_text(chat.branch[0]) == "[sound: talk.wav]"


def test_the_same_bytes_are_kept_once_and_removed_with_the_last_chat(store: SessionStore) -> None:
    chats = [asked(store, attached("a.wav"), attached("b.wav")), asked(store, attached("c.wav"))]
    assert n_sounds(store) == 1
    for chat, left in zip(chats, (1, 0), strict=True):
        assert chat.number is not None
        store.delete(chat.number)
        store.purge(0)
        assert n_sounds(store) == left


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_sounds_are_exported_and_come_back(store: SessionStore, tmp_path: Path, suffix: str) -> None:
    chat = asked(store, attached("a [1] (b).wav"), Attachment("b.txt", "text"), attached("c", SONG))
    assert chat.number is not None
    path = export_chat(store, chat.number, tmp_path / f"chat{suffix}")
    with SessionStore(tmp_path / "other.db") as other:
        back = Chat(other, other.session(import_chat(other, path)))
        assert back.branch[0].attachments == chat.branch[0].attachments
        assert back.prompt() == chat.prompt()


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_a_damaged_sound_in_a_file_is_told(store: SessionStore, tmp_path: Path, suffix: str) -> None:
    chat = asked(store, attached())
    assert chat.number is not None
    path = export_chat(store, chat.number, tmp_path / f"chat{suffix}")
    path.write_text(path.read_text().replace("base64,UklGR", "base64,AAAAA"))
    with pytest.raises(SessionsFailed, match=r"cannot be imported: talk\.wav is no known sound"):
        import_chat(store, path)


def test_sounds_of_other_programs_are_read(store: SessionStore, tmp_path: Path) -> None:
    coded = base64.b64encode(TALK).decode()
    parts = [
        {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}},
        {"type": "text", "text": "What?"},
    ]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": "user", "content": parts}]))
    chat = Chat(store, store.session(import_chat(store, tmp_path / "chat.json")))
    assert chat.branch[0].text == "What?"
    assert chat.branch[0].attachments == (attached("sound 1"),)


def test_an_older_database_is_migrated(store: SessionStore) -> None:
    asked(store, Attachment("sea.png", "", kept_image(picture(), "sea.png")))
    store.close()
    with sqlite3.connect(store.path) as connection:
        dropped = "DROP TABLE message_sounds; DROP TABLE sounds; ALTER TABLE messages DROP COLUMN beside;"
        connection.executescript(f"{WITHOUT_TURNS} {dropped} PRAGMA user_version = 3")
    with SessionStore(store.path) as opened:
        chat = Chat(opened, opened.sessions()[0])
        assert chat.branch[0].attachments[0].image is not None
        chat.ask("And?", [attached()], None)
        assert resumed(opened, chat).branch[-2].attachments[0].sound is not None
