"""Conversations with images: what stands for them until an encoder has made rows of them.

In: messages with parts of the type "image", and how a model's encoder plans images. Out: texts as stretches and planned
images, and prompts in which each row of an image has a negative number as its name. Names are made of the image, its
tile and the encoder, so a prompt can be measured and compared with the cache before anything is encoded. Chat templates
write a placeholder for each image; those that know no images are given a mark as text instead. Knows no encoder and no
device.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from edgeinfer.engine.requests.prompt_rows import NUMBER_BITS, LateRows
from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.models.images.image import Image, ImageSource
from edgeinfer.models.text import Message
from edgeinfer.models.vision.encoder import MediaPlan, TilePlan
from edgeinfer.steps import Progress

IMAGE_PART = "image"
"""The type of a part of a message that is an image; the image is its field of the same name."""
_OPEN, _CLOSE = "\ue002", "\ue003"
_MARK = re.compile(f"{_OPEN}[0-9]+{_CLOSE}")
_BARE = {"type": IMAGE_PART}
SEES_NOTHING = (
    "this model, as it was loaded, reads no images: it needs a projector file (mmproj-….gguf) that edgeinfer runs, "
    "beside it or named by --mmproj, and the cpu; leave the image out, or choose a model that sees"
)


@dataclass(frozen=True, slots=True)
class NamedTile:
    """A tile of an image that stands in a prompt, or a part of it: `plan.n_rows` rows from the row `first` on.

    `key`: of the image, the tile and the encoder.
    """

    image: Image
    number: int
    plan: TilePlan
    key: str
    first: int = 0

    @property
    def names(self) -> range:
        """The names of its rows in prompts."""
        digest = hashlib.blake2b(self.key.encode(), digest_size=16).digest()
        first = -1 - (int.from_bytes(digest, "little") << NUMBER_BITS) - self.first
        return range(first, first - self.plan.n_rows, -1)

    def part(self, first: int, stop: int) -> NamedTile:
        """The rows `first` to before `stop` of the whole tile."""
        axes = None if self.plan.axes is None else self.plan.axes[first:stop]
        return replace(self, first=first, plan=replace(self.plan, n_rows=stop - first, axes=axes))


@dataclass(frozen=True, slots=True)
class NamedMedia:
    """An image that stands in a prompt."""

    plan: MediaPlan
    tiles: tuple[NamedTile, ...]

    def pieces(self) -> Iterator[str | NamedTile]:
        """What stands for it, in order: texts, and tiles or parts of them."""
        for part in self.plan.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, int):
                yield self.tiles[part]
            else:
                yield self.tiles[part.tile].part(part.first, part.stop)


@dataclass(frozen=True, slots=True)
class Sight:
    """How a model is given images. `placeholder`: what chat templates write for one, a regular expression.

    `named`: plans an image; raises BadImage. `rows`: the rows of tiles, in order; raises BadImage.
    """

    placeholder: re.Pattern[str]
    named: Callable[[Image], NamedMedia]
    rows: Callable[[Sequence[NamedTile], Progress], list[LateRows]]


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """The images of a rendered text, in order, and the pattern of what stands for each; false if there are none."""

    images: tuple[NamedMedia, ...] = ()
    pattern: re.Pattern[str] = _MARK

    def __bool__(self) -> bool:
        return bool(self.images)

    def are_in(self, text: str) -> bool:
        """Whether a text has as many placeholders as there are images."""
        return len(self.pattern.findall(text)) == len(self.images)

    def split(self, text: str) -> Iterator[str | NamedTile]:
        """A text as stretches of text and tiles between them, with what surrounds images in the stretches."""
        told = ""
        images = iter(self.images)
        for number, stretch in enumerate(re.split(f"({self.pattern.pattern})", text)):
            if number % 2 == 0:
                told += stretch
                continue
            for piece in next(images).pieces():
                if isinstance(piece, str):
                    told += piece
                else:
                    yield told
                    yield piece
                    told = ""
        yield told

    def shown(self, text: str) -> str:
        """A text for people, with "[image]" for each image."""
        return self.pattern.sub("[image]", text)


NO_IMAGES = PlacedMedia()


def images_of(messages: Sequence[Message]) -> list[Image]:
    """The images of a conversation, in order. Raises BadImage, BadSetting for a part that has none."""
    found = []
    for message in messages:
        for part in _image_parts(message):
            if IMAGE_PART not in part:
                raise BadSetting(
                    f"a part of the type {IMAGE_PART!r} needs the image itself, as its field {IMAGE_PART!r}"
                )
            found.append(Image.of(cast("ImageSource", part[IMAGE_PART])))
    return found


def _image_parts(message: Message) -> list[Mapping[str, object]]:
    content = message.content
    if content is None or isinstance(content, str):
        return []
    return [part for part in content if part.get("type") == IMAGE_PART]


def bare(messages: Sequence[Message]) -> list[Message]:
    """A conversation as templates that know images are given it: parts that say only that an image is there."""
    return [_replaced(message, lambda: _BARE) for message in messages]


def marked_as_text(messages: Sequence[Message]) -> list[Message]:
    """A conversation with a mark as text in place of each image, for templates that know none."""
    numbers = iter(range(1 << 30))
    return [
        _joined(_replaced(message, lambda: {"type": "text", "text": f"{_OPEN}{next(numbers)}{_CLOSE}"}))
        for message in messages
    ]


def _replaced(message: Message, made: Callable[[], Mapping[str, object]]) -> Message:
    content = message.content
    if content is None or isinstance(content, str) or not _image_parts(message):
        return message
    return replace(message, content=[made() if part.get("type") == IMAGE_PART else part for part in content])


def _joined(message: Message) -> Message:
    content = message.content
    if content is None or isinstance(content, str) or any(part.get("type", "text") != "text" for part in content):
        return message
    return replace(message, content=message.text)


def placed(messages: Sequence[Message], sight: Sight | None) -> PlacedMedia:
    """The images of a conversation, planned, by what templates write. Raises UnsupportedModel where nothing sees."""
    images = images_of(messages)
    if not images:
        return NO_IMAGES
    if sight is None:
        raise UnsupportedModel(SEES_NOTHING)
    return PlacedMedia(tuple(map(sight.named, images)), sight.placeholder)


def with_marks(images: PlacedMedia) -> PlacedMedia:
    """The same images, for a text that was made of `marked_as_text`."""
    return replace(images, pattern=_MARK)


def with_rows(
    prompt: Sequence[int], images: Sequence[Image], sight: Sight | None, progress: Progress, *, sees_whole: bool
) -> list[int | LateRows] | None:
    """A prompt with the rows of its images in place of their names; None if it has none. Raises as `Sight.rows`.

    `sees_whole`: whether the model has rows of an image see each other, as some of a family do and some do not.
    """
    if sight is None or not images or all(token >= 0 for token in prompt):
        return None
    pieces_of = (piece for image in images for piece in sight.named(image).pieces())
    known = {piece.names[0]: piece for piece in pieces_of if not isinstance(piece, str)}
    tiles = [known[token] for token in prompt if token in known]
    rows = (replace(each, whole=each.whole and sees_whole) for each in sight.rows(tiles, progress))
    pieces: list[int | LateRows] = []
    at = 0
    while at < len(prompt):
        tile = known.get(prompt[at])
        pieces.append(prompt[at] if tile is None else next(rows))
        at += 1 if tile is None else tile.plan.n_rows
    return pieces
