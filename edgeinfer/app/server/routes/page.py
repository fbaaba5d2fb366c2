"""GET /: a page to chat in, and the files that it is made of.

The page is the same for everyone and needs no key; what it shows comes from routes that do. Its policy lets it run its
own scripts and ask this server alone, shows images that it has in itself (data URLs) and no others, and keeps text from
becoming HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from edgeinfer.app.server.bodies import IS_HEAD
from edgeinfer.app.server.state import server_state

ROUTER = APIRouter(include_in_schema=False)

KINDS: Mapping[str, str] = MappingProxyType(
    {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
)
FILES = (
    "page.css",
    "icon.svg",
    "answers.js",
    "attachments.js",
    "calls.js",
    "chats.js",
    "chips.js",
    "composer.js",
    "dialogs.js",
    "elements.js",
    "images.js",
    "inline.js",
    "kept_images.js",
    "main.js",
    "markdown.js",
    "models.js",
    "numbers.js",
    "search.js",
    "server.js",
    "side.js",
    "storage.js",
    "transcript.js",
)
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in FILES)})
"""Paths of the page, which need no API key."""


@ROUTER.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    """The page; HEAD without it says that the server runs, as Ollama's clients ask before anything else."""
    if IS_HEAD in request.scope and "page" in server_state(request).options.without:
        return Response()
    _require_page(request)
    return _file("index.html")


@ROUTER.api_route("/page/{name}", methods=["GET", "HEAD"])
def part(name: str, request: Request) -> Response:
    """A style sheet, picture or script of the page."""
    _require_page(request)
    if name not in FILES:
        raise HTTPException(404)
    return _file(name)


def _require_page(request: Request) -> None:
    """Raises HTTPException if the server has no page."""
    if "page" in server_state(request).options.without:
        raise HTTPException(404)


def _file(name: str) -> Response:
    body = (resources.files("edgeinfer.app.server") / "page" / name).read_bytes()
    return Response(body, media_type=KINDS[name[name.rindex(".") :]], headers=dict(HEADERS))
