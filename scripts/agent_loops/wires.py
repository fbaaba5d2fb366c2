"""The same conversation through four APIs, each by its own SDK: what is asked, answered, and sent back.

In: what a step asks for, results of calls. Out: answers. Every wire keeps its history in its own words, as clients do:
`content: null` beside calls, blocks, items, stored responses.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anthropic
import ollama
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from .functions import SCHEMAS, Record, tools_of

MODEL = "default"


@dataclass(frozen=True, slots=True)
class Call:
    identity: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    call: Call
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """What a step asks for. `choice`: auto, required, none or the name of a function; `schema`: of the answer."""

    names: list[str]
    choice: str
    is_parallel: bool
    schema: Record | None
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`reason`: why it ended, in the words of the API; `is_cut`: since its tokens ran out.

    `schemas`: of the functions, if the SDK sends others than it is given.
    """

    text: str
    calls: list[Call]
    reason: str
    is_cut: bool
    schemas: dict[str, Record] = field(default_factory=lambda: SCHEMAS)


class Wire(Protocol):
    def say(self, text: str) -> None: ...
    def ask(self, ask: Ask) -> Answer: ...
    def give(self, results: Sequence[Result]) -> None: ...


def parts_of(text: str, draw: random.Random) -> list[str]:
    """A text as one part, or as two that begin and end with words."""
    places = [at for at, character in enumerate(text) if character == " "]
    cut = draw.choice(places) if places and draw.random() < 0.5 else 0
    return [text[:cut], text[cut:]] if cut else [text]


@dataclass
class ChatWire:
    """OpenAI's chat completions."""

    url: str
    draw: random.Random
    is_streamed: bool
    messages: list[Record] = field(default_factory=list)

    def say(self, text: str) -> None:
        parts = [{"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": self.draw.choice([text, parts])})

    def ask(self, ask: Ask) -> Answer:
        more: Record = {}
        if ask.schema is not None:
            more["response_format"] = {"type": "json_schema", "json_schema": {"name": "report", "schema": ask.schema}}
        if ask.choice in ask.names:
            more["tool_choice"] = {"type": "function", "function": {"name": ask.choice}}
        elif ask.choice != "auto":
            more["tool_choice"] = ask.choice
        if not ask.is_parallel:
            more["parallel_tool_calls"] = False
        more |= {"tools": tools_of(ask.names), "seed": ask.seed, "max_completion_tokens": ask.max_tokens}
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0) as client:
            if self.is_streamed:
                state = ChatCompletionStreamState()
                for chunk in client.chat.completions.create(model=MODEL, messages=self.messages, stream=True, **more):
                    state.handle_chunk(chunk)
                choice = state.current_completion_snapshot.choices[0]
            else:
                choice = client.chat.completions.create(model=MODEL, messages=self.messages, **more).choices[0]
        message = choice.message
        calls = [Call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        self.messages.append(self._sent_back(message, calls))
        return Answer(message.content or "", calls, choice.finish_reason, choice.finish_reason == "length")

    def _sent_back(self, message: Any, calls: list[Call]) -> Record:
        """An answer as one of several clients sends it back."""
        record: Record = {"role": "assistant"}
        thoughts = (message.model_extra or {}).get("reasoning_content")
        if thoughts and self.draw.random() < 0.7:
            record["reasoning_content"] = thoughts
        if message.content:
            record["content"] = self.draw.choice([message.content, [{"type": "text", "text": message.content}]])
        elif not calls or (shape := self.draw.choice(["null", "empty", "missing"])) == "empty":
            record["content"] = ""
        elif shape == "null":
            record["content"] = None
        if calls:
            record["tool_calls"] = [
                {"id": call.identity, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        return record

    def give(self, results: Sequence[Result]) -> None:
        for result in results:
            parts = [{"type": "text", "text": part} for part in parts_of(result.text, self.draw)]
            record = {"role": "tool", "tool_call_id": result.call.identity}
            self.messages.append({**record, "content": self.draw.choice([result.text, parts])})


@dataclass
class ResponsesWire:
    """OpenAI's responses; with `is_stored`, later ones name the one before and say only what is new."""

    url: str
    draw: random.Random
    is_streamed: bool
    is_stored: bool
    items: list[Any] = field(default_factory=list)
    previous: str | None = None

    def say(self, text: str) -> None:
        parts = [{"type": "input_text", "text": text}]
        self.items.append({"role": "user", "content": self.draw.choice([text, parts])})

    def ask(self, ask: Ask) -> Answer:
        tools = [{"type": "function", "strict": False, **tool["function"]} for tool in tools_of(ask.names)]
        more: Record = {"tools": tools, "max_output_tokens": ask.max_tokens, "input": self.items}
        if ask.schema is not None:
            more["text"] = {"format": {"type": "json_schema", "name": "report", "schema": ask.schema}}
        named = {"type": "function", "name": ask.choice}
        more["tool_choice"] = named if ask.choice in ask.names else ask.choice
        more["parallel_tool_calls"] = ask.is_parallel
        if self.previous is not None:
            more["previous_response_id"] = self.previous
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0) as client:
            if self.is_streamed:
                with client.responses.stream(model=MODEL, **more) as stream:
                    found = list(stream)[-1].response
            else:
                found = client.responses.create(model=MODEL, **more)
        if self.is_stored:
            self.items, self.previous = [], found.id
        else:
            self.items += [item.model_dump(exclude_none=True) for item in found.output]
        calls = [Call(each.call_id, each.name, each.arguments) for each in found.output if each.type == "function_call"]
        return Answer(found.output_text, calls, found.status, found.status == "incomplete")

    def give(self, results: Sequence[Result]) -> None:
        for result in results:
            parts = [{"type": "input_text", "text": part} for part in parts_of(result.text, self.draw)]
            record = {"type": "function_call_output", "call_id": result.call.identity}
            self.items.append({**record, "output": self.draw.choice([result.text, parts])})


@dataclass
class AnthropicWire:
    """Anthropic's messages; what the user says beside results is in the same turn."""

    url: str
    draw: random.Random
    is_streamed: bool
    messages: list[Record] = field(default_factory=list)

    def say(self, text: str) -> None:
        self._user([{"type": "text", "text": text}])

    def ask(self, ask: Ask) -> Answer:
        functions = [tool["function"] for tool in tools_of(ask.names)]
        tools = [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in functions
        ]
        kinds = {"auto": "auto", "required": "any", "none": "none"}
        choice: Record = {"type": kinds.get(ask.choice, "tool")}
        if ask.choice in ask.names:
            choice["name"] = ask.choice
        if not ask.is_parallel and choice["type"] != "none":
            choice["disable_parallel_tool_use"] = True
        more: Record = {"tools": tools, "tool_choice": choice, "max_tokens": ask.max_tokens, "messages": self.messages}
        if ask.schema is not None:
            more["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
        with anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0) as client:
            if self.is_streamed:
                with client.messages.stream(model=MODEL, extra_body={"seed": ask.seed}, **more) as stream:
                    found = stream.get_final_message()
            else:
                found = client.messages.create(model=MODEL, extra_body={"seed": ask.seed}, **more)
        calls = [Call(each.id, each.name, json.dumps(each.input)) for each in found.content if each.type == "tool_use"]
        self.messages.append({"role": "assistant", "content": [each.model_dump(mode="json") for each in found.content]})
        text = "".join(each.text for each in found.content if each.type == "text")
        return Answer(text, calls, str(found.stop_reason), found.stop_reason == "max_tokens")

    def give(self, results: Sequence[Result]) -> None:
        blocks = []
        for result in results:
            parts = [{"type": "text", "text": part} for part in parts_of(result.text, self.draw) if part]
            block = {"type": "tool_result", "tool_use_id": result.call.identity, "is_error": result.is_error}
            blocks.append({**block, "content": self.draw.choice([result.text, parts])})
        self._user(blocks)

    def _user(self, blocks: list[Record]) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": "user", "content": blocks})


@dataclass
class OllamaWire:
    """Ollama's chat, which has no `tool_choice`: all steps are auto, or have no functions."""

    url: str
    draw: random.Random
    is_streamed: bool
    messages: list[Any] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def ask(self, ask: Ask) -> Answer:
        more: Record = {"options": {"num_predict": ask.max_tokens, "seed": ask.seed}, "format": ask.schema}
        tools = [ollama.Tool.model_validate(tool).model_dump(exclude_none=True) for tool in tools_of(ask.names)]
        if ask.choice != "none":
            more["tools"] = tools
        told: list[Any] = []
        with ollama.Client(host=self.url) as client:
            if self.is_streamed:
                told += client.chat(MODEL, self.messages, stream=True, **more)
            else:
                told.append(client.chat(MODEL, self.messages, **more))
        text = "".join(part.message.content or "" for part in told)
        thoughts = "".join(part.message.thinking or "" for part in told)
        found = [call for part in told for call in part.message.tool_calls or ()]
        message: Record = {"role": "assistant", "content": text}
        if thoughts:
            message["thinking"] = thoughts
        if found:
            message["tool_calls"] = [call.model_dump() for call in found]
        self.messages.append(message)
        calls = [Call("", call.function.name, json.dumps(dict(call.function.arguments))) for call in found]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        return Answer(text, calls, told[-1].done_reason, told[-1].done_reason == "length", schemas)

    def give(self, results: Sequence[Result]) -> None:
        self.messages += [{"role": "tool", "content": each.text, "tool_name": each.call.name} for each in results]
