"""Saves text to a file atomically, without overwriting an existing one.

In: a path and text, or the language of a code fence. Out: a file, a free name, a suffix. Knows no widgets.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.temporary import temporary_file
from edgeinfer.text_values import user_path

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
