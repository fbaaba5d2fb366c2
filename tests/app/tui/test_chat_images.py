"""Images in the chat: attached in every way, weighed before they are sent, shown, kept, read with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual import events
from textual.widgets import TextArea

from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.models.images.image import Image
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel
from tests.pictures import picture, picture_file

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    picture_file(tmp_path / "sea.png", 640, 480)
    picture_file(tmp_path / "my photo.jpg", 300, 600, "JPEG")
    with chat_app(home) as make:
        yield make


def seeing(make: Make, script: Script) -> ChatApp:
    return make(script, lambda settings, face: LoadedModel(ScriptedModel(script, reads_images=True)))


def notices(app: ChatApp) -> list[str]:
    return [notice.message for notice in app._notifications]


def chips(app: ChatApp) -> str:
    return str(app.chat_screen.query_one(Chips).content)


def transcript(app: ChatApp) -> str:
    shown = app.chat_screen.transcript
    return "\n".join(shown.render_line(y).text.rstrip() for y in range(shown.size.height))


def draft(app: ChatApp) -> tuple[Attachment, ...]:
    return app.chat_screen.composer.draft.attachments


async def test_an_image_that_is_mentioned_is_weighed_sent_shown_and_kept(make: Make, tmp_path: Path) -> None:
    script = Script("The sea.", "Red.")
    app = seeing(make, script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        app.chat_screen.query_one(TextArea).insert("What is @sea.png")
        await wait_until(pilot, lambda: "sea.png 640 × 480, 40 tok" in chips(app))
        assert "43 tok in all" in chips(app)
        await wait_until(pilot, lambda: "44" in app.chat_screen.context_bar.text)
        await pilot.press("escape", "enter")
        await quiet(app, pilot)
        assert branch(app) == [("user", "What is @sea.png"), ("assistant", "The sea.")]
        (asked,) = script.asked
        text = {"type": "text", "text": "What is @sea.png"}
        assert asked[-1].content == [{"type": "image", "image": Image.of(tmp_path / "sea.png")}, text]
        assert transcript(app).count("▀") == 21 * 8
        assert "image: sea.png, 640 × 480, " in transcript(app)
        assert "kB, 40 tokens" in transcript(app)
        (tmp_path / "sea.png").unlink()
        await say(pilot, "Which colour has the sun?")
        await quiet(app, pilot)
        assert script.asked[-1][0] == asked[-1]
        number = app.chat_screen.chat.number
        assert number is not None
        await app.chat_screen.action_new()
        await app.chat_screen.open_chat(number)
        await wait_until(pilot, lambda: "image: sea.png" in transcript(app))
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert script.asked[-1][0] == asked[-1]


async def test_an_edited_question_keeps_its_image(make: Make, tmp_path: Path) -> None:
    script = Script("The sea.", "A sea.")
    app = seeing(make, script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "What is @sea.png")
        await quiet(app, pilot)
        (tmp_path / "sea.png").unlink()
        await say(pilot, "/edit")
        await wait_until(pilot, lambda: "sea.png 640 × 480, 40 tok" in chips(app))
        await pilot.press("end", *" there", "enter")
        await quiet(app, pilot)
        assert branch(app)[0] == ("user", "What is @sea.png there")
        assert script.asked[1][-1].content[0] == script.asked[0][-1].content[0]


@pytest.mark.parametrize(
    ("pasted", "names"),
    [
        ("'{folder}/my photo.jpg' ", ["my photo.jpg"]),
        ("{folder}/my\\ photo.jpg", ["my photo.jpg"]),
        ("file://{folder}/my%20photo.jpg\nfile://{folder}/sea.png", ["my photo.jpg", "sea.png"]),
    ],
)
async def test_images_are_dropped_on_the_terminal(make: Make, tmp_path: Path, pasted: str, names: list[str]) -> None:
    app = seeing(make, Script())
    text = pasted.replace("{folder}", str(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        area = app.chat_screen.query_one(TextArea)
        area.post_message(events.Paste(text))
        await wait_until(pilot, lambda: sorted(one.name for one in draft(app)) == names)
        assert area.text == ""
        area.post_message(events.Paste(text))  # as a text, then
        await wait_until(pilot, lambda: area.text == text)
        assert len(draft(app)) == len(names)


async def test_a_command_attaches_several_images(make: Make) -> None:
    app = seeing(make, Script())
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, '/attach sea.png "my photo.jpg"')
        await wait_until(pilot, lambda: len(draft(app)) == 2)
        assert "my photo.jpg 300 × 600" in chips(app)


async def test_a_model_that_sees_nothing_is_not_sent_an_image(make: Make) -> None:
    script = Script("Never.")
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        app.chat_screen.query_one(TextArea).insert("What is @sea.png")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith("scripted, as it was opened, reads no images")
        await pilot.press("escape", "enter")
        await wait_until(pilot, lambda: notices(app)[-1].startswith("not sent: scripted, as it was opened, reads no"))
        assert "/model opens another one" in notices(app)[-1]
        assert app.chat_screen.composer.draft.text == "What is @sea.png"
        assert app.chat_screen.chat.number is None
        assert script.asked == []


async def test_a_damaged_image_is_told_in_a_line(make: Make, tmp_path: Path) -> None:
    (tmp_path / "sea.png").write_bytes(picture(640, 480)[:3000])
    app = seeing(make, Script())
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/attach sea.png")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith("sea.png cannot be decoded")
        assert "\n" not in notices(app)[-1]
        assert draft(app) == ()


async def test_reading_an_image_is_told_and_escape_stops_it(make: Make) -> None:
    script = Script("The sea.")
    script.reading = 2, 13
    app = seeing(make, script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "What is @sea.png")
        await wait_until(pilot, lambda: "reading the image 3/13; Escape stops" in transcript(app))
        await pilot.press(*"meanwhile")
        assert app.chat_screen.query_one(TextArea).text == "meanwhile"
        await pilot.press("escape")
        await quiet(app, pilot)
        assert last(app).state == "stopped"
        assert "reading the image" not in transcript(app)
        script.reading = None
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert last(app).text == "The sea."


async def test_without_colours_an_image_is_its_name(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = seeing(make, Script("The sea."))
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "@sea.png")
        await quiet(app, pilot)
        assert "▀" not in transcript(app)
        assert "image: sea.png, 640 × 480" in transcript(app)
