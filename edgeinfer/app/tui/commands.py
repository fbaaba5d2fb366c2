"""The one table of the chat screen's commands: slash commands, keys, the palette and the help are made from it.

In: nothing. Out: commands, and what is made of them. A command's action is a method of the chat screen; what it does
stands there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from edgeinfer.errors import BadSetting


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One thing to do.

    id: of its key, for remapping; form: how it is written after the slash, "" where it has keys alone; keys: Textual's
    names, with commas between them; action: the screen's; also: what other programs call it.
    """

    id: str
    form: str
    help: str
    keys: str
    action: str
    group: str
    also: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The slash command without its arguments."""
        return self.form.partition(" ")[0]

    @property
    def takes_text(self) -> bool:
        """Whether something may follow the word."""
        return " " in self.form


COMMANDS: tuple[ChatCommand, ...] = (
    ChatCommand("stop", "", "stop the answer; what there is of it stays", "escape", "stop", "answer"),
    ChatCommand("interrupt", "", "the same, while an answer is written", "ctrl+c", "interrupt", "answer"),
    ChatCommand("regen", "regen", "another answer to the same question", "ctrl+r", "regen", "answer"),
    ChatCommand("continue", "continue", "write on where the answer ended", "alt+c", "continue", "answer"),
    ChatCommand("edit", "edit", "edit the question; the old one stays as a branch", "alt+e", "edit", "answer"),
    ChatCommand("unqueue", "unqueue", "take the queued questions back", "alt+q", "unqueue", "answer"),
    ChatCommand("up", "", "select the message above", "alt+up", "select_previous", "transcript"),
    ChatCommand("down", "", "select the message below", "alt+down", "select_next", "transcript"),
    ChatCommand("latest", "", "go to the latest text", "alt+end", "follow", "transcript"),
    ChatCommand("page-up", "", "scroll up", "pageup", "page_up", "transcript"),
    ChatCommand("page-down", "", "scroll down", "pagedown", "page_down", "transcript"),
    ChatCommand("copy", "copy", "copy the message as it was written", "ctrl+y", "copy", "transcript"),
    ChatCommand("copy-fence", "fence [NUMBER]", "copy a code fence, the last one without a number", "alt+y",
                "copy_fence", "transcript"),
    ChatCommand("save-fence", "save [NUMBER] [PATH]", "save a code fence to a file", "alt+s", "save_fence",
                "transcript"),
    ChatCommand("tint", "drafts", "show what was drafted, and by whom", "alt+d", "tint", "transcript"),
    ChatCommand("thinking", "thinking", "open or fold what was thought before", "alt+t", "thinking", "transcript"),
    ChatCommand("new", "new", "begin a new chat", "ctrl+n", "new", "chats", ("clear",)),
    ChatCommand("sessions", "sessions", "kept chats: search, rename, delete, export", "ctrl+o", "sessions", "chats"),
    ChatCommand("search", "search [WORDS]", "search the kept chats", "", "sessions", "chats"),
    ChatCommand("rename", "rename TITLE", "give this chat a title", "", "rename", "chats"),
    ChatCommand("fork", "fork", "go on in a new chat from here", "", "fork", "chats"),
    ChatCommand("tree", "tree", "all branches of this chat", "ctrl+t", "tree", "chats"),
    ChatCommand("previous-branch", "previous", "the branch before", "alt+left", "previous_branch", "chats"),
    ChatCommand("next-branch", "next", "the branch after", "alt+right", "next_branch", "chats"),
    ChatCommand("export", "export [PATH]", "write this chat to a file: .md or .json", "", "export", "chats"),
    ChatCommand("import", "import PATH", "read a chat from a file", "", "import", "chats"),
    ChatCommand("system", "system [TEXT|none]", "show or set the system prompt", "", "system", "conversation"),
    ChatCommand("persona", "persona [NAME]", "kept system prompts", "f4", "personas", "conversation"),
    ChatCommand("attach", "attach PATH", "attach a text file or a folder", "", "attach", "conversation"),
    ChatCommand("prompt", "prompt", "what the model is given, special tokens and all", "", "prompt", "conversation"),
    ChatCommand("compact", "compact", "have the oldest messages summed up", "", "compact", "conversation"),
    ChatCommand("temp", "temp [NUMBER]", "show or set the temperature; 0 takes the most likely token", "", "temp",
            "conversation"),
    ChatCommand("seed", "seed [NUMBER|none]", "show or set the seed of the random choices", "", "seed", "conversation"),
    ChatCommand("editor", "editor", "write in $EDITOR", "ctrl+g", "editor", "conversation"),
    ChatCommand("models", "model [NAME]", "models: here and elsewhere; open another one", "ctrl+l", "models", "app",
            ("models", "load")),
    ChatCommand("machine", "stats", "what the machine is doing", "f3", "machine", "app"),
    ChatCommand("settings", "settings", "see and change the settings", "f2", "settings", "app"),
    ChatCommand("set", "set NAME VALUE", "change a setting for this run", "", "set", "app"),
    ChatCommand("theme", "theme [NAME]", "change the colours", "", "theme", "app"),
    ChatCommand("help", "help", "this list", "f1", "help", "app"),
    ChatCommand("leave", "", "leave, where nothing is being written", "ctrl+d", "leave_empty", "app"),
    ChatCommand("quit", "exit", "leave; everything is kept", "ctrl+q", "leave", "app", ("quit", "bye")),
)  # fmt: skip

GROUPS = {
    "answer": "the answer",
    "transcript": "the messages",
    "conversation": "the conversation",
    "chats": "chats and branches",
    "app": "the rest",
}


WRITING_KEYS = frozenset({"enter", "tab", "backspace", "delete", "up", "down", "left", "right", "home", "end"}) | {
    "ctrl+j", "ctrl+m", "ctrl+i", "ctrl+h"
}  # fmt: skip
LONE_KEYS = frozenset({"escape", "pageup", "pagedown", "insert"})
MODIFIED = ("ctrl+", "alt+", "super+", "meta+", "hyper+", "shift+f", "shift+page", "shift+insert")


def bindings() -> list[BindingType]:
    """The keys of all commands that have some."""
    return [
        Binding(
            command.keys, command.action, command.help, id=command.id, show=False, priority="escape" not in command.keys
        )
        for command in COMMANDS
        if command.keys
    ]


def slash_commands() -> tuple[ChatCommand, ...]:
    """Commands that can be written."""
    return tuple(command for command in COMMANDS if command.form)


def find(line: str) -> tuple[ChatCommand, str]:
    """The command of a line such as "/temp 0.2", and what follows its word. Raises BadSetting with the nearest."""
    word, _, argument = line.strip().removeprefix("/").partition(" ")
    words = {word: command for command in slash_commands() for word in (command.word, *command.also)}
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them."
        raise BadSetting(f"no command is called /{word}; {hint} To say a line that begins with /, begin it with //")
    return words[word], argument.strip()


def remapped(keys: Sequence[str], others: Sequence[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Keys by command from texts such as "copy=ctrl+k", and what is wrong with them.

    `others`: ids of other screens' keys.
    """
    known = {command.id: command for command in COMMANDS if command.keys}
    found: dict[str, str] = {}
    notices = []
    for text in keys:
        name, equals, key = (part.strip() for part in text.partition("="))
        if not equals or not key:
            notices.append(f"keys: {text!r} is not NAME=KEY, such as copy=ctrl+k")
        elif name not in known and name not in others:
            near = difflib.get_close_matches(name, [*known, *others], n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            notices.append(f"keys: no command is called {name!r}; {hint}")
        elif reason := _unfit(name, key, others):
            notices.append(f"keys: {text} is left out: {reason}")
        else:
            found[name] = key
    now = {command.id: found.get(command.id, command.keys).split(",") for command in known.values()}
    clashes = {
        (key, *sorted((name, other)))
        for name in found
        if name in known
        for key in now[name]
        for other, keys_now in now.items()
        if other != name and key in keys_now
    }
    notices += [f"keys: {key} is both {first}'s and {second}'s" for key, first, second in sorted(clashes)]
    return found, tuple(notices)


def _unfit(name: str, key: str, others: Sequence[str]) -> str:
    """Why a key cannot be this command's; "" if it can. Keys of the chat go before what is being written."""
    if name in others:
        return ""
    for part in key.split(","):
        if part in WRITING_KEYS:
            return f"{part} is needed for writing"
        if not (part.startswith(MODIFIED) or part in LONE_KEYS or (part[:1] == "f" and part[1:].isdecimal())):
            return f"{part} alone would be typed; put ctrl+ or alt+ before it, or take f1 to f12"
    return ""


def palette(do: Callable[[str], Callable[[], None]]) -> list[tuple[str, str, Callable[[], None]]]:
    """Title, help and what to do for the command palette; `do` makes that of an action."""
    return [
        (f"/{command.word}" if command.word else command.id, command.help, do(command.action))
        for command in COMMANDS
        if command.form
    ]
