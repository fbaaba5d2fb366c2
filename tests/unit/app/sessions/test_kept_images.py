"""Images of saved chats: kept once by their content, resumed without the file, removed with the last chat."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import content_of, told_text
from edgeinfer.app.sessions.database import SPARE_BYTES
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.kept_images import PREVIEW_PIXELS, kept_image
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import BadImage, SessionsFailed
from edgeinfer.models.images.image import Image
from tests.pictures import picture
from tests.unit.app.sessions.earlier_versions import WITHOUT_TURNS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


def attached(name: str = "sea.png", data: bytes | None = None) -> Attachment:
    return Attachment(name, "", kept_image(data or picture(), name))


def n_images(store: SessionStore) -> int:
    with sqlite3.connect(store.path) as connection:
        return int(connection.execute("SELECT count(*) FROM images").fetchone()[0])


def asked(store: SessionStore, *attachments: Attachment) -> Chat:
    chat = Chat(store)
    _, answer = chat.ask("What is this?", attachments, "tiny")
    chat.finish(answer.number, "The sea.", "whole", None)
    return chat


def resumed(store: SessionStore, chat: Chat) -> Chat:
    assert chat.number is not None
    return Chat(store, store.session(chat.number))


@pytest.mark.parametrize(("size", "small"), [((64, 48), (21, 16)), ((640, 64), (24, 2)), ((3, 900), (1, 16))])
def test_a_preview_keeps_the_shape_of_its_image(size: tuple[int, int], small: tuple[int, int]) -> None:
    preview = kept_image(picture(*size), "a").preview
    assert (preview.width, preview.height) == small
    assert all(number <= most for number, most in zip((preview.width, preview.height), PREVIEW_PIXELS, strict=True))


def test_a_preview_looks_like_its_image() -> None:
    preview = kept_image(picture(640, 480), "a").preview
    red, green, _ = preview.pixel(5, 15)
    assert green < 110 < 180 < red  # the sun
    red, _, blue = preview.pixel(15, 2)
    assert red < 40 < blue  # the sea


def test_a_damaged_image_is_refused_when_it_is_attached() -> None:
    with pytest.raises(BadImage, match=r"sea\.png cannot be decoded"):
        kept_image(picture(640, 480)[:2000], "sea.png")


def test_a_chat_is_resumed_with_its_images(store: SessionStore) -> None:
    chat = resumed(
        store, asked(store, attached("a.png"), Attachment("b.txt", "text"), attached("c.png", picture(8, 8)))
    )
    first, text, second = chat.branch[0].attachments
    assert (first.name, first.image, text) == ("a.png", kept_image(picture(), ""), Attachment("b.txt", "text"))
    assert first.image is not None
    assert second.image is not None
    assert (first.image.data, first.image.size) == (picture(), (64, 48))
    assert first.image.preview == kept_image(picture(), "").preview
    content = chat.prompt()[0].content
    assert content == [
        {"type": "image", "image": Image.of(picture())},
        {"type": "image", "image": Image.of(picture(8, 8))},
        {"type": "text", "text": "File: b.txt\n```\ntext\n```\n\nWhat is this?"},
    ]


def test_an_image_alone_is_a_message_and_names_the_chat(store: SessionStore) -> None:
    chat = Chat(store)
    chat.ask("", [attached()], None)
    assert chat.title == "sea.png"
    assert content_of("", chat.branch[0].attachments) == [{"type": "image", "image": Image.of(picture())}]
    assert told_text(chat.branch[0]) == "[image: sea.png]"


def test_the_same_bytes_are_kept_once_and_removed_with_the_last_chat(store: SessionStore) -> None:
    chats = [asked(store, attached("a.png"), attached("b.png")), asked(store, attached("c.png"))]
    forked = chats[0].fork()
    assert n_images(store) == 1
    for number in (chats[0].number, chats[1].number):
        assert number is not None
        store.delete(number)
        assert store.purge(0) == 1
        assert n_images(store) == 1
    assert resumed(store, forked).branch[0].attachments[1].image == kept_image(picture(), "")
    assert forked.number is not None
    store.delete(forked.number)
    assert n_images(store) == 1  # it may come back until it is purged
    store.purge(0)
    assert n_images(store) == 0


def test_edited_and_compacted_chats_keep_images(store: SessionStore) -> None:
    chat = asked(store, attached())
    question, _ = chat.ask_instead(chat.branch[0].number, "And this?", chat.branch[0].attachments, None)
    assert question.attachments[0].image == kept_image(picture(), "")
    chat.compacted("before", 0, None)
    assert resumed(store, chat).branch[1].attachments[0].image is not None


def test_removed_images_leave_the_disk(store: SessionStore) -> None:
    noise = picture() + bytes(SPARE_BYTES + (8 << 20))  # decoders stop at the end of the picture
    chat = asked(store, attached(data=noise))
    assert store.path.stat().st_size + store.path.with_name("chats.db-wal").stat().st_size > SPARE_BYTES
    assert chat.number is not None
    store.delete(chat.number)
    store.purge(0)
    store.close()
    assert store.path.stat().st_size < 1 << 20


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_images_are_exported_and_come_back(store: SessionStore, tmp_path: Path, suffix: str) -> None:
    chat = asked(store, attached("a [1] (b).png"), Attachment("b.txt", "text"), attached("c", picture(form="JPEG")))
    assert chat.number is not None
    path = export_chat(store, chat.number, tmp_path / f"chat{suffix}")
    with SessionStore(tmp_path / "other.db") as other:
        back = Chat(other, other.session(import_chat(other, path)))
        assert back.branch[0].attachments == chat.branch[0].attachments
        assert back.prompt() == chat.prompt()


@pytest.mark.parametrize("suffix", [".json", ".md"])
def test_a_damaged_image_in_a_file_is_told(store: SessionStore, tmp_path: Path, suffix: str) -> None:
    chat = asked(store, attached())
    assert chat.number is not None
    path = export_chat(store, chat.number, tmp_path / f"chat{suffix}")
    path.write_text(path.read_text().replace("base64,iVBOR", "base64,AAAAA"))
    with pytest.raises(SessionsFailed, match=r"cannot be imported: sea\.png is no known image"):
        import_chat(store, path)


def test_images_of_other_programs_are_read(store: SessionStore, tmp_path: Path) -> None:
    image = kept_image(picture(), "")
    parts = [{"type": "image_url", "image_url": {"url": image.url}}, {"type": "text", "text": "What?"}]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": "user", "content": parts}]))
    chat = Chat(store, store.session(import_chat(store, tmp_path / "chat.json")))
    assert chat.branch[0].text == "What?"
    assert chat.branch[0].attachments == (Attachment("image 1", "", image),)
    parts[0]["image_url"] = {"url": "https://a.org/b.png"}
    (tmp_path / "chat.json").write_text(json.dumps([{"role": "user", "content": parts}]))
    with pytest.raises(SessionsFailed, match="must be a data URL"):
        import_chat(store, tmp_path / "chat.json")


def test_an_older_database_is_migrated(store: SessionStore, tmp_path: Path) -> None:
    asked(store, Attachment("b.txt", "text"))
    store.close()
    with sqlite3.connect(store.path) as connection:
        tables = "message_images", "images", "message_sounds", "sounds"
        dropped = "".join(f"DROP TABLE {table};" for table in tables)
        connection.executescript(
            f"{WITHOUT_TURNS} {dropped} ALTER TABLE messages DROP COLUMN beside; PRAGMA user_version = 2"
        )
    with SessionStore(store.path) as opened:
        chat = Chat(opened, opened.sessions()[0])
        assert chat.branch[0].attachments == (Attachment("b.txt", "text"),)
        chat.ask("And?", [attached()], None)
        assert resumed(opened, chat).branch[-2].attachments[0].image is not None
