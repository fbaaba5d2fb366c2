"""A replica of the server: the whole application over models of its own, in a process that Ray runs.

In: `Serving`, whose values were decided where the command ran; HTTP requests with whole bodies. Out: messages of
responses; for routing, the models that are open; whether the engine makes progress. Opens no socket and checks no key:
the front does. Cores that it shares the computer with are claimed, so that no two replicas compute on the same.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.types import Message

from edgeinfer.app.cluster.claimed_cores import ClaimedCores, share_of
from edgeinfer.app.cluster.forwarded_request import ForwardedRequest
from edgeinfer.app.cluster.node_address import keep_to_node_address
from edgeinfer.app.cluster.request_keys import RequestKeys
from edgeinfer.app.opening.model_choice import choose_model
from edgeinfer.app.server.app import create_app
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.presets import given_options
from edgeinfer.app.server.running import LOOK_S, SWITCH_S, log_to_stderr, pool_limits
from edgeinfer.app.server.served_models import served_models
from edgeinfer.app.server.state import ServerState
from edgeinfer.errors import DeviceFailed, ModelNotFound
from edgeinfer.jit.memory import keep_one_arena
from edgeinfer.models.file_names import model_name, without_quant
from edgeinfer.models.store import LocalModel
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.settings import Settings

LOG = logging.getLogger("edgeinfer.server")
STALLED_S = 180.0
"""Seconds in which requests run and no pass ends, after which a replica is replaced."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What all replicas serve. `model`: the default one as the command found it; None: the presets say.

    `n_cpus`: the CPUs of its computer that a replica has, as Ray counts them.
    """

    settings: Settings
    options: ServerOptions
    model: LocalModel | None
    n_cpus: float
    presets_path: Path | None = None


class Replica:
    """The deployment's class; Serve calls its methods."""

    async def __init__(self, serving: Serving) -> None:  # type: ignore[misc]  # Serve awaits it
        """Opens the models to start with. Raises EdgeInferError."""
        from ray import serve

        keep_to_node_address()
        keep_one_arena()
        sys.setswitchinterval(SWITCH_S)
        log_to_stderr()
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._cores: ClaimedCores | None = None
        settings = self._placed(serving)
        given = await asyncio.to_thread(_found, serving, settings)
        names, opening = await asyncio.to_thread(served_models, settings, serving.options, serving.presets_path, given)
        self._pool = ModelPool(opening, names, pool_limits(serving.options), settings.load)
        self._app = create_app(serving.options, self._pool, given_options(settings), guarded=False)
        self._state: ServerState = self._app.state.server
        self._progress, self._answers = Progress(), set[asyncio.Task[None]]()
        for model in names.first_models():
            async with self._pool.use(model.name):
                pass
        self._idle = asyncio.create_task(self._close_idle())

    async def answer(
        self, scope: Mapping[str, Any], body: bytes, keys: RequestKeys | None = None
    ) -> AsyncIterator[list[Message]]:
        """Answer an HTTP request. `keys` are for the router."""
        async for messages in self._begun(scope, body).messages():
            yield messages

    async def whole_answer(self, scope: Mapping[str, Any], body: bytes) -> list[Message]:
        """Answer an HTTP request in one piece."""
        return [message async for messages in self._begun(scope, body).messages() for message in messages]

    async def metrics(self) -> tuple[str, str]:
        """The replica's name, and its metrics in Prometheus format."""
        return self._name, self._state.metrics.text(self._pool.open).decode()

    async def holds(self, kind: str, identity: str) -> str:
        """The replica's name if it keeps a response or a stream by this id, else ""."""
        kept = self._state.responses if kind == "responses" else self._state.streams
        return "" if kept.get(identity) is None else self._name

    async def record_routing_stats(self) -> dict[str, list[str]]:
        """For routing: the names of the models that are open."""
        return {"models": sorted({name for pooled in self._pool.open for name in self._names_of(pooled.model)})}

    async def check_health(self) -> None:
        """Raises DeviceFailed if requests run and none gets on, and why the default model could not be opened."""
        queues = [pooled.llm.telemetry.queue for pooled in self._pool.open]
        is_active = any(queue.n_active for queue in queues)
        stalled_s = self._progress.stalled_s(sum(queue.n_passes for queue in queues), is_active=is_active)
        if stalled_s > STALLED_S:
            raise DeviceFailed(f"requests run, and no pass has ended for {stalled_s:.0f} s")
        if self._pool.failure is not None and not self._pool.open:
            raise self._pool.failure

    async def __del__(self) -> None:
        """Close everything; Serve awaits this when a replica ends in order."""
        self._idle.cancel()
        self._state.streams.close()
        await asyncio.to_thread(self._state.tools.close)
        await self._pool.close()
        if self._cores is not None:
            self._cores.close()

    def _begun(self, scope: Mapping[str, Any], body: bytes) -> ForwardedRequest:
        forwarded = ForwardedRequest(self._app, scope, body)
        self._answers.add(forwarded.task)  # some go on without their client
        forwarded.task.add_done_callback(self._answers.discard)
        return forwarded

    def _placed(self, serving: Serving) -> Settings:
        """The settings with cores of this replica's own, where it shares the computer with others."""
        settings, load = serving.settings, serving.settings.load
        topology = read_topology()
        share = share_of(topology, serving.n_cpus)
        if share is None or load.cores is not None or load.device not in ("auto", "cpu"):
            return settings
        self._cores = ClaimedCores(topology, share)
        if len(self._cores.cores) == share:
            return replace(settings, load=replace(load, cores=self._cores.cores, threads=load.threads))
        LOG.warning("other replicas compute on this computer's cores; %d of %d are free", len(self._cores.cores), share)
        self._cores.close()
        return replace(settings, load=replace(load, threads=min(load.threads or share, share)))

    def _names_of(self, model: LocalModel) -> set[str]:
        names = self._pool.names
        own = {model.name, without_quant(model.name), model.source, model.path.name, model_name(model.path.name)}
        default = {"", "default"} if names.is_default(model.name) else set()
        return {*own, *names.aliases_of(model), *default}

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._pool.close_idle()
            except Exception:
                LOG.exception("an idle model could not be closed")


class Progress:
    """How long a count has not changed while something ran."""

    def __init__(self) -> None:
        self._count, self._since_s = -1, time.monotonic()

    def stalled_s(self, count: int, *, is_active: bool) -> float:
        """Seconds without a change; 0 while nothing runs."""
        now_s = time.monotonic()
        if count != self._count or not is_active:
            self._count, self._since_s = count, now_s
        return now_s - self._since_s


def _found(serving: Serving, settings: Settings) -> LocalModel | None:
    """The default model on this computer: at the same path, else by its name, else by the source it came from."""
    model = serving.model
    if model is None or model.path.exists():
        return model
    for wanted in (model.name, model.source):
        with suppress(ModelNotFound):
            named = replace(settings, model=replace(settings.model, model=wanted))
            return replace(choose_model(named), name=model.name)
    raise ModelNotFound(
        f"{model.path} is not on this computer, nor is a model called {model.name}: put the file at the same path on "
        f"every node, or `edgeinfer pull` it there"
    )
