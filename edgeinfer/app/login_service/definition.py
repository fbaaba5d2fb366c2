"""What a service is, whatever the operating system: its definition, its file, and the system's commands as data.

In: a command, a folder, variables. Out: frozen records. Each operating system has a module beside this one, which turns
a `ServiceDefinition` into a file and into `SystemCommand` values. Runs nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgeinfer.errors import EdgeInferError

NAME = "edgeinfer"
"""The service's name in the operating system."""
DESCRIPTION = "edgeinfer: a server of local language models"


class ServiceFailed(EdgeInferError):
    """The operating system did not accept, start or end the service. The message has its words."""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A command that runs from login on, in a folder, with variables besides those of the session.

    `log`: the file for its output where the operating system keeps no log.
    """

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A file that tells the operating system of the service; `text` is for people, `content` for the disk."""

    path: Path
    text: str
    encoding: str = "utf-8"

    @property
    def content(self) -> bytes:
        return self.text.encode(self.encoding)


@dataclass(frozen=True, slots=True)
class SystemCommand:
    """A command of the operating system. `may_fail`: its failure means that there was nothing to do."""

    command: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the operating system says of the service: one word of its own, and the process if it names one."""

    is_running: bool
    word: str
    pid: int | None = None


class ServiceSystem(Protocol):
    """An operating system's way to run a program from login on."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def is_bare(self) -> bool:
        """Whether it neither keeps output nor sets variables, so that `logged` has to."""

    @property
    def needs(self) -> str:
        """What its commands need, for messages about their failures."""

    def file(self, definition: ServiceDefinition) -> ServiceFile:
        """The file that describes the service. Raises ServiceFailed for what it cannot hold."""

    def path(self) -> Path:
        """Where that file is."""

    def starting(self) -> tuple[SystemCommand, ...]:
        """Once the file is written: what makes the service run now and at every login."""

    def ending(self) -> tuple[SystemCommand, ...]:
        """While the file is there: what ends the service and takes it out of the login."""

    def after_removal(self) -> tuple[SystemCommand, ...]:
        """What is to be said to the operating system when the file is gone."""

    def asking(self) -> SystemCommand:
        """The command whose output `state` reads."""

    def state(self, output: str) -> ServiceState:
        """Read what `asking` printed; nothing printed means not running."""

    def log_words(self, log: Path) -> str:
        """Where the log is: a file, or the command that shows it."""

    def hint(self) -> str | None:
        """What a person may want to do besides, if anything."""
