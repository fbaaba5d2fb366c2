"""The script that measures serving, without what it measures."""

from __future__ import annotations

import sys

import pytest

from scripts import measure_serving


@pytest.mark.parametrize(("given", "done"), [((), ["watched", "server"]), (("server",), ["server"])])
def test_it_measures_all_where_nothing_is_named(
    given: tuple[str, ...], done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_stats: list[str] = []
    what = {name: lambda model, runs, name=name: finished_stats.append(name) for name in ("watched", "server")}
    monkeypatch.setattr(measure_serving, "WHAT", what)
    monkeypatch.setattr(measure_serving, "idle", lambda: 1.0)
    monkeypatch.setattr(sys, "argv", ["measure_serving.py", *given])
    measure_serving.main()
    assert finished_stats == done
    monkeypatch.setattr(sys, "argv", ["measure_serving.py", "nothing"])
    with pytest.raises(SystemExit):
        measure_serving.main()
    assert finished_stats == done
