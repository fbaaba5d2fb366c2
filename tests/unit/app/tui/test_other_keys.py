"""Ids of keys of other screens: all have one, and none is a chat command's."""

from __future__ import annotations

from textual.binding import Binding

from edgeinfer.app.tui.commands import COMMANDS
from edgeinfer.app.tui.other_keys import other_ids, owners


def test_every_key_has_an_id_of_its_own() -> None:
    found = [binding.id for owner in owners() for binding in owner.BINDINGS if isinstance(binding, Binding)]
    assert None not in found
    assert len(found) == len(set(found)) == len(other_ids())
    assert {"composer.send", "viewer.back", "settings.reset"} <= set(other_ids())
    assert not {command.id for command in COMMANDS} & set(other_ids())
