"""Texts with images outside of conversations, in llama-server's form: a mark in the text for each image.

In: JSON: `{"prompt_string": "What is <__media__>?", "multimodal_data": ["iVBO…"]}`, or parts of a message, whose texts
follow one another as they are. Out: prompts as tokens and tiles of images. APIError says what is wrong with which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.message_contents import IMAGE, PlacedMedium, embedded_image, placed_image
from edgeinfer.app.server.request_media import MediaPlaces
from edgeinfer.engine.requests.media_prompts import IMAGE_PART, NamedTile, PlacedMedia, named

if TYPE_CHECKING:
    from edgeinfer.app.server.request_images import RequestImages
    from edgeinfer.engine.llm import LLM
    from edgeinfer.models.text import Tokenizer

MARK = "<__media__>"
"""Stands for an image in a text; /props tells it. It is the one that llama-server has unless it draws one by chance."""
TEXT, DATA = "prompt_string", "multimodal_data"
"""The fields of a prompt that has images."""


def first_data(value: Any, place: str) -> MediaPlaces:
    """Where a prompt, or the first of a list of prompts that has some, has images. `place`: of the prompt."""
    prompts = (
        [(f"{place}[{at}]", each) for at, each in enumerate(value)] if isinstance(value, list) else [(place, value)]
    )
    return MediaPlaces(
        next((f"{at}.{DATA}" for at, each in prompts if isinstance(each, dict) and each.get(DATA)), None)
    )


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text with a mark for each of its images."""

    text: str
    images: tuple[PlacedMedium, ...]

    @property
    def place(self) -> str | None:
        """Where its request has the first image; None if it has none."""
        return self.images[0].place if self.images else None

    def pieces(self, llm: LLM, reader: RequestImages, *, ends: bool = False) -> list[int | NamedTile]:
        """The tokens of the text and the tiles of its images, in order. Raises APIError, BadImage, UnsupportedModel.

        `ends`: with what ends a text for the model; else it is to be continued.
        """
        seen = [reader.read(image.address, image.place) for image in self.images]
        planned = tuple(named(image, llm.prompts.modalities) for image in seen)
        parts = PlacedMedia(planned, {IMAGE_PART: re.compile(re.escape(MARK))}).split(self.text)
        return [*_pieces(parts, llm.prompts.tokenizer, ends=ends)]


def _pieces(parts: Iterator[str | NamedTile], tokenizer: Tokenizer, *, ends: bool) -> Iterator[int | NamedTile]:
    vocabulary = tokenizer.vocabulary
    for number, part in enumerate(parts):
        if not isinstance(part, str):
            yield part
        elif number:
            yield from tokenizer.encode(part, add_special=False, goes_on=True)
        else:
            tokens = tokenizer.encode(part)
            yield from tokens[:-1] if vocabulary.add_eos else tokens
    if ends and vocabulary.add_eos and vocabulary.eos_id is not None:
        yield vocabulary.eos_id


def marked_prompt(prompt: Mapping[str, Any], place: str) -> MarkedText:
    """A text, and its images as base64. `place`: where the request has it. Raises APIError."""
    text, data = prompt.get(TEXT), prompt[DATA]
    if not isinstance(text, str):
        raise APIError(400, f"{place}.{TEXT} must be a text, with {MARK} where an image is to stand", param=place)
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise APIError(400, f"{place}.{DATA} must be a list of images, each as base64", param=f"{place}.{DATA}")
    images = [embedded_image(each, f"{place}.{DATA}[{at}]") for at, each in enumerate(data)]
    return _checked(text, images, place)


def marked_content(content: Any, place: str) -> MarkedText | str:
    """Parts of a message as one text, with images if there are some. `place`: where the request has it.

    Raises APIError.
    """
    texts, images = list[str](), list[PlacedMedium]()
    for at, part in enumerate(content if isinstance(content, list) else [None]):
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if kind in ("text", IMAGE) else None
        address = value.get("url") if kind == IMAGE and isinstance(value, dict) else value
        if not isinstance(address, str):
            told = "content is a list of parts: texts ('text'), and images ('image_url')"
            raise APIError(400, f"{told}; {place}.content[{at}] is neither", param=place)
        texts.append(MARK if kind == IMAGE else address)
        images += [placed_image(address, f"{place}.content[{at}].{IMAGE}")] if kind == IMAGE else []
    return _checked("".join(texts), images, place) if images else "".join(texts)


def _checked(text: str, images: Sequence[PlacedMedium], place: str) -> MarkedText:
    """Raises APIError unless a text has as many marks as there are images."""
    if (n_marks := text.count(MARK)) != len(images):
        told = f"{place} has {MARK} {n_marks} times, and there are {len(images)} images"
        raise APIError(400, f"{told}: its text must have {MARK} once for each, where it is to stand", param=place)
    return MarkedText(text, tuple(images))
