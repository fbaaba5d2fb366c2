"""The tools of a chat: their servers start in a thread of their own, while the chat can be used already.

In: servers. Out: a toolbox once it is ready, what permissions the person gave for all later calls, and notices of
servers that failed: a chat goes on without their tools, and tries them again with each question. Knows no screens.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from edgeinfer.app.mcp.connections import END_LIMIT_S, LOOK_S, Connections, IsStopped
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.mcp.toolbox import StartNews, Toolbox
from edgeinfer.errors import BadSetting, EdgeInferError


class ChatTools:
    """The tools of these servers. Start it once, and close it; nothing is started before."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        """Raises BadSetting where the package that speaks the protocol is not installed."""
        if importlib.util.find_spec("mcp") is None:  # importing it takes long; `start` does
            raise BadSetting("MCP servers need mcp: pip install 'edgeinfer[mcp]'")
        self.servers = tuple(servers)
        self.allowed: set[str] = set()
        """The keys of tools that need no permission any more."""
        self._trouble = ""
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
        """The tools; None before they are ready, and if they cannot be used together."""
        return self._toolbox

    @property
    def failures(self) -> tuple[str, ...]:
        """Why servers, or all of them together, cannot be used."""
        found = () if self._toolbox is None else self._toolbox.failures
        return (self._trouble, *found) if self._trouble else found

    def wait(self, is_stopped: IsStopped, tell: Callable[[StartNews], None]) -> Toolbox | None:
        """Wait for the tools, or until the caller is stopped; None if there are none.

        Servers that failed before are tried again; `tell` is called with what is new about them.
        """
        is_first = not self._ready.is_set()
        while not self._ready.wait(LOOK_S):
            if is_stopped():
                return None
        toolbox = self._toolbox
        if toolbox is not None and not is_first:
            for news in toolbox.try_again(is_stopped):
                tell(news)
        return toolbox if toolbox is not None and toolbox.tools else None

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
        try:
            with self._lock:
                if self._is_closed:
                    return
                self._connections = Connections()
            toolbox = Toolbox(self.servers, self._connections)
            _ = toolbox.tools  # starts them
            self._toolbox = toolbox
        except EdgeInferError as reason:
            self._trouble = str(reason)
        finally:
            self._ready.set()
        if not self._is_closed:
            with suppress(RuntimeError):  # the face has gone
                for failure in self.failures:
                    tell(failure)
