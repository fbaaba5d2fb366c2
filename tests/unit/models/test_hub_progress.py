"""The bar that the hub's client draws on: what was there before is no speed."""

from __future__ import annotations

import pytest

from edgeinfer.models.hub_client import progress_bar_class


def test_bytes_of_an_earlier_download_are_reported_without_a_rate() -> None:
    pytest.importorskip("tqdm")
    reports: list[tuple[int, int | None, float]] = []
    bar = progress_bar_class(lambda *report: reports.append(report), 100, 1000)(total=800, initial=500)
    assert reports == [(600, 1000, 0.0)]
    bar.close()
