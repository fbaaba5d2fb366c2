"""JSON schemas, regular expressions and grammars that answers are to follow."""

from __future__ import annotations

from functools import cache

from edgeinfer.engine.requests.constrained.guidance import Guidance, grammar_of
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from targets.gguf import DATA

SCHEMA = b"""J{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"}, "n":
{"type": "integer", "minimum": 0, "maximum": 99}, "tags": {"type": "array", "items": {"enum": ["a", "b", null]},
"minItems": 1}, "o": {"$ref": "#/$defs/x"}}, "required": ["name"], "additionalProperties": false, "$defs":
{"x": {"anyOf": [{"type": "number"}, {"type": "boolean"}]}}}"""
REGEX = rb"R(\d{1,3}|[a-f]+x?)(, (yes|no))*"
LARK = b'Gstart: "a" item+\nitem: /[0-9]+/ | "(" start ")"\n'
GBNF = b'Groot ::= "a" item+\nitem ::= [0-9]+ | "(" root ")" {2,3}\n'


@cache
def guidance() -> Guidance:
    """That of a tiny model."""
    with GGUFFile.open(DATA / "llama-implicit-q8_0.gguf") as file:
        return Guidance(Tokenizer.from_metadata(file.metadata))


def seeds() -> list[bytes]:
    """One of each; the first byte says which it is."""
    return [SCHEMA, REGEX, LARK, GBNF]


def run(data: bytes) -> None:
    """Make what an answer is held to."""
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    given = (text, None, None) if kind == b"J" else (None, None, text) if kind == b"R" else (None, text, None)
    grammar = grammar_of(*given)
    if grammar is not None:
        guidance().constraint(grammar)
