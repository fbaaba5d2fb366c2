"""The application: routes behind a guard, errors in OpenAI's form.

In: options, models. Out: an ASGI application. Opens no socket.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import edgeinfer
from edgeinfer.app.server.failures import Refusal, refusal_of
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.hosting import Hosting
from edgeinfer.app.server.metrics import Metrics
from edgeinfer.app.server.options import ServerOptions
from edgeinfer.app.server.routes import chat, completions, embeddings, models, rerank, responses, standing, texts
from edgeinfer.app.server.state import State
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

LOG = logging.getLogger("edgeinfer.server")


def create_app(options: ServerOptions, hosting: Hosting, defaults: Options) -> FastAPI:
    """The server's application. `defaults`: how answers are made where a request does not say. Raises BadSetting."""
    options.check()
    app = FastAPI(
        title="edgeinfer",
        version=edgeinfer.__version__,
        summary="Language models on this computer, in OpenAI's words.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = State(options, hosting, Metrics(), defaults)
    for module in (chat, completions, responses, embeddings, rerank, models, texts, standing):
        app.include_router(module.router)
    for kind in (Refusal, EdgeInferError, Exception):
        app.add_exception_handler(kind, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    if options.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(options.origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(Guard, options=options)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Leave out of the description what the server never answers: what is not valid is a bad request here."""
    for path in app.openapi()["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)


async def _told(request: Request, reason: Exception) -> Response:
    """An error that a route raised."""
    refusal = refusal_of(reason)
    if refusal.status == 500:
        LOG.error("%s %s failed", request.method, request.url.path, exc_info=reason)
    return JSONResponse(refusal.body(), refusal.status, headers=dict(refusal.headers))


async def _invalid(request: Request, reason: Exception) -> Response:
    """A body that is not what the route takes."""
    assert isinstance(reason, RequestValidationError)
    first: dict[str, Any] = next(iter(reason.errors()), {})
    place = [str(each) for each in first.get("loc", ()) if each != "body"]
    if first.get("type") == "json_invalid":
        message, param = f"the body is no JSON: {first.get('ctx', {}).get('error', '')}", None
    else:
        param = ".".join(place) or None
        message = f"{param or 'the body'}: {first.get('msg', 'is not valid')}"
    refusal = Refusal(400, message, None, param)
    return JSONResponse(refusal.body(), 400)


async def _http(request: Request, reason: Exception) -> Response:
    """No such route, or no such method."""
    assert isinstance(reason, HTTPException)
    message = f"there is no {request.method} {request.url.path}" if reason.status_code == 404 else str(reason.detail)
    refusal = Refusal(reason.status_code, message)
    return JSONResponse(refusal.body(), reason.status_code, headers=reason.headers)
