"""The table of commands: complete, without two of anything, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from edgeinfer.app.tui.commands import COMMANDS, GROUPS, bindings, find, palette, remapped, slash_commands
from edgeinfer.app.tui.screens.chat import ChatScreen
from edgeinfer.errors import BadSetting


def twice(texts: Iterator[str]) -> set[str]:
    """Texts that come more than once."""
    seen: set[str] = set()
    return {text for text in texts if text in seen or seen.add(text)}


@pytest.mark.parametrize("action", sorted({command.action for command in COMMANDS}))
def test_every_action_is_one_of_the_chat_screen(action: str) -> None:
    assert callable(getattr(ChatScreen, f"action_{action}"))


def test_there_are_no_two_of_anything() -> None:
    assert not twice(command.id for command in COMMANDS)
    assert not twice(word for command in slash_commands() for word in (command.word, *command.also))
    assert not twice(key for command in COMMANDS for key in command.keys.split(",") if key)


def test_every_command_can_be_reached_and_belongs_somewhere() -> None:
    for command in COMMANDS:
        assert command.keys or command.form, command.id
        assert command.group in GROUPS, command.id
        assert command.help, command.id
    assert {command.group for command in COMMANDS} == set(GROUPS)


def test_bindings_have_the_ids_of_their_commands() -> None:
    found = bindings()
    assert [getattr(binding, "id", None) for binding in found] == [command.id for command in COMMANDS if command.keys]


@pytest.mark.parametrize(
    ("line", "id", "argument"),
    [
        ("/temp 0.2", "temp", "0.2"),
        ("/save 2  a file.py ", "save-fence", "2  a file.py"),
        (" /exit", "quit", ""),
        ("/bye", "quit", ""),
        ("/load tiny.gguf", "models", "tiny.gguf"),
        ("/temp", "temp", ""),
    ],
)
def test_lines_are_taken_apart(line: str, id: str, argument: str) -> None:
    command, rest = find(line)
    assert (command.id, rest) == (id, argument)


@pytest.mark.parametrize(
    ("line", "hint"), [("/tmep 1", "did you mean /temp?"), ("/zzzz", "/help lists them"), ("/", "/help")]
)
def test_unknown_words_are_said_with_the_nearest(line: str, hint: str) -> None:
    with pytest.raises(BadSetting, match="no command is called") as caught:
        find(line)
    assert hint in str(caught.value)
    assert "begin it with //" in str(caught.value)


def test_commands_without_a_key_take_none_for_themselves() -> None:
    assert all(command.form for command in COMMANDS if not command.keys)
    assert not next(command for command in COMMANDS if command.word == "exit").takes_text
    assert next(command for command in COMMANDS if command.word == "rename").takes_text


def test_keys_are_changed_by_their_commands_names() -> None:
    assert remapped(["copy=f9", " stop = f10 "]) == ({"copy": "f9", "stop": "f10"}, ())


def test_keys_of_other_screens_are_known_where_they_are_given() -> None:
    assert remapped(["viewer.back=x"], ["viewer.back"]) == ({"viewer.back": "x"}, ())


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("copy", "is not NAME=KEY"),
        ("copy=", "is not NAME=KEY"),
        ("cpoy=f9", "did you mean copy?"),
        ("zzzzzz=f9", "there are: stop"),
        ("rename=f9", "no command is called 'rename'"),
    ],
)
def test_what_is_no_key_is_said_and_left_out(text: str, notice: str) -> None:
    found, notices = remapped([text])
    assert found == {}
    assert len(notices) == 1
    assert notice in notices[0]


@pytest.mark.parametrize(
    ("keys", "both"),
    [
        (["copy=ctrl+r"], {"copy", "regen"}),
        (["regen=ctrl+y"], {"copy", "regen"}),
        (["copy=f9", "stop=f9"], {"copy", "stop"}),
    ],
)
def test_a_key_of_two_commands_is_said(keys: list[str], both: set[str]) -> None:
    _, notices = remapped(keys)
    assert len(notices) == 1
    assert all(name in notices[0] for name in both)


def test_a_command_can_have_several_keys() -> None:
    assert remapped(["copy=f9,f10"]) == ({"copy": "f9,f10"}, ())
    assert len(remapped(["copy=f9,ctrl+r"])[1]) == 1


def test_a_key_that_was_given_up_is_free() -> None:
    assert remapped(["copy=f9", "regen=ctrl+y"]) == ({"copy": "f9", "regen": "ctrl+y"}, ())


def test_the_palette_offers_what_can_be_written() -> None:
    done: list[str] = []

    def doing(action: str) -> Callable[[], None]:
        return lambda: done.append(action)

    offered = palette(doing)
    assert [title for title, _, _ in offered] == [f"/{command.word}" for command in slash_commands()]
    for _, _, do in offered:
        do()
    assert done == [command.action for command in slash_commands()]
