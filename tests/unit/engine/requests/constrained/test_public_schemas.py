"""Schemas as clients send them: answers at random obey them by jsonschema's judgement, or they are refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.errors import BadSetting
from tests.unit.engine.requests.constrained.test_guidance import byte_level

N_ANSWERS, MOST_TOKENS = 4, 400


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = closed({"x": schema})
    return schema


TEXT, COUNT = {"type": "string"}, {"type": "integer"}
TOOLS = [
    closed({"name": {"const": f"tool_{number}"}, "arguments": closed({f"p{n}": {"type": "boolean"} for n in range(3)})})
    for number in range(40)
]
OBEYED: dict[str, dict[str, Any]] = {
    "a long text": {"type": "string", "maxLength": 5000},
    "eight long texts": closed({key: {"type": "string", "maxLength": 2000} for key in "abcdefgh"}),
    "a reference into items": closed(
        {"a": {"type": "array", "items": COUNT}, "b": {"type": "array", "items": {"$ref": "#/properties/a/items"}}}
    ),
    "a reference into a list": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
    "definitions in any order": {
        "$ref": "#/$defs/B",
        "$defs": {"B": closed({"x": {"$ref": "#/$defs/A"}}), "A": {"enum": ["p", "q"]}},
    },
    "values of several types": {"enum": [None, 1, "1"]},
    "constants of several types": {"anyOf": [{"const": 1}, {"const": "1"}]},
    "values behind a reference": closed({"a": {"$ref": "#/$defs/E"}}, **{"$defs": {"E": {"enum": ["x", "y"]}}}),
    "least properties": {"type": "object", "minProperties": 1, "maxProperties": 2},
    "a pattern without a type": {"pattern": "a|b"},
    "a pattern and a length": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    "properties without a type": {"properties": {"a": COUNT}, "required": ["a"]},
    "a tree": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {**closed({"v": COUNT, "c": {"$ref": "#/$defs/n"}}), "required": ["v"]}},
    },
    "thirty deep": nested(30),
    "all of two": {
        "allOf": [
            {"type": "object", "properties": {"a": COUNT}, "required": ["a"]},
            {"type": "object", "properties": {"b": COUNT}, "required": ["b"]},
        ]
    },
    "forty tools": {"anyOf": TOOLS},
    "thousands of values": {"enum": [f"value {number}" for number in range(3000)]},
    "thousands of items": {"type": "array", "items": COUNT, "maxItems": 5000},
}
REFUSED: dict[str, tuple[object, str]] = {
    "not": ({"not": TEXT}, "not"),
    "different items": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "if": ({"if": TEXT, "then": {"maxLength": 1}}, "if"),
    "contains": ({"type": "array", "contains": {"const": 7}}, "contains"),
    "names of properties": ({"type": "object", "propertyNames": {"pattern": "^a$"}}, "propertyNames"),
    "overlapping alternatives": ({"oneOf": [COUNT, {"type": "number", "minimum": 3}]}, "oneOf"),
    "nothing": ({"enum": []}, "Unsatisfiable"),
    "an unknown format": ({"type": "string", "format": "rocket"}, "rocket"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "none"),
    "a reference to elsewhere": ({"$ref": "http://example.com/x.json"}, "example.com"),
    "hundreds deep": (nested(200), "recursion"),
}


@pytest.mark.parametrize("name", OBEYED)
def test_answers_obey(name: str) -> None:
    schema, tokenizer, n_ended = OBEYED[name], byte_level(), 0
    ends = tokenizer.vocabulary.end_of_generation
    random = np.random.Generator(np.random.PCG64(7))
    grammar = grammar_of(schema, None, None)
    assert grammar is not None
    for _ in range(N_ANSWERS):
        constraint, tokens = Guidance(tokenizer).constraint(grammar), list[int]()
        while len(tokens) < MOST_TOKENS:
            allowed = np.flatnonzero(constraint.mask()).tolist()
            closing = [token for token in allowed if token in ends or tokenizer.piece(token) in (b"}", b"]", b'"')]
            chosen = int(random.choice(closing if closing and random.random() < 0.5 else allowed))
            if chosen in ends:
                jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
                n_ended += 1
                break
            constraint.accept(chosen)
            tokens.append(chosen)
    assert n_ended


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_obeyed_is_refused_by_name(name: str) -> None:
    schema, reason = REFUSED[name]
    grammar = grammar_of(schema, None, None)  # type: ignore[arg-type]
    assert grammar is not None
    with pytest.raises(BadSetting, match=reason):
        Guidance(byte_level()).constraint(grammar)
