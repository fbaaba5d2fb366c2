"""A Ray cluster of several nodes on this computer, each with one CPU; skipped where Ray is not installed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.cluster.nodes import on_node

REPOSITORY = Path(__file__).resolve().parents[3]
SLOW = """
import time
import edgeinfer.app.cluster.answering as answering
answered = answering.answered_lines
def slowly(*arguments):
    time.sleep({seconds})
    return answered(*arguments)
answering.answered_lines = slowly
"""
"""What a slow node imports when its Python starts."""
OTHER = """
import edgeinfer
edgeinfer.__version__ = "0.0.9"
"""
"""What a node with another version imports."""


class Nodes:
    """The cluster: nodes to add and to kill."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder, self._n = folder, 0
        self.cluster = Cluster()
        self.add(include_dashboard=False)

    def add(self, python: str = "", variables: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Add a node; its Python runs this first, with these variables."""
        added = dict(variables or {})
        if python:
            self._n += 1
            own = self._folder / f"start-{self._n}"
            own.mkdir()
            (own / "sitecustomize.py").write_text(python)
            added["PYTHONPATH"] = os.pathsep.join([str(own), str(REPOSITORY)])
        node = self.cluster.add_node(num_cpus=1, object_store_memory=80_000_000, env_vars=added, **options)
        self._until(node.node_id, "alive")
        return node

    def kill(self, node: Any) -> None:
        """End a node at once, with all that runs on it."""
        with suppress(Exception):
            self.cluster.remove_node(node, allow_graceful=False)
        self._until(node.node_id, "gone")

    def _until(self, node_id: str, state: str) -> None:
        """Wait until Ray runs tasks on a node, or knows that it has ended."""
        import ray

        if not ray.is_initialized():
            return
        task, ends = ray.remote(num_cpus=0, max_retries=0)(lambda: 0), time.monotonic() + 60
        while time.monotonic() < ends:
            is_known = any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())
            if state == "gone" and not is_known:
                return
            with suppress(ray.exceptions.RayError):
                if state == "alive" and is_known:
                    ray.get(task.options(scheduling_strategy=on_node(node_id)).remote(), timeout=30)
                    return
            time.sleep(0.1)
        raise AssertionError(f"node {node_id} is not {state}")

    def close(self) -> None:
        """End all nodes."""
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head and a node that is forced to another instruction set; this process is connected to them."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    if sys.platform != "linux":
        pytest.skip("clusters of several nodes on one computer need Linux")
    from edgeinfer.jit import targets
    from edgeinfer.jit.cpu import cpu_features

    temporary = tempfile.mkdtemp(prefix="eray-", dir="/tmp")  # paths of sockets have 107 characters
    (Path(temporary) / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_TMPDIR", temporary)
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_worker_niceness", "0")
        patched.setenv("PYTHONPATH", str(REPOSITORY))
        patched.setenv("EDGEINFER_HOME", str(tmp_path_factory.mktemp("home")))
        found = Nodes(tmp_path_factory.mktemp("nodes"))
        try:
            can_avx2 = cpu_features().issuperset(targets.NEEDS["avx2"])
            found.add(variables={"EDGEINFER_SIMD": "avx2" if can_avx2 else "portable"})
            ray.init(address=found.cluster.address, log_to_driver=False, logging_level="ERROR")
            yield found
        finally:
            found.close()
            shutil.rmtree(temporary, ignore_errors=True)
