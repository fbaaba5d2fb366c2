"""Texts that the user has named, one Markdown file each, and the personas among them: named system prompts.

In: a folder, names, texts. Out: `NamedText`s. The files belong to the user, can be written with any editor, and are the
only data stored about them.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgeinfer.errors import BadSetting
from edgeinfer.private_files import private_folder

SUFFIX = ".md"
LONGEST_CHARACTERS = 200_000
_NAME = re.compile(r"[\w][\w .+-]{0,59}")


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text and its name."""

    name: str
    text: str


class NamedTexts:
    """The texts in a folder, which is created when the first one is saved. `kind`: what one of them is called."""

    kind: ClassVar[str]
    plural: ClassVar[str]

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Their folder: beside the user's configuration file."""
        if self._folder is None:
            from edgeinfer.settings import user_config_path

            self._folder = user_config_path().parent / self.plural
        return self._folder

    def all(self) -> tuple[NamedText, ...]:
        """All texts by name; unreadable files are left out."""
        found = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.stem.casefold()):
            try:
                found.append(NamedText(path.stem, path.read_text(encoding="utf-8")[:LONGEST_CHARACTERS].strip()))
            except (OSError, UnicodeDecodeError):
                continue
        return tuple(found)

    def find(self, name: str) -> NamedText:
        """The text called `name`, ignoring case. Raises BadSetting with near names."""
        names = {each.name.casefold(): each for each in self.all()}
        if name.casefold() in names:
            return names[name.casefold()]
        near = difflib.get_close_matches(name.casefold(), names, n=1)
        others = f"there are: {', '.join(each.name for each in names.values())}" if names else "there are none yet"
        hint = f"did you mean {names[near[0]].name}?" if near else others
        raise BadSetting(f"no {self.kind} is called {name!r}; {hint}")

    def of_text(self, text: str) -> NamedText | None:
        """The one with this text, if there is one."""
        return next((each for each in self.all() if each.text == text.strip()), None)

    def save(self, name: str, text: str) -> NamedText:
        """Save a text, replacing one of the same name. Raises BadSetting for an invalid name."""
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise BadSetting(
                f"a {self.kind} cannot be called {name!r}: use letters, digits, spaces and .+-_, at most 60"
            )
        from edgeinfer.models.store_files import write_text

        try:
            private_folder(self.folder)
            path = self.folder / f"{name}{SUFFIX}"
            write_text(path, text.strip() + "\n")
            for other in self.folder.glob(f"*{SUFFIX}"):
                if other.stem.casefold() == name.casefold() and not other.samefile(path):
                    other.unlink()  # the same name in different case
        except OSError as error:
            raise BadSetting(f"{self.folder} cannot be written: {error.strerror or error}") from None
        return NamedText(name, text.strip())

    def remove(self, name: str) -> NamedText:
        """Delete a text and return it, so that `save` can restore it. Raises BadSetting."""
        found = self.find(name)
        try:
            (self.folder / f"{found.name}{SUFFIX}").unlink(missing_ok=True)
        except OSError as error:
            raise BadSetting(f"{found.name} cannot be removed: {error.strerror or error}") from None
        return found


class Personas(NamedTexts):
    """Named system prompts."""

    kind, plural = "persona", "personas"
