"""The connection to a Ray cluster: one that runs, or one made of this computer for as long as it is needed.

In: an address, or AUTO. Out: a context in which Ray can be used. Ray reports no usage and shows no dashboard, and what it
and its workers log stays in its own folder. Starts nothing on other computers.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from edgeinfer.errors import BadSetting, EdgeInferError

AUTO, LOCAL = "auto", "local"
"""The cluster of RAY_ADDRESS or of this computer, else one made of it; always a new one."""
CLIENT = "ray://"
LONGEST_FOLDER = 36
"""Characters of a folder in which Ray's sockets have room: their paths may have 107."""
OBJECT_BYTES = 256 << 20
"""Shared memory of a cluster made here, which has answers and pieces of models on their way."""


def require_ray() -> ModuleType:
    """Ray, with its usage reports off. Raises BadSetting if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what its C++ parts print on standard error
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster made here: as fast as without one
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as reason:
        raise BadSetting(f"--ray needs {reason.name or 'ray'}: pip install 'edgeinfer[ray]'") from None


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """A context in which Ray is connected to the cluster. Raises BadSetting, and EdgeInferError if nothing is there."""
    ray = require_ray()
    if address.startswith(CLIENT):
        raise BadSetting(
            f"{address} is an address for Ray's client; run the command on a computer of the cluster, with --ray or "
            "--ray HOST:PORT"
        )
    if ray.is_initialized():
        yield ray
        return
    with ExitStack() as opened:
        found = _existing(ray) if address == AUTO else None if address == LOCAL else address
        try:
            if found is None:
                _start_here(ray, opened)
            else:
                _init(ray, address=found)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as reason:
            said = (str(reason).strip() or type(reason).__name__).splitlines()[0]
            hint = "; `ray start --head` starts a cluster, and --ray local takes this computer alone"
            raise EdgeInferError(f"no connection to Ray at {found or 'this computer'}: {said}{hint}") from None
        opened.callback(ray.shutdown)
        yield ray


def _existing(ray: ModuleType) -> str | None:
    """The address that the environment names, or of a cluster that this computer belongs to."""
    named = os.environ.get("RAY_ADDRESS")
    if named and named != AUTO:
        return named
    from ray._private.services import find_gcs_addresses

    found = sorted(find_gcs_addresses())
    return AUTO if found else None


def _init(ray: ModuleType, **options: object) -> None:
    """Connect. What Ray's C++ parts print meanwhile is dropped; errors are raised."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _start_here(ray: ModuleType, opened: ExitStack) -> None:
    """Start a cluster of this computer, in a folder that goes with it."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) + len("/eray-12345678") <= LONGEST_FOLDER else "/tmp"
    folder = tempfile.mkdtemp(prefix="eray-", dir=parent)
    opened.callback(shutil.rmtree, folder, ignore_errors=True)
    _init(ray, address=LOCAL, include_dashboard=False, object_store_memory=OBJECT_BYTES, _temp_dir=folder)
