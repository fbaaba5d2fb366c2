"""Prometheus metrics: counters of requests and tokens, gauges of models.

In: stats of finished answers, open models. Out: text in Prometheus format. Each server has its own registry; none is
global.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from edgeinfer.app.server.model_pool import PooledModel
    from edgeinfer.engine.scheduler.stats import Stats

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

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
            self._prompt.labels(model).inc(answer.n_prompt)
            self._cached.labels(model).inc(answer.n_cached)
            self._generated.labels(model).inc(answer.n_generated)
            for count in () if answer.draft is None else answer.draft.sources.values():
                self._drafted.labels(model).inc(count.proposed)
                self._accepted.labels(model).inc(count.accepted)
            if answer.ttft_s is not None:
                self._first_s.labels(model).observe(answer.ttft_s)
            if answer.decode_tok_s is not None:
                self._rate.labels(model).observe(answer.decode_tok_s)

    def text(self, models: Iterable[PooledModel]) -> bytes:
        """All metrics in Prometheus format."""
        for gauge in self._gauges():
            gauge.clear()
        for pooled in models:
            load = pooled.llm.telemetry.queue
            self._active.labels(pooled.name).set(load.n_active)
            self._waiting.labels(pooled.name).set(load.n_waiting)
            self._pages.labels(pooled.name).set(load.n_pages)
            self._free_pages.labels(pooled.name).set(load.n_free_pages)
            self._resident.labels(pooled.name).set(pooled.llm.telemetry.resident_bytes)
        return generate_latest(self._registry)

    def _gauges(self) -> Iterator[Gauge]:
        yield from (self._active, self._waiting, self._pages, self._free_pages, self._resident)
