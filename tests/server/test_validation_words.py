"""What is wrong with a request is told in JSON's words, at the place that was meant."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from edgeinfer.app.server.errors import invalid
from edgeinfer.app.server.requests import MOST_STOPS, ChatRequest

HALF = "has half of a surrogate pair, which is no Unicode text"
ASKED = {"messages": [{"role": "user", "content": "x"}]}


def message(kind: type[BaseModel], body: Any) -> tuple[str, str | None]:
    """The message for a body that is not valid, and the field that it names."""
    with pytest.raises(ValidationError) as found:
        kind.model_validate(body)
    error = invalid(found.value.errors())
    return error.message, error.param


@pytest.mark.parametrize(
    ("body", "expected", "param"),
    [
        ([], "the body must be an object", None),
        ({"messages": "x"}, "messages must be a list", "messages"),
        ({"messages": [5]}, "messages.0 must be an object", "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role is missing", "messages.0.role"),
        ({**ASKED, "max_tokens": "many"}, "max_tokens must be a whole number", "max_tokens"),
        ({**ASKED, "max_tokens": 1.5}, "max_tokens must be a whole number", "max_tokens"),
        ({**ASKED, "temperature": "hot"}, "temperature must be a number", "temperature"),
        ({**ASKED, "stream": "maybe"}, "stream must be true or false", "stream"),
        ({**ASKED, "stop": 5}, "stop must be a string or a list", "stop"),
        ({**ASKED, "stop": ["a"] * 99}, f"stop must have at most {MOST_STOPS} items", "stop"),
        ({"messages": [{"role": "user", "content": "\ud83e"}]}, f"messages.0.content {HALF}", "messages.0.content"),
        ({**ASKED, "stop": ["a", 5]}, "stop.1 must be a string", "stop"),
        ({**ASKED, "logit_bias": 5}, "logit_bias must be an object or a list", "logit_bias"),
        ({**ASKED, "response_format": "json"}, "response_format must be an object", "response_format"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_requests_are_told_what_json_they_need(body: Any, expected: str, param: str | None) -> None:
    assert message(ChatRequest, body) == (expected, param)


class Limited(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = Field(default=5, ge=1, le=9)
    share: float = Field(default=0.5, gt=0, lt=1)
    names: list[str] = Field(default_factory=list, min_length=0, max_length=2)
    text: str = Field(default="ab", min_length=1, max_length=3)
    kind: Literal["a", "b"] = "a"
    even: int = 2

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"size": 10}, "size must be at most 9"),
        ({"share": 0}, "share must be greater than 0.0"),
        ({"share": 1}, "share must be less than 1.0"),
        ({"names": ["a", "b", "c"]}, "names must have at most 2 items"),
        ({"text": ""}, "text must have at least 1 character"),
        ({"text": "long"}, "text must have at most 3 characters"),
        ({"kind": "c"}, "kind must be 'a' or 'b'"),
        ({"even": 3}, "even is wrong: 3 is odd"),
        ({"other": 3}, "other is unknown"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_limits_are_told_in_words(body: dict[str, Any], expected: str) -> None:
    assert message(Limited, body)[0] == expected
