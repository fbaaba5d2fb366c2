"""Schemas of objects that declare keys and do not say whether there may be others: only the declared ones then.

In: a JSON schema, as pydantic or zod writes it. Out: the same schema with `additionalProperties: false` at such
objects, as the author meant it: by the letter of JSON Schema a model may invent keys. An object without `properties`
stays free, and what says `additionalProperties` or `unevaluatedProperties` keeps its word; the latter, which llguidance
does not know, becomes the former. The keys of an object are those of all schemas that hold for it at once: its own, of
`allOf`, behind `$ref`, and of any alternative beside them. A schema that holds beside others is not closed by itself,
or it would forbid the keys of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

_BESIDE = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("then", "else")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OF_VALUES = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", *_OTHERS)
_OF_NAMED_VALUES = ("properties", "patternProperties")
_OTHERWISE = (*_OTHERS, "const", "enum", "$dynamicRef", "$recursiveRef")
"""Keys with which a schema itself says what else an object may hold."""


def with_declared_keys(schema: Any) -> Any:
    """Close the objects of a schema in place, and return it."""
    places = _Places(schema)
    places.visit(schema)
    bounds = [(each, places.keys_of(each)) for each in places.whole.values() if places.needs_bound(each)]
    unevaluated = [(each, each.pop("unevaluatedProperties")) for each in places.unevaluated]
    for each, others in unevaluated:
        if not (keys := places.keys_of(each)).is_open:
            _bound(each, keys, others)
    for each, keys in bounds:
        if keys.is_declared and not keys.is_open and (keys.patterns or len(keys.names) >= each.get("minProperties", 0)):
            _bound(each, keys, False)
    return schema


@dataclass(slots=True)
class _Keys:
    """The keys that schemas declare for one object. `is_open`: one of them says itself what else there may be."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    is_declared: bool = False
    is_open: bool = False


def _bound(schema: Schema, keys: _Keys, others: object) -> None:
    """Let an object have these keys, whatever else is said of them, and `others` for further ones."""
    for kind, names in (("properties", keys.names), ("patternProperties", keys.patterns)):
        if names:
            own = _own(schema, kind)
            schema[kind] = {**own, **{name: {} for name in names if name not in own}}
    schema["additionalProperties"] = others


def _own(schema: Schema, kind: str) -> Schema:
    """What a schema says by names, or nothing where that is no mapping."""
    named = schema.get(kind)
    return named if isinstance(named, dict) else {}


class _Places:
    """Where the parts of a schema stand: those that describe a value alone, and those that hold beside others."""

    def __init__(self, root: object) -> None:
        self._root = root
        self.whole: dict[int, Schema] = {}
        self.unevaluated: list[Schema] = []
        self._beside: dict[int, Schema] = {}

    def visit(self, root: object) -> None:
        """Find the place of every schema that is in use."""
        rest: list[tuple[object, bool]] = [(root, True)]
        while rest:
            schema, is_whole = rest.pop()
            if not isinstance(schema, dict):
                continue
            known, other = (self.whole, self._beside) if is_whole else (self._beside, self.whole)
            if id(schema) in known:
                continue
            known[id(schema)] = schema
            passes_on = is_whole and self._passes_on(schema)
            rest += [(each, passes_on) for each in self._holding(schema)]
            if id(schema) not in other:
                rest += [(each, True) for each in _values(schema)]
                if "unevaluatedProperties" in schema:
                    self.unevaluated.append(schema)

    def needs_bound(self, schema: Schema) -> bool:
        """Whether a schema that describes a value alone is to say itself which keys there are."""
        if id(schema) in self._beside or "unevaluatedProperties" in schema:
            return False
        if not self._passes_on(schema):
            return True
        return any(isinstance(each, dict) and id(each) in self._beside for each in self._holding(schema))

    def _passes_on(self, schema: Schema) -> bool:
        """Whether a schema is no more than another one, or a choice of others: these then say which keys there are."""
        if any(key in schema for key in (*_OF_NAMED_VALUES, *_OTHERWISE, *_CONDITIONAL, "required")):
            return False
        several: Any = schema.get("allOf")
        n = ("$ref" in schema) + ("anyOf" in schema) + ("oneOf" in schema)
        return n + (len(several) if isinstance(several, list) else 0) == 1

    def keys_of(self, schema: Schema) -> _Keys:
        """The keys that hold for an object of this schema."""
        keys, seen = _Keys(), set[int]()
        rest: list[Any] = [schema]
        while rest:
            one = rest.pop()
            if not isinstance(one, dict) or id(one) in seen:
                continue
            seen.add(id(one))
            keys.names |= dict.fromkeys(_own(one, "properties"))
            keys.patterns |= dict.fromkeys(_own(one, "patternProperties"))
            required: Any = one.get("required")
            keys.names |= dict.fromkeys(required if isinstance(required, list) else ())
            keys.is_declared |= any(isinstance(one.get(key), dict) for key in _OF_NAMED_VALUES)
            is_known = "$ref" not in one or self._target(one["$ref"]) is not None
            keys.is_open |= not is_known or any(key in one for key in _OTHERWISE)
            rest += self._holding(one)
        return keys

    def _holding(self, schema: Schema) -> Iterator[Any]:
        """The schemas that hold for the same value, or may."""
        for key in _BESIDE:
            if isinstance(schema.get(key), list):
                yield from schema[key]
        for key in _CONDITIONAL:
            yield schema.get(key)
        yield from _own(schema, "dependentSchemas").values()
        if "$ref" in schema:
            yield self._target(schema["$ref"])

    def _target(self, reference: object) -> Any:
        """What a reference within the schema names, or None."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
        return found if reference in ("#", "#/") or "/" in reference else None


def _values(schema: Schema) -> Iterator[Any]:
    """The schemas of the values within a value."""
    for key in _OF_NAMED_VALUES:
        yield from _own(schema, key).values()
    for key in _OF_VALUES:
        value = schema.get(key)
        yield from value if isinstance(value, list) else (value,)
