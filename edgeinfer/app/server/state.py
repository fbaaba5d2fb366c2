"""The state shared by a server's routes: models, options, counters, the queue.

In: nothing. Out: one object, which routes get from the request. Does not depend on routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from edgeinfer.app.server.errors import RETRY_S, APIError
from edgeinfer.app.server.metrics import Metrics
from edgeinfer.app.server.model_pool import ModelPool, PooledModel
from edgeinfer.app.server.options import ServerOptions

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options


@dataclass(slots=True)
class ServerState:
    """`defaults`: options for fields that a request leaves out. `n_answers`: running and queued answers.

    `embedding`: lock held by the one request that computes embeddings; others wait, so that threads stay free for
    answers.
    """

    options: ServerOptions
    pool: ModelPool
    metrics: Metrics
    defaults: Options
    n_answers: int = 0
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def model(self, name: str | None, n_answers: int = 0) -> AsyncIterator[PooledModel]:
        """Reserve a model for a request of `n_answers` answers. Raises APIError if the queue is full."""
        with self._counted(n_answers):
            async with self.pool.use(name) as model:
                yield model

    @contextmanager
    def _counted(self, n: int) -> Iterator[None]:
        """Count answers until they end.

        Counting happens before anything is awaited, so that the requests of a burst are counted against each other.
        """
        most = self.options.parallel + self.options.queue
        if n > most:
            raise APIError(400, f"this asks for {n} answers; {most} are the most that this server makes and lets wait")
        if n and self.n_answers + n > most:
            self.metrics.refused.inc()
            raise APIError(
                503,
                f"{self.n_answers} requests are running or waiting, the most are {most}; try again later",
                "queue_full",
                headers={"Retry-After": RETRY_S},
            )
        self.n_answers += n
        try:
            yield
        finally:
            self.n_answers -= n


def server_state(request: HTTPConnection) -> ServerState:
    """The state of the server that received a request."""
    state: ServerState = request.app.state.server
    return state
