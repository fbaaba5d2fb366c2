"""The question of `edgeinfer run`: files, standard input and the argument.

In: paths, the words of the command, what is piped in. Out: a text, images and sounds. A file is an image or a sound by
its content, whatever its name; everything else must be UTF-8.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.command_line.misuse import Misuse
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.models.images.image import Image
    from edgeinfer.models.sounds.sound import Sound

STDIN = "standard input"
Medium = dict[str, Any]
"""A part of a message that is an image or a sound."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a text, and images and sounds, which stand before it. `media`: their parts, in order."""

    text: str
    media: tuple[Medium, ...] = ()

    def messages(self, system: str | None) -> list[dict[str, Any]]:
        """The conversation that it begins."""
        instructions = [{"role": "system", "content": system}] if system else []
        parts: list[dict[str, Any]] = [*self.media, *([{"type": "text", "text": self.text}] if self.text else [])]
        return [*instructions, {"role": "user", "content": parts if self.media else self.text}]

    @property
    def images(self) -> tuple[Image, ...]:
        """The images alone."""
        return tuple(part["image"] for part in self.media if part["type"] == "image")

    @property
    def sounds(self) -> tuple[Sound, ...]:
        """The sounds alone."""
        return tuple(part["audio"] for part in self.media if part["type"] == "audio")


def read_question(prompt: str | None, files: Sequence[Path], *, raw: bool) -> Question:
    """The files, standard input and the argument, in this order. Raises EdgeInferError; exits 2 when there is none.

    Documents come first, so that the next question about them finds them read. Not with `raw`, where the end of the
    text is what goes on: then the argument is the beginning.
    """
    read = [_text_or_medium(_bytes(path), path) for path in files]
    if sys.stdin is not None and not sys.stdin.isatty():
        piped = _text_or_medium(sys.stdin.buffer.read(), None)
        if not isinstance(piped, str) or piped.strip() or not (read or prompt is not None):
            read.append(piped)
    parts = [each for each in read if isinstance(each, str)]
    media = tuple(each for each in read if not isinstance(each, str))
    if raw and media:
        kind = "images" if media[0]["type"] == "image" else "sounds"
        raise BadSetting(f"--raw uses no chat template, so that {kind} have no place in it; leave it out")
    asked = [prompt] if prompt is not None else []
    parts = [*asked, *parts] if raw else [*parts, *asked]
    if not parts and not media:
        raise Misuse("there is no question; such as: edgeinfer run what is the capital of France")
    if not media and not any(part.strip() for part in parts):
        raise BadSetting("the prompt is empty; give a question as an argument, with --file or on standard input")
    text = "\n\n".join(parts) if raw else "\n\n".join(part.strip("\r\n") for part in parts)
    return Question(text, media)


def read_text_file(path: Path, option: str = "--file") -> str:
    """The text of a file that an option names. Raises EdgeInferError."""
    return _text(_bytes(path), path, option)


def _text_or_medium(data: bytes, path: Path | None) -> str | Medium:
    """What a file holds; `path`: None for standard input. Raises BadImage, BadSound, EdgeInferError."""
    from edgeinfer.app.image_files import is_image
    from edgeinfer.app.sound_files import is_sound

    name = STDIN if path is None else path.name
    if is_image(data):
        from edgeinfer.models.images.image import Image

        return {"type": "image", "image": Image.of(data, name)}
    if is_sound(data):
        from edgeinfer.models.sounds.sound import Sound

        return {"type": "audio", "audio": Sound.of(data, name)}
    return _text(data, path, "--file")


def _text(data: bytes, path: Path | None, option: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if path is None:
            told = f"{STDIN} is not UTF-8 at byte {error.start}, and no image ({_images()}) or sound"
            raise EdgeInferError(f"{told}; convert it first") from None
        takes = f"text files, images ({_images()}) and sounds" if option == "--file" else "text files"
        raise EdgeInferError(f"{path} is not UTF-8 text; {option} takes {takes}") from None
    return text if path is None else text.replace("\r\n", "\n").replace("\r", "\n")


def _images() -> str:
    from edgeinfer.models.images.decoding import READABLE

    return READABLE


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
