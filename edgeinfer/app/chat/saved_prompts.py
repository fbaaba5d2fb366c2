"""Saved prompts: named messages with fields, which are asked for when a prompt is used.

In: texts with `{{name}}` or `{{name: default}}` in them, values. Out: the fields in order, the text to send. The files
are the user's, beside the personas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.app.chat.personas import NamedTexts

_FIELD = re.compile(r"\{\{[ \t]*([^\W\d_][\w \t-]{0,39}?)[ \t]*(?::([^{}\n]*))?\}\}")


@dataclass(frozen=True, slots=True)
class PromptField:
    """A field of a saved prompt. `default`: its value unless another one is given."""

    name: str
    default: str = ""


class SavedPrompts(NamedTexts):
    """Named messages."""

    kind, plural = "prompt", "prompts"


def fields_of(text: str) -> tuple[PromptField, ...]:
    """The fields of a prompt, each name once, with the first default that is given for it."""
    found: dict[str, str] = {}
    for match in _FIELD.finditer(text):
        found[match[1]] = found.get(match[1]) or (match[2] or "").strip()
    return tuple(PromptField(name, default) for name, default in found.items())


def filled(text: str, values: Mapping[str, str]) -> str:
    """The prompt with values in place of its fields; fields without a value get their default."""
    known = {field.name: field.default for field in fields_of(text)} | dict(values)
    return _FIELD.sub(lambda match: known[match[1]], text)
