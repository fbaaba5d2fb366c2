"""Text files, images, sounds and folders attached to a message.

In: paths. Out: `Attached`: what was read, under names relative to the working folder, and what was left out and why. A
file is an image or a sound by its content; of folders only the texts are read. Knows neither how a message is rendered
nor the terminal.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.image_files import is_image_file
from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.kept_images import KeptImage, kept_image
from edgeinfer.app.sessions.kept_sounds import KeptSound, kept_sound
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sound_files import is_sound_file
from edgeinfer.errors import EdgeInferError
from edgeinfer.text_values import user_path

FILE_CAP_BYTES = 1_000_000
FOLDER_CAP_FILES = 1000
FOLDER_CAP_BYTES = 10_000_000
WALK_CAP_ENTRIES = 20_000
GIT_LIMIT_S = 5.0
NAMED_LEFT_OUT = 3
MENTIONS_CAP = 100
GENERATED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})
"""Folders of generated files, skipped if no repository says what to ignore."""

_PROBE_BYTES = 8192
_ODD_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
_MENTION = re.compile(r"""(?:^|(?<=[\s(\[{<"',;]))@(?:"([^"\n]+)"|([^\s"]+))""")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_SUFFIX = re.compile(r"[^.]\.[A-Za-z][A-Za-z0-9]{0,4}$")
_CLOSING = ".,;:!?)]}>'"


@dataclass(frozen=True, slots=True)
class Attached:
    """The files that were read, and sentences about what was left out or guessed. `folder`: its name if it was one."""

    attachments: tuple[Attachment, ...]
    notices: tuple[str, ...] = ()
    folder: str | None = None

    @property
    def n_bytes(self) -> int:
        """Total size of the files."""
        return sum(attachment.n_bytes for attachment in self.attachments)


def attach(path: Path, base: Path | None = None) -> Attached:
    """Read a text file, an image, a sound, or the text files below a folder.

    Names are relative to `base`, else the working folder. Raises EdgeInferError, saying what would work, if there is
    nothing to read; BadImage, BadSound for a damaged one.
    """
    base = base or Path.cwd()
    path = base / user_path(path)
    shown = shown_name(path, base)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise EdgeInferError(f"{shown} cannot be attached: {_reason(error)}; check the path") from None
    if stat.S_ISDIR(mode):
        return _attach_folder(path, base)
    if not stat.S_ISREG(mode):
        raise EdgeInferError(f"{shown} cannot be attached: it is neither a file nor a folder")
    if is_image_file(path):
        return Attached((Attachment(shown, "", _read_image(path, shown)),))
    if is_sound_file(path):
        return Attached((Attachment.of_medium(shown, _read_sound(path, shown)),))
    text, notice = read_text(path, shown, "text files, images and sounds")
    return Attached((Attachment(shown, text),), (notice,) if notice else ())


def _read_image(path: Path, shown: str) -> KeptImage:
    from edgeinfer.models.images.image import Image

    return kept_image(Image.of(path, shown).data, shown)


def _read_sound(path: Path, shown: str) -> KeptSound:
    from edgeinfer.models.sounds.sound import Sound

    return kept_sound(Sound.of(path, shown).data, shown)


def read_text(path: Path, shown: str, kinds: str = "text files") -> tuple[str, str | None]:
    """The text of a file, and a notice if its encoding was guessed. Raises EdgeInferError if it is not text.

    `kinds`: what can be given instead, for that message.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_CAP_BYTES + 1)
    except OSError as error:
        raise EdgeInferError(f"{shown} cannot be attached: {_reason(error)}; check its permissions") from None
    if len(data) > FILE_CAP_BYTES:
        raise EdgeInferError(f"{shown} is larger than {FILE_CAP_BYTES // 1_000_000} MB; attach a part of it")
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, "replace"), None
    if is_binary(data):
        raise EdgeInferError(f"{shown} is not text; only {kinds} can be attached")
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return data.decode("latin-1"), f"{shown} is not UTF-8; it was read as Latin-1"


def is_binary(data: bytes) -> bool:
    """Whether bytes look binary: a zero byte, or many control characters, near the beginning."""
    probe = data[:_PROBE_BYTES]
    n_odd = len(probe) - len(probe.translate(None, _ODD_CONTROLS))
    return b"\0" in probe or n_odd > len(probe) // 50


def mentions(text: str, base: Path | None = None, *, missing: bool = False) -> list[Path]:
    """The files and folders mentioned in a text as @path or @"path", each once, in order.

    `missing`: include names that do not exist but can only be paths: with a / or ~, an extension, or in quotes. An
    address such as a@b.org, an @name that is no file, and anything in `backticks` is plain text.
    """
    base = base or Path.cwd()
    found: dict[Path, None] = {}
    for number, match in enumerate(_MENTION.finditer(_CODE.sub(lambda code: "`" * len(code[0]), text))):
        if number >= MENTIONS_CAP:
            break
        quoted, bare = match.groups()
        names = [quoted] if quoted else list(_without_closing(bare))
        path = next((path for name in names if (path := _existing(name, base)) is not None), None)
        if path is None and missing and (quoted or _is_path_like(names[-1])):
            path = base / user_path(names[-1])
        if path is not None:
            found[path] = None
    return list(found)


def shown_name(path: Path, base: Path) -> str:
    """A path for display: relative to `base`, else to the home folder, else absolute."""
    clean = Path(os.path.normpath(path))
    name = str(clean)
    for root, prefix in ((base, ""), (Path.home(), "~/")):
        if clean.is_relative_to(root) and clean != root:
            name = prefix + clean.relative_to(root).as_posix()
            break
    return os.fsencode(name).decode("utf-8", "replace")


def _without_closing(name: str) -> Iterator[str]:
    """A name, then the same name with closing punctuation removed character by character."""
    yield name
    while name and name[-1] in _CLOSING:
        name = name[:-1]
        yield name


def _existing(name: str, base: Path) -> Path | None:
    try:
        path = base / user_path(name)
        is_named = name.endswith(("/", os.sep)) or any(sign.isalnum() for sign in name)  # "@..." is no folder
        return path if is_named and path.exists() else None
    except (OSError, ValueError):
        return None


def _is_path_like(name: str) -> bool:
    """Whether a name that does not exist can only be a path; @user@place is not one."""
    if "@" in name or not any(sign.isalnum() for sign in name):
        return False
    return "/" in name or os.sep in name or name.startswith("~") or _SUFFIX.search(name) is not None


def _attach_folder(folder: Path, base: Path) -> Attached:
    shown = shown_name(folder, base)
    attachments: list[Attachment] = []
    notices: list[str] = []
    left_out: list[str] = []
    n_bytes = 0
    paths = _tracked(folder) or list(_walk(folder))
    for number, path in enumerate(paths):
        if len(attachments) == FOLDER_CAP_FILES or n_bytes >= FOLDER_CAP_BYTES:
            notices.append(f"{shown}: {counted(len(paths) - number, 'file')} left out; attach a smaller folder")
            break
        name = shown_name(path, base)
        try:
            text, notice = read_text(path, name)
        except EdgeInferError:
            left_out.append(name)
            continue
        attachments.append(Attachment(name, text))
        n_bytes += len(text)
        notices += [notice] if notice else []
    if left_out:
        named = ", ".join(left_out[:NAMED_LEFT_OUT]) + (", …" if len(left_out) > NAMED_LEFT_OUT else "")
        notices.append(f"{counted(len(left_out), 'file')} left out (not text, too large or not readable): {named}")
    if not attachments:
        raise EdgeInferError(f"{shown} holds no text files that can be attached; name a file")
    return Attached(tuple(attachments), tuple(notices), shown)


def _tracked(folder: Path) -> list[Path]:
    """The files git would track below a folder, without hidden ones; none without git or a repository."""
    # a repository's own settings can name a program to run; prevent that while listing files
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=GIT_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    names = sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})
    shown = (name for name in names if not any(part.startswith(".") for part in name.split("/")))
    return [path for name in shown if _is_plain(path := folder / name)]


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, without hidden and generated ones. Does not follow links."""
    n_entries = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in GENERATED)
        n_entries += len(folders) + len(files)
        if n_entries > WALK_CAP_ENTRIES:
            raise EdgeInferError(f"{folder} holds more than {WALK_CAP_ENTRIES} files; attach a smaller folder")
        for name in sorted(files):
            if not name.startswith(".") and _is_plain(path := Path(root) / name):
                yield path


def _is_plain(path: Path) -> bool:
    """Whether it is a regular file: a link could lead anywhere, and reading a pipe might never end."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else "its name is impossible"
