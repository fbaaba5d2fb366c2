"""openai-agents over chat completions and, in scenes that end in -responses, over the Responses API."""

from __future__ import annotations

from typing import Any

import pydantic
from agent_parts import BRIEF, FIRST, LATE, MODEL, NEXT, PARTS, SCENES, clock, run_scenes, weather
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


class Rain(pydantic.BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def agent_of(scene: str, address: str) -> Agent[None]:
    client = AsyncOpenAI(base_url=address, api_key="none", max_retries=0)
    kind = OpenAIResponsesModel if scene.endswith("-responses") else OpenAIChatCompletionsModel
    choice = {"required": "required", "named": "clock"}.get(scene.removesuffix("-responses"))
    return Agent(
        name="agent",
        instructions=None if scene.startswith("instructions") else BRIEF,
        model=kind(MODEL, openai_client=client),
        model_settings=ModelSettings(tool_choice=choice, max_tokens=200),
        tools=[function_tool(weather), function_tool(clock)],
        output_type=Rain if scene.startswith("structured") else None,
    )


async def ask(agent: Agent[None], mode: str, items: list[Any]) -> list[Any]:
    """All items, with those of this run."""
    if mode == "whole":
        return (await Runner.run(agent, items, max_turns=6)).to_input_list()
    result = Runner.run_streamed(agent, items, max_turns=6)
    async for _ in result.stream_events():
        pass
    return result.to_input_list()


def told(items: list[Any]) -> list[Any]:
    """What answers had."""
    return [
        [item.get("name"), item.get("arguments")] if item.get("type") == "function_call" else item.get("content")
        for item in items
        if item.get("type") == "function_call" or item.get("role") == "assistant"
    ]


async def run(scene: str, mode: str, address: str) -> object:
    """One scene."""
    set_tracing_disabled(True)
    agent = agent_of(scene, address)
    items: list[Any] = [{"role": "user", "content": FIRST}]
    if scene.startswith("instructions"):
        parts = [{"type": "input_text", "text": part} for part in PARTS]
        items = [{"role": "developer", "content": BRIEF}, {"role": "user", "content": parts}]
    items = await ask(agent, mode, items)
    if scene.startswith("instructions"):
        items.append({"role": "system", "content": LATE})
    if scene.removesuffix("-responses") in ("plain", "thoughts", "instructions"):
        items = await ask(agent, mode, [*items, {"role": "user", "content": NEXT}])
    return told(items)


if __name__ == "__main__":
    run_scenes(run, [*SCENES, *(f"{scene}-responses" for scene in SCENES)])
