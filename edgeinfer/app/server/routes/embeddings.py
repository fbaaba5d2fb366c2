"""POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.asked import EmbeddingRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.sending import thread_done, unless_gone
from edgeinfer.app.server.state import state_of
from edgeinfer.app.server.statuses import FAILURES

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.graph.step import Floats

router = APIRouter(tags=["embeddings"])

MOST_TEXTS = 2048


@router.post("/v1/embeddings", responses=FAILURES)
@router.post("/embeddings", include_in_schema=False)
async def embeddings(asked: EmbeddingRequest, request: Request) -> Record:
    """The embedding of each text."""
    texts = _texts(asked)
    state = state_of(request)
    async with state.model(asked.model) as hosted:
        if asked.dimensions is not None and asked.dimensions != hosted.llm.telemetry.work.width:
            width = hosted.llm.telemetry.work.width
            raise Refusal(400, f"embeddings of {hosted.name} have {width} dimensions", param="dimensions")
        gone = threading.Event()
        vectors, n_tokens = await unless_gone(_embedded(texts, hosted.llm, state.embedding, gone), request, gone.set)
        return {
            "object": "list",
            "model": hosted.name,
            "data": [
                {"object": "embedding", "index": number, "embedding": _written(vector, asked)}
                for number, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


async def _embedded(
    texts: Sequence[str | list[int]], llm: LLM, turn: asyncio.Lock, gone: threading.Event
) -> tuple[list[Floats], int]:
    """Embeddings of texts and the tokens that were read, in a thread, which ends soon once nobody is there any more."""

    def go_on(*_: object) -> None:
        if gone.is_set():
            raise Refusal(499, "the client has gone")

    def embed() -> tuple[list[Floats], int]:
        read = [llm.tokenize(text) if isinstance(text, str) else text for text in texts]
        return llm.embed(read, progress=go_on), sum(len(tokens) for tokens in read)

    async with turn:
        return await thread_done(embed)


def _texts(asked: EmbeddingRequest) -> list[str | list[int]]:
    """The texts of a request. Raises Refusal."""
    given = asked.input
    if isinstance(given, str):
        return [given]
    texts: list[str | list[int]] = [each for each in given if not isinstance(each, int)]
    if not texts and given:
        texts = [[each for each in given if isinstance(each, int)]]
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise Refusal(400, f"{len(texts)} texts; there must be 1 to {MOST_TEXTS}", param="input")
    return texts


def _written(vector: Floats, asked: EmbeddingRequest) -> Sequence[float] | str:
    """A vector as numbers, or as little-endian float32 in base64."""
    if asked.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
