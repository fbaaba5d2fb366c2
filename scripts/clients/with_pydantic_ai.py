"""pydantic-ai's agent over its OpenAI model of chat completions."""

from __future__ import annotations

from typing import Any

import pydantic
from agent_parts import BRIEF, FIRST, LATE, MODEL, NEXT, PARTS, clock, run_scenes, weather
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRequest, ModelRetry, NativeOutput, SystemPromptPart, ToolOrOutput, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider


class Rain(pydantic.BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def asked_weather(city: str, days: int) -> str:
    """Rain in a city in the next days.

    Args:
        city: Its name.
        days: How many days.
    """
    try:
        return weather(city, days)
    except Exception as reason:
        raise ModelRetry(str(reason)) from reason


def agent_of(scene: str, address: str) -> Agent[None, Any]:
    client = AsyncOpenAI(base_url=address, api_key="none", max_retries=0)
    profile = OpenAIModelProfile(supports_json_schema_output=True)
    if scene == "instructions":
        profile = OpenAIModelProfile(openai_system_prompt_role="developer")
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client), profile=profile)
    output = {"structured": NativeOutput(Rain), "typed": Rain}.get(scene, str)
    agent: Agent[None, Any] = Agent(
        model, output_type=output, system_prompt=BRIEF, model_settings={"max_tokens": 200}, retries=3
    )
    agent.tool_plain(asked_weather, name="weather")
    agent.tool_plain(clock)
    return agent


async def ask(agent: Agent[None, Any], mode: str, question: Any, history: list[Any], settings: Any = None) -> list[Any]:
    """All messages, with those of this run."""
    options: dict[str, Any] = {"message_history": history, "usage_limits": UsageLimits(request_limit=6)}
    if settings:
        options["model_settings"] = settings
    if mode == "whole":
        return (await agent.run(question, **options)).all_messages()
    async with agent.iter(question, **options) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
        return run.result.all_messages()  # type: ignore[union-attr]


def told(messages: list[Any]) -> list[Any]:
    """What answers had."""
    answers = [message for message in messages if message.kind == "response"]
    return [[[part.part_kind, getattr(part, "content", None) or part.tool_name] for part in m.parts] for m in answers]


async def run(scene: str, mode: str, address: str) -> object:
    """One scene."""
    agent = agent_of(scene, address)
    settings = {"tool_choice": ToolOrOutput(function_tools=["clock"])} if scene == "allowed" else None
    question = list(PARTS) if scene == "instructions" else FIRST
    messages = await ask(agent, mode, question, [], settings)
    if scene == "instructions":
        messages.append(ModelRequest(parts=[SystemPromptPart(LATE)]))
    if scene in ("plain", "thoughts", "instructions"):
        messages = await ask(agent, mode, NEXT, messages)
    return told(messages)


if __name__ == "__main__":
    run_scenes(run, ("plain", "tools", "thoughts", "structured", "typed", "instructions", "allowed"))
