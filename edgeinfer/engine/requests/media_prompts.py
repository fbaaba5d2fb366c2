"""Conversations with images and sound: what stands for them until an encoder has made rows of them.

In: messages with parts of the types "image" and "audio", and how a model's encoders plan them. Out: texts as stretches
and planned media, and prompts in which each row of an image or a sound has a negative number as its name. Names are
made of the content, its tile and the encoder, so a prompt can be measured and compared with the cache before anything
is encoded. Chat templates write a placeholder for each; those that know none are given a mark as text instead. A chunk
of a sound is a tile, too. Knows no encoder and no device.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from edgeinfer.engine.requests.prompt_rows import NUMBER_BITS, LateRows, Piece
from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.models.images.image import Image, ImageSource
from edgeinfer.models.sounds.sound import Sound, SoundSource
from edgeinfer.models.text import Message
from edgeinfer.models.vision.encoder import ImageNumber, MediaPlan, TilePlan
from edgeinfer.steps import Progress

IMAGE_PART, SOUND_PART = "image", "audio"
"""The types of parts of a message that are images or sounds, which are their fields of the same names."""
KINDS = (IMAGE_PART, SOUND_PART)
NEVER = "(?!)"
"""A pattern that matches nothing."""
_OPEN, _CLOSE = "\ue002", "\ue003"
SEES_NOTHING = (
    "this model, as it was loaded, reads no images: it needs a projector file (mmproj-….gguf) that edgeinfer runs, "
    "beside it or named by --mmproj, and the cpu; leave the image out, or choose a model that sees"
)
HEARS_NOTHING = (
    "this model, as it was loaded, reads no sound: it needs a projector file (mmproj-….gguf) of a type that edgeinfer "
    "hears with, beside it or named by --mmproj, and the cpu; leave the sound out, or choose a model that hears"
)
_REFUSALS = {IMAGE_PART: SEES_NOTHING, SOUND_PART: HEARS_NOTHING}
Medium = Image | Sound


def kind_of(medium: Medium) -> str:
    """The type of the parts of messages that a medium is."""
    return IMAGE_PART if isinstance(medium, Image) else SOUND_PART


@dataclass(frozen=True, slots=True)
class NamedTile:
    """A tile of an image or a sound that stands in a prompt, or a part of it: `plan.n_rows` rows from `first` on.

    `key`: of the content, the tile and the encoder.
    """

    medium: Medium
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
    """An image or a sound that stands in a prompt. `kind`: the type of its part of a message."""

    kind: str
    plan: MediaPlan
    tiles: tuple[NamedTile, ...]

    def pieces(self, number: int = 0) -> Iterator[str | NamedTile]:
        """What stands for it, in order: texts, and tiles or parts of them. `number`: its own in the prompt."""
        for part in self.plan.parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, ImageNumber):
                yield str(number)
            elif isinstance(part, int):
                yield self.tiles[part]
            else:
                yield self.tiles[part.tile].part(part.first, part.stop)


@dataclass(frozen=True, slots=True)
class Modalities:
    """What a model reads besides text, and how. `placeholders`: what chat templates write for one, by kind.

    `named`: plans an image or a sound; raises BadImage, BadSound. `rows`: the rows of tiles, in order; raises the same.
    """

    placeholders: Mapping[str, re.Pattern[str]]
    named: Callable[[Medium], NamedMedia]
    rows: Callable[[Sequence[NamedTile], Progress], list[LateRows]]


@dataclass(frozen=True)
class PlacedMedia:
    """The media of a rendered text, in order, and the patterns of what stands for them by kind; false without any."""

    media: tuple[NamedMedia, ...] = ()
    patterns: Mapping[str, re.Pattern[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.media)

    def are_in(self, text: str) -> bool:
        """Whether a text has as many placeholders of each kind as there are media."""
        return all(len(self.patterns[kind].findall(text)) == len(media) for kind, media in self._by_kind.items())

    def split(self, text: str) -> Iterator[str | NamedTile]:
        """A text as stretches of text and tiles between them, with what surrounds media in the stretches."""
        told, at = "", 0
        following = {kind: enumerate(media) for kind, media in self._by_kind.items()}
        for match in self._pattern.finditer(text):
            told += text[at : match.start()]
            at = match.end()
            number, medium = next(following[str(match.lastgroup)])
            for piece in medium.pieces(number):
                if isinstance(piece, str):
                    told += piece
                else:
                    yield told
                    yield piece
                    told = ""
        yield told + text[at:]

    def shown(self, text: str) -> str:
        """A text for people, with "[image]" or "[audio]" for each."""
        return self._pattern.sub(lambda match: f"[{match.lastgroup}]", text) if self.media else text

    @cached_property
    def _by_kind(self) -> dict[str, list[NamedMedia]]:
        kinds = dict.fromkeys(each.kind for each in self.media)
        return {kind: [each for each in self.media if each.kind == kind] for kind in kinds}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """What stands for a medium; the group that matches has the name of its kind."""
        return re.compile("|".join(f"(?P<{kind}>{self.patterns[kind].pattern})" for kind in self._by_kind) or NEVER)


NO_MEDIA = PlacedMedia()


def media_of(messages: Sequence[Message]) -> list[Medium]:
    """The images and sounds of a conversation, in order. Raises BadImage, BadSound, BadSetting for an empty part."""
    found: list[Medium] = []
    for message in messages:
        for part in _media_parts(message):
            kind = str(part["type"])
            if kind not in part:
                raise BadSetting(f"a part of the type {kind!r} needs the {_NOUNS[kind]} itself, as its field {kind!r}")
            value = part[kind]
            found.append(
                Image.of(cast("ImageSource", value)) if kind == IMAGE_PART else Sound.of(cast("SoundSource", value))
            )
    return found


_NOUNS = {IMAGE_PART: "image", SOUND_PART: "sound"}


def _media_parts(message: Message) -> list[Mapping[str, object]]:
    content = message.content
    if content is None or isinstance(content, str):
        return []
    return [part for part in content if part.get("type") in KINDS]


def bare(messages: Sequence[Message]) -> list[Message]:
    """A conversation as templates that know media are given it: parts that say only that an image or sound is there."""
    return [_replaced(message, lambda kind: {"type": kind}) for message in messages]


def marked_as_text(messages: Sequence[Message]) -> list[Message]:
    """A conversation with a mark as text in place of each image and sound, for templates that know none."""
    numbers = iter(range(1 << 30))
    return [
        _joined(_replaced(message, lambda kind: {"type": "text", "text": f"{_OPEN}{kind}{next(numbers)}{_CLOSE}"}))
        for message in messages
    ]


def _replaced(message: Message, made: Callable[[str], Mapping[str, object]]) -> Message:
    content = message.content
    if content is None or isinstance(content, str) or not _media_parts(message):
        return message
    kinds = ((part, str(part.get("type"))) for part in content)
    return replace(message, content=[made(kind) if kind in KINDS else part for part, kind in kinds])


def _joined(message: Message) -> Message:
    content = message.content
    if content is None or isinstance(content, str) or any(part.get("type", "text") != "text" for part in content):
        return message
    return replace(message, content=message.text)


def placed(messages: Sequence[Message], modalities: Modalities | None) -> PlacedMedia:
    """The media of a conversation, planned, by what templates write. Raises UnsupportedModel for what is not read."""
    media = tuple(named(medium, modalities) for medium in media_of(messages))
    return NO_MEDIA if modalities is None or not media else PlacedMedia(media, modalities.placeholders)


def named(medium: Medium, modalities: Modalities | None) -> NamedMedia:
    """An image or a sound, planned. Raises UnsupportedModel for what is not read, BadImage, BadSound."""
    kind = kind_of(medium)
    if modalities is None or kind not in modalities.placeholders:
        raise UnsupportedModel(_REFUSALS[kind])
    return modalities.named(medium)


def with_marks(media: PlacedMedia) -> PlacedMedia:
    """The same media, for a text that was made of `marked_as_text`."""
    return PlacedMedia(media.media, {kind: re.compile(f"{_OPEN}{kind}[0-9]+{_CLOSE}") for kind in KINDS})


def with_rows(
    prompt: Sequence[int],
    media: Sequence[Medium],
    modalities: Modalities | None,
    progress: Progress,
    *,
    sees_whole: bool,
) -> list[int | LateRows] | None:
    """A prompt with the rows of its media in place of their names; None if it has none. Raises as `Modalities.rows`.

    `sees_whole`: whether the model has rows of an image see each other, as some of a family do and some do not.
    """
    if modalities is None or not media or all(token >= 0 for token in prompt):
        return None
    pieces_of = (piece for medium in media for piece in modalities.named(medium).pieces())
    known = {piece.names[0]: piece for piece in pieces_of if not isinstance(piece, str)}
    tiles = [known[token] for token in prompt if token in known]
    rows = _rows_of(tiles, modalities, progress, sees_whole=sees_whole)
    pieces: list[int | LateRows] = []
    at = 0
    while at < len(prompt):
        tile = known.get(prompt[at])
        pieces.append(prompt[at] if tile is None else next(rows))
        at += 1 if tile is None else tile.plan.n_rows
    return pieces


def _rows_of(
    tiles: Sequence[NamedTile], modalities: Modalities, progress: Progress, *, sees_whole: bool
) -> Iterator[LateRows]:
    return (replace(each, whole=each.whole and sees_whole) for each in modalities.rows(tiles, progress))


def with_late_rows(
    pieces: Sequence[Piece | NamedTile], modalities: Modalities | None, progress: Progress, *, sees_whole: bool
) -> list[Piece | LateRows]:
    """Parts of a prompt with the rows of tiles in place of these. Raises as `Modalities.rows`, UnsupportedModel."""
    tiles = [piece for piece in pieces if isinstance(piece, NamedTile)]
    if modalities is None:
        if tiles:
            raise UnsupportedModel(_REFUSALS[kind_of(tiles[0].medium)])
        return [piece for piece in pieces if not isinstance(piece, NamedTile)]
    rows = _rows_of(tiles, modalities, progress, sees_whole=sees_whole)
    return [next(rows) if isinstance(piece, NamedTile) else piece for piece in pieces]
