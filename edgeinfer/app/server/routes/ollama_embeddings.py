"""POST /api/embed and POST /api/embeddings: Ollama's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from edgeinfer.app.server.errors import OLLAMA_RESPONSES, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_schemas import EmbedRequest, OldEmbeddingRequest, OllamaRequest
from edgeinfer.app.server.ollama_wire import AnswerFrame, kept_s
from edgeinfer.app.server.routes.embeddings import MOST_TEXTS, embedded, require_pooling, shortened
from edgeinfer.app.server.state import server_state

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.graph.step import Floats

ROUTER = APIRouter(tags=["ollama"])


@ROUTER.post("/api/embed", responses=OLLAMA_RESPONSES)
async def embed(body: EmbedRequest, request: Request) -> Record:
    """Return the embedding of each text, of length 1; without texts, load the model."""
    texts = [body.input] if isinstance(body.input, str) and body.input else list(body.input or ())
    if len(texts) > MOST_TEXTS:
        raise APIError(400, f"{len(texts)} texts; {MOST_TEXTS} are the most", param="input")
    frame = AnswerFrame(body.model)
    vectors, n_tokens = await _vectors(body, request, texts, frame, cut=body.truncate is not False)
    values = [shortened(vector, body.dimensions).tolist() for vector in vectors]
    return {"model": body.model, "embeddings": values, **frame.durations(), "prompt_eval_count": n_tokens}


@ROUTER.post("/api/embeddings", responses=OLLAMA_RESPONSES)
async def old_embedding(body: OldEmbeddingRequest, request: Request) -> Record:
    """Return the embedding of one text; without a text, load the model."""
    texts = [body.prompt] if body.prompt else []
    vectors, _ = await _vectors(body, request, texts, AnswerFrame(body.model), cut=True)
    return {"embedding": vectors[0].tolist() if vectors else []}


async def _vectors(
    body: OllamaRequest, request: Request, texts: Sequence[str], frame: AnswerFrame, *, cut: bool
) -> tuple[list[Floats], int]:
    """The embeddings, and the number of tokens read. `cut`: leave out the end of what does not fit in the context."""
    state = server_state(request)
    require_pooling(state)
    async with state.model(body.model, 0, request) as model:
        frame.loaded()
        if body.keep_alive is not None:
            model.keep_s = kept_s(body.keep_alive)
        if not texts:
            return [], 0
        llm = model.llm
        work = partial(embedded, llm, state.options.pooling, lambda _: _tokens(texts, llm, cut))
        return await state.read(model, request, work)


def _tokens(texts: Sequence[str], llm: LLM, cut: bool) -> list[list[int]]:
    """The tokens of texts; of one that is cut, the last token stays, which may mark the end."""
    most, found = llm.info.n_context, list[list[int]]()
    for text in texts:
        tokens = llm.tokenize(text)
        found.append([*tokens[: most - 1], tokens[-1]] if cut and len(tokens) > most else tokens)
    return found
