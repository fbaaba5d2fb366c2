"""litellm through each of its three providers that fit: openai, ollama_chat, anthropic."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import litellm
from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks, weather
from pydantic import BaseModel

litellm.telemetry = False
litellm.suppress_debug_info = True

PROVIDERS = {"openai": "openai", "ollama": "ollama_chat", "anthropic": "anthropic"}
TOOL = {
    "name": "weather",
    "description": "Rain in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Rain(BaseModel):
    city: str
    rain_mm: int


def ask(provider: str, address: str, model: str, messages: Any, **options: Any) -> Any:
    place = f"{address}/v1" if provider == "openai" else address
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    options = {"api_base": place, "api_key": "none", "num_retries": 0, "max_tokens": 200, **options}
    return litellm.completion(f"{PROVIDERS[provider]}/{model}", messages, **options)


def plain(provider: str, address: str, model: str) -> object:
    return ask(provider, address, model, QUESTION).choices[0].message.content


def streamed(provider: str, address: str, model: str) -> object:
    chunks = list(ask(provider, address, model, QUESTION, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content
    return f"{len(chunks)} chunks, {whole.usage.completion_tokens} tokens"


def tools(provider: str, address: str, model: str) -> object:
    messages: list[Any] = [{"role": "user", "content": CALL}]
    seen: list[object] = []
    for _ in range(4):
        options: dict[str, Any] = {"tools": [{"type": "function", "function": TOOL}]}
        message = ask(provider, address, model, messages, **options).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return [*seen, message.content]
        for call in message.tool_calls:
            seen.append([call.function.name, call.function.arguments])
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": "weather", "content": result})
    raise AssertionError("calls without end")


def structured(provider: str, address: str, model: str) -> object:
    answer = ask(provider, address, model, RAIN_QUESTION, response_format=Rain)
    return repr(Rain.model_validate_json(answer.choices[0].message.content))


def unknown_model(provider: str, address: str, model: str) -> object:
    return error_of(lambda: ask(provider, address, NO_MODEL, QUESTION))


def too_long(provider: str, address: str, model: str) -> object:
    return error_of(lambda: ask(provider, address, model, TOO_LONG))


def embeddings(provider: str, address: str, model: str) -> object:
    place = f"{address}/v1" if provider == "openai" else address
    name = f"{provider}/{model}"
    vectors = litellm.embedding(name, ["a text", "another"], api_base=place, api_key="none").data
    return f"{len(vectors)} vectors of {len(vectors[0]['embedding'])}"


if __name__ == "__main__":
    checks: dict[str, Callable[[str, str], object]] = {}
    for each in PROVIDERS:
        for check in (plain, streamed, tools, structured, unknown_model, too_long):
            checks[f"{check.__name__}_{each}"] = partial(check, each)
    for each in ("openai", "ollama"):
        checks[f"embeddings_{each}"] = partial(embeddings, each)
    run_checks(**checks)
