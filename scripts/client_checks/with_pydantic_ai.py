"""pydantic-ai's agent over chat completions, the Responses API, Ollama's provider and Anthropic's messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_while, run_checks, weather
from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

PROFILE = OpenAIModelProfile(supports_json_schema_output=True)
OUTPUTS: dict[str, Any] = {"native": NativeOutput, "tool": ToolOutput}


class Rain(BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def openai_provider(address: str) -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{address}/v1", api_key="none")


def chat_model(address: str, model: str) -> Any:
    return OpenAIChatModel(model, provider=openai_provider(address), profile=PROFILE)


def responses_model(address: str, model: str) -> Any:
    return OpenAIResponsesModel(model, provider=openai_provider(address), profile=PROFILE)


def ollama_model(address: str, model: str) -> Any:
    return OpenAIChatModel(model, provider=OllamaProvider(base_url=f"{address}/v1"), profile=PROFILE)


def anthropic_model(address: str, model: str) -> Any:
    return AnthropicModel(model, provider=AnthropicProvider(base_url=address, api_key="none"))


MODELS: dict[str, Callable[[str, str], Any]] = {
    "openai": chat_model,
    "responses": responses_model,
    "ollama": ollama_model,
    "anthropic": anthropic_model,
}


def agent_of(kind: str, address: str, model: str, **options: Any) -> Agent[None, Any]:
    return Agent(MODELS[kind](address, model), model_settings={"max_tokens": 200}, **options)


async def plain(kind: str, address: str, model: str) -> object:
    return (await agent_of(kind, address, model).run(QUESTION)).output


async def streamed(kind: str, address: str, model: str) -> object:
    async with agent_of(kind, address, model).run_stream(QUESTION) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        return f"{len(pieces)} pieces, {run.usage.output_tokens} tokens"


async def tools(kind: str, address: str, model: str) -> object:
    found = await agent_of(kind, address, model, tools=[weather]).run(CALL)
    parts = [part for message in found.all_messages() for part in message.parts]
    assert "tool-call" in [part.part_kind for part in parts]
    return [f"{part.part_kind} {getattr(part, 'content', None) or part.args}" for part in parts[1:]]


async def tools_streamed(kind: str, address: str, model: str) -> object:
    agent = agent_of(kind, address, model, tools=[weather])
    async with agent.run_stream_events(CALL) as events:
        found = [event async for event in events]
    kinds = [event.event_kind for event in found]
    assert kinds.index("function_tool_call") < kinds.index("function_tool_result"), kinds
    return [*(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)), found[-1].result.output]


async def structured(output: str, kind: str, address: str, model: str) -> object:
    agent = agent_of(kind, address, model, output_type=OUTPUTS[output](Rain), retries=0)
    return repr((await agent.run(RAIN_QUESTION)).output)


async def unknown_model(kind: str, address: str, model: str) -> object:
    return await error_while(agent_of(kind, address, NO_MODEL).run(QUESTION))


async def too_long(kind: str, address: str, model: str) -> object:
    return await error_while(agent_of(kind, address, model).run(TOO_LONG))


async def embeddings(address: str, model: str) -> object:
    embedder = Embedder(OpenAIEmbeddingModel(model, provider=openai_provider(address)))
    vectors = (await embedder.embed_documents(["a text", "another"])).embeddings
    return f"{len(vectors)} vectors of {len(vectors[0])}"


if __name__ == "__main__":
    checks: dict[str, Callable[[str, str], object]] = {}
    for each in MODELS:
        for check in (plain, streamed, tools, tools_streamed, unknown_model, too_long):
            checks[f"{check.__name__}_{each}"] = partial(check, each)
        for output in ("tool",) if each == "anthropic" else ("native", "tool"):
            checks[f"structured_{output}_{each}"] = partial(structured, output, each)
    run_checks(**checks, embeddings=embeddings)
