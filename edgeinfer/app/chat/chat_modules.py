"""The modules of a run's chats: files that the model reads once and that stand before the first question.

In: arguments of /modules; an open model's modules. Out: lines to show, and names for the option `modules`. They last as
long as the program, and another model gets them too. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.chat.attachments import read_text
from edgeinfer.app.plain_text import counted
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.text_values import user_path

if TYPE_CHECKING:
    from edgeinfer.engine.requests.named_modules import NamedModules

FORMS = "/modules add FILE as NAME, /modules remove NAME, or /modules to list them"
NONE = "there are no modules; /modules add FILE as NAME reads a file once, to stand before the first question"


def adds_module(argument: str) -> bool:
    """Whether a command adds a module, which may take a while."""
    return argument.partition(" ")[0] == "add"


@dataclass(slots=True)
class ChatModules:
    """Texts of modules by name, in the order in which they stand in prompts."""

    texts: dict[str, str] = field(default_factory=dict)

    def names(self, modules: NamedModules) -> list[str]:
        """Those that a model has."""
        return [name for name in self.texts if name in modules]

    def put_back(self, modules: NamedModules) -> None:
        """Give them to a model that was opened later; they are read with the next question. Raises EdgeInferError."""
        for name in [name for name in self.texts if name not in modules]:
            modules.add(name, self.texts[name], reads=False)

    def run(self, argument: str, modules: NamedModules) -> str:
        """Run a command for a model, and return what to show. Raises EdgeInferError."""
        verb, _, rest = argument.strip().partition(" ")
        forms: dict[str, Callable[[str, NamedModules], str]] = {"add": self._add, "remove": self._remove}
        if not verb:
            return "\n".join(self._lines(modules)) or NONE
        if verb not in forms or not rest.strip():
            raise BadSetting(f"/modules cannot do {argument!r}: {FORMS}")
        return forms[verb](rest.strip(), modules)

    def _lines(self, modules: NamedModules) -> list[str]:
        return [f"{name}: {counted(len(modules[name].tokens), 'token')}" for name in self.names(modules)]

    def _add(self, told: str, modules: NamedModules) -> str:
        file, has_name, name = told.rpartition(" as ")
        path = user_path(Path(file if has_name else told))
        if not path.is_file():
            raise EdgeInferError(f"{path} is no file; {FORMS}")
        text, notice = read_text(path, str(path))
        module = modules.add(name.strip() if has_name else path.stem, text)
        self.texts[module.name] = text
        size = f"{module.name}: {counted(len(module.tokens), 'token')}, before the first question of chats"
        return f"{size}; their answers are approximate{'' if notice is None else f'; {notice}'}"

    def _remove(self, name: str, modules: NamedModules) -> str:
        modules.remove(name)
        self.texts.pop(name, None)
        return f"{name} is removed"
