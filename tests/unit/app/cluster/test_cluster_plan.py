"""How replicas are laid out on the computers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeinfer.app.cluster import cluster_plan
from edgeinfer.app.cluster.application import MOST_AUTOMATIC
from edgeinfer.app.cluster.cluster_plan import laid_out
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.errors import BadSetting
from edgeinfer.models.store import path_model
from edgeinfer.settings import load_settings


def plan(
    cpus: Sequence[float],
    wanted: str | None = None,
    overrides: dict[str, object] | None = None,
    model: Path | None = None,
) -> tuple[float, int, int, int]:
    """CPUs of a replica; replicas at least, at most, and on each computer."""
    settings = load_settings(overrides or {}, environ={}, cwd=Path("/nowhere"), config_path=Path("/nowhere/c.toml"))
    found = None if model is None else path_model(model)
    serving, counts = laid_out(settings, ServerOptions(), found, cpus, wanted)
    return serving.n_cpus, counts.least, counts.most, counts.per_node


def test_one_on_each_computer_and_more_as_the_cluster_grows() -> None:
    assert plan([8, 8, 16]) == (8, 3, MOST_AUTOMATIC, 1)


def test_one_on_each_numa_node_where_that_is_planned(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_plan, "worker_pools", lambda *given: ((0, 1), (2, 3)))
    assert plan([16, 16], model=tiny_model) == (8, 4, MOST_AUTOMATIC, 2)


def test_as_many_as_asked_for() -> None:
    assert plan([8, 8], "1-4") == (8, 1, 4, 1)
    assert plan([8], "3") == (2, 3, 3, 3)
    assert plan([8, 8], overrides={"threads": 3}) == (3, 2, MOST_AUTOMATIC, 1)


def test_more_than_there_are_cpus_is_refused() -> None:
    with pytest.raises(BadSetting, match="--replicas 5: 3 on each computer need as many CPUs, and Ray has 2 there"):
        plan([2, 2], "5")
    with pytest.raises(BadSetting, match="no computer of the cluster offers CPUs"):
        plan([])
