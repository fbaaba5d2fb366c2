"""Imports chats from a file: Markdown or JSON that we exported, a plain list of messages, or chats of other programs.

In: a store, a path. Out: saved chats, their messages numbered as in the file; in Markdown, the comments between the
texts say what each part is. Errors say what is wrong, and where.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from edgeinfer.app.image_files import data_of_url
from edgeinfer.app.sessions.kept_images import KeptImage, kept_image
from edgeinfer.app.sessions.kept_sounds import KeptSound, kept_sound
from edgeinfer.app.sessions.other_chats import (
    SQLITE_MARK,
    Chat,
    aichat_session,
    chats_of_oterm,
    chats_of_other,
    parsed_json,
)
from edgeinfer.app.sessions.page_calls import with_rounds
from edgeinfer.app.sessions.records import Attachment, KeptMessage, KeptSession, Role, State, figures_of, rounds_of
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.sessions.written_beside import beside_of
from edgeinfer.app.sound_files import data_of_sound
from edgeinfer.errors import EdgeInferError, SessionsFailed
from edgeinfer.text_values import user_path

MOST_BYTES = 256 << 20


def import_chat(store: SessionStore, path: Path) -> int:
    """Add the chats in a file to the store. Returns the number of the newest. Raises SessionsFailed."""
    return import_chats(store, path)[-1]


def import_chats(store: SessionStore, path: Path) -> tuple[int, ...]:
    """Add the chats in a file to the store, or none if one is damaged. Returns their numbers, the newest last.

    Raises SessionsFailed.
    """
    path = user_path(path)
    try:
        found = _chats_in(path)
    except ValueError as error:
        raise SessionsFailed(f"{path} cannot be imported: {error}") from None
    return tuple(store.add_chat(*chat) for chat in sorted(found, key=lambda chat: chat[0].created_s))


def _chats_in(path: Path) -> Sequence[Chat]:
    """The chats in a file, by what it is. Raises ValueError, SessionsFailed."""
    data = _read(path)
    if data.startswith(SQLITE_MARK):
        return chats_of_oterm(path)
    if zipfile.is_zipfile(path):
        return [chat for text in _texts_in_zip(path) for chat in chats_of_json(text)]
    text = _decoded(data, path)
    if text.lstrip()[:1] in ("{", "["):
        return chats_of_json(text)
    if path.suffix.lower() in YAML_SUFFIXES:
        return [_chat_of(aichat_session(text), path.stem)]
    return [chat_of_markdown(text)]


def _texts_in_zip(path: Path) -> Iterator[str]:
    """The files of chats in an export that is a ZIP archive. Raises ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [each for each in archive.infolist() if _IN_ZIP.search(each.filename)]
            if not entries:
                raise ValueError("the archive has no conversations.json")
            if sum(each.file_size for each in entries) > MOST_BYTES:
                raise ValueError(f"the chats in it are larger than {MOST_BYTES >> 20} MiB")
            for each in entries:
                yield archive.read(each).decode("utf-8-sig")
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError) as error:
        raise ValueError(f"the archive is damaged or locked ({error})") from None


def _read(path: Path) -> bytes:
    """The contents of a file."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise SessionsFailed(f"{path} is not a file; name an exported chat")
        if about.st_size > MOST_BYTES:
            raise SessionsFailed(f"{path} is larger than {MOST_BYTES >> 20} MiB; a chat is smaller")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "impossible name"
        raise SessionsFailed(f"{path} cannot be read: {reason}") from None


def _decoded(data: bytes, path: Path) -> str:
    """Text with its line endings unchanged."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SessionsFailed(f"{path} is not UTF-8 text (byte {error.start}); export writes .md or .json") from None


YAML_SUFFIXES = (".yaml", ".yml")
_IN_ZIP = re.compile(r"(^|/)conversations(-\d+)?\.json$")
KEY = "edgeinfer_chat"
FORMAT = 1
LATEST_S = 1e11
"""Upper bound of valid times, in seconds since the epoch; calendars can still display it."""
SYSTEM_ROLES = ("system", "developer")

ROLES: tuple[Role, ...] = get_args(Role)
STATES: tuple[State, ...] = ("whole", "stopped", "cut", "failed")


def chats_of_json(text: str) -> Sequence[Chat]:
    """Parse chats. Raises ValueError if there are none."""
    found = parsed_json(text)
    return chats_of_other(found) or [_chat_of(found)]


def chat_of_json(text: str) -> Chat:
    """Parse a chat that we exported, or a list of messages. Raises ValueError if it is not one."""
    return _chat_of(parsed_json(text))


def _chat_of(found: object, title: str = "") -> Chat:
    if isinstance(found, dict) and KEY in found:
        return _own(found)
    if isinstance(found, dict) and isinstance(found.get("messages"), list):
        return _listed(found["messages"], words_at(found, "title", "the chat") or title)
    if isinstance(found, list):
        return _listed(found, "")
    raise ValueError(
        f'this is not an exported edgeinfer chat: it has neither "{KEY}" nor a list of messages with "role" and '
        '"content", and it is no export of ChatGPT, Claude, Open WebUI, LM Studio, aichat or oterm'
    )


def check_format(found: Mapping[str, object]) -> None:
    """Raises ValueError if the format is not the one that this version reads."""
    if found.get(KEY) != FORMAT:
        raise ValueError(f"its format is {str(found.get(KEY))[:20]}, this version reads {FORMAT}; install a later one")


def session_from(found: Mapping[str, object], system: str | None) -> KeptSession:
    """Build a session from its fields in a file."""
    created_s = time_at(found, "created_s")
    title, model = words_at(found, "title", "the chat"), words_at(found, "model", "the chat")
    return KeptSession(0, title or "", system, model, whole_number(found.get("leaf")), created_s, created_s)


def message_from(found: Mapping[str, object], number: int, parent: int | None, text: str, where: str) -> KeptMessage:
    """Build a message from its fields in a file."""
    role = next((one for one in ROLES if one == found.get("role")), None)
    if role is None:
        raise ValueError(f"{where} has the role {str(found.get('role'))[:20]!r}; there are {', '.join(ROLES)}")
    ended: State = next((one for one in STATES if one == found.get("state", "whole")), "stopped")
    return KeptMessage(
        number=number,
        session=0,
        parent=parent,
        role=role,
        text=text,
        state=ended,
        created_s=time_at(found, "created_s"),
        model=words_at(found, "model", where),
        figures=figures_of(json.dumps(found.get("figures"))),
        attachments=_attachments(found.get("attachments"), where),
        rounds=rounds_of(json.dumps(found.get("rounds") or [])),
        beside=beside_of(json.dumps(found.get("beside"))),
    )


def words_at(found: Mapping[str, object], key: str, where: str) -> str | None:
    """The string at a key, or None if it is missing. Raises ValueError if the value is not a string."""
    value = found.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f'"{key}" of {where} is no text')


def time_at(found: Mapping[str, object], key: str) -> float:
    """Seconds since the epoch, or 0.0 if the value is invalid."""
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_S else 0.0


def whole_number(value: object) -> int | None:
    """The value if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _own(found: Mapping[str, object]) -> Chat:
    check_format(found)
    listed = found.get("messages")
    if not isinstance(listed, list):
        raise ValueError('it has no list "messages"')
    messages: list[KeptMessage] = []
    seen: set[int | None] = {None}
    objects: dict[int, Mapping[str, object]] = {}
    for place, one in enumerate(listed, 1):
        where = f"message {place}"
        if not isinstance(one, dict):
            raise ValueError(f"{where} is no object")
        number, parent = whole_number(one.get("number")), whole_number(one.get("parent"))
        if number is None or number in seen:
            raise ValueError(f'{where} has no "number" of its own')
        if parent not in seen or (parent is None and one.get("parent") is not None):
            raise ValueError(f'"parent" of {where} is no message before it')
        seen.add(number)
        objects[number] = one
        messages.append(message_from(one, number, parent, words_at(one, "text", where) or "", where))
    return session_from(found, words_at(found, "system", "the chat")), with_rounds(messages, objects)


def _listed(listed: Sequence[object], title: str) -> Chat:
    """A plain list of messages, each the child of the one before it."""
    messages: list[KeptMessage] = []
    system: list[str] = []
    for place, one in enumerate(listed, 1):
        where = f"message {place}"
        if not isinstance(one, dict):
            raise ValueError(f"{where} is no object")
        text = _content(one.get("content"), where)
        if one.get("role") in SYSTEM_ROLES:
            system.append(text)
            continue
        known = {"role": one.get("role"), "attachments": _listed_media(one.get("content"))}
        messages.append(message_from(known, place, messages[-1].number if messages else None, text, where))
    if not messages:
        raise ValueError("there are no messages in it")
    about = {"title": title, "leaf": messages[-1].number}
    return session_from(about, "\n\n".join(system) if system else None), tuple(messages)


def _listed_media(content: object) -> list[dict[str, object]]:
    """The images and sounds of a message whose content is a list of parts, as attachments."""
    parts = content if isinstance(content, list) else []
    found: list[dict[str, object]] = []
    for key, field, kind in (("image_url", "url", "image"), ("input_audio", "data", "sound")):
        values = [part[key] for part in parts if _is_of(part, key)]
        texts = [each.get(field) if isinstance(each, dict) else each for each in values]
        found += [{"name": f"{kind} {place}", "text": "", kind: text} for place, text in enumerate(texts, 1)]
    return found


def _is_of(part: object, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind and kind in part


def _content(content: object, where: str) -> str:
    """The text of a message whose content is a string or a list of parts; images and sounds are left out."""
    parts = content if isinstance(content, list) else [content]
    parts = [part for part in parts if not (_is_of(part, "image_url") or _is_of(part, "input_audio"))]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if any(not isinstance(text, str) for text in texts):
        raise ValueError(f"{where} has no text")
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _attachments(found: object, where: str) -> tuple[Attachment, ...]:
    if found is None:
        return ()
    if not isinstance(found, list):
        raise ValueError(f'"attachments" of {where} is no list')
    made = []
    for one in found:
        name, text = (one.get("name"), one.get("text")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"an attachment of {where} has no name or no text")
        url, sound = one.get("image"), one.get("sound")
        if sound is not None:
            made.append(Attachment.of_medium(name, _sound(sound, name)))
        else:
            made.append(Attachment(name, text) if url is None else Attachment(name, "", _image(url, name)))
    return tuple(made)


def _sound(text: object, name: str) -> KeptSound:
    """A sound in a data URL, or in base64."""
    try:
        return kept_sound(data_of_sound(text if isinstance(text, str) else ""), name)
    except EdgeInferError as error:
        raise ValueError(str(error)) from None


def _image(url: object, name: str) -> KeptImage:
    """An image in a data URL."""
    try:
        return kept_image(data_of_url(url if isinstance(url, str) else ""), name)
    except EdgeInferError as error:  # also where nothing can decode it
        raise ValueError(str(error)) from None


MARK, END = "chat", "end"
"""MARK starts each comment, unless the head names another marker; END is in the last comment."""
SOUND = "sound"
"""Key of a comment above a sound, and the text of the link to it."""
CALLS = "calls"
"""Key of a comment above calls of tools, which stand before their message; the message's own comment has them too."""
_HEAD = re.compile(r"\s*<!-- (\{.*\}) -->\n")
_SHOWN = re.compile(r"!\[[^\]]*\]\((data:[^)\s]*)\)\s*")
_LINKED = re.compile(rf"\[{SOUND}\]\((data:[^)\s]*)\)\s*")
_FENCED = re.compile(r"(`{3,})\n(.*)\n?\1\s*", re.DOTALL)


def chat_of_markdown(text: str) -> Chat:
    """Parse a chat. Raises ValueError if it is not one."""
    if text.partition("\n")[0].endswith("\r"):  # an editor has converted all line endings
        text = text.replace("\r\n", "\n")
    head = _HEAD.match(text)
    about = _about(head[1], "its first line") if head is not None else {}
    if head is None or KEY not in about:
        raise ValueError("this is not an exported edgeinfer chat; /export writes .md or .json that can be read back")
    check_format(about)
    mark = words_at(about, "mark", "the chat")
    parts = re.split(rf"^<!-- {re.escape(mark or MARK)} (.*) -->\n", text[head.end() :], flags=re.MULTILINE)[1:]
    comments, bodies = parts[::2], parts[1::2]
    if not comments or comments[-1] != END:
        raise ValueError("its end is missing; it is cut short, or the last comment was removed")
    system: str | None = None
    messages: list[KeptMessage] = []
    for comment, body in zip(comments[:-1], bodies[:-1], strict=True):
        where = f"message {len(messages) + 1}"
        part, said = _about(comment, where), _said(body)
        if part.get("role") == "system":
            system = said
        elif CALLS in part:
            continue
        elif "file" in part:
            if not messages:
                raise ValueError("a file stands before the first message")
            last = messages[-1]
            messages[-1] = replace(last, attachments=(*last.attachments, _attachment(part, said)))
        else:
            number = len(messages) + 1
            messages.append(message_from(part, number, number - 1 or None, said, where))
    return session_from({**about, "leaf": len(messages) or None}, system), tuple(messages)


def _about(text: str, where: str) -> Mapping[str, object]:
    """Parse the JSON of a comment."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"the comment of {where} is broken")
    return found


def _said(body: str) -> str:
    """The text under a heading, without the blank line after the heading and the one before the next comment."""
    _, _, text = body.partition("\n")
    return text.removeprefix("\n").removesuffix("\n").removesuffix("\n")


def _attachment(part: Mapping[str, object], said: str) -> Attachment:
    name, n = words_at(part, "file", "a file"), part.get("n")
    if name is not None and "image" in part:
        shown = _SHOWN.fullmatch(said)
        if shown is None:
            raise ValueError(f"the image {name[:60]} is missing")
        return Attachment(name, "", _image(shown[1], name))
    if name is not None and SOUND in part:
        linked = _LINKED.fullmatch(said)
        if linked is None:
            raise ValueError(f"the sound {name[:60]} is missing")
        return Attachment.of_medium(name, _sound(linked[1], name))
    found = _FENCED.fullmatch(said)
    if name is None or found is None:
        raise ValueError(f"the file {(name or '')[:60]} has no fence")
    whole = said[len(found[1]) + 1 : said.rindex(found[1])]
    # the closing fence needs a newline before it, which the attached file may not have had
    ends_within = whole_number(n) == len(whole) - 1
    return Attachment(name, whole.removesuffix("\n") if ends_within else whole)
