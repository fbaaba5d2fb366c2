"""POST /predict: conversations in the form of Vertex AI's containers, as llama-server takes them."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, ValidationError

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError, unsupported
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import ChatRequest, RequestBody
from edgeinfer.app.server.routes.chat import chat_completions

ROUTER = APIRouter(tags=["answers"])

MOST_INSTANCES = 64
FORM, CHAT = "@requestFormat", "chatCompletions"


class PredictRequest(RequestBody):
    """POST /predict: bodies of /v1/chat/completions, each of which says so."""

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_INSTANCES)]


@ROUTER.post("/predict", responses=ERROR_RESPONSES)
async def predict(body: PredictRequest, request: Request) -> Record:
    """Answer all conversations at the same time; if one is refused, so is the request."""
    chats = [_chat(instance, number) for number, instance in enumerate(body.instances)]
    answers = await asyncio.gather(*(chat_completions(chat, request) for chat in chats), return_exceptions=True)
    predictions = []
    for answer in answers:
        if not isinstance(answer, Response):
            raise answer
        predictions.append(json.loads(bytes(answer.body)))
    return {"predictions": predictions}


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
        first = reason.errors()[0]
        where = ".".join([place, *map(str, first["loc"])])
        raise APIError(400, f"{where}: {first['msg']}", None, where) from None
