"""Chat templates in place of a model's own: those of the folder `built_in_templates` by name, or one from a file.

In: a name or a path. Out: the source, checked to be text, and what to tell about it. Compiles and renders nothing; the
file names of the folder are the names of its templates.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import BadSetting
from edgeinfer.text_values import user_path

FOLDER = Path(__file__).with_name("built_in_templates")
ENDING = ".jinja"
MOST_BYTES = 1_000_000
"""Size of a file that is surely no template."""
_MARK = re.compile(r"<[|｜][^<>\s'\"]+[|｜]>|<(?:start|end)_of_turn>|\[/?(?:INST|SYSTEM_PROMPT)\]")
"""Texts that are special tokens wherever they are in use."""
_ALIKE = (
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("llama3", ("<|start_header_id|>", "<|eot_id|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("phi3", ("<|assistant|>", "<|end|>")),
    ("zephyr", ("<|assistant|>", "</s>")),
    ("llama2", ("[INST]", "<<SYS>>")),
    ("mistral-v1", ("[INST]", " [/INST]")),
    ("mistral-v3", ("[INST]", "[/INST]")),
    ("alpaca", ("### Instruction:\n", "### Response:\n")),
    ("vicuna", ("USER: ", "ASSISTANT:")),
)
"""Built-in templates by what templates of the same form write in any language, the more certain ones first."""


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """A chat template in place of a model's own. `origin`: its name, or the path of its file."""

    origin: str
    source: str

    def notices(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """What to tell about a model with these tokens that gets this template."""
        written = set(_MARK.findall(self.source))
        unknown = sorted(written - set(tokens)) if written else []
        told = f"chats are written by the chat template {self.origin}, not by the model's own"
        if not unknown:
            return (told,)
        marks = ", ".join(unknown)
        return (told, f"this model has no token for {marks}, which it gets spelled out: is the template meant for it?")


def built_in_names() -> tuple[str, ...]:
    """The names of the built-in templates."""
    return tuple(sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}")))


def built_in(name: str) -> TemplateChoice:
    """A built-in template. Raises BadSetting for an unknown name."""
    names, key = built_in_names(), name.strip().lower()
    if key in names:
        return TemplateChoice(key, (FOLDER / f"{key}{ENDING}").read_text(encoding="utf-8"))
    near = difflib.get_close_matches(key, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise BadSetting(
        f"no built-in chat template is called {name!r}; {guess}there are: {', '.join(names)}; "
        "--chat-template-file takes one from a file"
    )


def alike(source: str) -> TemplateChoice | None:
    """The built-in template that writes what a template in another language than Jinja writes; None if none does."""
    found = next((name for name, marks in _ALIKE if all(mark in source for mark in marks)), None)
    return None if found is None else built_in(found)


def from_file(file: str | Path) -> TemplateChoice:
    """The template in a file. Raises BadSetting."""
    path = user_path(str(file))
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as reason:
        raise BadSetting(f"the chat template {path} cannot be read: {reason.strerror or reason}") from None
    except ValueError as reason:  # a path with a null character
        raise BadSetting(f"the chat template {str(file)!r} cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        raise BadSetting(f"{path} has more than {MOST_BYTES // 1_000_000} MB: it is no chat template")
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise BadSetting(
            f"the chat template {path} is not UTF-8 at byte {reason.start}; convert it to UTF-8 first"
        ) from None
    if not source.strip():
        raise BadSetting(f"the chat template {path} is empty")
    return TemplateChoice(str(path), source)


def template_choice(name: str | None, file: str | Path | None) -> TemplateChoice | None:
    """The built-in template called `name`, or the one in `file`; None if neither is given. Raises BadSetting."""
    if name is not None and file is not None:
        raise BadSetting(
            f"the chat template is {name} by chat_template, and {file} by chat_template_file; leave one of them out"
        )
    if file is not None:
        return from_file(file)
    return None if name is None else built_in(name)
