"""POST /v1/rerank: documents by how well they answer a query, as Jina's and Cohere's servers have it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.asked import RerankRequest
from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.sending import thread_done, unless_gone
from edgeinfer.app.server.state import state_of
from edgeinfer.app.server.statuses import FAILURES

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM

router = APIRouter(tags=["embeddings"])


@router.post("/v1/rerank", responses=FAILURES)
@router.post("/rerank", include_in_schema=False)
async def rerank(asked: RerankRequest, request: Request) -> Record:
    """How well each document answers a query, the best first."""
    documents = [each if isinstance(each, str) else each.text for each in asked.documents]
    state = state_of(request)
    async with state.model(asked.model) as hosted:
        gone = threading.Event()
        ranked = _ranked(asked.query, documents, hosted.llm, state.embedding, gone)
        scores, n_tokens = await unless_gone(ranked, request, gone.set)
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: asked.top_n]
        results = [{"index": number, "relevance_score": scores[number]} for number in order]
        if asked.return_documents:
            for result, number in zip(results, order, strict=True):
                result["document"] = {"text": documents[number]}  # type: ignore[assignment]
        return {
            "object": "list",
            "model": hosted.name,
            "results": results,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


async def _ranked(
    query: str, documents: list[str], llm: LLM, turn: asyncio.Lock, gone: threading.Event
) -> tuple[list[float], int]:
    """Scores of documents and the tokens that were read, in a thread, which ends soon once nobody is there any more."""
    n_tokens = 0

    def go_on(_what: str, done: int, total: int) -> None:
        nonlocal n_tokens
        n_tokens += total if done == total else 0
        if gone.is_set():
            raise Refusal(499, "the client has gone")

    async with turn:
        return await thread_done(lambda: llm.rerank(query, documents, progress=go_on)), n_tokens
