"""Contents of messages: texts, modules and images of requests in the form that the engine takes.

In: validated messages, what reads images. Out: messages as mappings, whose images are `edgeinfer.Image`s. APIError says
which part cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from edgeinfer.app.server.errors import APIError, unsupported
from edgeinfer.app.server.module_fields import MODULE, content_with_modules
from edgeinfer.app.server.request_images import RequestImages
from edgeinfer.app.server.requests import ChatMessage, ContentPart, ImageAddress

IMAGE = "image_url"
"""The type of a part of a message that is an image."""
_MISSING = MappingProxyType(
    {"text": "has no text", MODULE: "has no name; requests give modules by their 'name'", IMAGE: "is missing"}
)
Part = str | ContentPart
"""A text, or an image."""


class PlacedImage(ContentPart):
    """An image of a request of another API. `place`: where the request has it."""

    type: str = IMAGE
    place: str


def placed_image(address: ImageAddress, place: str) -> PlacedImage:
    """An image at a data URL or an address. `place`: where the request has it."""
    return PlacedImage(image_url=address, place=place)


def embedded_image(data: str, place: str, media_type: str = "") -> PlacedImage:
    """An image of which a request has the bytes as base64."""
    return placed_image(data if data.startswith("data:") else f"data:{media_type};base64,{data}", place)


def content_of(parts: Iterable[Part]) -> str | list[ContentPart]:
    """The content of a message: one text, or texts and images if there are any."""
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


def first_image(messages: Sequence[ChatMessage]) -> str | None:
    """Where the first image of a conversation stands in its request; None if there is none."""
    return next((place for message in _numbered(messages) for place, part in message[1] if part.type == IMAGE), None)


def _numbered(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, list[tuple[str, ContentPart]]]]:
    """Messages with their parts and where these stand; a message that is a text has none."""
    for number, message in enumerate(messages):
        parts = message.content if isinstance(message.content, list) else []
        yield message, [(_place(part, f"messages[{number}].content[{at}]"), part) for at, part in enumerate(parts)]


def _place(part: ContentPart, place: str) -> str:
    if isinstance(part, PlacedImage):
        return part.place
    return f"{place}.{IMAGE}" if part.type == IMAGE else place


def messages_of(messages: Sequence[ChatMessage], images: RequestImages | None = None) -> list[dict[str, Any]]:
    """Convert messages to the form that the engine takes. Raises APIError for parts that it does not read.

    `images`: reads those of the request.
    """
    reader, records = images or RequestImages(), []
    for message, parts in _numbered(messages):
        record = message.model_dump(exclude_none=True, exclude={"content"} if parts else None)
        if isinstance(message.content, list):
            record["content"] = _content(message.role, parts, reader)
        record.setdefault("content", "" if message.role != "assistant" or not message.tool_calls else None)
        records.append(record)
    return records


def _content(role: str, parts: Sequence[tuple[str, ContentPart]], images: RequestImages) -> str | list[dict[str, Any]]:
    """A content of parts: one text, or texts with modules or images between them. Raises APIError."""
    for place, part in parts:
        value = {"text": part.text, MODULE: part.name, IMAGE: part.image_url}.get(part.type)
        if value is None and part.type in _MISSING:
            raise APIError(400, f"{place} {_MISSING[part.type]}", param=place)
        if value is None:
            told = "edgeinfer reads texts ('text'), images ('image_url'), and modules by their 'name'"
            raise unsupported(f"{place} is {part.type!r}; {told}", place)
        if part.type == IMAGE and role == "assistant":
            raise unsupported(f"{place}: answers have no images; put them into a message of the user", place)
    if all(part.type != IMAGE for _, part in parts):
        texts = [(part.type, (part.name if part.type == MODULE else part.text) or "") for _, part in parts]
        return content_with_modules(texts) or one_text(value for _, value in texts)
    if any(part.type == MODULE for _, part in parts):
        raise unsupported("a message has images or modules, not both: leave one of them out", parts[0][0])
    return list(_with_images(parts, images))


def _with_images(parts: Sequence[tuple[str, ContentPart]], images: RequestImages) -> Iterator[dict[str, Any]]:
    """Texts and images in order; texts that follow each other are one."""
    texts: list[str] = []
    for place, part in parts:
        if part.type != IMAGE:
            texts.append(part.text or "")
            continue
        if text := one_text(texts):
            yield {"type": "text", "text": text}
        texts = []
        yield {"type": "image", "image": images.read(part.address, place)}
    if text := one_text(texts):
        yield {"type": "text", "text": text}
