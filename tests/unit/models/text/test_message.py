"""Messages as callers give them: what would be left out of a prompt is refused."""

from __future__ import annotations

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message


@pytest.mark.parametrize("kind", ["image_url", "input_image"])
def test_an_image_in_the_form_of_servers_is_told_the_own_form(kind: str) -> None:
    parts = [{"type": "text", "text": "What?"}, {"type": kind, "image_url": {"url": "data:image/png;base64,QUJD"}}]
    with pytest.raises(BadSetting, match=f'an image is {{"type": "image", .*}}, not a part of the type \'{kind}\''):
        Message.of({"role": "user", "content": parts})


@pytest.mark.parametrize("kind", ["input_audio", "audio_url"])
def test_a_sound_in_the_form_of_servers_is_told_the_own_form(kind: str) -> None:
    with pytest.raises(BadSetting, match=f'a sound is {{"type": "audio", .*}}, not a part of the type \'{kind}\''):
        Message.of({"role": "user", "content": [{"type": kind}]})


@pytest.mark.parametrize("kind", ["video", "file"])
def test_what_no_model_reads_is_refused(kind: str) -> None:
    with pytest.raises(BadSetting, match=f"'{kind}', which is not read"):
        Message.of({"role": "user", "content": [{"type": kind}]})


def test_other_parts_are_taken_as_they_are() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"text": "b"},
        {"type": "image", "image": b""},
        {"type": "audio"},
        {"type": "module"},
    ]
    message = Message.of({"role": "user", "content": parts, "name": "x"})
    assert (message.content, message.text, message.extra) == (parts, "ab", {"name": "x"})
    assert Message.of({"role": "user", "content": "a"}).content == "a"
