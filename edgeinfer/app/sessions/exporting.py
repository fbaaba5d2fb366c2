"""Exports a saved chat to a file: the displayed branch as readable Markdown, or all branches as JSON.

In: a store, the number of a chat, a path; or any text. Out: a new file, written completely or not at all, never over an
existing one. What Markdown cannot express goes into HTML comments, which viewers hide; images and sounds are in the
file, as data URLs; `importing` reads both formats back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from edgeinfer.app.plain_text import harmless
from edgeinfer.app.sessions.conversation import fenced
from edgeinfer.app.sessions.importing import CALLS, END, FORMAT, KEY, MARK, SOUND
from edgeinfer.app.sessions.records import (
    Attachment,
    KeptMessage,
    KeptSession,
    MessageTree,
    ToolRound,
    figures_text,
    rounds_plain,
)
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import EdgeInferError, SessionsFailed
from edgeinfer.temporary import temporary_file
from edgeinfer.text_values import user_path

HEADINGS = {"system": "System", "user": "User", "assistant": "Assistant", "summary": "Summary"}
STEM_CHARACTERS = 60
MARKDOWN = (".md", ".markdown", ".txt")
JSON = ".json"
"""Suffixes that a chat can be exported to; a path without a suffix means Markdown."""


def export_chat(store: SessionStore, number: int, path: Path) -> Path:
    """Export a chat to a new file, as Markdown or JSON by its suffix. For a folder, the file is named after the title.

    Returns the path written. Raises SessionsFailed, also if the suffix is of another format.
    """
    session, messages = store.session(number), store.messages(number)
    path = user_path(path)
    if path.is_dir():
        path = export_path(session.title, path)
    if path.suffix.lower() not in (*MARKDOWN, JSON, ""):
        raise SessionsFailed(
            f"a chat cannot be written as {path.suffix}; what works: {MARKDOWN[0]} (Markdown) and {JSON}"
        )
    is_json = path.suffix.lower() == JSON
    text = json_text(session, messages) if is_json else markdown_text(session, shown_branch(session, messages))
    try:
        return save_text(path, text)
    except EdgeInferError as error:
        raise SessionsFailed(str(error)) from None


def export_path(title: str, folder: Path) -> Path:
    """An unused path in a folder, named after a chat's title."""
    stem = re.sub(r'[\\/:*?"<>|\s]+', " ", harmless(title)).strip(" .")[:STEM_CHARACTERS].strip(" .")
    return free_name(folder, stem or "chat", ".md")


def shown_branch(session: KeptSession, messages: Sequence[KeptMessage]) -> tuple[KeptMessage, ...]:
    """The branch that was displayed last, or the newest one if that is unknown."""
    tree = MessageTree(messages)
    leaf = session.leaf if tree.has(session.leaf) else tree.newest()
    return () if leaf is None else tree.path(leaf)


def json_text(session: KeptSession, messages: Sequence[KeptMessage]) -> str:
    """The whole chat as JSON."""
    found = {
        KEY: FORMAT,
        "title": session.title,
        "system": session.system,
        "model": session.model,
        "leaf": session.leaf,
        "created_s": session.created_s,
        "messages": [_plain(message) for message in messages],
    }
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _plain(message: KeptMessage) -> dict[str, object]:
    figures = figures_text(message.figures)
    return {
        "number": message.number,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "state": _ended(message),
        "created_s": message.created_s,
        "model": message.model,
        "figures": None if figures is None else json.loads(figures),
        "attachments": [
            {
                "name": one.name,
                "text": one.text,
                **({"image": one.image.url} if one.image else {}),
                **({"sound": one.sound.url} if one.sound else {}),
            }
            for one in message.attachments
        ],
        **({"rounds": rounds_plain(message.rounds)} if message.rounds else {}),
        **({"beside": asdict(message.beside)} if message.beside else {}),
    }


def markdown_text(session: KeptSession, branch: Sequence[KeptMessage]) -> str:
    """A branch as readable Markdown. Each part starts with a comment that says what it is."""
    said = [session.title, session.system or "", *(message.text for message in branch)]
    said += [_calls_text(message.rounds) for message in branch]
    mark = _free_mark([*said, *(one.text for message in branch for one in message.attachments)])
    title = harmless(session.title).replace("\n", " ").strip()
    head = {KEY: FORMAT, "mark": mark, "title": session.title, "model": session.model, "created_s": session.created_s}
    parts = [f"<!-- {_safe(head)} -->\n# {title or 'Chat'}"]
    if session.system is not None:
        parts.append(_part(mark, {"role": "system"}, HEADINGS["system"], session.system))
    for message in branch:
        about: dict[str, object] = {"role": message.role, "created_s": message.created_s}
        if message.model is not None:
            about["model"] = message.model
        if _ended(message) != "whole":
            about["state"] = _ended(message)
        if message.beside is not None:
            about["beside"] = asdict(message.beside)
        if message.rounds:
            about["rounds"] = rounds_plain(message.rounds)
            parts.append(_part(mark, {CALLS: len(message.rounds)}, "Calls of tools", _calls_text(message.rounds), 3))
        parts.append(_part(mark, about, HEADINGS[message.role], message.text))
        for one in message.attachments:
            parts.append(_file_part(mark, one))
    return "\n\n".join([*parts, f"<!-- {mark} {END} -->\n"])


def _file_part(mark: str, one: Attachment) -> str:
    """A file that was sent with a message: a text, an image or a sound."""
    name = harmless(one.name).replace("\n", " ")
    if one.sound is not None:
        what: dict[str, object] = {"file": one.name, SOUND: one.sound.digest}
        return _part(mark, what, f"Sound: {name}, {one.sound.length_text}", f"[{SOUND}]({one.sound.url})", 3)
    if one.image is None:
        return _part(mark, {"file": one.name, "n": len(one.text)}, f"File: {name}", fenced(one.text), 3)
    about: dict[str, object] = {"file": one.name, "image": one.image.digest}
    return _part(mark, about, f"Image: {name}, {one.image.pixels_text}", f"![]({one.image.url})", 3)


def _calls_text(rounds: Sequence[ToolRound]) -> str:
    """Calls for people to read; what is imported is in the comment of their message."""
    parts = []
    for each in rounds:
        parts += [each.text] if each.text.strip() else []
        for call in each.calls:
            outcome = "failed" if call.failed else "gave"
            parts += [f"`{harmless(call.name)}` with", fenced(call.arguments), outcome, fenced(call.result)]
    return "\n\n".join(parts)


def _part(mark: str, about: dict[str, object], heading: str, text: str, level: int = 2) -> str:
    return f"<!-- {mark} {_safe(about)} -->\n{'#' * level} {heading}\n\n{text}"


def _ended(message: KeptMessage) -> str:
    """The state to export: an answer still being written counts as stopped."""
    return "stopped" if message.state == "writing" else message.state


def _safe(found: dict[str, object]) -> str:
    """JSON that cannot close the HTML comment around it."""
    return json.dumps(found, ensure_ascii=False).replace("--", "-\\u002d").replace(">", "\\u003e")


def _free_mark(texts: Sequence[str]) -> str:
    """A marker for our comments that does not occur in any of the texts' own comments."""
    mark, number = MARK, 1
    while any(f"<!-- {mark} " in text for text in texts):
        number += 1
        mark = f"{MARK}-{number}"
    return mark


DEFAULT_SUFFIX = ".txt"
_SUFFIXES = {
    ".py": "python python3 py",
    ".js": "javascript js node",
    ".ts": "typescript ts",
    ".tsx": "tsx",
    ".jsx": "jsx",
    ".sh": "bash sh shell zsh console",
    ".ps1": "powershell ps1 pwsh",
    ".bat": "batch bat cmd",
    ".c": "c",
    ".h": "h",
    ".cpp": "cpp c++ cxx",
    ".cs": "csharp c# cs",
    ".rs": "rust rs",
    ".go": "go golang",
    ".java": "java",
    ".kt": "kotlin kt",
    ".swift": "swift",
    ".rb": "ruby rb",
    ".php": "php",
    ".pl": "perl pl",
    ".lua": "lua",
    ".r": "r",
    ".jl": "julia jl",
    ".hs": "haskell hs",
    ".scala": "scala",
    ".sql": "sql sqlite postgresql mysql",
    ".html": "html",
    ".css": "css",
    ".xml": "xml svg",
    ".json": "json jsonc",
    ".yaml": "yaml yml",
    ".toml": "toml",
    ".ini": "ini cfg",
    ".csv": "csv",
    ".md": "markdown md",
    ".tex": "latex tex",
    ".diff": "diff patch",
    ".dockerfile": "dockerfile docker",
    ".mk": "makefile make",
    ".vim": "vim",
}


def fence_suffix(language: str) -> str:
    """The file suffix for a code fence's language, ".txt" if the language is unknown."""
    words = language.split()
    wanted = words[0].strip("{}.").casefold() if words else ""
    return next((suffix for suffix, names in _SUFFIXES.items() if wanted in names.split()), DEFAULT_SUFFIX)


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """The first of stem, stem-2, stem-3, … that does not exist in a folder."""
    path, number = folder / f"{stem}{suffix}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    return path


def save_text(path: Path, text: str) -> Path:
    """Write a new file atomically and return its path. Raises EdgeInferError, saying what would work."""
    path = user_path(path)
    temporary: Path | None = None
    try:
        if os.path.lexists(path):
            free = free_name(path.parent, path.stem, path.suffix)
            raise EdgeInferError(f"{path} is there already; {free.name} is free")
        descriptor, name = temporary_file(path)
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        _move(temporary, path)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "impossible name"
        raise EdgeInferError(f"{path} cannot be written: {reason}; name a file in another folder") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def _move(temporary: Path, path: Path) -> None:
    """Move the written file to its name. Fails if the name was taken meanwhile, on file systems with hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        temporary.replace(path)


def _umask() -> int:
    """The umask of this process."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    return 0o022
