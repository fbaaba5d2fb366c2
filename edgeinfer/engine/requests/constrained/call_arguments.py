"""Arguments of function calls that are written one by one, in Lark's syntax: tags, Python's form, Gemma's form.

In: how a family writes them, the schema of the arguments, the control tokens. Out: rules; BadSetting for schemas that
the form cannot enforce, such as patterns of texts without quotes. Knows no templates.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from typing import Any

from edgeinfer.engine.requests.constrained.guidance import JSON_FORM
from edgeinfer.engine.requests.constrained.schemas import with_numbers_bounded
from edgeinfer.errors import BadSetting
from edgeinfer.models.text.tool_formats import WrittenCalls
from edgeinfer.models.text.tools import Function
from edgeinfer.models.text.written_marks import WrittenMarks

_SLOT = re.compile(r"(\{[a-z_]+\})")
_SLOTS = {"{number}": "/[0-9]{1,3}/", "{id}": "/[a-z0-9]{10}/", "{line}": '"\\n"?'}
_NAME = re.compile(r"[\w.\-]+")
_OF_OBJECTS = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions")
)
"""What the schema of an object may say, if its parts are written one by one."""
_OF_TEXTS = frozenset(("type", "title", "description", "default", "examples", "enum", "const"))
"""What the schema of a text may say, if it is written without quotes."""
_OF_LISTS = frozenset(("type", "title", "description", "default", "examples", "items"))
_PLAIN, _JSON = "plain", "JSON"


def literal(text: str, marks: WrittenMarks, name: str = "", **slots: str) -> str:
    """A text in the grammar's notation, with `name` and other values in their places; "" for an empty one."""
    slots = {"{name}": name, **{f"{{{key}}}": value for key, value in slots.items()}}
    parts: list[str] = []
    pending = ""
    for part in [*_SLOT.split(text), "{}"]:
        if part in _SLOTS or part == "{}":
            parts += [json.dumps(each) if isinstance(each, str) else f"<[{each}]>" for each in marks.split(pending)]
            parts += [_SLOTS[part]] if part in _SLOTS else []
            pending = ""
        else:
            pending += slots.get(part, part)
    return " ".join(parts)


class WrittenArguments:
    """The rule of one function's arguments, and further rules that it uses."""

    def __init__(self, written: WrittenCalls, function: Function, marks: WrittenMarks, prefix: str) -> None:
        """`prefix` begins the names of the rules. Raises BadSetting for what cannot be enforced."""
        self._written, self._marks, self._prefix = written, marks, prefix
        self._root = function.parameters
        self.rules: list[str] = []
        self._check_name(function.name)
        self.rule = self._object_in_json() if written.argument is None else self._members(function.parameters)

    def _object_in_json(self) -> str:
        return f"%json {json.dumps({**self._root, 'x-guidance': JSON_FORM})}"

    def _members(self, schema: Mapping[str, Any]) -> str:
        """The parts of an object; those that are not required may be left out.

        They are in the schema's order or, without quotes, by their names, as Gemma's template has them.
        """
        assert self._written.argument is not None
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        if strange := [key for key in schema if key not in _OF_OBJECTS]:
            raise BadSetting(f"{strange[0]!r} in the schema of arguments cannot be enforced in the form of this model")
        apart = literal(self._written.apart, self._marks)
        name = f"{self._prefix}_m{len(self.rules)}"
        self.rules.append("")  # takes the name; filled below
        place = len(self.rules) - 1
        lines = []
        is_ordered = self._written.texts in (_PLAIN, _JSON)
        for number, (key, value) in enumerate(properties.items() if is_ordered else sorted(properties.items())):
            pair = self._pair(key, value)
            for begun, between in ((0, ""), (1, apart)):
                following = f"{between} {pair} {name}_{number + 1}_1"
                skipped = "" if key in required else f" | {name}_{number + 1}_{begun}"
                lines.append(f"{name}_{number}_{begun}: {following}{skipped}")
        lines += [f'{name}_{len(properties)}_{begun}: ""' for begun in (0, 1)]
        self.rules[place] = "\n".join(lines)
        return f"{name}_0_0"

    def _pair(self, key: str, schema: object) -> str:
        """An argument with its name."""
        assert self._written.argument is not None
        self._check_name(key)
        schema = schema if isinstance(schema, Mapping) else {}
        is_text = schema.get("type") == "string"
        if "{type}" in self._written.argument[0] and not isinstance(schema.get("type"), str):
            raise BadSetting("an argument of no certain type cannot be enforced in the form of this model")
        kind = {"integer": "number"}.get(str(schema.get("type")), str(schema.get("type")))
        before, after = self._written.argument
        before = literal(before, self._marks, key, is_text=str(is_text).lower(), type=kind)
        return f"{before} {self._value(schema, after)}"

    def _value(self, schema: Mapping[str, Any], after: str) -> str:
        """A value, and what follows it."""
        texts, end = self._written.texts, literal(after, self._marks)
        if texts in (_PLAIN, _JSON):
            return self._plain_text(schema, after) if self._is_plain(schema) else f"{self._json(schema)} {end}"
        return f"{self._marked(schema, texts)} {end}"

    def _is_plain(self, schema: Mapping[str, Any]) -> bool:
        return self._written.texts == _PLAIN and schema.get("type") == "string"

    def _plain_text(self, schema: Mapping[str, Any], after: str) -> str:
        """A text as it is, up to the mark after it."""
        if (chosen := self._chosen(schema)) is not None:
            return f"({' | '.join(chosen)}) {literal(after, self._marks)}"
        parts = list(self._marks.split(after))
        if any(isinstance(part, int) for part in parts):  # layout before the token belongs to the text, as far as known
            written = [literal(part, self._marks) if isinstance(part, str) else f"<[{part}]>" for part in parts]
            return " ".join(["TEXT", *(written if isinstance(parts[0], int) or parts[0].strip() else written[1:])])
        end, line, _ = after.partition("{line}")
        name = f"{self._prefix}_t{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: TEXT {literal(end, self._marks)}")
        return f"{name} {literal(line, self._marks)}"

    def _chosen(self, schema: Mapping[str, Any]) -> list[str] | None:
        """The texts that a schema has to choose from; None for any text."""
        if strange := [key for key in schema if key not in _OF_TEXTS]:
            raise BadSetting(f"{strange[0]!r} of a text cannot be enforced in the form of this model")
        texts = [schema["const"]] if "const" in schema else schema.get("enum")
        if texts is None:
            return None
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BadSetting("an enumeration of texts has something else")
        return [literal(text, self._marks) or '""' for text in texts]

    def _marked(self, schema: Mapping[str, Any], mark: str) -> str:
        """A value whose texts are between two marks and whose keys have no quotes."""
        quote = literal(mark, self._marks)
        kind = schema.get("type")
        if kind == "string":
            chosen = self._chosen(schema)
            if chosen is not None:
                return f"{quote} ({' | '.join(chosen)}) {quote}"
            if quote.startswith("<["):
                return f"{quote} TEXT {quote}"
            name = f"{self._prefix}_t{len(self.rules)}"
            self.rules.append(f"{name}[lazy]: TEXT {quote}")
            return f"{quote} {name}"
        if kind == "object":
            return f'"{{" {self._members(schema)} "}}"'
        if kind == "array" and isinstance(schema.get("items"), Mapping) and not schema.keys() - _OF_LISTS:
            item = self._marked(schema["items"], mark)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind in ("number", "integer", "boolean", "null"):
            return self._json(schema)
        raise BadSetting(f"a value of type {kind!r} cannot be enforced in the form of this model")

    def _json(self, schema: Mapping[str, Any]) -> str:
        """A value in JSON, with bounded numbers: answers that are not all JSON are not followed number by number."""
        named = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        text = json.dumps({**with_numbers_bounded({**named, **schema}), "x-guidance": JSON_FORM})
        if re.search(r'"\$ref": "(?!#/(\$defs|definitions)/)', text):
            raise BadSetting("references between arguments cannot be enforced in the form of this model")
        return f"%json {text}"

    def _check_name(self, name: str) -> None:
        """Raises BadSetting for names that the form cannot write."""
        is_python = self._written.texts == _JSON and self._written.argument is not None
        parts = name.split(".")
        if not _NAME.fullmatch(name) or (
            is_python and not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        ):
            raise BadSetting(f"{name!r} cannot be written in the form of this model")
