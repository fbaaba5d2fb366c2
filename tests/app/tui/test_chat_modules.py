"""Modules in the chat: a file is read once, and answers name it; a model that is opened later gets it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.tui.app import ChatApp
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.txt").write_text("one two three four")
    with chat_app(home) as make:
        yield make


def notices(app: ChatApp) -> list[str]:
    return [notice.message for notice in app._notifications]


async def test_a_file_that_was_added_stands_before_the_questions_that_follow(make: Make) -> None:
    script = Script("Read.")
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        model = app.state.model
        assert isinstance(model, ScriptedModel)
        await say(pilot, "/modules add rules.txt as rules")
        await wait_until(pilot, lambda: any("rules: 4 tokens" in text for text in notices(app)))
        assert model.read == ["rules"]
        await say(pilot, "what do they say?")
        await quiet(app, pilot)
        assert script.options[-1].get("modules") == ["rules"]
        other = ScriptedModel(script)
        app.chat_screen.give_modules(other)
        await wait_until(pilot, lambda: "rules" in other.modules)
        assert other.read == []  # it is read with the next question
        await say(pilot, "/modules remove rules")
        await say(pilot, "and now?")
        await quiet(app, pilot)
        assert not script.options[-1].get("modules")


async def test_what_cannot_be_read_is_told(make: Make) -> None:
    app = make(Script("Read."))
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "/modules add nothing.txt")
        await wait_until(pilot, lambda: any("nothing.txt is no file" in text for text in notices(app)))
        await say(pilot, "/modules forget rules")
        await wait_until(pilot, lambda: any("/modules cannot do" in text for text in notices(app)))
