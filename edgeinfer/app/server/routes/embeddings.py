"""POST /v1/embeddings: embeds texts as vectors, with images in them if the model sees."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from fastapi import APIRouter, Request

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError, unsupported
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.prompt_images import DATA, TEXT, MarkedText, marked_content, marked_prompt
from edgeinfer.app.server.request_media import MediaPlaces
from edgeinfer.app.server.requests import Count, ModelName, RequestBody, Text
from edgeinfer.app.server.state import ServerState, server_state
from edgeinfer.engine.requests.module_prompts import named_tokens

if TYPE_CHECKING:
    from edgeinfer.app.server.request_images import RequestImages
    from edgeinfer.engine.embedding import Pooling
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.media_prompts import NamedTile
    from edgeinfer.graph.step import Floats
    from edgeinfer.steps import Progress

ROUTER = APIRouter(tags=["embeddings"])

MOST_TEXTS = 2048
Entry = str | list[int | str] | MarkedText


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings. `dimensions`: as in `shortened`."""

    input: Text | list[Any] | dict[str, Any]
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None


@ROUTER.post("/embeddings", include_in_schema=False)
async def plain_embeddings(body: EmbeddingRequest, request: Request) -> Record | list[Record]:
    """As /v1/embeddings; without pooling the embeddings of each text's tokens, in llama-server's form."""
    if server_state(request).options.pooling != "none":
        return await embeddings(body, request)
    _, vectors, _ = await _computed(body, request)
    return [{"index": number, "embedding": rows.tolist()} for number, rows in enumerate(vectors)]


@ROUTER.post("/v1/embeddings", responses=ERROR_RESPONSES)
async def embeddings(body: EmbeddingRequest, request: Request) -> Record:
    """Return the embedding of each text."""
    require_pooling(server_state(request))
    name, vectors, n_tokens = await _computed(body, request)
    return {
        "object": "list",
        "model": name,
        "data": [
            {"object": "embedding", "index": number, "embedding": _encoded(vector, body)}
            for number, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


async def _computed(body: EmbeddingRequest, request: Request) -> tuple[str, list[Floats], int]:
    """The model's name, the embeddings of a request's texts, and the number of tokens read. Raises APIError."""
    texts, state = _texts(body), server_state(request)
    image = next((text.place for text in texts if isinstance(text, MarkedText) and text.images), None)
    async with state.model(body.model, 0, request, MediaPlaces(image)) as model:
        llm, pooling = model.llm, state.options.pooling
        if body.dimensions is not None:
            _check_dimensions(body.dimensions, await asyncio.to_thread(lambda: llm.embedding_width), state, model.name)

        def pieces(progress: Progress) -> list[list[int | NamedTile]]:
            images = state.images(progress)
            return [_pieces(text, llm, images) for text in texts]

        work = partial(embedded, llm, pooling, pieces)
        vectors, n_tokens = await state.read(model, request, work)
        return model.name, [shortened(vector, body.dimensions) for vector in vectors], n_tokens


def _check_dimensions(wanted: int, width: int, state: ServerState, name: str) -> None:
    """Raises APIError for more numbers than embeddings have."""
    if wanted > width or (wanted < width and state.options.pooling == "none"):
        whole = "" if wanted > width else ", and those of single tokens are not shortened"
        raise APIError(400, f"embeddings of {name} have {width} dimensions{whole}", param="dimensions")


def shortened(vector: Floats, n: int | None) -> Floats:
    """The first `n` numbers of an embedding, scaled to length 1; None: all.

    Matryoshka models are trained so that these say most; no file tells which models are.
    """
    if n is None or n >= vector.shape[-1]:
        return vector
    vector = vector[:n]
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))


def embedded(
    llm: LLM,
    pooling: Pooling | None,
    texts: Callable[[Progress], Sequence[Sequence[int | NamedTile]]],
    progress: Progress,
) -> tuple[list[Floats], int]:
    """Compute embeddings, of length 1 unless they are of each token, and the number of tokens read."""
    read = texts(progress)
    vectors = llm.embed(read, pooling=pooling, normalized=pooling != "none", progress=progress)
    return vectors, sum(len(named_tokens(each)) for each in read)


def require_pooling(state: ServerState) -> None:
    """Raises APIError if the server makes embeddings of each token."""
    if state.options.pooling == "none":
        raise unsupported("embeddings of single tokens (--pooling none) have no place here: POST /embeddings", "input")


def _texts(body: EmbeddingRequest) -> list[Entry]:
    """The texts of a request. Raises APIError."""
    value = body.input
    is_one = not isinstance(value, list) or any(isinstance(part, int) for part in value)
    places = [("input", value)] if is_one else [(f"input[{at}]", part) for at, part in enumerate(value)]
    texts = [_entry(part, place) for place, part in places]
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise APIError(400, f"{len(texts)} texts; there must be 1 to {MOST_TEXTS}", param="input")
    return texts


def _entry(value: Any, place: str) -> Entry:
    """One text: as it is, as tokens with texts among them, or as an object of llama-server's. Raises APIError."""
    if isinstance(value, dict):
        if TEXT in value and value.get(DATA) is not None:
            return marked_prompt(value, place)
        value = value[TEXT] if TEXT in value else marked_content(value.get("content"), place)
        if isinstance(value, MarkedText):
            return value
    parts = value if isinstance(value, list) else []
    if isinstance(value, str) or (parts and all(type(part) in (int, str) for part in parts)):
        return cast("Entry", value)
    raise APIError(400, "a text is a string, or a list of tokens with strings among them", param="input")


def _pieces(entry: Entry, llm: LLM, images: RequestImages) -> list[int | NamedTile]:
    """The tokens of a text, and the tiles of its images; a list of tokens is taken as it is. Raises APIError."""
    if isinstance(entry, MarkedText):
        return entry.pieces(llm, images, ends=True)
    if isinstance(entry, str):
        return [*llm.tokenize(entry)]
    given = [[part] if isinstance(part, int) else llm.tokenize(part, add_special=False) for part in entry]
    return [*chain.from_iterable(given)]


def _encoded(vector: Floats, body: EmbeddingRequest) -> Sequence[float] | str:
    """Encode a vector as numbers, or as little-endian float32 in base64."""
    if body.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
