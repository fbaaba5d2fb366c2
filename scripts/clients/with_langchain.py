"""langchain's agent over langchain-openai."""

from __future__ import annotations

from typing import Any

from agent_parts import BRIEF, FIRST, LATE, MODEL, NEXT, PARTS, RAIN, SCENES, clock, run_scenes, weather
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

RAIN_SCHEMA = {"title": "final_result", "description": "The rain.", **RAIN}
SETTINGS: dict[str, Any] = {"recursion_limit": 14}


def model(mode: str, address: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=address, api_key="none", max_retries=0, max_tokens=200, streaming=mode == "stream"
    )


def told(messages: list[Any]) -> list[Any]:
    """What answers had."""
    return [
        [message.content, [[call["name"], call["args"]] for call in message.tool_calls], message.invalid_tool_calls]
        for message in messages
        if message.type == "ai"
    ]


def plain(mode: str, address: str) -> object:
    messages: list[Any] = [SystemMessage(BRIEF), HumanMessage(FIRST)]
    messages.append(model(mode, address).invoke(messages))
    messages.append(HumanMessage(NEXT))
    return model(mode, address).invoke(messages, stop=["\n\n\n"]).content


def forced(scene: str, mode: str, address: str) -> object:
    """A call that must be made, then a free answer."""
    tools = [tool(weather, parse_docstring=True), tool(clock)]
    messages: list[Any] = [SystemMessage(BRIEF), HumanMessage(FIRST)]
    bound = model(mode, address).bind_tools(tools, tool_choice="any" if scene == "required" else "clock")
    messages.append(bound.invoke(messages))
    by_name = {each.name: each for each in tools}
    messages += [by_name[call["name"]].invoke(call) for call in messages[-1].tool_calls]
    messages.append(model(mode, address).bind_tools(tools).invoke(messages))
    return told(messages)


def run(scene: str, mode: str, address: str) -> object:
    """One scene."""
    if scene == "plain":
        return plain(mode, address)
    if scene in ("required", "named"):
        return forced(scene, mode, address)
    answer_form = {
        "structured": ProviderStrategy(RAIN_SCHEMA),
        "typed": ToolStrategy(RAIN_SCHEMA),
    }.get(scene)
    agent = create_agent(
        model(mode, address),
        [tool(weather, parse_docstring=True), tool(clock)],
        system_prompt=None if scene == "instructions" else BRIEF,
        response_format=answer_form,
        middleware=[ToolRetryMiddleware(max_retries=0, on_failure="continue")],
    )
    messages: list[Any] = [HumanMessage(FIRST)]
    if scene == "instructions":
        parts = [{"type": "text", "text": part} for part in PARTS]
        developer = SystemMessage(BRIEF, additional_kwargs={"__openai_role__": "developer"})
        messages = [developer, HumanMessage(parts)]
    messages = agent.invoke({"messages": messages}, SETTINGS)["messages"]
    if scene == "instructions":
        messages += [SystemMessage(LATE), HumanMessage(NEXT)]
        messages = agent.invoke({"messages": messages}, SETTINGS)["messages"]
    if scene == "thoughts":
        messages = agent.invoke({"messages": [*messages, HumanMessage(NEXT)]}, SETTINGS)["messages"]
    return told(messages)


if __name__ == "__main__":
    run_scenes(run, (*SCENES, "typed"))
