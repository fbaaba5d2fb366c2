"""Files in the chat: what can never be answered is not sent, with the numbers and with what would work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.tui.app import ChatApp
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    with chat_app(home) as make:
        yield make


def notices(app: ChatApp) -> list[str]:
    return [notice.message for notice in app._notifications]


async def test_a_file_that_has_no_room_in_the_context_is_not_sent(make: Make, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 2000)
    (tmp_path / "short.txt").write_text("word " * 20)
    script = Script("Read.")
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "sum up @long.txt")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith(
            "not sent: the message with long.txt has 2,007 tokens, and there is room for 9"
        )
        assert "Attach less" in notices(app)[-1]
        assert app.chat_screen.composer.draft.text == "sum up @long.txt"
        assert app.chat_screen.chat.number is None
        assert script.asked == []
        await wait_until(pilot, lambda: "the draft is too long" in app.chat_screen.context_bar.text)
        await say(pilot, "sum up @short.txt")
        await quiet(app, pilot)
        assert branch(app) == [("user", "sum up @short.txt"), ("assistant", "Read.")]


async def test_a_file_attached_by_command_is_weighed_too(make: Make, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 2000)
    app = make(Script("Read."))
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "/attach long.txt")
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.attachments)
        await pilot.press(*"sum up", "enter")
        await wait_until(pilot, lambda: any("not sent: the message with long.txt" in text for text in notices(app)))
        assert app.chat_screen.composer.draft.text == "sum up"
        assert app.chat_screen.chat.number is None


@pytest.mark.parametrize("name", ["~nobody-is-called-so/a.txt", "gone.txt"])
async def test_attaching_what_is_not_there_is_told(make: Make, name: str) -> None:
    app = make(Script("Read."))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, f"/attach {name}")
        await wait_until(pilot, lambda: notices(app))
        assert notices(app)[-1].startswith(f"{name} cannot be attached: it does not exist")
