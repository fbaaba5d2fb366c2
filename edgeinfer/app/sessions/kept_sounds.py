"""Sounds sent with messages, as chats keep them: the bytes of their files.

In: the bytes of a file. Out: `KeptSound`, which needs the original file no more. A sound is decoded once, when it is
attached: so what cannot be read is told before it is sent. Knows neither the database nor a screen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from edgeinfer.app.sound_files import sound_url
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.models.sounds.sound import Sound


@dataclass(frozen=True)
class KeptSound:
    """A sound sent with a message. Sounds with the same bytes are equal.

    digest   names the bytes
    data     the bytes of its file
    seconds  how long it is
    """

    digest: str
    data: bytes = field(compare=False, repr=False)
    seconds: float = field(compare=False)

    @cached_property
    def part(self) -> Sound | bytes:
        """The sound for the model; its bytes if it cannot be opened here, so that the model's side says why."""
        from edgeinfer.models.sounds.sound import Sound

        try:
            return Sound.of(self.data)
        except EdgeInferError:
            return self.data

    @property
    def length_text(self) -> str:
        """Its length for people: "4.2 s", "12:05 min"."""
        if self.seconds < 60:
            return f"{self.seconds:.1f} s"
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{minutes}:{seconds:02} min"

    @property
    def url(self) -> str:
        """The sound as a data URL."""
        part = self.part
        return sound_url(self.data, "WAV" if isinstance(part, bytes) else part.format)


def kept_sound(data: bytes, name: str) -> KeptSound:
    """The sound in a file's bytes. `name`: for messages. Raises BadSound, BadSetting where decoders are missing."""
    from edgeinfer.models.sounds.sound import Sound

    sound = Sound.of(data, name)
    sound.samples()
    return KeptSound(hashlib.blake2b(data, digest_size=16).hexdigest(), data, sound.seconds)
