"""POST /v1/embeddings: embeds texts as vectors."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import Count, RequestBody, Text
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.streaming import thread_done, unless_gone

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.graph.step import Floats

ROUTER = APIRouter(tags=["embeddings"])

MOST_TEXTS = 2048


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings."""

    input: Text | list[str] | list[int] | list[list[int]]
    model: str | None = Field(default=None, max_length=500)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None


@ROUTER.post("/v1/embeddings", responses=ERROR_RESPONSES)
@ROUTER.post("/embeddings", include_in_schema=False)
async def embeddings(body: EmbeddingRequest, request: Request) -> Record:
    """Return the embedding of each text."""
    texts = _texts(body)
    state = server_state(request)
    async with state.model(body.model) as model:
        if body.dimensions is not None and body.dimensions != model.llm.telemetry.work.width:
            width = model.llm.telemetry.work.width
            raise APIError(400, f"embeddings of {model.name} have {width} dimensions", param="dimensions")
        disconnected = threading.Event()
        vectors, n_tokens = await unless_gone(
            embedded(texts, model.llm, state.embedding, disconnected), request, disconnected.set
        )
        return {
            "object": "list",
            "model": model.name,
            "data": [
                {"object": "embedding", "index": number, "embedding": _encoded(vector, body)}
                for number, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


async def embedded(
    texts: Sequence[str | list[int]], llm: LLM, turn: asyncio.Lock, disconnected: threading.Event
) -> tuple[list[Floats], int]:
    """Compute embeddings and the number of tokens read, in a thread that ends soon after the client disconnects."""

    def go_on(*_: object) -> None:
        if disconnected.is_set():
            raise APIError(499, "the client has gone")

    def embed() -> tuple[list[Floats], int]:
        read = [llm.tokenize(text) if isinstance(text, str) else text for text in texts]
        return llm.embed(read, progress=go_on), sum(len(tokens) for tokens in read)

    async with turn:
        return await thread_done(embed)


def _texts(body: EmbeddingRequest) -> list[str | list[int]]:
    """The texts of a request. Raises APIError."""
    value = body.input
    if isinstance(value, str):
        return [value]
    texts: list[str | list[int]] = [text for text in value if not isinstance(text, int)]
    if not texts and value:
        texts = [[token for token in value if isinstance(token, int)]]
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise APIError(400, f"{len(texts)} texts; there must be 1 to {MOST_TEXTS}", param="input")
    return texts


def _encoded(vector: Floats, body: EmbeddingRequest) -> Sequence[float] | str:
    """Encode a vector as numbers, or as little-endian float32 in base64."""
    if body.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
