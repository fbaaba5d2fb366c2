"""The table of commands: complete, without two of anything, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeinfer.app.chat.commands import COMMANDS, GROUPS, find, slash_commands
from edgeinfer.app.chat.dialogue import LineCommands
from edgeinfer.app.tui.screens.chat import ChatScreen
from edgeinfer.errors import BadSetting


def twice(texts: Iterator[str]) -> set[str]:
    """Texts that come more than once."""
    seen: set[str] = set()
    return {text for text in texts if text in seen or seen.add(text)}


@pytest.mark.parametrize("action", sorted({command.action for command in COMMANDS if command.run is None}))
def test_every_action_is_one_of_the_chat_screen(action: str) -> None:
    assert callable(getattr(ChatScreen, f"action_{action}"))


def test_there_are_no_two_of_anything() -> None:
    assert not twice(command.id for command in COMMANDS)
    assert not twice(word for command in slash_commands() for word in (command.word, *command.aliases))
    assert not twice(key for command in COMMANDS for key in command.keys.split(",") if key)


def test_every_command_can_be_reached_and_belongs_somewhere() -> None:
    for command in COMMANDS:
        assert command.keys or command.form, command.id
        assert command.group in GROUPS, command.id
        assert command.help, command.id
    assert {command.group for command in COMMANDS} == set(GROUPS)


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
    with pytest.raises(BadSetting, match="there is no command") as caught:
        find(line)
    assert hint in str(caught.value)
    assert "type //" in str(caught.value)


def test_commands_without_a_key_take_none_for_themselves() -> None:
    assert all(command.form for command in COMMANDS if not command.keys)
    assert not next(command for command in COMMANDS if command.word == "exit").takes_text
    assert next(command for command in COMMANDS if command.word == "rename").takes_text


def test_line_mode_has_the_commands_that_need_no_screen() -> None:
    words = {command.word for command in slash_commands(LineCommands)}
    assert words == {"help", "new", "system", "modules", "temp", "seed", "regen", "stats", "exit"}
    assert find("/clear", LineCommands)[0].id == "new"
    with pytest.raises(BadSetting, match="/sessions"):
        find("/sessions", LineCommands)
