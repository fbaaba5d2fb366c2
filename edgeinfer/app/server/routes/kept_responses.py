"""/v1/responses/ID: a response that the server still has, what it was made of, and its end."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from edgeinfer.app.server.errors import ERROR_RESPONSES, APIError, unsupported
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.responses_objects import input_item
from edgeinfer.app.server.state import server_state
from edgeinfer.app.server.stored_responses import StoredResponse

ROUTER = APIRouter(tags=["answers"])
Few = Annotated[int, Query(ge=1, le=100)]
Name = Annotated[str | None, Query(max_length=500)]


@ROUTER.get("/v1/responses/{identity}", responses=ERROR_RESPONSES)
@ROUTER.get("/responses/{identity}", include_in_schema=False)
async def stored(identity: str, request: Request, stream: bool = False) -> Record:
    """A response."""
    found = _found(identity, request)
    if stream:
        raise unsupported("a response that is finished is not streamed again: leave stream out", "stream")
    return found.record


@ROUTER.get("/v1/responses/{identity}/input_items", responses=ERROR_RESPONSES)
@ROUTER.get("/responses/{identity}/input_items", include_in_schema=False)
async def input_items(
    identity: str, request: Request, limit: Few = 20, order: Literal["asc", "desc"] = "desc", after: Name = None
) -> Record:
    """What a response was made of, with what came before, from the latest item on or (`asc`) from the first."""
    found = _found(identity, request)
    items = [*map(input_item, found.items[: found.n_input])]
    if order == "desc":
        items.reverse()
    places = {item["id"]: place for place, item in enumerate(items, 1)}
    if after is not None and after not in places:
        raise APIError(400, f"{identity!r} has no input item {after!r}", param="after")
    rest = items[0 if after is None else places[after] :]
    page = rest[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": page, **ends, "has_more": len(rest) > len(page)}


@ROUTER.delete("/v1/responses/{identity}", responses=ERROR_RESPONSES)
@ROUTER.delete("/responses/{identity}", include_in_schema=False)
async def delete(identity: str, request: Request) -> Record:
    """Forget a response."""
    _found(identity, request)
    server_state(request).responses.delete(identity)
    return {"id": identity, "object": "response", "deleted": True}


@ROUTER.post("/v1/responses/{identity}/cancel", responses=ERROR_RESPONSES)
@ROUTER.post("/responses/{identity}/cancel", include_in_schema=False)
async def cancel(identity: str, request: Request) -> Record:
    """Refuse to cancel a response: those that are stored are finished."""
    _found(identity, request)
    raise APIError(400, "only responses in the background can be cancelled; end others by closing their connection")


def _found(identity: str, request: Request) -> StoredResponse:
    """A response by its id. Raises APIError."""
    found = server_state(request).responses.get(identity)
    if found is None:
        raise APIError(404, f"there is no response {identity!r}: the server keeps the latest, in memory", "not_found")
    return found
