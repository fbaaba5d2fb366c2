"""langchain: its agent and structured answers over langchain-openai, -ollama and -anthropic, and embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from check_parts import CALL, NO_MODEL, QUESTION, RAIN_QUESTION, TOO_LONG, error_of, run_checks, weather
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Rain(BaseModel):
    """The rain of a city."""

    city: str
    rain_mm: int


def openai_model(address: str, model: str) -> Any:
    return ChatOpenAI(model=model, base_url=f"{address}/v1", api_key="none", max_retries=0, stream_usage=True)


def responses_model(address: str, model: str) -> Any:
    options: dict[str, Any] = {"use_responses_api": True, "max_retries": 0}
    return ChatOpenAI(model=model, base_url=f"{address}/v1", api_key="none", **options)


def ollama_model(address: str, model: str) -> Any:
    return ChatOllama(model=model, base_url=address)


def anthropic_model(address: str, model: str) -> Any:
    return ChatAnthropic(model=model, base_url=address, api_key="none", max_retries=0, max_tokens=200)


MODELS: dict[str, Callable[[str, str], Any]] = {
    "openai": openai_model,
    "responses": responses_model,
    "ollama": ollama_model,
    "anthropic": anthropic_model,
}


def plain(kind: str, address: str, model: str) -> object:
    return MODELS[kind](address, model).invoke(QUESTION).text


def streamed(kind: str, address: str, model: str) -> object:
    chunks = list(MODELS[kind](address, model).stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.text
    return f"{len(chunks)} chunks, {whole.usage_metadata['output_tokens']} tokens"


def tools(kind: str, address: str, model: str) -> object:
    agent = create_agent(MODELS[kind](address, model), [tool(weather, parse_docstring=True)])
    messages = agent.invoke({"messages": CALL}, {"recursion_limit": 10})["messages"]
    return [message.text or [(call["name"], call["args"]) for call in message.tool_calls] for message in messages[1:]]


def tools_streamed(kind: str, address: str, model: str) -> object:
    agent = create_agent(MODELS[kind](address, model), [tool(weather, parse_docstring=True)])
    parts = agent.stream({"messages": CALL}, {"recursion_limit": 10}, stream_mode="messages")
    return "|".join(chunk.text for chunk, _ in parts if chunk.text)


def structured(kind: str, address: str, model: str) -> object:
    return repr(MODELS[kind](address, model).with_structured_output(Rain).invoke(RAIN_QUESTION))


def structured_agent(kind: str, address: str, model: str) -> object:
    agent = create_agent(MODELS[kind](address, model), response_format=Rain)
    return repr(agent.invoke({"messages": RAIN_QUESTION}, {"recursion_limit": 10})["structured_response"])


def unknown_model(kind: str, address: str, model: str) -> object:
    return error_of(lambda: MODELS[kind](address, NO_MODEL).invoke(QUESTION))


def too_long(kind: str, address: str, model: str) -> object:
    return error_of(lambda: MODELS[kind](address, model).invoke(TOO_LONG))


def embeddings_openai(address: str, model: str) -> object:
    options: dict[str, Any] = {"check_embedding_ctx_length": False}
    embedder = OpenAIEmbeddings(model=model, base_url=f"{address}/v1", api_key="none", **options)
    return f"{len(embedder.embed_documents(['a text', 'another']))} vectors of {len(embedder.embed_query('a text'))}"


def embeddings_ollama(address: str, model: str) -> object:
    embedder = OllamaEmbeddings(model=model, base_url=address)
    return f"{len(embedder.embed_documents(['a text', 'another']))} vectors of {len(embedder.embed_query('a text'))}"


if __name__ == "__main__":
    checks: dict[str, Callable[[str, str], object]] = {}
    for each in MODELS:
        for check in (plain, streamed, tools, tools_streamed, structured, structured_agent, unknown_model, too_long):
            checks[f"{check.__name__}_{each}"] = partial(check, each)
    run_checks(**checks, embeddings_openai=embeddings_openai, embeddings_ollama=embeddings_ollama)
