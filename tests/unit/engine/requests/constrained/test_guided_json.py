"""JSON answers and function calls are whole however few tokens they may have, if that is possible at all."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.call_grammars import tool_grammar
from edgeinfer.engine.requests.constrained.constraints import Constraint, Grammar
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolReader, functions_of
from tests.unit.engine.requests.constrained.test_guidance import byte_level

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer", "minimum": 180}, "of": {"$ref": "#"}},
    "required": ["name", "born"],
    "additionalProperties": False,
}
HASH = {"type": "string", "pattern": "^[A-Z]{3}-[0-9a-f]{24}$"}
SCHEMAS = [
    {},
    {"type": "object"},
    {"type": "array", "items": {"type": "array", "minItems": 2}},
    {"type": "string", "pattern": "^x+$"},
    {"type": "string", "pattern": "needle"},
    HASH,
    {"type": "array", "items": {"type": "string", "pattern": '\\x14[^a-z]+"'}, "minItems": 2},
    {"type": "object", "patternProperties": {"^[a-z]+\\d{2}$": {"format": "email", "type": "string"}}},
    {"type": "string", "minLength": 5},
    {"type": "string", "format": "uri"},
    {"type": "string", "format": "date-time"},
    {"type": "number"},
    {"type": "array", "items": {"enum": ["a long word", "another one", None, 1e9]}, "minItems": 3},
    {"anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": {"type": "string"}}]},
    PERSON,
]

BOUNDED = [HASH, {"type": "number"}, {"type": "string", "format": "date-time"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


def written(guided: Constraint, tokenizer: Tokenizer, draw: random.Random, *, ends: bool) -> list[int]:
    """A text of tokens drawn at random and of those that must follow; unless it `ends`, it goes on while it can."""
    closers = set() if ends else {*tokenizer.vocabulary.end_of_generation, *map(tokenizer.token_id, '"]}')}
    found: list[int] = []
    while True:
        forced, allowed = guided.forced(), guided.mask().nonzero()[0].tolist()
        going_on = [token for token in allowed if token not in closers]
        token = forced[0] if forced else guided.settled(draw.choice(going_on or allowed))
        assert guided.allows(token)
        if token in tokenizer.vocabulary.end_of_generation:
            return found
        guided.accept(token)
        found.append(token)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_a_text_is_whole_within_its_tokens(tokenizer: Tokenizer, schema: dict[str, object], ends: bool) -> None:
    guidance, n_cut = Guidance(tokenizer), 0
    for seed in range(20):
        n_most, guided = 50 + 9 * seed, guidance.constraint(Grammar("json", json.dumps(schema)))
        guided.end_within(n_most)
        tokens = written(guided, tokenizer, random.Random(seed), ends=ends)
        assert len(tokens) <= n_most
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
        n_cut += guided.is_cut
    assert ends or n_cut or schema in BOUNDED


def test_what_no_closer_leads_to_goes_on_as_it_would(tokenizer: Tokenizer) -> None:
    """Where Python's regular expressions have no such thing, nothing is known to do better than the model."""
    guided = Guidance(tokenizer).constraint(Grammar("json", json.dumps({"type": "string", "pattern": "n[[e]]edle"})))
    tokens = tokenizer.encode('"' + "hay" * 60)
    guided.end_within(len(tokens) + 1)
    for token in tokens:
        assert guided.settled(token) == token
        guided.accept(token)
    assert not guided.is_cut


@pytest.mark.parametrize("multiple", [7, 93, 1000])
def test_numbers_are_closed_as_multiples(tokenizer: Tokenizer, multiple: int) -> None:
    """And begin as the model wants, for there is a way to end them."""
    for first in (*"123456789", "1" * 40):
        schema = {"type": "array", "items": {"type": "integer", "multipleOf": multiple}, "minItems": 1}
        guided = Guidance(tokenizer).constraint(Grammar("json", json.dumps(schema)))
        guided.end_within(100)
        written = tokenizer.encode(f"[{first}")
        for token in written:
            assert guided.settled(token) == token
            guided.accept(token)
        ending = guided._closing(guided._matcher, guided._place, 50)  # type: ignore[attr-defined]
        jsonschema.validate(json.loads(tokenizer.decode([*written, *ending])), schema)


def test_what_cannot_be_closed_in_time_is_cut_as_ever(tokenizer: Tokenizer) -> None:
    guided = Guidance(tokenizer).constraint(Grammar("json", json.dumps({"const": "a long word"})))
    guided.end_within(5)
    for token in tokenizer.encode('"a lo', add_special=False):
        assert guided.allows(token)
        guided.accept(token)
    assert not guided.is_cut
    assert not guided.allows(2)


@pytest.mark.parametrize("n_context", [512, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_whole_and_say_that_they_were_cut(tiny_model: Path, n_context: int, temperature: float) -> None:
    """By their tokens, or by the context; the same with drafts and without."""
    found = []
    for spec in ("off", 4):
        with load(tiny_model, device="cpu", spec=spec, n_context=n_context) as llm:
            max_tokens = None if n_context < 100 else 40
            for seed in range(5):
                stream = llm.complete(
                    "the hen in a", schema=PERSON, max_tokens=max_tokens, temperature=temperature, seed=seed
                )
                jsonschema.validate(json.loads(stream.read()), PERSON)
                stats = stream.stats
                assert stats is not None
                assert stats.finish_reason == "length"
                assert stats.truncated == (max_tokens is None)
                assert stats.n_generated <= (max_tokens or n_context)
                found.append(stream.tokens)
    assert found[:5] == found[5:]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "clock",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string", "pattern": "[A-Z]{3}-\\d"}, "n": {"type": "integer"}},
                "required": ["at"],
            },
        },
    }
]


@pytest.mark.parametrize("name", sorted(name for name, form in TOOL_FORMATS.entries().items() if form.read is None))
@pytest.mark.parametrize("required", [True, False])
def test_calls_are_whole_however_few_tokens_there_are(tokenizer: Tokenizer, name: str, required: bool) -> None:
    form, functions, guidance, n_cut = TOOL_FORMATS.get(name), functions_of(TOOLS), Guidance(tokenizer), 0
    grammar = tool_grammar(form, functions, tokenizer.marks, required=required, several=True)
    begun = tokenizer.encode(form.begin if form.shape == "each" else form.trigger, add_special=False)
    for n_most in range(130, 190, 5):
        guided = guidance.constraint(grammar, [function.parameters for function in functions])
        guided.end_within(n_most)
        for token in begun:
            assert guided.settled(token) == token
            guided.accept(token)
        text = begun + written(guided, tokenizer, random.Random(n_most), ends=False)
        assert len(text) <= n_most
        reader = ToolReader(form, frozenset(["clock"]))
        content = reader.push(tokenizer.decode(text)) + reader.finish()
        assert not content.strip()
        assert reader.calls
        for call in reader.calls:
            jsonschema.validate(json.loads(call.arguments), functions[0].parameters)
        n_cut += guided.is_cut
    assert n_cut
