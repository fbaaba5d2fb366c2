"""Schemas as pydantic writes them, which do not say whether there may be other keys: answers have the declared ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from edgeinfer.app.server.listening import ServerOptions
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

N_SCHEMAS = 300
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "the rain in the tin"}]
SIMPLE = (bool, int, Literal["red", "green"], Literal[1, 2, 3], bool | None)


class Forbidding(pydantic.BaseModel):
    """A model that takes no undeclared keys: the judge of what a plain one declares."""

    model_config = pydantic.ConfigDict(extra="forbid")


def model_pair(draw: random.Random, depth: int) -> tuple[type[pydantic.BaseModel], type[pydantic.BaseModel]]:
    """A random model, plain and forbidding undeclared keys."""
    plain: dict[str, Any] = {}
    forbidding: dict[str, Any] = {}
    for name in draw.sample(("name", "born", "tags", "child", "size", "kind"), draw.randint(1, 3)):
        field = draw.choice(("simple", "simple", "model", "optional", "union", "list", "mapping"))
        if depth == 0 or field == "simple":
            kinds = (draw.choice(SIMPLE),) * 2
        elif field == "mapping":
            kinds = (dict[str, bool], dict[str, bool])
        else:
            one, other = model_pair(draw, depth - 1), model_pair(draw, depth - 1)
            kinds = tuple(
                {"model": first, "optional": first | None, "union": first | second, "list": list[first]}[field]
                for first, second in zip(one, other, strict=True)
            )
        default = ... if draw.random() < 0.7 else None
        types = kinds if default is ... else tuple(kind | None for kind in kinds)
        plain[name], forbidding[name] = ((kind, default) for kind in types)
    title = f"M{draw.getrandbits(32)}"
    return pydantic.create_model(title, **plain), pydantic.create_model(title, __base__=Forbidding, **forbidding)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_tiny_llama(tmp_path_factory.mktemp("declared") / "tiny.gguf", context=4096)
    with served(path, ServerOptions(port=0, queue=N_SCHEMAS)) as running:
        yield running


def test_plain_schemas_have_no_undeclared_keys(server: Running) -> None:
    pairs = [model_pair(random.Random(seed), 2) for seed in range(N_SCHEMAS)]
    http = server.http()

    def answer(number: int) -> str:
        schema = pairs[number][0].model_json_schema()
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        body = {"messages": MESSAGES, "response_format": wanted, "max_tokens": 60, "temperature": 2, "seed": number}
        (choice,) = http.post(CHAT, json=body).json()["choices"]
        text: str = choice["message"]["content"]
        return text

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(answer, range(N_SCHEMAS)))
    n_whole = 0
    for (_, judge), text in zip(pairs, texts, strict=True):
        try:
            json.loads(text)
        except ValueError:
            continue  # what must be written does not fit
        n_whole += 1
        judge.model_validate_json(text)
    assert n_whole > N_SCHEMAS * 0.9


def test_arguments_of_functions_have_no_undeclared_keys(server: Running) -> None:
    for seed in range(20):
        plain, judge = model_pair(random.Random(seed), 1)
        tool = {"type": "function", "function": {"name": "save", "parameters": plain.model_json_schema()}}
        body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required", "max_tokens": 150, "seed": seed}
        found = server.http().post(CHAT, json=body).json()
        assert "choices" in found, found
        (choice,) = found["choices"]
        judge.model_validate_json(choice["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("field", ["response_format", "json_schema"])
def test_an_object_without_declared_keys_stays_free(server: Running, field: str) -> None:
    wanted = {"type": "object"} if field == "json_schema" else {"type": "json_object"}
    body = {"messages": MESSAGES, field: wanted, "max_tokens": 60, "temperature": 100}
    found = [server.http().post(CHAT, json={**body, "seed": seed}).json() for seed in range(8)]
    assert any(json.loads(each["choices"][0]["message"]["content"]) for each in found)


def test_an_example_of_a_call_has_no_arguments_to_copy(tiny_model: Path) -> None:
    from edgeinfer.models.text.earlier_calls import with_instructions
    from edgeinfer.models.text.message import Message

    (system, _) = with_instructions([Message("user", "hi")], [{"function": {"name": "clock"}}])
    assert "its value" not in system.text
