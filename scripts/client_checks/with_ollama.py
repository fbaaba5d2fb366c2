"""ollama: chat, generate, tools made of functions, formats, embeddings and models."""

from __future__ import annotations

from typing import Any

import ollama
from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks, weather
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    rain_mm: int


def said(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def plain(address: str, model: str) -> object:
    return ollama.Client(address).chat(model, said(QUESTION)).message.content


def streamed(address: str, model: str) -> object:
    parts = list(ollama.Client(address).chat(model, said(QUESTION), stream=True))
    assert parts[-1].done
    return f"{len(parts)} parts, {parts[-1].eval_count} tokens"


def generate(address: str, model: str) -> object:
    return ollama.Client(address).generate(model, "One word: the colour of snow?", options={"num_predict": 10}).response


def tools(address: str, model: str) -> object:
    messages = said(CALL)
    for _ in range(4):
        message = ollama.Client(address).chat(model, messages, tools=[weather]).message
        messages.append(message)
        if not message.tool_calls:
            return [m["content"] if isinstance(m, dict) else m.content or repr(m.tool_calls) for m in messages[1:]]
        for call in message.tool_calls:
            result = weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    raise AssertionError("calls without end")


def tools_streamed(address: str, model: str) -> object:
    parts = ollama.Client(address).chat(model, said(CALL), tools=[weather], stream=True)
    return [call.function.model_dump() for part in parts for call in part.message.tool_calls or []]


def structured(address: str, model: str) -> object:
    answer = ollama.Client(address).chat(model, said(RAIN_QUESTION), format=Rain.model_json_schema())
    return repr(Rain.model_validate_json(answer.message.content or ""))


def embeddings(address: str, model: str) -> object:
    vectors = ollama.Client(address).embed(model, ["a text", "another"]).embeddings
    return f"{len(vectors)} vectors of {len(vectors[0])}"


def models(address: str, model: str) -> object:
    client = ollama.Client(address)
    names = [each.model for each in client.list().models]
    return [names, client.show(model).details, [each.model for each in client.ps().models]] if names else None


async def in_tasks(address: str, model: str) -> object:
    stream = await ollama.AsyncClient(address).chat(model, said(QUESTION), stream=True)
    return "".join([part.message.content or "" async for part in stream])


def unknown_model(address: str, model: str) -> object:
    return error_of(lambda: ollama.Client(address).chat(NO_MODEL, said(QUESTION)))


def too_long(address: str, model: str) -> object:
    return error_of(lambda: ollama.Client(address).chat(model, said(TOO_LONG)))


if __name__ == "__main__":
    run_checks(
        plain=plain,
        streamed=streamed,
        generate=generate,
        tools=tools,
        tools_streamed=tools_streamed,
        structured=structured,
        embeddings=embeddings,
        models=models,
        in_tasks=in_tasks,
        unknown_model=unknown_model,
        too_long=too_long,
    )
