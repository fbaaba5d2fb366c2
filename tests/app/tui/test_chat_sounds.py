"""Sounds in the chat: attached in every way, weighed before they are sent, shown, kept, read with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual import events
from textual.widgets import TextArea

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.models.sounds.sound import Sound
from edgeinfer.steps import READING_SOUND
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel
from tests.app.tui.test_chat_images import chips, draft, notices, transcript
from tests.pictures import picture_file
from tests.sounds import SOUNDS, tone, wav

pytest.importorskip("miniaudio")
Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(wav(tone(2.5)))
    (tmp_path / "my song.mp3").write_bytes((SOUNDS / "chirp.mp3").read_bytes())
    picture_file(tmp_path / "sea.png", 640, 480)
    with chat_app(home) as make:
        yield make


def hearing(make: Make, script: Script, *, reads_images: bool = False) -> ChatApp:
    reads = {"reads_sound": True, "reads_images": reads_images}
    return make(script, lambda settings, face: LoadedModel(ScriptedModel(script, **reads)))


async def test_a_sound_that_is_mentioned_is_weighed_sent_shown_and_kept(make: Make, tmp_path: Path) -> None:
    script = Script("Hello.", "A voice.")
    app = hearing(make, script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        app.chat_screen.query_one(TextArea).insert("What is @talk.wav")
        await wait_until(pilot, lambda: "talk.wav 2.5 s, 25 tok" in chips(app))
        await pilot.press("escape", "enter")
        await quiet(app, pilot)
        assert branch(app) == [("user", "What is @talk.wav"), ("assistant", "Hello.")]
        (asked,) = script.asked
        text = {"type": "text", "text": "What is @talk.wav"}
        assert asked[-1].content == [{"type": "audio", "audio": Sound.of(tmp_path / "talk.wav")}, text]
        assert "sound: talk.wav, 2.5 s, 80.0 kB, 25 tokens" in transcript(app)
        (tmp_path / "talk.wav").unlink()
        number = app.chat_screen.chat.number
        assert number is not None
        await app.chat_screen.action_new()
        await app.chat_screen.open_chat(number)
        await wait_until(pilot, lambda: "sound: talk.wav" in transcript(app))
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert script.asked[-1][0] == asked[-1]


async def test_sounds_and_images_are_dropped_on_the_terminal(make: Make, tmp_path: Path) -> None:
    app = hearing(make, Script(), reads_images=True)
    text = f"'{tmp_path}/my song.mp3' '{tmp_path}/sea.png'"
    async with app.run_test(size=(100, 40)) as pilot:
        app.chat_screen.query_one(TextArea).post_message(events.Paste(text))
        await wait_until(pilot, lambda: [one.name for one in draft(app)] == ["my song.mp3", "sea.png"])
        await wait_until(pilot, lambda: "my song.mp3 0.5 s, 25 tok" in chips(app))


async def test_a_model_that_hears_nothing_is_not_sent_a_sound(make: Make) -> None:
    script = Script("Never.")
    app = make(script, lambda settings, face: LoadedModel(ScriptedModel(script, reads_images=True)))
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        app.chat_screen.query_one(TextArea).insert("What is @talk.wav")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith("scripted, as it was opened, reads no sound")
        await pilot.press("escape", "enter")
        await wait_until(pilot, lambda: notices(app)[-1].startswith("not sent: scripted, as it was opened, reads no"))
        assert script.asked == []


async def test_a_sound_that_cannot_be_read_is_told_in_a_line(make: Make, tmp_path: Path) -> None:
    (tmp_path / "talk.wav").write_bytes((SOUNDS / "chirp.ogg").read_bytes())
    app = hearing(make, Script())
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/attach talk.wav")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith("talk.wav is Ogg (Vorbis or Opus); what can be read is WAV, MP3 or FLAC")
        assert draft(app) == ()


async def test_reading_a_sound_is_told_and_escape_stops_it(make: Make) -> None:
    script = Script("Hello.")
    script.reading, script.reading_what = (2, 13), READING_SOUND
    app = hearing(make, script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "What is @talk.wav")
        await wait_until(pilot, lambda: "reading the sound 3/13; Escape stops" in transcript(app))
        await pilot.press("escape")
        await quiet(app, pilot)
        assert last(app).state == "stopped"
