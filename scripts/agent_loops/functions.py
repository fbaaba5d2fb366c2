"""The functions that agents have, as pydantic writes their schemas, and whether calls and answers follow them.

In: calls and texts of answers. Out: why they are wrong, as words; None if they are not. Objects without
`additionalProperties` have the keys that they declare and no others.
"""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any, Literal

import jsonschema
import pydantic

Record = dict[str, Any]


class Span(pydantic.BaseModel):
    """From one day to another."""

    first: int = pydantic.Field(ge=1, le=366)
    last: int = pydantic.Field(ge=1, le=366)


class Weather(pydantic.BaseModel):
    city: Literal["Rome", "Oslo", "São Paulo"]
    days: int = pydantic.Field(ge=1, le=9)
    units: Literal["metric", "imperial"] | None = None
    ticket: int = pydantic.Field(ge=10_000, le=99_999)


class Search(pydantic.BaseModel):
    query: str
    words: list[str] = pydantic.Field(default=[], max_length=3)
    when: Span | None = None
    exact: bool = False
    ticket: int = pydantic.Field(ge=10_000, le=99_999)


class Book(pydantic.BaseModel):
    seats: list[Literal["1A", "1B", "2C"]] = pydantic.Field(min_length=1, max_length=3)
    stay: Span
    price: float
    ticket: int = pydantic.Field(ge=10_000, le=99_999)


class Clock(pydantic.BaseModel):
    pass


class Report(pydantic.BaseModel):
    """What an agent says at last, if it is to be JSON."""

    title: Literal["rain", "no rain"]
    sure: bool
    days: list[int] = pydantic.Field(max_length=3)


FUNCTIONS: dict[str, type[pydantic.BaseModel]] = {"weather": Weather, "search": Search, "book": Book, "clock": Clock}
SAID = {
    "weather": "The weather of a city for some days.",
    "search": "Search the web.\n\nReturns <b>titles</b> & links.",
    "book": 'Book seats; "stay" says for how long.',
    "clock": "What time it is.",
}
SCHEMAS = {name: model.model_json_schema() for name, model in FUNCTIONS.items()}
REPORT = Report.model_json_schema()


def tools_of(names: list[str]) -> list[Record]:
    """Functions in the form of OpenAI's chat completions."""
    described = [{"name": name, "description": SAID[name], "parameters": SCHEMAS[name]} for name in names]
    return [{"type": "function", "function": each} for each in described]


def closed(schema: Record) -> Record:
    """A schema whose objects have no keys but those that they declare."""
    schema = copy.deepcopy(schema)
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            if part.get("type") == "object":
                part.setdefault("additionalProperties", False)
            parts += part.values()
    return schema


def fault_of_call(name: str, arguments: str, allowed: list[str], schemas: dict[str, Record]) -> str | None:
    """Why a call is wrong."""
    if name not in allowed:
        return f"{name!r} is not among the functions {allowed}"
    fault = fault_of_json(arguments, schemas[name])
    return None if fault is None else f"{name}({arguments}): {fault}"


def fault_of_json(text: str, schema: Record) -> str | None:
    """Why a text is not JSON that follows a schema."""
    try:
        jsonschema.validate(json.loads(text, parse_constant=_no_number, parse_float=_finite), closed(schema))
    except ValueError as error:
        return f"no JSON: {error}: {text!r}"
    except jsonschema.ValidationError as error:
        return f"{error.message}: {text}"
    return None


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is infinite")
    return value


def result_of(name: str, draw: random.Random, mark: str) -> tuple[str, bool]:
    """What a function returns, with `mark` in it, and whether that is an error."""
    if draw.random() < 0.25:
        return f"Error: {name} timed out after 30 s ({mark})", True
    value: object = {"result": [mark, "16 °C", None, {"<tag>": 'a "word" & \\ more'}]}
    return draw.choice([json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), f"{mark}: noon\n"]), False
