"""litellm in an agent's loop as its guide writes it: the answer's message object goes into the next request."""

from __future__ import annotations

import json
from typing import Any

import litellm
from agent_parts import BRIEF, FIRST, LATE, MODEL, MOST_STEPS, NEXT, PARTS, RAIN, clock, run_scenes, weather

litellm.telemetry = False
litellm.suppress_debug_info = True

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Rain in a city in the next days.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "integer", "description": "How many days."},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "The time."}},
]


def answer_of(mode: str, address: str, messages: list[Any], **options: object) -> Any:
    """The message of the answer."""
    options |= {"model": f"openai/{MODEL}", "api_base": address, "api_key": "none", "messages": messages}
    options |= {"max_tokens": 200, "num_retries": 0}
    if mode == "whole":
        return litellm.completion(**options).choices[0].message
    stream = litellm.completion(stream=True, stream_options={"include_usage": True}, **options)
    return litellm.stream_chunk_builder(list(stream), messages=messages).choices[0].message


def called(call: Any) -> str:
    """The result of a call, or why there is none."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
        return {"weather": weather, "clock": clock}[call.function.name](**arguments)
    except Exception as reason:
        return f"Error: {reason}"


def loop(mode: str, address: str, messages: list[Any], **options: object) -> list[Any]:
    """Answer, call, answer, … until there is a text."""
    seen = []
    for _ in range(MOST_STEPS):
        message = answer_of(mode, address, messages, tools=TOOLS, **options)
        messages.append(message)
        calls = message.tool_calls or []
        seen.append([message.content, [[call.function.name, call.function.arguments] for call in calls]])
        for call in calls:
            result = called(call)
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result})
        if not calls:
            break
        if options.get("tool_choice"):
            options["tool_choice"] = "auto"
    return seen


def run(scene: str, mode: str, address: str) -> object:
    """One scene."""
    messages: list[Any] = [{"role": "system", "content": BRIEF}, {"role": "user", "content": FIRST}]
    if scene == "plain":
        messages.append(answer_of(mode, address, messages))
        messages.append({"role": "user", "content": NEXT})
        return answer_of(mode, address, messages, temperature=0.5, stop=["\n\n\n"]).content
    if scene == "instructions":
        parts = [{"type": "text", "text": part} for part in PARTS]
        messages = [{"role": "developer", "content": BRIEF}, {"role": "user", "content": parts}]
        messages.append(answer_of(mode, address, messages))
        messages += [{"role": "system", "content": LATE}, {"role": "user", "content": NEXT}]
        return loop(mode, address, messages)
    options: dict[str, object] = {}
    if scene == "structured":
        schema = {"name": "rain", "schema": RAIN, "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    if scene == "required":
        options["tool_choice"] = "required"
    if scene == "named":
        options["tool_choice"] = {"type": "function", "function": {"name": "clock"}}
    seen = loop(mode, address, messages, **options)
    if scene == "thoughts":
        messages.append({"role": "user", "content": NEXT})
        seen += loop(mode, address, messages)
    return seen


if __name__ == "__main__":
    run_scenes(run)
