"""Counters for Prometheus: what was asked and made, and how things stand.

In: answers that are over, models. Out: text in Prometheus' form. One registry for each server, none global.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from edgeinfer.app.server.hosting import Hosted
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
        self._made = counter("generated_tokens", "Tokens of answers.")
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
        """Answers are over."""
        for each in stats:
            self._prompt.labels(model).inc(each.n_prompt)
            self._cached.labels(model).inc(each.n_cached)
            self._made.labels(model).inc(each.n_generated)
            for count in () if each.draft is None else each.draft.sources.values():
                self._drafted.labels(model).inc(count.proposed)
                self._accepted.labels(model).inc(count.accepted)
            if each.ttft_s is not None:
                self._first_s.labels(model).observe(each.ttft_s)
            if each.decode_tok_s is not None:
                self._rate.labels(model).observe(each.decode_tok_s)

    def text(self, models: Iterable[Hosted]) -> bytes:
        """All counters, in Prometheus' form."""
        for gauge in self._gauges():
            gauge.clear()
        for hosted in models:
            load = hosted.llm.telemetry.queue
            self._active.labels(hosted.name).set(load.n_active)
            self._waiting.labels(hosted.name).set(load.n_waiting)
            self._pages.labels(hosted.name).set(load.n_pages)
            self._free_pages.labels(hosted.name).set(load.n_free_pages)
            self._resident.labels(hosted.name).set(hosted.llm.telemetry.resident_bytes)
        return generate_latest(self._registry)

    def _gauges(self) -> Iterator[Gauge]:
        yield from (self._active, self._waiting, self._pages, self._free_pages, self._resident)
