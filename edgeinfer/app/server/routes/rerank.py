"""POST /v1/rerank: ranks documents by relevance to a query, in the formats of Jina, Cohere and Hugging Face (TEI)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import Count, RequestBody, Text
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.streaming import thread_done, unless_gone

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM

ROUTER = APIRouter(tags=["embeddings"])


class Document(RequestBody):
    """A document to rank."""

    text: Text


Documents = Annotated[list[Text | Document], Field(min_length=1, max_length=2048)]


class RerankRequest(RequestBody):
    """POST /v1/rerank; with `texts` in place of `documents`, as in Hugging Face's text embeddings inference."""

    query: Text
    documents: Documents | None = None
    texts: Documents | None = None
    model: str | None = Field(default=None, max_length=500)
    top_n: Count | None = None
    return_documents: bool = False
    return_text: bool = False


@ROUTER.post("/v1/rerank", responses=ERROR_RESPONSES)
@ROUTER.post("/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, request: Request) -> Record | list[Record]:
    """Rank documents by relevance to a query, most relevant first."""
    given = body.documents if body.texts is None else body.texts
    if given is None:
        raise APIError(400, "there are no documents to rank", param="documents")
    documents = [entry if isinstance(entry, str) else entry.text for entry in given]
    state = server_state(request)
    async with state.model(body.model, 0, request) as model:
        disconnected = threading.Event()
        ranked = _ranked(body.query, documents, model.llm, state.embedding, disconnected)
        scores, n_tokens = await unless_gone(ranked, request, disconnected.set)
        state.metrics.read(model.name, n_tokens)
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
        if body.texts is not None:
            texts = [{"text": documents[number]} if body.return_text else {} for number in order]
            return [
                {"index": number, "score": scores[number], **text} for number, text in zip(order, texts, strict=True)
            ]
        results = [{"index": number, "relevance_score": scores[number]} for number in order]
        if body.return_documents:
            for result, number in zip(results, order, strict=True):
                result["document"] = {"text": documents[number]}  # type: ignore[assignment]
        return {
            "object": "list",
            "model": model.name,
            "results": results,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


async def _ranked(
    query: str, documents: list[str], llm: LLM, turn: asyncio.Lock, disconnected: threading.Event
) -> tuple[list[float], int]:
    """Compute document scores and the tokens read, in a thread that ends soon after the client disconnects."""
    n_tokens = 0

    def go_on(_what: str, done: int, total: int) -> None:
        nonlocal n_tokens
        n_tokens += total if done == total else 0
        if disconnected.is_set():
            raise APIError(499, "the client has gone")

    async with turn:
        return await thread_done(lambda: llm.rerank(query, documents, progress=go_on)), n_tokens
