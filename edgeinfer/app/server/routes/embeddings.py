"""POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

from fastapi import APIRouter, Request

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.asked import EmbeddingRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.state import state_of
from edgeinfer.app.server.statuses import FAILURES

router = APIRouter(tags=["embeddings"])

MOST_TEXTS = 2048


@router.post("/v1/embeddings", responses=FAILURES)
@router.post("/embeddings", include_in_schema=False)
async def embeddings(asked: EmbeddingRequest, request: Request) -> Record:
    """The embedding of each text."""
    texts = _texts(asked)
    async with state_of(request).model(asked.model) as hosted:
        llm = hosted.llm
        tokens = [llm.tokenize(each) if isinstance(each, str) else each for each in texts]
        found = await asyncio.to_thread(llm.embed, tokens)
        width = len(found[0])
        if asked.dimensions is not None and asked.dimensions != width:
            raise Refusal(400, f"embeddings of {hosted.name} have {width} dimensions", param="dimensions")
        n_tokens = sum(map(len, tokens))
        return {
            "object": "list",
            "model": hosted.name,
            "data": [
                {"object": "embedding", "index": number, "embedding": _written(each.tolist(), each.tobytes(), asked)}
                for number, each in enumerate(found)
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


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


def _written(values: Sequence[float], data: bytes, asked: EmbeddingRequest) -> Sequence[float] | str:
    """A vector as numbers, or as little-endian float32 in base64."""
    return base64.b64encode(data).decode() if asked.encoding_format == "base64" else values
