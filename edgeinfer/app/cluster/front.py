"""The address of a served cluster: checks requests, reads what routes them, and passes them on to replicas.

In: HTTP requests; Serve's handle of the replicas. Out: their responses, as they come. If a replica ends amid a
response, a stream ends with an error in the words of its API. Runs where the command does, or in Serve's own processes
(`application`). Loads no model; what it keeps is the router's knowledge of what was sent where.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeinfer.app.cluster.forwarded_request import sent_scope
from edgeinfer.app.cluster.merged_metrics import merged_metrics
from edgeinfer.app.cluster.request_keys import RequestKeys, read_record, request_keys
from edgeinfer.app.server.anthropic_stream import ANTHROPIC
from edgeinfer.app.server.bodies import PlainBodies
from edgeinfer.app.server.errors import ANTHROPIC_PATHS, RETRY_S, APIError
from edgeinfer.app.server.guard import Guard
from edgeinfer.app.server.kept_streams import HEADER
from edgeinfer.app.server.listening import ServerOptions, is_loopback
from edgeinfer.app.server.ollama_wire import LINES, NDJSON
from edgeinfer.app.server.routes.health import PROMETHEUS
from edgeinfer.app.server.streaming import SSE

LOG = logging.getLogger("edgeinfer.server")
LARGE_BYTES = 256 << 10
"""Bodies above this are read in a thread, so that other requests do not wait."""
ASK_S = 10.0
"""Seconds that replicas have to say something of themselves."""
EVERYWHERE = (
    ("PUT", "/modules/"),
    ("DELETE", "/modules/"),
    ("POST", "/lora-adapters"),
    ("POST", "/models/unload"),
)
"""Requests that change something which all replicas have: methods, and how their paths begin."""
RESPONSES_PATHS = ("/v1/responses/", "/responses/")
LOST = "the replica that was answering has ended; send the request again"
ENDS = "the server ends; the answer is cut off"


def guarded_front(handle: Any, options: ServerOptions) -> tuple[ASGIApp, Front]:
    """The application to serve, and the front in it. `handle`: Serve's, of the replicas."""
    front = Front(handle, options)
    return Guard(PlainBodies(front, options.most_body_bytes), options), front


class Front:
    """Passes requests on. Used from one event loop."""

    def __init__(self, handle: Any, options: ServerOptions) -> None:
        self._handle, self._options = handle, options
        self._answer = handle.options(method_name="answer", stream=True, _by_reference=False)
        self._is_ending: asyncio.Event | None = None
        self._rests: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """End the streams that still run, with an error that says why."""
        if self._is_ending is not None:
            self._is_ending.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        if scope["type"] != "http":
            return
        self._require_known(scope)
        body = await _whole_body(receive)
        if body is None:
            return
        await self._respond(scope, body, receive, send)

    def _require_known(self, scope: Scope) -> None:
        """Raises APIError where other computers reach a server without a key, which Serve's own settings may do."""
        client = scope.get("client")
        if self._options.key is None and client and client[0] and not is_loopback(client[0]):
            raise APIError(
                403,
                "this server has no key, so that it serves its own computer alone: set EDGEINFER_API_KEY to a long "
                "random text where it is started",
            )

    async def _respond(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if (method, path) == ("GET", "/metrics") and "metrics" not in self._options.without:
            told = await self._ask_all("metrics")
            await Response(merged_metrics(told), media_type=PROMETHEUS)(scope, receive, send)
        elif any((method, path[: len(start)]) == (method_, start) for method_, start in EVERYWHERE):
            for message in _best(await self._ask_all("whole_answer", sent_scope(scope), body)):
                await send(message)
        else:
            keys = await self._keys(scope, body)
            await self._relay(self._answer.remote(sent_scope(scope), body, keys=keys), _Sent(path, send), receive)

    async def _ask_all(self, method: str, *arguments: object) -> list[Any]:
        """What all replicas say, without those that end meanwhile."""
        try:
            asked = self._handle.broadcast(method, *arguments)
            told = await asked.results_async(timeout_s=ASK_S, return_exceptions=True)
        except Exception as reason:  # none runs, or none says anything
            raise _unavailable(reason) from None
        found = [each for each in told if not isinstance(each, BaseException)]
        if not found:
            raise APIError(503, "no replica answers; try again", "loading", headers={"Retry-After": RETRY_S})
        return found

    async def _keys(self, scope: Scope, body: bytes) -> RequestKeys:
        """What routes a request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        session = headers.get(HEADER, b"").decode("latin-1").strip()
        kind, identity = _kept_by(scope, body)
        if identity:
            holders = [name for name in await self._ask_all("holds", kind, identity) if name]
            return RequestKeys(session=session, holder=holders[0] if holders else "")
        if len(body) > LARGE_BYTES:
            return await asyncio.to_thread(request_keys, scope["path"], body, session)
        return request_keys(scope["path"], body, session)

    async def _relay(self, response: Any, sent: _Sent, receive: Receive) -> None:
        """Pass a response on until it ends, the client leaves, or the server ends."""
        self._is_ending = self._is_ending or asyncio.Event()
        gone = asyncio.ensure_future(_left(receive))
        ending = asyncio.ensure_future(self._is_ending.wait())
        parts = aiter(response)
        try:
            while not sent.is_over:
                step = asyncio.ensure_future(_next(parts))
                step.add_done_callback(_seen)
                await asyncio.wait({step, gone, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    step.cancel()
                    if gone.done():
                        return
                    raise APIError(503, ENDS, "server_ends")
                if not (messages := step.result()):
                    raise APIError(503, LOST, "replica_lost", headers={"Retry-After": RETRY_S})
                for message in messages:
                    await sent.send(message)
        except APIError as error:
            await sent.fail(error)
        except Exception as reason:  # Serve has many for a process that is gone
            await sent.fail(_unavailable(reason))
        finally:
            gone.cancel()
            ending.cancel()
            if not sent.is_over:
                response.cancel()
            else:  # the application may have something to do after its response
                rest = asyncio.create_task(_to_the_end(parts))
                self._rests.add(rest)
                rest.add_done_callback(self._rests.discard)


class _Sent:
    """What a client has received of a response."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._has_begun, self._media_type = False, ""
        self.is_over = False

    async def send(self, message: Message) -> None:
        """Pass a part on."""
        if message["type"] == "http.response.start":
            self._has_begun = True
            headers = {bytes(name).lower(): bytes(value) for name, value in message["headers"]}
            self._media_type = headers.get(b"content-type", b"").decode("latin-1")
        elif not message.get("more_body", False):
            self.is_over = True
        await self._send(message)

    async def fail(self, error: APIError) -> None:
        """End the response: a stream by an event, what has not begun by a refusal, anything else by a broken end.

        Raises APIError for the latter two.
        """
        if not self._has_begun:
            raise error
        if self._media_type.startswith(NDJSON):
            last = LINES.failed(error)
        elif not self._media_type.startswith(SSE.media_type):
            raise RuntimeError(str(error))  # the server closes the connection, as the length was told
        elif self._path.startswith(ANTHROPIC_PATHS):
            last = ANTHROPIC.failed(error)
        else:
            last = SSE.failed(error)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


def _kept_by(scope: Scope, body: bytes) -> tuple[str, str]:
    """What a replica keeps that a request names: responses or streams, and its id; "" if it names nothing."""
    path: str = scope["path"]
    if path == "/v1/stream":
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        return "streams", query.get("conv_id", [""])[0]
    for start in RESPONSES_PATHS:
        if path.startswith(start) and scope["method"] in ("GET", "DELETE"):
            return "responses", path.removeprefix(start).partition("/")[0]
    if path.endswith("/responses") and b"previous_response_id" in body:
        named = read_record(body).get("previous_response_id")
        return "responses", named if isinstance(named, str) else ""
    return "", ""


def _best(answers: list[list[Message]]) -> list[Message]:
    """Of the same request's responses, one that refuses the least."""
    return min(answers, key=lambda messages: int(messages[0]["status"]) if messages else 600)


def _unavailable(reason: Exception) -> APIError:
    LOG.warning("a replica did not answer to the end: %s", str(reason).partition("\n")[0])
    return APIError(503, LOST, "replica_lost", headers={"Retry-After": RETRY_S})


async def _whole_body(receive: Receive) -> bytes | None:
    """The body of a request; None if the client leaves."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(parts: AsyncIterator[list[Message]]) -> list[Message]:
    """The next messages; none at the end."""
    try:
        return await anext(parts)
    except StopAsyncIteration:
        return []


async def _to_the_end(parts: AsyncIterator[list[Message]]) -> None:
    try:
        async for _ in parts:
            pass
    except Exception as reason:
        LOG.warning("a replica ended after its response: %s", str(reason).partition("\n")[0])


def _seen(step: asyncio.Future[list[Message]]) -> None:
    """Take the error of a step that nobody awaits any more, which asyncio would log."""
    if not step.cancelled():
        step.exception()


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is opened or closed with the application."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
