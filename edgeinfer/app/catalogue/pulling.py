"""Background pulls, one at a time: progress, pause and resume, cancel.

In: a store, sources. Out: `PullStatus` values on request. A paused pull keeps the data received so far, even when the
program exits. Runs one thread while there is something to pull and none otherwise; knows no screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.models.download.header import Approve
from edgeinfer.models.download.policy import PullStopped
from edgeinfer.models.store import LocalModel, ModelStore
from edgeinfer.models.unfinished import Unfinished, discard_parts

State = Literal["waiting", "running", "stopping", "paused", "cancelled", "refused", "failed", "done"]
CLOSING_S = 2.0
"""How long closing waits for a transfer to stop, so that an unresponsive server cannot block the program's exit."""


@dataclass(frozen=True, slots=True)
class PullStatus:
    """Progress of a pull. `name`: of the model, once it is here; `message`: why it failed or was refused."""

    source: str
    state: State
    done_bytes: int = 0
    total_bytes: int | None = None
    bytes_per_s: float = 0.0
    name: str = ""
    message: str = ""

    @property
    def eta_s(self) -> float | None:
        """Seconds until the pull is complete at the current rate."""
        if self.total_bytes is None or self.bytes_per_s <= 0 or self.state != "running":
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.bytes_per_s

    @property
    def is_active(self) -> bool:
        """Whether it proceeds without further action by the user."""
        return self.state in ("waiting", "running", "stopping")


class Pulling:
    """One pull, `run` by a thread and controlled from others."""

    def __init__(self, store: ModelStore, source: str, approve: Approve | None = None, *, force: bool = False) -> None:
        self.source = source
        self.force = force
        self._store = store
        self._approve = approve
        self._lock = threading.Lock()
        self._stop: Literal["", "pause", "cancel"] = ""
        self._again = False
        self._parts: tuple[Path, ...] = ()
        self._status = PullStatus(source, "waiting")

    @classmethod
    def kept(cls, store: ModelStore, found: Unfinished, approve: Approve | None = None) -> Pulling:
        """A paused pull left over from an earlier run of the program."""
        pulling = cls(store, found.source, approve)
        pulling._parts = found.parts
        pulling._status = PullStatus(found.source, "paused", found.done_bytes, found.nbytes or None)
        return pulling

    @property
    def status(self) -> PullStatus:
        """Current progress."""
        return self._status

    def pause(self) -> None:
        """Stop the transfer; the data received so far is kept."""
        with self._lock:
            if self._status.state == "running":
                self._stop = self._stop or "pause"
                self._status = replace(self._status, state="stopping", bytes_per_s=0.0)
            elif self._status.state == "waiting":
                self._status = replace(self._status, state="paused")

    def resume(self, *, force: bool = False) -> None:
        """Queue again after a pause or a failure. `force`: do not reject the model because of its header."""
        with self._lock:
            self.force = self.force or force
            if self._status.state in ("paused", "failed", "refused", "cancelled"):
                self._status = replace(self._status, state="waiting", message="")
            elif self._status.state == "stopping" and self._stop == "pause":
                self._again = True  # the thread may already be stopping

    def cancel(self) -> None:
        """Stop the transfer, and delete the data received so far."""
        with self._lock:
            if self._status.state in ("running", "stopping"):
                self._stop, self._again = "cancel", False
                self._status = replace(self._status, state="stopping", bytes_per_s=0.0)
                return
            if self._status.state == "done":
                return
            self._status = replace(self._status, state="cancelled", done_bytes=0, message="")
        for found in self._store.unfinished():
            if found.source == self.source:
                found.discard()
        discard_parts(self._parts)  # parts whose source was not recorded on disk

    def run(self) -> None:
        """Pull the model, unless it is no longer waiting; the outcome is in `status`."""
        with self._lock:
            if self._status.state != "waiting":
                return
            self._stop, self._again = "", False
            self._status = replace(self._status, state="running")
        try:
            model = self._store.pull(
                self.source, progress=self._report, approve=self._approve, force=self.force or self._approve is None
            )
        except PullStopped as stopped:
            self._parts = stopped.parts
            self._end("paused" if stopped.keeps else "cancelled")
        except DoesNotFit as refusal:
            self._end("refused", str(refusal))
        except EdgeInferError as error:
            self._end("failed", str(error))
        except Exception as error:  # if the thread died here, the pull would seem to run for ever
            self._end("failed", f"{self.source}: {type(error).__name__}: {error}")
        else:
            self._finish(model)

    def _report(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        with self._lock:
            if self._stop:
                raise PullStopped(keeps=self._stop == "pause")
            self._status = replace(
                self._status, done_bytes=done_bytes, total_bytes=total_bytes, bytes_per_s=bytes_per_s
            )

    def _end(self, state: State, message: str = "") -> None:
        with self._lock:
            state = "waiting" if state == "paused" and self._again else state
            done_bytes = 0 if state in ("cancelled", "refused") else self._status.done_bytes
            self._status = replace(self._status, state=state, message=message, bytes_per_s=0.0, done_bytes=done_bytes)

    def _finish(self, model: LocalModel) -> None:
        with self._lock:
            self._status = PullStatus(self.source, "done", model.nbytes, model.nbytes, name=model.name)


class PullQueue:
    """A queue of pulls, in the order in which they were requested."""

    def __init__(self, store: ModelStore, approve: Approve | None = None) -> None:
        self._store = store
        self._approve = approve
        self._lock = threading.Lock()
        self._pulls: dict[str, Pulling] = {}
        self._thread: threading.Thread | None = None

    def add(self, source: str, *, force: bool = False) -> None:
        """Queue a pull of `source`; resumes one that was paused, failed or refused."""
        self._change(source, lambda pulling: pulling.resume(force=force), force=force)

    def pause(self, source: str) -> None:
        """Stop a pull; the data received so far is kept."""
        self._change(source, Pulling.pause)

    def cancel(self, source: str) -> None:
        """Stop a pull and delete the data received so far."""
        self._change(source, Pulling.cancel)

    def find_unfinished(self) -> None:
        """Add the unfinished pulls of earlier runs as paused ones. Reads the disk."""
        for found in self._store.unfinished():
            with self._lock:
                if found.source not in self._pulls:
                    self._pulls[found.source] = Pulling.kept(self._store, found, self._approve)

    def forget(self, source: str) -> None:
        """Remove a finished pull from the list."""
        with self._lock:
            if source in self._pulls and self._pulls[source].status.state in ("done", "cancelled", "refused", "failed"):
                del self._pulls[source]

    def statuses(self) -> tuple[PullStatus, ...]:
        """Progress of all pulls, in queue order."""
        with self._lock:
            return tuple(pulling.status for pulling in self._pulls.values())

    def status(self, source: str) -> PullStatus | None:
        """Progress of one pull; None if `source` is not in the list."""
        with self._lock:
            return self._pulls[source].status if source in self._pulls else None

    def meant(self, source: str) -> PullStatus | None:
        """The pull of `source`. If it is not in the list: the only unfinished pull, if there is exactly one."""
        found = self.status(source)
        under_way = [each for each in self.statuses() if each.is_active or each.state == "paused"]
        return under_way[0] if found is None and len(under_way) == 1 else found

    def close(self) -> None:
        """Pause everything, and wait briefly for the transfer to end."""
        with self._lock:
            thread, pulls = self._thread, tuple(self._pulls.values())
        for pulling in pulls:
            pulling.pause()
        if thread is not None:
            thread.join(CLOSING_S)

    def _change(self, source: str, change: Callable[[Pulling], None], *, force: bool | None = None) -> None:
        """Apply `change` to the pull of `source`; if there is none and `force` is given, create it first."""
        with self._lock:
            if source not in self._pulls and force is not None:
                self._pulls[source] = Pulling(self._store, source, self._approve, force=force)
            pulling = self._pulls.get(source)
        if pulling is None:
            return
        change(pulling)
        with self._lock:
            if self._thread is None and any(each.status.state == "waiting" for each in self._pulls.values()):
                self._thread = threading.Thread(target=self._work, name="edgeinfer-pulls", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                waiting = [each for each in self._pulls.values() if each.status.state == "waiting"]
                if not waiting:
                    self._thread = None
                    return
            waiting[0].run()
