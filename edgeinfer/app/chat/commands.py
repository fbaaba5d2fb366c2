"""The commands of a chat: one table behind slash commands, keys, the palette, the help and line mode.

In: lines such as "/temp 0.2". Out: the command and its argument. A new command is one row: with `run` it works in every
chat; with `action` it calls `action_NAME` of the interfaces that have such a method (the chat screen, line mode).
Imports neither Textual nor the engine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.errors import BadSetting


class ChatFace(Protocol):
    """What a command can use of the interface it was typed into."""

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the open chat."""
        ...

    def set_system_prompt(self, text: str | None) -> None:
        """Set or remove the system prompt."""
        ...

    def set_for_now(self, name: str, text: str) -> str:
        """Change a setting for this run, unless `text` is empty; return a line that shows it. Raises BadSetting."""
        ...

    def change_modules(self, argument: str) -> str:
        """List, add or remove modules; return what to show. Raises EdgeInferError."""
        ...


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One command.

    id       name of its key binding, for remapping
    form     how it is written after the slash, "" if it has only keys
    keys     Textual's names, separated by commas
    action   name of a method of the interface
    run      returns the line to show
    aliases  names of the same command in other programs
    """

    id: str
    form: str
    help: str
    keys: str
    action: str
    group: str
    aliases: tuple[str, ...] = ()
    run: Callable[[ChatFace, str], str] | None = None

    @property
    def word(self) -> str:
        """The slash command without its arguments."""
        return self.form.partition(" ")[0]

    @property
    def takes_text(self) -> bool:
        """Whether the command takes an argument."""
        return " " in self.form


def _system(face: ChatFace, argument: str) -> str:
    if argument:
        face.set_system_prompt(None if argument == "none" else argument)
    return f"system prompt: {face.system_prompt or 'none'}"


def _temp(face: ChatFace, argument: str) -> str:
    return face.set_for_now("temp", argument)


def _seed(face: ChatFace, argument: str) -> str:
    return face.set_for_now("seed", argument)


def _modules(face: ChatFace, argument: str) -> str:
    return face.change_modules(argument)


COMMANDS: tuple[ChatCommand, ...] = (
    ChatCommand("stop", "", "stop the answer; the text so far stays", "escape", "stop", "answer"),
    ChatCommand("interrupt", "", "the same, while an answer is generated", "ctrl+c", "interrupt", "answer"),
    ChatCommand("regen", "regen", "regenerate the answer", "ctrl+r", "regen", "answer", ("retry",)),
    ChatCommand("several", "several N [QUESTION]", "ask N times side by side; one answer is kept", "", "several",
                "answer"),
    ChatCommand("map", "map INSTRUCTION", "follow an instruction for each line below it, side by side", "", "map",
                "answer"),
    ChatCommand("continue", "continue", "continue the last answer", "alt+c", "continue", "answer"),
    ChatCommand("edit", "edit", "edit the question; the old one stays as a branch", "alt+e", "edit", "answer"),
    ChatCommand("unqueue", "unqueue", "take back the last queued question", "alt+q", "unqueue", "answer"),
    ChatCommand("up", "", "select the message above", "alt+up", "select_previous", "transcript"),
    ChatCommand("down", "", "select the message below", "alt+down", "select_next", "transcript"),
    ChatCommand("latest", "", "scroll to the end", "alt+end", "follow", "transcript"),
    ChatCommand("page-up", "", "scroll up", "pageup", "page_up", "transcript"),
    ChatCommand("page-down", "", "scroll down", "pagedown", "page_down", "transcript"),
    ChatCommand("copy", "copy", "copy the message as written", "ctrl+y", "copy", "transcript"),
    ChatCommand("copy-fence", "fence [NUMBER]", "copy a code block (default: the last)", "alt+y", "copy_fence",
                "transcript"),
    ChatCommand("save-fence", "save [NUMBER] [PATH]", "save a code block to a file", "alt+s", "save_fence",
                "transcript"),
    ChatCommand("run", "run [NUMBER]", "run a code block, after a question", "", "run", "transcript"),
    ChatCommand("pipe", "pipe [NUMBER] COMMAND", "pipe a code block into a command, after a question", "", "pipe",
                "transcript"),
    ChatCommand("tint", "drafts", "highlight drafted text by draft source", "alt+d", "tint", "transcript"),
    ChatCommand("thinking", "thinking", "show or hide reasoning", "alt+t", "thinking", "transcript"),
    ChatCommand("new", "new", "start a new chat", "ctrl+n", "new", "chats", ("clear",)),
    ChatCommand("resume", "resume", "go on with the last chat", "alt+r", "resume", "chats", ("last",)),
    ChatCommand("sessions", "sessions", "saved chats: search, rename, delete, export", "ctrl+o", "sessions", "chats",
                ("history", "chats")),
    ChatCommand("search", "search [WORDS]", "search saved chats", "", "sessions", "chats"),
    ChatCommand("rename", "rename TITLE", "rename this chat", "", "rename", "chats"),
    ChatCommand("fork", "fork", "copy this chat up to here into a new one", "", "fork", "chats"),
    ChatCommand("tree", "tree", "show all branches of this chat", "ctrl+t", "tree", "chats"),
    ChatCommand("previous-branch", "previous", "previous branch", "alt+left", "previous_branch", "chats"),
    ChatCommand("next-branch", "next", "next branch", "alt+right", "next_branch", "chats"),
    ChatCommand("export", "export [PATH]", "export this chat to a file: .md or .json", "", "export", "chats"),
    ChatCommand("import", "import PATH", "import chats, ours and of other programs", "", "import", "chats"),
    ChatCommand("system", "system [TEXT|none]", "show or set the system prompt", "", "", "conversation", run=_system),
    ChatCommand("persona", "persona [NAME]", "saved system prompts", "f4", "personas", "conversation"),
    ChatCommand("attach", "attach PATH", "attach a text file, image, sound or folder", "", "attach", "conversation"),
    ChatCommand("folder", "folder [PATH|none]", "a folder to ask about: the parts that suit each question are sent",
                "", "folder", "conversation"),
    ChatCommand("modules", "modules [add FILE]", "files read once, to stand before the first question", "", "",
                "conversation", run=_modules),
    ChatCommand("prompt", "prompt", "show the rendered prompt with its special tokens", "", "prompt", "conversation"),
    ChatCommand("prompts", "prompts [NAME]", "saved prompts; {{fields}} in them are asked for", "f5", "prompts",
                "conversation", ("library",)),
    ChatCommand("tools", "tools", "list the tools that answers may call", "", "tools", "conversation"),
    ChatCommand("compact", "compact", "summarize the oldest messages", "", "compact", "conversation"),
    ChatCommand("temp", "temp [NUMBER]", "show or set the temperature; 0 picks the most likely token", "", "",
                "conversation", run=_temp),
    ChatCommand("seed", "seed [NUMBER|none]", "show or set the random seed", "", "", "conversation", run=_seed),
    ChatCommand("editor", "editor", "write in $EDITOR", "ctrl+g", "editor", "conversation"),
    ChatCommand("models", "model [NAME]", "list models, or switch to another one", "ctrl+l", "models", "app",
                ("models", "load", "list")),
    ChatCommand("machine", "stats", "show statistics", "f3", "machine", "app"),
    ChatCommand("settings", "settings", "show and change settings", "f2", "settings", "app"),
    ChatCommand("set", "set NAME VALUE", "change a setting for this run", "", "set", "app"),
    ChatCommand("theme", "theme [NAME]", "change the colour theme", "", "theme", "app"),
    ChatCommand("help", "help", "show keys and commands", "f1", "help", "app"),
    ChatCommand("leave", "", "quit, if the input is empty", "ctrl+d", "leave_empty", "app"),
    ChatCommand("quit", "exit", "quit; everything is saved", "ctrl+q", "leave", "app", ("quit", "bye")),
)  # fmt: skip

GROUPS = {
    "answer": "answer",
    "transcript": "messages",
    "conversation": "conversation",
    "chats": "chats and branches",
    "app": "app",
}


def slash_commands(face: type | None = None) -> tuple[ChatCommand, ...]:
    """Commands that can be typed: all, or those that an interface with these actions supports."""
    return tuple(
        command
        for command in COMMANDS
        if command.form and (face is None or command.run is not None or hasattr(face, f"action_{command.action}"))
    )


def is_command(line: str) -> bool:
    """Whether a line is a slash command rather than a message."""
    return line.startswith("/") and not line.startswith("//")


def find(line: str, face: type | None = None) -> tuple[ChatCommand, str]:
    """Parse a line such as "/temp 0.2" into command and argument. Raises BadSetting with the nearest name."""
    word, _, argument = line.strip().removeprefix("/").partition(" ")
    words = {name: command for command in slash_commands(face) for name in (command.word, *command.aliases)}
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them."
        raise BadSetting(f"there is no command /{word}; {hint} To send a message that starts with /, type //")
    return words[word], argument.strip()
