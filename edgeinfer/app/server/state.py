"""What the routes of a server share: its models, options and counters.

In: nothing. Out: one object that a route gets with its request. Knows no routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from edgeinfer.app.server.failures import Refusal
from edgeinfer.app.server.hosting import Hosted, Hosting
from edgeinfer.app.server.metrics import Metrics
from edgeinfer.app.server.options import ServerOptions

if TYPE_CHECKING:
    from edgeinfer.engine.request import Options

RETRY_S = "1"


@dataclass(slots=True)
class State:
    """`defaults`: how answers are made where a request does not say."""

    options: ServerOptions
    hosting: Hosting
    metrics: Metrics
    defaults: Options

    @asynccontextmanager
    async def model(self, name: str | None, n_answers: int = 0) -> AsyncIterator[Hosted]:
        """A model for a request of so many answers. Raises Refusal where too many wait already."""
        async with self.hosting.use(name) as hosted:
            most = self.options.parallel + self.options.queue
            if n_answers and hosted.llm.n_entered + n_answers > most:
                self.metrics.refused.inc()
                raise Refusal(
                    503,
                    f"{hosted.llm.n_entered} answers are in the making or wait, {most} are the most; try again later",
                    "queue_full",
                    headers={"Retry-After": RETRY_S},
                )
            yield hosted


def state_of(request: HTTPConnection) -> State:
    """The state of the server that a request came to."""
    found: State = request.app.state.server
    return found
