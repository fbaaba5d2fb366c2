"""Python functions as tools: what is told of them, and what is refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

import edgeinfer
from edgeinfer.engine.requests.python_tools import described
from edgeinfer.errors import BadSetting
from tests.conftest import write_tiny_llama


def weather(city: str, unit: Literal["C", "F"] = "C", days: int | None = None) -> str:
    """The weather in a city.

    city: its name
    """
    return f"{city} {unit} {days}"


def sums(numbers: list[float], weights: Optional[dict[str, float]], *, exact: bool) -> float:  # noqa: UP045
    return 0.0


def test_names_docstrings_and_annotations_are_told() -> None:
    (told,) = described([weather])
    assert told == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.\n\ncity: its name",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["C", "F"]},
                    "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    }
    assert described([told]) == [told]
    parameters = described([sums])[0]["function"]["parameters"]
    assert parameters["required"] == ["numbers", "weights", "exact"]
    assert parameters["properties"] == {
        "numbers": {"type": "array", "items": {"type": "number"}},
        "weights": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "exact": {"type": "boolean"},
    }


def with_rest(*cities: str) -> None: ...


def without_type(city) -> None: ...  # type: ignore[no-untyped-def]


def with_path(city: Path) -> None: ...


def with_unknown(city: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda: None, "needs a name"),
        (functools.partial(weather, "Rome"), "needs a name"),
        (with_rest, r"\*cities: 'str' of with_rest has no single name"),
        (without_type, "the argument city of without_type has no type"),
        (with_path, r"the argument city of with_path is <class 'pathlib\.\w*\.?Path'>; one takes str"),
        (with_unknown, "the arguments of with_unknown cannot be told: name 'Missing' is not defined"),
    ],
    ids=["lambda", "partial", "rest", "no type", "path", "unknown"],
)
def test_what_cannot_be_described_is_refused(function: Callable[..., Any], told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        described([function])


def test_an_answer_calls_it_with_arguments_of_its_types(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=2048)
    with edgeinfer.load(model, device="reference") as llm:
        required: dict[str, Any] = {"tool_choice": "required", "parallel_tools": False}
        stream = llm.chat("the hen", tools=[weather], **required, max_tokens=200, seed=1)
        stream.read()
        (call,) = stream.tool_calls
        assert call.name == "weather"
        arguments = json.loads(call.arguments)
        assert isinstance(arguments["city"], str)
        assert weather(**arguments)
