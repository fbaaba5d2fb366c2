"""Keys of one's own: those that cannot be are told and left out, and what shares a key is told whatever its place."""

from __future__ import annotations

import pytest
from textual.binding import Binding, BindingsMap
from textual.widgets import TextArea

from edgeinfer.app.chat_commands import COMMANDS
from edgeinfer.app.tui.keys import bindings, remapped


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
