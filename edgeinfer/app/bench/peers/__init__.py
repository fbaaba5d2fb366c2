"""Other engines to be measured beside ours: a file each, named like the package, exporting PEER.

The folder is the registry; `llama_cpp_python.py` is the peer `llama-cpp-python`. A peer imports its package only when
it is opened, in a process of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.app.bench.messages import BenchOpening
from edgeinfer.app.bench.subject import BenchSubject
from edgeinfer.privacy import refuse_telemetry
from edgeinfer.registry import Registry

refuse_telemetry()  # before any peer's package is imported


@dataclass(frozen=True, slots=True)
class Peer:
    """A registry entry. `module`: what must be importable; `install`: how to get it, for messages.

    `reads_gguf`: whether it opens the very file; else it needs a folder of its own, given as KEY:FOLDER.
    """

    module: str
    install: str
    open: Callable[[BenchOpening], BenchSubject]
    reads_gguf: bool = True

    @property
    def installed(self) -> bool:
        """Whether its package can be imported; imports nothing."""
        return importlib.util.find_spec(self.module) is not None


PEERS: Registry[Peer] = Registry("edgeinfer.app.bench.peers", "PEER", "peer")


def module_name(key: str) -> str:
    """The file of a peer's key."""
    return key.replace("-", "_")


def peer_keys() -> tuple[str, ...]:
    """The peers there are, as users name them."""
    return tuple(key.replace("_", "-") for key in sorted(PEERS.keys()))
