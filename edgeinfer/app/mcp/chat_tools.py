"""The tools of a chat: their servers start in a thread of their own, while the chat can be used already.

In: servers. Out: a toolbox once it is ready, what permissions the person gave for all later calls, and notices of
servers that failed: a chat goes on without their tools. Knows no screens.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from edgeinfer.app.mcp.connections import END_LIMIT_S, LOOK_S, Connections, IsStopped
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import Toolbox
from edgeinfer.errors import BadSetting, EdgeInferError


class ChatTools:
    """The tools of these servers. Start it once, and close it; nothing is started before."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        """Raises BadSetting where the package that speaks the protocol is not installed."""
        if importlib.util.find_spec("mcp") is None:  # importing it takes long; `start` does
            raise BadSetting("MCP servers need mcp: pip install 'edgeinfer[mcp]'")
        self.servers = tuple(servers)
        self.allowed: set[str] = set()
        """The names of tools that need no permission any more."""
        self.failures: tuple[str, ...] = ()
        self._connections: Connections | None = None
        self._toolbox: Toolbox | None = None
        self._ready = threading.Event()
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, tell: Callable[[str], None]) -> None:
        """Start the servers. `tell` is called from a thread with what fails."""
        self._thread = threading.Thread(target=self._start, args=(tell,), name="edgeinfer-mcp-start", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether all servers have started or failed."""
        return self._ready.is_set()

    @property
    def toolbox(self) -> Toolbox | None:
        """The tools; None before they are ready, and if there are none."""
        return self._toolbox

    def wait(self, is_stopped: IsStopped) -> Toolbox | None:
        """Wait for the tools, or until the caller is stopped; None if there are none."""
        while not self._ready.wait(LOOK_S):
            if is_stopped():
                return None
        return self._toolbox

    def close(self) -> None:
        """End the servers; may be called twice."""
        with self._lock:
            self._is_closed = True
            connections = self._connections
        if connections is not None:
            connections.close()
        if self._thread is not None:
            self._thread.join(END_LIMIT_S)

    def _start(self, tell: Callable[[str], None]) -> None:
        failures: list[str] = []
        try:
            with self._lock:
                if self._is_closed:
                    return
                self._connections = Connections()
            toolbox = Toolbox(self.servers, self._connections)
            n_tools = len(toolbox.tools)
            failures += toolbox.failures
            self._toolbox = toolbox if n_tools else None
        except EdgeInferError as reason:
            failures.append(str(reason))
        finally:
            self.failures = tuple(failures)
            self._ready.set()
        if not self._is_closed:
            with suppress(RuntimeError):  # the face has gone
                for failure in failures:
                    tell(failure)
