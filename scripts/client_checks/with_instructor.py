"""instructor: structured answers by a schema and by a tool, whole, in parts and as a list, over openai's client."""

from __future__ import annotations

from functools import partial
from typing import Any

import instructor
import openai
from check_parts import NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks
from pydantic import BaseModel, Field

MODES = {"schema": instructor.Mode.JSON_SCHEMA, "tools": instructor.Mode.TOOLS}


class Rain(BaseModel):
    """The rain of a city."""

    city: str = Field(max_length=20)
    rain_mm: int


def client(mode: str, address: str) -> Any:
    there = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(there, mode=MODES[mode])


def asked(model: str, content: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_retries": 0}


def plain(address: str, model: str) -> object:
    answer = client("tools", address).create(response_model=None, **asked(model, QUESTION))
    return answer.choices[0].message.content


def structured(mode: str, address: str, model: str) -> object:
    return repr(client(mode, address).create(response_model=Rain, **asked(model, RAIN_QUESTION)))


def streamed(mode: str, address: str, model: str) -> object:
    parts = list(client(mode, address).create_partial(response_model=Rain, **asked(model, RAIN_QUESTION)))
    return f"{len(parts)} parts: {parts[-1]!r}"


def listed(address: str, model: str) -> object:
    found = client("tools", address).create_iterable(response_model=Rain, **asked(model, RAIN_QUESTION))
    return [repr(each) for each in found]


def unknown_model(address: str, model: str) -> object:
    return error_of(lambda: client("tools", address).create(response_model=Rain, **asked(NO_MODEL, QUESTION)))


def too_long(address: str, model: str) -> object:
    return error_of(lambda: client("tools", address).create(response_model=Rain, **asked(model, TOO_LONG)))


if __name__ == "__main__":
    run_checks(
        plain=plain,
        **{f"structured_{mode}": partial(structured, mode) for mode in MODES},
        **{f"streamed_{mode}": partial(streamed, mode) for mode in MODES},
        listed=listed,
        unknown_model=unknown_model,
        too_long=too_long,
    )
