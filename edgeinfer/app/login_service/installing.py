"""Installs, removes and examines the service: its files, its key, and the operating system's commands in order.

In: options of `edgeinfer serve`, the operating system's module. Out: files of the user's alone, a running service, what
its state is. What fails on the way is undone. Does not know what the options mean.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer.app.login_service import launchd, systemd, windows_task
from edgeinfer.app.login_service.definition import (
    ServiceDefinition,
    ServiceFailed,
    ServiceFile,
    ServiceState,
    ServiceSystem,
    SystemCommand,
)
from edgeinfer.models.store_files import default_root
from edgeinfer.private_files import private_folder, readable_folder
from edgeinfer.process import command, environment
from edgeinfer.settings import declared_options
from edgeinfer.temporary import temporary_file

KEY_FILE = "api-key"
LOG_FILE = "serve.log"
KEY_NAME = "EDGEINFER_API_KEY"
PASSED_ON = frozenset(
    {
        "EDGEINFER_HOME",
        "PYTHONPATH",
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"),
        *("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"),
    }
)
"""Variables besides those of settings that say where models, settings, caches and this package are."""
Run = Callable[[tuple[str, ...]], "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command printed, and whether it succeeded."""

    succeeded: bool
    output: str
    complaint: str


def run_command(words: tuple[str, ...]) -> Outcome:
    """Run a command of the operating system. Raises ServiceFailed if there is no such command."""
    try:
        found = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as reason:
        raise ServiceFailed(f"{words[0]} cannot be run: {reason.strerror or reason}") from None
    output, complaint = (text.decode("utf-8", "replace").strip() for text in (found.stdout, found.stderr))
    return Outcome(found.returncode == 0, output, complaint or output)


@dataclass(frozen=True, slots=True)
class Service:
    """The service of this user. `folder`: ours, for the key and the log."""

    system: ServiceSystem
    folder: Path
    run: Run = run_command

    @property
    def key_path(self) -> Path:
        """The file with the key that clients present."""
        return self.folder / KEY_FILE

    @property
    def log_path(self) -> Path:
        """The file with the output, where the operating system keeps none."""
        return self.folder / LOG_FILE

    def file(self, options: Sequence[str], *, with_key: bool) -> ServiceFile:
        """The operating system's file for a server with these options. Raises ServiceFailed."""
        key = ["--token-file", str(self.key_path)] if with_key else []
        inherited = environment(os.environ)
        named = PASSED_ON | {option.environment_name for option in declared_options().values()}
        passed = {name: inherited[name] for name in sorted(named & inherited.keys())}
        words = tuple(command("edgeinfer", "serve", *options, *key))
        definition = ServiceDefinition(words, Path.cwd(), passed, self.log_path)
        if self.system.is_bare:
            definition = replace(definition, command=_logged(definition, ["serve", *options, *key]))
        return self.system.file(definition)

    def install(self, file: ServiceFile, key: str | None) -> None:
        """Write the files and start the service. Raises ServiceFailed, with everything as it was before."""
        kept = {path: _content(path) for path in (file.path, self.key_path)}
        try:
            make_private(self.folder)
            if key is not None:
                write_private(self.key_path, key.encode())
            readable_folder(file.path.parent)
            write_private(file.path, file.content)
            self._take(self.system.starting())
        except OSError as reason:
            self._undo(kept)
            raise ServiceFailed(f"the service cannot be installed: {reason}") from None
        except BaseException:
            self._undo(kept)
            raise

    def uninstall(self) -> tuple[Path, ...]:
        """End the service and remove its files, key and log; returns what was removed. Raises ServiceFailed."""
        if not self.system.path().exists():
            return self._remove_files()
        self._take(self.system.ending())
        removed = self._remove_files()
        self._take(self.system.after_removal())
        return removed

    def state(self) -> ServiceState | None:
        """What the operating system says of it; None if it is not installed. Raises ServiceFailed."""
        if not self.system.path().exists():
            return None
        found = self.run(self.system.asking().command)
        if not found.succeeded and not found.output:
            return replace(
                self.system.state(""), word=found.complaint.splitlines()[0] if found.complaint else "unknown"
            )
        return self.system.state(found.output)

    def key(self, environ: Mapping[str, str]) -> str:
        """The key that the person has set, else the one that clients already have, else a new random one."""
        return environ.get(KEY_NAME) or self.kept_key() or secrets.token_urlsafe(32)

    def kept_key(self) -> str | None:
        """The key of an earlier installation, which clients already have."""
        with suppress(OSError, UnicodeDecodeError):
            return self.key_path.read_text(encoding="utf-8").strip() or None
        return None

    def _take(self, steps: Sequence[SystemCommand], *, strictly: bool = True) -> None:
        for step in steps:
            outcome = self.run(step.command)
            if not outcome.succeeded and not step.may_fail and strictly:
                raise ServiceFailed(f"{' '.join(step.command)}: {outcome.complaint or 'failed'}; {self.system.needs}")

    def _undo(self, kept: Mapping[Path, bytes | None]) -> None:
        """Go back to the files that were there before, and to the service that they describe, if any."""
        is_new = kept[self.system.path()] is None
        with suppress(ServiceFailed):
            self._take(self.system.ending() if is_new else (), strictly=False)
        for path, content in kept.items():
            _restore(path, content)
        self._drop_folder()
        with suppress(ServiceFailed):
            self._take(self.system.after_removal() if is_new else self.system.starting(), strictly=False)

    def _remove_files(self) -> tuple[Path, ...]:
        logs = (self.log_path, self.log_path.with_suffix(".before.log"))
        removed = []
        for path in (self.system.path(), self.key_path, *logs):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as reason:
                raise ServiceFailed(f"{path} cannot be removed: {reason.strerror or reason}") from None
            removed.append(path)
        self._drop_folder()
        return tuple(removed)

    def _drop_folder(self) -> None:
        with suppress(OSError):  # a person's own files stay, and with them the folder
            self.folder.rmdir()


def this_service() -> Service:
    """The service of this user on this computer. Raises ServiceFailed on systems without a known way."""
    folder = default_root().parent / "service"
    if sys.platform == "win32":
        return Service(windows_task.here(folder), folder)
    if sys.platform == "darwin":
        return Service(launchd.here(), folder)
    if sys.platform == "linux":
        return Service(systemd.here(), folder)
    raise ServiceFailed(f"services of {sys.platform} are not known; start `edgeinfer serve` by its own means")


def make_private(folder: Path) -> None:
    """A folder that this user alone can enter; on Windows the profile's access list says so."""
    private_folder(folder)
    if os.name == "posix":
        folder.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that this user alone can read. Raises OSError."""
    handle, name = temporary_file(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _logged(definition: ServiceDefinition, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command of a definition for a system that keeps no output and sets no variables."""
    variables = [f"{name}={value}" for name, value in definition.environment.items()]
    words = command("edgeinfer.app.login_service.logged", str(definition.log), *variables, "--", *arguments)
    quiet = Path(words[0]).with_name("pythonw.exe")  # the same Python, without a window
    return (str(quiet) if quiet.exists() else words[0], *words[1:])


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _restore(path: Path, content: bytes | None) -> None:
    with suppress(OSError):
        if content is None:
            path.unlink(missing_ok=True)
        else:
            write_private(path, content)
