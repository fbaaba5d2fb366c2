"""anthropic: messages, their streams, its own loop of tools, and counts of tokens."""

from __future__ import annotations

from typing import Any

import anthropic
from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks
from check_parts import weather as rain_in
from pydantic import BaseModel


class Rain(BaseModel):
    city: str
    rain_mm: int


@anthropic.beta_tool
def weather(city: str) -> str:
    """Rain in a city.

    Args:
        city: Its name.
    """
    return rain_in(city)


def client(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)


def asked(model: str, content: str) -> dict[str, Any]:
    return {"model": model, "max_tokens": 200, "messages": [{"role": "user", "content": content}]}


def plain(address: str, model: str) -> object:
    return client(address).messages.create(**asked(model, QUESTION)).content[0].text


def streamed(address: str, model: str) -> object:
    with client(address).messages.stream(**asked(model, QUESTION)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == final.content[0].text
    return f"{len(pieces)} pieces, {final.usage.output_tokens} tokens"


def told(messages: list[Any]) -> object:
    """What the messages of a loop of tools had."""
    return [[getattr(block, "text", None) or (block.name, block.input) for block in each.content] for each in messages]


def tools(address: str, model: str) -> object:
    runner = client(address).beta.messages.tool_runner(tools=[weather], max_iterations=4, **asked(model, CALL))
    return told(list(runner))


def tools_streamed(address: str, model: str) -> object:
    options: dict[str, Any] = {"tools": [weather], "max_iterations": 4, "stream": True}
    runner = client(address).beta.messages.tool_runner(**options, **asked(model, CALL))
    return told([stream.get_final_message() for stream in runner])


def structured(address: str, model: str) -> object:
    return repr(client(address).messages.parse(output_format=Rain, **asked(model, RAIN_QUESTION)).parsed_output)


def counted(address: str, model: str) -> object:
    question = asked(model, QUESTION)
    del question["max_tokens"]
    return f"{client(address).messages.count_tokens(**question).input_tokens} tokens"


def models(address: str, model: str) -> object:
    return [each.id for each in client(address).models.list()] and client(address).models.retrieve(model).id


def unknown_model(address: str, model: str) -> object:
    return error_of(lambda: client(address).messages.create(**asked(NO_MODEL, QUESTION)))


def too_long(address: str, model: str) -> object:
    return error_of(lambda: client(address).messages.create(**asked(model, TOO_LONG)))


if __name__ == "__main__":
    run_checks(
        plain=plain,
        streamed=streamed,
        tools=tools,
        tools_streamed=tools_streamed,
        structured=structured,
        counted=counted,
        models=models,
        unknown_model=unknown_model,
        too_long=too_long,
    )
