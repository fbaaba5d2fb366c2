"""Tokenizes and detokenizes texts, and renders conversations: llama-server's fields, and vLLM's.

With vLLM's, lm-evaluation-harness needs no tokenizer of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.message_contents import first_media, messages_of
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import (
    ChatMessage,
    ModelName,
    RequestBody,
    Text,
    ThoughtControl,
    Tool,
    template_variables,
)
from edgeinfer.app.server.state import server_state

if TYPE_CHECKING:
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["texts"])


class TokenizeRequest(RequestBody):
    """POST /tokenize. `prompt` and `add_special_tokens` are vLLM's words for `content` and `add_special`."""

    content: Text | None = None
    prompt: Text | None = None
    model: ModelName | None = None
    add_special: bool = False
    add_special_tokens: bool = True
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 20)]
    model: ModelName | None = None


class TemplateRequest(ThoughtControl):
    """POST /apply-template."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: ModelName | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True


@ROUTER.post("/tokenize", responses=ERROR_RESPONSES)
async def tokenize(body: TokenizeRequest, request: Request) -> Record:
    """Tokenize a text."""
    async with server_state(request).model(body.model, 0, request) as model:
        llm, text, add_special = model.llm, body.content, body.add_special
        if text is None:
            text, add_special = body.prompt, body.add_special_tokens
        if text is None:
            raise APIError(400, "there is no text: give it as content, or as prompt", param="content")
        options = {"add_special": add_special, "parse_special": body.parse_special}
        tokens = await asyncio.to_thread(lambda: llm.tokenize(text, **options))
        if body.content is None:
            return {"tokens": tokens, "count": len(tokens), "max_model_len": llm.info.n_context}
        if not body.with_pieces:
            return {"tokens": tokens}
        return {"tokens": [{"id": token, "piece": _piece(llm.prompts.tokenizer.piece(token))} for token in tokens]}


def _piece(piece: bytes) -> str | list[int]:
    """The text of a token; its bytes where they are no text by themselves, as in llama-server."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@ROUTER.post("/detokenize", responses=ERROR_RESPONSES)
async def detokenize(body: DetokenizeRequest, request: Request) -> Record:
    """Convert tokens to text."""
    async with server_state(request).model(body.model, 0, request) as model:
        text = await asyncio.to_thread(model.llm.detokenize, body.tokens)
        return {"content": text, "prompt": text}


@ROUTER.get("/tokenizer_info", responses=ERROR_RESPONSES)
async def tokenizer_info(request: Request) -> Record:
    """The special tokens and the chat template of the default model, in vLLM's form."""
    async with server_state(request).model(None, 0, request) as model:
        prompts = model.llm.prompts
        tokenizer, vocabulary = prompts.tokenizer, prompts.tokenizer.vocabulary
        ids = {"bos_token": vocabulary.bos_id, "eos_token": vocabulary.eos_id}
        named = {name: None if token is None else tokenizer.decode([token]) for name, token in ids.items()}
        template = next(iter(prompts.template.sources.values()), None)
        return {**named, "add_bos_token": vocabulary.add_bos, "chat_template": template}


@ROUTER.post("/apply-template", responses=ERROR_RESPONSES)
async def apply_template(body: TemplateRequest, request: Request) -> Record:
    """Render a conversation as a prompt with the chat template."""
    state = server_state(request)
    media = first_media(body.messages)
    async with state.model(body.model, 0, request, media) as model:
        prompts = model.llm.prompts
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        variables = template_variables(body, state.defaults_of(model))
        begins = body.add_generation_prompt

        def rendered(go_on: Progress) -> str:
            messages = messages_of(body.messages, state.images(go_on))
            return prompts.render(messages, tools, variables, begins_answer=begins)

        return {"prompt": await state.begun(rendered, request, media)}
