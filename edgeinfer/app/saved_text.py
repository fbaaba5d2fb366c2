"""Text that is saved to a file: whole or not at all, and over nothing that is there.

In: a path and text, or the language of a code fence. Out: a file, a free name, a suffix. Knows no widgets.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from edgeinfer.errors import EdgeInferError
from edgeinfer.path_text import user_path
from edgeinfer.temporary import temporary_file

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
    """The suffix of a file that holds a code fence in a language, ".txt" where it is not known."""
    words = language.split()
    wanted = words[0].strip("{}.").casefold() if words else ""
    return next((suffix for suffix, names in _SUFFIXES.items() if wanted in names.split()), DEFAULT_SUFFIX)


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """The first of stem, stem-2, stem-3, … in a folder that is not taken."""
    path, number = folder / f"{stem}{suffix}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    return path


def save_text(path: Path, text: str) -> Path:
    """Write a new file, whole or not at all; the path it has. Raises EdgeInferError, with what would work."""
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
    """Give a written file its name; fails if that was taken meanwhile, where the disk has links to tell."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        temporary.replace(path)


def _umask() -> int:
    """What new files of this process are not allowed."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    return 0o022
