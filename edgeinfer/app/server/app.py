"""The ASGI application: routes behind the access guard, errors in the format of the API they belong to.

In: server options, models. Out: an ASGI application. Opens no socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import edgeinfer
from edgeinfer.app.server.allowed import origin_expression
from edgeinfer.app.server.bodies import PlainBodies
from edgeinfer.app.server.errors import APIError, forget_frames, invalid, told_error
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.json_answer import JSONAnswer
from edgeinfer.app.server.kept_streams import KeepsStreams
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.routes import ROUTES
from edgeinfer.app.server.routes.mcp import CALL_ROUTER
from edgeinfer.app.server.state import Metrics, ServerState
from edgeinfer.errors import EdgeInferError
from edgeinfer.temporary import remove_leftovers

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options


def create_app(options: ServerOptions, pool: ModelPool, defaults: Options, *, guarded: bool = True) -> FastAPI:
    """Build the server's application. `defaults`: options for fields that a request leaves out. Raises BadSetting.

    Without `guarded`, something before it lets only allowed requests through.
    """
    options.check()
    if options.slot_folder is not None:
        remove_leftovers(options.slot_folder)  # of a server that was killed while it saved a slot
    app = FastAPI(
        title="edgeinfer",
        version=edgeinfer.__version__,
        summary="Language models on this computer, in OpenAI's words.",
        docs_url=None,
        redoc_url=None,
        default_response_class=JSONAnswer,
    )
    app.state.server = ServerState(options, pool, Metrics(), defaults)
    pool.note, pool.note_closing = app.state.server.note, app.state.server.metrics.closed
    has_calls = options.tools and options.key is not None
    for router in (*ROUTES.entries().values(), *((CALL_ROUTER,) if has_calls else ())):
        app.include_router(router)
    for kind in (APIError, EdgeInferError, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(KeepsStreams, streams=app.state.server.streams)
    if options.origins:
        methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS"]  # HEAD needs no permission
        app.add_middleware(
            CORSMiddleware,
            allow_origin_regex=origin_expression(options.origins),
            allow_methods=methods,
            allow_headers=["*"],
            allow_credentials=True,
            allow_private_network=True,
        )
    app.add_middleware(PlainBodies, most_bytes=options.most_body_bytes)
    if guarded:
        app.add_middleware(Guard, options=options)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Remove 422 from the OpenAPI description: invalid bodies are answered with 400."""
    for path in app.openapi()["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)


async def _failed(request: Request, reason: Exception) -> Response:
    """Return the response for an exception raised by a route."""
    error = told_error(reason, request.scope)
    forget_frames(reason)
    return JSONAnswer(error.body_at(request.scope["path"]), error.status, headers=dict(error.headers))


async def _invalid(request: Request, reason: Exception) -> Response:
    """Return the response for a body that fails validation."""
    assert isinstance(reason, RequestValidationError)
    first: dict[str, Any] = reason.errors()[0]
    if first["type"] == "json_invalid":
        error = APIError(400, f"the body is no JSON: {first['ctx']['error']}")
    else:
        error = invalid([{**each, "loc": each["loc"][each["loc"][:1] == ("body",) :]} for each in reason.errors()])
    forget_frames(reason)
    return JSONAnswer(error.body_at(request.scope["path"]), 400)


async def _http(request: Request, reason: Exception) -> Response:
    """Return the response for an unknown route or method."""
    assert isinstance(reason, HTTPException)
    message = (
        f"there is no {request.method} {request.scope['path']}" if reason.status_code == 404 else str(reason.detail)
    )
    error = APIError(reason.status_code, message)
    forget_frames(reason)
    return JSONAnswer(error.body_at(request.scope["path"]), reason.status_code, headers=reason.headers)
