"""openai-agents over chat completions and over the Responses API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_while, run_checks, weather
from openai import AsyncOpenAI
from pydantic import BaseModel

KINDS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


class Rain(BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def agent_of(kind: str, address: str, model: str, **options: Any) -> Agent[None]:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    settings = ModelSettings(max_tokens=200, include_usage=True)
    return Agent(name="agent", model=KINDS[kind](model, openai_client=client), model_settings=settings, **options)


async def plain(kind: str, address: str, model: str) -> object:
    return (await Runner.run(agent_of(kind, address, model), QUESTION)).final_output


async def streamed(kind: str, address: str, model: str) -> object:
    run = Runner.run_streamed(agent_of(kind, address, model), QUESTION)
    raw = [event.data.type async for event in run.stream_events() if event.type == "raw_response_event"]
    return f"{raw.count('response.output_text.delta')} deltas: {run.final_output}"


async def tools(kind: str, address: str, model: str) -> object:
    run = await Runner.run(agent_of(kind, address, model, tools=[function_tool(weather)]), CALL, max_turns=4)
    names = [type(item).__name__ for item in run.new_items]
    assert "ToolCallItem" in names
    return [*names, run.final_output]


async def tools_streamed(kind: str, address: str, model: str) -> object:
    agent = agent_of(kind, address, model, tools=[function_tool(weather)])
    run = Runner.run_streamed(agent, CALL, max_turns=4)
    names = [event.name async for event in run.stream_events() if event.type == "run_item_stream_event"]
    assert "tool_called" in names
    return [*names, run.final_output]


async def handoff(kind: str, address: str, model: str) -> object:
    other = agent_of(kind, address, model, instructions="Answer briefly.")
    other.name = "colours"
    agent = agent_of(kind, address, model, handoffs=[other])
    agent.model_settings.tool_choice = "required"
    run = await Runner.run(agent, QUESTION, max_turns=4)
    return [run.last_agent.name, run.final_output]


async def structured(kind: str, address: str, model: str) -> object:
    return repr((await Runner.run(agent_of(kind, address, model, output_type=Rain), RAIN_QUESTION)).final_output)


async def unknown_model(kind: str, address: str, model: str) -> object:
    return await error_while(Runner.run(agent_of(kind, address, NO_MODEL), QUESTION))


async def too_long(kind: str, address: str, model: str) -> object:
    return await error_while(Runner.run(agent_of(kind, address, model), TOO_LONG))


if __name__ == "__main__":
    checks: dict[str, Callable[[str, str], object]] = {}
    for each in KINDS:
        for check in (plain, streamed, tools, tools_streamed, handoff, structured, unknown_model, too_long):
            checks[f"{check.__name__}_{each}"] = partial(check, each)
    run_checks(**checks)
