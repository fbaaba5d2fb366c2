"""Key bindings of the terminal app: the keys of the chat commands, and remapping by settings.

In: the command table; settings such as "copy=ctrl+k". Out: Textual bindings and keymap, with notices for invalid
settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from edgeinfer.app.chat.commands import COMMANDS, ChatCommand

WRITING_KEYS = frozenset({"enter", "tab", "backspace", "delete", "up", "down", "left", "right", "home", "end"}) | {
    "ctrl+j", "ctrl+m", "ctrl+i", "ctrl+h"
}  # fmt: skip
LONE_KEYS = frozenset({"escape", "pageup", "pagedown", "insert"})
MODIFIED = ("ctrl+", "alt+", "super+", "meta+", "hyper+", "shift+f", "shift+page", "shift+insert")


def action_of(command: ChatCommand, argument: str = "") -> str:
    """The action string with which Textual runs a command on the chat screen."""
    if command.run is not None:
        return f"command({command.id!r}, {argument!r})"
    return f"{command.action}({argument!r})" if argument else command.action


def bindings() -> list[BindingType]:
    """The bindings of all commands that have keys."""
    return [
        Binding(
            command.keys,
            action_of(command),
            command.help,
            id=command.id,
            show=False,
            priority="escape" not in command.keys,
        )
        for command in COMMANDS
        if command.keys
    ]


def palette(do: Callable[[str], Callable[[], None]]) -> list[tuple[str, str, Callable[[], None]]]:
    """Title, help and callback of each command palette entry; `do` makes the callback of an action."""
    return [
        (f"/{command.word}" if command.word else command.id, command.help, do(action_of(command)))
        for command in COMMANDS
        if command.form
    ]


def remapped(keys: Sequence[str], others: Sequence[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Parse texts such as "copy=ctrl+k" into keys by command, with notices for those that are rejected.

    `others`: ids of other screens' keys.
    """
    known = {command.id: command for command in COMMANDS if command.keys}
    accepted: dict[str, str] = {}
    notices = []
    for text in keys:
        name, equals, key = (part.strip() for part in text.partition("="))
        if not equals or not key:
            notices.append(f"keys: {text!r} is not NAME=KEY, such as copy=ctrl+k")
        elif name not in known and name not in others:
            near = difflib.get_close_matches(name, [*known, *others], n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            notices.append(f"keys: there is no command {name!r}; {hint}")
        elif reason := _unfit(name, key, others):
            notices.append(f"keys: {text} is ignored: {reason}")
        else:
            accepted[name] = key
    now = {command.id: accepted.get(command.id, command.keys).split(",") for command in known.values()}
    clashes = {
        (key, *sorted((name, other)))
        for name in accepted
        if name in known
        for key in now[name]
        for other, keys_now in now.items()
        if other != name and key in keys_now
    }
    notices += [f"keys: {key} is bound to both {first} and {second}" for key, first, second in sorted(clashes)]
    return accepted, tuple(notices)


def _unfit(name: str, key: str, others: Sequence[str]) -> str:
    """Why a command cannot use a key, or "". Keys of the chat screen take precedence over the composer's."""
    if name in others:
        return ""
    for part in key.split(","):
        if part in WRITING_KEYS:
            return f"{part} is needed for writing"
        if not (part.startswith(MODIFIED) or part in LONE_KEYS or (part[:1] == "f" and part[1:].isdecimal())):
            return f"{part} alone types a character; use it with ctrl+ or alt+, or use f1 to f12"
    return ""


def other_ids() -> tuple[str, ...]:
    """Ids of the keys outside the chat screen, such as "viewer.back". Imports every screen."""
    return tuple(dict.fromkeys(binding.id for owner in owners() for binding in _bindings(owner) if binding.id))


def owners() -> tuple[type[DOMNode], ...]:
    """The screens and widgets with key ids of their own."""
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
