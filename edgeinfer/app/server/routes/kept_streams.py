"""/v1/stream: a stream that goes on without its client, told again or stopped; llama-server's routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from edgeinfer.app.server.errors import ANSWER_RESPONSES, ERROR_RESPONSES, RETRY_S, APIError
from edgeinfer.app.server.kept_streams import MOST_ID
from edgeinfer.app.server.state import server_state

ROUTER = APIRouter(tags=["answers"])
Conversation = Annotated[str, Query(min_length=1, max_length=MOST_ID)]
Start = Annotated[int, Query(alias="from", ge=0, lt=1 << 40)]


@ROUTER.get("/v1/stream", responses=ANSWER_RESPONSES, response_model=None)
async def resume(conv_id: Conversation, request: Request, start: Start = 0) -> Response:
    """Tell a stream from a byte on, and follow it to its end."""
    kept = server_state(request).streams.get(conv_id)
    if kept is None:
        raise _unknown(conv_id)
    if kept.media_type is None:
        raise APIError(503, "the answer has not begun; ask again", "loading", headers={"Retry-After": RETRY_S})
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(kept.follow(start), media_type=kept.media_type, headers=headers)


@ROUTER.delete("/v1/stream", responses={204: {"description": "It is stopped and forgotten."}, **ERROR_RESPONSES})
async def stop(conv_id: Conversation, request: Request) -> Response:
    """Stop a stream, and forget it."""
    if not server_state(request).streams.stop(conv_id):
        raise _unknown(conv_id)
    return Response(status_code=204)


def _unknown(identity: str) -> APIError:
    message = (
        f"there is no stream {identity!r}: the latest that were asked for with X-Conversation-Id are kept, in memory"
    )
    return APIError(404, message, "not_found", "conv_id")
