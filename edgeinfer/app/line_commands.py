"""The slash commands of line mode: `chat_commands` applied to a `Dialogue`.

In: a dialogue and a line. Out: the text to show, and whether to answer again or to leave. Prints nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from edgeinfer.app.answer_output import stats_text
from edgeinfer.app.chat_commands import find, slash_commands
from edgeinfer.app.dialogue import Dialogue
from edgeinfer.settings import find_option, read_value

OPTION_NAMES = {"temp": "temperature", "seed": "seed"}
"""Settings that can be changed during a dialogue and affect its answers."""


class Then(Enum):
    """What happens after a slash command."""

    NEXT = "next line"
    ANSWER = "answer the last question again"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The text to show, and what happens next."""

    text: str = ""
    then: Then = Then.NEXT


class LineCommands:
    """A dialogue as commands see it: a `ChatFace` with the actions that need no screen."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    def run(self, line: str) -> CommandOutcome:
        """Run a line such as "/temp 0.2". Raises BadSetting for an unknown command or a bad value."""
        command, argument = find(line, LineCommands)
        if command.run is not None:
            return CommandOutcome(command.run(self, argument))
        outcome: CommandOutcome = getattr(self, f"action_{command.action}")()
        return outcome

    @property
    def system_prompt(self) -> str | None:
        return self._dialogue.system

    def set_system_prompt(self, text: str | None) -> None:
        self._dialogue.system = text

    def set_for_now(self, name: str, text: str) -> str:
        options: Any = self._dialogue.options
        if text:
            options[OPTION_NAMES[name]] = read_value(name, text, f"/{name}")
        value = options.get(OPTION_NAMES[name])
        return f"{name}: {find_option(name).unset if value is None else value}"

    def action_help(self) -> CommandOutcome:
        """List the commands."""
        lines = [f"/{command.form:<20} {command.help}" for command in slash_commands(LineCommands)]
        return CommandOutcome("\n".join([*lines, "Ctrl-C stops an answer and keeps its text; Ctrl-D quits."]))

    def action_new(self) -> CommandOutcome:
        """Start a new conversation."""
        self._dialogue.clear()
        stays = "; its system prompt stays, /system none removes it" if self._dialogue.system else ""
        return CommandOutcome(f"a new conversation{stays}")

    def action_regen(self) -> CommandOutcome:
        """Answer the last question again."""
        if not self._dialogue.turns:
            return CommandOutcome("there is no answer yet")
        return CommandOutcome(then=Then.ANSWER)

    def action_machine(self) -> CommandOutcome:
        """Show the statistics of the last answer."""
        stats = self._dialogue.turns[-1].stats if self._dialogue.turns else None
        return CommandOutcome("there is no answer yet" if stats is None else stats_text(stats))

    def action_leave(self) -> CommandOutcome:
        """Quit."""
        return CommandOutcome(then=Then.LEAVE)
