"""The question of `edgeinfer run`: files, standard input and the argument.

In: paths, the words of the command, what is piped in. Out: a text and images. A file is an image by its content,
whatever its name; everything else must be UTF-8.
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

STDIN = "standard input"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a text, and images, which stand before it."""

    text: str
    images: tuple[Image, ...] = ()

    def messages(self, system: str | None) -> list[dict[str, Any]]:
        """The conversation that it begins."""
        instructions = [{"role": "system", "content": system}] if system else []
        parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in self.images]
        parts += [{"type": "text", "text": self.text}] if self.text else []
        return [*instructions, {"role": "user", "content": parts if self.images else self.text}]


def read_question(prompt: str | None, files: Sequence[Path], *, raw: bool) -> Question:
    """The files, standard input and the argument, in this order. Raises EdgeInferError; exits 2 when there is none.

    Documents come first, so that the next question about them finds them read. Not with `raw`, where the end of the
    text is what goes on: then the argument is the beginning.
    """
    read = [_text_or_image(_bytes(path), path) for path in files]
    if sys.stdin is not None and not sys.stdin.isatty():
        piped = _text_or_image(sys.stdin.buffer.read(), None)
        if not isinstance(piped, str) or piped.strip() or not (read or prompt is not None):
            read.append(piped)
    parts = [each for each in read if isinstance(each, str)]
    images = tuple(each for each in read if not isinstance(each, str))
    if raw and images:
        raise BadSetting("--raw uses no chat template, so that images have no place in it; leave it out")
    asked = [prompt] if prompt is not None else []
    parts = [*asked, *parts] if raw else [*parts, *asked]
    if not parts and not images:
        raise Misuse("there is no question; such as: edgeinfer run what is the capital of France")
    if not images and not any(part.strip() for part in parts):
        raise BadSetting("the prompt is empty; give a question as an argument, with --file or on standard input")
    text = "\n\n".join(parts) if raw else "\n\n".join(part.strip("\r\n") for part in parts)
    return Question(text, images)


def read_text_file(path: Path, option: str = "--file") -> str:
    """The text of a file that an option names. Raises EdgeInferError."""
    return _text(_bytes(path), path, option)


def _text_or_image(data: bytes, path: Path | None) -> str | Image:
    """What a file holds; `path`: None for standard input. Raises BadImage, EdgeInferError."""
    from edgeinfer.app.image_files import is_image

    if not is_image(data):
        return _text(data, path, "--file")
    from edgeinfer.models.images.image import Image

    return Image.of(data, STDIN if path is None else path.name)


def _text(data: bytes, path: Path | None, option: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if path is None:
            told = f"{STDIN} is not UTF-8 at byte {error.start}, and no image ({_images()})"
            raise EdgeInferError(f"{told}; convert it first") from None
        takes = f"text files and images ({_images()})" if option == "--file" else "text files"
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
