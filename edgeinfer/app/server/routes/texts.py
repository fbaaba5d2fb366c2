"""Texts and tokens: what a model is given of a conversation, and how texts are cut."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.asked import DetokenizeRequest, TemplateRequest, TokenizeRequest
from edgeinfer.app.server.state import state_of
from edgeinfer.app.server.statuses import FAILURES
from edgeinfer.app.server.wanted import messages_of

router = APIRouter(tags=["texts"])


@router.post("/tokenize", responses=FAILURES)
async def tokenize(asked: TokenizeRequest, request: Request) -> Record:
    """The tokens of a text."""
    async with state_of(request).model(asked.model) as hosted:
        llm = hosted.llm
        options = {"add_special": asked.add_special, "parse_special": asked.parse_special}
        tokens = await asyncio.to_thread(lambda: llm.tokenize(asked.content, **options))
        if not asked.with_pieces:
            return {"tokens": tokens}
        pieces = llm.prompts.tokenizer.pieces(tokens)
        return {"tokens": [{"id": token, "piece": piece} for token, piece in zip(tokens, pieces, strict=True)]}


@router.post("/detokenize", responses=FAILURES)
async def detokenize(asked: DetokenizeRequest, request: Request) -> Record:
    """The text of tokens."""
    async with state_of(request).model(asked.model) as hosted:
        return {"content": await asyncio.to_thread(hosted.llm.detokenize, asked.tokens)}


@router.post("/apply-template", responses=FAILURES)
async def apply_template(asked: TemplateRequest, request: Request) -> Record:
    """The text that the model is given for a conversation."""
    async with state_of(request).model(asked.model) as hosted:
        prompts, messages = hosted.llm.prompts, messages_of(asked.messages)
        tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
        variables = asked.chat_template_kwargs or {}
        return {"prompt": await asyncio.to_thread(prompts.render, messages, tools, variables)}
