"""The merged page is in Prometheus format, as its own parser reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edgeinfer.app.cluster.merged_metrics import merged_metrics


def page(n: int, *models: str) -> str:
    registry = CollectorRegistry()
    counter = Counter("tokens", 'Tokens of "all" kinds.', ["model"], registry=registry)
    seconds = Histogram("seconds", "Seconds.", buckets=(1.0, 2.0), registry=registry)
    for model in models:
        counter.labels(model).inc(n)
        seconds.observe(1.5)
    return generate_latest(registry).decode()


def test_samples_of_all_replicas_are_there_with_their_names() -> None:
    merged = merged_metrics([("r1", page(3, "small")), ("r2", page(4, "small", 'a"b, {c}'))])
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    totals = {
        (sample.labels["replica"], sample.labels["model"]): sample.value
        for sample in families["tokens"].samples
        if sample.name == "tokens_total"
    }
    assert totals == {("r1", "small"): 3, ("r2", "small"): 4, ("r2", 'a"b, {c}'): 4}
    assert families["tokens"].documentation == 'Tokens of "all" kinds.'
    counts = [sample for sample in families["seconds"].samples if sample.name == "seconds_count"]
    assert {sample.labels["replica"]: sample.value for sample in counts} == {"r1": 1, "r2": 2}


def test_no_pages_are_an_empty_page() -> None:
    assert merged_metrics([]) == ""
