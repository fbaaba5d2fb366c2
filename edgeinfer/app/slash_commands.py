"""The slash commands of line mode: what a line that begins with / does.

In: a `Dialogue` and the rest of the line. Out: what to tell, and whether to answer again or to leave. Prints nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from edgeinfer.app.answer_output import stats_text
from edgeinfer.app.dialogue import Dialogue
from edgeinfer.errors import BadSetting
from edgeinfer.settings import read_value


class Then(Enum):
    """What follows a slash command."""

    NEXT = "next line"
    ANSWER = "answer the last question again"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What to tell the user, and what follows."""

    text: str = ""
    then: Then = Then.NEXT


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command: how it is written after the slash, what it does, and doing it."""

    form: str
    help: str
    run: Callable[[Dialogue, str], CommandOutcome]


def run_line(dialogue: Dialogue, line: str) -> CommandOutcome:
    """Do what a line such as "/temp 0.2" says. Raises BadSetting for an unknown command or an impossible value."""
    name, _, argument = line.strip().removeprefix("/").partition(" ")
    commands = {command.form.split()[0]: command for command in slash_commands()}
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise BadSetting(f"no command is called /{name}; {hint} To say a line that begins with /, begin it with //")
    return commands[name].run(dialogue, argument.strip())


def is_command(line: str) -> bool:
    """Whether a line is a slash command and not something to say."""
    return line.startswith("/") and not line.startswith("//")


def slash_commands() -> tuple[SlashCommand, ...]:
    """Every command, in the order of the help."""
    return (
        SlashCommand("help", "show this", _help),
        SlashCommand("new", "begin a new conversation", _new),
        SlashCommand("system [TEXT|none]", "show or set the system prompt", _system),
        SlashCommand("temp [NUMBER]", "show or set the temperature; 0 takes the most likely token", _temp),
        SlashCommand("seed [NUMBER|none]", "show or set the seed of the random choices", _seed),
        SlashCommand("regen", "answer the last question again", _regen),
        SlashCommand("stats", "show the numbers of the last answer", _stats),
        SlashCommand("exit", "leave (Ctrl-D does too)", _exit),
    )


def _help(dialogue: Dialogue, argument: str) -> CommandOutcome:
    lines = [f"/{command.form:<20} {command.help}" for command in slash_commands()]
    return CommandOutcome("\n".join([*lines, "Ctrl-C stops an answer; what there is of it is kept."]))


def _new(dialogue: Dialogue, argument: str) -> CommandOutcome:
    dialogue.clear()
    stays = "; its system prompt stays, /system none removes it" if dialogue.system else ""
    return CommandOutcome(f"a new conversation{stays}")


def _system(dialogue: Dialogue, argument: str) -> CommandOutcome:
    if argument:
        dialogue.system = None if argument == "none" else argument
    return CommandOutcome(f"system prompt: {dialogue.system or 'none'}")


def _temp(dialogue: Dialogue, argument: str) -> CommandOutcome:
    if argument:
        value = read_value("temp", argument, "/temp")
        assert isinstance(value, float)
        dialogue.options["temperature"] = value
    return CommandOutcome(f"temperature: {dialogue.options.get('temperature')}")


def _seed(dialogue: Dialogue, argument: str) -> CommandOutcome:
    if argument:
        value = read_value("seed", argument, "/seed")
        assert value is None or isinstance(value, int)
        dialogue.options["seed"] = value
    seed = dialogue.options.get("seed")
    return CommandOutcome(f"seed: {'a new one for each answer' if seed is None else seed}")


def _regen(dialogue: Dialogue, argument: str) -> CommandOutcome:
    if not dialogue.turns:
        return CommandOutcome("there is no answer yet")
    return CommandOutcome(then=Then.ANSWER)


def _stats(dialogue: Dialogue, argument: str) -> CommandOutcome:
    stats = dialogue.turns[-1].stats if dialogue.turns else None
    return CommandOutcome("there is no answer yet" if stats is None else stats_text(stats))


def _exit(dialogue: Dialogue, argument: str) -> CommandOutcome:
    return CommandOutcome(then=Then.LEAVE)
