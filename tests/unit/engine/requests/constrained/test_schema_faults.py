"""A schema that cannot be followed is refused with the place of its fault."""

from __future__ import annotations

from typing import Any

import pytest

from edgeinfer.engine.requests.constrained import schema_faults
from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.errors import BadSetting
from tests.unit.engine.requests.constrained.test_guidance import byte_level

PROPERTIES: dict[str, Any] = {
    "title": {"type": "string", "maxLength": 9},
    "year": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}},
}


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return Guidance(byte_level())


def refusal(guidance: Guidance, schema: object) -> str:
    grammar = grammar_of(schema, None, None)  # type: ignore[arg-type]
    assert grammar is not None
    with pytest.raises(BadSetting) as failed:
        guidance.constraint(grammar)
    return str(failed.value).removeprefix("the schema cannot be followed: ")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"title": {"type": "string", "pattern": "([a-z"}}, "title: regex parse error: unclosed character class"),
        ({"title": "string"}, "title: a schema must be an object or a boolean"),
        (
            {"year": {"type": "integer", "minimum": 3000, "maximum": 2100}},
            "year: Unsatisfiable schema: minimum (3000) is greater than maximum (2100)",
        ),
        ({"year": {"type": "interger"}}, "year: Invalid type: interger"),
        ({"tags": {"type": "array", "uniqueItems": True}}, 'tags: Unimplemented keys: ["uniqueItems"]'),
        ({"title": {"type": "string", "format": "isbn"}}, "title: Unknown format: isbn"),
        (
            {"tags": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"not": {"type": "null"}}]}}},
            'tags.items.anyOf[1]: Unimplemented keys: ["not"]',
        ),
        ({"tags": {"type": "array", "prefixItems": [True, {"enum": []}], "minItems": 2}}, "tags.prefixItems[1]: "),
    ],
    ids=["pattern", "text", "bounds", "type", "unique", "format", "deep", "listed"],
)
def test_the_smallest_part_is_named(guidance: Guidance, changed: dict[str, Any], told: str) -> None:
    schema = {"type": "object", "properties": {**PROPERTIES, **changed}, "required": list(PROPERTIES)}
    assert refusal(guidance, schema).startswith(f"properties.{told}")


def test_what_is_required_and_not_there_is_named(guidance: Guidance) -> None:
    schema = {"type": "object", "properties": PROPERTIES, "required": ["author"], "additionalProperties": False}
    assert refusal(guidance, schema) == "'author' is required, and is none of its properties"


def test_definitions_are_at_hand(guidance: Guidance) -> None:
    """A part that refers to a sound definition is no fault, and a definition may be one."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/sound"}, "b": {"$ref": "#/$defs/odd"}},
        "$defs": {"sound": {"type": "null"}, "odd": {"type": "objekt"}},
    }
    assert refusal(guidance, schema) == "properties.b: Invalid type: objekt"


def test_the_whole_schema_may_be_at_fault(guidance: Guidance) -> None:
    assert refusal(guidance, {"type": "strin"}) == "Invalid type: strin"


def test_the_search_ends_in_time(guidance: Guidance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_faults, "SEARCH_S", -1)
    schema = {"type": "object", "properties": {**PROPERTIES, "year": {"type": "interger"}}}
    assert refusal(guidance, schema) == "Invalid type: interger"
