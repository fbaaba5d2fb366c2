"""openai: chat completions, the Responses API, completions and embeddings."""

from __future__ import annotations

import json
from typing import Any

import openai
from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks, weather
from pydantic import BaseModel

TOOL = {
    "name": "weather",
    "description": "Rain in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Rain(BaseModel):
    city: str
    rain_mm: int


def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def said(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


def plain(address: str, model: str) -> object:
    return client(address).chat.completions.create(model=model, messages=said(QUESTION)).choices[0].message.content


def streamed(address: str, model: str) -> object:
    options: dict[str, Any] = {"model": model, "messages": said(QUESTION), "stream_options": {"include_usage": True}}
    with client(address).chat.completions.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    return f"{len(deltas)} deltas, {final.usage.completion_tokens} tokens"


def tools(address: str, model: str) -> object:
    messages, seen = said(CALL), list[Any]()
    for _ in range(4):
        options: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "tools": [{"type": "function", "function": TOOL}],
        }
        message = client(address).chat.completions.create(**options).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return [
                m["content"] if isinstance(m, dict) else m.content or m.tool_calls[0].function for m in messages[1:]
            ]
        for call in message.tool_calls:
            seen.append([call.function.name, call.function.arguments])
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("calls without end")


def structured(address: str, model: str) -> object:
    answer = client(address).chat.completions.parse(model=model, messages=said(RAIN_QUESTION), response_format=Rain)
    return repr(answer.choices[0].message.parsed)


def responses(address: str, model: str) -> object:
    with client(address).responses.stream(model=model, input=QUESTION) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        first = stream.get_final_response()
    assert "".join(deltas) == first.output_text
    options: dict[str, Any] = {"model": model, "previous_response_id": first.id}
    return client(address).responses.create(input="And three more?", **options).output_text


def responses_tools(address: str, model: str) -> object:
    options: dict[str, Any] = {"model": model, "tools": [{"type": "function", **TOOL}]}
    answer = client(address).responses.create(input=CALL, **options)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    result = weather(**json.loads(call.arguments))
    items: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": result}]
    return client(address).responses.create(input=items, previous_response_id=answer.id, **options).output_text


def responses_structured(address: str, model: str) -> object:
    return repr(client(address).responses.parse(model=model, input=RAIN_QUESTION, text_format=Rain).output_parsed)


def completions(address: str, model: str) -> object:
    options: dict[str, Any] = {"model": model, "prompt": "One, two,", "max_tokens": 8}
    return client(address).completions.create(**options).choices[0].text


def embeddings(address: str, model: str) -> object:
    vectors = client(address).embeddings.create(model=model, input=["a text", "another"]).data
    return f"{len(vectors)} vectors of {len(vectors[0].embedding)}"


def models(address: str, model: str) -> object:
    return [each.id for each in client(address).models.list()] and client(address).models.retrieve(model).id


async def in_tasks(address: str, model: str) -> object:
    there = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    stream = await there.chat.completions.create(model=model, messages=said(QUESTION), stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


def unknown_model(address: str, model: str) -> object:
    return error_of(lambda: client(address).chat.completions.create(model=NO_MODEL, messages=said(QUESTION)))


def too_long(address: str, model: str) -> object:
    return error_of(lambda: client(address).chat.completions.create(model=model, messages=said(TOO_LONG)))


if __name__ == "__main__":
    run_checks(
        plain=plain,
        streamed=streamed,
        tools=tools,
        structured=structured,
        responses=responses,
        responses_tools=responses_tools,
        responses_structured=responses_structured,
        completions=completions,
        embeddings=embeddings,
        models=models,
        in_tasks=in_tasks,
        unknown_model=unknown_model,
        too_long=too_long,
    )
