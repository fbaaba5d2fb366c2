"""POST /v1/rerank: ranks documents by relevance to a query, in the formats of Jina, Cohere and Hugging Face (TEI)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.requests import Count, ModelName, RequestBody, Text
from edgeinfer.app.server.state import server_state

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.steps import Progress

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
    model: ModelName | None = None
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
        scores, n_tokens = await state.read(model, request, partial(_ranked, body.query, documents, model.llm))
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


def _ranked(query: str, documents: list[str], llm: LLM, progress: Progress) -> tuple[list[float], int]:
    """Compute the scores of documents, and the number of tokens read."""
    n_tokens = 0

    def counted(what: str, done: int, total: int) -> None:
        nonlocal n_tokens
        n_tokens += total if done == total else 0
        progress(what, done, total)

    scores = llm.rerank(query, documents, progress=counted)
    return scores, n_tokens
