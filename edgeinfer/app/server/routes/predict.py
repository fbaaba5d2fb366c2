"""POST /predict: conversations in the form of Vertex AI's containers, as llama-server takes them."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError

from edgeinfer.app.server.errors import ERROR_RESPONSES, invalid, unsupported
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import ChatRequest, RequestBody
from edgeinfer.app.server.routes.chat import chat_answered

ROUTER = APIRouter(tags=["answers"])

MOST_INSTANCES = 64
FORM, CHAT = "@requestFormat", "chatCompletions"


class PredictRequest(RequestBody):
    """POST /predict: bodies of /v1/chat/completions, each of which says so."""

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_INSTANCES)]


@ROUTER.post("/predict", responses=ERROR_RESPONSES)
async def predict(body: PredictRequest, request: Request) -> Record:
    """Answer all conversations at the same time; if one is refused, so is the request, and the others end."""
    chats = [_chat(instance, number) for number, instance in enumerate(body.instances)]
    answering = [asyncio.create_task(chat_answered(chat, request)) for chat in chats]
    try:
        answers = await asyncio.gather(*answering)
    finally:
        for answer in answering:
            answer.cancel()
    return {"predictions": [json.loads(bytes(answer.body)) for answer in answers]}


def _chat(instance: dict[str, Any], number: int) -> ChatRequest:
    """The request in an instance. Raises APIError."""
    place = f"instances.{number}"
    if instance.get(FORM) != CHAT:
        raise unsupported(f"{FORM} is {CHAT}; {instance.get(FORM)!r} is not known", f"{place}.{FORM}")
    if instance.get("stream"):
        raise unsupported("predictions are whole answers, not streams", f"{place}.stream")
    try:
        return ChatRequest.model_validate({key: value for key, value in instance.items() if key != FORM})
    except ValidationError as reason:
        raise invalid(reason.errors(), place) from None
