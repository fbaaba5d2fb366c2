"""Every setting is an option of the commands that answer, but for those that say nothing there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import pytest

from edgeinfer.app.commands import chat, run, serve
from edgeinfer.settings import declared_options

SCREEN = "says how the terminal app looks, which this command does not show"
APP = "is a matter of habit, set in the configuration once"
WITHOUT: Mapping[Callable[..., None], Mapping[str, str]] = {
    run.run: {"theme": SCREEN, "keys": SCREEN, "thinking": SCREEN, "previews": SCREEN, "snapshots": SCREEN},
    chat.chat: {"keys": APP, "thinking": APP, "previews": APP, "snapshots": APP},
    serve.serve: {
        "system": "is the client's: messages are answered as they come",
        "theme": SCREEN,
        "keys": SCREEN,
        "thinking": SCREEN,
        "previews": SCREEN,
        "snapshots": SCREEN,
    },
}


@pytest.mark.parametrize("command", WITHOUT, ids=lambda command: command.__name__)
def test_each_setting_is_an_option_but_for_those_that_say_nothing(command: Callable[..., None]) -> None:
    given, named = set(inspect.signature(command).parameters), set(declared_options())
    assert named - given == set(WITHOUT[command])
