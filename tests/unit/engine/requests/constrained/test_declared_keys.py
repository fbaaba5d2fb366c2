"""Which keys an object may have, if its schema does not say: judged by what a matcher accepts and by jsonschema."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest

from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.declared_keys import with_declared_keys
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.requests.constrained.test_guidance import byte_level

TEXT = {"type": "string"}
A, B = {"type": "object", "properties": {"a": TEXT}}, {"type": "object", "properties": {"b": TEXT}}
NODE = {"type": "object", "properties": {"a": TEXT, "next": {"$ref": "#/$defs/node"}}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


CASES: dict[str, tuple[dict[str, Any], list[object], list[object]]] = {
    "declared": (A, [{}, {"a": "x"}], [{"c": 1}, {"a": "x", "c": 1}]),
    "no type": ({"properties": {"a": TEXT}}, [{"a": "x"}], [{"c": 1}]),
    "none declared": ({"type": "object"}, [{"c": 1}], []),
    "declared as none": ({"type": "object", "properties": {}}, [{}], [{"c": 1}]),
    "others may be": ({**A, "additionalProperties": True}, [{"a": "x", "c": 1}], []),
    "others of a type": ({**A, "additionalProperties": TEXT}, [{"c": "x"}], [{"c": 1}]),
    "by patterns": ({**A, "patternProperties": {"^x-": TEXT}}, [{"a": "x", "x-1": "y"}], [{"x-1": 1}, {"c": 1}]),
    "within a list": ({"type": "array", "items": A}, [[{"a": "x"}]], [[{"c": 1}]]),
    "within a map": ({"type": "object", "additionalProperties": A}, [{"k": {"a": "x"}}], [{"k": {"c": 1}}]),
    "an optional one": ({"anyOf": [A, {"type": "null"}]}, [None, {"a": "x"}], [{"c": 1}]),
    "one of two": ({"anyOf": [A, B]}, [{"a": "x"}, {"b": "x"}], [{"a": "x", "b": "x"}]),
    "both of two": ({"allOf": [A, B]}, [{"a": "x", "b": "x"}], [{"a": "x", "c": 1}, {"b": 1}]),
    "a choice beside keys": ({**A, "anyOf": [{"required": ["a"]}, B]}, [{"a": "x", "b": "x"}], [{"c": 1}]),
    "required and not declared": ({**A, "required": ["b"]}, [{"b": 1}], [{"b": 1, "c": 1}]),
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": A}}, [{"a": "x"}], [{"c": 1}]),
    "by itself": ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, [{"next": {"a": "x"}}], [{"next": {"c": 1}}]),
    "a base, alone and beside others": (
        {
            "$defs": {"a": A},
            "type": "object",
            "properties": {"one": {"$ref": "#/$defs/a"}, "two": {"allOf": [{"$ref": "#/$defs/a"}, B]}},
        },
        [{"one": {"a": "x"}, "two": {"a": "x", "b": "x"}}],
        [{"one": {"b": "x"}}, {"two": {"c": 1}}, {"one": {"a": 1}}],
    ),
    "a base that allows others": (
        {"$defs": {"a": {**A, "additionalProperties": True}}, "allOf": [{"$ref": "#/$defs/a"}, B]},
        [{"a": "x", "c": 1}],
        [{"b": 1}],
    ),
    "keys beside a reference": (
        {"$ref": "#/definitions/a", "properties": {"b": TEXT}, "definitions": {"a": A}},
        [{"a": "x", "b": "x"}],
        [{"c": 1}],
    ),
    "unevaluated keys": ({"allOf": [A, B], "unevaluatedProperties": False}, [{"a": "x", "b": "x"}], [{"c": 1}]),
    "unevaluated keys of a type": ({"allOf": [A], "unevaluatedProperties": TEXT}, [{"c": "x"}], [{"c": 1}]),
    "unevaluated keys that may be": (
        {"allOf": [A, B], "unevaluatedProperties": True},
        [{"a": "x", "c": 1}],
        [{"a": 1}],
    ),
    "evaluated elsewhere": (
        {"allOf": [{**A, "additionalProperties": True}], "unevaluatedProperties": False},
        [{"c": 1}],
        [{"a": 1}],
    ),
    "a path with a slash": (
        {"type": "object", "properties": {"x/y": A, "z": {"$ref": "#/properties/x~1y"}}},
        [{"z": {"a": "x"}}],
        [{"z": {"c": 1}}],
    ),
    "a constant": ({"properties": {"a": {"const": {"c": 1}}}}, [{"a": {"c": 1}}], [{"a": {}}]),
}


def accepts(tokenizer: Tokenizer, schema: object, value: object) -> bool:
    """Whether an answer that follows the schema may be this value."""
    constraint = Guidance(tokenizer).constraint(Grammar("json", json.dumps(schema)))
    tokens = tokenizer.encode(json.dumps(value), add_special=False)
    if constraint.n_allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        constraint.accept(token)
    return constraint.allows(min(tokenizer.vocabulary.end_of_generation))


@pytest.mark.parametrize("name", CASES)
def test_keys_that_an_object_may_have(tokenizer: Tokenizer, name: str) -> None:
    schema, answers, others = CASES[name]
    closed = with_declared_keys(copy.deepcopy(schema))
    jsonschema.Draft202012Validator.check_schema(closed)
    for value in answers:
        jsonschema.validate(value, schema)
        jsonschema.validate(value, closed)
        assert accepts(tokenizer, schema, value), value
    for value in others:
        assert not jsonschema.Draft202012Validator(closed).is_valid(value)
        assert not accepts(tokenizer, schema, value), value


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"$ref": "https://example.org/other", "properties": {"a": {}}},
        {"$ref": "#/nothing", "properties": {"a": {}}},
        {"properties": 5},
        {"properties": {"a": {}}, "minProperties": 2},
        {"enum": [{"properties": {}}]},
    ],
)
def test_what_it_cannot_know_stays_as_it_is(schema: object) -> None:
    assert with_declared_keys(copy.deepcopy(schema)) == schema
