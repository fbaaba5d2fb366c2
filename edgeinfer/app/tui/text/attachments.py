"""What the transcript says of an attachment: its name and size, of an image or a sound also its tokens.

In: attachments of a message, what counts tokens. Out: a line of text without control characters.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.records import Attachment, KeptMedium
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.text_values import size_text

CountMedium = Callable[[KeptMedium], int | None]
"""Counts the tokens of an image or a sound, if the open model reads it."""


def unknown(medium: KeptMedium) -> int | None:
    """No model is there that could count."""
    return None


def attachment_line(attachment: Attachment, count: CountMedium) -> str:
    """What is said of an attachment."""
    image, sound, size = attachment.image, attachment.sound, size_text(attachment.n_bytes)
    name = neutral(attachment.name)
    if sound is not None:
        return f"sound: {name}, {sound.length_text}, {size}{_tokens_text(count(sound))}"
    if image is not None:
        return f"image: {name}, {image.pixels_text}, {size}{_tokens_text(count(image))}"
    return f"attached: {name}, {size}"


def _tokens_text(n_tokens: int | None) -> str:
    return "" if n_tokens is None else f", {counted(n_tokens, 'token')}"
