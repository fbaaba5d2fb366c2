"""The sounds of requests, which have them as base64.

In: the text of a field, and where a request has it. Out: `edgeinfer.Sound`s, not decoded yet. APIError says what is
wrong with which.
"""

from __future__ import annotations

from edgeinfer.app.server.base64_fields import decoded_base64
from edgeinfer.app.server.errors import APIError
from edgeinfer.errors import BadSound
from edgeinfer.models.sounds.sound import Sound
from edgeinfer.steps import READING_SOUND, Progress, no_progress

MOST_SOUNDS = 100
"""Most sounds of one request."""
MOST_SECONDS = 3600
"""Seconds of all sounds of one request; each may have up to `models.sounds.decoding.MOST_SECONDS`."""


class RequestSounds:
    """Reads the sounds of one request. `go_on`: raises to end the work."""

    def __init__(self, go_on: Progress = no_progress) -> None:
        self._go_on = go_on
        self._n_sounds, self._seconds = 0, 0.0

    def read(self, data: str, place: str) -> Sound:
        """The sound in base64, or in a data URL, whose header is read. `place`: where the request has it."""
        self._n_sounds += 1
        if self._n_sounds > MOST_SOUNDS:
            raise APIError(400, f"a request may have {MOST_SOUNDS} sounds; send fewer", "too_many_sounds", place)
        self._go_on(READING_SOUND, self._n_sounds - 1, 0)
        head, comma, text = data.partition(",")
        is_url = bool(comma) and head.lower().startswith("data:") and head.lower().endswith(";base64")
        try:
            sound = Sound.of(decoded_base64(text if is_url else data, place, "audio"), place)
        except BadSound as reason:
            raise APIError(400, str(reason), "invalid_audio", place) from None
        self._seconds += sound.seconds
        if self._seconds > MOST_SECONDS:
            most = f"{MOST_SECONDS // 60} minutes"
            raise APIError(400, f"the sounds of a request may last {most} in all; send fewer", "audio_too_large", place)
        return sound
