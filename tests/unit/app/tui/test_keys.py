"""Keys of the terminal app: bindings, remapping, and the ids of other screens' keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.binding import Binding, BindingsMap
from textual.widgets import TextArea

from edgeinfer.app.chat.commands import COMMANDS, slash_commands
from edgeinfer.app.tui.keys import action_of, bindings, other_ids, owners, palette, remapped


def test_every_key_has_an_id_of_its_own() -> None:
    found = [binding.id for owner in owners() for binding in owner.BINDINGS if isinstance(binding, Binding)]
    assert None not in found
    assert len(found) == len(set(found)) == len(other_ids())
    assert {"composer.send", "viewer.back", "settings.reset"} <= set(other_ids())
    assert not {command.id for command in COMMANDS} & set(other_ids())


def test_bindings_have_the_ids_of_their_commands() -> None:
    found = bindings()
    assert [getattr(binding, "id", None) for binding in found] == [command.id for command in COMMANDS if command.keys]


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
        ("rename=f9", "there is no command 'rename'"),
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
    assert done == [action_of(command) for command in slash_commands()]


def test_ids_and_keys_are_there_once() -> None:
    ids = [command.id for command in COMMANDS]
    keys = [key for command in COMMANDS for key in command.keys.split(",") if key]
    assert len(ids) == len(set(ids))
    assert len(keys) == len(set(keys))


def test_writing_keeps_its_keys_but_for_those_meant_to_go_first() -> None:
    """Ctrl+Y copies (redo is Textual's), Ctrl+C copies what is selected when nothing is being answered, Ctrl+D leaves
    when nothing is written.
    """
    writing = {key for key, _ in BindingsMap(TextArea.BINDINGS)}
    ours = {key for binding in bindings() if isinstance(binding, Binding) for key in binding.key.split(",")}
    assert writing & ours == {"ctrl+c", "ctrl+d", "ctrl+y", "pageup", "pagedown"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["copy=y"], "y alone types a character"),
        (["copy=shift+y"], "alone types a character"),
        (["copy=f"], "alone types a character"),
        (["copy=enter"], "enter is needed for writing"),
        (["copy=ctrl+j"], "ctrl+j is needed for writing"),
    ],
)
def test_keys_that_writing_needs_are_left_out(keys: list[str], told: str) -> None:
    found, notices = remapped(keys)
    assert found == {}
    assert len(notices) == 1
    assert told in notices[0]


@pytest.mark.parametrize("key", ["f6", "ctrl+b", "alt+k", "insert", "f6,alt+k"])
def test_keys_that_can_be(key: str) -> None:
    assert remapped([f"copy={key}"]) == ({"copy": key}, ())


def test_keys_of_other_screens_are_their_own_affair() -> None:
    assert remapped(["sessions.rename=r"], others=("sessions.rename",)) == ({"sessions.rename": "r"}, ())


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["copy=ctrl+n"], ["keys: ctrl+n is bound to both copy and new"]),
        (["copy=ctrl+c"], ["keys: ctrl+c is bound to both copy and interrupt"]),
        (["copy=f6", "new=f6"], ["keys: f6 is bound to both copy and new"]),
        (["copy=ctrl+n", "new=ctrl+y"], []),
    ],
)
def test_what_shares_a_key_is_told(keys: list[str], told: list[str]) -> None:
    assert list(remapped(keys)[1]) == told
