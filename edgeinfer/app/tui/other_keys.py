"""Ids of the keys that are not the chat screen's own commands: other screens', and the composer's.

In: nothing. Out: ids, such as "viewer.back". Loads every screen, so it is asked only where somebody has changed keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from textual.binding import Binding
from textual.dom import DOMNode


def other_ids() -> tuple[str, ...]:
    """All of them, in their order."""
    return tuple(dict.fromkeys(binding.id for owner in owners() for binding in _bindings(owner) if binding.id))


def owners() -> tuple[type[DOMNode], ...]:
    """The screens and widgets that have such keys."""
    from edgeinfer.app.tui.screens.branches import BranchesScreen
    from edgeinfer.app.tui.screens.help import HelpScreen
    from edgeinfer.app.tui.screens.machine import MachineScreen
    from edgeinfer.app.tui.screens.models import ModelsScreen
    from edgeinfer.app.tui.screens.personas import PersonasScreen
    from edgeinfer.app.tui.screens.sessions import SessionsScreen
    from edgeinfer.app.tui.screens.settings import SettingsScreen
    from edgeinfer.app.tui.screens.viewer import ViewerScreen
    from edgeinfer.app.tui.widgets.composer import Composer

    screens = (SessionsScreen, ModelsScreen, MachineScreen, SettingsScreen, PersonasScreen, BranchesScreen)
    return (Composer, *screens, ViewerScreen, HelpScreen)


def _bindings(owner: type[DOMNode]) -> Iterator[Binding]:
    return (binding for binding in owner.BINDINGS if isinstance(binding, Binding))
