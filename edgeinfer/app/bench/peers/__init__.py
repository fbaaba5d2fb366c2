"""Peers: other engines to compare with, one file each, named like the package and exporting PEER.

The folder is the registry; `llama_cpp_python.py` is the peer `llama-cpp-python`. A peer imports its package only when
it is opened, in its own process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.app.bench.subject import BenchOpening, BenchSubject
from edgeinfer.process import refuse_telemetry
from edgeinfer.registry import Registry

refuse_telemetry()  # before a peer's package is imported


@dataclass(frozen=True, slots=True)
class Peer:
    """A registry entry. `module`: what must be importable; `install`: how to install it, for messages.

    `reads_gguf`: whether it opens the GGUF file itself; otherwise it needs its own folder, given as KEY:FOLDER.
    """

    module: str
    install: str
    open: Callable[[BenchOpening], BenchSubject]
    reads_gguf: bool = True

    @property
    def installed(self) -> bool:
        """Whether the peer's package can be imported; imports nothing."""
        return importlib.util.find_spec(self.module) is not None


PEERS: Registry[Peer] = Registry("edgeinfer.app.bench.peers", "PEER", "peer")


def module_name(key: str) -> str:
    """The file of the peer with this key."""
    return key.replace("-", "_")


def peer_keys() -> tuple[str, ...]:
    """The available peers, by the names that users give."""
    return tuple(key.replace("_", "-") for key in sorted(PEERS.keys()))
