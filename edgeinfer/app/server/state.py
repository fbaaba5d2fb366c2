"""The state shared by a server's routes: models, options, the queue, and its metrics.

In: stats of finished answers, open models. Out: one object, which routes get from the request; text in Prometheus
format. Each server has its own metrics; none are global. Does not depend on routes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import HTTPConnection, Request

from edgeinfer.app.server.errors import RETRY_S, APIError
from edgeinfer.app.server.fetched_files import FetchedFiles
from edgeinfer.app.server.kept_streams import KeptStreams
from edgeinfer.app.server.listening import Part, ServerOptions
from edgeinfer.app.server.llama_metrics import Totals
from edgeinfer.app.server.model_downloads import Downloads
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.app.server.module_fields import KeptModules
from edgeinfer.app.server.objects import Record, finished_stats
from edgeinfer.app.server.ollama_models import DetailsCache
from edgeinfer.app.server.pooled_model import PooledModel
from edgeinfer.app.server.properties import open_record, properties
from edgeinfer.app.server.request_images import RequestImages
from edgeinfer.app.server.request_media import NO_MEDIA, MediaPlaces, MediaRead, may_read, media_read
from edgeinfer.app.server.requests import AdapterScale, adapter_scales
from edgeinfer.app.server.served_tools import ServedTools
from edgeinfer.app.server.stored_responses import StoredResponses
from edgeinfer.app.server.streaming import NO_TURNS, in_thread, unless_gone
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.store import LocalModel

T = TypeVar("T")
MOST_READING_MEDIA = 2
"""Requests whose images and sounds are fetched, opened and encoded at a time, which takes a thread each."""
ReadTexts = Callable[[Progress], tuple[T, int]]
"""Reads texts; returns a result and the number of tokens, and ends with what its progress function raises."""


@dataclass(slots=True)
class ServerState:
    """`defaults`: options for fields that a request leaves out. `n_answers`: running and queued answers.

    `embedding`: lock held by the one request that computes embeddings; others wait, so that threads stay free for
    answers. `reading_media`: held by requests whose images or sounds are read, for the same reason. `tools`: of MCP
    servers. `details`: what lists say of models. `n_pulls`: models that are being pulled for clients. `properties`: of
    models that were open, by name. `fetched`: images of earlier requests; whoever may use the server has the one key.
    `ending`: set when the server ends, shortly before answers that are not finished would be cut off.
    """

    options: ServerOptions
    pool: ModelPool
    metrics: Metrics
    defaults: Options
    n_answers: int = 0
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading_media: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_READING_MEDIA))
    details: DetailsCache = field(default_factory=DetailsCache)
    n_pulls: int = 0
    responses: StoredResponses = field(default_factory=StoredResponses)
    downloads: Downloads = field(default_factory=Downloads)
    properties: dict[str, Record] = field(default_factory=dict)
    streams: KeptStreams = field(default_factory=KeptStreams)
    modules: KeptModules = field(default_factory=KeptModules)
    fetched: FetchedFiles = field(default_factory=FetchedFiles)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    tools: ServedTools = field(init=False)

    def __post_init__(self) -> None:
        self.tools = ServedTools(self.options.tools)

    def note(self, model: PooledModel) -> Record:
        """Keep the properties of a model that was opened; returns what lists of models say of it."""
        self.properties[model.name] = properties(model, self.options, self.defaults_of(model))
        return open_record(model)

    def defaults_of(self, model: PooledModel) -> Options:
        """Options for fields that a request leaves out, of one model."""
        presets = self.pool.names.presets
        return self.defaults if presets is None else presets.defaults_of(model.model)

    @asynccontextmanager
    async def model(
        self,
        name: str | None,
        n_answers: int = 0,
        request: Request | None = None,
        media: MediaPlaces = NO_MEDIA,
    ) -> AsyncIterator[PooledModel]:
        """Reserve a model for a request of `n_answers` answers; if the client leaves meanwhile, it is not opened.

        `media`: what the request has. Raises APIError if the queue is full or the client has gone, and if the model
        does not read that: before it is opened, if that is known.
        """
        with self._counted(n_answers):
            if media:
                await asyncio.to_thread(self._require_read, name, media)
            async with AsyncExitStack() as held:
                use = held.enter_async_context(self.pool.use(name, loads=self.pool.limits.loads_on_demand))
                found = await (use if request is None else unless_gone(use, request, lambda: None))
                if media:
                    media_read(found).require(media, found.name)
                await self.modules.put_back(found)
                yield found

    async def begun(self, work: Callable[[Progress], T], request: Request, media: MediaPlaces) -> T:
        """Begin an answer, or count a prompt, in a thread; as `in_thread`. `media`: what the request has."""
        return await in_thread(work, request, self.reading_media if media else NO_TURNS)

    def images(self, go_on: Progress = no_progress) -> RequestImages:
        """What reads the images of one request. `go_on`: raises to end that."""
        return RequestImages(go_on, fetches=self.options.fetches_images, kept=self.fetched)

    def media_read(self, model: LocalModel) -> MediaRead:
        """What a model reads besides text; one that is not open: as far as is known of its files."""
        pooled = self.pool.opened(model)
        return may_read(model, self.pool.load_of(model)) if pooled is None else media_read(pooled)

    def _require_read(self, name: str | None, media: MediaPlaces) -> None:
        model = self.pool.answering(name)
        self.media_read(model).require(media, model.name)

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

    async def read(self, model: PooledModel, request: Request, work: ReadTexts[T]) -> tuple[T, int]:
        """Read texts for embeddings, one request at a time, in a thread that ends soon after the client disconnects.

        Returns the result of `work` and the number of tokens read. Raises APIError if the client has gone.
        """
        result, n_tokens = await in_thread(work, request, self.embedding)
        self.metrics.read(model.name, n_tokens)
        return result, n_tokens

    def answered(
        self,
        model: PooledModel,
        streams: Sequence[TextStream],
        id_slot: int | None = None,
        lora: Sequence[AdapterScale] | None = None,
    ) -> list[Stats]:
        """Count finished answers, and note in which slots they are; returns their stats."""
        stats = finished_stats(streams)
        scales = model.llm.adapters.scales_of(None if lora is None else adapter_scales(lora))
        told = dict[int | str, float](enumerate(scales)) or None
        self.metrics.answered(model.name, stats)
        for stream in streams:
            tokens = (*stream.prompt, *stream.tokens)
            model.slots.put(model.slots.choose(tokens, id_slot, self.options.parallel), tokens, told)
        return stats


def require_part(state: ServerState, part: Part) -> None:
    """Raises APIError if a part of the server is off, which clients are not to try again."""
    if part in state.options.without:
        message = f"{part} is off (`edgeinfer serve --without {part}`)"
        raise APIError(501, message, "not_supported", headers={"x-should-retry": "false"})


def server_state(request: HTTPConnection) -> ServerState:
    """The state of the server that received a request."""
    state: ServerState = request.app.state.server
    return state


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._totals = Totals()
        self.started_s = int(time.time())

        def counter(name: str, text: str, labels: Sequence[str] = ("model",)) -> Counter:
            return Counter(f"edgeinfer_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"edgeinfer_{name}", text, ("model",), buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"edgeinfer_{name}", text, ("model",), registry=registry)

        self.refused = counter("refused", "Requests that found the queue full.", ())
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._cached = counter("cached_tokens", "Tokens of prompts that had been read before.")
        self._generated = counter("generated_tokens", "Tokens of answers.")
        self._drafted = counter("drafted_tokens", "Tokens that were drafted.")
        self._accepted = counter("accepted_tokens", "Drafted tokens that the model chose too.")
        self._drafting_s = counter("drafting_seconds", "Seconds spent on drafting.")
        self._first_s = histogram("first_token_seconds", "Until the first token.", SECONDS)
        self._rate = histogram("tokens_per_second", "Tokens per second.", RATES)
        self._active = gauge("answers_active", "Concurrent requests.")
        self._waiting = gauge("answers_waiting", "Answers that wait.")
        self._pages = gauge("kv_pages", "Pages of the cache.")
        self._free_pages = gauge("kv_free_pages", "Pages of the cache that hold nothing.")
        self._resident = gauge("resident_bytes", "Bytes of weights, buffers and cache.")

    def answered(self, model: str, stats: Iterable[Stats]) -> None:
        """Count finished answers."""
        for answer in stats:
            self._totals.add(answer)
            self._prompt.labels(model).inc(answer.n_prompt)
            self._cached.labels(model).inc(answer.n_cached)
            self._generated.labels(model).inc(answer.n_generated)
            if answer.draft is not None:
                self._drafted.labels(model).inc(answer.draft.n_proposed)
                self._accepted.labels(model).inc(answer.draft.n_accepted)
                self._drafting_s.labels(model).inc(answer.draft.seconds)
            if answer.ttft_s is not None:
                self._first_s.labels(model).observe(answer.ttft_s)
            if answer.decode_tok_s is not None:
                self._rate.labels(model).observe(answer.decode_tok_s)

    def read(self, model: str, n_tokens: int) -> None:
        """Count tokens that were read for embeddings."""
        self._totals.n_read += n_tokens
        self._prompt.labels(model).inc(n_tokens)

    def closed(self, model: PooledModel) -> None:
        """Keep the counts of a model that is being closed."""
        self._totals.n_passes += model.llm.telemetry.queue.n_passes

    def text(self, models: Iterable[PooledModel]) -> bytes:
        """All metrics in Prometheus format: our own, and llama-server's."""
        queues = []
        for gauge in self._gauges():
            gauge.clear()
        for pooled in models:
            queues.append(load := pooled.llm.telemetry.queue)
            self._active.labels(pooled.name).set(load.n_active)
            self._waiting.labels(pooled.name).set(load.n_waiting)
            self._pages.labels(pooled.name).set(load.n_pages)
            self._free_pages.labels(pooled.name).set(load.n_free_pages)
            self._resident.labels(pooled.name).set(pooled.llm.telemetry.resident_bytes)
        return generate_latest(self._registry) + self._totals.text(queues).encode()

    def _gauges(self) -> Iterator[Gauge]:
        yield from (self._active, self._waiting, self._pages, self._free_pages, self._resident)
