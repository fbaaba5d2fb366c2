"""A home for one campaign: an environment of its own, and what lies about in it.

In: a folder. Out: environments of commands, files, and those that a dead process left. Compiled kernels are shared with
the user's own home, so that nothing is compiled again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import platformdirs

from edgeinfer.temporary import OWNED

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
MARK = "EDGEINFER_FAULT_RUN"
"""Variable in the environment of all processes of one run."""
CLOCK_FILE = "EDGEINFER_FAULT_CLOCK"
CLOCK = f"""
import os, time

_time, _time_ns, _path = time.time, time.time_ns, os.environ["{CLOCK_FILE}"]


def _ahead_s():
    with open(_path) as file:
        return int(file.read())


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + 1_000_000_000 * _ahead_s()
"""
"""A module that Python imports at its start: clocks that `set_clock` sets. Monotonic ones and times of files stay."""


class Home:
    """A folder that commands take for the user's home, and the device that they use."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, device
        self.data = folder / "data"
        self.temporary = folder / "tmp"
        self._clock: Path | None = None
        for path in (self.data, self.temporary, folder / ".cache" / "edgeinfer"):
            path.mkdir(parents=True, exist_ok=True)
        kernels = folder / ".cache" / "edgeinfer" / "kernels"
        own = Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels"
        own.mkdir(parents=True, exist_ok=True)
        if not kernels.exists():
            kernels.symlink_to(own.resolve())

    def environment(self, run: str) -> dict[str, str]:
        """Variables of a command; `run` marks its processes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEINFER_", "XDG_"))}
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {
            "HOME": str(self.folder),
            "EDGEINFER_HOME": str(self.data),
            "EDGEINFER_DEVICE": self.device,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": paths,
            "TERM": "xterm-256color",
        }
        if self._clock is not None:
            own |= {CLOCK_FILE: str(self._clock), "PYTHONPATH": f"{self._clock.parent}{os.pathsep}{paths}"}
        return {**kept, **own, MARK: f"{run} {os.urandom(6).hex()}"}

    def use_clock(self) -> None:
        """Give commands a clock that `set_clock` sets."""
        self._clock = self.folder / "clock" / "ahead_s"
        self._clock.parent.mkdir(exist_ok=True)
        self._clock.with_name("sitecustomize.py").write_text(CLOCK)
        self.set_clock(0)

    def set_clock(self, ahead_s: int) -> None:
        """Set the clock of all running commands: so many seconds ahead of that of the system."""
        if self._clock is not None:
            fresh = self._clock.with_suffix(".new")
            fresh.write_text(str(ahead_s))
            fresh.replace(self._clock)

    @property
    def mark(self) -> bytes:
        """What the environment of all commands in this home has."""
        return f"EDGEINFER_HOME={self.data}".encode()

    def empty(self) -> None:
        """Delete what runs have written."""
        for folder in (self.data, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    def files(self) -> list[Path]:
        """All files that runs have written."""
        found = (path for folder in (self.data, self.temporary) for path in folder.rglob("*"))
        return [path for path in found if path.is_file()]

    def opened(self) -> dict[int, str]:
        """Names of models that are open, by the processes that say so; of a process that has several, one."""
        found = {}
        for path in (self.data / "running").glob("*.process"):
            with contextlib.suppress(OSError, ValueError):
                note = json.loads(path.read_text())
                if "model" in note and not note["loading"]:
                    found[int(note["pid"])] = str(note["model"])
        return found

    def litter(self, pids: set[int]) -> list[str]:
        """Names of what processes that are gone have left: temporary files, locks and notes of what runs."""
        found = []
        for folder in (self.data, self.temporary):
            for path in folder.rglob("*"):
                is_lock = path.suffix == ".lock" and path.name.startswith(".")
                if OWNED.search(path.name) or is_lock or path.suffix == ".process":
                    found.append(str(path.relative_to(self.folder)))
        found += [path.name for path in self.temporary.iterdir() if not OWNED.search(path.name)]
        return found + [f"/dev/shm/{name}" for name in self.shared_memory(pids)]

    def shared_memory(self, pids: set[int]) -> list[str]:
        """Shared memory that these processes have named."""
        names = [path.name for path in SHARED_MEMORY.iterdir()] if SHARED_MEMORY.is_dir() else []
        return [name for name in names if (owned := OWNED.search(name)) is not None and int(owned["pid"]) in pids]
