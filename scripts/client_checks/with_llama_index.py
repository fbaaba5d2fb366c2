"""llama-index: OpenAILike and Ollama, its agent, structured answers and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks, weather
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Rain(BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def openai_model(address: str, model: str) -> Any:
    kinds = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    options: dict[str, Any] = {**kinds, "context_window": 8192, "max_retries": 0}
    return OpenAILike(model=model, api_base=f"{address}/v1", api_key="none", **options)


def ollama_model(address: str, model: str) -> Any:
    return Ollama(model=model, base_url=address, context_window=8192)


MODELS: dict[str, Callable[[str, str], Any]] = {"openai": openai_model, "ollama": ollama_model}


def said(content: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=content)]


def plain(kind: str, address: str, model: str) -> object:
    return MODELS[kind](address, model).chat(said(QUESTION)).message.content


def streamed(kind: str, address: str, model: str) -> object:
    parts = list(MODELS[kind](address, model).stream_chat(said(QUESTION)))
    return f"{len(parts)} parts: {parts[-1].message.content}"


async def tools(kind: str, address: str, model: str) -> object:
    agent = FunctionAgent(tools=[weather], llm=MODELS[kind](address, model))
    handler = agent.run(CALL, max_iterations=4)
    names = [type(event).__name__ async for event in handler.stream_events()]
    called = names.count("ToolCallResult")
    assert called, "no call"
    return f"{called} call, {names.count('AgentStream')} deltas: {await handler}"


def structured(kind: str, address: str, model: str) -> object:
    return repr(MODELS[kind](address, model).as_structured_llm(Rain).chat(said(RAIN_QUESTION)).raw)


def unknown_model(kind: str, address: str, model: str) -> object:
    return error_of(lambda: MODELS[kind](address, NO_MODEL).chat(said(QUESTION)))


def too_long(kind: str, address: str, model: str) -> object:
    return error_of(lambda: MODELS[kind](address, model).chat(said(TOO_LONG)))


def embeddings(address: str, model: str) -> object:
    embedder = OpenAILikeEmbedding(model_name=model, api_base=f"{address}/v1", api_key="none")
    vectors = embedder.get_text_embedding_batch(["a text", "another"])
    return f"{len(vectors)} vectors of {len(vectors[0])}"


if __name__ == "__main__":
    checks: dict[str, Callable[[str, str], object]] = {}
    for each in MODELS:
        for check in (plain, streamed, tools, structured, unknown_model, too_long):
            checks[f"{check.__name__}_{each}"] = partial(check, each)
    run_checks(**checks, embeddings=embeddings)
