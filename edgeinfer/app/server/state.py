"""What the routes of a server share: its models, options and counters.

In: nothing. Out: one object that a route gets with its request. Knows no routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from edgeinfer.app.server.failures import RETRY_S, Refusal
from edgeinfer.app.server.hosting import Hosted, Hosting
from edgeinfer.app.server.metrics import Metrics
from edgeinfer.app.server.options import ServerOptions

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options


@dataclass(slots=True)
class State:
    """`defaults`: how answers are made where a request does not say. `n_answers`: made, or waited for, just now.

    `embedding`: for one request at a time; all others wait, and leave the threads to answers.
    """

    options: ServerOptions
    hosting: Hosting
    metrics: Metrics
    defaults: Options
    n_answers: int = 0
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def model(self, name: str | None, n_answers: int = 0) -> AsyncIterator[Hosted]:
        """A model for a request of so many answers. Raises Refusal where too many wait already."""
        with self._counted(n_answers):
            async with self.hosting.use(name) as hosted:
                yield hosted

    @contextmanager
    def _counted(self, n: int) -> Iterator[None]:
        """Count answers until they are over; before anything is awaited, so that a burst finds them counted."""
        most = self.options.parallel + self.options.queue
        if n > most:
            raise Refusal(400, f"this asks for {n} answers; {most} are the most that this server makes and lets wait")
        if n and self.n_answers + n > most:
            self.metrics.refused.inc()
            raise Refusal(
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


def state_of(request: HTTPConnection) -> State:
    """The state of the server that a request came to."""
    found: State = request.app.state.server
    return found
