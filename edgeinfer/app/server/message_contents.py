"""Contents of messages: texts, modules, images and sounds of requests in the form that the engine takes.

In: validated messages, what reads images. Out: messages as mappings, whose images and sounds are `edgeinfer.Image`s and
`edgeinfer.Sound`s. APIError says which part cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from edgeinfer.app.server.errors import APIError, unsupported
from edgeinfer.app.server.module_fields import MODULE, content_with_modules
from edgeinfer.app.server.request_images import RequestImages
from edgeinfer.app.server.request_media import MediaPlaces
from edgeinfer.app.server.request_sounds import RequestSounds
from edgeinfer.app.server.requests import ChatMessage, ContentPart, ImageAddress, InputAudio

IMAGE = "image_url"
"""The type of a part of a message that is an image."""
SOUND = "input_audio"
"""The type of one that is a sound."""
_MEDIA = (IMAGE, SOUND)
_MISSING = MappingProxyType(
    {
        "text": "has no text",
        MODULE: "has no name; requests give modules by their 'name'",
        IMAGE: "is missing",
        SOUND: "is missing",
    }
)
Part = str | ContentPart
"""A text, an image or a sound."""


class PlacedMedium(ContentPart):
    """An image or a sound of a request of another API. `place`: where the request has it."""

    place: str


def placed_image(address: ImageAddress, place: str) -> PlacedMedium:
    """An image at a data URL or an address. `place`: where the request has it."""
    return PlacedMedium(type=IMAGE, image_url=address, place=place)


def placed_sound(sound: InputAudio, place: str) -> PlacedMedium:
    """A sound. `place`: where the request has it."""
    return PlacedMedium(type=SOUND, input_audio=sound, place=place)


def embedded_image(data: str, place: str, media_type: str = "") -> PlacedMedium:
    """An image of which a request has the bytes as base64."""
    return placed_image(data if data.startswith("data:") else f"data:{media_type};base64,{data}", place)


def content_of(parts: Iterable[Part]) -> str | list[ContentPart]:
    """The content of a message: one text, or texts, images and sounds if there are any."""
    told = list(parts)
    texts = [part for part in told if isinstance(part, str)]
    if len(texts) == len(told):
        return one_text(texts)
    return [ContentPart(text=part) if isinstance(part, str) else part for part in told if part != ""]


def one_text(parts: Iterable[str]) -> str:
    """Parts of a message as one text, with a new line between them unless there is white space."""
    text = ""
    for part in parts:
        has_break = not text or not part or text[-1].isspace() or part[0].isspace()
        text += part if has_break else f"\n{part}"
    return text


def first_media(messages: Sequence[ChatMessage]) -> MediaPlaces:
    """Where the first image and the first sound of a conversation stand in its request."""
    places: dict[str, str] = {}
    for _, parts in _numbered(messages):
        for place, part in parts:
            places.setdefault(part.type, place)
    return MediaPlaces(places.get(IMAGE), places.get(SOUND))


def _numbered(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, list[tuple[str, ContentPart]]]]:
    """Messages with their parts and where these stand; a message that is a text has none."""
    for number, message in enumerate(messages):
        parts = message.content if isinstance(message.content, list) else []
        yield message, [(_place(part, f"messages[{number}].content[{at}]"), part) for at, part in enumerate(parts)]


def _place(part: ContentPart, place: str) -> str:
    if isinstance(part, PlacedMedium):
        return part.place
    return f"{place}.{part.type}" if part.type in _MEDIA else place


def messages_of(messages: Sequence[ChatMessage], images: RequestImages | None = None) -> list[dict[str, Any]]:
    """Convert messages to the form that the engine takes. Raises APIError for parts that it does not read.

    `images`: reads those of the request.
    """
    images = images or RequestImages()
    read, records = _Media(images, RequestSounds(images.go_on)), []
    for message, parts in _numbered(messages):
        record = message.model_dump(exclude_none=True, exclude={"content"} if parts else None)
        if isinstance(message.content, list):
            record["content"] = _content(message.role, parts, read)
        record.setdefault("content", "" if message.role != "assistant" or not message.tool_calls else None)
        records.append(record)
    return records


@dataclass(frozen=True, slots=True)
class _Media:
    """What reads the images and the sounds of one request."""

    images: RequestImages
    sounds: RequestSounds

    def part(self, part: ContentPart, place: str) -> dict[str, Any]:
        """An image or a sound in the form that the engine takes. Raises APIError."""
        if part.type == IMAGE:
            return {"type": "image", "image": self.images.read(part.address, place)}
        assert part.input_audio is not None
        return {"type": "audio", "audio": self.sounds.read(part.input_audio.data, place)}


def _content(role: str, parts: Sequence[tuple[str, ContentPart]], media: _Media) -> str | list[dict[str, Any]]:
    """A content of parts: one text, or texts with modules, or images and sounds, between them. Raises APIError."""
    for place, part in parts:
        values = {"text": part.text, MODULE: part.name, IMAGE: part.image_url, SOUND: part.input_audio}
        value = values.get(part.type)
        if value is None and part.type in _MISSING:
            raise APIError(400, f"{place} {_MISSING[part.type]}", param=place)
        if value is None:
            told = f"edgeinfer reads texts ('text'), images ({IMAGE!r}), sounds ({SOUND!r}), modules by their 'name'"
            raise unsupported(f"{place} is {part.type!r}; {told}", place)
        if part.type in _MEDIA and role == "assistant":
            kind = "images" if part.type == IMAGE else "sounds"
            raise unsupported(f"{place}: answers have no {kind}; put them into a message of the user", place)
    if all(part.type not in _MEDIA for _, part in parts):
        texts = [(part.type, (part.name if part.type == MODULE else part.text) or "") for _, part in parts]
        return content_with_modules(texts) or one_text(value for _, value in texts)
    if any(part.type == MODULE for _, part in parts):
        kind = "images" if any(part.type == IMAGE for _, part in parts) else "sounds"
        raise unsupported(f"a message has {kind} or modules, not both: leave one of them out", parts[0][0])
    return list(_with_media(parts, media))


def _with_media(parts: Sequence[tuple[str, ContentPart]], media: _Media) -> Iterator[dict[str, Any]]:
    """Texts, images and sounds in order; texts that follow each other are one."""
    texts: list[str] = []
    for place, part in parts:
        if part.type not in _MEDIA:
            texts.append(part.text or "")
            continue
        if text := one_text(texts):
            yield {"type": "text", "text": text}
        texts = []
        yield media.part(part, place)
    if text := one_text(texts):
        yield {"type": "text", "text": text}
