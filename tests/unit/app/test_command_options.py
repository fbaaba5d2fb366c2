"""Every setting is an option of the commands that answer, but for those that say nothing there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from edgeinfer.app.command_line.misuse import with_bare_values
from edgeinfer.app.commands import chat, run, serve
from edgeinfer.errors import BadSetting
from edgeinfer.settings import declared_options

SCREEN = "says how the terminal app looks, which this command does not show"
CLUSTER = "is for serving and for batches: one answer is one computer's"
APP = "is a matter of habit, set in the configuration once"
WITHOUT: Mapping[Callable[..., None], Mapping[str, str]] = {
    run.run: {
        "ray": CLUSTER,
        "theme": SCREEN,
        "keys": SCREEN,
        "thinking": SCREEN,
        "previews": SCREEN,
        "snapshots": SCREEN,
    },
    chat.chat: {"ray": CLUSTER, "keys": APP, "thinking": APP, "previews": APP, "snapshots": APP},
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


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        (["--ray"], ["--ray=auto"]),
        (["--ray", "10.0.0.5:6379", "-m", "x"], ["--ray", "10.0.0.5:6379", "-m", "x"]),
        (["--ray", "local"], ["--ray", "local"]),
        (["--ray", "prompts.jsonl"], ["--ray=auto", "prompts.jsonl"]),
        (["--ray", "-m", "x"], ["--ray=auto", "-m", "x"]),
        (["--ray=local", "f"], ["--ray=local", "f"]),
        (["--", "--ray"], ["--", "--ray"]),
        (["--temp", "0"], ["--temp", "0"]),
        ([], []),
    ],
)
def test_a_flag_without_a_value_has_its_usual_one(words: list[str], parsed: list[str]) -> None:
    assert with_bare_values(words) == parsed


def test_options_of_serve_by_name(home: Path) -> None:
    named = {"model": "small", "ctx": 2048, "parallel": "3", "strict_names": True, "allow_host": ["a.b", "c.d"]}
    settings, options, flags = serve.parsed_options({**named, "no_autoload": False, "alias": None})
    assert (settings.model.model, settings.load.n_context) == ("small", 2048)
    assert (options.parallel, options.strict_names, options.hosts) == (3, True, ("a.b", "c.d"))
    assert flags.no_autoload is False


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"paralel": 3}, "did you mean --parallel"),
        ({"parallel": "many"}, "--parallel needs a whole number from 1 to 64"),
        ({"temp": 9}, "--temp needs a number from 0 to 2"),
    ],
)
def test_wrong_options_of_serve_by_name(home: Path, named: dict[str, object], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        serve.parsed_options(named)
