"""Models that the app opens one after another: nothing of a closed one stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.engine import closed_models
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    """Makes apps over the chats of this test, and cleans up after them."""
    with chat_app(home) as make:
        yield make
    gc.enable()


async def test_a_model_that_was_closed_for_another_one_is_freed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_models, "AFTER_S", 0.05)
    script, opened = Script("Hello"), list[weakref.ref[ScriptedModel]]()

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        model = ScriptedModel(script, settings.model.model or "first")
        opened.append(weakref.ref(model))
        return LoadedModel(model)

    app = make(script, opening=opening)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        gc.disable()
        await say(pilot, "/model other")
        await wait_until(pilot, lambda: len(opened) == 2 and app.state.model is opened[1]())
        await wait_until(pilot, lambda: opened[0]() is None)  # nobody else collects garbage
