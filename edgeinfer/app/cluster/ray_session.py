"""Ray as edgeinfer starts or joins it: on this computer alone unless an address says otherwise, and silent.

In: an address as `--ray` takes it. Out: a connection for the block, and whether Ray was started for it. Where edgeinfer
starts Ray itself, usage statistics and the dashboard are off, files lie in a folder of the user's, and nothing listens
beyond 127.0.0.1. A cluster that runs already has its own settings.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeinfer.app.server.listening import is_loopback
from edgeinfer.engine.running import running_folder
from edgeinfer.errors import BadSetting

LOG = logging.getLogger("edgeinfer.server")
INNER = "r"
MOST_FOLDER_BYTES = 40
"""Bytes of the path of Ray's folder: the names of its sockets come to 107 with it, the most that Linux takes."""
START = MappingProxyType(
    {
        "RAY_worker_niceness": "0",  # 15 by itself: any other program would stop the replicas
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # each thread between costs a request a millisecond
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "100",
        "GRPC_VERBOSITY": "ERROR",
    }
)
"""What Ray's processes find in their environment where edgeinfer starts Ray, if it says nothing else."""
ANSWER_S = 3.0
"""Seconds that a cluster has to take a connection."""
STORE_BYTES = 100_000_000
"""Memory for what Ray passes between processes: requests and answers are small."""


def require_ray() -> None:
    """Raises BadSetting where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise BadSetting("--ray needs ray: pip install 'edgeinfer[ray]'")


@contextmanager
def ray_session(address: str, **resources: Any) -> Iterator[bool]:
    """Be connected to Ray for the block, as by `connect`. A connection that there was stays."""
    require_ray()
    import ray

    was_connected = ray.is_initialized()
    is_own = connect(address, **resources)
    try:
        yield is_own
    finally:
        if not was_connected:
            ray.shutdown()


def connect(address: str, **resources: Any) -> bool:
    """Connect to Ray; returns whether it was started for this. A connection that there is stays.

    `resources`: of what is started, as `ray.init` takes them. Raises BadSetting if nothing runs at the address, or Ray
    does not start.
    """
    require_ray()
    import ray

    if ray.is_initialized() or _joined(address):
        return False
    _start(resources)
    return True


def _joined(address: str) -> bool:
    """Join what runs at an address; False if Ray is to be started. Raises BadSetting."""
    import ray

    known = _running_here() if address == "auto" else address
    if known is None or known == "local":
        return False
    try:
        if not known.startswith("ray://"):
            _require_answer(known)
        _keep_to_loopback(known.rpartition(":")[0].strip("[]"))
        ray.init(address=known, log_to_driver=False, logging_level=logging.ERROR, namespace="edgeinfer")
    except (ConnectionError, ValueError, RuntimeError, OSError) as reason:
        if address == "auto":
            return False
        raise BadSetting(
            f"--ray {address}: no Ray answers there ({_first_line(reason)}); `ray start --address={address}` joins "
            "this computer to a cluster, --ray local starts one here"
        ) from None
    return True


def _running_here() -> str | None:
    """The address of the cluster that this computer belongs to: RAY_ADDRESS, or what Ray has noted."""
    from ray._private.services import get_ray_address_from_environment

    with suppress(ConnectionError, OSError, ValueError):
        found: str | None = get_ray_address_from_environment("auto", None)
        return found
    return None


def _require_answer(address: str) -> None:
    """Raises OSError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S):
        pass


def _keep_to_loopback(host: str) -> None:
    """Have Ray use the loopback address where its cluster does; by itself it takes this computer's address for that."""
    from ray._private import ray_constants

    if is_loopback(host):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # its default there, where Ray keeps to one computer
        ray_constants.ENABLE_RAY_CLUSTER = False


def _start(resources: dict[str, Any]) -> None:
    """Start Ray on this computer alone. Raises BadSetting."""
    import ray

    given = {"object_store_memory": STORE_BYTES, **resources}
    _keep_to_loopback("127.0.0.1")
    for name, value in START.items():
        os.environ.setdefault(name, value)
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="edgeinfer",
            _temp_dir=str(ray_folder()),
            **given,
        )
    except Exception as reason:
        with suppress(Exception):
            ray.shutdown()
        raise BadSetting(f"Ray does not start on this computer: {_first_line(reason)}") from None


def ray_folder(preferred: Path | None = None) -> Path:
    """The folder for Ray's files and sockets: beside ours, or where that path is too long, in the temporary folder.

    Ray lets everybody write there, so it is in a folder of this user alone. Raises BadSetting.
    """
    folder = preferred or running_folder().parent / "ray"
    if len(os.fsencode(folder / INNER)) > MOST_FOLDER_BYTES:
        user = os.getuid() if hasattr(os, "getuid") else 0
        short = Path(tempfile.gettempdir()) / f"edgeinfer-ray-{user}"
        LOG.info("Ray's files are in %s: sockets cannot have a path as long as %s", short, folder)
        folder = short
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid():
        raise BadSetting(f"{folder} belongs to another user, who could change what Ray runs; remove it first")
    folder.chmod(0o700)
    return folder / INNER


def _first_line(reason: BaseException) -> str:
    return str(reason).strip().partition("\n")[0] or type(reason).__name__
