"""Calls of functions are whole however few tokens an answer may have."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.constrained.tool_grammar import tool_grammar
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolReader, functions_of
from tests.unit.engine.requests.constrained.test_guidance import byte_level
from tests.unit.engine.requests.constrained.test_guided_json import written

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


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS.entries()))
@pytest.mark.parametrize("required", [True, False])
def test_calls_are_whole_however_few_tokens_there_are(tokenizer: Tokenizer, name: str, required: bool) -> None:
    form, functions, guidance, n_cut = TOOL_FORMATS.get(name), functions_of(TOOLS), Guidance(tokenizer), 0
    grammar = tool_grammar(form, functions, tokenizer, required=required, several=True)
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
